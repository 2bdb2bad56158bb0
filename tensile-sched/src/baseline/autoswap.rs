//! `autoswap`: Zhang, Yeung, Shu, He and Wang, "Efficient Memory Management for GPU-based Deep Learning Systems", 2019 (arXiv 1903.06631), the section on AutoSwap, with the
//! details of its scheduling as in the authors' implementation in Apache SINGA.
//!
//! 1. **Candidates.** The load is the bytes in use at each op; its peak is where it is highest. A variable can be swapped between the access before the peak and the one behind it, if it is
//!    larger than a threshold. Steps follow each other, so the access before may be one of the step before, the one behind of the next.
//! 2. **Priority.** One score of four:
//!
//!    | score | value |
//!    |---|---|
//!    | DOA, duration of absence | time between the accesses, less both copies |
//!    | AOA, area of absence | DOA × size; DOA / size if DOA is below zero |
//!    | WDOA, weighted DOA | sum over the ops of the absence of what the load exceeds the limit by |
//!    | SWDOA, submodular WDOA | as WDOA, with the load updated by all that has been selected before |
//!
//! 3. **Selection.** By priority, until the load is within the limit everywhere.
//! 4. **Schedule.** Swap-outs one behind the other in the order of their accesses, each as early as possible; swap-ins one behind the other, each as late as possible. Where the load would exceed the
//!    limit, bytes go before their copy has ended (whoever wants them waits), and come later (their reader waits).
//!
//! ```text
//! load     ▁▂▃▄▅▆▇█▇▆▅▄▃▂▁       peak: █
//! t        R ──────┊────── R      absence of t, over the peak
//! out        [t]   ┊
//! in               ┊   [t]
//! ```
//!
//! Differences: the threshold is 1 MiB or a thousandth of the peak load, whichever is less, so that small steps can be planned. The optional combination of scores by
//! Bayesian optimisation is left out. In the authors' code load − limit counts with its sign, by which absences
//! of long duration lose against short ones once the load is near the limit, and the submodular score becomes the worst of the four, which it is not in the paper. Copies of values that the host has already are planned, but not executed. It only swaps; in [`Mode::Recompute`] nothing leaves.

use super::fit;
use super::trips::{Leave, Return, Trip, enter_trips, load};
use crate::id::TensorId;
use crate::limits::{Limits, Mode};
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::follow;
use crate::planner::{Infeasible, Planned, Planner};
use crate::program::Program;
use crate::trace::Trace;

/// Which variables are swapped first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Score {
    /// Duration of absence.
    Doa,
    /// Area of absence.
    Aoa,
    /// Weighted duration of absence.
    Wdoa,
    /// Submodular weighted duration of absence.
    #[default]
    Swdoa,
}

/// AutoSwap (Zhang et al., 2019): variables idle over the peak are swapped, by priority, until the load is within the budget.
///
/// Selections × (ops + candidates), plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AutoSwap {
    /// The priority.
    pub score: Score,
}

impl Planner for AutoSwap {
    fn name(&self) -> &'static str {
        "autoswap"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        fit(trace, limits, |cap| self.program(&facts, cap))
    }
}

/// The largest threshold, in bytes.
const LEAST_BYTES: u64 = 1 << 20;
/// The threshold is at most the peak load divided by this.
const LEAST_SHARE: u64 = 1000;

/// A variable idle over the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    tensor: TensorId,
    /// Ops of the access before and of the access behind; with `across`, the absence is the end of the step behind `from` and the start up to `to`.
    from: usize,
    to: usize,
    across: bool,
}

impl AutoSwap {
    fn program(&self, facts: &Facts<'_>, limit: u64) -> Program {
        let mut plan = Plan::keep_all(facts);
        if facts.limits.mode != Mode::Recompute {
            let mut load = load(facts, &plan);
            let peak = peak(&load);
            let open = candidates(facts, peak, load.get(peak).copied());
            let selected = self.select(facts, &mut load, limit, open);
            for one in selected.iter().filter(|one| one.across) {
                plan.residents[one.tensor.index()] = false;
            }
            enter_trips(facts, &mut plan, &mut load, limit, trips(facts, &selected, peak));
        }
        follow(facts, &plan).expect("a plan without reruns can be followed")
    }

    /// Candidates by priority until the load is within the limit; the load is then that without them.
    fn select(&self, facts: &Facts<'_>, load: &mut [u64], limit: u64, mut open: Vec<Candidate>) -> Vec<Candidate> {
        let mut selected = Vec::new();
        let mut scores: Vec<f64> = Vec::new();
        while !open.is_empty() && load.iter().any(|&load| load > limit) {
            if scores.is_empty() || self.score == Score::Swdoa {
                scores = self.scores(facts, load, limit, &open);
            }
            // The first of the best.
            let best = (1..open.len()).fold(0, |best, one| if scores[one] > scores[best] { one } else { best });
            scores.remove(best);
            let one = open.remove(best);
            let bytes = facts.bytes(one.tensor);
            for (start, end) in one.absence(load.len()) {
                load[start..end].iter_mut().for_each(|load| *load -= bytes);
            }
            selected.push(one);
        }
        selected
    }

