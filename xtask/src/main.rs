//! Development tasks: `cargo xtask ci`, `cargo xtask bench`.

mod bench;
mod bound;
mod ci;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of Tensile.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything continuous integration checks: formatting, lints, documentation, tests.
    Ci,
    /// Measurements.
    #[command(subcommand)]
    Bench(bench::Bench),
}

#[expect(clippy::print_stderr, reason = "a program's own output")]
fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Ci => ci::run(),
        Task::Bench(bench) => bench::run(bench),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
