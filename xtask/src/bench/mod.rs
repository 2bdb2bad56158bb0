//! `cargo xtask bench`: runs the measuring program, prints Markdown, keeps JSON under `target/bench/`.

mod bound;
mod classes;
mod multi;
mod planner;
mod quick;
mod rate;
mod speed;
mod traces;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::ci::cargo;

/// Benches.
#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Digit CNN, ResNet-18 and ResNet-50 under budgets, on the host device or, with `--backend wgpu`, on an adapter beside the host device.
    Quick {
        /// Passed on to the measuring program: `--models resnet50:8 --percent 60 --steps 5`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Training steps of the large vision models on the host device without a limit, beside the machine's rate and PyTorch's figures.
    Speed(speed::Args),
    /// Lower bounds of the slowdown of recorded training steps.
    Bound(bound::Args),
    /// All planning policies on recorded training steps, beside lower bounds and the figures of others.
    Planner(planner::Args),
    /// Several jobs on one device, beside the figures that the authors of TENSILE recorded.
    Multi(multi::Args),
}

pub(crate) fn run(bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Quick { args } => quick::run(&args),
        Bench::Speed(args) => speed::run(&args),
        Bench::Bound(args) => bound::run(&args),
        Bench::Planner(args) => planner::run(&args),
        Bench::Multi(args) => multi::run(&args),
    }
}

/// Runs `tensile-bench NAME ARGS`, gives its JSON.
fn measure(name: &str, args: &[String]) -> anyhow::Result<Value> {
    let output = Command::new(cargo())
        .args(["run", "--quiet", "--package", "tensile-models", "--bin", "tensile-bench"])
        .args(if asks_for_wgpu(args) { &["--features", "wgpu"][..] } else { &[] })
        .args(["--", name])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("tensile-bench {name} ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("tensile-bench {name} printed no JSON"))
}

/// Whether the arguments have `--backend wgpu`, in one word or two.
fn asks_for_wgpu(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--backend=wgpu") || args.windows(2).any(|pair| pair == ["--backend", "wgpu"])
}

/// Keeps the result of a bench under `target/bench/`.
fn keep(name: &str, json: &Value) -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&root).with_context(|| format!("cannot make '{}'", root.display()))?;
    let path = root.canonicalize()?.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(json)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write '{}'", path.display()))?;
    Ok(path)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
