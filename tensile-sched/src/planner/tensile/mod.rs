//! The default planner: for each idle interval the cheapest of keeping, releasing, swapping and recomputing.
//!
//! 1. [`cover`] chooses evictions so that every position of the step is within the budget, where one nanosecond of exposed time is worth the most bytes.
//! 2. [`walk`](super::walk) walks the ops and writes the program, exact to the byte; where the choice does not suffice it evicts on the spot.
//! 3. [`prefetch`] moves swap-ins ahead into free room.
//! 4. `layout` gives addresses. Where they exceed the budget, [`caps`] shrink, and the program is made anew.
//! 5. [`search`] does this for a few prices of the copy lanes and in several [`order`]s of the ops, then varies the best recipe; [`ideal`] says what is worth a layout, `simulate` what is fastest.
//!
//! Where that finds nothing, near the floor, [`packed`](super::packed) does.

mod caps;
mod cover;
mod excess;
mod ideal;
mod lane;
mod order;
mod prefetch;
mod search;

use super::facts::Facts;
use super::packed::packed;
use super::{Infeasible, Planned, Planner, complete, place, published};
use crate::baseline::no_eviction;
use crate::floor::{Floor, check_blocks, check_boundary, floor, swap_floor, working_set};
use crate::id::{Bytes, Nanos};
use crate::limits::{Limits, Mode};
use crate::program::Placed;
use crate::trace::Trace;
use caps::Caps;
use order::orders;
use search::{Recipe, Search, make};

/// How much work [`Tensile`] puts into a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effort {
    /// One pass, for plans that are needed at once: milliseconds.
    Fast,
    /// Some hundred variations, in one order of the ops or another: a second or two for a thousand ops.
    #[default]
    Best,
}

/// The default planner: swaps, recomputes and releases by what each costs in exposed time against what it relieves.
///
/// It plans at every budget from [`floor`](floor()) up, and with [`Effort::Best`] never slower than a published policy. With `none`'s arena or more the program is `none`'s: no eviction, no rerun.
///
/// In the order of n log n per program for n accesses; one program or a few with [`Effort::Fast`], some hundred with [`Effort::Best`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tensile {
    /// How much work a plan is worth.
    pub effort: Effort,
}

impl Planner for Tensile {
    fn name(&self) -> &'static str {
        match self.effort {
            Effort::Fast => "tensile-fast",
            Effort::Best => "tensile",
        }
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        if limits.mode != Mode::Recompute {
            check_blocks(trace, limits)?;
            check_boundary(trace, limits)?;
            // Blocks may make it larger than `none`'s arena.
            if limits.device < swap_floor(trace, limits).bytes {
                let floor = floor(trace, limits)?;
                if limits.device < floor.bytes {
                    return Err(floor.infeasible(trace, limits));
                }
            }
        }
        let unlimited = no_eviction(trace, limits)?;
        if unlimited.layout.arena <= limits.device {
            return complete(trace, limits, unlimited);
        }
        let own = self.own(trace, limits);
        if self.effort == Effort::Fast || limits.boundary.is_some() {
            return own;
        }
        // With this effort it is never slower than with little, nor than any published policy.
        let is_better = |best: &Result<Planned, Infeasible>, other: &Planned| {
            best.as_ref().map_or(true, |best| other.simulation.step_time < best.simulation.step_time)
        };
        let mut best = own;
        if let Ok(fast) = (Self { effort: Effort::Fast }).own(trace, limits)
            && is_better(&best, &fast)
        {
            best = Ok(fast);
        }
        for policy in published() {
            if best.as_ref().is_ok_and(|best| best.simulation.step_time <= best.simulation.compute_time) {
                break;
            }
            if let Ok(other) = policy.plan(trace, limits)
                && is_better(&best, &other)
            {
                best = Ok(other);
            }
        }
        best
    }
}

impl Tensile {
    /// A plan of its own making.
    fn own(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let (placed, least_host) = self.search(trace, limits);
        if let Some(placed) = placed {
            return complete(trace, limits, placed);
        }
        let last_resort = match limits.mode {
            Mode::Recompute => {
                let (floor, placed) = least_recomputing(trace, limits)?;
                if limits.device < floor.bytes {
                    return Err(floor.infeasible(trace, limits));
                }
                placed
            }
            Mode::Swap | Mode::Both => packed(&Facts::new(trace, limits))?,
        };
        if limits.mode != Mode::Both || last_resort.layout.host_arena <= limits.host {
            return complete(trace, limits, last_resort);
        }
        // The host is short as well: recomputation alone needs only the slots of inputs and outputs.
        let recompute = Limits { mode: Mode::Recompute, ..limits.clone() };
        match self.own(trace, &recompute) {
            Ok(planned) => Ok(planned),
            Err(_) => {
                let needed = least_host.unwrap_or(Bytes::MAX).min(last_resort.layout.host_arena);
                Err(Infeasible::Host { budget: limits.host, needed })
            }
        }
    }

