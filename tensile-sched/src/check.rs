//! Proves that a placed program is right and within its limits, sharing no code with any planner.
//!
//! [`check`] goes through the instructions once, in program order, and keeps for every tensor where it is on the device and whether its
//! host copy is valid, and for both arenas which bytes are taken by what. Every rule stated in [`program`](crate::program) and in
//! [`Limits`] is a [`Violation`] when it is broken. Waits and time are [`verify`](crate::verify::verify)'s concern.

mod shape;
mod spans;
mod violation;

use std::collections::BTreeMap;

use crate::id::{Bytes, InstrId, Nanos, OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::program::{Instr, Placed, Placement};
use crate::trace::{InPlace, Op, Role, Trace};

use spans::Spans;
pub use violation::{At, Block, NamedOp, NamedTensor, Range, Violation};

/// What `check` found out about a program it accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Most bytes live on the device at any instruction, each rounded up to the alignment.
    pub peak: Bytes,
    /// Size of the device arena: the highest address in use. At most the budget.
    pub arena: Bytes,
    /// Size of the host arena.
    pub host_arena: Bytes,
    /// Number of `SwapOut`s, deliveries of outputs included.
    pub swap_outs: usize,
    /// Number of `SwapIn`s, arrivals of inputs included.
    pub swap_ins: usize,
    /// Bytes copied to the host.
    pub bytes_out: Bytes,
    /// Bytes copied to the device.
    pub bytes_in: Bytes,
    /// `SwapOut`s of tensors that are not outputs, and `SwapIn`s that are not the first of an input: the copies that the budget causes.
    pub evictions: usize,
    /// Number of `Rerun`s.
    pub reruns: usize,
    /// Sum of the latencies of all `Rerun`s.
    pub recompute_time: Nanos,
}

impl CheckReport {
    /// Arena bytes beyond the peak: what fragmentation costs.
    pub fn fragmentation(&self) -> Bytes {
        self.arena.saturating_sub(self.peak)
    }
}

/// No more violations than these are collected; a program with more is wrong enough.
const MOST_VIOLATIONS: usize = 100;

/// Proves that a placed program does what the trace says, and keeps to the limits.
///
/// Any program may be given, however wrong: the answer is a list of violations, never a panic.
///
/// # Errors
/// The violations found, in program order, at least one and at most 100. If the shape of the program is wrong (placements, boundary, homes, slots),
/// only what is wrong with that. After a violation the walk goes on as well as it can, so later entries may be consequences of the first.
///
/// # Complexity
/// n log n in the number of accesses of all instructions.
pub fn check(trace: &Trace, placed: &Placed, limits: &Limits) -> Result<CheckReport, Vec<Violation>> {
    let violations = shape::violations(trace, placed, limits);
    if !violations.is_empty() {
        return Err(violations);
    }
    let mut walk = Walk::start(trace, placed, limits);
    for (index, (instr, placement)) in placed.program.instrs.iter().zip(&placed.layout.placements).enumerate() {
        walk.step(InstrId::from_index(index), instr, placement);
        if walk.violations.len() >= MOST_VIOLATIONS {
            break;
        }
    }
    if walk.violations.len() < MOST_VIOLATIONS {
        walk.end();
    }
    walk.violations.truncate(MOST_VIOLATIONS);
    if walk.violations.is_empty() { Ok(walk.report) } else { Err(walk.violations) }
}

/// Owner of a range of bytes: a [`Block`] without its names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Tensor(TensorId),
    Scratch(TensorId),
    Workspace(OpId),
    Host(TensorId),
}

/// What the host has of a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostCopy {
    /// Nothing, or an older version.
    Invalid,
    /// The current version, at this address.
    Valid(Bytes),
    /// It had the current version, until this swap-out of another tensor used the bytes.
    Overwritten(InstrId),
}

