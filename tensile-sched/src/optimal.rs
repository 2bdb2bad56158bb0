//! The fastest program of a small step: an exact yardstick for planners.
//!
//! It shares no code with any planner: every combination of decisions in the space below is looked at or proven to be no better than the best one found.
//!
//! # What is decided
//! Each *idle interval*, in which a tensor is not accessed while at least one op runs, is spent in one of these ways:
//!
//! ```text
//! op            a     a+1    …     j     …     b
//! keep          ■─────────────────────────────►■     on the device
//! swap          ■►                 <══════════►■     SwapOut behind the op that made the value, or behind a; none if the host has it. SwapIn before op j, each j is tried
//! rerun         ■                  k══════════►■     the op that makes it runs again before op j, each j is tried
//! ```
//!
//! - Bytes are given up right behind op a in program order; where an in-place pair allows it, also *by* op a, to its output.
//! - A rerun brings the sources back that are not there: dead or dropped ones for as long as the chain needs them, inputs by copy.
//! - An input's first copy is placed before its first use or before any op before that.
//! - **Boundary**: all persistent tensors are on the device between steps. They may leave within the step, before their first use and behind their last one as well; one that leaves before its update has a
//!   copy of the version of the step before, made behind its last update there.
//! - Free takeovers are always used.
//!
//! # What it costs
//! - **Memory** is the sum of occupied bytes at each instruction. Fragmentation and the device's blocks ([`Limits::max_block`]) are ignored: bytes are interchangeable.
//! - **Time** is that of [`simulate`](mod@crate::simulate), in the steady state, with waits of two kinds. *Data*: a kernel for the copies of what it touches, a copy for the kernel that made its source, and for the copy
//!   on the other lane that filled, or read, its host slot. *Memory*: addresses would decide these; without them a pool does. Bytes that are given up enter the pool with the last accesses to them on each lane; whoever claims bytes
//!   takes those first whose accesses are on its own lane, for which there is nothing to wait, then those whose other accesses are earliest, and waits for these. So a claim waits until enough bytes before it in
//!   program order are really free, but never for a coincidence of addresses. Ignoring these waits altogether would let a kernel write to bytes whose copy has not yet left, and every swap-out would be free.
//!
//! A real program lies above for its fragmentation and for waits on single addresses. It may lie below where it uses what is not tried here: another boundary, copies put off, or a tensor brought back twice
//! within one interval.
//!
//! # Complexity
//! Exponential in the number of idle intervals; branch and bound on memory (all that is undecided evicted) and time (kernels; each lane's copies; the way out and back of each swap) cuts most of it. After
//! [`MOST_SIMULATIONS`] the best so far is the result, marked as such.

mod build;
mod waits;

use crate::id::{Bytes, Nanos, OpId, TensorId};
use crate::limits::{Duplex, Limits, Mode};
use crate::liveness::{AccessKind, Liveness};
use crate::program::{Layout, Placed, Program, Synced};
use crate::simulate::simulate;
use crate::trace::{Role, Trace};
use build::build;
use waits::waits;

/// Most ops of a trace that is looked at.
pub const MOST_OPS: usize = 8;
/// Most programs simulated for one trace.
pub const MOST_SIMULATIONS: usize = 20_000;

/// The fastest program found.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimal {
    /// Its steady-state step time.
    pub step_time: Nanos,
    /// Its instructions; all persistent tensors are in the boundary.
    pub program: Program,
    /// Whether no other in the space is faster; false if the search was cut short.
    pub is_proven: bool,
    /// How many programs were simulated.
    pub n_simulated: usize,
}

/// No optimum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptimalError {
    /// Too many ops to look at all programs.
    #[error("{n_ops} ops are too many to look at all programs; the most is {MOST_OPS}")]
    TooLarge {
        /// How many there are.
        n_ops: usize,
    },
    /// The limits give a boundary.
    #[error("a given boundary is not supported: all persistent tensors are on the device between steps")]
    Boundary,
    /// No program of the space keeps to the budgets.
    #[error("no program with all persistent tensors on the device between steps keeps to a budget of {budget} ({} bytes)", budget.0)]
    Infeasible {
        /// The device budget.
        budget: Bytes,
    },
}

