//! From choices to a program.

use std::collections::BTreeSet;

use super::{Choice, Idle, Step};
use crate::id::{OpId, TensorId};
use crate::liveness::AccessKind;
use crate::program::{BoundaryTensor, Instr, Program};
use crate::trace::{InPlace, Role};

/// The program that a choice for each idle interval makes; none if it is not legal, or not within the budgets.
pub(super) fn build(step: &Step<'_>, choices: &[Choice]) -> Option<Program> {
    let mut builder = Builder::start(step, choices)?;
    for op in step.trace.op_ids() {
        builder.come(op.index())?;
        builder.run(op)?;
    }
    builder.come(step.n_ops())?;
    builder.end()
}

struct Builder<'a> {
    step: &'a Step<'a>,
    choices: &'a [Choice],
    resident: Vec<bool>,
    used: u64,
    instrs: Vec<Instr>,
    /// Tensors whose version of the step before is wanted on the host.
    saved: Vec<bool>,
    /// Copies that leave, by one behind the op.
    outs: Vec<Vec<TensorId>>,
}

impl<'a> Builder<'a> {
    fn start(step: &'a Step<'a>, choices: &'a [Choice]) -> Option<Self> {
        let trace = step.trace;
        let n_tensors = trace.tensors().len();
        let mut builder = Self {
            step,
            choices,
            resident: vec![false; n_tensors],
            used: 0,
            instrs: Vec::new(),
            saved: vec![false; n_tensors],
            outs: vec![Vec::new(); step.n_ops() + 1],
        };
        for tensor in trace.tensor_ids() {
            if trace.tensor(tensor).role.is_persistent() {
                builder.claim(tensor)?;
            }
        }
        builder.plan_outs()?;
        builder.leave(0);
        Some(builder)
    }

