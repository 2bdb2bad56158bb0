//! A job: a network's training and evaluation steps, ready to be planned; training has one for each shape that its batches have.

use std::num::NonZeroUsize;
use std::sync::Arc;

use clap::ValueEnum;
use lru::LruCache;
use serde::Deserialize;
use tensile_core::Device;
use tensile_core::exec::{Named, Step, lower};
use tensile_core::graph::{Graph, GraphError, Value};
use tensile_core::latency::Latencies;
use tensile_core::nn::{Mode, Net};
use tensile_core::optim::{self, Optimizer};

use tensile_sched::TraceError;

use crate::data::{Batch, BatchShape, Batching, LastBatch};
use crate::zoo::{IGNORED, Network, Task};

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

/// What is done in a step whose loss or gradients are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nonfinite {
    /// Nothing is updated, and training ends.
    Stop,
    /// Nothing is updated.
    Skip,
    /// As in any other step.
    #[default]
    Continue,
}

/// How a network is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Samples in a micro-batch: what is on the device at one time.
    pub batch: usize,
    /// Micro-batches whose gradients are added up for one update, 1 or more.
    pub accumulate: usize,
    /// What updates the parameters.
    pub optimizer: Optimizer,
    /// What becomes of the samples at the end of an epoch that are too few for an update.
    pub last_batch: LastBatch,
    /// Lengths of texts; see [`Batching::lengths`].
    pub lengths: Vec<usize>,
}

impl Recipe {
    /// An update after each batch; all batches have one shape.
    pub fn new(batch: usize, optimizer: Optimizer) -> Self {
        Self { batch, accumulate: 1, optimizer, last_batch: LastBatch::Drop, lengths: Vec::new() }
    }

    /// How samples become what an update is made from.
    pub fn batching(&self) -> Batching {
        Batching { samples: self.samples_per_step(), last: self.last_batch, lengths: self.lengths.clone() }
    }

    /// Samples in a micro-batch, and micro-batches, of an update from `samples` samples: as few of them as there can be with equally many samples each, so
    /// that the mean of their losses is the mean over the samples.
    fn parts(&self, samples: usize) -> [usize; 2] {
        let batch = (1..=self.batch.min(samples)).rev().find(|batch| samples.is_multiple_of(*batch)).unwrap_or(1);
        [batch, (samples / batch).max(1)]
    }

    /// Samples that one update is made from.
    pub fn samples_per_step(&self) -> usize {
        self.batch * self.accumulate
    }
}

/// A network's steps on one device. Their inputs are those of the network's [`Task`], and labels where there is a loss; with micro-batches, each input
/// comes once for each of them, as `NAME.0`, `NAME.1`, ….
#[derive(Clone, Debug)]
pub struct Job {
    /// What it trains.
    pub network: Arc<dyn Network>,
    /// How.
    pub recipe: Recipe,
    /// Forward, backward, updates, for the largest shape that batches have.
    pub train: Arc<Step>,
    /// Forward only, as in evaluation: running statistics, no dropout.
    pub eval: Arc<Step>,
    /// What tells latencies, and for how many jobs on the device, where that is not the device's rates.
    latencies: Option<(Arc<dyn Latencies>, f64)>,
}

impl Job {
    /// Builds both steps of a network; that of training is for the largest batches.
    ///
    /// # Errors
    /// [`GraphError`] if the network does not take its own task's inputs (images of this size, say), or the device lacks a kernel.
    pub fn new<D: Device>(network: &Arc<dyn Network>, recipe: Recipe, device: &D) -> Result<Self, GraphError> {
        Self::with_outputs(network, recipe, device, |_, _| Ok(()))
    }

    /// As [`new`](Self::new), with more outputs in the training step: `more` gets its graph and each parameter with its gradient. Steps for
    /// other shapes do not have them.
    ///
    /// # Errors
    /// As [`new`](Self::new), and those of `more`.
    pub fn with_outputs<D: Device>(
        network: &Arc<dyn Network>,
        recipe: Recipe,
        device: &D,
        more: impl FnOnce(&mut Graph, &[(Value, Value)]) -> Result<(), GraphError>,
    ) -> Result<Self, GraphError> {
        let shape = recipe.batching().largest(&network.task());
        let graph = training(&**network, &recipe, &shape, more)?;
        let eval = evaluation(graph.sibling(), &**network, recipe.batch)?;
        Ok(Self {
            network: Arc::clone(network),
            train: Arc::new(lower(&graph, device)?),
            eval: Arc::new(lower(&eval, device)?),
            recipe,
            latencies: None,
        })
    }

    /// The same steps, and those for [other shapes](Self::step_for), with latencies as told for a device that `load` jobs share.
    ///
    /// # Errors
    /// As [`Step::with_latencies`].
    pub fn with_latencies(self, latencies: Arc<dyn Latencies>, load: f64) -> Result<Self, TraceError> {
        let told = |step: &Step| step.with_latencies(&*latencies, load).map(Arc::new);
        Ok(Self { train: told(&self.train)?, eval: told(&self.eval)?, latencies: Some((latencies, load)), ..self })
    }

    /// The shape of batches that [`train`](Self::train) is for.
    pub fn shape(&self) -> BatchShape {
        self.recipe.batching().largest(&self.network.task())
    }

    /// The training step for batches of any shape.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn step_for<D: Device>(&self, shape: &BatchShape, device: &D) -> Result<Arc<Step>, GraphError> {
        if *shape == self.shape() {
            return Ok(Arc::clone(&self.train));
        }
        let step = lower(&training(&*self.network, &self.recipe, shape, |_, _| Ok(()))?, device)?;
        match &self.latencies {
            Some((latencies, load)) => Ok(Arc::new(step.with_latencies(&**latencies, *load)?)),
            None => Ok(Arc::new(step)),
        }
    }
}