/// The fastest program of a step of at most [`MOST_OPS`] ops within the budgets, in the space and by the rules of the [module](self).
///
/// # Errors
/// [`OptimalError`].
///
/// # Example
/// ```
/// use tensile_sched::strategy::{Sizes, training_traces};
/// use tensile_sched::{Limits, optimal};
/// use proptest::prelude::*;
///
/// proptest!(ProptestConfig::with_cases(8), |(trace in training_traces(Sizes { unit: 256, most_units: 4, odd: false }, 1..2))| {
///     let best = optimal(&trace, &Limits::unlimited()).unwrap();
///     prop_assert!(best.is_proven && best.step_time >= trace.compute_time());
/// });
/// ```
pub fn optimal(trace: &Trace, limits: &Limits) -> Result<Optimal, OptimalError> {
    let n_ops = trace.ops().len();
    if n_ops > MOST_OPS {
        return Err(OptimalError::TooLarge { n_ops });
    }
    if limits.boundary.is_some() {
        return Err(OptimalError::Boundary);
    }
    let step = Step::new(trace, limits);
    let mut search =
        Search { choices: vec![None; step.idles.len()], best: None, n_simulated: 0, is_cut: false, step: &step };
    search.node(0);
    match search.best {
        Some((step_time, program)) => {
            Ok(Optimal { step_time, program, is_proven: !search.is_cut, n_simulated: search.n_simulated })
        }
        None => Err(OptimalError::Infeasible { budget: limits.device }),
    }
}

/// An idle interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle {
    tensor: TensorId,
    /// One behind the op of the access before; zero for the start of the step.
    after: usize,
    /// The op of the access behind; the number of ops for the end of the step.
    until: usize,
    /// Whether it is an input's wait for its first copy.
    is_arrival: bool,
}

/// How an idle interval is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Keep,
    Swap {
        /// Whether the copy leaves behind the op that made the value, not behind the access before.
        early: bool,
        /// It comes back before this op.
        back: usize,
        /// Its bytes go to an output of the op of the access before.
        taken: bool,
    },
    Rerun {
        back: usize,
        taken: bool,
    },
}

impl Choice {
    /// Before which op the tensor is on the device again, if it leaves.
    fn back(self) -> Option<usize> {
        match self {
            Choice::Keep => None,
            Choice::Swap { back, .. } | Choice::Rerun { back, .. } => Some(back),
        }
    }
}

/// A trace with what the search wants to know of it.
struct Step<'a> {
    trace: &'a Trace,
    limits: &'a Limits,
    live: Liveness,
    bytes: Vec<u64>,
    /// Those worth most first.
    idles: Vec<Idle>,
    /// Bytes needed at each position whatever is decided; the last entry is the end of the step.
    least: Vec<u64>,
}

impl<'a> Step<'a> {
    fn new(trace: &'a Trace, limits: &'a Limits) -> Self {
        let live = Liveness::new(trace);
        let n_ops = trace.ops().len();
        let bytes: Vec<u64> = trace.tensors().iter().map(|tensor| limits.occupied(tensor.bytes).0).collect();
        let mut idles = Vec::new();
        let mut end = 0;
        for tensor in trace.tensor_ids() {
            let of = trace.tensor(tensor);
            let persists = of.role.is_persistent();
            if persists || of.keep {
                end += bytes[tensor.index()];
            }
            // Positions behind and at which it is there.
            let mut ends: Vec<(usize, usize)> = Vec::new();
            let uses: Vec<usize> = live.accesses(tensor).iter().map(|access| access.op.index()).collect();
            let first = uses.first().copied();
            let last = uses.last().copied();
            if persists {
                ends.push((0, first.unwrap_or(n_ops)));
            }
            ends.extend(uses.windows(2).map(|pair| (pair[0] + 1, pair[1])));
            if let (Some(last), true) = (last, persists || of.keep) {
                ends.push((last + 1, n_ops));
            }
            let idle = |(after, until)| Idle { tensor, after, until, is_arrival: false };
            idles.extend(ends.into_iter().filter(|(after, until)| after < until).map(idle));
            let arrives = of.role == Role::Input && (first.is_some() || of.keep);
            if arrives {
                idles.push(Idle { tensor, after: 0, until: first.unwrap_or(n_ops), is_arrival: true });
            }
        }
        idles.sort_by_key(|idle| {
            let worth = u128::from(bytes[idle.tensor.index()]) * (idle.until - idle.after) as u128;
            (std::cmp::Reverse(worth), idle.tensor, idle.after)
        });
        let mut least: Vec<u64> = Vec::with_capacity(n_ops + 1);
        for op in trace.ops() {
            let tensors = op.reads.iter().chain(&op.writes).chain(&op.updates);
            let all: u64 = tensors.map(|tensor| bytes[tensor.index()]).sum();
            let shared: u64 = op.in_place.iter().map(|pair| bytes[pair.output.index()]).sum();
            least.push(all - shared + limits.occupied(op.workspace).0);
        }
        least.push(end);
        Self { trace, limits, live, bytes, idles, least }
    }

