//! One step in time: what each lane does when, and how many bytes are on the device.
//!
//! [`lanes`] makes a [`Process`] of a program and the times of its instructions, be they simulated or measured; `to_json` writes processes side by side as
//! a file of trace events, which <https://ui.perfetto.dev> and `chrome://tracing` open.
//!
//! ```text
//! compute   ▐ conv1 ▌▐ relu1 ▌      ▐ conv1_grad ▌
//! waits                      ▐ in a ▌
//! out                ▐ out a ▌
//! in                         ▐ in a ▌
//! memory    ▁▃▃▃▃▃▃▃▃▆▆▆▆▆▆▆▆▃▃▃▃▃▃▃▆▆▆▆▆▆▆▆▆▆▆▆▆▁
//! ```

use crate::id::{Bytes, InstrId, Nanos, OpId, TensorId};
use crate::limits::Limits;
use crate::program::{Instr, Synced};
use crate::simulate::{Span, Stall};
use crate::text::Names;
use crate::trace::Trace;

/// What happens in one step, under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Name of the process, `simulated` say.
    pub name: String,
    /// The lanes, and the waits of the compute lane if there are any.
    pub tracks: Vec<Track>,
    /// Bytes claimed on the device during the step, workspace included: each change, by time, from 0 on. Steps like this one come before and after, so that what
    /// reaches over an end of the step counts at the other.
    pub memory: Vec<(i64, Bytes)>,
    /// The budget, if there is one.
    pub budget: Option<Bytes>,
    /// How long the step takes.
    pub period: Nanos,
}

/// A row of slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Its name: `compute`, `waits`, `out`, `in`.
    pub name: &'static str,
    /// By position in the program.
    pub slices: Vec<Slice>,
}

/// Something that takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// What it is: an op's label, `rerun` and a label, `out` or `in` and a tensor.
    pub name: String,
    /// `run`, `rerun`, `out`, `in`, `wait`.
    pub kind: &'static str,
    /// When, in nanoseconds from the end of the step before; a copy may begin before that.
    pub span: Span,
    /// The instruction; of a wait, the one that waits.
    pub instr: InstrId,
    /// Bytes that are copied, or that a kernel writes.
    pub bytes: Bytes,
}

/// One step of a program as lanes and memory over time.
///
/// `spans` has a start and an end for each instruction, on the scale of [`Span`], as [`Simulation::spans`](crate::Simulation::spans) or an executor gives them; `stalls` may be empty;
/// `period` is the time of a step. A claim lasts from the start of the instruction that makes it to the end of the last one that touches it before it is released.
///
/// n log n in accesses.
///
/// # Panics
/// If there is not one span for each instruction, or the program is not one that `check` accepts for this trace.
pub fn lanes(
    name: &str,
    trace: &Trace,
    synced: &Synced,
    limits: &Limits,
    spans: &[Span],
    stalls: &[Stall],
    period: Nanos,
) -> Process {
    assert_eq!(spans.len(), synced.instrs().len(), "one span for each instruction");
    let names = Names::new(trace);
    let mut tracks: Vec<Track> =
        ["compute", "waits", "out", "in"].map(|name| Track { name, slices: Vec::new() }).into();
    for (index, instr) in synced.instrs().iter().enumerate() {
        let (track, kind, name, bytes) = match instr {
            Instr::Run { op, .. } => (0, "run", trace.op(*op).label.clone(), written(trace, *op)),
            Instr::Rerun { op, .. } => (0, "rerun", format!("rerun {}", trace.op(*op).label), written(trace, *op)),
            Instr::SwapOut(tensor) => (2, "out", format!("out {}", names.get(*tensor)), trace.tensor(*tensor).bytes),
            Instr::SwapIn(tensor) => (3, "in", format!("in {}", names.get(*tensor)), trace.tensor(*tensor).bytes),
            Instr::Release(_) => continue,
        };
        let slice = Slice { name, kind, span: spans[index], instr: InstrId::from_index(index), bytes };
        tracks[track].slices.push(slice);
    }
    for stall in stalls {
        let end = spans[stall.instr.index()].start;
        let start = end - i64::try_from(stall.time.0).unwrap_or(i64::MAX);
        let name = match stall.cause.map(|cause| &synced.instrs()[cause.index()]) {
            Some(Instr::SwapOut(tensor)) => format!("out {}", names.get(*tensor)),
            Some(Instr::SwapIn(tensor)) => format!("in {}", names.get(*tensor)),
            _ => "the step before".to_owned(),
        };
        let slice = Slice { name, kind: "wait", span: Span { start, end }, instr: stall.instr, bytes: Bytes::ZERO };
        tracks[1].slices.push(slice);
    }
    tracks.retain(|track| track.name != "waits" || !track.slices.is_empty());
    let memory = fold(&residencies(trace, synced, limits, spans, period), period);
    let budget = (limits.device != Bytes::MAX).then_some(limits.device);
    Process { name: name.to_owned(), tracks, memory, budget, period }
}

