//! Proves that a placed program is right and within its limits, sharing no code with any planner.

use crate::id::{Bytes, Nanos};

/// What `check` found out about a program it accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Most bytes live on the device at any instruction, each rounded up to the alignment.
    pub peak: Bytes,
    /// Size of the device arena: the highest address in use. At most the budget.
    pub arena: Bytes,
    /// Size of the host arena.
    pub host_arena: Bytes,
    /// Number of `SwapOut`s, deliveries of outputs included.
    pub swap_outs: usize,
    /// Number of `SwapIn`s, arrivals of inputs included.
    pub swap_ins: usize,
    /// Bytes copied to the host.
    pub bytes_out: Bytes,
    /// Bytes copied to the device.
    pub bytes_in: Bytes,
    /// `SwapOut`s of tensors that are not outputs, and `SwapIn`s that are not the first of an input: the copies that the budget causes.
    pub evictions: usize,
    /// Number of `Rerun`s.
    pub reruns: usize,
    /// Sum of the latencies of all `Rerun`s.
    pub recompute_time: Nanos,
}

impl CheckReport {
    /// Arena bytes beyond the peak: what fragmentation costs.
    pub fn fragmentation(&self) -> Bytes {
        self.arena.saturating_sub(self.peak)
    }
}
