//! What the command line takes.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tensile_models::backend::Choice;
use tensile_models::budget::Budget;
use tensile_models::data::{Augment, LastBatch};
use tensile_models::job::Nonfinite;
use tensile_sched::Mode;
use tensile_sched::share::Division;

/// Trains models that need more memory than the device has.
#[derive(Debug, Parser)]
#[command(name = "tensile", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model within a memory budget.
    Train(TrainArgs),
    /// Train several models side by side within one budget.
    Run(RunArgs),
    /// Measure loss and accuracy of saved weights on test data.
    Eval(EvalArgs),
    /// Tell labels, or continue a text, with saved weights.
    Predict(PredictArgs),
    /// Tell before running whether a model or a recorded step fits a budget, and at what cost.
    Plan(PlanArgs),
    /// Measure how long ops take on a device and learn from it, so that a job's first step is planned well.
    Profile(ProfileArgs),
    /// List devices, models, data sets and policies.
    Info(InfoArgs),
}

/// Which kinds of eviction may be used.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum ModeArg {
    /// Copies to the host and back.
    Swap,
    /// Running ops again.
    Recompute,
    /// Whatever costs less.
    #[default]
    Both,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Swap => Mode::Swap,
            ModeArg::Recompute => Mode::Recompute,
            ModeArg::Both => Mode::Both,
        }
    }
}

/// How to plan.
#[derive(Args, Clone, Debug)]
pub(crate) struct PolicyArgs {
    /// Planning policy; `tensile info` lists them.
    #[arg(long, default_value = "tensile")]
    pub(crate) policy: String,
    /// Ways out of memory that the policy may use.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: ModeArg,
    /// Most bytes of host memory (or of the file in --spill-dir) for swapped tensors, inputs and outputs: 8GiB, unlimited, or auto for what is free now.
    #[arg(long, default_value = "auto", value_parser = parse_budget)]
    pub(crate) host_budget: Budget,
    /// Keep swapped tensors in a file in this folder instead of in memory. The file has no name and is gone at the end.
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// How long ops take: a file that `tensile profile` wrote, or none for estimates by the device's rates. Without it, what `tensile profile` has kept for the device, if
    /// it has; else estimates.
    #[arg(long, value_name = "FILE|none")]
    pub(crate) latencies: Option<PathBuf>,
}

/// How a model is made, and how many samples it takes at a time.
#[derive(Args, Clone, Debug)]
pub(crate) struct NetArgs {
    /// Samples in a batch; default 64, or 1 where a whole graph is a sample.
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Settings of the model, separated by commas: size=64, classes=10; `tensile info` lists them.
    #[arg(long, value_name = "NAME=NUMBER", value_delimiter = ',', value_parser = parse_setting)]
    pub(crate) set: Vec<(String, f64)>,
    /// Height and width of the images for models that take any size; short for --set size=N.
    #[arg(long)]
    pub(crate) size: Option<u32>,
}

/// What to run, and on what.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) net: NetArgs,
    #[command(flatten)]
    pub(crate) device: Choice,
}

/// How parameters are updated.
#[derive(Args, Clone, Debug)]
pub(crate) struct OptimizerArgs {
    /// Optimizer: adam, adamw or sgd.
    #[arg(long, default_value = "adam")]
    pub(crate) optimizer: String,
    /// Share of the last direction that sgd keeps.
    #[arg(long, default_value_t = 0.9)]
    pub(crate) momentum: f32,
    /// Pull of parameters towards 0; default 0.01 for adamw, 0 for the others.
    #[arg(long)]
    pub(crate) weight_decay: Option<f32>,
    /// No weight decay on parameters of one dimension: biases, and scales and shifts of norms.
    #[arg(long)]
    pub(crate) no_decay_on_vectors: bool,
    /// Other settings for parameters whose names fit a pattern: 'classifier.*:lr=10:decay=0', where lr is a factor. May be given more than once; the first that fits
    /// counts.
    #[arg(long, value_name = "PATTERN[:lr=F][:decay=F]", value_parser = parse_group)]
    pub(crate) group: Vec<GroupArg>,
    /// Scale gradients down so that the norm of all of them together is at most this.
    #[arg(long, value_name = "NORM")]
    pub(crate) clip_norm: Option<f32>,
    /// What to do in a step whose loss or gradients are not finite: stop, skip it (leave everything as it is), or continue.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) nonfinite: Nonfinite,
    /// Batches whose gradients are added up for one update.
    #[arg(long, default_value_t = 1, value_name = "BATCHES", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) accumulate: u16,
    /// What becomes of the samples at the end of an epoch that are too few for an update: drop them, or make a smaller (partial) update from them.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) last_batch: LastBatch,
    /// Tokens in texts, separated by commas: each batch has one of these lengths, drawn from the seed. Default: as many as the model takes.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub(crate) buckets: Vec<usize>,
}

