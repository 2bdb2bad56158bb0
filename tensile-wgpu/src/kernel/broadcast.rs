//! Ops that make each element from operands which repeat along some dimensions, as in NumPy.
//!
//! Where rows are whole vectors (or there is one row), an invocation finds its four elements' place once; else it finds each one's.

use super::{Binding, Caps, Dispatch, Place, Plan, Types, window};
use crate::shader::Shader;

/// Most dimensions of a tensor; core's limit for ops that broadcast.
const MAX_RANK: usize = 8;
/// Elements an invocation takes: one vector.
const VECTOR: u64 = 4;
/// Elements between places where a window can start.
const STEP: u64 = 64;

/// WGSL of all these ops.
pub(super) const SOURCE: &str = include_str!("broadcast.wgsl");

/// Parameters before an op's own.
macro_rules! params {
    ($($param:expr),*) => {
        &[
            ("n", "u32"), ("skip", "u32"), ("rank", "u32"),
            ("d0", "u32"), ("d1", "u32"), ("d2", "u32"), ("d3", "u32"), ("d4", "u32"), ("d5", "u32"), ("d6", "u32"),
            ("a_first", "u32"), ("a_still", "u32"), ("a_outer", "u32"),
            ("a0", "u32"), ("a1", "u32"), ("a2", "u32"), ("a3", "u32"), ("a4", "u32"), ("a5", "u32"), ("a6", "u32"),
            ("b_first", "u32"), ("b_still", "u32"), ("b_outer", "u32"),
            ("b0", "u32"), ("b1", "u32"), ("b2", "u32"), ("b3", "u32"), ("b4", "u32"), ("b5", "u32"), ("b6", "u32"),
            $($param),*
        ]
    };
}
pub(super) use params;

/// Moves on by dimension `$k`.
macro_rules! step {
    ($k:literal) => {
        concat!(
            "let q = rest / p.d",
            $k,
            "; let k = rest - q * p.d",
            $k,
            "; at_a += k * p.a",
            $k,
            "; at_b += k * p.b",
            $k,
            "; rest = q;"
        )
    };
}
pub(super) use step;

/// Loads operand `$x` where a vector lies in one row, or each of its elements.
macro_rules! load {
    (rows, $x:literal) => {
        concat!(
            "let row_",
            $x,
            " = $",
            $x,
            "[at_",
            $x,
            " >> 2u]; let ",
            $x,
            " = select(row_",
            $x,
            ", vec4(row_",
            $x,
            "[at_",
            $x,
            " & 3u]), p.",
            $x,
            "_still != 0u);"
        )
    };
    (each, $x:literal) => {
        concat!(
            "let ",
            $x,
            " = vec4($",
            $x,
            "[at_",
            $x,
            ".x >> 2u][at_",
            $x,
            ".x & 3u], $",
            $x,
            "[at_",
            $x,
            ".y >> 2u][at_",
            $x,
            ".y & 3u], $",
            $x,
            "[at_",
            $x,
            ".z >> 2u][at_",
            $x,
            ".z & 3u], $",
            $x,
            "[at_",
            $x,
            ".w >> 2u][at_",
            $x,
            ".w & 3u]);"
        )
    };
}
pub(super) use load;

/// The number of a vector's elements: that of the first, or of all four.
macro_rules! number {
    (rows) => {
        "u32(first)"
    };
    (each) => {
        "vec4<u32>(clamp(first + vec4(0, 1, 2, 3), vec4(0), vec4(n - 1)))"
    };
}
pub(super) use number;

/// A shader: name, form (`rows` or `each`), names of the operands, f in WGSL with them, more parameters.
macro_rules! shader {
    ($name:expr, $form:ident, [$($operand:literal),+], $f:literal, [$($param:expr),*]) => {
        $crate::shader::Shader {
            name: $name,
            source: $crate::kernel::broadcast::SOURCE,
            buffers: &[$(($operand, "vec4<f32>"),)+ ("y", "vec4<f32>")],
            params: $crate::kernel::broadcast::params!($($param),*),
            snippets: &[
                ("number", $crate::kernel::broadcast::number!($form)),
                ("step0", $crate::kernel::broadcast::step!("0")),
                ("step1", $crate::kernel::broadcast::step!("1")),
                ("step2", $crate::kernel::broadcast::step!("2")),
                ("step3", $crate::kernel::broadcast::step!("3")),
                ("step4", $crate::kernel::broadcast::step!("4")),
                ("step5", $crate::kernel::broadcast::step!("5")),
                ("step6", $crate::kernel::broadcast::step!("6")),
                ("load", concat!($($crate::kernel::broadcast::load!($form, $operand), "\n    "),+)),
                ("f", $f),
            ],
            libraries: &[],
            workgroup: 256,
        }
    };
}
pub(super) use shader;

