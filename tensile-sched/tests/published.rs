//! What others have published about their policies on real traces, which are not part of the repository.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tensile_sched::{
    Bytes, Dtr, Effort, Infeasible, Limits, Link, Liveness, Mode, NoEviction, Paper, Planner, Retain, Tensile, Trace,
    read_trace,
};

/// A trace by name, if the folder is there: `../shared/traces` beside the repository, or below the folder that `TENSILE_SHARED` names.
fn trace(name: &str) -> Option<Trace> {
    let shared = std::env::var_os("TENSILE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    let folder = shared.join("traces");
    if !folder.is_dir() {
        say(&format!("SKIPPED: no traces in {}; set TENSILE_SHARED to the folder that holds them", folder.display()));
        return None;
    }
    let bytes = std::fs::read(folder.join(format!("{name}.json.gz"))).expect("a readable file");
    Some(read_trace(&bytes).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Figures are worth reading even of a test that passes, so they go past the test runner's capture.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Slowdowns of `h_DTR^eq` in the authors' own simulator, at 0.9, 0.8, … of the peak; none where it runs out of memory.
///
/// Their logs free a tensor when Python drops its last reference, which may be much later than its last use. The files have it as `released_after`, which the reader of traces leaves out: in a plan
/// made ahead nothing has to live beyond its last use. In the first two traces that concerns five small tensors, in the other two up to a quarter of the peak (with it ours are within
/// 0.5 points there as well, but for 1.1 in dtr_lstm_128 at 0.3).
struct Published {
    name: &'static str,
    peak: u64,
    slowdowns: [Option<f64>; 8],
    /// Most that may lie between their figures and ours.
    tolerance: Option<f64>,
}

const PUBLISHED: [Published; 4] = [
    Published {
        name: "dtr_resnet32_bs56",
        peak: 10061179152,
        slowdowns: [
            Some(1.013),
            Some(1.025),
            Some(1.046),
            Some(1.074),
            Some(1.107),
            Some(1.140),
            Some(1.179),
            Some(1.332),
        ],
        tolerance: Some(0.005),
    },
    Published {
        name: "dtr_inceptionv4_bs64",
        peak: 11245348984,
        slowdowns: [Some(1.008), Some(1.024), Some(1.044), Some(1.066), Some(1.092), Some(1.138), Some(1.244), None],
        tolerance: Some(0.005),
    },
    Published {
        name: "dtr_transformer_bs10",
        peak: 9864405000,
        slowdowns: [
            Some(1.009),
            Some(1.020),
            Some(1.031),
            Some(1.044),
            Some(1.058),
            Some(1.091),
            Some(1.124),
            Some(1.545),
        ],
        tolerance: None,
    },
    Published {
        name: "dtr_lstm_128",
        peak: 5595127736,
        slowdowns: [
            Some(1.017),
            Some(1.027),
            Some(1.031),
            Some(1.042),
            Some(1.071),
            Some(1.159),
            Some(1.365),
            Some(1.550),
        ],
        tolerance: None,
    },
];

#[test]
fn dtr_is_as_slow_as_its_authors_say() {
    for published in &PUBLISHED {
        let Some(trace) = trace(published.name) else { return };
        let compute = trace.compute_time().0 as f64;
        for (index, &theirs) in published.slowdowns.iter().enumerate() {
            let budget = Bytes(published.peak * (9 - index as u64) / 10);
            let begin = Instant::now();
            let ours = Dtr::step_time(&trace, budget).map(|time| time.0 as f64 / compute);
            say(&format!(
                "{} at 0.{}: {ours:.4?}, published {theirs:.3?}, in {} ms",
                published.name,
                9 - index,
                begin.elapsed().as_millis()
            ));
            if let Some(tolerance) = published.tolerance {
                let is_near = match (ours, theirs) {
                    (Some(ours), Some(theirs)) => (ours - theirs).abs() <= tolerance,
                    (ours, theirs) => ours == theirs,
                };
                assert!(is_near, "{} at 0.{}: {ours:?}, published {theirs:?}", published.name, 9 - index);
            }
        }
    }
}

/// Works through a list on all cores.
fn side_by_side<T: Sync>(list: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                while let Some(item) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// The slowdown of the default planner's plan, which both provers have accepted; its arena is within the budget.
fn slowdown(trace: &Trace, device: Bytes, mode: Mode) -> Option<f64> {
    let limits = Limits { mode, link: Link::PCIE3_X16, ..Limits::with_budget(device) };
    Tensile::default().plan(trace, &limits).ok().map(|planned| {
        assert!(planned.report.arena <= device);
        planned.simulation.overhead()
    })
}

/// At equal bytes, with recomputation alone; addresses count here, and did not there.
#[test]
fn recomputing_alone_the_default_planner_is_faster_than_dtr() {
    let cases: Vec<(&Published, u64)> = PUBLISHED.iter().flat_map(|of| (2..10).map(move |tenth| (of, tenth))).collect();
    if trace(PUBLISHED[0].name).is_none() {
        return;
    }
    side_by_side(&cases, |&(published, tenths)| {
        let trace = trace(published.name).expect("the folder is there");
        let ours = slowdown(&trace, Bytes(published.peak * tenths / 10), Mode::Recompute);
        let theirs = published.slowdowns[9 - tenths as usize].map(|slowdown| slowdown - 1.0);
        say(&format!("{} at 0.{tenths}: {ours:.4?}, h_DTR {theirs:.3?}", published.name));
        let ours = ours.unwrap_or_else(|| panic!("{} at 0.{tenths}: no plan", published.name));
        assert!(theirs.is_none_or(|theirs| ours < theirs), "{} at 0.{tenths}: {ours} and {theirs:?}", published.name);
    });
}

/// Steps at batch 16: the peak of the authors' own plan in MB, and lower bounds on the slowdown at 60 and 50 % of the peak by `cargo xtask bench bound`, in per cent.
const STEPS: [(&str, u64, [f64; 2]); 5] = [
    ("tensile_vgg16_b16", 3609, [0.82, 1.64]),
    ("tensile_resnet50_b16", 1893, [2.03, 3.36]),
    ("tensile_inceptionv3_b16", 1685, [1.06, 2.07]),
    ("tensile_inceptionv4_b16", 2939, [0.60, 1.46]),
    ("tensile_densenet121_b16", 2813, [4.41, 6.12]),
];

/// VGG-16 at half of its peak is the one case that is more than half a point above twice the bound (5.5 % for 3.8 %).
const ABOVE: (&str, f64) = ("tensile_vgg16_b16", 6.5);

#[test]
fn the_authors_steps_are_planned_within_twice_the_bound() {
    if trace(STEPS[0].0).is_none() {
        return;
    }
    let sums = Mutex::new([0.0; 2]);
    side_by_side(&STEPS, |&(name, megabytes, bounds)| {
        let trace = trace(name).expect("the folder is there");
        let at_theirs =
            slowdown(&trace, Bytes(megabytes * 1_000_000), Mode::Both).expect("far above the floor") * 100.0;
        say(&format!("{name} at the peak of the authors' plan: {at_theirs:.2} %"));
        assert!(at_theirs <= 0.1, "{name}: {at_theirs} %");
        let peak = Liveness::new(&trace).peak(&trace, &Limits::unlimited()).bytes.0;
        for (index, (percent, bound)) in [60, 50].into_iter().zip(bounds).enumerate() {
            let ours = slowdown(&trace, Bytes(peak * percent / 100), Mode::Both).expect("above the floor") * 100.0;
            say(&format!("{name} at {percent} %: {ours:.2} %, bound {bound} %"));
            let most = if (name, index) == (ABOVE.0, 1) { ABOVE.1 } else { 2.0 * bound + 0.5 };
            assert!(ours <= most, "{name} at {percent} %: {ours} %, more than {most}");
            sums.lock().expect("nobody panics with it")[index] += ours;
        }
    });
    let means = sums.into_inner().expect("nobody panicked").map(|sum: f64| sum / STEPS.len() as f64);
    say(&format!("means: {:.2} % at 60 %, {:.2} % at 50 %", means[0], means[1]));
    assert!(means[0] <= 3.0 && means[1] <= 4.5, "{means:?}");
}

/// Traces that are planned in blocks.
const IN_BLOCKS: [&str; 9] = [
    "dtr_resnet32_bs56",
    "dtr_inceptionv4_bs64",
    "dtr_transformer_bs10",
    "dtr_lstm_128",
    "tensile_vgg16_b16",
    "tensile_resnet50_b16",
    "tensile_inceptionv3_b16",
    "tensile_inceptionv4_b16",
    "tensile_densenet121_b16",
];

/// Points of overhead that blocks may cost, and times that they may enlarge `none`'s arena.
const MOST_FOR_BLOCKS: f64 = 0.5;
const MOST_ARENA: f64 = 1.03;

/// In VGG-16 the weight of the first linear layer, its gradient and two moments take 42 % of a block each, so that the op that updates it leaves a sixth of two blocks to smaller tensors. That costs most with
/// little effort.
const LARGE_IN_BLOCKS: (&str, [f64; 2]) = ("tensile_vgg16_b16", [18.0, 2.0]);

/// At 60 % of `none`'s arena, in blocks of a quarter of it: two whole blocks and a short one.
#[test]
fn steps_are_planned_in_blocks_at_modest_cost() {
    if trace(IN_BLOCKS[0]).is_none() {
        return;
    }
    let failures = Mutex::new(Vec::new());
    side_by_side(&IN_BLOCKS, |&name| {
        let expect = |is_met: bool, what: &str| {
            if !is_met {
                failures.lock().expect("nobody panics with it").push(format!("{name}: {what}"));
            }
        };
        let trace = trace(name).expect("the folder is there");
        let none = NoEviction.plan(&trace, &Limits::unlimited()).expect("no limit").report.arena;
        let max_block = Bytes(none.0 / 4).align_up(Bytes(256));
        let unlimited = Limits { max_block, ..Limits::unlimited() };
        let in_blocks = NoEviction.plan(&trace, &unlimited).expect("no limit").report.arena;
        let megabytes = |bytes: Bytes| bytes.0 as f64 / 1e6;
        let times = in_blocks.0 as f64 / none.0 as f64;
        say(&format!("{name}: none {:.0} MB, {times:.4} times that in blocks", megabytes(none)));
        expect(times <= MOST_ARENA, "the arena of none");
        let device = Bytes(none.0 * 6 / 10);
        let most = if name == LARGE_IN_BLOCKS.0 { LARGE_IN_BLOCKS.1 } else { [MOST_FOR_BLOCKS; 2] };
        for (effort, most) in [Effort::Fast, Effort::Best].into_iter().zip(most) {
            let overhead = |max_block| {
                let begin = Instant::now();
                let limits = Limits { max_block, ..Limits::with_budget(device) };
                let planned = Tensile { effort }.plan(&trace, &limits).expect("above the floor");
                assert!(planned.report.arena <= device);
                let percent = planned.simulation.overhead() * 100.0;
                let (arena, time) = (megabytes(planned.report.arena), begin.elapsed().as_millis());
                (percent, format!("{percent:.2} % in {arena:.0} MB, planned in {time} ms"))
            };
            let (in_one, in_blocks) = (overhead(Bytes::MAX), overhead(max_block));
            say(&format!("{name} {effort:?} at 60 %: {}; in blocks {}", in_one.1, in_blocks.1));
            expect(in_blocks.0 <= in_one.0 + most, &format!("{effort:?}"));
        }
    });
    let failures = failures.into_inner().expect("nobody panicked");
    assert!(failures.is_empty(), "{failures:?}");
}

/// Peaks in MB of the TENSILE authors' own step graphs: nothing freed, with liveness, and physically under the plan of their scheduler (12 GB/s, swaps only: it never
/// recomputed anything).
const AUTHORS_PLANS: [(&str, u64, u64, u64); 15] = [
    ("tensile_vgg16_b2", 2674, 2302, 2218),
    ("tensile_inceptionv3_b2", 927, 512, 486),
    ("tensile_inceptionv4_b2", 1741, 907, 827),
    ("tensile_resnet50_b2", 1047, 603, 599),
    ("tensile_densenet121_b2", 1126, 478, 420),
    ("tensile_vgg16_b16", 5897, 3915, 3609),
    ("tensile_inceptionv3_b16", 4685, 1993, 1685),
    ("tensile_inceptionv4_b16", 9152, 3632, 2939),
    ("tensile_resnet50_b16", 5046, 2210, 1893),
    ("tensile_densenet121_b16", 8120, 3130, 2813),
    ("tensile_vgg16_b32", 9580, 5758, 5696),
    ("tensile_inceptionv3_b32", 8981, 3692, 3053),
    ("tensile_inceptionv4_b32", 17623, 6751, 5329),
    ("tensile_resnet50_b32", 9617, 4055, 3454),
    ("tensile_densenet121_b32", 16114, 6166, 5571),
];

/// The lowest peak of `paper` without recomputation is that of the authors' plan to 3.5 %, but in VGG-16 at batch 16 and 32: there the authors count the updated parameters of the large
/// last layers twice, and so look for their peak elsewhere.
#[test]
fn paper_saves_what_its_authors_plans_save() {
    for (name, no_free, live, plan) in AUTHORS_PLANS {
        let Some(trace) = trace(name) else { return };
        let limits = Limits { mode: Mode::Swap, ..Limits::unlimited() };
        let megabytes = |planner: &dyn Planner, limits: &Limits| {
            planner.plan(&trace, limits).map(|planned| planned.report.peak.0 as f64 / 1e6)
        };
        let freeing_nothing = megabytes(&Retain, &limits).expect("no limit");
        let with_liveness = megabytes(&NoEviction, &limits).expect("no limit");
        let paper = Paper::default();
        let lowest = match paper.plan(&trace, &Limits { device: Bytes::ZERO, ..limits.clone() }) {
            Err(Infeasible::Device { lowest, .. }) => lowest,
            other => panic!("{name} without memory: {other:?}"),
        };
        let ours = megabytes(&paper, &Limits { device: lowest, ..limits }).expect("its lowest budget");
        say(&format!("{name}: {ours:.0} MB, the authors' plan {plan}; {with_liveness:.0} with liveness alone"));
        assert!((freeing_nothing - no_free as f64).abs() <= 1.0, "{name}: {freeing_nothing:.1} MB, not {no_free}");
        assert!((with_liveness - live as f64).abs() <= 1.0, "{name}: {with_liveness:.1} MB, not {live}");
        if !["tensile_vgg16_b16", "tensile_vgg16_b32"].contains(&name) {
            assert!((ours / plan as f64 - 1.0).abs() <= 0.035, "{name}: {ours:.1} MB, not {plan}");
        }
    }
}
