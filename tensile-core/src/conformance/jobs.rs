//! Several jobs on one device: [`Runtime`]. Each job's results are those that it has alone, whatever becomes of its shares and its neighbours.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensile_sched::{Bytes, NoEviction, Planner};

use super::harness::{SEED, Trained, executor, feed, limits, outputs_of, run_steps};
use crate::device::Device;
use crate::exec::{Compiled, ExecutorOptions, Named, Step, StepResult, lower};
use crate::graph::{Graph, GraphError, Init, Persistent};
use crate::nn::init_part;
use crate::op::conv2d::Conv2d;
use crate::optim::{Optimizer, train};
use crate::runtime::{
    Admission, AtRest, EventKind, JobError, JobHandle, JobReport, Next, Phase, Runtime, RuntimeOptions, Submission,
    WorkError, Workload,
};
use crate::tensor::TensorType;

/// Nothing here takes so long unless it hangs.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// A training on made-up data, of a number of steps or until it is told to stop, that writes down everything it computes.
#[derive(Clone)]
pub struct Training {
    step: Arc<Step>,
    /// Another step of the job that runs after each so many, and its number.
    other: Option<(Arc<Step>, u64)>,
    optimizer: Optimizer,
    at_least: u64,
    stop: Arc<AtomicBool>,
    begun: u64,
    runs_other: bool,
    has_rested: bool,
    record: Arc<Mutex<Record>>,
}

/// What a training has computed.
#[derive(Debug, Default)]
pub struct Record {
    /// Outputs of its steps, and its state at the end.
    pub trained: Option<Trained>,
    /// Outputs of its steps so far.
    pub outputs: Vec<Vec<(String, Vec<u8>)>>,
    /// Outputs of its other step so far.
    pub others: Vec<Vec<(String, Vec<u8>)>>,
    /// How often it was paused.
    pub pauses: u32,
}

impl Training {
    /// A training of exactly `n` steps.
    pub fn of(step: &Arc<Step>, optimizer: &Optimizer, n: u64) -> Self {
        let training = Self::until_told(step, optimizer, n);
        training.stop();
        training
    }

    /// A training of `at_least` steps that goes on until [`stop`](Self::stop).
    pub fn until_told(step: &Arc<Step>, optimizer: &Optimizer, at_least: u64) -> Self {
        Self {
            step: Arc::clone(step),
            other: None,
            optimizer: optimizer.clone(),
            at_least,
            stop: Arc::default(),
            begun: 0,
            runs_other: false,
            has_rested: false,
            record: Arc::default(),
        }
    }

    /// With another step after every `n` steps.
    #[must_use]
    pub fn with_other(self, step: &Arc<Step>, n: u64) -> Self {
        Self { other: Some((Arc::clone(step), n)), ..self }
    }

    /// Lets it end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// What it has computed; shared by all clones.
    pub fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands it in.
    ///
    /// # Panics
    /// If there is no thread for it.
    pub fn submit<D: Device>(&self, runtime: &Runtime<D>, name: &str, weight: f64, admission: Admission) -> JobHandle {
        let job = Submission { name: name.to_owned(), weight, admission, work: Box::new(self.clone()) };
        runtime.submit(job).expect("a thread for the job")
    }
}

impl Workload for Training {
    fn main_step(&self) -> Arc<Step> {
        Arc::clone(&self.step)
    }

    fn init(&mut self, persistent: &Persistent, first: usize, bytes: &mut [u8]) -> Result<(), WorkError> {
        init_part(persistent, SEED, first, bytes);
        Ok(())
    }

    fn next(&mut self) -> Result<Next, WorkError> {
        if let Some((other, every)) = self.other.as_ref().filter(|_| !self.has_rested) {
            self.runs_other = !self.runs_other && self.begun > 0 && self.begun.is_multiple_of(*every);
            if self.runs_other {
                return Ok(Next::Step(Arc::clone(other)));
            }
        }
        if self.begun >= self.at_least && self.stop.load(Ordering::Relaxed) {
            let rests = std::mem::replace(&mut self.has_rested, true);
            return Ok(if rests { Next::End } else { Next::AtRest });
        }
        self.begun += 1;
        Ok(Next::Step(Arc::clone(&self.step)))
    }

