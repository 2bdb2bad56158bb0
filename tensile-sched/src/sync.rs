//! Adds the waits that keep lanes from racing, statically.
//!
//! The program is followed over two periods. A map from byte ranges to their last accesses, one for the device and one for the host, tells each instruction which earlier accesses it
//! conflicts with: a read with the last write; a write with the last write and the reads since. Accesses on the same lane are in order anyhow; for those on other lanes
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

use std::collections::BTreeMap;

use crate::id::{Bytes, InstrId, TensorId};
use crate::program::{Instr, Lane, Placed, Synced, Wait};
use crate::trace::Trace;

/// Adds the waits to a placed program.
///
/// The program should be one that `check` accepts. For others the waits mean nothing, but there is no panic as long as ids are those of the trace.
///
/// # Complexity
/// O(a log a) for a accesses of the program.
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

/// Last accesses to a range of bytes.
#[derive(Clone, Copy, Debug)]
struct Segment {
    end: u64,
    writer: Option<Event>,
    /// By lane, the count of the last read since the write; 0 for none.
    readers: Clock,
}

/// Byte ranges that do not overlap, by start, with their last accesses.
#[derive(Debug, Default)]
struct Accesses {
    segments: BTreeMap<u64, Segment>,
}

impl Accesses {
    /// Makes `at` a border between segments if it lies within one.
    fn split(&mut self, at: u64) {
        if let Some((_, segment)) = self.segments.range_mut(..at).next_back()
            && segment.end > at
        {
            let upper = *segment;
            segment.end = at;
            self.segments.insert(at, upper);
        }
    }

    /// Notes a read of `start..end`, and raises `need` to the writes it conflicts with.
    fn read(&mut self, start: u64, end: u64, event: Event, need: &mut Clock) {
        self.split(start);
        self.split(end);
        let mut covered = start;
        let mut holes = Vec::new();
        for (&at, segment) in self.segments.range_mut(start..end) {
            if covered < at {
                holes.push((covered, at));
            }
            covered = segment.end;
            raise(need, segment.writer);
            segment.readers[event.lane.index()] = event.count;
        }
        if covered < end {
            holes.push((covered, end));
        }
        for (at, end) in holes {
            let mut readers = Clock::default();
            readers[event.lane.index()] = event.count;
            self.segments.insert(at, Segment { end, writer: None, readers });
        }
    }

    /// Notes a write of `start..end`, and raises `need` to the accesses it conflicts with.
    fn write(&mut self, start: u64, end: u64, event: Event, need: &mut Clock) {
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.segments.range(start..end).map(|(&at, _)| at).collect();
        for at in gone {
            let segment = self.segments.remove(&at).expect("its key was just listed");
            raise(need, segment.writer);
            for (known, reader) in need.iter_mut().zip(segment.readers) {
                *known = (*known).max(reader);
            }
        }
        self.segments.insert(start, Segment { end, writer: Some(event), readers: Clock::default() });
    }
}

fn raise(need: &mut Clock, event: Option<Event>) {
    if let Some(event) = event {
        need[event.lane.index()] = need[event.lane.index()].max(event.count);
    }
}

