//! The wgpu device of Tensile: Vulkan, Metal and DX12.
//!
//! Purpose: the same programs on any GPU, with WGSL kernels and staged copies on one queue. Nothing of it is built yet, so this
//! crate exports nothing and no program offers the backend.
