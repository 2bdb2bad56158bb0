//! The controller: a thread that decides who gets in, divides the budgets, and makes all programs.
//!
//! It looks at the jobs under the lock, plans without it, and writes offers under it again. An offer that has become wrong meanwhile does no harm: memory is set aside for it
//! before the job may take it ([`State::grant`]), and the next round makes another.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tensile_sched::share::{Claim, Curve, divide};
use tensile_sched::{Bytes, Infeasible, Limits, Nanos, Planned, Planner, Trace, frontier, simulate};

use super::error::{Holder, JobError, Refusal};
use super::job::message;
use super::state::{Answer, Hub, Offer, Request, State, needs_more};
use super::status::{EventKind, JobId, Phase};
use super::{Admission, RuntimeOptions};
use crate::device::DeviceInfo;
use crate::exec::{Compiled, Step};

/// A device that refused memory is asked again this many times, for less, before a job that is alone gives up.
const MOST_SHORTAGES: u32 = 4;

/// A larger share must be predicted to save this part of the step time to be worth moving for.
const WORTH_MOVING: f64 = 0.01;

pub(super) struct Controller {
    pub(super) hub: Arc<Hub>,
    pub(super) options: RuntimeOptions,
    pub(super) info: DeviceInfo,
}

/// What the controller does next.
enum Work {
    /// A job waits for a program for a step.
    Answer(JobId, Request),
    /// Something has happened.
    Round,
}

/// What the controller knows of a job while it decides.
struct View {
    id: JobId,
    weight: f64,
    admission: Admission,
    is_running: bool,
    step: Arc<Step>,
    trace: Arc<Trace>,
    load: usize,
    curve: Option<Arc<Curve>>,
    least: Bytes,
    /// Its share when it has taken what it was offered.
    held: Bytes,
    /// Its share cannot be changed in this round.
    is_fixed: bool,
    /// It is about to take an offer; what it could do without shows when it has.
    is_moving: bool,
    drifted: bool,
    futile: Option<Bytes>,
    /// Share of an offer that it cannot take yet.
    offered: Option<Bytes>,
    current: Option<Arc<Compiled>>,
    host_held: Bytes,
    shortages: u32,
}

/// What is decided for a job.
enum Decision {
    /// The offer that it has stands.
    Stand,
    Offer {
        program: Arc<Compiled>,
        share: Bytes,
    },
    /// It cannot be made smaller.
    Keep,
    /// No better program was found for this share.
    Futile(Bytes),
    Fail(JobError),
}

impl Controller {
    /// Works until the runtime is dropped.
    pub(super) fn run(&self) {
        loop {
            let mut state = self.hub.lock();
            let wanted = loop {
                if state.closing {
                    return;
                }
                let request = state.jobs.iter().find_map(|(&id, entry)| Some((id, entry.request.clone()?)));
                if let Some((id, request)) = request {
                    break Work::Answer(id, request);
                }
                if state.dirty {
                    break Work::Round;
                }
                state = self.hub.wait(state);
            };
            match wanted {
                Work::Answer(id, request) => {
                    let limits = self.limits_of_request(&state, id, &request);
                    drop(state);
                    let result = catch_unwind(AssertUnwindSafe(|| self.answer(id, &request, limits)));
                    if let Err(panic) = result {
                        self.hub.change(|state| {
                            let entry = state.entry_mut(id);
                            entry.request = None;
                            entry.answer = Some(Answer::Fails(JobError::Panicked(message(&*panic))));
                        });
                    }
                }
                Work::Round => {
                    state.dirty = false;
                    let views = views(&state);
                    let (limit, host_free) = (state.limit(), state.host.free());
                    drop(state);
                    let result = catch_unwind(AssertUnwindSafe(|| self.round(views, limit, host_free)));
                    if let Err(panic) = result {
                        // Whose fault it was is not known; those that run go on, those that wait are told.
                        self.hub.change(|state| {
                            let waiting = state.jobs.values_mut().filter(|entry| entry.phase == Phase::Queued);
                            waiting.for_each(|entry| entry.verdict = Some(JobError::Panicked(message(&*panic))));
                        });
                    }
                }
            }
        }
    }

