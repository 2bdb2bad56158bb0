//! From a graph to a running step.
//!
//! [`lower()`] makes the trace and the calls; a planner of `tensile_sched` makes a program; [`Compiled`] proves it right; an [`Executor`] interprets it on a
//! device and measures.

mod compiled;
mod error;
mod executor;
mod lanes;
pub mod lower;
mod persistent;
mod stats;

pub use compiled::Compiled;
pub use error::ExecError;
pub use executor::{Executor, ExecutorOptions, Ticket};
pub use lower::{Call, CallArg, Named, Step, lower};
pub use persistent::{Parked, PersistentValue};
pub use stats::{CopyStats, OpStats, ProgramStats, StepOutput, StepResult, StepSpans, StepTimings};
