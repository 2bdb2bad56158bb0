//! Chooses evictions before the walk: a cover of all positions over budget, at the least exposed time.
//!
//! ```text
//! position      0   1   2   3   4   5   6   7   8
//! over budget           ##  ##  ##  ##
//! t, idle       W   ─────────────────────   R          evicting t relieves positions between the end of its swap-out and the start of its
//! out lane          [copy]                             swap-in, or all of them if it is regenerated
//! in lane                               [copy]
//! ```
//!
//! The idle interval whose eviction relieves most bytes × positions per cost comes first. A chain of reruns that regenerates a tensor at position b reads its sources
//! there: that is one more access, which splits the sources' idle intervals, or brings a source back earlier if it has been evicted over b.

use std::collections::BinaryHeap;

use super::excess::Excess;
use super::lane::Circle;
use crate::id::{OpId, TensorId};
use crate::limits::Mode;
use crate::liveness::AccessKind;
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::{Marks, Way};
use crate::trace::Role;

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CoverOptions {
    /// Price of a nanosecond of a copy lane, in nanoseconds of the step.
    pub(super) lane_price: f64,
    /// Copies are taken to last this many times their estimate.
    pub(super) margin: f64,
}

/// By tensor, factors on the scores of its evictions: what the [`search`](super::search) varies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bias {
    pub(super) swap: Vec<f32>,
    pub(super) rerun: Vec<f32>,
}

impl Bias {
    /// Scores as they are.
    pub(super) fn none(n_tensors: usize) -> Self {
        Self { swap: vec![1.0; n_tensors], rerun: vec![1.0; n_tensors] }
    }
}

/// Chooses evictions so that usage stays within `caps`, as far as it can. `start` tells when each op starts (one entry more than there are ops).
pub(super) fn cover(facts: &Facts<'_>, caps: &[u64], start: &[u64], options: CoverOptions, bias: &Bias) -> Plan {
    let mut cover = Cover::new(facts, caps, start, options, bias);
    cover.choose();
    cover.drop_redundant();
    cover.plan()
}

/// How an idle interval is used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    Keep,
    /// Regenerated at its end.
    Rerun,
    /// On the host during positions `low..high`.
    Swap {
        low: usize,
        high: usize,
    },
}

/// An idle interval between two accesses, chains included; positions from n on mean the next step.
#[derive(Clone, Copy, Debug)]
struct Gap {
    tensor: TensorId,
    from: usize,
    to: usize,
    choice: Choice,
    cost: f64,
}

/// A possible use of a gap.
#[derive(Clone, Debug)]
struct Offer {
    score: f64,
    cost: f64,
    way: Way,
    low: usize,
    high: usize,
    /// Start of the swap-out, if one is needed, and of the swap-in.
    out_start: Option<u64>,
    in_start: Option<u64>,
}

/// Most ops of a chain that are looked at.
const LONGEST_CHAIN: usize = 40;
/// Scores sink while others are accepted; one that was best is taken if it has not sunk below this share of the next.
const CLOSE_ENOUGH: f64 = 0.95;
/// Added to every cost, in ns.
const LEAST_COST: f64 = 500.0;
/// An input that is idle for this many times its copy's time is read twice.
const WORTH_READING_AGAIN: u64 = 3;

struct Cover<'a> {
    facts: &'a Facts<'a>,
    start: &'a [u64],
    options: CoverOptions,
    bias: &'a Bias,
    /// Bytes over the cap by position.
    excess: Excess,
    gaps: Vec<Gap>,
    /// Gaps of each tensor, by start.
    of_tensor: Vec<Vec<usize>>,
    out_lane: Circle,
    in_lane: Circle,
    /// Swap-outs that have been booked: by tensor and position of the write, the start.
    saved: std::collections::BTreeMap<(TensorId, usize), u64>,
    /// Tensors with a copy on the host, each counted for the whole step, and their bytes.
    on_host: std::collections::BTreeSet<TensorId>,
    host_used: u64,
    /// By position, bytes that chains before the op may use on the way without more than the op itself needs: its writes and workspace.
    spare: Vec<u64>,
    marks: Marks,
}

/// An entry of the queue, best score first.
#[derive(Clone, Copy, PartialEq)]
struct Entry {
    score: f64,
    gap: usize,
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.score.total_cmp(&other.score).then(other.gap.cmp(&self.gap))
    }
}

