//! Batches of one epoch after another, made ahead on a thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::{Batch, DataError, Dataset, Draw, SplitMix};

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

/// Training batches, made ahead on a thread of its own. What the batch at a position holds depends on data, seed and position alone. The rest of an epoch that
/// does not fill a batch is left out.
#[derive(Debug)]
pub struct Loader {
    position: Position,
    per_epoch: u64,
    batches: Option<Receiver<Result<Batch, DataError>>>,
    used: Option<Sender<Batch>>,
    worker: Option<JoinHandle<()>>,
}

impl Loader {
    /// Batches of `batch` samples, from a position on.
    ///
    /// # Errors
    /// [`DataError::TooFew`] unless there is at least one whole batch; [`DataError::Thread`].
    pub fn new(data: Arc<dyn Dataset>, batch: usize, seed: u64, from: Position) -> Result<Self, DataError> {
        let per_epoch = Self::count(&*data, batch)?;
        let position = Position { epoch: from.epoch + from.batch / per_epoch, batch: from.batch % per_epoch };
        let (send, batches) = sync_channel(AHEAD);
        let (used, returned) = channel();
        let worker = std::thread::Builder::new()
            .name("tensile-data".to_owned())
            .spawn(move || produce(&*data, batch, seed, position, &send, &returned))
            .map_err(DataError::Thread)?;
        Ok(Self { position, per_epoch, batches: Some(batches), used: Some(used), worker: Some(worker) })
    }

    /// Batches of `batch` samples in one epoch.
    ///
    /// # Errors
    /// [`DataError::TooFew`] unless there is at least one.
    pub fn count(data: &dyn Dataset, batch: usize) -> Result<u64, DataError> {
        let samples = data.len();
        if samples < batch || batch == 0 {
            return Err(DataError::TooFew { split: "training", samples, batch });
        }
        Ok((samples / batch) as u64)
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
        self.position.batch += 1;
        if self.position.batch == self.per_epoch {
            self.position = Position { epoch: self.position.epoch + 1, batch: 0 };
        }
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

/// What the worker does: until nobody listens, or a sample cannot be read.
fn produce(
    data: &dyn Dataset,
    batch: usize,
    seed: u64,
    from: Position,
    send: &SyncSender<Result<Batch, DataError>>,
    returned: &Receiver<Batch>,
) {
    let mut order = Order::new(data.len(), from.epoch, seed);
    let mut next = from.batch as usize;
    loop {
        if (next + 1) * batch > order.samples.len() {
            (order.epoch, next) = (order.epoch + 1, 0);
            order.shuffle();
        }
        let indices = &order.samples[next * batch..][..batch];
        let buffer = returned.try_recv().unwrap_or_else(|_| Batch::new(&data.task(), batch));
        let draw = |index: usize| Draw::training(seed, order.epoch, index);
        let filled = fill(data, indices, buffer, draw);
        let failed = filled.is_err();
        if send.send(filled).is_err() || failed {
            return;
        }
        next += 1;
    }
}

/// Fills the first places of a batch with some samples, and empties the others.
fn fill(
    data: &dyn Dataset,
    indices: &[usize],
    mut batch: Batch,
    draw: impl Fn(usize) -> Draw,
) -> Result<Batch, DataError> {
    for (place, &index) in indices.iter().enumerate() {
        data.sample(index, draw(index), batch.sample(place))?;
    }
    batch.clear_from(indices.len());
    Ok(batch)
}

/// All samples once and in order, without augmentation, for evaluation; the last batch may have empty places.
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
        let indices: Vec<usize> = (first..(first + batch).min(data.len())).collect();
        buffer = fill(data, &indices, buffer, Draw::evaluation)?;
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
