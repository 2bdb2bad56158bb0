//! Copies of boxes of 32-bit elements between places of any strides: what concat, slice, permute and the heads of attention are made of.

use super::{Binding, Dispatch};
use crate::shader::Shader;

/// A dimension of a box: its size, and how many elements its neighbours are apart in source and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dim {
    pub(super) n: usize,
    pub(super) x: usize,
    pub(super) y: usize,
}

/// Most dimensions of a box after neighbours are merged.
pub(super) const MAX_RANK: usize = 8;

const PARAMS: &[(&str, &str)] = &[
    ("n", "u32"),
    ("rank", "u32"),
    ("x_at", "u32"),
    ("y_at", "u32"),
    ("x_side", "u32"),
    ("y_side", "u32"),
    ("x_outer", "u32"),
    ("y_outer", "u32"),
    ("n0", "u32"),
    ("x0", "u32"),
    ("y0", "u32"),
    ("n1", "u32"),
    ("x1", "u32"),
    ("y1", "u32"),
    ("n2", "u32"),
    ("x2", "u32"),
    ("y2", "u32"),
    ("n3", "u32"),
    ("x3", "u32"),
    ("y3", "u32"),
    ("n4", "u32"),
    ("x4", "u32"),
    ("y4", "u32"),
    ("n5", "u32"),
    ("x5", "u32"),
    ("y5", "u32"),
    ("n6", "u32"),
    ("x6", "u32"),
    ("y6", "u32"),
];

const SOURCE: &str = include_str!("strided.wgsl");

static WORDS: Shader = Shader {
    name: "strided",
    source: SOURCE,
    buffers: &[("x", "u32"), ("y", "u32")],
    params: PARAMS,
    snippets: &[("copy", "$y[y] = $x[x];")],
    libraries: &[],
    workgroup: 256,
};

static VECTORS: Shader = Shader {
    name: "strided_vectors",
    source: SOURCE,
    buffers: &[("x", "vec4<u32>"), ("y", "vec4<u32>")],
    params: PARAMS,
    snippets: &[("copy", "$y[y] = $x[x];")],
    libraries: &[],
    workgroup: 256,
};

/// Blocks of 4 × 4 elements, rows of one becoming columns of the other.
static TRANSPOSE: Shader = Shader {
    name: "strided_transpose",
    source: SOURCE,
    buffers: &[("x", "vec4<u32>"), ("y", "vec4<u32>")],
    params: PARAMS,
    snippets: &[("copy", include_str!("strided_transpose.wgsl"))],
    libraries: &[],
    workgroup: 64,
};

/// For targets that are filled from first to last, four elements an invocation.
static GATHER: Shader = Shader {
    name: "strided_gather",
    source: include_str!("strided_gather.wgsl"),
    buffers: &[("x", "u32"), ("y", "vec4<u32>")],
    params: PARAMS,
    snippets: &[("store", include_str!("store.wgsl")), ("vector", "vec4<u32>")],
    libraries: &[],
    workgroup: 64,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&WORDS, &VECTORS, &TRANSPOSE, &GATHER];

/// Leaves out dimensions of size 1 and merges those that are one in both source and target. Dimensions stand innermost first.
pub(super) fn merged(dims: impl IntoIterator<Item = Dim>) -> Vec<Dim> {
    let mut merged: Vec<Dim> = Vec::new();
    for dim in dims.into_iter().filter(|dim| dim.n != 1) {
        match merged.last_mut() {
            Some(last) if last.n * last.x == dim.x && last.n * last.y == dim.y => last.n *= dim.n,
            _ => merged.push(dim),
        }
    }
    merged
}

/// Copies a box that begins at elements `at` of source and target, none if it is empty. Dimensions stand innermost first in the target; after merging there are
/// [`MAX_RANK`] at most.
pub(super) fn copy(dims: impl IntoIterator<Item = Dim>, at: [usize; 2], bindings: [Binding; 2]) -> Option<Dispatch> {
    let mut dims = merged(dims);
    if dims.iter().any(|dim| dim.n == 0) {
        return None;
    }
    let [mut at, mut side] = [at, [0, 0]];
    let aligned = |dims: &[Dim]| dims.iter().all(|dim| dim.x.is_multiple_of(4) && dim.y.is_multiple_of(4));
    let aligned_but = |skip: &[usize]| {
        let others: Vec<Dim> = (0..dims.len()).filter(|index| !skip.contains(index)).map(|index| dims[index]).collect();
        aligned(&others) && at.iter().all(|at| at.is_multiple_of(4))
    };
    let whole = |dim: &Dim| dim.n.is_multiple_of(4);
    let along = dims.iter().position(|dim| dim.x == 1 && dim.n > 1);
    let shader = match (dims.first(), along) {
        (Some(inner), Some(0)) if inner.y == 1 && whole(inner) && aligned_but(&[0]) => {
            dims[0].n /= 4;
            dims[1..].iter_mut().for_each(|dim| (dim.x, dim.y) = (dim.x / 4, dim.y / 4));
            at = at.map(|at| at / 4);
            &VECTORS
        }
        (Some(inner), Some(along))
            if along > 0
                && inner.y == 1
                && whole(inner)
                && whole(&dims[along])
                && inner.x.is_multiple_of(4)
                && dims[along].y.is_multiple_of(4)
                && aligned_but(&[0, along]) =>
        {
            // Four elements on along either is one vector in one of the tensors and four rows in the other.
            side = [dims[0].x / 4, dims[along].y / 4];
            for (index, dim) in dims.iter_mut().enumerate() {
                if index == 0 {
                    dim.n /= 4;
                } else if index == along {
                    *dim = Dim { n: dim.n / 4, x: 1, y: dim.y };
                } else {
                    (dim.x, dim.y) = (dim.x / 4, dim.y / 4);
                }
            }
            at = at.map(|at| at / 4);
            &TRANSPOSE
        }
        _ if at[1] == 0 && is_filled(&dims) => &GATHER,
        _ => &WORDS,
    };
    let n: usize = dims.iter().map(|dim| dim.n).product();
    let outer = dims.pop().unwrap_or(Dim { n: 1, x: 0, y: 0 });
    let mut params = vec![n, dims.len(), at[0], at[1], side[0], side[1], outer.x, outer.y];
    dims.resize(MAX_RANK - 1, Dim { n: 1, x: 0, y: 0 });
    params.extend(dims.iter().flat_map(|dim| [dim.n, dim.x, dim.y]));
    let invocations = if std::ptr::eq(shader, &GATHER) { n.div_ceil(4) } else { n } as u64;
    let groups = invocations.div_ceil(u64::from(shader.workgroup));
    let params = params.into_iter().map(|word| word as u32).collect();
    Some(Dispatch { shader, bindings: bindings.to_vec(), params, groups })
}

/// Whether a box is all of the target's first elements.
fn is_filled(dims: &[Dim]) -> bool {
    let mut inner = 1;
    dims.iter().all(|dim| {
        let filled = dim.y == inner;
        inner *= dim.n;
        filled
    })
}

/// Elements between neighbours along each dimension of a shape, outermost first.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|axis| dims[axis + 1..].iter().product()).collect()
}