impl<'a> Cover<'a> {
    fn new(facts: &'a Facts<'a>, caps: &[u64], start: &'a [u64], options: CoverOptions, bias: &'a Bias) -> Self {
        let usage = facts.live.usage(facts.trace, facts.limits);
        let n_ops = facts.n_ops();
        let excess = usage.iter().take(n_ops).zip(caps).map(|(usage, &cap)| usage.0 as i64 - cap.min(1 << 60) as i64);
        let period = start[n_ops];
        let mut cover = Self {
            facts,
            start,
            options,
            bias,
            excess: Excess::new(excess.collect()),
            gaps: Vec::new(),
            of_tensor: vec![Vec::new(); facts.trace.tensors().len()],
            out_lane: Circle::new(period),
            in_lane: Circle::new(period),
            saved: std::collections::BTreeMap::new(),
            on_host: std::collections::BTreeSet::new(),
            host_used: 0,
            spare: Vec::new(),
            marks: Marks::default(),
        };
        for op in facts.trace.op_ids() {
            let taken: u64 = facts.live.takeovers(facts.trace, op).iter().map(|pair| facts.bytes(pair.output)).sum();
            let writes: u64 = facts.trace.op(op).writes.iter().map(|&tensor| facts.bytes(tensor)).sum();
            cover.spare.push(writes - taken + facts.workspace[op.index()]);
        }
        cover.spare.push(0);
        for tensor in facts.trace.tensor_ids() {
            let accesses = facts.live.accesses(tensor);
            for pair in accesses.windows(2) {
                cover.add_gap(tensor, pair[0].op.index(), pair[1].op.index());
            }
            let (Some(first), Some(last)) = (accesses.first(), accesses.last()) else {
                // Nobody touches it: it is on the host for good.
                if facts.is_persistent(tensor) && facts.limits.mode != Mode::Recompute {
                    cover.excess.change(-(facts.bytes(tensor) as i64), 0, n_ops);
                    cover.host_used += facts.bytes(tensor);
                }
                continue;
            };
            if facts.is_persistent(tensor) {
                cover.add_gap(tensor, last.op.index(), first.op.index() + n_ops);
            } else if facts.trace.tensor(tensor).keep {
                cover.add_gap(tensor, last.op.index(), n_ops);
            }
        }
        cover.read_inputs_again();
        cover
    }

    /// An input that is still read near the end of the step keeps the next step's from coming in early: it goes after its first reads and comes again.
    fn read_inputs_again(&mut self) {
        for gap in 0..self.gaps.len() {
            let of = self.gaps[gap];
            if self.facts.role(of.tensor) != Role::Input || of.to >= self.facts.n_ops() {
                continue;
            }
            let idle = self.time(of.to) - self.time(of.from + 1);
            if idle < WORTH_READING_AGAIN * self.facts.in_time[of.tensor.index()] {
                continue;
            }
            if let Some(offer) = self.swap_offers(gap, 0.0).into_iter().next().flatten() {
                self.accept(gap, &offer);
            }
        }
    }

    fn add_gap(&mut self, tensor: TensorId, from: usize, to: usize) -> usize {
        let id = self.gaps.len();
        self.gaps.push(Gap { tensor, from, to, choice: Choice::Keep, cost: 0.0 });
        let list = &mut self.of_tensor[tensor.index()];
        let at = list.partition_point(|&other| self.gaps[other].from < from);
        list.insert(at, id);
        id
    }

    /// When position `at` starts, the next step's included.
    fn time(&self, at: usize) -> u64 {
        let n_ops = self.facts.n_ops();
        if at <= n_ops { self.start[at] } else { self.start[n_ops] + self.start[at - n_ops] }
    }

    /// The first position that starts at or after a time.
    fn position_after(&self, time: u64) -> usize {
        let n_ops = self.facts.n_ops();
        let period = self.start[n_ops];
        if time <= period {
            self.start.partition_point(|&start| start < time)
        } else {
            n_ops + self.start.partition_point(|&start| start + period < time)
        }
    }

    /// The position that is running at a time: the last one that starts at or before it.
    fn position_at(&self, time: u64) -> usize {
        let n_ops = self.facts.n_ops();
        let period = self.start[n_ops];
        if time < period {
            self.start.partition_point(|&start| start <= time).saturating_sub(1)
        } else {
            n_ops + self.start.partition_point(|&start| start + period <= time).saturating_sub(1)
        }
    }

