//! The five models together under one budget, divided in three ways.

use serde::Serialize;
use tensile_sched::{Bytes, Claim, Curve, Division, Planned, Planner, ShareError, divide, weighted_slowdown};

use super::steps::{Plans, Step, Taken, together};

/// All five under one budget by one policy.
#[derive(Serialize)]
pub(super) struct Mix {
    pub(super) batch: u32,
    /// Of the sum of `none`'s arenas.
    pub(super) percent: f64,
    pub(super) budget: u64,
    pub(super) policy: String,
    pub(super) division: String,
    pub(super) weights: [f64; 5],
    /// Why there is nothing, if so.
    pub(super) infeasible: Option<String>,
    pub(super) shares: Vec<u64>,
    /// Weighted means: by the curves that were divided along, and simulated.
    pub(super) predicted: Option<f64>,
    pub(super) simulated: Option<f64>,
    /// The same of the plans, each alone on the device.
    pub(super) alone: Option<f64>,
    pub(super) taken: Option<Taken>,
}

/// Everything about one policy at one batch size.
pub(super) struct Policy<'a> {
    pub(super) name: &'a str,
    pub(super) steps: &'a [Step],
    pub(super) curves: Vec<Curve>,
    pub(super) plans: Vec<Plans<'a>>,
}

impl<'a> Policy<'a> {
    pub(super) fn new(name: &'a str, policy: &'a dyn Planner, steps: &'a [Step], curves: Vec<Curve>) -> Self {
        let plans = steps.iter().map(|step| Plans::new(step, policy)).collect();
        Self { name, steps, curves, plans }
    }

    pub(super) fn mix(&self, batch: u32, percent: f64, division: Division, weights: [f64; 5]) -> Mix {
        let whole: u64 = self.steps.iter().map(|step| step.none.report.arena.0).sum();
        let budget = Bytes((whole as f64 * percent / 100.0) as u64);
        let claims: Vec<Claim<'_>> =
            self.curves.iter().zip(weights).map(|(curve, weight)| Claim { curve, weight }).collect();
        let mut mix = Mix {
            batch,
            percent,
            budget: budget.0,
            policy: self.name.to_owned(),
            division: format!("{division:?}").to_lowercase(),
            weights,
            infeasible: None,
            shares: vec![],
            predicted: None,
            simulated: None,
            alone: None,
            taken: None,
        };
        let shares = match divide(&claims, budget, division) {
            Ok(shares) => shares,
            Err(ShareError::TooMuch { needed, .. }) => {
                mix.infeasible = Some(format!("needs {:.1} %", needed.0 as f64 / whole as f64 * 100.0));
                return mix;
            }
            Err(error) => {
                mix.infeasible = Some(error.to_string());
                return mix;
            }
        };
        let planned: Result<Vec<Planned>, _> =
            self.plans.iter().zip(&shares).map(|(plans, &share)| plans.at(share)).collect();
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => {
                mix.infeasible = Some(error.to_string());
                return mix;
            }
        };
        let taken = together(&self.steps.iter().zip(&planned).collect::<Vec<_>>());
        let total: f64 = weights.iter().sum();
        let weighted = |slowdowns: &[f64]| {
            slowdowns.iter().zip(weights).map(|(slowdown, weight)| slowdown * weight).sum::<f64>() / total - 1.0
        };
        let alone: Vec<f64> = self
            .steps
            .iter()
            .zip(&planned)
            .map(|(step, planned)| planned.simulation.step_time.0 as f64 / step.none.simulation.step_time.0 as f64)
            .collect();
        mix.predicted = weighted_slowdown(&claims, &shares).map(|sum| sum / total - 1.0);
        mix.simulated = Some(weighted(&taken.over_none));
        mix.alone = Some(weighted(&alone));
        mix.shares = shares.iter().map(|share| share.0).collect();
        mix.taken = Some(taken);
        mix
    }
}
