//! Proves that no two accesses of a synced program race, sharing no code with the pass that places the waits.
//!
//! Program order says what every instruction must see; lanes and waits say what really precedes what. [`verify`] goes through three iterations
//! in program order. Every instruction gets a vector clock: how many instructions of each lane have certainly ended
//! when it starts, by the order of its lane, by its waits, and by the rule that at most two iterations are in flight. For every range of
//! bytes, on the device and on the host, the last write and the last read of each lane since then are kept. An access that conflicts with one of them (same
//! bytes, at least one of the two writes) must find it ended.
//!
//! Two iterations show every conflict of a step with itself and with the next step, for a chain of lanes and waits from an
//! instruction to one of the next iteration stays within the two. The third is there for the host slots of inputs and outputs, which alternate. The
//! first iteration follows a drained boundary: its waits for the previous iteration prove nothing.

use std::collections::BTreeMap;
use std::fmt;

use crate::id::{Bytes, InstrId, TensorId};
use crate::program::{Instr, Lane, Placement, Synced};
use crate::trace::{Role, Trace};

/// Which arena an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The device arena.
    Device,
    /// The host arena.
    Host,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Device => "device",
            Side::Host => "host",
        })
    }
}

/// An access of an instruction to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The instruction.
    pub instr: InstrId,
    /// Which of the unrolled iterations, from 0.
    pub iteration: usize,
    /// Whether it writes.
    pub write: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.write { "write" } else { "read" };
        write!(f, "{what} by {} of iteration {}", self.instr, self.iteration)
    }
}

/// What is wrong with the waits of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Race {
    /// The number of wait lists or placements is not the number of instructions.
    #[error("{instrs} instructions, {placements} placements and {waits} lists of waits")]
    Count {
        /// Number of instructions.
        instrs: usize,
        /// Number of placements.
        placements: usize,
        /// Number of wait lists.
        waits: usize,
    },
    /// A wait that is not allowed.
    #[error("{instr} waits for {on}: {reason}")]
    Wait {
        /// The waiting instruction.
        instr: InstrId,
        /// What it waits for.
        on: InstrId,
        /// What is wrong.
        reason: &'static str,
    },
    /// An instruction whose addresses are unknown; `check` says more.
    #[error("{instr}: {reason}; check refuses this program")]
    Malformed {
        /// The instruction.
        instr: InstrId,
        /// What is wrong.
        reason: &'static str,
    },
    /// Two accesses to the same bytes, at least one of them a write, that nothing orders.
    #[error("{second} does not wait for the {first}, at {side} bytes [{}, {})", start.0, end.0)]
    Unordered {
        /// The arena.
        side: Side,
        /// First byte shared.
        start: Bytes,
        /// First byte behind it.
        end: Bytes,
        /// The access that comes first in program order.
        first: Access,
        /// The access that may overtake it.
        second: Access,
    },
}

/// How many iterations are unrolled.
const ITERATIONS: usize = 3;
/// No more faults than these are collected.
const MOST_RACES: usize = 100;

/// For each lane, how many of its instructions have ended.
type Clock = [u64; 3];

/// Proves that lanes and waits order all conflicting accesses of a program that follows itself.
///
/// Any program may be given: the answer is a list of faults, never a panic. For programs that [`check`](crate::check::check) refuses an acceptance says
/// nothing.
///
/// # Errors
/// The faults found, at least one and at most 100: waits that are not allowed, or else accesses that nothing orders.
///
/// # Complexity
/// n log n in the number of accesses and waits.
pub fn verify(trace: &Trace, synced: &Synced) -> Result<(), Vec<Race>> {
    let faults = wait_faults(synced);
    if !faults.is_empty() {
        return Err(faults);
    }
    let mut unrolled = Unrolled {
        trace,
        synced,
        ended: [0; 3],
        drained: [0; 3],
        now: [[0; 3]; 3],
        clocks: Vec::new(),
        before: Vec::new(),
        own_slots: vec![None; trace.tensors().len()],
        resident: Vec::new(),
        bytes: [BTreeMap::new(), BTreeMap::new()],
        races: Vec::new(),
    };
    for slots in &synced.layout().slots {
        if let Some(own) = unrolled.own_slots.get_mut(slots.tensor.index()) {
            *own = Some(slots.host);
        }
    }
    for iteration in 0..ITERATIONS {
        unrolled.iterate(iteration);
        if unrolled.races.len() >= MOST_RACES {
            break;
        }
    }
    unrolled.races.truncate(MOST_RACES);
    if unrolled.races.is_empty() { Ok(()) } else { Err(unrolled.races) }
}