    /// Idle intervals in the order of time.
    fn idles(&self) -> impl Iterator<Item = (&'a Idle, Choice)> + use<'a> {
        self.step.idles.iter().zip(self.choices.iter().copied())
    }

    /// Where copies leave: one for each version, the earliest that is asked for.
    fn plan_outs(&mut self) -> Option<()> {
        let (step, trace) = (self.step, self.step.trace);
        for tensor in trace.tensor_ids().filter(|&tensor| trace.tensor(tensor).role == Role::Output) {
            let producer = trace.producer(tensor).expect("outputs are written");
            self.outs[producer.index() + 1].push(tensor);
        }
        let mut sent: Vec<(TensorId, Option<usize>, usize)> = Vec::new();
        for (idle, choice) in self.idles() {
            let Choice::Swap { early, .. } = choice else { continue };
            let made = step.made(idle);
            let persists = trace.tensor(idle.tensor).role.is_persistent();
            self.saved[idle.tensor.index()] |= persists && made.is_none();
            if step.host_has(idle.tensor) {
                continue;
            }
            let at = match made {
                Some(made) if early => made,
                Some(_) => idle.after,
                // The version of the step before left behind its update there; so does this one.
                None => step.version(idle)?,
            };
            let version = step.version(idle);
            match sent.iter_mut().find(|one| (one.0, one.1) == (idle.tensor, version)) {
                Some(one) => one.2 = one.2.min(at),
                None => sent.push((idle.tensor, version, at)),
            }
        }
        let slots =
            trace.tensor_ids().filter(|&tensor| matches!(trace.tensor(tensor).role, Role::Input | Role::Output));
        let mut host: u64 = slots.map(|tensor| 2 * step.bytes[tensor.index()]).sum();
        let mut has_slot: BTreeSet<TensorId> = BTreeSet::new();
        for (idle, choice) in self.idles() {
            let has_own = matches!(trace.tensor(idle.tensor).role, Role::Input | Role::Output);
            if matches!(choice, Choice::Swap { .. }) && !has_own && has_slot.insert(idle.tensor) {
                host += step.bytes[idle.tensor.index()];
            }
        }
        sent.sort_unstable_by_key(|one| (one.2, one.0));
        for (tensor, _, at) in sent {
            self.outs[at].push(tensor);
        }
        (host <= step.limits.host.0).then_some(())
    }

    fn fits(&self, more: u64) -> Option<()> {
        (self.used.saturating_add(more) <= self.step.limits.device.0).then_some(())
    }

    fn claim(&mut self, tensor: TensorId) -> Option<()> {
        self.fits(self.step.bytes[tensor.index()])?;
        self.resident[tensor.index()] = true;
        self.used += self.step.bytes[tensor.index()];
        Some(())
    }

    fn vacate(&mut self, tensor: TensorId) {
        self.resident[tensor.index()] = false;
        self.used -= self.step.bytes[tensor.index()];
    }

    fn release(&mut self, tensor: TensorId) {
        self.vacate(tensor);
        self.instrs.push(Instr::Release(tensor));
    }

    fn swap_in(&mut self, tensor: TensorId) -> Option<()> {
        self.claim(tensor)?;
        self.instrs.push(Instr::SwapIn(tensor));
        Some(())
    }

    /// Gives up what leaves at a position, that is behind the op before it.
    fn leave(&mut self, position: usize) {
        for (idle, choice) in self.idles() {
            let leaves = choice != Choice::Keep && !idle.is_arrival && idle.after == position;
            if leaves && self.resident[idle.tensor.index()] {
                self.release(idle.tensor);
            }
        }
    }

    /// Brings what comes back before an op.
    fn come(&mut self, position: usize) -> Option<()> {
        let coming = |(_, choice): &(&Idle, Choice)| choice.back() == Some(position);
        let mut coming: Vec<(&Idle, Choice)> = self.idles().filter(coming).collect();
        coming.sort_by_key(|(idle, _)| (idle.until, idle.tensor));
        let mut wanted: Vec<TensorId> = Vec::new();
        for (idle, choice) in coming {
            match choice {
                Choice::Swap { .. } => self.swap_in(idle.tensor)?,
                _ => wanted.push(idle.tensor),
            }
        }
        if wanted.is_empty() { Some(()) } else { self.regenerate(&wanted, position) }
    }

    /// Runs the chain of ops again that makes `wanted`.
    fn regenerate(&mut self, wanted: &[TensorId], position: usize) -> Option<()> {
        let (step, trace) = (self.step, self.step.trace);
        let mut chain: BTreeSet<OpId> = BTreeSet::new();
        let mut stack = wanted.to_vec();
        while let Some(tensor) = stack.pop() {
            if self.resident[tensor.index()] {
                continue;
            }
            // An input comes by copy.
            let Some(op) = trace.producer(tensor) else { continue };
            if op.index() >= position || !trace.op(op).replayable {
                return None;
            }
            if chain.insert(op) {
                for &source in &trace.op(op).reads {
                    if trace.tensor(source).role.is_persistent() {
                        let mut updates = step.live.accesses(source).iter().filter(|a| a.kind == AccessKind::Update);
                        let is_changed = updates.any(|access| access.op > op && access.op.index() < position);
                        if is_changed || !self.resident[source.index()] {
                            return None;
                        }
                    }
                    stack.push(source);
                }
            }
        }
        let chain: Vec<OpId> = chain.into_iter().collect();
        // What is there for the chain alone.
        let mut passing: Vec<TensorId> = Vec::new();
        for (index, &op) in chain.iter().enumerate() {
            let of = trace.op(op);
            for &source in &of.reads {
                if !self.resident[source.index()] {
                    self.swap_in(source)?;
                    passing.push(source);
                }
            }
            let is_last_reader =
                |tensor: TensorId| !chain[index + 1..].iter().any(|&later| trace.op(later).reads.contains(&tensor));
            let takeovers: Vec<InPlace> = of
                .in_place
                .iter()
                .copied()
                .filter(|pair| passing.contains(&pair.input) && is_last_reader(pair.input))
                .filter(|pair| !self.resident[pair.output.index()])
                .collect();
            let new = self.execute(op, &takeovers)?;
            passing.retain(|&tensor| !takeovers.iter().any(|pair| pair.input == tensor));
            passing.extend(new.into_iter().filter(|tensor| !wanted.contains(tensor)));
            self.instrs.push(Instr::Rerun { op, takeovers });
            let gone: Vec<TensorId> = passing.iter().copied().filter(|&tensor| is_last_reader(tensor)).collect();
            for tensor in gone {
                passing.retain(|&other| other != tensor);
                self.release(tensor);
            }
        }
        Some(())
    }

    /// Claims what an op writes and needs; returns what was not there before.
    fn execute(&mut self, op: OpId, takeovers: &[InPlace]) -> Option<Vec<TensorId>> {
        let (step, of) = (self.step, self.step.trace.op(op));
        for pair in takeovers {
            self.vacate(pair.input);
        }
        let is_there = |tensor: &TensorId| self.resident[tensor.index()];
        let scratch: u64 = of.writes.iter().filter(|t| is_there(t)).map(|t| step.bytes[t.index()]).sum();
        let new: Vec<TensorId> = of.writes.iter().copied().filter(|tensor| !is_there(tensor)).collect();
        for &tensor in &new {
            self.claim(tensor)?;
        }
        self.fits(scratch + step.limits.occupied(of.workspace).0)?;
        Some(new)
    }

    fn run(&mut self, op: OpId) -> Option<()> {
        let (step, trace) = (self.step, self.step.trace);
        let of = trace.op(op);
        if of.reads.iter().chain(&of.updates).any(|tensor| !self.resident[tensor.index()]) {
            return None;
        }
        let mut takeovers = step.live.takeovers(trace, op);
        for (idle, choice) in self.idles() {
            let is_taken = matches!(choice, Choice::Swap { taken: true, .. } | Choice::Rerun { taken: true, .. });
            if is_taken && idle.after == op.index() + 1 {
                takeovers.extend(of.in_place.iter().find(|pair| pair.input == idle.tensor));
            }
        }
        self.execute(op, &takeovers)?;
        self.instrs.push(Instr::Run { op, takeovers });
        let outs = std::mem::take(&mut self.outs[op.index() + 1]);
        self.instrs.extend(outs.into_iter().map(Instr::SwapOut));
        self.leave(op.index() + 1);
        for &tensor in of.reads.iter().chain(&of.writes) {
            let is_dead = step.live.dies_at(trace, tensor) == Some(op);
            if is_dead && self.resident[tensor.index()] {
                self.release(tensor);
            }
        }
        Some(())
    }

    fn end(self) -> Option<Program> {
        let trace = self.step.trace;
        let mut boundary = Vec::new();
        for tensor in trace.tensor_ids() {
            let of = trace.tensor(tensor);
            let persists = of.role.is_persistent();
            if (persists || of.keep) && !self.resident[tensor.index()] {
                return None;
            }
            if persists {
                boundary.push(BoundaryTensor { tensor, host_valid: self.saved[tensor.index()] });
            }
        }
        Some(Program { boundary, instrs: self.instrs })
    }
}