struct Walk<'a> {
    trace: &'a Trace,
    placed: &'a Placed,
    limits: &'a Limits,
    /// Device address of each tensor that is on the device.
    resident: Vec<Option<Bytes>>,
    host: Vec<HostCopy>,
    /// Host address of the tensor's own slot (of even iterations), where it has one.
    own_slot: Vec<Option<Bytes>>,
    /// Where each persistent tensor was last updated.
    updated: Vec<Option<InstrId>>,
    /// Where each op ran.
    ran: Vec<Option<InstrId>>,
    /// Ops that update each tensor, in the order of the trace, and how many of them have run.
    update_ops: Vec<Vec<OpId>>,
    n_updated: Vec<usize>,
    /// Whether the input has been swapped in before.
    arrived: Vec<bool>,
    device_spans: Spans<Owner>,
    /// Slots that belong to one tensor during the whole step.
    own_spans: Spans<Owner>,
    /// Valid host copies elsewhere.
    copy_spans: Spans<Owner>,
    live: u64,
    report: CheckReport,
    violations: Vec<Violation>,
}

impl<'a> Walk<'a> {
    /// The state between steps.
    fn start(trace: &'a Trace, placed: &'a Placed, limits: &'a Limits) -> Self {
        let n_tensors = trace.tensors().len();
        let layout = &placed.layout;
        let mut walk = Self {
            trace,
            placed,
            limits,
            resident: vec![None; n_tensors],
            host: vec![HostCopy::Invalid; n_tensors],
            own_slot: vec![None; n_tensors],
            updated: vec![None; n_tensors],
            ran: vec![None; trace.ops().len()],
            update_ops: vec![Vec::new(); n_tensors],
            n_updated: vec![0; n_tensors],
            arrived: vec![false; n_tensors],
            device_spans: Spans::new(),
            own_spans: Spans::new(),
            copy_spans: Spans::new(),
            live: 0,
            report: CheckReport { arena: layout.arena, host_arena: layout.host_arena, ..CheckReport::default() },
            violations: Vec::new(),
        };
        for op in trace.op_ids() {
            for tensor in &trace.op(op).updates {
                walk.update_ops[tensor.index()].push(op);
            }
        }
        if layout.arena > limits.device {
            walk.violations.push(Violation::OverDevice { arena: layout.arena, budget: limits.device });
        }
        if layout.host_arena > limits.host {
            walk.violations.push(Violation::OverHost { arena: layout.host_arena, budget: limits.host });
        }
        for home in &layout.homes {
            let tensor = home.tensor;
            if let Some(address) = home.device {
                walk.claim(At::Boundary, Owner::Tensor(tensor), address);
                walk.resident[tensor.index()] = Some(address);
            } else if limits.mode == Mode::Recompute {
                walk.violations.push(Violation::ModeBoundary { tensor: walk.tensor(tensor) });
            }
            if let Some(address) = home.host {
                walk.own(tensor, address);
                walk.host[tensor.index()] = HostCopy::Valid(address);
            }
        }
        for slots in &layout.slots {
            let tensor = slots.tensor;
            // The second slot first, so that the one of even iterations stays as the tensor's own.
            walk.own(tensor, slots.host[1]);
            walk.own(tensor, slots.host[0]);
            if trace.tensor(tensor).role == Role::Input {
                walk.host[tensor.index()] = HostCopy::Valid(slots.host[0]);
            }
        }
        walk.report.peak = Bytes(walk.live);
        walk
    }

    /// Carries out one instruction.
    fn step(&mut self, at: InstrId, instr: &Instr, placement: &Placement) {
        match instr {
            Instr::Run { op, takeovers } => {
                if let Some(id) = self.known_op(at, *op) {
                    self.run_order(at, id);
                    self.execute(at, id, takeovers, placement);
                    self.ran[id.index()].get_or_insert(at);
                }
            }
            Instr::Rerun { op, takeovers } => {
                if let Some(id) = self.known_op(at, *op) {
                    self.rerun_legality(at, id);
                    self.execute(at, id, takeovers, placement);
                    self.report.reruns += 1;
                    self.report.recompute_time = self.report.recompute_time.saturating_add(self.trace.op(id).latency);
                }
            }
            Instr::SwapOut(tensor) => {
                if let Some(id) = self.known_tensor(at, *tensor) {
                    self.swap_out(at, id, placement);
                }
            }
            Instr::SwapIn(tensor) => {
                if let Some(id) = self.known_tensor(at, *tensor) {
                    self.swap_in(at, id, placement);
                }
            }
            Instr::Release(tensor) => {
                if let Some(id) = self.known_tensor(at, *tensor) {
                    self.shape(at, placement, 0, false, false);
                    if self.resident[id.index()].is_some() {
                        self.release(id);
                    } else {
                        self.violations.push(Violation::NotResident { instr: at, tensor: self.tensor(id) });
                    }
                }
            }
        }
    }

