//! Several trainings on one device within one budget: the same model two and three times, five models that come together or one after another.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Serialize;
use tensile_core::Device;
use tensile_core::exec::{ExecutorOptions, Named, Step, StepResult};
use tensile_core::graph::Persistent;
use tensile_core::nn;
use tensile_core::runtime::{
    Admission, AtRest, EventKind, JobHandle, Next, Runtime, RuntimeOptions, Submission, WorkError, Workload,
};
use tensile_models::backend::{Backend, Choice, OpenOptions, Visitor, available_host_bytes};
use tensile_models::course::Course;
use tensile_models::data::{Batch, Loader, Position, SplitMix, Splits};
use tensile_models::job::{Job, LOSS};
use tensile_sched::baseline::{NoEviction, Retain};
use tensile_sched::share::Division;
use tensile_sched::{Bytes, Effort, Planner, Tensile, planner};

use crate::training::Task;

/// Nothing here takes so long unless it hangs.
const WATCHDOG: Duration = Duration::from_secs(1800);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model that runs one, two and three times, with its batch size.
    #[arg(long, default_value = "digit-cnn:64")]
    same: String,
    /// Models that run together, with their batch sizes; none to leave this out. All get images of --size, Inceptions of 75 at least.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "vgg16:2,inception-v3:2,inception-v4:2,resnet50:2,densenet121:2"
    )]
    mix: Vec<String>,
    /// Leave the mix out.
    #[arg(long)]
    no_mix: bool,
    /// Height and width of images of the mix.
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// Budgets in percent of the sum of what the jobs take without a limit.
    #[arg(long, value_delimiter = ',', default_value = "100,80,60,40")]
    percent: Vec<u64>,
    /// Budgets of the mix.
    #[arg(long, value_delimiter = ',', default_value = "100,60")]
    mix_percent: Vec<u64>,
    /// Policies.
    #[arg(long, value_delimiter = ',', default_value = "none,vdnn-all,capuchin,paper,tensile")]
    policies: Vec<String>,
    /// Policies for the mix.
    #[arg(long, value_delimiter = ',', default_value = "none,tensile")]
    mix_policies: Vec<String>,
    /// Steps of each job of the same model.
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// Steps of each job of the mix.
    #[arg(long, default_value_t = 6)]
    mix_steps: u64,
    /// Orders of arrival of the mix.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "shuffled,staggered")]
    arrivals: Vec<Arrival>,
    /// Mean seconds between arrivals, where they are staggered.
    #[arg(long, default_value_t = 1.0)]
    gap: f64,
    /// Seed of order and times of arrival.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    device: Choice,
}

/// How jobs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Arrival {
    /// All at once, in a drawn order.
    Shuffled,
    /// In a drawn order, as a Poisson process.
    Staggered,
}

#[derive(Serialize)]
pub(crate) struct Answer {
    device: String,
    groups: Vec<Group>,
}

/// Jobs that run together, under several budgets, policies and divisions.
#[derive(Serialize)]
struct Group {
    name: String,
    arrival: Arrival,
    jobs: Vec<JobAnswer>,
    /// Sum of what the jobs take without a limit.
    none_bytes: u64,
    /// The same if nothing is freed until a step ends.
    retain_bytes: u64,
    /// Time in which all jobs are done without a limit.
    none_ns: u64,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct JobAnswer {
    name: String,
    weight: f64,
    none_bytes: u64,
    floor_bytes: u64,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    division: &'static str,
    /// Whether it was planned with latencies that had been measured before.
    warm: bool,
    percent: u64,
    budget_bytes: u64,
    /// Why there is no run, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    #[serde(flatten)]
    run: Option<Run>,
}

#[derive(Serialize)]
struct Run {
    /// Of all jobs together, by an independent counter; absent if nothing counts.
    peak_bytes: Option<u64>,
    /// Most that all shares came to.
    shared_bytes: u64,
    msr_none: Option<f64>,
    msr_retain: Option<f64>,
    /// Time until all are done over that without a limit, less 1.
    eor: f64,
    /// MSR (none) over EOR; absent where one is not above zero.
    cbr: Option<f64>,
    makespan_ns: u64,
    /// Sum of weight times slowdown, over the sum of weights.
    weighted_slowdown: f64,
    /// The same as the shares were predicted to give, while all jobs were there.
    predicted_slowdown: Option<f64>,
    /// For each job: from its arrival to its end, over the same without a limit.
    slowdowns: Vec<f64>,
    /// For each job: from its arrival to its first step's end.
    admission_ns: Vec<u64>,
    evictions: u64,
    reruns: u64,
    takeovers: u64,
    plans: u64,
    /// Whether all losses equal those without a limit, bit by bit.
    losses_equal: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Answer> {
    let host_capacity = available_host_bytes(None::<&PathBuf>.map(PathBuf::as_path)).unwrap_or(Bytes::MAX);
    let options = OpenOptions { host_capacity, spill_dir: None, op_times: true };
    args.device.open(options, Multi(args))?
}

struct Multi<'a>(&'a Args);

impl Visitor for Multi<'_> {
    type Output = anyhow::Result<Answer>;