    fn fill(&mut self, _step: &Arc<Step>, input: &Named, bytes: &mut [u8]) -> Result<(), WorkError> {
        feed(self.begun - 1, &self.optimizer)(input, bytes);
        Ok(())
    }

    fn finished(&mut self, step: &Arc<Step>, result: StepResult) -> Result<(), WorkError> {
        let mut record = self.record();
        let outputs = if Arc::ptr_eq(step, &self.step) { &mut record.outputs } else { &mut record.others };
        outputs.push(outputs_of(result));
        Ok(())
    }

    fn at_rest(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        let state = job.state()?;
        let mut record = self.record();
        let outputs = record.outputs.clone();
        record.trained = Some(Trained { outputs, state });
        Ok(())
    }

    fn pausing(&mut self, job: &mut dyn AtRest) -> Result<(), WorkError> {
        // What is there can be read.
        job.state()?;
        self.record().pauses += 1;
        Ok(())
    }
}

/// Ten convolutions with batch norm on small images, and dropout: most of its memory is activations that wait for the backward pass, so that it can be squeezed.
fn deep(mut graph: Graph, training: Option<&Optimizer>, batch: usize) -> Result<Graph, GraphError> {
    let mut x = graph.input("x", TensorType::f32([batch, 1, 8, 8]))?;
    let labels = graph.input("labels", TensorType::i32([batch]))?;
    for layer in 0..10 {
        x = graph.scoped(&format!("layer{layer}"), |graph| {
            let inputs = graph.dims(x)[1];
            let weight = graph.parameter("conv.weight", [6, inputs, 3, 3], Init::Uniform { bound: 0.3 })?;
            let x = graph.conv2d(x, weight, None, Conv2d::new(1, 1))?;
            let scale = graph.parameter("norm.weight", [6], Init::Constant(1.0))?;
            let shift = graph.parameter("norm.bias", [6], Init::Constant(0.0))?;
            let mean = graph.buffer("norm.mean", TensorType::f32([6]), Init::Constant(0.0))?;
            let var = graph.buffer("norm.var", TensorType::f32([6]), Init::Constant(1.0))?;
            let count = graph.buffer("norm.count", TensorType::i32([]), Init::Constant(0.0))?;
            let x = if training.is_some() {
                let [y, batch_mean, batch_var] = graph.batch_norm(x, scale, shift, 1e-5)?;
                graph.batch_norm_stats([mean, var, count], [batch_mean, batch_var], batch * 64, 0.1)?;
                y
            } else {
                graph.batch_norm_inference(x, [mean, var], scale, shift, 1e-5)?
            };
            graph.relu(x)
        })?;
    }
    if training.is_some() {
        let random = graph.input("random", TensorType::i32([4]))?;
        x = graph.dropout(x, random, 0.25, 0)?;
    }
    let x = graph.reshape(x, [batch, 6 * 64])?;
    let weight = graph.parameter("head.weight", [4, 6 * 64], Init::Uniform { bound: 0.1 })?;
    let logits = graph.linear(x, weight, None)?;
    let loss = graph.softmax_cross_entropy(logits, labels)?;
    graph.output("loss", loss)?;
    if let Some(optimizer) = training {
        train(&mut graph, loss, optimizer)?;
    }
    Ok(graph)
}

/// The training step of ten convolutions for so many images.
///
/// # Panics
/// If the device lacks a kernel.
pub fn step<D: Device>(device: &Arc<D>, batch: usize) -> Arc<Step> {
    let graph = deep(Graph::new(), Some(&Optimizer::adam()), batch).expect("it builds");
    Arc::new(lower(&graph, &**device).expect("it lowers"))
}

/// What `n` steps of a training compute with the device to themselves, without a limit.
///
/// # Panics
/// If they fail.
pub fn alone<D: Device>(device: &Arc<D>, step: &Arc<Step>, n: u64) -> Trained {
    let limits = limits(device, Bytes::MAX);
    let planned = NoEviction.plan(&step.trace, &limits).expect("without a limit everything fits");
    let compiled = Compiled::new(Arc::clone(step), planned, limits).expect("the program is right");
    let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, ..ExecutorOptions::default() });
    run_steps(&mut executor, &compiled, &Optimizer::adam(), n)
}

/// Device bytes of a step without a limit.
///
/// # Panics
/// If it cannot be planned.
pub fn full<D: Device>(device: &Arc<D>, step: &Arc<Step>) -> Bytes {
    NoEviction.plan(&step.trace, &limits(device, Bytes::MAX)).expect("it fits").report.arena
}

