//! What can go wrong between a program and a finished step.

use tensile_sched::Bytes;
use tensile_sched::check::Violation;
use tensile_sched::verify::Race;

use crate::device::DeviceError;

/// A fault of executing. Names programs that are wrong, wrong use of an executor, and faults of the device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The program is not a right way to run the step within the limits.
    #[error("the program is wrong: {}{}", violations[0], more(violations.len()))]
    Check {
        /// What `check` found, at least one.
        violations: Vec<Violation>,
    },
    /// The program's waits leave a race.
    #[error("the program's waits are wrong: {}{}", races[0], more(races.len()))]
    Verify {
        /// What `verify` found, at least one.
        races: Vec<Race>,
    },
    /// The program was planned for a finer alignment than the device needs.
    #[error("planned for an alignment of {planned}, but the device needs multiples of {device}")]
    Alignment {
        /// In the limits.
        planned: Bytes,
        /// Of the device.
        device: Bytes,
    },
    /// One tensor or workspace is larger than a block of the device's memory, or would lie in two of them because the program was planned for larger blocks.
    #[error("the program needs device memory in blocks of {needed}; this device has blocks of {device}")]
    Block {
        /// With blocks of this size it runs.
        needed: Bytes,
        /// Those of the device.
        device: Bytes,
    },
    /// A program of another job: its persistent tensors differ.
    #[error("the program's persistent tensors are not this job's: {detail}")]
    OtherJob {
        /// The first difference.
        detail: String,
    },
    /// Two steps are in flight already.
    #[error("two steps are in flight; finish one first")]
    InFlight,
    /// The ticket is of another executor, or its step was in flight when the job failed.
    #[error("no step in flight has this ticket (iteration {iteration})")]
    Ticket {
        /// Its iteration.
        iteration: u64,
    },
    /// No persistent tensor has this name.
    #[error("no persistent tensor is called '{name}'")]
    UnknownPersistent {
        /// The name.
        name: String,
    },
    /// A value of the wrong size.
    #[error("'{name}' has {expected}, not {got}")]
    Size {
        /// The persistent tensor.
        name: String,
        /// Its size.
        expected: Bytes,
        /// The size given.
        got: Bytes,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An earlier step failed, so the state is not to be trusted.
    #[error("the job has failed before: {0}")]
    Failed(DeviceError),
}

fn more(n: usize) -> String {
    if n > 1 { format!(" (and {} more)", n - 1) } else { String::new() }
}
