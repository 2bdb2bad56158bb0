//! Policies to compare with, each in one file with its source.

mod fit;
mod none;
mod plain;
mod retain;

pub use none::NoEviction;
pub use retain::Retain;

#[allow(unused_imports, dead_code, reason = "the policies that use it come next")]
pub(crate) use fit::fit;
pub(crate) use none::no_eviction;
