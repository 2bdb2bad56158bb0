//! From a graph to a running step: [`lower`] makes the trace and the calls, the executor interprets a planned program.

pub mod lower;

pub use lower::{Call, CallArg, Named, Step, lower};
