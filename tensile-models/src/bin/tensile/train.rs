//! `tensile train`.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::anyhow;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tensile_core::Device;
use tensile_core::checkpoint;
use tensile_core::device::host::HostDevice;
use tensile_core::exec::{ExecutorOptions, StepSpans, Ticket};
use tensile_models::budget::Budget;
use tensile_models::data::{self, DataError, Loader, Position, Splits};
use tensile_models::job::{Job, LOSS};
use tensile_models::report::{self, Report};
use tensile_models::trainer::{TrainError, Trainer};
use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Limits, Nanos, Planned, Planner, floor, timeline};

use crate::Failure;
use crate::args::TrainArgs;
use crate::output::{table, write};
use crate::{plan, setup};

/// More would take longer than anybody waits, and counts of steps would overflow.
const MOST_EPOCHS: usize = 1_000_000;

/// One line of `--json` for each step.
#[derive(Serialize)]
struct StepLine {
    run: String,
    step: usize,
    epoch: usize,
    loss: f32,
    /// The loss, exactly.
    loss_bits: u32,
    /// On the test split, at the end of an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<f64>,
}

/// The last line of `--json`.
#[derive(Serialize)]
struct ReportLine<'a> {
    reports: &'a [Report],
    /// With `--compare`: whether all losses are equal bit by bit.
    #[serde(skip_serializing_if = "Option::is_none")]
    losses_equal: Option<bool>,
}

pub(crate) fn run(args: &TrainArgs) -> Result<(), Failure> {
    let planner = setup::policy(&args.policy.policy)?;
    if !(args.lr > 0.0 && args.lr.is_finite()) {
        return Err(Failure::Usage(format!("--lr {} is no learning rate; it must be above zero", args.lr)));
    }
    if args.epochs == 0 {
        return Err(Failure::Usage("--epochs 0 trains nothing; the least is 1".to_owned()));
    }
    if args.epochs > MOST_EPOCHS {
        return Err(Failure::Usage(format!("--epochs {} are too many; the most is {MOST_EPOCHS}", args.epochs)));
    }
    for path in args.save.iter().chain(&args.timeline) {
        checkpoint::check_writable(path)?;
    }
    let device = setup::host_device(args.step.threads)?;
    let job = setup::job(&args.model, &args.step, &args.optimizer, &device)?;
    let name = args.data.as_deref().unwrap_or(data::default_for(&*job.network));
    let data = data::open(name, &*job.network, args.seed)?;
    let mut limits = device.info().limits(Bytes::MAX);
    let none = NoEviction.plan(&job.train.trace, &limits)?;
    limits.host = setup::host_budget(args.policy.host_budget)?;
    limits.mode = args.policy.mode.into();
    let budget = args.budget.resolve(none.report.arena);
    if !args.json {
        describe(args, &job, &none, &limits, budget)?;
    }

    let session = Session { args, device, job, data };
    // What is wrong with the data is found out before anything is trained.
    Loader::count(&*session.data.train, session.job.batch)?;
    let limited = Limits { device: budget, ..limits.clone() };
    let mut reports = Vec::new();
    let mut reference = None;
    if args.compare {
        // Whether the budget can be held is found out before the first of two trainings, not after it.
        planner.plan(&session.job.train.trace, &limited).map_err(TrainError::Plan)?;
    }
    if args.compare {
        let unlimited = Limits { device: Bytes::MAX, ..limits };
        let (losses, report) = session.train("unlimited", &*planner, unlimited, Budget::Unlimited, None)?;
        reference = Some(losses);
        reports.push(report);
    }
    let (losses, report) =
        session.train(&args.budget.to_string(), &*planner, limited, args.budget, reference.as_deref())?;
    reports.push(report);
    let losses_equal = reference.map(|reference| {
        reference.len() == losses.len() && reference.iter().zip(&losses).all(|(a, b)| a.to_bits() == b.to_bits())
    });
    if args.json {
        let line = ReportLine { reports: &reports, losses_equal };
        out!("{}", serde_json::to_string(&line).expect("plain data becomes JSON"));
    } else {
        print_reports(&reports);
    }
    match losses_equal {
        Some(false) => Err(anyhow!("losses differ from the run without a limit").into()),
        Some(true) if !args.json => {
            out!("\nAll {} losses are equal to those without a limit, bit by bit.", losses.len());
            Ok(())
        }
        _ => Ok(()),
    }
}

fn describe(args: &TrainArgs, job: &Job, none: &Planned, limits: &Limits, budget: Bytes) -> Result<(), Failure> {
    let lowest = floor(&job.train.trace, limits)?;
    let parameters: usize = report::n_parameters(&job.train);
    out!("{}: {parameters} parameters, batch {}, {} ops in a step", args.model, job.batch, job.train.calls.len());
    out!(
        "  without a limit {}, floor {}, budget {}\n",
        none.report.arena,
        lowest.bytes,
        if budget == Bytes::MAX { "unlimited".to_owned() } else { budget.to_string() }
    );
    Ok(())
}

struct Session<'a> {
    args: &'a TrainArgs,
    device: Arc<HostDevice>,
    job: Job,
    data: Splits,
}

