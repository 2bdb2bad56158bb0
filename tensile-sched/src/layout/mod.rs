//! Gives every residency of a program a byte address, on the device and on the host.
//!
//! ```text
//! program ── blocks ──► when bytes are taken, and how many    (one block = one address)
//!                          │
//!                        pack ──► an address for each block    (two blocks that live at once never overlap)
//!                          │
//!                        layout ──► addresses for each instruction, homes, slots, arena sizes
//! ```
//!
//! A block is what must keep one address: a tensor from its claim to its release, a chain of takeovers, a scratch or workspace for its one
//! instruction, and, for a tensor of the boundary, the piece at the end of the step together with the piece at the start of the next:
//!
//! ```text
//! instruction   0   1   2   3   4   5 | 0   1   2 …
//! boundary p  ──────┐           ┌───────────┐        one block: two pieces, one address
//! activation a      └───────────┘                    may use p's bytes in between
//! ```

mod alive;
mod blocks;
mod exact;
mod pack;
mod skyline;
mod spread;

use crate::borders::Borders;
use crate::id::{Bytes, InstrId, TensorId};
use crate::limits::Limits;
use crate::program::{Home, Layout, Placed, Placement, Program, Slots};
use crate::trace::Trace;
use blocks::Residencies;
use pack::{Effort, Packed, pack};
pub use spread::spread;

/// Why a program has no layout: it is malformed, it needs too large a block, or given addresses collide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// An instruction names a tensor or op that the trace lacks.
    #[error("instruction {instr} names a tensor or op beyond the trace")]
    Unknown {
        /// The instruction.
        instr: InstrId,
    },
    /// A release, swap-out, access or takeover of a tensor that is not on the device.
    #[error("instruction {instr} needs tensor {tensor} on the device, but it is not there")]
    NotResident {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: TensorId,
    },
    /// A swap-in of, or a takeover by, a tensor that is on the device already.
    #[error("instruction {instr} claims tensor {tensor}, which is on the device already")]
    AlreadyResident {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: TensorId,
    },
    /// A swap-in of a tensor that has no valid host copy.
    #[error("instruction {instr} swaps in tensor {tensor}, which has no valid host copy")]
    NoHostCopy {
        /// The instruction.
        instr: InstrId,
        /// The tensor.
        tensor: TensorId,
    },
    /// A takeover that is not one of the op's in-place pairs, or that stands twice.
    #[error("instruction {instr} lets {output} take over {input}, which is no free in-place pair of its op")]
    Takeover {
        /// The instruction.
        instr: InstrId,
        /// Whose bytes are taken.
        input: TensorId,
        /// What takes them.
        output: TensorId,
    },
    /// A boundary that is not a list of persistent tensors of the trace by ascending id.
    #[error("the boundary entry for tensor {tensor} is not a persistent tensor in ascending order")]
    BoundaryEntry {
        /// The tensor.
        tensor: TensorId,
    },
    /// A tensor of the boundary that the program does not bring back, or a persistent one that it leaves on the device outside the boundary.
    #[error("persistent tensor {tensor} is {} the device when the step ends, unlike the boundary", if *.resident { "on" } else { "not on" })]
    BoundaryEnd {
        /// The tensor.
        tensor: TensorId,
        /// Whether it is on the device at the end.
        resident: bool,
    },
    /// A tensor of the boundary comes back while a takeover chain still holds its old bytes, so it cannot come back to its address.
    #[error("tensor {tensor} comes back while its boundary address is still held by tensors that took its bytes over")]
    BoundaryHeld {
        /// The tensor.
        tensor: TensorId,
    },
    /// The boundary given by the limits is not that of the program.
    #[error("the given home of tensor {tensor} does not fit the program's boundary: {reason}")]
    GivenBoundary {
        /// The tensor.
        tensor: TensorId,
        /// What is wrong.
        reason: &'static str,
    },
    /// A tensor, scratch or workspace is larger than a block of the device.
    #[error("the program needs {bytes} ({} bytes) in one piece, above the device's block of {block} ({} bytes)", bytes.0, block.0)]
    Block {
        /// Its size, rounded up to the alignment.
        bytes: Bytes,
        /// The size of a block.
        block: Bytes,
    },
    /// Two given addresses overlap.
    #[error("the given homes of tensors {first} and {second} overlap on the {}", if *.host { "host" } else { "device" })]
    Collision {
        /// The tensor at the lower address.
        first: TensorId,
        /// The other tensor.
        second: TensorId,
        /// Whether it is the host arena.
        host: bool,
    },
}

