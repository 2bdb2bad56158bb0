//! The wgpu device of Tensile: Vulkan, Metal and DX12.
#![deny(unsafe_code)]
#![allow(dead_code)] // until the device that uses all of it stands

mod adapter;
mod error;
mod gpu;
mod kernel;
mod shader;

pub use adapter::{AdapterChoice, AdapterError, AdapterInfo, Backend, Power, adapters};
