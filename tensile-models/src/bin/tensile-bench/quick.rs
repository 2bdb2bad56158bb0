//! Training steps of a few models under a few budgets, each beside steps without a limit.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tensile_core::Device;
use tensile_core::device::host::HostDevice;
use tensile_models::backend::{self, AdapterReport, Backend, Choice, Name, OpenOptions, Visitor, available_host_bytes};
use tensile_models::budget::Budget;
use tensile_models::data::Splits;
use tensile_models::job::Job;
use tensile_models::report::process_bytes;
use tensile_sched::baseline::{NoEviction, Retain};
use tensile_sched::{Bytes, Limits, Planner, floor, planner};

use crate::kernels::{self, KernelAnswer};
use crate::training::{ClassAnswer, Measured, Task, classes, measure, median, timed_steps, trainer};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Models with their batch sizes: resnet18:8,digit-cnn:64. Default: digit-cnn:64,resnet18:8,resnet50:8; digit-cnn:64,resnet18:2 on a software adapter.
    #[arg(long, value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// Budgets in percent of what the job takes without a limit; the floor is always tried. Default: 100,80,60,50,40; 100,50 on a software adapter.
    #[arg(long, value_delimiter = ',')]
    percent: Option<Vec<u32>>,
    /// Height and width of images for models that take any. Default: the model's own; 32 on a software adapter.
    #[arg(long)]
    size: Option<usize>,
    /// Timed steps of each run, after one to warm up; small models take twenty times as many, unless on a software adapter. Default: 3; 2 on a software adapter.
    #[arg(long)]
    steps: Option<usize>,
    #[command(flatten)]
    device: Choice,
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
        let offer = available_host_bytes(self.spill_dir.as_deref());
        self.host_budget.resolve(Bytes::MAX, offer.unwrap_or(Bytes::MAX))
    }
}

#[derive(Serialize)]
pub(crate) struct Answer {
    device: String,
    /// Of the host device.
    threads: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<AdapterReport>,
    /// Whether it is a software adapter.
    software: bool,
    /// On another device than the host: single kernels, on both.
    kernels: Vec<KernelAnswer>,
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
    /// The same on the host device, if this is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_step_ns: Option<u64>,
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
    /// By an independent counter; absent if nothing counts.
    peak_bytes: Option<u64>,
    arena_bytes: u64,
    host_bytes: u64,
    /// Of the process, at the end of the last step; absent where the system does not tell.
    resident_bytes: Option<u64>,
    msr_none: Option<f64>,
    msr_retain: Option<f64>,
    /// Step time over that without a limit, less 1, by the simulator from measured latencies.
    eor_predicted: f64,
    /// The same, measured; the run without a limit comes right before and right after.
    eor: f64,
    /// MSR (none) over the measured EOR; absent where either is within the noise of timing.
    cbr: Option<f64>,
    step_ns: u64,
    stall_ns: Option<u64>,
    evictions: usize,
    out_bytes: u64,
    in_bytes: u64,
    reruns: usize,
    plan_ns: u64,
    /// Whether all losses equal those without a limit, bit by bit.
    losses_equal: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Answer> {
    let options =
        OpenOptions { host_capacity: args.host_capacity(), spill_dir: args.spill_dir.clone(), op_times: true };
    args.device.open(options, Quick(args))?
}

struct Quick<'a>(&'a Args);

impl Visitor for Quick<'_> {
    type Output = anyhow::Result<Answer>;

    fn visit<D: Backend>(self, device: Arc<D>) -> anyhow::Result<Answer> {
        let args = self.0;
        let host = match args.device.backend {
            Name::Cpu => None,
            Name::Wgpu => Some(Arc::new(backend::host(0, OpenOptions::default())?)),
        };
        let kernels = host.as_ref().map_or(Ok(Vec::new()), |host| kernels::measure(&*device, host))?;
        let software = host.is_some() && device.is_host_memory();
        let bench = Bench { args, device, host, software };
        let default = if software { "digit-cnn:64,resnet18:2" } else { "digit-cnn:64,resnet18:8,resnet50:8" };
        let specs = args.models.clone().unwrap_or_else(|| default.split(',').map(str::to_owned).collect());
        let models = specs.iter().map(|spec| bench.model(spec)).collect::<anyhow::Result<_>>()?;
        let (info, link) = (bench.device.info(), bench.device.info().link);
        Ok(Answer {
            device: info.name.clone(),
            threads: args.device.host_threads(),
            adapter: bench.device.adapter(),
            software,
            kernels,
            out_bytes_per_s: link.out_bytes_per_s,
            in_bytes_per_s: link.in_bytes_per_s,
            kernel_slowdown: link.kernel_slowdown,
            copy_slowdown: link.copy_slowdown,
            models,
        })
    }
}

