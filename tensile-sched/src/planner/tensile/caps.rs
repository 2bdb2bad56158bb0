//! Most bytes by position: the budget, less what the layout could not use there.

use std::collections::BTreeMap;

use crate::borders::Borders;
use crate::floor::working_set;
use crate::id::{Bytes, TensorId};
use crate::planner::facts::Facts;
use crate::program::{Instr, Placed};

/// In blocks, tightening takes at most one part in this many of the budget, times its factor. Found by trial.
const BLOCK_CUT: u64 = 50;

/// Caps by position, one for each op and one for the end of the step. Never below what the op itself needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caps {
    pub(super) values: Vec<u64>,
    least: Vec<u64>,
}

impl Caps {
    /// `cap` everywhere.
    pub(super) fn new(facts: &Facts<'_>, cap: u64) -> Self {
        let mut least: Vec<u64> =
            facts.trace.op_ids().map(|op| working_set(facts.trace, facts.limits, op).0.min(cap)).collect();
        least.push(0);
        Self { values: least.iter().map(|&least| least.max(cap)).collect(), least }
    }

    /// Takes from each position `factor` times what the layout has above the budget there ([`overshoot`]); in blocks at most so many parts of the budget, for what does not fit there may be large and
    /// lack little room.
    pub(super) fn tighten(&mut self, facts: &Facts<'_>, over: &[u64], factor: f64) {
        let is_in_blocks = Borders::of(facts.limits) != Borders::NONE;
        let most = if is_in_blocks { (facts.budget().0 / BLOCK_CUT) as f64 * factor } else { f64::INFINITY };
        for (position, &over) in over.iter().enumerate() {
            let cut = (over as f64 * factor).min(most) as u64;
            let value = &mut self.values[position];
            *value = value.saturating_sub(cut).max(self.least[position]);
        }
    }
}

/// By position, how much too much is on the device for this layout.
///
/// In one piece of memory that is how far the highest end of anything is above the budget. In blocks something may end far above it because it did not fit below a border; there it is how many bytes lie above the
/// budget, for so many less would have left them room.
pub(super) fn overshoot(facts: &Facts<'_>, placed: &Placed) -> Vec<u64> {
    let budget = facts.budget().0;
    let layout = &placed.layout;
    let is_in_blocks = Borders::of(facts.limits) != Borders::NONE;
    let part_above = |address: Bytes, bytes: u64| {
        let above = (address.0 + bytes).saturating_sub(budget);
        if is_in_blocks { above.min(bytes) } else { above }
    };
    let together =
        |parts: &mut dyn Iterator<Item = u64>| if is_in_blocks { parts.sum() } else { parts.max().unwrap_or(0) };
    // What is above the budget now, by tensor.
    let mut above: BTreeMap<TensorId, u64> = BTreeMap::new();
    let put = |above: &mut BTreeMap<TensorId, u64>, tensor: TensorId, address: Bytes| {
        let part = part_above(address, facts.bytes(tensor));
        if part > 0 {
            above.insert(tensor, part);
        }
    };
    let mut over = vec![0; facts.n_ops() + 1];
    let mut position = 0;
    for home in &layout.homes {
        if let Some(address) = home.device {
            put(&mut above, home.tensor, address);
        }
    }
    for (instr, placement) in placed.program.instrs.iter().zip(&layout.placements) {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                for pair in takeovers {
                    above.remove(&pair.input);
                }
                for (&tensor, &address) in facts.trace.op(*op).writes.iter().zip(&placement.device) {
                    put(&mut above, tensor, address);
                }
                let workspace = placement.workspace.map(|address| part_above(address, facts.workspace[op.index()]));
                let most = together(&mut above.values().copied().chain(workspace));
                over[position] = most.max(over[position]);
                if let Instr::Run { op, .. } = instr {
                    position = op.index() + 1;
                }
            }
            Instr::SwapIn(tensor) => {
                put(&mut above, *tensor, placement.device[0]);
                over[position] = together(&mut above.values().copied()).max(over[position]);
            }
            Instr::Release(tensor) => {
                above.remove(tensor);
            }
            Instr::SwapOut(_) => {}
        }
    }
    over
}
