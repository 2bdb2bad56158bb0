//! Data sets: what a model trains on, and the order in which it sees it.

mod batch;
mod csv;
mod loader;
mod random;
mod synthetic;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use batch::{Batch, Column, Sample, Slot};
pub use csv::CsvImages;
pub use loader::{Loader, Position, each_batch};
pub use random::SplitMix;
pub use synthetic::Synthetic;

use crate::zoo::{Network, Task};

/// A fault in data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file that cannot be read.
    #[error("cannot read data file '{}': {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file whose content is not what it should be.
    #[error("data file '{}', row {row}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Row, from 1.
        row: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Fewer samples than one batch.
    #[error("{split} split has {samples} samples, fewer than one batch of {batch}; use a smaller --batch")]
    TooFew {
        /// `training` or `test`.
        split: &'static str,
        /// Samples there are.
        samples: usize,
        /// Batch size asked for.
        batch: usize,
    },
    /// Samples of another kind than the network takes.
    #[error("data has {data} in {data_classes} classes, but the model takes {task} and tells {classes} classes apart")]
    Task {
        /// Of the data.
        data: Task,
        /// Of the data.
        data_classes: usize,
        /// Of the network.
        task: Task,
        /// Of the network.
        classes: usize,
    },
    /// A path that no reader for the task takes.
    #[error("cannot read '{}' as {task}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What the network takes.
        task: Task,
    },
    /// No thread for making batches ahead.
    #[error("cannot start a thread for data: {0}")]
    Thread(std::io::Error),
    /// The thread for making batches has ended early.
    #[error("the thread that reads data has stopped")]
    Stopped,
}

/// Random numbers for one sample at one time. A data set may use them to augment in training, or to hide tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Random bits, a function of seed, epoch and sample; begin a [`SplitMix`] with them.
    pub bits: u64,
    /// Whether the sample is for training, and so may be augmented.
    pub training: bool,
}

impl Draw {
    /// For a sample of an epoch of training.
    pub fn training(seed: u64, epoch: u64, index: usize) -> Self {
        let bits = SplitMix::new(SplitMix::new(seed, epoch).next_u64(), index as u64).next_u64();
        Self { bits, training: true }
    }

    /// For evaluation: always the same for a sample.
    pub fn evaluation(index: usize) -> Self {
        Self { bits: SplitMix::new(0, index as u64).next_u64(), training: false }
    }
}

/// Samples with labels, in memory, in files, or made on demand. Deterministic: sample `index` with one draw is always the same.
pub trait Dataset: Debug + Send + Sync {
    /// What the samples are for.
    fn task(&self) -> Task;

    /// Number of classes; labels are below it, or [`IGNORED`](crate::zoo::IGNORED).
    fn classes(&self) -> usize;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes sample `index`, every element of it.
    ///
    /// # Errors
    /// [`DataError`] if it cannot be read.
    fn sample(&self, index: usize, draw: Draw, sample: Sample<'_>) -> Result<(), DataError>;
}

/// Training and test samples.
#[derive(Clone, Debug)]
pub struct Splits {
    /// To learn from.
    pub train: Arc<dyn Dataset>,
    /// To measure on.
    pub test: Arc<dyn Dataset>,
}

/// The data for a network, unless something else is asked for.
pub fn default_for(network: &dyn Network) -> &'static str {
    if network.task() == (Task::Images { shape: [1, 8, 8] }) { "digits" } else { "synthetic" }
}

/// The data that `--data` names: `digits` (in the program itself), `synthetic`, or a CSV file of images.
///
/// Synthetic data is made for the network; other data must fit it.
///
/// # Errors
/// [`DataError`] if a file cannot be read or does not fit the network.
pub fn open(name: &str, network: &dyn Network, seed: u64) -> Result<Splits, DataError> {
    let splits = match (name, network.task()) {
        ("digits", _) => CsvImages::digits(),
        ("synthetic", task) => return Ok(Synthetic::splits(task, network.classes(), seed)),
        (path, Task::Images { shape }) => CsvImages::read(Path::new(path), shape)?,
        (path, task) => return Err(DataError::Kind { path: path.into(), task }),
    };
    let (data, data_classes) = (splits.train.task(), splits.train.classes());
    let (task, classes) = (network.task(), network.classes());
    if data != task || data_classes > classes {
        return Err(DataError::Task { data, data_classes, task, classes });
    }
    Ok(splits)
}
