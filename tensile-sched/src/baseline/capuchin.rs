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
//!    free time of each is taken beside those chosen before; where it is below zero the swap does not hide.
//! 2. **Hybrid**: what then is still missing comes from the cheaper of the best swap (its exposed time) and the best recomputation (the highest MSPS, memory saving per second). The time of a recomputation
//!    includes its sources that have been chosen for recomputation themselves or are dead by then, so that each choice changes the MSPS of others. What a chain regenerates on the way is kept for its own
//!    back access if there is room (collective recomputation), and dropped again if not.
//! 3. **Feedback**: in-triggers start at the ideal time; the lane is played through, and each swap-in that is late for its back access is triggered earlier by 5 % of its copy, as the original does from one
//!    step to the next, until none is late or none can start earlier.
//! 4. **Decoupled swap-outs**: bytes go when the copy has ended, or earlier if they are wanted earlier; whoever wants them waits.
//!
//! Differences: feedback comes from the lane model instead of measured steps, as latencies of a trace do not vary. Memory to be saved is counted per op, not as one sum, and candidates are all
//! tensors idle at an op that is over the budget. The passive mode (eviction on demand in the measured step) has no counterpart. Parameters and optimizer state stay. In [`Mode::Swap`] and [`Mode::Recompute`] only the one or the other.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

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

/// Most ops of a chain that are looked at; a longer one is not chosen.
const LONGEST_CHAIN: usize = 64;
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
    out: u64,
    trigger: u64,
}

