//! `capuchin`: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020, section 4 (the decisions of its policy maker) and section 5.
//!
//! The accesses of a measured step tell which tensors are idle while memory is short: an *evicted access* before, a *back access* behind.
//!
//! ```text
//! t        evicted access ─┐                              ┌─ back access
//! out lane                 [swap out]                     ┊
//! in lane                           ├──── free time ────┤[swap in]
//!                                                        ▲ in-trigger: the access at which the swap-in is started
//! ```
//!
//! 1. **Swap** while it hides: by free time (start of the latest swap-in less end of the earliest swap-out), longest first, until enough is saved. A lane carries one copy at a time, so the
//!    free time of each is taken beside those chosen before; where it is below zero the swap does not hide. Bytes are saved from the end of the one copy to the start of the other.
//! 2. **Hybrid**: what then is still missing comes from the cheaper of the best swap (its exposed time, for bytes that go before their copy has ended and come later as well) and the best recomputation (the highest MSPS, memory saving per second). The time of a recomputation
//!    includes its sources that have been chosen for recomputation themselves or are dead by then, so that each choice changes the MSPS of others. What a chain regenerates on the way is kept for its own
//!    back access if there is room (collective recomputation), and dropped again if not.
//! 3. **Feedback**: in-triggers start just in time; the lane is played through, and each swap-in that is late for its back access is triggered earlier by 5 % of its copy, as the original does from one
//!    step to the next, until none is late or none can start earlier.
//! 4. **Decoupled swap-outs**: bytes go when the copy has ended, or earlier if they are wanted earlier; whoever wants them waits.
//!
//! Differences: feedback comes from the lane model instead of measured steps, as latencies of a trace do not vary. Memory to be saved is counted per op, not as one sum, and candidates are all
//! tensors idle at an op that is over the budget. The passive mode (eviction on demand in the measured step) has no counterpart. Parameters and optimizer state stay. In [`Mode::Swap`] and [`Mode::Recompute`] only the one or the other.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use super::away::{first_from, running};
use super::fit;
use super::trips::{Leave, Return, Trip, enter_trips, load};
use crate::id::{OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::follow;
use crate::planner::{Infeasible, Planned, Planner};
use crate::program::Program;
use crate::trace::{Role, Trace};

/// Capuchin (Peng et al., ASPLOS 2020): swaps what hides, then swaps or recomputes what costs less.
///
/// Choices × (candidates × chain length), plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capuchin;

impl Planner for Capuchin {
    fn name(&self) -> &'static str {
        "capuchin"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        fit(trace, limits, |cap| {
            let choices = Choices::make(&facts, cap);
            // Chains of reruns may grow beyond all bounds: the first choices are the best.
            let mut n_recomputed = choices.recomputed.len();
            loop {
                match choices.program(n_recomputed) {
                    Some(program) => return program,
                    None => {
                        assert!(n_recomputed > 0, "a plan without reruns can be followed");
                        n_recomputed /= 2;
                    }
                }
            }
        })
    }
}

/// Most ops of a chain; a longer one is not chosen.
const LONGEST_CHAIN: usize = 24;
/// Most rounds of feedback.
const MOST_ROUNDS: usize = 400;
/// A late swap-in is triggered earlier by its copy's time divided by this.
const FEEDBACK: u64 = 20;

/// A tensor idle over some op that is over the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    tensor: TensorId,
    /// Ops of the evicted access and of the back access.
    from: usize,
    to: usize,
}

/// A candidate that is swapped: start of its swap-out and time of its in-trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Swap {
    of: Candidate,
    hides: bool,
    out: u64,
    trigger: u64,
}

/// What regenerates a tensor.
#[derive(Clone, Debug)]
struct Chain {
    ops: Vec<OpId>,
    /// Sum of their latencies.
    time: u64,
    /// What they regenerate and read.
    on_the_way: Vec<TensorId>,
    /// What they read that is there.
    sources: Vec<TensorId>,
}

/// When a swap that does not hide would run, and the time that it costs.
#[derive(Clone, Copy, Debug)]
struct Exposed {
    out: u64,
    back: u64,
    time: u64,
}

/// When a swap would run.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Earliest start and end of the copy out.
    out: u64,
    ready: u64,
    /// Latest start of the copy back.
    back: u64,
    /// From the one to the other; below zero if they overlap.
    free: i64,
}

