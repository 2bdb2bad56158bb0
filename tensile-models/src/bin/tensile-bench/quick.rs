//! Training steps of a few models under a few budgets, each beside steps without a limit.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tensile_core::Device;
use tensile_core::device::host::count;
use tensile_core::device::host::{HostDevice, HostOptions, available_disk, available_memory};
use tensile_models::budget::Budget;
use tensile_models::data::Splits;
use tensile_models::job::Job;
use tensile_models::report::process_bytes;
use tensile_sched::baseline::{NoEviction, Retain};
use tensile_sched::{Bytes, Limits, Planner, floor, planner};

use crate::training::{ClassAnswer, Measured, Task, classes, measure, median, threads, trainer};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Models with their batch sizes: resnet18:8,digit-cnn:64.
    #[arg(long, value_delimiter = ',', default_value = "digit-cnn:64,resnet18:8,resnet50:8")]
    models: Vec<String>,
    /// Budgets in percent of what the job takes without a limit; the floor is always tried.
    #[arg(long, value_delimiter = ',', default_value = "100,80,60,50,40")]
    percent: Vec<u32>,
    /// Height and width of images for models that take any.
    #[arg(long, default_value_t = 0)]
    size: usize,
    /// Timed steps of each run, after one to warm up; small models take twenty times as many.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// Threads; 0 = one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Policy.
    #[arg(long, default_value = "tensile")]
    policy: String,
    /// Directory for what leaves the device; none for ordinary memory.
    #[arg(long)]
    spill_dir: Option<PathBuf>,
    /// Most that leaves the device: 4GiB.
    #[arg(long, default_value = "unlimited")]
    host_budget: Budget,
}

impl Args {
    /// Bytes that may leave the device.
    fn host_capacity(&self) -> Bytes {
        let offer = match &self.spill_dir {
            Some(dir) => available_disk(dir),
            None => available_memory(),
        };
        self.host_budget.resolve(Bytes::MAX, offer.unwrap_or(Bytes::MAX))
    }
}

#[derive(Serialize)]
pub(crate) struct Answer {
    device: String,
    threads: usize,
    /// Copies as the planner is told of them.
    out_bytes_per_s: f64,
    in_bytes_per_s: f64,
    kernel_slowdown: f64,
    copy_slowdown: f64,
    models: Vec<ModelAnswer>,
}

#[derive(Serialize)]
struct ModelAnswer {
    model: String,
    batch: usize,
    task: String,
    ops: usize,
    flops: f64,
    floor_bytes: u64,
    floor_op: String,
    /// Arena without a limit.
    none_bytes: u64,
    /// Arena if nothing is freed until the step ends.
    retain_bytes: u64,
    /// Step time without a limit, median of all such runs.
    none_step_ns: u64,
    /// Per class of op, without a limit: time and operations in a step, most time first.
    classes: Vec<ClassAnswer>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// `60 %`, `floor`.
    budget: String,
    budget_bytes: u64,
    /// Why there is no run, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    infeasible: Option<String>,
    #[serde(flatten)]
    run: Option<Run>,
}

