//! Memory scheduling of training steps.
//!
//! A [`Trace`] says what one training step reads, writes and updates. A [`Planner`] turns it into a program: what the device executes, copies,
//! releases and recomputes, with a byte address for everything, so that the step stays within a hard memory budget. This crate plans, proves and predicts; it
//! does no I/O, reads no clock and knows no device.

#![forbid(unsafe_code)]

pub mod baseline;
pub mod check;
#[cfg(feature = "serde")]
pub mod file;
pub mod floor;
pub mod id;
pub mod layout;
pub mod limits;
pub mod liveness;
pub mod planner;
pub mod program;
pub mod simulate;
#[cfg(feature = "proptest")]
pub mod strategy;
pub mod sync;
pub mod text;
pub mod trace;
pub mod verify;

#[cfg(test)]
mod testing;

pub use baseline::{NoEviction, Retain};
pub use check::{CheckReport, Violation, check};
#[cfg(feature = "serde")]
pub use file::{FileError, read_trace, write_trace};
pub use floor::{Floor, floor};
pub use id::{Bytes, InstrId, Nanos, OpId, TensorId};
pub use layout::{LayoutError, layout};
pub use limits::{Duplex, Limits, Link, Mode};
pub use liveness::Liveness;
pub use planner::{Infeasible, Planned, Planner, Tensile, TensileOptions};
pub use program::{BoundaryTensor, Home, Instr, Lane, Layout, Placed, Placement, Program, Slots, Synced, Wait};
pub use simulate::{Simulation, Span, Stall, simulate};
pub use sync::sync;
pub use trace::{InPlace, Op, Role, Tensor, Trace, TraceError};
pub use verify::{Race, verify};