struct Choices<'a> {
    facts: &'a Facts<'a>,
    cap: u64,
    /// Bytes by position, with everything and without what has been chosen.
    all: Vec<u64>,
    load: Vec<u64>,
    swaps: Vec<Swap>,
    recomputed: Vec<Candidate>,
    /// By tensor, the ops between which it is dropped.
    gaps: Vec<Vec<(usize, usize)>>,
    /// By tensor, those chosen for recomputation whose chains read it or once did.
    readers: Vec<Vec<usize>>,
    /// Copies planned, by start.
    out_lane: Vec<(u64, u64)>,
    in_lane: Vec<(u64, u64)>,
}

impl<'a> Choices<'a> {
    fn make(facts: &'a Facts<'a>, cap: u64) -> Self {
        let load = load(facts, &Plan::keep_all(facts));
        let mut choices = Self {
            facts,
            cap,
            all: load.clone(),
            load,
            swaps: Vec::new(),
            recomputed: Vec::new(),
            gaps: vec![Vec::new(); facts.trace.tensors().len()],
            readers: vec![Vec::new(); facts.trace.tensors().len()],
            out_lane: Vec::new(),
            in_lane: Vec::new(),
        };
        let mut open = choices.candidates();
        choices.swap_what_hides(&mut open);
        choices.swap_or_recompute(open);
        choices.feed_back();
        choices
    }

    fn is_over(&self, candidate: &Candidate) -> bool {
        self.load[candidate.from + 1..candidate.to].iter().any(|&load| load > self.cap)
    }

    fn candidates(&self) -> Vec<Candidate> {
        let facts = self.facts;
        let mut candidates = Vec::new();
        for tensor in facts.trace.tensor_ids().filter(|&tensor| !facts.is_persistent(tensor)) {
            for pair in facts.live.accesses(tensor).windows(2) {
                let candidate = Candidate { tensor, from: pair[0].op.index(), to: pair[1].op.index() };
                if candidate.to > candidate.from + 1 && self.is_over(&candidate) {
                    candidates.push(candidate);
                }
            }
        }
        candidates
    }

    /// Beside the copies planned.
    fn swap_times(&self, candidate: &Candidate) -> Times {
        let facts = self.facts;
        let index = candidate.tensor.index();
        let from = facts.start[candidate.from + 1];
        let out = earliest(&self.out_lane, from, facts.out_time[index]);
        let ready = if facts.role(candidate.tensor) == Role::Input { from } else { out + facts.out_time[index] };
        let back = latest(&self.in_lane, facts.start[candidate.to], facts.in_time[index]);
        Times { out, ready, back: u64::try_from(back).unwrap_or(0), free: back - ready as i64 }
    }

    /// Counts a tensor as away before ops `from..to`.
    fn take(&mut self, tensor: TensorId, from: usize, to: usize) {
        let bytes = self.facts.bytes(tensor);
        self.load[from..to].iter_mut().for_each(|load| *load -= bytes);
    }

    fn swap(&mut self, candidate: Candidate, hides: bool, out: u64, back: u64) {
        let facts = self.facts;
        let index = candidate.tensor.index();
        if facts.role(candidate.tensor) != Role::Input {
            insert(&mut self.out_lane, out, facts.out_time[index]);
        }
        insert(&mut self.in_lane, back, facts.in_time[index]);
        // Just in time, as far as the lane allows.
        let trigger = back.min(facts.start[candidate.to].saturating_sub(facts.in_time[index]));
        self.swaps.push(Swap { of: candidate, hides, out, trigger });
    }

    /// Swaps that hide count from the end of the one copy to the start of the other.
    fn swap_what_hides(&mut self, open: &mut Vec<Candidate>) {
        let facts = self.facts;
        let swappable = open.iter().filter(|candidate| facts.may_swap(candidate.tensor));
        let mut order: Vec<(i64, Candidate)> =
            swappable.map(|candidate| (self.swap_times(candidate).free, *candidate)).collect();
        order.sort_by_key(|&(free, candidate)| (Reverse(free), candidate.tensor, candidate.from));
        for (_, candidate) in order {
            let times = self.swap_times(&candidate);
            let (from, to) = (first_from(facts, times.ready).max(candidate.from + 1), running(facts, times.back));
            let helps = from < to && self.load[from..to].iter().any(|&load| load > self.cap);
            if times.free >= 0 && helps {
                self.swap(candidate, true, times.out, times.back);
                self.take(candidate.tensor, from, to);
                open.retain(|other| *other != candidate);
            }
        }
    }

