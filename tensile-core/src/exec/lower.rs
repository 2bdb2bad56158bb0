//! Graph → trace and calls.

use petgraph::Direction;
use petgraph::visit::EdgeRef;
use tensile_sched::{Bytes, InPlace, Role, Tensor, TensorId, Trace};

use crate::device::Device;
use crate::graph::{Graph, GraphError, Node, OpNode, Persistent, Phase, Value};
use crate::latency::Roofline;
use crate::op::{Cost, Op};
use crate::tensor::TensorType;

/// One tensor argument of a call: its storage in the trace, and the type under which this op sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallArg {
    /// Storage.
    pub tensor: TensorId,
    /// Element type and shape.
    pub ty: TensorType,
}

/// What to launch for an op of the trace.
#[derive(Clone, Debug)]
pub struct Call {
    /// The op and its attributes.
    pub op: Op,
    /// In the op's order, updated ones included.
    pub inputs: Vec<CallArg>,
    /// In the op's order; the trace op's `writes` are the same tensors in the same order.
    pub outputs: Vec<CallArg>,
}

/// An input or output of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name in the graph.
    pub name: String,
    /// Its storage.
    pub tensor: TensorId,
    /// Element type and shape.
    pub ty: TensorType,
}

/// A whole step, ready to be planned and executed.
///
/// Tensor ids begin with the persistent tensors in the order of [`Graph::persistents`], so that all programs of a job agree on them; then inputs;
/// then what ops make.
#[derive(Clone, Debug)]
pub struct Step {
    /// For the planner.
    pub trace: Trace,
    /// For the device; one for each op of the trace.
    pub calls: Vec<Call>,
    /// Tensor `i` of the trace is the storage of `persistents[i]`.
    pub persistents: Vec<Persistent>,
    /// Inputs that some op reads.
    pub inputs: Vec<Named>,
    /// Outputs.
    pub outputs: Vec<Named>,
    /// Work of each op, for predicting its latency.
    pub costs: Vec<Cost>,
}

/// Turns a graph into a step for a device.
///
/// Ops whose results nobody uses are left out. Each storage becomes one tensor of the trace (views share it). Latencies are a roofline
/// estimate from the device's rates. An output that is a source, or a view of something that is an output already, is copied.
///
/// # Errors
/// [`GraphError::Device`] if the device has no kernel for an op. Linear in the number of accesses.
pub fn lower<D: Device>(graph: &Graph, device: &D) -> Result<Step, GraphError> {
    let mut graph = graph.clone();
    let outputs = own_output_storages(&mut graph)?;
    let live = live_ops(&graph, &outputs);
    let mut lowering = Lowering::new(&graph, device);
    for (persistent, value) in graph.persistents() {
        lowering.declare(value, &persistent.name, persistent.role);
    }
    let mut inputs = Vec::new();
    for (name, value) in graph.inputs() {
        let read = graph.dag().edges_directed(graph.node_index(value), Direction::Outgoing);
        if read.into_iter().any(|edge| reaches_live_op(&graph, &live, edge.target())) {
            let tensor = lowering.declare(value, name, Role::Input);
            inputs.push(Named { name: name.to_owned(), tensor, ty: graph.ty(value).clone() });
        }
    }
    for node in graph.dag().node_indices().filter(|node| live[node.index()]) {
        if let Node::Op(op) = &graph.dag()[node] {
            lowering.add_op(op, &outputs)?;
        }
    }
    let outputs = outputs
        .iter()
        .map(|(name, value)| Named {
            name: name.clone(),
            tensor: lowering.tensor_of(*value),
            ty: graph.ty(*value).clone(),
        })
        .collect();
    let Lowering { tensors, ops, calls, costs, .. } = lowering;
    Ok(Step {
        trace: Trace::new(tensors, ops)?,
        calls,
        persistents: graph.persistents().map(|(persistent, _)| persistent.clone()).collect(),
        inputs,
        outputs,
        costs,
    })
}

/// Outputs with a storage of their own each: a copy is added where it is a source's or another output's.
fn own_output_storages(graph: &mut Graph) -> Result<Vec<(String, Value)>, GraphError> {
    let wanted: Vec<(String, Value)> = graph.outputs().map(|(name, value)| (name.to_owned(), value)).collect();
    let mut taken: Vec<Value> = Vec::new();
    let mut outputs = Vec::new();
    for (name, mut value) in wanted {
        let storage = graph.storage(value);
        let is_source = !matches!(graph.dag()[graph.node_index(storage)], Node::Op(_));
        if is_source || taken.contains(&storage) {
            value = graph.copy(value)?;
        }
        taken.push(graph.storage(value));
        outputs.push((name, value));
    }
    Ok(outputs)
}

