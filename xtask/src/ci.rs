//! `cargo xtask ci`: the checks that a change must pass, in the order in which they fail fastest.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

/// One check: its name, the arguments to cargo, environment variables.
type Check = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

/// The feature that brings the wgpu device to the command line.
const WGPU: &str = "tensile-models/wgpu";

const CHECKS: &[Check] = &[
    ("formatting", &["fmt", "--all", "--check"], &[]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--features", WGPU, "--", "-D", "warnings"], &[]),
    // What people build who do not ask for a backend.
    ("lints without backends", &["clippy", "-p", "tensile-models", "--all-targets", "--", "-D", "warnings"], &[]),
    ("documentation", &["doc", "--workspace", "--no-deps", "--features", WGPU], &[("RUSTDOCFLAGS", "-D warnings")]),
    ("tests", &["test", "--workspace", "--no-fail-fast", "--features", WGPU], &[]),
    ("tests without backends", &["test", "-p", "tensile-models", "--test", "cli"], &[]),
];

/// Runs all checks; stops at the first that fails.
pub(crate) fn run() -> anyhow::Result<()> {
    for (name, args, env) in CHECKS {
        let start = Instant::now();
        heading(&format!("{name}: cargo {}", args.join(" ")));
        let status = Command::new(cargo())
            .args(*args)
            .envs(env.iter().copied())
            .status()
            .with_context(|| format!("cannot run cargo {}", args.join(" ")))?;
        if !status.success() {
            bail!("{name} failed: cargo {} ended with {status}", args.join(" "));
        }
        heading(&format!("{name} passed in {:.0} s", start.elapsed().as_secs_f64()));
    }
    Ok(())
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> impl AsRef<OsStr> {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[expect(clippy::print_stderr, reason = "a program's own output")]
fn heading(text: &str) {
    eprintln!("\n==> {text}");
}