    /// Each op runs once, and meets the versions of the trace.
    fn run_order(&mut self, at: InstrId, id: OpId) {
        if let Some(ran) = self.ran[id.index()] {
            self.violations.push(Violation::RunTwice { instr: at, op: self.op(id), ran });
            return;
        }
        let op = self.trace.op(id);
        for &tensor in op.reads.iter().chain(&op.updates) {
            let expected = self.update_ops[tensor.index()].partition_point(|&update| update < id);
            let found = self.n_updated[tensor.index()];
            if expected != found {
                let (op, tensor) = (self.op(id), self.tensor(tensor));
                self.violations.push(Violation::Version { instr: at, op, tensor, expected, found });
            }
        }
        for tensor in &op.updates {
            self.n_updated[tensor.index()] += 1;
        }
    }

    fn rerun_legality(&mut self, at: InstrId, id: OpId) {
        let op = self.trace.op(id);
        if self.limits.mode == Mode::Swap {
            self.violations.push(Violation::Mode { instr: at, what: "a rerun", mode: self.limits.mode });
        }
        if !op.replayable {
            self.violations.push(Violation::NotReplayable { instr: at, op: self.op(id) });
        }
        let Some(ran) = self.ran[id.index()] else {
            self.violations.push(Violation::RerunBeforeRun { instr: at, op: self.op(id) });
            return;
        };
        for &tensor in &op.reads {
            if let Some(updated) = self.updated[tensor.index()]
                && updated > ran
            {
                let (op, tensor) = (self.op(id), self.tensor(tensor));
                self.violations.push(Violation::InputUpdated { instr: at, op, tensor, updated, ran });
            }
        }
    }

    /// Accesses, claims and updates of a `Run` or `Rerun`.
    fn execute(&mut self, at: InstrId, id: OpId, takeovers: &[InPlace], placement: &Placement) {
        let op = self.trace.op(id);
        for &tensor in op.reads.iter().chain(&op.updates) {
            if self.resident[tensor.index()].is_none() {
                self.violations.push(Violation::NotResident { instr: at, tensor: self.tensor(tensor) });
            }
        }
        if !self.shape(at, placement, op.writes.len(), op.workspace > Bytes::ZERO, false) {
            return;
        }
        let taken = self.legal_takeovers(at, id, takeovers, placement);
        // Bytes that go from an input to an output are claimed before anything new, so that nothing new can slip in between.
        let mut temporary = Vec::new();
        for (&output, &address) in op.writes.iter().zip(&placement.device) {
            if let Some(&input) = taken.get(&output) {
                self.release(input);
                self.claim(At::Instr(at), Owner::Tensor(output), address);
                self.resident[output.index()] = Some(address);
            }
        }
        for (&output, &address) in op.writes.iter().zip(&placement.device) {
            if taken.contains_key(&output) {
                continue;
            }
            let owner = match self.resident[output.index()] {
                Some(_) => Owner::Scratch(output),
                None => Owner::Tensor(output),
            };
            self.claim(At::Instr(at), owner, address);
            match owner {
                Owner::Tensor(_) => self.resident[output.index()] = Some(address),
                _ => temporary.push((owner, address)),
            }
        }
        if let Some(address) = placement.workspace {
            self.claim(At::Instr(at), Owner::Workspace(id), address);
            temporary.push((Owner::Workspace(id), address));
        }
        self.report.peak = self.report.peak.max(Bytes(self.live));
        for (owner, address) in temporary {
            self.free(owner, address);
        }
        for &tensor in &op.updates {
            self.updated[tensor.index()] = Some(at);
            self.forget_host_copy(tensor);
        }
    }

