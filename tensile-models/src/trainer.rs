//! Training: plans a job within its budget, and runs it step by step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use tensile_core::Device;
use tensile_core::checkpoint::{self, CheckpointError, Contents};
use tensile_core::device::DeviceError;
use tensile_core::exec::{Compiled, ExecError, Executor, ExecutorOptions, Named, ProgramStats, StepResult, Ticket};
use tensile_core::graph::GraphError;
use tensile_core::nn;
use tensile_core::optim::SCALARS;
use tensile_sched::{Infeasible, Limits, Planner};

use crate::backend::Backend;
use crate::data::{Batch, BatchShape, DataError, Dataset, Position, each_batch};
use crate::job::{CORRECT, GATE, GRAD_NORM, Inference, Job, LOGITS, LOSS, MOST_SHAPES, Nonfinite, Steps, fill};

/// Why training could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The training step does not fit the budget.
    #[error("the training step does not fit: {0}")]
    Plan(Infeasible),
    /// The training step for batches of another shape does not fit the budget beside what the main one keeps on the device.
    #[error("the training step for a batch of {shape} does not fit: {reason}; use a larger --budget")]
    PlanShape {
        /// The shape.
        shape: BatchShape,
        /// The floor and the budget.
        reason: Infeasible,
    },
    /// There is no training step for batches of another shape.
    #[error("no training step for a batch of {shape}: {reason}")]
    Shape {
        /// The shape.
        shape: BatchShape,
        /// Why.
        reason: Box<GraphError>,
    },
    /// The evaluation step does not fit the budget beside what training keeps on the device.
    #[error("the evaluation step does not fit: {0}")]
    PlanEval(Infeasible),
    /// Executing failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A file of parameters could not be loaded or saved.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A loss or gradients that are not finite, where that ends training.
    #[error(
        "step {step}: the loss is {loss} and the norm of the gradients {grad_norm}; the step changed nothing, and training stops (--nonfinite stop)"
    )]
    Nonfinite {
        /// The step, from 1.
        step: u64,
        /// The loss.
        loss: f32,
        /// The norm.
        grad_norm: f32,
    },
    /// A checkpoint that this training cannot go on from.
    #[error("cannot resume from '{}': {reason}", path.display())]
    Resume {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// How well a network tells labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss of the labels that count.
    pub loss: f64,
    /// Fraction of them that is told right.
    pub accuracy: f64,
    /// How many there are.
    pub labels: usize,
}

/// One job on one device, with its memory, within a budget.
///
/// Steps overlap: [`begin`](Self::begin) the next before you [`finish`](Self::finish) one, and copies of the next run beside the one before.
///
/// A batch of another shape than the job's main one has a step and a program of its own, made when the shape comes first, within the same limits and with
/// the same tensors on the device between steps. The latest [`MOST_SHAPES`] are kept.
pub struct Trainer<'p, D: Backend> {
    job: Job,
    train: Arc<Compiled>,
    eval: Arc<Compiled>,
    steps_by_shape: Steps,
    programs: LruCache<BatchShape, Arc<Compiled>>,
    planner: &'p dyn Planner,
    /// Those of every program but the main one: they give its boundary.
    shared_limits: Limits,
    plans: u64,
    executor: Executor<D>,
    /// Training steps begun.
    steps: u64,
    seed: u64,
    times_ops: bool,
}