    /// The cheaper of the best swap and the best recomputation, until the load is within the budget or nothing is left.
    fn swap_or_recompute(&mut self, open: Vec<Candidate>) {
        let facts = self.facts;
        // Ops over the budget that each is to relieve: the first and the last.
        let over = |candidate: &Candidate| {
            let mut positions = (candidate.from + 1..candidate.to).filter(|&position| self.load[position] > self.cap);
            let first = positions.next()?;
            Some((first, positions.next_back().unwrap_or(first)))
        };
        let over: Vec<Option<(usize, usize)>> = open.iter().map(over).collect();
        // Swaps expose more and recomputations save less per time as others are chosen, so what is best by its latest value and by the stored ones is best.
        let mut swaps = BinaryHeap::new();
        let mut reruns = BinaryHeap::new();
        for (index, candidate) in open.iter().enumerate() {
            let Some(over) = over[index] else { continue };
            if facts.may_swap(candidate.tensor) {
                swaps.push((Reverse(self.exposed(candidate, over).time), Reverse(index)));
            }
            if let Some(chain) = self.chain(candidate, None) {
                reruns.push((self.saving(candidate, chain.time), Reverse(index)));
            }
        }
        let mut is_open: Vec<bool> = over.iter().map(Option::is_some).collect();
        let exposed = |choices: &Self, index: usize| choices.exposed(&open[index], over[index].unwrap_or_default());
        loop {
            let swap = best(&mut swaps, |index| {
                (is_open[index] && self.is_over(&open[index])).then(|| Reverse(exposed(self, index).time))
            });
            let rerun = best(&mut reruns, |index| {
                let is_wanted = is_open[index] && self.is_over(&open[index]);
                let chain = is_wanted.then(|| self.acceptable(&open[index]))??;
                Some(self.saving(&open[index], chain.time))
            });
            let recompute = match (swap, rerun) {
                (Some((exposed, _)), Some((saving, _))) => saving.time < exposed.0,
                (swap, _) => swap.is_none(),
            };
            let chosen = if recompute { rerun.map(|rerun| rerun.1) } else { swap.map(|swap| swap.1) };
            let Some(index) = chosen else { return };
            if recompute {
                self.recompute(open[index]);
            } else {
                let Exposed { out, back, .. } = exposed(self, index);
                self.swap(open[index], false, out, back);
            }
            is_open[index] = false;
            let Candidate { tensor, from, to } = open[index];
            self.take(tensor, from + 1, to);
        }
    }

    /// A swap that is to relieve the ops `over`, from the first to the last: time by which it delays the first, because its copy out has not ended, and its back access, because its copy
    /// back cannot start before the last.
    fn exposed(&self, candidate: &Candidate, over: (usize, usize)) -> Exposed {
        let facts = self.facts;
        let copy = facts.in_time[candidate.tensor.index()];
        let Times { out, ready, .. } = self.swap_times(candidate);
        let back = earliest(&self.in_lane, ready.max(facts.start[over.1 + 1]), copy);
        let late_out = ready.saturating_sub(facts.start[over.0]);
        let late_back = (back + copy).saturating_sub(facts.start[candidate.to]);
        Exposed { out, back, time: late_out + late_back }
    }

    fn saving(&self, candidate: &Candidate, time: u64) -> Saving {
        Saving { bytes: self.facts.bytes(candidate.tensor), time }
    }

    /// What would regenerate a tensor at its back access, if `also` were dropped as well; none if that is impossible or too long.
    fn chain(&self, candidate: &Candidate, also: Option<&Candidate>) -> Option<Chain> {
        let facts = self.facts;
        let is_possible = facts.limits.mode != Mode::Swap && facts.role(candidate.tensor) != Role::Input;
        if !is_possible || facts.deadline[candidate.tensor.index()] < candidate.to as i64 {
            return None;
        }
        let is_gone = |tensor: TensorId| {
            let is_over_it = |&(from, to): &(usize, usize)| from < candidate.to && candidate.to < to;
            facts.needed_until[tensor.index()] < candidate.to as i64
                || self.gaps[tensor.index()].iter().any(is_over_it)
                || also.is_some_and(|also| also.tensor == tensor && is_over_it(&(also.from, also.to)))
        };
        let mut chain = Chain { ops: Vec::new(), time: 0, on_the_way: Vec::new(), sources: Vec::new() };
        let mut stack = vec![candidate.tensor];
        while let Some(tensor) = stack.pop() {
            let op = facts.trace.producer(tensor)?;
            if chain.ops.contains(&op) {
                continue;
            }
            if chain.ops.len() == LONGEST_CHAIN {
                return None;
            }
            chain.ops.push(op);
            chain.time += facts.trace.op(op).latency.0;
            for &source in &facts.trace.op(op).reads {
                if facts.is_persistent(source) || facts.role(source) == Role::Input {
                    continue;
                }
                if is_gone(source) {
                    chain.on_the_way.push(source);
                    stack.push(source);
                } else {
                    chain.sources.push(source);
                }
            }
        }
        for tensors in [&mut chain.on_the_way, &mut chain.sources] {
            tensors.sort_unstable();
            tensors.dedup();
        }
        Some(chain)
    }

