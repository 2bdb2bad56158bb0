//! The folder of recorded training steps, which are not part of the repository.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tensile_sched::{Trace, read_trace};

/// Where traces are, and which of them are wanted.
#[derive(clap::Args)]
pub(crate) struct Traces {
    /// Folder of trace files (`*.json.gz`).
    #[arg(long, default_value = "../shared/traces")]
    traces: PathBuf,
    /// Only traces whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

impl Traces {
    /// Names of the files, sorted; without those that hold only lifetimes if `training`.
    pub(crate) fn names(&self, training: bool) -> anyhow::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.traces).with_context(|| {
            format!(
                "cannot read the folder of traces '{}'; name it with --traces DIR (CONTRIBUTING.md says what belongs there)",
                self.traces.display()
            )
        })?;
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.with_context(|| format!("cannot read '{}'", self.traces.display()))?.file_name();
            let Some(name) = file.to_str().and_then(|name| name.strip_suffix(".json.gz")) else { continue };
            let is_wanted = self.only.is_empty() || self.only.iter().any(|part| name.contains(part));
            if is_wanted && !(training && holds_lifetimes_only(name)) {
                names.push(name.to_owned());
            }
        }
        names.sort();
        if names.is_empty() {
            bail!("no trace in '{}' is wanted", self.traces.display());
        }
        Ok(names)
    }

    /// Reads one trace.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Trace> {
        read(&self.traces.join(format!("{name}.json.gz")))
    }
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    read_trace(&bytes).with_context(|| format!("'{}'", path.display()))
}

/// Files without times of any meaning.
pub(crate) fn holds_lifetimes_only(name: &str) -> bool {
    name.starts_with("minimalloc") || name.starts_with("somas")
}