impl<'p, D: Backend> Trainer<'p, D> {
    /// Plans the job's steps within `limits` and puts the parameters, drawn from `seed`, in place. Steps are profiled only on a device that times ops.
    ///
    /// # Errors
    /// [`TrainError::Plan`] with the floor if the budget is too small; [`TrainError::Exec`] if memory is short.
    pub fn new(
        device: Arc<D>,
        job: Job,
        planner: &'p dyn Planner,
        limits: Limits,
        options: ExecutorOptions,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let planned = planner.plan(&job.train.trace, &limits).map_err(TrainError::Plan)?;
        let shared_limits = Limits { boundary: Some(planned.synced.layout().homes.clone()), ..limits.clone() };
        let planned_eval = planner.plan(&job.eval.trace, &shared_limits).map_err(TrainError::PlanEval)?;
        let train = Compiled::new(Arc::clone(&job.train), planned, limits)?;
        let eval = Compiled::new(Arc::clone(&job.eval), planned_eval, shared_limits.clone())?;
        let times_ops = options.profile && device.times_ops();
        let options = ExecutorOptions { profile: times_ops, ..options };
        let executor = Executor::new(device, &train, options, |persistent, first, bytes| {
            nn::init_part(persistent, seed, first, bytes);
        })?;
        Ok(Self {
            job,
            train,
            eval,
            steps_by_shape: Steps::default(),
            programs: LruCache::new(MOST_SHAPES),
            planner,
            shared_limits,
            plans: 2,
            executor,
            steps: 0,
            seed,
            times_ops,
        })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Whether ops are timed one by one; without that, times of ops and stalls are not measured.
    pub fn times_ops(&self) -> bool {
        self.times_ops
    }

    /// Programs planned so far: of the main training step, of evaluation, and of training steps for other shapes.
    pub fn plans(&self) -> u64 {
        self.plans
    }

    /// The training program for batches of a shape; planned if it is not at hand.
    fn program_for(&mut self, shape: &BatchShape) -> Result<Arc<Compiled>, TrainError> {
        if *shape == self.job.shape() {
            return Ok(Arc::clone(&self.train));
        }
        if let Some(program) = self.programs.get(shape) {
            return Ok(Arc::clone(program));
        }
        let step = self
            .steps_by_shape
            .get(&self.job, shape, &**self.executor.device())
            .map_err(|reason| TrainError::Shape { shape: shape.clone(), reason: Box::new(reason) })?;
        let planned = self
            .planner
            .plan(&step.trace, &self.shared_limits)
            .map_err(|reason| TrainError::PlanShape { shape: shape.clone(), reason })?;
        self.plans += 1;
        let program = Compiled::new(step, planned, self.shared_limits.clone())?;
        self.programs.put(shape.clone(), Arc::clone(&program));
        Ok(program)
    }

    /// Programs at hand for batches of other shapes than the main one, that used last first.
    pub fn other_programs(&self) -> impl Iterator<Item = (&BatchShape, &Arc<Compiled>)> {
        self.programs.iter()
    }

    /// The main training program.
    pub fn train_program(&self) -> &Arc<Compiled> {
        &self.train
    }

    /// The job's memory and state.
    pub fn executor(&mut self) -> &mut Executor<D> {
        &mut self.executor
    }

    /// What the main training program has done so far.
    pub fn stats(&self) -> Option<&ProgramStats> {
        self.executor.stats(&self.train)
    }

    /// Begins a training step at learning rate `lr`, that for the batch's shape.
    ///
    /// # Errors
    /// [`TrainError::Exec`]; among others if two steps are in flight. [`TrainError::Shape`], [`TrainError::PlanShape`] if there is no step for such a batch, or none
    /// within the budget.
    pub fn begin(&mut self, batch: &Batch, lr: f64) -> Result<Ticket, TrainError> {
        let scalars = self.job.recipe.optimizer.scalars(self.steps, lr);
        let random = nn::random_value(self.seed, self.steps);
        let program = self.program_for(batch.shape())?;
        let ticket = self.executor.begin(&program, |input: &Named, bytes: &mut [u8]| match input.name.as_str() {
            SCALARS => bytes.copy_from_slice(bytemuck::cast_slice(&scalars)),
            nn::RANDOM => bytes.copy_from_slice(bytemuck::cast_slice(&random)),
            _ => fill(batch, input, bytes),
        })?;
        self.steps += 1;
        Ok(ticket)
    }

    /// Waits for a training step, and gives its results.
    ///
    /// # Errors
    /// [`TrainError::Exec`].
    pub fn finish(&mut self, ticket: Ticket) -> Result<StepResult, TrainError> {
        Ok(self.executor.finish(ticket)?)
    }

    /// One training step; gives the loss.
    ///
    /// # Errors
    /// [`TrainError::Exec`].
    pub fn step(&mut self, batch: &Batch, lr: f64) -> Result<f32, TrainError> {
        let ticket = self.begin(batch, lr)?;
        Ok(self.finish(ticket)?.scalar(LOSS))
    }

    /// How well the model tells the labels of `data`.
    ///
    /// # Errors
    /// [`TrainError::Exec`], [`TrainError::Data`].
    pub fn evaluate(&mut self, data: &dyn Dataset) -> Result<Evaluation, TrainError> {
        evaluate(&mut self.executor, &self.eval, self.job.recipe.batch, data)
    }

    /// Loads parameters and buffers from a safetensors file.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] that lists missing, unexpected and mis-shaped names.
    pub fn load(&mut self, path: &Path) -> Result<(), TrainError> {
        let own_name = |name: &str| self.job.network.own_name(name);
        for value in checkpoint::load_published(path, &self.job.train.persistents, Contents::Model, own_name)? {
            self.executor.write_persistent(&value.persistent.name, &value.bytes)?;
        }
        Ok(())
    }

    /// Saves parameters and buffers to a safetensors file, all or nothing.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`].
    pub fn save(&mut self, path: &Path) -> Result<(), TrainError> {
        Ok(checkpoint::save(path, &self.executor.state()?, Contents::Model, &BTreeMap::new())?)
    }

    /// Training steps begun, those before a resumed checkpoint among them.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Saves everything that training goes on from, all or nothing: parameters, buffers, state of the optimizer, step, seed, and `next`, the position of the
    /// data that the next step takes.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`]; [`TrainError::Exec`] if work in flight fails.
    pub fn save_training(&mut self, path: &Path, next: Position) -> Result<(), TrainError> {
        let numbers = [self.steps, self.seed, next.epoch, next.batch];
        let metadata = TRAINING.iter().zip(numbers).map(|(name, number)| ((*name).to_owned(), number.to_string()));
        Ok(checkpoint::save(path, &self.executor.state()?, Contents::Training, &metadata.collect())?)
    }

    /// Goes on from a checkpoint of the same job; gives the position of the data that comes next. The steps that follow have the same bits as if
    /// training had never stopped, under any budget.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] that lists missing, unexpected and mis-shaped names; [`TrainError::Resume`] if the file is no checkpoint of a training, or of one with
    /// another seed.
    pub fn resume(&mut self, path: &Path) -> Result<Position, TrainError> {
        let fault = |reason: String| TrainError::Resume { path: path.to_owned(), reason };
        let metadata = checkpoint::load_metadata(path)?;
        let mut numbers = [0u64; 4];
        for (number, name) in numbers.iter_mut().zip(TRAINING) {
            let text = metadata.get(name).ok_or_else(|| fault(format!("it does not tell '{name}'; only weights?")))?;
            *number = text.parse().map_err(|_| fault(format!("'{text}' is no number for '{name}'")))?;
        }
        let [steps, seed, epoch, batch] = numbers;
        if seed != self.seed {
            return Err(fault(format!("it was trained with --seed {seed}, not {}", self.seed)));
        }
        let state = checkpoint::load(path, &self.job.train.persistents, Contents::Training)?;
        self.executor.write_state(&state)?;
        self.steps = steps;
        Ok(Position { epoch, batch })
    }
}

/// The loss of a training step, which counts from 0.
///
/// # Errors
/// [`TrainError::Nonfinite`] if that is to stop training and the step's gate was shut.
pub fn loss_of(result: &StepResult, step: u64, nonfinite: Nonfinite) -> Result<f32, TrainError> {
    let loss = result.scalar(LOSS);
    let is_shut = result.output(GATE).is_some_and(|gate| gate.f32s()[1] == 0.0);
    if nonfinite == Nonfinite::Stop && is_shut {
        return Err(TrainError::Nonfinite { step: step + 1, loss, grad_norm: result.scalar(GRAD_NORM) });
    }
    Ok(loss)
}

/// Names under which a checkpoint tells where training is.
const TRAINING: [&str; 4] = ["step", "seed", "data.epoch", "data.batch"];

/// A trained network on one device within a budget: evaluation and prediction, without gradients.
pub struct Predictor<D: Device> {
    job: Inference,
    eval: Arc<Compiled>,
    predict: Arc<Compiled>,
    executor: Executor<D>,
}

impl<D: Device> Predictor<D> {
    /// Plans the steps within `limits` and loads parameters and buffers from a safetensors file.
    ///
    /// # Errors
    /// [`TrainError::PlanEval`] with the floor if the budget is too small; [`TrainError::Checkpoint`] that lists missing, unexpected and mis-shaped names.
    pub fn load(
        device: Arc<D>,
        job: Inference,
        planner: &dyn Planner,
        limits: Limits,
        path: &Path,
    ) -> Result<Self, TrainError> {
        let own_name = |name: &str| job.network.own_name(name);
        let values = checkpoint::load_published(path, &job.eval.persistents, Contents::Model, own_name)?;
        let planned = planner.plan(&job.eval.trace, &limits).map_err(TrainError::PlanEval)?;
        let same_place = Limits { boundary: Some(planned.synced.layout().homes.clone()), ..limits.clone() };
        let planned_predict = planner.plan(&job.predict.trace, &same_place).map_err(TrainError::PlanEval)?;
        let eval = Compiled::new(Arc::clone(&job.eval), planned, limits)?;
        let predict = Compiled::new(Arc::clone(&job.predict), planned_predict, same_place)?;
        let options = ExecutorOptions { profile: false, ..ExecutorOptions::default() };
        let executor = Executor::new(device, &eval, options, |persistent, first, bytes| {
            let value = values.iter().find(|value| value.persistent.name == persistent.name);
            let value = &value.expect("a file that lacks a tensor was refused").bytes;
            bytes.copy_from_slice(&value[first..][..bytes.len()]);
        })?;
        Ok(Self { job, eval, predict, executor })
    }

