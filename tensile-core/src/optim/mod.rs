//! Optimizers: the update ops that end a training step, and what a step of several micro-batches is made of.
//!
//! ```
//! use tensile_core::optim::{Optimizer, train};
//! use tensile_core::{Graph, GraphError, Init, TensorType};
//!
//! # fn main() -> Result<(), GraphError> {
//! let optimizer = Optimizer::adamw(0.1).without_decay_on_vectors().with_clip_norm(1.0);
//! let mut graph = Graph::new();
//! let x = graph.input("x", TensorType::f32([8, 4]))?;
//! let labels = graph.input("labels", TensorType::i32([8]))?;
//! let weight = graph.parameter("weight", [3, 4], Init::Normal { std: 0.1 })?;
//! let bias = graph.parameter("bias", [3], Init::Constant(0.0))?;
//! let logits = graph.linear(x, weight, Some(bias))?;
//! let loss = graph.softmax_cross_entropy(logits, labels)?;
//! let trained = train(&mut graph, loss, &optimizer)?;
//! graph.output("loss", trained.loss)?;
//! graph.output("grad_norm", trained.grad_norm.expect("clipping needs it"))?;
//! # Ok(())
//! # }
//! ```

mod group;
pub mod schedule;

use tensile_sched::Role;

use crate::graph::{Graph, GraphError, Init, Phase, Value};
use crate::op::Op;
use crate::op::adam::Adam;
use crate::op::gate::Gate;
use crate::op::sgd::{Part, Sgd};
use crate::tensor::TensorType;
pub use group::{Group, Select};

/// Name of the input that holds the numbers which change from step to step; see [`Optimizer::scalars`].
pub const SCALARS: &str = "optimizer.scalars";

/// State of one parameter above which it is kept in chunks, so that one huge layer does not set the floor of the memory budget: 64 MiB.
pub const CHUNK_BYTES: usize = 64 << 20;

/// How parameters follow their gradients; meanings and formulas as in PyTorch.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent; see [`Sgd`].
    Sgd {
        /// Share of the last direction that is kept; 0 for none.
        momentum: f32,
        /// Nesterov's form of momentum.
        nesterov: bool,
        /// Pull towards 0.
        weight_decay: f32,
    },
    /// Adam, or AdamW if `decoupled`; see [`Adam`].
    Adam {
        /// Share of the first moment that is kept.
        beta1: f64,
        /// Share of the second moment that is kept.
        beta2: f64,
        /// Added to the denominator.
        eps: f32,
        /// Pull towards 0.
        weight_decay: f32,
        /// Whether the pull acts on the parameter itself.
        decoupled: bool,
    },
}

impl Rule {
    /// Pull towards 0.
    pub fn weight_decay(&self) -> f32 {
        match self {
            Rule::Sgd { weight_decay, .. } | Rule::Adam { weight_decay, .. } => *weight_decay,
        }
    }
}

/// A [`Rule`] with exceptions for some parameters, what is done before it is applied, and how its state is laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// What it does.
    pub rule: Rule,
    /// Exceptions; a parameter belongs to the first group that selects it.
    pub groups: Vec<Group>,
    /// Largest norm of all gradients together; larger ones are scaled down as PyTorch's `clip_grad_norm_` does. See [`Gate`].
    pub clip_norm: Option<f32>,
    /// Whether a step whose loss or gradient norm is infinite or NaN changes nothing: neither parameters nor moments, nor what the model itself
    /// updates (running statistics) if the step is made by [`train_accumulated`]. It still counts as a step in [`scalars`](Self::scalars).
    pub skip_nonfinite: bool,
    /// A parameter's moment of more bytes is kept in chunks of at most this size with one update op each.
    pub chunk_bytes: usize,
}

impl From<Rule> for Optimizer {
    /// The rule alone for all parameters.
    fn from(rule: Rule) -> Self {
        Self { rule, groups: Vec::new(), clip_norm: None, skip_nonfinite: false, chunk_bytes: CHUNK_BYTES }
    }
}

/// What decides about the updates of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The [`Gate`], `f32[2]`: [scale of gradients, 1 if there is an update or 0].
    pub gate: Value,
    /// Norm of all gradients together before clipping, `f32[]`.
    pub grad_norm: Value,
}

impl Optimizer {
    /// Gradient descent with momentum, without weight decay.
    pub fn sgd(momentum: f32) -> Self {
        Rule::Sgd { momentum, nesterov: false, weight_decay: 0.0 }.into()
    }

