//! `sigmoid`: logistic function 1/(1 + e⁻ˣ), and its gradient from its output.

use super::elementwise::{binary, infer_same, infer_unary, unary};
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise logistic function 1/(1 + e⁻ˣ) of an f32 tensor. Its gradient reads its output.
#[derive(Clone, Debug, PartialEq)]
pub struct Sigmoid;

/// Gradient of [`Sigmoid`]: inputs dy and the forward op's output, of one f32 type.
#[derive(Clone, Debug, PartialEq)]
pub struct SigmoidGrad;

impl OpDef for Sigmoid {
    fn name(&self) -> &'static str {
        "sigmoid"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_unary(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(SigmoidGrad, &[dy, call.outputs[0]])?)])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 20.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        unary(call, |x| 1.0 / (1.0 + (-x).exp()));
    }
}

impl OpDef for SigmoidGrad {
    fn name(&self) -> &'static str {
        "sigmoid_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_same(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 3.0 * n, bytes: 12.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        binary(call, |dy, y| dy * (y * (1.0 - y)));
    }
}

impl Graph {
    /// Elementwise logistic function 1/(1 + e⁻ˣ).
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn sigmoid(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Sigmoid, &[x])
    }
}