struct Follower<'a> {
    trace: &'a Trace,
    placed: &'a Placed,
    /// Instructions of each lane, in program order.
    lanes: [Vec<InstrId>; 3],
    /// Device address of each tensor that is there.
    address: Vec<Option<Bytes>>,
    /// Host slots of each tensor that has its own for odd iterations.
    odd_slot: Vec<Option<Bytes>>,
    device: Accesses,
    host: Accesses,
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
        let mut odd_slot = vec![None; n_tensors];
        for slots in &placed.layout.slots {
            odd_slot[slots.tensor.index()] = Some(slots.host[1]);
        }
        Self {
            trace,
            placed,
            lanes,
            address: vec![None; n_tensors],
            odd_slot,
            device: Accesses::default(),
            host: Accesses::default(),
            clocks: [const { Vec::new() }; 3].map(|mut clocks| {
                clocks.push(Clock::default());
                clocks
            }),
        }
    }

    fn waits(mut self) -> Vec<Vec<Wait>> {
        let first = self.period(0);
        let second = self.period(1);
        debug_assert!(
            first
                .iter()
                .zip(&second)
                .all(|(first, second)| { second.iter().filter(|wait| !wait.previous_iteration).eq(first.iter()) }),
            "the waits within the first iteration are those within every iteration"
        );
        second
    }

    /// Follows one iteration and finds its waits.
    fn period(&mut self, iteration: u32) -> Vec<Vec<Wait>> {
        self.address.fill(None);
        for home in &self.placed.layout.homes {
            self.address[home.tensor.index()] = home.device;
        }
        let mut waits = Vec::with_capacity(self.placed.program.instrs.len());
        for (index, instr) in self.placed.program.instrs.iter().enumerate() {
            let Some(lane) = instr.lane() else {
                if let Instr::Release(tensor) = instr {
                    self.address[tensor.index()] = None;
                }
                waits.push(Vec::new());
                continue;
            };
            let event = Event { lane, count: self.clocks[lane.index()].len() as u32 };
            let need = self.access(index, instr, event, iteration);
            waits.push(self.settle(event, need, iteration));
        }
        waits
    }

    /// Notes all accesses of an instruction; returns the conflicting earlier ones.
    fn access(&mut self, index: usize, instr: &Instr, event: Event, iteration: u32) -> Clock {
        let mut need = Clock::default();
        let placed = self.placed;
        let Some(placement) = placed.layout.placements.get(index) else { return need };
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                let trace = self.trace;
                let op = trace.op(*op);
                for &tensor in &op.reads {
                    let range = self.on_device(tensor, self.address[tensor.index()]);
                    self.device_access(range, false, event, &mut need);
                }
                for &tensor in &op.updates {
                    let range = self.on_device(tensor, self.address[tensor.index()]);
                    self.device_access(range, true, event, &mut need);
                }
                for pair in takeovers {
                    self.address[pair.input.index()] = None;
                }
                for (&tensor, &address) in op.writes.iter().zip(&placement.device) {
                    let range = self.on_device(tensor, Some(address));
                    self.device_access(range, true, event, &mut need);
                    // A tensor that is there already stays where it is; this write goes to scratch.
                    self.address[tensor.index()].get_or_insert(address);
                }
                let workspace = placement.workspace.map(|at| (at.0, at.0.saturating_add(op.workspace.0)));
                self.device_access(workspace, true, event, &mut need);
            }
            Instr::SwapOut(tensor) => {
                let source = self.on_device(*tensor, self.address[tensor.index()]);
                let slot = self.on_host(*tensor, placement.host, iteration);
                self.device_access(source, false, event, &mut need);
                self.host_access(slot, true, event, &mut need);
            }
            Instr::SwapIn(tensor) => {
                let address = placement.device.first().copied();
                let slot = self.on_host(*tensor, placement.host, iteration);
                let target = self.on_device(*tensor, address);
                self.host_access(slot, false, event, &mut need);
                self.device_access(target, true, event, &mut need);
                self.address[tensor.index()] = address;
            }
            Instr::Release(_) => {}
        }
        need
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

    /// Exact bytes of a tensor at an address.
    fn on_device(&self, tensor: TensorId, address: Option<Bytes>) -> Option<(u64, u64)> {
        address.map(|at| (at.0, at.0.saturating_add(self.trace.tensor(tensor).bytes.0)))
    }

    /// Exact bytes of a tensor's slot, whose address in even iterations is `even`.
    fn on_host(&self, tensor: TensorId, even: Option<Bytes>, iteration: u32) -> Option<(u64, u64)> {
        let slot = if iteration % 2 == 1 { self.odd_slot[tensor.index()].or(even) } else { even };
        slot.map(|at| (at.0, at.0.saturating_add(self.trace.tensor(tensor).bytes.0)))
    }

    fn device_access(&mut self, range: Option<(u64, u64)>, is_write: bool, event: Event, need: &mut Clock) {
        access_range(&mut self.device, range, is_write, event, need);
    }

    fn host_access(&mut self, range: Option<(u64, u64)>, is_write: bool, event: Event, need: &mut Clock) {
        access_range(&mut self.host, range, is_write, event, need);
    }
}

fn access_range(accesses: &mut Accesses, range: Option<(u64, u64)>, is_write: bool, event: Event, need: &mut Clock) {
    match range {
        Some((start, end)) if start < end => {
            if is_write {
                accesses.write(start, end, event, need);
            } else {
                accesses.read(start, end, event, need);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