/// The two forms of an op's shader.
#[derive(Clone, Copy)]
pub(super) struct Forms {
    pub(super) rows: &'static Shader,
    pub(super) each: &'static Shader,
}

/// A dimension of the output: its size, and by how many elements each operand moves along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dim {
    size: u64,
    strides: [u64; 2],
}

/// The output's dimensions from the innermost, without those of size 1, neighbours merged where both operands allow it; at least one.
fn dims(output: &[usize], operands: [&[usize]; 2]) -> Vec<Dim> {
    let mut all: Vec<Dim> = Vec::new();
    let mut elements = [1; 2];
    for (from_last, &size) in output.iter().rev().enumerate().filter(|(_, size)| **size != 1) {
        let sizes = operands.map(|dims| dims.iter().rev().nth(from_last).map_or(1, |&size| size as u64));
        let strides = [0, 1].map(|k| if sizes[k] == 1 { 0 } else { elements[k] });
        match all.last_mut() {
            Some(inner) if strides == inner.strides.map(|stride| stride * inner.size) => inner.size *= size as u64,
            _ => all.push(Dim { size: size as u64, strides }),
        }
        elements = [0, 1].map(|k| elements[k] * sizes[k]);
    }
    if all.is_empty() {
        all.push(Dim { size: 1, strides: [0; 2] });
    }
    all
}

/// Successive elements of the output that one dispatch makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    n: u64,
    /// First element of each operand.
    first: [u64; 2],
    /// Elements of each operand from the first to the last that is read.
    span: [u64; 2],
}

/// Divides the output so that neither a range nor what it reads of an operand is longer than `limit` elements. A range is a run of whole blocks, a block being
/// all of some inner dimensions, within the next dimension: so it reads one stretch of each operand.
fn ranges(dims: &[Dim], limit: u64) -> Vec<Range> {
    let total: u64 = dims.iter().map(|dim| dim.size).product();
    let mut all = Vec::new();
    let mut start = 0;
    while start < total {
        let (mut first, mut rest) = ([0; 2], start);
        for dim in dims {
            first = [0, 1].map(|k| first[k] + rest % dim.size * dim.strides[k]);
            rest /= dim.size;
        }
        let mut range = Range { start, n: 0, first, span: [0; 2] };
        let (mut block, mut span) = (1, [1; 2]);
        for dim in dims {
            let left = dim.size - start / block % dim.size;
            let fit = [0, 1].map(|k| match dim.strides[k] {
                0 => left,
                stride => (limit - span[k]) / stride + 1,
            });
            let n = left.min(limit / block).min(fit[0]).min(fit[1]);
            range.n = n * block;
            range.span = [0, 1].map(|k| span[k] + (n - 1) * dim.strides[k]);
            // A block of the next dimension must begin here and fit.
            block *= dim.size;
            span = [0, 1].map(|k| span[k] + (dim.size - 1) * dim.strides[k]);
            if !start.is_multiple_of(block) || block > limit || span.iter().any(|&span| span > limit) {
                break;
            }
        }
        start += range.n;
        all.push(range);
    }
    all
}