    /// Adam with β = (0.9, 0.999), ε = 10⁻⁸, without weight decay.
    pub fn adam() -> Self {
        Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0, decoupled: false }.into()
    }

    /// AdamW with β = (0.9, 0.999), ε = 10⁻⁸.
    pub fn adamw(weight_decay: f32) -> Self {
        Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay, decoupled: true }.into()
    }

    /// With one more group of exceptions, after those there are.
    pub fn with_group(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Without weight decay on parameters of at most one dimension: biases, and scales and shifts of norms, as GPT-style training does.
    pub fn without_decay_on_vectors(self) -> Self {
        self.with_group(Group { select: Select::Vectors, weight_decay: 0.0, lr_factor: 1.0 })
    }

    /// With gradients clipped to this norm; see [`clip_norm`](Self::clip_norm).
    pub fn with_clip_norm(mut self, max_norm: f32) -> Self {
        self.clip_norm = Some(max_norm);
        self
    }

    /// With steps skipped that are not finite; see [`skip_nonfinite`](Self::skip_nonfinite).
    pub fn with_skip_nonfinite(mut self) -> Self {
        self.skip_nonfinite = true;
        self
    }

    /// Suffixes of a parameter's state tensors.
    fn states(&self) -> &'static [&'static str] {
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => &[],
            Rule::Sgd { .. } => &["momentum"],
            Rule::Adam { .. } => &["exp_avg", "exp_avg_sq"],
        }
    }

    /// Weight decay and learning rate factor of each group: first of the parameters that no group selects.
    fn group_settings(&self) -> impl Iterator<Item = (f32, f64)> {
        let groups = self.groups.iter().map(|group| (group.weight_decay, group.lr_factor));
        [(self.rule.weight_decay(), 1.0)].into_iter().chain(groups)
    }

    /// Content of the input [`SCALARS`] for the update number `step` (0 for the first) at learning rate `lr`. One row for the parameters that no
    /// group selects, then one for each group with its own weight decay and with its factor in `lr`: `[lr]` for SGD,
    /// `[lr/(1 − β₁ᵗ), √(1 − β₂ᵗ), 1 − lr·weight_decay]` with t = step + 1 for Adam.
    pub fn scalars(&self, step: u64, lr: f64) -> Vec<f32> {
        let row = |(weight_decay, factor): (f32, f64)| {
            let lr = lr * factor;
            match self.rule {
                Rule::Sgd { .. } => vec![lr as f32],
                Rule::Adam { beta1, beta2, .. } => {
                    let t = (step + 1) as f64;
                    let (first, second) = (1.0 - beta1.powf(t), 1.0 - beta2.powf(t));
                    [lr / first, second.sqrt(), 1.0 - lr * f64::from(weight_decay)].map(|x| x as f32).to_vec()
                }
            }
        };
        self.group_settings().flat_map(row).collect()
    }

    /// Type of the input [`SCALARS`].
    pub fn scalars_type(&self) -> TensorType {
        let rows = 1 + self.groups.len();
        TensorType::f32([rows, self.scalars(0, 0.0).len() / rows])
    }

    fn op(&self, part: Part, group: usize, weight_decay: f32) -> Op {
        match self.rule {
            Rule::Sgd { momentum, nesterov, .. } => Sgd { part, group, momentum, nesterov, weight_decay }.into(),
            Rule::Adam { beta1, beta2, eps, decoupled, .. } => {
                Adam { part, group, beta1, beta2, eps, weight_decay, decoupled }.into()
            }
        }
    }

    /// Whether the gradients' norm, and maybe the loss, are looked at before updates.
    fn is_guarded(&self) -> bool {
        self.clip_norm.is_some() || self.skip_nonfinite
    }

    /// Adds the updates of parameters by their gradients, and declares state under `PARAMETER.momentum`, `.exp_avg` and `.exp_avg_sq`, with
    /// `.0`, `.1`, … behind for chunks. Update ops make no tensors and need no scratch. With [`skip_nonfinite`](Self::skip_nonfinite), the loss is
    /// looked at if it is given, the gradients' norm always. Gives what guards the updates, if anything does.
    ///
    /// # Errors
    /// [`GraphError::UpdatesTransient`] if a parameter is not persistent; [`GraphError::Op`] if a gradient has another type;
    /// [`GraphError::EmptyGroup`] for a name pattern of a group that no parameter fits.
    pub fn apply(
        &self,
        graph: &mut Graph,
        loss: Option<Value>,
        updates: &[(Value, Value)],
    ) -> Result<Option<Guard>, GraphError> {
        let mut squares = Squares::default();
        for (_, gradient) in updates.iter().filter(|_| self.is_guarded()) {
            squares.add(graph, *gradient)?;
        }
        self.apply_after(graph, loss, updates, squares)
    }

    /// As [`apply`](Self::apply), with the squares of all gradients summed already if updates are guarded.
    fn apply_after(
        &self,
        graph: &mut Graph,
        loss: Option<Value>,
        updates: &[(Value, Value)],
        squares: Squares,
    ) -> Result<Option<Guard>, GraphError> {
        in_phase(graph, Phase::Update, |graph| {
            let guard = match squares.0 {
                Some(squares) => Some(self.guard(graph, loss, squares)?),
                None => None,
            };
            graph.release_updates(guard.map(|guard| guard.gate))?;
            self.add_updates(graph, updates, guard)?;
            Ok(guard)
        })
    }

    fn guard(&self, graph: &mut Graph, loss: Option<Value>, squares: Value) -> Result<Guard, GraphError> {
        let gate = Gate { max_norm: self.clip_norm, skip_nonfinite: self.skip_nonfinite };
        let loss = loss.filter(|_| self.skip_nonfinite);
        let inputs: Vec<Value> = [squares].into_iter().chain(loss).collect();
        let outputs = graph.with_scope("optimizer".to_owned(), |graph| graph.apply(gate, &inputs))?;
        Ok(Guard { gate: outputs[0], grad_norm: outputs[1] })
    }

    fn add_updates(
        &self,
        graph: &mut Graph,
        updates: &[(Value, Value)],
        guard: Option<Guard>,
    ) -> Result<(), GraphError> {
        let scalars = graph.input(SCALARS, self.scalars_type())?;
        let mut parameters = Vec::new();
        for &(parameter, _) in updates {
            let Some(persistent) = graph.persistent_of(parameter) else {
                let label = graph.scoped_name("update");
                return Err(GraphError::UpdatesTransient { label, op: "update", index: 0 });
            };
            parameters.push(persistent.clone());
        }
        group::check(&self.groups, &parameters)?;
        let settings: Vec<(f32, f64)> = self.group_settings().collect();
        for (&(parameter, gradient), persistent) in updates.iter().zip(&parameters) {
            let (name, ty) = (&persistent.name, &persistent.ty);
            let group = group::of(&self.groups, persistent);
            let chunk = if ty.bytes() > self.chunk_bytes { (self.chunk_bytes / 4).max(1) } else { ty.numel() };
            let n_chunks = ty.numel().div_ceil(chunk);
            for index in 0..n_chunks {
                let part = Part { offset: index * chunk, len: chunk.min(ty.numel() - index * chunk) };
                let mut inputs = vec![parameter, gradient, scalars];
                for state in self.states() {
                    let (name, ty) = if n_chunks == 1 {
                        (format!("{name}.{state}"), ty.clone())
                    } else {
                        (format!("{name}.{state}.{index}"), TensorType::f32([part.len]))
                    };
                    inputs.push(graph.persistent_absolute(name, Role::OptimizerState, ty, Init::Constant(0.0))?);
                }
                inputs.extend(guard.map(|guard| guard.gate));
                let op = self.op(part, group, settings[group].0);
                graph.with_scope(format!("{name}.update"), |graph| graph.apply(op, &inputs))?;
            }
        }
        Ok(())
    }
}

