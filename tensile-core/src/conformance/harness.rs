//! Models, data and hand-made programs for tests that run whole steps on any device.

use std::sync::Arc;

use crate::device::Device;
use crate::device::host::{HostDevice, HostOptions};
use crate::exec::{Compiled, Executor, ExecutorOptions, Named, PersistentValue, Step, StepResult, lower};
use crate::graph::{Graph, GraphError, Init, Persistent};
use crate::nn::{init_part, init_value};
use crate::op::conv2d::Conv2d;
use crate::op::pool::Pool2d;
use crate::optim::{Optimizer, SCALARS, train};
use crate::tensor::TensorType;
use crate::testing::{float_bytes, int_bytes, values};
use tensile_sched::layout::layout;
use tensile_sched::simulate::simulate;
use tensile_sched::sync::sync;
use tensile_sched::{Bytes, InPlace, Instr, Limits, OpId, Planned, Program, Role, TensorId, Trace};

/// Seed of all first values.
pub const SEED: u64 = 7;

/// Batch norm, pooling and a loss on small images: parameters, moments, buffers, inputs, outputs.
///
/// # Errors
/// None.
pub fn normed_images(optimizer: &Optimizer) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut x = graph.input("x", TensorType::f32([6, 4, 8, 8]))?;
    let labels = graph.input("labels", TensorType::i32([6]))?;
    for layer in 0..3 {
        x = graph.scoped(&format!("layer{layer}"), |graph| {
            let weight = graph.parameter("weight", [4], Init::Uniform { bound: 1.0 })?;
            let bias = graph.parameter("bias", [4], Init::Uniform { bound: 0.5 })?;
            let y = graph.batch_norm(x, weight, bias, 1e-5)?[0];
            let y = graph.relu(y)?;
            graph.add(x, y)
        })?;
    }
    let x = graph.max_pool2d(x, Pool2d::new(2, 2))?;
    let x = graph.global_avg_pool2d(x)?;
    let logits = graph.reshape(x, [6, 4])?;
    let loss = graph.softmax_cross_entropy(logits, labels)?;
    graph.output("loss", loss)?;
    train(&mut graph, loss, optimizer)?;
    Ok(graph)
}

/// Two convolutions with batch norm, dropout, and a linear layer on small images: to train, or on running statistics to evaluate.
///
/// # Errors
/// None.
pub fn classifier(graph: Graph, training: Option<&Optimizer>) -> Result<Graph, GraphError> {
    classifier_of(graph, training, [16, 1, 8, 8])
}

/// The same for images of any size.
///
/// # Errors
/// If the images are empty.
pub fn classifier_of(mut graph: Graph, training: Option<&Optimizer>, images: [usize; 4]) -> Result<Graph, GraphError> {
    let [n, _, height, width] = images;
    let mut x = graph.input("x", TensorType::f32(images))?;
    let labels = graph.input("labels", TensorType::i32([n]))?;
    for (layer, channels) in [6, 8].into_iter().enumerate() {
        x = graph.scoped(&format!("layer{layer}"), |graph| {
            let inputs = graph.dims(x)[1];
            let weight = graph.parameter("conv.weight", [channels, inputs, 3, 3], Init::Uniform { bound: 0.4 })?;
            let x = graph.conv2d(x, weight, None, Conv2d::new(1, 1))?;
            let scale = graph.parameter("norm.weight", [channels], Init::Constant(1.0))?;
            let shift = graph.parameter("norm.bias", [channels], Init::Constant(0.0))?;
            let mean = graph.buffer("norm.mean", TensorType::f32([channels]), Init::Constant(0.0))?;
            let var = graph.buffer("norm.var", TensorType::f32([channels]), Init::Constant(1.0))?;
            let count = graph.buffer("norm.count", TensorType::i32([]), Init::Constant(0.0))?;
            let x = if training.is_some() {
                let [y, batch_mean, batch_var] = graph.batch_norm(x, scale, shift, 1e-5)?;
                graph.batch_norm_stats([mean, var, count], [batch_mean, batch_var], n * height * width, 0.1)?;
                y
            } else {
                graph.batch_norm_inference(x, [mean, var], scale, shift, 1e-5)?
            };
            graph.relu(x)
        })?;
    }
    if training.is_some() {
        let random = graph.input("random", TensorType::i32([4]))?;
        x = graph.dropout(x, random, 0.25, 0)?;
    }
    let x = graph.max_pool2d(x, Pool2d::new(2, 2))?;
    let features = 8 * (height / 2) * (width / 2);
    let x = graph.reshape(x, [n, features])?;
    let weight = graph.parameter("head.weight", [4, features], Init::Uniform { bound: 0.1 })?;
    let logits = graph.linear(x, weight, None)?;
    let loss = graph.softmax_cross_entropy(logits, labels)?;
    let right = graph.count_correct(logits, labels)?;
    graph.output("loss", loss)?;
    graph.output("right", right)?;
    if let Some(optimizer) = training {
        train(&mut graph, loss, optimizer)?;
    }
    Ok(graph)
}

