//! The wgpu device of Tensile: Vulkan, Metal and DX12.
#![deny(unsafe_code)]

mod adapter;
mod arena;
mod complete;
mod core;
mod device;
mod error;
mod gpu;
mod kernel;
mod measure;
mod self_test;
mod shader;
mod staging;
mod submit;

pub use adapter::{AdapterChoice, AdapterError, AdapterInfo, Backend, Kind, Power, adapters};
pub use arena::WgpuArena;
pub use device::{Emulation, MOST_STAGING, OpenError, WgpuDevice, WgpuEvent, WgpuOptions, WgpuStream};
pub use self_test::SelfTest;
