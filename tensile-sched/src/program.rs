//! What the device will do in one step: instructions, addresses, waits.
//!
//! A plan goes through three forms, each plain data:
//!
//! ```text
//! Program         instructions in order, and what is on the device between steps
//!    │ layout     gives every residency a byte address
//! Placed          program + addresses          ── check proves it right and within the limits
//!    │ sync       adds waits between lanes
//! Synced          placed + waits               ── verify proves that no two accesses race; simulate times it
//! ```
//!
//! # Meaning of a program
//!
//! Instructions take effect on memory in *program order*, whatever the lanes do in time:
//!
//! - [`Instr::SwapIn`] claims the tensor's device bytes; the tensor must not be on the device, and its host copy must
//!   be valid.
//! - [`Instr::Run`] and [`Instr::Rerun`] claim the device bytes of the op's writes and of its workspace. Reads and
//!   updates must be on the device, in the version that this access sees in the order of the trace: `Run` stands exactly once for every op, and the
//!   order of the `Run`s may differ from that of the trace as far as each op still meets the same values: what it reads has been written, and of each persistent tensor it accesses exactly
//!   those updates have run that stand before it in the trace. `Rerun` may stand anywhere after the `Run` of its op, if the op is replayable and
//!   every persistent tensor it reads has not been updated since that `Run`.
//!   A write whose tensor is on the device already (possible in a `Rerun` only) goes to *scratch*: bytes of its own that live during
//!   this instruction only. The workspace lives during the instruction only, too.
//! - A *takeover* `(input, output)`, one of the op's in-place pairs, gives `input`'s bytes to `output` at the same address. It
//!   releases `input`. It is not allowed for an output that goes to scratch.
//! - An update makes a new version of the tensor; it makes the tensor's host copy invalid.
//! - [`Instr::SwapOut`] copies to the host slot, which makes the host copy valid; the tensor stays on the device.
//! - [`Instr::Release`] gives the device bytes up; the host copy, if valid, stays valid.
//!
//! Host copies of inputs are valid from the start to the end of a step. At the end every output has a valid host copy
//! and every kept tensor is on the device; then all non-persistent tensors are forgotten, on the device and on the host.
//!
//! # The boundary
//!
//! Between steps exactly the persistent tensors of [`Program::boundary`] are on the device. A boundary tensor with `host_valid` has a valid host copy
//! too; every persistent tensor that is *not* in the boundary has one. A program starts there and ends there: residents at the same addresses, host
//! copies valid again where the boundary says so (a host copy that is valid beyond that is ignored by the next step).
//!
//! # Time
//!
//! `Run` and `Rerun` are issued on the compute lane, `SwapOut` on the out lane, `SwapIn` on the in lane; `Release` is no work. Each lane
//! starts its instructions in program order, each after the one before has ended, and after the instructions named in
//! its [`Wait`]s have ended. Iterations follow each other without a pause: a `SwapIn` near the start of a step may begin while the
//! step before still computes, if its waits allow it. At most two iterations are in flight: an instruction of iteration
//! i starts after all of iteration i − 2 has ended.

use crate::id::{Bytes, InstrId, OpId, TensorId};
use crate::trace::InPlace;

/// Queue of work that runs in order, beside the other lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Copies from the device to the host.
    Out,
    /// Copies from the host to the device.
    In,
}

impl Lane {
    /// All lanes, in the order of [`Lane::index`].
    pub const ALL: [Lane; 3] = [Lane::Compute, Lane::Out, Lane::In];

    /// 0, 1 or 2.
    pub fn index(self) -> usize {
        match self {
            Lane::Compute => 0,
            Lane::Out => 1,
            Lane::In => 2,
        }
    }
}

/// One instruction. The [module](self) says what each does to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instr {
    /// Execute an op for the first time in the step.
    Run {
        /// The op.
        op: OpId,
        /// In-place pairs of the op that are used.
        takeovers: Vec<InPlace>,
    },
    /// Execute an op again, to regenerate outputs that were released (recomputation).
    Rerun {
        /// The op.
        op: OpId,
        /// In-place pairs of the op that are used.
        takeovers: Vec<InPlace>,
    },
    /// Start copying a tensor to its host slot.
    SwapOut(TensorId),
    /// Claim a tensor's device bytes and start copying it back from its host slot.
    SwapIn(TensorId),
    /// Give a tensor's device bytes up.
    Release(TensorId),
}

