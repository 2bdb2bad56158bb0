//! Several jobs on a device that fails: injected failures, shortages, and chaos.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensile_core::conformance::harness::Trained;
use tensile_core::conformance::jobs::{self, Training, WATCHDOG, alone, ended, floor, full, runs, step};
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{Delays, Emulation, Failure, HostDevice, HostOptions};
use tensile_core::device::{Device, DeviceError};
use tensile_core::exec::{ExecError, ExecutorOptions, Step};
use tensile_core::optim::Optimizer;
use tensile_core::runtime::{Admission, EventKind, JobError, JobHandle, Phase, Runtime, RuntimeOptions};
use tensile_sched::{Bytes, Effort, Limits, Mode, Planner, Tensile};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counter counts the whole process, so tests here take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    quiet_about_injected_panics();
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Injected panics are no news.
fn quiet_about_injected_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str() != Some("injected panic") {
                report(panic);
            }
        }));
    });
}

fn device(capacity: Bytes, emulation: Emulation) -> Arc<HostDevice> {
    let emulation = Emulation { poison: true, ..emulation };
    Arc::new(HostDevice::new(HostOptions { capacity, emulation, ..HostOptions::nominal(2) }).unwrap())
}

fn failing(failures: &[Failure]) -> Arc<HostDevice> {
    device(Bytes::MAX, Emulation { failures: failures.to_vec(), ..Emulation::default() })
}

fn adam() -> Optimizer {
    Optimizer::adam()
}

/// The driver refuses memory that others took: the job gets a smaller share, and nothing changes in what it computes (tracel-ai/cubecl#1474).
#[test]
fn c57_full_now_is_not_never() {
    let _turn = turn();
    let clean = failing(&[]);
    let step = step(&clean, 16);
    let (all, least) = (full(&clean, &step), floor(&clean, &step));
    let expected = alone(&clean, &step, 8);

    // Somebody else has taken a part of the device: the budget says more than there is.
    let crowded = device(all, Emulation::default());
    let other = crowded.alloc_arena((all.0 - least.0) / 2).unwrap();
    let runtime = jobs::runtime(&crowded, Bytes::MAX);
    let training = Training::of(&step, &adam(), 8);
    let report = ended(training.submit(&runtime, "squeezed", 1.0, Admission::Refuse)).unwrap();
    assert!(report.largest_share < all && report.largest_share >= least, "{report:?}");
    assert!(report.stats.evictions + report.stats.reruns > 0);
    assert_eq!(training.record().trained.as_ref(), Some(&expected));
    drop((runtime, other));

    // One refusal while another job could be squeezed: it is, and the newcomer runs.
    let refusing = failing(&[Failure::Allocation(3)]);
    let runtime = jobs::runtime(&refusing, Bytes(2 * all.0));
    let first = Training::until_told(&step, &adam(), 4);
    let one = first.submit(&runtime, "first", 1.0, Admission::Queue);
    runs(&one, 2);
    // The second allocation is of this job's arena; the third of the one after it.
    let second = Training::of(&step, &adam(), 8);
    ended(second.submit(&runtime, "second", 1.0, Admission::Queue)).unwrap();
    let third = Training::of(&step, &adam(), 8);
    let job = third.submit(&runtime, "third", 1.0, Admission::Queue);
    let id = job.id();
    ended(job).unwrap();
    let events = runtime.snapshot().events;
    let refused = |kind: &EventKind| matches!(kind, EventKind::Shortage { .. });
    assert!(events.iter().any(|event| event.job == id && refused(&event.kind)), "{events:?}");
    first.stop();
    ended(one).unwrap();
    for training in [&second, &third] {
        assert_eq!(training.record().trained.as_ref(), Some(&expected));
    }

    // A size that the device never has is another error, at once.
    let small = device(Bytes(least.0 - 1), Emulation::default());
    let runtime = jobs::runtime(&small, Bytes::MAX);
    let error = ended(Training::of(&step, &adam(), 8).submit(&runtime, "never", 1.0, Admission::Queue)).unwrap_err();
    assert!(matches!(error, JobError::Infeasible(_)), "{error:?}");
    assert!(error.to_string().contains(&least.to_string()), "{error}");
    assert_eq!(runtime.snapshot().events.iter().filter(|event| refused(&event.kind)).count(), 1);

    // A device that has more in all, but not now, and nobody gives any back: an error that says so, after a few tries.
    let taken = device(all, Emulation::default());
    let other = taken.alloc_arena(all.0 - least.0 + 64).unwrap();
    let runtime = jobs::runtime(&taken, Bytes::MAX);
    let error = ended(Training::of(&step, &adam(), 8).submit(&runtime, "not now", 1.0, Admission::Queue)).unwrap_err();
    assert!(matches!(error, JobError::Shortage { .. }), "{error:?}");
    drop(other);
    ended(Training::of(&step, &adam(), 2).submit(&runtime, "now", 1.0, Admission::Queue)).unwrap();
}