    fn choose(&mut self) {
        let mut queue: BinaryHeap<Entry> = BinaryHeap::new();
        for gap in 0..self.gaps.len() {
            if let Some(offer) = self.best_offer(gap) {
                queue.push(Entry { score: offer.score, gap });
            }
        }
        while self.excess.most() > 0 {
            let Some(entry) = queue.pop() else { break };
            if self.gaps[entry.gap].choice != Choice::Keep {
                continue;
            }
            let Some(offer) = self.best_offer(entry.gap) else { continue };
            if queue.peek().is_some_and(|next| offer.score < next.score * CLOSE_ENOUGH) {
                queue.push(Entry { score: offer.score, gap: entry.gap });
                continue;
            }
            let n_before = self.gaps.len();
            self.accept(entry.gap, &offer);
            for gap in n_before..self.gaps.len() {
                if let Some(offer) = self.best_offer(gap) {
                    queue.push(Entry { score: offer.score, gap });
                }
            }
        }
    }

    fn best_offer(&mut self, gap: usize) -> Option<Offer> {
        let Gap { tensor, from, to, .. } = self.gaps[gap];
        if to <= from + 1 {
            return None;
        }
        let bytes = self.facts.bytes(tensor);
        let whole = self.excess.relief(bytes, from + 1, to);
        if whole <= 0.0 {
            return None;
        }
        let mut best: Option<Offer> = None;
        let has_own = self.facts.role(tensor) == Role::Input || self.on_host.contains(&tensor);
        let fits_host = has_own || self.host_used + bytes <= self.facts.host_room;
        if self.facts.may_swap(tensor) && fits_host {
            let bias = f64::from(self.bias.swap[tensor.index()]);
            for mut offer in self.swap_offers(gap, whole).into_iter().flatten() {
                offer.score *= bias;
                if best.as_ref().is_none_or(|best| offer.score > best.score) {
                    best = Some(offer);
                }
            }
        }
        if let Some(mut offer) = self.rerun_offer(gap, whole) {
            offer.score *= f64::from(self.bias.rerun[tensor.index()]);
            if best.as_ref().is_none_or(|best| offer.score > best.score) {
                best = Some(offer);
            }
        }
        best.filter(|offer| offer.score > 0.0)
    }

    /// The position of the op that made the version idle in a gap, from n on if it was in the step before; none if the host has it anyway.
    fn made(&self, gap: &Gap) -> Option<usize> {
        let facts = self.facts;
        if facts.role(gap.tensor) == Role::Input {
            return None;
        }
        if !facts.is_persistent(gap.tensor) {
            return facts.trace.producer(gap.tensor).map(|op| op.index());
        }
        let updates = || facts.live.accesses(gap.tensor).iter().filter(|access| access.kind == AccessKind::Update);
        let before = updates().map(|access| access.op.index()).take_while(|&op| op <= gap.from).last();
        before.or_else(|| updates().next_back().map(|access| access.op.index() + facts.n_ops()))
    }

    /// Hidden behind kernels, if that is possible, and exposed. `whole` is the relief of the whole gap.
    fn swap_offers(&self, gap: usize, whole: f64) -> [Option<Offer>; 2] {
        let gap = self.gaps[gap];
        let facts = self.facts;
        let n_ops = facts.n_ops();
        let bytes = facts.bytes(gap.tensor);
        let stretch = |time: u64| (time as f64 * self.options.margin) as u64;
        let in_time = stretch(facts.in_time[gap.tensor.index()]);
        let free_at = self.time(gap.from + 1);
        let mut lanes = in_time;
        // When the host has the value, on the time scale of the gap.
        let (out_start, saved_at) = match self.made(&gap) {
            None => (None, 0),
            Some(made) => {
                let is_old = made >= n_ops;
                let made_at = self.time(made % n_ops + 1);
                let period = self.start[n_ops];
                let out_time = stretch(facts.out_time[gap.tensor.index()]);
                match self.saved.get(&(gap.tensor, made % n_ops)) {
                    Some(&start) => (None, (start + out_time).saturating_sub(if is_old { period } else { 0 })),
                    None => {
                        let Some(start) = self.out_lane.earliest(made_at, out_time) else { return [None, None] };
                        lanes += out_time;
                        (Some(start), (start + out_time).saturating_sub(if is_old { period } else { 0 }))
                    }
                }
            }
        };
        let price = lanes as f64 * self.options.lane_price;
        let wanted_at = self.time(gap.to);
        let mut offers = [None, None];
        let ready = saved_at.max(free_at);
        if let Some(in_start) = self.in_lane.latest(ready, wanted_at, in_time) {
            let low = self.position_after(ready).max(gap.from + 1);
            let high = self.position_at(in_start).min(gap.to);
            if low < high {
                let is_whole = (low, high) == (gap.from + 1, gap.to);
                let relief = if is_whole { whole } else { self.excess.relief(bytes, low, high) };
                let score = relief / (price + LEAST_COST);
                offers[0] =
                    Some(Offer { score, cost: price, way: Way::Swap, low, high, out_start, in_start: Some(in_start) });
            }
        }
        // At once and at the last moment, which takes its time.
        let exposed = saved_at.saturating_sub(free_at) + in_time;
        let cost = exposed as f64 + price;
        let (low, high) = (gap.from + 1, gap.to);
        offers[1] = Some(Offer {
            score: whole / (cost + LEAST_COST),
            cost,
            way: Way::Swap,
            low,
            high,
            out_start,
            in_start: None,
        });
        offers
    }

