//! Why a plan is as it is, in words and figures.

use std::collections::BTreeMap;
use std::fmt;

use crate::id::{Nanos, OpId, TensorId};
use crate::limits::Limits;
use crate::liveness::{AccessKind, Idle, Liveness};
use crate::planner::Planned;
use crate::program::{Instr, Program};
use crate::trace::{Role, Trace};

use super::Names;

/// What a plan does with a tensor while it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays on the device.
    Kept,
    /// It is released without a copy, for the host has a valid one, and comes back by a swap-in.
    Released,
    /// It is copied out, released, and comes back.
    Swapped,
    /// It is released and made again by this op, in that time.
    Recomputed(OpId, Nanos),
}

/// One idle interval of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Story {
    /// The tensor, and the ops that use it before and after.
    pub idle: Idle,
    /// Latencies of the ops in between.
    pub kernels: Nanos,
    /// What is done.
    pub fate: Fate,
    /// Time that the compute lane waits for copies of it in this interval.
    pub waiting: Nanos,
    /// Time of its copy to the host and back; only back if the host copy is valid anyway.
    pub copies: Nanos,
    /// Time to run the op that made it again, its inputs being there; none if that would not give it back.
    pub rerun: Option<Nanos>,
}

impl Story {
    /// The least that the copies would have the compute lane wait: what does not fit beside the kernels in between.
    pub fn exposed_at_least(&self) -> Nanos {
        self.copies.saturating_sub(self.kernels)
    }
}

/// Compute-lane idle time for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The tensor whose copies were waited for, and whether they go out; none where steps in flight or other work on the device held the lane up.
    pub copies: Option<(TensorId, bool)>,
    /// How long.
    pub time: Nanos,
    /// How often.
    pub times: usize,
}

/// Ops that run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// The op.
    pub op: OpId,
    /// How often in a step.
    pub times: usize,
    /// How long altogether.
    pub time: Nanos,
}

/// Where the time of a step goes, and what became of its tensors. [`Display`](fmt::Display) writes it for people.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    trace: &'a Trace,
    names: Names,
    /// By op, whether no other has its label.
    is_unique: Vec<bool>,
    /// Predicted time of a step.
    pub step_time: Nanos,
    /// First runs of all ops.
    pub compute_time: Nanos,
    /// Ops that run again, the most expensive first.
    pub reruns: Vec<Again>,
    /// What the compute lane waits for, the longest first.
    pub waiting: Vec<Waiting>,
    /// Idle intervals of all tensors: the largest tensor first, by time for each.
    pub stories: Vec<Story>,
    /// Most tensors whose stories are written.
    pub most_tensors: usize,
}

/// Explains a plan; `limits` are those it was made under.
///
/// Waiting is charged to the copy that ended when the wait did. If that copy was late because others were before it on its lane, those are not named.
///
/// Idle intervals are those in the order in which the program runs the ops.
///
/// n log n in instructions and accesses.
///
/// # Panics
/// If the program is not one that `check` accepts for this trace.
pub fn explain<'a>(trace: &'a Trace, planned: &Planned, limits: &Limits) -> Explanation<'a> {
    let instrs = planned.synced.instrs();
    let simulation = &planned.simulation;
    let mut stalled_by: Vec<Nanos> = vec![Nanos::ZERO; instrs.len()];
    let mut waiting: BTreeMap<Option<(TensorId, bool)>, (Nanos, usize)> = BTreeMap::new();
    for stall in &simulation.stalls {
        let copies = stall.cause.and_then(|cause| match instrs[cause.index()] {
            Instr::SwapOut(tensor) => Some((tensor, true)),
            Instr::SwapIn(tensor) => Some((tensor, false)),
            _ => None,
        });
        let entry = waiting.entry(copies).or_default();
        entry.0 += stall.time;
        entry.1 += 1;
        if let Some(cause) = stall.cause {
            stalled_by[cause.index()] += stall.time;
        }
    }
    let mut waiting: Vec<Waiting> =
        waiting.into_iter().map(|(copies, (time, times))| Waiting { copies, time, times }).collect();
    waiting.sort_by_key(|entry| std::cmp::Reverse(entry.time));

    let mut again: BTreeMap<OpId, Again> = BTreeMap::new();
    for instr in instrs {
        if let Instr::Rerun { op, .. } = instr {
            let entry = again.entry(*op).or_insert(Again { op: *op, times: 0, time: Nanos::ZERO });
            entry.times += 1;
            entry.time += trace.op(*op).latency;
        }
    }
    let mut reruns: Vec<Again> = again.into_values().collect();
    reruns.sort_by_key(|entry| std::cmp::Reverse(entry.time));

    Explanation {
        trace,
        names: Names::new(trace),
        is_unique: unique_labels(trace),
        step_time: simulation.step_time,
        compute_time: simulation.compute_time,
        reruns,
        waiting,
        stories: stories_in_order(trace, &planned.synced.placed.program, limits, &stalled_by),
        most_tensors: 20,
    }
}

