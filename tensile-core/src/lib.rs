//! Tensors, ops, graphs, autodiff, devices and the executor of Tensile.

pub mod device;
pub mod exec;
pub mod grad;
pub mod graph;
pub mod op;
pub mod tensor;

pub use device::{Device, DeviceError, DeviceInfo, Lane, Region};
pub use graph::{Graph, GraphError, Init, Persistent, Phase, Value};
pub use op::{Cost, Op, OpDef, OpError};
pub use tensor::{DType, Shape, TensorType};
