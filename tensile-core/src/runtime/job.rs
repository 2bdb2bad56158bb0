//! A job's own thread: it runs steps, and between them does what it is told.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tensile_sched::{Bytes, TraceError};

use super::controller::note_shortage;
use super::error::JobError;
use super::state::{Answer, Hub, Offer, Request};
use super::status::{EventKind, JobId, JobReport, Phase};
use super::workload::{AtRest, Next, WorkError, Workload};
use super::{Admission, RuntimeOptions};
use crate::device::{Device, DeviceError};
use crate::exec::{Compiled, ExecError, Executor, PersistentValue, ProgramStats, Step, StepSpans, Ticket};
use crate::latency::Corrected;

/// Main steps of a program before its measured times are believed.
const FIRST_BELIEVED: u64 = 2;
/// Most main steps from one drift to the next that is looked for.
const MOST_PATIENCE: u64 = 4096;

/// Steps whose statistics are kept when their programs are gone.
const MOST_PAST: usize = 64;

/// How soon drift is looked for again: after twice as many steps each time, so that noise does not make plans for ever.
struct Patience {
    steps: u64,
    /// Main step of the present program from which on it is.
    from: u64,
}

/// What a job's thread works with.
pub(super) struct Job<D: Device> {
    pub(super) hub: Arc<Hub>,
    pub(super) device: Arc<D>,
    pub(super) options: RuntimeOptions,
    pub(super) id: JobId,
    pub(super) step: Arc<Step>,
}

/// A job on the device.
struct Running<D: Device> {
    executor: Executor<D>,
    main: Arc<Compiled>,
    /// Programs of other steps, the one used last at the end.
    others: Vec<Arc<Compiled>>,
    in_flight: VecDeque<(Ticket, Arc<Step>)>,
    /// What was measured under programs that are gone, for each step.
    past: Vec<(Arc<Step>, ProgramStats)>,
    /// Finished main steps of the present program.
    main_steps: u64,
}

/// What a job is told between two steps.
enum Order {
    GoOn,
    Take(Offer),
    Pause,
    Cancel,
}

