//! `tensile run`: several jobs side by side.

mod board;

use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{CommandFactory, Parser};
use serde::Serialize;
use tensile_core::checkpoint;
use tensile_core::exec::ExecutorOptions;
use tensile_core::runtime::{
    EventKind, JobError, JobHandle, JobReport, Phase, Runtime, RuntimeOptions, Snapshot, Submission,
};
use tensile_models::backend::{Backend, Visitor};
use tensile_models::course::Evaluation;
use tensile_models::html::{self, Event, JobPart, Page};
use tensile_models::training::{Progress, Training};
use tensile_sched::baseline::NoEviction;
use tensile_sched::planner::Tensile;
use tensile_sched::{Bytes, Planner};

use crate::args::{Cli, Command, RunArgs};
use crate::jobs::{Entry, Jobs};
use crate::output::{print_error, table, usage_line, write};
use crate::train::MOST_FATES;
use crate::{Failure, plan, setup};
use board::Board;

/// How often jobs are looked at when they tell nothing.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(given: &RunArgs) -> Result<(), Failure> {
    let command = Cli::command();
    let Jobs { shared, jobs } = Jobs::read(&given.jobs, command.find_subcommand("run").expect("it is this one"))?;
    let args = with_shared(given, shared)?;
    let jobs: Vec<Entry> = jobs.into_iter().map(|job| with_folder(job, &args)).collect();
    for job in &jobs {
        of_job(&args, job, setup::check(&job.args.training))?;
    }
    if let Some(path) = &args.report {
        checkpoint::check_writable(path)?;
    }
    setup::on_device(&args.device, &args.policy, args.report.is_some(), Run { args: &args, jobs: &jobs })
}

/// What was given on the command line on top of what stands in the file.
fn with_shared(given: &RunArgs, shared: Vec<String>) -> Result<RunArgs, Failure> {
    let own = std::env::args_os().skip_while(|word| word != "run").skip(1);
    let words = ["tensile", "run"].map(OsString::from).into_iter().chain(shared.into_iter().map(OsString::from));
    match Cli::try_parse_from(words.chain(own)) {
        Ok(Cli { command: Command::Run(args) }) => Ok(args),
        Ok(_) => unreachable!("the command is 'run'"),
        Err(error) => Err(anyhow!("'{}': {}", given.jobs.display(), usage_line(&error)).into()),
    }
}

/// With a folder for checkpoints, if all jobs are to have one.
fn with_folder(mut job: Entry, args: &RunArgs) -> Entry {
    if job.args.training.checkpoint.is_none() {
        job.args.training.checkpoint = args.checkpoint.as_ref().map(|folder| folder.join(&job.args.name));
    }
    job
}

/// A result with the job it is about.
fn of_job<T>(args: &RunArgs, job: &Entry, result: Result<T, Failure>) -> Result<T, Failure> {
    result.map_err(|failure| {
        let place = format!("'{}', line {}, job '{}'", args.jobs.display(), job.line, job.args.name);
        match failure {
            Failure::Usage(message) => anyhow!("{place}: {message}").into(),
            Failure::Run(error) => error.context(place).into(),
            Failure::Said => Failure::Said,
        }
    })
}

struct Run<'a> {
    args: &'a RunArgs,
    jobs: &'a [Entry],
}

