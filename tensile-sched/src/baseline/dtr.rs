//! `dtr`: dynamic tensor rematerialization (Kirisame et al., ICLR 2021, arXiv 2006.09616), run ahead of time on the trace.

use std::cell::OnceCell;

use super::fit;
use crate::id::{Bytes, Nanos, OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::planner::facts::Facts;
use crate::planner::{Infeasible, Planned, Planner};
use crate::program::{BoundaryTensor, Instr, Program};
use crate::trace::{InPlace, Role, Trace};

/// Dynamic tensor rematerialization: when an op finds no room, the tensor with the least h is evicted, again and again until there is; an evicted tensor that is
/// needed is recomputed, and what it needs before it.
///
/// ```text
///           c(t) + Σ c(u) over the evicted neighbourhood of t      time to make t again, and what may have to be made with it
/// h(t)  =  ───────────────────────────────────────────────────
///                  bytes(t) × (now − last access of t)             what is large and has been idle for long goes first
/// ```
///
/// This is `h_DTR^eq` (section 4.1 and appendix C.2.2 of the paper): evicted tensors that are neighbours form classes in a union-find structure with the sum of their
/// costs; the neighbourhood of t is the classes that its evicted parents and children are in. A tensor that is recomputed takes its own cost out of its class, which is not split.
/// Time is what the step has taken so far. Tensors are freed as soon as the step does not refer to them any more (eager eviction, section 2 and appendix C.4), which makes them
/// evicted neighbours as well; what is recomputed after that stays until it is evicted. Parameters and inputs are pinned.
///
/// It recomputes only and does not swap. Deviations, all of which only matter outside the authors' setting:
/// - The paper takes every op to be pure. Here a tensor is evicted only if legal reruns can bring it back at its next use.
/// - Ops in place are copies in the paper; here they take their input's bytes over where it dies, as in `none`, except in a rerun.
/// - An input counts from its first use, when it is copied in.
/// - The decisions are made ahead on predicted latencies and not as the step runs, and do not cost time.
/// - Where a budget cannot be met, because nothing is left to evict or there are more than twelve reruns for each op, a search by bisection finds the
///   lowest cap that can; the paper stops at twice the time.
///
/// O(n · m) for n evictions and m tensors on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dtr;

/// Most reruns, as a multiple of the number of ops.
const MOST_RERUNS_PER_OP: usize = 12;
/// Steps of the search for the lowest cap.
const LEAST_STEPS: usize = 10;

impl Planner for Dtr {
    fn name(&self) -> &'static str {
        "dtr"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        let least = OnceCell::new();
        fit(trace, limits, |cap| {
            let program = if cap == 0 { None } else { Runtime::new(&facts, cap, Accounting::Program).step() };
            let program = program.map(|done| done.program);
            program.unwrap_or_else(|| least.get_or_init(|| least_program(&facts)).clone())
        })
    }
}

impl Dtr {
    /// Time of one step at a budget under the authors' accounting, as in their simulator: a budget for the sum of bytes without fragmentation, inputs on the device from the
    /// start to the end, ops in place as copies. None where there is no room.
    pub fn step_time(trace: &Trace, budget: Bytes) -> Option<Nanos> {
        let limits = Limits { alignment: Bytes(1), mode: Mode::Recompute, ..Limits::unlimited() };
        let facts = Facts::new(trace, &limits);
        let done = Runtime::new(&facts, budget.0, Accounting::Authors).step()?;
        Some(Nanos(done.time))
    }
}

/// The program for the lowest cap that bisection finds, at worst the one that evicts nothing.
fn least_program(facts: &Facts<'_>) -> Program {
    let mut best = Runtime::new(facts, u64::MAX, Accounting::Program).step().expect("without a cap nothing is evicted");
    if facts.limits.mode == Mode::Swap {
        return best.program;
    }
    let persistent = facts.trace.tensor_ids().filter(|&tensor| facts.is_persistent(tensor));
    let mut low: u64 = persistent.map(|tensor| facts.bytes(tensor)).sum();
    let mut high = best.peak;
    for _ in 0..LEAST_STEPS {
        if low >= high {
            break;
        }
        let middle = low + (high - low) / 2;
        match Runtime::new(facts, middle, Accounting::Program).step() {
            Some(done) => {
                high = done.peak.min(middle);
                best = done;
            }
            None => low = middle + 1,
        }
    }
    best.program
}

