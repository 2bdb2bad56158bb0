//! Tables and writing files.

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
