//! `concat`: tensors side by side along one dimension.

use rayon::prelude::*;

use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Any number of f32 tensors that differ in dimension `axis` at most. The gradient of each is a slice of dy.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// The dimension that becomes longer.
    pub axis: usize,
}

impl OpDef for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let refused = || OpError(format!("takes f32 tensors that differ in dimension {} at most", self.axis));
        let mut dims = inputs.first().ok_or_else(refused)?.dims().to_vec();
        if self.axis >= dims.len() {
            return Err(refused());
        }
        dims[self.axis] = 0;
        for ty in inputs {
            if ty.dtype != DType::F32 || ty.dims().len() != dims.len() {
                return Err(refused());
            }
            if (0..dims.len()).any(|axis| axis != self.axis && ty.dims()[axis] != dims[axis]) {
                return Err(refused());
            }
            dims[self.axis] += ty.dims()[self.axis];
        }
        Ok(vec![TensorType::f32(dims)])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (dy, mut start) = (call.output_grad(), 0);
        let mut grads = Vec::with_capacity(call.inputs.len());
        for (&input, &need) in call.inputs.iter().zip(call.needs) {
            let len = call.graph.dims(input)[self.axis];
            grads.push(if need { Some(call.graph.slice(dy, self.axis, start, len)?) } else { None });
            start += len;
        }
        Ok(grads)
    }

    fn cost(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * outputs[0].bytes() as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let y = call.output::<f32>(0);
        let length: usize = call.output_type(0).dims()[self.axis..].iter().product();
        y.par_chunks_exact_mut(length).enumerate().for_each(|(row, y)| {
            let mut at = 0;
            for index in 0..call.n_inputs() {
                let length: usize = call.input_type(index).dims()[self.axis..].iter().product();
                y[at..at + length].copy_from_slice(&call.input::<f32>(index)[row * length..][..length]);
                at += length;
            }
        });
    }
}

impl Graph {
    /// Tensors side by side along dimension `axis`.
    ///
    /// # Errors
    /// If there are none, or they are not f32 or differ elsewhere.
    pub fn concat(&mut self, xs: &[Value], axis: usize) -> Result<Value, GraphError> {
        self.apply1(Concat { axis }, xs)
    }
}
