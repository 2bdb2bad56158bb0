//! Adds the waits that keep lanes from racing, statically.
//!
//! The program is followed over two periods. Every residency, and every host copy, has a record of its last accesses: the last write and the reads since. A map of the
//! bytes says whose they were last; only a claim changes it, and the claim conflicts with the records of all whose bytes it takes. A read conflicts with the last write; a
//! write with the last write and the reads since. Accesses on the same lane are in order anyhow; for those on other lanes
//! the instruction waits. The waits found in the second period, when there is a period before, are those of every iteration:
//!
//! ```text
//!             iteration i−1                     iteration i
//! compute  …  [ update w ]                      [ reads w ] …
//! out                      [ SwapOut w ]                            SwapOut waits for the update (this iteration)
//! in                                            [ SwapIn w ]        SwapIn waits for SwapOut (the iteration before)
//! ```
//!
//! Since lanes run in order, one wait on the latest conflicting instruction of a lane covers all earlier ones of it, so an instruction needs two waits at most. A wait that
//! follows from others is dropped: each instruction has a vector clock, how far each lane is known to be once it has ended.
//!
//! Why the drop is safe in the first iteration, where waits on the iteration before are void: what is known of the *same* iteration can only have come
//! through waits within that iteration, because an instruction of the iteration before knows nothing of this one. Conflicts two iterations back need no waits: at most two iterations are in flight.

mod owners;

use crate::id::{Bytes, InstrId, TensorId};
use crate::program::{Instr, Lane, Placed, Placement, Synced, Wait};
use crate::trace::Trace;
use owners::Owners;

/// Adds the waits to a placed program.
///
/// The program should be one that `check` accepts. For others the waits mean nothing, but there is no panic as long as ids are those of the trace.
///
/// # Complexity
/// O(a + r log r) for a accesses of the program and r residencies.
pub fn sync(trace: &Trace, placed: Placed) -> Synced {
    let waits = Follower::new(trace, &placed).waits();
    Synced { placed, waits }
}

/// How many instructions of each lane have ended, counted over both periods.
type Clock = [u32; 3];

/// One instruction in one period: the `count`-th of its lane (from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    lane: Lane,
    count: u32,
}

/// Last accesses to the bytes of a residency or host copy.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    writer: Option<Event>,
    /// By lane, the count of the last read since the write; 0 for none.
    readers: Clock,
}

impl Record {
    /// Notes a read, and raises `need` to the write it conflicts with.
    fn read(&mut self, event: Event, need: &mut Clock) {
        raise(need, self.writer);
        self.readers[event.lane.index()] = event.count;
    }

    /// Notes a write, and raises `need` to the accesses it conflicts with.
    fn write(&mut self, event: Event, need: &mut Clock) {
        self.conflict(need);
        *self = Self { writer: Some(event), readers: Clock::default() };
    }

    /// Raises `need` to all accesses.
    fn conflict(&self, need: &mut Clock) {
        raise(need, self.writer);
        for (known, reader) in need.iter_mut().zip(self.readers) {
            *known = (*known).max(reader);
        }
    }
}

fn raise(need: &mut Clock, event: Option<Event>) {
    if let Some(event) = event {
        need[event.lane.index()] = need[event.lane.index()].max(event.count);
    }
}

/// One arena: whose bytes are whose, and when they were accessed.
#[derive(Debug, Default)]
struct Arena {
    owners: Owners,
    records: Vec<Record>,
}

impl Arena {
    /// Gives `bytes` at `at` to a new record, without an access.
    fn settle(&mut self, at: Bytes, bytes: Bytes) -> u32 {
        self.take(at, bytes, |_| {})
    }

    /// The same with a write, which conflicts with all accesses to those bytes.
    fn claim(&mut self, at: Bytes, bytes: Bytes, event: Event, need: &mut Clock) -> u32 {
        let id = self.take(at, bytes, |record| record.conflict(need));
        self.records[id as usize].writer = Some(event);
        id
    }

    fn take(&mut self, at: Bytes, bytes: Bytes, mut lost: impl FnMut(&Record)) -> u32 {
        let id = self.records.len() as u32;
        let records = &self.records;
        self.owners.take(at.0, at.0.saturating_add(bytes.0), id, |other| lost(&records[other as usize]));
        self.records.push(Record::default());
        id
    }

    fn read(&mut self, record: Option<u32>, event: Event, need: &mut Clock) {
        if let Some(record) = record {
            self.records[record as usize].read(event, need);
        }
    }

    fn write(&mut self, record: Option<u32>, event: Event, need: &mut Clock) {
        if let Some(record) = record {
            self.records[record as usize].write(event, need);
        }
    }
}

struct Follower<'a> {
    trace: &'a Trace,
    placed: &'a Placed,
    /// Instructions of each lane, in program order.
    lanes: [Vec<InstrId>; 3],
    device: Arena,
    host: Arena,
    /// Device record of each tensor that is there.
    resident: Vec<Option<u32>>,
    /// Host records of the tensor's own slots, for even and odd iterations.
    slots: Vec<Option<[u32; 2]>>,
    /// Host record of the tensor's copy elsewhere.
    copy: Vec<Option<u32>>,
    /// Clock after each event of each lane; the first entry is that of the start.
    clocks: [Vec<Clock>; 3],
}