/// What `--group` says.
#[derive(Clone, Debug)]
pub(crate) struct GroupArg {
    pub(crate) pattern: String,
    pub(crate) lr: f64,
    pub(crate) decay: Option<f32>,
}

fn parse_group(text: &str) -> Result<GroupArg, String> {
    let fault = || format!("'{text}' is no group; write PATTERN:lr=0.1:decay=0 with one of these or both");
    let mut parts = text.split(':');
    let pattern = parts.next().filter(|pattern| !pattern.is_empty()).ok_or_else(fault)?.to_owned();
    let mut group = GroupArg { pattern, lr: 1.0, decay: None };
    for part in parts {
        let (name, number) = part.split_once('=').ok_or_else(fault)?;
        let number: f64 = number.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0).ok_or_else(fault)?;
        match name {
            "lr" => group.lr = number,
            "decay" => group.decay = Some(number as f32),
            _ => return Err(fault()),
        }
    }
    Ok(group)
}

/// A training: of what, on what, how long, and what is saved of it.
#[derive(Args, Clone, Debug)]
pub(crate) struct TrainingArgs {
    /// Model; `tensile info` lists them.
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) net: NetArgs,
    #[command(flatten)]
    pub(crate) optimizer: OptimizerArgs,
    /// Data: digits, karate or synthetic; a folder with the files of MNIST (IDX) or CIFAR-10 (binary), or with a folder of PNG and JPEG
    /// files for each class; a CSV file with the pixels and the label of an image on each row; for models of texts any file, whose
    /// bytes are the tokens. Without it, what comes with the program if the model takes it, else synthetic.
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// How images are changed in training: none, or with commas between flip and crop=PIXELS, for folders of images also flip and
    /// resize. Without it, flip,crop=4 for CIFAR-10; flip,resize for folders; else none.
    #[arg(long, value_name = "WORDS")]
    pub(crate) augment: Option<Augment>,
    /// Times to go through the training samples.
    #[arg(long, default_value_t = 10)]
    pub(crate) epochs: usize,
    /// Stop after this many steps; 0 = at the end of the epochs.
    #[arg(long, default_value_t = 0)]
    pub(crate) steps: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 1e-3)]
    pub(crate) lr: f32,
    /// How the learning rate falls: constant, step:EPOCHS:FACTOR, `linear[:FLOOR]` or `cosine[:FLOOR]` (floors are fractions of --lr).
    #[arg(long, default_value = "constant")]
    pub(crate) schedule: String,
    /// Steps in which the learning rate rises to --lr.
    #[arg(long, default_value_t = 0, value_name = "STEPS")]
    pub(crate) warmup: u64,
    /// Seed of initial weights, dropout and the order of samples.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Load parameters and buffers from a safetensors file first.
    #[arg(long)]
    pub(crate) load: Option<PathBuf>,
    /// Save the whole state of training (parameters, optimizer, step, position in the data) to checkpoint.safetensors in this folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Steps from one checkpoint to the next; 0 = one at the end of each epoch.
    #[arg(long, default_value_t = 0, value_name = "STEPS", requires = "checkpoint")]
    pub(crate) every: u64,
    /// Save parameters and buffers to a safetensors file at the end.
    #[arg(long)]
    pub(crate) save: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    #[command(flatten)]
    pub(crate) device: Choice,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Device memory: 2GiB, 800MB, unlimited, 60% of what the job takes without a limit, or auto for nine tenths of what is free now.
    #[arg(long, default_value = "unlimited", value_parser = parse_budget)]
    pub(crate) budget: Budget,
    /// First train without a limit, then within the budget, and compare the losses bit by bit.
    #[arg(long, conflicts_with = "checkpoint")]
    pub(crate) compare: bool,
    /// Print one JSON line for each step and one with the report, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on from the checkpoint in the folder that --checkpoint names.
    #[arg(long, requires = "checkpoint", conflicts_with = "load")]
    pub(crate) resume: bool,
    /// Write lanes and memory over time, of the last step as it ran and of a step as it was predicted, to a JSON file that ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    /// Write a page of HTML: memory over time, lanes of a step, losses, figures, and what became of the largest tensors.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// How device memory is divided among jobs.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum DivisionArg {
    /// So that the weighted slowdown of all jobs is least.
    #[default]
    Frontier,
    /// The same to each.
    Equal,
    /// In proportion to what each takes without a limit.
    Proportional,
}

impl From<DivisionArg> for Division {
    fn from(division: DivisionArg) -> Self {
        match division {
            DivisionArg::Frontier => Division::Frontier,
            DivisionArg::Equal => Division::Equal,
            DivisionArg::Proportional => Division::Proportional,
        }
    }
}

