//! Several jobs on one device, within one budget.
//!
//! A [`Runtime`] takes [jobs](Submission) that come when they come, gives each a share of the device budget, and runs them side by side, each on a thread of its own. A controller, on a
//! thread of its own too, decides who gets in, divides the budget so that the weighted slowdown of all is least ([`share`](tensile_sched::share)), and makes every program, also those of the first iteration: nothing
//! ever runs without a plan.
//!
//! ```text
//! submit ──► Queued ──share──► Running ──work done──► Done
//!               ▲                │  ▲  └─error, cancel─► Failed
//!               │          pause │  │ another program, at an iteration boundary
//!            resume              ▼  │
//!               └──────────── Paused (tensors on the host)
//! ```
//!
//! # When shares change
//! When a job arrives, ends, is paused or resumed, or its measured times leave the prediction, the budget is divided anew. Whoever is to have less drains its lanes at its next iteration boundary,
//! moves to the new program's boundary and gives the rest back; only then does anybody get more. So the sum of all shares never exceeds the budget, at no moment. A job that cannot be made smaller,
//! because host memory is short, stays as it is.
//!
//! # Same numbers
//! Shares, takeovers, pauses and neighbours never change what a job computes.
//!
//! # Faults
//! An error of a job (its own, of a kernel, of a copy), a panic in its code, its being cancelled: that job ends with a [`JobError`], what it held comes back, and the others go on unchanged. Device memory that
//! the driver refuses, because other programs took it, leads to smaller shares.

mod book;
mod controller;
mod error;
mod job;
mod state;
mod status;
mod workload;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tensile_sched::share::Division;
use tensile_sched::{Bytes, Effort, Link, Mode, Planner, Tensile};

pub use book::{Book, Full};
pub use error::{Holder, JobError, Refusal};
pub use status::{Event, EventKind, JobId, JobReport, JobStatus, Phase, Snapshot};
pub use workload::{AtRest, Next, WorkError, Workload};

use crate::device::{Device, DeviceError};
use crate::exec::ExecutorOptions;
use controller::Controller;
use job::Job;
use state::Hub;

/// What becomes of a job that does not fit beside those that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// It waits its turn; nobody that came later overtakes it.
    #[default]
    Queue,
    /// It ends with [`JobError::Refused`].
    Refuse,
}

/// How a runtime works.
#[derive(Clone)]
pub struct RuntimeOptions {
    /// Bytes of all host arenas together, those that exist only while programs change included.
    pub host_budget: Bytes,
    /// Draws the curves of memory against time by which the budget is divided, and makes the programs. It should be quick, for jobs wait for it.
    pub planner: Arc<dyn Planner>,
    /// Looks for a better program for a share, on a thread of its own; nobody waits for it.
    pub refiner: Option<Arc<dyn Planner>>,
    /// Points of a curve, 2 or more.
    pub curve_points: usize,
    /// How the budget is divided.
    pub division: Division,
    /// Ways out of memory.
    pub mode: Mode,
    /// The link of the device when one job has it alone; none for [`DeviceInfo::link`](crate::DeviceInfo::link).
    pub link: Option<Link>,
    /// A job is planned again when the sum of its measured latencies leaves what it was planned with by more than this part.
    pub replan_above: f64,
    /// Programs that a job keeps, one for each step that it runs; the one not used for longest goes first. 2 or more.
    pub most_programs: usize,
    /// How jobs execute.
    pub executor: ExecutorOptions,
}

impl Default for RuntimeOptions {
    /// Host memory without a limit; the default policy, quick at first and with all effort later; curves of 9 points; shares along the frontiers; replanning above 30 % (the paper's threshold); 16 programs.
    fn default() -> Self {
        Self {
            host_budget: Bytes::MAX,
            planner: Arc::new(Tensile { effort: Effort::Fast }),
            refiner: Some(Arc::new(Tensile::default())),
            curve_points: 9,
            division: Division::Frontier,
            mode: Mode::Both,
            link: None,
            replan_above: 0.3,
            most_programs: 16,
            executor: ExecutorOptions::default(),
        }
    }
}

/// A job to run.
pub struct Submission {
    /// For people; it need not be the only one of this name.
    pub name: String,
    /// How much its slowdown counts beside that of the others; finite, above zero.
    pub weight: f64,
    /// What becomes of it if it does not fit now.
    pub admission: Admission,
    /// What it runs.
    pub work: Box<dyn Workload>,
}