    /// Looks for better programs, one after another, until the runtime is dropped. A thread of its own, so that nobody waits for it.
    pub(super) fn run_refiner(&self, refiner: &dyn Planner) {
        loop {
            let mut state = self.hub.lock();
            let id = loop {
                if state.closing {
                    return;
                }
                if let Some(&id) = state.jobs.keys().find(|&&id| state.is_rough(id)) {
                    break id;
                }
                state = self.hub.wait(state);
            };
            let entry = state.entry(id);
            let (trace, current) = (Arc::clone(&entry.trace), entry.current.clone());
            let host = state.host.free() + state.host.held(id);
            let limits = self.limits(state.device.held(id), host, entry.load);
            drop(state);
            let current = current.expect("what runs has a program");
            self.refine(id, refiner, &current, &trace, limits);
        }
    }

    fn limits(&self, device: Bytes, host: Bytes, load: usize) -> Limits {
        // Latencies that were measured beside other jobs go with a link that is shared with them.
        let link = self.options.link.unwrap_or(self.info.link).shared(load);
        Limits { host, mode: self.options.mode, link, ..self.info.limits(device) }
    }

    fn limits_of_request(&self, state: &State, id: JobId, request: &Request) -> Limits {
        let host = state.host.free() + state.host.held(id);
        let load = state.entry(id).load;
        Limits { boundary: Some(request.boundary.clone()), ..self.limits(state.device.held(id), host, load) }
    }

    /// Plans a step of a running job within its share.
    fn answer(&self, id: JobId, request: &Request, limits: Limits) {
        let within = limits.device;
        let planned = self.plan(&request.step.trace, &limits);
        let answer = match planned {
            Ok(planned) => match Compiled::new(Arc::clone(&request.step), planned, limits) {
                Ok(program) => Answer::Program(program),
                Err(error) => Answer::Fails(error.into()),
            },
            Err(JobError::Infeasible(error)) if needs_more(&error).is_some() => {
                self.least_share(request, &limits, error)
            }
            Err(error) => Answer::Fails(error),
        };
        self.hub.change(|state| {
            let others: Bytes = (state.jobs.iter())
                .filter(|(other, entry)| **other != id && (entry.phase == Phase::Running || entry.is_granted()))
                .map(
                    |(&other, entry)| {
                        if entry.kept { state.device.held(other) } else { entry.floor().unwrap_or_default() }
                    },
                )
                .sum();
            let limit = state.limit();
            let entry = state.entry_mut(id);
            entry.plans += u64::from(matches!(answer, Answer::Program(_)));
            let mut answer = answer;
            if let Answer::Fails(JobError::Infeasible(Infeasible::Device { lowest, .. })) = &answer {
                // A larger share would do, if there can be one beside the floors of the others.
                if others + *lowest <= limit && *lowest > within {
                    (entry.least, entry.drifted, entry.kept) = (entry.least.max(*lowest), true, false);
                    answer = Answer::NeedsMore;
                    state.expect_changes();
                }
            }
            let entry = state.entry_mut(id);
            // A job that has ended meanwhile asks for nothing.
            if entry.request.take().is_some() {
                entry.answer = Some(answer);
            }
        });
    }

    /// The least share with which a step runs that does not run within `limits`, as the error that tells of it.
    fn least_share(&self, request: &Request, limits: &Limits, error: Infeasible) -> Answer {
        // The boundary will be another one then; what is wanted is a share in which the step runs wherever the others leave it.
        let free = Limits { device: Bytes::ZERO, boundary: None, ..limits.clone() };
        let lowest = match self.plan(&request.step.trace, &free) {
            Err(JobError::Infeasible(Infeasible::Device { lowest, op, label, .. })) if lowest > limits.device => {
                Infeasible::Device { budget: limits.device, lowest, op, label }
            }
            _ => match error {
                Infeasible::Device { budget, lowest, op, label } => {
                    Infeasible::Device { budget, lowest: lowest.max(budget + Bytes(1)), op, label }
                }
                other => other,
            },
        };
        Answer::Fails(JobError::Infeasible(lowest))
    }

