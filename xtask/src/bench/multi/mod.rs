//! `cargo xtask bench multi`: several jobs on a device of this machine, or with `--simulated` on a simulated one, at the sizes of the authors of TENSILE and beside the figures that they recorded.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

mod figures;
mod measured;
mod mix;
mod report;
mod rows;
mod steps;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::bail;
use serde::Serialize;
use tensile_sched::{Curve, Division, Effort, Planner, Tensile, planner};

use super::keep;
use super::traces::Traces;
use figures::{MODELS, recorded};
use mix::{Mix, Policy};
use rows::{Model, Row, Wanted};
use steps::Step;

/// Options of `bench multi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Simulate recorded training steps. Without it jobs train on a device of this machine.
    #[arg(long)]
    simulated: bool,
    /// Without --simulated: passed on to the measuring program, after `--`: `-- --same resnet18:8 --percent 60`.
    #[arg(last = true, conflicts_with = "simulated")]
    measured: Vec<String>,
    #[command(flatten)]
    traces: Traces,
    /// Policies beside `tensile`.
    #[arg(long, value_delimiter = ',', default_value = "none,vdnn-all,capuchin,paper")]
    policies: Vec<String>,
    /// Batch sizes.
    #[arg(long, value_delimiter = ',', default_value = "2,16")]
    batches: Vec<u32>,
    /// Budgets of the five models together, in percent of the sum of what they take under `none`.
    #[arg(long, value_delimiter = ',', default_value = "100,80,60,50,40")]
    budgets: Vec<f64>,
    /// Points of each curve that memory is divided along.
    #[arg(long, default_value_t = 17)]
    points: usize,
    /// Let `tensile` plan with effort `best`: some hundred times as long.
    #[arg(long)]
    best: bool,
}

/// Everything simulated.
#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    mixes: Vec<Mix>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if !args.simulated {
        return measured::run(&args.measured);
    }
    if let Some(unknown) = args.policies.iter().find(|name| planner::find(name).is_none()) {
        let known: Vec<&str> = planner::all().iter().map(|policy| policy.name()).collect();
        bail!("there is no policy '{unknown}'; there are {}", known.join(", "));
    }
    let tensile = Tensile { effort: if args.best { Effort::Best } else { Effort::Fast } };
    let mut report = Report { rows: vec![], mixes: vec![] };
    for &batch in &args.batches {
        let begin = Instant::now();
        let steps = MODELS.iter().map(|model| Step::new(args.traces.read(&format!("tensile_{model}_b{batch}"))?));
        let steps = steps.collect::<anyhow::Result<Vec<Step>>>()?;
        let curves = curves(&tensile, &steps, args.points)?;
        eprintln!("batch {batch}: curves after {:.0} s", begin.elapsed().as_secs_f64());
        let wanted = Wanted { baselines: &args.policies, all: true };
        report.rows.extend(rows(&tensile, batch, &steps, &curves, &wanted)?);
        eprintln!("batch {batch}: jobs of one model after {:.0} s", begin.elapsed().as_secs_f64());
        report.mixes.extend(mixes(args, &tensile, batch, &steps, curves)?);
        eprintln!("batch {batch}: the five together after {:.0} s", begin.elapsed().as_secs_f64());
    }
    println!("{}", report::markdown(&report, tensile.effort));
    let path = keep("multi-simulated", &serde_json::to_value(&report)?)?;
    eprintln!("\nJSON: {}", path.display());
    Ok(())
}

fn curves(policy: &dyn Planner, steps: &[Step], n_points: usize) -> anyhow::Result<Vec<Curve>> {
    side_by_side(steps, |step| step.curve(policy, n_points))
}

fn rows(
    tensile: &dyn Planner,
    batch: u32,
    steps: &[Step],
    curves: &[Curve],
    wanted: &Wanted<'_>,
) -> anyhow::Result<Vec<Row>> {
    let places: Vec<usize> = (0..steps.len()).collect();
    let rows = side_by_side(&places, |&place| {
        let model = Model { step: &steps[place], tensile, curve: &curves[place] };
        recorded(MODELS[place], batch).iter().map(|recorded| model.row(recorded, wanted)).collect()
    })?;
    Ok(rows.into_iter().flat_map(|rows: Vec<Row>| rows).collect())
}

/// All policies along their own frontiers with equal weights; then `tensile` in all divisions, with equal weights and with each model in turn four times as heavy.
fn mixes(
    args: &Args,
    tensile: &dyn Planner,
    batch: u32,
    steps: &[Step],
    curves: Vec<Curve>,
) -> anyhow::Result<Vec<Mix>> {
    let equal = [1.0; 5];
    let mut mixes = Vec::new();
    for name in &args.policies {
        let Some(policy) = planner::find(name) else { continue };
        let curves = self::curves(policy.as_ref(), steps, args.points)?;
        let policy = Policy::new(name, policy.as_ref(), steps, curves);
        mixes.extend(args.budgets.iter().map(|&percent| policy.mix(batch, percent, Division::Frontier, equal)));
    }
    let policy = Policy::new("tensile", tensile, steps, curves);
    let heavy = (0..MODELS.len()).map(|heavy| {
        let mut weights = equal;
        weights[heavy] = 4.0;
        weights
    });
    let mut wanted = Vec::new();
    for weights in std::iter::once(equal).chain(heavy) {
        for &percent in &args.budgets {
            for division in [Division::Frontier, Division::Equal, Division::Proportional] {
                wanted.push((percent, division, weights));
            }
        }
    }
    mixes.extend(side_by_side(&wanted, |&(percent, division, weights)| {
        Ok(policy.mix(batch, percent, division, weights))
    })?);
    Ok(mixes)
}

/// Works through a list on all cores; results in its order.
fn side_by_side<T: Sync, R: Send>(list: &[T], work: impl Fn(&T) -> anyhow::Result<R> + Sync) -> anyhow::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let n_threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = list.get(index) else { break };
                    let result = work(item);
                    results.lock().expect("no other thread panics").push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("no thread panicked");
    results.sort_by_key(|entry| entry.0);
    results.into_iter().map(|(_, result)| result).collect()
}