fn written(trace: &Trace, op: OpId) -> Bytes {
    trace.op(op).writes.iter().map(|&tensor| trace.tensor(tensor).bytes).sum()
}

/// Bytes claimed from a time to a time.
struct Residency {
    start: i64,
    end: i64,
    bytes: u64,
}

/// All claims of one step; those of boundary tensors end in the next.
fn residencies(trace: &Trace, synced: &Synced, limits: &Limits, spans: &[Span], period: Nanos) -> Vec<Residency> {
    let occupied = |tensor: TensorId| limits.occupied(trace.tensor(tensor).bytes).0;
    let period = i64::try_from(period.0).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    // Of each tensor on the device: since when (of a boundary tensor nobody knows yet), and the end of its latest access in this step.
    let mut open: Vec<Option<(Option<i64>, i64)>> = vec![None; trace.tensors().len()];
    // Ends of boundary tensors' claims that began in the step before.
    let mut ended: Vec<Option<i64>> = vec![None; trace.tensors().len()];
    for entry in &synced.placed.program.boundary {
        open[entry.tensor.index()] = Some((None, i64::MIN));
    }
    let mut close = |tensor: TensorId, (start, end): (Option<i64>, i64), ended: &mut Vec<Option<i64>>| match start {
        Some(start) => found.push(Residency { start, end: end.max(start), bytes: occupied(tensor) }),
        None => ended[tensor.index()] = (end > i64::MIN).then_some(end),
    };
    let mut brief = Vec::new();
    for (instr, span) in synced.instrs().iter().zip(spans) {
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                let of = trace.op(*op);
                let workspace = limits.occupied(of.workspace).0;
                brief.push(Residency { start: span.start, end: span.end, bytes: workspace });
                for tensor in of.reads.iter().chain(&of.updates) {
                    if let Some(open) = &mut open[tensor.index()] {
                        open.1 = open.1.max(span.end);
                    }
                }
                for &tensor in &of.writes {
                    let taken = takeovers.iter().find(|pair| pair.output == tensor).map(|pair| pair.input);
                    if open[tensor.index()].is_some() {
                        // To scratch.
                        brief.push(Residency { start: span.start, end: span.end, bytes: occupied(tensor) });
                        continue;
                    }
                    // The output goes on where the input ends.
                    if let Some(input) = taken.and_then(|input| open[input.index()].take().map(|open| (input, open))) {
                        close(input.0, (input.1.0, span.start), &mut ended);
                    }
                    open[tensor.index()] = Some((Some(span.start), span.end));
                }
            }
            Instr::SwapOut(tensor) => {
                if let Some(open) = &mut open[tensor.index()] {
                    open.1 = open.1.max(span.end);
                }
            }
            Instr::SwapIn(tensor) => open[tensor.index()] = Some((Some(span.start), span.end)),
            Instr::Release(tensor) => {
                if let Some(open) = open[tensor.index()].take() {
                    close(*tensor, open, &mut ended);
                }
            }
        }
    }
    for tensor in trace.tensor_ids() {
        let is_boundary = trace.tensor(tensor).role.is_persistent();
        match open[tensor.index()].take() {
            // On the device all the time.
            Some((None, _)) => {
                found.push(Residency { start: 0, end: period, bytes: limits.occupied(trace.tensor(tensor).bytes).0 });
            }
            // Until it is released in the next step.
            Some((Some(start), last)) if is_boundary => {
                let end = ended[tensor.index()].map_or(last, |end| end.saturating_add(period).max(last));
                let bytes = limits.occupied(trace.tensor(tensor).bytes).0;
                found.push(Residency { start, end: end.max(start), bytes });
            }
            Some((Some(start), last)) => {
                let bytes = limits.occupied(trace.tensor(tensor).bytes).0;
                found.push(Residency { start, end: last.max(start), bytes });
            }
            None => {}
        }
    }
    found.append(&mut brief);
    found
}

/// Sums residencies within one period, each standing for itself in every period.
fn fold(residencies: &[Residency], period: Nanos) -> Vec<(i64, Bytes)> {
    let Some(period) = i64::try_from(period.0).ok().filter(|&period| period > 0) else { return Vec::new() };
    let mut now = 0i64;
    let mut changes: Vec<(i64, i64)> = Vec::new();
    for residency in residencies.iter().filter(|residency| residency.bytes > 0) {
        let bytes = residency.bytes as i64;
        // Whole periods count all the time; of the rest, what lies over the end begins the step.
        now += (residency.end - residency.start).div_euclid(period) * bytes;
        let (start, end) = (residency.start.rem_euclid(period), residency.end.rem_euclid(period));
        if start > end {
            now += bytes;
        }
        if start != end {
            changes.push((start, bytes));
            changes.push((end, -bytes));
        }
    }
    changes.sort_unstable();
    let mut memory = vec![(0, Bytes(now as u64))];
    for (time, change) in changes {
        now += change;
        match memory.last_mut() {
            Some(last) if last.0 == time => last.1 = Bytes(now as u64),
            _ => memory.push((time, Bytes(now as u64))),
        }
    }
    memory
}

