//! Many programs, one winner: recipes are varied, the simulator judges.
//!
//! ```text
//! recipe ── cover ── walk ── prefetch ── ideal ──► how fast without addresses      (cheap: hundreds of recipes)
//!   ▲ vary                        │
//!   └──── the best so far ◄── layout ──► does it fit?  no: tighten the caps where it does not, and again
//!                                 │ yes
//!                               sync ── simulate ──► the fastest is kept            (dear: some dozens)
//! ```
//!
//! All work is counted in accesses and instructions, never in time, so that equal input gives equal output.

use super::caps::Caps;
use super::cover::{Bias, CoverOptions, cover};
use super::ideal::ideal;
use super::prefetch::prefetch;
use crate::id::{Bytes, Nanos};
use crate::planner::facts::Facts;
use crate::planner::walk::{Boundary, Lowered, Weights, first_residents, lower};
use crate::planner::{place, place_quickly};
use crate::program::{Instr, Placed, Program};
use crate::simulate::{Simulation, simulate};
use crate::sync::sync;
use crate::trace::Trace;

/// How to make a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Recipe {
    /// Price of a nanosecond of a copy lane, in nanoseconds of the step.
    pub(super) lane_price: f64,
    /// Copies are taken to last this many times their estimate.
    pub(super) margin: f64,
    /// Whether evictions are chosen ahead of the walk.
    pub(super) is_planned: bool,
    /// Part of the caps that is used.
    pub(super) share: f64,
    /// Whether the times of the best program so far, stalls and reruns included, take the place of the undisturbed ones.
    pub(super) is_stretched: bool,
    pub(super) bias: Bias,
}

impl Recipe {
    /// One without bias.
    pub(super) fn plain(facts: &Facts<'_>, lane_price: f64) -> Self {
        let is_planned = facts.limits.boundary.is_none() && facts.n_ops() > 0;
        let bias = Bias::none(facts.trace.tensors().len());
        Self { lane_price, margin: 1.0, is_planned, share: 1.0, is_stretched: false, bias }
    }
}

/// A program within the budgets.
pub(super) struct Found {
    pub(super) placed: Placed,
    pub(super) simulation: Simulation,
    recipe: Recipe,
}

/// Prices of a copy lane that are tried.
const LANE_PRICES: [f64; 5] = [0.02, 0.1, 0.5, 1.0, 0.0];
/// Most rounds of tightening caps for one recipe.
const MOST_ROUNDS: usize = 10;
/// Most instructions laid out by one search; a thorough layout counts [`THOROUGH`] times.
const MOST_LAID_OUT: usize = 300_000;
const THOROUGH: usize = 5;
/// Most accesses of the trace that are gone through by trying recipes, and most recipes.
const MOST_ACCESSES: usize = 500_000;
const MOST_RECIPES: usize = 400;
/// Variations that are tried side by side.
const BATCH: usize = 4;
/// Steps of fewer ops are planned faster by one thread.
const WORTH_THREADS: usize = 100;
/// An arena of more than this many quarters of the budget is not worth tightening caps for.
const HOPELESS_QUARTERS: u64 = 5;

pub(super) struct Search<'a> {
    facts: &'a Facts<'a>,
    pub(super) best: Option<Found>,
    /// The smallest host arena of programs that fit the device but not the host.
    pub(super) least_host: Option<Bytes>,
    /// Instructions laid out so far.
    n_laid_out: usize,
    /// When ops start in the best program so far.
    stretched: Vec<u64>,
    /// Those under which a recipe fits.
    caps: Option<Caps>,
}

/// A recipe tried without a layout.
struct Tried {
    recipe: Recipe,
    program: Program,
    time: Nanos,
}

impl<'a> Search<'a> {
    pub(super) fn new(facts: &'a Facts<'a>) -> Self {
        Self { facts, best: None, least_host: None, n_laid_out: 0, stretched: facts.start.clone(), caps: None }
    }

    /// One recipe, until it fits; others only if none does.
    pub(super) fn run_fast(&mut self) {
        for recipe in self.plain_recipes() {
            let caps = Caps::new(self.facts, self.facts.budget().0);
            self.fit(recipe, caps);
            if self.best.is_some() {
                return;
            }
        }
    }