    /// `whole` is the relief of the whole gap.
    fn rerun_offer(&mut self, gap: usize, whole: f64) -> Option<Offer> {
        let gap = self.gaps[gap];
        let facts = self.facts;
        let may_rerun = facts.limits.mode != Mode::Swap
            && !facts.is_persistent(gap.tensor)
            && facts.role(gap.tensor) != Role::Input
            && facts.deadline[gap.tensor.index()] >= gap.to as i64;
        if !may_rerun {
            return None;
        }
        let chain = self.chain(gap.tensor, gap.to)?;
        let to_in_step = gap.to.min(facts.n_ops());
        let mut relief = whole;
        for &source in &chain.early {
            let of = self.gaps[source];
            let high = match of.choice {
                Choice::Swap { high, .. } => high,
                _ => of.to,
            };
            relief -= self.excess.burden(facts.bytes(of.tensor), gap.to, high);
        }
        relief -=
            self.excess.burden(chain.transient.saturating_sub(self.spare[to_in_step]), to_in_step, to_in_step + 1);
        let cost = chain.cost;
        let (low, high) = (gap.from + 1, gap.to);
        Some(Offer {
            score: relief / (cost + LEAST_COST),
            cost,
            way: Way::Rerun,
            low,
            high,
            out_start: None,
            in_start: None,
        })
    }

    /// What regenerating `tensor` at position `at` takes.
    fn chain(&mut self, tensor: TensorId, at: usize) -> Option<Chain> {
        let facts = self.facts;
        let trace = facts.trace;
        let mut marks = std::mem::take(&mut self.marks);
        marks.clear(trace.ops().len());
        let mut chain = Chain { cost: 0.0, reads: Vec::new(), early: Vec::new(), transient: 0 };
        let mut ops = Vec::new();
        let wanted = tensor;
        let mut stack = vec![tensor];
        while let Some(tensor) = stack.pop() {
            let op = trace.producer(tensor).expect("only tensors that some op writes are regenerated");
            if !marks.mark(op.index()) {
                continue;
            }
            ops.push(op);
            if ops.len() > LONGEST_CHAIN {
                self.marks = marks;
                return None;
            }
            chain.cost += trace.op(op).latency.0 as f64;
            for &source in &trace.op(op).reads {
                let index = source.index();
                if facts.needed_until[index] < at as i64 {
                    if facts.role(source) == Role::Input {
                        chain.cost += self.options.lane_price * facts.in_time[index] as f64;
                    } else {
                        stack.push(source);
                    }
                    continue;
                }
                let Some(gap) = self.gap_over(source, at) else { continue };
                match self.gaps[gap].choice {
                    Choice::Keep => chain.reads.push(gap),
                    Choice::Rerun => {
                        // Regenerated here instead of at its own next access.
                        chain.early.push(gap);
                        stack.push(source);
                        chain.cost -= self.gaps[gap].cost;
                    }
                    Choice::Swap { low, high } if low <= at && at < high => {
                        chain.early.push(gap);
                        chain.cost += facts.in_time[index] as f64;
                    }
                    Choice::Swap { .. } => chain.reads.push(gap),
                }
            }
        }
        chain.cost = chain.cost.max(trace.op(trace.producer(tensor).expect("checked above")).latency.0 as f64);
        chain.transient = self.transient(&mut ops, wanted, at);
        self.marks = marks;
        Some(chain)
    }

