//! Planners: from a trace and limits to a program.

use crate::check::CheckReport;
use crate::id::{Bytes, OpId};
use crate::limits::Limits;
use crate::program::Synced;
use crate::simulate::Simulation;
use crate::trace::Trace;

/// A policy that decides what stays on the device, what is swapped and what is recomputed.
///
/// Planners are pure: no clock, no files, no randomness; equal input gives equal output.
pub trait Planner {
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
    #[error("budget {budget} ({} bytes) is below the floor of {lowest} ({} bytes) set by op {op} '{label}'", budget.0, lowest.0)]
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
