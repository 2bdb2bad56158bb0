//! Model zoo and data sets of Tensile.

#![forbid(unsafe_code)]

pub mod backend;
pub mod budget;
pub mod course;
pub mod data;
pub mod html;
pub mod job;
pub mod profile;
pub mod report;
pub mod trainer;
pub mod training;
pub mod zoo;
