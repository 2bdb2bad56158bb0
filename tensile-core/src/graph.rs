//! The graph of one step: define, then run.
//!
//! A [`Graph`] lists persistent tensors (parameters, optimizer state, buffers), inputs, and ops in the order in which they will run. Shapes are
//! checked while it is built. [`Graph::grad`](crate::grad) adds the backward pass, optimizers add their updates; then
//! [`lower`](crate::exec::lower()) turns the whole step into a trace for the planner and calls for the device.

use std::fmt;

use petgraph::graph::{DiGraph, NodeIndex};
use tensile_sched::Role;

use crate::op::{Op, OpError};
use crate::tensor::{DType, Shape, TensorType};

/// A tensor value of a [`Graph`]: a persistent tensor, an input, or an output of an op. A handle, cheap to copy, of use with its own graph only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(pub(crate) u32);

impl Value {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a persistent tensor begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f32),
    /// Uniform between −`bound` and `bound`, drawn by a counter-based generator from the job's seed and the tensor's name.
    Uniform {
        /// Largest absolute value.
        bound: f32,
    },
    /// Normal with mean 0, drawn likewise.
    Normal {
        /// Standard deviation.
        std: f32,
    },
}

/// A tensor that persists across iterations.
#[derive(Clone, Debug, PartialEq)]
pub struct Persistent {
    /// Unique in the graph; parameters and buffers are saved under it.
    pub name: String,
    /// Parameter, optimizer state or buffer.
    pub role: Role,
    /// Element type and shape.
    pub ty: TensorType,
    /// First value.
    pub init: Init,
}

/// Which part of the step an op belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// From inputs to the loss.
    Forward,
    /// Gradients.
    Backward,
    /// Optimizer.
    Update,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    /// A persistent tensor.
    Persistent,
    /// An input of the step.
    Input,
    /// Another shape for the same bytes.
    View(Value),
    /// An op; it owns its inputs and outputs.
    Op(OpNode),
}

/// An op in the graph.
#[derive(Clone, Debug)]
pub(crate) struct OpNode {
    pub(crate) op: Op,
    pub(crate) label: String,
    pub(crate) phase: Phase,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
}

#[derive(Clone, Debug)]
struct ValueInfo {
    ty: TensorType,
    node: NodeIndex,
}

/// A fault in building a graph. Names the op and the shapes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An op does not accept its inputs.
    #[error("{label}: op '{op}' on ({inputs}): {source}")]
    Op {
        /// Scope and op.
        label: String,
        /// Name of the op.
        op: &'static str,
        /// Types of the inputs.
        inputs: String,
        /// What it objects to.
        source: OpError,
    },
    /// A name used for two different things.
    #[error("'{name}' is declared as {first} and again as {second}")]
    Name {
        /// The name.
        name: String,
        /// What it was first.
        first: String,
        /// What it should be now.
        second: String,
    },
    /// A view of another size.
    #[error("{label}: cannot view {from} as shape {to}: {} elements against {}", from.numel(), to.numel())]
    View {
        /// Scope.
        label: String,
        /// The tensor.
        from: TensorType,
        /// The shape asked for.
        to: Shape,
    },
    /// An update of something that does not persist.
    #[error("{label}: op '{op}' updates its input {index}, which is not a persistent tensor")]
    UpdatesTransient {
        /// Scope and op.
        label: String,
        /// Name of the op.
        op: &'static str,
        /// Which input.
        index: usize,
    },
    /// A loss that is not one number.
    #[error("gradients start from a scalar f32 loss, not from {0}")]
    Loss(TensorType),
    /// A parameter group that would be empty.
    #[error("no parameter that is updated has a name like '{pattern}'")]
    EmptyGroup {
        /// The pattern.
        pattern: String,
    },
    /// An op without a gradient on the way to the loss.
    #[error("{label}: op '{op}' has no gradient")]
    NoGradient {
        /// Scope and op.
        label: String,
        /// Name of the op.
        op: &'static str,
    },
    /// A fault in the trace that the graph gives; a bug unless ops from outside are in play.
    #[error("the step is not valid: {0}")]
    Trace(#[from] tensile_sched::TraceError),
    /// The device has no kernel for an op.
    #[error("{label}: {source}")]
    Device {
        /// Scope and op.
        label: String,
        /// What the device says.
        source: crate::device::DeviceError,
    },
}

