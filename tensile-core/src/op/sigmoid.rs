//! `sigmoid`: logistic function 1/(1 + e⁻ˣ), and its gradient from its output.

use super::elementwise::{Binary, Unary, binary, infer_same, infer_unary, unary};
use super::math::exp;
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

impl Unary for Sigmoid {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        1.0 / (1.0 + exp(-x))
    }
}

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
        unary(call, self);
    }
}

impl Binary for SigmoidGrad {
    #[inline(always)]
    fn of(&self, dy: f32, y: f32) -> f32 {
        dy * (y * (1.0 - y))
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
        binary(call, self);
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
