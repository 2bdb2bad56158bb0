//! A job: a network's training and evaluation steps for one batch size, ready to be planned.

use std::sync::Arc;

use tensile_core::Device;
use tensile_core::exec::{Named, Step, lower};
use tensile_core::graph::{Graph, GraphError, Value};
use tensile_core::nn::{Mode, Net};
use tensile_core::optim::{self, Optimizer};

use crate::data::Batch;
use crate::zoo::{IGNORED, Network};

/// Output of steps: the mean loss of the labels that count, `f32[]`; NaN if none does.
pub const LOSS: &str = "loss";
/// Output of the evaluation step: how many labels were told right, `i32[]`.
pub const CORRECT: &str = "correct";
/// Output of the prediction step: `f32[labels in the batch, classes]`.
pub const LOGITS: &str = "logits";

/// Output of training steps whose optimizer clips or skips: the norm of all gradients together before clipping, `f32[]`.
pub const GRAD_NORM: &str = "grad_norm";
/// Output of training steps whose optimizer clips or skips: `f32[2]`; the second number is 0 if the step was skipped.
pub const GATE: &str = "gate";

/// How a network is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Samples in a micro-batch: what is on the device at one time.
    pub batch: usize,
    /// Micro-batches whose gradients are added up for one update, 1 or more.
    pub accumulate: usize,
    /// What updates the parameters.
    pub optimizer: Optimizer,
}

impl Recipe {
    /// An update after each batch.
    pub fn new(batch: usize, optimizer: Optimizer) -> Self {
        Self { batch, accumulate: 1, optimizer }
    }

    /// Samples that one update is made from.
    pub fn samples_per_step(&self) -> usize {
        self.batch * self.accumulate
    }
}

/// A network's steps on one device. Their inputs are those of the network's [`Task`](crate::zoo::Task), and labels where there is a loss; with micro-batches, each input
/// comes once for each of them, as `NAME.0`, `NAME.1`, ….
#[derive(Clone, Debug)]
pub struct Job {
    /// What it trains.
    pub network: Arc<dyn Network>,
    /// How.
    pub recipe: Recipe,
    /// Forward, backward, updates.
    pub train: Arc<Step>,
    /// Forward only, as in evaluation: running statistics, no dropout.
    pub eval: Arc<Step>,
}

impl Job {
    /// Builds both steps of a network.
    ///
    /// # Errors
    /// [`GraphError`] if the network does not take its own task's inputs (images of this size, say), or the device lacks a kernel.
    pub fn new<D: Device>(network: &Arc<dyn Network>, recipe: Recipe, device: &D) -> Result<Self, GraphError> {
        Self::with_outputs(network, recipe, device, |_, _| Ok(()))
    }

    /// As [`new`](Self::new), with more outputs in the training step: `more` gets its graph and each parameter with its gradient.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of `more`.
    pub fn with_outputs<D: Device>(
        network: &Arc<dyn Network>,
        recipe: Recipe,
        device: &D,
        more: impl FnOnce(&mut Graph, &[(Value, Value)]) -> Result<(), GraphError>,
    ) -> Result<Self, GraphError> {
        let Recipe { batch, accumulate, ref optimizer } = recipe;
        let mut graph = Graph::new();
        let trained = optim::train_accumulated(&mut graph, accumulate, optimizer, |graph, index| {
            let part = (accumulate > 1).then_some(index);
            Ok(loss(graph, &**network, batch, part, Mode::Train)?.1)
        })?;
        graph.output(LOSS, trained.loss)?;
        for (name, value) in [(GRAD_NORM, trained.grad_norm), (GATE, trained.gate)] {
            if let Some(value) = value {
                graph.output(name, value)?;
            }
        }
        more(&mut graph, &trained.updates)?;
        let eval = evaluation(graph.sibling(), &**network, batch)?;
        Ok(Self {
            network: Arc::clone(network),
            train: Arc::new(lower(&graph, device)?),
            eval: Arc::new(lower(&eval, device)?),
            recipe,
        })
    }
}

/// A network's steps for evaluation and prediction alone: no gradients, no state of an optimizer.
#[derive(Clone, Debug)]
pub struct Inference {
    /// Samples in a batch.
    pub batch: usize,
    /// What it runs.
    pub network: Arc<dyn Network>,
    /// Loss and number of labels told right.
    pub eval: Arc<Step>,
    /// Logits.
    pub predict: Arc<Step>,
}

impl Inference {
    /// Builds both steps of a network for a batch of `batch` samples.
    ///
    /// # Errors
    /// As [`Job::new`].
    pub fn new<D: Device>(network: &Arc<dyn Network>, batch: usize, device: &D) -> Result<Self, GraphError> {
        let eval = evaluation(Graph::new(), &**network, batch)?;
        let mut predict = eval.sibling();
        let (logits, _) = logits(&mut predict, &**network, batch, None, Mode::Eval)?;
        predict.output(LOGITS, logits)?;
        Ok(Self {
            batch,
            network: Arc::clone(network),
            eval: Arc::new(lower(&eval, device)?),
            predict: Arc::new(lower(&predict, device)?),
        })
    }
}

/// The evaluation step, in a graph that has the persistent tensors at most.
fn evaluation(mut graph: Graph, network: &dyn Network, batch: usize) -> Result<Graph, GraphError> {
    let ((logits, labels), loss) = loss(&mut graph, network, batch, None, Mode::Eval)?;
    graph.output(LOSS, loss)?;
    let correct = graph.count_correct(logits, labels)?;
    graph.output(CORRECT, correct)?;
    Ok(graph)
}

/// Name of an input of a micro-batch.
fn input_name(field: &str, part: Option<usize>) -> String {
    part.map_or(field.to_owned(), |part| format!("{field}.{part}"))
}

/// Declares the inputs and adds the network; gives logits f32[rows, classes] and the number of rows.
fn logits(
    graph: &mut Graph,
    network: &dyn Network,
    batch: usize,
    part: Option<usize>,
    mode: Mode,
) -> Result<(Value, usize), GraphError> {
    let task = network.task();
    let inputs = task
        .fields()
        .iter()
        .map(|field| graph.input(&input_name(field.name, part), field.batched(batch)))
        .collect::<Result<Vec<Value>, GraphError>>()?;
    let logits = network.forward(&mut Net::new(graph, mode), &inputs)?;
    Ok((logits, batch * task.labels().shape.numel()))
}

/// As [`logits`], with labels i32[rows] and the loss f32[].
fn loss(
    graph: &mut Graph,
    network: &dyn Network,
    batch: usize,
    part: Option<usize>,
    mode: Mode,
) -> Result<((Value, Value), Value), GraphError> {
    let (logits, rows) = logits(graph, network, batch, part, mode)?;
    let field = network.task().labels();
    let labels = graph.input(&input_name(field.name, part), field.batched(batch))?;
    let labels = graph.reshape(labels, [rows])?;
    let loss = graph.softmax_cross_entropy_ignoring(logits, labels, IGNORED)?;
    Ok(((logits, labels), loss))
}

/// Copies the bytes of an input from a batch that holds the samples of all micro-batches.
///
/// # Panics
/// If the batch has no such input, or not as many samples.
pub fn fill(batch: &Batch, input: &Named, into: &mut [u8]) {
    let (name, part) = match input.name.split_once('.') {
        Some((name, part)) => (name, part.parse().expect("micro-batches have numbers")),
        None => (input.name.as_str(), 0),
    };
    let bytes = batch.bytes(name).unwrap_or_else(|| panic!("the batch has no '{name}'"));
    into.copy_from_slice(&bytes[part * into.len()..][..into.len()]);
}
