//! Policies to compare with, each in one file with its source.

mod none;
mod plain;
mod retain;

pub use none::NoEviction;
pub use retain::Retain;

pub(crate) use none::no_eviction;