fn unique_labels(trace: &Trace) -> Vec<bool> {
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for op in trace.ops() {
        *uses.entry(&op.label).or_default() += 1;
    }
    trace.ops().iter().map(|op| uses[op.label.as_str()] == 1).collect()
}

/// Stories in the program's own order of ops, told with the trace's ids.
fn stories_in_order(trace: &Trace, program: &Program, limits: &Limits, stalled_by: &[Nanos]) -> Vec<Story> {
    let order = program.order();
    if order.is_sorted() {
        return stories(trace, &program.instrs, limits, stalled_by);
    }
    let mut place = vec![OpId(0); trace.ops().len()];
    for (index, op) in order.iter().enumerate() {
        place[op.index()] = OpId::from_index(index);
    }
    let mut instrs = program.instrs.clone();
    for instr in &mut instrs {
        if let Instr::Run { op, .. } | Instr::Rerun { op, .. } = instr {
            *op = place[op.index()];
        }
    }
    let reordered = trace.in_order(&order).expect("a program keeps what ops depend on");
    let mut stories = stories(&reordered, &instrs, limits, stalled_by);
    for story in &mut stories {
        story.idle.from = order[story.idle.from.index()];
        story.idle.to = order[story.idle.to.index()];
        if let Fate::Recomputed(op, _) = &mut story.fate {
            *op = order[op.index()];
        }
    }
    stories
}

/// Something that happens to one tensor.
#[derive(Clone, Copy)]
enum Event {
    Out,
    In,
    Gone,
    Made(OpId),
}

fn stories(trace: &Trace, instrs: &[Instr], limits: &Limits, stalled_by: &[Nanos]) -> Vec<Story> {
    let mut ran = vec![0; trace.ops().len()];
    let mut events: Vec<Vec<(usize, Event)>> = vec![Vec::new(); trace.tensors().len()];
    for (index, instr) in instrs.iter().enumerate() {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                for pair in takeovers {
                    events[pair.input.index()].push((index, Event::Gone));
                }
                if matches!(instr, Instr::Run { .. }) {
                    ran[op.index()] = index;
                } else {
                    for tensor in &trace.op(*op).writes {
                        events[tensor.index()].push((index, Event::Made(*op)));
                    }
                }
            }
            Instr::SwapOut(tensor) => events[tensor.index()].push((index, Event::Out)),
            Instr::SwapIn(tensor) => events[tensor.index()].push((index, Event::In)),
            Instr::Release(tensor) => events[tensor.index()].push((index, Event::Gone)),
        }
    }
    let mut starts = vec![0];
    for op in trace.ops() {
        starts.push(starts[starts.len() - 1] + op.latency.0);
    }
    let live = Liveness::new(trace);
    let mut idle = live.idle(trace);
    idle.sort_by_key(|idle| (std::cmp::Reverse(trace.tensor(idle.tensor).bytes), idle.tensor, idle.from));
    idle.into_iter()
        .map(|idle| {
            let (from, to) = (ran[idle.from.index()], ran[idle.to.index()]);
            let of = &events[idle.tensor.index()];
            // An update or a takeover at `from` itself counts: it stands at its position.
            let during: Vec<(usize, Event)> = if idle.across_boundary {
                let (before, after) = (of.iter().filter(|e| e.0 >= from), of.iter().filter(|e| e.0 < to));
                before.chain(after).copied().collect()
            } else {
                of.iter().filter(|event| event.0 >= from && event.0 < to).copied().collect()
            };
            let between = |from: usize, to: usize| starts[to] - starts[from];
            let (after, before) = (idle.from.index() + 1, idle.to.index());
            let kernels = if idle.across_boundary {
                between(after, trace.ops().len()) + between(0, before)
            } else {
                between(after, before)
            };
            let waiting = during.iter().filter(|event| matches!(event.1, Event::Out | Event::In));
            let link = &limits.link;
            let bytes = trace.tensor(idle.tensor).bytes;
            let back = link.in_time(bytes);
            let copies =
                if has_host_copy(trace, &live, idle.tensor) { back } else { back.saturating_add(link.out_time(bytes)) };
            Story {
                idle,
                kernels: Nanos(kernels),
                fate: fate(trace, &during),
                waiting: waiting.map(|event| stalled_by[event.0]).sum(),
                copies,
                rerun: rerun_time(trace, &live, &idle),
            }
        })
        .collect()
}

