//! Times a program without laying it out.
//!
//! A kernel waits for the copies that bring what it reads, a swap-out for the kernel that made the value, a swap-in for the swap-out that saved it, an update for the
//! swap-out of the version before. For bytes to come free, a swap-in waits as if memory had no addresses: for the kernel before the first place, going back from its own, from which on
//! there is room for it. So planning passes can compare programs at the cost of a simulation; a layout may turn out slower, or, where `spread` finds better bytes, faster.

use super::prefetch::free_bytes;
use crate::id::InstrId;
use crate::planner::facts::Facts;
use crate::program::{Instr, Layout, Placed, Program, Synced, Wait};
use crate::simulate::{Simulation, simulate};
use crate::trace::Trace;

/// Places looked back for room.
const FARTHEST: usize = 400;

/// The program, to be had back, and its simulation without addresses.
///
/// Linear in the accesses of the program, for each iteration that the simulation plays.
pub(super) fn ideal(facts: &Facts<'_>, program: Program) -> (Program, Simulation) {
    let mut waits = data_waits(facts.trace, &program);
    let caps = vec![facts.budget().0; facts.n_ops() + 1];
    let free = free_bytes(facts, &program, &caps);
    let mut kernel = None;
    // The last kernel before each instruction.
    let before: Vec<Option<InstrId>> = program
        .instrs
        .iter()
        .enumerate()
        .map(|(index, instr)| {
            let last = kernel;
            if matches!(instr, Instr::Run { .. } | Instr::Rerun { .. }) {
                kernel = Some(InstrId::from_index(index));
            }
            last
        })
        .collect();
    for (index, instr) in program.instrs.iter().enumerate() {
        let Instr::SwapIn(tensor) = instr else { continue };
        let bytes = facts.bytes(*tensor);
        let room = free[..index].iter().rev().take(FARTHEST).take_while(|&&free| free >= bytes).count();
        if room < FARTHEST.min(index)
            && let Some(on) = before[index - room]
        {
            waits[index].push(Wait { on, previous_iteration: false });
        }
    }
    let synced = Synced { placed: Placed { program, layout: Layout::default() }, waits };
    let simulation = simulate(facts.trace, &synced, &facts.limits.link);
    (synced.placed.program, simulation)
}

/// The last instructions that touched a tensor in a way that others wait for; those of the step before count on.
#[derive(Clone, Copy, Default)]
struct Last {
    /// Brought the bytes that are on the device, if no kernel has written them since.
    swap_in: Option<(InstrId, bool)>,
    /// Kernel that made the current version.
    kernel: Option<(InstrId, bool)>,
    /// Made the host copy.
    swap_out: Option<(InstrId, bool)>,
}

fn data_waits(trace: &Trace, program: &Program) -> Vec<Vec<Wait>> {
    let mut last = vec![Last::default(); trace.tensors().len()];
    follow(trace, program, &mut last, |_, _| {});
    for last in &mut last {
        for entry in [&mut last.swap_in, &mut last.kernel, &mut last.swap_out].into_iter().flatten() {
            entry.1 = true;
        }
    }
    let mut waits = vec![Vec::new(); program.instrs.len()];
    follow(trace, program, &mut last, |instr, (on, previous_iteration)| {
        let wait = Wait { on, previous_iteration };
        let list: &mut Vec<Wait> = &mut waits[instr];
        if !list.contains(&wait) {
            list.push(wait);
        }
    });
    waits
}

fn follow(trace: &Trace, program: &Program, last: &mut [Last], mut wait: impl FnMut(usize, (InstrId, bool))) {
    for (index, instr) in program.instrs.iter().enumerate() {
        let id = InstrId::from_index(index);
        match instr {
            Instr::Run { op, .. } | Instr::Rerun { op, .. } => {
                let op = trace.op(*op);
                for tensor in op.reads.iter().chain(&op.updates) {
                    if let Some(swap_in) = last[tensor.index()].swap_in {
                        wait(index, swap_in);
                    }
                }
                for tensor in &op.updates {
                    if let Some(swap_out) = last[tensor.index()].swap_out {
                        wait(index, swap_out);
                    }
                }
                for tensor in op.updates.iter().chain(&op.writes) {
                    last[tensor.index()] = Last { swap_in: None, kernel: Some((id, false)), swap_out: None };
                }
            }
            Instr::SwapOut(tensor) => {
                if let Some(kernel) = last[tensor.index()].kernel {
                    wait(index, kernel);
                }
                last[tensor.index()].swap_out = Some((id, false));
            }
            Instr::SwapIn(tensor) => {
                if let Some(swap_out) = last[tensor.index()].swap_out {
                    wait(index, swap_out);
                }
                last[tensor.index()].swap_in = Some((id, false));
            }
            Instr::Release(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Nanos, TensorId};
    use crate::limits::{Limits, Link};
    use crate::testing::{op, run, trace};
    use crate::trace::Role;

    /// ```text
    /// compute  [op0: makes a][ op1 ]..........[op2: reads a]
    /// out                    [ a ]
    /// in                           [  a  ]
    /// ```
    #[test]
    fn a_value_that_goes_and_comes_back_is_waited_for() {
        let trace = trace(
            &[(1000, Role::Activation), (256, Role::Activation)],
            vec![op(5, &[], &[0]), op(7, &[], &[1]), op(3, &[0, 1], &[])],
        );
        let a = TensorId(0);
        let instrs = vec![
            run(0),
            Instr::SwapOut(a),
            Instr::Release(a),
            run(1),
            Instr::SwapIn(a),
            run(2),
            Instr::Release(a),
            Instr::Release(TensorId(1)),
        ];
        let link = Link { out_bytes_per_s: 1e11, in_bytes_per_s: 1e11, latency: Nanos(0), ..Limits::unlimited().link };
        let limits = Limits { link, ..Limits::unlimited() };
        let (_, simulation) = ideal(&Facts::new(&trace, &limits), Program { boundary: vec![], instrs });
        // 5 + 10 out + 10 in + 3.
        assert_eq!(simulation.step_time, Nanos(28));
        assert_eq!(simulation.stalls.len(), 1);
    }
}
