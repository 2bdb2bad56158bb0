//! Batches of one epoch after another, made ahead on a thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use clap::ValueEnum;
use serde::Deserialize;

use super::{Batch, BatchShape, DataError, Dataset, Draw, SplitMix};
use crate::zoo::Task;

/// Batches that wait, made ahead.
const AHEAD: usize = 2;

/// Where in its data a training is: the next batch is number `batch` of `epoch`, both from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Times that all samples have been seen.
    pub epoch: u64,
    /// Batches of this epoch that have been seen.
    pub batch: u64,
}

impl Position {
    /// The position that follows, with so many batches in an epoch.
    #[must_use]
    pub fn next(self, per_epoch: u64) -> Self {
        if self.batch + 1 < per_epoch {
            Self { batch: self.batch + 1, ..self }
        } else {
            Self { epoch: self.epoch + 1, batch: 0 }
        }
    }
}

/// What becomes of the samples at the end of an epoch that do not fill a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LastBatch {
    /// They are left out; epochs differ in which.
    #[default]
    Drop,
    /// They are a batch of fewer samples.
    Partial,
}

/// How samples become batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Samples in a batch.
    pub samples: usize,
    /// What becomes of those left.
    pub last: LastBatch,
    /// Lengths of texts, of which each batch has one, drawn for it; none for the task's own.
    pub lengths: Vec<usize>,
}

impl From<usize> for Batching {
    /// Full batches of so many samples as they are.
    fn from(samples: usize) -> Self {
        Self { samples, last: LastBatch::Drop, lengths: Vec::new() }
    }
}

impl Batching {
    /// Batches of `data` in one epoch.
    ///
    /// # Errors
    /// [`DataError::TooFew`] unless there is at least one; [`DataError::Lengths`] if the samples cannot have these lengths.
    pub fn per_epoch(&self, data: &dyn Dataset) -> Result<u64, DataError> {
        self.check_lengths(&data.task())?;
        let samples = data.len();
        let batches = match self.last {
            LastBatch::Drop => samples.checked_div(self.samples),
            LastBatch::Partial => (self.samples > 0).then(|| samples.div_ceil(self.samples)),
        };
        match batches {
            None | Some(0) => Err(DataError::TooFew { split: "training", samples, batch: self.samples }),
            Some(batches) => Ok(batches as u64),
        }
    }

    /// The largest shape of a batch for a task.
    pub fn largest(&self, task: &Task) -> BatchShape {
        let task = self.lengths.iter().max().map_or_else(|| task.clone(), |&longest| task.with_length(longest));
        BatchShape { samples: self.samples, task }
    }

    /// Whether samples of a task can have these lengths.
    ///
    /// # Errors
    /// [`DataError::Lengths`].
    pub fn check_lengths(&self, task: &Task) -> Result<(), DataError> {
        let fault = |reason: String| Err(DataError::Lengths { reason });
        let Some(most) = task.length() else {
            return match self.lengths.as_slice() {
                [] => Ok(()),
                _ => fault(format!("only texts have lengths to choose from, and the model takes {task}")),
            };
        };
        match self.lengths.iter().find(|length| !(1..=most).contains(*length)) {
            Some(length) => {
                fault(format!("{length} is no length for the model's texts; it takes from 1 to {most} tokens"))
            }
            None => Ok(()),
        }
    }

    /// Shape of a batch of `samples` samples at a position.
    fn shape(&self, task: &Task, samples: usize, seed: u64, at: Position) -> BatchShape {
        let task = match self.lengths.as_slice() {
            [] => task.clone(),
            lengths => {
                let bits = SplitMix::new(SplitMix::new(!seed, at.epoch).next_u64(), at.batch).next_u64();
                task.with_length(lengths[(bits % lengths.len() as u64) as usize])
            }
        };
        BatchShape { samples, task }
    }
}

/// The order of samples: every epoch a new one, drawn from the seed.
#[derive(Clone, Debug)]
struct Order {
    samples: Vec<usize>,
    epoch: u64,
    seed: u64,
}

impl Order {
    fn new(samples: usize, epoch: u64, seed: u64) -> Self {
        let mut order = Self { samples: vec![0; samples], epoch, seed };
        order.shuffle();
        order
    }

    /// Fisher–Yates from the sorted order, so that an epoch's order depends on seed and epoch alone.
    fn shuffle(&mut self) {
        self.samples.iter_mut().enumerate().for_each(|(index, slot)| *slot = index);
        let mut random = SplitMix::new(self.seed, self.epoch);
        for last in (1..self.samples.len()).rev() {
            let other = random.below(last + 1);
            self.samples.swap(last, other);
        }
    }
}

/// Training batches, made ahead on a thread of its own. What the batch at a position holds, and its shape, depend on data, batching, seed and position alone.
#[derive(Debug)]
pub struct Loader {
    position: Position,
    per_epoch: u64,
    batches: Option<Receiver<Result<Batch, DataError>>>,
    used: Option<Sender<Batch>>,
    worker: Option<JoinHandle<()>>,
}

