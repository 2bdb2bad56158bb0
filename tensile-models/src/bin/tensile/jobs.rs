//! Files of jobs for `tensile run`, in TOML. What stands at the top are options of `tensile run`, and each `[[job]]` has those of `tensile train`, with the same words:
//!
//! ```toml
//! budget = "60%"
//!
//! [[job]]
//! model = "resnet18"
//! set = { size = 64, classes = 10 }
//! batch = 16
//! epochs = 3
//!
//! [[job]]
//! name = "texts"
//! model = "gpt-bytes"
//! buckets = [32, 64, 128]
//! arrival = "5s"
//! weight = 2.0
//! ```
//!
//! A file becomes words of a command line, so that options mean and default the same in both places; faults tell the line in the file.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, Command, CommandFactory, Parser, ValueEnum};
use tensile_core::runtime::Admission;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::args::TrainingArgs;
use crate::output::usage_line;

/// What becomes of a job that does not fit now.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum AdmissionArg {
    /// It waits its turn.
    #[default]
    Queue,
    /// It fails.
    Refuse,
}

impl From<AdmissionArg> for Admission {
    fn from(admission: AdmissionArg) -> Self {
        match admission {
            AdmissionArg::Queue => Admission::Queue,
            AdmissionArg::Refuse => Admission::Refuse,
        }
    }
}

/// A job of a file.
#[derive(Clone, Debug, Parser)]
#[command(name = "job", no_binary_name = true, disable_help_flag = true)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    /// Name of the job; default: that of the model, with a number if that is taken.
    #[arg(long, default_value = "")]
    pub(crate) name: String,
    /// How much a slowdown of this job counts beside that of the others.
    #[arg(long, default_value_t = 1.0, value_parser = parse_weight)]
    pub(crate) weight: f64,
    /// When it comes, from the start on.
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    pub(crate) arrival: Duration,
    /// Name of a job after whose end it comes.
    #[arg(long, conflicts_with = "arrival")]
    pub(crate) after: Option<String>,
    /// What becomes of it if it does not fit when it comes.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) admission: AdmissionArg,
}

fn parse_weight(text: &str) -> Result<f64, String> {
    let weight: Option<f64> = text.parse().ok().filter(|weight: &f64| *weight > 0.0 && weight.is_finite());
    weight.ok_or_else(|| "a weight is a number above zero".to_owned())
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 2s or 500ms"))
}

/// A job and where it stands in the file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) args: JobArgs,
    /// From 1.
    pub(crate) line: usize,
}

/// What a file says.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    /// Words for the command line of `tensile run`.
    pub(crate) shared: Vec<String>,
    /// One at least; all names differ.
    pub(crate) jobs: Vec<Entry>,
}

impl Jobs {
    /// Reads a file. `run` is the command whose options stand at the top.
    pub(crate) fn read(path: &Path, run: &Command) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))?;
        Self::parse(&text, run).map_err(|error| anyhow!("'{}', {error}", path.display()))
    }

    fn parse(text: &str, run: &Command) -> anyhow::Result<Self> {
        let line = |at: usize| text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1;
        let table = DeTable::parse(text).map_err(|error| {
            anyhow!("line {}: {}", line(error.span().map_or(0, |span| span.start)), error.message().trim())
        })?;
        let mut shared = Vec::new();
        let mut jobs: Vec<Entry> = Vec::new();
        for (key, value) in table.get_ref() {
            let at = line(key.span().start);
            if key.get_ref() != "job" {
                shared.extend(words(run, key.get_ref(), value).map_err(|error| anyhow!("line {at}: {error}"))?);
                continue;
            }
            let DeValue::Array(tables) = value.get_ref() else { bail!("line {at}: write [[job]] above each job") };
            for table in tables {
                let at = line(table.span().start);
                let DeValue::Table(table) = table.get_ref() else { bail!("line {at}: write [[job]] above each job") };
                jobs.push(Entry { args: job(table, at, &line)?, line: at });
            }
        }
        if jobs.is_empty() {
            bail!("line 1: there is no job; write [[job]] and below it model = \"mlp\", say");
        }
        name(&mut jobs)?;
        Ok(Self { shared, jobs })
    }
}

