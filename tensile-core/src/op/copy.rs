//! `copy`: the same tensor in other bytes.

use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Copies a tensor of any type: one input, one output of the same type.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy;

impl OpDef for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        Ok(inputs.to_vec())
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![call.output_grads[0]])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        match call.input_type(0).dtype.size() {
            1 => call.output::<u8>(0).copy_from_slice(call.input(0)),
            4 => call.output::<u32>(0).copy_from_slice(call.input(0)),
            size => unreachable!("no dtype has {size} bytes"),
        }
    }
}

impl Graph {
    /// A copy of `x`.
    ///
    /// # Errors
    /// None; a `Result` like every other builder.
    pub fn copy(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Copy, &[x])
    }
}