/// Inputs of a step: a function of the iteration and the input's name and type alone.
pub fn feed(iteration: u64, optimizer: &Optimizer) -> impl FnMut(&Named, &mut [u8]) {
    move |input, bytes| {
        let n = input.ty.numel();
        let filled = match input.name.as_str() {
            SCALARS => float_bytes(&optimizer.scalars(iteration, 0.05)),
            "random" => int_bytes(&[SEED as i32, 0, iteration as i32, 0]),
            name if name.starts_with("labels") => {
                int_bytes(&(0..n as i32).map(|i| (i * 3 + iteration as i32) % 4).collect::<Vec<_>>())
            }
            _ => float_bytes(&values(n, 1000 + iteration)),
        };
        bytes.copy_from_slice(&filled);
    }
}

/// Limits of a device, as given to planners.
pub fn limits<D: Device>(device: &Arc<D>, budget: Bytes) -> Limits {
    device.info().limits(budget)
}

/// Wraps a program that stands in tests: places, syncs, simulates; `Compiled::new` proves it.
///
/// # Panics
/// If it is not right.
pub fn compile(step: &Arc<Step>, program: &Program, limits: &Limits) -> Arc<Compiled> {
    let placed = layout(&step.trace, program, limits).expect("the program has a layout");
    let synced = sync(&step.trace, placed);
    let report = tensile_sched::check::check(&step.trace, &synced.placed, limits).expect("the program is right");
    let simulation = simulate(&step.trace, &synced, &limits.link);
    let planned = Planned { synced, report, simulation };
    Compiled::new(Arc::clone(step), planned, limits.clone()).expect("the program is right")
}

fn last_uses(trace: &Trace) -> Vec<Option<OpId>> {
    let mut last = vec![None; trace.tensors().len()];
    for (index, op) in trace.ops().iter().enumerate() {
        for tensor in op.reads.iter().chain(&op.writes).chain(&op.updates) {
            last[tensor.index()] = Some(OpId::from_index(index));
        }
    }
    last
}

fn ids(trace: &Trace) -> impl Iterator<Item = (TensorId, Role)> + '_ {
    trace.tensors().iter().enumerate().map(|(index, tensor)| (TensorId::from_index(index), tensor.role))
}

/// Everything stays until its last use; persistent tensors stay for good.
pub fn keep_all(trace: &Trace) -> Program {
    let last = last_uses(trace);
    let mut program = Program::default();
    let persistent = ids(trace).filter(|(_, role)| role.is_persistent());
    program.boundary =
        persistent.map(|(tensor, _)| tensile_sched::BoundaryTensor { tensor, host_valid: false }).collect();
    let inputs = ids(trace).filter(|(_, role)| *role == Role::Input);
    program.instrs.extend(inputs.map(|(tensor, _)| Instr::SwapIn(tensor)));
    for (index, op) in trace.ops().iter().enumerate() {
        let id = OpId::from_index(index);
        program.instrs.push(Instr::Run { op: id, takeovers: vec![] });
        for &tensor in op.reads.iter().chain(&op.writes).chain(&op.updates) {
            let role = trace.tensors()[tensor.index()].role;
            if last[tensor.index()] == Some(id) && !role.is_persistent() {
                if role == Role::Output {
                    program.instrs.push(Instr::SwapOut(tensor));
                }
                program.instrs.push(Instr::Release(tensor));
            }
        }
    }
    program
}

/// How a tensor that is not persistent leaves the device between two ops that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all.
    Keep,
    /// To the host.
    Swap,
    /// By running its op again.
    Recompute,
}

/// Nothing stays between two ops: everything is swapped out, or released if its host copy is valid, and comes back for its next use.
pub fn evict_all(trace: &Trace) -> Program {
    evict(trace, false, |_| Way::Swap)
}

