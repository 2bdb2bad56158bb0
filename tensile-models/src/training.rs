//! Training as a job of a [`Runtime`](tensile_core::runtime::Runtime): steps, evaluation at the ends of epochs, checkpoints.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use tensile_core::Device;
use tensile_core::checkpoint::CheckpointError;
use tensile_core::exec::{Compiled, Named, PersistentValue, Step, StepResult, StepSpans};
use tensile_core::graph::{GraphError, Persistent};
use tensile_core::nn;
use tensile_core::optim::schedule::Schedule;
use tensile_core::runtime::{AtRest, Next, WorkError, Workload};

use crate::course::{Course, Evaluation, EvaluationSum, ResumeError, load_weights, loss_of, save_weights};
use crate::data::{Batch, DataError, Loader, Position, Splits, evaluation_batch};
use crate::job::{Job, Nonfinite, Steps, fill};

/// How a job is trained, and what is saved of it.
#[derive(Clone, Debug)]
pub struct TrainingOptions {
    /// Seed of initial values, dropout and the order of samples.
    pub seed: u64,
    /// Steps of the whole training, those before a resumed checkpoint among them.
    pub steps: u64,
    /// Learning rate.
    pub lr: f64,
    /// How it changes.
    pub schedule: Schedule,
    /// What ends training.
    pub nonfinite: Nonfinite,
    /// Parameters and buffers to begin with.
    pub load: Option<PathBuf>,
    /// File that the state of training is saved to: at the end, when the job is paused, and in between.
    pub checkpoint: Option<PathBuf>,
    /// Steps from one checkpoint to the next; 0 = one at the end of each epoch.
    pub every: u64,
    /// Whether to go on from the checkpoint.
    pub resume: bool,
    /// File for parameters and buffers at the end.
    pub save: Option<PathBuf>,
}

/// What a training tells while it runs.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A training step has ended.
    Step {
        /// From 0.
        step: u64,
        /// From 0.
        epoch: u64,
        /// Its loss.
        loss: f32,
    },
    /// Evaluation at the end of an epoch has ended.
    Evaluated {
        /// The training step before it, from 0.
        step: u64,
        /// On the test split.
        evaluation: Evaluation,
    },
    /// The state of training has been saved.
    Saved {
        /// Training steps that are in it.
        steps: u64,
    },
    /// Training has ended.
    End {
        /// The last training step in time, if steps are profiled.
        last: Option<StepSpans>,
        /// The main program at the end.
        program: Option<Arc<Compiled>>,
    },
}

/// Why a training cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Data could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The checkpoint cannot be gone on from.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// Weights could not be loaded.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// A step for a batch that could not be built.
#[derive(Debug, thiserror::Error)]
#[error("no training step for a batch of {shape}: {reason}")]
struct NoStep {
    shape: String,
    reason: GraphError,
}

type Tell = Box<dyn FnMut(Progress) + Send>;

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A training step.
    Train,
    /// A look at the last training step, before evaluation takes its place.
    Look,
    /// Evaluation from this sample on.
    Evaluate(usize),
    /// A checkpoint.
    Save,
    /// What is told and saved last.
    Close,
    /// Nothing.
    Over,
}

/// A step in flight.
#[derive(Debug)]
enum InFlight {
    Train { step: u64, epoch: u64 },
    Evaluate { labels: usize, is_last: bool },
}

/// A training as a workload. Its steps have the same bits as those of a [`Trainer`](crate::trainer::Trainer) with the same job, data and seed.
pub struct Training<D: Device> {
    job: Job,
    device: Arc<D>,
    data: Splits,
    options: TrainingOptions,
    course: Course,
    loader: Loader,
    steps_by_shape: Steps,
    /// Values to begin with, until the first step.
    values: Vec<PersistentValue>,
    stage: Stage,
    /// Of the training step that came last.
    batch: Batch,
    /// Of the evaluation step that came last.
    test_batch: Batch,
    /// Whether the step that is about to begin is one of training.
    is_training: bool,
    in_flight: VecDeque<InFlight>,
    sum: EvaluationSum,
    last: Option<StepSpans>,
    progress: Tell,
}

impl<D: Device> Training<D> {
    /// A training that tells its progress, on the job's own thread. Reads the checkpoint or the weights to begin with.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn new(
        job: Job,
        device: Arc<D>,
        data: Splits,
        options: TrainingOptions,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Self, StartError> {
        let mut course = Course { steps: 0, seed: options.seed };
        let mut values = match &options.load {
            Some(path) => load_weights(&job, path)?,
            None => Vec::new(),
        };
        let mut from = Position::default();
        if let Some(path) = options.checkpoint.as_ref().filter(|_| options.resume) {
            (values, from) = course.resume(&job, path)?;
        }
        let loader = Loader::new(Arc::clone(&data.train), job.recipe.batching(), options.seed, from)?;
        let (task, test_samples) = (data.test.task(), job.recipe.batch);
        let stage = if course.steps < options.steps { Stage::Train } else { Stage::Over };
        Ok(Self {
            job,
            device,
            data,
            options,
            course,
            loader,
            steps_by_shape: Steps::default(),
            values,
            stage,
            batch: Batch::new(&task, 0),
            test_batch: Batch::new(&task, test_samples),
            is_training: false,
            in_flight: VecDeque::new(),
            sum: EvaluationSum::default(),
            last: None,
            progress: Box::new(progress),
        })
    }

