//! Planners: from a trace and limits to a program.

pub(crate) mod facts;
mod frontier;
mod packed;
pub(crate) mod plan;
mod tensile;
#[cfg(test)]
mod tests;
pub(crate) mod walk;

use crate::baseline::{AutoSwap, Capuchin, ChenSqrt, Dtr, NoEviction, Offload, Paper, Retain, SuperNeurons, Vdnn};
use crate::check::{CheckReport, check};
use crate::id::{Bytes, Nanos, OpId};
use crate::layout::{LayoutError, layout, layout_quickly, layout_thoroughly, spread};
use crate::limits::Limits;
use crate::program::{Placed, Program, Synced};
use crate::simulate::{Simulation, simulate};
use crate::sync::sync;
use crate::trace::Trace;
use crate::verify::verify;

pub use frontier::{FrontierPoint, frontier, least_memory};
pub(crate) use tensile::recompute_floor;
pub use tensile::{Effort, Tensile};

/// Lays a program out.
///
/// # Errors
/// [`Infeasible::Boundary`] if the limits give a boundary whose addresses collide.
///
/// # Panics
/// If the program is malformed or needs more than a block in one piece, which is a bug of the planner that made it.
pub(crate) fn place(trace: &Trace, limits: &Limits, program: &Program) -> Result<Placed, Infeasible> {
    laid_out(layout(trace, program, limits))
}

/// As [`place`], with little search for a small arena.
pub(crate) fn place_quickly(trace: &Trace, limits: &Limits, program: &Program) -> Result<Placed, Infeasible> {
    laid_out(layout_quickly(trace, program, limits))
}

/// As [`place`], with all the search that a program which will be kept is worth.
pub(crate) fn place_thoroughly(trace: &Trace, limits: &Limits, program: &Program) -> Result<Placed, Infeasible> {
    laid_out(layout_thoroughly(trace, program, limits))
}

fn laid_out(result: Result<Placed, LayoutError>) -> Result<Placed, Infeasible> {
    match result {
        Ok(placed) => Ok(placed),
        Err(error @ (LayoutError::Collision { .. } | LayoutError::GivenBoundary { .. })) => {
            Err(Infeasible::Boundary { reason: error.to_string() })
        }
        Err(error) => panic!("a planner made a program that has no layout: {error}"),
    }
}

/// Moves residencies apart where that makes copies wait less, proves the placed program, adds its waits and times it.
///
/// # Errors
/// [`Infeasible::Host`] if the host arena is too large; the caller has seen to the device arena.
///
/// # Panics
/// If `check` or `verify` refuses the program, which is a bug of the planner that made it.
pub(crate) fn complete(trace: &Trace, limits: &Limits, placed: Placed) -> Result<Planned, Infeasible> {
    complete_with(trace, limits, placed, &|_| {})
}

/// As [`complete`], for a policy that waits more than it must: `add_waits` adds its own waits to those that keep lanes from racing.
pub(crate) fn complete_with(
    trace: &Trace,
    limits: &Limits,
    placed: Placed,
    add_waits: &dyn Fn(&mut Synced),
) -> Result<Planned, Infeasible> {
    let synced = |placed| {
        let mut synced = sync(trace, placed);
        add_waits(&mut synced);
        synced
    };
    let needed = placed.layout.host_arena;
    if needed > limits.host {
        return Err(Infeasible::Host { budget: limits.host, needed });
    }
    let mut best = synced(placed);
    let mut simulation = simulate(trace, &best, &limits.link);
    if !simulation.stalls.is_empty()
        && let Ok(apart) = spread(trace, best.placed.clone(), limits)
    {
        let other = synced(apart);
        let other_simulation = simulate(trace, &other, &limits.link);
        if other_simulation.step_time < simulation.step_time {
            (best, simulation) = (other, other_simulation);
        }
    }
    let report = match check(trace, &best.placed, limits) {
        Ok(report) => report,
        Err(violations) => panic!("a planner made a program that check refuses: {}", violations[0]),
    };
    if let Err(violations) = verify(trace, &best) {
        panic!("sync left a race that verify refuses: {}", violations[0]);
    }
    Ok(Planned { synced: best, report, simulation })
}

/// All policies, the default first. The property tests run every one of them.
pub fn all() -> Vec<Box<dyn Planner>> {
    let mut all: Vec<Box<dyn Planner>> = vec![
        Box::new(Tensile::default()),
        Box::new(Tensile { effort: Effort::Fast }),
        Box::new(NoEviction),
        Box::new(Retain),
    ];
    all.extend(published());
    all
}

/// The policies of others that evict.
pub(crate) fn published() -> Vec<Box<dyn Planner>> {
    vec![
        Box::new(Paper::default()),
        Box::new(Vdnn { offload: Offload::Conv }),
        Box::new(Vdnn { offload: Offload::All }),
        Box::new(AutoSwap::default()),
        Box::new(Capuchin),
        Box::new(Dtr),
        Box::new(ChenSqrt),
        Box::new(SuperNeurons),
    ]
}

/// The policy of a [name](Planner::name), if there is one.
pub fn find(name: &str) -> Option<Box<dyn Planner>> {
    all().into_iter().find(|policy| policy.name() == name)
}

/// A policy that decides what stays on the device, what is swapped and what is recomputed.
///
/// Planners are pure: no clock, no files, no randomness; equal input gives equal output.
pub trait Planner: Send + Sync {
    /// Short name, as used on the command line.
    fn name(&self) -> &'static str;

    /// Plans one step.
    ///
    /// The result has passed `check` under `limits` and `verify`.
    ///
    /// # Errors
    /// [`Infeasible`] if this policy finds no program within the limits.
    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible>;
}

/// A program and what is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What to execute.
    pub synced: Synced,
    /// What `check` found: peak, arena, bytes moved.
    pub report: CheckReport,
    /// Predicted steady-state timing under the limits' link.
    pub simulation: Simulation,
}

/// No program within the limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Infeasible {
    /// The device budget is below what the policy can reach.
    #[error("budget {budget} ({} bytes) is below the floor of {lowest} ({} bytes) for this policy and mode, set by op {op} '{label}'", budget.0, lowest.0)]
    Device {
        /// The budget.
        budget: Bytes,
        /// The lowest budget the policy can plan for.
        lowest: Bytes,
        /// The op that sets it.
        op: OpId,
        /// Its label.
        label: String,
    },
    /// The host budget is below what the policy needs.
    #[error("host budget {budget} ({} bytes) is below the {needed} ({} bytes) needed for host copies under this device budget", budget.0, needed.0)]
    Host {
        /// The host budget.
        budget: Bytes,
        /// What the best program found needs.
        needed: Bytes,
    },
    /// Every plan within the budget takes longer than was allowed.
    #[error("within budget {budget} ({} bytes) a step takes {time}, more than the {allowed} allowed", budget.0)]
    Slow {
        /// The budget.
        budget: Bytes,
        /// The step time of the best plan found.
        time: Nanos,
        /// The most that it may be.
        allowed: Nanos,
    },
    /// One tensor or workspace is larger than the device can allocate in one block.
    #[error("op {op} '{label}' needs a block of {bytes} ({} bytes), above the device's largest block of {max_block} ({} bytes)", bytes.0, max_block.0)]
    Block {
        /// An op that touches it.
        op: OpId,
        /// Its label.
        label: String,
        /// Its size.
        bytes: Bytes,
        /// The most the device allows.
        max_block: Bytes,
    },
    /// The given boundary does not fit the trace or the limits.
    #[error("the given boundary does not fit: {reason}")]
    Boundary {
        /// What is wrong.
        reason: String,
    },
}
