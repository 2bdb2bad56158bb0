//! `tensile train`.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use anyhow::anyhow;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tensile_core::checkpoint;
use tensile_core::exec::{ExecutorOptions, Ticket};
use tensile_models::backend::{Backend, Visitor};
use tensile_models::budget::Budget;
use tensile_models::course::{Evaluation, loss_of};
use tensile_models::data::{Loader, Position};
use tensile_models::html::{self, JobPart, Page};
use tensile_models::report::Report;
use tensile_models::trainer::{TrainError, Trainer};
use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Limits, Planner, floor, timeline};

use crate::Failure;
use crate::args::TrainArgs;
use crate::output::{table, write};
use crate::{plan, setup};

/// One line of `--json` for each step.
#[derive(Serialize)]
struct StepLine {
    run: String,
    step: u64,
    epoch: u64,
    loss: f32,
    /// The loss, exactly.
    loss_bits: u32,
    /// On the test split, at the end of an epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    test_loss: Option<f64>,
    /// Likewise.
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
    setup::check(&args.training)?;
    for path in args.timeline.iter().chain(&args.report) {
        checkpoint::check_writable(path)?;
    }
    let op_times = args.timeline.is_some() || args.report.is_some();
    setup::on_device(&args.device, &args.policy, op_times, Train { args, planner })
}

struct Train<'a> {
    args: &'a TrainArgs,
    planner: Box<dyn Planner>,
}

impl Visitor for Train<'_> {
    type Output = Result<(), Failure>;

    fn visit<D: Backend>(self, device: Arc<D>) -> Result<(), Failure> {
        train(self.args, &*self.planner, device)
    }
}

fn train<D: Backend>(args: &TrainArgs, planner: &dyn Planner, device: Arc<D>) -> Result<(), Failure> {
    let (latencies, file) = setup::latencies(args.policy.latencies.as_deref(), device.info())?;
    let mut training = setup::training(&args.training, &*device)?;
    training.job = training.job.with_latencies(latencies, 1.0)?;
    let job = &training.job;
    let mut limits = device.info().limits(Bytes::MAX);
    let none = NoEviction.plan(&job.train.trace, &limits)?;
    limits.mode = args.policy.mode.into();
    let full = none.report.arena;
    let [budget, host] = setup::memory(&*device, args.budget, &args.policy, full)?;
    limits.host = host;
    limits.link = device.link_for(full.min(host))?;
    let about = training.about(&args.training.model);
    if !args.json {
        setup::say_latencies(file.as_deref());
        out!("{about}");
        let lowest = floor(&job.train.trace, &limits)?.bytes;
        let budget = if budget == Bytes::MAX { "unlimited".to_owned() } else { budget.to_string() };
        out!("  without a limit {full}, floor {lowest}, budget {budget}\n");
    }

    let session = Session { args, device, training };
    let limited = Limits { device: budget, ..limits.clone() };
    let mut runs = Vec::new();
    if args.compare {
        // Whether the budget can be held is found out before the first of two trainings, not after it.
        planner.plan(&session.training.job.train.trace, &limited).map_err(TrainError::Plan)?;
    }
    if args.compare {
        let unlimited = Limits { device: Bytes::MAX, ..limits };
        runs.push(session.train("unlimited", planner, unlimited, Budget::Unlimited, None)?);
    }
    let reference = runs.first().map(|run: &Run| run.losses.clone());
    runs.push(session.train(&args.budget.to_string(), planner, limited, args.budget, reference.as_deref())?);
    if let Some(path) = &args.report {
        let page = Page { title: format!("Training {}", args.training.model), about, ..Page::default() };
        let jobs = runs.iter_mut().map(|run| std::mem::take(&mut run.shown)).collect();
        write(path, Page { jobs, ..page }.render().as_bytes())?;
    }
    let losses = &runs[runs.len() - 1].losses;
    let losses_equal = reference.map(|reference| {
        reference.len() == losses.len() && reference.iter().zip(losses).all(|(a, b)| a.to_bits() == b.to_bits())
    });
    let reports: Vec<Report> = runs.iter().map(|run| run.report.clone()).collect();
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

struct Session<'a, D> {
    args: &'a TrainArgs,
    device: Arc<D>,
    training: setup::Training,
}

/// A finished training.
struct Run {
    /// Of each step.
    losses: Vec<f32>,
    report: Report,
    /// What `--report` shows of it.
    shown: JobPart,
}

/// Figures as pages take them.
pub(crate) fn owned(rows: Vec<(&str, String)>) -> Vec<(String, String)> {
    rows.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect()
}

/// Tensors in a report.
pub(crate) const MOST_FATES: usize = 40;

/// A step that has been begun; it and its epoch count from 0.
struct Begun {
    ticket: Ticket,
    step: u64,
    epoch: u64,
}

