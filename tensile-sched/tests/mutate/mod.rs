//! Ways to spoil a program.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tensile_sched::{Bytes, Instr, OpId, Placed, Placement, TensorId, Trace};

/// One change; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    /// Leave an instruction out.
    Drop(usize),
    /// Carry an instruction out twice in a row.
    Duplicate(usize),
    /// Exchange an instruction with the next one.
    SwapWithNext(usize),
    /// Exchange any two.
    Swap(usize, usize),
    /// Move an address by some units.
    Shift(usize, i64),
    /// Give an address the value of another.
    Copy(usize, usize),
    /// Use an in-place pair, or stop using it; the third number says whether the address follows.
    Takeover(usize, bool),
    /// Run an op once more where its inputs happen to be on the device.
    Rerun(usize, usize),
    /// Let an instruction name another tensor or op.
    Rename(usize, u32),
    /// Change what stands in the boundary about a tensor.
    HostValid(usize),
}

pub(crate) fn mutations() -> impl Strategy<Value = Mutation> + Clone {
    let n = || 0usize..10_000;
    prop_oneof![
        3 => n().prop_map(Mutation::Drop),
        2 => n().prop_map(Mutation::Duplicate),
        3 => n().prop_map(Mutation::SwapWithNext),
        1 => (n(), n()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        4 => (n(), prop_oneof![Just(-1i64), Just(1), -6i64..6]).prop_map(|(at, by)| Mutation::Shift(at, by)),
        2 => (n(), n()).prop_map(|(a, b)| Mutation::Copy(a, b)),
        3 => (n(), any::<bool>()).prop_map(|(at, follow)| Mutation::Takeover(at, follow)),
        3 => (n(), n()).prop_map(|(at, op)| Mutation::Rerun(at, op)),
        1 => (n(), 0u32..20).prop_map(|(at, to)| Mutation::Rename(at, to)),
        1 => n().prop_map(Mutation::HostValid),
    ]
}

impl Mutation {
    /// The spoiled program, if there is something to spoil.
    pub(crate) fn apply(&self, trace: &Trace, placed: &Placed, unit: Bytes) -> Option<Placed> {
        let mut spoiled = placed.clone();
        let n_instrs = placed.program.instrs.len();
        if n_instrs == 0 {
            return None;
        }
        match *self {
            Mutation::Drop(at) => {
                spoiled.program.instrs.remove(at % n_instrs);
                spoiled.layout.placements.remove(at % n_instrs);
            }
            Mutation::Duplicate(at) => {
                let at = at % n_instrs;
                spoiled.program.instrs.insert(at, spoiled.program.instrs[at].clone());
                spoiled.layout.placements.insert(at, spoiled.layout.placements[at].clone());
            }
            Mutation::SwapWithNext(at) => exchange(&mut spoiled, at % n_instrs, (at + 1) % n_instrs),
            Mutation::Swap(a, b) => exchange(&mut spoiled, a % n_instrs, b % n_instrs),
            Mutation::Shift(at, by) => {
                let mut addresses = addresses(&mut spoiled);
                let count = addresses.len();
                let address = addresses.get_mut(at % count.max(1))?;
                **address = Bytes(address.0.wrapping_add_signed(by * unit.0 as i64));
            }
            Mutation::Copy(a, b) => {
                let mut addresses = addresses(&mut spoiled);
                let count = addresses.len().max(1);
                let value = **addresses.get(b % count)?;
                **addresses.get_mut(a % count)? = value;
            }
            Mutation::Takeover(at, follow) => return takeover(trace, placed, at, follow),
            Mutation::Rerun(at, op) => return rerun(trace, placed, unit, at % (n_instrs + 1), op),
            Mutation::Rename(at, to) => match &mut spoiled.program.instrs[at % n_instrs] {
                Instr::Run { op, .. } | Instr::Rerun { op, .. } => *op = OpId(to),
                Instr::SwapOut(tensor) | Instr::SwapIn(tensor) | Instr::Release(tensor) => *tensor = TensorId(to),
            },
            Mutation::HostValid(at) => {
                let count = spoiled.program.boundary.len().max(1);
                let entry = spoiled.program.boundary.get_mut(at % count)?;
                entry.host_valid = !entry.host_valid;
                let tensor = entry.tensor;
                // Keep the shape right, so that more than the shape is put to the test.
                let home = spoiled.layout.homes.iter_mut().find(|home| home.tensor == tensor)?;
                home.host = match home.host {
                    Some(_) => None,
                    None => {
                        let address = spoiled.layout.host_arena;
                        spoiled.layout.host_arena = address + Bytes(trace.tensor(tensor).bytes.0).align_up(unit);
                        Some(address)
                    }
                };
            }
        }
        Some(spoiled)
    }
}

fn exchange(placed: &mut Placed, a: usize, b: usize) {
    placed.program.instrs.swap(a, b);
    placed.layout.placements.swap(a, b);
}

/// Every address of a program.
fn addresses(placed: &mut Placed) -> Vec<&mut Bytes> {
    let layout = &mut placed.layout;
    let mut all: Vec<&mut Bytes> = Vec::new();
    for placement in &mut layout.placements {
        all.extend(&mut placement.device);
        all.extend(&mut placement.workspace);
        all.extend(&mut placement.host);
    }
    for home in &mut layout.homes {
        all.extend(&mut home.device);
        all.extend(&mut home.host);
    }
    for slots in &mut layout.slots {
        all.extend(&mut slots.host);
    }
    all
}

fn takeover(trace: &Trace, placed: &Placed, at: usize, follow: bool) -> Option<Placed> {
    let mut pairs = Vec::new();
    for (index, instr) in placed.program.instrs.iter().enumerate() {
        if let Instr::Run { op, .. } | Instr::Rerun { op, .. } = instr
            && op.index() < trace.ops().len()
        {
            pairs.extend(trace.op(*op).in_place.iter().map(|pair| (index, *op, *pair)));
        }
    }
    let &(index, op, pair) = pairs.get(at % pairs.len().max(1))?;
    let mut spoiled = placed.clone();
    let (Instr::Run { takeovers, .. } | Instr::Rerun { takeovers, .. }) = &mut spoiled.program.instrs[index] else {
        unreachable!("only kernels have pairs")
    };
    if let Some(place) = takeovers.iter().position(|used| *used == pair) {
        takeovers.remove(place);
        return Some(spoiled);
    }
    takeovers.push(pair);
    if follow {
        // Where the input was claimed last before: its address, if nothing took it away since.
        let output = trace.op(op).writes.iter().position(|&output| output == pair.output)?;
        let address = placed.program.instrs[..index].iter().zip(&placed.layout.placements).rev().find_map(
            |(instr, placement)| match instr {
                Instr::SwapIn(tensor) if *tensor == pair.input => placement.device.first().copied(),
                Instr::Run { op, .. } | Instr::Rerun { op, .. } if op.index() < trace.ops().len() => {
                    let place = trace.op(*op).writes.iter().position(|&output| output == pair.input)?;
                    placement.device.get(place).copied()
                }
                _ => None,
            },
        );
        let home = placed.layout.homes.iter().find(|home| home.tensor == pair.input).and_then(|home| home.device);
        spoiled.layout.placements[index].device[output] = address.or(home)?;
    }
    Some(spoiled)
}

/// Inserts a rerun of one of the ops whose inputs are on the device at that time, with addresses behind all others, and
/// releases what it brings beyond what was there.
fn rerun(trace: &Trace, placed: &Placed, unit: Bytes, at: usize, choice: usize) -> Option<Placed> {
    let n_ops = trace.ops().len();
    let mut resident: BTreeSet<TensorId> = placed.program.boundary.iter().map(|entry| entry.tensor).collect();
    let mut ran = 0;
    for instr in &placed.program.instrs[..at] {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                resident.extend(trace.ops().get(op.index()).into_iter().flat_map(|op| &op.writes));
                takeovers.iter().for_each(|pair| _ = resident.remove(&pair.input));
                ran = ran.max(op.index() + 1).min(n_ops);
            }
            Instr::SwapIn(tensor) => _ = resident.insert(*tensor),
            Instr::Release(tensor) => _ = resident.remove(tensor),
            Instr::SwapOut(_) => {}
        }
    }
    let can_run = |op: &OpId| trace.op(*op).reads.iter().all(|read| resident.contains(read));
    let can_run: Vec<OpId> = trace.op_ids().take(ran).filter(can_run).collect();
    let &id = can_run.get(choice % can_run.len().max(1))?;
    let op = trace.op(id);
    let mut spoiled = placed.clone();
    let mut claim = |bytes: Bytes| {
        let address = spoiled.layout.arena;
        spoiled.layout.arena += bytes.align_up(unit);
        address
    };
    let device = op.writes.iter().map(|&write| claim(trace.tensor(write).bytes)).collect();
    let workspace = (op.workspace > Bytes::ZERO).then(|| claim(op.workspace));
    let mut added = vec![(Instr::Rerun { op: id, takeovers: vec![] }, Placement { device, workspace, host: None })];
    let new = op.writes.iter().filter(|write| !resident.contains(write));
    added.extend(new.map(|&write| (Instr::Release(write), Placement::default())));
    let (instrs, placements): (Vec<Instr>, Vec<Placement>) = added.into_iter().unzip();
    spoiled.program.instrs.splice(at..at, instrs);
    spoiled.layout.placements.splice(at..at, placements);
    Some(spoiled)
}
