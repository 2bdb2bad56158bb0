//! `cargo xtask bench bound`: lower bounds alone.
#![expect(clippy::print_stdout, reason = "a program's own output")]

use std::time::Instant;

use tensile_sched::{Bytes, Duplex, Limits, Link, Liveness, Mode};

use super::traces::Traces;
use crate::bound::{Detail, least_overhead};

/// Options of `bench bound`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    traces: Traces,
    /// Budgets in percent of the peak of plain liveness.
    #[arg(long, value_delimiter = ',', default_value = "90,80,70,60,50,40,30")]
    budgets: Vec<f64>,
    /// Most ops that are sampled.
    #[arg(long, default_value_t = 48)]
    samples: usize,
    /// Times in the last column.
    #[arg(long)]
    times: bool,
}

/// One line for each trace, budget and mode.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    println!("# Lower bounds of the slowdown, 12 GB/s each way, percent\n");
    println!("| trace | budget | swap | recompute | both | both, half duplex | s |\n|---|--:|--:|--:|--:|--:|--:|");
    for name in args.traces.names(true)? {
        let trace = args.traces.read(&name)?;
        let unlimited = Limits::unlimited();
        let peak = Liveness::new(&trace).peak(&trace, &unlimited).bytes;
        for &percent in &args.budgets {
            let device = Bytes((peak.0 as f64 * percent / 100.0) as u64);
            let detail = Detail { samples: args.samples, ..Detail::usual(&trace, &unlimited) };
            let begin = Instant::now();
            let bound = |mode, duplex| {
                let link = Link { duplex, ..Link::PCIE3_X16 };
                let limits = Limits { device, mode, link, ..unlimited.clone() };
                percentage(least_overhead(&trace, &limits, detail))
            };
            println!(
                "| {name} | {percent} % | {} | {} | {} | {} | {} |",
                bound(Mode::Swap, Duplex::Full),
                bound(Mode::Recompute, Duplex::Full),
                bound(Mode::Both, Duplex::Full),
                bound(Mode::Both, Duplex::Half),
                if args.times { format!("{:.1}", begin.elapsed().as_secs_f64()) } else { String::new() },
            );
        }
    }
    Ok(())
}

/// In percent; a dash where no program exists.
pub(crate) fn percentage(overhead: f64) -> String {
    if overhead.is_finite() { format!("{:.2}", overhead * 100.0) } else { "-".to_owned() }
}
