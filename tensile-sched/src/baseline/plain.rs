//! The program both eviction-free policies share: every tensor comes once and goes once.

use crate::id::TensorId;
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::program::{BoundaryTensor, Instr, Program};
use crate::trace::{Role, Trace};

/// When device bytes are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Free {
    /// After the last access, with takeovers.
    WhenDead,
    /// When the step ends, without takeovers.
    AtTheEnd,
}

/// A program without evictions. All persistent tensors are in the boundary, or those of the given boundary; others then come before
/// their first access and go after their last.
pub(super) fn plain_program(trace: &Trace, limits: &Limits, live: &Liveness, free: Free) -> Program {
    let homes = limits.boundary.as_deref();
    let mut on_device = vec![false; trace.tensors().len()];
    let mut boundary = Vec::new();
    // Persistent tensors whose host copy must be valid when the step ends.
    let mut needs_host = vec![false; trace.tensors().len()];
    let persistent = trace.tensor_ids().filter(|&tensor| trace.tensor(tensor).role.is_persistent());
    for (index, tensor) in persistent.enumerate() {
        let home = homes.map(|homes| &homes[index]);
        let resident = home.is_none_or(|home| home.device.is_some());
        needs_host[tensor.index()] = home.is_some_and(|home| home.host.is_some());
        on_device[tensor.index()] = resident;
        if resident {
            boundary.push(BoundaryTensor { tensor, host_valid: needs_host[tensor.index()] });
        }
    }
    let in_boundary = on_device.clone();
    let mut instrs = Vec::new();
    let mut at_the_end = Vec::new();
    for op in trace.op_ids() {
        let of = trace.op(op);
        for &tensor in of.reads.iter().chain(&of.updates) {
            if !on_device[tensor.index()] {
                on_device[tensor.index()] = true;
                instrs.push(Instr::SwapIn(tensor));
            }
        }
        let takeovers = match free {
            Free::WhenDead => live.takeovers(trace, op),
            Free::AtTheEnd => Vec::new(),
        };
        let taken: Vec<TensorId> = takeovers.iter().map(|pair| pair.input).collect();
        instrs.push(Instr::Run { op, takeovers });
        for &tensor in &of.writes {
            on_device[tensor.index()] = true;
            if trace.tensor(tensor).role == Role::Output {
                instrs.push(Instr::SwapOut(tensor));
            }
        }
        for &tensor in &of.updates {
            if needs_host[tensor.index()] && live.last_update(tensor) == Some(op) {
                instrs.push(Instr::SwapOut(tensor));
            }
        }
        for &tensor in of.reads.iter().chain(&of.writes).chain(&of.updates) {
            let stays = if trace.tensor(tensor).role.is_persistent() {
                in_boundary[tensor.index()]
            } else {
                trace.tensor(tensor).keep
            };
            if stays || taken.contains(&tensor) || live.last_use(tensor) != Some(op) {
                continue;
            }
            match free {
                Free::WhenDead => instrs.push(Instr::Release(tensor)),
                Free::AtTheEnd => at_the_end.push(Instr::Release(tensor)),
            }
        }
    }
    for tensor in trace.tensor_ids() {
        if trace.tensor(tensor).keep && !on_device[tensor.index()] {
            instrs.push(Instr::SwapIn(tensor));
        }
    }
    instrs.append(&mut at_the_end);
    Program { boundary, instrs }
}