/// The job of a table.
fn job(table: &DeTable<'_>, at: usize, line: &dyn Fn(usize) -> usize) -> anyhow::Result<JobArgs> {
    let command = JobArgs::command();
    let mut all = Vec::new();
    for (key, value) in table {
        let words = words(&command, key.get_ref(), value);
        all.extend(words.map_err(|error| anyhow!("line {}: {error}", line(key.span().start)))?);
    }
    JobArgs::try_parse_from(&all).map_err(|error| {
        let named = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(named)) => named.clone(),
            Some(ContextValue::Strings(named)) => named.join(", "),
            _ => String::new(),
        };
        let named = named.trim_start_matches("--").split(['=', ' ']).next().unwrap_or_default();
        let key = table.keys().find(|key| key.get_ref() == named);
        let at = key.map_or(at, |key| line(key.span().start));
        // A required one is told by its place on a command line.
        anyhow!("line {at}: {}", usage_line(&error).replace("<MODEL>", "model"))
    })
}

/// What a key and its value are on a command line.
fn words(command: &Command, key: &str, value: &Spanned<DeValue<'_>>) -> anyhow::Result<Vec<String>> {
    let arg = command.get_arguments().find(|arg| {
        let name = arg.get_long().unwrap_or(arg.get_id().as_str());
        name == key && !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version)
    });
    let Some(arg) = arg else {
        let known: BTreeSet<&str> =
            command.get_arguments().map(|arg| arg.get_long().unwrap_or(arg.get_id().as_str())).collect();
        let known: Vec<&str> = known.into_iter().filter(|name| !["help", "version"].contains(name)).collect();
        bail!("there is no key '{key}'; there are {}", known.join(", "));
    };
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    let option = |text: String| arg.get_long().map_or(text.clone(), |long| format!("--{long}={text}"));
    match value.get_ref() {
        DeValue::Boolean(is_set) if is_flag => Ok(if *is_set { vec![format!("--{key}")] } else { Vec::new() }),
        _ if is_flag => bail!("'{key}' is true or false"),
        DeValue::Array(values) => {
            let texts: Option<Vec<String>> = values.iter().map(|value| scalar(value.get_ref())).collect();
            let texts = texts.ok_or_else(|| anyhow!("'{key}' takes words and numbers"))?;
            match arg.get_value_delimiter() {
                Some(delimiter) => Ok(vec![option(texts.join(&delimiter.to_string()))]),
                None if matches!(arg.get_action(), ArgAction::Append) => Ok(texts.into_iter().map(option).collect()),
                None => bail!("'{key}' takes one value, not a list"),
            }
        }
        DeValue::Table(values) if key == "set" => values
            .iter()
            .map(|(name, value)| {
                let value = scalar(value.get_ref()).ok_or_else(|| anyhow!("'{}' is a number", name.get_ref()))?;
                Ok(option(format!("{}={value}", name.get_ref())))
            })
            .collect(),
        value => match scalar(value) {
            Some(text) => Ok(vec![option(text)]),
            None => bail!("'{key}' takes a word or a number"),
        },
    }
}

/// A word or a number as text.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(i64::from_str_radix(number.as_str(), number.radix()).ok()?.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}

