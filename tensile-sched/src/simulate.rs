//! Predicts how long a step takes when steps follow each other.
//!
//! The three lanes are played through, iteration after iteration, under the rules of [`program`](crate::program), until one iteration is like the one before:
//!
//! ```text
//! compute  [ op0 ][ op1 ]......[ op2 ][ op0 ][ op1 ]...       stall of op2: it waits for the swap-in
//! out                    [ a ]                     [ a ]
//! in       [ x ]              [ a ][ x ]                      x of the next step arrives while op2 computes
//! ```
//!
//! Several jobs ([`simulate_together`]) have three lanes each, but the device runs one kernel at a time and one copy each way, so a lane may have to wait for another job's:
//!
//! ```text
//! A compute  [ A0 ]....[ A1 ]....[ A2 ]....
//! B compute  ......[ B0 ]....[ B1 ]....[ B2 ]
//! ```

mod engine;

use crate::id::{InstrId, Nanos};
use crate::limits::Link;
use crate::program::{Instr, Synced};
use crate::trace::Trace;
use engine::{Engine, Idle, Job, Times};

/// When an instruction ran in the simulated steady state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start, in nanoseconds from the end of the step before; below zero for a copy that begins while the step before still computes.
    /// Equal to `end` for releases, which stand at the latest end of what comes before them in program order.
    pub start: i64,
    /// End, on the same scale.
    pub end: i64,
}

/// Idle time of a job's compute lane before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The kernel that could not start.
    pub instr: InstrId,
    /// How long the compute lane idled for it.
    pub time: Nanos,
    /// The instruction it was waiting for, if one of its waits was the reason; none if the device was taken by other work (no overlap, other jobs) or
    /// iterations in flight held it up.
    pub cause: Option<InstrId>,
}

/// Predicted steady state of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Time from one step's end to the next step's end, averaged over the steady state.
    pub step_time: Nanos,
    /// Time of the first step after a drained boundary.
    pub first_step_time: Nanos,
    /// Sum of the latencies of all `Run`s, the least a step can take.
    pub compute_time: Nanos,
    /// When each instruction of one steady-state step ran.
    pub spans: Vec<Span>,
    /// Compute-lane idle times of that step, in program order, those above zero.
    pub stalls: Vec<Stall>,
}

impl Simulation {
    /// Sum of all stalls.
    pub fn stall_time(&self) -> Nanos {
        self.stalls.iter().map(|stall| stall.time).sum()
    }

    /// Extra time over [`compute_time`](Self::compute_time), as a fraction of it (0 if there is nothing to compute).
    pub fn overhead(&self) -> f64 {
        if self.compute_time == Nanos::ZERO {
            return 0.0;
        }
        self.step_time.0 as f64 / self.compute_time.0 as f64 - 1.0
    }
}

/// Most iterations played before the step time is averaged.
const MOST_ITERATIONS: usize = 16;
/// The average then goes over this many; an even number, because odd and even iterations may alternate.
const AVERAGED: usize = 8;

/// Iterations of the slowest of several jobs before and while step times are averaged.
const SETTLING_TOGETHER: usize = 4;
const AVERAGED_TOGETHER: usize = 16;
/// A job that has done so many rests, so that one without anything to wait for cannot keep the others from ever getting on.
const MOST_TOGETHER: u32 = 4096;

