//! Batches of several shapes in one training: a program for each, the same bits under any budget.

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use common::{device, limits, network, turn};
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{Emulation, HostDevice};
use tensile_core::exec::ExecutorOptions;
use tensile_core::optim::Optimizer;
use tensile_models::data::{
    self, Batch, BatchShape, DataError, Dataset, Draw, LastBatch, Loader, Position, Sample, Synthetic,
};
use tensile_models::job::{Job, LOSS, Recipe, Steps};
use tensile_models::trainer::Trainer;
use tensile_models::zoo::Task;
use tensile_sched::baseline::NoEviction;
use tensile_sched::planner::Tensile;
use tensile_sched::{Bytes, Effort, Planner, floor};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static FAST: Tensile = Tensile { effort: Effort::Fast };

/// The first samples of a data set.
#[derive(Debug)]
struct First(Arc<dyn Dataset>, usize);

impl Dataset for First {
    fn task(&self) -> Task {
        self.0.task()
    }

    fn classes(&self) -> usize {
        self.0.classes()
    }

    fn len(&self) -> usize {
        self.1
    }

    fn sample(&self, index: usize, draw: Draw, sample: Sample<'_>) -> Result<(), DataError> {
        self.0.sample(index, draw, sample)
    }
}

fn trainer<'p>(
    device: &Arc<HostDevice>,
    job: &Job,
    planner: &'p dyn Planner,
    budget: Bytes,
) -> Trainer<'p, HostDevice> {
    let options = ExecutorOptions { poison: true, ..ExecutorOptions::default() };
    Trainer::new(Arc::clone(device), job.clone(), planner, limits(device, budget), options, 5).unwrap()
}

fn full(device: &HostDevice, job: &Job) -> Bytes {
    NoEviction.plan(&job.train.trace, &limits(device, Bytes::MAX)).unwrap().report.arena
}

/// Most device bytes while something runs, by the counting allocator, beside those that were there.
fn counted<T>(run: impl FnOnce() -> T) -> (Bytes, T) {
    let before = count::current(Tag::Device);
    count::reset_peak();
    let result = run();
    (Bytes(count::peak(Tag::Device) - before), result)
}

/// Bits of the losses of training on batches from a loader, one after another in flight.
fn losses(trainer: &mut Trainer<'_, HostDevice>, loader: &mut Loader, steps: usize) -> Vec<u32> {
    let mut losses = Vec::new();
    let mut pending = None;
    for step in 0..=steps {
        let next = (step < steps).then(|| {
            let batch = loader.next_batch().unwrap();
            let ticket = trainer.begin(&batch, 1e-3).unwrap();
            loader.recycle(batch);
            ticket
        });
        if let Some(ticket) = std::mem::replace(&mut pending, next) {
            losses.push(trainer.finish(ticket).unwrap().scalar(LOSS).to_bits());
        }
    }
    losses
}

#[test]
fn c27_a_last_batch_of_another_size_has_a_program_of_its_own_and_the_same_bits() {
    let _turn = turn();
    let device = device(2, Emulation::default());
    let network = network("digit-cnn", &[]);
    let splits = data::open("digits", &*network, 1).unwrap();
    let data: Arc<dyn Dataset> = Arc::new(First(splits.train, 103));
    let recipe = Recipe { last_batch: LastBatch::Partial, ..Recipe::new(10, Optimizer::adam()) };
    let job = Job::new(&network, recipe.clone(), &*device).unwrap();
    let loader = |from| Loader::new(Arc::clone(&data), recipe.batching(), 3, from).unwrap();
    let at_start = || loader(Position::default());
    let per_epoch = at_start().per_epoch() as usize;
    assert_eq!(per_epoch, 11);

    // Five epochs, then batches of ten and of three samples in turn.
    let run = |trainer: &mut Trainer<'_, HostDevice>| -> (Vec<u32>, Vec<u32>) {
        let epochs = losses(trainer, &mut at_start(), 5 * per_epoch);
        let mut batches = loader(Position { epoch: 7, batch: 9 });
        let two = [batches.next_batch().unwrap(), batches.next_batch().unwrap()];
        assert_eq!(two.each_ref().map(Batch::capacity), [10, 3]);
        (epochs, (0..200).map(|step| trainer.step(&two[step % 2], 1e-4).unwrap().to_bits()).collect())
    };
    let mut reference = trainer(&device, &job, &NoEviction, Bytes::MAX);
    let expected = run(&mut reference);

    // The small batch's step is that of a job which has only such batches.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shapes.safetensors");
    let mut before = trainer(&device, &job, &NoEviction, Bytes::MAX);
    losses(&mut before, &mut at_start(), 10);
    before.save_training(&file, Position { epoch: 0, batch: 10 }).unwrap();
    let of_three = Job::new(&network, Recipe::new(3, Optimizer::adam()), &*device).unwrap();
    let mut small = trainer(&device, &of_three, &NoEviction, Bytes::MAX);
    let position = small.resume(&file).unwrap();
    let batch = loader(position).next_batch().unwrap();
    assert_eq!((batch.capacity(), batch.n_labels()), (3, 3));
    assert_eq!(small.step(&batch, 1e-3).unwrap().to_bits(), expected.0[10]);

    let (mut evictions, mut reruns) = (0, 0);
    let lowest = floor(&job.train.trace, &limits(&device, Bytes::MAX)).unwrap().bytes;
    for budget in [lowest, Bytes(full(&device, &job).0 / 2).max(lowest)] {
        let (peak, mut limited) = counted(|| {
            let mut limited = trainer(&device, &job, &FAST, budget);
            assert!(run(&mut limited) == expected, "{budget}");
            limited
        });
        assert!(peak <= budget, "the allocator saw {peak} of {budget}");
        assert!(limited.executor().state().unwrap() == reference.executor().state().unwrap(), "{budget}");
        // The main step, evaluation, and the step for three samples.
        assert_eq!(limited.plans(), 3, "{budget}");
        let [(shape, program)] = limited.other_programs().collect::<Vec<_>>()[..] else { panic!("one other shape") };
        assert_eq!(shape.samples, 3);
        for report in [&program.planned().report, &limited.train_program().planned().report] {
            evictions += report.evictions;
            reruns += report.reruns;
        }
    }
    assert!(evictions > 0 && reruns > 0, "{evictions} evictions, {reruns} reruns");
}

