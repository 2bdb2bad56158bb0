//! `superneurons`: Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural Networks", PPoPP 2018 (arXiv 1801.04380), section 3.
//!
//! ```text
//! forward   [ conv ][ norm ][ relu ][ pool ][ conv ] …    checkpoints: convolutions and whatever else takes long
//! results     cache  ╰──── a segment ────╯   cache        of a checkpoint: in the cache, least recently used to the host
//!                      dropped, made again                of the cheap layers between two checkpoints: recomputed
//! ```
//!
//! - **Liveness** (3.2): what nobody reads any more is freed; that is `none`, which every budget starts from.
//! - **Unified tensor pool and tensor cache** (3.3): results of checkpoints, and inputs, may be offloaded. Their copy leaves right behind the layer that makes them; while there is room they stay, and
//!   when there is none the least recently used goes. In the backward pass, a checkpoint's backward layer starts the copies that the one behind it wants.
//! - **Cost-aware recomputation** (3.4): results of cheap layers (pooling, activation, normalisation, and the like) are dropped behind the forward pass. A segment is recomputed once and kept for
//!   all its backward layers ("speed-centric") if what it makes is within `l_peak`, the most that any single layer needs; otherwise for each backward layer anew ("memory-centric").
//!
//! Where a device budget needs more than liveness, offloading alone and together with recomputation are both played, each as far as the budget asks for it, and the faster is taken.
//!
//! Differences:
//! - A trace has no layers. Ops are told apart by their class: see [`kind_of`]; those that join several tensors are checkpoints, so that a segment has one way in. Where forward turns to backward is
//!   found by [`Forward`](super::forward::Forward).
//! - A cheap layer's result whose source does not outlive the forward pass (the source of an activation in place, say) would take a checkpoint to recompute; it is offloaded instead.
//! - The paper copies a result to the host only if it will be evicted or memory runs out; here it is known ahead which ones will be, and only they are copied.
//! - The cache is played ahead on sums of bytes, so what comes back takes its bytes when its copy starts, which the paper's runtime decides as it runs.
//! - The paper picks convolution algorithms by the memory that is left (3.5); a trace fixes them.
//! - [`Mode::Swap`] leaves recomputation out, [`Mode::Recompute`] offloading.

use super::fit;
use super::forward::{Forward, Stashed};
use super::tally::{Tally, tally};
use crate::floor::working_set;
use crate::id::{Nanos, OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::follow;
use crate::planner::{Infeasible, Planned, Planner, complete, place_quickly};
use crate::program::Program;
use crate::trace::Trace;

/// SuperNeurons (Wang et al., PPoPP 2018): results of long layers are offloaded, least recently used first; those of cheap layers are recomputed, segment by segment.
///
/// A few walks of the step for each budget, plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperNeurons;

impl Planner for SuperNeurons {
    fn name(&self) -> &'static str {
        "superneurons"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        let policy = Policy::new(&facts);
        fit(trace, limits, |cap| policy.program(cap))
    }
}

/// What an op is to the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Takes long to compute; its results are offloaded.
    Checkpoint,
    /// Its results are recomputed.
    Cheap,
}

/// Parts of class names of ops that take long.
const LONG: [&str; 11] =
    ["conv", "mm", "matmul", "linear", "dense", "gemm", "lstm", "gru", "attention", "embedding", "classifier"];
/// Parts of class names of cheap ops. The paper names pooling, activation and normalisation (LRN, batch norm).
const CHEAP: [&str; 21] = [
    "pool",
    "activation",
    "relu",
    "gelu",
    "sigmoid",
    "tanh",
    "softmax",
    "norm",
    "lrn",
    "bn",
    "dropout",
    "clamp",
    "threshold",
    "add",
    "mul",
    "sub",
    "concat",
    "cat",
    "pad",
    "bias",
    "scale",
];