struct Choices<'a> {
    facts: &'a Facts<'a>,
    cap: u64,
    /// Bytes by position, without what has been chosen.
    load: Vec<u64>,
    swaps: Vec<Swap>,
    recomputed: Vec<Candidate>,
    /// By tensor, the ops between which it is dropped.
    gaps: Vec<Vec<(usize, usize)>>,
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
            load,
            swaps: Vec::new(),
            recomputed: Vec::new(),
            gaps: vec![Vec::new(); facts.trace.tensors().len()],
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

    /// When the copies of a swap would start at the earliest and at the latest, and how long both overlap: the exposed time. The time between, if they do not, is the free time.
    fn swap_times(&self, candidate: &Candidate) -> (u64, u64, i64) {
        let facts = self.facts;
        let index = candidate.tensor.index();
        let (from, to) = (facts.start[candidate.from + 1], facts.start[candidate.to]);
        let out = earliest(&self.out_lane, from, facts.out_time[index]);
        let ready = if facts.role(candidate.tensor) == Role::Input { from } else { out + facts.out_time[index] };
        let back = latest(&self.in_lane, to, facts.in_time[index]);
        (out, u64::try_from(back).unwrap_or(0).max(ready), back - ready as i64)
    }

    fn take(&mut self, candidate: Candidate) {
        let bytes = self.facts.bytes(candidate.tensor);
        self.load[candidate.from + 1..candidate.to].iter_mut().for_each(|load| *load -= bytes);
    }

    fn swap(&mut self, candidate: Candidate) {
        let facts = self.facts;
        let index = candidate.tensor.index();
        let (out, back, _) = self.swap_times(&candidate);
        if facts.role(candidate.tensor) != Role::Input {
            insert(&mut self.out_lane, out, facts.out_time[index]);
        }
        insert(&mut self.in_lane, back, facts.in_time[index]);
        // The ideal in-trigger, whatever else is on the lane.
        let ideal = facts.start[candidate.to].saturating_sub(facts.in_time[index]);
        self.swaps.push(Swap { of: candidate, out, trigger: ideal });
        self.take(candidate);
    }

    fn swap_what_hides(&mut self, open: &mut Vec<Candidate>) {
        if self.facts.limits.mode == Mode::Recompute {
            open.retain(|candidate| self.facts.may_swap(candidate.tensor));
        }
        let mut order: Vec<(i64, Candidate)> =
            open.iter().map(|candidate| (self.swap_times(candidate).2, *candidate)).collect();
        order.sort_by_key(|&(free, candidate)| (Reverse(free), candidate.tensor, candidate.from));
        for (_, candidate) in order {
            if self.is_over(&candidate) && self.swap_times(&candidate).2 >= 0 {
                self.swap(candidate);
                open.retain(|other| *other != candidate);
            }
        }
        if self.facts.limits.mode == Mode::Recompute {
            *open = self.candidates();
            open.retain(|candidate| !self.swaps.iter().any(|swap| swap.of == *candidate));
        }
    }

    /// The cheaper of the best swap and the best recomputation, until the load is within the budget or nothing is left.
    fn swap_or_recompute(&mut self, open: Vec<Candidate>) {
        let facts = self.facts;
        // Swaps expose more and recomputations save less per time as others are chosen, so what is best by its latest value and by the stored ones is best.
        let mut swaps = BinaryHeap::new();
        let mut reruns = BinaryHeap::new();
        for (index, candidate) in open.iter().enumerate() {
            if facts.may_swap(candidate.tensor) {
                swaps.push((Reverse(self.exposed(candidate)), Reverse(index)));
            }
            if let Some(time) = self.recompute_time(candidate, None) {
                reruns.push((self.saving(candidate, time), Reverse(index)));
            }
        }
        let mut is_open = vec![true; open.len()];
        loop {
            let swap = best(&mut swaps, |index| {
                (is_open[index] && self.is_over(&open[index])).then(|| Reverse(self.exposed(&open[index])))
            });
            let rerun = best(&mut reruns, |index| {
                let time = self.recompute_time(&open[index], None).filter(|_| is_open[index])?;
                self.is_over(&open[index]).then(|| self.saving(&open[index], time))
            });
            let recompute = match (swap, rerun) {
                (Some((exposed, _)), Some((saving, _))) => saving.time < exposed.0,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (None, None) => return,
            };
            match (swap, rerun) {
                (_, Some((_, index))) if recompute => {
                    is_open[index] = false;
                    self.gaps[open[index].tensor.index()].push((open[index].from, open[index].to));
                    self.recomputed.push(open[index]);
                    self.take(open[index]);
                }
                (Some((_, index)), _) => {
                    is_open[index] = false;
                    self.swap(open[index]);
                }
                _ => return,
            }
        }
    }

    /// Time by which a swap delays the back access.
    fn exposed(&self, candidate: &Candidate) -> u64 {
        u64::try_from(-self.swap_times(candidate).2).unwrap_or(0)
    }

    fn saving(&self, candidate: &Candidate, time: u64) -> Saving {
        Saving { bytes: self.facts.bytes(candidate.tensor), time }
    }

    /// Latencies of what would regenerate a tensor at its back access; none if that is impossible or too long. The tensors it regenerates on the way are added to `on_the_way`.
    fn recompute_time(&self, candidate: &Candidate, mut on_the_way: Option<&mut Vec<TensorId>>) -> Option<u64> {
        let facts = self.facts;
        let is_possible = facts.limits.mode != Mode::Swap && facts.role(candidate.tensor) != Role::Input;
        if !is_possible || facts.deadline[candidate.tensor.index()] < candidate.to as i64 {
            return None;
        }
        let is_gone = |tensor: TensorId| {
            let is_over_it = |&(from, to): &(usize, usize)| from < candidate.to && candidate.to < to;
            facts.needed_until[tensor.index()] < candidate.to as i64 || self.gaps[tensor.index()].iter().any(is_over_it)
        };
        let mut chain: Vec<OpId> = Vec::new();
        let mut stack = vec![candidate.tensor];
        let mut time = 0;
        while let Some(tensor) = stack.pop() {
            if tensor != candidate.tensor
                && let Some(tensors) = &mut on_the_way
            {
                tensors.push(tensor);
            }
            let op = facts.trace.producer(tensor)?;
            if chain.contains(&op) {
                continue;
            }
            if chain.len() == LONGEST_CHAIN {
                return None;
            }
            chain.push(op);
            time += facts.trace.op(op).latency.0;
            let sources = facts.trace.op(op).reads.iter().copied();
            stack.extend(sources.filter(|&source| {
                !facts.is_persistent(source) && facts.role(source) != Role::Input && is_gone(source)
            }));
        }
        Some(time)
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
        let mut load = self.load.clone();
        let recomputed = &self.recomputed[..n_recomputed];
        for one in &self.recomputed[n_recomputed..] {
            load[one.from + 1..one.to].iter_mut().for_each(|load| *load += facts.bytes(one.tensor));
        }
        for one in recomputed {
            plan.drop_after[one.from].push(one.tensor);
        }
        self.collect(&mut plan, &mut load, recomputed);
        let trip = |swap: &Swap| Trip {
            tensor: swap.of.tensor,
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
        let mut on_the_way = Vec::new();
        for one in order {
            on_the_way.clear();
            if !gaps.contains_key(&(one.tensor, one.from)) || self.recompute_time(one, Some(&mut on_the_way)).is_none()
            {
                continue;
            }
            on_the_way.sort_unstable();
            on_the_way.dedup();
            for &tensor in &on_the_way {
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

    /// Those with most free time are swapped first; c just hides as well, its copy back starts when its copy out ends.
    #[test]
    fn what_hides_is_swapped_by_free_time() {
        assert_eq!(chosen(&nested(), Mode::Both, 400), (vec![], vec![]));
        assert_eq!(chosen(&nested(), Mode::Both, 300), (vec![0], vec![]));
        assert_eq!(chosen(&nested(), Mode::Both, 200), (vec![0, 1], vec![]));
        assert_eq!(chosen(&nested(), Mode::Both, 100), (vec![0, 1, 2], vec![]));
    }

    /// With copies three times as slow only a hides. Beside its copies a swap of b exposes 400 ns and one of c 500; recomputing c takes 100 ns and b 300, so c saves most per time.
    #[test]
    fn what_does_not_hide_is_recomputed_if_that_takes_less() {
        let trace = nested();
        let slow = Link { out_bytes_per_s: 1e9 / 3.0, in_bytes_per_s: 1e9 / 3.0, ..limits(Mode::Both).link };
        let made = |mode, cap| {
            let limits = Limits { link: slow, ..limits(mode) };
            let facts = Facts::new(&trace, &limits);
            let choices = Choices::make(&facts, cap);
            let swapped: Vec<u32> = choices.swaps.iter().map(|swap| swap.of.tensor.0).collect();
            let recomputed: Vec<u32> = choices.recomputed.iter().map(|one| one.tensor.0).collect();
            (swapped, recomputed)
        };
        assert_eq!(made(Mode::Both, 300), (vec![0], vec![]));
        assert_eq!(made(Mode::Both, 200), (vec![0], vec![2]));
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
                assert_eq!(planned.report.reruns > 0, mode == Mode::Recompute, "{mode:?} {device}");
                assert_eq!(planned.report.swap_outs > 0, mode != Mode::Recompute, "{mode:?} {device}");
            }
        }
    }
}
