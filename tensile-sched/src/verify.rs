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

use std::fmt;

use crate::id::{Bytes, InstrId, TensorId};
use crate::program::{Instr, Placement, Synced};
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

/// For each lane, how many of its instructions have ended, counted over all iterations.
type Clock = [u32; 3];

/// Proves that lanes and waits order all conflicting accesses of a program that follows itself.
///
/// Any program may be given: the answer is a list of faults, never a panic. For programs that [`check`](crate::check::check) refuses an acceptance says
/// nothing.
///
/// # Errors
/// The faults found, at least one and at most 100: waits that are not allowed, or else accesses that nothing orders.
///
/// # Complexity
/// n log n in the number of residencies and copies, and linear in the number of accesses and waits, as long as accesses mostly go to whole residencies.
pub fn verify(trace: &Trace, synced: &Synced) -> Result<(), Vec<Race>> {
    let faults = wait_faults(synced);
    if !faults.is_empty() {
        return Err(faults);
    }
    let touched = Touched::by(trace, synced);
    let mut unrolled = Unrolled::new(synced, &touched);
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

/// Bytes of one arena.
#[derive(Clone, Copy)]
struct Range {
    side: Side,
    start: u64,
    end: u64,
}

/// An access to a range: which one in even and in odd iterations.
#[derive(Clone, Copy)]
struct Touch {
    ranges: [u32; 2],
    write: bool,
}

/// All accesses of one iteration. Every iteration begins with the same tensors on the device, so they are the same in all of them, but for the
/// alternating host slots of inputs and outputs.
struct Touched<'a> {
    trace: &'a Trace,
    /// One for each residency and each copy's host bytes.
    ranges: Vec<Range>,
    touches: Vec<Touch>,
    /// End of each instruction's part of `touches`.
    ends: Vec<u32>,
    /// Instructions without known accesses, in order.
    malformed: Vec<(InstrId, &'static str)>,
    /// Range of each tensor that is on the device.
    resident: Vec<Option<u32>>,
    /// Ranges of the two host slots of inputs and outputs.
    slots: Vec<Option<[u32; 2]>>,
}

const UNKNOWN_TENSOR: &str = "it names an unknown tensor";
const NOT_RESIDENT: &str = "it needs a tensor that is not on the device";
const NO_ADDRESS: &str = "its placement lacks an address";

impl<'a> Touched<'a> {
    fn by(trace: &'a Trace, synced: &Synced) -> Self {
        let (n_instrs, n_tensors) = (synced.instrs().len(), trace.tensors().len());
        let mut touched = Self {
            trace,
            ranges: Vec::with_capacity(n_instrs),
            touches: Vec::with_capacity(4 * n_instrs),
            ends: Vec::with_capacity(n_instrs),
            malformed: Vec::new(),
            resident: vec![None; n_tensors],
            slots: vec![None; n_tensors],
        };
        for home in synced.layout().homes.iter().filter(|home| home.tensor.index() < n_tensors) {
            let bytes = trace.tensor(home.tensor).bytes;
            touched.resident[home.tensor.index()] = home.device.map(|at| touched.range(Side::Device, at, bytes));
        }
        for slots in synced.layout().slots.iter().filter(|slots| slots.tensor.index() < n_tensors) {
            let tensor = trace.tensor(slots.tensor);
            if matches!(tensor.role, Role::Input | Role::Output) {
                let ranges = slots.host.map(|at| touched.range(Side::Host, at, tensor.bytes));
                touched.slots[slots.tensor.index()] = Some(ranges);
            }
        }
        for (index, (instr, placement)) in synced.instrs().iter().zip(&synced.layout().placements).enumerate() {
            let n_before = touched.touches.len();
            if let Err(reason) = touched.instr(instr, placement) {
                touched.touches.truncate(n_before);
                touched.malformed.push((InstrId::from_index(index), reason));
            }
            touched.ends.push(touched.touches.len() as u32);
        }
        touched
    }

    fn range(&mut self, side: Side, at: Bytes, bytes: Bytes) -> u32 {
        self.ranges.push(Range { side, start: at.0, end: at.0.saturating_add(bytes.0) });
        self.ranges.len() as u32 - 1
    }

    fn touch(&mut self, range: u32, write: bool) {
        self.touches.push(Touch { ranges: [range; 2], write });
    }

    /// Notes the accesses of an instruction, and moves tensors on and off the device.
    fn instr(&mut self, instr: &Instr, placement: &Placement) -> Result<(), &'static str> {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                let trace = self.trace;
                let op = trace.ops().get(op.index()).ok_or("it names an unknown op")?;
                for (list, writes) in [(&op.reads, false), (&op.updates, true)] {
                    for &tensor in list {
                        let range = self.resident[tensor.index()].ok_or(NOT_RESIDENT)?;
                        self.touch(range, writes);
                    }
                }
                for pair in takeovers {
                    *self.resident.get_mut(pair.input.index()).ok_or(UNKNOWN_TENSOR)? = None;
                }
                for (index, &tensor) in op.writes.iter().enumerate() {
                    let &address = placement.device.get(index).ok_or(NO_ADDRESS)?;
                    let range = self.range(Side::Device, address, trace.tensor(tensor).bytes);
                    self.touch(range, true);
                    // What is on the device already stays there; the write goes to scratch.
                    self.resident[tensor.index()].get_or_insert(range);
                }
                if op.workspace > Bytes::ZERO {
                    let range = self.range(Side::Device, placement.workspace.ok_or(NO_ADDRESS)?, op.workspace);
                    self.touch(range, true);
                }
            }
            Instr::SwapOut(tensor) => {
                let resident = *self.resident.get(tensor.index()).ok_or(UNKNOWN_TENSOR)?;
                self.touch(resident.ok_or(NOT_RESIDENT)?, false);
                self.touch_host(*tensor, placement, true)?;
            }
            Instr::SwapIn(tensor) => {
                self.touch_host(*tensor, placement, false)?;
                let &address = placement.device.first().ok_or(NO_ADDRESS)?;
                let range = self.range(Side::Device, address, self.trace.tensor(*tensor).bytes);
                self.touch(range, true);
                self.resident[tensor.index()] = Some(range);
            }
            Instr::Release(tensor) => *self.resident.get_mut(tensor.index()).ok_or(UNKNOWN_TENSOR)? = None,
        }
        Ok(())
    }

    /// A copy's access to its host bytes; inputs and outputs alternate between two slots.
    fn touch_host(&mut self, tensor: TensorId, placement: &Placement, write: bool) -> Result<(), &'static str> {
        let bytes = self.trace.tensors().get(tensor.index()).ok_or(UNKNOWN_TENSOR)?.bytes;
        let placed = placement.host.ok_or(NO_ADDRESS)?;
        let ranges = match self.slots[tensor.index()] {
            Some(ranges) => ranges,
            None => [self.range(Side::Host, placed, bytes); 2],
        };
        self.touches.push(Touch { ranges, write });
        Ok(())
    }
}

