//! Many programs, one winner: recipes are tried, the simulator judges.
//!
//! ```text
//! recipe ── cover ── walk ── prefetch ── layout ──► does it fit?  no: tighten the caps where it does not, and again
//!                                          │ yes
//!                                        sync ── simulate ──► the fastest is kept
//! ```

use super::TensileOptions;
use super::caps::Caps;
use super::cover::{CoverOptions, cover};
use super::prefetch::prefetch;
use crate::id::{Bytes, Nanos};
use crate::planner::facts::Facts;
use crate::planner::walk::{Boundary, Lowered, Weights, first_residents, lower};
use crate::planner::{place, place_quickly};
use crate::program::{Instr, Placed, Program};
use crate::simulate::{Simulation, simulate};
use crate::sync::sync;

/// How to make a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recipe {
    /// Price of a nanosecond of a copy lane, in nanoseconds of the step.
    pub(super) lane_price: f64,
    /// Copies are taken to last this many times their estimate.
    pub(super) margin: f64,
    /// Whether evictions are chosen ahead of the walk.
    pub(super) is_planned: bool,
}

/// A program within the budgets.
pub(super) struct Found {
    pub(super) placed: Placed,
    pub(super) simulation: Simulation,
    recipe: Recipe,
}

/// Most rounds of tightening caps for one recipe.
const MOST_ROUNDS: usize = 10;
/// Rounds that show how good a recipe is.
const FIRST_ROUNDS: usize = 2;
/// Recipes that are then followed until they fit.
const MOST_CHOSEN: usize = 2;
/// Most instructions laid out by one search; a thorough layout counts [`THOROUGH`] times.
const MOST_WORK: usize = 300_000;
const THOROUGH: usize = 5;
/// An arena of more than this many quarters of the budget is not worth tightening caps for, and after so many of those the search ends.
const HOPELESS_QUARTERS: u64 = 5;
const MOST_HOPELESS: usize = 3;
/// Beyond this many ops, fewer recipes are tried.
const MANY_OPS: usize = 2000;

pub(super) struct Search<'a> {
    facts: &'a Facts<'a>,
    options: &'a TensileOptions,
    pub(super) best: Option<Found>,
    /// The smallest host arena of programs that fit the device but not the host.
    pub(super) least_host: Option<Bytes>,
    /// Instructions laid out so far.
    work: usize,
    /// Programs whose arena was far above the budget.
    n_hopeless: usize,
    /// Programs laid out so far: recipes often agree.
    tried: Vec<Program>,
}

/// A recipe that does not fit yet.
struct Open {
    recipe: Recipe,
    caps: Caps,
    time: Nanos,
}

impl<'a> Search<'a> {
    pub(super) fn new(facts: &'a Facts<'a>, options: &'a TensileOptions) -> Self {
        Self { facts, options, best: None, least_host: None, work: 0, n_hopeless: 0, tried: Vec::new() }
    }

    /// Looks for the fastest program within the budgets.
    pub(super) fn run(&mut self) {
        let facts = self.facts;
        let is_planned = facts.limits.boundary.is_none() && facts.n_ops() > 0;
        let is_large = facts.n_ops() > MANY_OPS;
        let n_prices = if is_large { 1 } else { self.options.lane_prices.len() };
        let recipe = |&lane_price: &f64| Recipe { lane_price, margin: 1.0, is_planned };
        let mut recipes: Vec<Recipe> = self.options.lane_prices[..n_prices].iter().map(recipe).collect();
        self.try_all(&recipes, &facts.start);
        if self.best.is_none() && is_planned {
            recipes.truncate(2);
            recipes.iter_mut().for_each(|recipe| recipe.is_planned = false);
            self.try_all(&recipes, &facts.start);
        }
        for _ in 0..if is_large { 1 } else { self.options.n_refinements } {
            let Some(best) = &self.best else { break };
            let before = best.simulation.step_time;
            let recipe = best.recipe;
            let start = starts(facts, best);
            let mut recipes = vec![Recipe { is_planned, ..recipe }];
            if !is_large {
                recipes.push(Recipe { is_planned, margin: self.options.margin, ..recipe });
                recipes.push(Recipe { is_planned, lane_price: recipe.lane_price / 2.0, ..recipe });
                recipes.push(Recipe { is_planned, lane_price: recipe.lane_price * 2.0, ..recipe });
            }
            self.try_all(&recipes, &start);
            if self.best.as_ref().is_none_or(|best| best.simulation.step_time >= before) {
                break;
            }
        }
    }

    /// Tries the first recipe until it fits, the others for a few rounds; then sees to it that the most promising of those fit as well.
    fn try_all(&mut self, recipes: &[Recipe], start: &[u64]) {
        let mut open = Vec::new();
        for (index, &recipe) in recipes.iter().enumerate() {
            let caps = Caps::new(self.facts, self.facts.budget().0);
            let n_rounds = if index == 0 { MOST_ROUNDS } else { FIRST_ROUNDS };
            open.extend(self.attempt(recipe, start, caps, n_rounds));
        }
        open.sort_by_key(|open: &Open| open.time);
        for Open { recipe, caps, time } in open.into_iter().take(MOST_CHOSEN) {
            if self.best.as_ref().is_none_or(|best| time < best.simulation.step_time) {
                self.attempt(recipe, start, caps, MOST_ROUNDS);
            }
        }
    }