/// One device with a budget for all jobs on it. See the [module](self).
///
/// Dropping it cancels all jobs and waits for them.
pub struct Runtime<D: Device> {
    hub: Arc<Hub>,
    device: Arc<D>,
    options: RuntimeOptions,
    /// The threads that plan.
    planners: Vec<JoinHandle<()>>,
    jobs: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl<D: Device> Runtime<D> {
    /// A runtime without jobs, that may use `budget` bytes of the device.
    ///
    /// # Errors
    /// [`DeviceError::DeviceLost`] if there is no thread for it.
    pub fn new(device: Arc<D>, budget: Bytes, options: RuntimeOptions) -> Result<Self, DeviceError> {
        let hub = Arc::new(Hub::new(budget, options.host_budget));
        let info = device.info().clone();
        let controller = Arc::new(Controller { hub: Arc::clone(&hub), options: options.clone(), info });
        let mut runtime = Self { hub, device, options, planners: Vec::new(), jobs: std::sync::Mutex::default() };
        let no_thread = |error| DeviceError::DeviceLost { detail: format!("no thread for planning: {error}") };
        let builder = |name: &str| std::thread::Builder::new().name(name.to_owned());
        if let Some(refiner) = runtime.options.refiner.clone() {
            let controller = Arc::clone(&controller);
            let thread = builder("tensile-refiner").spawn(move || controller.run_refiner(&*refiner));
            runtime.planners.push(thread.map_err(no_thread)?);
        }
        let thread = builder("tensile-controller").spawn(move || controller.run());
        runtime.planners.push(thread.map_err(no_thread)?);
        Ok(runtime)
    }

    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// Hands a job in. Returns at once; whether it is let in shows in its status.
    ///
    /// # Errors
    /// [`DeviceError::DeviceLost`] if there is no thread for it.
    ///
    /// # Panics
    /// If the weight is not a finite number above zero.
    pub fn submit(&self, job: Submission) -> Result<JobHandle, DeviceError> {
        let Submission { name, weight, admission, work } = job;
        assert!(weight > 0.0 && weight.is_finite(), "weight {weight} of job '{name}'");
        let step = work.main_step();
        let id = self.hub.change(|state| state.submit(name, weight, admission, &step));
        let job = Job {
            hub: Arc::clone(&self.hub),
            device: Arc::clone(&self.device),
            options: self.options.clone(),
            id,
            step,
        };
        let thread = std::thread::Builder::new().name(format!("tensile-job-{}", id.0)).spawn(move || job.run(work));
        match thread {
            Ok(thread) => self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(thread),
            Err(error) => {
                let lost = DeviceError::DeviceLost { detail: format!("no thread for a job: {error}") };
                self.hub.change(|state| {
                    state.entry_mut(id).phase = Phase::Failed;
                    state.host.release(id);
                    state.left(id);
                });
                return Err(lost);
            }
        }
        Ok(JobHandle { hub: Arc::clone(&self.hub), id })
    }

    /// All jobs as they stand now, and what has happened so far.
    pub fn snapshot(&self) -> Snapshot {
        self.hub.snapshot()
    }

    /// Time since the runtime began, the clock of [`Event::time`].
    pub fn elapsed(&self) -> Duration {
        self.hub.elapsed()
    }
}

impl<D: Device> Drop for Runtime<D> {
    fn drop(&mut self) {
        self.hub.change(|state| state.jobs.values_mut().for_each(|entry| entry.cancel = true));
        for thread in self.jobs.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).drain(..) {
            // Panics of a job are caught and reported in its outcome.
            let _ = thread.join();
        }
        self.hub.change(|state| state.closing = true);
        for thread in self.planners.drain(..) {
            // A panic there has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// A job that was handed in. Dropping the handle leaves the job running.
#[derive(Clone)]
pub struct JobHandle {
    hub: Arc<Hub>,
    id: JobId,
}

impl JobHandle {
    /// Its number.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// How it stands.
    pub fn status(&self) -> JobStatus {
        let state = self.hub.lock();
        state.entry(self.id).status(self.id, &state)
    }

    /// Asks it to pause: after its step it brings its tensors to the host and gives its share up.
    pub fn pause(&self) {
        self.hub.change(|state| state.entry_mut(self.id).pause = true);
    }

    /// Lets a paused job go on, as soon as there is a share for it.
    pub fn resume(&self) {
        self.hub.change(|state| state.entry_mut(self.id).pause = false);
    }

    /// Asks it to end: after its step it gives all memory back.
    pub fn cancel(&self) {
        self.hub.change(|state| state.entry_mut(self.id).cancel = true);
    }

    /// Waits until its status is as asked, or it is over, or so much time has passed; gives the status then.
    pub fn wait_until(&self, mut is_reached: impl FnMut(&JobStatus) -> bool, at_most: Duration) -> JobStatus {
        let end = Instant::now() + at_most;
        let mut state = self.hub.lock();
        loop {
            let status = state.entry(self.id).status(self.id, &state);
            let left = end.saturating_duration_since(Instant::now());
            if is_reached(&status) || status.phase.is_over() || left.is_zero() {
                return status;
            }
            state = self.hub.wait_at_most(state, left);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`JobError`] that says why its work is not done. The outcome is given once; a clone of the handle that asks again gets [`JobError::Cancelled`].
    pub fn join(self) -> Result<JobReport, JobError> {
        let mut state = self.hub.lock();
        loop {
            let entry = state.entry_mut(self.id);
            if let Some(outcome) = entry.outcome.take() {
                return outcome;
            }
            if entry.phase.is_over() {
                return Err(JobError::Cancelled);
            }
            state = self.hub.wait(state);
        }
    }
}