#[test]
fn c27_texts_of_several_lengths_have_a_program_for_each_and_the_same_bits() {
    let _turn = turn();
    let device = device(2, Emulation::default());
    let settings = [("layers", 2.0), ("heads", 2.0), ("width", 32.0), ("context", 64.0)];
    for model in ["gpt-bytes", "bert-bytes"] {
        let network = network(model, &settings);
        let data = Synthetic::splits(network.task(), network.classes(), 1);
        let recipe = Recipe { lengths: vec![16, 32, 64], ..Recipe::new(8, Optimizer::adamw(0.01)) };
        let job = Job::new(&network, recipe.clone(), &*device).unwrap();
        let loader = || Loader::new(Arc::clone(&data.train), recipe.batching(), 3, Position::default()).unwrap();
        let mut reference = trainer(&device, &job, &NoEviction, Bytes::MAX);
        let expected = losses(&mut reference, &mut loader(), 60);
        let budget = Bytes(full(&device, &job).0 / 2);
        let (peak, mut limited) = counted(|| {
            let mut limited = trainer(&device, &job, &FAST, budget);
            assert!(losses(&mut limited, &mut loader(), 60) == expected, "{model}");
            limited
        });
        assert!(peak <= budget, "{model}: the allocator saw {peak} of {budget}");
        assert!(limited.executor().state().unwrap() == reference.executor().state().unwrap(), "{model}");
        // Three lengths and evaluation.
        assert_eq!(limited.plans(), 4, "{model}");
        let report = &limited.train_program().planned().report;
        assert!(report.evictions + report.reruns > 0, "{model}: nothing was evicted");
        limited.evaluate(&*data.test).unwrap();
    }
}

#[test]
fn c27_a_shape_that_does_not_fit_is_an_error_with_figures_and_training_goes_on() {
    let _turn = turn();
    let device = device(2, Emulation::default());
    let network = network("gpt-bytes", &[("layers", 1.0), ("heads", 2.0), ("width", 32.0), ("context", 64.0)]);
    let recipe = Recipe { lengths: vec![4], ..Recipe::new(8, Optimizer::adam()) };
    let job = Job::new(&network, recipe.clone(), &*device).unwrap();
    // Enough for evaluation with long texts, not for training with them.
    let long = BatchShape { samples: 8, task: network.task() };
    let trace = job.step_for(&long, &*device).unwrap();
    let [eval, long_floor] =
        [&job.eval, &trace].map(|step| floor(&step.trace, &limits(&device, Bytes::MAX)).unwrap().bytes);
    let budget = Bytes(eval.0.midpoint(long_floor.0));
    let mut limited = trainer(&device, &job, &FAST, budget);
    let error = limited.step(&Batch::new(&long.task, long.samples), 1e-3).unwrap_err().to_string();
    for words in ["a batch of 8 of next tokens of 64", "floor", &budget.to_string(), "--budget"] {
        assert!(error.contains(words), "no '{words}' in: {error}");
    }
    let data = Synthetic::splits(network.task(), network.classes(), 1).train;
    let mut loader = Loader::new(data, recipe.batching(), 1, Position::default()).unwrap();
    assert!(limited.step(&loader.next_batch().unwrap(), 1e-3).unwrap().is_finite());
}

#[test]
fn a_few_shapes_are_kept_and_those_used_last() {
    let device = device(1, Emulation::default());
    let network = network("mlp", &[]);
    let job = Job::new(&network, Recipe::new(4, Optimizer::sgd(0.0)), &*device).unwrap();
    let mut steps = Steps::new(NonZeroUsize::new(2).unwrap());
    let mut get = |samples| steps.get(&job, &BatchShape { samples, task: network.task() }, &*device).unwrap();
    assert!(Arc::ptr_eq(&get(4), &job.train));
    let (one, two) = (get(1), get(2));
    assert!(Arc::ptr_eq(&get(1), &one));
    get(3);
    assert!(Arc::ptr_eq(&get(1), &one) && !Arc::ptr_eq(&get(2), &two));
    assert_eq!(steps.built(), 4);
}
