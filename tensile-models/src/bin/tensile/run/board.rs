//! What `tensile run` shows while it runs: bars on a terminal, plain lines elsewhere, JSON lines if asked for.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use tensile_core::runtime::{JobStatus, Phase};
use tensile_models::course::Evaluation;

/// One line of `--json`.
#[derive(Default, Serialize)]
struct Line<'a> {
    job: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f32>,
    /// The loss, exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_bits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    /// When the event was.
    #[serde(skip_serializing_if = "Option::is_none")]
    time_ns: Option<u64>,
}

struct Row {
    name: String,
    steps: u64,
    loss: Option<f32>,
    bar: Option<ProgressBar>,
}

pub(super) struct Board {
    json: bool,
    /// On a terminal.
    bars: Option<MultiProgress>,
    rows: Vec<Row>,
}

impl Board {
    /// For jobs with names and numbers of steps.
    pub(super) fn new<'a>(json: bool, jobs: impl Iterator<Item = (&'a str, u64)>) -> Self {
        let bars = (!json && std::io::stderr().is_terminal()).then(MultiProgress::new);
        let style =
            ProgressStyle::with_template("{prefix:16} {bar:24} {pos}/{len} {msg}").expect("the template is right");
        let rows = jobs.map(|(name, steps)| {
            let bar = bars
                .as_ref()
                .map(|bars| bars.add(ProgressBar::new(steps).with_style(style.clone()).with_prefix(name.to_owned())));
            Row { name: name.to_owned(), steps, loss: None, bar }
        });
        Self { json, rows: rows.collect(), bars }
    }

    /// A line for people.
    pub(super) fn line(&self, text: &str) {
        match &self.bars {
            _ if self.json => {}
            Some(bars) => bars.suspend(|| out!("{text}")),
            None => out!("{text}"),
        }
    }

    fn json_line(&self, line: &Line<'_>) {
        if self.json {
            out!("{}", serde_json::to_string(line).expect("plain data becomes JSON"));
        }
    }

    /// Step and epoch count from 0.
    pub(super) fn step(&mut self, job: usize, step: u64, epoch: u64, loss: f32) {
        let row = &mut self.rows[job];
        row.loss = Some(loss);
        if let Some(bar) = &row.bar {
            bar.set_position(step + 1);
        }
        let (loss_bits, loss) = (Some(loss.to_bits()), Some(loss));
        let name = &self.rows[job].name;
        self.json_line(&Line {
            job: name,
            step: Some(step + 1),
            epoch: Some(epoch + 1),
            loss,
            loss_bits,
            ..Line::default()
        });
    }

    pub(super) fn evaluated(&self, job: usize, step: u64, evaluation: Evaluation) {
        let Row { name, steps, loss, .. } = &self.rows[job];
        let (test_loss, accuracy) = (Some(evaluation.loss), Some(evaluation.accuracy));
        self.json_line(&Line { job: name, step: Some(step + 1), test_loss, accuracy, ..Line::default() });
        self.line(&format!(
            "{name}: step {}/{steps}: loss {:.4}, test loss {:.4}, test accuracy {:.2} %",
            step + 1,
            loss.unwrap_or(f32::NAN),
            evaluation.loss,
            evaluation.accuracy * 100.0
        ));
    }

    pub(super) fn event(&self, job: usize, time: Duration, what: &str) {
        let name = &self.rows[job].name;
        let time_ns = Some(time.as_nanos() as u64);
        self.json_line(&Line { job: name, event: Some(what), time_ns, ..Line::default() });
        self.line(&format!("{:8.2} s  {name}: {what}", time.as_secs_f64()));
    }

    pub(super) fn status(&self, job: usize, status: &JobStatus) {
        let Row { loss, bar: Some(bar), .. } = &self.rows[job] else { return };
        let phase = match status.phase {
            Phase::Queued => "waits",
            Phase::Running => "runs",
            Phase::Paused => "paused",
            Phase::Done => "done",
            Phase::Failed => "failed",
        };
        let loss = loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
        let slowdown = status.slowdown.map_or(String::new(), |slowdown| format!(", slowdown {slowdown:.2}"));
        let share = if status.phase == Phase::Running {
            format!(", {} of {}", status.arena, status.share)
        } else {
            String::new()
        };
        bar.set_message(format!("{phase}{loss}{share}{slowdown}"));
        if status.phase.is_over() {
            bar.abandon();
        }
    }

    pub(super) fn close(&self) {
        for bar in self.rows.iter().filter_map(|row| row.bar.as_ref()) {
            bar.abandon();
        }
    }
}
