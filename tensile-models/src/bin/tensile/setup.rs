//! From command-line words to devices, jobs, policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::optim::Optimizer;
use tensile_models::budget::Budget;
use tensile_models::job::Job;
use tensile_models::zoo::{self, Network};
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
    if args.batch == 0 {
        return Err(Failure::Usage("--batch 0 trains nothing; the least is 1".to_owned()));
    }
    if args.batch > 1 << 20 {
        return Err(Failure::Usage(format!("--batch {} is too large; the most is 1048576", args.batch)));
    }
    Ok(Job::new(&network(name, args)?, args.batch, optimizer(&args.optimizer)?, device)?)
}

/// The network of a name with the settings that are asked for.
pub(crate) fn network(name: &str, args: &StepArgs) -> Result<Arc<dyn Network>, Failure> {
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