/// All starts and ends of ranges, in order: ranges are then pairs of small numbers.
struct Borders {
    /// Of the device, then of the host.
    bytes: Vec<u64>,
    n_device: usize,
    /// The ranges' places in `bytes`.
    ranges: Vec<(u32, u32)>,
}

impl Borders {
    fn of(ranges: &[Range]) -> Self {
        let of_side = |side: Side| {
            let ranges = ranges.iter().filter(|range| range.side == side);
            let mut bytes: Vec<u64> = ranges.flat_map(|range| [range.start, range.end]).collect();
            bytes.sort_unstable();
            bytes.dedup();
            bytes
        };
        let (device, host) = (of_side(Side::Device), of_side(Side::Host));
        let places = ranges.iter().map(|range| {
            let (bytes, offset) = match range.side {
                Side::Device => (&device, 0),
                Side::Host => (&host, device.len()),
            };
            let place = |at: u64| (offset + bytes.partition_point(|&border| border < at)) as u32;
            (place(range.start), place(range.end))
        });
        let ranges = places.collect();
        let n_device = device.len();
        Self { bytes: [device, host].concat(), n_device, ranges }
    }

    fn side(&self, place: u32) -> Side {
        if (place as usize) < self.n_device { Side::Device } else { Side::Host }
    }
}