/// Times a program in its steady state.
///
/// Copies take [`Link::out_time`] and [`Link::in_time`] of the tensor's bytes, kernels the op's latency; they are longer by
/// [`Link::kernel_slowdown`] and [`Link::copy_slowdown`] while they run beside each other. With [`Duplex::Half`](crate::Duplex::Half) and [`Duplex::NoOverlap`](crate::Duplex::NoOverlap), what became ready first goes first, and what comes first in program order among those
/// that became ready together.
///
/// The first step is that after a drained boundary. If copies never end (a link without bandwidth) or waits are circular, the step time is [`Nanos::MAX`].
///
/// # Complexity
/// O(instructions + waits) for each iteration played; three iterations are usual, 16 the most.
///
/// # Panics
/// If the synced program has not one list of waits for each instruction.
pub fn simulate(trace: &Trace, synced: &Synced, link: &Link) -> Simulation {
    let mut simulation = without_steps(trace, synced);
    let mut engine = Engine::new(&[(trace, synced)], link, u32::MAX);
    if !engine.jobs()[0].has_work() {
        return simulation;
    }
    let (mut is_steady, mut n_done) = (false, 0);
    let mut earlier = Vec::new();
    while !is_steady && n_done < MOST_ITERATIONS {
        if engine.step().is_none() {
            simulation.step_time = Nanos::MAX;
            simulation.first_step_time = engine.jobs()[0].ends().first().map_or(Nanos::MAX, |&end| Nanos(end));
            return simulation;
        }
        let job = &engine.jobs()[0];
        if job.ends().len() > n_done {
            n_done = job.ends().len();
            is_steady = is_like_the_one_before(synced, &earlier, job.latest(), job.ends());
            earlier.clear();
            earlier.extend_from_slice(job.latest());
        }
    }
    let ends = engine.jobs()[0].ends();
    simulation.step_time = average(&ends[n_done - 1 - if is_steady { 1 } else { AVERAGED }..]);
    simulation.note_latest(synced, &engine.jobs()[0]);
    simulation
}

/// Times programs of several jobs that share a device: one [`Simulation`] for each, in their order.
///
/// All start at once, and each begins its next step as soon as it can, whatever the others do. The device runs one kernel at a time; the link takes one copy each way at a time (one altogether,
/// or none beside a kernel, as its [`Duplex`](crate::Duplex) says). What became ready first goes first; of what became ready together, that of the job that stands first. Apart from
/// that each job keeps to its own lanes and waits as in [`simulate`], which is what one job alone is timed by.
///
/// Step times are averages: over 16 steps of the slowest job, after 4 of it, and over as many as each of the others does in the meantime. Spans and stalls are those of its
/// latest step. A job that does 4,096 steps before the slowest has done 20 rests from then on. A job whose copies never end, or whose waits are circular, or that such a job keeps
/// from getting on, has the step time [`Nanos::MAX`].
///
/// # Complexity
/// O(i j) for j jobs that run i instructions together.
///
/// # Panics
/// If a synced program has not one list of waits for each instruction.
///
/// # Example
/// Two jobs that compute all the time take turns:
/// ```
/// use tensile_sched::{Bytes, Limits, Link, Nanos, NoEviction, Op, Planner, Role, Tensor, TensorId, Trace, simulate_together};
/// # let tensor = |role| Tensor { name: String::new(), bytes: Bytes(1 << 20), role, keep: false };
/// # let op = |latency| Op {
/// #     class: String::new(), label: String::new(), reads: vec![TensorId(0)], writes: vec![], updates: vec![],
/// #     workspace: Bytes::ZERO, latency: Nanos(latency), replayable: true, in_place: vec![],
/// # };
///
/// let short = Trace::new(vec![tensor(Role::Parameter)], vec![op(100), op(100)])?;
/// let long = Trace::new(vec![tensor(Role::Parameter)], vec![op(300), op(300)])?;
/// let plan = |trace: &Trace| NoEviction.plan(trace, &Limits::unlimited()).map(|planned| planned.synced);
/// let (short_plan, long_plan) = (plan(&short)?, plan(&long)?);
/// let jobs = [(&short, &short_plan), (&long, &long_plan)];
/// let times: Vec<Nanos> = simulate_together(&jobs, &Link::PCIE3_X16).iter().map(|job| job.step_time).collect();
/// assert_eq!(times, [Nanos(800), Nanos(800)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn simulate_together(jobs: &[(&Trace, &Synced)], link: &Link) -> Vec<Simulation> {
    if let [(trace, synced)] = jobs {
        return vec![simulate(trace, synced, link)];
    }
    let mut simulations: Vec<Simulation> = jobs.iter().map(|(trace, synced)| without_steps(trace, synced)).collect();
    let mut engine = Engine::new(jobs, link, MOST_TOGETHER);
    let fewest = |engine: &Engine<'_>| {
        let at_work = engine.jobs().iter().filter(|job| job.has_work());
        at_work.map(|job| job.ends().len()).min()
    };
    let Some(_) = fewest(&engine) else { return simulations };
    let most = SETTLING_TOGETHER + AVERAGED_TOGETHER;
    let mut n_done = vec![0; jobs.len()];
    let mut settled = None;
    while fewest(&engine) < Some(most) && engine.step().is_some() {
        for (((job, simulation), n_done), (_, synced)) in
            engine.jobs().iter().zip(&mut simulations).zip(&mut n_done).zip(jobs)
        {
            if job.ends().len() > *n_done {
                *n_done = job.ends().len();
                simulation.note_latest(synced, job);
            }
        }
        if settled.is_none() && fewest(&engine) == Some(SETTLING_TOGETHER) {
            settled = Some(engine.now());
        }
    }
    for (job, simulation) in engine.jobs().iter().zip(&mut simulations).filter(|(job, _)| job.has_work()) {
        let ends = job.ends();
        simulation.step_time = if ends.len() < most {
            Nanos::MAX
        } else {
            // One that rests by then had no rest in its second half.
            let since = ends.partition_point(|&end| Some(end) < settled).min(ends.len() / 2);
            average(&ends[since..])
        };
        if ends.is_empty() {
            simulation.first_step_time = Nanos::MAX;
        }
    }
    simulations
}

