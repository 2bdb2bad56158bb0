//! Waits of a program whose bytes are interchangeable: for data, and for enough free bytes.

use super::Step;
use crate::id::{InstrId, OpId, TensorId};
use crate::program::{Instr, Lane, Program, Wait};
use crate::trace::{InPlace, Role};

/// An instruction in one of two iterations; later ones are greater.
type Event = (u32, usize);

/// The last event of each lane.
type Touches = [Option<Event>; 3];

/// Bytes that nobody holds.
#[derive(Clone, Copy, Debug)]
struct Free {
    bytes: u64,
    touches: Touches,
}

/// A tensor's bytes, on the device and on the host.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    resident: bool,
    touches: Touches,
    /// What made its value on the device.
    made: Option<(Lane, Event)>,
    /// Last copies to and from its host slot.
    sent: Option<Event>,
    fetched: Option<Event>,
}

/// The waits of a program in the steady state: it is followed over two periods, and those of the second count.
pub(super) fn waits(step: &Step<'_>, program: &Program) -> Vec<Vec<Wait>> {
    let mut follower = Follower {
        step,
        places: vec![Place::default(); step.trace.tensors().len()],
        free: vec![Free { bytes: step.limits.device.0, touches: Touches::default() }],
        need: Touches::default(),
    };
    for one in &program.boundary {
        follower.places[one.tensor.index()].resident = true;
        follower.free[0].bytes -= step.bytes[one.tensor.index()];
    }
    follower.period(program, 0);
    follower.period(program, 1)
}

struct Follower<'a> {
    step: &'a Step<'a>,
    places: Vec<Place>,
    free: Vec<Free>,
    /// What the instruction at hand waits for.
    need: Touches,
}

impl Follower<'_> {
    fn period(&mut self, program: &Program, iteration: u32) -> Vec<Vec<Wait>> {
        let mut waits = Vec::with_capacity(program.instrs.len());
        for (index, instr) in program.instrs.iter().enumerate() {
            self.need = Touches::default();
            let event = (iteration, index);
            match instr {
                Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => self.kernel(*op, takeovers, event),
                Instr::SwapOut(tensor) => {
                    let place = self.places[tensor.index()];
                    self.wait_for_value(*tensor);
                    self.wait(Lane::In, place.fetched);
                    let place = &mut self.places[tensor.index()];
                    place.touches[Lane::Out.index()] = Some(event);
                    place.sent = Some(event);
                }
                Instr::SwapIn(tensor) => {
                    self.wait(Lane::Out, self.places[tensor.index()].sent);
                    self.claim(*tensor, Lane::In, event);
                    self.places[tensor.index()].fetched = Some(event);
                }
                Instr::Release(tensor) => self.release(*tensor),
            }
            let own = instr.lane();
            let other = |lane: &Lane| own.is_some() && own != Some(*lane);
            let mut list: Vec<Wait> = Lane::ALL
                .into_iter()
                .filter(other)
                .filter_map(|lane| self.need[lane.index()])
                .map(|(of, on)| Wait { on: InstrId::from_index(on), previous_iteration: of != iteration })
                .collect();
            list.sort_unstable();
            waits.push(list);
        }
        for tensor in self.step.trace.tensor_ids() {
            let role = self.step.trace.tensor(tensor).role;
            if role.is_persistent() {
                continue;
            }
            if self.places[tensor.index()].resident {
                self.release(tensor);
            }
            if matches!(role, Role::Input | Role::Output) {
                // The next step uses the other slot.
                let place = &mut self.places[tensor.index()];
                (place.sent, place.fetched) = (None, None);
            }
        }
        waits
    }

    fn wait(&mut self, lane: Lane, event: Option<Event>) {
        let need = &mut self.need[lane.index()];
        *need = (*need).max(event);
    }

    fn wait_for_value(&mut self, tensor: TensorId) {
        if let Some((lane, event)) = self.places[tensor.index()].made {
            self.wait(lane, Some(event));
        }
    }

    fn wait_for_all(&mut self, touches: Touches) {
        for lane in Lane::ALL {
            self.wait(lane, touches[lane.index()]);
        }
    }

    fn kernel(&mut self, op: OpId, takeovers: &[InPlace], event: Event) {
        let of = self.step.trace.op(op);
        for &tensor in of.reads.iter().chain(&of.updates) {
            self.wait_for_value(tensor);
            self.places[tensor.index()].touches[Lane::Compute.index()] = Some(event);
        }
        for &tensor in &of.updates {
            self.wait_for_all(self.places[tensor.index()].touches);
            self.places[tensor.index()].made = Some((Lane::Compute, event));
        }
        for pair in takeovers {
            let place = &mut self.places[pair.input.index()];
            place.resident = false;
            let touches = place.touches;
            self.wait_for_all(touches);
            self.settle(pair.output, Lane::Compute, event);
        }
        let mut passing = self.step.limits.occupied(of.workspace).0;
        for &tensor in &of.writes {
            if takeovers.iter().any(|pair| pair.output == tensor) {
                continue;
            }
            if self.places[tensor.index()].resident {
                passing += self.step.bytes[tensor.index()];
            } else {
                self.claim(tensor, Lane::Compute, event);
            }
        }
        self.take(passing, Lane::Compute);
        let mut touches = Touches::default();
        touches[Lane::Compute.index()] = Some(event);
        self.free.push(Free { bytes: passing, touches });
    }

    fn claim(&mut self, tensor: TensorId, lane: Lane, event: Event) {
        self.take(self.step.bytes[tensor.index()], lane);
        self.settle(tensor, lane, event);
    }

    /// A tensor's value is made on bytes that are its own now.
    fn settle(&mut self, tensor: TensorId, lane: Lane, event: Event) {
        let place = &mut self.places[tensor.index()];
        place.resident = true;
        place.touches = Touches::default();
        place.touches[lane.index()] = Some(event);
        place.made = Some((lane, event));
    }

    fn release(&mut self, tensor: TensorId) {
        let place = &mut self.places[tensor.index()];
        place.resident = false;
        self.free.push(Free { bytes: self.step.bytes[tensor.index()], touches: place.touches });
    }

    /// Takes bytes out of the pool: first those that only the own lane has touched, latest first, then those that others have left earliest.
    fn take(&mut self, mut bytes: u64, lane: Lane) {
        self.free.sort_by_key(|free| {
            let others = Lane::ALL.into_iter().filter(|&other| other != lane);
            let latest = others.filter_map(|other| free.touches[other.index()]).max();
            (latest, std::cmp::Reverse(free.touches[lane.index()]))
        });
        for index in 0..self.free.len() {
            if bytes == 0 {
                break;
            }
            let part = bytes.min(self.free[index].bytes);
            if part > 0 {
                self.wait_for_all(self.free[index].touches);
                self.free[index].bytes -= part;
                bytes -= part;
            }
        }
        assert_eq!(bytes, 0, "the builder keeps to the budget");
        self.free.retain(|free| free.bytes > 0);
    }
}