/// Bytes between two borders that the same accesses have touched last. Cells lie side by side without gaps.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// The border at its end; 0 if no cell starts at this border.
    end: u32,
    /// Lane of the last writer, whose number is 0 if there is none. Numbers count the instructions of a lane over all iterations, from 1.
    writer_lane: u32,
    writer: u32,
    /// By lane, the number of the last reader since then.
    readers: Clock,
}

/// An instruction in one of the iterations.
#[derive(Clone, Copy)]
struct Event {
    lane: usize,
    number: u32,
}

struct Unrolled<'a> {
    synced: &'a Synced,
    touched: &'a Touched<'a>,
    borders: Borders,
    /// Instructions of each lane.
    lanes: [Vec<InstrId>; 3],
    /// Instructions issued on each lane so far.
    ended: Clock,
    /// The same at the end of the iteration before the previous one: all of that has ended.
    drained: Clock,
    /// For each lane, what has ended once its last issued instruction has.
    now: [Clock; 3],
    /// What has ended once the instruction has, in this iteration and in the one before.
    clocks: Vec<Clock>,
    before: Vec<Clock>,
    /// By border, the cell that starts there.
    cells: Vec<Cell>,
    /// A bit for each border at which a cell starts.
    starts: Vec<u64>,
    races: Vec<Race>,
}

impl<'a> Unrolled<'a> {
    fn new(synced: &'a Synced, touched: &'a Touched<'a>) -> Self {
        let borders = Borders::of(&touched.ranges);
        let mut lanes: [Vec<InstrId>; 3] = Default::default();
        for (index, instr) in synced.instrs().iter().enumerate() {
            if let Some(lane) = instr.lane() {
                lanes[lane.index()].push(InstrId::from_index(index));
            }
        }
        let n_borders = borders.bytes.len();
        let mut unrolled = Self {
            synced,
            touched,
            lanes,
            ended: [0; 3],
            drained: [0; 3],
            now: [[0; 3]; 3],
            clocks: vec![[0; 3]; synced.instrs().len()],
            before: Vec::new(),
            cells: vec![Cell::default(); n_borders],
            starts: vec![0; n_borders.div_ceil(64)],
            races: Vec::new(),
            borders,
        };
        // At first one cell for all of the device, one for all of the host.
        for (start, end) in [(0, unrolled.borders.n_device), (unrolled.borders.n_device, n_borders)] {
            if start < end {
                unrolled.set(start as u32, Cell { end: end as u32, ..Cell::default() });
            }
        }
        unrolled
    }

    fn iterate(&mut self, iteration: usize) {
        let (synced, touched) = (self.synced, self.touched);
        let ended_before = self.ended;
        if iteration > 0 {
            let reused = std::mem::take(&mut self.before);
            self.before = std::mem::replace(&mut self.clocks, reused);
            self.clocks.resize(synced.instrs().len(), [0; 3]);
        }
        let mut malformed = touched.malformed.iter().peekable();
        let mut begin = 0;
        for (index, instr) in synced.instrs().iter().enumerate() {
            let id = InstrId::from_index(index);
            let end = touched.ends[index] as usize;
            if let Some(lane) = instr.lane() {
                let lane = lane.index();
                let start = self.start_clock(index, lane);
                self.ended[lane] += 1;
                let event = Event { lane, number: self.ended[lane] };
                for touch in &touched.touches[begin..end] {
                    let (from, to) = self.borders.ranges[touch.ranges[iteration % 2] as usize];
                    self.access(from, to, touch.write, event, &start);
                }
                let mut clock = start;
                clock[lane] = event.number;
                self.clocks[index] = clock;
                self.now[lane] = clock;
            }
            begin = end;
            if let Some(&(_, reason)) = malformed.next_if(|&&(there, _)| there == id) {
                self.races.push(Race::Malformed { instr: id, reason });
            }
            if self.races.len() >= MOST_RACES {
                return;
            }
        }
        self.drained = ended_before;
    }

