//! Reverse-mode automatic differentiation, as ops added to the same graph.

use petgraph::Direction;
use petgraph::graph::NodeIndex;

use crate::graph::{Graph, GraphError, Node, OpNode, Phase, Value};
use crate::tensor::DType;

/// What an op's gradient rule has to work with.
#[derive(Debug)]
pub struct GradCall<'a> {
    /// Where to add ops.
    pub graph: &'a mut Graph,
    /// The op's inputs.
    pub inputs: &'a [Value],
    /// The op's outputs.
    pub outputs: &'a [Value],
    /// Gradient of the loss by each output; none where the loss does not depend on it.
    pub output_grads: &'a [Option<Value>],
    /// For each input, whether its gradient is asked for.
    pub needs: &'a [bool],
}

impl GradCall<'_> {
    /// Gradient of the first output, for ops whose other outputs have no gradient.
    ///
    /// # Panics
    /// If the loss does not depend on it; rules are not asked then.
    pub fn output_grad(&self) -> Value {
        self.output_grads[0].expect("a rule is asked only if an output has a gradient")
    }

    /// For rules of ops that cannot be differentiated (again).
    pub fn no_gradient(&self, op: &'static str) -> GraphError {
        GraphError::NoGradient { label: self.graph.scope_name(), op }
    }
}

impl Graph {
    /// Adds the backward pass: gradients of a scalar `loss` by each value of `wrt`; none where the loss does not depend on it.
    ///
    /// Walks the ops from the last to the first; each adds its own rule's ops ([`OpDef::grad`](crate::op::OpDef::grad)). Gradients that meet at a value are
    /// added in the order in which they arise, so that the sum has one fixed order.
    ///
    /// # Errors
    /// [`GraphError::Loss`] unless the loss is one f32, or an error from an op's rule. Linear in the number of ops and accesses.
    pub fn grad(&mut self, loss: Value, wrt: &[Value]) -> Result<Vec<Option<Value>>, GraphError> {
        let sources: Vec<(Value, Option<Value>)> = wrt.iter().map(|&value| (value, None)).collect();
        self.grad_onto(loss, &sources, &mut |_, _| Ok(()))
    }

    /// As [`grad`](Self::grad), where each source may come with a gradient that this loss's is added to at once, so that the two stand side by side for
    /// one source at a time. Such a source must not be the result of an op. Calls `complete` with each gradient as soon as nothing will be added to it.
    pub(crate) fn grad_onto(
        &mut self,
        loss: Value,
        sources: &[(Value, Option<Value>)],
        complete: &mut dyn FnMut(&mut Self, Value) -> Result<(), GraphError>,
    ) -> Result<Vec<Option<Value>>, GraphError> {
        if self.ty(loss).numel() != 1 || self.dtype(loss) != DType::F32 {
            return Err(GraphError::Loss(self.ty(loss).clone()));
        }
        let phase = self.set_phase(Phase::Backward);
        let result = self.add_backward(loss, sources, complete);
        self.set_phase(phase);
        result
    }

    fn add_backward(
        &mut self,
        loss: Value,
        sources: &[(Value, Option<Value>)],
        complete: &mut dyn FnMut(&mut Self, Value) -> Result<(), GraphError>,
    ) -> Result<Vec<Option<Value>>, GraphError> {
        let n_nodes = self.dag().node_count();
        let wrt: Vec<Value> = sources.iter().map(|(value, _)| *value).collect();
        let needed = self.depends_on(&wrt);
        let first_uses = self.first_uses(loss, &wrt);
        let mut grads: Vec<Option<Value>> = vec![None; self.n_values()];
        for (source, before) in sources {
            grads[source.index()] = *before;
        }
        for (source, _) in sources.iter().zip(&first_uses).filter(|(_, first)| first.is_none()) {
            if let (_, Some(before)) = source {
                complete(self, *before)?;
            }
        }
        let one = self.fill(self.shape(loss).clone(), 1.0)?;
        grads[loss.index()] = Some(one);
        for index in (0..n_nodes).rev() {
            match self.dag()[NodeIndex::new(index)].clone() {
                Node::Persistent | Node::Input => {}
                Node::View(of) => {
                    let view = self.view_value(NodeIndex::new(index));
                    if let Some(grad) = grads[view.index()]
                        && needed[of.index()]
                    {
                        let grad = self.reshape(grad, self.shape(of).clone())?;
                        self.accumulate(&mut grads, of, grad)?;
                    }
                }
                Node::Op(node) => self.add_backward_of(&node, &needed, &mut grads)?,
            }
            for (source, _) in wrt.iter().zip(&first_uses).filter(|(_, first)| **first == Some(index)) {
                if let Some(grad) = grads[source.index()] {
                    complete(self, grad)?;
                }
            }
        }
        Ok(wrt.iter().map(|value| grads[value.index()]).collect())
    }

