//! Data sets: what a model trains on, and the order in which it sees it.

mod csv;
mod synthetic;

use std::path::{Path, PathBuf};

pub use csv::CsvImages;
pub use synthetic::Synthetic;

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
    /// Samples of another shape than the model takes.
    #[error(
        "data has samples of shape {data:?} and {data_classes} classes, but the model takes {model:?} and tells {model_classes} classes apart"
    )]
    Shape {
        /// Of the data.
        data: [usize; 3],
        /// Of the data.
        data_classes: usize,
        /// Of the model.
        model: [usize; 3],
        /// Of the model.
        model_classes: usize,
    },
}

/// Labelled images in memory or made on demand. Deterministic: sample `index` is always the same.
pub trait Dataset: Send + Sync {
    /// Channels, height and width of a sample.
    fn shape(&self) -> [usize; 3];

    /// Number of classes; labels are below it.
    fn classes(&self) -> usize;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the pixels of sample `index` (`shape` elements, row-major) and gives its label.
    fn sample(&self, index: usize, pixels: &mut [f32]) -> i32;
}

/// Training and test samples.
pub struct Splits {
    /// To learn from.
    pub train: Box<dyn Dataset>,
    /// To measure accuracy on.
    pub test: Box<dyn Dataset>,
}

impl std::fmt::Debug for Splits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Splits {{ train: {} samples, test: {} samples }}", self.train.len(), self.test.len())
    }
}

/// The data for models that take images of this shape, unless something else is asked for.
pub fn default_for(shape: [usize; 3]) -> &'static str {
    if shape == [1, 8, 8] { "digits" } else { "synthetic" }
}

/// The data that `--data` names: `digits` (in the program itself), `synthetic`, or a CSV file of images.
///
/// `shape` and `classes` are the model's; synthetic data takes them over, others must have them.
///
/// # Errors
/// [`DataError`] if a file cannot be read or does not fit the model.
pub fn open(name: &str, shape: [usize; 3], classes: usize, seed: u64) -> Result<Splits, DataError> {
    let splits = match name {
        "digits" => CsvImages::digits(),
        "synthetic" => return Ok(Synthetic::splits(shape, classes, seed)),
        path => CsvImages::read(Path::new(path), shape)?,
    };
    let (data, data_classes) = (splits.train.shape(), splits.train.classes());
    if data != shape || data_classes > classes {
        return Err(DataError::Shape { data, data_classes, model: shape, model_classes: classes });
    }
    Ok(splits)
}

/// Batches of one epoch after another: every epoch a new order, drawn from the seed; the rest of an epoch that does not fill a batch is left out.
#[derive(Clone, Debug)]
pub struct Batches {
    order: Vec<usize>,
    epoch: usize,
    next: usize,
    batch: usize,
    seed: u64,
}

impl Batches {
    /// Batches of `batch` samples out of `samples`.
    ///
    /// # Errors
    /// [`DataError::TooFew`] unless there is at least one whole batch.
    pub fn new(samples: usize, batch: usize, seed: u64) -> Result<Self, DataError> {
        if samples < batch || batch == 0 {
            return Err(DataError::TooFew { split: "training", samples, batch });
        }
        let mut batches = Self { order: (0..samples).collect(), epoch: 0, next: 0, batch, seed };
        batches.shuffle();
        Ok(batches)
    }

    /// Batches in one epoch.
    pub fn per_epoch(&self) -> usize {
        self.order.len() / self.batch
    }

    /// Sample indices of the next batch.
    pub fn next_batch(&mut self) -> &[usize] {
        if self.next + self.batch > self.order.len() {
            self.epoch += 1;
            self.next = 0;
            self.shuffle();
        }
        let from = self.next;
        self.next += self.batch;
        &self.order[from..self.next]
    }

    /// Fisher–Yates from the sorted order, so that an epoch's order depends on seed and epoch alone.
    fn shuffle(&mut self) {
        for (index, slot) in self.order.iter_mut().enumerate() {
            *slot = index;
        }
        let mut random = SplitMix::new(self.seed, self.epoch as u64);
        for last in (1..self.order.len()).rev() {
            let other = (random.next_u64() % (last as u64 + 1)) as usize;
            self.order.swap(last, other);
        }
    }
}

/// SplitMix64: a small generator for shuffles and synthetic pixels.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut first = Self(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407));
        Self(first.next_u64())
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [−1, 1).
    pub(crate) fn next_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_sees_each_sample_once_and_epochs_differ() {
        let mut batches = Batches::new(10, 3, 7).unwrap();
        assert_eq!(batches.per_epoch(), 3);
        let mut first: Vec<usize> = (0..3).flat_map(|_| batches.next_batch().to_vec()).collect();
        let second: Vec<usize> = (0..3).flat_map(|_| batches.next_batch().to_vec()).collect();
        assert_ne!(first, second);
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 9);
    }

    #[test]
    fn too_few_samples_are_an_error() {
        let error = Batches::new(5, 8, 0).unwrap_err().to_string();
        assert_eq!(error, "training split has 5 samples, fewer than one batch of 8; use a smaller --batch");
    }
}
