//! Recorded steps, their plans, and what jobs that run them together take.

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::Context;
use serde::Serialize;
use tensile_sched::{
    Bytes, Curve, Infeasible, Limits, Link, Nanos, NoEviction, Op, Planned, Planner, Retain, Synced, Trace, frontier,
    simulate_together,
};

/// One step with its two baselines.
pub(super) struct Step {
    pub(super) trace: Trace,
    /// The same with latencies that are off by up to twice, either way.
    guessed: Trace,
    pub(super) retain: Planned,
    pub(super) none: Planned,
}

pub(super) const LINK: Link = Link::PCIE3_X16;

pub(super) fn limits(device: Bytes) -> Limits {
    Limits { link: LINK, ..Limits::with_budget(device) }
}

impl Step {
    pub(super) fn new(trace: Trace) -> anyhow::Result<Self> {
        let plan = |policy: &dyn Planner| policy.plan(&trace, &Limits::unlimited()).context("without a limit");
        let (retain, none, guessed) = (plan(&Retain)?, plan(&NoEviction)?, guessed(&trace)?);
        Ok(Self { trace, guessed, retain, none })
    }

    /// The plan of a policy within a budget; where the policy needs more, within the least that it needs.
    pub(super) fn plan(&self, policy: &dyn Planner, budget: Bytes) -> Result<Planned, Infeasible> {
        match policy.plan(&self.trace, &limits(budget)) {
            Err(Infeasible::Device { lowest, .. }) if lowest > budget => policy.plan(&self.trace, &limits(lowest)),
            result => result,
        }
    }

    /// The plan that is made before anything has been measured.
    pub(super) fn plan_cold(&self, policy: &dyn Planner, budget: Bytes) -> Result<Planned, Infeasible> {
        policy.plan(&self.guessed, &limits(budget))
    }

    /// Budget against step time for a policy.
    pub(super) fn curve(&self, policy: &dyn Planner, n_points: usize) -> anyhow::Result<Curve> {
        let points = frontier(policy, &self.trace, &limits(Bytes::MAX), n_points)?;
        Curve::try_from(points.as_slice()).context("a frontier is a curve")
    }
}

/// Every latency multiplied by a factor from 1/2 to 2, in a fixed pseudo-random order (xorshift).
fn guessed(trace: &Trace) -> anyhow::Result<Trace> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let guess = |op: &Op| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let exponent = (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
        Op { latency: Nanos((op.latency.0 as f64 * exponent.exp2()).round() as u64), ..op.clone() }
    };
    let ops = trace.ops().iter().map(guess).collect();
    Trace::new(trace.tensors().to_vec(), ops).context("latencies make no trace invalid")
}

/// Plans by budget, each made once.
pub(super) struct Plans<'a> {
    step: &'a Step,
    policy: &'a dyn Planner,
    made: Mutex<BTreeMap<Bytes, Planned>>,
}

impl<'a> Plans<'a> {
    pub(super) fn new(step: &'a Step, policy: &'a dyn Planner) -> Self {
        Self { step, policy, made: Mutex::default() }
    }

    pub(super) fn at(&self, budget: Bytes) -> Result<Planned, Infeasible> {
        // More than `none` takes makes no difference.
        let budget = budget.min(self.step.none.report.arena);
        if let Some(planned) = self.made.lock().expect("nobody panics with it").get(&budget) {
            return Ok(planned.clone());
        }
        let planned = self.step.plan(self.policy, budget)?;
        self.made.lock().expect("nobody panics with it").insert(budget, planned.clone());
        Ok(planned)
    }
}

/// What jobs take together, beside both baselines.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Taken {
    /// Sum of the arenas.
    pub(super) bytes: u64,
    pub(super) retain_bytes: u64,
    pub(super) none_bytes: u64,
    /// Of each job: step time over that of the same job when all run under the baseline. Under `retain` inputs cost nothing, so that one job alone takes the sum of its latencies.
    pub(super) over_retain: Vec<f64>,
    pub(super) over_none: Vec<f64>,
    /// Share of the time in which the device runs kernels that are not reruns.
    pub(super) useful: f64,
    pub(super) evictions: usize,
    pub(super) reruns: usize,
}

impl Taken {
    pub(super) fn msr_retain(&self) -> f64 {
        1.0 - self.bytes as f64 / self.retain_bytes as f64
    }

    pub(super) fn msr_none(&self) -> f64 {
        1.0 - self.bytes as f64 / self.none_bytes as f64
    }

    pub(super) fn eor_retain(&self) -> f64 {
        mean(&self.over_retain) - 1.0
    }

    pub(super) fn eor_none(&self) -> f64 {
        mean(&self.over_none) - 1.0
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Simulates jobs together, each a step with its plan.
pub(super) fn together(jobs: &[(&Step, &Planned)]) -> Taken {
    let times = |planned: &[&Planned], link: &Link| -> Vec<f64> {
        let jobs: Vec<(&Trace, &Synced)> =
            jobs.iter().zip(planned).map(|(job, planned)| (&job.0.trace, &planned.synced)).collect();
        simulate_together(&jobs, link).iter().map(|simulation| simulation.step_time.0 as f64).collect()
    };
    let time = times(&jobs.iter().map(|job| job.1).collect::<Vec<_>>(), &LINK);
    let retain = times(&jobs.iter().map(|job| &job.0.retain).collect::<Vec<_>>(), &Link::INFINITE);
    let none = times(&jobs.iter().map(|job| &job.0.none).collect::<Vec<_>>(), &LINK);
    let over = |base: &[f64]| time.iter().zip(base).map(|(time, base)| time / base).collect();
    let sum = |of: fn(&(&Step, &Planned)) -> Bytes| jobs.iter().map(of).sum::<Bytes>().0;
    Taken {
        bytes: sum(|job| job.1.report.arena),
        retain_bytes: sum(|job| job.0.retain.report.arena),
        none_bytes: sum(|job| job.0.none.report.arena),
        over_retain: over(&retain),
        over_none: over(&none),
        useful: jobs.iter().zip(&time).map(|(job, time)| job.0.trace.compute_time().0 as f64 / time).sum(),
        evictions: jobs.iter().map(|job| job.1.report.evictions).sum(),
        reruns: jobs.iter().map(|job| job.1.report.reruns).sum(),
    }
}