/// Ops that an output or an update needs.
fn live_ops(graph: &Graph, outputs: &[(String, Value)]) -> Vec<bool> {
    let dag = graph.dag();
    let mut live = vec![false; dag.node_count()];
    for (_, value) in outputs {
        live[graph.node_index(*value).index()] = true;
    }
    for node in dag.node_indices() {
        if let Node::Op(op) = &dag[node] {
            live[node.index()] |= !op.op.def().updates().is_empty();
        }
    }
    for node in dag.node_indices().rev() {
        if live[node.index()] {
            for source in dag.neighbors_directed(node, Direction::Incoming) {
                live[source.index()] = true;
            }
        }
    }
    live
}

fn reaches_live_op(graph: &Graph, live: &[bool], node: petgraph::graph::NodeIndex) -> bool {
    live[node.index()]
        && match &graph.dag()[node] {
            Node::View(_) => {
                let mut targets = graph.dag().neighbors_directed(node, Direction::Outgoing);
                targets.any(|target| reaches_live_op(graph, live, target))
            }
            _ => true,
        }
}

struct Lowering<'a, D> {
    graph: &'a Graph,
    device: &'a D,
    /// Tensor of each storage, by value index.
    tensor: Vec<Option<TensorId>>,
    tensors: Vec<Tensor>,
    ops: Vec<tensile_sched::Op>,
    calls: Vec<Call>,
    costs: Vec<Cost>,
}

impl<'a, D: Device> Lowering<'a, D> {
    fn new(graph: &'a Graph, device: &'a D) -> Self {
        Self {
            graph,
            device,
            tensor: vec![None; graph.n_values()],
            tensors: Vec::new(),
            ops: Vec::new(),
            calls: Vec::new(),
            costs: Vec::new(),
        }
    }

    fn declare(&mut self, value: Value, name: &str, role: Role) -> TensorId {
        let id = TensorId::from_index(self.tensors.len());
        let bytes = Bytes(self.graph.ty(value).bytes() as u64);
        self.tensors.push(Tensor { name: name.to_owned(), bytes, role, keep: false });
        self.tensor[value.index()] = Some(id);
        id
    }

    fn tensor_of(&self, value: Value) -> TensorId {
        self.tensor[self.graph.storage(value).index()].expect("sources and producers are declared before their readers")
    }

    fn arg(&self, value: Value) -> CallArg {
        CallArg { tensor: self.tensor_of(value), ty: self.graph.ty(value).clone() }
    }

    fn add_op(&mut self, node: &OpNode, outputs: &[(String, Value)]) -> Result<(), GraphError> {
        let def = node.op.def();
        let inputs: Vec<CallArg> = node.inputs.iter().map(|&value| self.arg(value)).collect();
        let updates: Vec<TensorId> = def.updates().iter().map(|&index| inputs[index].tensor).collect();
        let mut reads: Vec<TensorId> = Vec::new();
        for input in &inputs {
            if !updates.contains(&input.tensor) && !reads.contains(&input.tensor) {
                reads.push(input.tensor);
            }
        }
        let role = if node.phase == Phase::Backward { Role::Gradient } else { Role::Activation };
        let mut writes = Vec::new();
        for (index, &value) in node.outputs.iter().enumerate() {
            let output = outputs.iter().find(|(_, output)| self.graph.storage(*output) == value);
            let (name, role) = match output {
                Some((name, _)) => (name.clone(), Role::Output),
                None if node.outputs.len() == 1 => (node.label.clone(), role),
                None => (format!("{}.{index}", node.label), role),
            };
            writes.push(self.declare(value, &name, role));
        }
        let outputs: Vec<CallArg> = node.outputs.iter().map(|&value| self.arg(value)).collect();
        // A pair is offered only where the kernel sees the input once: a second view of the same bytes would change under its hands.
        let in_place = def
            .in_place()
            .iter()
            .map(|&(input, output)| InPlace { input: inputs[input].tensor, output: writes[output] })
            .filter(|pair| {
                self.tensors[pair.input.index()].bytes == self.tensors[pair.output.index()].bytes
                    && reads.contains(&pair.input)
                    && inputs.iter().filter(|arg| arg.tensor == pair.input).count() == 1
            })
            .collect();
        let types = |args: &[CallArg]| args.iter().map(|arg| arg.ty.clone()).collect::<Vec<TensorType>>();
        let (input_types, output_types) = (types(&inputs), types(&outputs));
        let workspace = self
            .device
            .workspace(&node.op, &input_types, &output_types)
            .map_err(|source| GraphError::Device { label: node.label.clone(), source })?;
        let cost = def.cost(&input_types, &output_types);
        self.ops.push(tensile_sched::Op {
            label: node.label.clone(),
            class: def.name().to_owned(),
            reads,
            writes,
            updates,
            workspace: Bytes(workspace),
            latency: Roofline::new(self.device.info()).time(cost),
            replayable: def.replayable(),
            in_place,
        });
        self.calls.push(Call { op: node.op.clone(), inputs, outputs });
        self.costs.push(cost);
        Ok(())
    }
}