    fn visit<D: Backend>(self, device: Arc<D>) -> anyhow::Result<Answer> {
        let args = self.0;
        if args.steps < 2 || args.mix_steps < 2 {
            bail!("--steps and --mix-steps must be 2 or more");
        }
        for policy in args.policies.iter().chain(&args.mix_policies) {
            policy_of(policy)?;
        }
        let mut groups = Vec::new();
        let same = Arc::new(Task::open(&args.same, 0, &*device)?);
        for n in 1..=3 {
            let tasks = vec![Arc::clone(&same); n];
            let weights = vec![1.0; n];
            let plan = GroupPlan {
                name: format!("{} x{n}", args.same),
                tasks,
                weights,
                arrival: Arrival::Shuffled,
                steps: args.steps,
                percent: &args.percent,
                policies: &args.policies,
                divisions: false,
            };
            groups.push(group(args, &device, &plan)?);
        }
        if !args.no_mix && !args.mix.is_empty() {
            let tasks: Vec<Arc<Task>> =
                args.mix.iter().map(|spec| open_mixed(spec, args.size, &*device)).collect::<anyhow::Result<_>>()?;
            for &arrival in &args.arrivals {
                let plan = GroupPlan {
                    name: "mix".to_owned(),
                    tasks: tasks.clone(),
                    // One job counts more than the others, so that divisions can differ.
                    weights: (0..tasks.len()).map(|at| if at == 0 { 4.0 } else { 1.0 }).collect(),
                    arrival,
                    steps: args.mix_steps,
                    percent: &args.mix_percent,
                    policies: &args.mix_policies,
                    divisions: arrival == Arrival::Shuffled,
                };
                groups.push(group(args, &device, &plan)?);
            }
        }
        Ok(Answer { device: device.info().name.clone(), groups })
    }
}

fn open_mixed<D: Device>(spec: &str, size: usize, device: &D) -> anyhow::Result<Arc<Task>> {
    let size = if spec.starts_with("inception") { size.max(75) } else { size };
    Ok(Arc::new(Task::open(spec, size, device)?))
}

/// What is to be run for one group.
struct GroupPlan<'a> {
    name: String,
    tasks: Vec<Arc<Task>>,
    weights: Vec<f64>,
    arrival: Arrival,
    steps: u64,
    percent: &'a [u64],
    policies: &'a [String],
    /// Whether to compare divisions.
    divisions: bool,
}

/// One way to run a group.
#[derive(Clone)]
struct Way {
    policy: String,
    division: Division,
    budget: Bytes,
    /// Steps with measured latencies, for each job; without them the job is planned cold.
    warm: Option<Vec<Arc<Step>>>,
}

fn policy_of(name: &str) -> anyhow::Result<Arc<dyn Planner>> {
    let found: Box<dyn Planner> = match name {
        // Quick first, as the runtime does by default.
        "tensile" => Box::new(Tensile { effort: Effort::Fast }),
        name => planner::find(name).with_context(|| format!("there is no policy '{name}'"))?,
    };
    Ok(Arc::from(found))
}

