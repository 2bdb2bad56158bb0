//! Peak analysis and the rounds.

use std::collections::{BTreeMap, BTreeSet};

use super::channel::Channel;
use crate::baseline::away::{Arrival, Away, enter};
use crate::id::TensorId;
use crate::limits::Mode;
use crate::liveness::{Access, AccessKind};
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::follow;
use crate::program::Program;
use crate::trace::Role;

/// Rounds that are always played, as long as they schedule something.
const ROUNDS: usize = 100;
/// Beyond, each of the two latest rounds must have lowered the peak by one part in so many, or it was the last.
const WORTH_IT: u64 = 2000;

/// What one round schedules.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Round {
    /// Absences of a tensor: the first is behind its swap-out, others need none.
    Swap(Vec<Away>),
    /// What the optimizer has written leaves, and comes back in the next step.
    Across {
        tensor: TensorId,
        /// Behind this op.
        updated: usize,
        out: (u64, u64),
        /// Before this op.
        first: usize,
        back: u64,
    },
    /// A tensor is dropped behind an op, and made again when it is needed.
    Recompute { tensor: TensorId, after: usize },
}

/// All rounds, and the analysed peak before the first and behind each.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rounds {
    pub(super) rounds: Vec<Round>,
    pub(super) peaks: Vec<u64>,
}

impl Rounds {
    pub(super) fn play(facts: &Facts<'_>, max_swap_ratio: f64) -> Self {
        let mut schedule = Schedule::new(facts, max_swap_ratio);
        let mut result = Self { rounds: Vec::new(), peaks: Vec::new() };
        let mut may_swap = facts.limits.mode != Mode::Recompute;
        loop {
            let peak = schedule.peak();
            result.peaks.push(peak.bytes);
            if let [.., before, between, last] = result.peaks[..]
                && result.rounds.len() > ROUNDS
                && before.abs_diff(between).max(between.abs_diff(last)) < last / WORTH_IT
            {
                break;
            }
            let swap = if may_swap { schedule.swap(&peak) } else { None };
            may_swap = swap.is_some();
            let may_recompute = facts.limits.mode != Mode::Swap && !may_swap;
            match swap.or_else(|| if may_recompute { schedule.recompute(&peak) } else { None }) {
                Some(round) => result.rounds.push(round),
                None => break,
            }
        }
        result
    }

    /// The program of the first rounds that bring the analysed peak down to `cap`, or of all.
    pub(super) fn program(&self, facts: &Facts<'_>, cap: u64) -> Program {
        let enough = self.peaks.iter().position(|&peak| peak <= cap).unwrap_or(self.rounds.len());
        let rounds = &self.rounds[..enough.min(self.rounds.len())];
        let plan = plan_of(facts, rounds, true);
        // Chains of reruns may grow beyond all bounds; swaps alone do not.
        follow(facts, &plan)
            .or_else(|_| follow(facts, &plan_of(facts, rounds, false)))
            .expect("a plan without reruns can be followed")
    }
}

fn plan_of(facts: &Facts<'_>, rounds: &[Round], recompute: bool) -> Plan {
    let mut plan = Plan::keep_all(facts);
    let (mut absences, mut arrivals) = (Vec::new(), Vec::new());
    for round in rounds {
        match round {
            Round::Swap(aways) => absences.extend_from_slice(aways),
            &Round::Across { tensor, updated, out, first, back } => {
                plan.residents[tensor.index()] = false;
                let n_ops = facts.n_ops();
                // It may stay away until the end of the step, and longer.
                let leaves = Away { tensor, after: updated + 1, until: n_ops, out: Some(out), back: u64::MAX };
                absences.push(leaves);
                arrivals.push(Arrival { tensor, until: first, back });
            }
            &Round::Recompute { tensor, after } => {
                if recompute {
                    plan.drop_after[after].push(tensor);
                }
            }
        }
    }
    enter(facts, &mut plan, absences, &arrivals);
    plan
}

