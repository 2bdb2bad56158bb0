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

use super::caps::{Caps, overshoot};
use super::cover::{Bias, CoverOptions, cover};
use super::ideal::ideal;
use super::prefetch::prefetch;
use crate::borders::Borders;
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
/// A plan with little effort that slows a step down by more than this part of it is worth trying other recipes.
const WORTH_MORE: f64 = 0.1;
/// Recipes without bias that are laid out.
const MOST_PLAIN: usize = 4;
/// Most rounds of tightening caps for one recipe.
const MOST_ROUNDS: usize = 10;
/// Most instructions laid out by one search; a thorough layout counts [`THOROUGH`] times.
const MOST_LAID_OUT: usize = 300_000;
const THOROUGH: usize = 5;
/// Most thorough layouts of one search where memory comes in blocks, in which few of them end early; with little effort.
const MOST_THOROUGH_IN_BLOCKS: usize = 16;
const FEW_THOROUGH_IN_BLOCKS: usize = 1;
/// Most work of trying recipes; one takes about as much as the accesses of the trace to the power of 1.5.
const MOST_WORK: f64 = 36e6;
/// Most recipes: these, and so many for each op.
const LEAST_RECIPES: usize = 100;
const RECIPES_PER_OP: usize = 20;
/// Rounds without progress after which the lead without addresses is sought elsewhere.
const MOST_IDLE: usize = 10;
/// Variations that are tried side by side.
const BATCH: usize = 4;
/// Steps of fewer ops are planned faster by one thread.
const WORTH_THREADS: usize = 100;
/// A program that needs more than this many quarters of the budget is not worth tightening caps for.
const HOPELESS_QUARTERS: u64 = 5;