/// In the forward pass a checkpoint if it joins several tensors. Otherwise by its class; ops of other classes are cheap if they make more bytes per time than the step on average.
fn kind_of(facts: &Facts<'_>, forward: &Forward, op: OpId) -> Kind {
    let of = facts.trace.op(op);
    let class = of.class.to_ascii_lowercase();
    let n_sources = of.reads.iter().filter(|&&tensor| facts.trace.producer(tensor).is_some()).count();
    let joins = op.index() < forward.end && n_sources > 1;
    if joins || LONG.iter().any(|part| class.contains(part)) {
        return Kind::Checkpoint;
    }
    let is_named = class == "+" || CHEAP.iter().any(|part| class.contains(part));
    let made = |op: OpId| facts.trace.op(op).writes.iter().map(|&tensor| u128::from(facts.bytes(tensor))).sum::<u128>();
    let all: u128 = facts.trace.op_ids().map(made).sum();
    let is_fast = made(op) * u128::from(facts.step_time()) > all * u128::from(of.latency.0);
    if is_named || is_fast { Kind::Cheap } else { Kind::Checkpoint }
}

/// A result that may be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cached {
    of: Stashed,
    /// Where it is prefetched: at the backward pass of the checkpoint before; where it is needed if there is none.
    prefetch: usize,
}

struct Policy<'a> {
    facts: &'a Facts<'a>,
    cached: Vec<Cached>,
    /// Evictions to be regenerated, behind an op.
    drops: Vec<(usize, TensorId)>,
}

impl<'a> Policy<'a> {
    fn new(facts: &'a Facts<'a>) -> Self {
        let forward = Forward::new(facts);
        let kinds: Vec<Kind> = facts.trace.op_ids().map(|op| kind_of(facts, &forward, op)).collect();
        let is_cheap = cheap_results(facts, &forward, &kinds);
        let mut policy = Self { facts, cached: Vec::new(), drops: Vec::new() };
        if facts.limits.mode != Mode::Recompute {
            policy.cached = cached(&forward, &kinds, &is_cheap);
        }
        if facts.limits.mode != Mode::Swap {
            policy.drops = drops(facts, &forward, &kinds, &is_cheap);
        }
        policy
    }

    /// The faster of offloading alone and with recomputation, of those that keep to the cap; the smaller if neither does.
    fn program(&self, cap: u64) -> Program {
        let mut ways = vec![self.offload(&[], cap)];
        if !self.drops.is_empty() {
            ways.push(self.offload(&self.drops, cap));
        }
        let ways = ways.into_iter().flatten();
        let best =
            ways.min_by_key(
                |(program, tally)| {
                    if tally.peak <= cap { (0, self.step_time(program)) } else { (tally.peak, Nanos::ZERO) }
                },
            );
        match best {
            Some((program, _)) => program,
            None => follow(self.facts, &Plan::keep_all(self.facts)).expect("nothing is evicted"),
        }
    }

    /// In the budget's arena; in its own where that is larger.
    fn step_time(&self, program: &Program) -> Nanos {
        let (trace, limits) = (self.facts.trace, self.facts.limits);
        let timed = place_quickly(trace, limits, program).and_then(|placed| {
            let device = limits.device.max(placed.layout.arena);
            complete(trace, &Limits { device, ..limits.clone() }, placed)
        });
        timed.map_or(Nanos::MAX, |planned| planned.simulation.step_time)
    }

    /// The program that drops what `drops` says, and offloads what the cap asks for; none if the reruns grow beyond all bounds.
    fn offload(&self, drops: &[(usize, TensorId)], cap: u64) -> Option<(Program, Tally)> {
        let facts = self.facts;
        let mut plan = Plan::keep_all(facts);
        for &(after, tensor) in drops {
            plan.drop_after[after].push(tensor);
        }
        let program = follow(facts, &plan).ok()?;
        let tally_before = tally(facts, &program);
        let evictions = self.evictions(&tally_before.usage, cap);
        if evictions.is_empty() {
            return Some((program, tally_before));
        }
        for &Eviction { cached, from, to } in &evictions {
            if facts.trace.producer(cached.of.tensor).is_some() {
                plan.save_after[Forward::begins(facts, cached.of.tensor)].push(cached.of.tensor);
            }
            plan.release_before[from].push((cached.of.tensor, cached.of.needed));
            if to < cached.of.needed {
                plan.claim_before[to].push(cached.of.tensor);
            }
        }
        let program = follow(facts, &plan).ok()?;
        let tally = tally(facts, &program);
        Some((program, tally))
    }

