//! Tensors, ops, graphs, autodiff, devices and the executor of Tensile.

// Modules that need unsafe code allow it for themselves: `grep -rl "allow(unsafe_code)" src`.
#![deny(unsafe_code)]

pub mod checkpoint;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod device;
pub mod exec;
pub mod grad;
pub mod graph;
mod kernel;
pub mod latency;
pub mod nn;
pub mod op;
pub mod optim;
pub mod random;
pub mod runtime;
pub mod tensor;
#[cfg(any(test, feature = "conformance"))]
pub mod testing;

pub use device::{Arg, Device, DeviceError, DeviceInfo, Lane, OpCall, Region};
pub use graph::{Graph, GraphError, Init, Persistent, Phase, Value};
pub use op::{Cost, Op, OpDef, OpError};
pub use tensor::{DType, Shape, TensorType};