impl Visitor for Run<'_> {
    type Output = Result<(), Failure>;

    fn visit<D: Backend>(self, device: Arc<D>) -> Result<(), Failure> {
        let Self { args, jobs } = self;
        let (latencies, file) = setup::latencies(args.policy.latencies.as_deref(), device.info())?;
        let mut all = Vec::new();
        for entry in jobs {
            let mut training = of_job(args, entry, setup::training(&entry.args.training, &*device))?;
            training.job = training.job.with_latencies(Arc::clone(&latencies), jobs.len() as f64)?;
            all.push(Job::new(training, entry));
        }
        if !args.json {
            setup::say_latencies(file.as_deref());
        }
        let mut full = Bytes::ZERO;
        for job in &all {
            let trace = &job.training.job.train.trace;
            full += NoEviction.plan(trace, &device.info().limits(Bytes::MAX))?.report.arena;
        }
        let [budget, host] = setup::memory(&*device, args.budget, &args.policy, full)?;
        let mut options = RuntimeOptions {
            host_budget: host,
            division: args.division.into(),
            mode: args.policy.mode.into(),
            link: Some(device.link_for(full.min(host))?),
            replan_above: args.replan_above,
            executor: ExecutorOptions { profile: device.times_ops(), ..ExecutorOptions::default() },
            ..RuntimeOptions::default()
        };
        let policy = setup::policy(&args.policy.policy)?;
        // The default policy plans quickly at first and better later; the others have one way only.
        if policy.name() != Tensile::default().name() {
            (options.planner, options.refiner) = (Arc::from(policy), None);
        }
        let before = device.begin_count();
        let runtime = Runtime::new(Arc::clone(&device), budget, options)?;
        let mut session = Session::new(args, all, runtime, full)?;
        let is_paused = session.work()?;
        session.close(is_paused, before)
    }
}

/// A job on its way.
struct Job<'a> {
    entry: &'a Entry,
    training: setup::Training,
    handle: Option<JobHandle>,
    /// The outcome, once it is over; none if there was nothing left to do.
    outcome: Option<Result<Option<JobReport>, JobError>>,
    /// Training steps that have ended, those before a resumed checkpoint among them.
    steps: u64,
    saved: Option<u64>,
    loss: Option<f32>,
    evaluation: Option<Evaluation>,
    shown: JobPart,
}

impl<'a> Job<'a> {
    fn new(training: setup::Training, entry: &'a Entry) -> Self {
        let about = training.about(&entry.args.training.model);
        let shown = JobPart { name: entry.args.name.clone(), about, ..JobPart::default() };
        let (handle, outcome, saved, loss, evaluation) = (None, None, None, None, None);
        Self { entry, training, handle, outcome, steps: 0, saved, loss, evaluation, shown }
    }

    fn name(&self) -> &'a str {
        &self.entry.args.name
    }
}

/// One line of `--json` at the end for each job.
#[derive(Serialize)]
struct JobLine<'a> {
    job: &'a str,
    /// Whether its work is done.
    done: bool,
    failure: Option<String>,
    /// Training steps, those before a resumed checkpoint among them.
    steps: u64,
    loss: Option<f32>,
    test_loss: Option<f64>,
    accuracy: Option<f64>,
    weight: f64,
    /// Steps of this run, evaluation steps among them.
    run_steps: u64,
    largest_share_bytes: Option<u64>,
    smallest_share_bytes: Option<u64>,
    floor_bytes: Option<u64>,
    full_bytes: Option<u64>,
    plans: u64,
    takeovers: u64,
    /// From submission to the first step.
    admission_delay_ns: Option<u64>,
    run_ns: Option<u64>,
    /// Means over main training steps.
    step_ns: Option<u64>,
    evictions: Option<u64>,
    reruns: Option<u64>,
    stall_ns: Option<u64>,
}

/// The last line of `--json`.
#[derive(Serialize)]
struct RunLine<'a> {
    jobs: Vec<JobLine<'a>>,
    /// What all jobs take together without a limit.
    full_bytes: u64,
    budget_bytes: Option<u64>,
    /// Device bytes, as an independent counter saw them.
    peak_bytes: Option<u64>,
    run_ns: u64,
}

struct Session<'a, D: Backend> {
    args: &'a RunArgs,
    jobs: Vec<Job<'a>>,
    runtime: Runtime<D>,
    full: Bytes,
    told: Receiver<(usize, Progress)>,
    tell: mpsc::Sender<(usize, Progress)>,
    interrupts: Arc<AtomicUsize>,
    board: Board,
    n_events: usize,
    events: Vec<Event>,
}

