//! Training within any budget gives the same bits as training without a limit, and stays within the budget.

mod common;

use std::sync::Arc;

use common::{Everything, Trained, device, job_with_gradients, limits, network, train, turn};
use tensile_core::device::host::count::CountingAllocator;
use tensile_core::device::host::{Delays, Emulation, HostDevice};
use tensile_core::optim::Optimizer;
use tensile_models::job::{Job, Recipe};
use tensile_sched::baseline::NoEviction;
use tensile_sched::planner::{self, Tensile};
use tensile_sched::{Bytes, Effort, Infeasible, Limits, Mode, floor};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Training of one job without a limit, to compare others with.
struct Reference {
    device: Arc<HostDevice>,
    job: Job,
    steps: usize,
    trained: Trained,
}

impl Reference {
    fn new(model: &str, batch: usize, settings: &[(&str, f64)], optimizer: Optimizer, steps: usize) -> Self {
        let device = device(2, Emulation::default());
        let job = job_with_gradients(model, batch, settings, optimizer, &device);
        Self::of(device, job, steps)
    }

    fn of(device: Arc<HostDevice>, job: Job, steps: usize) -> Self {
        let trained = train(&device, &job, &NoEviction, &limits(&device, Bytes::MAX), steps, false);
        assert_eq!((trained.report.evictions, trained.report.reruns), (0, 0));
        assert_eq!(trained.peak, trained.report.arena, "kernels allocate nothing beside the arena");
        Self { device, job, steps, trained }
    }

    fn full(&self) -> Bytes {
        self.trained.report.arena
    }

    fn floor(&self, mode: Mode) -> Bytes {
        floor(&self.job.train.trace, &Limits { mode, ..limits(&self.device, Bytes::MAX) }).unwrap().bytes
    }

    /// Trains within a budget, and compares bits and bytes.
    fn check(&self, budget: Bytes, mode: Mode) -> Trained {
        self.check_with(&Tensile::default(), budget, mode)
    }

    fn check_with(&self, planner: &Tensile, budget: Bytes, mode: Mode) -> Trained {
        let limits = Limits { mode, ..limits(&self.device, budget) };
        let trained = train(&self.device, &self.job, planner, &limits, self.steps, false);
        assert_same(&trained.everything, &self.trained.everything, &format!("{budget}, {mode:?}"));
        assert!(trained.peak <= budget, "{mode:?}: the allocator saw {} of {budget}", trained.peak);
        if budget < self.full() {
            assert!(trained.report.evictions + trained.report.reruns > 0, "{budget}, {mode:?}: nothing was evicted");
        }
        trained
    }
}

#[track_caller]
fn assert_same(found: &Everything, expected: &Everything, what: &str) {
    for (step, (found, expected)) in found.outputs.iter().zip(&expected.outputs).enumerate() {
        for (found, expected) in found.iter().zip(expected) {
            assert!(found == expected, "{what}: step {step}, output '{}' differs", expected.name);
        }
    }
    for (found, expected) in found.state.iter().zip(&expected.state) {
        assert!(found == expected, "{what}: '{}' differs", expected.0);
    }
    assert!(found == expected, "{what}: more or fewer results");
}

/// `n` budgets from `low` to `high`, both included.
fn budgets(low: Bytes, high: Bytes, n: u64) -> impl Iterator<Item = Bytes> {
    (0..n).map(move |i| Bytes(low.0 + (high.0 - low.0) * i / (n - 1)))
}

#[test]
fn digit_cnn_with_dropout_at_ten_budgets_in_each_mode() {
    let _turn = turn();
    let reference = Reference::new("digit-cnn", 64, &[], Optimizer::adam(), 5);
    let share = reference.floor(Mode::Both).0 as f64 / reference.full().0 as f64;
    assert!(share <= 0.35, "the floor is {share:.2} of the peak");
    for mode in [Mode::Swap, Mode::Recompute, Mode::Both] {
        let lowest = reference.floor(mode);
        assert!(lowest < reference.full(), "{mode:?} saves nothing");
        let (mut evictions, mut reruns) = (0, 0);
        for budget in budgets(lowest, reference.full(), 10) {
            let trained = reference.check(budget, mode);
            evictions += trained.report.evictions;
            reruns += trained.report.reruns;
        }
        match mode {
            Mode::Swap => assert!(evictions > 0 && reruns == 0),
            Mode::Recompute => assert!(reruns > 0),
            Mode::Both => assert!(evictions + reruns > 0),
        }
    }
}

#[test]
fn resnet18_at_three_budgets() {
    let _turn = turn();
    let reference = Reference::new("resnet18", 4, &[("size", 64.0)], Optimizer::sgd(0.9), 5);
    let lowest = reference.floor(Mode::Both);
    for budget in [lowest, Bytes(reference.full().0 * 4 / 10), Bytes(reference.full().0 * 7 / 10)] {
        reference.check(budget.max(lowest), Mode::Both);
    }
}