/// What counts as on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accounting {
    /// What the program claims.
    Program,
    /// Inputs from the start, ops in place as copies.
    Authors,
}

/// A step that has been run through.
struct Done {
    program: Program,
    /// Most bytes on the device.
    peak: u64,
    /// Latencies of all runs and reruns, in ns.
    time: u64,
}

/// No room, or too many reruns.
struct OutOfMemory;

/// Classes of evicted tensors.
#[derive(Default)]
struct Classes {
    parents: Vec<u32>,
    costs: Vec<u64>,
}

impl Classes {
    fn add(&mut self, cost: u64) -> u32 {
        let class = self.parents.len() as u32;
        self.parents.push(class);
        self.costs.push(cost);
        class
    }

    fn root(&mut self, mut class: u32) -> u32 {
        while self.parents[class as usize] != class {
            let above = self.parents[self.parents[class as usize] as usize];
            self.parents[class as usize] = above;
            class = above;
        }
        class
    }

    fn merge(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.parents[a as usize] = b;
            self.costs[b as usize] += self.costs[a as usize];
        }
    }
}

/// An op that is about to be executed.
struct Frame {
    op: OpId,
    /// Reads that were not on the device, and how many of them have come.
    missing: Vec<TensorId>,
    n_come: usize,
    /// Whether it is the op's first execution.
    is_run: bool,
}

/// The authors' runtime, on a clock of latencies.
struct Runtime<'a> {
    facts: &'a Facts<'a>,
    cap: u64,
    accounting: Accounting,
    /// The op about to run for the first time.
    position: usize,
    clock: u64,
    used: u64,
    peak: u64,
    resident: Vec<bool>,
    locks: Vec<u32>,
    last_access: Vec<u64>,
    /// What may be evicted: on the device and neither pinned nor locked; and where each tensor stands in the list.
    pool: Vec<TensorId>,
    place: Vec<usize>,
    /// Numbers entries into the pool; between equals the latest goes first.
    entered: Vec<u64>,
    n_entered: u64,
    /// By tensor, its class while it is evicted.
    class: Vec<Option<u32>>,
    classes: Classes,
    /// Ops that read a tensor, those that update left out: they have no outputs.
    readers: Vec<Vec<OpId>>,
    neighbours: Vec<u32>,
    n_reruns: usize,
    instrs: Vec<Instr>,
}

impl<'a> Runtime<'a> {
    fn new(facts: &'a Facts<'a>, cap: u64, accounting: Accounting) -> Self {
        let n_tensors = facts.trace.tensors().len();
        let mut readers = vec![Vec::new(); n_tensors];
        for op in facts.trace.op_ids() {
            for &tensor in &facts.trace.op(op).reads {
                readers[tensor.index()].push(op);
            }
        }
        let mut runtime = Self {
            facts,
            cap,
            accounting,
            position: 0,
            clock: 0,
            used: 0,
            peak: 0,
            resident: vec![false; n_tensors],
            locks: vec![0; n_tensors],
            last_access: vec![0; n_tensors],
            pool: Vec::new(),
            place: vec![usize::MAX; n_tensors],
            entered: vec![0; n_tensors],
            n_entered: 0,
            class: vec![None; n_tensors],
            classes: Classes::default(),
            readers,
            neighbours: Vec::new(),
            n_reruns: 0,
            instrs: Vec::new(),
        };
        for tensor in facts.trace.tensor_ids() {
            let is_input = facts.role(tensor) == Role::Input;
            if facts.is_persistent(tensor) || (is_input && accounting == Accounting::Authors) {
                runtime.resident[tensor.index()] = true;
                runtime.used += facts.bytes(tensor);
            }
        }
        runtime
    }