    /// Most bytes that a chain needs on the way: values that nobody wants afterwards, and workspace.
    fn transient(&self, ops: &mut [OpId], wanted: TensorId, at: usize) -> u64 {
        let facts = self.facts;
        let is_lost = |tensor: TensorId| tensor != wanted && facts.needed_until[tensor.index()] < at as i64;
        if let [op] = ops {
            let of = facts.trace.op(*op);
            let lost = of
                .reads
                .iter()
                .chain(&of.writes)
                .filter(|&&tensor| is_lost(tensor) || scratch(facts, tensor, wanted, at));
            return lost.map(|&tensor| facts.bytes(tensor)).sum::<u64>() + facts.workspace[op.index()];
        }
        ops.sort_unstable();
        let mut now = 0;
        let mut most = 0;
        for (place, &op) in ops.iter().enumerate() {
            let of = facts.trace.op(op);
            let reads_again =
                |tensor: TensorId| ops[place + 1..].iter().any(|&later| facts.trace.op(later).reads.contains(&tensor));
            let read_before =
                |tensor: TensorId| ops[..place].iter().any(|&before| facts.trace.op(before).reads.contains(&tensor));
            let written: u64 = of.writes.iter().filter(|&&t| is_lost(t)).map(|&t| facts.bytes(t)).sum();
            let scratch: u64 =
                of.writes.iter().filter(|&&t| scratch(facts, t, wanted, at)).map(|&t| facts.bytes(t)).sum();
            let inputs = of.reads.iter().filter(|&&t| is_lost(t) && facts.role(t) == Role::Input && !read_before(t));
            now += written + inputs.map(|&t| facts.bytes(t)).sum::<u64>();
            most = most.max(now + scratch + facts.workspace[op.index()]);
            let gone = of.reads.iter().chain(&of.writes).filter(|&&t| is_lost(t) && !reads_again(t));
            now = now.saturating_sub(gone.map(|&t| facts.bytes(t)).sum());
        }
        most
    }

    /// The gap of a tensor that is open at a position.
    fn gap_over(&self, tensor: TensorId, at: usize) -> Option<usize> {
        let n_ops = self.facts.n_ops();
        let list = &self.of_tensor[tensor.index()];
        let inside = |&&gap: &&usize| {
            let of = &self.gaps[gap];
            (of.from < at && at < of.to) || (at + n_ops < of.to && of.from < at + n_ops)
        };
        list.iter().find(inside).copied()
    }

    fn accept(&mut self, gap: usize, offer: &Offer) {
        let Gap { tensor, to, .. } = self.gaps[gap];
        let bytes = self.facts.bytes(tensor) as i64;
        let stretch = |time: u64| (time as f64 * self.options.margin) as u64;
        match offer.way {
            Way::Swap => {
                if let Some(start) = offer.out_start {
                    self.out_lane.book(start, stretch(self.facts.out_time[tensor.index()]));
                    let made = self.made(&self.gaps[gap]).expect("a swap-out has a version to copy");
                    self.saved.insert((tensor, made % self.facts.n_ops()), start);
                }
                if let Some(start) = offer.in_start {
                    self.in_lane.book(start, stretch(self.facts.in_time[tensor.index()]));
                }
                self.gaps[gap].choice = Choice::Swap { low: offer.low, high: offer.high };
                if self.facts.role(tensor) != Role::Input && self.on_host.insert(tensor) {
                    self.host_used += bytes as u64;
                }
            }
            Way::Rerun => {
                let chain = self.chain(tensor, to).expect("the offer had a chain");
                for early in chain.early {
                    let of = self.gaps[early];
                    let bytes = self.facts.bytes(of.tensor) as i64;
                    let high = match of.choice {
                        Choice::Swap { high, .. } => high,
                        _ => of.to,
                    };
                    self.excess.change(bytes, to, high);
                    if let Choice::Swap { low, .. } = of.choice {
                        self.gaps[early].choice = Choice::Swap { low, high: to };
                    }
                    self.split(early, to);
                }
                for read in chain.reads {
                    self.split(read, to);
                }
                let at = to.min(self.facts.n_ops());
                let more = chain.transient.saturating_sub(self.spare[at]);
                self.excess.change(more as i64, at, at + 1);
                self.spare[at] += more;
                self.gaps[gap].choice = Choice::Rerun;
            }
        }
        self.gaps[gap].cost = offer.cost;
        self.excess.change(-bytes, offer.low, offer.high);
    }

