//! Training: plans a job within its budget, and runs it step by step.

use std::path::Path;
use std::sync::Arc;

use lru::LruCache;
use tensile_core::Device;
use tensile_core::checkpoint::{self, CheckpointError, Contents};
use tensile_core::device::DeviceError;
use tensile_core::exec::{Compiled, ExecError, Executor, ExecutorOptions, ProgramStats, StepResult, Ticket};
use tensile_core::graph::GraphError;
use tensile_core::nn;
use tensile_sched::{Infeasible, Limits, Planner};

use crate::backend::Backend;
use crate::course::{Course, Evaluation, EvaluationSum, NotFinite, ResumeError, load_weights, save_weights};
use crate::data::{Batch, BatchShape, DataError, Dataset, Position, each_batch};
use crate::job::{Inference, Job, LOGITS, LOSS, MOST_SHAPES, Steps, fill};

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
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// A checkpoint that this training cannot go on from.
    #[error(transparent)]
    Resume(#[from] ResumeError),
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
    course: Course,
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
            course: Course { steps: 0, seed },
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
        if let Some((_, oldest)) = self.programs.push(shape.clone(), Arc::clone(&program)) {
            self.executor.forget(&oldest)?;
        }
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
        let program = self.program_for(batch.shape())?;
        let (job, course) = (&self.job, &self.course);
        let ticket = self.executor.begin(&program, |input, bytes| course.fill(job, batch, lr, input, bytes))?;
        self.course.steps += 1;
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
        Ok(self.executor.write_state(&load_weights(&self.job, path)?)?)
    }

    /// Saves parameters and buffers to a safetensors file, all or nothing.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`].
    pub fn save(&mut self, path: &Path) -> Result<(), TrainError> {
        Ok(save_weights(path, &self.executor.state()?)?)
    }

    /// Training steps begun, those before a resumed checkpoint among them.
    pub fn steps(&self) -> u64 {
        self.course.steps
    }

    /// Saves everything that training goes on from, all or nothing: parameters, buffers, state of the optimizer, step, seed, and `next`, the position of the
    /// data that the next step takes.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`]; [`TrainError::Exec`] if work in flight fails.
    pub fn save_training(&mut self, path: &Path, next: Position) -> Result<(), TrainError> {
        Ok(self.course.save(path, &self.executor.state()?, next)?)
    }

    /// Goes on from a checkpoint of the same job; gives the position of the data that comes next. The steps that follow have the same bits as if
    /// training had never stopped, under any budget.
    ///
    /// # Errors
    /// [`TrainError::Resume`] if the file is no checkpoint of this training.
    pub fn resume(&mut self, path: &Path) -> Result<Position, TrainError> {
        let (state, position) = self.course.resume(&self.job, path)?;
        self.executor.write_state(&state)?;
        Ok(position)
    }
}

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
    let mut sum = EvaluationSum::default();
    each_batch(data, batch, |batch| {
        let result = executor.step(program, |input, bytes| fill(batch, input, bytes))?;
        sum.add(&result, batch.n_labels());
        Ok::<(), TrainError>(())
    })?;
    Ok(sum.mean())
}