/// Gives names to jobs without, and finds out whether names and the order of jobs can be.
fn name(jobs: &mut [Entry]) -> anyhow::Result<()> {
    let mut taken = BTreeSet::new();
    for Entry { args, line } in jobs.iter().filter(|job| !job.args.name.is_empty()) {
        if args.name.contains(['/', '\\']) || args.name.starts_with('.') {
            bail!("line {line}: '{}' is no name; it may not have slashes, nor begin with a dot", args.name);
        }
        if !taken.insert(args.name.clone()) {
            bail!("line {line}: two jobs are named '{}'", args.name);
        }
    }
    for job in jobs.iter_mut().filter(|job| job.args.name.is_empty()) {
        let model = &job.args.training.model;
        let numbered = (2..).map(|number| format!("{model}-{number}"));
        let free = std::iter::once(model.clone()).chain(numbered).find(|name| !taken.contains(name));
        job.args.name = free.expect("there is always one more number");
        taken.insert(job.args.name.clone());
    }
    let before = |name: &str| jobs.iter().find(|job| job.args.name == name).and_then(|job| job.args.after.as_deref());
    for Entry { args, line } in jobs.iter() {
        let mut after = args.after.as_deref();
        for _ in 0..jobs.len() {
            match after {
                None => break,
                Some(name) if !taken.contains(name) => {
                    let names: Vec<&str> = taken.iter().map(String::as_str).collect();
                    bail!("line {line}: after = '{name}': there is no such job; there are {}", names.join(", "));
                }
                Some(name) => after = before(name),
            }
        }
        if after.is_some() {
            bail!("line {line}: '{}' waits for itself: follow 'after' from job to job", args.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    fn parse(text: &str) -> Result<Jobs, String> {
        let cli = Cli::command();
        Jobs::parse(text, cli.find_subcommand("run").unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn files_say_what_command_lines_say() {
        let jobs = parse(
            r#"
            budget = "60%"
            host-budget = "2GiB"
            json = true
            threads = 1

            [[job]]
            model = "resnet18"
            set = { size = 64, classes = 10 }
            batch = 0x10
            lr = 3e-4
            group = ["fc.*:lr=0.1", "*:decay=0"]
            no-decay-on-vectors = true

            [[job]]
            name = "texts"
            model = "gpt-bytes"
            buckets = [32, 64]
            last-batch = "partial"
            nonfinite = "stop"
            weight = 2
            arrival = "1s 500ms"
            admission = "refuse"

            [[job]]
            model = "resnet18"
            after = "texts"
            "#,
        )
        .unwrap();
        let mut shared = jobs.shared.clone();
        shared.sort();
        assert_eq!(shared, ["--budget=60%", "--host-budget=2GiB", "--json", "--threads=1"]);
        let [first, second, third] = jobs.jobs.as_slice() else { panic!("three jobs") };
        assert_eq!([&first.args.name, &second.args.name, &third.args.name], ["resnet18", "texts", "resnet18-2"]);
        let training = &first.args.training;
        assert_eq!((training.net.batch, training.lr, training.optimizer.group.len()), (Some(16), 3e-4, 2));
        assert!(training.optimizer.no_decay_on_vectors && training.net.set.len() == 2);
        assert_eq!((first.args.weight, first.args.arrival), (1.0, Duration::ZERO));
        assert_eq!(second.args.training.optimizer.buckets, [32, 64]);
        assert_eq!((second.args.weight, second.args.arrival), (2.0, Duration::from_millis(1500)));
        assert_eq!(third.args.after.as_deref(), Some("texts"));
        assert_eq!((first.line, third.line), (7, 25));
    }

    #[test]
    fn faults_tell_line_key_and_a_way_out() {
        let fault = |text: &str, words: &[&str]| {
            let error = parse(text).map(|jobs| jobs.jobs).unwrap_err();
            for word in words {
                assert!(error.contains(word), "no '{word}' in: {error}");
            }
            assert_eq!(error.lines().count(), 1, "{error}");
        };
        fault("budget = \"60%\"", &["line 1", "[[job]]", "model"]);
        fault("[[job]]\nmodel = mlp", &["line 2"]);
        fault("[[job]\nmodel = 1", &["line 1"]);
        fault("[[job]]\nmodel = \"mlp\"\n\nbudgets = 3", &["line 4", "no key 'budgets'", "batch, "]);
        fault("budgets = 3\n[[job]]\nmodel = \"mlp\"", &["line 1", "no key 'budgets'", "budget"]);
        fault("[[job]]\nlr = 0.1", &["line 1", "model"]);
        fault("[[job]]\nmodel = \"mlp\"\nlr = \"fast\"", &["line 3", "'fast'", "--lr"]);
        fault("[[job]]\nmodel = \"mlp\"\nweight = 0", &["line 3", "'0'", "above zero"]);
        fault("[[job]]\nmodel = \"mlp\"\narrival = 2", &["line 3", "2s"]);
        fault("[[job]]\nmodel = \"mlp\"\nevery = 5", &["line 1", "--checkpoint"]);
        fault("[[job]]\nmodel = \"mlp\"\nlr = [1, 2]", &["line 3", "'lr'", "one value"]);
        fault("[[job]]\nmodel = \"mlp\"\nno-decay-on-vectors = 1", &["line 3", "true or false"]);
        fault("[[job]]\nmodel = \"mlp\"\nset = { size = [] }", &["line 3", "'size'"]);
        fault("[job]\nmodel = \"mlp\"", &["line 1", "[[job]]"]);
        fault("[[job]]\nmodel = \"mlp\"\nafter = \"x\"", &["line 1", "'x'", "there are mlp"]);
        fault("[[job]]\nmodel = \"mlp\"\nafter = \"mlp\"", &["line 1", "waits for itself"]);
        fault("[[job]]\nmodel = \"mlp\"\nname = \"../x\"", &["line 1", "no name"]);
        let two = "[[job]]\nname = \"a\"\nmodel = \"mlp\"\n";
        fault(&format!("{two}{two}"), &["line 4", "two jobs are named 'a'"]);
    }
}