/// The most bytes at any time.
struct Peak {
    bytes: u64,
    time: u64,
    /// Largest first.
    residents: Vec<TensorId>,
}

struct Schedule<'a> {
    facts: &'a Facts<'a>,
    channel: Channel,
    /// By tensor, when it is needed on the device if it never leaves: start and end.
    life: Vec<(u64, u64)>,
    /// By tensor, when it is away.
    absences: Vec<Vec<(u64, u64)>>,
    /// When bytes go (false) and come (true), by time; what goes at a time goes before what comes.
    events: Vec<(u64, bool, TensorId)>,
    /// Tensors of which some version is swapped, by the position behind the op that made it.
    swapped: BTreeSet<(TensorId, usize)>,
    n_swapped: usize,
    most_swapped: usize,
    recomputed: Vec<bool>,
    /// Versions that could not be swapped within a window that ended here; the channel only fills up, so a smaller window is no use.
    failed: BTreeMap<(TensorId, usize), u64>,
    /// By op, the start of the last op up to it that reads something which is still needed behind it.
    lasting_read: Vec<Option<u64>>,
}

impl<'a> Schedule<'a> {
    fn new(facts: &'a Facts<'a>, max_swap_ratio: f64) -> Self {
        let trace = facts.trace;
        let n_ops = facts.n_ops();
        let mut last = None;
        let lasting_read = trace.op_ids().map(|op| {
            let of = trace.op(op);
            let lasts = |tensor: &TensorId| facts.needed_until[tensor.index()] > op.index() as i64;
            if of.reads.iter().chain(&of.updates).any(lasts) {
                last = Some(facts.start[op.index()]);
            }
            last
        });
        let mut schedule = Self {
            facts,
            channel: Channel::default(),
            life: Vec::new(),
            absences: vec![Vec::new(); trace.tensors().len()],
            events: Vec::new(),
            swapped: BTreeSet::new(),
            n_swapped: 0,
            most_swapped: (trace.tensors().len() as f64 * max_swap_ratio) as usize,
            recomputed: vec![false; trace.tensors().len()],
            failed: BTreeMap::new(),
            lasting_read: lasting_read.collect(),
        };
        for tensor in trace.tensor_ids() {
            let accesses = facts.live.accesses(tensor);
            let end = if trace.tensor(tensor).keep { u64::MAX } else { 0 };
            let life = match (accesses.first(), accesses.last()) {
                _ if facts.is_persistent(tensor) && !accesses.is_empty() => (0, u64::MAX),
                (Some(first), Some(last)) => {
                    let begin = first.op.index() + usize::from(first.kind == AccessKind::Write);
                    (facts.start[begin], facts.start[last.op.index() + 1].max(end))
                }
                // A kept input that nobody reads; other tensors without an access are never there.
                _ if trace.tensor(tensor).keep => (facts.start[n_ops], u64::MAX),
                _ => (0, 0),
            };
            schedule.life.push(life);
            schedule.add_events(tensor);
        }
        schedule.events.sort_unstable();
        schedule
    }

    /// When a tensor is on the device.
    fn stays(&self, tensor: TensorId) -> Vec<(u64, u64)> {
        let (start, end) = self.life[tensor.index()];
        let mut absences = self.absences[tensor.index()].clone();
        absences.sort_unstable();
        let mut stays = Vec::new();
        let mut from = start;
        for (leaves, returns) in absences {
            if from < leaves.min(end) {
                stays.push((from, leaves.min(end)));
            }
            from = from.max(returns);
        }
        if from < end {
            stays.push((from, end));
        }
        stays
    }

    fn add_events(&mut self, tensor: TensorId) {
        for (start, end) in self.stays(tensor) {
            self.events.push((start, true, tensor));
            if end < u64::MAX {
                self.events.push((end, false, tensor));
            }
        }
    }