/// Least device bytes of a step.
///
/// # Panics
/// If it cannot be planned.
pub fn floor<D: Device>(device: &Arc<D>, step: &Arc<Step>) -> Bytes {
    tensile_sched::floor(&step.trace, &limits(device, Bytes::MAX)).expect("there is one").bytes
}

/// A runtime for tests: poison, as the executor does it.
///
/// # Panics
/// If there is no thread for it.
pub fn runtime<D: Device>(device: &Arc<D>, budget: Bytes) -> Runtime<D> {
    runtime_with(device, budget, RuntimeOptions::default())
}

fn runtime_with<D: Device>(device: &Arc<D>, budget: Bytes, options: RuntimeOptions) -> Runtime<D> {
    let executor = ExecutorOptions { profile: true, poison: true };
    let options = RuntimeOptions { executor, refiner: None, ..options };
    Runtime::new(Arc::clone(device), budget, options).expect("a thread for planning")
}

/// The job's end, which must come.
///
/// # Errors
/// Those of the job.
///
/// # Panics
/// If it hangs.
pub fn ended(job: JobHandle) -> Result<JobReport, JobError> {
    let status = job.wait_until(|_| false, WATCHDOG);
    assert!(status.phase.is_over(), "job '{}' hangs: {status:?}", status.name);
    job.join()
}

/// Waits until the job is in a phase.
///
/// # Panics
/// If it does not come.
pub fn reaches(job: &JobHandle, phase: Phase) {
    let status = job.wait_until(|status| status.phase == phase, WATCHDOG);
    assert_eq!(status.phase, phase, "{status:?}");
}

/// Waits until the job has ended so many steps.
///
/// # Panics
/// If it does not.
pub fn runs(job: &JobHandle, steps: u64) {
    let status = job.wait_until(|status| status.steps >= steps, WATCHDOG);
    assert!(status.steps >= steps, "{status:?}");
}

fn percent(bytes: Bytes, percent: u64) -> Bytes {
    Bytes(bytes.0 * percent / 100)
}

/// Two and three jobs within 60 % of the sum of their peaks: the sum of what they hold stays within it, and each computes what it computes alone.
/// `held` gives the most device bytes since it was last asked, by a counter that knows nothing of plans.
///
/// # Panics
/// If not.
pub fn jobs_share_a_budget<D: Device>(device: &Arc<D>, mut held: impl FnMut() -> u64) {
    for batches in [&[16, 12][..], &[16, 16, 10]] {
        let made: Vec<Arc<Step>> = batches.iter().map(|&batch| step(device, batch)).collect();
        let expected: Vec<Trained> = made.iter().map(|step| alone(device, step, 25)).collect();
        let budget = percent(made.iter().map(|step| full(device, step)).sum(), 60);
        let runtime = runtime(device, budget);
        held();
        let trainings: Vec<Training> = made.iter().map(|step| Training::of(step, &Optimizer::adam(), 25)).collect();
        let jobs: Vec<JobHandle> = (trainings.iter().enumerate())
            .map(|(index, training)| training.submit(&runtime, &format!("job {index}"), 1.0, Admission::Queue))
            .collect();
        let mut evictions = 0;
        for job in jobs {
            let report = ended(job).expect("it trains");
            evictions += report.stats.evictions + report.stats.reruns;
        }
        let most = held();
        assert!(most <= budget.0, "{most} bytes held of {budget}");
        assert!(evictions > 0, "the budget is tight");
        for (training, expected) in trainings.iter().zip(&expected) {
            assert_eq!(training.record().trained.as_ref(), Some(expected));
        }
        let snapshot = runtime.snapshot();
        assert_eq!((snapshot.shared, snapshot.host_held), (Bytes::ZERO, Bytes::ZERO));
    }
}

