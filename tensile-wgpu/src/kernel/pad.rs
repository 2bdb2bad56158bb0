//! `pad` and `slice`.

use tensile_core::op::pad::{Pad, Slice};

use super::strided::{Dim, MAX_RANK, copy, strides};
use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

const PARAMS: &[(&str, &str)] = &[
    ("n", "u32"),
    ("rank", "u32"),
    ("size", "u32"),
    ("start", "u32"),
    ("n0", "u32"),
    ("size0", "u32"),
    ("start0", "u32"),
    ("n1", "u32"),
    ("size1", "u32"),
    ("start1", "u32"),
    ("n2", "u32"),
    ("size2", "u32"),
    ("start2", "u32"),
    ("n3", "u32"),
    ("size3", "u32"),
    ("start3", "u32"),
    ("n4", "u32"),
    ("size4", "u32"),
    ("start4", "u32"),
    ("n5", "u32"),
    ("size5", "u32"),
    ("start5", "u32"),
    ("n6", "u32"),
    ("size6", "u32"),
    ("start6", "u32"),
];

static WORDS: Shader = Shader {
    name: "pad",
    source: include_str!("pad.wgsl"),
    buffers: &[("x", "u32"), ("y", "u32")],
    params: PARAMS,
    snippets: &[("zero", "0u")],
    libraries: &[],
    workgroup: 256,
};

static VECTORS: Shader = Shader {
    name: "pad_vectors",
    source: include_str!("pad.wgsl"),
    buffers: &[("x", "vec4<u32>"), ("y", "vec4<u32>")],
    params: PARAMS,
    snippets: &[("zero", "vec4<u32>()")],
    libraries: &[],
    workgroup: 256,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&WORDS, &VECTORS];

/// A dimension of the padded tensor: its size, the unpadded tensor's, and where that begins.
#[derive(Clone, Copy)]
struct Side {
    n: usize,
    size: usize,
    start: usize,
}

impl Kernel for Pad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (x, y) = (types.inputs[0], types.outputs[0]);
        let bindings = vec![types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        if y.numel() == 0 {
            return Ok(Plan::default());
        }
        // Innermost first; a dimension without padding is one with the next outer.
        let mut sides: Vec<Side> = Vec::new();
        for axis in (0..y.dims().len()).rev() {
            let side = Side { n: y.dims()[axis], size: x.dims()[axis], start: self.before[axis] };
            match sides.last_mut() {
                Some(last) if last.n == last.size => {
                    let whole = last.n;
                    *last = Side { n: side.n * whole, size: side.size * whole, start: side.start * whole };
                }
                _ => sides.push(side),
            }
        }
        let mut n = y.numel();
        let shader = match sides.first_mut() {
            Some(side) if [side.n, side.size, side.start].iter().all(|word| word.is_multiple_of(4)) => {
                *side = Side { n: side.n / 4, size: side.size / 4, start: side.start / 4 };
                n /= 4;
                &VECTORS
            }
            _ => &WORDS,
        };
        let outer = sides.pop().unwrap_or(Side { n: 1, size: 1, start: 0 });
        let mut words = vec![n, sides.len(), outer.size, outer.start];
        sides.resize(MAX_RANK - 1, Side { n: 1, size: 1, start: 0 });
        words.extend(sides.iter().flat_map(|side| [side.n, side.size, side.start]));
        let params = words.into_iter().map(|word| word as u32).collect();
        let groups = (n as u64).div_ceil(u64::from(shader.workgroup));
        Ok(Plan { workspace: 0, dispatches: vec![Dispatch { shader, bindings, params, groups }] })
    }
}

impl Kernel for Slice {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let (from, to) = (strides(types.inputs[0].dims()), strides(&self.size));
        let first = self.start.iter().zip(&from).map(|(start, stride)| start * stride).sum();
        let dims = (0..self.size.len()).rev().map(|axis| Dim { n: self.size[axis], x: from[axis], y: to[axis] });
        Ok(Plan { workspace: 0, dispatches: copy(dims, [first, 0], bindings).into_iter().collect() })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::op::pad::{Pad, Slice};

    use super::super::tests::{check, random};

    fn check_both(size: &[usize], before: &[usize], after: &[usize]) {
        check(Pad { before: before.to_vec(), after: after.to_vec() }, &[random(size, 3)], 0.0);
        let large: Vec<usize> = (0..size.len()).map(|axis| before[axis] + size[axis] + after[axis]).collect();
        check(Slice { start: before.to_vec(), size: size.to_vec() }, &[random(large, 4)], 0.0);
    }

    #[test]
    fn boxes_of_all_kinds() {
        check_both(&[], &[], &[]);
        check_both(&[1], &[0], &[0]);
        check_both(&[1], &[2], &[3]);
        check_both(&[3, 4, 5], &[1, 0, 2], &[0, 3, 0]);
        check_both(&[3, 4, 8], &[1, 0, 0], &[0, 3, 0]);
        check_both(&[3, 4, 8], &[1, 2, 4], &[0, 0, 12]);
        check_both(&[2, 300, 5], &[0, 1, 0], &[0, 0, 0]);
        check_both(&[2, 1, 2, 3, 1, 2, 2, 3], &[1, 0, 1, 0, 1, 2, 0, 1], &[0, 1, 1, 1, 0, 1, 1, 0]);
        check_both(&[2, 2, 1, 3, 1, 2, 2, 4], &[1, 0, 1, 0, 1, 2, 0, 4], &[0, 1, 1, 1, 0, 1, 1, 0]);
    }
}
