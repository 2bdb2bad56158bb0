//! Lines on standard output, tables, files.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use comfy_table::Table;

/// A Markdown table.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::ASCII_MARKDOWN).set_header(header);
    table
}

/// A fraction as percent with one decimal: `12.3 %`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Writes a file, or says which one could not be written and why.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write '{}'", path.display()))
}

/// Prints a line like `println!`, but ends the program quietly when nobody reads any more (`tensile … | head`).
macro_rules! out {
    ($($arg:tt)*) => { $crate::output::print_line(format_args!($($arg)*)) };
}

/// What [`out!`] does.
#[expect(clippy::print_stderr, reason = "a program's own output")]
pub(crate) fn print_line(line: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_fmt(line).and_then(|()| stdout.write_all(b"\n")).and_then(|()| stdout.flush()) {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("error: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}

/// An error and its causes in one line, each said once.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is wrong with a command line, in one line: the first paragraph; the rest is a summary of usage that `--help` gives better.
pub(crate) fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let line = first.split_whitespace().collect::<Vec<_>>().join(" ");
    line.trim_start_matches("error: ").to_owned()
}

/// Says on standard error why something failed, in one line.
#[expect(clippy::print_stderr, reason = "a program's own output")]
pub(crate) fn print_error(error: &anyhow::Error) {
    eprintln!("error: {}", one_line(error));
}
