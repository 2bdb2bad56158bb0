//! What the runtime's threads share: every job, and who holds what.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tensile_sched::share::Curve;
use tensile_sched::{Bytes, Home, Infeasible, Nanos, Trace};

use super::Admission;
use super::book::Book;
use super::error::JobError;
use super::status::{Event, EventKind, JobId, JobReport, JobStatus, Phase, Snapshot};
use crate::exec::{Compiled, Step};

/// The shared state with the one signal that something in it has changed.
pub(super) struct Hub {
    state: Mutex<State>,
    changed: Condvar,
    began: Instant,
}

pub(super) struct State {
    /// Shares of the device budget.
    pub(super) device: Book,
    /// Host bytes, those that programs need while they take over included.
    pub(super) host: Book,
    /// What the device turned out to give, if it is less than the budget, until something ends.
    pub(super) cap: Bytes,
    /// What the device can give at all.
    pub(super) capacity: Bytes,
    pub(super) jobs: BTreeMap<JobId, Entry>,
    pub(super) events: Vec<Event>,
    /// Something happened that shares may depend on.
    pub(super) dirty: bool,
    /// The runtime is being dropped.
    pub(super) closing: bool,
    began: Instant,
    next: u64,
}

/// A program for the main step, with the share that it is for.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) program: Arc<Compiled>,
    pub(super) share: Bytes,
    /// Whether memory for it is set aside, so that the job can take it.
    pub(super) granted: bool,
}

/// A step of a running job that needs a program.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) step: Arc<Step>,
    /// Where the job is between steps.
    pub(super) boundary: Vec<Home>,
}

/// What became of a request.
pub(super) enum Answer {
    Program(Arc<Compiled>),
    /// The share is too small for it; one of `Entry::least` was asked for.
    NeedsMore,
    Fails(JobError),
}

pub(super) struct Entry {
    pub(super) name: String,
    pub(super) weight: f64,
    pub(super) admission: Admission,
    pub(super) step: Arc<Step>,
    pub(super) phase: Phase,
    pub(super) submitted: Instant,
    pub(super) admitted: Option<Instant>,
    pub(super) first_step: Option<Instant>,
    /// It is to be cancelled.
    pub(super) cancel: bool,
    /// It is to be paused, or to stay so.
    pub(super) pause: bool,
    /// It is the controller's doing that it ends: why.
    pub(super) verdict: Option<JobError>,

    /// The main step with latencies as far as they are known.
    pub(super) trace: Arc<Trace>,
    /// Jobs that ran while they were measured; 1 if they were predicted.
    pub(super) load: usize,
    /// Step time within each budget, for the trace above.
    pub(super) curve: Option<Arc<Curve>>,
    /// Least share that all its steps so far can run in.
    pub(super) least: Bytes,
    /// It is to be planned again because its latencies have changed.
    pub(super) drifted: bool,
    /// It cannot be made smaller now.
    pub(super) kept: bool,
    /// A change of its share may come soon, so that it should not run ahead.
    pub(super) change_expected: bool,
    /// All effort has been made for the program that it has.
    pub(super) is_refined: bool,
    /// A share for which no better program was found.
    pub(super) futile: Option<Bytes>,
    pub(super) offer: Option<Offer>,
    pub(super) current: Option<Arc<Compiled>>,
    pub(super) request: Option<Request>,
    pub(super) answer: Option<Answer>,
    /// How often the device refused it memory since it was submitted or paused.
    pub(super) shortages: u32,

    pub(super) steps: u64,
    pub(super) arena: Bytes,
    pub(super) latest_step: Option<Nanos>,
    pub(super) plans: u64,
    pub(super) takeovers: u64,
    pub(super) largest: Bytes,
    pub(super) smallest: Bytes,
    pub(super) failure: Option<String>,
    pub(super) outcome: Option<Result<JobReport, JobError>>,
}

