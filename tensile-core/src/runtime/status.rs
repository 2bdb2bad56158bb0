//! What is told of jobs.

use std::time::Duration;

use tensile_sched::{Bytes, Nanos};

use crate::exec::ProgramStats;

/// Number of a job, in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits to be let in, for the first time or after a pause.
    Queued,
    /// It has a share and runs.
    Running,
    /// It is paused: its tensors are on the host.
    Paused,
    /// Its work is done.
    Done,
    /// It ended with an error.
    Failed,
}

impl Phase {
    /// Whether it will never run again.
    pub fn is_over(self) -> bool {
        matches!(self, Phase::Done | Phase::Failed)
    }
}

/// How a job stands.
#[derive(Clone, Debug)]
pub struct JobStatus {
    /// Its number.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: f64,
    /// Where it is in its life.
    pub phase: Phase,
    /// Finished steps of all kinds.
    pub steps: u64,
    /// Its share of the device budget: the most that its arena may have.
    pub share: Bytes,
    /// Its device arena.
    pub arena: Bytes,
    /// Its host arena; when it is paused, the bytes of its tensors on the host.
    pub host: Bytes,
    /// Least device bytes that it could run with; none until it has been planned.
    pub floor: Option<Bytes>,
    /// Device bytes that it makes use of at most; none until it has been planned.
    pub full: Option<Bytes>,
    /// Predicted step time within its share over that with all the memory it can use; 1 = no slowdown. None unless it runs.
    pub slowdown: Option<f64>,
    /// Predicted time of a main step, alone on the device.
    pub predicted_step: Option<Nanos>,
    /// Time of the latest main step.
    pub latest_step: Option<Nanos>,
    /// Programs planned for it.
    pub plans: u64,
    /// Programs that took over from another one of the main step.
    pub takeovers: u64,
    /// From submission to the first step, if it has begun.
    pub admission_delay: Option<Duration>,
    /// Why it failed, in one line.
    pub failure: Option<String>,
}

/// What a job leaves when its work is done.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// How it stood at its end.
    pub status: JobStatus,
    /// What was measured of the main step.
    pub stats: ProgramStats,
    /// From admission to the end, pauses included.
    pub run_time: Duration,
    /// Largest share that it had.
    pub largest_share: Bytes,
    /// Smallest share that it had.
    pub smallest_share: Bytes,
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Since the runtime began.
    pub time: Duration,
    /// The job.
    pub job: JobId,
    /// Steps of the job that had ended by then.
    pub steps: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What can happen to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It came.
    Submitted,
    /// It got a share and begins.
    Admitted {
        /// Its share.
        share: Bytes,
    },
    /// Another program took over, perhaps with another share.
    TookOver {
        /// The share before.
        before: Bytes,
        /// The share now.
        share: Bytes,
    },
    /// It had to stay as it is, because there was no host memory to make it smaller.
    Kept,
    /// The device refused memory.
    Shortage {
        /// Bytes asked for.
        requested: Bytes,
        /// Bytes free, as the device said.
        free: Bytes,
    },
    /// Measured times left the prediction by this many per cent, so that it is planned anew.
    Drifted {
        /// How far.
        percent: u32,
    },
    /// It was paused: its tensors are on the host.
    Paused,
    /// It was paused where it is, because there was no host memory for its tensors.
    PausedInPlace,
    /// It ended: done, or with an error.
    Ended {
        /// Whether its work is done.
        done: bool,
    },
}

/// All jobs at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The device budget.
    pub budget: Bytes,
    /// Sum of all shares.
    pub shared: Bytes,
    /// The host budget.
    pub host_budget: Bytes,
    /// Host bytes that jobs hold, those set aside while programs take over included.
    pub host_held: Bytes,
    /// Every job, in the order of submission.
    pub jobs: Vec<JobStatus>,
    /// What has happened so far.
    pub events: Vec<Event>,
}