impl Instr {
    /// The lane it is issued on; none for a release.
    pub fn lane(&self) -> Option<Lane> {
        match self {
            Instr::Run { .. } | Instr::Rerun { .. } => Some(Lane::Compute),
            Instr::SwapOut(_) => Some(Lane::Out),
            Instr::SwapIn(_) => Some(Lane::In),
            Instr::Release(_) => None,
        }
    }
}

/// A persistent tensor that is on the device between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoundaryTensor {
    /// The tensor.
    pub tensor: TensorId,
    /// Whether its host copy is valid between steps as well.
    pub host_valid: bool,
}

/// Instructions of one step, and what is on the device before and after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Persistent tensors on the device between steps, by ascending id.
    pub boundary: Vec<BoundaryTensor>,
    /// In program order.
    pub instrs: Vec<Instr>,
}

impl Program {
    /// The ops in the order of their `Run`s.
    pub fn order(&self) -> Vec<OpId> {
        let runs = self.instrs.iter().filter_map(|instr| match instr {
            Instr::Run { op, .. } => Some(*op),
            _ => None,
        });
        runs.collect()
    }
}

/// Addresses of what one instruction claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Device addresses. `Run`, `Rerun`: one for each of the op's writes, in their order (of scratch where the tensor is on the device
    /// already; the input's address where the output takes over). `SwapIn`: one. Others: none.
    pub device: Vec<Bytes>,
    /// Device address of the workspace; present exactly if the op has workspace.
    pub workspace: Option<Bytes>,
    /// Host address of the slot; present exactly for `SwapOut` and `SwapIn`. Of inputs and outputs: the slot of even iterations.
    pub host: Option<Bytes>,
}

/// Where a persistent tensor is between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Home {
    /// The tensor.
    pub tensor: TensorId,
    /// Device address; present exactly for tensors of the boundary.
    pub device: Option<Bytes>,
    /// Host address of its slot; present exactly for tensors outside the boundary and those with `host_valid`.
    pub host: Option<Bytes>,
}

/// Two host slots of an input or output: even iterations use the first, odd ones the second, so that the data source can fill one
/// (or the caller read one) while the device uses the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slots {
    /// The input or output.
    pub tensor: TensorId,
    /// Host addresses for even and odd iterations.
    pub host: [Bytes; 2],
}

/// A byte address for everything a program claims.
///
/// Device and host addresses are offsets into one arena each. All are multiples of the alignment in [`Limits`](crate::Limits); a
/// tensor occupies its size rounded up to the alignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// One for each instruction.
    pub placements: Vec<Placement>,
    /// One for each persistent tensor of the trace, by ascending id. Their bytes on either side are theirs as long as the tensor is
    /// there between steps: a host slot listed here is the tensor's own during the whole step, and a swap-out or swap-in of this tensor uses it.
    pub homes: Vec<Home>,
    /// One for each input and each output of the trace, by ascending id; theirs during the whole step.
    pub slots: Vec<Slots>,
    /// Size of the device arena: the highest end of anything on it.
    pub arena: Bytes,
    /// Size of the host arena.
    pub host_arena: Bytes,
}

/// A program whose residencies have addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The instructions.
    pub program: Program,
    /// Their addresses.
    pub layout: Layout,
}

/// "Start only after that instruction has ended."
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// Waited for; on another lane.
    pub on: InstrId,
    /// Whether it is that instruction of the iteration before. Then `on` may stand later in the program than the waiting instruction;
    /// in the first iteration after a drained boundary such a wait is fulfilled from the start.
    pub previous_iteration: bool,
}

/// A placed program with waits: what an executor runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Instructions and addresses.
    pub placed: Placed,
    /// For each instruction, what it waits for, sorted.
    pub waits: Vec<Vec<Wait>>,
}

impl Synced {
    /// The instructions.
    pub fn instrs(&self) -> &[Instr] {
        &self.placed.program.instrs
    }

    /// The addresses.
    pub fn layout(&self) -> &Layout {
        &self.placed.layout
    }
}