/// A kernel that fails or panics, a copy that fails: one job ends with a typed error, the other computes what it computes alone, and the next job runs.
#[test]
fn a_fault_stays_in_its_job() {
    let _turn = turn();
    let clean = failing(&[]);
    let step = step(&clean, 16);
    let expected = alone(&clean, &step, 8);
    let budget = Bytes(full(&clean, &step).0 * 13 / 10);
    for failure in [Failure::Kernel(700), Failure::KernelPanic(700), Failure::Copy(40)] {
        let device = failing(&[failure]);
        let runtime = jobs::runtime(&device, budget);
        let trainings = [(); 2].map(|()| Training::of(&step, &adam(), 8));
        let jobs =
            ["a", "b"].map(|name| trainings[usize::from(name == "b")].submit(&runtime, name, 1.0, Admission::Queue));
        let outcomes = jobs.map(ended);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "{failure:?}: {outcomes:?}");
        for (outcome, training) in outcomes.iter().zip(&trainings) {
            match outcome {
                Ok(_) => assert_eq!(training.record().trained.as_ref(), Some(&expected)),
                Err(JobError::Exec(ExecError::Device(error))) => {
                    let is_typed = matches!(error, DeviceError::Kernel { .. } | DeviceError::Copy { .. });
                    assert!(is_typed && error.to_string().contains("injected"), "{error}");
                }
                Err(error) => panic!("{failure:?}: {error:?}"),
            }
        }
        let after = Training::of(&step, &adam(), 8);
        ended(after.submit(&runtime, "after", 1.0, Admission::Queue)).unwrap();
        assert_eq!(after.record().trained.as_ref(), Some(&expected));
        assert_eq!((device.device_bytes(), device.host_bytes()), (Bytes::ZERO, Bytes::ZERO));
    }
}

