//! `tensile train`.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tensile_core::checkpoint;
use tensile_core::exec::{ExecutorOptions, StepSpans, Ticket};
use tensile_core::optim::schedule::Schedule;
use tensile_models::backend::{Backend, Visitor};
use tensile_models::budget::Budget;
use tensile_models::data::{self, Loader, Position, Splits};
use tensile_models::job::Job;
use tensile_models::report::{self, Report};
use tensile_models::trainer::{Evaluation, TrainError, Trainer, loss_of};
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
    let checkpoint = args.checkpoint.as_ref().map(|folder| folder.join(CHECKPOINT));
    for path in args.save.iter().chain(&args.timeline).chain(&checkpoint) {
        checkpoint::check_writable(path)?;
    }
    setup::on_device(&args.step.device, &args.policy, args.timeline.is_some(), Train { args, planner })
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
    let job = setup::job(&args.model, &args.step, &args.optimizer, &*device)?;
    let name = args.data.as_deref().unwrap_or(data::default_for(&*job.network));
    let data = data::open_with(name, &*job.network, args.seed, &data::Options { augment: args.augment })?;
    // What is wrong with the data or the schedule is found out before anything is planned or trained.
    let per_epoch = job.recipe.batching().per_epoch(&*data.train)?;
    let steps = args.epochs as u64 * per_epoch;
    let steps = if args.steps == 0 { steps } else { (args.steps as u64).min(steps) };
    let schedule = Schedule::parse(&args.schedule, steps, per_epoch)
        .map_err(|error| Failure::Usage(format!("--schedule: {error}")))?
        .with_warmup(args.warmup);
    let mut limits = device.info().limits(Bytes::MAX);
    let none = NoEviction.plan(&job.train.trace, &limits)?;
    limits.mode = args.policy.mode.into();
    let full = none.report.arena;
    let [budget, host] = setup::memory(&*device, args.budget, &args.policy, full)?;
    limits.host = host;
    limits.link = device.link_for(full.min(host))?;
    if !args.json {
        describe(args, &job, &none, &limits, budget)?;
    }

    let session = Session { args, device, job, data, steps, schedule };
    let limited = Limits { device: budget, ..limits.clone() };
    let mut reports = Vec::new();
    let mut reference = None;
    if args.compare {
        // Whether the budget can be held is found out before the first of two trainings, not after it.
        planner.plan(&session.job.train.trace, &limited).map_err(TrainError::Plan)?;
    }
    if args.compare {
        let unlimited = Limits { device: Bytes::MAX, ..limits };
        let (losses, report) = session.train("unlimited", planner, unlimited, Budget::Unlimited, None)?;
        reference = Some(losses);
        reports.push(report);
    }
    let (losses, report) =
        session.train(&args.budget.to_string(), planner, limited, args.budget, reference.as_deref())?;
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
    let times = if job.recipe.accumulate > 1 { format!(" × {}", job.recipe.accumulate) } else { String::new() };
    let (batch, ops) = (job.recipe.batch, job.train.calls.len());
    out!("{}: {parameters} parameters, batch {batch}{times}, {ops} ops in a step", args.model);
    out!(
        "  without a limit {}, floor {}, budget {}\n",
        none.report.arena,
        lowest.bytes,
        if budget == Bytes::MAX { "unlimited".to_owned() } else { budget.to_string() }
    );
    Ok(())
}

struct Session<'a, D> {
    args: &'a TrainArgs,
    device: Arc<D>,
    job: Job,
    data: Splits,
    /// Steps of the whole training.
    steps: u64,
    schedule: Schedule,
}

/// File that `--checkpoint` writes into its folder.
const CHECKPOINT: &str = "checkpoint.safetensors";

/// A step that has been begun; it and its epoch count from 0.
struct Begun {
    ticket: Ticket,
    step: u64,
    epoch: u64,
}

impl<D: Backend> Session<'_, D> {
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
        let before = self.device.begin_count();
        let options = ExecutorOptions { profile: true, ..ExecutorOptions::default() };
        let device_budget = limits.device;
        let mut trainer =
            Trainer::new(Arc::clone(&self.device), self.job.clone(), planner, limits, options, args.seed)?;
        if let Some(path) = &args.load {
            trainer.load(path)?;
        }
        let checkpoint = args.checkpoint.as_ref().map(|folder| folder.join(CHECKPOINT));
        let from = match &checkpoint {
            Some(path) if args.resume => trainer.resume(path)?,
            _ => Position::default(),
        };
        let mut loader = Loader::new(Arc::clone(&self.data.train), self.job.recipe.batching(), args.seed, from)?;
        let first = trainer.steps();
        let progress = Progress::new(run, first, self.steps, args.json, reference);
        let is_last = !args.compare || reference.is_some();
        let mut losses = Vec::new();
        let mut evaluation = None;
        let mut in_flight: VecDeque<Begun> = VecDeque::new();
        for step in first..self.steps {
            let epoch = loader.position().epoch;
            let batch = loader.next_batch()?;
            let lr = self.schedule.lr(step, f64::from(args.lr));
            in_flight.push_back(Begun { ticket: trainer.begin(&batch, lr)?, step, epoch });
            loader.recycle(batch);
            let is_end = step + 1 == self.steps;
            let epoch_ends = loader.position().batch == 0 || is_end;
            let saves = checkpoint.is_some()
                && (is_end || if args.every > 0 { (step + 1) % args.every == 0 } else { epoch_ends });
            while in_flight.len() > usize::from(!epoch_ends && !saves) {
                let begun = in_flight.pop_front().expect("just counted");
                let loss = loss_of(&trainer.finish(begun.ticket)?, begun.step, args.optimizer.nonfinite)?;
                losses.push(loss);
                let is_epochs_last = epoch_ends && in_flight.is_empty();
                if is_end && is_epochs_last && is_last {
                    self.write_timeline(&mut trainer)?;
                }
                // It belongs to the last step of an epoch, when nothing is in flight.
                if is_epochs_last {
                    evaluation = Some(trainer.evaluate(&*self.data.test)?);
                }
                progress.step(begun.step, begun.epoch, loss, evaluation.filter(|_| is_epochs_last));
            }
            if let Some(path) = checkpoint.as_ref().filter(|_| saves) {
                trainer.save_training(path, loader.position())?;
            }
        }
        progress.end();
        if let Some(path) = args.save.as_ref().filter(|_| is_last) {
            trainer.save(path)?;
        }
        Ok((losses, Report::new(run, &mut trainer, before, budget, device_budget, evaluation)?))
    }

    /// Writes the last step, if asked to.
    fn write_timeline(&self, trainer: &mut Trainer<'_, D>) -> Result<(), Failure> {
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