/// Tensors leave after each op that uses them, the way `way` says, unless the next op uses them too; they come back from the host or by running
/// their op again, with the ops before it where needed. Persistent tensors stay if `persistent_stay`.
pub fn evict(trace: &Trace, persistent_stay: bool, way: impl Fn(TensorId) -> Way) -> Program {
    let mut writer = Writer {
        trace,
        last: last_uses(trace),
        ways: ids(trace).map(|(tensor, role)| way_of(trace, tensor, role, persistent_stay, &way)).collect(),
        resident: ids(trace).map(|(_, role)| persistent_stay && role.is_persistent()).collect(),
        pinned: Vec::new(),
        host_valid: ids(trace)
            .map(|(_, role)| role == Role::Input || !persistent_stay && role.is_persistent())
            .collect(),
        program: Program::default(),
    };
    if persistent_stay {
        writer.program.boundary = ids(trace)
            .filter(|(_, role)| role.is_persistent())
            .map(|(tensor, _)| tensile_sched::BoundaryTensor { tensor, host_valid: false })
            .collect();
    }
    for index in 0..trace.ops().len() {
        writer.run(OpId::from_index(index));
    }
    writer.program
}

/// Only activations of replayable ops can be recomputed: what else the ops of a rerun need stays, or is on the host.
fn way_of(trace: &Trace, tensor: TensorId, role: Role, persistent_stay: bool, way: &impl Fn(TensorId) -> Way) -> Way {
    let replayable = trace.ops().iter().any(|op| op.writes.contains(&tensor) && op.replayable);
    if role.is_persistent() {
        return if persistent_stay { Way::Keep } else { Way::Swap };
    }
    match (role, way(tensor)) {
        (Role::Activation, Way::Recompute) if replayable => Way::Recompute,
        (_, Way::Recompute) => Way::Keep,
        (_, way) => way,
    }
}

struct Writer<'a> {
    trace: &'a Trace,
    last: Vec<Option<OpId>>,
    ways: Vec<Way>,
    resident: Vec<bool>,
    /// Tensors that ops waiting for a rerun need.
    pinned: Vec<TensorId>,
    host_valid: Vec<bool>,
    program: Program,
}

impl Writer<'_> {
    fn push(&mut self, instr: Instr) {
        self.program.instrs.push(instr);
    }

    fn ensure(&mut self, tensor: TensorId) {
        if self.resident[tensor.index()] {
            return;
        }
        if self.host_valid[tensor.index()] {
            self.push(Instr::SwapIn(tensor));
            self.resident[tensor.index()] = true;
            return;
        }
        let ops = self.trace.ops();
        let op = OpId::from_index(ops.iter().position(|op| op.writes.contains(&tensor)).expect("somebody writes it"));
        let n_pinned = self.pinned.len();
        self.ensure_all(&self.trace.op(op).reads);
        let takeovers = self.takeovers(op, |writer, tensor| {
            writer.ways[tensor.index()] == Way::Recompute && !writer.pinned[..n_pinned].contains(&tensor)
        });
        self.pinned.truncate(n_pinned);
        self.push(Instr::Rerun { op, takeovers });
        for write in &self.trace.op(op).writes {
            self.resident[write.index()] = true;
        }
    }

    /// Brings tensors to the device and pins them; whoever calls unpins.
    fn ensure_all(&mut self, tensors: &[TensorId]) {
        self.pinned.extend(tensors);
        for &tensor in tensors {
            self.ensure(tensor);
        }
    }

    /// In-place pairs of an op whose input may go and whose output is not on the device yet; the inputs then are not there any more.
    fn takeovers(&mut self, op: OpId, may_go: impl Fn(&Self, TensorId) -> bool) -> Vec<InPlace> {
        let mut used: Vec<InPlace> = Vec::new();
        for pair in &self.trace.op(op).in_place {
            let free = used.iter().all(|other| other.input != pair.input && other.output != pair.output);
            if free && !self.resident[pair.output.index()] && may_go(self, pair.input) {
                self.resident[pair.input.index()] = false;
                used.push(*pair);
            }
        }
        used
    }

    fn run(&mut self, id: OpId) {
        let trace = self.trace;
        let op = trace.op(id);
        let needed: Vec<TensorId> = op.reads.iter().chain(&op.updates).copied().collect();
        self.ensure_all(&needed);
        self.pinned.clear();
        let next: Vec<TensorId> = match trace.ops().get(id.index() + 1) {
            Some(next) => next.reads.iter().chain(&next.updates).copied().collect(),
            None => Vec::new(),
        };
        let takeovers = self.takeovers(id, |writer, tensor| {
            let done = writer.last[tensor.index()].is_none_or(|last| last <= id);
            let (role, way) = (trace.tensors()[tensor.index()].role, writer.ways[tensor.index()]);
            let may_go = done || way == Way::Recompute;
            may_go && !next.contains(&tensor) && !role.is_persistent() && role != Role::Output
        });
        self.push(Instr::Run { op: id, takeovers });
        for &tensor in op.writes.iter().chain(&op.updates) {
            self.resident[tensor.index()] = true;
            self.host_valid[tensor.index()] = false;
        }
        for (tensor, role) in ids(trace) {
            let done = self.last[tensor.index()].is_none_or(|last| last <= id) && !role.is_persistent();
            let way = self.ways[tensor.index()];
            if !self.resident[tensor.index()] || next.contains(&tensor) || way == Way::Keep && !done {
                continue;
            }
            if way == Way::Keep && role.is_persistent() {
                continue;
            }
            let needs_copy = role == Role::Output || way == Way::Swap && !done;
            if needs_copy && !self.host_valid[tensor.index()] {
                self.push(Instr::SwapOut(tensor));
                self.host_valid[tensor.index()] = true;
            }
            self.push(Instr::Release(tensor));
            self.resident[tensor.index()] = false;
        }
    }
}

