//! What a training is beside running programs: the numbers that change from step to step, what a checkpoint holds, how evaluations add up.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tensile_core::checkpoint::{self, CheckpointError, Contents};
use tensile_core::exec::{Named, PersistentValue, StepResult};
use tensile_core::nn;
use tensile_core::optim::SCALARS;

use crate::data::{Batch, Position};
use crate::job::{CORRECT, GATE, GRAD_NORM, Job, LOSS, Nonfinite, fill};

/// Where a training is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Training steps begun.
    pub steps: u64,
    /// Seed of initial values, dropout and the order of samples.
    pub seed: u64,
}

/// Names under which a checkpoint tells where training is.
const TRAINING: [&str; 4] = ["step", "seed", "data.epoch", "data.batch"];

/// Why a checkpoint cannot be gone on from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// It could not be read, or is of another job.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// It is not one of this training.
    #[error("cannot resume from '{}': {reason}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Course {
    /// Fills an input of the next training step, on a batch at learning rate `lr`.
    pub fn fill(&self, job: &Job, batch: &Batch, lr: f64, input: &Named, bytes: &mut [u8]) {
        match input.name.as_str() {
            SCALARS => bytes.copy_from_slice(bytemuck::cast_slice(&job.recipe.optimizer.scalars(self.steps, lr))),
            nn::RANDOM => bytes.copy_from_slice(bytemuck::cast_slice(&nn::random_value(self.seed, self.steps))),
            _ => fill(batch, input, bytes),
        }
    }

    /// Saves everything that training goes on from, all or nothing: parameters, buffers, state of the optimizer, step, seed, and `next`, the position of the
    /// data that the next step takes.
    ///
    /// # Errors
    /// [`CheckpointError`] if the file cannot be written.
    pub fn save(&self, path: &Path, state: &[PersistentValue], next: Position) -> Result<(), CheckpointError> {
        let numbers = [self.steps, self.seed, next.epoch, next.batch];
        let metadata = TRAINING.iter().zip(numbers).map(|(name, number)| ((*name).to_owned(), number.to_string()));
        checkpoint::save(path, state, Contents::Training, &metadata.collect())
    }

    /// Goes to where a checkpoint of the same job was saved; gives all its tensors, and the position of the data that comes next.
    ///
    /// # Errors
    /// [`ResumeError::Checkpoint`] that lists missing, unexpected and mis-shaped names; [`ResumeError::Other`] if the file is no checkpoint of a training, or of one with
    /// another seed.
    pub fn resume(&mut self, job: &Job, path: &Path) -> Result<(Vec<PersistentValue>, Position), ResumeError> {
        let fault = |reason: String| ResumeError::Other { path: path.to_owned(), reason };
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
        let state = checkpoint::load(path, &job.train.persistents, Contents::Training)?;
        self.steps = steps;
        Ok((state, Position { epoch, batch }))
    }
}

/// Parameters and buffers from a safetensors file.
///
/// # Errors
/// [`CheckpointError`] that lists missing, unexpected and mis-shaped names.
pub fn load_weights(job: &Job, path: &Path) -> Result<Vec<PersistentValue>, CheckpointError> {
    checkpoint::load_published(path, &job.train.persistents, Contents::Model, |name| job.network.own_name(name))
}

/// Saves parameters and buffers of a state to a safetensors file, all or nothing.
///
/// # Errors
/// [`CheckpointError`] if the file cannot be written.
pub fn save_weights(path: &Path, state: &[PersistentValue]) -> Result<(), CheckpointError> {
    checkpoint::save(path, state, Contents::Model, &BTreeMap::new())
}

/// A loss or gradients that are not finite, where that ends training.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "step {step}: the loss is {loss} and the norm of the gradients {grad_norm}; the step changed nothing, and training stops (--nonfinite stop)"
)]
pub struct NotFinite {
    /// The step, from 1.
    pub step: u64,
    /// The loss.
    pub loss: f32,
    /// The norm.
    pub grad_norm: f32,
}

/// The loss of a training step, which counts from 0.
///
/// # Errors
/// [`NotFinite`] if that is to stop training and the step's gate was shut.
pub fn loss_of(result: &StepResult, step: u64, nonfinite: Nonfinite) -> Result<f32, NotFinite> {
    let loss = result.scalar(LOSS);
    let is_shut = result.output(GATE).is_some_and(|gate| gate.f32s()[1] == 0.0);
    if nonfinite == Nonfinite::Stop && is_shut {
        return Err(NotFinite { step: step + 1, loss, grad_norm: result.scalar(GRAD_NORM) });
    }
    Ok(loss)
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

/// Results of evaluation steps, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvaluationSum {
    loss: f64,
    right: usize,
    labels: usize,
}

impl EvaluationSum {
    /// Adds a step on a batch with so many labels that count.
    pub fn add(&mut self, result: &StepResult, labels: usize) {
        if labels > 0 {
            self.loss += f64::from(result.scalar(LOSS)) * labels as f64;
            self.right += result.output(CORRECT).expect("the evaluation step has this output").i32s()[0] as usize;
            self.labels += labels;
        }
    }

    /// Means over all labels.
    pub fn mean(&self) -> Evaluation {
        let n = self.labels as f64;
        Evaluation { loss: self.loss / n, accuracy: self.right as f64 / n, labels: self.labels }
    }
}
