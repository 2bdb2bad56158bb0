//! What no program can beat: a lower bound on the slowdown of a trace under limits.
//!
//! [`least_overhead`] solves a linear program that every program of the trace, whoever planned it, gives a feasible point of. What it minimises is the extra time per step.
//!
//! # The relaxation
//!
//! Some ops are *sampled*: of each of about 48 slices of the step (of equal time) the op with the most memory under plain liveness. τⱼ is the moment at which sampled op j starts in the
//! steady state. The variables are fractions:
//!
//! ```text
//! sampled ops         j            j+1           j+2           j+3
//! time          ──────┼─────────────┼─────────────┼─────────────┼──────
//! tensor t      W─────────────────────────────────────────R            idle at j, j+1, j+2
//! h(t, ·)            ½             1             1                     part of t whose host copy is valid
//! e(t, ·)            ½             1            ¼                      part of t that is on the host only: at most h
//! copies        [out ½ ][  out ½   ][   in ¾   ][ in ¼ ]               charged between τⱼ and τⱼ₊₁
//! r(t)          0                                                      whether t is made again in this idle interval
//! ```
//!
//! - *Memory.* At τⱼ all bytes that op j touches are on the device, in-place pairs once, and so are those of every tensor that was made before and is needed after, less the parts
//!   e(t, j) and r(t): an address holds the bytes of one tensor at a time, and what is neither on the host nor made again would be lost. `verify` proves just that of programs: no
//!   two accesses race. This is said of *moments*, not of places in program order, so it does not matter how early copies are issued or how late they run.
//! - *Copies.* A copy of t occupies its lane for [`Link::out_time`](tensile_sched::Link::out_time) or [`in_time`](tensile_sched::Link::in_time); a part of the copy, that part of the time. What leaves or
//!   comes between τⱼ and τⱼ₊₁ takes at most the latencies of the ops between plus the stall there, on each lane (full duplex) or on both together (half); without overlap, at most the stall.
//! - *Reruns* of an op take its latency once, and give each of its outputs back in one idle interval. Together they are at most all stalls. Their inputs are free, their memory is free, and they hide copies.
//!   After an update of a persistent tensor that the op reads, nothing is made again.
//!
//! Steps follow each other: j+1 behind the last sample is the first one of the next step. Where steps differ from one another, the mean of their points is feasible, too.
//!
//! # What is special
//!
//! - A persistent tensor that the step does not update always has a valid host copy: e is free on the way out. One that is updated needs a copy after each update, and that holds until the
//!   next one, across the end of the step. Those that no op touches need no memory. In [`Mode::Recompute`](tensile_sched::Mode::Recompute) all stay on the device.
//! - An input always has a valid host copy. Its arrival takes its time on the lane within the step, at no special moment, and needs memory from its first access to its last only.
//! - An output is copied out once, at no special moment. It needs memory until its last access only.
//! - A kept tensor must be on the device when the program ends, in program order. After its last access nobody reads its bytes, so a persistent tensor of the *next* step may come in
//!   over them before the last kernel has run: memory is relieved by as much as has come in since (`prefetched`). Brought back, it takes its time on the lane at no special moment.
//! - Tensors below [`Detail::least_bytes`] are left out where they are idle.
//! - Tensors that are idle at the same samples, and take about the same time per byte on the link, are one tensor to the copies: fractions of it are easier to have than theirs. Reruns stay their own.
//!
//! # What it is not
//!
//! The order of ops is the trace's. A program that runs them in another order can beat the bound of the file's order; apply it to `trace.in_order(&program.order())` then, which bounds all programs
//! of that order. Fragmentation, host memory, largest blocks, given
//! boundaries and the slowdown of kernels beside copies are not looked at: they can only make programs slower. Distances come from fractions: a real program evicts whole tensors, in whole copies.

mod lp;
mod relax;
#[cfg(test)]
mod tests;

use tensile_sched::{Bytes, Limits, Liveness, Trace};

/// How fine the relaxation is; every choice gives a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detail {
    /// Most ops that are sampled.
    pub(crate) samples: usize,
    /// Smaller tensors are left out.
    pub(crate) least_bytes: Bytes,
}

impl Detail {
    /// 48 samples; tensors from a hundredth of a percent of the peak of plain liveness.
    pub(crate) fn usual(trace: &Trace, limits: &Limits) -> Self {
        let peak = Liveness::new(trace).peak(trace, limits).bytes;
        Self { samples: 48, least_bytes: Bytes(peak.0 / 10_000) }
    }
}

/// A slowdown (step time over the sum of all latencies, less 1) that no program for `trace` within `limits` goes below, whatever its policy; infinite where none exists.
///
/// 0 for a trace whose ops take no time. Linear in accesses and samples, plus some dozens of sparse factorisations.
pub(crate) fn least_overhead(trace: &Trace, limits: &Limits, detail: Detail) -> f64 {
    relax::relaxation(trace, limits, detail).map_or(0.0, |lp| lp.lower_bound())
}
