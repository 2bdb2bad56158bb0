//! `tanh`: hyperbolic tangent, and its gradient from its output.

use super::elementwise::{Binary, Unary, binary, infer_same, infer_unary, unary};
use super::math::tanh;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise hyperbolic tangent of an f32 tensor. Its gradient reads its output.
#[derive(Clone, Debug, PartialEq)]
pub struct Tanh;

/// Gradient of [`Tanh`]: inputs dy and the forward op's output, of one f32 type.
#[derive(Clone, Debug, PartialEq)]
pub struct TanhGrad;

impl Unary for Tanh {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        tanh(x)
    }
}

impl OpDef for Tanh {
    fn name(&self) -> &'static str {
        "tanh"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_unary(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(TanhGrad, &[dy, call.outputs[0]])?)])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 20.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        unary(call, self);
    }
}

impl Binary for TanhGrad {
    #[inline(always)]
    fn of(&self, dy: f32, y: f32) -> f32 {
        dy * (1.0 - y * y)
    }
}

impl OpDef for TanhGrad {
    fn name(&self) -> &'static str {
        "tanh_grad"
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
    /// Elementwise hyperbolic tangent.
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn tanh(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Tanh, &[x])
    }
}