    /// The chain of a candidate, unless others that have been chosen read it and their chains would become too long.
    fn acceptable(&self, candidate: &Candidate) -> Option<Chain> {
        let chain = self.chain(candidate, None)?;
        let readers = &self.readers[candidate.tensor.index()];
        readers.iter().all(|&reader| self.chain(&self.recomputed[reader], Some(candidate)).is_some()).then_some(chain)
    }

    fn recompute(&mut self, candidate: Candidate) {
        let index = candidate.tensor.index();
        self.gaps[index].push((candidate.from, candidate.to));
        self.recomputed.push(candidate);
        // Chains that read it go through it now.
        let mut changed = self.readers[index].clone();
        changed.push(self.recomputed.len() - 1);
        for reader in changed {
            let sources = self.chain(&self.recomputed[reader], None).map(|chain| chain.sources).unwrap_or_default();
            for source in sources {
                if !self.readers[source.index()].contains(&reader) {
                    self.readers[source.index()].push(reader);
                }
            }
        }
    }

    /// Triggers swap-ins that are late earlier, until none is or none can be.
    fn feed_back(&mut self) {
        let facts = self.facts;
        for _ in 0..MOST_ROUNDS {
            self.swaps.sort_by_key(|swap| (swap.trigger, swap.of.to, swap.of.tensor));
            let mut free = 0;
            let mut is_settled = true;
            for swap in &mut self.swaps {
                let index = swap.of.tensor.index();
                let copy = facts.in_time[index];
                free = swap.trigger.max(free) + copy;
                let out = if facts.role(swap.of.tensor) == Role::Input { 0 } else { facts.out_time[index] };
                let earliest = (swap.out + out).min(facts.start[swap.of.to]);
                if free > facts.start[swap.of.to] && swap.trigger > earliest {
                    swap.trigger = swap.trigger.saturating_sub((copy / FEEDBACK).max(1)).max(earliest);
                    is_settled = false;
                }
            }
            if is_settled {
                return;
            }
        }
    }

    /// The program that recomputes the first so many of those chosen for it; none if its chains grow too long.
    fn program(&self, n_recomputed: usize) -> Option<Program> {
        let facts = self.facts;
        let mut plan = Plan::keep_all(facts);
        let recomputed = &self.recomputed[..n_recomputed];
        let mut load = self.all.clone();
        for one in recomputed.iter().chain(self.swaps.iter().map(|swap| &swap.of)) {
            load[one.from + 1..one.to].iter_mut().for_each(|load| *load -= facts.bytes(one.tensor));
        }
        for one in recomputed {
            plan.drop_after[one.from].push(one.tensor);
        }
        self.collect(&mut plan, &mut load, recomputed);
        let trip = |swap: &Swap| Trip {
            tensor: swap.of.tensor,
            hides: swap.hides,
            leave: Some(Leave {
                after: swap.of.from + 1,
                latest: facts.n_ops(),
                copy: match facts.role(swap.of.tensor) {
                    Role::Input => (facts.start[swap.of.from + 1], facts.start[swap.of.from + 1]),
                    _ => (swap.out, swap.out + facts.out_time[swap.of.tensor.index()]),
                },
            }),
            back: Some(Return { earliest: 0, until: swap.of.to, start: swap.trigger }),
        };
        enter_trips(facts, &mut plan, &mut load, self.cap, self.swaps.iter().map(trip).collect());
        follow(facts, &plan).ok()
    }
}

