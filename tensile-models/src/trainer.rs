//! Training: plans a job within its budget, and runs it step by step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tensile_core::Device;
use tensile_core::checkpoint::{self, CheckpointError, Contents};
use tensile_core::device::DeviceError;
use tensile_core::exec::{Compiled, ExecError, Executor, ExecutorOptions, Named, ProgramStats, StepResult, Ticket};
use tensile_core::nn;
use tensile_core::optim::SCALARS;
use tensile_sched::{Infeasible, Limits, Planner};

use crate::data::Dataset;
use crate::job::{CORRECT, IMAGES, Job, LABELS, LOSS};

/// Why training could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The training step does not fit the budget.
    #[error("the training step does not fit: {0}")]
    Plan(Infeasible),
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
}

/// One job on one device, with its memory, within a budget.
///
/// Steps overlap: [`begin`](Self::begin) the next before you [`finish`](Self::finish) one, and copies of the next run beside the one before.
pub struct Trainer<D: Device> {
    job: Job,
    train: Arc<Compiled>,
    eval: Arc<Compiled>,
    executor: Executor<D>,
    /// Training steps begun.
    steps: u64,
    seed: u64,
}

impl<D: Device> Trainer<D> {
    /// Plans the job's steps within `limits` and puts the parameters, drawn from `seed`, in place.
    ///
    /// # Errors
    /// [`TrainError::Plan`] with the floor if the budget is too small; [`TrainError::Exec`] if memory is short.
    pub fn new(
        device: Arc<D>,
        job: Job,
        planner: &dyn Planner,
        limits: Limits,
        options: ExecutorOptions,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let planned = planner.plan(&job.train.trace, &limits).map_err(TrainError::Plan)?;
        let eval_limits = Limits { boundary: Some(planned.synced.layout().homes.clone()), ..limits.clone() };
        let planned_eval = planner.plan(&job.eval.trace, &eval_limits).map_err(TrainError::PlanEval)?;
        let train = Compiled::new(Arc::clone(&job.train), planned, limits)?;
        let eval = Compiled::new(Arc::clone(&job.eval), planned_eval, eval_limits)?;
        let executor = Executor::new(device, &train, options, |persistent, bytes| {
            bytes.copy_from_slice(&nn::init_value(persistent, seed));
        })?;
        Ok(Self { job, train, eval, executor, steps: 0, seed })
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The training program.
    pub fn train_program(&self) -> &Arc<Compiled> {
        &self.train
    }

    /// The job's memory and state.
    pub fn executor(&mut self) -> &mut Executor<D> {
        &mut self.executor
    }

    /// What the training program has done so far.
    pub fn stats(&self) -> Option<&ProgramStats> {
        self.executor.stats(&self.train)
    }

    /// Begins a training step on the samples `indices` of `data` at learning rate `lr`.
    ///
    /// # Errors
    /// [`TrainError::Exec`]; among others if two steps are in flight.
    pub fn begin(&mut self, data: &dyn Dataset, indices: &[usize], lr: f64) -> Result<Ticket, TrainError> {
        let scalars = self.job.optimizer.scalars(self.steps, lr);
        let random = nn::random_value(self.seed, self.steps);
        let mut fill = batch_filler(data, indices);
        let ticket = self.executor.begin(&self.train, |input: &Named, bytes: &mut [u8]| match input.name.as_str() {
            SCALARS => bytes.copy_from_slice(bytemuck::cast_slice(&scalars)),
            nn::RANDOM => bytes.copy_from_slice(bytemuck::cast_slice(&random)),
            _ => fill(input, bytes),
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
    pub fn step(&mut self, data: &dyn Dataset, indices: &[usize], lr: f64) -> Result<f32, TrainError> {
        let ticket = self.begin(data, indices, lr)?;
        Ok(self.finish(ticket)?.scalar(LOSS))
    }

    /// Fraction of the samples of `data` that the model tells right.
    ///
    /// # Errors
    /// [`TrainError::Exec`].
    pub fn accuracy(&mut self, data: &dyn Dataset) -> Result<f64, TrainError> {
        let all: Vec<usize> = (0..data.len()).collect();
        let mut right = 0;
        for indices in all.chunks(self.job.batch) {
            let fill = batch_filler(data, indices);
            let result = self.executor.step(&self.eval, fill)?;
            let correct = result.output(CORRECT).expect("the evaluation step has this output").i32s()[0];
            right += correct as usize;
        }
        Ok(right as f64 / data.len() as f64)
    }

    /// Loads parameters and buffers from a safetensors file.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] that lists missing, unexpected and mis-shaped names.
    pub fn load(&mut self, path: &Path) -> Result<(), TrainError> {
        for value in checkpoint::load(path, &self.job.train.persistents, Contents::Model)? {
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
}

/// Writes the pixels and labels of some samples into inputs. Places of a batch beyond them get zero pixels and a label that is never right.
fn batch_filler<'a>(data: &'a dyn Dataset, indices: &'a [usize]) -> impl FnMut(&Named, &mut [u8]) + 'a {
    let n_pixels: usize = data.shape().iter().product();
    let mut scratch = vec![0.0f32; n_pixels];
    move |input, bytes| match input.name.as_str() {
        IMAGES => {
            let samples = bytes.chunks_exact_mut(4 * n_pixels);
            for (place, sample) in samples.enumerate() {
                match indices.get(place) {
                    Some(&index) => {
                        data.sample(index, &mut scratch);
                        sample.copy_from_slice(bytemuck::cast_slice(&scratch));
                    }
                    None => sample.fill(0),
                }
            }
        }
        LABELS => {
            for (place, label) in bytes.chunks_exact_mut(4).enumerate() {
                let value = indices.get(place).map_or(-1, |&index| data.sample(index, &mut scratch));
                label.copy_from_slice(&value.to_ne_bytes());
            }
        }
        name => unreachable!("a step of a job has no input '{name}'"),
    }
}
