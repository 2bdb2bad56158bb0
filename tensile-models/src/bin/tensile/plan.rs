//! `tensile plan`: what a budget costs, before running.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde::Serialize;
use tensile_core::exec::StepSpans;
use tensile_models::backend::{Backend, Visitor};
use tensile_models::budget::Budget;
use tensile_sched::baseline::{NoEviction, Retain};
use tensile_sched::{
    Bytes, Floor, Infeasible, Limits, Link, Nanos, Planned, Planner, Trace, file, floor, frontier, least_memory, text,
    timeline,
};

use crate::Failure;
use crate::args::PlanArgs;
use crate::output::{percent, table, write};
use crate::setup;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    name: String,
    ops: usize,
    tensors: usize,
    compute_ns: u64,
    floor_bytes: u64,
    floor_op: String,
    none_peak_bytes: u64,
    none_arena_bytes: u64,
    retain_peak_bytes: u64,
    policy: String,
    /// The file that latencies of ops are from, if they are from one.
    latencies: Option<PathBuf>,
    budgets: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    budget: String,
    budget_bytes: u64,
    /// Present if the budget is not feasible; then the rest is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    infeasible: Option<String>,
    #[serde(flatten)]
    plan: Option<Plan>,
}

#[derive(Serialize)]
struct Plan {
    arena_bytes: u64,
    peak_bytes: u64,
    host_bytes: u64,
    evictions: usize,
    out_bytes: u64,
    in_bytes: u64,
    reruns: usize,
    stall_ns: u64,
    step_ns: u64,
    overhead: f64,
}

impl From<&Planned> for Plan {
    fn from(planned: &Planned) -> Self {
        let report = &planned.report;
        Self {
            arena_bytes: report.arena.0,
            peak_bytes: report.peak.0,
            host_bytes: report.host_arena.0,
            evictions: report.evictions,
            out_bytes: report.bytes_out.0,
            in_bytes: report.bytes_in.0,
            reruns: report.reruns,
            stall_ns: planned.simulation.stall_time().0,
            step_ns: planned.simulation.step_time.0,
            overhead: planned.simulation.overhead(),
        }
    }
}

/// What is planned.
struct Subject {
    name: String,
    trace: Trace,
    /// All but those of memory.
    limits: Limits,
    /// Without a limit.
    none: Planned,
    /// What `--budget auto` stands for, if anything tells.
    offer: Option<Bytes>,
    /// The file that latencies are from, if they are from one.
    latencies: Option<PathBuf>,
}

impl Subject {
    fn new(args: &PlanArgs, name: String, trace: Trace, limits: Limits) -> Result<Self, Failure> {
        if trace.ops().is_empty() {
            return Err(anyhow!("{name} has no ops: there is nothing to plan").into());
        }
        let link = args.link.as_deref().map(parse_link).transpose()?.unwrap_or(limits.link);
        let limits = Limits { link, mode: args.policy.mode.into(), ..limits };
        let none = NoEviction.plan(&trace, &limits).context("planning without a limit")?;
        Ok(Self { name, trace, limits, none, offer: None, latencies: None })
    }

    /// A recorded step, on no device.
    fn recorded(args: &PlanArgs, path: &Path) -> Result<Self, Failure> {
        if args.policy.latencies.is_some() {
            let message = "--latencies is for models; a recorded step (--trace) comes with its own";
            return Err(Failure::Usage(message.to_owned()));
        }
        let mut subject = Self::new(args, path.display().to_string(), read_trace(path)?, Limits::unlimited())?;
        subject.limits.host = setup::host_bytes(args.policy.host_budget)?;
        Ok(subject)
    }
}

/// A model's training step on a device.
struct Lower<'a> {
    args: &'a PlanArgs,
    model: &'a str,
}