impl Loader {
    /// Batches from a position on.
    ///
    /// # Errors
    /// As [`Batching::per_epoch`]; [`DataError::Thread`].
    pub fn new(
        data: Arc<dyn Dataset>,
        batching: impl Into<Batching>,
        seed: u64,
        from: Position,
    ) -> Result<Self, DataError> {
        let batching = batching.into();
        let per_epoch = batching.per_epoch(&*data)?;
        let position = Position { epoch: from.epoch + from.batch / per_epoch, batch: from.batch % per_epoch };
        let (send, batches) = sync_channel(AHEAD);
        let (used, returned) = channel();
        let producer = Producer { data, batching, seed, per_epoch };
        let worker = std::thread::Builder::new()
            .name("tensile-data".to_owned())
            .spawn(move || producer.run(position, &send, &returned))
            .map_err(DataError::Thread)?;
        Ok(Self { position, per_epoch, batches: Some(batches), used: Some(used), worker: Some(worker) })
    }

    /// Batches in one epoch.
    pub fn per_epoch(&self) -> u64 {
        self.per_epoch
    }

    /// Position of the batch that [`next_batch`](Self::next_batch) gives next.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The next batch. Give it back to [`recycle`](Self::recycle) when it is used up, so that its memory serves again.
    ///
    /// # Errors
    /// [`DataError`] if a sample cannot be read.
    pub fn next_batch(&mut self) -> Result<Batch, DataError> {
        let batches = self.batches.as_ref().expect("there until dropped");
        let batch = batches.recv().map_err(|_| DataError::Stopped)??;
        self.position = self.position.next(self.per_epoch);
        Ok(batch)
    }

    /// Takes a batch back.
    pub fn recycle(&self, batch: Batch) {
        // Without a worker nobody needs it.
        let _ = self.used.as_ref().expect("there until dropped").send(batch);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Both ends go, so that the worker's next send fails and it ends.
        (self.batches, self.used) = (None, None);
        if let Some(worker) = self.worker.take() {
            // A panic there has been reported as a stopped worker.
            let _ = worker.join();
        }
    }
}

/// What the worker makes batches with.
struct Producer {
    data: Arc<dyn Dataset>,
    batching: Batching,
    seed: u64,
    per_epoch: u64,
}

impl Producer {
    /// Makes batches until nobody listens, or a sample cannot be read.
    fn run(&self, from: Position, send: &SyncSender<Result<Batch, DataError>>, returned: &Receiver<Batch>) {
        let task = self.data.task();
        let mut order = Order::new(self.data.len(), from.epoch, self.seed);
        let mut at = from;
        loop {
            if order.epoch != at.epoch {
                order.epoch = at.epoch;
                order.shuffle();
            }
            let rest = &order.samples[at.batch as usize * self.batching.samples..];
            let indices = &rest[..rest.len().min(self.batching.samples)];
            let shape = self.batching.shape(&task, indices.len(), self.seed, at);
            let used = returned.try_recv().ok().filter(|used| *used.shape() == shape);
            let mut batch = used.unwrap_or_else(|| Batch::new(&shape.task, shape.samples));
            let draw = |index: usize| Draw::training(self.seed, at.epoch, index);
            let filled = fill(&*self.data, indices.iter().copied(), &mut batch, draw);
            let failed = filled.is_err();
            if send.send(filled.map(|()| batch)).is_err() || failed {
                return;
            }
            at = at.next(self.per_epoch);
        }
    }
}

/// Fills the first places of a batch with some samples, and empties the others.
fn fill(
    data: &dyn Dataset,
    indices: impl ExactSizeIterator<Item = usize>,
    batch: &mut Batch,
    draw: impl Fn(usize) -> Draw,
) -> Result<(), DataError> {
    let n = indices.len();
    for (place, index) in indices.enumerate() {
        data.sample(index, draw(index), batch.sample(place))?;
    }
    batch.clear_from(n);
    Ok(())
}

/// The samples from `first` on, in order and without augmentation, for evaluation; the last batch may have empty places.
///
/// # Errors
/// [`DataError`] if a sample cannot be read.
pub fn evaluation_batch(data: &dyn Dataset, first: usize, batch: &mut Batch) -> Result<(), DataError> {
    let end = (first + batch.capacity()).min(data.len());
    fill(data, first..end.max(first), batch, Draw::evaluation)
}