/// What is known of a program before it is played.
fn without_steps(trace: &Trace, synced: &Synced) -> Simulation {
    assert_eq!(synced.waits.len(), synced.instrs().len(), "a synced program has waits for each instruction");
    let latency = |instr: &Instr| match instr {
        Instr::Run { op, .. } => trace.op(*op).latency,
        _ => Nanos::ZERO,
    };
    Simulation {
        compute_time: synced.instrs().iter().map(latency).sum(),
        spans: vec![Span::default(); synced.instrs().len()],
        ..Simulation::default()
    }
}

impl Simulation {
    /// Takes over spans and stalls of an iteration that has just ended.
    fn note_latest(&mut self, synced: &Synced, job: &Job<'_>) {
        let ends = job.ends();
        self.first_step_time = Nanos(ends[0]);
        self.spans = spans(synced, job.latest(), ends.len().checked_sub(2).map_or(0, |before| ends[before]));
        let stall = |idle: &Idle| Stall { instr: idle.instr, time: Nanos(idle.time), cause: idle.cause };
        self.stalls = job.latest_idle().iter().map(stall).collect();
    }
}

/// Average time between consecutive ends, two at least, rounded.
fn average(ends: &[u64]) -> Nanos {
    let n_steps = ends.len() as u64 - 1;
    Nanos((ends[ends.len() - 1] - ends[0] + n_steps / 2) / n_steps)
}

/// Whether the latest iteration repeats the one before at the same distance from its start; the first does not count, because its waits on an iteration before are void.
fn is_like_the_one_before(synced: &Synced, earlier: &[Times], latest: &[Times], ends: &[u64]) -> bool {
    let [.., before, start, end] = ends else { return false };
    let period = end - start;
    if ends.len() < 4 || period != start - before {
        return false;
    }
    let times = synced.instrs().iter().zip(latest.iter().zip(earlier));
    times
        .filter(|(instr, _)| instr.lane().is_some())
        .all(|(_, (latest, earlier))| latest.start == earlier.start + period && latest.end == earlier.end + period)
}

/// Times of one iteration on the scale of the step's own start, with releases filled in.
fn spans(synced: &Synced, times: &[Times], origin: u64) -> Vec<Span> {
    let relative = |time: u64| i64::try_from(i128::from(time) - i128::from(origin)).unwrap_or(i64::MAX);
    let mut latest: Option<i64> = None;
    let mut spans = Vec::with_capacity(times.len());
    for (instr, times) in synced.instrs().iter().zip(times) {
        let span = if instr.lane().is_some() {
            Span { start: relative(times.start), end: relative(times.end) }
        } else {
            let at = latest.unwrap_or(0);
            Span { start: at, end: at }
        };
        latest = Some(latest.map_or(span.end, |latest| latest.max(span.end)));
        spans.push(span);
    }
    spans
}

#[cfg(test)]
mod tests;