impl Visitor for Lower<'_> {
    type Output = Result<Subject, Failure>;

    fn visit<D: Backend>(self, device: Arc<D>) -> Result<Subject, Failure> {
        let Self { args, model } = self;
        let (latencies, file) = setup::latencies(args.policy.latencies.as_deref(), device.info())?;
        let job = setup::job(model, &args.step.net, &args.optimizer, &*device)?.with_latencies(latencies, 1.0)?;
        let (name, limits) = (format!("{model}, batch {}", job.recipe.batch), device.info().limits(Bytes::MAX));
        let mut subject = Subject::new(args, name, job.train.trace.clone(), limits)?;
        subject.latencies = file;
        let full = subject.none.report.arena;
        subject.offer = setup::offer(&*device);
        subject.limits.host =
            setup::host_memory(&*device, &args.policy, subject.offer.unwrap_or(Bytes::MAX).min(full))?;
        if args.link.is_none() {
            subject.limits.link = device.link_for(full.min(subject.limits.host))?;
        }
        Ok(subject)
    }
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let planner = setup::policy(&args.policy.policy)?;
    let subject = match (&args.trace, &args.model) {
        (Some(path), _) => Subject::recorded(args, path)?,
        (None, Some(model)) => setup::on_device(&args.step.device, &args.policy, false, Lower { args, model })?,
        (None, None) => unreachable!("clap asks for one of both"),
    };
    let Subject { name, trace, limits, none, offer, latencies } = subject;
    if let Some(path) = &args.write_trace {
        let compress = path.extension().is_some_and(|extension| extension == "gz");
        write(path, &file::write_trace(&trace, compress))?;
    }
    let full = none.report.arena;
    let retain =
        Retain.plan(&trace, &Limits { host: Bytes::MAX, ..limits.clone() }).context("planning without a limit")?;
    let lowest = floor(&trace, &limits).map_err(anyhow::Error::from)?;
    let mut first: Option<(Limits, Planned)> = None;
    let mut rows = Vec::new();
    for (label, device, result) in plans(args, &*planner, &trace, &limits, full, offer)? {
        rows.push(Row {
            budget: label,
            budget_bytes: device.0,
            infeasible: result.as_ref().err().map(ToString::to_string),
            plan: result.as_ref().ok().map(Plan::from),
        });
        if let Ok(planned) = result {
            first.get_or_insert((Limits { device, ..limits.clone() }, planned));
        }
    }
    let answer = Answer {
        name,
        ops: trace.ops().len(),
        tensors: trace.tensors().len(),
        compute_ns: trace.compute_time().0,
        floor_bytes: lowest.bytes.0,
        floor_op: trace.op(lowest.op).label.clone(),
        none_peak_bytes: none.report.peak.0,
        none_arena_bytes: none.report.arena.0,
        retain_peak_bytes: retain.report.peak.0,
        policy: planner.name().to_owned(),
        latencies,
        budgets: rows,
    };
    if args.json {
        out!("{}", serde_json::to_string(&answer).expect("plain data becomes JSON"));
    } else {
        setup::say_latencies(answer.latencies.as_deref());
        print_answer(&answer, &trace, &lowest, &retain, &none);
        if let Some((within, planned)) = &first {
            if args.explain {
                out!("\n{}", text::explain(&trace, planned, within));
                print_more_memory(&*planner, &trace, within, planned);
            }
            if args.show {
                out!("\n{}", text::synced(&trace, &planned.synced));
            }
        }
    }
    if let (Some(path), Some((within, planned))) = (&args.timeline, &first) {
        write(path, timeline::to_json(&[simulated(&trace, planned, within)]).as_bytes())?;
    }
    if first.is_none() {
        let reason =
            answer.budgets.iter().filter_map(|row| row.infeasible.as_deref()).next_back().unwrap_or("none given");
        return Err(anyhow!("no budget is feasible: {reason}").into());
    }
    Ok(())
}

/// A budget by name and in bytes, and its plan.
type Asked = (String, Bytes, Result<Planned, Infeasible>);

/// What was asked for, of a step that takes `all` without a limit on a device that has `offer`.
fn plans(
    args: &PlanArgs,
    planner: &dyn Planner,
    trace: &Trace,
    limits: &Limits,
    all: Bytes,
    offer: Option<Bytes>,
) -> Result<Vec<Asked>, Failure> {
    let part = |budget: Bytes| percent(budget.0 as f64 / all.0.max(1) as f64);
    if let Some(n_points) = args.frontier {
        let curve = frontier(planner, trace, limits, n_points.into()).map_err(anyhow::Error::from)?;
        return Ok(curve.into_iter().map(|point| (part(point.budget), point.budget, Ok(point.planned))).collect());
    }
    if let Some(slowdown) = args.max_slowdown {
        let (budget, planned) = least_memory(planner, trace, limits, slowdown).map_err(anyhow::Error::from)?;
        return Ok(vec![(part(budget), budget, Ok(planned))]);
    }
    let plan = |budget: &Budget| {
        let device = setup::device_bytes(*budget, all, offer)?;
        Ok((budget.to_string(), device, planner.plan(trace, &Limits { device, ..limits.clone() })))
    };
    args.budget.iter().map(plan).collect()
}