/// All samples once, as [`evaluation_batch`] gives them.
///
/// # Errors
/// Those of `each`, and [`DataError`] if a sample cannot be read.
pub fn each_batch<E: From<DataError>>(
    data: &dyn Dataset,
    batch: usize,
    mut each: impl FnMut(&Batch) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = Batch::new(&data.task(), batch);
    for first in (0..data.len()).step_by(batch) {
        evaluation_batch(data, first, &mut buffer)?;
        each(&buffer)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::Task;

    /// Sample `index` has pixel and label `index`, and the number drawn for it.
    #[derive(Debug)]
    struct Numbers(usize);

    impl Dataset for Numbers {
        fn task(&self) -> Task {
            Task::Images { shape: [1, 1, 1] }
        }

        fn classes(&self) -> usize {
            self.0
        }

        fn len(&self) -> usize {
            self.0
        }

        fn sample(&self, index: usize, draw: Draw, mut sample: super::super::Sample<'_>) -> Result<(), DataError> {
            sample.f32(0)[0] = (draw.bits >> 40) as f32;
            sample.labels[0] = index as i32;
            Ok(())
        }
    }

    fn batches(samples: usize, batch: usize, from: Position, n: usize) -> Vec<Batch> {
        let mut loader = Loader::new(Arc::new(Numbers(samples)), batch, 7, from).unwrap();
        (0..n).map(|_| loader.next_batch().unwrap()).collect()
    }

    #[test]
    fn an_epoch_sees_each_sample_once_and_epochs_differ() {
        let all = batches(10, 3, Position::default(), 6);
        let labels = |range: &[Batch]| range.iter().flat_map(|batch| batch.labels().to_vec()).collect::<Vec<_>>();
        let (mut first, second) = (labels(&all[..3]), labels(&all[3..]));
        assert_ne!(first, second);
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 9);
    }

    #[test]
    fn a_position_is_enough_to_go_on() {
        let all = batches(10, 3, Position::default(), 9);
        for from in 0..8 {
            let position = Position { epoch: from / 3, batch: from % 3 };
            assert_eq!(batches(10, 3, position, 1)[0], all[from as usize]);
        }
        let mut loader = Loader::new(Arc::new(Numbers(10)), 3, 7, Position::default()).unwrap();
        for _ in 0..4 {
            let batch = loader.next_batch().unwrap();
            loader.recycle(batch);
        }
        assert_eq!(loader.position(), Position { epoch: 1, batch: 1 });
        assert_eq!(loader.next_batch().unwrap(), all[4]);
    }

    #[test]
    fn what_is_left_of_an_epoch_is_a_smaller_batch_if_asked_for() {
        let batching = Batching { last: LastBatch::Partial, ..3.into() };
        assert_eq!(batching.per_epoch(&Numbers(10)).unwrap(), 4);
        let take = |from: Position, n: usize| -> Vec<Batch> {
            let mut loader = Loader::new(Arc::new(Numbers(10)), batching.clone(), 7, from).unwrap();
            (0..n).map(|_| loader.next_batch().unwrap()).collect()
        };
        let all = take(Position::default(), 8);
        assert_eq!(all.iter().map(Batch::capacity).collect::<Vec<_>>(), [3, 3, 3, 1, 3, 3, 3, 1]);
        for epoch in all.chunks(4) {
            let mut seen: Vec<i32> = epoch.iter().flat_map(|batch| batch.labels().to_vec()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..10).collect::<Vec<i32>>());
        }
        assert_eq!(take(Position { epoch: 0, batch: 3 }, 2), all[3..5]);
        // Full batches are those there are without it.
        assert_eq!(all[..3], batches(10, 3, Position::default(), 3));
    }

    #[test]
    fn lengths_are_drawn_by_position() {
        let data = crate::data::Synthetic::splits(Task::NextToken { context: 9 }, 7, 1).train;
        let batching = Batching { lengths: vec![3, 5, 9], ..2.into() };
        let take = |from: Position, n: usize| -> Vec<Batch> {
            let mut loader = Loader::new(Arc::clone(&data), batching.clone(), 7, from).unwrap();
            (0..n).map(|_| loader.next_batch().unwrap()).collect()
        };
        let all = take(Position::default(), 30);
        for length in [3, 5, 9] {
            let task = Task::NextToken { context: length };
            let of_length = all.iter().filter(|batch| batch.shape().task == task);
            assert!(of_length.clone().count() > 3, "{length}");
            assert!(of_length.clone().all(|batch| batch.labels().len() == 2 * length));
        }
        assert_eq!(take(Position { epoch: 0, batch: 11 }, 4), all[11..15]);
        let error = |lengths: &[usize], task: Task| {
            Batching { lengths: lengths.to_vec(), ..2.into() }.check_lengths(&task).unwrap_err().to_string()
        };
        assert_eq!(
            error(&[3, 10], Task::NextToken { context: 9 }),
            "cannot make batches: 10 is no length for the model's texts; it takes from 1 to 9 tokens"
        );
        assert_eq!(
            error(&[3], Task::Images { shape: [1, 2, 2] }),
            "cannot make batches: only texts have lengths to choose from, and the model takes images 1x2x2"
        );
    }

    #[test]
    fn evaluation_sees_all_samples_in_order() {
        let mut seen = Vec::new();
        each_batch(&Numbers(5), 2, |batch| {
            seen.push(batch.labels().to_vec());
            Ok::<(), DataError>(())
        })
        .unwrap();
        assert_eq!(seen, [[0, 1], [2, 3], [4, -1]]);
    }

    #[test]
    fn too_few_samples_are_an_error() {
        let error = Loader::new(Arc::new(Numbers(5)), 8, 0, Position::default()).unwrap_err().to_string();
        assert_eq!(error, "training split has 5 samples, fewer than one batch of 8; use a smaller --batch");
    }
}