/// A third job arrives while two run with all the memory they can use: they shrink and it is let in; when it is done they grow back. Nobody's results change.
///
/// # Panics
/// If not.
pub fn shares_follow_arrivals_and_departures<D: Device>(device: &Arc<D>, mut held: impl FnMut() -> u64) {
    let made: Vec<Arc<Step>> = [16, 14, 15].iter().map(|&batch| step(device, batch)).collect();
    let two = full(device, &made[0]) + full(device, &made[1]);
    let budget = two;
    let runtime = runtime(device, budget);
    held();
    let [a, b]: [Training; 2] = [0, 1].map(|at| Training::until_told(&made[at], &Optimizer::adam(), 10));
    let jobs = [a.submit(&runtime, "a", 1.0, Admission::Queue), b.submit(&runtime, "b", 1.0, Admission::Queue)];
    for (job, step) in jobs.iter().zip(&made) {
        runs(job, 5);
        assert_eq!(job.status().share, full(device, step), "they have all that they can use");
    }
    let c = Training::until_told(&made[2], &Optimizer::adam(), 10);
    let third = c.submit(&runtime, "c", 1.0, Admission::Refuse);
    runs(&third, 5);
    let shares: Vec<Bytes> = jobs.iter().chain([&third]).map(|job| job.status().share).collect();
    assert!(shares.iter().copied().sum::<Bytes>() <= budget, "{shares:?} of {budget}");
    assert!(shares[0] + shares[1] < two, "they have made room");
    // The steps that the others ended between the offers and the arrival: the ones that ran, no more.
    let events = runtime.snapshot().events;
    let came = events.iter().find(|event| event.job == third.id() && event.kind == EventKind::Submitted);
    let came = came.expect("it was submitted").time;
    let resized = |job: &JobHandle| {
        let shrunk = |kind: &EventKind| matches!(kind, EventKind::TookOver { before, share } if share < before);
        events.iter().any(|event| event.job == job.id() && event.time > came && shrunk(&event.kind))
    };
    assert!(jobs.iter().any(resized), "{events:?}");
    c.stop();
    ended(third).expect("it trains");
    for (job, step) in jobs.iter().zip(&made) {
        let all = full(device, step);
        let status = job.wait_until(|status| status.share == all, WATCHDOG);
        assert_eq!(status.share, all, "it grows back");
        runs(job, status.steps + 3);
    }
    [&a, &b].into_iter().for_each(Training::stop);
    for job in jobs {
        ended(job).expect("it trains");
    }
    assert!(held() <= budget.0);
    for (training, step) in [&a, &b, &c].into_iter().zip(&made) {
        let record = training.record();
        let trained = record.trained.as_ref().expect("it is done");
        assert_eq!(trained, &alone(device, step, trained.outputs.len() as u64));
    }
}