/// Waits for nothing, for the own lane or for later instructions.
fn wait_faults(synced: &Synced) -> Vec<Race> {
    let instrs = synced.instrs();
    let (n_placements, n_waits) = (synced.layout().placements.len(), synced.waits.len());
    if instrs.len() != n_placements || instrs.len() != n_waits {
        return vec![Race::Count { instrs: instrs.len(), placements: n_placements, waits: n_waits }];
    }
    let mut faults = Vec::new();
    for (index, waits) in synced.waits.iter().enumerate() {
        for (place, wait) in waits.iter().enumerate() {
            let on = instrs.get(wait.on.index());
            let reason = if instrs[index].lane().is_none() {
                "a release is no work and waits for nothing"
            } else if on.is_none() {
                "there is no such instruction"
            } else if on.is_some_and(|on| on.lane().is_none()) {
                "a release is no work and cannot be waited for"
            } else if on.is_some_and(|on| on.lane() == instrs[index].lane()) {
                "both are on the same lane"
            } else if !wait.previous_iteration && wait.on.index() >= index {
                "it is not earlier in the step"
            } else if place > 0 && waits[place - 1] >= *wait {
                "the waits are not in ascending order"
            } else {
                continue;
            };
            faults.push(Race::Wait { instr: InstrId::from_index(index), on: wait.on, reason });
        }
        if faults.len() >= MOST_RACES {
            break;
        }
    }
    faults.truncate(MOST_RACES);
    faults
}

/// One access with what is needed to order it: the number of its instruction on its lane, counted over all iterations from 1.
#[derive(Clone, Copy)]
struct Event {
    access: Access,
    lane: usize,
    number: u64,
}

/// A range of bytes that the same accesses have touched last.
#[derive(Clone, Copy)]
struct Cell {
    end: u64,
    writer: Option<Event>,
    readers: [Option<Event>; 3],
}

struct Unrolled<'a> {
    trace: &'a Trace,
    synced: &'a Synced,
    /// Instructions issued on each lane so far.
    ended: Clock,
    /// The same at the end of the iteration before the previous one: all of that has ended.
    drained: Clock,
    /// For each lane, what has ended once its last issued instruction has.
    now: [Clock; 3],
    /// What has ended once the instruction has, in this iteration and in the one before.
    clocks: Vec<Clock>,
    before: Vec<Clock>,
    own_slots: Vec<Option<[Bytes; 2]>>,
    resident: Vec<Option<Bytes>>,
    bytes: [BTreeMap<u64, Cell>; 2],
    races: Vec<Race>,
}

