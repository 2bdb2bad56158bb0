//! When which bytes are taken: the residencies of a program as blocks.

use crate::id::{Bytes, InstrId, OpId, TensorId};
use crate::layout::LayoutError;
use crate::limits::Limits;
use crate::program::{Home, Instr, Program};
use crate::trace::{InPlace, Role, Trace};

/// Positions `start..end` of a program; empty if `start >= end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Piece {
    pub(super) fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub(super) fn len(self) -> u64 {
        u64::from(self.end.saturating_sub(self.start))
    }
}

/// Bytes at one address during one or two pieces of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Rounded up to the alignment.
    pub(super) bytes: u64,
    /// The second is empty but for a circular block.
    pub(super) pieces: [Piece; 2],
    /// Address, if given.
    pub(super) fixed: Option<u64>,
}

impl Block {
    /// Whether it is there for any position.
    pub(super) fn is_there(&self) -> bool {
        self.pieces.iter().any(|piece| !piece.is_empty())
    }
}

/// Blocks that belong to a tensor as such, not to an instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    /// Boundary residency.
    pub(super) device: Option<u32>,
    /// Home slot (the first), or the slots of even and odd iterations.
    pub(super) host: [Option<u32>; 2],
}

/// All residencies of a program.
///
/// Positions `0..n` are the instructions, position `n` is the boundary. A release at position k ends a piece at k, because a release claims nothing.
#[derive(Debug)]
pub(super) struct Residencies {
    pub(super) n_positions: u32,
    pub(super) device: Vec<Block>,
    pub(super) host: Vec<Block>,
    /// (instruction, device block), in order, one for each write or swap-in.
    pub(super) claims: Vec<(u32, u32)>,
    /// (instruction, device block).
    pub(super) workspaces: Vec<(u32, u32)>,
    /// (instruction, host block) of swaps.
    pub(super) copies: Vec<(u32, u32)>,
    /// By tensor.
    pub(super) own: Vec<Own>,
    /// (instruction, device block) of kernels that read or update and of swap-outs, in order.
    pub(super) reads: Vec<(u32, u32)>,
}

impl Residencies {
    /// Walks the program once.
    pub(super) fn of(trace: &Trace, program: &Program, limits: &Limits) -> Result<Self, LayoutError> {
        let mut walk = Walk::start(trace, program, limits)?;
        for (index, instr) in program.instrs.iter().enumerate() {
            let at = InstrId::from_index(index);
            match instr {
                Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => walk.kernel(at, *op, takeovers)?,
                Instr::SwapOut(tensor) => walk.swap_out(at, *tensor)?,
                Instr::SwapIn(tensor) => walk.swap_in(at, *tensor)?,
                Instr::Release(tensor) => {
                    let block = walk.leave(at, *tensor)?;
                    walk.found.device[block as usize].pieces[0].end = at.0;
                }
            }
        }
        walk.end(program)
    }

    /// The tensor a device block of the boundary belongs to.
    pub(super) fn device_owner(&self, block: usize) -> TensorId {
        self.owner(|own| own.device == Some(block as u32))
    }

    /// The tensor a home slot belongs to.
    pub(super) fn host_owner(&self, block: usize) -> TensorId {
        self.owner(|own| own.host.contains(&Some(block as u32)))
    }

    fn owner(&self, is_owner: impl Fn(&Own) -> bool) -> TensorId {
        let index = self.own.iter().position(is_owner).expect("only blocks with an owner have given addresses");
        TensorId::from_index(index)
    }
}

struct Walk<'a> {
    trace: &'a Trace,
    limits: &'a Limits,
    found: Residencies,
    /// Device block each tensor lives in now.
    resident: Vec<Option<u32>>,
    /// Host block of each tensor's valid copy, for tensors without a slot of their own.
    copy: Vec<Option<u32>>,
}