fn fate(trace: &Trace, during: &[(usize, Event)]) -> Fate {
    let Some(gone) = during.iter().rposition(|event| matches!(event.1, Event::Gone)) else { return Fate::Kept };
    // What comes after its return, a rerun of its op to scratch say, does not matter.
    let back = during[gone..].iter().find(|event| matches!(event.1, Event::In | Event::Made(_)));
    match back.map(|event| event.1) {
        Some(Event::Made(op)) => Fate::Recomputed(op, trace.op(op).latency),
        _ if during.iter().any(|event| matches!(event.1, Event::Out)) => Fate::Swapped,
        _ => Fate::Released,
    }
}

/// Whether the host has a valid copy without any swap-out.
fn has_host_copy(trace: &Trace, live: &Liveness, tensor: TensorId) -> bool {
    match trace.tensor(tensor).role {
        Role::Input => true,
        role => role.is_persistent() && live.last_update(tensor).is_none(),
    }
}

fn rerun_time(trace: &Trace, live: &Liveness, idle: &Idle) -> Option<Nanos> {
    let producer = trace.producer(idle.tensor)?;
    let op = trace.op(producer);
    let is_updated = |read: &TensorId| {
        let since = |access: &&crate::liveness::Access| access.op > producer && access.op <= idle.from;
        live.accesses(*read).iter().filter(since).any(|access| access.kind == AccessKind::Update)
    };
    (op.replayable && !op.reads.iter().any(is_updated)).then_some(op.latency)
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.time(f)?;
        self.tensors(f)
    }
}

/// Most lines of a list of reasons.
const MOST_REASONS: usize = 8;