    fn leave(&mut self, tensor: TensorId, absences: impl IntoIterator<Item = (u64, u64)>) {
        self.absences[tensor.index()].extend(absences);
        self.events.retain(|event| event.2 != tensor);
        self.add_events(tensor);
        // All but a few are in order.
        self.events.sort();
    }

    fn peak(&self) -> Peak {
        let (mut bytes, mut most, mut time, mut events) = (0, 0, 0, 0);
        for (index, &(at, comes, tensor)) in self.events.iter().enumerate() {
            if comes {
                bytes += self.facts.bytes(tensor);
            } else {
                bytes -= self.facts.bytes(tensor);
            }
            if bytes > most {
                (most, time, events) = (bytes, at, index + 1);
            }
        }
        let mut resident = vec![false; self.life.len()];
        for &(_, comes, tensor) in &self.events[..events] {
            resident[tensor.index()] = comes;
        }
        let mut residents: Vec<TensorId> =
            self.facts.trace.tensor_ids().filter(|tensor| resident[tensor.index()]).collect();
        residents.sort_by_key(|&tensor| std::cmp::Reverse(self.facts.bytes(tensor)));
        Peak { bytes: most, time, residents }
    }

    fn span(&self, access: &Access) -> (u64, u64) {
        (self.facts.start[access.op.index()], self.facts.start[access.op.index() + 1])
    }

    /// Swaps the largest resident that can be.
    fn swap(&mut self, peak: &Peak) -> Option<Round> {
        if self.n_swapped >= self.most_swapped {
            return None;
        }
        let running = self.facts.start[..self.facts.n_ops()].partition_point(|&start| start <= peak.time);
        // The last input access before the peak, of any tensor.
        let now = running.checked_sub(1).and_then(|op| self.lasting_read[op]).unwrap_or(peak.time);
        let round = peak.residents.iter().find_map(|&tensor| self.swap_one(tensor, peak.time, now))?;
        self.n_swapped += 1;
        Some(round)
    }

    fn swap_one(&mut self, tensor: TensorId, peak: u64, now: u64) -> Option<Round> {
        let facts = self.facts;
        let accesses = facts.live.accesses(tensor);
        let is_made = |access: &Access| access.kind != AccessKind::Read;
        // The version at the peak: made by the last write or update that has ended, or there from the start.
        let made = accesses.iter().rposition(|access| is_made(access) && self.span(access).1 <= peak);
        let later = made.map_or(0, |made| made + 1);
        let front = made.map_or(0, |made| accesses[made].op.index() + 1);
        if self.swapped.contains(&(tensor, front)) {
            return None;
        }
        if self.failed.get(&(tensor, front)).is_some_and(|&window| now <= window) {
            return None;
        }
        let round = if later == accesses.len() && facts.is_persistent(tensor) {
            self.swap_across(tensor, front)
        } else {
            // Up to the access that replaces it.
            let replaced = accesses[later..].iter().position(is_made);
            let uses = &accesses[later..replaced.map_or(accesses.len(), |replaced| later + replaced + 1)];
            self.swap_version(tensor, front, uses, now)
        };
        if round.is_none() {
            self.failed.insert((tensor, front), now);
        }
        round
    }

