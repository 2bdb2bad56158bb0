//! Measurements behind `cargo xtask bench`: runs models under budgets and prints one JSON document.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program's own output")]

mod quick;

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
    /// Training steps under budgets on the host device.
    Quick(quick::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().bench {
        Bench::Quick(args) => println!("{}", serde_json::to_string(&quick::run(&args)?)?),
    }
    Ok(())
}