impl<'a, D: Backend> Session<'a, D> {
    fn new(args: &'a RunArgs, jobs: Vec<Job<'a>>, runtime: Runtime<D>, full: Bytes) -> Result<Self, Failure> {
        let interrupts = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&interrupts);
        let interrupted = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        ctrlc::set_handler(interrupted).context("cannot listen for interrupts")?;
        let (tell, told) = channel();
        let board = Board::new(args.json, jobs.iter().map(|job| (job.name(), job.training.steps)));
        let budget = runtime.snapshot().budget;
        board.line(&format!(
            "{} jobs: without a limit {full}, budget {}",
            jobs.len(),
            if budget == Bytes::MAX { "unlimited".to_owned() } else { budget.to_string() }
        ));
        Ok(Self { args, jobs, runtime, full, told, tell, interrupts, board, n_events: 0, events: Vec::new() })
    }

    /// Runs everything. Whether it was interrupted, and all jobs are paused.
    fn work(&mut self) -> Result<bool, Failure> {
        let mut orders = 0;
        let mut since = Duration::ZERO;
        loop {
            self.submit_due()?;
            match self.told.recv_timeout(LOOK) {
                Ok((job, progress)) => {
                    self.note(job, progress);
                    while let Ok((job, progress)) = self.told.try_recv() {
                        self.note(job, progress);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let snapshot = self.runtime.snapshot();
            self.look(&snapshot);
            let interrupts = self.interrupts.load(Ordering::SeqCst).min(2);
            if interrupts > orders {
                orders = interrupts;
                since = self.runtime.elapsed();
                self.board.line(if orders == 1 {
                    "pausing all jobs; once more cancels them"
                } else {
                    "cancelling all jobs"
                });
                for handle in self.jobs.iter().filter_map(|job| job.handle.as_ref()) {
                    if orders == 1 { handle.pause() } else { handle.cancel() }
                }
            }
            let is_over = |job: &Job<'_>| {
                job.outcome.is_some() || job.handle.as_ref().is_some_and(|h| h.status().phase.is_over())
            };
            if self.jobs.iter().all(|job| is_over(job) || (orders == 2 && job.handle.is_none())) {
                break;
            }
            if orders == 1 && self.jobs.iter().all(|job| rests(job, &snapshot, since)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Hands in the jobs whose time has come.
    fn submit_due(&mut self) -> Result<(), Failure> {
        if self.interrupts.load(Ordering::SeqCst) > 0 {
            return Ok(());
        }
        for index in 0..self.jobs.len() {
            let Job { entry, handle, outcome, .. } = &self.jobs[index];
            let is_over = |name: &str| {
                let before = self.jobs.iter().find(|job| job.name() == name);
                before.is_some_and(|job| {
                    job.outcome.is_some() || job.handle.as_ref().is_some_and(|handle| handle.status().phase.is_over())
                })
            };
            let comes = match &entry.args.after {
                Some(name) => is_over(name),
                None => self.runtime.elapsed() >= entry.args.arrival,
            };
            if handle.is_none() && outcome.is_none() && comes {
                self.submit(index)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, index: usize) -> Result<(), Failure> {
        let Job { entry, training, .. } = &self.jobs[index];
        let options = entry.args.training.options(training, self.args.resume);
        let tell = self.tell.clone();
        let device = Arc::clone(self.runtime.device());
        // When nobody listens any more, the session is over.
        let tell = move |progress| drop(tell.send((index, progress)));
        let work = Training::new(training.job.clone(), device, training.data.clone(), options, tell);
        let work = match work {
            Ok(work) => work,
            Err(error) => {
                self.jobs[index].outcome = Some(Err(JobError::Work(Box::new(error))));
                return Ok(());
            }
        };
        let steps = work.steps();
        let is_done = steps >= training.steps;
        let submission = Submission {
            name: entry.args.name.clone(),
            weight: entry.args.weight,
            admission: entry.args.admission.into(),
            work: Box::new(work),
        };
        let job = &mut self.jobs[index];
        job.steps = steps;
        if is_done {
            job.outcome = Some(Ok(None));
            self.board.line(&format!("{}: all of its {steps} steps are done", job.name()));
        } else {
            job.handle = Some(self.runtime.submit(submission)?);
        }
        Ok(())
    }

    /// Takes in what a job tells.
    fn note(&mut self, index: usize, progress: Progress) {
        let job = &mut self.jobs[index];
        match progress {
            Progress::Step { step, epoch, loss } => {
                job.steps = step + 1;
                job.loss = Some(loss);
                job.shown.losses.push((step + 1, loss));
                self.board.step(index, step, epoch, loss);
            }
            Progress::Evaluated { step, evaluation } => {
                job.evaluation = Some(evaluation);
                job.shown.test_losses.push((step + 1, evaluation.loss));
                self.board.evaluated(index, step, evaluation);
            }
            Progress::Saved { steps } => job.saved = Some(steps),
            Progress::End { last, program } => {
                if let Some(last) = &last {
                    job.shown.steps = plan::in_time(last);
                }
                if let Some(program) = program {
                    job.shown.fates = html::fates(&program.step().trace, &program.planned().synced, MOST_FATES);
                }
            }
        }
    }

    /// Takes in how jobs stand.
    fn look(&mut self, snapshot: &Snapshot) {
        let now = self.runtime.elapsed().as_secs_f64();
        for index in 0..self.jobs.len() {
            let Some(handle) = &self.jobs[index].handle else { continue };
            let Some(status) = snapshot.jobs.iter().find(|status| status.id == handle.id()) else { continue };
            let memory = &mut self.jobs[index].shown.memory;
            if memory.last().map_or(Bytes::ZERO, |last| last.1) != status.arena {
                memory.push((now, status.arena));
            }
            self.board.status(index, status);
        }
        for event in &snapshot.events[self.n_events..] {
            let job = self.jobs.iter().position(|job| job.handle.as_ref().is_some_and(|h| h.id() == event.job));
            let Some(job) = job else { continue };
            let what = words(&event.kind);
            self.board.event(job, event.time, &what);
            self.events.push(Event { seconds: event.time.as_secs_f64(), job: self.jobs[job].name().to_owned(), what });
        }
        self.n_events = snapshot.events.len();
    }

    /// What is told at the end.
    fn close(mut self, is_paused: bool, before: Bytes) -> Result<(), Failure> {
        for job in &mut self.jobs {
            let ended = job.handle.clone().filter(|handle| !is_paused || handle.status().phase.is_over());
            if let Some(handle) = ended {
                job.outcome = Some(handle.join().map(Some));
            }
        }
        while let Ok((job, progress)) = self.told.try_recv() {
            self.note(job, progress);
        }
        let snapshot = self.runtime.snapshot();
        self.look(&snapshot);
        self.board.close();
        let peak = self.runtime.device().counted_bytes(before);
        let run_ns = self.runtime.elapsed().as_nanos() as u64;
        let lines: Vec<JobLine<'_>> = self.jobs.iter().map(line).collect();
        let budget_bytes = (snapshot.budget != Bytes::MAX).then_some(snapshot.budget.0);
        let (full_bytes, peak_bytes) = (self.full.0, peak.map(|peak| peak.0));
        if self.args.json {
            let line = RunLine { jobs: lines, full_bytes, budget_bytes, peak_bytes, run_ns };
            out!("{}", serde_json::to_string(&line).expect("plain data becomes JSON"));
        } else {
            print_table(&lines);
            let budget = budget_bytes.map_or("unlimited".to_owned(), |bytes| Bytes(bytes).to_string());
            let peak = peak.map_or("not counted".to_owned(), |peak| peak.to_string());
            out!("\nbudget {budget}; peak on the device (counted) {peak}; without a limit {}", self.full);
        }
        if let Some(path) = self.args.report.clone() {
            write(&path, self.page(&snapshot).render().as_bytes())?;
        }
        let mut failed = false;
        for job in &self.jobs {
            if let Some(Err(error)) = &job.outcome {
                failed = true;
                print_error(&anyhow!("{error}").context(format!("job '{}'", job.name())));
            }
        }
        if is_paused {
            let saved = self.jobs.iter().filter(|job| job.saved == Some(job.steps) && job.steps > 0).count();
            let left = self.jobs.iter().filter(|job| job.outcome.is_none()).count();
            let has_folders = self.args.checkpoint.is_some()
                || self.jobs.iter().any(|job| job.entry.args.training.checkpoint.is_some());
            let how = if has_folders { "go on with --resume" } else { "--checkpoint DIR would save them" };
            return Err(anyhow!("interrupted with {left} jobs left; {saved} are saved; {how}").into());
        }
        if failed { Err(Failure::Said) } else { Ok(()) }
    }

    fn page(&mut self, snapshot: &Snapshot) -> Page {
        let budget = (snapshot.budget != Bytes::MAX).then_some(snapshot.budget);
        let mut parts = Vec::new();
        for job in &mut self.jobs {
            let figures = figures(&line(job));
            let mut part = std::mem::take(&mut job.shown);
            part.figures = figures;
            part.failure = job.outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).map(ToString::to_string);
            parts.push(part);
        }
        Page {
            title: format!("Jobs of {}", self.args.jobs.file_name().unwrap_or_default().display()),
            about: format!(
                "{} jobs, policy {}, {} without a limit together",
                parts.len(),
                self.args.policy.policy,
                self.full
            ),
            budget,
            jobs: parts,
            events: std::mem::take(&mut self.events),
        }
    }
}

/// Whether a job does nothing any more, `since` it was asked to pause.
fn rests(job: &Job<'_>, snapshot: &Snapshot, since: Duration) -> bool {
    let Some(handle) = &job.handle else { return true };
    let is_kept = |event: &&tensile_core::runtime::Event| {
        event.job == handle.id() && event.time >= since && event.kind == EventKind::PausedInPlace
    };
    let status = snapshot.jobs.iter().find(|status| status.id == handle.id());
    let is_still = status.is_none_or(|status| !matches!(status.phase, Phase::Running | Phase::Queued));
    // With too little host memory a job is paused where it is.
    is_still || snapshot.events.iter().any(|event| is_kept(&event))
}

fn words(kind: &EventKind) -> String {
    match kind {
        EventKind::Submitted => "arrived".to_owned(),
        EventKind::Admitted { share } => format!("admitted with {share}"),
        EventKind::TookOver { before, share } if before == share => format!("replanned within {share}"),
        EventKind::TookOver { before, share } => format!("replanned from {before} to {share}"),
        EventKind::Kept => "stayed as it is: host memory is short".to_owned(),
        EventKind::Shortage { requested, free } => format!("the device refused {requested}; {free} free"),
        EventKind::Drifted { percent } => format!("measured times {percent} % off the prediction"),
        EventKind::PausedInPlace => "paused on the device: host memory is short".to_owned(),
        EventKind::Paused => "paused".to_owned(),
        EventKind::Ended { done: true } => "done".to_owned(),
        EventKind::Ended { done: false } => "failed".to_owned(),
    }
}

fn line<'a>(job: &Job<'a>) -> JobLine<'a> {
    let report = match &job.outcome {
        Some(Ok(report)) => report.as_ref(),
        _ => None,
    };
    let status = report.map(|report| report.status.clone()).or_else(|| Some(job.handle.as_ref()?.status()));
    let stats = report.map(|report| &report.stats).filter(|stats| stats.steps > 0);
    let nanos = |time: Duration| time.as_nanos() as u64;
    JobLine {
        job: job.name(),
        done: matches!(job.outcome, Some(Ok(_))),
        failure: job.outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).map(ToString::to_string),
        steps: job.steps,
        loss: job.loss,
        test_loss: job.evaluation.map(|evaluation| evaluation.loss),
        accuracy: job.evaluation.map(|evaluation| evaluation.accuracy),
        weight: job.entry.args.weight,
        run_steps: status.as_ref().map_or(0, |status| status.steps),
        largest_share_bytes: report.map(|report| report.largest_share.0),
        smallest_share_bytes: report.map(|report| report.smallest_share.0),
        floor_bytes: status.as_ref().and_then(|status| status.floor).map(|bytes| bytes.0),
        full_bytes: status.as_ref().and_then(|status| status.full).map(|bytes| bytes.0),
        plans: status.as_ref().map_or(0, |status| status.plans),
        takeovers: status.as_ref().map_or(0, |status| status.takeovers),
        admission_delay_ns: status.as_ref().and_then(|status| status.admission_delay).map(nanos),
        run_ns: report.map(|report| nanos(report.run_time)),
        step_ns: stats.map(|stats| stats.step_time.0 / stats.steps),
        evictions: stats.map(|stats| stats.evictions / stats.steps),
        reruns: stats.map(|stats| stats.reruns / stats.steps),
        stall_ns: stats.map(|stats| stats.stall_time.0 / stats.steps),
    }
}

fn figures(line: &JobLine<'_>) -> Vec<(String, String)> {
    let unknown = || "-".to_owned();
    let bytes = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| Bytes(bytes).to_string());
    let nanos = |ns: Option<u64>| ns.map_or_else(unknown, |ns| tensile_sched::Nanos(ns).to_string());
    let count = |count: Option<u64>| count.map_or_else(unknown, |count| count.to_string());
    let rows = [
        ("state", state(line).to_owned()),
        ("steps", line.steps.to_string()),
        ("loss", line.loss.map_or_else(unknown, |loss| format!("{loss:.4}"))),
        ("test loss", line.test_loss.map_or_else(unknown, |loss| format!("{loss:.4}"))),
        ("test accuracy", line.accuracy.map_or_else(unknown, |accuracy| format!("{:.2} %", accuracy * 100.0))),
        ("weight", line.weight.to_string()),
        ("share, smallest", bytes(line.smallest_share_bytes)),
        ("share, largest", bytes(line.largest_share_bytes)),
        ("floor", bytes(line.floor_bytes)),
        ("without a limit", bytes(line.full_bytes)),
        ("waited", nanos(line.admission_delay_ns)),
        ("ran", nanos(line.run_ns)),
        ("step time", nanos(line.step_ns)),
        ("stall per step", nanos(line.stall_ns)),
        ("copies per step caused by the budget", count(line.evictions)),
        ("reruns per step", count(line.reruns)),
        ("programs planned", line.plans.to_string()),
        ("programs taken over", line.takeovers.to_string()),
    ];
    crate::train::owned(rows.into())
}

fn state(line: &JobLine<'_>) -> &'static str {
    match (line.done, &line.failure) {
        (true, _) => "done",
        (false, Some(_)) => "failed",
        (false, None) => "not done",
    }
}

/// A column for each job.
fn print_table(lines: &[JobLine<'_>]) {
    let mut shown = table([""]);
    shown.set_header(std::iter::once("").chain(lines.iter().map(|line| line.job)));
    let columns: Vec<Vec<(String, String)>> = lines.iter().map(figures).collect();
    for row in 0..columns.first().map_or(0, Vec::len) {
        let name = columns[0][row].0.clone();
        shown.add_row(std::iter::once(name).chain(columns.iter().map(|column| column[row].1.clone())));
    }
    out!("\n{shown}");
}