/// Processes as a JSON file of trace events.
///
/// Times are in microseconds from the earliest start on. Each process has its lanes as threads, and counters of the bytes on the device and of the budget.
#[cfg(feature = "serde")]
pub fn to_json(processes: &[Process]) -> String {
    use serde_json::{Value, json};

    let slices = || processes.iter().flat_map(|process| &process.tracks).flat_map(|track| &track.slices);
    let origin = slices().map(|slice| slice.span.start).min().unwrap_or(0).min(0);
    let micros = |time: i64| (time - origin) as f64 * 1e-3;
    let mut events: Vec<Value> = Vec::new();
    for (pid, process) in processes.iter().enumerate() {
        let pid = pid + 1;
        let meta = |name: &str, tid: usize, args: Value| json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args});
        events.push(meta("process_name", 0, json!({"name": process.name})));
        events.push(meta("process_sort_index", 0, json!({"sort_index": pid})));
        for (tid, track) in process.tracks.iter().enumerate() {
            let tid = tid + 1;
            events.push(meta("thread_name", tid, json!({"name": track.name})));
            events.push(meta("thread_sort_index", tid, json!({"sort_index": tid})));
            for slice in &track.slices {
                events.push(json!({
                    "ph": "X", "name": slice.name, "cat": slice.kind, "pid": pid, "tid": tid,
                    "ts": micros(slice.span.start), "dur": (slice.span.end - slice.span.start) as f64 * 1e-3,
                    "args": {"instruction": slice.instr.index(), "bytes": slice.bytes.0},
                }));
            }
        }
        let counter = |name: &str, time: i64, bytes: u64| json!({"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": micros(time), "args": {"bytes": bytes}});
        events.extend(process.memory.iter().map(|&(time, bytes)| counter("device memory", time, bytes.0)));
        let end = i64::try_from(process.period.0).unwrap_or(i64::MAX);
        if let Some(budget) = process.budget {
            events.extend([0, end].map(|time| counter("budget", time, budget.0)));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::NoEviction;
    use crate::planner::{Planner, Tensile};
    use crate::testing::{bytewise, op, trace};
    use crate::trace::Role;

    fn example() -> (Trace, Limits) {
        let trace = trace(
            &[(20, Role::Parameter), (100, Role::Activation), (150, Role::Activation)],
            vec![
                op(3_000, &[0], &[1]),
                op(20_000, &[], &[]).with_workspace(5),
                op(20_000, &[], &[2]),
                op(10, &[0, 1], &[]),
            ],
        );
        (trace, Limits { device: Bytes(170), ..bytewise() })
    }

    #[test]
    fn memory_is_what_is_claimed() {
        let (trace, limits) = example();
        let limits = Limits { device: Bytes(270), ..limits };
        let planned = NoEviction.plan(&trace, &limits).unwrap();
        let simulation = &planned.simulation;
        let process =
            lanes("p", &trace, &planned.synced, &limits, &simulation.spans, &simulation.stalls, simulation.step_time);
        // a is released when the step ends, and claimed again at that very moment.
        let expected = [(0, 120), (3_000, 125), (23_000, 270), (43_000, 120)];
        let found: Vec<(i64, u64)> = process.memory.iter().map(|&(time, bytes)| (time, bytes.0)).collect();
        assert_eq!(found, expected);
        let names: Vec<&str> = process.tracks.iter().map(|track| track.name).collect();
        assert_eq!(names, ["compute", "out", "in"], "nothing waits");
        assert_eq!(process.budget, Some(Bytes(270)));
    }

    #[test]
    fn copies_and_waits_are_named() {
        let (trace, limits) = example();
        let limits = Limits { mode: crate::limits::Mode::Swap, ..limits };
        let planned = Tensile::default().plan(&trace, &limits).unwrap();
        let simulation = &planned.simulation;
        let process =
            lanes("p", &trace, &planned.synced, &limits, &simulation.spans, &simulation.stalls, simulation.step_time);
        let names = |track: &str| {
            let track = process.tracks.iter().find(|found| found.name == track).unwrap();
            track.slices.iter().map(|slice| slice.name.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(names("out"), ["out t1"]);
        assert!(names("in").contains(&"in t1"));
        assert!(names("waits").contains(&"in t1"));
        let waits = &process.tracks[1].slices;
        assert_eq!(
            waits.iter().map(|wait| wait.span.end - wait.span.start).sum::<i64>() as u64,
            simulation.stall_time().0
        );
        assert!(process.memory.iter().all(|entry| entry.1 <= limits.device));
    }

    #[test]
    fn what_reaches_over_the_end_counts_at_the_start() {
        let residency = |start, end| Residency { start, end, bytes: 1 };
        let found = fold(&[residency(-10, 20), residency(90, 130), residency(0, 100), residency(50, 50)], Nanos(100));
        let found: Vec<(i64, u64)> = found.into_iter().map(|(time, bytes)| (time, bytes.0)).collect();
        assert_eq!(found, [(0, 3), (20, 2), (30, 1), (90, 3)]);
    }
}