impl<D: Backend> Session<'_, D> {
    /// One whole training. `reference`: losses of the run without a limit, to print beside.
    fn train(
        &self,
        run: &str,
        planner: &dyn Planner,
        limits: Limits,
        budget: Budget,
        reference: Option<&[f32]>,
    ) -> Result<Run, Failure> {
        let setup::Training { job, data, steps, schedule } = &self.training;
        let (args, training, steps) = (self.args, &self.args.training, *steps);
        let before = self.device.begin_count();
        let options = ExecutorOptions { profile: true, ..ExecutorOptions::default() };
        let device_budget = limits.device;
        let mut trainer = Trainer::new(Arc::clone(&self.device), job.clone(), planner, limits, options, training.seed)?;
        if let Some(path) = &training.load {
            trainer.load(path)?;
        }
        let checkpoint = setup::checkpoint_of(training);
        let from = match &checkpoint {
            Some(path) if args.resume => trainer.resume(path)?,
            _ => Position::default(),
        };
        let mut loader = Loader::new(Arc::clone(&data.train), job.recipe.batching(), training.seed, from)?;
        let first = trainer.steps();
        let progress = Progress::new(run, first, steps, args.json, reference);
        let is_last = !args.compare || reference.is_some();
        let start = Instant::now();
        let mut losses = Vec::new();
        let mut evaluation = None;
        let mut shown = JobPart { name: run.to_owned(), ..JobPart::default() };
        shown.budget = (device_budget != Bytes::MAX).then_some(device_budget);
        let mut in_flight: VecDeque<Begun> = VecDeque::new();
        for step in first..steps {
            let epoch = loader.position().epoch;
            let batch = loader.next_batch()?;
            let lr = schedule.lr(step, f64::from(training.lr));
            in_flight.push_back(Begun { ticket: trainer.begin(&batch, lr)?, step, epoch });
            loader.recycle(batch);
            let is_end = step + 1 == steps;
            let epoch_ends = loader.position().batch == 0 || is_end;
            let saves = checkpoint.is_some()
                && (is_end || if training.every > 0 { (step + 1) % training.every == 0 } else { epoch_ends });
            while in_flight.len() > usize::from(!epoch_ends && !saves) {
                let begun = in_flight.pop_front().expect("just counted");
                let loss = loss_of(&trainer.finish(begun.ticket)?, begun.step, training.optimizer.nonfinite)?;
                losses.push(loss);
                shown.losses.push((begun.step + 1, loss));
                let is_epochs_last = epoch_ends && in_flight.is_empty();
                if is_end && is_epochs_last {
                    shown.steps = trainer.executor().latest_spans()?.as_ref().map(plan::in_time).unwrap_or_default();
                    if let Some(path) = args.timeline.as_ref().filter(|_| is_last && !shown.steps.is_empty()) {
                        write(path, timeline::to_json(&shown.steps).as_bytes())?;
                    }
                }
                // It belongs to the last step of an epoch, when nothing is in flight.
                if is_epochs_last {
                    let found = trainer.evaluate(&*data.test)?;
                    shown.test_losses.push((begun.step + 1, found.loss));
                    evaluation = Some(found);
                }
                progress.step(begun.step, begun.epoch, loss, evaluation.filter(|_| is_epochs_last));
            }
            let memory = trainer.executor().arena_bytes();
            if is_end || shown.memory.last().is_none_or(|last| last.1 != memory) {
                shown.memory.push((start.elapsed().as_secs_f64(), memory));
            }
            if let Some(path) = checkpoint.as_ref().filter(|_| saves) {
                trainer.save_training(path, loader.position())?;
            }
        }
        progress.end();
        if let Some(path) = training.save.as_ref().filter(|_| is_last) {
            trainer.save(path)?;
        }
        let report = Report::new(run, &mut trainer, before, budget, device_budget, evaluation)?;
        let program = trainer.train_program();
        shown.fates = html::fates(&program.step().trace, &program.planned().synced, MOST_FATES);
        shown.figures = owned(report.rows());
        Ok(Run { losses, report, shown })
    }
}

/// A bar on a terminal, plain lines elsewhere, JSON lines if asked for.
struct Progress<'a> {
    run: &'a str,
    /// Steps before this run, and at its end.
    steps: [u64; 2],
    json: bool,
    reference: Option<&'a [f32]>,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    fn new(run: &'a str, first: u64, total: u64, json: bool, reference: Option<&'a [f32]>) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {elapsed} (left: {eta}) {msg}")
                .expect("the template is right");
            ProgressBar::new(total).with_position(first).with_style(style).with_prefix(run.to_owned())
        });
        Self { run, steps: [first, total], json, reference, bar }
    }

    /// Step and epoch count from 0.
    fn step(&self, step: u64, epoch: u64, loss: f32, evaluation: Option<Evaluation>) {
        if self.json {
            let line = StepLine {
                run: self.run.to_owned(),
                step: step + 1,
                epoch: epoch + 1,
                loss,
                loss_bits: loss.to_bits(),
                test_loss: evaluation.map(|evaluation| evaluation.loss),
                accuracy: evaluation.map(|evaluation| evaluation.accuracy),
            };
            out!("{}", serde_json::to_string(&line).expect("plain data becomes JSON"));
            return;
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!("loss {loss:.4}"));
            bar.inc(1);
        }
        if let Some(reference) = self.reference {
            let before = reference[(step - self.steps[0]) as usize];
            let verdict = if before.to_bits() == loss.to_bits() { "equal" } else { "DIFFERENT" };
            self.line(&format!(
                "step {:>4}  loss {before:.7} without a limit, {loss:.7} within {}: {verdict}",
                step + 1,
                self.run
            ));
        }
        if let Some(evaluation) = evaluation {
            self.line(&format!(
                "{} epoch {}, step {}/{}: loss {loss:.4}, test loss {:.4}, test accuracy {:.2} %",
                self.run,
                epoch + 1,
                step + 1,
                self.steps[1],
                evaluation.loss,
                evaluation.accuracy * 100.0
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
