//! The CUDA device of Tensile, on `cust`.
//!
//! Purpose: page-locked host arenas, one compute and two copy streams per job, kernels compiled at run time. Nothing of it is
//! built yet, so this crate exports nothing and no program offers the backend.
