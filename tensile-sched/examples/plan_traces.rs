//! Plans every trace file of a folder and prints what came out.
//!
//! ```text
//! cargo run -p tensile-sched --features serde --example plan_traces -- FOLDER [WORD IN THE NAME] [BUDGET IN PERCENT …]
//! ```

#![allow(clippy::print_stdout)]

use std::time::Instant;

use tensile_sched::{Bytes, Limits, Mode, NoEviction, Planner, Tensile, floor, read_trace};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/traces").into());
    let word = arguments.next().unwrap_or_default();
    let percents: Vec<u64> = arguments.map(|text| text.parse().expect("a budget in percent")).collect();
    let mode = match std::env::var("TENSILE_MODE").as_deref() {
        Ok("swap") => Mode::Swap,
        Ok("recompute") => Mode::Recompute,
        _ => Mode::Both,
    };
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{folder}: {error}"))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(&word)))
        .filter(|path| path.to_string_lossy().ends_with(".json.gz"))
        .collect();
    paths.sort();
    println!(
        "| trace | ops | budget | arena | of none | overhead | evictions | reruns | bytes out | bytes in | plan, ms |"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for path in paths {
        let name = path.file_name().expect("a file").to_string_lossy().replace(".json.gz", "");
        let bytes = std::fs::read(&path).expect("a readable file");
        let trace = match read_trace(&bytes) {
            Ok(trace) => trace,
            Err(error) => {
                println!("| {name} | {error} |");
                continue;
            }
        };
        let unlimited = Limits { mode, ..Limits::unlimited() };
        let begin = Instant::now();
        let floor = floor(&trace, &unlimited).expect("no block limit and no boundary");
        let floor_time = begin.elapsed().as_millis();
        let begin = Instant::now();
        let none = NoEviction.plan(&trace, &unlimited).expect("no limit");
        let arena = none.report.arena;
        println!(
            "| {name} | {} | none | {} | peak {} | {:.2} % | | | | | {} |",
            trace.ops().len(),
            arena.0,
            none.report.peak.0,
            none.simulation.overhead() * 100.0,
            begin.elapsed().as_millis(),
        );
        println!(
            "| {name} | | floor | {} | {:.3} | {} {} | | | | | {floor_time} |",
            floor.bytes.0,
            floor.bytes.0 as f64 / arena.0 as f64,
            floor.op,
            trace.ops()[floor.op.index()].label
        );
        let mut budgets = vec![("floor".to_string(), floor.bytes)];
        let percents = if percents.is_empty() { &[50, 100] } else { &percents[..] };
        budgets.extend(percents.iter().map(|&p| (format!("{p} %"), floor.bytes.max(Bytes(arena.0 / 100 * p)))));
        if percents.contains(&100) {
            budgets.last_mut().expect("not empty").1 = arena;
        }
        for (label, device) in budgets {
            let begin = Instant::now();
            let planned = Tensile::default()
                .plan(&trace, &Limits { device, ..unlimited.clone() })
                .expect("at or above the floor");
            let time = begin.elapsed().as_millis();
            let report = &planned.report;
            println!(
                "| {name} | | {label} | {} | {:.3} | {:.2} % | {} | {} | {} | {} | {time} |",
                report.arena.0,
                report.arena.0 as f64 / arena.0 as f64,
                planned.simulation.overhead() * 100.0,
                report.evictions,
                report.reruns,
                report.bytes_out,
                report.bytes_in,
            );
        }
    }
}