    /// The takeovers that are allowed, as output → input; violations for the rest.
    fn legal_takeovers(
        &mut self,
        at: InstrId,
        id: OpId,
        takeovers: &[InPlace],
        placement: &Placement,
    ) -> BTreeMap<TensorId, TensorId> {
        let op = self.trace.op(id);
        let mut taken = BTreeMap::new();
        for pair in takeovers {
            let reason = self.takeover_fault(op, pair, &taken, placement);
            let Some(reason) = reason else {
                taken.insert(pair.output, pair.input);
                continue;
            };
            let op = self.op(id);
            self.violations.push(Violation::Takeover { instr: at, op, input: pair.input, output: pair.output, reason });
        }
        taken
    }

    fn takeover_fault(
        &self,
        op: &Op,
        pair: &InPlace,
        taken: &BTreeMap<TensorId, TensorId>,
        placement: &Placement,
    ) -> Option<&'static str> {
        if !op.in_place.contains(pair) {
            return Some("it is not an in-place pair of the op");
        }
        if taken.contains_key(&pair.output) {
            return Some("it is listed twice");
        }
        if self.resident[pair.output.index()].is_some() {
            return Some("the output is on the device already and goes to scratch");
        }
        let index = op.writes.iter().position(|&output| output == pair.output);
        let index = index.expect("Trace::new: the output of a pair is a write of its op");
        match self.resident[pair.input.index()] {
            None => Some("the input is not on the device"),
            Some(address) if address != placement.device[index] => Some("the output's address is not the input's"),
            Some(_) => None,
        }
    }

    fn swap_out(&mut self, at: InstrId, id: TensorId, placement: &Placement) {
        let tensor = self.trace.tensor(id);
        if self.limits.mode == Mode::Recompute && tensor.role != Role::Output {
            let what = "a swap-out of something else than an output";
            self.violations.push(Violation::Mode { instr: at, what, mode: self.limits.mode });
        }
        self.report.swap_outs += 1;
        self.report.bytes_out = self.report.bytes_out.saturating_add(tensor.bytes);
        self.report.evictions += usize::from(tensor.role != Role::Output);
        if self.resident[id.index()].is_none() {
            self.violations.push(Violation::NotResident { instr: at, tensor: self.tensor(id) });
        }
        if !self.shape(at, placement, 0, false, true) {
            return;
        }
        let address = placement.host.expect("the shape has been checked");
        if let Some(own) = self.own_slot[id.index()] {
            if own != address {
                let tensor = self.tensor(id);
                self.violations.push(Violation::HostAddress { instr: at, tensor, expected: own, found: address });
            }
            self.host[id.index()] = HostCopy::Valid(own);
            return;
        }
        self.forget_host_copy(id);
        let (at_instr, owner) = (At::Instr(at), Owner::Host(id));
        let Some((start, end)) = self.range(at_instr, owner, address) else { return };
        if let Some(other) = self.own_spans.first_overlap(start, end) {
            self.overlap(at_instr, (start, end, owner), other);
        }
        // Other copies may be overwritten once nothing needs them: whether something does shows when it asks for them.
        while let Some((other_start, _, other)) = self.copy_spans.first_overlap(start, end) {
            self.copy_spans.remove(other_start, other);
            if let Owner::Host(other) = other {
                self.host[other.index()] = HostCopy::Overwritten(at);
            }
        }
        self.copy_spans.insert(start, end, owner);
        self.host[id.index()] = HostCopy::Valid(address);
    }

    fn swap_in(&mut self, at: InstrId, id: TensorId, placement: &Placement) {
        let tensor = self.trace.tensor(id);
        if self.limits.mode == Mode::Recompute && tensor.role != Role::Input {
            let what = "a swap-in of something else than an input";
            self.violations.push(Violation::Mode { instr: at, what, mode: self.limits.mode });
        }
        self.report.swap_ins += 1;
        self.report.bytes_in = self.report.bytes_in.saturating_add(tensor.bytes);
        self.report.evictions += usize::from(tensor.role != Role::Input || self.arrived[id.index()]);
        self.arrived[id.index()] = true;
        if !self.shape(at, placement, 1, false, true) {
            return;
        }
        let (device, host) = (placement.device[0], placement.host.expect("the shape has been checked"));
        match self.host[id.index()] {
            HostCopy::Invalid => {
                self.violations.push(Violation::NoHostCopy { instr: at, tensor: self.tensor(id) });
            }
            HostCopy::Overwritten(by) => {
                self.violations.push(Violation::HostOverwritten { instr: at, tensor: self.tensor(id), by });
            }
            HostCopy::Valid(expected) if expected != host => {
                let tensor = self.tensor(id);
                self.violations.push(Violation::HostAddress { instr: at, tensor, expected, found: host });
            }
            HostCopy::Valid(_) => {}
        }
        if let Some(address) = self.resident[id.index()] {
            self.violations.push(Violation::AlreadyResident { instr: at, tensor: self.tensor(id), address });
            return;
        }
        self.claim(At::Instr(at), Owner::Tensor(id), device);
        self.resident[id.index()] = Some(device);
        self.report.peak = self.report.peak.max(Bytes(self.live));
    }

    /// What must hold when the step ends.
    fn end(&mut self) {
        for op in self.trace.op_ids().filter(|op| self.ran[op.index()].is_none()) {
            self.violations.push(Violation::NeverRun { op: self.op(op) });
        }
        for home in &self.placed.layout.homes {
            let tensor = home.tensor;
            match (home.device, self.resident[tensor.index()]) {
                (Some(home), Some(found)) if home != found => {
                    self.violations.push(Violation::EndElsewhere { tensor: self.tensor(tensor), home, found });
                }
                (Some(_), None) => self.violations.push(Violation::EndNotResident { tensor: self.tensor(tensor) }),
                (None, Some(_)) => self.violations.push(Violation::EndResident { tensor: self.tensor(tensor) }),
                _ => {}
            }
            if home.host.is_some() {
                self.end_host_copy(tensor);
            }
        }
        for id in self.trace.tensor_ids() {
            if self.trace.tensor(id).keep && self.resident[id.index()].is_none() {
                self.violations.push(Violation::EndNotResident { tensor: self.tensor(id) });
            }
            if self.trace.tensor(id).role == Role::Output {
                self.end_host_copy(id);
            }
        }
    }

    fn end_host_copy(&mut self, id: TensorId) {
        if !matches!(self.host[id.index()], HostCopy::Valid(_)) {
            self.violations.push(Violation::EndNoHostCopy { tensor: self.tensor(id) });
        }
    }

    /// Takes device bytes; a violation if they are not free, not aligned, not in the arena or not within one block of the device.
    fn claim(&mut self, at: At, owner: Owner, address: Bytes) {
        let (bytes, max_block) = (self.size(owner), self.limits.block());
        if bytes > max_block {
            self.violations.push(Violation::BlockTooLarge { at, block: self.block(owner), bytes, max_block });
        }
        let Some((start, end)) = self.range(at, owner, address) else { return };
        // Larger than a block, it crosses a border wherever it is, and that has been said.
        if bytes <= max_block && start / max_block.0 != (end - 1) / max_block.0 {
            let range = Range { start: Bytes(start), end: Bytes(end) };
            let border = Bytes((start / max_block.0 + 1) * max_block.0);
            self.violations.push(Violation::CrossesBlock { at, block: self.block(owner), range, border, max_block });
        }
        if let Some(other) = self.device_spans.first_overlap(start, end) {
            self.overlap(at, (start, end, owner), other);
            return;
        }
        self.device_spans.insert(start, end, owner);
        self.live += end - start;
    }

    /// Gives device bytes back (none if the claim failed).
    fn free(&mut self, owner: Owner, address: Bytes) {
        self.live -= self.device_spans.remove(address.0, owner).unwrap_or(0);
    }

    fn release(&mut self, id: TensorId) {
        if let Some(address) = self.resident[id.index()].take() {
            self.free(Owner::Tensor(id), address);
        }
    }

    fn forget_host_copy(&mut self, id: TensorId) {
        if let HostCopy::Valid(address) = self.host[id.index()] {
            self.copy_spans.remove(address.0, Owner::Host(id));
        }
        self.host[id.index()] = HostCopy::Invalid;
    }

    /// Gives a host slot to one tensor for the whole step.
    fn own(&mut self, id: TensorId, address: Bytes) {
        self.own_slot[id.index()] = Some(address);
        let owner = Owner::Host(id);
        let Some((start, end)) = self.range(At::Boundary, owner, address) else { return };
        match self.own_spans.first_overlap(start, end) {
            Some(other) => self.overlap(At::Boundary, (start, end, owner), other),
            None => self.own_spans.insert(start, end, owner),
        }
    }

    /// The bytes that a block occupies; none, and a violation, if they are not aligned or not within the arena.
    fn range(&mut self, at: At, owner: Owner, address: Bytes) -> Option<(u64, u64)> {
        let alignment = self.limits.alignment;
        if !address.0.is_multiple_of(alignment.0) {
            self.violations.push(Violation::Misaligned { at, block: self.block(owner), address, alignment });
            return None;
        }
        let layout = &self.placed.layout;
        let arena = if let Owner::Host(_) = owner { layout.host_arena } else { layout.arena };
        // Sizes are at most 2^50 and the alignment at most 2^63, so rounding up cannot overflow; the sum can.
        match address.0.checked_add(self.limits.occupied(self.size(owner)).0) {
            Some(end) if end <= arena.0 => Some((address.0, end)),
            end => {
                let range = Range { start: address, end: Bytes(end.unwrap_or(u64::MAX)) };
                self.violations.push(Violation::BeyondArena { at, block: self.block(owner), range, arena });
                None
            }
        }
    }

    fn overlap(&mut self, at: At, claimed: (u64, u64, Owner), found: (u64, u64, Owner)) {
        self.violations.push(Violation::Overlap {
            at,
            block: self.block(claimed.2),
            range: Range { start: Bytes(claimed.0), end: Bytes(claimed.1) },
            other: self.block(found.2),
            other_range: Range { start: Bytes(found.0), end: Bytes(found.1) },
        });
    }

    /// Compares the number of addresses of each kind with what the instruction needs.
    fn shape(&mut self, at: InstrId, placement: &Placement, device: usize, workspace: bool, host: bool) -> bool {
        let before = self.violations.len();
        let mut compare = |what, expected, found| {
            if expected != found {
                self.violations.push(Violation::PlacementShape { instr: at, what, expected, found });
            }
        };
        compare("device addresses", device, placement.device.len());
        compare("workspace addresses", usize::from(workspace), usize::from(placement.workspace.is_some()));
        compare("host addresses", usize::from(host), usize::from(placement.host.is_some()));
        self.violations.len() == before
    }

    fn known_op(&mut self, at: InstrId, op: OpId) -> Option<OpId> {
        let n_ops = self.trace.ops().len();
        if op.index() < n_ops {
            return Some(op);
        }
        self.violations.push(Violation::UnknownOp { instr: at, op, n_ops });
        None
    }

    fn known_tensor(&mut self, at: InstrId, tensor: TensorId) -> Option<TensorId> {
        let n_tensors = self.trace.tensors().len();
        if tensor.index() < n_tensors {
            return Some(tensor);
        }
        self.violations.push(Violation::UnknownTensor { instr: at, tensor, n_tensors });
        None
    }

    fn tensor(&self, id: TensorId) -> NamedTensor {
        NamedTensor { id, name: self.trace.tensor(id).name.clone() }
    }

    fn op(&self, id: OpId) -> NamedOp {
        NamedOp { id, label: self.trace.op(id).label.clone() }
    }

    fn block(&self, owner: Owner) -> Block {
        match owner {
            Owner::Tensor(id) => Block::Tensor(self.tensor(id)),
            Owner::Scratch(id) => Block::Scratch(self.tensor(id)),
            Owner::Workspace(id) => Block::Workspace(self.op(id)),
            Owner::Host(id) => Block::Host(self.tensor(id)),
        }
    }

    fn size(&self, owner: Owner) -> Bytes {
        match owner {
            Owner::Tensor(id) | Owner::Scratch(id) | Owner::Host(id) => self.trace.tensor(id).bytes,
            Owner::Workspace(id) => self.trace.op(id).workspace,
        }
    }
}

#[cfg(test)]
mod tests;