    /// A panic of a policy is its job's affair alone.
    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, JobError> {
        guarded(|| self.options.planner.plan(trace, limits))
    }

    /// Looks for a better program for the share that a job has.
    fn refine(&self, id: JobId, refiner: &dyn Planner, current: &Arc<Compiled>, trace: &Trace, limits: Limits) {
        let share = limits.device;
        let better = guarded(|| refiner.plan(trace, &limits)).ok();
        let better = better.filter(|planned| is_faster(planned, current, trace, &limits));
        let step = Arc::clone(current.step());
        let program = better.and_then(|planned| Compiled::new(step, planned, limits).ok());
        self.hub.change(|state| {
            let has_same_share = state.device.held(id) == share;
            let entry = state.entry_mut(id);
            let is_same = entry.current.as_ref().is_some_and(|now| Arc::ptr_eq(now, current)) && has_same_share;
            if !is_same || !state.is_rough(id) {
                return;
            }
            let entry = state.entry_mut(id);
            entry.is_refined = true;
            if let Some(program) = program {
                entry.plans += 1;
                entry.offer = Some(Offer { program, share, granted: false });
            }
        });
    }

    /// One round: who gets in, who gets how much, and with which programs.
    fn round(&self, mut views: Vec<View>, limit: Bytes, host_free: Bytes) {
        let mut decisions: Vec<(JobId, Decision)> = Vec::new();
        self.draw_curves(&mut views, limit, &mut decisions);
        let admitted = self.admit(&views, limit, &mut decisions);
        let shares = self.divide(&views, &admitted, limit);
        let mut host_left = host_free;
        let sum_held: Bytes = views.iter().filter(|view| view.is_running).map(|view| view.held).sum();
        let free = limit.0.saturating_sub(sum_held.0);
        let wanted: u64 = (admitted.iter().zip(&shares))
            .map(|(&at, share)| if views[at].is_running { share.0.saturating_sub(views[at].held.0) } else { share.0 })
            .sum();
        let must_shrink = wanted > free;
        for (&at, &share) in admitted.iter().zip(&shares) {
            let view = &views[at];
            if view.is_fixed || !self.is_worth_planning(view, share, must_shrink) {
                continue;
            }
            if view.offered == Some(share) && !view.drifted {
                decisions.push((view.id, Decision::Stand));
                continue;
            }
            // Smaller shares are not forced on anybody without need.
            let share = if share < view.held && !must_shrink { view.held } else { share };
            // What a job that waits has on the host, a parked one, it has until it is in.
            let own_host = if view.is_running { view.host_held } else { Bytes::ZERO };
            let limits = self.limits(share, host_left + own_host, view.load);
            let decision = match self.plan(&view.trace, &limits) {
                // Moving costs time too.
                Ok(planned)
                    if view.is_running
                        && share >= view.held
                        && !view.gets_all(share)
                        && !view.is_surpassed_by(&planned, &limits) =>
                {
                    Decision::Futile(share)
                }
                Ok(planned) => match Compiled::new(Arc::clone(&view.step), planned, limits) {
                    Ok(program) => {
                        let more = program.host_arena().0.saturating_sub(view.host_held.0);
                        host_left = Bytes(host_left.0.saturating_sub(more));
                        Decision::Offer { program, share }
                    }
                    Err(error) => Decision::Fail(error.into()),
                },
                Err(_) if view.is_running && share < view.held => Decision::Keep,
                Err(_) if view.is_running => Decision::Futile(share),
                Err(JobError::Infeasible(Infeasible::Host { .. })) if self.fits_host_later(view, share) => {
                    match view.admission {
                        Admission::Queue => continue,
                        Admission::Refuse => Decision::Fail(JobError::Refused(Box::new(self.refusal(view)))),
                    }
                }
                Err(error) => Decision::Fail(error),
            };
            decisions.push((view.id, decision));
        }
        self.apply(views, decisions);
    }

    /// Whether a job that lacks host memory now would run with all of the host budget.
    fn fits_host_later(&self, view: &View, share: Bytes) -> bool {
        let host = self.hub.lock().host.budget();
        self.plan(&view.trace, &self.limits(share, host, view.load)).is_ok()
    }

