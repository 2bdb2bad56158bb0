//! `cargo xtask bench planner`: all policies on recorded training steps, beside lower bounds and the figures of others.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

mod chain;
mod figures;
mod ilp;
mod items;
mod measure;
mod plot;
mod report;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::Serialize;
use tensile_sched::planner;

use super::traces::{Traces, holds_lifetimes_only};
use crate::ci::cargo;
use figures::REFERENCE_PLANS;
use items::{AgainstDtr, AgainstIlp, Placement, Timed};
use measure::{Measured, Wanted};

/// Options of `bench planner`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Only these policies; all by default.
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Budgets in percent of the peak of plain liveness; those below a trace's floor are skipped.
    #[arg(long, value_delimiter = ',', default_value = "90,80,70,60,50,40,30")]
    budgets: Vec<f64>,
    /// Folder for `planner.md`, `planner.json` and a plot of each trace [default: target/bench/planner].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Without lower bounds, which take most of the time.
    #[arg(long)]
    no_bounds: bool,
    /// Without planning times on traces and chains.
    #[arg(long)]
    no_times: bool,
    /// Compare with the optimum of this many random small steps, by the test that does so (2000 take some minutes).
    #[arg(long, default_value_t = 0)]
    optimum: usize,
    /// Traces measured at once [default: one for each processor].
    #[arg(long)]
    threads: Option<usize>,
    /// Fail if `tensile` is slower than another policy, or than itself with less memory, or if addresses cost too much.
    #[arg(long)]
    strict: bool,
    /// Measure in this very build. By default a release build is made, because only its planning times count.
    #[arg(long)]
    here: bool,
}

/// All there is to say of one trace.
#[derive(Serialize)]
struct TraceReport {
    measured: Option<Measured>,
    name: String,
    against_dtr: Vec<AgainstDtr>,
    against_ilp: Vec<AgainstIlp>,
    placement: Placement,
}

/// Everything measured.
#[derive(Serialize)]
struct Report {
    policies: Vec<String>,
    traces: Vec<TraceReport>,
    times: Vec<Timed>,
    chains: Vec<Timed>,
    exponent: Option<f64>,
    /// What the comparison with the optimum says.
    near_optimum: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let known: Vec<String> = planner::all().iter().map(|policy| policy.name().to_owned()).collect();
    if let Some(unknown) = args.policies.iter().find(|name| !known.contains(name)) {
        bail!("there is no policy '{unknown}'; there are {}", known.join(", "));
    }
    // Before anything is built: a missing folder should be told at once.
    let names = args.traces.names(false)?;
    if !args.here {
        return run_release();
    }
    let out = match &args.out {
        Some(out) => out.clone(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench/planner"),
    };
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make '{}'", out.display()))?;
    let traces = measure_all(args, &names)?;
    let (times, chains, exponent) = if args.no_times { (vec![], vec![], None) } else { times(args, &names)? };
    let policies = known.into_iter().filter(|name| args.policies.is_empty() || args.policies.contains(name)).collect();
    let near_optimum = if args.optimum == 0 { None } else { Some(near_optimum(args.optimum)?) };
    let report = Report { policies, traces, times, chains, exponent, near_optimum };
    for measured in report.traces.iter().filter_map(|trace| trace.measured.as_ref()) {
        plot::plot(&out.join(format!("{}.svg", measured.name)), measured, &report.policies)?;
    }
    let text = report::markdown(&report);
    println!("{text}");
    write(&out.join("planner.md"), &text)?;
    write(&out.join("planner.json"), &serde_json::to_string_pretty(&report)?)?;
    eprintln!("\nin {}: planner.md, planner.json, plots", out.display());
    let violations = report::violations(&report);
    if args.strict && !violations.is_empty() {
        bail!("{} of the properties that must hold do not; the first: {}", violations.len(), violations[0]);
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write '{}'", path.display()))
}

/// The same in a release build.
fn run_release() -> anyhow::Result<()> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let status = Command::new(cargo())
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(args)
        .arg("--here")
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the release build ended with {status}");
    }
    Ok(())
}

/// Runs the test that compares plans with the optimum on more steps than it usually takes; gives its line of figures.
fn near_optimum(steps: usize) -> anyhow::Result<String> {
    let output = Command::new(cargo())
        .args(["test", "--quiet", "--package", "tensile-sched", "--test", "near_optimum"])
        .env("NEAR_OPTIMUM_STEPS", steps.to_string())
        .output()
        .context("cannot run cargo")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("mean gap"));
    let verdict = if output.status.success() { "" } else { "; the test FAILS" };
    Ok(format!("{}{verdict}", line.context("the comparison with the optimum printed no figures")?))
}

/// Measures all traces, a few at a time, the largest first.
fn measure_all(args: &Args, names: &[String]) -> anyhow::Result<Vec<TraceReport>> {
    let wanted = Wanted { budgets: args.budgets.clone(), policies: args.policies.clone(), bounds: !args.no_bounds };
    let mut sizes = Vec::new();
    for (index, name) in names.iter().enumerate() {
        sizes.push((std::cmp::Reverse(args.traces.read(name)?.ops().len()), index));
    }
    sizes.sort_unstable();
    let n_threads =
        args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |threads| threads.get()));
    let (next, n_done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<(usize, anyhow::Result<TraceReport>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..n_threads.max(1) {
            scope.spawn(|| {
                while let Some(&(_, index)) = sizes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let result = measure_one(args, &wanted, &names[index]);
                    results.lock().expect("no other thread panics").push((index, result));
                    let done = n_done.fetch_add(1, Ordering::Relaxed) + 1;
                    let seconds = begin.elapsed().as_secs_f64();
                    eprintln!("[{done}/{}] {} in {seconds:.1} s", names.len(), names[index]);
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panicked");
    results.sort_by_key(|entry| entry.0);
    results.into_iter().map(|(_, result)| result).collect()
}

fn measure_one(args: &Args, wanted: &Wanted, name: &str) -> anyhow::Result<TraceReport> {
    let trace = args.traces.read(name)?;
    let reference = REFERENCE_PLANS.iter().find(|entry| entry.0 == name);
    let reference = reference.map(|&(_, megabytes)| (report::REFERENCE.to_owned(), megabytes * 1_000_000));
    let measured = (!holds_lifetimes_only(name)).then(|| measure::measure(name, &trace, wanted, reference.as_slice()));
    Ok(TraceReport {
        measured,
        name: name.to_owned(),
        against_dtr: items::against_dtr(name, &trace, wanted.bounds),
        against_ilp: items::against_ilp(name, &trace, wanted.bounds)?,
        placement: items::placement(&trace)?,
    })
}

/// Traces whose planning time has a goal, in milliseconds.
const TIME_GOALS: [(&str, f64); 4] = [
    ("tensile_vgg16_b16", 3.0),
    ("tensile_resnet50_b16", 10.0),
    ("tensile_densenet121_b16", 30.0),
    ("dtr_lstm_128", 500.0),
];

/// Planning times, with nothing else running.
fn times(args: &Args, names: &[String]) -> anyhow::Result<(Vec<Timed>, Vec<Timed>, Option<f64>)> {
    let mut times = Vec::new();
    for (name, goal) in TIME_GOALS.iter().filter(|(name, _)| names.iter().any(|wanted| wanted == name)) {
        let trace = args.traces.read(name)?;
        for percent in [60.0, 50.0] {
            times.push(items::timed(name, &trace, percent, Some(*goal)));
        }
        eprintln!("timed {name}");
    }
    let (chains, exponent) = items::chains();
    Ok((times, chains, Some(exponent)))
}