    /// Samples in a batch.
    pub fn batch(&self) -> usize {
        self.job.batch
    }

    /// How well the network tells the labels of `data`.
    ///
    /// # Errors
    /// [`TrainError::Exec`], [`TrainError::Data`].
    pub fn evaluate(&mut self, data: &dyn Dataset) -> Result<Evaluation, TrainError> {
        evaluate(&mut self.executor, &self.eval, self.job.batch, data)
    }

    /// Logits of a batch, one row of `classes` numbers for each of its labels.
    ///
    /// # Errors
    /// [`TrainError::Exec`].
    pub fn logits(&mut self, batch: &Batch) -> Result<Vec<f32>, TrainError> {
        let result = self.executor.step(&self.predict, |input, bytes| fill(batch, input, bytes))?;
        Ok(result.output(LOGITS).expect("the prediction step has this output").f32s())
    }
}

fn evaluate<D: Device>(
    executor: &mut Executor<D>,
    program: &Arc<Compiled>,
    batch: usize,
    data: &dyn Dataset,
) -> Result<Evaluation, TrainError> {
    let (mut loss, mut right, mut labels) = (0.0, 0, 0);
    each_batch(data, batch, |batch| {
        let result = executor.step(program, |input, bytes| fill(batch, input, bytes))?;
        let n = batch.n_labels();
        if n > 0 {
            loss += f64::from(result.scalar(LOSS)) * n as f64;
            right += result.output(CORRECT).expect("the evaluation step has this output").i32s()[0] as usize;
            labels += n;
        }
        Ok::<(), TrainError>(())
    })?;
    let n = labels as f64;
    Ok(Evaluation { loss: loss / n, accuracy: right as f64 / n, labels })
}