    /// Draws the curves that are missing.
    fn draw_curves(&self, views: &mut Vec<View>, limit: Bytes, decisions: &mut Vec<(JobId, Decision)>) {
        for view in views.iter_mut().filter(|view| view.curve.is_none() || view.drifted) {
            let limits = self.limits(Bytes::MAX, Bytes::MAX, view.load);
            let points = guarded(|| frontier(&*self.options.planner, &view.trace, &limits, self.options.curve_points));
            match points {
                Ok(points) => {
                    let curve =
                        Curve::try_from(&points[..]).expect("a frontier ascends, and its step times do not rise");
                    view.curve = Some(Arc::new(curve));
                }
                // One that runs has a curve from before.
                Err(_) if view.is_running && view.curve.is_some() => {}
                Err(error) => decisions.push((view.id, Decision::Fail(error))),
            }
        }
        views.retain(|view| view.curve.is_some());
        let nobody_runs = views.iter().all(|view| !view.is_running);
        // Nothing that ends makes room for a job that is larger than the budget.
        let budget = {
            let state = self.hub.lock();
            state.device.budget().min(state.capacity)
        };
        for view in views.iter_mut().filter(|view| !view.is_running) {
            let lowest = view.floor();
            if lowest > budget {
                let limits = self.limits(budget, Bytes::MAX, view.load);
                match self.plan(&view.trace, &limits) {
                    // Some policies plan for less than the least that they tell of.
                    Ok(planned) if view.least <= budget => view.reach_down(budget, planned.simulation.step_time),
                    Ok(_) => {
                        let error = JobError::Shortage { floor: lowest, free: budget };
                        decisions.push((view.id, Decision::Fail(error)));
                    }
                    Err(error) => decisions.push((view.id, Decision::Fail(error))),
                }
            } else if view.shortages >= MOST_SHORTAGES && nobody_runs {
                decisions.push((view.id, Decision::Fail(JobError::Shortage { floor: lowest, free: limit })));
            }
        }
        views.retain(|view| !decisions.iter().any(|(id, _)| *id == view.id));
    }

    /// Who has or gets a share, by position: those that run, and those that wait as far as all floors fit together, in the order in which they came. Who is not to wait is refused.
    fn admit(&self, views: &[View], limit: Bytes, decisions: &mut Vec<(JobId, Decision)>) -> Vec<usize> {
        let mut admitted: Vec<usize> = (0..views.len()).filter(|&at| views[at].is_running).collect();
        let mut floors: Bytes = admitted.iter().map(|&at| views[at].floor()).sum();
        let is_alone = admitted.is_empty();
        for (at, view) in views.iter().enumerate().filter(|(_, view)| !view.is_running) {
            let first_of_all = is_alone && admitted.is_empty() && floors == Bytes::ZERO;
            // A device that gave too little once may give more when asked again.
            let fits = floors + view.floor() <= limit || (first_of_all && view.shortages < MOST_SHORTAGES);
            if fits {
                admitted.push(at);
            } else if view.admission == Admission::Refuse && !views.iter().any(|view| view.is_moving) {
                let refusal = self.refusal(view);
                decisions.push((view.id, Decision::Fail(JobError::Refused(Box::new(refusal)))));
                continue;
            }
            // Who waits is not overtaken.
            floors += view.floor();
        }
        admitted
    }

    fn refusal(&self, view: &View) -> Refusal {
        let state = self.hub.lock();
        let running = state.jobs.iter().filter(|(_, entry)| entry.phase == Phase::Running);
        let holders: Vec<Holder> = running
            .map(|(&id, entry)| {
                let held = state.device.held(id);
                let floor = if entry.kept { held } else { entry.floor().unwrap_or(held) };
                Holder { job: entry.name.clone(), held, floor }
            })
            .collect();
        let limit = state.limit();
        let floors: u64 = holders.iter().map(|holder| holder.floor.0).sum();
        Refusal {
            floor: view.floor(),
            budget: state.device.budget(),
            free: Bytes(limit.0.saturating_sub(state.device.sum().0)),
            could_be_freed: Bytes(limit.0.saturating_sub(floors)),
            holders,
        }
    }