    /// A further access at `at` ends a gap there; what is left of it begins anew, with the tensor on the device.
    fn split(&mut self, gap: usize, at: usize) {
        let of = self.gaps[gap];
        let n_ops = self.facts.n_ops();
        let at = if of.from < at && at < of.to { at } else { at + n_ops };
        if !(of.from < at && at < of.to) {
            return;
        }
        match of.choice {
            Choice::Swap { low, high } if high > at => {
                // The swap lies behind the access.
                if low > at {
                    let rest = self.add_gap(of.tensor, at, of.to);
                    self.gaps[rest].choice = of.choice;
                    self.gaps[rest].cost = of.cost;
                    self.gaps[gap].choice = Choice::Keep;
                    self.gaps[gap].cost = 0.0;
                    self.gaps[gap].to = at;
                }
            }
            _ => {
                self.gaps[gap].to = at;
                self.add_gap(of.tensor, at, of.to);
            }
        }
    }

    /// Takes back evictions that others have made unnecessary, dearest first.
    fn drop_redundant(&mut self) {
        let mut chosen: Vec<usize> =
            (0..self.gaps.len()).filter(|&gap| self.gaps[gap].choice != Choice::Keep).collect();
        chosen.sort_by(|&a, &b| self.gaps[b].cost.total_cmp(&self.gaps[a].cost).then(a.cmp(&b)));
        for gap in chosen {
            let of = self.gaps[gap];
            let bytes = self.facts.bytes(of.tensor) as i64;
            let (low, high) = match of.choice {
                Choice::Swap { low, high } => (low, high),
                _ => (of.from + 1, of.to),
            };
            if self.facts.role(of.tensor) != Role::Input && self.excess.most_in(low, high) + bytes <= 0 {
                self.excess.change(bytes, low, high);
                self.gaps[gap].choice = Choice::Keep;
            }
        }
    }

    fn plan(self) -> Plan {
        let facts = self.facts;
        let n_ops = facts.n_ops();
        let n_tensors = facts.trace.tensors().len();
        let persistent = |tensor: TensorId| facts.is_persistent(tensor);
        let mut plan = Plan::keep_all(facts);
        for gap in &self.gaps {
            match gap.choice {
                Choice::Keep => {}
                Choice::Rerun => plan.drop_after[gap.from].push(gap.tensor),
                Choice::Swap { low, high } => {
                    let is_old = persistent(gap.tensor) && self.made(gap).is_none_or(|made| made >= n_ops);
                    if gap.to >= n_ops && persistent(gap.tensor) {
                        plan.residents[gap.tensor.index()] = low >= n_ops;
                        plan.saved[gap.tensor.index()] |= low >= n_ops;
                    } else if is_old {
                        plan.saved[gap.tensor.index()] = true;
                    }
                    let until = if low < n_ops { gap.to.min(n_ops) } else { gap.to - n_ops };
                    plan.release_before[low % n_ops].push((gap.tensor, until));
                    if high < gap.to {
                        plan.claim_before[high % n_ops].push(gap.tensor);
                    }
                }
            }
        }
        // A tensor outside the boundary has a valid host copy without saying so.
        for index in 0..n_tensors {
            plan.saved[index] &= plan.residents[index];
        }
        let mut saves: Vec<(u64, TensorId)> = self.saved.iter().map(|(&(tensor, _), &start)| (start, tensor)).collect();
        saves.sort_unstable();
        for (start, tensor) in saves {
            // Copies that begin in the next step are left to the walk, which lets them follow the update.
            let at = self.position_at(start);
            if at < n_ops {
                plan.save_after[at].push(tensor);
            }
        }
        plan
    }
}

/// Whether a rerun's write is there already when it runs for another output.
fn scratch(facts: &Facts<'_>, tensor: TensorId, wanted: TensorId, at: usize) -> bool {
    tensor != wanted
        && facts.needed_until[tensor.index()] >= at as i64
        && facts.trace.producer(tensor) == facts.trace.producer(wanted)
}

/// What a chain of reruns needs.
struct Chain {
    /// Latencies, and copies of sources that are on the host.
    cost: f64,
    /// Gaps of sources that are on the device: the chain is an access within them.
    reads: Vec<usize>,
    /// Gaps of sources that have been evicted, which come back here.
    early: Vec<usize>,
    /// Most bytes on the way, beside what is there before and after.
    transient: u64,
}
