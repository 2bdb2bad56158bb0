//! The event-driven core of the simulation: a machine with one place for kernels and a link; jobs with three lanes each and two iterations in flight.

use crate::id::{Bytes, InstrId};
use crate::limits::{Duplex, Link};
use crate::program::{Instr, Lane, Synced};
use crate::trace::Trace;

/// Start and end on the absolute scale of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Compute-lane idle time before a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    pub(super) instr: InstrId,
    pub(super) time: u64,
    pub(super) cause: Option<InstrId>,
}

/// An instruction on its way.
#[derive(Clone, Copy, Debug)]
struct Running {
    start: u64,
    /// When it ends if nothing changes.
    end: u64,
    /// Nanoseconds of work left at `since`, as long as nothing slows it down; unused on links without slowdowns.
    left: f64,
    since: u64,
}

/// One lane: its instructions of one iteration, repeated without end.
#[derive(Debug)]
struct Queue {
    lane: Lane,
    instrs: Vec<InstrId>,
    /// Place in `instrs` of the next to start, or of the one running.
    next: usize,
    iteration: u32,
    /// When the next became ready, if it has.
    ready: Option<u64>,
    running: Option<Running>,
    /// When the one before ended.
    free_since: u64,
}

impl Queue {
    fn head(&self) -> InstrId {
        self.instrs[self.next]
    }
}

/// A program, repeated without end.
#[derive(Debug)]
pub(super) struct Job<'a> {
    synced: &'a Synced,
    /// Time each instruction takes when nothing slows it down.
    durations: Vec<u64>,
    /// Lanes that have work.
    queues: Vec<Queue>,
    /// Times of each instruction in the latest even and the latest odd iteration.
    times: [Vec<Times>; 2],
    /// How many iterations each instruction has ended in.
    ended: Vec<u32>,
    /// Instructions still to end, for iterations `n_complete` and `n_complete + 1`.
    open: [usize; 2],
    n_work: usize,
    n_complete: u32,
    /// End of each complete iteration.
    ends: Vec<u64>,
    /// Idle times before kernels, of even and odd iterations.
    idle: [Vec<Idle>; 2],
}

impl<'a> Job<'a> {
    fn new(trace: &Trace, synced: &'a Synced, link: &Link) -> Self {
        let bytes = |tensor: crate::TensorId| -> Bytes { trace.tensor(tensor).bytes };
        let mut lanes: [Vec<InstrId>; 3] = Default::default();
        let mut durations = Vec::with_capacity(synced.instrs().len());
        for (index, instr) in synced.instrs().iter().enumerate() {
            if let Some(lane) = instr.lane() {
                lanes[lane.index()].push(InstrId::from_index(index));
            }
            durations.push(match instr {
                Instr::Run { op, .. } | Instr::Rerun { op, .. } => trace.op(*op).latency.0,
                Instr::SwapOut(tensor) => link.out_time(bytes(*tensor)).0,
                Instr::SwapIn(tensor) => link.in_time(bytes(*tensor)).0,
                Instr::Release(_) => 0,
            });
        }
        let n_work = lanes.iter().map(Vec::len).sum();
        let queues = Lane::ALL
            .into_iter()
            .zip(lanes)
            .filter(|(_, instrs)| !instrs.is_empty())
            .map(|(lane, instrs)| Queue {
                lane,
                instrs,
                next: 0,
                iteration: 0,
                ready: None,
                running: None,
                free_since: 0,
            })
            .collect();
        let n_instrs = durations.len();
        Self {
            synced,
            durations,
            queues,
            times: [vec![Times::default(); n_instrs], vec![Times::default(); n_instrs]],
            ended: vec![0; n_instrs],
            open: [n_work; 2],
            n_work,
            n_complete: 0,
            ends: vec![],
            idle: [vec![], vec![]],
        }
    }

    /// Whether there is anything to time.
    pub(super) fn has_work(&self) -> bool {
        self.n_work > 0
    }

    /// End of each complete iteration.
    pub(super) fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// Times of the latest complete iteration, until the machine goes on. Releases have none.
    pub(super) fn latest(&self) -> &[Times] {
        &self.times[(self.n_complete as usize + 1) % 2]
    }

