//! `paper`: TENSILE as published (arXiv 2105.13336, section IV) and as its authors implemented it.
//!
//! The step is a timeline of accesses: an output access at its op's end, an input access at its op's start. Copies take turns on one half-duplex channel. Round by round:
//!
//! ```text
//! 1. peak analysis   most bytes resident at any time, and the tensors that are
//! 2. stop?           after 100 rounds, once the two latest peaks fell by under 0.05 % each
//! 3. swap            the largest tensor resident at the peak that can be swapped, one per round
//! 4. recompute       only when nothing more can be swapped: the resident tensor with the most bytes per time (MSPS)
//!
//! access      W          R                     ▲ peak            R               R
//! window       ├─────────┤ ├───────────────────┤                 ┊               ┊      out: end of the producing op to the last input access before the
//! channel      earliest fit► [out]                          [in]◄┊latest    [in]◄┊      peak, the tensor's own accesses cut out; in: before the first access
//! resident    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓                                 ▓▓▓▓▓           ▓▓▓▓      behind it, or the window moves; later accesses where they fit
//! ```
//!
//! Across iterations: what the optimizer has written and no later op reads may leave behind the optimizer, if it can be back before its first use in the next step.
//!
//! Where this differs from the original, and why:
//! - **Budget.** The original has none: it lowers the peak as far as it can. Here rounds end as soon as the analysed peak is within the budget, and all rounds are the strongest plan.
//!   Recomputation begins when the peak exceeds the free memory, which here is the budget.
//! - **Exact bytes.** The analysis is optimistic as in the original: a swap-out subtracts at its start, a swap-in adds at its end, outputs come when inputs have gone, workspaces do not
//!   count. The program is not: bytes go when their copy has ended and come when it starts. Swaps that let no op run without the tensor are left out of it, and where the arena is above the budget more rounds are played.
//! - **In place.** Updated parameters and moments are one tensor, not an old and a new one, so they are not counted twice. Copies of values that the host has already are planned, but not executed;
//!   a tensor that is evicted before its update leaves behind the update of the step before, so that its bytes can go at once.
//! - **Inputs** come from the host before their first access; in the original they are there from the start.
//! - **Recomputation** takes the best candidate that can be recomputed and without which an op runs. The authors' code gives up when the best of all cannot, and never recomputed anything in practice.
//! - **Order.** Tensors of equal size by id, where the original iterates over a set.
//! - **Latency** of the link is part of a copy's time. Waiting is left to the lanes' data dependences, where the authors' executor blocks the next op on each swap-out.
//! - Replanning (changed latencies) and several jobs are the runtime's business; [`max_swap_ratios`] gives the jobs' shares.

mod channel;
mod rounds;

use std::cell::OnceCell;

use crate::limits::Limits;
use crate::planner::facts::Facts;
use crate::planner::{Infeasible, Planned, Planner};
use crate::trace::Trace;
use rounds::Rounds;

use super::fit;

/// Switches of [`Paper`].
#[derive(Clone, Debug, PartialEq)]
pub struct PaperOptions {
    /// Most tensors that may be swapped, as a share of the step's tensors (maximal swapping ratio).
    pub max_swap_ratio: f64,
}

impl Default for PaperOptions {
    fn default() -> Self {
        Self { max_swap_ratio: 1.0 }
    }
}

/// Maximal swapping ratios of jobs by their weights, which only count in proportion: the heaviest job may swap all of its tensors.
///
/// Weights that are not above zero give zero, as all do if none is.
pub fn max_swap_ratios(weights: &[f64]) -> Vec<f64> {
    let most = weights.iter().copied().fold(0.0, f64::max);
    weights.iter().map(|&weight| if weight > 0.0 { (weight / most).min(1.0) } else { 0.0 }).collect()
}

/// TENSILE's own method (arXiv 2105.13336), to compare with: swaps by size, then recomputation by bytes per time. The source of this module lists the
/// differences from the original.
///
/// Rounds × (accesses + residents at the peak × copies planned) in the worst case; milliseconds for a thousand ops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paper {
    /// Its switches.
    pub options: PaperOptions,
}

impl Planner for Paper {
    fn name(&self) -> &'static str {
        "paper"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        // The same for every cap: a cap only ends them earlier.
        let rounds = OnceCell::new();
        fit(trace, limits, |cap| {
            let rounds = rounds.get_or_init(|| Rounds::play(&facts, self.options.max_swap_ratio));
            rounds.program(&facts, cap)
        })
    }
}

#[cfg(test)]
mod tests;