impl Choices<'_> {
    /// What chains regenerate on the way stays for its own back access where there is room for it, and is dropped again where there is not.
    fn collect(&self, plan: &mut Plan, load: &mut [u64], recomputed: &[Candidate]) {
        let facts = self.facts;
        // By tensor, the gaps that are left, each from the op behind which it is dropped.
        let mut gaps: BTreeMap<(TensorId, usize), usize> =
            recomputed.iter().map(|one| ((one.tensor, one.from), one.to)).collect();
        let mut order: Vec<&Candidate> = recomputed.iter().collect();
        order.sort_by_key(|one| (one.to, one.tensor));
        for one in order {
            if !gaps.contains_key(&(one.tensor, one.from)) {
                continue;
            }
            for tensor in self.chain(one, None).map(|chain| chain.on_the_way).unwrap_or_default() {
                let gap = gaps.range((tensor, 0)..(tensor, one.to)).next_back();
                let Some((&(_, from), &to)) = gap.filter(|(_, to)| **to > one.to) else { continue };
                let bytes = facts.bytes(tensor);
                let rest = &mut load[one.to + 1..to];
                if rest.iter().all(|load| load + bytes <= self.cap) {
                    rest.iter_mut().for_each(|load| *load += bytes);
                    gaps.remove(&(tensor, from));
                } else {
                    plan.drop_after[one.to].push(tensor);
                }
            }
        }
    }
}

/// What a recomputation saves; the more bytes per time the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saving {
    bytes: u64,
    time: u64,
}

impl Ord for Saving {
    fn cmp(&self, other: &Self) -> Ordering {
        let [mine, others] = [(self, other), (other, self)].map(|(a, b)| u128::from(a.bytes) * u128::from(b.time));
        // Of what takes no time the larger is greater.
        mine.cmp(&others).then(self.bytes.cmp(&other.bytes))
    }
}

impl PartialOrd for Saving {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The greatest entry of a heap by the values that `now` gives, which are never greater than the stored ones; it stays in the heap. Entries without a value are removed for good.
fn best<T: Ord + Copy>(
    heap: &mut BinaryHeap<(T, Reverse<usize>)>,
    now: impl Fn(usize) -> Option<T>,
) -> Option<(T, usize)> {
    while let Some((stored, Reverse(index))) = heap.pop() {
        let Some(value) = now(index) else { continue };
        heap.push((value, Reverse(index)));
        if value == stored {
            return Some((value, index));
        }
    }
    None
}

/// Earliest start of a copy on a lane, from a time on.
fn earliest(lane: &[(u64, u64)], from: u64, length: u64) -> u64 {
    let next = lane.partition_point(|copy| copy.1 <= from);
    let mut start = from;
    for copy in &lane[next..] {
        if start + length <= copy.0 {
            break;
        }
        start = start.max(copy.1);
    }
    start
}

/// Latest start of a copy on a lane that ends at a time or before; below zero if it had to begin before the step.
fn latest(lane: &[(u64, u64)], to: u64, length: u64) -> i64 {
    let before = lane.partition_point(|copy| copy.0 < to);
    let mut end = to;
    for copy in lane[..before].iter().rev() {
        if copy.1 + length <= end {
            break;
        }
        end = end.min(copy.0);
    }
    end as i64 - length as i64
}

/// Puts a copy on a lane; exposed copies may overlap others.
fn insert(lane: &mut Vec<(u64, u64)>, start: u64, length: u64) {
    let place = lane.partition_point(|copy| copy.0 < start);
    lane.insert(place, (start, start + length));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Bytes, Nanos};
    use crate::limits::Link;
    use crate::testing::{bytewise, op, trace};