impl<D: Device> Job<D> {
    /// Runs the job to its end, whatever that is, and leaves the outcome.
    pub(super) fn run(self, mut work: Box<dyn Workload>) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = self.work(&mut *work);
            // Its values may be larger than its tensors.
            drop(work);
            result
        }));
        let result = result.unwrap_or_else(|panic| Err(JobError::Panicked(message(&*panic))));
        self.hub.change(|state| {
            let entry = state.entry_mut(self.id);
            entry.phase = if result.is_ok() { Phase::Done } else { Phase::Failed };
            entry.failure = result.as_ref().err().map(ToString::to_string);
            state.host.release(self.id);
            let outcome = result.map(|(stats, admitted)| {
                let entry = state.entry(self.id);
                JobReport {
                    status: entry.status(self.id, state),
                    stats,
                    run_time: admitted.elapsed(),
                    largest_share: entry.largest,
                    smallest_share: entry.smallest,
                }
            });
            state.left(self.id);
            state.event(self.id, EventKind::Ended { done: outcome.is_ok() });
            state.entry_mut(self.id).outcome = Some(outcome);
        });
    }

    fn work(&self, work: &mut dyn Workload) -> Result<(ProgramStats, Instant), JobError> {
        let admitted = Instant::now();
        let mut running = self.enter(|device, program, options| {
            Executor::try_new(device, program, options, |persistent, first, bytes| {
                work.init(persistent, first, bytes).map_err(JobError::Work)
            })
        })?;
        let mut corrected = Corrected::new(&self.step.trace);
        let mut patience = Patience { steps: FIRST_BELIEVED, from: FIRST_BELIEVED };
        loop {
            match self.order() {
                Order::Cancel => return Err(JobError::Cancelled),
                Order::Pause => {
                    running.finish_all(self, work)?;
                    work.pausing(&mut running).map_err(JobError::Work)?;
                    running = self.pause(running)?;
                    corrected.restart();
                    patience.from = patience.steps;
                    continue;
                }
                Order::Take(offer) => {
                    running.finish_all(self, work)?;
                    if self.take(&mut running, &offer)? {
                        corrected.restart();
                        patience.from = patience.steps;
                    }
                    continue;
                }
                Order::GoOn => {}
            }
            match work.next().map_err(JobError::Work)? {
                Next::Step(step) => {
                    let Some(program) = self.program(&mut running, work, &step)? else {
                        return Err(JobError::Cancelled);
                    };
                    running.begin(&program, work)?;
                    if self.runs_ahead() {
                        running.finish_until(1, self, work)?;
                    } else {
                        running.finish_all(self, work)?;
                    }
                    if running.main_steps >= patience.from && self.watch_drift(&running, &mut corrected)? {
                        patience.steps = (2 * patience.steps).min(MOST_PATIENCE);
                        patience.from = running.main_steps + patience.steps;
                    }
                }
                Next::AtRest => {
                    running.finish_all(self, work)?;
                    work.at_rest(&mut running).map_err(JobError::Work)?;
                }
                Next::End => {
                    running.finish_all(self, work)?;
                    return Ok((running.stats(&self.step).unwrap_or_default(), admitted));
                }
            }
        }
    }

    /// Waits for a share and enters the device with it. A device that refuses memory is told to the controller, which finds a smaller share.
    fn enter(
        &self,
        mut open: impl FnMut(Arc<D>, &Arc<Compiled>, crate::exec::ExecutorOptions) -> Result<Executor<D>, JobError>,
    ) -> Result<Running<D>, JobError> {
        loop {
            let offer = self.wait_for_offer()?;
            match open(Arc::clone(&self.device), &offer.program, self.options.executor) {
                Ok(executor) => {
                    let running = Running::new(executor, Arc::clone(&offer.program));
                    self.hub.change(|state| {
                        let entry = state.entry_mut(self.id);
                        entry.phase = Phase::Running;
                        entry.admitted.get_or_insert_with(Instant::now);
                        entry.shortages = 0;
                        // Whoever has been in is let in again after a pause.
                        entry.admission = Admission::Queue;
                        state.event(self.id, EventKind::Admitted { share: offer.share });
                        self.taken(state, &running, &offer);
                        state.dirty = true;
                    });
                    return Ok(running);
                }
                Err(JobError::Exec(ExecError::Device(DeviceError::OutOfMemory { requested, free }))) => {
                    self.refused(requested, free, Bytes::MAX);
                }
                Err(JobError::Exec(ExecError::Device(DeviceError::TooLarge { requested, capacity }))) => {
                    self.refused(requested, capacity, capacity);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The device refused the memory of a share that the job was to enter with: so much would be free, and so much it has in all.
    fn refused(&self, requested: Bytes, free: Bytes, capacity: Bytes) {
        self.hub.change(|state| {
            state.device.release(self.id);
            let offer = state.entry_mut(self.id).offer.take();
            let set_aside = offer.map(|offer| offer.program.host_arena()).unwrap_or_default();
            let host = state.host.held(self.id);
            let booked = state.host.set(self.id, host - set_aside);
            assert!(booked.is_ok(), "less than before");
            state.capacity = state.capacity.min(capacity);
            note_shortage(state, self.id, requested, free);
        });
    }

    fn wait_for_offer(&self) -> Result<Offer, JobError> {
        let mut state = self.hub.lock();
        loop {
            let entry = state.entry_mut(self.id);
            if entry.cancel {
                return Err(JobError::Cancelled);
            }
            if let Some(verdict) = entry.verdict.take() {
                return Err(verdict);
            }
            if let Some(offer) = entry.offer.as_ref().filter(|offer| offer.granted) {
                return Ok(offer.clone());
            }
            let phase = if entry.pause { Phase::Paused } else { Phase::Queued };
            if entry.phase != phase {
                entry.phase = phase;
                if phase == Phase::Paused {
                    entry.offer = None;
                }
                state.expect_changes();
                drop(state);
                self.hub.change(|_| {});
                state = self.hub.lock();
                continue;
            }
            state = self.hub.wait(state);
        }
    }

    /// Writes down that an offer has been taken.
    fn taken(&self, state: &mut super::state::State, running: &Running<D>, offer: &Offer) {
        // Both are no more than was set aside for them.
        let device = state.device.set(self.id, offer.share);
        let host = state.host.set(self.id, running.executor.host_bytes());
        assert!(device.is_ok() && host.is_ok(), "offers are granted before they are taken");
        let entry = state.entry_mut(self.id);
        entry.arena = running.executor.arena_bytes();
        entry.current = Some(Arc::clone(&offer.program));
        (entry.offer, entry.kept) = (None, false);
        entry.largest = entry.largest.max(offer.share);
        entry.smallest = entry.smallest.min(offer.share);
    }

    fn order(&self) -> Order {
        let state = self.hub.lock();
        let entry = state.entry(self.id);
        if entry.cancel {
            Order::Cancel
        } else if entry.pause {
            Order::Pause
        } else if let Some(offer) = entry.offer.as_ref().filter(|offer| offer.granted) {
            Order::Take(offer.clone())
        } else {
            Order::GoOn
        }
    }

    /// Whether a second step may be in flight: not while the share is about to change, so that it changes after the step that runs.
    fn runs_ahead(&self) -> bool {
        !self.hub.lock().entry(self.id).change_expected
    }

    /// Takes a program over; nothing is in flight. Gives whether it did: where memory is short the old program stays.
    fn take(&self, running: &mut Running<D>, offer: &Offer) -> Result<bool, JobError> {
        let before = running.main.limits().device;
        let result = running.take_over(&offer.program);
        let error = match result {
            Ok(()) => None,
            Err(ExecError::Device(error)) if is_shortage(&error) => Some(error),
            Err(error) => return Err(error.into()),
        };
        self.hub.change(|state| {
            match &error {
                None => {
                    self.taken(state, running, offer);
                    let entry = state.entry_mut(self.id);
                    entry.takeovers += 1;
                    entry.kept = false;
                    state.event(self.id, EventKind::TookOver { before, share: offer.share });
                }
                Some(error) => {
                    let shrinks = offer.share < before;
                    // Programs of other steps may have made the arena larger.
                    let booked = state.device.set(self.id, before.max(running.executor.arena_bytes()));
                    let host = state.host.set(self.id, running.executor.host_bytes());
                    assert!(booked.is_ok() && host.is_ok(), "less than before");
                    let entry = state.entry_mut(self.id);
                    entry.offer = None;
                    (entry.kept, entry.futile) = (shrinks, Some(offer.share));
                    state.event(self.id, EventKind::Kept);
                    if let DeviceError::OutOfMemory { requested, free } = *error {
                        note_shortage(state, self.id, requested, free);
                    }
                }
            }
            state.dirty = true;
        });
        Ok(error.is_none())
    }

    /// Parks the job, waits until it is resumed, and enters again. With too little host memory for its tensors it waits where it is.
    fn pause(&self, running: Running<D>) -> Result<Running<D>, JobError> {
        let parked_bytes = running.main.parked_bytes();
        let reserved = self.hub.change(|state| {
            let held = state.host.held(self.id);
            state.host.set(self.id, held + parked_bytes).is_ok()
        });
        if !reserved {
            return self.pause_in_place(running);
        }
        let Running { executor, main, past, .. } = running.merged()?;
        match executor.park() {
            Ok(parked) => {
                self.hub.change(|state| {
                    let host = state.host.set(self.id, parked.bytes());
                    assert!(host.is_ok(), "less than before");
                    state.left(self.id);
                    state.entry_mut(self.id).phase = Phase::Paused;
                    state.event(self.id, EventKind::Paused);
                });
                let mut parked = Some(parked);
                let mut running = self.enter(|_, program, options| {
                    let from = parked.as_ref().expect("it is entered once");
                    let executor = Executor::unpark(from, program, options)?;
                    // Only the new arenas count from now on.
                    parked = None;
                    Ok(executor)
                })?;
                running.past = past;
                Ok(running)
            }
            Err((executor, ExecError::Device(error))) if is_shortage(&error) => {
                // What was noted of the main program is in its executor still.
                let mut past = past;
                past.retain(|(step, _)| !Arc::ptr_eq(step, &self.step));
                let mut running = Running::new(*executor, main);
                running.past = past;
                self.pause_in_place(running)
            }
            Err((_, error)) => Err(error.into()),
        }
    }

    fn pause_in_place(&self, running: Running<D>) -> Result<Running<D>, JobError> {
        self.hub.change(|state| {
            // An offer that it does not take is nobody's.
            let entry = state.entry_mut(self.id);
            entry.offer = None;
            let device = running.main.limits().device.max(running.executor.arena_bytes());
            let device = state.device.set(self.id, device);
            let host = state.host.set(self.id, running.executor.host_bytes());
            assert!(device.is_ok() && host.is_ok(), "no more than it has");
            state.event(self.id, EventKind::PausedInPlace);
            state.expect_changes();
        });
        let mut state = self.hub.lock();
        while state.entry(self.id).pause && !state.entry(self.id).cancel {
            state = self.hub.wait(state);
        }
        drop(state);
        self.hub.change(|state| state.expect_changes());
        Ok(running)
    }

    /// The program of a step, planned if there is none yet; none if the job is cancelled meanwhile.
    fn program(
        &self,
        running: &mut Running<D>,
        work: &mut dyn Workload,
        step: &Arc<Step>,
    ) -> Result<Option<Arc<Compiled>>, JobError> {
        if Arc::ptr_eq(step, &self.step) {
            return Ok(Some(Arc::clone(&running.main)));
        }
        if let Some(program) = running.known(step) {
            return Ok(Some(program));
        }
        loop {
            let boundary = running.main.planned().synced.layout().homes.clone();
            let request = Request { step: Arc::clone(step), boundary };
            self.hub.change(|state| state.entry_mut(self.id).request = Some(request));
            let mut state = self.hub.lock();
            let answer = loop {
                let entry = state.entry_mut(self.id);
                if entry.cancel {
                    entry.request = None;
                    return Ok(None);
                }
                if let Some(answer) = entry.answer.take() {
                    break answer;
                }
                state = self.hub.wait(state);
            };
            drop(state);
            match answer {
                Answer::Program(program) => {
                    running.finish_all(self, work)?;
                    self.reserve_host(running, &program)?;
                    running.keep(&program, self.options.most_programs)?;
                    return Ok(Some(program));
                }
                Answer::Fails(error) => return Err(error),
                Answer::NeedsMore => {
                    running.finish_all(self, work)?;
                    let mut state = self.hub.lock();
                    let offer = loop {
                        let entry = state.entry_mut(self.id);
                        if entry.cancel {
                            return Ok(None);
                        }
                        if let Some(verdict) = entry.verdict.take() {
                            return Err(verdict);
                        }
                        if let Some(offer) = entry.offer.as_ref().filter(|offer| offer.granted) {
                            break offer.clone();
                        }
                        state = self.hub.wait(state);
                    };
                    drop(state);
                    // Whatever it was: if the share is still too small, the next request tells.
                    self.take(running, &offer)?;
                }
            }
        }
    }

    /// Sets host memory aside for a program of another step, whose host arena may be larger than the present one.
    fn reserve_host(&self, running: &Running<D>, program: &Compiled) -> Result<(), JobError> {
        let then = program.host_arena();
        if then <= running.executor.host_bytes() {
            return Ok(());
        }
        self.hub.change(|state| {
            // For a moment both are there, beside what may be set aside for an offer.
            let held = state.host.held(self.id);
            let booked = state.host.set(self.id, held + then);
            booked.map_err(|_| JobError::from(DeviceError::HostOutOfMemory { requested: then }))
        })
    }

    /// Takes new measurements in. Tells the controller if they are far from what was planned with; gives whether it did.
    fn watch_drift(&self, running: &Running<D>, corrected: &mut Corrected) -> Result<bool, JobError> {
        let Some(stats) = running.executor.stats(&running.main) else { return Ok(false) };
        corrected.measure(stats);
        let drift = corrected.drift();
        if drift <= self.options.replan_above {
            return Ok(false);
        }
        let trace = corrected.trace(&self.step.trace).map_err(|error: TraceError| JobError::Work(error.into()))?;
        corrected.replanned();
        self.hub.change(|state| {
            let load = state.running().max(1);
            let entry = state.entry_mut(self.id);
            (entry.trace, entry.load, entry.drifted) = (Arc::new(trace), load, true);
            entry.futile = None;
            state.event(self.id, EventKind::Drifted { percent: (drift * 100.0).min(1e9) as u32 });
            state.dirty = true;
        });
        Ok(true)
    }
}

impl<D: Device> Running<D> {
    fn new(executor: Executor<D>, main: Arc<Compiled>) -> Self {
        Self { executor, main, others: Vec::new(), in_flight: VecDeque::new(), past: Vec::new(), main_steps: 0 }
    }

    fn begin(&mut self, program: &Arc<Compiled>, work: &mut dyn Workload) -> Result<(), JobError> {
        let step = program.step();
        let mut fault: Option<WorkError> = None;
        let ticket = self.executor.begin(program, |input, bytes| {
            if fault.is_none() {
                fault = work.fill(step, input, bytes).err();
            }
        })?;
        self.in_flight.push_back((ticket, Arc::clone(step)));
        fault.map_or(Ok(()), |fault| Err(JobError::Work(fault)))
    }

    /// Finishes steps until only so many are in flight.
    fn finish_until(&mut self, left: usize, job: &Job<D>, work: &mut dyn Workload) -> Result<(), JobError> {
        while self.in_flight.len() > left {
            let (ticket, step) = self.in_flight.pop_front().expect("just counted");
            let result = self.executor.finish(ticket)?;
            let is_main = Arc::ptr_eq(&step, &job.step);
            self.main_steps += u64::from(is_main);
            let time = result.timings.step;
            let (arena, host) = (self.executor.arena_bytes(), self.executor.host_bytes());
            job.hub.change(|state| {
                let entry = state.entry_mut(job.id);
                entry.steps += 1;
                entry.first_step.get_or_insert_with(Instant::now);
                entry.arena = arena;
                if is_main {
                    entry.latest_step = Some(time);
                }
                if !entry.is_granted() {
                    let booked = state.host.set(job.id, host);
                    assert!(booked.is_ok(), "what it has was set aside");
                }
            });
            work.finished(&step, result).map_err(JobError::Work)?;
        }
        Ok(())
    }

    fn finish_all(&mut self, job: &Job<D>, work: &mut dyn Workload) -> Result<(), JobError> {
        self.finish_until(0, job, work)
    }

    /// The program of a step other than the main one, now the one used last.
    fn known(&mut self, step: &Arc<Step>) -> Option<Arc<Compiled>> {
        let at = self.others.iter().position(|program| Arc::ptr_eq(program.step(), step))?;
        let program = self.others.remove(at);
        self.others.push(Arc::clone(&program));
        Some(program)
    }

    /// Adds a program; beyond the most that are kept (the main one is one of them) the one that was not used for longest goes.
    fn keep(&mut self, program: &Arc<Compiled>, most: usize) -> Result<(), ExecError> {
        while self.others.len() + 1 >= most.max(2) {
            let oldest = self.others.remove(0);
            self.forget(&oldest)?;
        }
        self.others.push(Arc::clone(program));
        Ok(())
    }

    fn forget(&mut self, program: &Arc<Compiled>) -> Result<(), ExecError> {
        self.note(program);
        self.executor.forget(program)
    }

    /// Adds a program's statistics to those of its step.
    fn note(&mut self, program: &Arc<Compiled>) {
        let Some(stats) = self.executor.stats(program) else { return };
        match self.past.iter_mut().find(|(step, _)| Arc::ptr_eq(step, program.step())) {
            Some((_, sum)) => sum.merge(stats),
            None => self.past.push((Arc::clone(program.step()), stats.clone())),
        }
        // Steps that were built anew for each use would pile up; the first is the main one's or an early one's.
        if self.past.len() > MOST_PAST {
            self.past.remove(1);
        }
    }

    /// Makes another program the main one; those of other steps were planned for the old boundary and go.
    fn take_over(&mut self, program: &Arc<Compiled>) -> Result<(), ExecError> {
        self.executor.take_over(program)?;
        let before = std::mem::replace(&mut self.main, Arc::clone(program));
        for old in std::mem::take(&mut self.others).into_iter().chain([before]) {
            if !Arc::ptr_eq(&old, program) {
                self.forget(&old)?;
            }
        }
        self.main_steps = 0;
        Ok(())
    }

    /// With all statistics noted and only the main program left, before the executor goes.
    fn merged(mut self) -> Result<Self, ExecError> {
        for program in std::mem::take(&mut self.others) {
            self.forget(&program)?;
        }
        let main = Arc::clone(&self.main);
        self.note(&main);
        Ok(self)
    }
}

impl<D: Device> AtRest for Running<D> {
    fn state(&mut self) -> Result<Vec<PersistentValue>, ExecError> {
        self.executor.state()
    }

    fn write_state(&mut self, state: &[PersistentValue]) -> Result<(), ExecError> {
        self.executor.write_state(state)
    }

    fn stats(&self, step: &Arc<Step>) -> Option<ProgramStats> {
        let past = self.past.iter().find(|(known, _)| Arc::ptr_eq(known, step)).map(|(_, stats)| stats);
        let program = self.program(step);
        let now = program.as_ref().and_then(|program| self.executor.stats(program));
        match (past, now) {
            (Some(past), Some(now)) => {
                let mut sum = past.clone();
                sum.merge(now);
                Some(sum)
            }
            (one, other) => one.or(other).cloned(),
        }
    }

    fn program(&self, step: &Arc<Step>) -> Option<Arc<Compiled>> {
        let mut all = self.others.iter().chain([&self.main]);
        all.find(|program| Arc::ptr_eq(program.step(), step)).cloned()
    }

    fn latest_spans(&mut self) -> Result<Option<StepSpans>, ExecError> {
        self.executor.latest_spans()
    }
}

/// Whether memory was short, now or for this size, and nothing else is wrong.
fn is_shortage(error: &DeviceError) -> bool {
    matches!(
        error,
        DeviceError::OutOfMemory { .. }
            | DeviceError::TooLarge { .. }
            | DeviceError::HostOutOfMemory { .. }
            | DeviceError::DiskFull { .. }
    )
}

/// What a panic says.
pub(super) fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
