//! Data sets: what a model trains on, and the order in which it sees it.
//!
//! [`open`] chooses the reader from the network's task and from what the path is:
//!
//! | Task | Path | What is read |
//! |---|---|---|
//! | images | file | CSV, see [`CsvImages`] |
//! | images | folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte`, `t10k-labels-idx1-ubyte` | IDX, as of MNIST: greyscale, one byte a pixel |
//! | images | folder with `data_batch_1.bin` … `data_batch_5.bin` (or fewer) and `test_batch.bin`, or with `cifar-10-batches-bin` and these in it | CIFAR-10's binary files: 3×32×32 |
//! | images | folder with `train/CLASS/…` and `val/CLASS/…` or `test/CLASS/…` | PNG and JPEG files |
//! | images | folder with `CLASS/…` | PNG and JPEG files; every fifth of a class is for testing |
//! | next tokens, masked tokens | file | the bytes of the file; the last tenth is for testing |
//!
//! CSV, IDX and text files may be gzip-compressed; IDX files then end in `.gz`. IDX, CIFAR-10 and text stay in memory as the bytes that they are, and images in folders stay
//! files until they are asked for.
//!
//! - **Pixels** are scaled so that the greatest byte is 1; then the mean is taken off and what is left divided by the standard deviation, by channel: MNIST's 0.1307 and
//!   0.3081 for IDX; CIFAR-10's (0.4914, 0.4822, 0.4465) and (0.2470, 0.2435, 0.2616); ImageNet's (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225) for folders, or their
//!   means for a network that takes one channel. CSV files are scaled only.
//! - **Sizes** must be those of the network. Only images in folders are resized: the largest part in the middle with the network's proportions is brought to its size by
//!   antialiased linear interpolation, which is to resize the shorter side and crop the longer.
//! - **Classes** of folders are numbered in the order of their names, those of the training folder. Hidden files, and files that are no images, are passed over.
//! - **Augmentation** is for training only: [`Options::augment`]. It depends on seed, epoch and sample ([`Draw`]), not on threads or on where a training began.
//! - **Tokens** are bytes, 256 classes. A sample of T tokens has those that follow as labels; or, of hidden tokens, BERT's choice: 15 % are to be told, of which 80 % are
//!   masked, 10 % replaced and 10 % left. In training the windows of a text begin elsewhere each epoch.
//! - **Graph** `karate`: Zachary's karate club with symmetrically normalised weights; the labels of members 1, 2, 33 and 34 are for training, the others for testing.
//!
//! Faults are errors of one line that name the file, what was expected and what was found.

mod augment;
mod batch;
mod cifar;
mod csv;
mod file;
mod folder;
mod idx;
mod karate;
mod loader;
mod open;
mod random;
mod stored;
mod synthetic;
mod text;

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

pub use augment::{Augment, Crop};
pub use batch::{Batch, BatchShape, Column, Sample, Slot};
pub use csv::CsvImages;
pub use loader::{Batching, LastBatch, Loader, Position, each_batch, evaluation_batch};
pub use open::{Options, default_for, open, open_with};
pub use random::SplitMix;
pub use synthetic::Synthetic;

use crate::zoo::Task;

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
    /// A file or folder whose content is not what it should be.
    #[error("data file '{}': {reason}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What it should be, and what it is.
        reason: String,
    },
    /// A row that is not what it should be.
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
    #[error(
        "data has {data} in {data_classes} classes, but the model takes {task} and tells {classes} classes apart{}",
        open::settings_for(data, *data_classes, task, *classes)
    )]
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
    #[error("cannot read '{}' as {task}: {reason}", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
        /// What the network takes.
        task: Task,
        /// What was looked for.
        reason: String,
    },
    /// Lengths that texts cannot have.
    #[error("cannot make batches: {reason}")]
    Lengths {
        /// Why.
        reason: String,
    },
    /// Augmentation that the data cannot have.
    #[error("cannot augment: {reason}")]
    Augment {
        /// Why.
        reason: String,
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

    /// Writes sample `index`, every element of it; of a text as many tokens as the place is for, up to the task's.
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
