//! From command-line words to devices, jobs, policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensile_core::Device;
use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::optim::Optimizer;
use tensile_models::budget::Budget;
use tensile_models::job::{Inference, Job};
use tensile_models::trainer::Predictor;
use tensile_models::zoo::{self, Network};
use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Planner, planner};

use crate::Failure;
use crate::args::{ModelArgs, OptimizerArgs, TrainedArgs};

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

pub(crate) fn optimizer(name: &str) -> Result<Optimizer, Failure> {
    match name {
        "adam" => Ok(Optimizer::adam()),
        "adamw" => Ok(Optimizer::adamw(0.01)),
        "sgd" => Ok(Optimizer::sgd(0.9)),
        _ => Err(Failure::Usage(format!("there is no optimizer '{name}'; there are adam, adamw, sgd"))),
    }
}

pub(crate) fn host_device(threads: usize) -> Result<Arc<HostDevice>, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if threads > 1024 {
        return Err(Failure::Usage(format!("--threads {threads} is too many; the most is 1024")));
    }
    let threads = if threads == 0 { cores } else { threads };
    Ok(Arc::new(HostDevice::new(HostOptions { threads, ..HostOptions::default() })?))
}

pub(crate) fn job(name: &str, args: &ModelArgs, update: &OptimizerArgs, device: &HostDevice) -> Result<Job, Failure> {
    let optimizer = optimizer(&update.optimizer)?;
    Ok(Job::new(&network(name, args)?, batch(args)?, optimizer, device)?)
}

/// The model and the device of `eval` and `predict`, and limits for planning.
pub(crate) fn trained(args: &TrainedArgs) -> Result<(Predictor<HostDevice>, Arc<dyn Network>), Failure> {
    let planner = policy(&args.policy.policy)?;
    let network = network(&args.model, &args.step)?;
    let batch = batch(&args.step)?;
    let device = host_device(args.step.threads)?;
    let job = Inference::new(&network, batch, &*device)?;
    let mut limits = device.info().limits(Bytes::MAX);
    let none = NoEviction.plan(&job.eval.trace, &limits)?;
    limits.host = host_budget(args.policy.host_budget)?;
    limits.mode = args.policy.mode.into();
    limits.device = args.budget.resolve(none.report.arena);
    Ok((Predictor::load(device, job, &*planner, limits, &args.load)?, network))
}

fn batch(args: &ModelArgs) -> Result<usize, Failure> {
    if args.batch == 0 {
        return Err(Failure::Usage("--batch 0 trains nothing; the least is 1".to_owned()));
    }
    if args.batch > 1 << 20 {
        return Err(Failure::Usage(format!("--batch {} is too large; the most is 1048576", args.batch)));
    }
    Ok(args.batch)
}

/// The network of a name with the settings that are asked for.
pub(crate) fn network(name: &str, args: &ModelArgs) -> Result<Arc<dyn Network>, Failure> {
    let mut given: BTreeMap<String, f64> = args.set.iter().cloned().collect();
    given.extend(args.size.map(|size| ("size".to_owned(), f64::from(size))));
    model(name)?.network(&given).map_err(|error| Failure::Usage(error.to_string()))
}

/// A host budget; no fraction, since nothing says of what.
pub(crate) fn host_budget(budget: Budget) -> Result<Bytes, Failure> {
    match budget {
        Budget::Fraction(_) => {
            Err(Failure::Usage("--host-budget takes bytes (8GiB) or unlimited, no percentage".to_owned()))
        }
        budget => Ok(budget.resolve(Bytes::MAX)),
    }
}
