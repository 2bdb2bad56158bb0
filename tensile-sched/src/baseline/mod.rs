//! Policies to compare with, each in one file with its source.

mod autoswap;
mod away;
mod capuchin;
mod chen;
mod dtr;
mod fit;
mod forward;
mod none;
mod paper;
mod plain;
mod retain;
mod superneurons;
mod tally;
mod trips;
mod vdnn;

pub use autoswap::{AutoSwap, Score};
pub use capuchin::Capuchin;
pub use chen::ChenSqrt;
pub use dtr::Dtr;
pub use none::NoEviction;
pub use paper::{Paper, PaperOptions, max_swap_ratios};
pub use retain::Retain;
pub use superneurons::SuperNeurons;
pub use vdnn::{Offload, Vdnn};

pub(crate) use fit::fit;
pub(crate) use none::no_eviction;