    /// Idle times of the latest complete iteration, in program order, until the machine goes on.
    pub(super) fn latest_idle(&self) -> &[Idle] {
        &self.idle[(self.n_complete as usize + 1) % 2]
    }

    fn may_start(&self, queue: &Queue, most_iterations: u32) -> bool {
        // At most two iterations are in flight.
        queue.iteration <= self.n_complete + 1
            && queue.iteration < most_iterations
            && self.synced.waits[queue.head().index()].iter().all(|wait| {
                let needed = if wait.previous_iteration { queue.iteration } else { queue.iteration + 1 };
                self.ended[wait.on.index()] >= needed
            })
    }

    fn start(&mut self, index: usize, now: u64) {
        let queue = &self.queues[index];
        let instr = queue.head();
        if queue.lane == Lane::Compute {
            let time = now - queue.free_since;
            let cause = self.cause(queue, now);
            let parity = queue.iteration as usize % 2;
            if queue.next == 0 {
                self.idle[parity].clear();
            }
            if time > 0 {
                self.idle[parity].push(Idle { instr, time, cause });
            }
        }
        let work = self.durations[instr.index()];
        self.queues[index].ready = None;
        self.queues[index].running =
            Some(Running { start: now, end: now.saturating_add(work), left: work as f64, since: now });
    }

    /// The wait of a lane's head that has ended just now, if there is one.
    fn cause(&self, queue: &Queue, now: u64) -> Option<InstrId> {
        let waits = &self.synced.waits[queue.head().index()];
        waits.iter().find_map(|wait| {
            if wait.previous_iteration && queue.iteration == 0 {
                return None;
            }
            let iteration = queue.iteration - u32::from(wait.previous_iteration);
            (self.times[iteration as usize % 2][wait.on.index()].end == now).then_some(wait.on)
        })
    }

    fn finish(&mut self, index: usize, running: Running) {
        let queue = &mut self.queues[index];
        let instr = queue.head().index();
        let iteration = queue.iteration;
        self.times[iteration as usize % 2][instr] = Times { start: running.start, end: running.end };
        self.ended[instr] = iteration + 1;
        queue.running = None;
        queue.free_since = running.end;
        queue.next += 1;
        if queue.next == queue.instrs.len() {
            queue.next = 0;
            queue.iteration += 1;
        }
        self.open[(iteration - self.n_complete) as usize] -= 1;
        // Lanes run in order and each ends one thing at a time, so two iterations never end at once.
        if self.open[0] == 0 {
            self.n_complete += 1;
            self.ends.push(running.end);
            self.open = [self.open[1], self.n_work];
        }
    }
}

/// The machine, stepped from end to end of what it runs.
///
/// It runs one kernel at a time, and one copy in each direction (or less, as the link says), of whatever job.
#[derive(Debug)]
pub(super) struct Engine<'a> {
    link: &'a Link,
    jobs: Vec<Job<'a>>,
    /// After so many iterations a job rests.
    most_iterations: u32,
    now: u64,
}

