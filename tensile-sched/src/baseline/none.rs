//! `none`: no eviction; what plain liveness gives. Percentages of a budget mean this policy's arena.

use super::plain::{Free, plain_program};
use crate::floor::{check_blocks, check_boundary};
use crate::id::Bytes;
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::planner::{Infeasible, Planned, Planner, complete, place, place_quickly, place_thoroughly};
use crate::program::{Placed, Program};
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
        // Not laid out for the budget: the arena is a property of the trace, which budgets are measured by.
        let placed = place_thoroughly(trace, &unlimited(limits), &program(trace, limits)?)?;
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

/// The placed program of `none`. It fits the device budget exactly if [`NoEviction`] does.
///
/// # Errors
/// Those of a block or boundary that does not fit.
pub(crate) fn no_eviction(trace: &Trace, limits: &Limits) -> Result<Placed, Infeasible> {
    let program = program(trace, limits)?;
    if limits.device == Bytes::MAX {
        place(trace, limits, &program)
    } else if Liveness::new(trace).peak(trace, limits).bytes > limits.device {
        // It cannot fit, whatever its layout.
        place_quickly(trace, limits, &program)
    } else {
        place_thoroughly(trace, &unlimited(limits), &program)
    }
}

fn program(trace: &Trace, limits: &Limits) -> Result<Program, Infeasible> {
    check_blocks(trace, limits)?;
    check_boundary(trace, limits)?;
    Ok(plain_program(trace, limits, &Liveness::new(trace), Free::WhenDead))
}

fn unlimited(limits: &Limits) -> Limits {
    Limits { device: Bytes::MAX, ..limits.clone() }
}
