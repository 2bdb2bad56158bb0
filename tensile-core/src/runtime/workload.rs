//! What a job runs.

use std::sync::Arc;

use crate::exec::{Compiled, ExecError, Named, PersistentValue, ProgramStats, Step, StepResult, StepSpans};
use crate::graph::Persistent;

/// Why a workload cannot go on.
pub type WorkError = Box<dyn std::error::Error + Send + Sync>;

/// What a job is to do next.
#[derive(Clone, Debug)]
pub enum Next {
    /// A step: training, evaluation, one of another shape. Programs are kept for each `Arc`, so give the same one for the same step.
    Step(Arc<Step>),
    /// Let what runs end, then call [`Workload::at_rest`].
    AtRest,
    /// Nothing: the job is done.
    End,
}

/// What a job runs: a source of steps with their inputs, and a taker of their results. All methods but [`main_step`](Self::main_step) are called on the job's own thread; a panic in one ends the job,
/// and only this one.
///
/// The order of calls is `next`, `fill` for each input of its step, `next`, …; `finished` comes for each step in the same order, but while the next one runs already.
pub trait Workload: Send + 'static {
    /// The step that the job's memory is planned for; where its persistent tensors are between steps is decided for this step, and all others of the job follow.
    fn main_step(&self) -> Arc<Step>;

    /// First value of a persistent tensor: `bytes`, zero at first, are its part from byte `first` on.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn init(&mut self, persistent: &Persistent, first: usize, bytes: &mut [u8]) -> Result<(), WorkError>;

    /// What to do next.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn next(&mut self) -> Result<Next, WorkError>;

    /// Fills an input of the step that [`next`](Self::next) gave.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn fill(&mut self, step: &Arc<Step>, input: &Named, bytes: &mut [u8]) -> Result<(), WorkError>;

    /// Takes the results of a step.
    ///
    /// # Errors
    /// Whatever ends the job, for example a loss that is not finite.
    fn finished(&mut self, step: &Arc<Step>, result: StepResult) -> Result<(), WorkError>;

    /// Nothing is in flight, as [`Next::AtRest`] asked: a time to save, to load, to look at what was measured.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn at_rest(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        let _ = job;
        Ok(())
    }

    /// The job is about to be paused, and nothing is in flight: a time to save.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn pausing(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        let _ = job;
        Ok(())
    }
}

/// A job with nothing in flight.
pub trait AtRest {
    /// Values of all persistent tensors, in the order of their declaration.
    ///
    /// # Errors
    /// [`ExecError`] if the device fails.
    fn state(&mut self) -> Result<Vec<PersistentValue>, ExecError>;

    /// Sets persistent tensors by their names.
    ///
    /// # Errors
    /// [`ExecError`] for unknown names and other sizes, and if the device fails.
    fn write_state(&mut self, state: &[PersistentValue]) -> Result<(), ExecError>;

    /// What was measured of a step so far, under all programs that it had; none if it never ran.
    fn stats(&self, step: &Arc<Step>) -> Option<ProgramStats>;

    /// The program that a step has now, if it has one.
    fn program(&self, step: &Arc<Step>) -> Option<Arc<Compiled>>;

    /// When each instruction of the latest step ran; none if steps are not profiled.
    ///
    /// # Errors
    /// [`ExecError`] if the device fails.
    fn latest_spans(&mut self) -> Result<Option<StepSpans>, ExecError>;
}
