//! Model zoo and data sets of Tensile.

#![forbid(unsafe_code)]

pub mod budget;
pub mod data;