impl<'a> Walk<'a> {
    /// Boundary residencies, homes and slots.
    fn start(trace: &'a Trace, program: &Program, limits: &'a Limits) -> Result<Self, LayoutError> {
        let n_positions = InstrId::from_index(program.instrs.len()).0 + 1;
        let n_tensors = trace.tensors().len();
        let mut own = vec![Own::default(); n_tensors];
        let mut resident = vec![None; n_tensors];
        let (mut device, mut host) = (Vec::new(), Vec::new());
        let mut has_copy: Vec<bool> = trace.tensors().iter().map(|tensor| tensor.role.is_persistent()).collect();
        let mut last: Option<TensorId> = None;
        for entry in &program.boundary {
            let tensor = entry.tensor;
            let is_persistent = tensor.index() < n_tensors && trace.tensor(tensor).role.is_persistent();
            if !is_persistent || last.is_some_and(|last| last >= tensor) {
                return Err(LayoutError::BoundaryEntry { tensor });
            }
            last = Some(tensor);
            has_copy[tensor.index()] = entry.host_valid;
            own[tensor.index()].device = Some(device.len() as u32);
            resident[tensor.index()] = Some(device.len() as u32);
            let bytes = limits.occupied(trace.tensor(tensor).bytes).0;
            // Open until released.
            device.push(Block { bytes, pieces: [Piece { start: 0, end: n_positions }, Piece::default()], fixed: None });
        }
        for tensor in trace.tensor_ids() {
            let bytes = limits.occupied(trace.tensor(tensor).bytes).0;
            let n_slots = match trace.tensor(tensor).role {
                Role::Input | Role::Output => 2,
                _ => usize::from(has_copy[tensor.index()]),
            };
            for slot in 0..n_slots {
                own[tensor.index()].host[slot] = Some(host.len() as u32);
                let whole = Piece { start: 0, end: n_positions };
                host.push(Block { bytes, pieces: [whole, Piece::default()], fixed: None });
            }
        }
        if let Some(homes) = &limits.boundary {
            fix_homes(trace, homes, &own, &mut device, &mut host)?;
        }
        let found = Residencies {
            n_positions,
            device,
            host,
            claims: vec![],
            workspaces: vec![],
            copies: vec![],
            own,
            reads: vec![],
        };
        Ok(Self { trace, limits, found, resident, copy: vec![None; n_tensors] })
    }

    /// Brings boundary residencies full circle.
    fn end(mut self, program: &Program) -> Result<Residencies, LayoutError> {
        let boundary = self.found.n_positions - 1;
        let mut moved_to = Vec::new();
        for tensor in self.trace.tensor_ids() {
            let first = self.found.own[tensor.index()].device;
            let last = self.resident[tensor.index()];
            if !self.trace.tensor(tensor).role.is_persistent() {
                if let Some(block) = last {
                    self.found.device[block as usize].pieces[0].end = boundary;
                }
                continue;
            }
            match (first, last) {
                (None, None) => {}
                (Some(first), Some(last)) if first == last => {}
                (Some(first), Some(last)) => {
                    let back = self.found.device[last as usize].pieces[0];
                    let block = &mut self.found.device[first as usize];
                    if block.pieces[0].end > back.start {
                        return Err(LayoutError::BoundaryHeld { tensor });
                    }
                    block.pieces = [back, block.pieces[0]];
                    self.found.device[last as usize].pieces = [Piece::default(); 2];
                    moved_to.push((last, first));
                }
                (first, _) => return Err(LayoutError::BoundaryEnd { tensor, resident: first.is_none() }),
            }
        }
        moved_to.sort_unstable();
        if !moved_to.is_empty() {
            for (_, block) in self.found.claims.iter_mut().chain(&mut self.found.reads) {
                if let Ok(index) = moved_to.binary_search_by_key(block, |&(from, _)| from) {
                    *block = moved_to[index].1;
                }
            }
        }
        debug_assert!(program.boundary.iter().all(|entry| self.found.own[entry.tensor.index()].device.is_some()));
        Ok(self.found)
    }

    fn known(&self, at: InstrId, tensor: TensorId) -> Result<(), LayoutError> {
        if tensor.index() < self.resident.len() { Ok(()) } else { Err(LayoutError::Unknown { instr: at }) }
    }

    /// The block of a tensor that must be on the device.
    fn block(&self, at: InstrId, tensor: TensorId) -> Result<u32, LayoutError> {
        self.known(at, tensor)?;
        self.resident[tensor.index()].ok_or(LayoutError::NotResident { instr: at, tensor })
    }

    /// Takes a tensor off the device; its block stays open.
    fn leave(&mut self, at: InstrId, tensor: TensorId) -> Result<u32, LayoutError> {
        let block = self.block(at, tensor)?;
        self.resident[tensor.index()] = None;
        Ok(block)
    }

    /// A device block from `at` on, closed at `end`.
    fn claim(&mut self, at: InstrId, bytes: Bytes, end: u32) -> u32 {
        let block = self.found.device.len() as u32;
        let bytes = self.limits.occupied(bytes).0;
        self.found.device.push(Block { bytes, pieces: [Piece { start: at.0, end }, Piece::default()], fixed: None });
        block
    }

