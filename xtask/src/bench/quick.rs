//! `cargo xtask bench quick`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};

use super::classes::{self, Class};
use super::{keep, measure, mib, rate};

#[derive(Deserialize)]
struct Answer {
    device: String,
    threads: Option<usize>,
    adapter: Option<Adapter>,
    software: bool,
    kernels: Vec<Kernel>,
    out_bytes_per_s: f64,
    in_bytes_per_s: f64,
    kernel_slowdown: f64,
    copy_slowdown: f64,
    models: Vec<Model>,
}

#[derive(Deserialize)]
struct Adapter {
    driver: String,
    self_test: String,
    staging_bytes: u64,
}

#[derive(Deserialize)]
struct Kernel {
    kernel: String,
    flops: f64,
    seconds: f64,
    host_seconds: f64,
}

/// Best rate of a product of 1024×1024 matrices that was found for Mesa's lavapipe 25 on a virtual machine of two cores, measured apart.
const LAVAPIPE_MATMUL_FLOPS_PER_S: f64 = 5.7e9;

#[derive(Deserialize)]
struct Model {
    model: String,
    batch: usize,
    task: String,
    ops: usize,
    flops: f64,
    floor_bytes: u64,
    floor_op: String,
    none_bytes: u64,
    retain_bytes: u64,
    none_step_ns: u64,
    host_step_ns: Option<u64>,
    classes: Vec<Class>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    budget: String,
    budget_bytes: u64,
    infeasible: Option<String>,
    #[serde(flatten)]
    run: Option<Run>,
}

#[derive(Deserialize)]
struct Run {
    peak_bytes: Option<u64>,
    host_bytes: u64,
    resident_bytes: Option<u64>,
    msr_none: Option<f64>,
    msr_retain: Option<f64>,
    eor_predicted: f64,
    eor: f64,
    cbr: Option<f64>,
    step_ns: u64,
    stall_ns: Option<u64>,
    evictions: usize,
    out_bytes: u64,
    in_bytes: u64,
    reruns: usize,
    plan_ns: u64,
    losses_equal: bool,
}

pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism()?.get();
    let before = rate::gemm_flops_per_s(threads);
    let mut json = measure("quick", args)?;
    let rate = before.max(rate::gemm_flops_per_s(threads));
    let answer: Answer = serde_json::from_value(json.clone()).context("the measuring program's answer")?;
    println!(
        "# Training within a budget\n\nDevice: {}. The machine's rate: {:.0} GFLOP/s (`gemm` crate, 1024³, {threads} threads).",
        answer.device,
        rate / 1e9
    );
    println!(
        "Copies: {:.1} GB/s out, {:.1} GB/s in; kernels take {:.2} times longer beside one, copies {:.2} times beside kernels.",
        answer.out_bytes_per_s / 1e9,
        answer.in_bytes_per_s / 1e9,
        answer.kernel_slowdown,
        answer.copy_slowdown
    );
    if let Some(used) = answer.threads.filter(|used| *used != threads) {
        println!("The device ran on {used} threads.");
    }
    if let Some(adapter) = &answer.adapter {
        println!(
            "Driver: {}. Self-test: {}. Staging on the host: {}. Every op is timed, which costs time.",
            adapter.driver,
            adapter.self_test,
            mib(adapter.staging_bytes)
        );
    }
    print_kernels(&answer);
    for model in &answer.models {
        print_model(model, rate);
    }
    json["gemm_flops_per_s"] = json!(rate);
    let path = keep("quick", &json)?;
    eprintln!("\nJSON: {}", path.display());
    anyhow::ensure!(losses_equal(&json), "losses differ from those without a limit");
    anyhow::ensure!(answer.models.iter().all(Model::keeps_budgets), "a peak is above its budget");
    Ok(())
}

fn print_kernels(answer: &Answer) {
    if answer.kernels.is_empty() {
        return;
    }
    println!("\n| kernel | GFLOP/s | of the best known on lavapipe | on the host device |\n|---|--:|--:|--:|");
    for Kernel { kernel, flops, seconds, host_seconds } in &answer.kernels {
        let rate = flops / seconds;
        let known = (answer.software && kernel.starts_with("matmul")).then_some(LAVAPIPE_MATMUL_FLOPS_PER_S);
        println!(
            "| {kernel} | {:.2} | {} | {:.1} |",
            rate / 1e9,
            known.map_or("-".to_owned(), |known| format!("{:.0} %", 100.0 * rate / known)),
            flops / host_seconds / 1e9
        );
    }
}

impl Model {
    fn keeps_budgets(&self) -> bool {
        let mut runs = self.rows.iter().filter_map(|row| Some((row.budget_bytes, row.run.as_ref()?.peak_bytes?)));
        runs.all(|(budget, peak)| peak <= budget)
    }
}

fn print_model(model: &Model, rate: f64) {
    let seconds = model.none_step_ns as f64 * 1e-9;
    let speed = model.flops / seconds;
    println!(
        "\n## {}, batch {}, {}, Adam: {} ops\n\nWithout a limit: {} on the device ({} if nothing is freed), step {:.1} ms, {:.1} GFLOP/s = {:.0} % of the machine's rate. Floor {} (op `{}`).\n",
        model.model,
        model.batch,
        model.task,
        model.ops,
        mib(model.none_bytes),
        mib(model.retain_bytes),
        seconds * 1e3,
        speed / 1e9,
        100.0 * speed / rate,
        mib(model.floor_bytes),
        model.floor_op,
    );
    if let Some(host_ns) = model.host_step_ns {
        let host = host_ns as f64 * 1e-9;
        println!("The host device takes {:.1} ms for this step: {:.2} times of it here.\n", host * 1e3, seconds / host);
    }
    println!(
        "| budget | bytes | peak counted | MSR (none) | MSR (retain) | EOR predicted | EOR measured | CBR | step ms | stall ms | evictions | out | in | reruns | host | resident | plan ms | same losses |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for row in &model.rows {
        let Some(run) = &row.run else {
            let reason = row.infeasible.as_deref().unwrap_or("no reason given");
            println!("| {} | {} | does not fit: {reason} {}", row.budget, mib(row.budget_bytes), "|".repeat(16));
            continue;
        };
        let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
        let cbr = run.cbr.map_or("-".to_owned(), |cbr| format!("{cbr:.1}"));
        println!(
            "| {} | {} | {} | {} | {} | {:.3} | {:.3} | {cbr} | {:.1} | {} | {} | {} | {} | {} | {} | {} | {:.1} | {} |",
            row.budget,
            mib(row.budget_bytes),
            run.peak_bytes.map_or("-".to_owned(), mib),
            ratio(run.msr_none),
            ratio(run.msr_retain),
            run.eor_predicted,
            run.eor,
            run.step_ns as f64 * 1e-6,
            run.stall_ns.map_or("-".to_owned(), |ns| format!("{:.1}", ns as f64 * 1e-6)),
            run.evictions,
            mib(run.out_bytes),
            mib(run.in_bytes),
            run.reruns,
            mib(run.host_bytes),
            run.resident_bytes.map_or("-".to_owned(), mib),
            run.plan_ns as f64 * 1e-6,
            if run.losses_equal { "yes" } else { "NO" },
        );
    }
    classes::print(&model.classes, rate);
}

fn losses_equal(json: &Value) -> bool {
    let rows = json["models"].as_array().into_iter().flatten().flat_map(|model| model["rows"].as_array()).flatten();
    rows.filter_map(|row| row.get("losses_equal")).all(|equal| equal == true)
}
