//! Development tasks: `cargo xtask ci`, `cargo xtask bench`.

mod ci;

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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Ci => ci::run(),
    }
}