#[derive(Serialize)]
struct Run {
    /// By the counting allocator.
    peak_bytes: u64,
    arena_bytes: u64,
    host_bytes: u64,
    /// Of the process, at the end of the last step; absent where the system does not tell.
    resident_bytes: Option<u64>,
    msr_none: f64,
    msr_retain: f64,
    /// Step time over that without a limit, less 1, by the simulator from measured latencies.
    eor_predicted: f64,
    /// The same, measured; the run without a limit comes right before and right after.
    eor: f64,
    /// MSR (none) over the measured EOR; absent where either is within the noise of timing.
    cbr: Option<f64>,
    step_ns: u64,
    stall_ns: u64,
    evictions: usize,
    out_bytes: u64,
    in_bytes: u64,
    reruns: usize,
    plan_ns: u64,
    /// Whether all losses equal those without a limit, bit by bit.
    losses_equal: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Answer> {
    let threads = threads(args.threads)?;
    let host_capacity = args.host_capacity();
    let spill_dir = args.spill_dir.clone();
    let device =
        Arc::new(HostDevice::new(HostOptions { threads, host_capacity, spill_dir, ..HostOptions::default() })?);
    let models = args.models.iter().map(|spec| model(args, spec, &device)).collect::<anyhow::Result<_>>()?;
    let (name, link) = (device.info().name.clone(), device.info().link);
    let (out_bytes_per_s, in_bytes_per_s) = (link.out_bytes_per_s, link.in_bytes_per_s);
    let (kernel_slowdown, copy_slowdown) = (link.kernel_slowdown, link.copy_slowdown);
    Ok(Answer { device: name, threads, out_bytes_per_s, in_bytes_per_s, kernel_slowdown, copy_slowdown, models })
}

fn model(args: &Args, spec: &str, device: &Arc<HostDevice>) -> anyhow::Result<ModelAnswer> {
    let planner = planner::find(&args.policy).with_context(|| format!("there is no policy '{}'", args.policy))?;
    let Task { name, job, data } = Task::open(spec, args.size, device)?;
    let batch = job.recipe.samples_per_step();
    let mut unlimited = Limits { host: args.host_capacity(), ..device.info().limits(Bytes::MAX) };
    let full = NoEviction.plan(&job.train.trace, &unlimited)?.report.arena;
    unlimited.link = device.link_for(full.min(unlimited.host))?;

    // Measure latencies first, so that plans and predictions speak of this machine.
    eprintln!("{name}, batch {batch}: measuring latencies");
    let mut first = trainer(device, &job, &NoEviction, &unlimited)?;
    measure(&mut first, &data, args.steps)?;
    let stats = first.stats().cloned().context("the trainer has run")?;
    drop(first);
    let trace = stats.measured_trace(&job.train)?;
    let mut measured_job = job.clone();
    let mut step = (*job.train).clone();
    step.trace = trace.clone();
    measured_job.train = Arc::new(step);

    let none = NoEviction.plan(&trace, &unlimited)?;
    let retain = Retain.plan(&trace, &unlimited)?;
    let lowest = floor(&trace, &unlimited)?;
    let mut budgets: Vec<(String, Bytes)> = args
        .percent
        .iter()
        .map(|percent| (format!("{percent} %"), Bytes(none.report.arena.0 * u64::from(*percent) / 100)))
        .collect();
    budgets.push(("floor".to_owned(), lowest.bytes));
    let mut reference = without_limit(device, &measured_job, &unlimited, &data, args.steps)?;
    let mut all_none = reference.steps.clone();
    let mut rows = Vec::new();
    for (label, budget) in budgets {
        eprintln!("{name}, batch {batch}: {label} = {budget}");
        let limits = Limits { device: budget, ..unlimited.clone() };
        let start = std::time::Instant::now();
        let planned = match planner.plan(&trace, &limits) {
            Ok(planned) => planned,
            Err(reason) => {
                let infeasible = Some(reason.to_string());
                rows.push(Row { budget: label, budget_bytes: budget.0, infeasible, run: None });
                continue;
            }
        };
        let plan_ns = start.elapsed().as_nanos() as u64;
        count::reset_peak();
        let mut limited = trainer(device, &measured_job, &*planner, &limits)?;
        let measured = measure(&mut limited, &data, args.steps)?;
        let resident_bytes = process_bytes("VmRSS:");
        drop(limited);
        let after = without_limit(device, &measured_job, &unlimited, &data, args.steps)?;
        let around: Vec<u64> = reference.steps.iter().chain(&after.steps).copied().collect();
        all_none.extend(&after.steps);
        let report = &planned.report;
        let msr = |full: Bytes| 1.0 - measured.peak_bytes as f64 / full.0 as f64;
        let eor = median(&measured.steps) as f64 / median(&around) as f64 - 1.0;
        rows.push(Row {
            budget: label,
            budget_bytes: budget.0,
            infeasible: None,
            run: Some(Run {
                peak_bytes: measured.peak_bytes,
                arena_bytes: report.arena.0,
                host_bytes: report.host_arena.0,
                resident_bytes,
                msr_none: msr(none.report.arena),
                msr_retain: msr(retain.report.arena),
                eor_predicted: planned.simulation.step_time.0 as f64 / none.simulation.step_time.0 as f64 - 1.0,
                eor,
                cbr: (eor > 0.005 && msr(none.report.arena) > 0.005).then(|| msr(none.report.arena) / eor),
                step_ns: median(&measured.steps),
                stall_ns: measured.stall_ns,
                evictions: report.evictions,
                out_bytes: report.bytes_out.0,
                in_bytes: report.bytes_in.0,
                reruns: report.reruns,
                plan_ns,
                losses_equal: measured.losses == reference.losses,
            }),
        });
        reference = after;
    }
    Ok(ModelAnswer {
        model: name,
        batch,
        task: job.network.task().to_string(),
        ops: trace.ops().len(),
        flops: job.train.costs.iter().map(|cost| cost.flops).sum(),
        floor_bytes: lowest.bytes.0,
        floor_op: trace.op(lowest.op).label.clone(),
        none_bytes: none.report.arena.0,
        retain_bytes: retain.report.arena.0,
        none_step_ns: median(&all_none),
        classes: classes(&measured_job),
        rows,
    })
}

fn without_limit(
    device: &Arc<HostDevice>,
    job: &Job,
    unlimited: &Limits,
    data: &Splits,
    steps: usize,
) -> anyhow::Result<Measured> {
    let mut trainer = trainer(device, job, &NoEviction, unlimited)?;
    measure(&mut trainer, data, steps)
}
