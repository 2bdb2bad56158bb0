//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use tensile_core::Device;
use tensile_core::device::host::count::{self, Tag};
use tensile_core::device::host::{Emulation, HostDevice, HostOptions};
use tensile_core::exec::{ExecutorOptions, StepOutput};
use tensile_core::optim::Optimizer;
use tensile_models::data::{self, Loader, Position, Splits};
use tensile_models::job::{Job, Recipe};
use tensile_models::trainer::Trainer;
use tensile_models::zoo::{self, Network};
use tensile_sched::{Bytes, CheckReport, Limits, Planner};

/// The counting allocator counts for the whole process, so tests that look at it take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub(crate) fn device(threads: usize, emulation: Emulation) -> Arc<HostDevice> {
    Arc::new(HostDevice::new(HostOptions { emulation, ..HostOptions::nominal(threads) }).unwrap())
}

/// The adapter that the environment names; none where there is none, which in continuous integration is a failure.
#[cfg(feature = "wgpu")]
#[expect(clippy::print_stderr, reason = "what a test prints is for the person who runs it")]
pub(crate) fn adapter() -> Option<Arc<tensile_wgpu::WgpuDevice>> {
    use tensile_wgpu::{AdapterChoice, AdapterError, OpenError, WgpuDevice, WgpuOptions};
    let adapter = AdapterChoice::from_env().unwrap();
    match WgpuDevice::open(WgpuOptions { adapter, ..WgpuOptions::nominal() }) {
        Ok(device) => Some(Arc::new(device)),
        Err(OpenError::Adapter(AdapterError::NoDriver)) if std::env::var_os("CI").is_none() => {
            eprintln!("skipped: no adapter for wgpu");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn limits(device: &HostDevice, budget: Bytes) -> Limits {
    device.info().limits(budget)
}

pub(crate) fn network(model: &str, settings: &[(&str, f64)]) -> Arc<dyn Network> {
    let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    zoo::find(model).unwrap().network(&settings).unwrap()
}

/// A job whose training step also gives the gradient of every parameter.
pub(crate) fn job_with_gradients(
    model: &str,
    batch: usize,
    settings: &[(&str, f64)],
    optimizer: Optimizer,
    device: &HostDevice,
) -> Job {
    Job::with_outputs(&network(model, settings), Recipe::new(batch, optimizer), device, |graph, updates| {
        for (index, (_, gradient)) in updates.iter().enumerate() {
            graph.output(&format!("gradient {index}"), *gradient)?;
        }
        Ok(())
    })
    .unwrap()
}

/// Everything that a training computes.
#[derive(Debug, PartialEq)]
pub(crate) struct Everything {
    /// Per step: the loss and all gradients.
    pub(crate) outputs: Vec<Vec<StepOutput>>,
    /// Parameters, optimizer state and running statistics at the end.
    pub(crate) state: Vec<(String, Vec<u8>)>,
}

/// A finished training.
pub(crate) struct Trained {
    pub(crate) everything: Everything,
    pub(crate) report: CheckReport,
    /// By the counting allocator, which knows nothing of plans.
    pub(crate) peak: Bytes,
}

/// Trains a job for some steps within limits.
pub(crate) fn train(
    device: &Arc<HostDevice>,
    job: &Job,
    planner: &dyn Planner,
    limits: &Limits,
    steps: usize,
    poison: bool,
) -> Trained {
    let data = splits(job);
    let mut loader = Loader::new(data.train, job.recipe.samples_per_step(), 3, Position::default()).unwrap();
    let before = count::current(Tag::Device);
    count::reset_peak();
    let options = ExecutorOptions { poison, ..ExecutorOptions::default() };
    let mut trainer = Trainer::new(Arc::clone(device), job.clone(), planner, limits.clone(), options, 5).unwrap();
    let mut outputs = Vec::new();
    let mut pending = None;
    for step in 0..=steps {
        let next = (step < steps).then(|| {
            let batch = loader.next_batch().unwrap();
            trainer.begin(&batch, 1e-3).unwrap()
        });
        if let Some(ticket) = std::mem::replace(&mut pending, next) {
            outputs.push(trainer.finish(ticket).unwrap().outputs);
        }
    }
    let state = trainer.executor().state().unwrap();
    let peak = Bytes(count::peak(Tag::Device) - before);
    let report = trainer.train_program().planned().report.clone();
    drop(trainer);
    assert_eq!(count::current(Tag::Device), before, "all device bytes are back");
    let state = state.into_iter().map(|value| (value.persistent.name, value.bytes)).collect();
    Trained { everything: Everything { outputs, state }, report, peak }
}

pub(crate) fn splits(job: &Job) -> Splits {
    data::open(data::default_for(&*job.network), &*job.network, 7).unwrap()
}

/// A file of this crate's test data.
pub(crate) fn data_file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).join(name)
}
