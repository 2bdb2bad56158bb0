//! What evicting a tensor would cost, and what it would bring.

use super::Walk;
use crate::id::TensorId;
use crate::limits::Mode;
use crate::trace::Role;

/// How an evicted tensor comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a copy from the host; its value is copied out first unless the host has it.
    Swap,
    /// By running the ops again that make it.
    Rerun,
}

/// What the walk's choices depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Weights {
    /// Price of a nanosecond of a copy lane, in nanoseconds of the step: lanes are free only as long as nobody else wants them.
    pub(crate) lane_price: f64,
}

/// Swapped out tensors by the position of their next use: the work that waits for the in lane.
pub(crate) struct Missing {
    /// Fenwick tree over positions: sums of copy times.
    sums: Vec<u64>,
    /// What each tensor has put in.
    entries: std::collections::BTreeMap<TensorId, (usize, u64)>,
}

impl Missing {
    pub(crate) fn new(n_ops: usize) -> Self {
        Self { sums: vec![0; n_ops + 2], entries: std::collections::BTreeMap::new() }
    }

    fn add(&mut self, position: usize, time: u64, sign: bool) {
        let mut index = position + 1;
        while index < self.sums.len() {
            self.sums[index] = if sign { self.sums[index] + time } else { self.sums[index] - time };
            index += index & index.wrapping_neg();
        }
    }

    pub(crate) fn insert(&mut self, position: usize, tensor: TensorId, time: u64) {
        self.remove(tensor);
        self.entries.insert(tensor, (position, time));
        self.add(position, time, true);
    }

    pub(crate) fn remove(&mut self, tensor: TensorId) {
        if let Some((position, time)) = self.entries.remove(&tensor) {
            self.add(position, time, false);
        }
    }

    /// Copy time wanted for uses up to and at `position`.
    fn until(&self, position: usize) -> u64 {
        let mut index = (position + 1).min(self.sums.len() - 1);
        let mut sum = 0;
        while index > 0 {
            sum += self.sums[index];
            index -= index & index.wrapping_neg();
        }
        sum
    }
}

/// Most ops of a chain that are looked at; a longer one is priced out.
const LONGEST_CHAIN: usize = 48;

/// Added to every cost, in ns: no eviction is quite free, and unmeasured ops must not look infinitely good.
const LEAST_COST: f64 = 500.0;

impl Walk<'_> {
    /// Score (higher = better victim) and cheaper way of evicting a resident that is next needed at `from` or later; none if it must stay.
    pub(crate) fn price(&mut self, tensor: TensorId, from: usize) -> Option<(f64, Way)> {
        let facts = self.facts;
        let n_ops = facts.n_ops();
        let persistent = facts.is_persistent(tensor);
        let next = facts.next_use(tensor, from);
        // When it is wanted next, in undisturbed time; persistent tensors may be wanted in the next step.
        let (next, wanted_at) = match next {
            Some(next) => (next, facts.start[next]),
            None if persistent => match &self.ends {
                Some(ends) if ends[tensor.index()] => (n_ops, facts.start[n_ops]),
                Some(_) => (n_ops, facts.step_time().saturating_mul(3)),
                None => {
                    let first = facts.live.first_use(tensor).map_or(facts.step_time(), |op| facts.start[op.index()]);
                    (n_ops, facts.step_time() + first)
                }
            },
            // Dead tensors are released by those who know it.
            None => return None,
        };
        let idle = wanted_at.saturating_sub(facts.start[self.position]);
        let mut best: Option<(f64, Way)> = None;
        if facts.may_swap(tensor) && self.fits_host(tensor) {
            let cost = self.swap_cost(tensor, next, idle);
            best = Some((cost, Way::Swap));
        }
        let may_rerun = facts.limits.mode != Mode::Swap
            && !persistent
            && facts.role(tensor) != Role::Input
            && facts.deadline[tensor.index()] >= next as i64;
        if may_rerun
            && let Some(cost) = self.chain_cost(tensor, next)
            && best.is_none_or(|(least, _)| cost < least)
        {
            best = Some((cost, Way::Rerun));
        }
        let (cost, way) = best?;
        let benefit = facts.bytes(tensor) as f64 * (idle as f64 + 1.0);
        Some((benefit / (cost + LEAST_COST), way))
    }

    /// Exposed copy time, and the price of the lanes.
    fn swap_cost(&self, tensor: TensorId, next: usize, idle: u64) -> f64 {
        let facts = self.facts;
        let (in_time, mut lanes) = (facts.in_time[tensor.index()], facts.in_time[tensor.index()]);
        let waiting = self.missing.until(next);
        let mut exposed = (waiting + in_time).saturating_sub(idle).min(in_time);
        if !self.host_valid[tensor.index()] {
            let out_time = facts.out_time[tensor.index()];
            lanes += out_time;
            exposed += self.saved_at(tensor).saturating_sub(self.now());
        }
        exposed as f64 + lanes as f64 * self.weights.lane_price
    }

    /// Latencies of the chain that would regenerate `tensor` at position `next`; none if it is too long.
    fn chain_cost(&mut self, tensor: TensorId, next: usize) -> Option<f64> {
        let facts = self.facts;
        let trace = facts.trace;
        let mut marks = std::mem::take(&mut self.marks);
        marks.clear(trace.ops().len());
        let mut cost = 0.0;
        let mut n_ops = 0;
        let mut stack = vec![(tensor, 1.0)];
        while let Some((tensor, weight)) = stack.pop() {
            let op = trace.producer(tensor).expect("only tensors that some op writes are regenerated");
            if !marks.mark(op.index()) {
                continue;
            }
            n_ops += 1;
            if n_ops > LONGEST_CHAIN {
                self.marks = marks;
                return None;
            }
            cost += weight * trace.op(op).latency.0 as f64;
            for &source in &trace.op(op).reads {
                let index = source.index();
                match facts.role(source) {
                    Role::Input if !self.resident[index] => {
                        cost += weight * self.weights.lane_price * facts.in_time[index] as f64;
                    }
                    role if role.is_persistent() || role == Role::Input => {}
                    _ if facts.needed_until[index] >= next as i64 => {
                        let comes_back = self.resident[index] || self.host_valid[index];
                        if !comes_back {
                            stack.push((source, weight));
                        }
                    }
                    _ if self.host_valid[index] && facts.limits.mode == Mode::Both => {
                        cost += weight * facts.in_time[index] as f64;
                    }
                    _ => stack.push((source, weight)),
                }
            }
        }
        self.marks = marks;
        Some(cost)
    }
}
