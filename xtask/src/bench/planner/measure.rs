//! Plans of all policies for one trace, beside the lower bound.

use std::time::Instant;

use serde::Serialize;
use tensile_sched::{
    Bytes, Duplex, Infeasible, Limits, Link, Liveness, Mode, NoEviction, OpId, Planned, Planner, Trace, floor, planner,
};

use crate::bound::{Detail, least_overhead};

/// `tensile` with effort `fast`, which is no policy of its own.
pub(super) const FAST_NAME: &str = "tensile-fast";

/// One trace under all budgets.
#[derive(Serialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) ops: usize,
    pub(super) tensors: usize,
    pub(super) compute_ns: u64,
    /// Of plain liveness; budgets are percentages of it.
    pub(super) peak: u64,
    pub(super) floor: u64,
    pub(super) none_arena: u64,
    pub(super) budgets: Vec<Budget>,
}

/// One budget.
#[derive(Serialize)]
pub(super) struct Budget {
    pub(super) label: String,
    pub(super) bytes: u64,
    /// Full duplex, then half, in the order of the file.
    pub(super) bounds: [Option<f64>; 2],
    /// Full duplex, in the order of `tensile`'s program, if that is another.
    pub(super) bound_in_own_order: Option<f64>,
    pub(super) plans: Vec<Plan>,
}

/// One plan, or why there is none.
#[derive(Clone, Serialize)]
pub(super) struct Plan {
    pub(super) policy: String,
    pub(super) half_duplex: bool,
    pub(super) plan_ms: f64,
    pub(super) infeasible: Option<String>,
    #[serde(flatten)]
    pub(super) result: Option<Outcome>,
}

#[derive(Clone, Serialize)]
pub(super) struct Outcome {
    /// Step time over the sum of all latencies, less 1.
    pub(super) slowdown: f64,
    pub(super) step_ns: u64,
    pub(super) evictions: usize,
    pub(super) reruns: usize,
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
    pub(super) peak: u64,
    pub(super) arena: u64,
    /// The order of the ops, if it is not the file's.
    #[serde(skip)]
    pub(super) order: Option<Vec<OpId>>,
}

impl Budget {
    /// The full-duplex plan of a policy.
    pub(super) fn plan(&self, policy: &str) -> Option<&Plan> {
        self.plans.iter().find(|plan| plan.policy == policy && !plan.half_duplex)
    }

    /// The lesser of the bounds: of the file's order, and of `tensile`'s own.
    pub(super) fn least_bound(&self) -> Option<f64> {
        let of_file = self.bounds[0]?;
        Some(self.bound_in_own_order.map_or(of_file, |own| own.min(of_file)))
    }

    pub(super) fn slowdown(&self, policy: &str) -> Option<f64> {
        Some(self.plan(policy)?.result.as_ref()?.slowdown)
    }
}

pub(super) fn link(half_duplex: bool) -> Link {
    Link { duplex: if half_duplex { Duplex::Half } else { Duplex::Full }, ..Link::PCIE3_X16 }
}

pub(super) fn limits(device: u64, mode: Mode, half_duplex: bool) -> Limits {
    Limits { mode, link: link(half_duplex), ..Limits::with_budget(Bytes(device)) }
}

/// Plans once and takes the time: layout, sync, check and verify included.
pub(super) fn plan(policy: &dyn Planner, trace: &Trace, limits: &Limits) -> Plan {
    let begin = Instant::now();
    let planned = policy.plan(trace, limits);
    let plan_ms = begin.elapsed().as_secs_f64() * 1e3;
    let half_duplex = limits.link.duplex == Duplex::Half;
    let policy = policy.name().to_owned();
    match planned {
        Ok(planned) => Plan { policy, half_duplex, plan_ms, infeasible: None, result: Some(outcome(&planned)) },
        Err(error) => Plan { policy, half_duplex, plan_ms, infeasible: Some(reason(&error)), result: None },
    }
}

fn outcome(planned: &Planned) -> Outcome {
    let (report, simulation) = (&planned.report, &planned.simulation);
    Outcome {
        slowdown: simulation.overhead(),
        step_ns: simulation.step_time.0,
        evictions: report.evictions,
        reruns: report.reruns,
        bytes_out: report.bytes_out.0,
        bytes_in: report.bytes_in.0,
        peak: report.peak.0,
        arena: report.arena.0,
        order: Some(planned.synced.placed.program.order()).filter(|order| !order.is_sorted()),
    }
}

fn reason(error: &Infeasible) -> String {
    match error {
        Infeasible::Device { lowest, .. } => format!("needs {lowest}"),
        other => other.to_string(),
    }
}

/// The bound of a mode, if wanted.
pub(super) fn bound(trace: &Trace, limits: &Limits) -> f64 {
    least_overhead(trace, limits, Detail::usual(trace, limits))
}

/// What to measure of each trace.
pub(super) struct Wanted {
    /// Percent of the peak.
    pub(super) budgets: Vec<f64>,
    /// Names; all if empty.
    pub(super) policies: Vec<String>,
    pub(super) bounds: bool,
}

impl Wanted {
    fn wants(&self, policy: &str) -> bool {
        self.policies.is_empty() || self.policies.iter().any(|wanted| wanted == policy)
    }
}

/// All policies at all budgets from the floor up, full duplex; `tensile` and `paper` with half duplex, too. `extra` are further budgets, by name.
pub(super) fn measure(name: &str, trace: &Trace, wanted: &Wanted, extra: &[(String, u64)]) -> Measured {
    let unlimited = Limits::unlimited();
    let peak = Liveness::new(trace).peak(trace, &unlimited).bytes.0;
    let floor = floor(trace, &unlimited).map_or(u64::MAX, |floor| floor.bytes.0);
    let none_arena = NoEviction.plan(trace, &unlimited).map_or(u64::MAX, |planned| planned.report.arena.0);
    let percentages =
        wanted.budgets.iter().map(|&percent| (format!("{percent} %"), (peak as f64 * percent / 100.0) as u64));
    let budgets = percentages
        .chain(extra.iter().cloned())
        .filter(|&(_, bytes)| bytes >= floor)
        .map(|(label, bytes)| measure_budget(trace, wanted, label, bytes))
        .collect();
    Measured {
        name: name.to_owned(),
        ops: trace.ops().len(),
        tensors: trace.tensors().len(),
        compute_ns: trace.compute_time().0,
        peak,
        floor,
        none_arena,
        budgets,
    }
}

fn measure_budget(trace: &Trace, wanted: &Wanted, label: String, bytes: u64) -> Budget {
    let mut plans = Vec::new();
    for half_duplex in [false, true] {
        for policy in planner::all() {
            let is_compared = !half_duplex || ["tensile", "paper"].contains(&policy.name());
            if wanted.wants(policy.name()) && is_compared {
                plans.push(plan(policy.as_ref(), trace, &limits(bytes, Mode::Both, half_duplex)));
            }
        }
    }
    let bounds =
        [false, true].map(|half_duplex| wanted.bounds.then(|| bound(trace, &limits(bytes, Mode::Both, half_duplex))));
    let own: Option<&Plan> = plans.iter().find(|plan| plan.policy == "tensile" && !plan.half_duplex);
    let own = own.and_then(|plan| plan.result.as_ref()?.order.as_ref()).filter(|_| wanted.bounds);
    let bound_in_own_order = own.map(|order| {
        let reordered = trace.in_order(order).expect("a program keeps what ops depend on");
        bound(&reordered, &limits(bytes, Mode::Both, false))
    });
    Budget { label, bytes, bounds, bound_in_own_order, plans }
}
