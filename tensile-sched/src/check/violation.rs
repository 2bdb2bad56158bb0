//! What `check` can find wrong, with the names and figures of each case.

use std::fmt;

use crate::id::{Bytes, InstrId, OpId, TensorId};
use crate::limits::Mode;

/// A tensor and its name, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// The tensor.
    pub id: TensorId,
    /// Its name in the trace.
    pub name: String,
}

impl fmt::Display for NamedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.id, self.name)
    }
}

/// An op and its label, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedOp {
    /// The op.
    pub id: OpId,
    /// Its label in the trace.
    pub label: String,
}

impl fmt::Display for NamedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.id, self.label)
    }
}

/// When something happens: at an instruction, or between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// Between steps, by the boundary.
    Boundary,
    /// At this instruction.
    Instr(InstrId),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Boundary => f.write_str("boundary"),
            At::Instr(instr) => instr.fmt(f),
        }
    }
}

/// What occupies a range of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A tensor on the device.
    Tensor(NamedTensor),
    /// Scratch for a regenerated output that is on the device already.
    Scratch(NamedTensor),
    /// Workspace of an op.
    Workspace(NamedOp),
    /// A host slot or host copy of a tensor.
    Host(NamedTensor),
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Block::Tensor(tensor) => write!(f, "tensor {tensor}"),
            Block::Scratch(tensor) => write!(f, "scratch for {tensor}"),
            Block::Workspace(op) => write!(f, "workspace of {op}"),
            Block::Host(tensor) => write!(f, "host copy of {tensor}"),
        }
    }
}

/// A half-open range of byte addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: Bytes,
    /// First address behind it; [`Bytes::MAX`] if that is beyond 64 bits.
    pub end: Bytes,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start.0, self.end.0)
    }
}