    /// Plays the cache: at every op with too much on the device the least recently used leaves.
    fn evictions(&self, usage: &[u64], cap: u64) -> Vec<Eviction> {
        let mut usage = usage.to_vec();
        let mut evictions: Vec<Eviction> = Vec::new();
        let mut is_out = vec![false; self.cached.len()];
        for position in 0..usage.len() {
            while usage[position] > cap {
                // Ordered by their last use in the forward pass.
                let is_here = |one: &Cached, out: bool| {
                    !out && one.of.last < position && position < one.prefetch.min(one.of.needed)
                };
                let victim = (0..self.cached.len()).find(|&index| is_here(&self.cached[index], is_out[index]));
                if let Some(victim) = victim {
                    is_out[victim] = true;
                    let cached = self.cached[victim];
                    evictions.push(Eviction { cached, from: position, to: cached.prefetch });
                    self.take(&mut usage, cached, position, cached.prefetch);
                    continue;
                }
                // No room to prefetch: those come when they are needed.
                let early =
                    evictions.iter_mut().rev().find(|one| one.to <= position && position < one.cached.of.needed);
                let Some(early) = early else { break };
                let begin = std::mem::replace(&mut early.to, early.cached.of.needed);
                let cached = early.cached;
                self.take(&mut usage, cached, begin, cached.of.needed);
            }
        }
        evictions
    }

    fn take(&self, usage: &mut [u64], cached: Cached, from: usize, to: usize) {
        for used in &mut usage[from..to] {
            *used = used.saturating_sub(self.facts.bytes(cached.of.tensor));
        }
    }
}

/// A result that is on the host between two positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Eviction {
    cached: Cached,
    /// Its bytes go before this op.
    from: usize,
    /// And are claimed before this one.
    to: usize,
}

/// By tensor, whether cheap layers alone make it again: each source is there in the backward pass or made again by cheap layers itself.
fn cheap_results(facts: &Facts<'_>, forward: &Forward, kinds: &[Kind]) -> Vec<bool> {
    let trace = facts.trace;
    let mut is_stashed = vec![false; trace.tensors().len()];
    for one in &forward.stash {
        is_stashed[one.tensor.index()] = true;
    }
    let mut is_cheap = vec![false; trace.tensors().len()];
    for op in trace.op_ids().filter(|op| kinds[op.index()] == Kind::Cheap) {
        let is_there = |tensor: &TensorId| {
            trace.producer(*tensor).is_none() || is_stashed[tensor.index()] || is_cheap[tensor.index()]
        };
        let from_cheap = trace.op(op).reads.iter().all(is_there);
        for &tensor in &trace.op(op).writes {
            is_cheap[tensor.index()] = from_cheap;
        }
    }
    is_cheap
}

/// What checkpoints make, and inputs, by their last use in the forward pass.
fn cached(forward: &Forward, kinds: &[Kind], is_cheap: &[bool]) -> Vec<Cached> {
    let is_cached = |one: &&Stashed| !is_cheap[one.tensor.index()];
    let cached = forward.stash.iter().filter(is_cached).filter(|one| one.needed > one.last + 1);
    cached
        .map(|&of| {
            let behind = (forward.end..of.needed).rev().find(|&op| kinds[op] == Kind::Checkpoint);
            Cached { of, prefetch: behind.unwrap_or(of.needed) }
        })
        .collect()
}

