//! `add`: elementwise sum.

use super::elementwise::{binary, infer_same};
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise sum of two f32 tensors of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Add;

impl OpDef for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_same(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![call.output_grads[0]; 2])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        binary(call, |a, b| a + b);
    }
}

impl Graph {
    /// Elementwise `a + b`.
    ///
    /// # Errors
    /// If the shapes or types do not fit.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.apply1(Add, &[a, b])
    }
}