    fn n_ops(&self) -> usize {
        self.trace.ops().len()
    }

    /// One behind the op that made the value that a tensor has in an interval; none if that was in the step before.
    fn made(&self, idle: &Idle) -> Option<usize> {
        let accesses = self.live.accesses(idle.tensor).iter().rev();
        let mut makers = accesses.filter(|access| access.kind != AccessKind::Read);
        makers.find(|access| access.op.index() < idle.after).map(|access| access.op.index() + 1)
    }

    /// The version that a tensor has in an interval, by one behind the op that made it, in this step or in the one before.
    fn version(&self, idle: &Idle) -> Option<usize> {
        let last_update = || self.live.last_update(idle.tensor).map(|op| op.index() + 1);
        self.made(idle).or_else(last_update)
    }

    /// Whether the host has a tensor's value for free: an input, an output once it is delivered, a persistent tensor that no op updates.
    fn host_has(&self, tensor: TensorId) -> bool {
        match self.trace.tensor(tensor).role {
            Role::Input | Role::Output => true,
            role => role.is_persistent() && self.live.last_update(tensor).is_none(),
        }
    }

    /// All ways to spend an interval.
    fn ways(&self, idle: &Idle) -> Vec<Choice> {
        let mode = self.limits.mode;
        if idle.is_arrival {
            let swap = |back| Choice::Swap { early: true, back, taken: false };
            return (0..=idle.until).map(swap).collect();
        }
        let role = self.trace.tensor(idle.tensor).role;
        let mut ways = vec![Choice::Keep];
        // Brought back before the very next op it would never have left.
        let backs = idle.after + 1..=idle.until;
        let is_paired = idle.after > 0
            && !role.is_persistent()
            && self.trace.ops()[idle.after - 1].in_place.iter().any(|pair| pair.input == idle.tensor);
        let takings: &[bool] = if is_paired { &[false, true] } else { &[false] };
        let may_rerun = mode != Mode::Swap
            && self.trace.producer(idle.tensor).is_some_and(|producer| self.trace.op(producer).replayable);
        let may_swap = mode != Mode::Recompute || role == Role::Input;
        for back in backs {
            for &taken in takings {
                if may_rerun {
                    ways.push(Choice::Rerun { back, taken });
                }
                if may_swap {
                    let made = self.made(idle);
                    // A value made by the access before leaves there either way, as one of the step before or one that the host has.
                    let has_late = made.is_some_and(|made| made < idle.after) && !self.host_has(idle.tensor);
                    let is_there_early = has_late || self.host_has(idle.tensor);
                    if !taken || is_there_early {
                        ways.push(Choice::Swap { early: true, back, taken });
                    }
                    if has_late && !taken {
                        ways.push(Choice::Swap { early: false, back, taken });
                    }
                }
            }
        }
        ways
    }

    fn latency(&self, op: usize) -> u64 {
        self.trace.ops()[op].latency.0
    }
}

struct Search<'a> {
    step: &'a Step<'a>,
    /// By interval; none for those that are not decided.
    choices: Vec<Option<Choice>>,
    best: Option<(Nanos, Program)>,
    n_simulated: usize,
    is_cut: bool,
}

