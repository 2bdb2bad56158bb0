//! The host device: real kernels on the CPU, its device memory an arena of a hard size.

mod call;

pub use call::{HostArg, HostCall, InOut};
