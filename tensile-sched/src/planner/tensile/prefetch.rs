//! Moves swap-ins ahead of their use, into room that is free.
//!
//! ```text
//! instruction    0   1   2   3   4   5 (uses t)
//! free bytes     0   9   7   7   8
//! before                             ↑t             the copy of t (4 bytes) begins when op 5 wants it
//! after              ↑t                             … and here at the earliest; later if a later start hides it as well
//! ```

use crate::id::TensorId;
use crate::planner::facts::Facts;
use crate::program::{Instr, Program};

/// The same program with its swap-ins moved ahead as far as is worth it, never above `caps` (by position, see [`walk`](crate::planner::walk)). `margin`
/// is how much longer than estimated a copy is taken to last.
///
/// O(instructions × distance moved).
pub(super) fn prefetch(facts: &Facts<'_>, program: &Program, caps: &[u64], margin: f64) -> Program {
    let instrs = &program.instrs;
    let mut free = free_bytes(facts, program, caps);
    let started = start_times(facts, instrs);
    let moves = wishes(facts, instrs, &started, margin);
    // Where each instruction goes: before (index, 0) or at (index, 1) an old place.
    let mut keys: Vec<(usize, u8)> = (0..instrs.len()).map(|index| (index, 1)).collect();
    let mut previous = 0;
    for wish in &moves {
        let bytes = facts.bytes(wish.tensor);
        let mut at = wish.index;
        while at > wish.earliest.max(previous) && started[at] > wish.start && free[at - 1] >= bytes {
            at -= 1;
            free[at] -= bytes;
        }
        if at < wish.index {
            keys[wish.index] = (at, 0);
        }
        // Copies queue in program order, so none may overtake one that is wanted earlier.
        previous = at;
    }
    let mut order: Vec<usize> = (0..instrs.len()).collect();
    order.sort_by_key(|&index| keys[index]);
    let instrs = order.into_iter().map(|index| instrs[index].clone()).collect();
    Program { boundary: program.boundary.clone(), instrs }
}

/// Bytes below the cap while each instruction takes effect: claims count, what it gives up still counts as well.
pub(super) fn free_bytes(facts: &Facts<'_>, program: &Program, caps: &[u64]) -> Vec<u64> {
    let mut resident = vec![false; facts.trace.tensors().len()];
    let mut used = 0;
    for entry in &program.boundary {
        resident[entry.tensor.index()] = true;
        used += facts.bytes(entry.tensor);
    }
    let mut position = 0;
    let mut free = Vec::with_capacity(program.instrs.len());
    for instr in &program.instrs {
        let cap = caps[position];
        let most = match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                for pair in takeovers {
                    resident[pair.input.index()] = false;
                    used -= facts.bytes(pair.input);
                }
                let mut scratch = facts.workspace[op.index()];
                for &tensor in &facts.trace.op(*op).writes {
                    if resident[tensor.index()] {
                        scratch += facts.bytes(tensor);
                    } else {
                        resident[tensor.index()] = true;
                        used += facts.bytes(tensor);
                    }
                }
                if let Instr::Run { op, .. } = instr {
                    position = op.index() + 1;
                }
                used + scratch
            }
            Instr::SwapIn(tensor) => {
                resident[tensor.index()] = true;
                used += facts.bytes(*tensor);
                used
            }
            Instr::Release(tensor) => {
                resident[tensor.index()] = false;
                used -= facts.bytes(*tensor);
                used + facts.bytes(*tensor)
            }
            Instr::SwapOut(_) => used,
        };
        free.push(cap.saturating_sub(most));
    }
    free
}

/// When the compute lane reaches each instruction, in ns, if it never waits.
fn start_times(facts: &Facts<'_>, instrs: &[Instr]) -> Vec<u64> {
    let mut now = 0;
    let mut times = Vec::with_capacity(instrs.len());
    for instr in instrs {
        times.push(now);
        if let Instr::Run { op, .. } | Instr::Rerun { op, .. } = instr {
            now += facts.trace.op(*op).latency.0;
        }
    }
    times
}

struct Wish {
    tensor: TensorId,
    index: usize,
    /// The first place it may go to: behind whatever touched the tensor before.
    earliest: usize,
    /// When its copy should begin.
    start: u64,
}

/// All swap-ins in order, with the latest start that hides each behind kernels while the lane serves them one by one.
fn wishes(facts: &Facts<'_>, instrs: &[Instr], started: &[u64], margin: f64) -> Vec<Wish> {
    let mut touched = vec![0; facts.trace.tensors().len()];
    let mut wishes = Vec::new();
    for (index, instr) in instrs.iter().enumerate() {
        match instr {
            Instr::Run { op, takeovers: _ } | Instr::Rerun { op, takeovers: _ } => {
                let of = facts.trace.op(*op);
                for tensor in of.reads.iter().chain(&of.writes).chain(&of.updates) {
                    touched[tensor.index()] = index + 1;
                }
            }
            Instr::SwapIn(tensor) => {
                wishes.push(Wish { tensor: *tensor, index, earliest: touched[tensor.index()], start: started[index] });
                touched[tensor.index()] = index + 1;
            }
            Instr::SwapOut(tensor) | Instr::Release(tensor) => touched[tensor.index()] = index + 1,
        }
    }
    let mut next = u64::MAX;
    for wish in wishes.iter_mut().rev() {
        let time = (facts.in_time[wish.tensor.index()] as f64 * margin) as u64;
        wish.start = wish.start.min(next).saturating_sub(time);
        next = wish.start;
    }
    wishes
}