    /// Makes programs under ever tighter caps until one fits. If none does, the last one's caps and time.
    fn attempt(&mut self, recipe: Recipe, start: &[u64], mut caps: Caps, n_rounds: usize) -> Option<Open> {
        let facts = self.facts;
        let budget = facts.budget();
        for round in 0..n_rounds {
            let program = make(facts, recipe, &caps.values, start)?;
            let n_instrs = program.instrs.len();
            if self.work + n_instrs > MOST_WORK || self.n_hopeless >= MOST_HOPELESS || self.tried.contains(&program) {
                return None;
            }
            self.work += n_instrs;
            let mut placed = place_quickly(facts.trace, facts.limits, &program).ok()?;
            let is_close = placed.layout.arena.0 <= budget.0 + budget.0 / 50;
            let is_worth_it = is_close && n_rounds > FIRST_ROUNDS;
            if placed.layout.arena > budget && is_worth_it && self.work + THOROUGH * n_instrs <= MOST_WORK {
                self.work += THOROUGH * n_instrs;
                placed = place(facts.trace, facts.limits, &program).ok()?;
            }
            self.tried.push(program);
            if placed.layout.arena <= budget {
                self.offer(recipe, placed);
                return None;
            }
            if placed.layout.arena.0 / HOPELESS_QUARTERS > budget.0 / 4 {
                self.n_hopeless += 1;
                return None;
            }
            caps.tighten(facts, &placed, 1.0 + round as f64 / 2.0);
            if round + 1 == n_rounds {
                let time = simulate(facts.trace, &sync(facts.trace, placed), &facts.limits.link).step_time;
                return Some(Open { recipe, caps, time });
            }
        }
        None
    }

    /// Keeps a program that fits the device, if it fits the host and is the fastest so far.
    fn offer(&mut self, recipe: Recipe, placed: Placed) {
        let facts = self.facts;
        let host = placed.layout.host_arena;
        if host > facts.limits.host {
            self.least_host = Some(self.least_host.map_or(host, |least| least.min(host)));
            return;
        }
        let synced = sync(facts.trace, placed);
        let simulation = simulate(facts.trace, &synced, &facts.limits.link);
        if self.best.as_ref().is_none_or(|best| simulation.step_time < best.simulation.step_time) {
            self.best = Some(Found { placed: synced.placed, simulation, recipe });
        }
    }
}

/// One program by a recipe, if the walk gets through.
pub(super) fn make(facts: &Facts<'_>, recipe: Recipe, caps: &[u64], start: &[u64]) -> Option<Program> {
    let weights = Weights::new(facts.trace.tensors().len(), recipe.lane_price);
    let program = if recipe.is_planned {
        let options = CoverOptions { lane_price: recipe.lane_price, margin: recipe.margin };
        let plan = cover(facts, caps, start, options);
        let boundary = Boundary::Closed { residents: plan.residents.clone(), saved: plan.saved.clone() };
        lower(facts, &weights, caps, &boundary, Some(&plan)).ok()?.program
    } else {
        periodic(facts, &weights, caps)?
    };
    Some(prefetch(facts, &program, caps, recipe.margin))
}

/// A program by the walk alone that ends where it starts.
fn periodic(facts: &Facts<'_>, weights: &Weights, caps: &[u64]) -> Option<Program> {
    if facts.limits.boundary.is_some() {
        return lower(facts, weights, caps, &Boundary::Given, None).ok().map(|lowered| lowered.program);
    }
    let starts = first_residents(facts, caps[0]);
    let Lowered { residents, saved, .. } = lower(facts, weights, caps, &Boundary::Open(starts), None).ok()?;
    lower(facts, weights, caps, &Boundary::Closed { residents, saved }, None).ok().map(|lowered| lowered.program)
}

/// When each op starts in a simulated step, from the first one on; then the step time.
fn starts(facts: &Facts<'_>, found: &Found) -> Vec<u64> {
    let spans = found.placed.program.instrs.iter().zip(&found.simulation.spans);
    let runs: Vec<i64> =
        spans.filter(|(instr, _)| matches!(instr, Instr::Run { .. })).map(|(_, span)| span.start).collect();
    let first = runs.first().copied().unwrap_or(0);
    let mut start: Vec<u64> = runs.iter().map(|&start| u64::try_from(start - first).unwrap_or(0)).collect();
    let last_latency = facts.trace.ops().last().map_or(0, |op| op.latency.0);
    let end = start.last().map_or(0, |&last| last + last_latency);
    start.push(end.max(found.simulation.step_time.0));
    start
}
