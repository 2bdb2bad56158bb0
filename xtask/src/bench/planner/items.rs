//! Measurements that belong to one goal each: against DTR, against integer programs, planning times, placement.

use serde::Serialize;
use tensile_sched::baseline::Dtr;
use tensile_sched::{Bytes, Effort, Limits, Liveness, Mode, NoEviction, Planner, Tensile, Trace, floor};

use super::chain::chain;
use super::figures::{DTR, DTR_RATIOS, ILP, ILP_GIB};
use super::ilp::their_accounting;
use super::measure::{Plan, bound, limits, plan};

/// Recompute only, at one of the budgets of h_DTR's authors.
#[derive(Serialize)]
pub(super) struct AgainstDtr {
    pub(super) ratio: f64,
    pub(super) bytes: u64,
    /// All as slowdowns; the authors' first.
    pub(super) authors: Option<f64>,
    /// Our `dtr` under their accounting.
    pub(super) dtr_accounted: Option<f64>,
    /// Its program under ours.
    pub(super) dtr: Plan,
    pub(super) tensile: Plan,
    pub(super) bound: Option<f64>,
}

/// Nothing for traces that they have not measured.
pub(super) fn against_dtr(name: &str, trace: &Trace, with_bound: bool) -> Vec<AgainstDtr> {
    let Some((_, peak, figures)) = DTR.iter().find(|entry| entry.0 == name) else { return vec![] };
    let compute = trace.compute_time().0 as f64;
    let row = |(&ratio, authors): (&f64, &Option<f64>)| {
        let bytes = (*peak as f64 * ratio) as u64;
        let limits = limits(bytes, Mode::Recompute, false);
        AgainstDtr {
            ratio,
            bytes,
            authors: authors.map(|factor| factor - 1.0),
            dtr_accounted: Dtr::step_time(trace, Bytes(bytes)).map(|time| time.0 as f64 / compute - 1.0),
            dtr: plan(&Dtr, trace, &limits),
            tensile: plan(&Tensile::default(), trace, &limits),
            bound: with_bound.then(|| bound(trace, &limits)),
        }
    };
    DTR_RATIOS.iter().zip(figures).map(row).collect()
}

/// Recompute only, at one of the budgets of the integer programs and under their accounting.
#[derive(Serialize)]
pub(super) struct AgainstIlp {
    pub(super) gib: u64,
    /// What the budget is less what is always there.
    pub(super) bytes: u64,
    /// As a slowdown.
    pub(super) solution: Option<f64>,
    pub(super) tensile: Plan,
    pub(super) bound: Option<f64>,
}

/// Nothing for other traces.
pub(super) fn against_ilp(name: &str, trace: &Trace, with_bound: bool) -> anyhow::Result<Vec<AgainstIlp>> {
    let Some((_, figures)) = ILP.iter().find(|entry| entry.0 == name) else { return Ok(vec![]) };
    let (trace, fixed) = their_accounting(trace)?;
    let row = |(&gib, solution): (&u64, &Option<f64>)| {
        let bytes = (gib << 30) - fixed;
        let limits = limits(bytes, Mode::Recompute, false);
        AgainstIlp {
            gib,
            bytes,
            solution: solution.map(|percent| percent / 100.0),
            tensile: plan(&Tensile::default(), &trace, &limits),
            bound: with_bound.then(|| bound(&trace, &limits)),
        }
    };
    Ok(ILP_GIB.iter().zip(figures).map(row).collect())
}

/// How well addresses are given.
#[derive(Serialize)]
pub(super) struct Placement {
    /// At half the peak, or the floor if that is more.
    pub(super) at_half: Placed,
    pub(super) at_floor: Placed,
    /// Arena of `none`, and the sum of bytes it cannot go below.
    pub(super) none_arena: u64,
    pub(super) none_peak: u64,
}

#[derive(Serialize)]
pub(super) struct Placed {
    pub(super) budget: u64,
    pub(super) plan: Plan,
}

impl Placed {
    /// Arena over the most bytes that are live at once.
    pub(super) fn ratio(&self) -> Option<f64> {
        let result = self.plan.result.as_ref()?;
        Some(result.arena as f64 / result.peak.max(1) as f64)
    }
}

pub(super) fn placement(trace: &Trace) -> anyhow::Result<Placement> {
    let unlimited = Limits::unlimited();
    let floor = floor(trace, &unlimited)?.bytes.0;
    let peak = Liveness::new(trace).peak(trace, &unlimited).bytes.0;
    let none = NoEviction.plan(trace, &unlimited)?.report;
    let at = |budget| Placed { budget, plan: plan(&Tensile::default(), trace, &limits(budget, Mode::Both, false)) };
    Ok(Placement {
        at_half: at(floor.max(peak / 2)),
        at_floor: at(floor),
        none_arena: none.arena.0,
        none_peak: none.peak.0,
    })
}

/// The time it takes to plan with effort `fast`.
#[derive(Serialize)]
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) ops: usize,
    pub(super) percent: f64,
    /// Least of several runs.
    pub(super) plan_ms: f64,
    pub(super) slowdown: Option<f64>,
    /// The most it may take.
    pub(super) goal_ms: Option<f64>,
}

/// Least time of a few runs; one run if that takes long.
pub(super) fn timed(name: &str, trace: &Trace, percent: f64, goal_ms: Option<f64>) -> Timed {
    let unlimited = Limits::unlimited();
    let peak = Liveness::new(trace).peak(trace, &unlimited).bytes.0;
    let floor = floor(trace, &unlimited).map_or(0, |floor| floor.bytes.0);
    let limits = limits(floor.max((peak as f64 * percent / 100.0) as u64), Mode::Both, false);
    let mut best = plan(&FAST, trace, &limits);
    for _ in 0..4 {
        if best.plan_ms > 1_000.0 {
            break;
        }
        let again = plan(&FAST, trace, &limits);
        if again.plan_ms < best.plan_ms {
            best = again;
        }
    }
    let slowdown = best.result.map(|result| result.slowdown);
    Timed { name: name.to_owned(), ops: trace.ops().len(), percent, plan_ms: best.plan_ms, slowdown, goal_ms }
}

/// The planner whose speed counts.
pub(super) const FAST: Tensile = Tensile { effort: Effort::Fast };

/// Lengths of the synthetic chains.
const CHAINS: [usize; 5] = [1_000, 2_000, 5_000, 10_000, 20_000];

/// Chains of growing length, and the exponent p of a fit of time = c · opsᵖ.
pub(super) fn chains() -> (Vec<Timed>, f64) {
    let timed: Vec<Timed> = CHAINS
        .iter()
        .map(|&n_ops| timed("chain with skips", &chain(n_ops), 60.0, (n_ops == 20_000).then_some(3_000.0)))
        .collect();
    let points: Vec<(f64, f64)> = timed.iter().map(|time| ((time.ops as f64).ln(), time.plan_ms.ln())).collect();
    let n = points.len() as f64;
    let (mean_x, mean_y) =
        (points.iter().map(|point| point.0).sum::<f64>() / n, points.iter().map(|point| point.1).sum::<f64>() / n);
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (timed, covariance / variance)
}
