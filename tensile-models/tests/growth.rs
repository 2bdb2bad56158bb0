//! Long training takes no more memory than short training.
#![expect(clippy::print_stderr, reason = "says what is skipped")]

mod common;

use std::sync::Arc;

use common::{device, limits, network, turn};
use tensile_core::device::host::Emulation;
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::exec::ExecutorOptions;
use tensile_core::optim::Optimizer;
use tensile_models::data::{Loader, Position, Synthetic};
use tensile_models::job::{Job, LOSS, Recipe};
use tensile_models::report::process_bytes;
use tensile_models::trainer::Trainer;
use tensile_sched::baseline::NoEviction;
use tensile_sched::planner::Tensile;
use tensile_sched::{Bytes, Effort, Planner};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn two_thousand_steps_with_evaluation_in_between_leave_memory_flat() {
    const STEPS: usize = 2000;
    const EVALUATE_EVERY: usize = 100;
    let _turn = turn();
    let device = device(2, Emulation::default());
    let network = network("lenet", &[]);
    let job = Job::new(&network, Recipe::new(8, Optimizer::adam()), &*device).unwrap();
    let full = NoEviction.plan(&job.train.trace, &limits(&device, Bytes::MAX)).unwrap().report.arena;
    let limits = limits(&device, Bytes(full.0 * 7 / 10));
    let planner = Tensile { effort: Effort::Fast };
    let mut trainer = Trainer::new(Arc::clone(&device), job, &planner, limits, ExecutorOptions::default(), 1).unwrap();
    let data = Synthetic::splits(network.task(), network.classes(), 1);
    let mut loader = Loader::new(data.train, 8, 1, Position::default()).unwrap();
    let mut memory = Vec::new();
    let mut pending = None;
    for step in 1..=STEPS {
        let batch = loader.next_batch().unwrap();
        let next = trainer.begin(&batch, 1e-3).unwrap();
        loader.recycle(batch);
        if let Some(ticket) = pending.replace(next) {
            assert!(trainer.finish(ticket).unwrap().scalar(LOSS).is_finite());
        }
        if step % EVALUATE_EVERY == 0 {
            let ticket = pending.take().unwrap();
            assert!(trainer.finish(ticket).unwrap().scalar(LOSS).is_finite());
            trainer.evaluate(&*data.test).unwrap();
            memory.push((count::current(Tag::Device), count::current(Tag::Host), process_bytes("VmRSS:")));
        }
    }
    let [early, .., late] = memory.as_slice() else { panic!("measured more than once") };
    assert_eq!((early.0, early.1), (late.0, late.1), "device and host bytes: {memory:?}");
    assert_eq!(late.0, trainer.executor().arena_bytes().0);
    match (early.2, late.2) {
        (Some(early), Some(late)) => {
            assert!(late < early + (2 << 20), "resident memory grew from {early} to {late} bytes: {memory:?}");
        }
        _ => eprintln!("skipped: the system does not tell resident memory"),
    }
}
