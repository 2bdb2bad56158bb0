//! The `tensile` command line.

#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a program's own output")]

#[macro_use]
mod output;
mod args;
mod eval;
mod info;
mod jobs;
mod plan;
mod predict;
mod profile;
mod run;
mod setup;
mod train;

use clap::Parser;

use args::{Cli, Command};
use tensile_core::device::host::count::CountingAllocator;

/// Counts device bytes apart from everything that plans or executes; see `CountingAllocator`.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Why a command ended without a result.
#[derive(Debug)]
enum Failure {
    /// The command line asks for something that does not exist: exit status 2.
    Usage(String),
    /// Everything else: exit status 1.
    Run(anyhow::Error),
    /// Likewise, and all has been said.
    Said,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Run(error.into())
    }
}

fn main() -> std::process::ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => match cli.command {
            Command::Train(args) => train::run(&args),
            Command::Run(args) => run::run(&args),
            Command::Eval(args) => eval::run(&args),
            Command::Predict(args) => predict::run(&args),
            Command::Plan(args) => plan::run(&args),
            Command::Profile(args) => profile::run(&args),
            Command::Info(args) => info::run(&args),
        },
        Err(error) if error.use_stderr() => {
            Err(Failure::Usage(format!("{}; see `tensile --help`", output::usage_line(&error))))
        }
        Err(help) => {
            out!("{}", help.render().ansi().to_string().trim_end());
            Ok(())
        }
    };
    match result {
        Ok(()) => 0.into(),
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            2.into()
        }
        Err(Failure::Run(error)) => {
            output::print_error(&error);
            1.into()
        }
        Err(Failure::Said) => 1.into(),
    }
}
