//! `none`: no eviction; what plain liveness gives. Percentages of a budget mean this policy's arena.

use super::plain::{Free, plain_program};
use crate::floor::{check_blocks, check_boundary};
use crate::id::Bytes;
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::planner::{Infeasible, Planned, Planner, complete, place};
use crate::program::Placed;
use crate::trace::Trace;

/// Nothing is evicted: a tensor comes with its first access and goes with its last, an op takes its input's bytes over where the input
/// dies. This is what a framework with reference counting reaches at best, and the plan without a limit.
///
/// ```text
/// op       0     1     2     3
/// x        W─────R┐                released after op 1
/// y              W├────R           may take x's bytes over, if the kernel works in place
/// w  ─R─────R──────────R─────U──   persistent: always there
/// ```
///
/// Linear, plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoEviction;

impl Planner for NoEviction {
    fn name(&self) -> &'static str {
        "none"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let placed = no_eviction(trace, limits)?;
        if placed.layout.arena > limits.device {
            let peak = Liveness::new(trace).peak(trace, limits);
            return Err(Infeasible::Device {
                budget: limits.device,
                lowest: placed.layout.arena,
                op: peak.op,
                label: trace.ops().get(peak.op.index()).map(|op| op.label.clone()).unwrap_or_default(),
            });
        }
        complete(trace, limits, placed)
    }
}

/// The placed program of `none`, the same at every device budget.
///
/// # Errors
/// Those of a block or boundary that does not fit.
pub(crate) fn no_eviction(trace: &Trace, limits: &Limits) -> Result<Placed, Infeasible> {
    check_blocks(trace, limits)?;
    check_boundary(trace, limits)?;
    let live = Liveness::new(trace);
    let program = plain_program(trace, limits, &live, Free::WhenDead);
    // Not laid out for the budget: the arena is a property of the trace, which budgets are measured by.
    place(trace, &Limits { device: Bytes::MAX, ..limits.clone() }, &program)
}
