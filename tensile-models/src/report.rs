//! What a run did, in figures.

use std::sync::Arc;

use serde::Serialize;
use tensile_core::exec::Step;
use tensile_sched::{Bytes, Nanos, Role};

use crate::backend::{AdapterReport, Backend};
use crate::budget::Budget;
use crate::course::Evaluation;
use crate::trainer::{TrainError, Trainer};

/// Figures of a training run. Counts and times are per training step (means), memory is the most at any moment of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name of the run: its budget.
    pub run: String,
    /// Training steps.
    pub steps: u64,
    /// Mean loss of the labels of the test split at the end.
    pub test_loss: Option<f64>,
    /// Fraction of them told right.
    pub accuracy: Option<f64>,
    /// Device bytes, as an independent counter saw them ([`Backend::counted_bytes`]); absent if nothing counts.
    pub peak_bytes: Option<u64>,
    /// The budget; absent if unlimited.
    pub budget_bytes: Option<u64>,
    /// Device arena of the training program.
    pub arena_bytes: u64,
    /// Most live bytes in it, by the checker.
    pub live_bytes: u64,
    /// Host arena: swapped tensors, inputs and outputs.
    pub host_bytes: u64,
    /// Bytes of the host arena that are in a file instead of memory.
    pub spilled_bytes: u64,
    /// Copies to the host, deliveries of outputs included.
    pub swap_outs: u64,
    /// Copies to the device, arrivals of inputs included.
    pub swap_ins: u64,
    /// Copies that the budget causes, both directions.
    pub evictions: u64,
    /// Bytes copied to the host.
    pub out_bytes: u64,
    /// Bytes copied to the device.
    pub in_bytes: u64,
    /// Ops run again.
    pub reruns: u64,
    /// Idle time of the compute lane; absent where ops are not timed one by one.
    pub stall_ns: Option<u64>,
    /// Time of a step.
    pub step_ns: u64,
    /// Time of a step as the planner's simulator predicted it.
    pub predicted_step_ns: u64,
    /// Programs planned: of the main training step, of evaluation, and of training steps for other shapes of batches.
    pub plans: u64,
    /// Resident memory of the process at the end, if the system tells.
    pub resident_bytes: Option<u64>,
    /// The adapter; absent on the host device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterReport>,
}

impl Report {
    /// Figures of everything the trainer has done. `before` is what [`Backend::begin_count`] gave before it was made.
    ///
    /// # Errors
    /// [`TrainError::Exec`] if work in flight fails.
    pub fn new<D: Backend>(
        run: &str,
        trainer: &mut Trainer<'_, D>,
        before: Bytes,
        budget: Budget,
        budget_bytes: Bytes,
        evaluation: Option<Evaluation>,
    ) -> Result<Self, TrainError> {
        trainer.executor().drain()?;
        let device = Arc::clone(trainer.executor().device());
        let stats = trainer.stats().cloned().unwrap_or_default();
        let steps = stats.steps.max(1);
        let program = trainer.train_program();
        let planned = program.planned();
        Ok(Self {
            run: run.to_owned(),
            steps: stats.steps,
            test_loss: evaluation.map(|evaluation| evaluation.loss),
            accuracy: evaluation.map(|evaluation| evaluation.accuracy),
            peak_bytes: device.counted_bytes(before).map(|bytes| bytes.0),
            budget_bytes: (budget != Budget::Unlimited).then_some(budget_bytes.0),
            arena_bytes: planned.report.arena.0,
            live_bytes: planned.report.peak.0,
            host_bytes: planned.report.host_arena.0,
            spilled_bytes: device.spilled_bytes().0,
            swap_outs: stats.swap_outs.count / steps,
            swap_ins: stats.swap_ins.count / steps,
            evictions: stats.evictions / steps,
            out_bytes: stats.swap_outs.bytes / steps,
            in_bytes: stats.swap_ins.bytes / steps,
            reruns: stats.reruns / steps,
            stall_ns: trainer.times_ops().then_some(stats.stall_time.0 / steps),
            step_ns: stats.step_time.0 / steps,
            predicted_step_ns: planned.simulation.step_time.0,
            plans: trainer.plans(),
            resident_bytes: process_bytes("VmRSS:"),
            adapter: device.adapter(),
        })
    }

    /// Names and figures for people.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        let mut rows = vec![
            ("test loss", self.test_loss.map_or("-".to_owned(), |loss| format!("{loss:.4}"))),
            ("test accuracy", self.accuracy.map_or("-".to_owned(), |accuracy| format!("{:.2} %", accuracy * 100.0))),
            ("budget", self.budget_bytes.map_or("unlimited".to_owned(), bytes)),
            ("peak on the device (counted)", self.peak_bytes.map_or("not counted".to_owned(), bytes)),
            ("device arena", bytes(self.arena_bytes)),
            ("host arena", bytes(self.host_bytes)),
            ("of it spilled to a file", bytes(self.spilled_bytes)),
            ("swap-outs per step", format!("{} ({})", self.swap_outs, bytes(self.out_bytes))),
            ("swap-ins per step", format!("{} ({})", self.swap_ins, bytes(self.in_bytes))),
            ("of these caused by the budget", self.evictions.to_string()),
            ("reruns per step", self.reruns.to_string()),
            ("stall per step", self.stall_ns.map_or("-".to_owned(), |ns| Nanos(ns).to_string())),
            ("step time", Nanos(self.step_ns).to_string()),
            ("step time predicted", Nanos(self.predicted_step_ns).to_string()),
            ("programs planned", self.plans.to_string()),
            ("resident memory of the process", self.resident_bytes.map_or("unknown".to_owned(), bytes)),
        ];
        if let Some(adapter) = &self.adapter {
            rows.extend([
                ("adapter", adapter.name.clone()),
                ("driver", adapter.driver.clone()),
                ("kernels", adapter.kernels.to_owned()),
                ("self-test", adapter.self_test.clone()),
                ("staging on the host", bytes(adapter.staging_bytes)),
            ]);
        }
        rows
    }
}

/// Elements of all parameters of a step.
pub fn n_parameters(step: &Step) -> usize {
    step.persistents.iter().filter(|p| p.role == Role::Parameter).map(|p| p.ty.numel()).sum()
}

/// Bytes of this process by a line of Linux's `/proc/self/status`: `VmRSS:` for resident memory, `VmHWM:` for its peak. None where the system does not tell.
pub fn process_bytes(line: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|text| text.strip_prefix(line))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