/// Gives every residency an address in the device arena and every host copy one in the host arena.
///
/// Nothing crosses a border of the device's blocks ([`Limits::max_block`]), but for one case: where a budget within one block is exceeded, so that the program does not fit in any case, the
/// arena is laid out in one piece.
///
/// Where `limits.boundary` is given, persistent tensors keep its addresses; all else is chosen. The device budget does not make it fail; it reports the arena it
/// needs, and stops searching for better once that fits `limits.device` (with no limit: once it is within 0.2 % of the peak). The arena of a program in which nothing lives across
/// its ops equals its peak.
///
/// # Errors
/// [`LayoutError`] if the program is malformed in a way that leaves no layout, if something is larger than a block, or if given addresses collide. It is no proof that the program is right: that is `check`'s part.
///
/// # Complexity
/// In practice b log b for b residencies, times the number of packings tried, which is bounded, as is all other search: about 0.1 s at most. Where given addresses leave gaps, O(b²).
pub fn layout(trace: &Trace, program: &Program, limits: &Limits) -> Result<Placed, LayoutError> {
    layout_by(trace, program, limits, Effort::device(limits.device))
}

/// As [`layout`], with little search for a small device arena.
pub(crate) fn layout_quickly(trace: &Trace, program: &Program, limits: &Limits) -> Result<Placed, LayoutError> {
    layout_by(trace, program, limits, Effort::device(limits.device).quick())
}

/// As [`layout`], with all the search that a program which will be kept is worth: about a second where few residencies hardly fit.
pub(crate) fn layout_thoroughly(trace: &Trace, program: &Program, limits: &Limits) -> Result<Placed, LayoutError> {
    layout_by(trace, program, limits, Effort::device(limits.device).hard())
}

fn layout_by(trace: &Trace, program: &Program, limits: &Limits, effort: Effort) -> Result<Placed, LayoutError> {
    let residencies = Residencies::of(trace, program, limits)?;
    let n_positions = residencies.n_positions;
    let borders = Borders::of(limits);
    let block = borders.block();
    if let Some(index) = residencies.device.iter().position(|found| found.bytes > block && found.is_there()) {
        return Err(LayoutError::Block { bytes: Bytes(residencies.device[index].bytes), block: Bytes(block) });
    }
    let device =
        pack(&residencies.device, n_positions, effort, borders).map_err(|(first, second)| LayoutError::Collision {
            first: residencies.device_owner(first),
            second: residencies.device_owner(second),
            host: false,
        })?;
    let host =
        pack(&residencies.host, n_positions, Effort::host(limits.host), Borders::NONE).map_err(|(first, second)| {
            LayoutError::Collision {
                first: residencies.host_owner(first),
                second: residencies.host_owner(second),
                host: true,
            }
        })?;
    Ok(Placed { program: program.clone(), layout: assemble(trace, program, &residencies, &device, &host) })
}

/// Looks the blocks' addresses up for every instruction, home and slot.
fn assemble(trace: &Trace, program: &Program, residencies: &Residencies, device: &Packed, host: &Packed) -> Layout {
    let mut placements = vec![Placement::default(); program.instrs.len()];
    for &(instr, block) in &residencies.claims {
        placements[instr as usize].device.push(Bytes(device.addresses[block as usize]));
    }
    for &(instr, block) in &residencies.workspaces {
        placements[instr as usize].workspace = Some(Bytes(device.addresses[block as usize]));
    }
    for &(instr, block) in &residencies.copies {
        placements[instr as usize].host = Some(Bytes(host.addresses[block as usize]));
    }
    let mut homes = Vec::new();
    let mut slots = Vec::new();
    for tensor in trace.tensor_ids() {
        let own = &residencies.own[tensor.index()];
        let on_host = |index: usize| own.host[index].map(|block| Bytes(host.addresses[block as usize]));
        if trace.tensor(tensor).role.is_persistent() {
            let device = own.device.map(|block| Bytes(device.addresses[block as usize]));
            homes.push(Home { tensor, device, host: on_host(0) });
        } else if let (Some(even), Some(odd)) = (on_host(0), on_host(1)) {
            slots.push(Slots { tensor, host: [even, odd] });
        }
    }
    Layout { placements, homes, slots, arena: Bytes(device.arena), host_arena: Bytes(host.arena) }
}

#[cfg(test)]
mod tests;