struct Bench<'a, D> {
    args: &'a Args,
    device: Arc<D>,
    /// To compare with, if the device is another.
    host: Option<Arc<HostDevice>>,
    software: bool,
}

impl<D: Backend> Bench<'_, D> {
    fn model(&self, spec: &str) -> anyhow::Result<ModelAnswer> {
        let Self { args, device, software, .. } = self;
        let planner = planner::find(&args.policy).with_context(|| format!("there is no policy '{}'", args.policy))?;
        let size = args.size.unwrap_or(if *software { 32 } else { 0 });
        let Task { name, job, data } = Task::open(spec, size, &**device)?;
        let batch = job.recipe.samples_per_step();
        let steps = if *software { args.steps.unwrap_or(2) } else { timed_steps(&job, args.steps.unwrap_or(3)) };
        let mut unlimited = Limits { host: args.host_capacity(), ..device.info().limits(Bytes::MAX) };
        let full = NoEviction.plan(&job.train.trace, &unlimited)?.report.arena;
        unlimited.link = device.link_for(full.min(unlimited.host))?;

        // Measure latencies first, so that plans and predictions speak of this machine.
        eprintln!("{name}, batch {batch}: measuring latencies");
        let mut first = trainer(device, &job, &NoEviction, &unlimited)?;
        measure(&mut first, &data, steps)?;
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
        let percent = args.percent.as_deref().unwrap_or(if *software { &[100, 50] } else { &[100, 80, 60, 50, 40] });
        let mut budgets: Vec<(String, Bytes)> = percent
            .iter()
            .map(|percent| (format!("{percent} %"), Bytes(none.report.arena.0 * u64::from(*percent) / 100)))
            .collect();
        budgets.push(("floor".to_owned(), lowest.bytes));
        let mut reference = without_limit(device, &measured_job, &unlimited, &data, steps)?;
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
            let before = device.begin_count();
            let mut limited = trainer(device, &measured_job, &*planner, &limits)?;
            let measured = measure(&mut limited, &data, steps)?;
            let peak = device.counted_bytes(before);
            let resident_bytes = process_bytes("VmRSS:");
            drop(limited);
            let after = without_limit(device, &measured_job, &unlimited, &data, steps)?;
            let around: Vec<u64> = reference.steps.iter().chain(&after.steps).copied().collect();
            all_none.extend(&after.steps);
            let report = &planned.report;
            let msr = |full: Bytes| peak.map(|peak| 1.0 - peak.0 as f64 / full.0 as f64);
            let saved = msr(none.report.arena);
            let eor = median(&measured.steps) as f64 / median(&around) as f64 - 1.0;
            rows.push(Row {
                budget: label,
                budget_bytes: budget.0,
                infeasible: None,
                run: Some(Run {
                    peak_bytes: peak.map(|peak| peak.0),
                    arena_bytes: report.arena.0,
                    host_bytes: report.host_arena.0,
                    resident_bytes,
                    msr_none: saved,
                    msr_retain: msr(retain.report.arena),
                    eor_predicted: planned.simulation.step_time.0 as f64 / none.simulation.step_time.0 as f64 - 1.0,
                    eor,
                    cbr: saved.filter(|saved| eor > 0.005 && *saved > 0.005).map(|saved| saved / eor),
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
            host_step_ns: self.host.as_ref().map(|host| host_step(host, spec, size, steps)).transpose()?,
            classes: classes(&measured_job),
            rows,
        })
    }
}

/// Time of a step of the same job on the host device, without a limit.
fn host_step(host: &Arc<HostDevice>, spec: &str, size: usize, steps: usize) -> anyhow::Result<u64> {
    let Task { job, data, .. } = Task::open(spec, size, &**host)?;
    let measured = without_limit(host, &job, &host.info().limits(Bytes::MAX), &data, steps)?;
    Ok(median(&measured.steps))
}

fn without_limit<D: Backend>(
    device: &Arc<D>,
    job: &Job,
    unlimited: &Limits,
    data: &Splits,
    steps: usize,
) -> anyhow::Result<Measured> {
    let mut trainer = trainer(device, job, &NoEviction, unlimited)?;
    measure(&mut trainer, data, steps)
}
