//! Jobs of one model, beside what the authors recorded.

use serde::Serialize;
use tensile_sched::{Bytes, Claim, Curve, Division, Planned, Planner, ShareError, divide, least_memory, planner};

use super::figures::Recorded;
use super::steps::{Plans, Step, Taken, limits, together};

/// How much the saving is above the authors', whose figures have three digits.
const ABOVE: f64 = 0.001;

/// One of the authors' rows.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) model: &'static str,
    pub(super) batch: u32,
    pub(super) jobs: usize,
    pub(super) commit: &'static str,
    pub(super) msr: f64,
    pub(super) eor: f64,
    pub(super) cold_msr: Option<f64>,
    pub(super) points: Vec<Point>,
}

/// One policy in one of these rows.
#[derive(Serialize)]
pub(super) struct Point {
    pub(super) policy: String,
    pub(super) choice: Choice,
    /// Nothing if the policy has no plan at all.
    pub(super) taken: Option<Taken>,
    /// The slowdown against `retain` if the plan is made from latencies that are off by up to twice.
    pub(super) cold_eor: Option<f64>,
}

/// Which of its plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Choice {
    /// The fastest that saves more than the authors did; of a policy that cannot save as much, the one that saves most.
    TheirMemory,
    /// Without a limit.
    Unlimited,
    /// The same saving, but of what `none` takes.
    OfNone,
    /// The one that saves most and is faster than the authors'.
    TheirTime,
}

impl Point {
    /// Saves more than the authors' at less time; where the choice is by `none`, measured against that.
    pub(super) fn beats(&self, row: &Row) -> bool {
        self.taken.as_ref().is_some_and(|taken| match self.choice {
            Choice::OfNone => taken.msr_none() > row.msr && taken.eor_none() < row.eor,
            _ => taken.msr_retain() > row.msr && taken.eor_retain() < row.eor,
        })
    }
}

/// What to simulate of each row.
pub(super) struct Wanted<'a> {
    /// Policies beside `tensile`.
    pub(super) baselines: &'a [String],
    /// All choices, and plans made cold; else [`Choice::TheirMemory`] alone.
    pub(super) all: bool,
}

/// What is needed of one model at one batch size.
pub(super) struct Model<'a> {
    pub(super) step: &'a Step,
    pub(super) tensile: &'a dyn Planner,
    pub(super) curve: &'a Curve,
}

impl Model<'_> {
    pub(super) fn row(&self, recorded: &Recorded, wanted: &Wanted<'_>) -> anyhow::Result<Row> {
        let Recorded { model, batch, jobs, commit, msr, eor, cold_msr } = *recorded;
        let left_of = |arena: Bytes| Bytes(((1.0 - msr - ABOVE) * (arena.0 * jobs as u64) as f64) as u64);
        let budget = left_of(self.step.retain.report.arena);
        let mut points = Vec::new();
        for name in wanted.baselines {
            let Some(policy) = planner::find(name) else { continue };
            let choice = if name == "none" { Choice::Unlimited } else { Choice::TheirMemory };
            let share = if name == "none" { Bytes::MAX } else { Bytes(budget.0 / jobs as u64) };
            let planned = self.step.plan(policy.as_ref(), share).ok();
            let taken = planned.map(|planned| together(&vec![(self.step, &planned); jobs]));
            points.push(Point { policy: name.clone(), choice, taken, cold_eor: None });
        }
        points.push(self.within(Choice::TheirMemory, jobs, budget, wanted.all)?);
        if wanted.all {
            points.push(self.within(Choice::OfNone, jobs, left_of(self.step.none.report.arena), false)?);
            points.push(self.at_their_time(jobs, eor)?);
        }
        Ok(Row { model, batch, jobs, commit, msr, eor, cold_msr, points })
    }

    /// The budget divided along the frontier, and a plan for each share; nothing if it is below the floors.
    fn within(&self, choice: Choice, jobs: usize, budget: Bytes, cold: bool) -> anyhow::Result<Point> {
        let mut point = Point { policy: "tensile".to_owned(), choice, taken: None, cold_eor: None };
        let claims = vec![Claim { curve: self.curve, weight: 1.0 }; jobs];
        let shares = match divide(&claims, budget, Division::Frontier) {
            Err(ShareError::TooMuch { .. }) => return Ok(point),
            shares => shares?,
        };
        let plans = Plans::new(self.step, self.tensile);
        let planned = shares.iter().map(|&share| plans.at(share)).collect::<Result<Vec<_>, _>>()?;
        point.taken = Some(self.together(&planned));
        if cold {
            let planned = shares.iter().map(|&share| self.step.plan_cold(self.tensile, share));
            point.cold_eor = Some(self.together(&planned.collect::<Result<Vec<_>, _>>()?).eor_retain());
        }
        Ok(point)
    }

    /// Together jobs may take more or less than each alone: the slowdown that each may have alone is lowered until they keep to it.
    fn at_their_time(&self, jobs: usize, eor: f64) -> anyhow::Result<Point> {
        let mut taken = None;
        for part in [1.0, 0.8, 0.6, 0.4, 0.2, 0.0] {
            let slowdown = part * (eor - ABOVE).max(0.0);
            let (_, planned) = least_memory(self.tensile, &self.step.trace, &limits(Bytes::MAX), slowdown)?;
            let found = taken.insert(self.together(&vec![planned; jobs]));
            if found.eor_retain() < eor {
                break;
            }
        }
        Ok(Point { policy: "tensile".to_owned(), choice: Choice::TheirTime, taken, cold_eor: None })
    }

    fn together(&self, planned: &[Planned]) -> Taken {
        together(&planned.iter().map(|planned| (self.step, planned)).collect::<Vec<_>>())
    }
}