/// Ops of one step and the tensors between them.
///
/// Ops run in the order in which they were added. An update changes what later ops read from the persistent tensor, not what earlier ones have read.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Nodes are sources, views and ops; an edge leads from a value's node to each op that takes it, weighted by the value.
    dag: DiGraph<Node, Value>,
    values: Vec<ValueInfo>,
    persistents: Vec<(Persistent, Value)>,
    inputs: Vec<(String, Value)>,
    outputs: Vec<(String, Value)>,
    scope: Vec<String>,
    phase: Phase,
    n_dropouts: u32,
    /// Updates that wait for [`release_updates`](Self::release_updates), if they are being held.
    held: Option<Vec<OpNode>>,
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self {
            dag: DiGraph::new(),
            values: Vec::new(),
            persistents: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scope: Vec::new(),
            phase: Phase::Forward,
            n_dropouts: 0,
            held: None,
        }
    }

    /// A number for one more dropout, which no other of this graph has: dropouts of one number draw alike.
    pub fn next_dropout(&mut self) -> u32 {
        self.n_dropouts += 1;
        self.n_dropouts - 1
    }

    /// A graph without ops that has the same persistent tensors in the same order, for another program of the same job (evaluation, say).
    pub fn sibling(&self) -> Self {
        let mut other = Self::new();
        for (persistent, _) in &self.persistents {
            other.add_persistent(persistent.clone());
        }
        other
    }

    fn add_value(&mut self, ty: TensorType, node: NodeIndex) -> Value {
        let value = Value(u32::try_from(self.values.len()).expect("fewer than 2^32 values"));
        self.values.push(ValueInfo { ty, node });
        value
    }

    fn add_persistent(&mut self, persistent: Persistent) -> Value {
        let node = self.dag.add_node(Node::Persistent);
        let value = self.add_value(persistent.ty.clone(), node);
        self.persistents.push((persistent, value));
        value
    }

    /// Declares a persistent tensor under the scope's name, or gives the one declared before under that name.
    ///
    /// # Errors
    /// [`GraphError::Name`] if the name stands for another role or type already.
    pub fn persistent(&mut self, name: &str, role: Role, ty: TensorType, init: Init) -> Result<Value, GraphError> {
        self.persistent_absolute(self.scoped_name(name), role, ty, init)
    }

    /// As [`persistent`](Self::persistent), under a name that is complete.
    pub(crate) fn persistent_absolute(
        &mut self,
        name: String,
        role: Role,
        ty: TensorType,
        init: Init,
    ) -> Result<Value, GraphError> {
        debug_assert!(role.is_persistent());
        if let Some((first, value)) = self.persistents.iter().find(|(other, _)| other.name == name) {
            if first.ty == ty && first.role == role {
                return Ok(*value);
            }
            let (first, second) = (format!("{:?} {}", first.role, first.ty), format!("{role:?} {ty}"));
            return Err(GraphError::Name { name, first, second });
        }
        Ok(self.add_persistent(Persistent { name, role, ty, init }))
    }

    /// Declares a trained weight; see [`persistent`](Self::persistent).
    ///
    /// # Errors
    /// As [`persistent`](Self::persistent).
    pub fn parameter(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Value, GraphError> {
        self.persistent(name, Role::Parameter, TensorType::f32(shape), init)
    }

    /// Declares other persistent state, such as running statistics; see [`persistent`](Self::persistent).
    ///
    /// # Errors
    /// As [`persistent`](Self::persistent).
    pub fn buffer(&mut self, name: &str, ty: TensorType, init: Init) -> Result<Value, GraphError> {
        self.persistent(name, Role::Buffer, ty, init)
    }

    /// Declares an input, filled by the data source before every step, or gives the one declared before. Names of inputs are not scoped.
    ///
    /// # Errors
    /// [`GraphError::Name`] if the input has another type already.
    pub fn input(&mut self, name: &str, ty: TensorType) -> Result<Value, GraphError> {
        if let Some((_, value)) = self.inputs.iter().find(|(other, _)| other == name) {
            let value = *value;
            if *self.ty(value) == ty {
                return Ok(value);
            }
            let (first, second) = (format!("input {}", self.ty(value)), format!("input {ty}"));
            return Err(GraphError::Name { name: name.to_owned(), first, second });
        }
        let node = self.dag.add_node(Node::Input);
        let value = self.add_value(ty, node);
        self.inputs.push((name.to_owned(), value));
        Ok(value)
    }

    /// Adds an op and gives its outputs.
    ///
    /// # Errors
    /// [`GraphError::Op`] with the op and the shapes if it does not accept the inputs; [`GraphError::UpdatesTransient`].
    pub fn apply(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Vec<Value>, GraphError> {
        let op = op.into();
        let types: Vec<TensorType> = inputs.iter().map(|&value| self.ty(value).clone()).collect();
        let label = self.scoped_name(op.def().name());
        let output_types = op.def().infer(&types).map_err(|source| GraphError::Op {
            label: label.clone(),
            op: op.def().name(),
            inputs: types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            source,
        })?;
        for &index in op.def().updates() {
            if !matches!(self.dag[self.values[inputs[index].index()].node], Node::Persistent) {
                return Err(GraphError::UpdatesTransient { label, op: op.def().name(), index });
            }
        }
        let node = OpNode { op, label, phase: self.phase, inputs: inputs.to_vec(), outputs: Vec::new() };
        match &mut self.held {
            Some(held) if output_types.is_empty() => {
                held.push(node);
                Ok(Vec::new())
            }
            _ => Ok(self.add_op(node, output_types)),
        }
    }

    fn add_op(&mut self, op_node: OpNode, output_types: Vec<TensorType>) -> Vec<Value> {
        let inputs = op_node.inputs.clone();
        let node = self.dag.add_node(Node::Op(op_node));
        for value in inputs {
            self.dag.add_edge(self.values[value.index()].node, node, value);
        }
        let outputs: Vec<Value> = output_types.into_iter().map(|ty| self.add_value(ty, node)).collect();
        if let Node::Op(op_node) = &mut self.dag[node] {
            op_node.outputs = outputs.clone();
        }
        outputs
    }

    /// From now on, ops without outputs (updates) are not added but kept for [`release_updates`](Self::release_updates).
    pub(crate) fn hold_updates(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Adds the updates that were held, behind a gate (see [`OpDef::takes_gate`](crate::op::OpDef::takes_gate)) where they take one.
    pub(crate) fn release_updates(&mut self, gate: Option<Value>) -> Result<(), GraphError> {
        for OpNode { op, label, mut inputs, .. } in self.held.take().unwrap_or_default() {
            inputs.extend(gate.filter(|_| op.def().takes_gate()));
            let scope = label.strip_suffix(op.def().name()).unwrap_or(&label).trim_end_matches('.').to_owned();
            self.with_scope(scope, |graph| graph.apply(op, &inputs))?;
        }
        Ok(())
    }

    /// Adds an op with one output.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    ///
    /// # Panics
    /// If the op does not have exactly one output.
    pub fn apply1(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, GraphError> {
        let outputs = self.apply(op, inputs)?;
        assert_eq!(outputs.len(), 1, "apply1 is for ops with one output");
        Ok(outputs[0])
    }

    /// The same elements in another shape. No op: both values share their bytes.
    ///
    /// # Errors
    /// [`GraphError::View`] if the number of elements differs.
    pub fn reshape(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        let (from, to) = (self.ty(x).clone(), shape.into());
        if from.shape == to {
            return Ok(x);
        }
        if from.numel() != to.numel() {
            return Err(GraphError::View { label: self.scoped_name("reshape"), from, to });
        }
        let node = self.dag.add_node(Node::View(x));
        self.dag.add_edge(self.values[x.index()].node, node, x);
        Ok(self.add_value(TensorType::new(from.dtype, to), node))
    }

    /// Marks a value as a result of the step, to be read by the caller under this name after each step.
    ///
    /// # Errors
    /// [`GraphError::Name`] if the name is taken.
    pub fn output(&mut self, name: &str, value: Value) -> Result<(), GraphError> {
        if let Some((_, first)) = self.outputs.iter().find(|(other, _)| other == name) {
            let (first, second) = (self.ty(*first).to_string(), self.ty(value).to_string());
            return Err(GraphError::Name { name: name.to_owned(), first, second });
        }
        self.outputs.push((name.to_owned(), value));
        Ok(())
    }

    /// Runs `build` with `name` added to the scope, which prefixes names of persistent tensors and labels of ops: `layer1.0.conv1`.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn scoped<T>(
        &mut self,
        name: &str,
        build: impl FnOnce(&mut Self) -> Result<T, GraphError>,
    ) -> Result<T, GraphError> {
        self.scope.push(name.to_owned());
        let result = build(self);
        self.scope.pop();
        result
    }

    /// The scope that `scoped` has built up.
    pub(crate) fn scope_name(&self) -> String {
        self.scope.join(".")
    }

    pub(crate) fn scoped_name(&self, name: &str) -> String {
        if self.scope.is_empty() { name.to_owned() } else { format!("{}.{name}", self.scope.join(".")) }
    }

    /// Ops added from now on belong to this phase; gives the one before.
    pub fn set_phase(&mut self, phase: Phase) -> Phase {
        std::mem::replace(&mut self.phase, phase)
    }

    /// Element type and shape of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value.index()].ty
    }

    /// Shape of a value.
    pub fn shape(&self, value: Value) -> &Shape {
        &self.ty(value).shape
    }

    /// Dimensions of a value.
    pub fn dims(&self, value: Value) -> &[usize] {
        self.ty(value).dims()
    }

    /// Element type of a value.
    pub fn dtype(&self, value: Value) -> DType {
        self.ty(value).dtype
    }

    /// All persistent tensors in the order of their declaration, with their values.
    pub fn persistents(&self) -> impl ExactSizeIterator<Item = (&Persistent, Value)> {
        self.persistents.iter().map(|(persistent, value)| (persistent, *value))
    }

    /// The persistent tensor that a value is, if it is one.
    pub fn persistent_of(&self, value: Value) -> Option<&Persistent> {
        self.persistents.iter().find(|(_, other)| *other == value).map(|(persistent, _)| persistent)
    }

    /// All inputs, with their values.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, Value)> {
        self.inputs.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// All outputs, with their values.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (&str, Value)> {
        self.outputs.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.ops().count()
    }

    pub(crate) fn n_values(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn node_index(&self, value: Value) -> NodeIndex {
        self.values[value.index()].node
    }

    pub(crate) fn dag(&self) -> &DiGraph<Node, Value> {
        &self.dag
    }

    /// The value whose bytes this one shares: itself unless it is a view.
    pub(crate) fn storage(&self, mut value: Value) -> Value {
        while let Node::View(of) = self.dag[self.node_index(value)] {
            value = of;
        }
        value
    }
}

impl Graph {
    /// The value that a view node gives.
    pub(crate) fn view_value(&self, node: NodeIndex) -> Value {
        // Values and nodes are both made in order, so the value is found by bisection on the node's index.
        let at = self.values.partition_point(|info| info.node < node);
        debug_assert_eq!(self.values[at].node, node);
        Value(at as u32)
    }

    pub(crate) fn with_scope<T>(
        &mut self,
        scope: String,
        build: impl FnOnce(&mut Self) -> Result<T, GraphError>,
    ) -> Result<T, GraphError> {
        let scope = if scope.is_empty() { Vec::new() } else { vec![scope] };
        let outer = std::mem::replace(&mut self.scope, scope);
        let result = build(self);
        self.scope = outer;
        result
    }
}

/// A tensor that stays alive for the backward pass; see [`Graph::saved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Label of the op that makes it (with the output's number if it has several), or name of the input.
    pub label: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// Whether it is an input of the step.
    pub is_input: bool,
}

