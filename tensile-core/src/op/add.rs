//! `add`: elementwise sum with broadcasting.

use super::broadcast::{self, reduce_to};
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise sum of two f32 tensors whose shapes broadcast.
#[derive(Clone, Debug, PartialEq)]
pub struct Add;

impl OpDef for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        broadcast::infer(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (dy, graph) = (call.output_grad(), &mut *call.graph);
        let [a, b] = [call.inputs[0], call.inputs[1]];
        let shapes = [graph.shape(a).clone(), graph.shape(b).clone()];
        let mut grads = vec![None; 2];
        for index in (0..2).filter(|&index| call.needs[index]) {
            grads[index] = Some(reduce_to(graph, dy, &shapes[index], 1.0)?);
        }
        Ok(grads)
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        broadcast::binary(call, |a, b| a + b);
    }
}

impl Graph {
    /// Elementwise `a + b` with broadcasting.
    ///
    /// # Errors
    /// If the shapes do not broadcast or the types are not f32.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.apply1(Add, &[a, b])
    }
}
