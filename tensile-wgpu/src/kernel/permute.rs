//! `permute`.

use tensile_core::op::permute::Permute;

use super::strided::{Dim, MAX_RANK, copy, merged, strides};
use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

static BYTES: Shader = Shader {
    name: "permute_bytes",
    source: include_str!("permute_bytes.wgsl"),
    buffers: &[("x", "u32"), ("y", "u32")],
    params: &[
        ("n", "u32"),
        ("rank", "u32"),
        ("outer", "u32"),
        ("n0", "u32"),
        ("x0", "u32"),
        ("n1", "u32"),
        ("x1", "u32"),
        ("n2", "u32"),
        ("x2", "u32"),
        ("n3", "u32"),
        ("x3", "u32"),
        ("n4", "u32"),
        ("x4", "u32"),
        ("n5", "u32"),
        ("x5", "u32"),
        ("n6", "u32"),
        ("x6", "u32"),
    ],
    snippets: &[],
    libraries: &[],
    workgroup: 64,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&BYTES];

impl Kernel for Permute {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (x, y) = (types.inputs[0], types.outputs[0]);
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let (from, to) = (strides(x.dims()), strides(y.dims()));
        let dims = (0..self.order.len()).rev();
        let dims = dims.map(|axis| Dim { n: y.dims()[axis], x: from[self.order[axis]], y: to[axis] });
        let dispatch = match x.dtype.size() {
            4 => copy(dims, [0, 0], bindings),
            1 => bytes(merged(dims), y.numel(), bindings),
            size => return Err(Refused::Other(format!("elements of {size} bytes"))),
        };
        Ok(Plan { workspace: 0, dispatches: dispatch.into_iter().collect() })
    }
}

/// Gathers `n` bytes, a word an invocation.
fn bytes(mut dims: Vec<Dim>, n: usize, bindings: [super::Binding; 2]) -> Option<Dispatch> {
    let outer = dims.pop().unwrap_or(Dim { n: 1, x: 1, y: 1 });
    let mut words = vec![n, dims.len(), outer.x];
    dims.resize(MAX_RANK - 1, Dim { n: 1, x: 0, y: 0 });
    words.extend(dims.iter().flat_map(|dim| [dim.n, dim.x]));
    let params = words.into_iter().map(|word| word as u32).collect();
    let groups = (n as u64).div_ceil(4 * u64::from(BYTES.workgroup));
    (n > 0).then(|| Dispatch { shader: &BYTES, bindings: bindings.to_vec(), params, groups })
}

#[cfg(test)]
mod tests {
    use tensile_core::op::permute::Permute;
    use tensile_core::{DType, TensorType};

    use super::super::tests::{check, random};

    /// Elements of four bytes and of one.
    fn check_both(dims: &[usize], order: &[usize]) {
        let op = Permute { order: order.to_vec() };
        let (ty, bytes) = random(dims, 3);
        check(op.clone(), &[(TensorType::new(DType::I32, ty.shape.clone()), bytes.clone())], 0.0);
        let bytes = bytes.into_iter().step_by(4).collect();
        check(op, &[(TensorType::new(DType::U8, ty.shape), bytes)], 0.0);
    }

    #[test]
    fn orders_of_all_kinds() {
        check_both(&[], &[]);
        check_both(&[1], &[0]);
        check_both(&[7], &[0]);
        check_both(&[5, 3], &[0, 1]);
        check_both(&[5, 3], &[1, 0]);
        check_both(&[8, 12], &[1, 0]);
        check_both(&[4, 36], &[1, 0]);
        check_both(&[8, 10], &[1, 0]);
        check_both(&[3, 4, 10], &[2, 0, 1]);
        check_both(&[2, 8, 3, 16], &[0, 2, 1, 3]);
        check_both(&[2, 8, 3, 16], &[0, 3, 2, 1]);
        check_both(&[2, 8, 3, 16], &[3, 2, 0, 1]);
        check_both(&[4, 3, 8, 5], &[3, 1, 0, 2]);
        check_both(&[2, 3, 1, 2, 3, 2, 2, 3], &[7, 5, 3, 1, 6, 4, 2, 0]);
        check_both(&[4, 3, 2, 3, 2, 3, 2, 8], &[7, 5, 3, 1, 6, 4, 2, 0]);
        check_both(&[70, 66], &[1, 0]);
    }

    #[test]
    fn numbers_keep_their_bits() {
        let (ty, mut bytes) = random([6, 9], 4);
        bytes[..4].copy_from_slice(&[1, 0, 0xa0, 0x7f]);
        check(Permute { order: vec![1, 0] }, &[(TensorType::i32(ty.shape), bytes)], 0.0);
    }

    #[test]
    fn more_groups_than_a_row_holds() {
        // An odd size: no blocks.
        check(Permute { order: vec![1, 0] }, &[random([4097, 4096], 5)], 0.0);
    }
}