impl Graph {
    /// Inputs and results of forward ops that backward ops read, in the order in which they arise; views count as what they view.
    pub fn saved(&self) -> Vec<Saved> {
        let mut read = vec![false; self.n_values()];
        for op in self.ops().filter(|op| op.phase == Phase::Backward) {
            for &input in &op.inputs {
                read[self.storage(input).index()] = true;
            }
        }
        let mut saved = Vec::new();
        for (name, value) in self.inputs() {
            if read[value.index()] {
                saved.push(Saved { label: name.to_owned(), ty: self.ty(value).clone(), is_input: true });
            }
        }
        for op in self.ops().filter(|op| op.phase == Phase::Forward) {
            for (index, &value) in op.outputs.iter().enumerate().filter(|(_, value)| read[value.index()]) {
                let several = op.outputs.len() > 1;
                let label = if several { format!("{}.{index}", op.label) } else { op.label.clone() };
                saved.push(Saved { label, ty: self.ty(value).clone(), is_input: false });
            }
        }
        saved
    }

    /// All ops in order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &OpNode> {
        self.dag.node_weights().filter_map(|node| match node {
            Node::Op(op) => Some(op),
            Node::Persistent | Node::Input | Node::View(_) => None,
        })
    }
}

impl fmt::Display for Graph {
    /// One line for each op, in order: `%7 f32[8, 10] = matmul(%5, fc.weight, fc.bias)  # fc.matmul`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<Option<&str>> = vec![None; self.n_values()];
        for (persistent, value) in self.persistents() {
            names[value.index()] = Some(&persistent.name);
        }
        for (name, value) in self.inputs() {
            names[value.index()] = Some(name);
        }
        let name = |value: Value| names[value.index()].map_or_else(|| format!("%{}", value.0), str::to_owned);
        let list = |values: &[Value], each: &dyn Fn(Value) -> String| {
            values.iter().map(|&value| each(value)).collect::<Vec<_>>().join(", ")
        };
        for node in self.dag.node_indices() {
            match &self.dag[node] {
                Node::Persistent | Node::Input => {}
                Node::View(of) => {
                    let view = self.view_value(node);
                    writeln!(f, "{} {} = view({})", name(view), self.ty(view), name(*of))?;
                }
                Node::Op(op) => {
                    let outputs = list(&op.outputs, &|value| format!("{} {}", name(value), self.ty(value)));
                    let equals = if op.outputs.is_empty() { "" } else { " = " };
                    let inputs = list(&op.inputs, &name);
                    writeln!(f, "{outputs}{equals}{}({inputs})  # {}", op.op.def().name(), op.label)?;
                }
            }
        }
        for (output, value) in self.outputs() {
            writeln!(f, "{output} = {}", name(value))?;
        }
        Ok(())
    }
}
