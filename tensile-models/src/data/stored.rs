//! Images of one shape, held as the bytes of their file.

use std::sync::Arc;

use super::{DataError, Dataset, Draw, Sample};
use crate::zoo::Task;

/// From bytes to numbers: (byte / 255 − mean) / standard deviation, by channel.
#[derive(Clone)]
pub(super) struct Normalize(Vec<[f32; 256]>);

impl Normalize {
    /// With mean and standard deviation of each channel, where a byte of 255 is 1.
    pub(super) fn new(channels: &[[f32; 2]]) -> Self {
        let table =
            |&[mean, deviation]: &[f32; 2]| std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / deviation);
        Self(channels.iter().map(table).collect())
    }

    /// Numbers of the bytes of one channel.
    pub(super) fn channel(&self, channel: usize, bytes: impl Iterator<Item = u8>, numbers: &mut [f32]) {
        let table = &self.0[channel];
        for (number, byte) in numbers.iter_mut().zip(bytes) {
            *number = table[usize::from(byte)];
        }
    }

    /// What black is, by channel.
    pub(super) fn black(&self) -> Vec<f32> {
        self.0.iter().map(|table| table[0]).collect()
    }
}

/// Images that lie one after another in memory as bytes, channel by channel, and become numbers when a sample is asked for.
pub(super) struct Stored {
    pub(super) shape: [usize; 3],
    pub(super) classes: usize,
    pub(super) bytes: Vec<u8>,
    /// Where the pixels of the first sample begin.
    pub(super) first: usize,
    /// From the pixels of one sample to those of the next.
    pub(super) stride: usize,
    pub(super) labels: Vec<u8>,
    pub(super) normalize: Arc<Normalize>,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stored {{ {} images of {:?} }}", self.labels.len(), self.shape)
    }
}

impl Dataset for Stored {
    fn task(&self) -> Task {
        Task::Images { shape: self.shape }
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn sample(&self, index: usize, _draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        let [channels, height, width] = self.shape;
        let plane = height * width;
        let bytes = &self.bytes[self.first + index * self.stride..][..channels * plane];
        let numbers = sample.f32(0).chunks_exact_mut(plane);
        for (channel, (bytes, numbers)) in bytes.chunks_exact(plane).zip(numbers).enumerate() {
            self.normalize.channel(channel, bytes.iter().copied(), numbers);
        }
        sample.labels[0] = i32::from(self.labels[index]);
        Ok(())
    }
}