    /// The trace, in the order searched.
    pub(super) fn trace(&self) -> &'a Trace {
        self.facts.trace
    }

    /// The recipes without bias: the fastest of them that fits.
    pub(super) fn run_plain(&mut self) {
        let flat = Caps::new(self.facts, self.facts.budget().0);
        let mut tried: Vec<Tried> =
            self.plain_recipes().into_iter().filter_map(|recipe| self.try_out(recipe, &flat.values)).collect();
        tried.sort_by_key(|tried| tried.time);
        for Tried { recipe, .. } in tried {
            self.caps = self.fit(recipe, flat.clone());
            if self.caps.is_some() {
                break;
            }
        }
    }

    /// Without bias: planned covers at all prices, and the walk alone.
    fn plain_recipes(&self) -> Vec<Recipe> {
        let plain = LANE_PRICES.map(|price| Recipe::plain(self.facts, price));
        let alone =
            LANE_PRICES[..2].iter().map(|&price| Recipe { is_planned: false, ..Recipe::plain(self.facts, price) });
        let planned = plain.into_iter().filter(|recipe| recipe.is_planned);
        planned.chain(alone).collect()
    }

    fn try_out(&self, recipe: Recipe, caps: &[u64]) -> Option<Tried> {
        let program = make(self.facts, &recipe, caps, &self.stretched)?;
        let (program, simulation) = ideal(self.facts, program);
        Some(Tried { recipe, program, time: simulation.step_time })
    }

    /// The fastest of several recipes, the first among equals. Side by side, where that is worth it.
    fn try_all(&self, recipes: Vec<Recipe>, caps: &[u64]) -> Option<Tried> {
        let tried: Vec<Option<Tried>> = if self.facts.n_ops() < WORTH_THREADS {
            recipes.into_iter().map(|recipe| self.try_out(recipe, caps)).collect()
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> =
                    recipes.into_iter().map(|recipe| scope.spawn(|| self.try_out(recipe, caps))).collect();
                let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                threads.into_iter().map(join).collect()
            })
        };
        tried.into_iter().flatten().min_by_key(|tried| tried.time)
    }

    /// Makes programs under ever tighter caps until one fits the device; the caps under which it does.
    fn fit(&mut self, recipe: Recipe, mut caps: Caps) -> Option<Caps> {
        let facts = self.facts;
        let budget = facts.budget();
        for round in 0..MOST_ROUNDS {
            let program = make(facts, &recipe, &caps.values, &self.stretched)?;
            let placed = self.lay_out(&program, round > 1)?;
            if placed.layout.arena <= budget {
                self.offer(recipe, placed);
                return Some(caps);
            }
            if placed.layout.arena.0 / HOPELESS_QUARTERS > budget.0 / 4 {
                return None;
            }
            caps.tighten(facts, &placed, 1.0 + round as f64 / 2.0);
        }
        None
    }

    /// Addresses for a program; more thoroughly where they are nearly good enough. None if there has been enough work.
    fn lay_out(&mut self, program: &Program, thoroughly: bool) -> Option<Placed> {
        let facts = self.facts;
        let budget = facts.budget();
        let n_instrs = program.instrs.len();
        if self.n_laid_out + n_instrs > MOST_LAID_OUT {
            return None;
        }
        self.n_laid_out += n_instrs;
        let placed = place_quickly(facts.trace, facts.limits, program).ok()?;
        let is_close = placed.layout.arena > budget && placed.layout.arena.0 <= budget.0 + budget.0 / 50;
        if !thoroughly || !is_close || self.n_laid_out + THOROUGH * n_instrs > MOST_LAID_OUT {
            return Some(placed);
        }
        self.n_laid_out += THOROUGH * n_instrs;
        place(facts.trace, facts.limits, program).ok()
    }

    /// Keeps a program that fits the device, if it fits the host and is the fastest so far; whether it is.
    fn offer(&mut self, recipe: Recipe, placed: Placed) -> bool {
        let facts = self.facts;
        let host = placed.layout.host_arena;
        if host > facts.limits.host {
            self.least_host = Some(self.least_host.map_or(host, |least| least.min(host)));
            return false;
        }
        let synced = sync(facts.trace, placed);
        let mut simulation = simulate(facts.trace, &synced, &facts.limits.link);
        let mut placed = synced.placed;
        if !simulation.stalls.is_empty()
            && let Ok(apart) = crate::layout::spread(facts.trace, placed.clone(), facts.limits)
        {
            let other = sync(facts.trace, apart);
            let other_simulation = simulate(facts.trace, &other, &facts.limits.link);
            if other_simulation.step_time < simulation.step_time {
                (placed, simulation) = (other.placed, other_simulation);
            }
        }
        let is_best = self.best.as_ref().is_none_or(|best| simulation.step_time < best.simulation.step_time);
        if is_best {
            self.stretched = starts(facts, &placed.program, &simulation);
            self.best = Some(Found { placed, simulation, recipe });
        }
        is_best
    }

    /// Varies the best recipe: what is faster without addresses is laid out.
    pub(super) fn vary(&mut self) {
        let Some(mut caps) = self.caps.take() else { return };
        let facts = self.facts;
        let n_accesses: usize = facts.trace.tensor_ids().map(|tensor| facts.live.accesses(tensor).len()).sum();
        let n_recipes = MOST_RECIPES.min(MOST_ACCESSES / n_accesses.max(1));
        let Some(best) = &self.best else { return };
        let Some(mut lead) = self.try_out(best.recipe.clone(), &caps.values) else { return };
        for lane_price in LANE_PRICES {
            let recipe = Recipe { is_stretched: true, lane_price, ..lead.recipe.clone() };
            if let Some(tried) = self.try_out(recipe, &caps.values)
                && tried.time < lead.time
            {
                lead = tried;
            }
        }
        let mut chance = Chance::new();
        for batch in 0..n_recipes / BATCH {
            let recipes: Vec<Recipe> =
                (0..BATCH).map(|number| chance.variation(&lead.recipe, batch * BATCH + number)).collect();
            let Some(tried) = self.try_all(recipes, &caps.values) else { continue };
            if tried.time >= lead.time {
                continue;
            }
            lead = tried;
            if self.best.as_ref().is_some_and(|best| lead.time >= best.simulation.step_time) {
                continue;
            }
            let Some(placed) = self.lay_out(&lead.program, true) else { break };
            if placed.layout.arena <= facts.budget() {
                self.offer(lead.recipe.clone(), placed);
            } else {
                caps.tighten(facts, &placed, 1.0);
                if let Some(again) = self.try_out(lead.recipe.clone(), &caps.values) {
                    lead = again;
                }
            }
        }
        // The last leader may have failed by a little.
        self.fit(lead.recipe, caps);
    }
}

