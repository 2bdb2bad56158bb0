//! Optimizers: the update ops that end a training step.

use tensile_sched::Role;

use crate::graph::{Graph, GraphError, Init, Phase, Value};
use crate::op::Op;
use crate::op::adam::Adam;
use crate::op::sgd::{Part, Sgd};
use crate::tensor::TensorType;

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

/// A [`Rule`], and how its state is laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimizer {
    /// What it does.
    pub rule: Rule,
    /// A parameter's moment of more bytes is kept in chunks of at most this size with one update op each.
    pub chunk_bytes: usize,
}

impl From<Rule> for Optimizer {
    fn from(rule: Rule) -> Self {
        Self { rule, chunk_bytes: CHUNK_BYTES }
    }
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

    /// Suffixes of a parameter's state tensors.
    fn states(&self) -> &'static [&'static str] {
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => &[],
            Rule::Sgd { .. } => &["momentum"],
            Rule::Adam { .. } => &["exp_avg", "exp_avg_sq"],
        }
    }

    /// Content of the input [`SCALARS`] for the update number `step` (0 for the first) at learning rate `lr`: `[lr]` for SGD,
    /// `[lr/(1 − β₁ᵗ), √(1 − β₂ᵗ), 1 − lr·weight_decay]` with t = step + 1 for Adam.
    pub fn scalars(&self, step: u64, lr: f64) -> Vec<f32> {
        match self.rule {
            Rule::Sgd { .. } => vec![lr as f32],
            Rule::Adam { beta1, beta2, weight_decay, .. } => {
                let t = (step + 1) as f64;
                let (first, second) = (1.0 - beta1.powf(t), 1.0 - beta2.powf(t));
                [lr / first, second.sqrt(), 1.0 - lr * f64::from(weight_decay)].map(|x| x as f32).to_vec()
            }
        }
    }

    /// Type of the input [`SCALARS`].
    pub fn scalars_type(&self) -> TensorType {
        TensorType::f32([self.scalars(0, 0.0).len()])
    }

    fn op(&self, part: Part) -> Op {
        match self.rule {
            Rule::Sgd { momentum, nesterov, weight_decay } => Sgd { part, momentum, nesterov, weight_decay }.into(),
            Rule::Adam { beta1, beta2, eps, weight_decay, decoupled } => {
                Adam { part, beta1, beta2, eps, weight_decay, decoupled }.into()
            }
        }
    }

    /// Adds the updates of parameters by their gradients, and declares state under `PARAMETER.momentum`, `.exp_avg` and `.exp_avg_sq`, with
    /// `.0`, `.1`, … behind for chunks. Update ops make no tensors and need no scratch.
    ///
    /// # Errors
    /// [`GraphError::UpdatesTransient`] if a parameter is not persistent; [`GraphError::Op`] if a gradient has another type.
    pub fn apply(&self, graph: &mut Graph, updates: &[(Value, Value)]) -> Result<(), GraphError> {
        let phase = graph.set_phase(Phase::Update);
        let result = self.add_updates(graph, updates);
        graph.set_phase(phase);
        result
    }

    fn add_updates(&self, graph: &mut Graph, updates: &[(Value, Value)]) -> Result<(), GraphError> {
        let scalars = graph.input(SCALARS, self.scalars_type())?;
        for &(parameter, gradient) in updates {
            let Some(persistent) = graph.persistent_of(parameter) else {
                let label = graph.scoped_name("update");
                return Err(GraphError::UpdatesTransient { label, op: "update", index: 0 });
            };
            let (name, ty) = (persistent.name.clone(), persistent.ty.clone());
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
                graph.with_scope(format!("{name}.update"), |graph| graph.apply(self.op(part), &inputs))?;
            }
        }
        Ok(())
    }
}

/// Adds the rest of a training step: the gradients of `loss` by every parameter of the graph, and their updates. Gives each parameter with its
/// gradient; parameters that the loss does not depend on stay as they are.
///
/// # Errors
/// Those of [`Graph::grad`] and [`Optimizer::apply`].
pub fn train(graph: &mut Graph, loss: Value, optimizer: &Optimizer) -> Result<Vec<(Value, Value)>, GraphError> {
    let parameters: Vec<Value> =
        graph.persistents().filter(|(p, _)| p.role == Role::Parameter).map(|(_, value)| value).collect();
    let grads = graph.grad(loss, &parameters)?;
    let updates: Vec<(Value, Value)> =
        parameters.into_iter().zip(grads).filter_map(|(parameter, grad)| Some((parameter, grad?))).collect();
    optimizer.apply(graph, &updates)?;
    Ok(updates)
}
