//! `cargo xtask bench multi`: several trainings at once on a device of this machine.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

use anyhow::Context;
use serde::Deserialize;

use crate::bench::{keep, measure, mib};

#[derive(Deserialize)]
struct Answer {
    device: String,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    arrival: String,
    jobs: Vec<Job>,
    none_bytes: u64,
    retain_bytes: u64,
    none_ns: u64,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Job {
    name: String,
    weight: f64,
    none_bytes: u64,
    floor_bytes: u64,
}

#[derive(Deserialize)]
struct Row {
    policy: String,
    division: String,
    warm: bool,
    percent: u64,
    budget_bytes: u64,
    failed: Option<String>,
    #[serde(flatten)]
    run: Option<Run>,
}

#[derive(Deserialize)]
struct Run {
    peak_bytes: Option<u64>,
    msr_none: Option<f64>,
    msr_retain: Option<f64>,
    eor: f64,
    cbr: Option<f64>,
    makespan_ns: u64,
    weighted_slowdown: f64,
    predicted_slowdown: Option<f64>,
    slowdowns: Vec<f64>,
    admission_ns: Vec<u64>,
    evictions: u64,
    reruns: u64,
    takeovers: u64,
    losses_equal: bool,
}

/// Runs `tensile-bench multi ARGS`, prints its tables.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let json = measure("multi", args)?;
    let answer: Answer = serde_json::from_value(json.clone()).context("tensile-bench multi printed something else")?;
    println!("# Several trainings at once\n\n{}\n", answer.device);
    println!(
        "MSR: memory saved, of the sum of what the jobs take without a limit (`none`) or if nothing is freed until a step ends (`retain`). EOR: time until all are done over that without a limit, less 1."
    );
    println!(
        "Slowdown: from a job's arrival to its end over the same without a limit. Warm: planned with latencies measured before."
    );
    for group in &answer.groups {
        print(group);
    }
    let path = keep("multi", &json)?;
    eprintln!("\nJSON: {}", path.display());
    Ok(())
}

fn print(group: &Group) {
    let Group { name, arrival, jobs, none_bytes, retain_bytes, none_ns, rows } = group;
    println!("\n## {name}, {arrival}\n");
    let names: Vec<String> = (jobs.iter())
        .map(|job| {
            let Job { name, weight, none_bytes, floor_bytes } = job;
            format!("{name} (weight {weight}, {}, floor {})", mib(*none_bytes), mib(*floor_bytes))
        })
        .collect();
    println!(
        "{}. Together {} without a limit, {} if nothing is freed; done after {:.2} s.\n",
        names.join(", "),
        mib(*none_bytes),
        mib(*retain_bytes),
        seconds(*none_ns)
    );
    println!(
        "| budget | policy | division | planned | peak | MSR none | MSR retain | EOR | CBR | done after | weighted slowdown | predicted | slowdowns | admitted after | evictions | reruns | takeovers | losses |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let Row { policy, division, warm, percent, budget_bytes, failed, run } = row;
        let planned = if *warm { "warm" } else { "cold" };
        let head = format!("| {percent} % ({}) | {policy} | {division} | {planned} |", mib(*budget_bytes));
        match run {
            None => println!("{head} {} | | | | | | | | | | | | | |", failed.as_deref().unwrap_or("no run")),
            Some(run) => {
                let number = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.3}"));
                let list = |all: Vec<String>| all.join(" ");
                println!(
                    "{head} {} | {} | {} | {:.3} | {} | {:.2} s | {:.3} | {} | {} | {} | {} | {} | {} | {} |",
                    run.peak_bytes.map_or("-".to_owned(), mib),
                    number(run.msr_none),
                    number(run.msr_retain),
                    run.eor,
                    number(run.cbr),
                    seconds(run.makespan_ns),
                    run.weighted_slowdown,
                    number(run.predicted_slowdown),
                    list(run.slowdowns.iter().map(|slowdown| format!("{slowdown:.2}")).collect()),
                    list(run.admission_ns.iter().map(|&delay| format!("{:.2}", seconds(delay))).collect()),
                    run.evictions,
                    run.reruns,
                    run.takeovers,
                    if run.losses_equal { "equal" } else { "DIFFERENT" },
                );
            }
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
