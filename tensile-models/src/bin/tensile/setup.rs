//! From command-line words to devices, jobs, policies.

use std::sync::Arc;

use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::optim::Optimizer;
use tensile_models::budget::Budget;
use tensile_models::job::Job;
use tensile_models::zoo;
use tensile_sched::{Bytes, Planner, planner};

use crate::Failure;
use crate::args::StepArgs;

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

pub(crate) fn job(name: &str, args: &StepArgs, device: &HostDevice) -> Result<Job, Failure> {
    let model = model(name)?;
    if args.batch == 0 {
        return Err(Failure::Usage("--batch 0 trains nothing; the least is 1".to_owned()));
    }
    if args.batch > 1 << 20 {
        return Err(Failure::Usage(format!("--batch {} is too large; the most is 1048576", args.batch)));
    }
    if args.size != 0 && !model.resizable {
        let [_, height, width] = model.shape;
        return Err(Failure::Usage(format!("{name} takes images of {height}x{width} only; leave --size out")));
    }
    if args.size > 1 << 13 {
        return Err(Failure::Usage(format!("--size {} is too large; the most is 8192", args.size)));
    }
    Ok(Job::new(model, args.batch, args.size, optimizer(&args.optimizer)?, device)?)
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
