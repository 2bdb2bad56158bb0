//! How far the default planner is from the fastest program of small steps.

use std::io::Write as _;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tensile_sched::strategy::{Sizes, training_traces, wild_traces};
use tensile_sched::{
    Bytes, Limits, Link, Nanos, NoEviction, OptimalError, Planner, Role, Tensile, Trace, check, floor, layout, optimal,
    simulate, spread, sync,
};

/// Steps that are compared; more with the environment's `NEAR_OPTIMUM_STEPS`.
const N_STEPS: usize = 200;
/// Most mean and worst gap in step time, in percent; the worst is to become 15. Where the planner is faster, because it may choose the boundary, the gap is zero.
const MOST_MEAN: f64 = 3.0;
const MOST_WORST: f64 = 60.0;
/// Of the steps, so many may be too large for a proof that theirs is the fastest program.
const MOST_UNPROVEN: f64 = 0.2;

const MIB: u64 = 1 << 20;
const SIZES: Sizes = Sizes { unit: MIB, most_units: 4, odd: true };

/// A MiB takes 0.26 ms, and an op from 0.05 to 1 ms.
fn limits(device: Bytes) -> Limits {
    let link = Link { out_bytes_per_s: 4e9, in_bytes_per_s: 4e9, ..Link::PCIE3_X16 };
    Limits { link, ..Limits::with_budget(device) }
}

fn steps() -> impl Strategy<Value = (Trace, u64)> {
    let traces = prop_oneof![training_traces(SIZES, 1..3), wild_traces(SIZES, 3..9)];
    let small = traces.prop_filter("at most eight ops", |trace| trace.ops().len() <= 8);
    let latencies = prop::collection::vec((50_000u64..1_000_000).prop_map(Nanos), 8);
    let timed = (small, latencies).prop_map(|(trace, latencies)| {
        let n_ops = trace.ops().len();
        trace.with_latencies(&latencies[..n_ops]).expect("a millisecond can be added up")
    });
    (timed, 0u64..1000)
}

/// One comparison.
struct Compared {
    gap: f64,
    is_proven: bool,
    /// The gap to the fastest program with the addresses and waits of a real layout, where there is one within the budget; otherwise the gap.
    real_gap: f64,
    /// Whether there is one, and it costs no time.
    is_attained: bool,
    what: String,
}