    /// What has certainly ended when an instruction starts.
    fn start_clock(&self, index: usize, lane: usize) -> Clock {
        let mut clock = join(self.now[lane], self.drained);
        for wait in &self.synced.waits[index] {
            // `before` is empty in the first iteration, where these waits are fulfilled from the start.
            let clocks = if wait.previous_iteration { &self.before } else { &self.clocks };
            if let Some(&ended) = clocks.get(wait.on.index()) {
                clock = join(clock, ended);
            }
        }
        clock
    }

    /// Compares an access with the last ones to its bytes, and takes their place.
    fn access(&mut self, from: u32, to: u32, write: bool, event: Event, start_clock: &Clock) {
        if from >= to {
            return;
        }
        if self.cells[from as usize].end != to {
            self.cut(from);
            self.cut(to);
        }
        let mut fault = None;
        let mut at = from;
        while at < to {
            let cell = &mut self.cells[at as usize];
            // A kernel may read and write the same bytes: takeovers. Accesses of one lane are in order.
            let races = |lane: usize, number: u32| lane != event.lane && start_clock[lane] < number;
            if races(cell.writer_lane as usize, cell.writer) {
                fault.get_or_insert((at, cell.end, cell.writer_lane as usize, cell.writer, true));
            }
            if write {
                for (lane, &number) in cell.readers.iter().enumerate() {
                    if races(lane, number) {
                        fault.get_or_insert((at, cell.end, lane, number, false));
                    }
                }
            } else {
                cell.readers[event.lane] = event.number;
            }
            let end = cell.end;
            if write && at > from {
                // One write over all: the pieces become one cell again.
                *cell = Cell::default();
                self.starts[at as usize / 64] &= !(1 << (at % 64));
            }
            at = end;
        }
        if write {
            let writer_lane = event.lane as u32;
            self.cells[from as usize] = Cell { end: to, writer_lane, writer: event.number, readers: [0; 3] };
        }
        if let Some((start, end, lane, number, first_writes)) = fault {
            self.races.push(Race::Unordered {
                side: self.borders.side(start),
                start: Bytes(self.borders.bytes[start as usize]),
                end: Bytes(self.borders.bytes[end as usize]),
                first: self.named(Event { lane, number }, first_writes),
                second: self.named(event, write),
            });
        }
    }

    fn named(&self, event: Event, write: bool) -> Access {
        let (lane, index) = (&self.lanes[event.lane], event.number as usize - 1);
        Access { instr: lane[index % lane.len()], iteration: index / lane.len(), write }
    }

    fn set(&mut self, at: u32, cell: Cell) {
        self.cells[at as usize] = cell;
        self.starts[at as usize / 64] |= 1 << (at % 64);
    }

    /// Cuts the cell that holds `at` in two, so that one starts there.
    fn cut(&mut self, at: u32) {
        if self.cells.get(at as usize).is_none_or(|cell| cell.end != 0) {
            return;
        }
        let mut word = at as usize / 64;
        let mut below = self.starts[word] & ((1 << (at % 64)) - 1);
        while below == 0 {
            let Some(lower) = word.checked_sub(1) else { return };
            word = lower;
            below = self.starts[word];
        }
        let holder = (word * 64) as u32 + below.ilog2();
        let cell = self.cells[holder as usize];
        if cell.end > at {
            self.cells[holder as usize].end = at;
            self.set(at, cell);
        }
    }
}

fn join(mut clock: Clock, other: Clock) -> Clock {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(theirs);
    }
    clock
}

#[cfg(test)]
mod tests;
