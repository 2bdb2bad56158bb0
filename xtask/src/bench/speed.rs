//! `cargo xtask bench speed`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use super::classes::{self, Class};
use super::{keep, measure, mib, rate};
use crate::ci::cargo;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Models with their batch sizes.
    #[arg(long, value_delimiter = ',', default_value = "resnet50:8,vgg16:4,densenet121:8,inception-v3:4")]
    models: Vec<String>,
    /// Timed steps of each, after one to warm up.
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Threads; 0 = one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Measure candle and burn as well, which train ResNet-50 with the batch size given here; compiles them first, which takes many minutes.
    #[arg(long, value_name = "BATCH", num_args = 0..=1, default_missing_value = "8")]
    peers: Option<usize>,
}

/// Rate of the `gemm` crate where [`PYTORCH`]'s figures were taken: machines of one kind differ, and this sets them on equal ground.
const PYTORCH_GEMM_FLOPS_PER_S: f64 = 103e9;

/// PyTorch 2.15 (oneDNN) with two threads on a virtual machine of two cores, measured apart: seconds of a training step with Adam, and by how many MiB its
/// resident memory grows at most.
const PYTORCH: [(&str, f64, f64); 4] = [
    ("resnet50:8", 3.34, 1172.0),
    ("vgg16:4", 6.91, 2621.0),
    ("densenet121:8", 2.54, 1384.0),
    ("inception-v3:4", 2.34, 763.0),
];

/// Another framework's steps.
#[derive(Deserialize)]
struct Peer {
    framework: String,
    /// What it does differently.
    note: String,
    step_ns: Vec<u64>,
}

#[derive(Deserialize)]
struct Model {
    model: String,
    batch: usize,
    threads: usize,
    ops: usize,
    flops: f64,
    step_ns: u64,
    least_step_ns: u64,
    peak_bytes: u64,
    resident_bytes: Option<u64>,
    classes: Vec<Class>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let threads = if args.threads == 0 { std::thread::available_parallelism()?.get() } else { args.threads };
    // Beside every model, since what else the machine does changes with time.
    let mut rate = rate::gemm_flops_per_s(threads);
    let mut answers = Vec::new();
    for model in &args.models {
        // A process of its own, so that its peak of resident memory is its own.
        let given = [model, "--steps", &args.steps.to_string(), "--threads", &threads.to_string()].map(str::to_owned);
        answers.push(measure("speed", &given)?);
        rate = rate.max(rate::gemm_flops_per_s(threads));
    }
    let mut peer_answers = Vec::new();
    if let Some(batch) = args.peers {
        for name in ["candle", "burn"] {
            eprintln!("{name}, batch {batch}");
            peer_answers.push(peer(name, batch, args.steps, threads)?);
        }
    }
    let models: Vec<Model> = (answers.iter().cloned())
        .map(|answer| serde_json::from_value(answer).context("the measuring program's answer"))
        .collect::<anyhow::Result<_>>()?;
    println!(
        "# Training steps on the host device\n\nAdam, f32, {threads} threads. The machine's rate: {:.0} GFLOP/s (`gemm` crate, 1024³).\n",
        rate / 1e9
    );
    print_models(&models, rate);
    let peers: Vec<Peer> = (peer_answers.iter().cloned())
        .map(|answer| serde_json::from_value(answer).context("the answer of bench-peers"))
        .collect::<anyhow::Result<_>>()?;
    print_peers(&peers, args.peers.unwrap_or_default(), &models);
    for model in &models {
        println!("\n## {}, batch {}: {} ops", model.model, model.batch, model.ops);
        classes::print(&model.classes, rate);
    }
    let path = keep("speed", &json!({ "gemm_flops_per_s": rate, "models": answers, "peers": peer_answers }))?;
    eprintln!("\nJSON: {}", path.display());
    Ok(())
}

fn print_models(models: &[Model], rate: f64) {
    println!(
        "| model | batch | step s (least) | GFLOP/s | of the machine's rate | PyTorch s | PyTorch ÷ this | at equal rates | device peak | resident growth | PyTorch's growth |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for model in models {
        let seconds = model.step_ns as f64 * 1e-9;
        let speed = model.flops / seconds;
        let spec = format!("{}:{}", model.model, model.batch);
        // Figures were taken on two threads.
        let pytorch = PYTORCH.iter().find(|row| row.0 == spec && model.threads == 2);
        let cell = |text: Option<String>| text.unwrap_or("-".to_owned());
        println!(
            "| {} | {} | {seconds:.2} ({:.2}) | {:.1} | {:.0} % | {} | {} | {} | {} | {} | {} |",
            model.model,
            model.batch,
            model.least_step_ns as f64 * 1e-9,
            speed / 1e9,
            100.0 * speed / rate,
            cell(pytorch.map(|row| format!("{:.2}", row.1))),
            cell(pytorch.map(|row| format!("{:.2}", row.1 / seconds))),
            cell(pytorch.map(|row| format!("{:.2}", row.1 / seconds * PYTORCH_GEMM_FLOPS_PER_S / rate))),
            mib(model.peak_bytes),
            cell(model.resident_bytes.map(mib)),
            cell(pytorch.map(|row| format!("{:.1} MiB", row.2))),
        );
    }
}

/// Runs `bench-peers`, which is a workspace of its own, and gives its JSON.
fn peer(name: &str, batch: usize, steps: usize, threads: usize) -> anyhow::Result<Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench-peers/Cargo.toml");
    let output = Command::new(cargo())
        .args(["run", "--quiet", "--release", "--locked", "--manifest-path"])
        .arg(manifest)
        .args(["--", name, "--batch", &batch.to_string(), "--steps", &steps.to_string()])
        .args(["--threads", &threads.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    anyhow::ensure!(output.status.success(), "bench-peers {name} ended with {}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("bench-peers {name} printed no JSON"))
}

/// The other frameworks beside this one's ResNet-50, if it has been measured with their batch size.
fn print_peers(peers: &[Peer], batch: usize, models: &[Model]) {
    if peers.is_empty() {
        return;
    }
    let own = models.iter().find(|model| model.model == "resnet50" && model.batch == batch);
    println!("\n| ResNet-50, batch {batch}, in | step s (least) | over this | note |\n|---|--:|--:|---|");
    for peer in peers {
        let mut times = peer.step_ns.clone();
        times.sort_unstable();
        let (Some(&least), Some(&median)) = (times.first(), times.get(times.len() / 2)) else { continue };
        let ratio = own.map_or("-".to_owned(), |own| format!("{:.2}", median as f64 / own.step_ns as f64));
        let [least, median] = [least, median].map(|ns| ns as f64 * 1e-9);
        println!("| {} | {median:.2} ({least:.2}) | {ratio} | {} |", peer.framework, peer.note);
    }
}