fn group<D: Backend>(args: &Args, device: &Arc<D>, plan: &GroupPlan<'_>) -> anyhow::Result<Group> {
    let limits = device.info().limits(Bytes::MAX);
    let mut jobs = Vec::new();
    let (mut none_bytes, mut retain_bytes) = (0, 0);
    for (task, &weight) in plan.tasks.iter().zip(&plan.weights) {
        let trace = &task.job.train.trace;
        let none = NoEviction.plan(trace, &limits)?.report.arena.0;
        none_bytes += none;
        retain_bytes += Retain.plan(trace, &limits)?.report.arena.0;
        let floor_bytes = tensile_sched::floor(trace, &limits)?.bytes.0;
        jobs.push(JobAnswer { name: task.name.clone(), weight, none_bytes: none, floor_bytes });
    }
    let unlimited =
        Way { policy: "none".to_owned(), division: Division::Frontier, budget: Bytes(none_bytes), warm: None };
    // The first run warms caches up and measures latencies; the second is what others are compared with.
    let (_, warm) = run_group(args, device, plan, &unlimited)?;
    let (reference, _) = run_group(args, device, plan, &unlimited)?;
    let mut rows = Vec::new();
    for &percent in plan.percent {
        let budget = Bytes((u128::from(none_bytes) * u128::from(percent) / 100) as u64);
        for policy in plan.policies {
            let way = Way { policy: policy.clone(), budget, ..unlimited.clone() };
            let divisions: &[Division] = if plan.divisions && policy == "tensile" && percent < 100 {
                &[Division::Frontier, Division::Equal, Division::Proportional]
            } else {
                &[Division::Frontier]
            };
            for &division in divisions {
                let mut variants = vec![None];
                if policy == "tensile" && division == Division::Frontier {
                    variants.push(Some(warm.clone()));
                }
                for warm in variants {
                    let way = Way { division, warm, ..way.clone() };
                    let outcome = run_group(args, device, plan, &way);
                    let run = outcome
                        .map(|(outcome, _)| compare(&outcome, &reference, none_bytes, retain_bytes, &plan.weights));
                    let failed = run.as_ref().err().map(|error| format!("{error:#}"));
                    let run = run.ok();
                    let is_warm = way.warm.is_some();
                    rows.push(Row {
                        policy: policy.clone(),
                        division: name_of(division),
                        warm: is_warm,
                        percent,
                        budget_bytes: budget.0,
                        failed,
                        run,
                    });
                }
            }
        }
    }
    Ok(Group {
        name: plan.name.clone(),
        arrival: plan.arrival,
        jobs,
        none_bytes,
        retain_bytes,
        none_ns: reference.makespan.as_nanos() as u64,
        rows,
    })
}

fn name_of(division: Division) -> &'static str {
    match division {
        Division::Frontier => "frontier",
        Division::Equal => "equal",
        Division::Proportional => "proportional",
    }
}

/// What one run of a group gave.
struct Outcome {
    peak: Option<Bytes>,
    shared: Bytes,
    makespan: Duration,
    /// From arrival to end.
    times: Vec<Duration>,
    admissions: Vec<Duration>,
    losses: Vec<Vec<u32>>,
    predicted: Option<Vec<f64>>,
    evictions: u64,
    reruns: u64,
    takeovers: u64,
    plans: u64,
}