    fn scores(&self, facts: &Facts<'_>, load: &[u64], limit: u64, open: &[Candidate]) -> Vec<f64> {
        let mut sums = vec![0u128];
        for &load in load {
            sums.push(sums[sums.len() - 1] + u128::from(load.saturating_sub(limit)));
        }
        let score = |one: &Candidate| {
            let bytes = facts.bytes(one.tensor) as f64;
            let copies = facts.out_time[one.tensor.index()] + facts.in_time[one.tensor.index()];
            let idle: u64 = one.absence(load.len()).map(|(from, to)| facts.start[to] - facts.start[from]).iter().sum();
            let duration = idle as f64 - copies as f64;
            match self.score {
                Score::Doa => duration,
                Score::Aoa if duration < 0.0 => duration / bytes,
                Score::Aoa => duration * bytes,
                Score::Wdoa | Score::Swdoa => {
                    one.absence(load.len()).map(|(from, to)| sums[to] - sums[from]).iter().sum::<u128>() as f64
                }
            }
        };
        open.iter().map(score).collect()
    }
}

impl Candidate {
    /// Positions without it, as two ranges.
    fn absence(&self, n_ops: usize) -> [(usize, usize); 2] {
        if self.across { [(self.from + 1, n_ops), (0, self.to)] } else { [(self.from + 1, self.to), (0, 0)] }
    }
}

fn peak(load: &[u64]) -> usize {
    let highest = load.iter().copied().max();
    load.iter().position(|&load| Some(load) == highest).unwrap_or(0)
}

/// By tensor.
fn candidates(facts: &Facts<'_>, peak: usize, most: Option<u64>) -> Vec<Candidate> {
    let Some(most) = most else { return Vec::new() };
    let threshold = LEAST_BYTES.min(most / LEAST_SHARE);
    let mut candidates = Vec::new();
    for tensor in facts.trace.tensor_ids().filter(|&tensor| facts.bytes(tensor) > threshold) {
        let accesses = facts.live.accesses(tensor);
        // The first access at the peak or behind it.
        let next = accesses.partition_point(|access| access.op.index() < peak);
        if accesses.get(next).is_some_and(|access| access.op.index() == peak) {
            continue;
        }
        let before = next.checked_sub(1).map(|before| accesses[before].op.index());
        match (before, accesses.get(next).map(|access| access.op.index())) {
            (Some(from), Some(to)) => candidates.push(Candidate { tensor, from, to, across: false }),
            _ if facts.is_persistent(tensor) => {
                if let (Some(first), Some(last)) = (accesses.first(), accesses.last()) {
                    let (from, to) = (last.op.index(), first.op.index());
                    candidates.push(Candidate { tensor, from, to, across: true });
                }
            }
            _ => {}
        }
    }
    candidates
}

