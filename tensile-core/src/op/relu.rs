//! `relu`: the larger of x and 0, and its gradient from its output.

use super::elementwise::{Binary, Unary, binary, infer_same, infer_unary, unary};
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise max(x, 0) of an f32 tensor; NaN stays NaN. Its gradient reads its output, so that the input need not be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Relu;

impl Unary for Relu {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
}

impl OpDef for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_unary(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(ReluGrad, &[dy, call.outputs[0]])?)])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        unary(call, self);
    }
}

/// Gradient of [`Relu`]: inputs dy and y of one f32 type, output dy where y > 0 and 0 elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct ReluGrad;

impl Binary for ReluGrad {
    #[inline(always)]
    fn of(&self, dy: f32, y: f32) -> f32 {
        if y > 0.0 { dy } else { 0.0 }
    }
}

impl OpDef for ReluGrad {
    fn name(&self) -> &'static str {
        "relu_grad"
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

    fn host_kernel(&self, call: &HostCall<'_>) {
        binary(call, self);
    }
}

impl Graph {
    /// Elementwise max(x, 0).
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn relu(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Relu, &[x])
    }
}