/// Order of arrival and times between arrivals.
fn arrivals(args: &Args, n: usize, arrival: Arrival) -> Vec<(usize, Duration)> {
    let mut random = SplitMix::new(args.seed, 0);
    let mut order: Vec<usize> = (0..n).collect();
    for last in (1..n).rev() {
        order.swap(last, random.below(last + 1));
    }
    let gap = |random: &mut SplitMix| match arrival {
        Arrival::Shuffled => Duration::ZERO,
        Arrival::Staggered => {
            // Exponentially distributed, from a number above 0 and up to 1.
            let uniform = (random.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
            Duration::from_secs_f64(-uniform.ln() * args.gap)
        }
    };
    order
        .into_iter()
        .enumerate()
        .map(|(at, job)| (job, if at == 0 { Duration::ZERO } else { gap(&mut random) }))
        .collect()
}

/// Runs all jobs of a group; gives also their steps with the latencies that were measured.
fn run_group<D: Backend>(
    args: &Args,
    device: &Arc<D>,
    plan: &GroupPlan<'_>,
    way: &Way,
) -> anyhow::Result<(Outcome, Vec<Arc<Step>>)> {
    let options = RuntimeOptions {
        planner: policy_of(&way.policy)?,
        refiner: None,
        division: way.division,
        // What was planned at first is measured, not what would become of it.
        replan_above: f64::INFINITY,
        executor: ExecutorOptions { profile: true, ..ExecutorOptions::default() },
        ..RuntimeOptions::default()
    };
    let before = device.begin_count();
    let runtime = Runtime::new(Arc::clone(device), way.budget, options)?;
    let n = plan.tasks.len();
    let records: Vec<Arc<Mutex<Record>>> = (0..n).map(|_| Arc::default()).collect();
    let mut handles: Vec<Option<(JobHandle, Instant)>> = vec![None; n];
    let began = Instant::now();
    for (at, gap) in arrivals(args, n, plan.arrival) {
        std::thread::sleep(gap);
        let task = &plan.tasks[at];
        let work = Bench {
            job: task.job.clone(),
            step: way.warm.as_ref().map_or_else(|| Arc::clone(&task.job.train), |steps| Arc::clone(&steps[at])),
            loader: loader(task)?,
            batch: None,
            course: Course { steps: 0, seed: 1 },
            steps: plan.steps,
            rested: false,
            record: Arc::clone(&records[at]),
        };
        let name = format!("{} {at}", task.name);
        let job = Submission { name, weight: plan.weights[at], admission: Admission::Queue, work: Box::new(work) };
        handles[at] = Some((runtime.submit(job)?, Instant::now()));
    }
    let mut outcome = Outcome {
        peak: None,
        shared: Bytes::ZERO,
        makespan: Duration::ZERO,
        times: Vec::new(),
        admissions: Vec::new(),
        losses: Vec::new(),
        predicted: None,
        evictions: 0,
        reruns: 0,
        takeovers: 0,
        plans: 0,
    };
    let handles: Vec<(JobHandle, Instant)> = handles.into_iter().flatten().collect();
    loop {
        let snapshot = runtime.snapshot();
        outcome.shared = outcome.shared.max(snapshot.shared);
        let slowdowns: Option<Vec<f64>> = snapshot.jobs.iter().map(|job| job.slowdown).collect();
        outcome.predicted = slowdowns.or(outcome.predicted);
        if snapshot.jobs.iter().all(|job| job.phase.is_over()) {
            break;
        }
        if began.elapsed() > WATCHDOG {
            bail!("it hangs: {snapshot:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let events = runtime.snapshot().events;
    for (job, _) in &handles {
        let at = |kind: fn(&EventKind) -> bool| {
            let event = events.iter().find(|event| event.job == job.id() && kind(&event.kind));
            event.map(|event| event.time).unwrap_or_default()
        };
        let (came, went) =
            (at(|kind| *kind == EventKind::Submitted), at(|kind| matches!(kind, EventKind::Ended { .. })));
        outcome.times.push(went - came);
        outcome.makespan = outcome.makespan.max(went);
    }
    let mut warm = Vec::new();
    for ((job, _), record) in handles.into_iter().zip(&records) {
        let name = job.status().name;
        let report = job.join().with_context(|| format!("job '{name}'"))?;
        outcome.admissions.push(report.status.admission_delay.unwrap_or_default());
        outcome.evictions += report.stats.evictions;
        outcome.reruns += report.stats.reruns;
        outcome.takeovers += report.status.takeovers;
        outcome.plans += report.status.plans;
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.losses.push(std::mem::take(&mut record.losses));
        warm.extend(record.warm.take());
    }
    outcome.peak = device.counted_bytes(before);
    Ok((outcome, warm))
}

fn compare(outcome: &Outcome, reference: &Outcome, none: u64, retain: u64, weights: &[f64]) -> Run {
    let saved = |of: u64| outcome.peak.map(|peak| 1.0 - peak.0 as f64 / of as f64);
    let eor = outcome.makespan.as_secs_f64() / reference.makespan.as_secs_f64() - 1.0;
    let slowdowns: Vec<f64> = (outcome.times.iter().zip(&reference.times))
        .map(|(time, without)| time.as_secs_f64() / without.as_secs_f64())
        .collect();
    let weighted = |slowdowns: &[f64]| {
        let sum: f64 = slowdowns.iter().zip(weights).map(|(slowdown, weight)| slowdown * weight).sum();
        sum / weights.iter().sum::<f64>()
    };
    Run {
        peak_bytes: outcome.peak.map(|peak| peak.0),
        shared_bytes: outcome.shared.0,
        msr_none: saved(none),
        msr_retain: saved(retain),
        eor,
        cbr: saved(none).filter(|msr| *msr > 0.0 && eor > 0.0).map(|msr| msr / eor),
        makespan_ns: outcome.makespan.as_nanos() as u64,
        weighted_slowdown: weighted(&slowdowns),
        predicted_slowdown: outcome.predicted.as_deref().map(weighted),
        slowdowns,
        admission_ns: outcome.admissions.iter().map(|delay| delay.as_nanos() as u64).collect(),
        evictions: outcome.evictions,
        reruns: outcome.reruns,
        takeovers: outcome.takeovers,
        plans: outcome.plans,
        losses_equal: outcome.losses == reference.losses,
    }
}

fn loader(task: &Task) -> anyhow::Result<Loader> {
    let Splits { train, .. } = &task.data;
    Ok(Loader::new(Arc::clone(train), task.job.recipe.batching(), 1, Position::default())?)
}

/// What a job leaves.
#[derive(Default)]
struct Record {
    losses: Vec<u32>,
    /// Its step with measured latencies.
    warm: Option<Arc<Step>>,
}

/// Training steps and nothing else.
struct Bench {
    job: Job,
    step: Arc<Step>,
    loader: Loader,
    batch: Option<Batch>,
    course: Course,
    steps: u64,
    rested: bool,
    record: Arc<Mutex<Record>>,
}

impl Workload for Bench {
    fn main_step(&self) -> Arc<Step> {
        Arc::clone(&self.step)
    }

    fn init(&mut self, persistent: &Persistent, first: usize, bytes: &mut [u8]) -> Result<(), WorkError> {
        nn::init_part(persistent, self.course.seed, first, bytes);
        Ok(())
    }

    fn next(&mut self) -> Result<Next, WorkError> {
        if let Some(used) = self.batch.take() {
            self.loader.recycle(used);
            self.course.steps += 1;
        }
        if self.course.steps == self.steps {
            return Ok(if std::mem::replace(&mut self.rested, true) { Next::End } else { Next::AtRest });
        }
        self.batch = Some(self.loader.next_batch()?);
        Ok(Next::Step(Arc::clone(&self.step)))
    }

    fn fill(&mut self, _step: &Arc<Step>, input: &Named, bytes: &mut [u8]) -> Result<(), WorkError> {
        let batch = self.batch.as_ref().ok_or("no batch")?;
        self.course.fill(&self.job, batch, 1e-3, input, bytes);
        Ok(())
    }

    fn finished(&mut self, _step: &Arc<Step>, result: StepResult) -> Result<(), WorkError> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.losses.push(result.scalar(LOSS).to_bits());
        Ok(())
    }

    fn at_rest(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        let Some(stats) = job.stats(&self.step) else { return Ok(()) };
        let trace = stats.measured_trace(&self.step)?;
        let warm = Arc::new(Step { trace, ..(*self.step).clone() });
        self.record.lock().unwrap_or_else(PoisonError::into_inner).warm = Some(warm);
        Ok(())
    }
}
