//! `permute`: the same elements with the dimensions in another order.

use std::ops::Range;

use bytemuck::Pod;
use rayon::prelude::*;

use super::broadcast::MAX_RANK;
use super::elementwise::CHUNK;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::isa::Isa;
use crate::tensor::TensorType;

/// Dimension i of the output is dimension `order[i]` of the input, of any element type. Its gradient is the inverse permutation.
#[derive(Clone, Debug, PartialEq)]
pub struct Permute {
    /// Each dimension once.
    pub order: Vec<usize>,
}

impl OpDef for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else {
            return Err(OpError(format!("takes one input, not {}", inputs.len())));
        };
        let rank = x.dims().len();
        if rank > MAX_RANK || self.order.len() != rank || (0..rank).any(|axis| !self.order.contains(&axis)) {
            return Err(OpError(format!(
                "cannot order {rank} dimensions as {:?}; each must stand there once, and at most {MAX_RANK} are possible",
                self.order
            )));
        }
        let dims: Vec<usize> = self.order.iter().map(|&axis| x.dims()[axis]).collect();
        Ok(vec![TensorType::new(x.dtype, dims)])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let mut inverse = vec![0; self.order.len()];
        for (to, &from) in self.order.iter().enumerate() {
            inverse[from] = to;
        }
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(Permute { order: inverse }, &[dy])?)])
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: (inputs[0].bytes() + outputs[0].bytes()) as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        match call.input_type(0).dtype.size() {
            1 => self.run::<u8>(call, transpose),
            4 => {
                let isa = Isa::detect();
                self.run::<u32>(call, |sizes, x, y| transpose_words(isa, sizes, x, y));
            }
            size => unreachable!("no dtype has {size} bytes"),
        }
    }
}

/// Rows of the output's innermost dimension that are transposed at a time.
const BLOCK: usize = 16;

impl Permute {
    /// `transpose` puts element (r, c) of a matrix of these sizes with rows a distance apart to place (c, r) of another.
    fn run<T: Pod + Send + Sync>(
        &self,
        call: &HostCall<'_>,
        transpose: impl Fn([usize; 2], (&[T], usize), (&mut [T], usize)) + Sync,
    ) {
        let (x, y): (&[T], &mut [T]) = (call.input(0), call.output(0));
        if y.is_empty() {
            return;
        }
        let walk = Walk::new(call.input_type(0).dims(), &self.order);
        // The output's dimension along which the input's elements are neighbours; those before it are walked through within a block.
        let Some(along) = walk.strides[..walk.rank].iter().position(|&stride| stride == 1) else {
            return y.copy_from_slice(x);
        };
        let inner = walk.sizes[0];
        if along == 0 {
            let rows = (CHUNK / inner).max(1);
            y.par_chunks_mut(rows * inner).enumerate().for_each(|(chunk, y)| {
                walk.each(1..walk.rank, chunk * rows, y.chunks_exact_mut(inner), |from, y| {
                    y.copy_from_slice(&x[from..from + inner]);
                });
            });
            return;
        }
        let step: usize = walk.sizes[..along].iter().product();
        y.par_chunks_mut(step * walk.sizes[along]).enumerate().for_each(|(outer, y)| {
            let first = walk.offset(along + 1..walk.rank, outer);
            y.par_chunks_mut(step * BLOCK).enumerate().for_each(|(block, y)| {
                let columns = y.len() / step;
                walk.each(1..along, 0, 0..step / inner, |from, row| {
                    let x = &x[first + block * BLOCK + from..];
                    transpose([inner, columns], (x, walk.strides[0]), (&mut y[row * inner..], step));
                });
            });
        });
    }
}

/// Dimensions of the output, innermost first, those of size 1 left out and neighbours merged where they are neighbours in the input too.
struct Walk {
    rank: usize,
    sizes: [usize; MAX_RANK],
    /// Of the input along each.
    strides: [usize; MAX_RANK],
}

impl Walk {
    fn new(dims: &[usize], order: &[usize]) -> Self {
        let mut walk = Self { rank: 0, sizes: [1; MAX_RANK], strides: [1; MAX_RANK] };
        for &axis in order.iter().rev().filter(|&&axis| dims[axis] != 1) {
            let stride = dims[axis + 1..].iter().product();
            match walk.rank.checked_sub(1) {
                Some(last) if walk.strides[last] * walk.sizes[last] == stride => walk.sizes[last] *= dims[axis],
                _ => {
                    (walk.sizes[walk.rank], walk.strides[walk.rank]) = (dims[axis], stride);
                    walk.rank += 1;
                }
            }
        }
        walk
    }

    /// Where entry `index` of some dimensions is in the input.
    fn offset(&self, axes: Range<usize>, mut index: usize) -> usize {
        let mut offset = 0;
        for axis in axes {
            offset += index % self.sizes[axis] * self.strides[axis];
            index /= self.sizes[axis];
        }
        offset
    }

    /// Calls `f(where the entry is in the input, item)` for entries of some dimensions from number `first` on.
    fn each<I>(&self, axes: Range<usize>, first: usize, items: impl Iterator<Item = I>, mut f: impl FnMut(usize, I)) {
        let (mut index, mut rest) = ([0; MAX_RANK], first);
        for axis in axes.clone() {
            index[axis] = rest % self.sizes[axis];
            rest /= self.sizes[axis];
        }
        let mut from = self.offset(axes.clone(), first);
        for item in items {
            f(from, item);
            for axis in axes.clone() {
                index[axis] += 1;
                from += self.strides[axis];
                if index[axis] < self.sizes[axis] {
                    break;
                }
                index[axis] = 0;
                from -= self.sizes[axis] * self.strides[axis];
            }
        }
    }
}

fn transpose<T: Copy>([rows, columns]: [usize; 2], (x, x_row): (&[T], usize), (y, y_row): (&mut [T], usize)) {
    for c in 0..columns {
        let y = &mut y[c * y_row..][..rows];
        for (r, y) in y.iter_mut().enumerate() {
            *y = x[r * x_row + c];
        }
    }
}

/// [`transpose`], whole blocks with vectors.
fn transpose_words(
    isa: Isa,
    [rows, columns]: [usize; 2],
    (x, x_row): (&[u32], usize),
    (y, y_row): (&mut [u32], usize),
) {
    let whole = if columns == BLOCK { rows / BLOCK * BLOCK } else { 0 };
    if whole > 0 {
        isa.transpose((whole, BLOCK), (bytemuck::cast_slice(x), x_row), (bytemuck::cast_slice_mut(y), y_row));
    }
    if whole < rows {
        transpose([rows - whole, columns], (&x[whole * x_row..], x_row), (&mut y[whole..], y_row));
    }
}

impl Graph {
    /// `x` with its dimensions in another order: dimension i of the result is dimension `order[i]` of `x`.
    ///
    /// # Errors
    /// If `order` is not a permutation of the dimensions.
    pub fn permute(&mut self, x: Value, order: &[usize]) -> Result<Value, GraphError> {
        self.apply1(Permute { order: order.to_vec() }, &[x])
    }
}