/// Host memory for what the budget evicts and no more: a job that is to be paused stays where it is, keeps still, and goes on with the same bits.
#[test]
fn a_job_that_cannot_leave_is_paused_where_it_is() {
    let _turn = turn();
    let device = failing(&[]);
    let step = step(&device, 16);
    let budget = Bytes(full(&device, &step).0 * 7 / 10);
    let planner = Tensile { effort: Effort::Fast };
    let limits = Limits { mode: Mode::Swap, ..device.info().limits(budget) };
    let host = planner.plan(&step.trace, &limits).unwrap().report.host_arena;
    let executor = ExecutorOptions { profile: true, poison: true };
    let options = RuntimeOptions {
        host_budget: host + Bytes(64),
        mode: Mode::Swap,
        refiner: None,
        replan_above: f64::INFINITY,
        executor,
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::new(Arc::clone(&device), budget, options).unwrap();
    let training = Training::until_told(&step, &adam(), 6);
    let job = training.submit(&runtime, "stuck", 1.0, Admission::Refuse);
    runs(&job, 3);
    job.pause();
    let began = Instant::now();
    while !runtime.snapshot().events.iter().any(|event| event.kind == EventKind::PausedInPlace) {
        assert!(began.elapsed() < WATCHDOG, "it is not paused");
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = job.status();
    std::thread::sleep(Duration::from_millis(50));
    let after = job.status();
    assert_eq!((after.steps, after.phase, after.share), (before.steps, Phase::Running, before.share));
    // Another one that needs what it holds waits, and is let in when it is done.
    let next = Training::of(&step, &adam(), 4);
    let waiting = next.submit(&runtime, "next", 1.0, Admission::Queue);
    job.resume();
    runs(&job, before.steps + 3);
    assert_eq!(waiting.status().phase, Phase::Queued);
    training.stop();
    let report = ended(job).unwrap();
    assert!(report.stats.evictions > 0);
    ended(waiting).unwrap();
    let steps = training.record().outputs.len() as u64;
    assert_eq!(training.record().trained.as_ref(), Some(&alone(&device, &step, steps)));
    assert_eq!(next.record().trained.as_ref(), Some(&alone(&device, &step, 4)));
    let snapshot = runtime.snapshot();
    assert_eq!((snapshot.shared, snapshot.host_held), (Bytes::ZERO, Bytes::ZERO));
}

/// A device that is lost takes all its jobs with it, and each is told so.
#[test]
fn a_lost_device_ends_all_its_jobs() {
    let _turn = turn();
    let device = failing(&[Failure::DeviceLoss(900)]);
    let step = step(&device, 16);
    let runtime = jobs::runtime(&device, Bytes::MAX);
    let jobs = ["a", "b", "c"]
        .map(|name| Training::until_told(&step, &adam(), 1_000_000).submit(&runtime, name, 1.0, Admission::Queue));
    for job in jobs {
        let error = ended(job).unwrap_err();
        let lost = |error: &DeviceError| matches!(error, DeviceError::DeviceLost { .. });
        assert!(matches!(&error, JobError::Exec(ExecError::Device(error)) if lost(error)), "{error:?}");
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Runs of one seed each: arrivals, cancels, pauses, failures and delays as they come.
const CHAOS: u64 = 200;

/// What a clean device computes, for each batch size and number of steps.
type Expected = BTreeMap<(usize, u64), Trained>;

#[test]
fn chaos_harms_nobody() {
    let _turn = turn();
    let clean = failing(&[]);
    let sizes = [4, 6, 8];
    let made: Vec<Arc<Step>> = sizes.iter().map(|&batch| step(&clean, batch)).collect();
    let mut expected = Expected::new();
    for (&size, step) in sizes.iter().zip(&made) {
        for n in 2..8 {
            expected.insert((size, n), alone(&clean, step, n));
        }
    }
    let mut ends = BTreeMap::new();
    for seed in 0..CHAOS {
        run_chaos(seed, &sizes, &made, &expected, &mut ends);
    }
    // The test has met what it is about.
    for end in ["done", "cancelled", "failed"] {
        assert!(ends.get(end).copied().unwrap_or(0) > 20, "{ends:?}");
    }
}

/// A job of a chaos run, with what was done to it.
struct Victim {
    job: JobHandle,
    admission: Admission,
    training: Training,
    size: usize,
    n: u64,
    cancelled: bool,
}

fn run_chaos(
    seed: u64,
    sizes: &[usize],
    made: &[Arc<Step>],
    expected: &Expected,
    ends: &mut BTreeMap<&'static str, u32>,
) {
    let mut random = Random(seed);
    let mut failures = Vec::new();
    for _ in 0..random.below(3) {
        failures.push(match random.below(9) {
            0 | 1 => Failure::Allocation(1 + random.below(8)),
            2 => Failure::HostAllocation(1 + random.below(8)),
            3 | 4 => Failure::Copy(1 + random.below(120)),
            5 | 6 => Failure::Kernel(1 + random.below(3000)),
            7 => Failure::KernelPanic(1 + random.below(3000)),
            _ => Failure::DeviceLoss(1 + random.below(4000)),
        });
    }
    let loses = failures.iter().any(|failure| matches!(failure, Failure::DeviceLoss(_)));
    let delays = Some(Delays { seed, longest_us: 4 });
    let device = device(Bytes::MAX, Emulation { delays, failures: failures.clone(), ..Emulation::default() });
    let floors: Vec<u64> = made.iter().map(|step| floor(&device, step).0).collect();
    let largest = *floors.iter().max().expect("some");
    let budget = Bytes(largest + random.below(3 * largest));
    let options = RuntimeOptions {
        executor: ExecutorOptions { profile: random.below(2) == 0, poison: true },
        refiner: None,
        curve_points: 3,
        ..RuntimeOptions::default()
    };
    let runtime = Runtime::new(Arc::clone(&device), budget, options).unwrap();
    count::reset_peak();
    let mut victims: Vec<Victim> = Vec::new();
    for _ in 0..4 {
        let at = random.below(sizes.len() as u64) as usize;
        let n = 2 + random.below(6);
        let training = Training::of(&made[at], &adam(), n);
        let admission = if random.below(4) == 0 { Admission::Refuse } else { Admission::Queue };
        let weight = 1.0 + random.below(4) as f64;
        let job = training.submit(&runtime, &format!("job {}", victims.len()), weight, admission);
        victims.push(Victim { job, admission, training, size: sizes[at], n, cancelled: false });
        std::thread::sleep(Duration::from_micros(random.below(4000)));
        for _ in 0..random.below(3) {
            let other = random.below(victims.len() as u64) as usize;
            match random.below(3) {
                0 => {
                    victims[other].cancelled = true;
                    victims[other].job.cancel();
                }
                1 => victims[other].job.pause(),
                _ => victims[other].job.resume(),
            }
        }
        check_books(&runtime, &device, budget);
    }
    let began = Instant::now();
    for victim in &victims {
        victim.job.resume();
        while !victim.job.wait_until(|_| false, Duration::from_millis(5)).phase.is_over() {
            check_books(&runtime, &device, budget);
            assert!(began.elapsed() < WATCHDOG, "seed {seed} hangs: {:#?}", runtime.snapshot());
        }
    }
    let most = count::peak(Tag::Device);
    assert!(most <= budget.0, "seed {seed}: {most} bytes held of {budget}");
    let refuses_memory = failures.iter().any(|failure| matches!(failure, Failure::Allocation(_)));
    let mut failed = 0;
    for Victim { job, admission, training, size, n, cancelled } in victims {
        let solo = &expected[&(size, n)];
        let record = training.record();
        assert!(solo.outputs.starts_with(&record.outputs), "seed {seed}, {failures:?}: wrong bits");
        let end = match ended(job) {
            Ok(_) => {
                assert_eq!(record.trained.as_ref(), Some(solo), "seed {seed}, {failures:?}");
                "done"
            }
            Err(JobError::Cancelled) if cancelled => "cancelled",
            Err(JobError::Refused(_)) if admission == Admission::Refuse => "refused",
            Err(JobError::Exec(ExecError::Device(error))) if !failures.is_empty() => {
                assert!(loses || !matches!(error, DeviceError::DeviceLost { .. }), "seed {seed}: {error}");
                failed += 1;
                "failed"
            }
            Err(JobError::Shortage { .. }) if refuses_memory => "shortage",
            Err(error) => panic!("seed {seed}, {failures:?}: {error:?}"),
        };
        *ends.entry(end).or_default() += 1;
    }
    assert!(loses || failed <= failures.len(), "seed {seed}: {failed} jobs failed by {failures:?}");
    let snapshot = runtime.snapshot();
    assert_eq!((snapshot.shared, snapshot.host_held), (Bytes::ZERO, Bytes::ZERO), "seed {seed}");
    drop(runtime);
    let left = (device.device_bytes(), device.host_bytes(), count::current(Tag::Device));
    assert_eq!(left, (Bytes::ZERO, Bytes::ZERO, 0), "seed {seed}");
}

/// Shares are within the budget; what the device has given, by its own ledger, is within the shares; what is allocated, by the counting allocator, is within that.
fn check_books(runtime: &Runtime<HostDevice>, device: &HostDevice, budget: Bytes) {
    let before = runtime.snapshot();
    let (given, live) = (device.device_bytes(), count::current(Tag::Device));
    let given_after = device.device_bytes();
    let after = runtime.snapshot();
    assert!(before.shared <= budget && after.shared <= budget);
    let shares = |jobs: &[tensile_core::runtime::JobStatus]| jobs.iter().map(|job| job.share).sum::<Bytes>();
    assert_eq!(shares(&before.jobs), before.shared);
    for status in before.jobs.iter().filter(|status| status.phase == Phase::Running) {
        assert!(status.arena <= status.share, "{status:?}");
    }
    // The three are not read at one moment: they say something where nothing has changed meanwhile.
    if before.events.len() == after.events.len() && before.shared == after.shared && given == given_after {
        assert!(given <= before.shared, "{given} given, {} shared", before.shared);
        assert!(live <= given.0, "{live} bytes live, {given} given");
    }
}
