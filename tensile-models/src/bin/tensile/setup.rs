//! From command-line words to devices, jobs, policies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use tensile_core::latency::{Latencies, Learned, Roofline};
use tensile_core::optim::schedule::Schedule;
use tensile_core::optim::{Group, Optimizer, Rule, Select};
use tensile_core::{Device, DeviceInfo, checkpoint};
use tensile_models::backend::{Backend, Choice, OpenOptions, Visitor, available_host_bytes};
use tensile_models::budget::Budget;
use tensile_models::data::{self, Splits};
use tensile_models::job::{Inference, Job, Nonfinite, Recipe};
use tensile_models::profile::default_file;
use tensile_models::report::n_parameters;
use tensile_models::trainer::Predictor;
use tensile_models::training::TrainingOptions;
use tensile_models::zoo::{self, Network, Task};
use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Planner, planner};

use crate::Failure;
use crate::args::{NetArgs, OptimizerArgs, PolicyArgs, TrainedArgs, TrainingArgs};

pub(crate) fn policy(name: &str) -> Result<Box<dyn Planner>, Failure> {
    planner::find(name).ok_or_else(|| {
        let names: Vec<&str> = planner::all().iter().map(|policy| policy.name()).collect();
        Failure::Usage(format!("there is no policy '{name}'; there are {}", names.join(", ")))
    })
}

pub(crate) fn model(name: &str) -> Result<&'static zoo::Model, Failure> {
    zoo::find(name).ok_or_else(|| {
        let names: Vec<&str> = zoo::all().iter().map(|model| model.name).collect();
        Failure::Usage(format!("there is no model '{name}'; there are {}", names.join(", ")))
    })
}

fn optimizer(args: &OptimizerArgs) -> Result<Optimizer, Failure> {
    let part = |name: &str, value: f32, most: f32| {
        if (0.0..=most).contains(&value) {
            return Ok(());
        }
        Err(Failure::Usage(format!("--{name} {value} is out of range; it may be from 0 to {most}")))
    };
    part("momentum", args.momentum, 0.9999)?;
    part("weight-decay", args.weight_decay.unwrap_or(0.0), 1e6)?;
    if let Some(norm) = args.clip_norm.filter(|norm| !(*norm > 0.0 && norm.is_finite())) {
        return Err(Failure::Usage(format!("--clip-norm {norm} is no norm; it must be above zero")));
    }
    let mut optimizer = match args.optimizer.as_str() {
        "adam" => Optimizer::adam(),
        "adamw" => Optimizer::adamw(0.01),
        "sgd" => Optimizer::sgd(args.momentum),
        name => return Err(Failure::Usage(format!("there is no optimizer '{name}'; there are adam, adamw, sgd"))),
    };
    if let Some(decay) = args.weight_decay {
        match &mut optimizer.rule {
            Rule::Sgd { weight_decay, .. } | Rule::Adam { weight_decay, .. } => *weight_decay = decay,
        }
    }
    let decay = optimizer.rule.weight_decay();
    for group in &args.group {
        optimizer = optimizer.with_group(Group {
            select: Select::Named(vec![group.pattern.clone()]),
            weight_decay: group.decay.unwrap_or(decay),
            lr_factor: group.lr,
        });
    }
    if args.no_decay_on_vectors {
        optimizer = optimizer.without_decay_on_vectors();
    }
    let skip_nonfinite = args.nonfinite != Nonfinite::Continue;
    Ok(Optimizer { clip_norm: args.clip_norm, skip_nonfinite, ..optimizer })
}

/// Opens the chosen device and runs a command on it.
pub(crate) fn on_device<T>(
    choice: &Choice,
    policy: &PolicyArgs,
    op_times: bool,
    command: impl Visitor<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    open(choice, OpenOptions { spill_dir: policy.spill_dir.clone(), op_times, ..OpenOptions::default() }, command)
}