    fn add_backward_of(
        &mut self,
        node: &OpNode,
        needed: &[bool],
        grads: &mut [Option<Value>],
    ) -> Result<(), GraphError> {
        let output_grads: Vec<Option<Value>> = node.outputs.iter().map(|v| grads[v.index()]).collect();
        let needs: Vec<bool> = node.inputs.iter().map(|v| needed[v.index()]).collect();
        if output_grads.iter().all(Option::is_none) || !needs.contains(&true) {
            return Ok(());
        }
        let input_grads = self.with_scope(format!("{}.grad", node.label), |graph| {
            let mut call = GradCall {
                graph,
                inputs: &node.inputs,
                outputs: &node.outputs,
                output_grads: &output_grads,
                needs: &needs,
            };
            node.op.def().grad(&mut call)
        })?;
        assert_eq!(input_grads.len(), node.inputs.len(), "{}: one gradient per input", node.label);
        for ((&input, grad), need) in node.inputs.iter().zip(input_grads).zip(needs) {
            if let (Some(grad), true) = (grad, need) {
                assert_eq!(self.ty(grad), self.ty(input), "{}: a gradient has its input's type", node.label);
                self.accumulate(grads, input, grad)?;
            }
        }
        Ok(())
    }

    fn accumulate(&mut self, grads: &mut [Option<Value>], value: Value, grad: Value) -> Result<(), GraphError> {
        grads[value.index()] = Some(match grads[value.index()] {
            None => grad,
            Some(sum) => self.add(sum, grad)?,
        });
        Ok(())
    }

    /// Index of the first node that takes each of `wrt` on the way to the loss: the last one whose gradient rule adds to its gradient.
    fn first_uses(&self, loss: Value, wrt: &[Value]) -> Vec<Option<usize>> {
        let mut leads = vec![false; self.dag().node_count()];
        leads[self.node_index(loss).index()] = true;
        for node in self.dag().node_indices().rev().filter(|node| self.node_index(loss) >= *node) {
            if leads[node.index()] {
                for source in self.dag().neighbors_directed(node, Direction::Incoming) {
                    leads[source.index()] = true;
                }
            }
        }
        let takers = |value: &Value| self.dag().neighbors_directed(self.node_index(*value), Direction::Outgoing);
        wrt.iter().map(|value| takers(value).map(NodeIndex::index).filter(|&node| leads[node]).min()).collect()
    }

    /// For each value, whether it is computed from one of `wrt` through float tensors.
    fn depends_on(&self, wrt: &[Value]) -> Vec<bool> {
        let mut needed = vec![false; self.n_values()];
        for value in wrt {
            needed[value.index()] = true;
        }
        for node in self.dag().node_indices() {
            match &self.dag()[node] {
                Node::Persistent | Node::Input => {}
                Node::View(of) => {
                    let view = self.view_value(node);
                    needed[view.index()] |= needed[of.index()];
                }
                Node::Op(op) => {
                    if op.inputs.iter().any(|input| needed[input.index()]) {
                        for output in &op.outputs {
                            needed[output.index()] |= self.dtype(*output) == DType::F32;
                        }
                    }
                }
            }
        }
        needed
    }
}