/// Runs an op on one operand or two, which broadcast to output 0; `params` stand behind those of every such op.
pub(super) fn plan(forms: Forms, types: Types<'_>, params: &[u32], caps: &Caps) -> Plan {
    let operands = [0, 1].map(|k| types.inputs.get(k).map_or(&[][..], |ty| ty.dims()));
    let dims = dims(types.outputs[0].dims(), operands);
    debug_assert!(dims.len() <= MAX_RANK);
    let most = caps.max_binding.min(1 << 31) / 4;
    let fits = types.inputs.iter().chain(types.outputs).all(|ty| ty.numel() as u64 <= most);
    // Up to a step is lost where a window starts before its first element.
    let limit = if fits { most } else { (most / STEP - 1).max(1) * STEP };
    let dispatches = ranges(&dims, limit).into_iter().map(|range| {
        let bind = |place, first: u64, span: u64| -> (Binding, u64) {
            let skip = first % STEP;
            (window(place, first - skip, skip + span, 4), skip)
        };
        let (output, skip) = bind(Place::Output(0), range.start, range.n);
        let mut bindings = Vec::new();
        let mut whole = skip.is_multiple_of(VECTOR) && (dims.len() == 1 || dims[0].size.is_multiple_of(VECTOR));
        let last = dims.len() - 1;
        let word = |k: usize| dims.get(k).filter(|_| k < last).map_or(1, |dim| dim.size as u32);
        let mut words = vec![range.n as u32, skip as u32, dims.len() as u32];
        words.extend((0..MAX_RANK - 1).map(word));
        for k in 0..2 {
            let still = dims[0].strides[k] == 0;
            let mut first = 0;
            if k < types.inputs.len() {
                let (binding, skip) = bind(Place::Input(k), range.first[k], range.span[k]);
                bindings.push(binding);
                first = skip;
                whole &= still || skip.is_multiple_of(VECTOR);
            }
            words.extend([first as u32, u32::from(still), dims[last].strides[k] as u32]);
            let stride = |axis: usize| dims.get(axis).filter(|_| axis < last).map_or(0, |dim| dim.strides[k] as u32);
            words.extend((0..MAX_RANK - 1).map(stride));
        }
        words.extend(params);
        bindings.push(output);
        let shader = if whole { forms.rows } else { forms.each };
        Dispatch {
            shader,
            bindings,
            params: words,
            groups: (skip + range.n).div_ceil(VECTOR * u64::from(shader.workgroup)),
        }
    });
    Plan { workspace: 0, dispatches: dispatches.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_merge() {
        let dim = |size, strides| Dim { size, strides };
        assert_eq!(dims(&[2, 3, 4], [&[2, 3, 4], &[2, 3, 4]]), [dim(24, [1, 1])]);
        assert_eq!(dims(&[2, 3, 4], [&[2, 3, 4], &[3, 4]]), [dim(12, [1, 1]), dim(2, [12, 0])]);
        assert_eq!(dims(&[2, 3, 4], [&[2, 1, 1], &[4]]), [dim(4, [0, 1]), dim(3, [0, 0]), dim(2, [1, 0])]);
        assert_eq!(dims(&[1, 1], [&[1], &[]]), [dim(1, [0, 0])]);
    }

    #[test]
    fn ranges_read_stretches_that_fit() {
        let shapes: [(&[usize], [&[usize]; 2]); 6] = [
            (&[1000], [&[1000], &[1]]),
            (&[7, 300], [&[7, 300], &[300]]),
            (&[300, 7], [&[300, 1], &[300, 7]]),
            (&[5, 4, 129], [&[5, 1, 129], &[4, 1]]),
            (&[3, 2, 5, 2, 9], [&[3, 1, 5, 1, 9], &[2, 5, 2, 9]]),
            (&[2, 1000, 2], [&[1000, 1], &[2, 1, 2]]),
        ];
        for (output, operands) in shapes {
            let dims = dims(output, operands);
            for limit in [1, 64, 128, 100_000] {
                let mut next = 0;
                for range in ranges(&dims, limit) {
                    assert_eq!(range.start, next);
                    next += range.n;
                    assert!(range.n > 0 && range.n <= limit && range.span.iter().all(|&span| span <= limit));
                    for element in range.start..next {
                        let (mut at, mut rest) = ([0; 2], element);
                        for dim in &dims {
                            at = [0, 1].map(|k| at[k] + rest % dim.size * dim.strides[k]);
                            rest /= dim.size;
                        }
                        for k in [0, 1] {
                            assert!(at[k] >= range.first[k] && at[k] < range.first[k] + range.span[k]);
                        }
                    }
                }
                assert_eq!(next, output.iter().product::<usize>() as u64);
                assert!(limit < 100_000 || ranges(&dims, limit).len() == 1);
            }
        }
    }
}
