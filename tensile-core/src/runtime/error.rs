//! Why jobs end before their work is done.

use std::fmt;

use tensile_sched::{Bytes, Infeasible};

use super::WorkError;
use crate::device::DeviceError;
use crate::exec::ExecError;

/// Why a job ended before its work was done. Other jobs are not touched by it, but for a device that is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// It would fit the budget alone, but not beside the jobs that hold it now, and it was not to wait.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// It can never fit, or a step of it cannot.
    #[error("it can never run: {0}")]
    Infeasible(Infeasible),
    /// The device has too little memory now for the least that the job needs, although the budget would allow it, and nothing that could end would free any.
    #[error(
        "the device gives {free} now, and the job needs at least {floor}; free device memory, or use a smaller batch"
    )]
    Shortage {
        /// Least bytes that the job needs.
        floor: Bytes,
        /// What the device gives.
        free: Bytes,
    },
    /// A step failed, or the device.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The workload cannot go on.
    #[error("{0}")]
    Work(WorkError),
    /// The workload panicked, or the policy that planned it.
    #[error("the job's code or its policy panicked: {0}")]
    Panicked(String),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl From<DeviceError> for JobError {
    fn from(error: DeviceError) -> Self {
        JobError::Exec(error.into())
    }
}

/// Who holds a part of the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of the job.
    pub job: String,
    /// Bytes of its share.
    pub held: Bytes,
    /// Bytes that it cannot do without.
    pub floor: Bytes,
}

/// Why a job was not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Least bytes that it needs.
    pub floor: Bytes,
    /// What all jobs together may have.
    pub budget: Bytes,
    /// Bytes that nobody holds.
    pub free: Bytes,
    /// Bytes that there would be for it if all others were squeezed to their floors.
    pub could_be_freed: Bytes,
    /// Who holds the rest.
    pub holders: Vec<Holder>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { floor, budget, free, could_be_freed, holders } = self;
        write!(
            f,
            "it needs at least {floor}; of the budget of {budget}, {free} are free and {could_be_freed} could be, beside "
        )?;
        for (index, Holder { job, held, floor }) in holders.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}'{job}' with {held} (floor {floor})")?;
        }
        write!(f, "; let it wait, give a larger budget, or use a smaller batch")
    }
}
