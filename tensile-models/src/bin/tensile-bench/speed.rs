//! Training steps of one model without a limit: how fast, how much memory, and where the time goes.

use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tensile_models::backend::{Backend, Choice, OpenOptions, Visitor};
use tensile_models::report::process_bytes;
use tensile_sched::Bytes;
use tensile_sched::baseline::NoEviction;

use crate::training::{ClassAnswer, Task, classes, measure, median, timed_steps, trainer};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model with its batch size: resnet50:8.
    model: String,
    /// Timed steps, after one to warm up.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    #[command(flatten)]
    device: Choice,
}

#[derive(Serialize)]
pub(crate) struct Answer {
    model: String,
    batch: usize,
    /// Of the host device.
    threads: Option<usize>,
    ops: usize,
    flops: f64,
    /// Median of the timed steps, and the least.
    step_ns: u64,
    least_step_ns: u64,
    /// Most bytes on the device, by an independent counter.
    peak_bytes: Option<u64>,
    /// Peak of the process's resident memory over that at its start; absent where the system does not tell.
    resident_bytes: Option<u64>,
    classes: Vec<ClassAnswer>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Answer> {
    let at_start = process_bytes("VmRSS:");
    let options = OpenOptions { op_times: true, ..OpenOptions::default() };
    args.device.open(options, Speed { args, at_start })?
}

struct Speed<'a> {
    args: &'a Args,
    /// Resident memory before anything was opened.
    at_start: Option<u64>,
}

impl Visitor for Speed<'_> {
    type Output = anyhow::Result<Answer>;

    fn visit<D: Backend>(self, device: Arc<D>) -> anyhow::Result<Answer> {
        speed(self.args, &device, self.at_start)
    }
}

fn speed<D: Backend>(args: &Args, device: &Arc<D>, at_start: Option<u64>) -> anyhow::Result<Answer> {
    let Task { name, mut job, data } = Task::open(&args.model, 0, &**device)?;
    eprintln!("{name}, batch {}", job.recipe.samples_per_step());
    let before = device.begin_count();
    let mut trainer = trainer(device, &job, &NoEviction, &device.info().limits(Bytes::MAX))?;
    let measured = measure(&mut trainer, &data, timed_steps(&job, args.steps))?;
    let peak = process_bytes("VmHWM:");
    let stats = trainer.stats().context("the trainer has run")?;
    let mut step = (*job.train).clone();
    step.trace = stats.measured_trace(&job.train)?;
    job.train = Arc::new(step);
    Ok(Answer {
        model: name,
        batch: job.recipe.samples_per_step(),
        threads: args.device.host_threads(),
        ops: job.train.trace.ops().len(),
        flops: job.train.costs.iter().map(|cost| cost.flops).sum(),
        step_ns: median(&measured.steps),
        least_step_ns: measured.steps.iter().copied().min().unwrap_or(0),
        peak_bytes: device.counted_bytes(before).map(|bytes| bytes.0),
        resident_bytes: peak.zip(at_start).map(|(peak, start)| peak.saturating_sub(start)),
        classes: classes(&job),
    })
}