/// None if there is nothing to decide: the budget has no room for the persistent tensors, or all that `none` needs.
fn compare(trace: &Trace, share: u64) -> Option<Compared> {
    let none = NoEviction.plan(trace, &limits(Bytes::MAX)).expect("no limit").report.arena.0;
    let persistent = trace.tensors().iter().filter(|tensor| tensor.role.is_persistent());
    let persistent: Bytes = persistent.map(|tensor| tensor.bytes.align_up(Bytes(256))).sum();
    let lowest = floor(trace, &limits(Bytes::MAX)).expect("no block limit").bytes.max(persistent).0;
    let limits = limits(Bytes(lowest + none.saturating_sub(lowest) * share / 1000));
    if limits.device.0 >= none {
        return None;
    }
    let best = match optimal(trace, &limits) {
        Ok(best) => best,
        Err(OptimalError::Infeasible { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    // Fragmentation aside, it is a program like any other.
    let unlimited = Limits { device: Bytes::MAX, ..limits.clone() };
    let placed = layout(trace, &best.program, &unlimited).expect("its program is well formed");
    let report = check(trace, &placed, &unlimited).unwrap_or_else(|violations| panic!("{}\n{best:#?}", violations[0]));
    assert!(report.peak <= limits.device, "{} above {}", report.peak, limits.device);
    // Where it has a layout within the budget, the real waits may cost more.
    let placed = layout(trace, &best.program, &limits).expect("its program is well formed");
    let attained = (placed.layout.arena <= limits.device).then(|| {
        let apart = spread(trace, placed.clone(), &limits).unwrap_or(placed.clone());
        let times = [placed, apart].map(|placed| simulate(trace, &sync(trace, placed), &limits.link).step_time);
        times[0].min(times[1])
    });
    if best.step_time == Nanos::ZERO {
        return None;
    }
    let planned = Tensile::default().plan(trace, &limits).expect("the budget is not below the floor");
    let gap_to = |time: Nanos| (planned.simulation.step_time.0 as f64 / time.0 as f64 - 1.0).max(0.0) * 100.0;
    let what = format!(
        "budget {} (none {none}): {} against {} (laid out {attained:?})\n{}\noptimum {:?}\nplanned {:?}\n",
        limits.device.0,
        planned.simulation.step_time,
        best.step_time,
        draw(trace),
        best.program.instrs,
        planned.synced.instrs()
    );
    let is_attained = attained == Some(best.step_time);
    let gap = gap_to(best.step_time);
    Some(Compared { gap, real_gap: attained.map_or(gap, gap_to), is_proven: best.is_proven, is_attained, what })
}

/// A trace in a few lines.
fn draw(trace: &Trace) -> String {
    let tensors = trace.tensors().iter().map(|tensor| {
        let kept = if tensor.keep { " kept" } else { "" };
        let role = if tensor.role == Role::Activation { String::new() } else { format!(" {:?}", tensor.role) };
        format!("{} {}{role}{kept}", tensor.name, tensor.bytes.0)
    });
    let ops = trace.ops().iter().map(|op| {
        let pairs: Vec<String> = op.in_place.iter().map(|pair| format!("{}>{}", pair.input, pair.output)).collect();
        format!(
            "{} {} {:?} -> {:?} updates {:?} workspace {} in place {pairs:?}{}",
            op.label,
            op.latency,
            op.reads,
            op.writes,
            op.updates,
            op.workspace.0,
            if op.replayable { "" } else { " once" }
        )
    });
    format!("{}\n{}", tensors.collect::<Vec<_>>().join(", "), ops.collect::<Vec<_>>().join("\n"))
}

#[test]
fn small_steps_are_planned_near_the_optimum() {
    let n_steps = std::env::var("NEAR_OPTIMUM_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(N_STEPS);
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), seed);
    let strategy = steps();
    let (mut compared, mut n_drawn) = (Vec::new(), 0);
    while compared.len() < n_steps {
        n_drawn += 1;
        assert!(n_drawn < 100 * n_steps, "the strategy hardly draws a step with something to decide");
        let (trace, share) = strategy.new_tree(&mut runner).expect("the filter passes").current();
        compared.extend(compare(&trace, share));
    }
    compared.sort_by(|a: &Compared, b| b.gap.total_cmp(&a.gap));
    let mean = compared.iter().map(|one| one.gap).sum::<f64>() / n_steps as f64;
    let n_above = compared.iter().filter(|one| one.gap > 0.0).count();
    let n_unproven = compared.iter().filter(|one| !one.is_proven).count();
    let real_mean = compared.iter().map(|one| one.real_gap).sum::<f64>() / n_steps as f64;
    let real_worst = compared.iter().map(|one| one.real_gap).fold(0.0, f64::max);
    let n_attained = compared.iter().filter(|one| one.is_attained).count();
    let worst = &compared[0];
    let _ = writeln!(
        std::io::stderr(),
        "{n_steps} steps of {n_drawn} drawn: mean gap {mean:.2} %, worst {:.2} %, {n_above} above the optimum, {n_unproven} optima unproven, {n_attained} attained by a layout; \
         gaps to what a layout makes of them: mean {real_mean:.2} %, worst {real_worst:.2} %",
        worst.gap
    );
    if std::env::var_os("NEAR_OPTIMUM_SHOW").is_some() {
        for one in compared.iter().take(20) {
            let _ = writeln!(std::io::stderr(), "gap {:.2} %, {}", one.gap, one.what);
        }
    }
    assert!(n_unproven as f64 <= MOST_UNPROVEN * n_steps as f64, "{n_unproven} optima are not proven");
    assert!(mean <= MOST_MEAN, "mean gap {mean:.2} %");
    assert!(worst.gap <= MOST_WORST, "gap {:.2} %, {}", worst.gap, worst.what);
}