    /// Shares of those that are admitted, in their order.
    fn divide(&self, views: &[View], admitted: &[usize], limit: Bytes) -> Vec<Bytes> {
        let curves: Vec<Curve> = admitted.iter().map(|&at| views[at].claimed()).collect();
        let claims: Vec<Claim<'_>> =
            (curves.iter().zip(admitted)).map(|(curve, &at)| Claim { curve, weight: views[at].weight }).collect();
        divide(&claims, limit, self.options.division)
            // The device gives less than the floors of those that run, or than the floor of one that is alone: each keeps to its floor.
            .unwrap_or_else(|_| curves.iter().map(Curve::lowest).collect())
    }

    fn is_worth_planning(&self, view: &View, share: Bytes, must_shrink: bool) -> bool {
        if !view.is_running || view.drifted || view.held < view.least {
            return true;
        }
        let curve = view.curve.as_ref().expect("drawn");
        if share < view.held {
            return must_shrink;
        }
        let (now, then) = (curve.time_at(view.held), curve.time_at(share));
        let saves = match (now, then) {
            (Some(now), Some(then)) => then.0 as f64 <= now.0 as f64 * (1.0 - WORTH_MOVING),
            _ => false,
        };
        share > view.held && (saves || view.gets_all(share)) && view.futile != Some(share)
    }

    /// Writes curves and decisions, as far as they still make sense.
    fn apply(&self, views: Vec<View>, decisions: Vec<(JobId, Decision)>) {
        self.hub.change(|state| {
            for view in views {
                let entry = state.entry_mut(view.id);
                // What was offered before stands only if it was decided again.
                if !entry.is_granted() && !decisions.iter().any(|(id, _)| *id == view.id) {
                    entry.offer = None;
                }
                if Arc::ptr_eq(&entry.trace, &view.trace) {
                    entry.curve = view.curve;
                }
            }
            for (id, decision) in decisions {
                let (held, limit) = (state.device.held(id), state.limit());
                let entry = state.entry_mut(id);
                let is_over = entry.phase.is_over() || entry.phase == Phase::Paused || entry.cancel;
                if is_over || entry.is_granted() {
                    continue;
                }
                match decision {
                    Decision::Stand => {}
                    Decision::Offer { program, share } => {
                        (entry.plans, entry.drifted, entry.futile) = (entry.plans + 1, false, None);
                        entry.is_refined = false;
                        entry.offer = Some(Offer { program, share, granted: false });
                    }
                    Decision::Keep | Decision::Futile(_) | Decision::Fail(_) if entry.least > held => {
                        // It waits for a share in which a step of another shape runs, and there is none.
                        (entry.drifted, entry.offer) = (false, None);
                        entry.verdict = Some(match decision {
                            Decision::Fail(error) => error,
                            _ => JobError::Shortage { floor: entry.least, free: limit },
                        });
                    }
                    // It has left meanwhile.
                    Decision::Keep | Decision::Futile(_) if entry.phase != Phase::Running => {}
                    Decision::Keep => {
                        (entry.kept, entry.drifted, entry.offer) = (true, false, None);
                        state.event(id, EventKind::Kept);
                        state.dirty = true;
                    }
                    Decision::Futile(share) => {
                        (entry.drifted, entry.futile, entry.offer) = (false, Some(share), None);
                    }
                    Decision::Fail(_) if entry.phase == Phase::Running => {
                        // It goes on with the program that it has.
                        (entry.drifted, entry.offer) = (false, None);
                    }
                    Decision::Fail(error) => entry.verdict = Some(error),
                }
            }
            if !state.dirty {
                state.jobs.values_mut().for_each(|entry| entry.change_expected = entry.offer.is_some());
            }
        });
    }
}

impl View {
    /// Bytes without which it cannot run.
    fn floor(&self) -> Bytes {
        if self.is_running && self.is_fixed {
            return self.held;
        }
        self.curve.as_ref().expect("drawn").lowest().max(self.least)
    }