/// A rule of [`program`](crate::program) or of [`Limits`](crate::Limits) that a placed program breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The limits' alignment is not a power of two.
    #[error("the alignment of {} in the limits is not a power of two", alignment.0)]
    Alignment {
        /// The alignment.
        alignment: Bytes,
    },
    /// The number of placements is not the number of instructions.
    #[error("{placements} placements for {instrs} instructions")]
    PlacementCount {
        /// Number of instructions.
        instrs: usize,
        /// Number of placements.
        placements: usize,
    },
    /// The boundary lists something it must not.
    #[error("boundary entry {index} ({tensor}): {reason}")]
    Boundary {
        /// Place in `Program::boundary`.
        index: usize,
        /// The tensor listed.
        tensor: TensorId,
        /// What is wrong.
        reason: &'static str,
    },
    /// A persistent tensor without a home, or a home in the wrong place.
    #[error("home {index}: expected one of {expected:?}, found one of {found:?}")]
    HomeOrder {
        /// Place in `Layout::homes`.
        index: usize,
        /// The persistent tensor due there, if there is one.
        expected: Option<TensorId>,
        /// The tensor found there, if there is one.
        found: Option<TensorId>,
    },
    /// A home that has an address it must not have, or lacks one it must have.
    #[error("home of {tensor}: {reason}")]
    Home {
        /// The tensor.
        tensor: NamedTensor,
        /// What is wrong.
        reason: &'static str,
    },
    /// An input or output without slots, or slots in the wrong place.
    #[error("slots {index}: expected those of {expected:?}, found those of {found:?}")]
    SlotOrder {
        /// Place in `Layout::slots`.
        index: usize,
        /// The input or output due there, if there is one.
        expected: Option<TensorId>,
        /// The tensor found there, if there is one.
        found: Option<TensorId>,
    },
    /// The homes are not those that the limits prescribe.
    #[error("home {index} differs from the boundary given in the limits")]
    GivenBoundary {
        /// First place at which the lists differ.
        index: usize,
    },
    /// An op beyond the trace.
    #[error("{instr}: there is no {op}; the trace has {n_ops} ops")]
    UnknownOp {
        /// The instruction.
        instr: InstrId,
        /// The op it names.
        op: OpId,
        /// Number of ops.
        n_ops: usize,
    },
    /// A tensor beyond the trace.
    #[error("{instr}: there is no tensor {tensor}; the trace has {n_tensors} tensors")]
    UnknownTensor {
        /// The instruction.
        instr: InstrId,
        /// The tensor it names.
        tensor: TensorId,
        /// Number of tensors.
        n_tensors: usize,
    },
    /// A placement with more or fewer addresses than its instruction needs.
    #[error("{instr}: {found} {what} in its placement where {expected} belong")]
    PlacementShape {
        /// The instruction.
        instr: InstrId,
        /// Kind of address.
        what: &'static str,
        /// How many belong there.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A second `Run` of an op.
    #[error("{instr}: runs {op}, which has run at {ran} already")]
    RunTwice {
        /// The instruction.
        instr: InstrId,
        /// The op it runs.
        op: NamedOp,
        /// Its first `Run`.
        ran: InstrId,
    },
    /// A `Run` that would meet another version of a persistent tensor than in the order of the trace.
    #[error("{instr}: runs {op}, which accesses {tensor} after {expected} of its updates, but {found} have run")]
    Version {
        /// The instruction.
        instr: InstrId,
        /// The op it runs.
        op: NamedOp,
        /// The tensor.
        tensor: NamedTensor,
        /// Updates of the tensor that stand before the op in the trace.
        expected: usize,
        /// Updates that have run.
        found: usize,
    },
    /// An op that never runs.
    #[error("{op} never runs")]
    NeverRun {
        /// The op.
        op: NamedOp,
    },
    /// A `Rerun` before the `Run`.
    #[error("{instr}: reruns {op}, which has not run yet")]
    RerunBeforeRun {
        /// The instruction.
        instr: InstrId,
        /// The op.
        op: NamedOp,
    },
    /// A `Rerun` of an op that must not be run again.
    #[error("{instr}: reruns {op}, which is not replayable")]
    NotReplayable {
        /// The instruction.
        instr: InstrId,
        /// The op.
        op: NamedOp,
    },
    /// A `Rerun` that would read a newer version of a persistent tensor.
    #[error("{instr}: reruns {op}, but {tensor}, which it reads, was updated at {updated} after the op ran at {ran}")]
    InputUpdated {
        /// The instruction.
        instr: InstrId,
        /// The op.
        op: NamedOp,
        /// The persistent tensor.
        tensor: NamedTensor,
        /// Where it was updated last.
        updated: InstrId,
        /// Where the op ran.
        ran: InstrId,
    },
    /// An access to a tensor that is not on the device.
    #[error("{instr}: needs {tensor} on the device, where it is not")]
    NotResident {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: NamedTensor,
    },
    /// A claim for a tensor that is on the device already.
    #[error("{instr}: brings {tensor} to the device, where it is already, at {}", address.0)]
    AlreadyResident {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: NamedTensor,
        /// Where it is.
        address: Bytes,
    },
    /// A takeover that is not allowed.
    #[error("{instr}: takeover of {input} by {output} in {op}: {reason}")]
    Takeover {
        /// The instruction.
        instr: InstrId,
        /// The op.
        op: NamedOp,
        /// The input.
        input: TensorId,
        /// The output.
        output: TensorId,
        /// What is wrong.
        reason: &'static str,
    },
    /// A `SwapIn` without a valid host copy.
    #[error("{instr}: swaps {tensor} in, which has no valid host copy")]
    NoHostCopy {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: NamedTensor,
    },
    /// A `SwapIn` of a host copy whose bytes went to another tensor.
    #[error("{instr}: swaps {tensor} in, whose host copy was overwritten at {by}")]
    HostOverwritten {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: NamedTensor,
        /// The swap-out that overwrote it.
        by: InstrId,
    },
    /// A copy that uses another host address than the tensor's slot or copy.
    #[error("{instr}: uses host address {} for {tensor}, whose slot is at {}", found.0, expected.0)]
    HostAddress {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: NamedTensor,
        /// Where the slot or the valid copy is.
        expected: Bytes,
        /// The address used.
        found: Bytes,
    },
    /// Two things that live at the same time share bytes.
    #[error("{at}: {block} at {range} overlaps {other} at {other_range}")]
    Overlap {
        /// When the second is claimed.
        at: At,
        /// What is claimed.
        block: Block,
        /// Its bytes.
        range: Range,
        /// What is there.
        other: Block,
        /// The bytes of that.
        other_range: Range,
    },
    /// An address that is not a multiple of the alignment.
    #[error("{at}: {block} at address {} is not aligned to {}", address.0, alignment.0)]
    Misaligned {
        /// When it is claimed.
        at: At,
        /// What is claimed.
        block: Block,
        /// Its address.
        address: Bytes,
        /// The alignment of the limits.
        alignment: Bytes,
    },
    /// Something that ends behind its arena.
    #[error("{at}: {block} at {range} ends behind the arena of {} bytes", arena.0)]
    BeyondArena {
        /// When it is claimed.
        at: At,
        /// What is claimed.
        block: Block,
        /// Its bytes.
        range: Range,
        /// Size of the arena.
        arena: Bytes,
    },
    /// A block larger than the device allows.
    #[error("{at}: {block} has {} bytes; the device's largest block has {}", bytes.0, max_block.0)]
    BlockTooLarge {
        /// When it is claimed.
        at: At,
        /// What is claimed.
        block: Block,
        /// Its size.
        bytes: Bytes,
        /// The most allowed.
        max_block: Bytes,
    },
    /// Something that lies in two blocks of the device.
    #[error("{at}: {block} at {range} crosses the block border at {}; the device's memory comes in blocks of {} bytes", border.0, max_block.0)]
    CrossesBlock {
        /// When it is claimed.
        at: At,
        /// What is claimed.
        block: Block,
        /// Its bytes.
        range: Range,
        /// The first border it crosses.
        border: Bytes,
        /// The size of a block of the device.
        max_block: Bytes,
    },
    /// The device arena is above the budget.
    #[error("the device arena of {arena} ({} bytes) is above the budget of {budget} ({} bytes)", arena.0, budget.0)]
    OverDevice {
        /// The arena.
        arena: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// The host arena is above the host budget.
    #[error("the host arena of {arena} ({} bytes) is above the host budget of {budget} ({} bytes)", arena.0, budget.0)]
    OverHost {
        /// The arena.
        arena: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// An instruction that the mode rules out.
    #[error("{instr}: {what} in mode {mode:?}")]
    Mode {
        /// The instruction.
        instr: InstrId,
        /// What it does.
        what: &'static str,
        /// The mode of the limits.
        mode: Mode,
    },
    /// A persistent tensor outside the boundary in mode recompute.
    #[error("{tensor} is not in the boundary, where mode Recompute keeps every persistent tensor")]
    ModeBoundary {
        /// The tensor.
        tensor: NamedTensor,
    },
    /// A boundary or kept tensor that is not on the device when the step ends.
    #[error("{tensor} is not on the device when the step ends")]
    EndNotResident {
        /// The tensor.
        tensor: NamedTensor,
    },
    /// A boundary tensor that is somewhere else than at its home when the step ends.
    #[error("{tensor} is at {} when the step ends; its home is at {}", found.0, home.0)]
    EndElsewhere {
        /// The tensor.
        tensor: NamedTensor,
        /// Where it must be.
        home: Bytes,
        /// Where it is.
        found: Bytes,
    },
    /// A persistent tensor on the device when the step ends, but not in the boundary.
    #[error("{tensor} is on the device when the step ends, but not in the boundary")]
    EndResident {
        /// The tensor.
        tensor: NamedTensor,
    },
    /// A host copy that must be valid when the step ends.
    #[error("{tensor} has no valid host copy when the step ends")]
    EndNoHostCopy {
        /// The tensor.
        tensor: NamedTensor,
    },
}
