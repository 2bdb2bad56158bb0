//! Predicts how long a step takes when steps follow each other.
//!
//! The three lanes are played through, iteration after iteration, under the rules of [`program`](crate::program), until one iteration is like the one before:
//!
//! ```text
//! compute  [ op0 ][ op1 ]......[ op2 ][ op0 ][ op1 ]...       stall of op2: it waits for the swap-in
//! out                    [ a ]                     [ a ]
//! in       [ x ]              [ a ][ x ]                      x of the next step arrives while op2 computes
//! ```

mod engine;

use crate::id::{InstrId, Nanos};
use crate::limits::Link;
use crate::program::{Instr, Synced};
use crate::trace::Trace;
use engine::{Engine, Times};

/// When an instruction ran in the simulated steady state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start, in nanoseconds from the end of the step before; below zero for a copy that begins while the step before still computes.
    /// Equal to `end` for releases, which stand at the latest end of what comes before them in program order.
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

/// Most iterations played before the step time is averaged.
const MOST_ITERATIONS: usize = 16;
/// The average then goes over this many; an even number, because odd and even iterations may alternate.
const AVERAGED: usize = 8;

/// Times a program in its steady state.
///
/// Copies take [`Link::out_time`] and [`Link::in_time`] of the tensor's bytes, kernels the op's latency; they are longer by
/// [`Link::kernel_slowdown`] and [`Link::copy_slowdown`] while they run beside each other. With [`Duplex::Half`](crate::Duplex::Half) and [`Duplex::NoOverlap`](crate::Duplex::NoOverlap), what became ready first goes first, and what comes first in program order among those
/// that became ready together.
///
/// The first step is that after a drained boundary. If copies never end (a link without bandwidth) or waits are circular, the step time is [`Nanos::MAX`].
///
/// # Complexity
/// O(instructions + waits) for each iteration played; three iterations are usual, 16 the most.
///
/// # Panics
/// If the synced program has not one list of waits for each instruction.
pub fn simulate(trace: &Trace, synced: &Synced, link: &Link) -> Simulation {
    assert_eq!(synced.waits.len(), synced.instrs().len(), "a synced program has waits for each instruction");
    let compute_time = synced
        .instrs()
        .iter()
        .map(|instr| match instr {
            Instr::Run { op, .. } => trace.op(*op).latency,
            _ => Nanos::ZERO,
        })
        .sum();
    let n_instrs = synced.instrs().len();
    let mut simulation = Simulation { compute_time, spans: vec![Span::default(); n_instrs], ..Simulation::default() };
    let mut engine = Engine::new(trace, synced, link);
    if !engine.has_work() {
        return simulation;
    }
    // End of each iteration, after that of a step before the first.
    let mut ends = vec![0];
    let mut is_steady = false;
    let mut earlier = Vec::new();
    while !is_steady && ends.len() <= MOST_ITERATIONS {
        let Some(end) = engine.next_iteration() else {
            simulation.step_time = Nanos::MAX;
            simulation.first_step_time = ends.get(1).map_or(Nanos::MAX, |&end| Nanos(end));
            return simulation;
        };
        ends.push(end);
        is_steady = is_like_the_one_before(synced, &earlier, engine.latest(), &ends);
        earlier.clear();
        earlier.extend_from_slice(engine.latest());
    }
    let last = ends.len() - 1;
    simulation.first_step_time = Nanos(ends[1]);
    simulation.step_time = if is_steady {
        Nanos(ends[last] - ends[last - 1])
    } else {
        Nanos((ends[last] - ends[last - AVERAGED] + AVERAGED as u64 / 2) / AVERAGED as u64)
    };
    simulation.spans = spans(synced, engine.latest(), ends[last - 1]);
    simulation.stalls = engine
        .latest_idle()
        .iter()
        .map(|idle| Stall { instr: idle.instr, time: Nanos(idle.time), cause: idle.cause })
        .collect();
    simulation
}

/// Whether the latest iteration repeats the one before at the same distance from its start; the first does not count, because its waits on an iteration before are void.
fn is_like_the_one_before(synced: &Synced, earlier: &[Times], latest: &[Times], ends: &[u64]) -> bool {
    let [.., before, start, end] = ends else { return false };
    let period = end - start;
    if ends.len() < 4 || period != start - before {
        return false;
    }
    let times = synced.instrs().iter().zip(latest.iter().zip(earlier));
    times
        .filter(|(instr, _)| instr.lane().is_some())
        .all(|(_, (latest, earlier))| latest.start == earlier.start + period && latest.end == earlier.end + period)
}

/// Times of one iteration on the scale of the step's own start, with releases filled in.
fn spans(synced: &Synced, times: &[Times], origin: u64) -> Vec<Span> {
    let relative = |time: u64| i64::try_from(i128::from(time) - i128::from(origin)).unwrap_or(i64::MAX);
    let mut latest: Option<i64> = None;
    let mut spans = Vec::with_capacity(times.len());
    for (instr, times) in synced.instrs().iter().zip(times) {
        let span = if instr.lane().is_some() {
            Span { start: relative(times.start), end: relative(times.end) }
        } else {
            let at = latest.unwrap_or(0);
            Span { start: at, end: at }
        };
        latest = Some(latest.map_or(span.end, |latest| latest.max(span.end)));
        spans.push(span);
    }
    spans
}

#[cfg(test)]
mod tests;