impl<'a> Engine<'a> {
    pub(super) fn new(jobs: &[(&Trace, &'a Synced)], link: &'a Link, most_iterations: u32) -> Self {
        let jobs = jobs.iter().map(|(trace, synced)| Job::new(trace, synced, link)).collect();
        Self { link, jobs, most_iterations, now: 0 }
    }

    pub(super) fn jobs(&self) -> &[Job<'a>] {
        &self.jobs
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Starts what can start and runs until something ends; nothing if nothing ever will: all rest, or waits are circular, or time has run out.
    pub(super) fn step(&mut self) -> Option<()> {
        self.find_ready();
        self.start_ready();
        self.advance()
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.jobs.iter().flat_map(|job| &job.queues)
    }

    fn queues_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.jobs.iter_mut().flat_map(|job| &mut job.queues)
    }

    /// Whether something runs on each lane, of whatever job.
    fn busy(&self) -> [bool; 3] {
        let mut busy = [false; 3];
        for queue in self.queues().filter(|queue| queue.running.is_some()) {
            busy[queue.lane.index()] = true;
        }
        busy
    }

    /// Notes which lanes' heads have just become ready.
    fn find_ready(&mut self) {
        for job in &mut self.jobs {
            for index in 0..job.queues.len() {
                let queue = &job.queues[index];
                let is_waiting = queue.running.is_none() && queue.ready.is_none();
                if is_waiting && job.may_start(queue, self.most_iterations) {
                    job.queues[index].ready = Some(self.now);
                }
            }
        }
    }

    /// Starts what is ready and may run beside what is running: earliest ready first, then by job and in program order.
    fn start_ready(&mut self) {
        loop {
            let busy = self.busy();
            let is_copying = busy[Lane::Out.index()] || busy[Lane::In.index()];
            let is_free = |queue: &Queue| match self.link.duplex {
                Duplex::Full => !busy[queue.lane.index()],
                Duplex::Half if queue.lane == Lane::Compute => !busy[queue.lane.index()],
                Duplex::Half => !is_copying,
                Duplex::NoOverlap => !busy.contains(&true),
            };
            let mut next = None;
            for (place, job) in self.jobs.iter().enumerate() {
                for (index, queue) in job.queues.iter().enumerate() {
                    let Some(ready) = queue.ready.filter(|_| is_free(queue)) else { continue };
                    let order = (ready, place, queue.iteration, queue.head());
                    if next.is_none_or(|(earliest, _)| order < earliest) {
                        next = Some((order, index));
                    }
                }
            }
            let Some(((_, place, ..), index)) = next else { return };
            self.settle();
            self.jobs[place].start(index, self.now);
            self.plan_ends();
        }
    }

    /// How many times longer what runs on each lane takes at the moment.
    fn slowdowns(&self) -> [f64; 3] {
        let busy = self.busy();
        let copies = f64::from(u8::from(busy[Lane::Out.index()]) + u8::from(busy[Lane::In.index()]));
        let copy = if busy[Lane::Compute.index()] { self.link.copy_slowdown.max(1.0) } else { 1.0 };
        let mut slowdowns = [copy; 3];
        slowdowns[Lane::Compute.index()] = 1.0 + copies * (self.link.kernel_slowdown.max(1.0) - 1.0);
        slowdowns
    }

    fn has_slowdown(&self) -> bool {
        self.link.kernel_slowdown > 1.0 || self.link.copy_slowdown > 1.0
    }

    /// Takes off what is running what it has done so far; to be called before the set of running things changes.
    fn settle(&mut self) {
        if !self.has_slowdown() {
            return;
        }
        let (now, slowdowns) = (self.now, self.slowdowns());
        for queue in self.queues_mut() {
            if let Some(running) = &mut queue.running {
                let done = (now - running.since) as f64 / slowdowns[queue.lane.index()];
                running.left = (running.left - done).max(0.0);
                running.since = now;
            }
        }
    }

    /// Predicts the ends of what is running anew; to be called after the set of running things has changed.
    fn plan_ends(&mut self) {
        if !self.has_slowdown() {
            return;
        }
        let slowdowns = self.slowdowns();
        for queue in self.queues_mut() {
            let slowdown = slowdowns[queue.lane.index()];
            if let Some(running) = queue.running.as_mut().filter(|running| running.end != u64::MAX) {
                // Rounding up to whole nanoseconds; the small term forgives what earlier roundings have left over.
                running.end = running.since.saturating_add((running.left * slowdown - 1e-3).max(0.0).ceil() as u64);
            }
        }
    }

    /// Goes to the next end of something and ends it.
    fn advance(&mut self) -> Option<()> {
        let next = self.queues().filter_map(|queue| queue.running.map(|running| running.end)).min()?;
        if next == u64::MAX {
            return None;
        }
        self.now = next;
        self.settle();
        for job in &mut self.jobs {
            for index in 0..job.queues.len() {
                if let Some(running) = job.queues[index].running
                    && running.end == next
                {
                    job.finish(index, running);
                }
            }
        }
        self.plan_ends();
        Some(())
    }
}