    /// Swaps one version of a tensor, which is there from position `front` on and used by `uses`.
    fn swap_version(&mut self, tensor: TensorId, front: usize, uses: &[Access], now: u64) -> Option<Round> {
        let facts = self.facts;
        let (out_time, in_time) = (facts.out_time[tensor.index()], facts.in_time[tensor.index()]);
        let spans: Vec<(u64, u64)> = uses.iter().map(|access| self.span(access)).collect();
        let mut begin = facts.start[front].max(self.life[tensor.index()].0);
        if front == 0 {
            // Not before it has come back from the step before.
            let arrivals = self.absences[tensor.index()].iter().filter(|absence| absence.0 == 0);
            begin = arrivals.map(|absence| absence.1).fold(begin, u64::max);
        }
        let (start, first, back) = loop {
            if begin >= now {
                return None;
            }
            let start = self.channel.earliest((begin, now), out_time, &spans)?;
            let first = spans.iter().position(|span| span.0 >= start + out_time)?;
            let earliest = first.checked_sub(1).map_or(0, |before| spans[before].1).max(start + out_time);
            match self.channel.latest((earliest, spans[first].0), in_time) {
                Some(back) => break (start, first, back),
                // Such a copy would be in vain: try behind that access.
                None => begin = begin.max(spans[first].1).max(start + 1),
            }
        };
        self.channel.take(start, out_time);
        self.channel.take(back, in_time);
        self.swapped.insert((tensor, front));
        let behind = |index: usize| uses[index].op.index() + 1;
        let after = first.checked_sub(1).map_or(front, behind);
        let until = uses[first].op.index();
        let mut aways = vec![Away { tensor, after, until, out: Some((start, start + out_time)), back }];
        let mut absences = vec![(start, back + in_time)];
        for index in first + 1..uses.len() {
            let window = (spans[index - 1].1, spans[index].0);
            if let Some(back) = self.channel.latest(window, in_time) {
                self.channel.take(back, in_time);
                aways.push(Away { tensor, after: behind(index - 1), until: uses[index].op.index(), out: None, back });
                absences.push((window.0, back + in_time));
            }
        }
        self.leave(tensor, absences);
        Some(Round::Swap(aways))
    }

    /// Swaps what the optimizer wrote at the op before `front`.
    fn swap_across(&mut self, tensor: TensorId, front: usize) -> Option<Round> {
        let facts = self.facts;
        let (out_time, in_time) = (facts.out_time[tensor.index()], facts.in_time[tensor.index()]);
        let updated = front.checked_sub(1)?;
        let first = facts.live.first_use(tensor)?.index();
        let start = self.channel.earliest((facts.start[front], u64::MAX), out_time, &[])?;
        let back = self.channel.latest((0, facts.start[first]), in_time)?;
        self.channel.take(start, out_time);
        self.channel.take(back, in_time);
        self.swapped.insert((tensor, front));
        self.leave(tensor, [(start, u64::MAX), (0, back + in_time)]);
        Some(Round::Across { tensor, updated, out: (start, start + out_time), first, back })
    }

    /// Recomputes the resident with the most bytes per time of its producing op.
    fn recompute(&mut self, peak: &Peak) -> Option<Round> {
        let facts = self.facts;
        let mut best: Option<(f64, TensorId, usize, usize)> = None;
        for &tensor in &peak.residents {
            if facts.is_persistent(tensor) || facts.role(tensor) == Role::Input || self.is_evicted(tensor) {
                continue;
            }
            let accesses = facts.live.accesses(tensor);
            let next = accesses.partition_point(|access| self.span(access).0 < peak.time);
            let (Some(next), Some(before)) = (accesses.get(next), next.checked_sub(1)) else { continue };
            let (to, after) = (next.op.index(), accesses[before].op.index());
            let of = facts.trace.op(accesses[0].op);
            let is_there =
                |&source: &TensorId| !self.is_evicted(source) && facts.needed_until[source.index()] >= to as i64;
            // With no op in between there is nothing to gain.
            if to == after + 1 || facts.deadline[tensor.index()] < to as i64 || !of.reads.iter().all(is_there) {
                continue;
            }
            let benefit = facts.bytes(tensor) as f64 / of.latency.0 as f64;
            if best.is_none_or(|best| benefit > best.0) {
                best = Some((benefit, tensor, after, to));
            }
        }
        let (_, tensor, after, to) = best?;
        self.recomputed[tensor.index()] = true;
        self.leave(tensor, [(facts.start[after + 1], facts.start[to])]);
        Some(Round::Recompute { tensor, after })
    }

    fn is_evicted(&self, tensor: TensorId) -> bool {
        let is_swapped = self.swapped.range((tensor, 0)..=(tensor, usize::MAX)).next().is_some();
        is_swapped || self.recomputed[tensor.index()]
    }
}