impl<'a> Follower<'a> {
    fn new(trace: &'a Trace, placed: &'a Placed) -> Self {
        let n_tensors = trace.tensors().len();
        let mut lanes: [Vec<InstrId>; 3] = Default::default();
        for (index, instr) in placed.program.instrs.iter().enumerate() {
            if let Some(lane) = instr.lane() {
                lanes[lane.index()].push(InstrId::from_index(index));
            }
        }
        let clocks = lanes.each_ref().map(|lane| {
            let mut clocks = Vec::with_capacity(2 * lane.len() + 1);
            clocks.push(Clock::default());
            clocks
        });
        let mut follower = Self {
            trace,
            placed,
            lanes,
            device: Arena::default(),
            host: Arena::default(),
            resident: vec![None; n_tensors],
            slots: vec![None; n_tensors],
            copy: vec![None; n_tensors],
            clocks,
        };
        for home in &placed.layout.homes {
            let (index, bytes) = (home.tensor.index(), trace.tensor(home.tensor).bytes);
            follower.resident[index] = home.device.map(|at| follower.device.settle(at, bytes));
            follower.slots[index] = home.host.map(|at| [follower.host.settle(at, bytes); 2]);
        }
        for slots in &placed.layout.slots {
            let bytes = trace.tensor(slots.tensor).bytes;
            follower.slots[slots.tensor.index()] = Some(slots.host.map(|at| follower.host.settle(at, bytes)));
        }
        follower
    }

    fn waits(mut self) -> Vec<Vec<Wait>> {
        self.period(0);
        // What does not persist is forgotten.
        for tensor in self.trace.tensor_ids() {
            self.copy[tensor.index()] = None;
            if !self.trace.tensor(tensor).role.is_persistent() {
                self.resident[tensor.index()] = None;
            }
        }
        self.period(1)
    }

    /// Follows one iteration and finds its waits.
    fn period(&mut self, iteration: u32) -> Vec<Vec<Wait>> {
        let placed = self.placed;
        let mut waits = Vec::with_capacity(placed.program.instrs.len());
        for (instr, placement) in placed.program.instrs.iter().zip(&placed.layout.placements) {
            let Some(lane) = instr.lane() else {
                if let Instr::Release(tensor) = instr {
                    self.resident[tensor.index()] = None;
                }
                waits.push(Vec::new());
                continue;
            };
            let event = Event { lane, count: self.clocks[lane.index()].len() as u32 };
            let need = self.access(instr, placement, event, iteration);
            waits.push(self.settle(event, need, iteration));
        }
        waits.resize(placed.program.instrs.len(), Vec::new());
        waits
    }

    /// Notes all accesses of an instruction; returns the conflicting earlier ones.
    fn access(&mut self, instr: &Instr, placement: &Placement, event: Event, iteration: u32) -> Clock {
        let mut need = Clock::default();
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                let trace = self.trace;
                let op = trace.op(*op);
                for &tensor in &op.reads {
                    self.device.read(self.resident[tensor.index()], event, &mut need);
                }
                for &tensor in &op.updates {
                    self.device.write(self.resident[tensor.index()], event, &mut need);
                }
                for pair in takeovers {
                    self.resident[pair.input.index()] = None;
                }
                for (&tensor, &address) in op.writes.iter().zip(&placement.device) {
                    let record = self.device.claim(address, trace.tensor(tensor).bytes, event, &mut need);
                    // A tensor that is there already stays where it is; this write goes to scratch.
                    self.resident[tensor.index()].get_or_insert(record);
                }
                if let Some(address) = placement.workspace {
                    self.device.claim(address, op.workspace, event, &mut need);
                }
            }
            Instr::SwapOut(tensor) => {
                self.device.read(self.resident[tensor.index()], event, &mut need);
                let slot = self.slot(*tensor, iteration);
                if slot.is_some() {
                    self.host.write(slot, event, &mut need);
                } else if let Some(address) = placement.host {
                    let bytes = self.trace.tensor(*tensor).bytes;
                    self.copy[tensor.index()] = Some(self.host.claim(address, bytes, event, &mut need));
                }
            }
            Instr::SwapIn(tensor) => {
                let slot = self.slot(*tensor, iteration).or(self.copy[tensor.index()]);
                self.host.read(slot, event, &mut need);
                let bytes = self.trace.tensor(*tensor).bytes;
                let address = placement.device.first();
                self.resident[tensor.index()] =
                    address.map(|&address| self.device.claim(address, bytes, event, &mut need));
            }
            Instr::Release(_) => {}
        }
        need
    }

    /// Host record of a tensor's own slot.
    fn slot(&self, tensor: TensorId, iteration: u32) -> Option<u32> {
        self.slots[tensor.index()].map(|slots| slots[iteration as usize % 2])
    }

    /// Keeps of the conflicts those that nothing else implies, as waits, and sets the clock of `event`.
    fn settle(&mut self, event: Event, need: Clock, iteration: u32) -> Vec<Wait> {
        let own = event.lane.index();
        let mut clock = *self.clocks[own].last().expect("the clock of the start is there");
        let clock_of = |lane: usize| self.clocks[lane][need[lane] as usize];
        let mut waits = Vec::new();
        let others = [(own + 1) % 3, (own + 2) % 3];
        for (lane, other) in [(others[0], others[1]), (others[1], others[0])] {
            let is_known = clock[lane] >= need[lane];
            // Both cannot imply each other: each event's clock counts only what came before it.
            let is_implied = need[other] > clock[other] && clock_of(other)[lane] >= need[lane];
            if is_known || is_implied {
                continue;
            }
            let n_lane = self.lanes[lane].len();
            let index = need[lane] as usize - 1;
            waits.push(Wait {
                on: self.lanes[lane][index % n_lane],
                previous_iteration: (index / n_lane) as u32 != iteration,
            });
        }
        for lane in others {
            if need[lane] > clock[lane] {
                for (known, through) in clock.iter_mut().zip(clock_of(lane)) {
                    *known = (*known).max(through);
                }
            }
        }
        clock[own] = event.count;
        self.clocks[own].push(clock);
        waits.sort_unstable();
        waits
    }
}

#[cfg(test)]
mod tests;
