//! The program that runs at every budget from the floor up: addresses are chosen while the step is walked, and whatever is in the way is swapped out.
//!
//! ```text
//! budget 5          op 0   op 1          op 2
//! address 0..2      a  a   a  a          d  d      op 1 reads b and c, which are on the host: c fits beside a and
//!         2..4      b  b   c  c  b ↑     …         b does not, so something must go. Where even the op's own tensors are in
//!         4..5      …      …                       each other's way, all go and come back one behind the other from 0.
//! ```
//!
//! Where the device's memory comes in blocks, nothing is placed across a border, and where the op's own tensors come back together they go where [`WorkingPlaces`] has packed them.
//!
//! Memory is in use only by what the current op touches and by what nobody has needed to push out yet, so the arena never exceeds the budget: it needs no luck in
//! packing. Copies are hardly hidden, so this is the last resort, for budgets near the floor.

use std::collections::BTreeSet;

use super::facts::Facts;
use super::{Infeasible, place};
use crate::borders::Borders;
use crate::floor::{EndPlaces, WorkingPlaces};
use crate::id::{Bytes, OpId, TensorId};
use crate::program::{BoundaryTensor, Instr, Placed, Program};
use crate::trace::{InPlace, Role};

/// A placed program whose arena is within `limits.device`, which must be at the floor of a mode with swapping or above.
///
/// Without a given boundary every persistent tensor is on the host between steps.
///
/// O(ops × residents²) in the worst case.
///
/// # Errors
/// [`Infeasible::Boundary`] if a given boundary's addresses collide on the host.
pub(crate) fn packed(facts: &Facts<'_>) -> Result<Placed, Infeasible> {
    let mut walk = Walk::start(facts);
    for op in facts.trace.op_ids() {
        walk.op(op);
    }
    walk.end();
    walk.finish()
}

/// Something on the device: `start..end` in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    start: u64,
    end: u64,
    tensor: TensorId,
}

/// What one op still needs a place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Access(TensorId),
    Write(TensorId),
    Workspace,
}

/// An instruction with the device addresses it claims.
struct Step {
    instr: Instr,
    device: Vec<Bytes>,
    workspace: Option<Bytes>,
}

struct Walk<'a> {
    facts: &'a Facts<'a>,
    budget: u64,
    borders: Borders,
    /// By address.
    segments: Vec<Segment>,
    address: Vec<Option<u64>>,
    host_valid: Vec<bool>,
    /// Number of steps after which the current version of a tensor existed on the device.
    made: Vec<usize>,
    steps: Vec<Step>,
    /// Swap-outs to be put in after that many steps: as early as their value exists, so that the copy is done when the bytes are wanted.
    swap_outs: Vec<(usize, TensorId)>,
    boundary: Vec<BoundaryTensor>,
}

impl<'a> Walk<'a> {
    fn start(facts: &'a Facts<'a>) -> Self {
        let n_tensors = facts.trace.tensors().len();
        let mut walk = Self {
            facts,
            budget: facts.budget().0,
            borders: Borders::of(facts.limits),
            segments: Vec::new(),
            address: vec![None; n_tensors],
            host_valid: facts.trace.tensors().iter().map(|t| t.role.is_persistent() || t.role == Role::Input).collect(),
            made: vec![0; n_tensors],
            steps: Vec::new(),
            swap_outs: Vec::new(),
            boundary: Vec::new(),
        };
        for home in facts.limits.boundary.iter().flatten() {
            if let Some(address) = home.device {
                walk.occupy(home.tensor, address.0);
                walk.host_valid[home.tensor.index()] = home.host.is_some();
                walk.boundary.push(BoundaryTensor { tensor: home.tensor, host_valid: home.host.is_some() });
            }
        }
        walk
    }

    fn occupy(&mut self, tensor: TensorId, start: u64) {
        let segment = Segment { start, end: start + self.facts.bytes(tensor), tensor };
        let at = self.segments.partition_point(|other| other.start < start);
        self.segments.insert(at, segment);
        self.address[tensor.index()] = Some(start);
    }

    fn vacate(&mut self, tensor: TensorId) {
        let start = self.address[tensor.index()].take().expect("only residents are vacated");
        let at = self.segments.partition_point(|other| other.start < start);
        self.segments.remove(at);
    }

    fn push(&mut self, instr: Instr, device: Vec<Bytes>) {
        self.steps.push(Step { instr, device, workspace: None });
    }

    fn swap_in(&mut self, tensor: TensorId, start: u64) {
        self.occupy(tensor, start);
        self.push(Instr::SwapIn(tensor), vec![Bytes(start)]);
    }

    /// Makes sure that the host copy is valid.
    fn save(&mut self, tensor: TensorId) {
        if !self.host_valid[tensor.index()] {
            self.host_valid[tensor.index()] = true;
            self.swap_outs.push((self.made[tensor.index()], tensor));
        }
    }

    fn evict(&mut self, tensor: TensorId) {
        self.save(tensor);
        self.vacate(tensor);
        self.push(Instr::Release(tensor), vec![]);
    }