/// Deterministic random numbers, for variations.
struct Chance {
    state: u64,
}

impl Chance {
    fn new() -> Self {
        Self { state: 0x9e37_79b9_7f4a_7c15 }
    }

    /// In 0..1.
    fn next(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Another recipe near one.
    fn variation(&mut self, of: &Recipe, number: usize) -> Recipe {
        let mut recipe = of.clone();
        let share = [0.05, 0.2, 0.02, 0.5][number % 4];
        let strength = [3.0, 1.0][number / 4 % 2];
        for bias in recipe.bias.swap.iter_mut().chain(&mut recipe.bias.rerun) {
            if self.next() < share {
                *bias = (*bias * ((self.next() * 2.0 - 1.0) * strength).exp() as f32).clamp(1e-3, 1e3);
            }
        }
        match number % 6 {
            0 => recipe.lane_price = LANE_PRICES[(self.next() * 4.99) as usize],
            2 => recipe.margin = [1.0, 1.1, 1.25][(self.next() * 2.99) as usize],
            3 => recipe.is_stretched = !recipe.is_stretched,
            4 => recipe.share = [1.0, 0.98, 0.95, 0.9][(self.next() * 3.99) as usize],
            _ => {}
        }
        recipe
    }
}

/// One program by a recipe, if the walk gets through.
pub(super) fn make(facts: &Facts<'_>, recipe: &Recipe, caps: &[u64], stretched: &[u64]) -> Option<Program> {
    let start = if recipe.is_stretched { stretched } else { &facts.start };
    let scaled: Vec<u64>;
    let caps = if recipe.share < 1.0 {
        scaled = caps.iter().map(|&cap| (cap as f64 * recipe.share) as u64).collect();
        &scaled
    } else {
        caps
    };
    let weights = Weights::new(facts.trace.tensors().len(), recipe.lane_price);
    let program = if recipe.is_planned {
        let options = CoverOptions { lane_price: recipe.lane_price, margin: recipe.margin };
        let plan = cover(facts, caps, start, options, &recipe.bias);
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
fn starts(facts: &Facts<'_>, program: &Program, simulation: &Simulation) -> Vec<u64> {
    let spans = program.instrs.iter().zip(&simulation.spans);
    let runs: Vec<i64> =
        spans.filter(|(instr, _)| matches!(instr, Instr::Run { .. })).map(|(_, span)| span.start).collect();
    let first = runs.first().copied().unwrap_or(0);
    let mut start: Vec<u64> = runs.iter().map(|&start| u64::try_from(start - first).unwrap_or(0)).collect();
    let last_latency = facts.trace.ops().last().map_or(0, |op| op.latency.0);
    let end = start.last().map_or(0, |&last| last + last_latency);
    start.push(end.max(simulation.step_time.0));
    start
}