/// The training steps of a job for the shapes that come up: built when a shape comes first, and kept, but not too many: least recently used first out.
#[derive(Debug)]
pub struct Steps {
    kept: LruCache<BatchShape, Arc<Step>>,
    built: u64,
}

/// Shapes of batches whose steps and programs are kept beside the main ones.
pub const MOST_SHAPES: NonZeroUsize = NonZeroUsize::new(16).expect("above zero");

impl Default for Steps {
    /// Keeps [`MOST_SHAPES`].
    fn default() -> Self {
        Self::new(MOST_SHAPES)
    }
}

impl Steps {
    /// Keeps at most so many steps.
    pub fn new(most: NonZeroUsize) -> Self {
        Self { kept: LruCache::new(most), built: 0 }
    }

    /// The step for batches of a shape.
    ///
    /// # Errors
    /// As [`Job::step_for`].
    pub fn get<D: Device>(&mut self, job: &Job, shape: &BatchShape, device: &D) -> Result<Arc<Step>, GraphError> {
        if *shape == job.shape() {
            return Ok(Arc::clone(&job.train));
        }
        if let Some(step) = self.kept.get(shape) {
            return Ok(Arc::clone(step));
        }
        let step = job.step_for(shape, device)?;
        self.built += 1;
        self.kept.put(shape.clone(), Arc::clone(&step));
        Ok(step)
    }

    /// Steps built so far.
    pub fn built(&self) -> u64 {
        self.built
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
        let (logits, _) = logits(&mut predict, &**network, &network.task(), batch, None, Mode::Eval)?;
        predict.output(LOGITS, logits)?;
        Ok(Self {
            batch,
            network: Arc::clone(network),
            eval: Arc::new(lower(&eval, device)?),
            predict: Arc::new(lower(&predict, device)?),
        })
    }

    /// The same steps with latencies as told for a device of one's own.
    ///
    /// # Errors
    /// As [`Step::with_latencies`].
    pub fn with_latencies(self, latencies: &dyn Latencies) -> Result<Self, TraceError> {
        let told = |step: &Step| step.with_latencies(latencies, 1.0).map(Arc::new);
        Ok(Self { eval: told(&self.eval)?, predict: told(&self.predict)?, ..self })
    }
}

/// The training step for batches of a shape. All of a network have the same persistent tensors.
fn training(
    network: &dyn Network,
    recipe: &Recipe,
    shape: &BatchShape,
    more: impl FnOnce(&mut Graph, &[(Value, Value)]) -> Result<(), GraphError>,
) -> Result<Graph, GraphError> {
    let [batch, n_parts] = recipe.parts(shape.samples);
    let mut graph = Graph::new();
    let trained = optim::train_accumulated(&mut graph, n_parts, &recipe.optimizer, |graph, index| {
        let part = (n_parts > 1).then_some(index);
        Ok(loss(graph, network, &shape.task, batch, part, Mode::Train)?.1)
    })?;
    graph.output(LOSS, trained.loss)?;
    for (name, value) in [(GRAD_NORM, trained.grad_norm), (GATE, trained.gate)] {
        if let Some(value) = value {
            graph.output(name, value)?;
        }
    }
    more(&mut graph, &trained.updates)?;
    Ok(graph)
}

/// The evaluation step, in a graph that has the persistent tensors at most.
fn evaluation(mut graph: Graph, network: &dyn Network, batch: usize) -> Result<Graph, GraphError> {
    let ((logits, labels), loss) = loss(&mut graph, network, &network.task(), batch, None, Mode::Eval)?;
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
    task: &Task,
    batch: usize,
    part: Option<usize>,
    mode: Mode,
) -> Result<(Value, usize), GraphError> {
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
    task: &Task,
    batch: usize,
    part: Option<usize>,
    mode: Mode,
) -> Result<((Value, Value), Value), GraphError> {
    let (logits, rows) = logits(graph, network, task, batch, part, mode)?;
    let field = task.labels();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tensile_core::device::host::{HostDevice, HostOptions};
    use tensile_core::{Op, TensorType};
    use tensile_sched::Nanos;

    /// Seven nanoseconds for each job on the device.
    #[derive(Debug)]
    struct Seven;

    impl Latencies for Seven {
        fn predict(&self, _: &Op, _: &[TensorType], _: &[TensorType], load: f64) -> Nanos {
            Nanos(7 * load as u64)
        }
    }

    #[test]
    fn steps_for_other_shapes_are_told_latencies_too() {
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let network = crate::zoo::find("mlp").unwrap().network(&BTreeMap::new()).unwrap();
        let job = Job::new(&network, Recipe::new(8, Optimizer::adam()), &device).unwrap();
        let job = job.with_latencies(Arc::new(Seven), 3.0).unwrap();
        let smaller = BatchShape { samples: 5, ..job.shape() };
        let other = job.step_for(&smaller, &device).unwrap();
        assert!(!Arc::ptr_eq(&other, &job.train));
        for step in [&job.train, &job.eval, &other] {
            assert_eq!(step.trace.compute_time(), Nanos(21 * step.calls.len() as u64));
        }
        let inference = Inference::new(&network, 8, &device).unwrap().with_latencies(&Seven).unwrap();
        for step in [&inference.eval, &inference.predict] {
            assert_eq!(step.trace.compute_time(), Nanos(7 * step.calls.len() as u64));
        }
    }
}
