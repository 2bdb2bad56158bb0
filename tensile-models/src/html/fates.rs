//! What became of tensors in a step.

use tensile_sched::{Bytes, Instr, Role, Synced, TensorId, Trace};

/// What a program does with one tensor in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// Its name, or that of the op that makes it.
    pub name: String,
    /// What it is: parameter, activation, ….
    pub role: &'static str,
    /// Its size.
    pub bytes: Bytes,
    /// Copies to the host.
    pub outs: usize,
    /// Copies to the device.
    pub ins: usize,
    /// Times that it is made again.
    pub reruns: usize,
}

impl Fate {
    /// In words.
    pub fn what(&self) -> &'static str {
        match (self.outs, self.ins, self.reruns) {
            (0, 0, 0) => "kept while needed",
            (0, 0, _) => "recomputed",
            (0, _, 0) => "copied in from the host",
            (_, 0, 0) => "copied to the host",
            (_, _, 0) => "swapped",
            _ => "swapped and recomputed",
        }
    }
}

/// The largest tensors of a step and what a program does with them: at most `most`, largest first. Linear in the program, n log n in tensors.
pub fn fates(trace: &Trace, synced: &Synced, most: usize) -> Vec<Fate> {
    let mut counts = vec![[0usize; 3]; trace.tensors().len()];
    let mut resident = vec![false; trace.tensors().len()];
    let mut makers: Vec<Option<&str>> = vec![None; trace.tensors().len()];
    for instr in synced.instrs() {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                for pair in takeovers {
                    resident[pair.input.index()] = false;
                }
                for tensor in &trace.op(*op).writes {
                    makers[tensor.index()].get_or_insert(&trace.op(*op).label);
                    // What is there already goes to scratch.
                    let was_there = std::mem::replace(&mut resident[tensor.index()], true);
                    counts[tensor.index()][2] += usize::from(matches!(instr, Instr::Rerun { .. }) && !was_there);
                }
            }
            Instr::SwapOut(tensor) => counts[tensor.index()][0] += 1,
            Instr::SwapIn(tensor) => {
                counts[tensor.index()][1] += 1;
                resident[tensor.index()] = true;
            }
            Instr::Release(tensor) => resident[tensor.index()] = false,
        }
    }
    let mut order: Vec<TensorId> = trace.tensor_ids().collect();
    order.sort_by_key(|id| std::cmp::Reverse(trace.tensor(*id).bytes));
    order.truncate(most);
    order
        .into_iter()
        .map(|id| {
            let tensor = trace.tensor(id);
            let [outs, ins, reruns] = counts[id.index()];
            let name = match makers[id.index()] {
                Some(maker) if tensor.name.is_empty() => maker.to_owned(),
                _ => tensor.name.clone(),
            };
            Fate { name, role: role(tensor.role), bytes: tensor.bytes, outs, ins, reruns }
        })
        .collect()
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Parameter => "parameter",
        Role::OptimizerState => "optimizer state",
        Role::Buffer => "buffer",
        Role::Input => "input",
        Role::Activation => "activation",
        Role::Gradient => "gradient",
        Role::Output => "output",
    }
}
