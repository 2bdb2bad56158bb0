//! Evictions decided ahead, by position: what a policy hands to the walk.

use super::facts::Facts;
use crate::id::TensorId;
use crate::limits::Mode;

/// Evictions to be carried out by the walk, by position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Behind op k: tensors to release, to be regenerated later.
    pub(crate) drop_after: Vec<Vec<TensorId>>,
    /// Behind op k: tensors whose copy to the host leaves.
    pub(crate) save_after: Vec<Vec<TensorId>>,
    /// Before op k: tensors to release whose copy is done, with the position up to which nobody wants them.
    pub(crate) release_before: Vec<Vec<(TensorId, usize)>>,
    /// Before op k: tensors that come back if there is room, ahead of their use.
    pub(crate) claim_before: Vec<Vec<TensorId>>,
    /// By tensor, whether it is on the device between steps (persistent tensors).
    pub(crate) residents: Vec<bool>,
    /// By tensor, whether its host copy is valid then although it is a resident.
    pub(crate) saved: Vec<bool>,
}

impl Plan {
    /// No evictions: persistent tensors that are used stay on the device (in [`Mode::Recompute`], which may not bring them back, all do).
    pub(crate) fn keep_all(facts: &Facts<'_>) -> Self {
        let n_ops = facts.n_ops();
        let touched = |tensor: TensorId| facts.live.first_use(tensor).is_some() || facts.limits.mode == Mode::Recompute;
        Self {
            drop_after: vec![Vec::new(); n_ops],
            save_after: vec![Vec::new(); n_ops],
            release_before: vec![Vec::new(); n_ops + 1],
            claim_before: vec![Vec::new(); n_ops + 1],
            residents: facts.trace.tensor_ids().map(|tensor| facts.is_persistent(tensor) && touched(tensor)).collect(),
            saved: vec![false; facts.trace.tensors().len()],
        }
    }
}