/// Runs `build` in a phase.
fn in_phase<T>(
    graph: &mut Graph,
    phase: Phase,
    build: impl FnOnce(&mut Graph) -> Result<T, GraphError>,
) -> Result<T, GraphError> {
    let before = graph.set_phase(phase);
    let result = build(graph);
    graph.set_phase(before);
    result
}

/// The sum of squares of the gradients so far.
#[derive(Default)]
struct Squares(Option<Value>);

impl Squares {
    fn add(&mut self, graph: &mut Graph, gradient: Value) -> Result<(), GraphError> {
        let sum = in_phase(graph, Phase::Update, |graph| {
            graph.with_scope("optimizer".to_owned(), |graph| graph.square_sum(gradient, self.0))
        })?;
        self.0 = Some(sum);
        Ok(())
    }
}

/// A training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// The loss, `f32[]`: the mean over micro-batches.
    pub loss: Value,
    /// Each parameter that the loss depends on, with its gradient before clipping.
    pub updates: Vec<(Value, Value)>,
    /// Norm of all gradients together before clipping, `f32[]`, if the optimizer clips or skips.
    pub grad_norm: Option<Value>,
    /// What updates have read, if the optimizer clips or skips: `f32[2]`, the second number 0 if the step was skipped. See [`Guard`].
    pub gate: Option<Value>,
}

