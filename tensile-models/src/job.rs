//! A job: a network's training and evaluation steps for one batch size, ready to be planned.

use std::sync::Arc;

use tensile_core::Device;
use tensile_core::exec::{Step, lower};
use tensile_core::graph::{Graph, GraphError, Value};
use tensile_core::nn::{Mode, Net};
use tensile_core::optim::{self, Optimizer};

use crate::zoo::{IGNORED, Network};

/// Output of steps: the mean loss of the labels that count, `f32[]`; NaN if none does.
pub const LOSS: &str = "loss";
/// Output of the evaluation step: how many labels were told right, `i32[]`.
pub const CORRECT: &str = "correct";
/// Output of the prediction step: `f32[labels in the batch, classes]`.
pub const LOGITS: &str = "logits";

/// A network's steps for one batch size on one device. Their inputs are those of the network's [`Task`](crate::zoo::Task), and labels where there is a loss.
#[derive(Clone, Debug)]
pub struct Job {
    /// Samples in a batch.
    pub batch: usize,
    /// What it trains.
    pub network: Arc<dyn Network>,
    /// What updates the parameters.
    pub optimizer: Optimizer,
    /// Forward, backward, updates.
    pub train: Arc<Step>,
    /// Forward only, as in evaluation: running statistics, no dropout.
    pub eval: Arc<Step>,
}

impl Job {
    /// Builds both steps of a network for a batch of `batch` samples.
    ///
    /// # Errors
    /// [`GraphError`] if the network does not take its own task's inputs (images of this size, say), or the device lacks a kernel.
    pub fn new<D: Device>(
        network: &Arc<dyn Network>,
        batch: usize,
        optimizer: Optimizer,
        device: &D,
    ) -> Result<Self, GraphError> {
        Self::with_outputs(network, batch, optimizer, device, |_, _| Ok(()))
    }

    /// As [`new`](Self::new), with more outputs in the training step: `more` gets its graph and each parameter with its gradient.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of `more`.
    pub fn with_outputs<D: Device>(
        network: &Arc<dyn Network>,
        batch: usize,
        optimizer: Optimizer,
        device: &D,
        more: impl FnOnce(&mut Graph, &[(Value, Value)]) -> Result<(), GraphError>,
    ) -> Result<Self, GraphError> {
        let mut graph = Graph::new();
        let (_, loss) = loss(&mut graph, &**network, batch, Mode::Train)?;
        graph.output(LOSS, loss)?;
        let updates = optim::train(&mut graph, loss, &optimizer)?.updates;
        more(&mut graph, &updates)?;
        let eval = evaluation(graph.sibling(), &**network, batch)?;
        Ok(Self {
            batch,
            network: Arc::clone(network),
            optimizer,
            train: Arc::new(lower(&graph, device)?),
            eval: Arc::new(lower(&eval, device)?),
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
        let (logits, _) = logits(&mut predict, &**network, batch, Mode::Eval)?;
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
    let ((logits, labels), loss) = loss(&mut graph, network, batch, Mode::Eval)?;
    graph.output(LOSS, loss)?;
    let correct = graph.count_correct(logits, labels)?;
    graph.output(CORRECT, correct)?;
    Ok(graph)
}

/// Declares the inputs and adds the network; gives logits f32[rows, classes] and the number of rows.
fn logits(graph: &mut Graph, network: &dyn Network, batch: usize, mode: Mode) -> Result<(Value, usize), GraphError> {
    let task = network.task();
    let inputs = task
        .fields()
        .iter()
        .map(|field| graph.input(field.name, field.batched(batch)))
        .collect::<Result<Vec<Value>, GraphError>>()?;
    let logits = network.forward(&mut Net::new(graph, mode), &inputs)?;
    Ok((logits, batch * task.labels().shape.numel()))
}

/// As [`logits`], with labels i32[rows] and the loss f32[].
fn loss(
    graph: &mut Graph,
    network: &dyn Network,
    batch: usize,
    mode: Mode,
) -> Result<((Value, Value), Value), GraphError> {
    let (logits, rows) = logits(graph, network, batch, mode)?;
    let field = network.task().labels();
    let labels = graph.input(field.name, field.batched(batch))?;
    let labels = graph.reshape(labels, [rows])?;
    let loss = graph.softmax_cross_entropy_ignoring(logits, labels, IGNORED)?;
    Ok(((logits, labels), loss))
}