    /// Training steps that have begun, those before a resumed checkpoint among them.
    pub fn steps(&self) -> u64 {
        self.course.steps
    }

    fn tell(&mut self, progress: Progress) {
        (self.progress)(progress);
    }

    fn train(&mut self) -> Result<Arc<Step>, WorkError> {
        let epoch = self.loader.position().epoch;
        let batch = self.loader.next_batch()?;
        let step = self
            .steps_by_shape
            .get(&self.job, batch.shape(), &*self.device)
            .map_err(|reason| NoStep { shape: batch.shape().to_string(), reason })?;
        self.loader.recycle(std::mem::replace(&mut self.batch, batch));
        let is_end = self.course.steps + 1 == self.options.steps;
        let epoch_ends = self.loader.position().batch == 0 || is_end;
        self.in_flight.push_back(InFlight::Train { step: self.course.steps, epoch });
        self.is_training = true;
        self.stage = match (is_end, epoch_ends) {
            (true, _) => Stage::Look,
            (_, true) => Stage::Evaluate(0),
            _ => self.after_step(),
        };
        Ok(step)
    }

    /// What follows a training step, and evaluation where it is due. The step in flight counts.
    fn after_step(&self) -> Stage {
        let begun = self.course.steps + u64::from(self.is_training);
        let is_end = begun == self.options.steps;
        let is_due = match self.options.every {
            0 => self.loader.position().batch == 0,
            every => begun.is_multiple_of(every),
        };
        match self.options.checkpoint {
            Some(_) if is_end || is_due => Stage::Save,
            _ if is_end => Stage::Close,
            _ => Stage::Train,
        }
    }

    fn evaluate(&mut self, first: usize) -> Result<Arc<Step>, WorkError> {
        evaluation_batch(&*self.data.test, first, &mut self.test_batch)?;
        let next = first + self.test_batch.capacity();
        let is_last = next >= self.data.test.len();
        self.in_flight.push_back(InFlight::Evaluate { labels: self.test_batch.n_labels(), is_last });
        self.stage = if is_last { self.after_step() } else { Stage::Evaluate(next) };
        Ok(Arc::clone(&self.job.eval))
    }

    fn save(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        let Some(path) = &self.options.checkpoint else { return Ok(()) };
        self.course.save(path, &job.state()?, self.loader.position())?;
        self.tell(Progress::Saved { steps: self.course.steps });
        Ok(())
    }

    /// The step that `next` gave last has begun.
    fn begun(&mut self) {
        if std::mem::take(&mut self.is_training) {
            self.course.steps += 1;
        }
    }
}

impl<D: Device> Workload for Training<D> {
    fn main_step(&self) -> Arc<Step> {
        Arc::clone(&self.job.train)
    }

    fn init(&mut self, persistent: &Persistent, first: usize, bytes: &mut [u8]) -> Result<(), WorkError> {
        match self.values.iter().find(|value| value.persistent.name == persistent.name) {
            Some(value) => bytes.copy_from_slice(&value.bytes[first..][..bytes.len()]),
            None => nn::init_part(persistent, self.course.seed, first, bytes),
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Next, WorkError> {
        self.values = Vec::new();
        self.begun();
        Ok(match self.stage {
            Stage::Train => Next::Step(self.train()?),
            Stage::Evaluate(first) => Next::Step(self.evaluate(first)?),
            Stage::Look | Stage::Save | Stage::Close => Next::AtRest,
            Stage::Over => Next::End,
        })
    }

    fn fill(&mut self, _step: &Arc<Step>, input: &Named, bytes: &mut [u8]) -> Result<(), WorkError> {
        if self.is_training {
            let lr = self.options.schedule.lr(self.course.steps, self.options.lr);
            self.course.fill(&self.job, &self.batch, lr, input, bytes);
        } else {
            fill(&self.test_batch, input, bytes);
        }
        Ok(())
    }

    fn finished(&mut self, _step: &Arc<Step>, result: StepResult) -> Result<(), WorkError> {
        match self.in_flight.pop_front() {
            Some(InFlight::Train { step, epoch }) => {
                let loss = loss_of(&result, step, self.options.nonfinite)?;
                self.tell(Progress::Step { step, epoch, loss });
            }
            Some(InFlight::Evaluate { labels, is_last }) => {
                self.sum.add(&result, labels);
                if is_last {
                    let evaluation = std::mem::take(&mut self.sum).mean();
                    // Evaluation follows the last step that has begun.
                    self.tell(Progress::Evaluated { step: self.course.steps - 1, evaluation });
                }
            }
            None => {}
        }
        Ok(())
    }

    fn at_rest(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        match self.stage {
            Stage::Look => {
                self.last = job.latest_spans()?;
                self.stage = Stage::Evaluate(0);
            }
            Stage::Save => {
                self.save(job)?;
                self.stage = if self.course.steps == self.options.steps { Stage::Close } else { Stage::Train };
            }
            Stage::Close => {
                if let Some(path) = &self.options.save {
                    save_weights(path, &job.state()?)?;
                }
                let (last, program) = (self.last.take(), job.program(&self.job.train));
                self.tell(Progress::End { last, program });
                self.stage = Stage::Over;
            }
            Stage::Train | Stage::Evaluate(_) | Stage::Over => {}
        }
        Ok(())
    }

    fn pausing(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        self.begun();
        self.save(job)
    }
}