/// Adds the rest of a training step to a forward pass: the gradients of `loss` by every parameter of the graph, and their updates. Parameters that
/// the loss does not depend on stay as they are.
///
/// # Errors
/// Those of [`Graph::grad`] and [`Optimizer::apply`].
pub fn train(graph: &mut Graph, loss: Value, optimizer: &Optimizer) -> Result<Trained, GraphError> {
    let mut squares = Squares::default();
    let grads = add_gradients(graph, loss, &[], optimizer.is_guarded().then_some(&mut squares))?;
    finish(graph, loss, &grads, optimizer, squares)
}

/// Adds a training step of `n` micro-batches: for each, `build` adds the forward pass and gives the loss (the number is that of the micro-batch);
/// its gradients follow at once and are added to those of the micro-batches before; in the end come the updates by the gradients of the losses' mean.
///
/// So the step needs the memory of one micro-batch and the gradients. It does what one batch of all the samples would do, up to rounding,
/// if each loss is a mean over equally many samples and samples do not meet (batch norm sees micro-batches). Each call of `build` names the same
/// parameters; inputs are its own affair: one for all micro-batches to be sliced, or one for each.
///
/// # Errors
/// Those of `build`, [`Graph::grad`] and [`Optimizer::apply`].
///
/// # Panics
/// If `n` is 0.
pub fn train_accumulated(
    graph: &mut Graph,
    n: usize,
    optimizer: &Optimizer,
    mut build: impl FnMut(&mut Graph, usize) -> Result<Value, GraphError>,
) -> Result<Trained, GraphError> {
    assert!(n > 0, "a step has one micro-batch at least");
    if optimizer.skip_nonfinite {
        graph.hold_updates();
    }
    let mut squares = Squares::default();
    let mut mean = None;
    let mut grads = Vec::new();
    for index in 0..n {
        let mut loss = build(graph, index)?;
        if n > 1 {
            loss = graph.scale(loss, (1.0 / n as f64) as f32)?;
        }
        mean = Some(match mean {
            None => loss,
            Some(sum) => graph.add(sum, loss)?,
        });
        let squares = (optimizer.is_guarded() && index + 1 == n).then_some(&mut squares);
        grads = add_gradients(graph, loss, &grads, squares)?;
    }
    finish(graph, mean.expect("one micro-batch at least"), &grads, optimizer, squares)
}

/// Adds the gradients of `loss` by all parameters, on top of those `before`; sums their squares up if asked to.
fn add_gradients(
    graph: &mut Graph,
    loss: Value,
    before: &[(Value, Option<Value>)],
    squares: Option<&mut Squares>,
) -> Result<Vec<(Value, Option<Value>)>, GraphError> {
    let gradient_before = |parameter| before.iter().find(|(other, _)| *other == parameter).and_then(|(_, grad)| *grad);
    let parameters: Vec<(Value, Option<Value>)> = graph
        .persistents()
        .filter(|(persistent, _)| persistent.role == Role::Parameter)
        .map(|(_, parameter)| (parameter, gradient_before(parameter)))
        .collect();
    let grads = match squares {
        Some(squares) => graph.grad_onto(loss, &parameters, &mut |graph, gradient| squares.add(graph, gradient))?,
        None => graph.grad_onto(loss, &parameters, &mut |_, _| Ok(()))?,
    };
    Ok(parameters.into_iter().map(|(parameter, _)| parameter).zip(grads).collect())
}

fn finish(
    graph: &mut Graph,
    loss: Value,
    grads: &[(Value, Option<Value>)],
    optimizer: &Optimizer,
    squares: Squares,
) -> Result<Trained, GraphError> {
    let updates: Vec<(Value, Value)> =
        grads.iter().filter_map(|(parameter, grad)| Some((*parameter, (*grad)?))).collect();
    let guard = optimizer.apply_after(graph, Some(loss), &updates, squares)?;
    Ok(Trained { loss, updates, grad_norm: guard.map(|guard| guard.grad_norm), gate: guard.map(|guard| guard.gate) })
}