impl Explanation<'_> {
    fn time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |time: Nanos| format!("{:5.1} %", time.0 as f64 / self.step_time.0.max(1) as f64 * 100.0);
        let line = |f: &mut fmt::Formatter<'_>, what: &str, time: Nanos| {
            writeln!(f, "  {what:<14} {:>10}  {}", time.to_string(), share(time))
        };
        let rerun: Nanos = self.reruns.iter().map(|entry| entry.time).sum();
        let waited: Nanos = self.waiting.iter().map(|entry| entry.time).sum();
        writeln!(f, "where the time goes: {} a step", self.step_time)?;
        line(f, "kernels", self.compute_time)?;
        line(f, "run again", rerun)?;
        for entry in self.reruns.iter().take(MOST_REASONS) {
            let times = if entry.times == 1 { String::new() } else { format!(", {} times", entry.times) };
            writeln!(f, "    {:>10}  {}{times}", entry.time.to_string(), self.label(entry.op))?;
        }
        rest(f, self.reruns.iter().skip(MOST_REASONS).map(|entry| entry.time))?;
        line(f, "waiting", waited)?;
        for entry in self.waiting.iter().take(MOST_REASONS) {
            let reason = match entry.copies {
                Some((tensor, true)) => format!("for room: '{}' is still leaving", self.names.get(tensor)),
                Some((tensor, false)) => format!("for '{}' to come in", self.names.get(tensor)),
                None => "for the step before".to_owned(),
            };
            writeln!(f, "    {:>10}  {reason}", entry.time.to_string())?;
        }
        rest(f, self.waiting.iter().skip(MOST_REASONS).map(|entry| entry.time))
    }

    fn tensors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // That a tensor stays where there is no time for a copy of it explains itself.
        let is_told = |story: &&Story| story.fate != Fate::Kept || story.exposed_at_least() == Nanos::ZERO;
        let mut shown: Vec<TensorId> = self.stories.iter().filter(is_told).map(|story| story.idle.tensor).collect();
        shown.dedup();
        let n_all = shown.len();
        shown.truncate(self.most_tensors);
        writeln!(
            f,
            "\nwhere tensors are while nobody uses them: the largest {} of {n_all}, without intervals too short for a copy",
            shown.len()
        )?;
        let mut stories = self.stories.iter().filter(is_told).peekable();
        for tensor in shown {
            let of = self.trace.tensor(tensor);
            writeln!(f, "  {}, {}, {}", self.names.get(tensor), role(of.role), of.bytes)?;
            while let Some(story) = stories.next_if(|story| story.idle.tensor == tensor) {
                self.story(f, story)?;
            }
        }
        Ok(())
    }

    fn story(&self, f: &mut fmt::Formatter<'_>, story: &Story) -> fmt::Result {
        let next_step = if story.idle.across_boundary { " of the next step" } else { "" };
        let (from, to) = (self.label(story.idle.from), self.label(story.idle.to));
        write!(f, "    {from} to {to}{next_step}, {} of kernels between: ", story.kernels)?;
        let waiting = if story.waiting > Nanos::ZERO {
            format!(", {} of waiting", story.waiting)
        } else {
            ", nobody waits for it".to_owned()
        };
        match story.fate {
            Fate::Kept => write!(f, "stays")?,
            Fate::Released => write!(f, "released (the host has it){waiting}")?,
            Fate::Swapped => write!(f, "swapped out and in{waiting}")?,
            Fate::Recomputed(op, time) => write!(f, "made again by {} in {time}", self.label(op))?,
        }
        write!(f, "; otherwise: ")?;
        let mut others = Vec::new();
        if story.fate != Fate::Kept {
            others.push(format!("stay on {}", self.trace.tensor(story.idle.tensor).bytes));
        }
        if !matches!(story.fate, Fate::Swapped | Fate::Released) {
            others.push(format!("{} of copies, {} of it not hidden", story.copies, story.exposed_at_least()));
        }
        if !matches!(story.fate, Fate::Recomputed(..)) {
            others.push(match story.rerun {
                Some(time) => format!("run again in {time}"),
                None => "cannot be run again".to_owned(),
            });
        }
        writeln!(f, "{}", others.join(", or "))
    }

    fn label(&self, op: OpId) -> String {
        let label = &self.trace.op(op).label;
        match label.as_str() {
            "" => op.to_string(),
            _ if self.is_unique[op.index()] => label.clone(),
            _ => format!("{label}:{op}"),
        }
    }
}

