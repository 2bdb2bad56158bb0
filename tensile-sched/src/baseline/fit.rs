//! What all evicting baselines share: from a cap on the sum of bytes to an arena within the budget.

use super::no_eviction;
use crate::id::Bytes;
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::planner::{Infeasible, Planned, Planner, Tensile, complete, complete_with, place};
use crate::program::{Placed, Program, Synced};
use crate::trace::Trace;

/// Most programs made for one budget.
const MOST_ROUNDS: usize = 10;
/// Beyond so many, each sinks the cap by one part in [`COARSE`] more than what was missing.
const FINE_ROUNDS: usize = 4;
const COARSE: u64 = 10;

/// Plans with a published policy, which knows sums of bytes and nothing of addresses: `make(cap)` is its program for a budget of `cap` bytes, or the best it can
/// do for one that it cannot meet. Where the arena is above the budget, the cap sinks by as much, and the program is made anew; after some rounds by more.
///
/// `make(0)` is the most the policy can do. Its arena is the lowest budget of the policy, and at every budget from there up there is a program; below, another cap may happen to fit.
/// Where `none`'s program fits, it is the result. Under a given boundary, of which no published policy knows, the default planner decides.
///
/// # Errors
/// [`Infeasible::Device`] below the arena of `make(0)`; [`Infeasible::Host`]; those of blocks and boundaries that do not fit.
pub(crate) fn fit(trace: &Trace, limits: &Limits, make: impl Fn(u64) -> Program) -> Result<Planned, Infeasible> {
    fit_with(trace, limits, make, &|_| {})
}

/// As [`fit`], for a policy that waits more than it must: `add_waits` adds its waits to a program of `make`.
pub(crate) fn fit_with(
    trace: &Trace,
    limits: &Limits,
    make: impl Fn(u64) -> Program,
    add_waits: &dyn Fn(&mut Synced),
) -> Result<Planned, Infeasible> {
    if limits.boundary.is_some() {
        return Tensile::default().plan(trace, limits);
    }
    let none = no_eviction(trace, limits)?;
    if none.layout.arena <= limits.device {
        return complete(trace, limits, none);
    }
    let mut cap = limits.device.0;
    let mut before = None;
    for round in 0..MOST_ROUNDS {
        let program = make(cap);
        let is_new = before.as_ref() != Some(&program);
        if is_new {
            let placed = place(trace, limits, &program)?;
            let over = placed.layout.arena.0.saturating_sub(limits.device.0);
            if over == 0 {
                return complete_with(trace, limits, placed, add_waits);
            }
            if over >= cap {
                break;
            }
            cap -= over;
            before = Some(program);
        }
        if !is_new || round >= FINE_ROUNDS {
            cap -= cap / COARSE;
        }
    }
    // Not laid out for the budget: the lowest budget of a policy is a property of the trace.
    let least: Placed = place(trace, &Limits { device: Bytes::MAX, ..limits.clone() }, &make(0))?;
    if least.layout.arena <= limits.device {
        return complete_with(trace, limits, least, add_waits);
    }
    let peak = Liveness::new(trace).peak(trace, limits);
    // Above for a budget that cannot hold it, laid out quickly.
    let none = no_eviction(trace, &Limits { device: peak.bytes, ..limits.clone() })?;
    Err(Infeasible::Device {
        budget: limits.device,
        lowest: least.layout.arena.min(none.layout.arena),
        op: peak.op,
        label: trace.ops().get(peak.op.index()).map(|op| op.label.clone()).unwrap_or_default(),
    })
}
