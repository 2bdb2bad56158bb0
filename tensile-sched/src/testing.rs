//! Short forms for hand-made traces and programs in unit tests.

use crate::id::{Bytes, Nanos, OpId, TensorId};
use crate::limits::Limits;
use crate::program::{BoundaryTensor, Instr, Program};
use crate::trace::{InPlace, Op, Role, Tensor, Trace};

/// A trace of tensors (bytes, role) and ops.
pub(crate) fn trace(tensors: &[(u64, Role)], ops: Vec<Op>) -> Trace {
    let tensors = tensors
        .iter()
        .enumerate()
        .map(|(index, &(bytes, role))| Tensor { name: format!("t{index}"), bytes: Bytes(bytes), role, keep: false })
        .collect();
    Trace::new(tensors, ops).expect("the test's trace is valid")
}

fn ids(indices: &[u32]) -> Vec<TensorId> {
    indices.iter().map(|&index| TensorId(index)).collect()
}

/// A replayable op; `with_…` changes it.
pub(crate) fn op(latency: u64, reads: &[u32], writes: &[u32]) -> Op {
    Op {
        label: String::new(),
        class: String::new(),
        reads: ids(reads),
        writes: ids(writes),
        updates: vec![],
        workspace: Bytes::ZERO,
        latency: Nanos(latency),
        replayable: true,
        in_place: vec![],
    }
}

impl Op {
    pub(crate) fn with_updates(mut self, updates: &[u32]) -> Self {
        self.updates = ids(updates);
        self.replayable = false;
        self
    }

    pub(crate) fn with_workspace(mut self, bytes: u64) -> Self {
        self.workspace = Bytes(bytes);
        self
    }

    pub(crate) fn with_in_place(mut self, input: u32, output: u32) -> Self {
        self.in_place.push(pair(input, output));
        self
    }
}

pub(crate) fn pair(input: u32, output: u32) -> InPlace {
    InPlace { input: TensorId(input), output: TensorId(output) }
}

pub(crate) fn run(op: u32) -> Instr {
    Instr::Run { op: OpId(op), takeovers: vec![] }
}

pub(crate) fn run_in_place(op: u32, input: u32, output: u32) -> Instr {
    Instr::Run { op: OpId(op), takeovers: vec![pair(input, output)] }
}

pub(crate) fn rerun(op: u32) -> Instr {
    Instr::Rerun { op: OpId(op), takeovers: vec![] }
}

pub(crate) fn swap_out(tensor: u32) -> Instr {
    Instr::SwapOut(TensorId(tensor))
}

pub(crate) fn swap_in(tensor: u32) -> Instr {
    Instr::SwapIn(TensorId(tensor))
}

pub(crate) fn release(tensor: u32) -> Instr {
    Instr::Release(TensorId(tensor))
}

/// A program whose boundary is (tensor, host copy valid).
pub(crate) fn program(boundary: &[(u32, bool)], instrs: Vec<Instr>) -> Program {
    let boundary =
        boundary.iter().map(|&(tensor, host_valid)| BoundaryTensor { tensor: TensorId(tensor), host_valid }).collect();
    Program { boundary, instrs }
}

/// No limits, and alignment 1 so that sizes add up at sight.
pub(crate) fn bytewise() -> Limits {
    Limits { alignment: Bytes(1), ..Limits::unlimited() }
}