    fn op(&mut self, op: OpId) {
        let of = self.facts.trace.op(op);
        let takeovers = self.facts.live.takeovers(self.facts.trace, op);
        let mut needs: Vec<(u64, Need)> = Vec::new();
        // Borders are no bytes, but nothing lies on both sides.
        let mut blocked: Vec<(u64, u64)> = self.borders.below(self.budget).map(|border| (border, border)).collect();
        for &tensor in of.reads.iter().chain(&of.updates) {
            let bytes = self.facts.bytes(tensor);
            match self.address[tensor.index()] {
                Some(start) => blocked.push((start, start + bytes)),
                None => needs.push((bytes, Need::Access(tensor))),
            }
        }
        for &tensor in &of.writes {
            if !takeovers.iter().any(|pair| pair.output == tensor) {
                needs.push((self.facts.bytes(tensor), Need::Write(tensor)));
            }
        }
        if of.workspace > Bytes::ZERO {
            needs.push((self.facts.workspace[op.index()], Need::Workspace));
        }
        needs.sort_by_key(|&(bytes, _)| std::cmp::Reverse(bytes));
        match self.find(op, &needs, blocked) {
            Some(places) => self.run(op, takeovers, &needs, &places),
            None => self.run_alone(op),
        }
    }

    /// An address for each need, clear of what the op touches; none if those lie so that some need finds no room.
    fn find(&self, op: OpId, needs: &[(u64, Need)], mut blocked: Vec<(u64, u64)>) -> Option<Vec<u64>> {
        let mut places = Vec::with_capacity(needs.len());
        for &(bytes, _) in needs {
            blocked.sort_unstable();
            let place = self.cheapest(op, bytes, &blocked)?;
            blocked.push((place, place + bytes));
            places.push(place);
        }
        Some(places)
    }

    /// The address whose bytes cost least to clear, between the blocked ranges.
    fn cheapest(&self, op: OpId, bytes: u64, blocked: &[(u64, u64)]) -> Option<u64> {
        let mut best: Option<(f64, u64)> = None;
        let mut low = 0;
        for (high, next) in blocked.iter().copied().chain([(self.budget, self.budget)]) {
            if high >= low && high - low >= bytes {
                let inside = self.segments.partition_point(|segment| segment.end <= low);
                let ends = self.segments[inside..].iter().map(|s| s.end).take_while(|&end| end <= high - bytes);
                for start in [low].into_iter().chain(ends) {
                    let cost = self.clearing_cost(op, start, start + bytes);
                    if best.is_none_or(|(least, _)| cost < least) {
                        best = Some((cost, start));
                    }
                }
            }
            low = low.max(next);
        }
        best.map(|(_, start)| start)
    }

    /// Copy time of what lies in a range, less for what is not needed soon.
    fn clearing_cost(&self, op: OpId, start: u64, end: u64) -> f64 {
        let first = self.segments.partition_point(|segment| segment.end <= start);
        let inside = self.segments[first..].iter().take_while(|segment| segment.start < end);
        inside.map(|segment| self.eviction_cost(op, segment.tensor)).sum()
    }

    fn eviction_cost(&self, op: OpId, tensor: TensorId) -> f64 {
        let facts = self.facts;
        let out = if self.host_valid[tensor.index()] { 0 } else { facts.out_time[tensor.index()] };
        let now = facts.start[op.index()];
        let next = match facts.next_use(tensor, op.index() + 1) {
            Some(next) => facts.start[next],
            None => facts.step_time() * 2,
        };
        (out + facts.in_time[tensor.index()]) as f64 / (next.saturating_sub(now) + 1) as f64
    }

    fn run(&mut self, op: OpId, takeovers: Vec<InPlace>, needs: &[(u64, Need)], places: &[u64]) {
        for (&(bytes, _), &start) in needs.iter().zip(places) {
            let overlapping = |segment: &&Segment| segment.start < start + bytes && start < segment.end;
            let victims: Vec<TensorId> = self.segments.iter().filter(overlapping).map(|s| s.tensor).collect();
            for tensor in victims {
                self.evict(tensor);
            }
        }
        let mut written: Vec<(TensorId, u64)> = Vec::new();
        let mut workspace = None;
        for (&(_, need), &start) in needs.iter().zip(places) {
            match need {
                Need::Access(tensor) => self.swap_in(tensor, start),
                Need::Write(tensor) => written.push((tensor, start)),
                Need::Workspace => workspace = Some(Bytes(start)),
            }
        }
        self.kernel(op, takeovers, &written, workspace);
    }

