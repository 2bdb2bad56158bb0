//! Images made from a seed, of any shape.

use super::{Dataset, SplitMix, Splits};

/// Samples made on demand: noise around one random pattern per class, so that there is something to learn.
#[derive(Clone, Debug)]
pub struct Synthetic {
    shape: [usize; 3],
    classes: usize,
    len: usize,
    seed: u64,
    /// Tells the samples of a split from those of another.
    stream: u64,
}

impl Synthetic {
    /// 4,096 samples for training and 512 for testing.
    pub fn splits(shape: [usize; 3], classes: usize, seed: u64) -> Splits {
        let split = |len, stream| Box::new(Self { shape, classes, len, seed, stream });
        Splits { train: split(4096, 1), test: split(512, 2) }
    }
}

impl Dataset for Synthetic {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn len(&self) -> usize {
        self.len
    }

    fn sample(&self, index: usize, pixels: &mut [f32]) -> i32 {
        let label = index % self.classes;
        let mut pattern = SplitMix::new(self.seed, (label as u64) << 8);
        let mut noise = SplitMix::new(self.seed, ((index as u64) << 8) | self.stream);
        for pixel in pixels {
            *pixel = 0.5 * pattern.next_f32() + 0.5 * noise.next_f32();
        }
        label as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_repeat_and_splits_differ() {
        let splits = Synthetic::splits([3, 4, 4], 7, 1);
        let (mut a, mut b, mut c) = ([0.0; 48], [0.0; 48], [0.0; 48]);
        assert_eq!(splits.train.sample(9, &mut a), 2);
        splits.train.sample(9, &mut b);
        splits.test.sample(9, &mut c);
        assert_eq!(a, b);
        assert_ne!(a, c);
    }
}