    fn kernel(&mut self, at: InstrId, op: OpId, takeovers: &[InPlace]) -> Result<(), LayoutError> {
        if op.index() >= self.trace.ops().len() {
            return Err(LayoutError::Unknown { instr: at });
        }
        let trace = self.trace;
        let op = trace.op(op);
        for &tensor in op.reads.iter().chain(&op.updates) {
            let block = self.block(at, tensor)?;
            self.found.reads.push((at.0, block));
        }
        for (index, pair) in takeovers.iter().enumerate() {
            if !op.in_place.contains(pair) || takeovers[..index].contains(pair) {
                return Err(LayoutError::Takeover { instr: at, input: pair.input, output: pair.output });
            }
            if self.resident[pair.output.index()].is_some() {
                return Err(LayoutError::AlreadyResident { instr: at, tensor: pair.output });
            }
        }
        for &tensor in &op.writes {
            let bytes = trace.tensor(tensor).bytes;
            let block = if let Some(pair) = takeovers.iter().find(|pair| pair.output == tensor) {
                let block = self.leave(at, pair.input)?;
                self.resident[tensor.index()] = Some(block);
                block
            } else if self.resident[tensor.index()].is_some() {
                self.claim(at, bytes, at.0 + 1)
            } else {
                let block = self.claim(at, bytes, self.found.n_positions);
                self.resident[tensor.index()] = Some(block);
                block
            };
            self.found.claims.push((at.0, block));
        }
        if op.workspace > Bytes::ZERO {
            let block = self.claim(at, op.workspace, at.0 + 1);
            self.found.workspaces.push((at.0, block));
        }
        for &tensor in &op.updates {
            self.copy[tensor.index()] = None;
        }
        Ok(())
    }

    fn swap_out(&mut self, at: InstrId, tensor: TensorId) -> Result<(), LayoutError> {
        let block = self.block(at, tensor)?;
        self.found.reads.push((at.0, block));
        let slot = match self.found.own[tensor.index()].host[0] {
            Some(slot) => slot,
            None => {
                let slot = self.found.host.len() as u32;
                self.copy[tensor.index()] = Some(slot);
                let bytes = self.limits.occupied(self.trace.tensor(tensor).bytes).0;
                let piece = Piece { start: at.0, end: at.0 + 1 };
                self.found.host.push(Block { bytes, pieces: [piece, Piece::default()], fixed: None });
                slot
            }
        };
        self.found.copies.push((at.0, slot));
        Ok(())
    }

    fn swap_in(&mut self, at: InstrId, tensor: TensorId) -> Result<(), LayoutError> {
        self.known(at, tensor)?;
        if self.resident[tensor.index()].is_some() {
            return Err(LayoutError::AlreadyResident { instr: at, tensor });
        }
        let slot = match (self.found.own[tensor.index()].host[0], self.copy[tensor.index()]) {
            (Some(slot), _) => slot,
            (None, Some(slot)) => {
                self.found.host[slot as usize].pieces[0].end = at.0 + 1;
                slot
            }
            (None, None) => return Err(LayoutError::NoHostCopy { instr: at, tensor }),
        };
        self.found.copies.push((at.0, slot));
        let block = self.claim(at, self.trace.tensor(tensor).bytes, self.found.n_positions);
        self.resident[tensor.index()] = Some(block);
        self.found.claims.push((at.0, block));
        Ok(())
    }
}

/// Gives boundary residencies and home slots the addresses that the job stands at already.
fn fix_homes(
    trace: &Trace,
    homes: &[Home],
    own: &[Own],
    device: &mut [Block],
    host: &mut [Block],
) -> Result<(), LayoutError> {
    let mut given = homes.iter();
    for tensor in trace.tensor_ids().filter(|&tensor| trace.tensor(tensor).role.is_persistent()) {
        let fault = |reason| Err(LayoutError::GivenBoundary { tensor, reason });
        let Some(home) = given.next().filter(|home| home.tensor == tensor) else {
            return fault("homes must be one for each persistent tensor, by ascending id");
        };
        match (home.device, own[tensor.index()].device) {
            (Some(address), Some(block)) => device[block as usize].fixed = Some(address.0),
            (None, None) => {}
            (Some(_), None) => return fault("it has a device address, but the program's boundary lacks it"),
            (None, Some(_)) => return fault("it has no device address, but stands in the program's boundary"),
        }
        match (home.host, own[tensor.index()].host[0]) {
            (Some(address), Some(block)) => host[block as usize].fixed = Some(address.0),
            (None, None) => {}
            (Some(_), None) => {
                return fault("it has a host address, but the program's boundary has no host copy of it");
            }
            (None, Some(_)) => return fault("it has no host address, but needs a host copy between steps"),
        }
    }
    match given.next() {
        Some(extra) => Err(LayoutError::GivenBoundary {
            tensor: extra.tensor,
            reason: "homes must be one for each persistent tensor, by ascending id",
        }),
        None => Ok(()),
    }
}
