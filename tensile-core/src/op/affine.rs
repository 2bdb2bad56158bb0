//! `affine`: the same scale and shift for every element.

use super::elementwise::{Unary, infer_unary, unary};
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise scale·x + shift of an f32 tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// Factor.
    pub scale: f32,
    /// Summand.
    pub shift: f32,
}

impl Unary for Affine {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        self.scale * x + self.shift
    }
}

impl OpDef for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_unary(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.scale(dy, self.scale)?)])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        unary(call, self);
    }
}

impl Graph {
    /// Elementwise `scale · x`; `x` itself if the scale is 1.
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn scale(&mut self, x: Value, scale: f32) -> Result<Value, GraphError> {
        if scale == 1.0 { Ok(x) } else { self.apply1(Affine { scale, shift: 0.0 }, &[x]) }
    }

    /// Elementwise `x + shift`.
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn add_scalar(&mut self, x: Value, shift: f32) -> Result<Value, GraphError> {
        self.apply1(Affine { scale: 1.0, shift }, &[x])
    }
}