/// What cheap layers make: behind which op it is dropped, segment by segment.
fn drops(facts: &Facts<'_>, forward: &Forward, kinds: &[Kind], is_cheap: &[bool]) -> Vec<(usize, TensorId)> {
    let trace = facts.trace;
    let largest = trace.op_ids().map(|op| working_set(trace, facts.limits, op).0).max().unwrap_or(0);
    // By op of the forward pass, the number of its segment: the checkpoints before it.
    let mut n_checkpoints = 0;
    let segment_of: Vec<usize> = kinds[..forward.end]
        .iter()
        .map(|kind| {
            n_checkpoints += usize::from(*kind == Kind::Checkpoint);
            n_checkpoints
        })
        .collect();
    let is_dropped = |one: &&Stashed| {
        is_cheap[one.tensor.index()] && one.needed > one.last + 1 && Forward::can_be_made_again(facts, one)
    };
    let dropped: Vec<&Stashed> = forward.stash.iter().filter(is_dropped).collect();
    let segment = |one: &Stashed| segment_of[Forward::begins(facts, one.tensor)];
    let mut bytes = vec![0; n_checkpoints + 1];
    for one in &dropped {
        bytes[segment(one)] += facts.bytes(one.tensor);
    }
    let mut drops = Vec::new();
    for one in dropped {
        drops.push((one.last, one.tensor));
        let is_memory_centric = bytes[segment(one)] > largest;
        if is_memory_centric {
            let uses = facts.live.accesses(one.tensor).iter().map(|access| access.op.index());
            drops.extend(uses.filter(|&op| op >= forward.end).map(|op| (op, one.tensor)));
        }
    }
    drops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Bytes;
    use crate::program::Instr;
    use crate::testing::{op, trace};
    use crate::trace::{Op, Role};

    const UNIT: u64 = 256;

    fn of_class(op: Op, class: &str) -> Op {
        Op { class: class.into(), ..op }
    }

    /// Three times conv and relu, a loss, and backward: input 0, results 1 to 6, gradients 7 to 13.
    fn network() -> Trace {
        let mut sizes = vec![(UNIT, Role::Input)];
        sizes.extend([(UNIT, Role::Activation); 6]);
        sizes.extend([(UNIT, Role::Gradient); 7]);
        let class = |layer: u32| if layer.is_multiple_of(2) { "conv2d" } else { "relu" };
        let mut ops: Vec<Op> =
            (0..6).map(|layer| of_class(op(1_000_000, &[layer], &[layer + 1]), class(layer))).collect();
        ops.push(of_class(op(1_000_000, &[6], &[7]), "loss"));
        ops.extend((0..6).map(|step| {
            let layer = 5 - step;
            of_class(op(1_000_000, &[7 + step, layer + 1, layer], &[8 + step]), class(layer))
        }));
        trace(&sizes, ops)
    }

    #[test]
    fn kinds_follow_classes_then_rates() {
        let mut ops: Vec<Op> =
            ["Conv2d", "addmm", "BNForward", "+", "x", "y"].map(|class| of_class(op(100, &[], &[]), class)).into();
        ops[4].writes = vec![TensorId(0)];
        ops[4].latency.0 = 1;
        let trace = trace(&[(UNIT, Role::Activation)], ops);
        let limits = Limits::unlimited();
        let facts = Facts::new(&trace, &limits);
        let kinds: Vec<Kind> = trace.op_ids().map(|op| kind_of(&facts, &Forward::new(&facts), op)).collect();
        use Kind::{Cheap, Checkpoint};
        assert_eq!(kinds, [Checkpoint, Checkpoint, Cheap, Cheap, Cheap, Checkpoint]);
    }

    #[test]
    fn checkpoints_are_cached_and_cheap_layers_dropped() {
        let trace = network();
        let limits = Limits::unlimited();
        let facts = Facts::new(&trace, &limits);
        let policy = Policy::new(&facts);
        // The forward pass ends at the loss, op 6. Backward convolutions are ops 8, 10 and 12, and the loss counts as a checkpoint.
        let cached: Vec<_> = policy.cached.iter().map(|one| (one.of.tensor.0, one.of.needed, one.prefetch)).collect();
        assert_eq!(cached, [(0, 12, 10), (1, 11, 10), (3, 9, 8), (5, 7, 6)]);
        // Each relu is a segment of one unit, within the four of the largest layer; 6 is needed right away.
        assert_eq!(policy.drops, [(2, TensorId(2)), (4, TensorId(4))]);
    }

    #[test]
    fn less_memory_brings_offloading_and_then_recomputation() {
        let trace = network();
        let counts = |units: u64| {
            let limits = Limits::with_budget(Bytes(units * UNIT));
            let planned = SuperNeurons.plan(&trace, &limits).unwrap_or_else(|error| panic!("{units} units: {error}"));
            let count = |of: fn(&Instr) -> bool| planned.synced.instrs().iter().filter(|instr| of(instr)).count();
            (count(|instr| matches!(instr, Instr::SwapOut(_))), count(|instr| matches!(instr, Instr::Rerun { .. })))
        };
        // At op 7 the input, six results and two gradients.
        assert_eq!(counts(9), (0, 0));
        // The input goes without a copy, for the host has it; then 1, then 3.
        assert_eq!(counts(8), (0, 0));
        assert_eq!(counts(7), (1, 0));
        assert_eq!(counts(6), (2, 0));
        // 2, 4, 5, 6 and two gradients do not fit: 2 and 4 are made again.
        assert_eq!(counts(5).1, 2);
    }
}