impl Unrolled<'_> {
    fn iterate(&mut self, iteration: usize) {
        let synced = self.synced;
        let ended_before = self.ended;
        self.before = std::mem::take(&mut self.clocks);
        self.clocks = vec![[0; 3]; synced.instrs().len()];
        self.resident = vec![None; self.trace.tensors().len()];
        for home in &synced.layout().homes {
            if let Some(resident) = self.resident.get_mut(home.tensor.index()) {
                *resident = home.device;
            }
        }
        for (index, instr) in synced.instrs().iter().enumerate() {
            let id = InstrId::from_index(index);
            let placement = &synced.layout().placements[index];
            if let Some(lane) = instr.lane() {
                let start = self.start_clock(index, lane);
                self.ended[lane.index()] += 1;
                let event = |write| Event {
                    access: Access { instr: id, iteration, write },
                    lane: lane.index(),
                    number: self.ended[lane.index()],
                };
                let (read, write) = (event(false), event(true));
                match self.accesses(instr, placement, iteration) {
                    Ok(accesses) => {
                        for (side, address, size, writes) in accesses {
                            self.access(side, address, size, if writes { write } else { read }, &start);
                        }
                    }
                    Err(reason) => self.races.push(Race::Malformed { instr: id, reason }),
                }
                let mut end = start;
                end[lane.index()] = self.ended[lane.index()];
                self.clocks[index] = end;
                self.now[lane.index()] = end;
            } else if let Instr::Release(tensor) = instr {
                match self.resident.get_mut(tensor.index()) {
                    Some(resident) => *resident = None,
                    None => self.races.push(Race::Malformed { instr: id, reason: "it names an unknown tensor" }),
                }
            }
            if self.races.len() >= MOST_RACES {
                return;
            }
        }
        self.drained = ended_before;
    }

    /// What has certainly ended when an instruction starts.
    fn start_clock(&self, index: usize, lane: Lane) -> Clock {
        let mut clock = join(self.now[lane.index()], self.drained);
        for wait in &self.synced.waits[index] {
            // `before` is empty in the first iteration, where these waits are fulfilled from the start.
            let clocks = if wait.previous_iteration { &self.before } else { &self.clocks };
            if let Some(&ended) = clocks.get(wait.on.index()) {
                clock = join(clock, ended);
            }
        }
        clock
    }

    /// All accesses of an instruction: arena, address, size, whether it writes. Also moves tensors on and off the device.
    fn accesses(
        &mut self,
        instr: &Instr,
        placement: &Placement,
        iteration: usize,
    ) -> Result<Vec<(Side, Bytes, Bytes, bool)>, &'static str> {
        const NOT_RESIDENT: &str = "it needs a tensor that is not on the device";
        const NO_ADDRESS: &str = "its placement lacks an address";
        let mut accesses = Vec::new();
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                let op = self.trace.ops().get(op.index()).ok_or("it names an unknown op")?;
                for (list, writes) in [(&op.reads, false), (&op.updates, true)] {
                    for &tensor in list {
                        let address = self.resident[tensor.index()].ok_or(NOT_RESIDENT)?;
                        accesses.push((Side::Device, address, self.trace.tensor(tensor).bytes, writes));
                    }
                }
                for pair in takeovers {
                    *self.resident.get_mut(pair.input.index()).ok_or("it names an unknown tensor")? = None;
                }
                for (index, &tensor) in op.writes.iter().enumerate() {
                    let &address = placement.device.get(index).ok_or(NO_ADDRESS)?;
                    accesses.push((Side::Device, address, self.trace.tensor(tensor).bytes, true));
                    // What is on the device already stays there; the write goes to scratch.
                    self.resident[tensor.index()].get_or_insert(address);
                }
                if op.workspace > Bytes::ZERO {
                    accesses.push((Side::Device, placement.workspace.ok_or(NO_ADDRESS)?, op.workspace, true));
                }
            }
            Instr::SwapOut(tensor) => {
                let resident = *self.resident.get(tensor.index()).ok_or("it names an unknown tensor")?;
                let bytes = self.trace.tensor(*tensor).bytes;
                accesses.push((Side::Device, resident.ok_or(NOT_RESIDENT)?, bytes, false));
                accesses.push((Side::Host, self.host(*tensor, placement, iteration)?, bytes, true));
            }
            Instr::SwapIn(tensor) => {
                let host = self.host(*tensor, placement, iteration)?;
                let bytes = self.trace.tensor(*tensor).bytes;
                let &device = placement.device.first().ok_or(NO_ADDRESS)?;
                accesses.push((Side::Host, host, bytes, false));
                accesses.push((Side::Device, device, bytes, true));
                self.resident[tensor.index()] = Some(device);
            }
            Instr::Release(_) => unreachable!("a release has no lane"),
        }
        Ok(accesses)
    }

    /// Where a copy finds its host bytes; inputs and outputs alternate between two slots.
    fn host(&self, tensor: TensorId, placement: &Placement, iteration: usize) -> Result<Bytes, &'static str> {
        let role = self.trace.tensors().get(tensor.index()).ok_or("it names an unknown tensor")?.role;
        let placed = placement.host.ok_or("its placement lacks an address")?;
        match self.own_slots[tensor.index()] {
            Some(slots) if matches!(role, Role::Input | Role::Output) => Ok(slots[iteration % 2]),
            _ => Ok(placed),
        }
    }

    /// Compares an access with the last ones to its bytes, and takes their place.
    fn access(&mut self, side: Side, address: Bytes, size: Bytes, event: Event, start_clock: &Clock) {
        let bytes = &mut self.bytes[side as usize];
        let (start, end) = (address.0, address.0.saturating_add(size.0));
        split(bytes, start);
        split(bytes, end);
        let mut fault: Option<Race> = None;
        let mut compare = |earlier: Option<Event>, from: u64, to: u64| {
            // A kernel may read and write the same bytes: takeovers. Accesses of one lane are in order.
            if let Some(earlier) = earlier
                && earlier.lane != event.lane
                && start_clock[earlier.lane] < earlier.number
            {
                fault.get_or_insert(Race::Unordered {
                    side,
                    start: Bytes(from),
                    end: Bytes(to),
                    first: earlier.access,
                    second: event.access,
                });
            }
        };
        let mut gaps = Vec::new();
        let mut covered = start;
        for (&from, cell) in bytes.range_mut(start..end) {
            if covered < from {
                gaps.push((covered, from));
            }
            covered = cell.end;
            compare(cell.writer, from, cell.end);
            if event.access.write {
                for reader in cell.readers {
                    compare(reader, from, cell.end);
                }
            } else {
                cell.readers[event.lane] = Some(event);
            }
        }
        if covered < end {
            gaps.push((covered, end));
        }
        if event.access.write {
            // One write over all: the pieces become one range again.
            let pieces: Vec<u64> = bytes.range(start..end).map(|(&from, _)| from).collect();
            for from in pieces {
                bytes.remove(&from);
            }
            bytes.insert(start, Cell { end, writer: Some(event), readers: [None; 3] });
        } else {
            for (from, to) in gaps {
                let mut cell = Cell { end: to, writer: None, readers: [None; 3] };
                cell.readers[event.lane] = Some(event);
                bytes.insert(from, cell);
            }
        }
        self.races.extend(fault);
    }
}

fn join(mut clock: Clock, other: Clock) -> Clock {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(theirs);
    }
    clock
}

/// Cuts the range that holds `at` in two, so that one starts there.
fn split(bytes: &mut BTreeMap<u64, Cell>, at: u64) {
    if let Some((&from, cell)) = bytes.range_mut(..at).next_back()
        && cell.end > at
    {
        debug_assert!(from < at);
        let rest = *cell;
        cell.end = at;
        bytes.insert(at, rest);
    }
}

#[cfg(test)]
mod tests;