/// Copies out one behind the other as early as possible, copies back one behind the other as late as possible.
fn trips(facts: &Facts<'_>, selected: &[Candidate], peak: usize) -> Vec<Trip> {
    let n_ops = facts.n_ops();
    let mut order: Vec<Candidate> = selected.to_vec();
    order.sort_by_key(|one| (one.from, one.tensor));
    let mut free = 0;
    let mut trips = Vec::new();
    for one in &order {
        let start = facts.start[one.from + 1].max(free);
        free = start + facts.out_time[one.tensor.index()];
        // Before the peak at the latest.
        let latest = if one.from < peak { peak } else { n_ops };
        let leave = Leave { after: one.from + 1, latest, copy: (start, free) };
        trips.push((*one, leave));
    }
    trips.sort_by_key(|(one, _)| std::cmp::Reverse((one.to, one.tensor)));
    let mut end = u64::MAX;
    let mut result = Vec::new();
    for (one, leave) in trips {
        end = end.min(facts.start[one.to]);
        let start = end.saturating_sub(facts.in_time[one.tensor.index()]);
        end = start;
        // Behind the peak at the earliest.
        let earliest = if one.to > peak { peak + 1 } else { 0 };
        let back = Return { earliest, until: one.to, start };
        let tensor = one.tensor;
        if one.across {
            result.push(Trip { tensor, hides: true, leave: Some(leave), back: None });
            result.push(Trip { tensor, hides: true, leave: None, back: Some(back) });
        } else {
            result.push(Trip { tensor, hides: true, leave: Some(leave), back: Some(back) });
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Bytes, Nanos};
    use crate::limits::Link;
    use crate::testing::{bytewise, op, trace};
    use crate::trace::Role;

    /// A byte takes a nanosecond.
    fn limits() -> Limits {
        let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos::ZERO, ..Link::PCIE3_X16 };
        Limits { link, ..bytewise() }
    }

    /// ```text
    /// op       0    1    2    3    4    5    6      ops of 100 ns
    /// a  (40)  W                             R      absent from 1 to 5
    /// b  (90)       W              R                absent from 2 to 3
    /// c  (50)            W    R                     the peak: 180 bytes in ops 2 and 3
    /// m  (20)                      U                across the end of the step: absent from 5 to 3 of the next
    /// ```
    fn example() -> Trace {
        trace(
            &[(40, Role::Activation), (90, Role::Activation), (50, Role::Activation), (20, Role::OptimizerState)],
            vec![
                op(100, &[], &[0]),
                op(100, &[], &[1]),
                op(100, &[], &[2]),
                op(100, &[2], &[]),
                op(100, &[1], &[]).with_updates(&[3]),
                op(100, &[], &[]),
                op(100, &[0], &[]),
            ],
        )
    }

    fn found(facts: &Facts<'_>) -> (Vec<u64>, Vec<Candidate>) {
        let load = load(facts, &Plan::keep_all(facts));
        let peak = peak(&load);
        assert_eq!(peak, 2);
        let candidates = candidates(facts, peak, Some(load[peak]));
        (load, candidates)
    }

    #[test]
    fn candidates_idle_over_the_peak() {
        let (trace, limits) = (example(), limits());
        let (load, candidates) = found(&Facts::new(&trace, &limits));
        assert_eq!(load, [60, 150, 200, 200, 150, 60, 60]);
        let expected = [(0, 0, 6, false), (1, 1, 4, false), (3, 4, 4, true)];
        let tuples: Vec<_> = candidates.iter().map(|one| (one.tensor.0, one.from, one.to, one.across)).collect();
        assert_eq!(tuples, expected);
    }

    /// The load above a limit of 100 bytes is 50, 100, 100 and 50 in ops 1 to 4.
    #[test]
    fn the_four_scores() {
        let (trace, limits) = (example(), limits());
        let facts = Facts::new(&trace, &limits);
        let (mut load, candidates) = found(&facts);
        let scores = |score, load: &[u64]| AutoSwap { score }.scores(&facts, load, 100, &candidates);
        assert_eq!(scores(Score::Doa, &load), [500.0 - 80.0, 200.0 - 180.0, 600.0 - 40.0]);
        assert_eq!(scores(Score::Aoa, &load), [420.0 * 40.0, 20.0 * 90.0, 560.0 * 20.0]);
        assert_eq!(scores(Score::Wdoa, &load), [300.0, 200.0, 250.0]);
        // a goes first; without it m's absence weighs 10 + 60 + 60, and b's 60 + 60.
        let selected = AutoSwap::default().select(&facts, &mut load, 100, candidates.clone());
        assert_eq!(selected.iter().map(|one| one.tensor.0).collect::<Vec<_>>(), [0, 3, 1]);
        assert_eq!(load, [40, 90, 50, 50, 110, 0, 40]);
    }

    /// a leaves behind op 0 and b behind op 1; b is back just in time, and a before the copy of b began, for swap-ins run one behind the other.
    #[test]
    fn copies_are_as_early_and_as_late_as_possible() {
        let (trace, limits) = (example(), limits());
        let facts = Facts::new(&trace, &limits);
        let (_, candidates) = found(&facts);
        let trips = trips(&facts, &candidates, 2);
        let of = |tensor: u32| trips.iter().filter(|trip| trip.tensor.0 == tensor).collect::<Vec<_>>();
        let leave = Leave { after: 1, latest: 2, copy: (100, 140) };
        let back = Return { earliest: 3, until: 6, start: 560 };
        assert_eq!(of(0), [&Trip { tensor: TensorId(0), hides: true, leave: Some(leave), back: Some(back) }]);
        let leave = Leave { after: 2, latest: 2, copy: (200, 290) };
        let back = Return { earliest: 3, until: 4, start: 290 };
        assert_eq!(of(1), [&Trip { tensor: TensorId(1), hides: true, leave: Some(leave), back: Some(back) }]);
        let leave = Leave { after: 5, latest: 7, copy: (500, 520) };
        let back = Return { earliest: 3, until: 4, start: 380 };
        let across = [
            Trip { tensor: TensorId(3), hides: true, leave: Some(leave), back: None },
            Trip { tensor: TensorId(3), hides: true, leave: None, back: Some(back) },
        ];
        assert_eq!(of(3), across.iter().collect::<Vec<_>>());
    }

    #[test]
    fn budgets_are_met_by_swaps() {
        let trace = example();
        let lowest = match AutoSwap::default().plan(&trace, &Limits { device: Bytes(0), ..limits() }) {
            Err(Infeasible::Device { lowest, .. }) => lowest,
            other => panic!("{other:?}"),
        };
        // Op 4 needs b and m.
        assert_eq!(lowest, Bytes(110));
        for device in [110, 150, 199] {
            let planned = AutoSwap::default().plan(&trace, &Limits { device: Bytes(device), ..limits() }).unwrap();
            assert!(planned.report.swap_ins > 0 && planned.report.reruns == 0);
        }
    }
}