impl Hub {
    pub(super) fn new(budget: Bytes, host_budget: Bytes) -> Self {
        let began = Instant::now();
        let state = State {
            device: Book::new(budget),
            host: Book::new(host_budget),
            cap: Bytes::MAX,
            capacity: Bytes::MAX,
            jobs: BTreeMap::new(),
            events: Vec::new(),
            dirty: false,
            closing: false,
            began,
            next: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), began }
    }

    /// A thread that panicked while it held the lock has broken nothing: every change is made in one go.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next change.
    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`wait`](Self::wait), at most so long.
    pub(super) fn wait_at_most<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Changes the state, gives out what can be given, and tells everybody.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        state.grant();
        drop(state);
        self.changed.notify_all();
        result
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        Snapshot {
            budget: state.device.budget(),
            shared: state.device.sum(),
            host_budget: state.host.budget(),
            host_held: state.host.sum(),
            jobs: state.jobs.iter().map(|(&id, entry)| entry.status(id, &state)).collect(),
            events: state.events.clone(),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl State {
    pub(super) fn submit(&mut self, name: String, weight: f64, admission: Admission, step: &Arc<Step>) -> JobId {
        let id = JobId(self.next);
        self.next += 1;
        let step = Arc::clone(step);
        let trace = Arc::new(step.trace.clone());
        self.jobs.insert(
            id,
            Entry {
                name,
                weight,
                admission,
                step,
                phase: Phase::Queued,
                submitted: Instant::now(),
                admitted: None,
                first_step: None,
                cancel: false,
                pause: false,
                verdict: None,
                trace,
                load: 1,
                curve: None,
                least: Bytes::ZERO,
                drifted: false,
                kept: false,
                change_expected: false,
                is_refined: false,
                futile: None,
                offer: None,
                current: None,
                request: None,
                answer: None,
                shortages: 0,
                steps: 0,
                arena: Bytes::ZERO,
                latest_step: None,
                plans: 0,
                takeovers: 0,
                largest: Bytes::ZERO,
                smallest: Bytes::MAX,
                failure: None,
                outcome: None,
            },
        );
        self.event(id, EventKind::Submitted);
        self.expect_changes();
        id
    }

    pub(super) fn entry(&self, job: JobId) -> &Entry {
        &self.jobs[&job]
    }

    pub(super) fn entry_mut(&mut self, job: JobId) -> &mut Entry {
        self.jobs.get_mut(&job).expect("jobs are never forgotten")
    }

    pub(super) fn event(&mut self, job: JobId, kind: EventKind) {
        let steps = self.jobs.get(&job).map_or(0, |entry| entry.steps);
        self.events.push(Event { time: self.began.elapsed(), job, steps, kind });
    }

    /// Jobs that have a share.
    pub(super) fn running(&self) -> usize {
        self.jobs.values().filter(|entry| entry.phase == Phase::Running).count()
    }

    /// Shares may change: the controller is to look, and jobs are not to run ahead meanwhile.
    pub(super) fn expect_changes(&mut self) {
        self.dirty = true;
        for entry in self.jobs.values_mut().filter(|entry| entry.phase == Phase::Running) {
            entry.change_expected = true;
        }
    }

    /// A job holds nothing any more.
    pub(super) fn left(&mut self, job: JobId) {
        self.device.release(job);
        self.cap = Bytes::MAX;
        let entry = self.entry_mut(job);
        (entry.offer, entry.current, entry.request, entry.answer) = (None, None, None, None);
        entry.arena = Bytes::ZERO;
        for other in self.jobs.values_mut() {
            (other.kept, other.futile) = (false, None);
        }
        self.expect_changes();
    }

    /// Whether a running job's share cannot be changed: it cannot be made smaller, or is paused where it is. One that waits for a larger share is not stuck.
    pub(super) fn is_stuck(&self, id: JobId) -> bool {
        let entry = self.entry(id);
        let needs_more = self.device.held(id) < entry.least;
        entry.phase == Phase::Running && !needs_more && (entry.kept || entry.pause)
    }

    /// Whether a running job has a program that could be better, and nothing else is to be done for it.
    pub(super) fn is_rough(&self, id: JobId) -> bool {
        let entry = self.entry(id);
        let is_at_ease = entry.phase == Phase::Running && entry.offer.is_none() && self.device.held(id) >= entry.least;
        is_at_ease && !entry.is_refined && !entry.pause
    }

    /// Bytes that all shares together may have now.
    pub(super) fn limit(&self) -> Bytes {
        self.device.budget().min(self.cap).min(self.capacity)
    }

    /// Sets memory aside for offers as far as there is some: first for programs that need less of the device, then for newcomers in their order, then for programs that need more.
    fn grant(&mut self) {
        // Who is paused or cancelled takes nothing.
        let waiting =
            |entry: &Entry| entry.offer.as_ref().is_some_and(|offer| !offer.granted) && !entry.cancel && !entry.pause;
        let mut ids: Vec<JobId> = self.jobs.iter().filter(|(_, entry)| waiting(entry)).map(|(&id, _)| id).collect();
        ids.sort_by_key(|&id| {
            let (entry, offer) = (self.entry(id), self.entry(id).offer.as_ref().expect("waiting"));
            let shrinks = entry.phase == Phase::Running && offer.share <= self.device.held(id);
            (!shrinks, entry.phase == Phase::Running, id)
        });
        for id in ids {
            let entry = self.entry(id);
            let offer = entry.offer.clone().expect("waiting");
            let (held, host_held) = (self.device.held(id), self.host.held(id));
            let is_running = entry.phase == Phase::Running;
            let others = self.device.sum() - held;
            // Who would be alone may ask the device again, whatever it gave last.
            let limit = if others == Bytes::ZERO { self.device.budget().min(self.capacity) } else { self.limit() };
            if offer.share > held && others + offer.share > limit {
                continue;
            }
            let on_the_way = if is_running { offer.program.takeover_host() } else { offer.program.host_arena() };
            if self.host.set(id, host_held + on_the_way).is_err() {
                if is_running {
                    // The old size stays.
                    let share = offer.share;
                    let entry = self.entry_mut(id);
                    entry.offer = None;
                    if share < held {
                        entry.kept = true;
                        self.event(id, EventKind::Kept);
                        self.dirty = true;
                    } else {
                        (entry.futile, entry.change_expected) = (Some(share), false);
                    }
                }
                continue;
            }
            // A smaller share counts when the job has moved.
            let booked = self.device.set(id, offer.share.max(held));
            assert!(booked.is_ok(), "the limit is within the budget");
            self.entry_mut(id).offer.as_mut().expect("waiting").granted = true;
        }
    }
}

impl Entry {
    /// Whether memory is set aside for an offer that it has not taken yet.
    pub(super) fn is_granted(&self) -> bool {
        self.offer.as_ref().is_some_and(|offer| offer.granted)
    }

    /// Bytes without which it cannot run, as far as it has been planned.
    pub(super) fn floor(&self) -> Option<Bytes> {
        self.curve.as_ref().map(|curve| curve.lowest().max(self.least))
    }

    pub(super) fn status(&self, id: JobId, state: &State) -> JobStatus {
        let share = state.device.held(id);
        let running = self.phase == Phase::Running;
        let load = self.load as u64;
        JobStatus {
            id,
            name: self.name.clone(),
            weight: self.weight,
            phase: self.phase,
            steps: self.steps,
            share,
            arena: self.arena,
            host: state.host.held(id),
            floor: self.floor(),
            full: self.curve.as_ref().map(|curve| curve.full()),
            slowdown: self.curve.as_ref().filter(|_| running).and_then(|curve| curve.slowdown_at(share)),
            predicted_step: self.current.as_ref().map(|program| Nanos(program.planned().simulation.step_time.0 / load)),
            latest_step: self.latest_step,
            plans: self.plans,
            takeovers: self.takeovers,
            admission_delay: self.first_step.map(|first| first - self.submitted),
            failure: self.failure.clone(),
        }
    }
}

/// Whether planning failed only because the share is too small, and the least share with which it would not.
pub(super) fn needs_more(error: &Infeasible) -> Option<Bytes> {
    match error {
        Infeasible::Device { lowest, .. } => Some(*lowest),
        _ => None,
    }
}