    fn step(mut self) -> Option<Done> {
        let trace = self.facts.trace;
        if self.used > self.cap {
            return None;
        }
        let mut boundary = Vec::new();
        for tensor in trace.tensor_ids() {
            if self.facts.is_persistent(tensor) {
                boundary.push(BoundaryTensor { tensor, host_valid: false });
            }
        }
        for op in trace.op_ids() {
            self.position = op.index();
            self.execute(op, true).ok()?;
        }
        self.position = self.facts.n_ops();
        for tensor in trace.tensor_ids().filter(|&tensor| trace.tensor(tensor).keep) {
            if !self.resident[tensor.index()] {
                match trace.producer(tensor) {
                    Some(op) => self.execute(op, false).ok()?,
                    None => self.bring(tensor).ok()?,
                }
            }
            self.lock(tensor);
        }
        let program = Program { boundary, instrs: self.instrs };
        Some(Done { program, peak: self.peak, time: self.clock })
    }

    fn is_pinned(&self, tensor: TensorId) -> bool {
        self.facts.is_persistent(tensor) || self.facts.role(tensor) == Role::Input
    }

    fn enter_pool(&mut self, tensor: TensorId) {
        if !self.is_pinned(tensor) {
            self.place[tensor.index()] = self.pool.len();
            self.pool.push(tensor);
            self.n_entered += 1;
            self.entered[tensor.index()] = self.n_entered;
        }
    }

    fn leave_pool(&mut self, tensor: TensorId) {
        let place = std::mem::replace(&mut self.place[tensor.index()], usize::MAX);
        if place != usize::MAX {
            self.pool.swap_remove(place);
            if let Some(&moved) = self.pool.get(place) {
                self.place[moved.index()] = place;
            }
        }
    }

    fn lock(&mut self, tensor: TensorId) {
        self.leave_pool(tensor);
        self.locks[tensor.index()] += 1;
    }