    /// A byte takes a nanosecond.
    fn limits(mode: Mode) -> Limits {
        let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos::ZERO, ..Link::PCIE3_X16 };
        Limits { link, mode, ..bytewise() }
    }

    /// ```text
    /// op       0    1    2    3    4    5    6    7     ops of 100 ns, but op 1 takes 300
    /// a (100)  W                                  R     idle for 800 ns: 600 free
    /// b (100)       W                        R          idle for 400 ns: 200 free
    /// c (100)            W              R               idle for 200 ns: none free
    /// d (100)                 W    R
    /// ```
    fn nested() -> Trace {
        trace(
            &[(100, Role::Activation); 4],
            vec![
                op(100, &[], &[0]),
                op(300, &[], &[1]),
                op(100, &[], &[2]),
                op(100, &[], &[3]),
                op(100, &[3], &[]),
                op(100, &[2], &[]),
                op(100, &[1], &[]),
                op(100, &[0], &[]),
            ],
        )
    }

    fn chosen(trace: &Trace, mode: Mode, cap: u64) -> (Vec<u32>, Vec<u32>) {
        let limits = limits(mode);
        let facts = Facts::new(trace, &limits);
        let choices = Choices::make(&facts, cap);
        let mut swapped: Vec<u32> = choices.swaps.iter().map(|swap| swap.of.tensor.0).collect();
        swapped.sort_unstable();
        (swapped, choices.recomputed.iter().map(|one| one.tensor.0).collect())
    }

    /// Those with most free time are swapped first. c's copy back starts when its copy out ends, so that its bytes would never be free; recomputing it takes 100 ns, and a swap without its bytes in ops
    /// 3 and 4 would cost more.
    #[test]
    fn what_hides_is_swapped_by_free_time() {
        assert_eq!(chosen(&nested(), Mode::Both, 400), (vec![], vec![]));
        assert_eq!(chosen(&nested(), Mode::Both, 300), (vec![0], vec![]));
        assert_eq!(chosen(&nested(), Mode::Both, 200), (vec![0, 1], vec![]));
        assert_eq!(chosen(&nested(), Mode::Both, 100), (vec![0, 1], vec![2]));
        assert_eq!(chosen(&nested(), Mode::Swap, 100), (vec![0, 1, 2], vec![]));
    }

    /// With copies twice as slow only a hides, and it is on its way back in op 5. A swap of b instead would cost 100 ns before op 3 and 300 before op 6, beside a's copies; recomputing c takes 100 ns
    /// and b 300, so c saves most per time. But c is needed in op 5.
    #[test]
    fn what_does_not_hide_is_recomputed_if_that_takes_less() {
        let trace = nested();
        let slow = Link { out_bytes_per_s: 5e8, in_bytes_per_s: 5e8, ..limits(Mode::Both).link };
        let made = |mode, cap| {
            let limits = Limits { link: slow, ..limits(mode) };
            let facts = Facts::new(&trace, &limits);
            let choices = Choices::make(&facts, cap);
            let swapped: Vec<u32> = choices.swaps.iter().map(|swap| swap.of.tensor.0).collect();
            let recomputed: Vec<u32> = choices.recomputed.iter().map(|one| one.tensor.0).collect();
            (swapped, recomputed)
        };
        assert_eq!(made(Mode::Both, 300), (vec![0], vec![]));
        assert_eq!(made(Mode::Both, 200), (vec![0], vec![2, 1]));
        assert_eq!(made(Mode::Swap, 200).1, Vec::<u32>::new());
        assert_eq!(made(Mode::Recompute, 200), (vec![], vec![0, 2]));
    }

    /// x and y must both be back for ops one behind the other; the in lane is free for one copy at a time, so x is triggered before its ideal time.
    ///
    /// ```text
    /// op       0    1    2    3    4    5      ops of 100 ns, op 5 takes 10
    /// x (100)  W                        R
    /// y (100)       W                        R
    /// z (300)                 W    R
    /// ```
    #[test]
    fn feedback_moves_triggers_until_nothing_is_late() {
        let trace = trace(
            &[(100, Role::Activation), (100, Role::Activation), (300, Role::Activation)],
            vec![
                op(100, &[], &[0]),
                op(100, &[], &[1]),
                op(100, &[], &[]),
                op(300, &[], &[2]),
                op(100, &[2], &[]),
                op(10, &[0], &[]),
                op(100, &[1], &[]),
            ],
        );
        let limits = limits(Mode::Swap);
        let facts = Facts::new(&trace, &limits);
        let choices = Choices::make(&facts, 300);
        let mut free = 0;
        assert_eq!(choices.swaps.len(), 2);
        let ideal = |swap: &Swap| facts.start[swap.of.to] - 100;
        assert!(choices.swaps.iter().any(|swap| swap.trigger < ideal(swap)), "the ideal triggers are 10 ns apart");
        for swap in &choices.swaps {
            free = swap.trigger.max(free) + 100;
            assert!(free <= facts.start[swap.of.to], "{swap:?} is late");
        }
    }

    #[test]
    fn budgets_are_met() {
        let trace = nested();
        for mode in [Mode::Swap, Mode::Recompute, Mode::Both] {
            let lowest = match Capuchin.plan(&trace, &Limits { device: Bytes(0), ..limits(mode) }) {
                Err(Infeasible::Device { lowest, .. }) => lowest,
                other => panic!("{other:?}"),
            };
            assert_eq!(lowest, Bytes(100), "one tensor at a time");
            for device in [100, 200, 300] {
                let planned = Capuchin.plan(&trace, &Limits { device: Bytes(device), ..limits(mode) }).unwrap();
                assert!(planned.report.reruns == 0 || mode != Mode::Swap, "{mode:?} {device}");
                assert_eq!(planned.report.swap_outs > 0, mode != Mode::Recompute, "{mode:?} {device}");
            }
        }
    }
}
