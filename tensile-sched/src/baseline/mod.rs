//! Policies to compare with, each in one file (or folder) with its source and what is different here.
//!
//! | name | source | means |
//! |---|---|---|
//! | `none`, `retain` | | none; with and without liveness |
//! | `paper` | TENSILE, arXiv 2105.13336 | swap by size; then recompute |
//! | `vdnn-conv`, `vdnn-all` | vDNN, MICRO 2016 | swap layers' inputs |
//! | `superneurons` | SuperNeurons, PPoPP 2018 | swap convolutions' outputs; recompute the rest |
//! | `capuchin` | Capuchin, ASPLOS 2020 | swap what hides; then the cheaper of both |
//! | `autoswap` | AutoSwap, arXiv 1903.06631 | swap by absence over the peak |
//! | `chen-sqrt` | Chen et al., arXiv 1604.06174 | recompute segments |
//! | `dtr` | DTR, ICLR 2021 | recompute by staleness, size and cost |
//!
//! Each decides everything itself, as its authors say; `fit` sees to it that the arena is within the budget.

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