    /// Executes an op, and before that all that makes its missing reads again.
    fn execute(&mut self, op: OpId, is_run: bool) -> Result<(), OutOfMemory> {
        let mut stack = vec![self.begin(op, is_run)];
        while let Some(frame) = stack.last_mut() {
            let Some(&tensor) = frame.missing.get(frame.n_come) else {
                let frame = stack.pop().expect("there is one");
                self.finish(&frame)?;
                continue;
            };
            if self.resident[tensor.index()] {
                frame.n_come += 1;
                self.lock(tensor);
            } else if let Some(producer) = self.facts.trace.producer(tensor) {
                stack.push(self.begin(producer, false));
            } else {
                self.bring(tensor)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, op: OpId, is_run: bool) -> Frame {
        let mut missing = Vec::new();
        for &tensor in &self.facts.trace.op(op).reads {
            self.last_access[tensor.index()] = self.clock;
            if self.resident[tensor.index()] {
                self.lock(tensor);
            } else {
                missing.push(tensor);
            }
        }
        Frame { op, missing, n_come: 0, is_run }
    }

    /// Copies an input in.
    fn bring(&mut self, tensor: TensorId) -> Result<(), OutOfMemory> {
        self.room(self.facts.bytes(tensor))?;
        self.resident[tensor.index()] = true;
        self.claim(self.facts.bytes(tensor));
        self.instrs.push(Instr::SwapIn(tensor));
        Ok(())
    }

    fn claim(&mut self, bytes: u64) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
    }

    /// All reads are there and locked.
    fn finish(&mut self, frame: &Frame) -> Result<(), OutOfMemory> {
        let facts = self.facts;
        let of = facts.trace.op(frame.op);
        let takeovers: Vec<InPlace> = if frame.is_run && self.accounting == Accounting::Program {
            facts.live.takeovers(facts.trace, frame.op)
        } else {
            Vec::new()
        };
        let bytes = |tensors: &[TensorId]| tensors.iter().map(|&tensor| facts.bytes(tensor)).sum::<u64>();
        let taken: u64 = takeovers.iter().map(|pair| facts.bytes(pair.output)).sum();
        let need = bytes(&of.writes) - taken + facts.workspace[frame.op.index()];
        self.room(need)?;
        // Outputs that are there still; making room may have evicted some.
        let scratch: u64 = of.writes.iter().filter(|t| self.resident[t.index()]).map(|&t| facts.bytes(t)).sum();
        self.claim(need);
        self.used -= scratch + facts.workspace[frame.op.index()];
        self.clock += of.latency.0;
        for &tensor in &of.reads {
            self.locks[tensor.index()] -= 1;
            let is_taken = takeovers.iter().any(|pair| pair.input == tensor);
            if is_taken {
                // Its bytes live on as the output's.
                self.resident[tensor.index()] = false;
                self.become_neighbour(tensor);
            } else if self.locks[tensor.index()] == 0 {
                self.enter_pool(tensor);
            }
        }
        if frame.is_run {
            self.instrs.push(Instr::Run { op: frame.op, takeovers });
        } else {
            self.n_reruns += 1;
            if self.n_reruns > MOST_RERUNS_PER_OP * facts.n_ops() {
                return Err(OutOfMemory);
            }
            self.instrs.push(Instr::Rerun { op: frame.op, takeovers });
        }
        for &tensor in &of.writes {
            if !self.resident[tensor.index()] {
                self.resident[tensor.index()] = true;
                self.enter_pool(tensor);
                if let Some(class) = self.class[tensor.index()].take() {
                    let root = self.classes.root(class) as usize;
                    self.classes.costs[root] = self.classes.costs[root].saturating_sub(of.latency.0);
                }
            }
            if frame.is_run {
                self.last_access[tensor.index()] = self.clock;
                if facts.role(tensor) == Role::Output {
                    self.instrs.push(Instr::SwapOut(tensor));
                }
            }
        }
        if frame.is_run {
            for &tensor in of.reads.iter().chain(&of.writes) {
                let is_dead = facts.needed_until[tensor.index()] <= frame.op.index() as i64;
                if is_dead && self.resident[tensor.index()] && !self.is_pinned(tensor) {
                    self.evict(tensor);
                }
            }
        }
        Ok(())
    }

    /// Evicts until `need` more bytes fit.
    fn room(&mut self, need: u64) -> Result<(), OutOfMemory> {
        while self.used.saturating_add(need) > self.cap {
            let victim = self.choose().ok_or(OutOfMemory)?;
            self.evict(victim);
        }
        Ok(())
    }

    fn evict(&mut self, tensor: TensorId) {
        self.leave_pool(tensor);
        self.resident[tensor.index()] = false;
        self.used -= self.facts.bytes(tensor);
        self.instrs.push(Instr::Release(tensor));
        self.become_neighbour(tensor);
    }

    /// Joins the classes of a tensor's evicted neighbours.
    fn become_neighbour(&mut self, tensor: TensorId) {
        let class = self.classes.add(self.cost(tensor));
        self.class[tensor.index()] = Some(class);
        self.find_neighbours(tensor);
        let neighbours = std::mem::take(&mut self.neighbours);
        for &other in &neighbours {
            self.classes.merge(other, class);
        }
        self.neighbours = neighbours;
    }

    fn cost(&self, tensor: TensorId) -> u64 {
        let producer = self.facts.trace.producer(tensor);
        producer.map_or(0, |op| self.facts.trace.op(op).latency.0)
    }

    /// The classes, each once, of what is evicted among the sources and the results of a tensor.
    fn find_neighbours(&mut self, tensor: TensorId) {
        self.neighbours.clear();
        let trace = self.facts.trace;
        let sources = trace.producer(tensor).map_or(&[][..], |op| &trace.op(op).reads);
        let results = self.readers[tensor.index()].iter().flat_map(|&op| &trace.op(op).writes);
        for other in sources.iter().chain(results) {
            if let Some(class) = self.class[other.index()] {
                let root = self.classes.root(class);
                if !self.neighbours.contains(&root) {
                    self.neighbours.push(root);
                }
            }
        }
    }

    /// The tensor of the pool with the least h; what costs nothing at once.
    fn choose(&mut self) -> Option<TensorId> {
        let mut best: Option<(f64, TensorId)> = None;
        for index in 0..self.pool.len() {
            let tensor = self.pool[index];
            let stale = (self.clock - self.last_access[tensor.index()]) as f64;
            let divisor = self.facts.bytes(tensor) as f64 * stale;
            let own = self.cost(tensor);
            let h = |cost: u64| if divisor > 0.0 { cost as f64 / divisor } else { f64::INFINITY };
            // The neighbours can only add to it.
            if best.is_some_and(|(least, _)| h(own) > least) || !self.may_evict(tensor) {
                continue;
            }
            self.find_neighbours(tensor);
            let around: u64 = self.neighbours.iter().map(|&class| self.classes.costs[class as usize]).sum();
            let h = h(own + around);
            let goes_first = best.is_none_or(|(least, other)| {
                let is_later = self.entered[tensor.index()] > self.entered[other.index()];
                h < least || (h == least && is_later != (h == 0.0))
            });
            if goes_first {
                best = Some((h, tensor));
            }
        }
        best.map(|(_, tensor)| tensor)
    }

    /// Whether reruns can bring a tensor back when it is needed next.
    fn may_evict(&self, tensor: TensorId) -> bool {
        let facts = self.facts;
        if facts.limits.mode == Mode::Swap {
            return false;
        }
        let deadline = facts.deadline[tensor.index()];
        deadline >= facts.needed_until[tensor.index()]
            || facts.next_use(tensor, self.position).is_none_or(|next| deadline >= next as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{op, trace};

    const UNIT: u64 = 256;

    #[test]
    fn what_was_evicted_is_recomputed() {
        // x(0) → 1 → 2 → 3, then 4 from 3 and 2, then 5 from 4 and 1.
        let sizes = [UNIT; 6].map(|bytes| (bytes, Role::Activation));
        let mut sizes = sizes.to_vec();
        sizes[0].1 = Role::Input;
        let ops = vec![
            op(10, &[0], &[1]),
            op(20, &[1], &[2]),
            op(40, &[2], &[3]),
            op(80, &[3, 2], &[4]),
            op(160, &[4, 1], &[5]),
        ];
        let trace = trace(&sizes, ops);
        let time = |units: u64| Dtr::step_time(&trace, Bytes(units * UNIT));
        // Op 3 touches three tensors beside the pinned input, and 1 has to live through it for op 4.
        assert_eq!(time(5), Some(Nanos(310)));
        assert_eq!(time(4), Some(Nanos(310 + 10)));
        assert_eq!(time(3), None);
    }

    #[test]
    fn evicted_neighbours_count() {
        let ops = vec![
            op(100, &[], &[0]),
            op(20, &[0], &[1]),
            op(100, &[], &[2]),
            op(1000, &[], &[3]),
            op(1, &[], &[4]),
            op(1, &[3, 4], &[5]),
            op(1, &[2, 5], &[6]),
            op(1, &[1, 6], &[7]),
            op(1, &[0, 7], &[8]),
        ];
        let trace = trace(&[(UNIT, Role::Activation); 9], ops);
        let limits = Limits { mode: Mode::Recompute, ..Limits::unlimited() };
        let facts = Facts::new(&trace, &limits);
        let done = Runtime::new(&facts, 3 * UNIT, Accounting::Program).step().expect("three units are enough");
        let mut evicted = done.program.instrs.iter().filter_map(|instr| match instr {
            Instr::Release(tensor) => Some(tensor.0),
            _ => None,
        });
        // At op 3, 20/100 for 1 against 100/120 for 0. At op 4, by its own cost 0 would go with 100/1120, but 1 adds its 20, and so 2 goes with 100/1000. At op 5 there is
        // only 0.
        assert_eq!(evicted.by_ref().take(3).collect::<Vec<_>>(), [1, 2, 0]);
        // For op 6 op 2 runs again; for op 7 ops 0 and 1, and 0 is then in the way of what op 7 makes; for op 8 op 0 once more.
        assert_eq!(done.time, 1225 + 100 + (100 + 20) + 100);
    }

    #[test]
    fn what_cannot_be_made_again_stays() {
        let mut ops = vec![op(10, &[], &[0]), op(10, &[], &[1]), op(10, &[1], &[2]), op(10, &[0, 2], &[3])];
        let sizes = [(UNIT, Role::Activation); 4];
        assert_eq!(Dtr::step_time(&trace(&sizes, ops.clone()), Bytes(3 * UNIT)), Some(Nanos(40)));
        ops[1].reads = vec![TensorId(0)];
        ops[0].replayable = false;
        // 0 stays through op 2, beside what that op reads and writes.
        let trace = trace(&sizes, ops);
        assert_eq!(Dtr::step_time(&trace, Bytes(3 * UNIT)), Some(Nanos(40)));
        assert_eq!(Dtr::step_time(&trace, Bytes(3 * UNIT - 1)), None);
    }
}