/// Opens the chosen device with these options and runs a command on it.
pub(crate) fn open<T>(
    choice: &Choice,
    options: OpenOptions,
    command: impl Visitor<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match choice.open(options, command) {
        Ok(outcome) => outcome,
        Err(error) if error.is_usage() => Err(Failure::Usage(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn job<D: Device>(name: &str, args: &NetArgs, update: &OptimizerArgs, device: &D) -> Result<Job, Failure> {
    let network = network(name, args)?;
    let (batch, accumulate) = (batch(args, &*network)?, usize::from(update.accumulate));
    let (last_batch, lengths) = (update.last_batch, update.buckets.clone());
    let recipe = Recipe { batch, accumulate, optimizer: optimizer(update)?, last_batch, lengths };
    recipe.batching().check_lengths(&network.task()).map_err(|error| Failure::Usage(format!("--buckets: {error}")))?;
    Ok(Job::new(&network, recipe, device)?)
}

/// More would take longer than anybody waits, and counts of steps would overflow.
const MOST_EPOCHS: usize = 1_000_000;

/// File that `--checkpoint` writes into its folder.
const CHECKPOINT: &str = "checkpoint.safetensors";

/// A training, ready but for memory.
pub(crate) struct Training {
    pub(crate) job: Job,
    pub(crate) data: Splits,
    /// Steps of the whole of it.
    pub(crate) steps: u64,
    pub(crate) schedule: Schedule,
}

impl Training {
    /// A line on it.
    pub(crate) fn about(&self, model: &str) -> String {
        let parameters = n_parameters(&self.job.train);
        let Recipe { batch, accumulate, .. } = self.job.recipe;
        let times = if accumulate > 1 { format!(" × {accumulate}") } else { String::new() };
        format!("{model}: {parameters} parameters, batch {batch}{times}, {} ops in a step", self.job.train.calls.len())
    }
}

impl TrainingArgs {
    /// For a job of a runtime; with `resume` it goes on from its checkpoint if there is one.
    pub(crate) fn options(&self, training: &Training, resume: bool) -> TrainingOptions {
        let checkpoint = checkpoint_of(self);
        TrainingOptions {
            seed: self.seed,
            steps: training.steps,
            lr: f64::from(self.lr),
            schedule: training.schedule,
            nonfinite: self.optimizer.nonfinite,
            load: self.load.clone(),
            resume: resume && checkpoint.as_ref().is_some_and(|path| path.exists()),
            checkpoint,
            every: self.every,
            save: self.save.clone(),
        }
    }
}

/// The file that a training's state is saved to, if it is to be.
pub(crate) fn checkpoint_of(args: &TrainingArgs) -> Option<PathBuf> {
    args.checkpoint.as_ref().map(|folder| folder.join(CHECKPOINT))
}

/// Finds out, before anything is opened or made, what is wrong with numbers and with files to be written. Makes the folder of checkpoints.
pub(crate) fn check(args: &TrainingArgs) -> Result<(), Failure> {
    if !(args.lr > 0.0 && args.lr.is_finite()) {
        return Err(Failure::Usage(format!("--lr {} is no learning rate; it must be above zero", args.lr)));
    }
    if args.epochs == 0 {
        return Err(Failure::Usage("--epochs 0 trains nothing; the least is 1".to_owned()));
    }
    if args.epochs > MOST_EPOCHS {
        return Err(Failure::Usage(format!("--epochs {} are too many; the most is {MOST_EPOCHS}", args.epochs)));
    }
    if let Some(folder) = &args.checkpoint {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder '{}'", folder.display()))?;
    }
    for path in args.save.iter().chain(&checkpoint_of(args)) {
        checkpoint::check_writable(path)?;
    }
    Ok(())
}

/// A training on a device. What is wrong with its data or its schedule is found out before anything is planned.
pub(crate) fn training<D: Device>(args: &TrainingArgs, device: &D) -> Result<Training, Failure> {
    let job = job(&args.model, &args.net, &args.optimizer, device)?;
    let name = args.data.as_deref().unwrap_or(data::default_for(&*job.network));
    let data = data::open_with(name, &*job.network, args.seed, &data::Options { augment: args.augment })?;
    let per_epoch = job.recipe.batching().per_epoch(&*data.train)?;
    let steps = args.epochs as u64 * per_epoch;
    let steps = if args.steps == 0 { steps } else { (args.steps as u64).min(steps) };
    let schedule = Schedule::parse(&args.schedule, steps, per_epoch)
        .map_err(|error| Failure::Usage(format!("--schedule: {error}")))?
        .with_warmup(args.warmup);
    Ok(Training { job, data, steps, schedule })
}

/// What tells how long ops take, and the file it is from.
pub(crate) type Told = (Arc<dyn Latencies>, Option<PathBuf>);

/// What `--latencies` stands for on a device. A file that was not asked for and cannot be used is passed over, with a warning.
pub(crate) fn latencies(asked: Option<&Path>, info: &DeviceInfo) -> Result<Told, Failure> {
    let estimates = || (Arc::new(Roofline::new(info)) as Arc<dyn Latencies>, None);
    let load = |file: &Path| Learned::load(file, &info.name).map(|learned| Arc::new(learned) as Arc<dyn Latencies>);
    match asked {
        Some(file) if file.as_os_str() == "none" => Ok(estimates()),
        Some(file) => Ok((load(file)?, Some(file.to_owned()))),
        None => Ok(match default_file(&info.name).filter(|file| file.exists()) {
            Some(file) => match load(&file) {
                Ok(learned) => (learned, Some(file)),
                Err(error) => {
                    eprintln!("warning: {error}; meanwhile, planning by the device's rates");
                    estimates()
                }
            },
            None => estimates(),
        }),
    }
}

/// Says where latencies are from, if they are from a file.
pub(crate) fn say_latencies(file: Option<&Path>) {
    if let Some(file) = file {
        out!("latencies of ops as learned by `tensile profile`: '{}'", file.display());
    }
}

/// The model of `eval` and `predict` on a device.
pub(crate) fn trained<D: Backend>(
    args: &TrainedArgs,
    device: Arc<D>,
) -> Result<(Predictor<D>, Arc<dyn Network>), Failure> {
    let planner = policy(&args.policy.policy)?;
    let network = network(&args.model, &args.step.net)?;
    let batch = batch(&args.step.net, &*network)?;
    let (latencies, _) = latencies(args.policy.latencies.as_deref(), device.info())?;
    let job = Inference::new(&network, batch, &*device)?.with_latencies(&*latencies)?;
    let mut limits = device.info().limits(Bytes::MAX);
    let none = NoEviction.plan(&job.eval.trace, &limits)?;
    [limits.device, limits.host] = memory(&*device, args.budget, &args.policy, none.report.arena)?;
    limits.link = device.link_for(none.report.arena.min(limits.host))?;
    limits.mode = args.policy.mode.into();
    Ok((Predictor::load(device, job, &*planner, limits, &args.load)?, network))
}

/// Samples in a batch.
fn batch(args: &NetArgs, network: &dyn Network) -> Result<usize, Failure> {
    let default = if matches!(network.task(), Task::Nodes { .. }) { 1 } else { 64 };
    match args.batch.unwrap_or(default) {
        0 => Err(Failure::Usage("--batch 0 trains nothing; the least is 1".to_owned())),
        batch if batch > 1 << 20 => Err(Failure::Usage(format!("--batch {batch} is too large; the most is 1048576"))),
        batch => Ok(batch),
    }
}

/// The network of a name with the settings that are asked for.
pub(crate) fn network(name: &str, args: &NetArgs) -> Result<Arc<dyn Network>, Failure> {
    let mut given: BTreeMap<String, f64> = args.set.iter().cloned().collect();
    given.extend(args.size.map(|size| ("size".to_owned(), f64::from(size))));
    model(name)?.network(&given).map_err(|error| Failure::Usage(error.to_string()))
}

/// Bytes that `--budget auto` stands for: nine tenths of what the device has free. None where nothing tells.
pub(crate) fn offer<D: Backend>(device: &D) -> Option<Bytes> {
    device.available_bytes().map(|free| Bytes(free.0 / 10 * 9))
}

/// A device budget in bytes, of a job that takes `full` without a limit, on a device that has `offer`.
pub(crate) fn device_bytes(budget: Budget, full: Bytes, offer: Option<Bytes>) -> Result<Bytes, Failure> {
    match (budget, offer) {
        (Budget::Auto, None) => {
            let message = "--budget auto: nothing tells how much memory the device has free; give bytes (2GiB)";
            Err(Failure::Usage(message.to_owned()))
        }
        _ => Ok(budget.resolve(full, offer.unwrap_or(Bytes::MAX))),
    }
}

/// Bytes for the device and for the host, of a job that takes `full` on the device without a limit.
pub(crate) fn memory<D: Backend>(
    device: &D,
    budget: Budget,
    policy: &PolicyArgs,
    full: Bytes,
) -> Result<[Bytes; 2], Failure> {
    let for_device = device_bytes(budget, full, offer(device))?;
    let needed = for_device.min(full);
    if let Some(free) = device.available_bytes().filter(|free| needed > *free) {
        let message = "give a smaller --budget, or auto for nine tenths of what is free";
        return Err(anyhow!("{needed} needed on the device, {free} free; {message}").into());
    }
    Ok([for_device, host_memory(device, policy, needed)?])
}

/// Bytes for the host, beside a job that takes `needed` on the device.
///
/// Where both are the machine's memory, what the device takes is no longer on offer for the host, unless the host's part is spilled to a file.
pub(crate) fn host_memory<D: Backend>(device: &D, policy: &PolicyArgs, needed: Bytes) -> Result<Bytes, Failure> {
    match policy.host_budget {
        Budget::Auto => {
            let offer = available_host_bytes(policy.spill_dir.as_deref()).unwrap_or(Bytes::MAX);
            let is_shared = device.is_host_memory() && policy.spill_dir.is_none();
            Ok(Bytes(offer.0.saturating_sub(if is_shared { needed.0 } else { 0 })))
        }
        other => host_bytes(other),
    }
}

/// A host budget that needs no device; no fraction, since nothing says of what.
pub(crate) fn host_bytes(budget: Budget) -> Result<Bytes, Failure> {
    match budget {
        Budget::Fraction(_) => {
            Err(Failure::Usage("--host-budget takes bytes (8GiB), auto or unlimited, no percentage".to_owned()))
        }
        budget => Ok(budget.resolve(Bytes::MAX, Bytes::MAX)),
    }
}