fn rest(f: &mut fmt::Formatter<'_>, times: impl ExactSizeIterator<Item = Nanos>) -> fmt::Result {
    let n = times.len();
    if n == 0 {
        return Ok(());
    }
    writeln!(f, "    {:>10}  {n} more", times.sum::<Nanos>().to_string())
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Parameter => "parameter",
        Role::OptimizerState => "optimizer state",
        Role::Buffer => "buffer",
        Role::Input => "input",
        Role::Activation => "activation",
        Role::Gradient => "gradient",
        Role::Output => "output",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::NoEviction;
    use crate::id::Bytes;
    use crate::limits::{Duplex, Link, Mode};
    use crate::planner::{Planner, Tensile};
    use crate::testing::{bytewise, op, trace};

    /// w (20) is read first and last, a (100) is made by op 0 and read by op 3; op 2 needs 150 of its own.
    fn example() -> Trace {
        trace(
            &[(20, Role::Parameter), (100, Role::Activation), (150, Role::Activation)],
            vec![op(30, &[0], &[1]), op(200, &[], &[]), op(200, &[], &[2]), op(10, &[0, 1], &[])],
        )
    }

    /// A nanosecond a byte.
    fn limits(device: u64, mode: Mode) -> Limits {
        let rate = 1e9;
        let link = Link {
            out_bytes_per_s: rate,
            in_bytes_per_s: rate,
            latency: Nanos::ZERO,
            duplex: Duplex::Full,
            kernel_slowdown: 1.0,
            copy_slowdown: 1.0,
        };
        Limits { device: Bytes(device), mode, link, ..bytewise() }
    }

    fn fates(explanation: &Explanation<'_>, tensor: u32) -> Vec<Fate> {
        let of = explanation.stories.iter().filter(|story| story.idle.tensor == TensorId(tensor));
        of.map(|story| story.fate).collect()
    }

    #[test]
    fn what_stays_stays() {
        let trace = example();
        let limits = limits(270, Mode::Both);
        let planned = NoEviction.plan(&trace, &limits).unwrap();
        let explanation = explain(&trace, &planned, &limits);
        assert_eq!(explanation.stories.len(), 2, "op 0 of the next step follows op 3 at once");
        assert!(explanation.stories.iter().all(|story| story.fate == Fate::Kept && story.waiting == Nanos::ZERO));
        let a = explanation.stories[0];
        assert_eq!(
            (a.idle.tensor, a.kernels, a.copies, a.rerun),
            (TensorId(1), Nanos(400), Nanos(200), Some(Nanos(30)))
        );
        assert_eq!(explanation.stories[1].copies, Nanos(20), "the host has parameters that nobody updates");
        let text = explanation.to_string();
        assert!(
            text.contains("stays; otherwise: 200 ns of copies, 0 ns of it not hidden, or run again in 30 ns"),
            "{text}"
        );
    }

    /// g (100) is read by the update of p, op 2, which the program runs before op 1.
    #[test]
    fn stories_follow_the_programs_order() {
        let trace = trace(
            &[(100, Role::Parameter), (100, Role::Gradient), (100, Role::Activation)],
            vec![op(30, &[0], &[1]), op(20, &[], &[2]), op(10, &[1], &[]).with_updates(&[0])],
        );
        let limits = limits(1000, Mode::Both);
        let order = [OpId(0), OpId(2), OpId(1)];
        let mut planned = NoEviction.plan(&trace.in_order(&order).unwrap(), &limits).unwrap();
        for instr in &mut planned.synced.placed.program.instrs {
            if let Instr::Run { op, .. } = instr {
                *op = order[op.index()];
            }
        }
        assert_eq!(planned.synced.placed.program.order(), order);
        let explanation = explain(&trace, &planned, &limits);
        let idle: Vec<_> = explanation.stories.iter().map(|story| (story.idle, story.kernels)).collect();
        // The gradient is used up at once; the parameter is idle while op 1 runs, which comes last.
        let expected = Idle { tensor: TensorId(0), from: OpId(2), to: OpId(0), across_boundary: true };
        assert_eq!(idle, [(expected, Nanos(20))]);
    }

    #[test]
    fn what_is_evicted_is_told_with_what_it_costs() {
        let trace = example();
        let swap = limits(170, Mode::Swap);
        let planned = Tensile::default().plan(&trace, &swap).unwrap();
        let explanation = explain(&trace, &planned, &swap);
        assert_eq!(fates(&explanation, 1), [Fate::Swapped]);
        // It comes back behind op 2, which takes its room: all of the way back is waited for.
        assert_eq!(explanation.stories[0].waiting, Nanos(100));
        assert_eq!(explanation.waiting[0], Waiting { copies: Some((TensorId(1), false)), time: Nanos(100), times: 1 });
        let text = explanation.to_string();
        assert!(
            text.contains("swapped out and in, 100 ns of waiting; otherwise: stay on 100 B, or run again in 30 ns"),
            "{text}"
        );

        let recompute = limits(170, Mode::Recompute);
        let planned = Tensile::default().plan(&trace, &recompute).unwrap();
        let explanation = explain(&trace, &planned, &recompute);
        assert_eq!(fates(&explanation, 1), [Fate::Recomputed(OpId(0), Nanos(30))]);
        assert_eq!(explanation.reruns, [Again { op: OpId(0), times: 1, time: Nanos(30) }]);
        let sum = explanation.compute_time + Nanos(30);
        assert_eq!(explanation.step_time, sum);

        let least = limits(150, Mode::Both);
        let planned = Tensile::default().plan(&trace, &least).unwrap();
        assert_eq!(fates(&explain(&trace, &planned, &least), 0), [Fate::Released]);
    }
}
