//! Samples made from a seed, for any task.

use std::sync::Arc;

use super::{DataError, Dataset, Draw, Sample, SplitMix, Splits};
use crate::zoo::{IGNORED, Task};

/// Part of the tokens that are hidden in samples for masked tokens: one in so many.
const HIDDEN_EVERY: usize = 7;

/// Samples made on demand, with something to learn in them: images are noise around one random pattern per class; in a text each token follows from the one before,
/// most of the time; a graph's nodes have features that tell of their class.
#[derive(Clone, Debug)]
pub struct Synthetic {
    task: Task,
    classes: usize,
    len: usize,
    seed: u64,
    /// Tells the samples of a split from those of another.
    stream: u64,
}

impl Synthetic {
    /// 4,096 samples for training and 512 for testing; of a graph one and the same.
    pub fn splits(task: Task, classes: usize, seed: u64) -> Splits {
        let lens = if matches!(task, Task::Nodes { .. }) { [1, 1] } else { [4096, 512] };
        let split = |len, stream| Arc::new(Self { task: task.clone(), classes, len, seed, stream });
        Splits { train: split(lens[0], 1), test: split(lens[1], 2) }
    }

    /// Tokens in which the next one is a function of the one before, three times out of four.
    fn text(&self, noise: &mut SplitMix, tokens: &mut [i32]) {
        let step = SplitMix::new(self.seed, 3).below(self.classes) + 1;
        let mut token = noise.below(self.classes);
        for place in tokens {
            *place = token as i32;
            token = if noise.below(4) == 0 { noise.below(self.classes) } else { (token * 5 + step) % self.classes };
        }
    }
}

impl Dataset for Synthetic {
    fn task(&self) -> Task {
        self.task.clone()
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn len(&self) -> usize {
        self.len
    }

    fn sample(&self, index: usize, _draw: Draw, mut sample: Sample<'_>) -> Result<(), DataError> {
        let mut noise = SplitMix::new(self.seed, ((index as u64) << 8) | self.stream);
        match self.task {
            Task::Images { .. } => {
                let label = index % self.classes;
                let mut pattern = SplitMix::new(self.seed, (label as u64) << 8);
                for pixel in sample.f32(0) {
                    *pixel = 0.5 * pattern.next_f32() + 0.5 * noise.next_f32();
                }
                sample.labels[0] = label as i32;
            }
            Task::NextToken { .. } => {
                let length = sample.labels.len();
                let mut tokens = vec![0; length + 1];
                self.text(&mut noise, &mut tokens);
                sample.i32(0).copy_from_slice(&tokens[..length]);
                sample.labels.copy_from_slice(&tokens[1..]);
            }
            Task::MaskedToken { mask, .. } => {
                self.text(&mut noise, sample.i32(0));
                sample.labels.fill(IGNORED);
                let first = noise.below(HIDDEN_EVERY.min(sample.labels.len()));
                for place in (first..sample.labels.len()).step_by(HIDDEN_EVERY) {
                    sample.labels[place] = std::mem::replace(&mut sample.i32(0)[place], mask);
                }
            }
            Task::Nodes { nodes, features, edges } => {
                let mut graph = SplitMix::new(self.seed, 4);
                for node in 0..nodes {
                    let class = node % self.classes;
                    // Every other node is for training.
                    sample.labels[node] = if node % 2 + 1 == self.stream as usize { class as i32 } else { IGNORED };
                    for feature in 0..features {
                        let told = f32::from(feature % self.classes == class);
                        sample.f32(0)[node * features + feature] = told + graph.next_f32();
                    }
                }
                for edge in 0..edges {
                    // First each node to itself, then to others of its class.
                    let source = edge % nodes;
                    let hops = if edge < nodes { 0 } else { graph.below(nodes) / self.classes * self.classes };
                    let target = if source + hops < nodes { source + hops } else { source };
                    (sample.i32(1)[edge], sample.i32(2)[edge]) = (source as i32, target as i32);
                    sample.f32(3)[edge] = nodes as f32 / edges as f32;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Batch;

    fn batch(data: &dyn Dataset, index: usize) -> Batch {
        let mut batch = Batch::new(&data.task(), 1);
        data.sample(index, Draw::evaluation(index), batch.sample(0)).unwrap();
        batch
    }

    #[test]
    fn samples_repeat_and_splits_differ() {
        let tasks = [
            Task::Images { shape: [3, 4, 4] },
            Task::NextToken { context: 9 },
            Task::MaskedToken { context: 9, mask: 7 },
            Task::Nodes { nodes: 8, features: 4, edges: 20 },
        ];
        for task in tasks {
            let splits = Synthetic::splits(task.clone(), 7, 1);
            let index = splits.train.len().min(10) - 1;
            assert_eq!(batch(&*splits.train, index), batch(&*splits.train, index), "{task}");
            assert_ne!(batch(&*splits.train, index), batch(&*splits.test, index), "{task}");
            let labels = batch(&*splits.train, index).labels().to_vec();
            assert!(labels.iter().all(|label| (IGNORED..7).contains(label)), "{task}: {labels:?}");
            assert!(labels.iter().any(|label| *label != IGNORED), "{task}: {labels:?}");
        }
    }
}