/// Published policies are real, too: each at 60 % of the memory, or the least it can do with.
#[test]
fn resnet18_under_every_policy() {
    let _turn = turn();
    let reference = Reference::new("resnet18", 4, &[("size", 64.0)], Optimizer::sgd(0.9), 3);
    let free = limits(&reference.device, Bytes::MAX);
    let mut n_evicting = 0;
    for policy in planner::all() {
        let trace = &reference.job.train.trace;
        let lowest = match policy.plan(trace, &Limits { device: Bytes::ZERO, ..free.clone() }) {
            Err(Infeasible::Device { lowest, .. }) => lowest,
            other => panic!("{} plans without memory: {:?}", policy.name(), other.map(|planned| planned.report)),
        };
        let budget = lowest.max(Bytes(reference.full().0 * 6 / 10));
        let limits = Limits { device: budget, ..free.clone() };
        let trained = train(&reference.device, &reference.job, policy.as_ref(), &limits, reference.steps, false);
        let what = format!("{} at {budget}", policy.name());
        assert_same(&trained.everything, &reference.trained.everything, &what);
        assert!(trained.peak <= budget, "{what}: the allocator saw {}", trained.peak);
        n_evicting += usize::from(trained.report.evictions + trained.report.reruns > 0);
    }
    assert_eq!(n_evicting, planner::all().len() - 2, "all but none and retain evict");
}

#[test]
fn resnet50_at_three_budgets() {
    let _turn = turn();
    let reference = Reference::new("resnet50", 2, &[("size", 96.0)], Optimizer::adamw(0.01), 1);
    let lowest = reference.floor(Mode::Both);
    for budget in [lowest, Bytes(reference.full().0 * 4 / 10), Bytes(reference.full().0 * 7 / 10)] {
        reference.check(budget.max(lowest), Mode::Both);
    }
}

/// One step of a model at five budgets from the floor up, planned with little effort. What the gradients were shows in the state after the step.
#[track_caller]
fn five_budgets(model: &str, batch: usize, settings: &[(&str, f64)], optimizer: Optimizer) {
    let _turn = turn();
    let device = device(2, Emulation::default());
    let job = Job::new(&network(model, settings), Recipe::new(batch, optimizer), &*device).unwrap();
    let reference = Reference::of(device, job, 1);
    let lowest = reference.floor(Mode::Both);
    assert!(lowest.0 * 10 < reference.full().0 * 9, "{model}: nothing to save above a floor of {lowest}");
    for budget in budgets(lowest, reference.full(), 6).take(5) {
        reference.check_with(&Tensile { effort: Effort::Fast }, budget, Mode::Both);
    }
}

#[test]
fn lenet_at_five_budgets() {
    five_budgets("lenet", 32, &[], Optimizer::sgd(0.9).with_clip_norm(1.0).with_skip_nonfinite());
}

#[test]
fn vgg16_at_five_budgets() {
    five_budgets("vgg16", 2, &[("size", 32.0), ("classes", 10.0)], Optimizer::sgd(0.0));
}

#[test]
fn inception_v3_at_five_budgets() {
    five_budgets("inception-v3", 2, &[("size", 107.0)], Optimizer::adam());
}

#[test]
fn inception_v4_at_five_budgets() {
    five_budgets("inception-v4", 2, &[("size", 107.0)], Optimizer::sgd(0.9));
}

#[test]
fn densenet121_at_five_budgets() {
    five_budgets("densenet121", 2, &[("size", 64.0)], Optimizer::adamw(0.01).without_decay_on_vectors());
}

#[test]
fn gpt_with_dropout_at_five_budgets() {
    five_budgets(
        "gpt-bytes",
        4,
        &[("layers", 3.0)],
        Optimizer::adamw(0.1).without_decay_on_vectors().with_clip_norm(1.0),
    );
}

#[test]
fn bert_with_dropout_at_five_budgets() {
    five_budgets("bert-bytes", 4, &[("layers", 3.0)], Optimizer::adamw(0.01));
}

#[test]
fn gcn_with_dropout_at_five_budgets() {
    five_budgets("gcn", 1, &[("nodes", 500.0), ("features", 64.0), ("edges", 3000.0)], Optimizer::adam());
}

#[test]
fn fifty_delay_patterns_with_poison_and_other_thread_counts() {
    let _turn = turn();
    let reference = Reference::new("digit-cnn", 16, &[], Optimizer::adam(), 2);
    for percent in [40, 70] {
        for (seed, threads) in (0..50).flat_map(|seed| [(seed, 1), (seed, 2)]) {
            let emulation =
                Emulation { delays: Some(Delays { seed, longest_us: 100 }), poison: true, ..Emulation::default() };
            // Workspaces depend on the number of threads, so the job is built for each device.
            let device = device(threads, emulation);
            let job = job_with_gradients("digit-cnn", 16, &[], Optimizer::adam(), &device);
            let none = Bytes(reference.full().0 * percent / 100);
            let lowest = floor(&job.train.trace, &limits(&device, Bytes::MAX)).unwrap().bytes;
            let limits = limits(&device, none.max(lowest));
            let trained = train(&device, &job, &Tensile { effort: Effort::Fast }, &limits, reference.steps, true);
            let what = format!("{percent} %, seed {seed}, {threads} threads");
            assert_same(&trained.everything, &reference.trained.everything, &what);
            assert!(trained.report.evictions + trained.report.reruns > 0);
            assert!(trained.peak <= limits.device, "{what}: the allocator saw {}", trained.peak);
        }
    }
}