fn print_answer(answer: &Answer, trace: &Trace, lowest: &Floor, retain: &Planned, none: &Planned) {
    out!(
        "{}: {} ops, {} tensors, {} of compute in a step",
        answer.name,
        answer.ops,
        answer.tensors,
        trace.compute_time()
    );
    out!("  floor                      {} (op '{}')", lowest.bytes, answer.floor_op);
    out!("  peak without a limit       {} (arena {})", none.report.peak, none.report.arena);
    out!("  peak if nothing is freed   {}\n", retain.report.peak);
    let mut table = table(["budget", "bytes", "arena", "host", "evicted", "out", "in", "reruns", "stall", "slowdown"]);
    for row in &answer.budgets {
        let bytes = Bytes(row.budget_bytes).to_string();
        match &row.plan {
            Some(plan) => table.add_row([
                row.budget.clone(),
                bytes,
                Bytes(plan.arena_bytes).to_string(),
                Bytes(plan.host_bytes).to_string(),
                plan.evictions.to_string(),
                Bytes(plan.out_bytes).to_string(),
                Bytes(plan.in_bytes).to_string(),
                plan.reruns.to_string(),
                tensile_sched::Nanos(plan.stall_ns).to_string(),
                percent(plan.overhead),
            ]),
            None => table.add_row([row.budget.clone(), bytes, "does not fit".to_owned()]),
        };
    }
    out!("{table}");
    for row in answer.budgets.iter().filter(|row| row.infeasible.is_some()) {
        out!("{}: {}", row.budget, row.infeasible.as_deref().unwrap_or_default());
    }
}

/// What a little more memory would buy.
fn print_more_memory(planner: &dyn Planner, trace: &Trace, limits: &Limits, planned: &Planned) {
    out!("what more memory would buy: {} a step now", planned.simulation.step_time);
    if planned.report.evictions + planned.report.reruns == 0 {
        out!("  nothing: there is room for everything");
        return;
    }
    for share in [5, 10] {
        let device = Bytes((u128::from(limits.device.0) * (100 + share) / 100).try_into().unwrap_or(u64::MAX));
        let answer = match planner.plan(trace, &Limits { device, ..limits.clone() }) {
            Ok(more) => {
                format!(
                    "{} a step, {} slower than without a limit",
                    more.simulation.step_time,
                    percent(more.simulation.overhead())
                )
            }
            Err(error) => error.to_string(),
        };
        out!("  {share} % more, {device}: {answer}");
    }
}

/// The predicted step as lanes.
pub(crate) fn simulated(trace: &Trace, planned: &Planned, limits: &Limits) -> timeline::Process {
    let simulation = &planned.simulation;
    let (spans, stalls) = (&simulation.spans, &simulation.stalls);
    timeline::lanes("predicted", trace, &planned.synced, limits, spans, stalls, simulation.step_time)
}

/// A step as it was predicted and as it ran.
pub(crate) fn in_time(step: &StepSpans) -> Vec<timeline::Process> {
    let StepSpans { program, spans } = step;
    let (trace, planned, limits) = (&program.step().trace, program.planned(), program.limits());
    let end = spans.iter().map(|span| span.end).max().unwrap_or(0);
    let period = Nanos(u64::try_from(end).unwrap_or(0));
    let measured = timeline::lanes("measured", trace, &planned.synced, limits, spans, &[], period);
    vec![simulated(trace, planned, limits), measured]
}

fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read trace file '{}'", path.display()))?;
    file::read_trace(&bytes).with_context(|| format!("trace file '{}'", path.display()))
}

/// `12GB` or `12GB/s`, the same each way.
fn parse_link(text: &str) -> Result<Link, Failure> {
    match text.trim_end_matches("/s").parse::<Budget>() {
        Ok(Budget::Bytes(rate)) => {
            Ok(Link { out_bytes_per_s: rate.0 as f64, in_bytes_per_s: rate.0 as f64, ..Link::PCIE3_X16 })
        }
        Ok(Budget::Unlimited) => Ok(Link::INFINITE),
        _ => Err(Failure::Usage(format!("'{text}' is no link rate; write 12GB/s or unlimited"))),
    }
}