pub(super) struct Search<'a> {
    facts: &'a Facts<'a>,
    pub(super) best: Option<Found>,
    /// The smallest host arena of programs that fit the device but not the host.
    pub(super) least_host: Option<Bytes>,
    /// Instructions laid out so far.
    n_laid_out: usize,
    /// Thorough layouts that may still be made.
    n_thorough_left: usize,
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
        let is_in_blocks = Borders::of(facts.limits) != Borders::NONE;
        Self {
            facts,
            best: None,
            least_host: None,
            n_laid_out: 0,
            n_thorough_left: if is_in_blocks { MOST_THOROUGH_IN_BLOCKS } else { usize::MAX },
            stretched: facts.start.clone(),
            caps: None,
        }
    }

    /// One recipe, until it fits; others only if none does, or if the step gets much slower.
    pub(super) fn run_fast(&mut self) {
        if Borders::of(self.facts.limits) != Borders::NONE {
            self.n_thorough_left = FEW_THOROUGH_IN_BLOCKS;
        }
        let flat = Caps::new(self.facts, self.facts.budget().0);
        for recipe in self.plain_recipes() {
            self.fit(recipe, flat.clone());
            if self.best.as_ref().is_some_and(|best| best.simulation.overhead() < WORTH_MORE) {
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
        // The first recipe is the one that is good for most.
        let first = Recipe::plain(self.facts, LANE_PRICES[0]);
        tried.sort_by_key(|tried| (tried.recipe != first, tried.time));
        for (number, Tried { recipe, time, .. }) in tried.into_iter().enumerate() {
            let real = self.best.as_ref().map(|best| best.simulation.step_time);
            if real.is_some_and(|real| number >= MOST_PLAIN || time >= real) {
                break;
            }
            let caps = self.fit(recipe, flat.clone());
            if self.best.as_ref().map(|best| best.simulation.step_time) != real {
                self.caps = caps;
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
            let over = overshoot(facts, &placed);
            let needed = if Borders::of(facts.limits) == Borders::NONE {
                placed.layout.arena.0
            } else {
                budget.0 + over.iter().copied().max().unwrap_or(0)
            };
            if needed / HOPELESS_QUARTERS > budget.0 / 4 {
                return None;
            }
            caps.tighten(facts, &over, 1.0 + round as f64 / 2.0);
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
        let is_affordable = self.n_thorough_left > 0 && self.n_laid_out + THOROUGH * n_instrs <= MOST_LAID_OUT;
        if !thoroughly || !is_close || !is_affordable {
            return Some(placed);
        }
        self.n_thorough_left -= 1;
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

    /// Varies the best recipe, and in turn with it the one that is fastest without addresses: what is faster so than the best with addresses is laid out.
    /// `share` is the part of the work that this search may do.
    pub(super) fn vary(&mut self, share: usize) {
        let Some(mut caps) = self.caps.take() else { return };
        let facts = self.facts;
        let n_accesses: usize = facts.trace.tensor_ids().map(|tensor| facts.live.accesses(tensor).len()).sum();
        let n_affordable = (MOST_WORK / (n_accesses.max(1) as f64).powf(1.5)) as usize;
        let n_recipes = n_affordable.min(LEAST_RECIPES + RECIPES_PER_OP * facts.n_ops()) / share;
        let mut chance = Chance::new(facts);
        // The lead without addresses, and its own caps.
        let mut light: Option<(Recipe, Nanos, Caps)> = None;
        let mut n_idle = 0;
        for batch in 0..n_recipes.div_ceil(BATCH) {
            let Some(best) = &self.best else { return };
            let time = best.simulation.step_time;
            if time <= best.simulation.compute_time {
                return;
            }
            let is_light = batch % 2 == 1;
            if is_light && n_idle == MOST_IDLE {
                // Elsewhere.
                n_idle = 0;
                let recipe = chance.scattered(Recipe::plain(facts, LANE_PRICES[batch / 2 % LANE_PRICES.len()]));
                light = self.try_out(recipe, &caps.values).map(|tried| (tried.recipe, tried.time, caps.clone()));
            }
            let (lead, under) = match &light {
                Some((recipe, _, caps)) if is_light => (recipe, caps),
                _ => (&best.recipe, &caps),
            };
            let recipes = (0..BATCH).map(|number| chance.variation(lead, batch * BATCH + number)).collect();
            let Some(tried) = self.try_all(recipes, &under.values) else { continue };
            let mut under = under.clone();
            if is_light {
                n_idle += 1;
                if light.as_ref().is_some_and(|light| tried.time >= light.1) {
                    continue;
                }
                n_idle = 0;
                light = Some((tried.recipe.clone(), tried.time, under.clone()));
            }
            if tried.time >= time {
                continue;
            }
            if self.settle(tried, &mut under) {
                caps = under;
            } else if let Some((recipe, ..)) = light.take().filter(|_| is_light) {
                // On under tighter caps.
                light = self.try_out(recipe, &under.values).map(|tried| (tried.recipe, tried.time, under));
            }
        }
    }

    /// Lays a promising program out; whether it is the best now. Where it does not fit, its recipe gets one more chance under tighter caps.
    fn settle(&mut self, tried: Tried, caps: &mut Caps) -> bool {
        let facts = self.facts;
        let Some(placed) = self.lay_out(&tried.program, true) else { return false };
        if placed.layout.arena <= facts.budget() {
            return self.offer(tried.recipe, placed);
        }
        caps.tighten(facts, &overshoot(facts, &placed), 1.0);
        let Some(again) = self.try_out(tried.recipe, &caps.values) else { return false };
        self.best.as_ref().is_some_and(|best| again.time < best.simulation.step_time)
            && self
                .lay_out(&again.program, true)
                .is_some_and(|placed| placed.layout.arena <= facts.budget() && self.offer(again.recipe, placed))
    }
}

/// A bias that settles what becomes of a tensor.
const MUCH: f32 = 30.0;

/// Deterministic random numbers, for variations.
struct Chance {
    state: u64,
    /// By tensor, the bytes of all up to it: large ones are picked more often.
    sums: Vec<f64>,
}

impl Chance {
    fn new(facts: &Facts<'_>) -> Self {
        let mut sum = 0.0;
        let sums = facts.trace.tensor_ids().map(|tensor| {
            sum += facts.bytes(tensor) as f64;
            sum
        });
        Self { state: 0x9e37_79b9_7f4a_7c15, sums: sums.collect() }
    }

    /// A tensor by its size.
    fn large_tensor(&mut self) -> usize {
        let at = self.next() * self.sums.last().copied().unwrap_or(0.0);
        self.sums.partition_point(|&sum| sum <= at).min(self.sums.len().saturating_sub(1))
    }

    /// In 0..1.
    fn next(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Another recipe far from one.
    fn scattered(&mut self, mut recipe: Recipe) -> Recipe {
        for bias in recipe.bias.swap.iter_mut().chain(&mut recipe.bias.rerun) {
            if self.next() < 0.3 {
                *bias = ((self.next() * 2.0 - 1.0) * 2.0).exp() as f32;
            }
        }
        recipe
    }

    /// Another recipe near one.
    fn variation(&mut self, of: &Recipe, number: usize) -> Recipe {
        let mut recipe = of.clone();
        if number.is_multiple_of(2) && !self.sums.is_empty() {
            // Few, and much.
            for _ in 0..1 + number / 2 % 4 {
                let tensor = self.large_tensor();
                let bias = if self.next() < 0.5 { &mut recipe.bias.swap } else { &mut recipe.bias.rerun };
                bias[tensor] = [1.0 / MUCH, 1.0, MUCH][(self.next() * 2.99) as usize];
            }
        } else {
            // Many, and a little.
            let share = [0.05, 0.2, 0.02, 0.5][number / 2 % 4];
            let strength = [3.0, 1.0][number / 8 % 2];
            for bias in recipe.bias.swap.iter_mut().chain(&mut recipe.bias.rerun) {
                if self.next() < share {
                    *bias = (*bias * ((self.next() * 2.0 - 1.0) * strength).exp() as f32).clamp(1e-3, 1e3);
                }
            }
        }
        match number / 2 % 6 {
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
    let weights = Weights { lane_price: recipe.lane_price };
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