    /// The fastest program found within the budgets, if any; and the smallest host arena of those that fit only the device.
    fn search(&self, trace: &Trace, limits: &Limits) -> (Option<Placed>, Option<Bytes>) {
        let mut orders = orders(trace, limits);
        let recorded = Facts::new(trace, limits);
        if self.effort == Effort::Fast {
            // The order with least over the budget.
            let over = |facts: &Facts<'_>| excess_time(facts);
            let chosen = orders
                .iter()
                .enumerate()
                .map(|(index, order)| (over(&Facts::new(&order.trace, limits)), index))
                .min()
                .filter(|&(least, _)| least < over(&recorded));
            orders = chosen.map(|(_, index)| orders.swap_remove(index)).into_iter().collect();
        }
        let facts: Vec<Facts<'_>> = orders.iter().map(|order| Facts::new(&order.trace, limits)).collect();
        let mut searches: Vec<Search<'_>> = [&recorded].into_iter().chain(&facts).map(Search::new).collect();
        if self.effort == Effort::Fast && searches.len() > 1 {
            searches.swap(0, 1);
            searches.truncate(1);
        }
        for search in &mut searches {
            match self.effort {
                Effort::Fast => search.run_fast(),
                Effort::Best => search.run_plain(),
            }
        }
        let least_host = searches.iter().filter_map(|search| search.least_host).min();
        let time = |search: &Search<'_>| search.best.as_ref().map_or(Nanos::MAX, |best| best.simulation.step_time);
        searches.sort_by_key(time);
        if self.effort == Effort::Best {
            searches.truncate(MOST_ORDERS);
            let share = searches.len();
            searches.iter_mut().for_each(|search| search.vary(share));
            searches.sort_by_key(time);
        }
        let Some(mut search) = searches.into_iter().next().filter(|search| search.best.is_some()) else {
            return (None, least_host);
        };
        let mut placed = search.best.take().expect("it has a program").placed;
        if let Some(order) = orders.iter().find(|order| std::ptr::eq(&order.trace, search.trace())) {
            order.restore(&mut placed.program);
        }
        (Some(placed), least_host)
    }
}

/// Orders of the ops in which recipes are varied.
const MOST_ORDERS: usize = 2;

/// Bytes above the budget × time, without evictions.
fn excess_time(facts: &Facts<'_>) -> u128 {
    let usage = facts.live.usage(facts.trace, facts.limits);
    let over = usage.iter().map(|usage| usage.0.saturating_sub(facts.budget().0));
    over.zip(facts.trace.ops()).map(|(over, op)| u128::from(over) * u128::from(op.latency.0 + 1)).sum()
}

/// The floor of [`Mode::Recompute`]: what [`least_recomputing`] finds.
pub(crate) fn recompute_floor(trace: &Trace, limits: &Limits) -> Result<Floor, Infeasible> {
    least_recomputing(trace, limits).map(|(floor, _)| floor)
}

/// Caps that are tried for the smallest arena by recomputation: this many, evenly from the least conceivable to `none`'s arena.
const FLOOR_CAPS: u64 = 80;
/// The search ends when this many caps in a row have given nothing smaller.
const MOST_WORSE: usize = 6;

/// The program with the smallest arena that recomputes and does not swap, among those of a row of flat caps, `none`'s included.
///
/// The search never looks at the budget, so the same program is there at every budget.
fn least_recomputing(trace: &Trace, limits: &Limits) -> Result<(Floor, Placed), Infeasible> {
    let limits = Limits { device: Bytes::MAX, host: Bytes::MAX, mode: Mode::Recompute, ..limits.clone() };
    let facts = Facts::new(trace, &limits);
    // At its peak as a budget, `none` is laid out as thoroughly as the policy itself does.
    let peak = facts.live.peak(trace, &limits).bytes;
    let mut best = no_eviction(trace, &Limits { device: peak, ..limits.clone() })?;
    let persistent: Bytes = trace.tensor_ids().filter(|&t| facts.is_persistent(t)).map(|t| Bytes(facts.bytes(t))).sum();
    let low = trace.op_ids().map(|op| working_set(trace, &limits, op)).max().unwrap_or_default().max(persistent).0;
    let high = best.layout.arena.0.max(low);
    let mut n_worse = 0;
    for step in 0..=FLOOR_CAPS {
        let cap = low + (u128::from(high - low) * u128::from(step) / u128::from(FLOOR_CAPS)) as u64;
        let caps = Caps::new(&facts, cap);
        let mut is_better = false;
        for is_planned in [true, false] {
            let is_planned = is_planned && limits.boundary.is_none() && facts.n_ops() > 0;
            let recipe = Recipe { is_planned, ..Recipe::plain(&facts, 0.0) };
            let Some(program) = make(&facts, &recipe, &caps.values, &facts.start) else { continue };
            let mut placed = place(trace, &Limits { device: Bytes(cap), ..limits.clone() }, &program)?;
            let is_across = limits.block() < placed.layout.arena && Bytes(cap) <= limits.block();
            if is_across && placed.layout.arena < best.layout.arena {
                // One block was not enough after all.
                placed = place(trace, &limits, &program)?;
            }
            if placed.layout.arena < best.layout.arena {
                best = placed;
                is_better = true;
            }
        }
        n_worse = if is_better || best.layout.arena.0 == high { 0 } else { n_worse + 1 };
        if n_worse >= MOST_WORSE {
            break;
        }
    }
    let op = facts.live.peak(trace, &limits).op;
    Ok((Floor { bytes: best.layout.arena, op }, best))
}