/// What a training run leaves: outputs of every step and the persistent tensors at the end.
#[derive(Debug, PartialEq)]
pub struct Trained {
    /// For each step, names and bytes.
    pub outputs: Vec<Vec<(String, Vec<u8>)>>,
    /// At the end.
    pub state: Vec<PersistentValue>,
}

/// An executor whose persistent tensors begin with [`SEED`].
///
/// # Panics
/// If it cannot start.
pub fn executor<D: Device>(device: &Arc<D>, compiled: &Arc<Compiled>, options: ExecutorOptions) -> Executor<D> {
    let init = |persistent: &Persistent, first: usize, bytes: &mut [u8]| {
        init_part(persistent, SEED, first, bytes);
    };
    Executor::new(Arc::clone(device), compiled, options, init).expect("the executor starts")
}

/// Names and bytes of a step's outputs.
pub fn outputs_of(result: StepResult) -> Vec<(String, Vec<u8>)> {
    result.outputs.into_iter().map(|output| (output.name, output.bytes)).collect()
}

/// Trains with two steps in flight.
///
/// # Panics
/// If a step fails.
pub fn run_steps<D: Device>(
    executor: &mut Executor<D>,
    compiled: &Arc<Compiled>,
    optimizer: &Optimizer,
    n_steps: u64,
) -> Trained {
    let mut outputs = Vec::new();
    let mut before = None;
    for iteration in 0..n_steps {
        let ticket = executor.begin(compiled, feed(iteration, optimizer)).expect("a step begins");
        if let Some(before) = before.replace(ticket) {
            outputs.push(outputs_of(executor.finish(before).expect("a step ends")));
        }
    }
    outputs.extend(before.map(|ticket| outputs_of(executor.finish(ticket).expect("a step ends"))));
    Trained { outputs, state: executor.state().expect("the state can be read") }
}

/// The same by the interpreter of graphs: no plan, no arena, no streams.
///
/// # Panics
/// If the graph cannot be run.
pub fn interpret_steps(graph: &Graph, optimizer: &Optimizer, n_steps: u64) -> Trained {
    let device = HostDevice::new(HostOptions::nominal(1)).expect("a device");
    let step = lower(graph, &device).expect("the graph lowers");
    let persistents: Vec<_> = graph.persistents().map(|(persistent, _)| persistent.clone()).collect();
    let mut state: Vec<(String, Vec<u8>)> =
        persistents.iter().map(|persistent| (persistent.name.clone(), init_value(persistent, SEED))).collect();
    let mut outputs = Vec::new();
    for iteration in 0..n_steps {
        let mut inputs = Vec::new();
        for input in &step.inputs {
            let mut bytes = vec![0; input.ty.bytes()];
            feed(iteration, optimizer)(input, &mut bytes);
            inputs.push((input.name.as_str(), bytes));
        }
        let given: Vec<(&str, Vec<u8>)> = state.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        let outcome = crate::testing::run(graph, &inputs, &given, 1);
        for (name, bytes) in &mut state {
            *bytes = outcome.persistents[name].clone();
        }
        let named = step.outputs.iter().map(|output| (output.name.clone(), outcome.outputs[&output.name].clone()));
        outputs.push(named.collect());
    }
    let state = persistents
        .into_iter()
        .zip(state)
        .map(|(persistent, (_, bytes))| PersistentValue { persistent, bytes })
        .collect();
    Trained { outputs, state }
}
