//! `div`: elementwise quotient with broadcasting.

use super::broadcast::{self, reduce_to};
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise quotient of two f32 tensors whose shapes broadcast. Its gradient reads the divisor and, for the divisor, the output.
#[derive(Clone, Debug, PartialEq)]
pub struct Div;

impl OpDef for Div {
    fn name(&self) -> &'static str {
        "div"
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
        let quotient = graph.div(dy, b)?;
        if call.needs[0] {
            grads[0] = Some(reduce_to(graph, quotient, &shapes[0], 1.0)?);
        }
        if call.needs[1] {
            // d(a/b)/db = −(a/b)/b, from the output: a need not be kept.
            let product = graph.mul(quotient, call.outputs[0])?;
            grads[1] = Some(reduce_to(graph, product, &shapes[1], -1.0)?);
        }
        Ok(grads)
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        broadcast::binary(call, |a, b| a / b);
    }
}

impl Graph {
    /// Elementwise `a / b` with broadcasting.
    ///
    /// # Errors
    /// If the shapes do not broadcast or the types are not f32.
    pub fn div(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.apply1(Div, &[a, b])
    }
}