#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub(crate) struct RunArgs {
    /// Jobs, a TOML file: at the top options of this command, and for each job a `[[job]]` with the options of `train`, and name, weight, arrival = "2s" or
    /// after = "NAME", admission = "queue" or "refuse". What is given here counts more than what the file says.
    pub(crate) jobs: PathBuf,
    #[command(flatten)]
    pub(crate) device: Choice,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Device memory for all jobs together: 2GiB, 800MB, unlimited, 60% of what they take together without a limit, or auto for nine tenths of what is free now.
    #[arg(long, default_value = "unlimited", value_parser = parse_budget)]
    pub(crate) budget: Budget,
    /// How device memory is divided among jobs.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) division: DivisionArg,
    /// A job is planned anew when its measured times leave the prediction by more than this part.
    #[arg(long, default_value = "30%", value_name = "PERCENT", value_parser = parse_percent)]
    pub(crate) replan_above: f64,
    /// Save the state of each job that has no folder of its own for it to a folder of its name in this one.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Go on from checkpoints where there are any.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Print JSON lines, one for each step, evaluation and event, and one with the report.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page of HTML: memory of all jobs over time, and for each job what `train --report` shows.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

/// What `eval` and `predict` share.
#[derive(Args, Debug)]
pub(crate) struct TrainedArgs {
    /// Model; `tensile info` lists them.
    pub(crate) model: String,
    /// Parameters and buffers, a safetensors file.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: PathBuf,
    #[command(flatten)]
    pub(crate) step: ModelArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Device memory: 2GiB, 800MB, unlimited, auto, or 60% of what the forward step takes without a limit.
    #[arg(long, default_value = "unlimited", value_parser = parse_budget)]
    pub(crate) budget: Budget,
    /// Data, as for `train`; its test split is used.
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Seed of synthetic data and of sampling.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    pub(crate) trained: TrainedArgs,
    /// Samples of the test split to tell the labels of; 0 = all.
    #[arg(long, default_value_t = 10)]
    pub(crate) samples: usize,
    /// Likeliest classes to print for each label.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) top: u16,
    /// Instead of telling labels: continue this text, with a model that tells next tokens of bytes.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["samples", "top", "data"])]
    pub(crate) prompt: Option<String>,
    /// Bytes to continue the prompt by.
    #[arg(long, default_value_t = 200, requires = "prompt", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) length: u32,
    /// How freely bytes are drawn: 0 takes the likeliest, 1 draws by the model's own probabilities.
    #[arg(long, default_value_t = 0.7, requires = "prompt")]
    pub(crate) temperature: f32,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Model; `tensile info` lists them.
    #[arg(required_unless_present = "trace", conflicts_with = "trace")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) step: ModelArgs,
    #[command(flatten)]
    pub(crate) optimizer: OptimizerArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// Plan a recorded training step (JSON, gzip or not) instead of a model.
    #[arg(long)]
    pub(crate) trace: Option<PathBuf>,
    /// Budgets to try, separated by commas: 2GiB, 60%.
    #[arg(long, value_delimiter = ',', default_value = "100%,80%,60%,50%,40%", value_parser = parse_budget)]
    pub(crate) budget: Vec<Budget>,
    /// Instead of budgets: so many points of the curve of memory against time, from the least possible memory to all.
    #[arg(long, value_name = "POINTS", conflicts_with = "budget", value_parser = clap::value_parser!(u16).range(2..=1000))]
    pub(crate) frontier: Option<u16>,
    /// Instead of budgets: the least memory in which a step takes at most so many per cent longer.
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["budget", "frontier"], value_parser = parse_percent)]
    pub(crate) max_slowdown: Option<f64>,
    /// Rate of copies each way in bytes per second (12GB); default: measured on the device for models, 12 GB/s for recorded steps.
    #[arg(long)]
    pub(crate) link: Option<String>,
    /// Print the program of the first feasible budget.
    #[arg(long)]
    pub(crate) show: bool,
    /// Say of the first feasible budget where the time goes, why the large tensors are where they are, and what more memory would buy.
    #[arg(long, conflicts_with = "json")]
    pub(crate) explain: bool,
    /// Write lanes and memory over time for the first feasible budget to a JSON file that ui.perfetto.dev opens.
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    /// Write the training step to a trace file; gzip-compressed if its name ends with .gz.
    #[arg(long)]
    pub(crate) write_trace: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) device: Choice,
    /// Seconds to measure for; learning comes on top.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,
    /// File to write; default: one for the device in the user's folder for caches, where other commands look for it.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A part, from a number of per cent with or without the sign.
fn parse_percent(text: &str) -> Result<f64, String> {
    let number: Result<f64, _> = text.trim_end_matches('%').trim().parse();
    match number {
        Ok(percent) if (0.0..=1e6).contains(&percent) => Ok(percent / 100.0),
        _ => Err("give a number of per cent from 0 up, like 5%".to_owned()),
    }
}

fn parse_setting(text: &str) -> Result<(String, f64), String> {
    let fault = || format!("'{text}' is no setting; write NAME=NUMBER, like size=64");
    let (name, number) = text.split_once('=').ok_or_else(fault)?;
    Ok((name.trim().to_owned(), number.trim().parse().map_err(|_| fault())?))
}

fn parse_budget(text: &str) -> Result<Budget, String> {
    text.parse()
}
