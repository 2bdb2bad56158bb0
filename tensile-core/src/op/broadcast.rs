//! Broadcasting as in NumPy: the shapes' last dimensions are matched, and a dimension of size 1, or a missing one, repeats.

use rayon::prelude::*;

use super::OpError;
use super::affine::Affine;
use super::elementwise::CHUNK;
use super::reduce_sum::ReduceSum;
use crate::device::host::{HostCall, InOut};
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, Shape, TensorType};

/// Most dimensions of a tensor that broadcasts or is reduced.
pub(crate) const MAX_RANK: usize = 8;

/// Size of dimension `axis` of `rank` when `dims` are matched from the last; missing ones have size 1.
fn aligned(dims: &[usize], axis: usize, rank: usize) -> usize {
    if axis + dims.len() < rank { 1 } else { dims[axis + dims.len() - rank] }
}

/// Type rule: two f32 tensors whose shapes broadcast.
pub(crate) fn infer(inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
    let [a, b] = inputs else {
        return Err(OpError(format!("takes two inputs, not {}", inputs.len())));
    };
    if a.dtype != DType::F32 || b.dtype != DType::F32 {
        return Err(OpError("takes f32 tensors".to_owned()));
    }
    let rank = a.dims().len().max(b.dims().len());
    if rank > MAX_RANK {
        return Err(OpError(format!("takes tensors of at most {MAX_RANK} dimensions")));
    }
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        match (aligned(a.dims(), axis, rank), aligned(b.dims(), axis, rank)) {
            (m, n) if m == n || n == 1 => dims.push(m),
            (1, n) => dims.push(n),
            (m, n) => return Err(OpError(format!("cannot match sizes {m} and {n} of dimension {axis}"))),
        }
    }
    Ok(vec![TensorType::f32(dims)])
}

/// How `N` operands are read along an output: dimensions without those of size 1, neighbours merged where every operand allows it.
pub(crate) struct Walk<const N: usize> {
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [[usize; MAX_RANK]; N],
}

impl<const N: usize> Walk<N> {
    pub(crate) fn new(output: &[usize], operands: [&[usize]; N]) -> Self {
        let mut walk = Self { rank: 0, dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; N] };
        let mut elements = [1; N];
        // From the last dimension; entry 0 of the walk is the innermost.
        for axis in (0..output.len()).rev().filter(|&axis| output[axis] != 1) {
            let sizes = operands.map(|dims| aligned(dims, axis, output.len()));
            let strides: [usize; N] = std::array::from_fn(|k| if sizes[k] == 1 { 0 } else { elements[k] });
            let merges = walk.rank > 0 && {
                let inner = walk.rank - 1;
                (0..N).all(|k| strides[k] == walk.strides[k][inner] * walk.dims[inner])
            };
            if merges {
                walk.dims[walk.rank - 1] *= output[axis];
            } else {
                walk.dims[walk.rank] = output[axis];
                for (all, stride) in walk.strides.iter_mut().zip(strides) {
                    all[walk.rank] = stride;
                }
                walk.rank += 1;
            }
            for k in 0..N {
                elements[k] *= sizes[k];
            }
        }
        walk
    }

    /// Whether operand `k` moves along the innermost dimension (by one element) or stands still.
    pub(crate) fn moves(&self, k: usize) -> bool {
        self.strides[k][0] != 0
    }

    /// Cuts output elements `start .. start + len` into runs within the innermost dimension, and calls
    /// `run(first element of the run counted from start, its length, each operand's first element)`.
    pub(crate) fn runs(&self, start: usize, len: usize, mut run: impl FnMut(usize, usize, [usize; N])) {
        let inner = self.dims[0];
        let mut at = start;
        while at < start + len {
            let (mut row, column) = (at / inner, at % inner);
            let mut offsets: [usize; N] = std::array::from_fn(|k| column * self.strides[k][0]);
            for axis in 1..self.rank {
                let index = row % self.dims[axis];
                row /= self.dims[axis];
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset += index * strides[axis];
                }
            }
            let n = (inner - column).min(start + len - at);
            run(at - start, n, offsets);
            at += n;
        }
    }
}

/// Output 0 from inputs 0 and 1, which broadcast; input 0 may share the output's place if it has its size.
pub(crate) fn binary(call: &HostCall<'_>, f: impl Fn(f32, f32) -> f32 + Sync) {
    let b: &[f32] = call.input(1);
    let dims = [call.input_type(0).dims(), call.input_type(1).dims()];
    let walk = Walk::new(call.output_type(0).dims(), dims);
    match call.in_out::<f32>(0, 0) {
        InOut::Same(y) => y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            walk.runs(chunk * CHUNK, y.len(), |start, n, [_, from_b]| {
                let y = &mut y[start..start + n];
                if walk.moves(1) {
                    y.iter_mut().zip(&b[from_b..from_b + n]).for_each(|(y, b)| *y = f(*y, *b));
                } else {
                    let b = b[from_b];
                    y.iter_mut().for_each(|y| *y = f(*y, b));
                }
            });
        }),
        InOut::Separate(a, y) => y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            walk.runs(chunk * CHUNK, y.len(), |start, n, [from_a, from_b]| {
                let y = &mut y[start..start + n];
                match (walk.moves(0), walk.moves(1)) {
                    (true, true) => {
                        for ((y, a), b) in y.iter_mut().zip(&a[from_a..from_a + n]).zip(&b[from_b..from_b + n]) {
                            *y = f(*a, *b);
                        }
                    }
                    (true, false) => {
                        let b = b[from_b];
                        y.iter_mut().zip(&a[from_a..from_a + n]).for_each(|(y, a)| *y = f(*a, b));
                    }
                    (false, true) => {
                        let a = a[from_a];
                        y.iter_mut().zip(&b[from_b..from_b + n]).for_each(|(y, b)| *y = f(a, *b));
                    }
                    (false, false) => y.fill(f(a[from_a], b[from_b])),
                }
            });
        }),
    }
}

/// Gradient of an operand from `factor` times that of a broadcast output: sums over the dimensions along which it repeats.
pub(crate) fn reduce_to(graph: &mut Graph, dy: Value, shape: &Shape, factor: f32) -> Result<Value, GraphError> {
    let dims = graph.dims(dy);
    let axes: Vec<usize> =
        (0..dims.len()).filter(|&axis| dims[axis] != 1 && aligned(shape.dims(), axis, dims.len()) == 1).collect();
    let dx = if !axes.is_empty() {
        graph.apply1(ReduceSum { axes, keep_dims: true, scale: factor }, &[dy])?
    } else if factor != 1.0 {
        graph.apply1(Affine { scale: factor, shift: 0.0 }, &[dy])?
    } else {
        dy
    };
    graph.reshape(dx, shape.clone())
}
