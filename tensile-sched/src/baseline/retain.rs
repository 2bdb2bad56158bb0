//! `retain`: the vanilla run of the TENSILE paper (arXiv 2105.13336, section VI), which frees nothing before the step ends.

use super::plain::{Free, plain_program};
use crate::floor::{check_blocks, check_boundary};
use crate::id::{Bytes, OpId};
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::planner::{Infeasible, Planned, Planner, complete, place};
use crate::trace::Trace;

/// Nothing is given up until the step ends, and nothing is computed in place. The yardstick of the paper's memory saving ratios; always shown
/// beside [`NoEviction`](super::NoEviction), which is the one a saving must be measured against.
///
/// Linear, plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retain;

impl Planner for Retain {
    fn name(&self) -> &'static str {
        "retain"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        check_blocks(trace, limits)?;
        check_boundary(trace, limits)?;
        let live = Liveness::new(trace);
        let program = plain_program(trace, limits, &live, Free::AtTheEnd);
        let placed = place(trace, &Limits { device: Bytes::MAX, ..limits.clone() }, &program)?;
        if placed.layout.arena > limits.device {
            // Memory only grows, workspaces aside, so the last op stands for the end of the step.
            let op = OpId::from_index(trace.ops().len().saturating_sub(1));
            return Err(Infeasible::Device {
                budget: limits.device,
                lowest: placed.layout.arena,
                op,
                label: trace.ops().get(op.index()).map(|op| op.label.clone()).unwrap_or_default(),
            });
        }
        complete(trace, limits, placed)
    }
}
