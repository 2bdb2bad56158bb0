//! Model zoo and data sets of Tensile.

#![forbid(unsafe_code)]

pub mod backend;
pub mod budget;
pub mod data;
pub mod job;
pub mod report;
pub mod trainer;
pub mod zoo;
