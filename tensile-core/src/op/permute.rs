//! `permute`: the same elements with the dimensions in another order.

use bytemuck::Pod;
use rayon::prelude::*;

use super::broadcast::MAX_RANK;
use super::elementwise::CHUNK;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
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
            1 => self.run::<u8>(call),
            4 => self.run::<u32>(call),
            size => unreachable!("no dtype has {size} bytes"),
        }
    }
}

impl Permute {
    fn run<T: Pod + Send + Sync>(&self, call: &HostCall<'_>) {
        let (x, y): (&[T], &mut [T]) = (call.input(0), call.output(0));
        let dims = call.input_type(0).dims();
        // Innermost first: sizes of the output, and the input's stride along each.
        let (mut sizes, mut strides) = ([1; MAX_RANK], [1; MAX_RANK]);
        for (to, &from) in self.order.iter().rev().enumerate() {
            sizes[to] = dims[from];
            strides[to] = dims[from + 1..].iter().product();
        }
        let (inner, stride) = (sizes[0], strides[0]);
        let rows = (CHUNK / inner).max(1);
        y.par_chunks_mut(rows * inner).enumerate().for_each(|(chunk, y)| {
            for (row, y) in y.chunks_exact_mut(inner).enumerate() {
                let (mut index, mut from) = (chunk * rows + row, 0);
                for axis in 1..dims.len() {
                    from += index % sizes[axis] * strides[axis];
                    index /= sizes[axis];
                }
                if stride == 1 {
                    y.copy_from_slice(&x[from..from + inner]);
                } else {
                    y.iter_mut().zip(x[from..].iter().step_by(stride)).for_each(|(y, x)| *y = *x);
                }
            }
        });
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