    /// Whether with this share it will evict nothing any more: worth moving for even where copies are predicted to hide, for they are in the way of others.
    fn gets_all(&self, share: Bytes) -> bool {
        share > self.held && share >= self.curve.as_ref().expect("drawn").full()
    }

    /// Adds a lower budget to the curve.
    fn reach_down(&mut self, budget: Bytes, time: Nanos) {
        let points = self.curve.as_ref().expect("drawn").points();
        let time = time.max(points[0].1);
        let points = std::iter::once((budget, time)).chain(points.iter().copied()).collect();
        self.curve = Some(Arc::new(Curve::new(points).expect("it ascends, and its times do not rise")));
    }

    /// Whether a program is faster than the one that it has, by what is known of its latencies now. If it needs a larger share for a step of another shape, any program is.
    fn is_surpassed_by(&self, planned: &Planned, limits: &Limits) -> bool {
        let Some(current) = self.current.as_ref().filter(|_| self.held >= self.least) else { return true };
        is_faster(planned, current, &self.trace, limits)
    }

    /// The part of its curve that is for it to have.
    fn claimed(&self) -> Curve {
        let (curve, floor) = (self.curve.as_ref().expect("drawn"), self.floor());
        let at_floor = curve.time_at(floor).unwrap_or(curve.least_time());
        let above = curve.points().iter().copied().filter(|(budget, _)| *budget > floor && !self.is_fixed);
        Curve::new(std::iter::once((floor, at_floor)).chain(above).collect()).expect("a part of a curve is a curve")
    }
}

fn is_faster(planned: &Planned, current: &Compiled, trace: &Trace, limits: &Limits) -> bool {
    let now = simulate(trace, &current.planned().synced, &limits.link).step_time.0 as f64;
    planned.simulation.step_time.0 as f64 <= now * (1.0 - WORTH_MOVING)
}

/// Plans; a panic becomes an error.
fn guarded<T>(plan: impl FnOnce() -> Result<T, Infeasible>) -> Result<T, JobError> {
    match catch_unwind(AssertUnwindSafe(plan)) {
        Ok(result) => result.map_err(JobError::Infeasible),
        Err(panic) => Err(JobError::Panicked(message(&*panic))),
    }
}

fn views(state: &State) -> Vec<View> {
    let takes_part = |phase| matches!(phase, Phase::Running | Phase::Queued);
    let entries = state.jobs.iter().filter(|(_, entry)| {
        takes_part(entry.phase)
            && !entry.cancel
            && entry.verdict.is_none()
            && !(entry.pause && entry.phase == Phase::Queued)
    });
    entries
        .map(|(&id, entry)| {
            let granted = entry.offer.as_ref().filter(|offer| offer.granted);
            View {
                id,
                weight: entry.weight,
                admission: entry.admission,
                // One that has been granted its first share as good as runs.
                is_running: entry.phase == Phase::Running || granted.is_some(),
                step: Arc::clone(&entry.step),
                trace: Arc::clone(&entry.trace),
                load: entry.load,
                curve: entry.curve.clone(),
                least: entry.least,
                held: granted.map_or(state.device.held(id), |offer| offer.share),
                is_fixed: granted.is_some() || state.is_stuck(id),
                is_moving: granted.is_some(),
                drifted: entry.drifted,
                futile: entry.futile,
                offered: entry.offer.as_ref().filter(|offer| !offer.granted).map(|offer| offer.share),
                current: entry.current.clone(),
                host_held: state.host.held(id),
                shortages: entry.shortages,
            }
        })
        .collect()
}

/// Notes that the device refused memory, and what it can have given at most.
pub(super) fn note_shortage(state: &mut State, id: JobId, requested: Bytes, free: Bytes) {
    let arenas: Bytes = state.jobs.values().map(|entry| entry.arena).sum();
    // Enough in all may be too little in one piece: ask for less next time in any case.
    state.cap = state.cap.min(arenas + free.min(Bytes(requested.0.saturating_sub(1))));
    state.event(id, EventKind::Shortage { requested, free });
    state.entry_mut(id).shortages += 1;
    state.expect_changes();
}
