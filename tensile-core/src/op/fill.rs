//! `fill`: a tensor of one value.

use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{Shape, TensorType};

/// A tensor whose elements all have one value. No inputs; one f32 output of any shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// Shape of the output.
    pub shape: Shape,
    /// Value of every element.
    pub value: f32,
}

impl OpDef for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn infer(&self, _inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![TensorType::f32(self.shape.clone())])
    }

    fn grad(&self, _call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(Vec::new())
    }

    fn cost(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: outputs[0].bytes() as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        call.output::<f32>(0).fill(self.value);
    }
}

impl Graph {
    /// A tensor of `shape` whose elements are all `value`.
    ///
    /// # Errors
    /// None; a `Result` like every other builder.
    pub fn fill(&mut self, shape: impl Into<Shape>, value: f32) -> Result<Value, GraphError> {
        self.apply1(Fill { shape: shape.into(), value }, &[])
    }
}
