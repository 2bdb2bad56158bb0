//! Training steps, timed.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use serde::Serialize;
use tensile_core::Device;
use tensile_core::exec::ExecutorOptions;
use tensile_core::optim::Optimizer;
use tensile_models::backend::Backend;
use tensile_models::data::{self, Loader, Position, Splits};
use tensile_models::job::{Job, Recipe};
use tensile_models::trainer::Trainer;
use tensile_models::zoo;
use tensile_sched::{Limits, Planner};

/// What to train, and on what.
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) job: Job,
    pub(crate) data: Splits,
}

impl Task {
    /// From `MODEL:BATCH`, with Adam on synthetic data of the size that the model takes; `size` above 0 is another height and width of images.
    pub(crate) fn open<D: Device>(spec: &str, size: usize, device: &D) -> anyhow::Result<Self> {
        let (name, batch) = spec.split_once(':').with_context(|| format!("'{spec}' is not MODEL:BATCH"))?;
        let batch: usize = batch.parse().with_context(|| format!("'{spec}' is not MODEL:BATCH"))?;
        let model = zoo::find(name).with_context(|| format!("there is no model '{name}'"))?;
        let size = (size > 0 && model.has("size")).then(|| ("size".to_owned(), size as f64));
        let job =
            Job::new(&model.network(&size.into_iter().collect())?, Recipe::new(batch, Optimizer::adam()), device)?;
        let data = data::open(data::default_for(&*job.network), &*job.network, 1)?;
        Ok(Self { name: name.to_owned(), job, data })
    }
}

/// Timed steps.
pub(crate) struct Measured {
    /// Bits of the losses of all steps.
    pub(crate) losses: Vec<u32>,
    /// Times of the timed steps in ns.
    pub(crate) steps: Vec<u64>,
    /// Mean time that a step's kernels waited for copies; none where ops are not timed.
    pub(crate) stall_ns: Option<u64>,
}

/// What the ops of one class take in a step.
#[derive(Serialize)]
pub(crate) struct ClassAnswer {
    class: String,
    ops: usize,
    time_ns: u64,
    flops: f64,
}

/// A trainer that measures the latency of every op, if the device does.
pub(crate) fn trainer<'p, D: Backend>(
    device: &Arc<D>,
    job: &Job,
    planner: &'p dyn Planner,
    limits: &Limits,
) -> anyhow::Result<Trainer<'p, D>> {
    let options = ExecutorOptions { profile: true, ..ExecutorOptions::default() };
    Ok(Trainer::new(Arc::clone(device), job.clone(), planner, limits.clone(), options, 1)?)
}

/// Timed steps of a job: small models take many in the time of one step of a large one.
pub(crate) fn timed_steps(job: &Job, steps: usize) -> usize {
    if job.train.costs.iter().map(|cost| cost.flops).sum::<f64>() < 1e10 { 20 * steps } else { steps }
}

/// One step to warm up, then the timed ones.
pub(crate) fn measure<D: Backend>(
    trainer: &mut Trainer<'_, D>,
    data: &Splits,
    steps: usize,
) -> anyhow::Result<Measured> {
    let mut loader =
        Loader::new(Arc::clone(&data.train), trainer.job().recipe.samples_per_step(), 1, Position::default())?;
    let (mut losses, mut times, mut stall_ns) = (Vec::new(), Vec::new(), 0);
    let mut pending = None;
    for step in 0..=steps + 1 {
        let next = if step <= steps {
            let batch = loader.next_batch()?;
            let ticket = trainer.begin(&batch, 1e-4)?;
            loader.recycle(batch);
            Some(ticket)
        } else {
            None
        };
        if let Some(ticket) = std::mem::replace(&mut pending, next) {
            let result = trainer.finish(ticket)?;
            losses.push(result.scalar(tensile_models::job::LOSS).to_bits());
            if step > 1 {
                times.push(result.timings.step.0);
                stall_ns += result.timings.stall.0;
            }
        }
    }
    let stall_ns = trainer.times_ops().then_some(stall_ns / times.len().max(1) as u64);
    Ok(Measured { losses, steps: times, stall_ns })
}

/// Time by class of op, most time first; the job's trace has measured latencies.
pub(crate) fn classes(job: &Job) -> Vec<ClassAnswer> {
    let mut classes: BTreeMap<&str, ClassAnswer> = BTreeMap::new();
    for (op, cost) in job.train.trace.ops().iter().zip(&job.train.costs) {
        let class = classes.entry(&op.class).or_insert_with(|| ClassAnswer {
            class: op.class.clone(),
            ops: 0,
            time_ns: 0,
            flops: 0.0,
        });
        class.ops += 1;
        class.time_ns += op.latency.0;
        class.flops += cost.flops;
    }
    let mut classes: Vec<ClassAnswer> = classes.into_values().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.time_ns));
    classes
}

/// The middle one; 0 of none.
pub(crate) fn median(times: &[u64]) -> u64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}