/// A device that is full: a newcomer that fits if the others are squeezed runs beside them; one that does not is refused or waits, with the figures; one that fails falls alone
/// (Project-HAMi/HAMi#2630).
///
/// # Panics
/// If not.
pub fn c39_a_full_device_has_rules<D: Device>(device: &Arc<D>, mut held: impl FnMut() -> u64) {
    let huge = step(device, 400);
    let small = step(device, 16);
    let budget = percent(full(device, &small), 105);
    assert!(Bytes(2 * floor(device, &small).0) <= budget, "two can be squeezed in");
    let mut sizes = (20..400).step_by(4).map(|batch| step(device, batch));
    let large = sizes.find(|large| floor(device, large) + floor(device, &small) > budget).expect("some are larger");
    assert!(floor(device, &large) <= budget);
    let step = small;
    let six = alone(device, &step, 6);
    let runtime = runtime(device, budget);
    held();
    let a = Training::until_told(&step, &Optimizer::adam(), 10);
    let first = a.submit(&runtime, "a", 1.0, Admission::Queue);
    runs(&first, 3);

    // It fits if the first is squeezed.
    let b = Training::of(&step, &Optimizer::adam(), 6);
    let second = b.submit(&runtime, "b", 1.0, Admission::Refuse);
    ended(second).expect("both fit");
    assert_eq!(b.record().trained.as_ref(), Some(&six));

    // It does not fit at all: refused with figures, or waiting until the first is done.
    let c = Training::of(&large, &Optimizer::adam(), 4);
    let error = ended(c.submit(&runtime, "c", 1.0, Admission::Refuse)).expect_err("it does not fit");
    let JobError::Refused(refusal) = &error else { panic!("{error:?}") };
    assert_eq!(refusal.floor, floor(device, &large));
    assert_eq!(refusal.budget, budget);
    assert!(refusal.could_be_freed < refusal.floor && refusal.holders.len() == 1);
    let text = error.to_string();
    for figure in [refusal.floor.to_string(), refusal.free.to_string(), "'a'".to_owned()] {
        assert!(text.contains(&figure), "{text}");
    }
    let waiting = c.submit(&runtime, "c again", 1.0, Admission::Queue);
    let before = first.status().steps;
    runs(&first, before + 5);
    assert_eq!(waiting.status().phase, Phase::Queued);

    // It fails in its own code, in the middle.
    let d = Training::of(&step, &Optimizer::adam(), 6);
    let name = "d".to_owned();
    let work = Box::new(Failing { training: d, at: 3 });
    let failing = Submission { name, weight: 1.0, admission: Admission::Refuse, work };
    // Whoever waits is not overtaken, so nobody else gets in before it has left.
    waiting.cancel();
    assert!(matches!(ended(waiting), Err(JobError::Cancelled)));
    let error = ended(runtime.submit(failing).expect("a thread")).expect_err("it fails");
    assert!(error.to_string().contains("made to fail"), "{error}");

    a.stop();
    ended(first).expect("nothing of this is its affair");
    assert!(held() <= budget.0);
    let record = a.record();
    let trained = record.trained.as_ref().expect("it is done");
    assert_eq!(trained, &alone(device, &step, trained.outputs.len() as u64));
    assert_eq!(runtime.snapshot().shared, Bytes::ZERO);

    // A job that is larger than the budget never runs, and is told so at once even if it would wait.
    let error = ended(Training::of(&huge, &Optimizer::adam(), 1).submit(&runtime, "huge", 1.0, Admission::Queue));
    let error = error.expect_err("it never fits");
    assert!(matches!(error, JobError::Infeasible(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&budget.to_string()) && text.contains(&floor(device, &huge).to_string()), "{text}");
}

/// A training whose own code fails at a step.
struct Failing {
    training: Training,
    at: usize,
}

impl Workload for Failing {
    fn main_step(&self) -> Arc<Step> {
        self.training.main_step()
    }

    fn init(&mut self, persistent: &Persistent, first: usize, bytes: &mut [u8]) -> Result<(), WorkError> {
        self.training.init(persistent, first, bytes)
    }

    fn next(&mut self) -> Result<Next, WorkError> {
        self.training.next()
    }

    fn fill(&mut self, step: &Arc<Step>, input: &Named, bytes: &mut [u8]) -> Result<(), WorkError> {
        self.training.fill(step, input, bytes)
    }

    fn finished(&mut self, step: &Arc<Step>, result: StepResult) -> Result<(), WorkError> {
        self.training.finished(step, result)?;
        if self.training.record().outputs.len() >= self.at { Err("made to fail".into()) } else { Ok(()) }
    }
}

/// One of three jobs is cancelled at many points: the others do not notice, what it held comes back, and a new job begins (pytorch/pytorch#32575).
///
/// # Panics
/// If not.
pub fn c41_cancelling_one_leaves_the_others<D: Device>(device: &Arc<D>, points: u64) {
    let made: Vec<Arc<Step>> = [12, 16, 10].iter().map(|&batch| step(device, batch)).collect();
    let budget = percent(made.iter().map(|step| full(device, step)).sum(), 60);
    let runtime = runtime(device, budget);
    let [a, c]: [Training; 2] = [0, 2].map(|at| Training::until_told(&made[at], &Optimizer::adam(), 10));
    let jobs = [a.submit(&runtime, "a", 1.0, Admission::Queue), c.submit(&runtime, "c", 1.0, Admission::Queue)];
    for point in 0..points {
        let b = Training::until_told(&made[1], &Optimizer::adam(), 1);
        let victim = b.submit(&runtime, "b", 1.0, Admission::Queue);
        // From "not yet let in" over "in its first step" to some steps later.
        if point % 5 > 0 {
            runs(&victim, point % 5 - 1);
            std::thread::sleep(Duration::from_micros(point * 137 % 3000));
        }
        victim.cancel();
        let id = victim.id();
        assert!(matches!(ended(victim), Err(JobError::Cancelled)));
        let snapshot = runtime.snapshot();
        let status = snapshot.jobs.iter().find(|job| job.id == id).expect("it is remembered");
        assert_eq!((status.share, status.host, status.arena), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO));
    }
    [&a, &c].into_iter().for_each(Training::stop);
    for job in jobs {
        ended(job).expect("it trains");
    }
    for (training, step) in [&a, &c].into_iter().zip([&made[0], &made[2]]) {
        let record = training.record();
        let trained = record.trained.as_ref().expect("it is done");
        assert_eq!(trained, &alone(device, step, trained.outputs.len() as u64));
    }
}