impl Search<'_> {
    /// Decides the interval at `depth` and all behind it.
    fn node(&mut self, depth: usize) {
        if self.is_cut || !self.may_fit() || self.is_hopeless() {
            return;
        }
        if depth == self.choices.len() {
            self.leaf();
            return;
        }
        for way in self.step.ways(&self.step.idles[depth]) {
            self.choices[depth] = Some(way);
            self.node(depth + 1);
        }
        self.choices[depth] = None;
    }

    /// Whether the budget suffices if all that is not decided is evicted.
    fn may_fit(&self) -> bool {
        let mut least = self.step.least.clone();
        for (idle, choice) in self.step.idles.iter().zip(&self.choices) {
            let from = match choice {
                None => continue,
                Some(Choice::Keep) => idle.after,
                Some(choice) => choice.back().expect("it leaves"),
            };
            for position in &mut least[from..idle.until] {
                *position += self.step.bytes[idle.tensor.index()];
            }
        }
        least.iter().all(|&bytes| bytes <= self.step.limits.device.0)
    }

    /// Whether no program with these choices is faster than the best.
    fn is_hopeless(&self) -> bool {
        self.best.as_ref().is_some_and(|(best, _)| self.least_time() >= best.0)
    }

    /// No program with these choices takes less.
    fn least_time(&self) -> u64 {
        let (step, trace, link) = (self.step, self.step.trace, &self.step.limits.link);
        // Kernels by position: reruns before each op, then the op.
        let mut kernels: Vec<u64> = (0..step.n_ops()).map(|op| step.latency(op)).chain([0]).collect();
        let mut reruns: Vec<(OpId, usize)> = Vec::new();
        let (mut outs, mut ins) = (0u64, 0u64);
        let mut sent: Vec<(TensorId, Option<usize>)> = Vec::new();
        for (idle, choice) in step.idles.iter().zip(&self.choices) {
            match *choice {
                Some(Choice::Rerun { back, .. }) => {
                    let op = trace.producer(idle.tensor).expect("only what an op makes is made again");
                    if !reruns.contains(&(op, back)) {
                        reruns.push((op, back));
                        kernels[back] += step.latency(op.index());
                    }
                }
                Some(Choice::Swap { .. }) => {
                    ins = ins.saturating_add(link.in_time(trace.tensor(idle.tensor).bytes).0);
                    let version = (idle.tensor, step.version(idle));
                    if !step.host_has(idle.tensor) && !sent.contains(&version) {
                        sent.push(version);
                        outs = outs.saturating_add(link.out_time(trace.tensor(idle.tensor).bytes).0);
                    }
                }
                _ => {}
            }
        }
        for tensor in trace.tensor_ids().filter(|&tensor| trace.tensor(tensor).role == Role::Output) {
            outs = outs.saturating_add(link.out_time(trace.tensor(tensor).bytes).0);
        }
        let all: u64 = kernels.iter().sum();
        let mut least = match link.duplex {
            Duplex::Full => all.max(outs).max(ins),
            Duplex::Half => all.max(outs.saturating_add(ins)),
            Duplex::NoOverlap => all.saturating_add(outs).saturating_add(ins),
        };
        for (idle, choice) in step.idles.iter().zip(&self.choices) {
            let Some(Choice::Swap { early, .. }) = *choice else { continue };
            let Some(made) = step.made(idle) else { continue };
            // Nobody waits for what comes back at the end.
            if step.host_has(idle.tensor) || idle.until == step.n_ops() {
                continue;
            }
            // Out and back between the op that made the value, or the access before, and the access behind.
            let from = if early { made } else { idle.after };
            let bytes = trace.tensor(idle.tensor).bytes;
            let way = link.out_time(bytes).0.saturating_add(link.in_time(bytes).0);
            // Reruns before the access behind may run before or while it comes back.
            let inside: u64 = kernels[from..idle.until].iter().sum::<u64>() + kernels[idle.until];
            let behind = step.latency(idle.until);
            least = least.max((all - inside + behind).saturating_add(way.max(inside - behind)));
        }
        least
    }

    fn leaf(&mut self) {
        if self.n_simulated == MOST_SIMULATIONS {
            self.is_cut = true;
            return;
        }
        let choices: Vec<Choice> = self.choices.iter().map(|choice| choice.expect("all are decided")).collect();
        let Some(program) = build(self.step, &choices) else { return };
        self.n_simulated += 1;
        let waits = waits(self.step, &program);
        let synced = Synced { placed: Placed { program, layout: Layout::default() }, waits };
        let time = simulate(self.step.trace, &synced, &self.step.limits.link).step_time;
        if self.best.as_ref().is_none_or(|(best, _)| time < *best) {
            self.best = Some((time, synced.placed.program));
        }
    }
}

#[cfg(test)]
mod tests;
