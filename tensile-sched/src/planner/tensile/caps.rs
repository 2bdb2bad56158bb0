//! Most bytes by position: the budget, less what the layout could not use there.

use crate::floor::working_set;
use crate::planner::facts::Facts;
use crate::program::{Instr, Placed};

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

    /// Takes from each position `factor` times what the layout has above the budget there.
    pub(super) fn tighten(&mut self, facts: &Facts<'_>, placed: &Placed, factor: f64) {
        for (position, over) in overshoot(facts, placed).into_iter().enumerate() {
            let cut = (over as f64 * factor) as u64;
            let value = &mut self.values[position];
            *value = value.saturating_sub(cut).max(self.least[position]);
        }
    }
}

/// By position, how far the highest end of anything on the device is above the budget.
fn overshoot(facts: &Facts<'_>, placed: &Placed) -> Vec<u64> {
    let budget = facts.budget().0;
    let layout = &placed.layout;
    // Ends above the budget of what is on the device, by tensor.
    let mut above: std::collections::BTreeMap<crate::id::TensorId, u64> = std::collections::BTreeMap::new();
    let mut over = vec![0; facts.n_ops() + 1];
    let mut position = 0;
    for home in &layout.homes {
        if let Some(address) = home.device {
            let end = address.0 + facts.bytes(home.tensor);
            if end > budget {
                above.insert(home.tensor, end - budget);
            }
        }
    }
    for (instr, placement) in placed.program.instrs.iter().zip(&layout.placements) {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                for pair in takeovers {
                    above.remove(&pair.input);
                }
                for (&tensor, address) in facts.trace.op(*op).writes.iter().zip(&placement.device) {
                    let end = address.0 + facts.bytes(tensor);
                    if end > budget {
                        above.insert(tensor, end - budget);
                    }
                }
                let workspace = placement.workspace.map_or(0, |address| address.0 + facts.workspace[op.index()]);
                let most = above.values().copied().max().unwrap_or(0).max(workspace.saturating_sub(budget));
                over[position] = most.max(over[position]);
                if let Instr::Run { op, .. } = instr {
                    position = op.index() + 1;
                }
            }
            Instr::SwapIn(tensor) => {
                let end = placement.device[0].0 + facts.bytes(*tensor);
                if end > budget {
                    above.insert(*tensor, end - budget);
                }
                over[position] = above.values().copied().max().unwrap_or(0).max(over[position]);
            }
            Instr::Release(tensor) => {
                above.remove(tensor);
            }
            Instr::SwapOut(_) => {}
        }
    }
    over
}