/// Jobs are paused and resumed while others run: their device bytes are the others' meanwhile, and nobody's results change.
///
/// # Panics
/// If not.
pub fn pauses_keep_the_bits<D: Device>(device: &Arc<D>, mut held: impl FnMut() -> u64) {
    let step = step(device, 16);
    let budget = percent(full(device, &step), 140);
    let runtime = runtime(device, budget);
    held();
    let trainings: [Training; 2] = [(); 2].map(|()| Training::until_told(&step, &Optimizer::adam(), 10));
    let jobs =
        ["a", "b"].map(|name| trainings[usize::from(name == "b")].submit(&runtime, name, 1.0, Admission::Refuse));
    for round in 0..6 {
        let (one, other) = (&jobs[round % 2], &jobs[1 - round % 2]);
        runs(one, one.status().steps + 2);
        one.pause();
        reaches(one, Phase::Paused);
        let status = one.status();
        assert_eq!((status.share, status.arena), (Bytes::ZERO, Bytes::ZERO));
        assert!(status.host > Bytes::ZERO);
        let full = full(device, &step);
        let grown = other.wait_until(|status| status.share == full, WATCHDOG);
        assert_eq!(grown.share, full, "the other has the memory meanwhile");
        runs(other, grown.steps + 2);
        assert_eq!(one.status().steps, status.steps);
        one.resume();
        reaches(one, Phase::Running);
    }
    for training in &trainings {
        training.stop();
    }
    for job in jobs {
        ended(job).expect("it trains");
    }
    assert!(held() <= budget.0);
    for training in &trainings {
        let record = training.record();
        assert_eq!(record.pauses, 3);
        let trained = record.trained.as_ref().expect("it is done");
        assert_eq!(trained, &alone(device, &step, trained.outputs.len() as u64));
    }
    assert_eq!(runtime.snapshot().host_held, Bytes::ZERO);
}

/// Steps of other shapes get programs of their own within the job's share, which grows if one of them needs more; programs are kept, and only so many.
///
/// # Panics
/// If not.
pub fn other_steps_run_within_the_share<D: Device>(device: &Arc<D>, mut held: impl FnMut() -> u64) {
    let graph = deep(Graph::new(), Some(&Optimizer::adam()), 8).expect("it builds");
    let eval = |batch| {
        let eval = deep(graph.sibling(), None, batch).expect("it builds");
        Arc::new(lower(&eval, &**device).expect("it lowers"))
    };
    let step = Arc::new(lower(&graph, &**device).expect("it lowers"));
    let expected = alone(device, &step, 12);
    // One that fits into any share of the training step, and one that needs more than all of it.
    let small = eval(4);
    let mut sizes = (8..2000).step_by(8).map(eval);
    let large = sizes.find(|large| floor(device, large) > full(device, &step)).expect("some are larger");
    for (other, plans) in [(&small, 2), (&large, 3)] {
        let budget = full(device, &step).max(floor(device, other) + Bytes(1 << 16));
        // Measured times make no plans here, so that plans can be counted.
        let options = RuntimeOptions { replan_above: f64::INFINITY, ..RuntimeOptions::default() };
        let runtime = runtime_with(device, budget, options);
        held();
        let training = Training::of(&step, &Optimizer::adam(), 12).with_other(other, 3);
        let report = ended(training.submit(&runtime, "job", 1.0, Admission::Refuse)).expect("it trains");
        assert!(held() <= budget.0);
        assert_eq!(training.record().trained.as_ref(), Some(&expected));
        assert_eq!(training.record().others.len(), 4);
        assert_eq!(report.status.plans, plans, "each step is planned once, the main one again for a larger share");
    }
    // One that never fits.
    let other = large;
    let runtime = runtime(device, full(device, &step));
    let training = Training::of(&step, &Optimizer::adam(), 12).with_other(&other, 3);
    let error = ended(training.submit(&runtime, "job", 1.0, Admission::Refuse)).expect_err("it never fits");
    assert!(error.to_string().contains("below the floor"), "{error}");
}