impl Session<'_> {
    /// One whole training; gives the loss of each step. `reference`: losses of the run without a limit, to print beside.
    fn train(
        &self,
        run: &str,
        planner: &dyn Planner,
        limits: Limits,
        budget: Budget,
        reference: Option<&[f32]>,
    ) -> Result<(Vec<f32>, Report), Failure> {
        let args = self.args;
        report::start();
        let options = ExecutorOptions { profile: true, ..ExecutorOptions::default() };
        let device_budget = limits.device;
        let mut trainer =
            Trainer::new(Arc::clone(&self.device), self.job.clone(), planner, limits, options, args.seed)?;
        if let Some(path) = &args.load {
            trainer.load(path)?;
        }
        let mut loader = self.loader()?;
        let per_epoch = loader.per_epoch() as usize;
        let all = args.epochs * per_epoch;
        let total = if args.steps == 0 { all } else { args.steps.min(all) };
        let progress = Progress::new(run, total, args.json, reference);
        let is_last = !args.compare || reference.is_some();
        let mut losses = Vec::new();
        let mut accuracy = None;
        let mut in_flight: VecDeque<Ticket> = VecDeque::new();
        for step in 0..total {
            let batch = loader.next_batch()?;
            in_flight.push_back(trainer.begin(&batch, f64::from(args.lr))?);
            loader.recycle(batch);
            let epoch_ends = (step + 1) % per_epoch == 0 || step + 1 == total;
            while in_flight.len() > usize::from(!epoch_ends) {
                let ticket = in_flight.pop_front().expect("just counted");
                let loss = trainer.finish(ticket)?.scalar(LOSS);
                let index = losses.len();
                losses.push(loss);
                if step + 1 == total && in_flight.is_empty() && is_last {
                    self.write_timeline(&mut trainer)?;
                }
                // Accuracy belongs to the last step of an epoch, when nothing is in flight.
                if epoch_ends && in_flight.is_empty() {
                    accuracy = Some(trainer.evaluate(&*self.data.test)?.accuracy);
                }
                let epoch = index / per_epoch + 1;
                progress.step(index, epoch, loss, accuracy.filter(|_| epoch_ends && in_flight.is_empty()));
            }
        }
        progress.end();
        if let Some(path) = args.save.as_ref().filter(|_| is_last) {
            trainer.save(path)?;
        }
        let report = Report::new(run, &mut trainer, budget, device_budget, accuracy)?;
        Ok((losses, report))
    }
}

impl Session<'_> {
    /// Training batches from the beginning.
    fn loader(&self) -> Result<Loader, DataError> {
        Loader::new(Arc::clone(&self.data.train), self.job.batch, self.args.seed, Position::default())
    }

    /// Writes the last step, if asked to.
    fn write_timeline(&self, trainer: &mut Trainer<HostDevice>) -> Result<(), Failure> {
        let Some(path) = &self.args.timeline else { return Ok(()) };
        let Some(StepSpans { program: compiled, spans }) = trainer.executor().latest_spans()? else { return Ok(()) };
        let (trace, planned, limits) = (&compiled.step().trace, compiled.planned(), compiled.limits());
        let end = spans.iter().map(|span| span.end).max().unwrap_or(0);
        let period = Nanos(u64::try_from(end).unwrap_or(0));
        let measured = timeline::lanes("measured", trace, &planned.synced, limits, &spans, &[], period);
        let predicted = plan::simulated(trace, planned, limits);
        write(path, timeline::to_json(&[predicted, measured]).as_bytes())?;
        Ok(())
    }
}

/// A bar on a terminal, plain lines elsewhere, JSON lines if asked for.
struct Progress<'a> {
    run: &'a str,
    total: usize,
    json: bool,
    reference: Option<&'a [f32]>,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    fn new(run: &'a str, total: usize, json: bool, reference: Option<&'a [f32]>) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {elapsed} (left: {eta}) {msg}")
                .expect("the template is right");
            ProgressBar::new(total as u64).with_style(style).with_prefix(run.to_owned())
        });
        Self { run, total, json, reference, bar }
    }

    fn step(&self, index: usize, epoch: usize, loss: f32, accuracy: Option<f64>) {
        if self.json {
            let line = StepLine {
                run: self.run.to_owned(),
                step: index + 1,
                epoch,
                loss,
                loss_bits: loss.to_bits(),
                accuracy,
            };
            out!("{}", serde_json::to_string(&line).expect("plain data becomes JSON"));
            return;
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!("loss {loss:.4}"));
            bar.inc(1);
        }
        if let Some(reference) = self.reference {
            let before = reference[index];
            let verdict = if before.to_bits() == loss.to_bits() { "equal" } else { "DIFFERENT" };
            self.line(&format!(
                "step {:>4}  loss {before:.7} without a limit, {loss:.7} within {}: {verdict}",
                index + 1,
                self.run
            ));
        }
        if let Some(accuracy) = accuracy {
            let accuracy = accuracy * 100.0;
            self.line(&format!(
                "{} epoch {epoch}, step {}/{}: loss {loss:.4}, test accuracy {accuracy:.2} %",
                self.run,
                index + 1,
                self.total
            ));
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| out!("{text}")),
            None => out!("{text}"),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn print_reports(reports: &[Report]) {
    out!("");
    let mut table = table([""]);
    table.set_header(std::iter::once("").chain(reports.iter().map(|report| report.run.as_str())));
    for (index, (name, _)) in reports[0].rows().iter().enumerate() {
        table.add_row(
            std::iter::once((*name).to_owned()).chain(reports.iter().map(|report| report.rows()[index].1.clone())),
        );
    }
    out!("{table}");
}
