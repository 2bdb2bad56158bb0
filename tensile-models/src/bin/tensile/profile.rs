//! `tensile profile`: how long ops take on a device, to plan first steps with.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tensile_core::checkpoint;
use tensile_core::latency::{Accuracy, Learned, Roofline, Sample, TrainOptions, split};
use tensile_models::backend::{Backend, OpenOptions, Visitor};
use tensile_models::profile::{cases, default_file, measure};

use crate::Failure;
use crate::args::ProfileArgs;
use crate::output::{percent, table};
use crate::setup;

/// Longest op that is measured, by the device's rates, in nanoseconds; where there is little time, a two hundredth of it.
const LONGEST: f64 = 20e6;
/// One shape of so many is held out.
const HELD_OUT: u64 = 5;

/// What `--json` prints.
#[derive(Serialize)]
struct Answer {
    device: String,
    file: PathBuf,
    /// Distinct ops that were measured, each alone and with another stream at work.
    shapes: usize,
    /// Of all that there were.
    of: usize,
    /// Errors on shapes that the network has not seen; absent if too few were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    learned: Option<Errors>,
    #[serde(skip_serializing_if = "Option::is_none")]
    roofline: Option<Errors>,
    classes: Vec<Class>,
}

/// Of |predicted − measured| / measured.
#[derive(Serialize)]
struct Errors {
    samples: usize,
    median: f64,
    p90: f64,
}

#[derive(Serialize)]
struct Class {
    class: &'static str,
    learned: Errors,
    roofline: Errors,
}

impl From<Accuracy> for Errors {
    fn from(Accuracy { count, median, p90 }: Accuracy) -> Self {
        Self { samples: count, median, p90 }
    }
}

pub(crate) fn run(args: &ProfileArgs) -> Result<(), Failure> {
    let options = OpenOptions { op_times: true, ..OpenOptions::default() };
    setup::open(&args.device, options, Profile(args))
}

struct Profile<'a>(&'a ProfileArgs);

impl Visitor for Profile<'_> {
    type Output = Result<(), Failure>;

    fn visit<D: Backend>(self, device: Arc<D>) -> Result<(), Failure> {
        profile(self.0, &*device)
    }
}

fn profile<D: Backend>(args: &ProfileArgs, device: &D) -> Result<(), Failure> {
    let name = device.info().name.clone();
    if !device.times_ops() {
        return Err(anyhow!("'{name}' cannot time ops one by one: there is nothing to learn from").into());
    }
    let file = match &args.out {
        Some(file) => file.clone(),
        None => {
            let file = default_file(&name).ok_or_else(|| anyhow!("there is no folder for caches; give --out FILE"))?;
            let folder = file.parent().unwrap_or(&file);
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder '{}'", folder.display()))?;
            file
        }
    };
    checkpoint::check_writable(&file)?;
    let time = Duration::from_secs(args.seconds.into());
    let all = cases(device, LONGEST.min(time.as_nanos() as f64 / 200.0))?;
    let bar = Bar::new("measuring", 100, args.json);
    let samples = measure(device, &all, time, |part| bar.set((part * 100.0) as u64))?;
    bar.end();
    let [seen, held_out] = split(&samples, HELD_OUT);
    let options = TrainOptions::default();
    let bar = Bar::new("learning", options.steps as u64, args.json);
    let mut learned =
        Learned::train(&name, Roofline::new(device.info()), &seen, &options, |step| bar.set(step as u64))?;
    bar.end();
    learned.measure(&held_out);
    learned.save(&file)?;
    let answer = Answer {
        device: name,
        file,
        shapes: samples.len() / 2,
        of: all.len(),
        learned: learned.accuracy().map(Errors::from),
        roofline: roofline(&held_out).map(Errors::from),
        classes: classes(&learned, &held_out),
    };
    if args.json {
        out!("{}", serde_json::to_string(&answer).expect("plain data becomes JSON"));
    } else {
        print_answer(&answer);
    }
    Ok(())
}

fn roofline<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Option<Accuracy> {
    Accuracy::new(samples.into_iter().map(|sample| (sample.features.roofline, sample.nanos)))
}

/// Errors for each kind of op that was held out.
fn classes(learned: &Learned, held_out: &[Sample]) -> Vec<Class> {
    let mut names: Vec<&'static str> = held_out.iter().map(|sample| sample.features.class).collect();
    names.sort_unstable();
    names.dedup();
    let of = |class: &'static str| held_out.iter().filter(move |sample| sample.features.class == class);
    let class = |class: &'static str| {
        let told = of(class).map(|sample| (learned.nanos(&sample.features), sample.nanos));
        Some(Class { class, learned: Accuracy::new(told)?.into(), roofline: roofline(of(class))?.into() })
    };
    names.into_iter().filter_map(class).collect()
}

fn print_answer(answer: &Answer) {
    out!("{}: {} of {} ops measured, alone and beside others", answer.device, answer.shapes, answer.of);
    match (&answer.learned, &answer.roofline) {
        (Some(learned), Some(roofline)) => {
            let of = learned.samples;
            out!("relative error on {of} measurements of shapes held out (median, 90th percentile):\n");
            let mut table = table(["op", "held out", "learned", "", "roofline", ""]);
            let mut row = |name: &str, learned: &Errors, roofline: &Errors| {
                let held_out = learned.samples.to_string();
                let [a, b, c, d] = [learned.median, learned.p90, roofline.median, roofline.p90].map(percent);
                table.add_row([name.to_owned(), held_out, a, b, c, d]);
            };
            answer.classes.iter().for_each(|class| row(class.class, &class.learned, &class.roofline));
            row("all", learned, roofline);
            out!("{table}\n");
        }
        _ => out!("too few to hold any out: nothing tells how good predictions are; give it more --seconds"),
    }
    out!("written to '{}'", answer.file.display());
}

/// A progress bar on a terminal.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(name: &'static str, length: u64, json: bool) -> Self {
        Self((!json && std::io::stderr().is_terminal()).then(|| {
            let style =
                ProgressStyle::with_template("{prefix} {bar:30} {percent} % {elapsed}").expect("the template is right");
            ProgressBar::new(length).with_style(style).with_prefix(name)
        }))
    }

    fn set(&self, position: u64) {
        self.0.iter().for_each(|bar| bar.set_position(position));
    }

    fn end(&self) {
        self.0.iter().for_each(ProgressBar::finish_and_clear);
    }
}