    /// Everything goes; what the op accesses comes back to where it fits together with the op's other writes and its workspace.
    fn run_alone(&mut self, op: OpId) {
        let of = self.facts.trace.op(op);
        for segment in self.segments.clone() {
            self.evict(segment.tensor);
        }
        let mut places = WorkingPlaces::new(self.facts.trace, self.facts.limits, op).addresses.into_iter();
        for (&tensor, place) in of.reads.iter().chain(&of.updates).zip(&mut places) {
            self.swap_in(tensor, place.0);
        }
        let own = of.writes.iter().filter(|&&tensor| !of.in_place.iter().any(|pair| pair.output == tensor));
        let written: Vec<(TensorId, u64)> = own.zip(&mut places).map(|(&tensor, place)| (tensor, place.0)).collect();
        let workspace = places.next();
        self.kernel(op, of.in_place.clone(), &written, workspace);
    }

    /// The kernel itself, and what can go after it.
    fn kernel(&mut self, op: OpId, takeovers: Vec<InPlace>, written: &[(TensorId, u64)], workspace: Option<Bytes>) {
        let facts = self.facts;
        let of = facts.trace.op(op);
        for pair in &takeovers {
            let start = self.address[pair.input.index()].expect("an op's reads are resident");
            self.vacate(pair.input);
            self.occupy(pair.output, start);
        }
        for &(tensor, start) in written {
            self.occupy(tensor, start);
        }
        let address = |&tensor: &TensorId| Bytes(self.address[tensor.index()].expect("writes have been placed"));
        let device = of.writes.iter().map(address).collect();
        self.steps.push(Step { instr: Instr::Run { op, takeovers }, device, workspace });
        for &tensor in of.writes.iter().chain(&of.updates) {
            self.made[tensor.index()] = self.steps.len();
            self.host_valid[tensor.index()] = false;
        }
        for &tensor in &of.writes {
            if facts.role(tensor) == Role::Output {
                self.save(tensor);
            }
        }
        for &tensor in of.reads.iter().chain(&of.writes) {
            if self.address[tensor.index()].is_some() && facts.needed_until[tensor.index()] <= i64::from(op.0) {
                self.vacate(tensor);
                self.push(Instr::Release(tensor), vec![]);
            }
        }
    }

    /// Everything that must be on the device at the end goes to its place, everything else to the host.
    fn end(&mut self) {
        let places = EndPlaces::new(self.facts.trace, self.facts.limits).places;
        let stays = |segment: &Segment| {
            places
                .binary_search_by_key(&segment.tensor, |place| place.0)
                .is_ok_and(|at| places[at].1.0 == segment.start)
        };
        for segment in self.segments.clone() {
            if !stays(&segment) {
                self.evict(segment.tensor);
            }
        }
        for &(tensor, start) in &places {
            if self.address[tensor.index()].is_none() {
                self.swap_in(tensor, start.0);
            }
        }
        for index in 0..self.boundary.len() {
            if self.boundary[index].host_valid {
                self.save(self.boundary[index].tensor);
            }
        }
    }

    fn finish(self) -> Result<Placed, Infeasible> {
        let Walk { facts, steps, mut swap_outs, boundary, .. } = self;
        swap_outs.sort_by_key(|&(after, _)| after);
        let mut all: Vec<Step> = Vec::with_capacity(steps.len() + swap_outs.len());
        let mut swap_outs = swap_outs.into_iter().peekable();
        let swap_out = |tensor| Step { instr: Instr::SwapOut(tensor), device: vec![], workspace: None };
        for (index, step) in steps.into_iter().enumerate() {
            while let Some((_, tensor)) = swap_outs.next_if(|&(after, _)| after <= index) {
                all.push(swap_out(tensor));
            }
            all.push(step);
        }
        all.extend(swap_outs.map(|(_, tensor)| swap_out(tensor)));
        let instrs = all.iter().map(|step| step.instr.clone()).collect();
        // The layout's own device addresses may need more than the budget; its host addresses are kept in any case.
        let mut placed = place(facts.trace, facts.limits, &Program { boundary, instrs })?;
        if placed.layout.arena <= facts.budget() {
            return Ok(placed);
        }
        let layout = &mut placed.layout;
        let mut arena = facts.limits.boundary.as_ref().map_or(Bytes::ZERO, |_| {
            let homes = layout.homes.iter().filter_map(|home| Some(home.device? + Bytes(facts.bytes(home.tensor))));
            homes.max().unwrap_or_default()
        });
        for (step, placement) in all.into_iter().zip(&mut layout.placements) {
            let claimed: BTreeSet<(Bytes, u64)> = match &step.instr {
                Instr::Run { op, .. } | Instr::Rerun { op, .. } => {
                    let of = facts.trace.op(*op);
                    let writes = of.writes.iter().zip(&step.device).map(|(&t, &start)| (start, facts.bytes(t)));
                    writes.chain(step.workspace.map(|start| (start, facts.workspace[op.index()]))).collect()
                }
                Instr::SwapIn(tensor) => step.device.iter().map(|&start| (start, facts.bytes(*tensor))).collect(),
                Instr::SwapOut(_) | Instr::Release(_) => BTreeSet::new(),
            };
            arena = claimed.iter().map(|&(start, bytes)| start + Bytes(bytes)).fold(arena, Bytes::max);
            placement.device = step.device;
            placement.workspace = step.workspace;
        }
        layout.arena = arena;
        Ok(placed)
    }
}
