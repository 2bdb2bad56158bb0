//! Measurements behind `cargo xtask bench`: runs models under budgets and prints one JSON document.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

mod kernels;
mod multi;
mod quick;
mod speed;
mod training;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tensile_core::device::host::count::CountingAllocator;

/// Counts device bytes apart from everything that plans or executes.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Training steps under budgets.
    Quick(quick::Args),
    /// Several trainings at once.
    Multi(multi::Args),
    /// Training steps of one model without a limit.
    Speed(speed::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().bench {
        Bench::Quick(args) => quick::run(&args).and_then(|answer| Ok(serde_json::to_string(&answer)?)),
        Bench::Multi(args) => multi::run(&args).and_then(|answer| Ok(serde_json::to_string(&answer)?)),
        Bench::Speed(args) => speed::run(&args).and_then(|answer| Ok(serde_json::to_string(&answer)?)),
    };
    match result {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
