//! Predicts how long a step takes when steps follow each other.

use crate::id::{InstrId, Nanos};

/// When an instruction ran in the simulated steady state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start, in nanoseconds from the end of the step before; below zero for a copy that begins while the step before still computes.
    /// Equal to `end` for releases.
    pub start: i64,
    /// End, on the same scale.
    pub end: i64,
}

/// Compute-lane idle time before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The kernel that could not start.
    pub instr: InstrId,
    /// How long the compute lane idled for it.
    pub time: Nanos,
    /// The instruction it was waiting for, if one of its waits was the reason; none if the lane was taken by other work (no overlap) or
    /// iterations in flight held it up.
    pub cause: Option<InstrId>,
}

/// Predicted steady state of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Time from one step's end to the next step's end, averaged over the steady state.
    pub step_time: Nanos,
    /// Time of the first step after a drained boundary.
    pub first_step_time: Nanos,
    /// Sum of the latencies of all `Run`s, the least a step can take.
    pub compute_time: Nanos,
    /// When each instruction of one steady-state step ran.
    pub spans: Vec<Span>,
    /// Compute-lane idle times of that step, in program order, those above zero.
    pub stalls: Vec<Stall>,
}

impl Simulation {
    /// Sum of all stalls.
    pub fn stall_time(&self) -> Nanos {
        self.stalls.iter().map(|stall| stall.time).sum()
    }

    /// Extra time over [`compute_time`](Self::compute_time), as a fraction of it (0 if there is nothing to compute).
    pub fn overhead(&self) -> f64 {
        if self.compute_time == Nanos::ZERO {
            return 0.0;
        }
        self.step_time.0 as f64 / self.compute_time.0 as f64 - 1.0
    }
}
