//! A report as one page of HTML: memory over time, the lanes of a step, losses, tables. It needs no other file and no script, and is dark where the reader's system is.
//!
//! [`Page::render`] is a pure function of plain data. Long runs and large steps are thinned to what a screen can show, so that pages stay small.

mod chart;
mod fates;

use std::fmt::{self, Arguments, Write};

use tensile_sched::Bytes;
use tensile_sched::timeline::{Process, Track};

use chart::{Axis, Chart};
pub use fates::{Fate, fates};

/// What a report shows.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Its heading.
    pub title: String,
    /// A line under it.
    pub about: String,
    /// Device bytes for all jobs together; none without a limit.
    pub budget: Option<Bytes>,
    /// The jobs, in order.
    pub jobs: Vec<JobPart>,
    /// What happened to jobs, by time; without any, jobs are not shown together.
    pub events: Vec<Event>,
}

/// What a report shows of one job. What is empty is left out.
#[derive(Clone, Debug, Default)]
pub struct JobPart {
    /// Its name.
    pub name: String,
    /// A line on what it is.
    pub about: String,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// Names and figures, as [`Report::rows`](crate::report::Report::rows) gives them.
    pub figures: Vec<(String, String)>,
    /// Step, from 1, and loss.
    pub losses: Vec<(u64, f32)>,
    /// Likewise the loss on the test split.
    pub test_losses: Vec<(u64, f64)>,
    /// Device bytes from a time on, in seconds from the start of the run; each change.
    pub memory: Vec<(f64, Bytes)>,
    /// What it may have on the device; none without a limit.
    pub budget: Option<Bytes>,
    /// Steps in time, as predicted and as measured.
    pub steps: Vec<Process>,
    /// What became of tensors in a step.
    pub fates: Vec<Fate>,
}

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When, in seconds from the start of the run.
    pub seconds: f64,
    /// The job's name.
    pub job: String,
    /// What: arrived, admitted, replanned.
    pub what: String,
}

/// HTML as it grows.
#[derive(Default)]
struct Html(String);

impl Html {
    fn put(&mut self, text: Arguments<'_>) {
        self.0.write_fmt(text).expect("a string takes everything");
    }
}

/// Text as HTML shows it; safe between tags and in attributes. Control characters, which HTML does not allow, are replaced.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(' ')?,
                c if c.is_control() => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Colours of jobs; more jobs than these begin again.
const COLOURS: usize = 8;

/// Height of the charts of memory and losses, and of a lane.
const HEIGHT: f64 = 220.0;
const LANE: f64 = 26.0;

impl Page {
    /// The page.
    pub fn render(&self) -> String {
        let mut html = Html::default();
        html.put(format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n\
             <style>\n{}</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n<p>{}</p>\n",
            Text(&self.title),
            include_str!("style.css"),
            Text(&self.title),
            Text(&self.about)
        ));
        if !self.events.is_empty() {
            self.put_all_jobs(&mut html);
        }
        for job in &self.jobs {
            job.put(&mut html);
        }
        html.put(format_args!("</main>\n</body>\n</html>\n"));
        html.0
    }

    /// The device's memory, shared by the jobs, and what happened to them.
    fn put_all_jobs(&self, html: &mut Html) {
        html.put(format_args!("<section>\n<h2>All jobs</h2>\n"));
        let (times, totals) = self.stack();
        let last_event = self.events.iter().map(|event| event.seconds).fold(0.0, f64::max);
        let end = times.last().copied().unwrap_or(0.0).max(last_event);
        let most = totals.last().and_then(|top| top.iter().copied().reduce(f64::max)).unwrap_or(0.0);
        let budget = self.budget.map(|budget| budget.0 as f64);
        if most > 0.0 {
            let chart =
                Chart { x: Axis::seconds(end), y: Axis::bytes(most.max(budget.unwrap_or(0.0))), height: HEIGHT };
            chart.begin(html, "Device memory of all jobs over the run");
            for (index, top) in totals.iter().enumerate() {
                let bottom: Vec<f64> = match index {
                    0 => vec![0.0; times.len()],
                    _ => totals[index - 1].clone(),
                };
                let title = format!("{}: device memory", self.jobs[index].name);
                chart.area(html, &format!("area job{}", index % COLOURS), &title, &times, &bottom, top);
            }
            if let Some(budget) = budget {
                chart.level(html, budget, "budget");
            }
            let events = self.events.iter().enumerate().take(MOST_EVENTS);
            let title = |number: usize, event: &Event| format!("{}: {}: {}", number + 1, event.job, event.what);
            chart.marks(html, events.map(|(number, event)| (event.seconds, title(number, event))));
            chart.end(html);
            let keys = self.jobs.iter().enumerate().map(|(index, job)| (format!("job{}", index % COLOURS), &*job.name));
            legend(html, keys);
        }
        html.put(format_args!(
            "<table>\n<thead><tr><th class=\"n\">#</th><th class=\"n\">second</th><th>job</th><th>event</th></tr></thead>\n<tbody>\n"
        ));
        for (number, event) in self.events.iter().enumerate().take(MOST_EVENTS) {
            html.put(format_args!(
                "<tr><td class=\"n\">{}</td><td class=\"n\">{:.2}</td><td>{}</td><td>{}</td></tr>\n",
                number + 1,
                event.seconds,
                Text(&event.job),
                Text(&event.what)
            ));
        }
        html.put(format_args!("</tbody>\n</table>\n"));
        if self.events.len() > MOST_EVENTS {
            html.put(format_args!("<p>{} more events are left out.</p>\n", self.events.len() - MOST_EVENTS));
        }
        html.put(format_args!("</section>\n"));
    }

    /// Times at which a job's memory changes, and for each job the bytes of it and of those before it. Where there are more times than a screen shows, of each part of
    /// the run the one with most bytes.
    fn stack(&self) -> (Vec<f64>, Vec<Vec<f64>>) {
        let mut times: Vec<f64> = self.jobs.iter().flat_map(|job| job.memory.iter().map(|point| point.0)).collect();
        times.sort_by(f64::total_cmp);
        times.dedup();
        let at = |time: f64, job: &JobPart| {
            let next = job.memory.partition_point(|point| point.0 <= time);
            next.checked_sub(1).map_or(0.0, |last| job.memory[last].1.0 as f64)
        };
        let total = |time: f64| -> f64 { self.jobs.iter().map(|job| at(time, job)).sum() };
        let points: Vec<(f64, f64)> = times.iter().map(|&time| (time, total(time))).collect();
        let mut times: Vec<f64> = chart::highest(&points).into_iter().map(|point| point.0).collect();
        if let (Some(last), Some(&end)) = (times.last(), points.last().map(|(time, _)| time))
            && *last < end
        {
            times.push(end);
        }
        let mut below = vec![0.0; times.len()];
        let mut totals = Vec::new();
        for job in &self.jobs {
            times.iter().zip(&mut below).for_each(|(&time, below)| *below += at(time, job));
            totals.push(below.clone());
        }
        (times, totals)
    }
}

/// Events that are marked and told.
const MOST_EVENTS: usize = 500;

fn legend<'a>(html: &mut Html, keys: impl Iterator<Item = (String, &'a str)>) {
    html.put(format_args!("<ul class=\"legend\">"));
    for (class, name) in keys {
        html.put(format_args!("<li><span class=\"key {class}\"></span>{}</li>", Text(name)));
    }
    html.put(format_args!("</ul>\n"));
}

impl JobPart {
    fn put(&self, html: &mut Html) {
        html.put(format_args!("<section>\n<h2>{}</h2>\n<p>{}</p>\n", Text(&self.name), Text(&self.about)));
        if let Some(failure) = &self.failure {
            html.put(format_args!("<p class=\"failure\">{}</p>\n", Text(failure)));
        }
        self.put_figures(html);
        self.put_losses(html);
        self.put_memory(html);
        for step in &self.steps {
            put_step(html, step);
        }
        self.put_fates(html);
        html.put(format_args!("</section>\n"));
    }

    fn put_figures(&self, html: &mut Html) {
        if self.figures.is_empty() {
            return;
        }
        html.put(format_args!("<table class=\"figures\">\n<tbody>\n"));
        for (name, figure) in &self.figures {
            html.put(format_args!("<tr><th>{}</th><td>{}</td></tr>\n", Text(name), Text(figure)));
        }
        html.put(format_args!("</tbody>\n</table>\n"));
    }

    fn put_losses(&self, html: &mut Html) {
        let points = |points: &mut dyn Iterator<Item = (u64, f64)>| -> Vec<(f64, f64)> {
            points.filter(|point| point.1.is_finite()).map(|(step, loss)| (step as f64, loss)).collect()
        };
        let train = points(&mut self.losses.iter().map(|&(step, loss)| (step, f64::from(loss))));
        let test = points(&mut self.test_losses.iter().copied());
        let all = || train.iter().chain(&test);
        if all().next().is_some() {
            let last = all().map(|point| point.0).fold(0.0, f64::max);
            let [low, high] = [f64::min, f64::max].map(|pick| all().map(|point| point.1).reduce(pick).unwrap_or(0.0));
            let chart = Chart { x: Axis::count("step", last), y: Axis::between(low, high), height: HEIGHT };
            html.put(format_args!("<h3>Loss</h3>\n"));
            chart.begin(html, "Loss over steps");
            chart.line(html, "line train", &chart::means(&train));
            chart.line(html, "line test", &chart::means(&test));
            chart.end(html);
            let keys = [("train", "training"), ("test", "test split")];
            legend(
                html,
                keys.into_iter()
                    .filter(|key| key.0 == "train" || !test.is_empty())
                    .map(|(class, name)| (class.to_owned(), name)),
            );
        }
        let lost = self.losses.len() - train.len();
        if lost > 0 {
            html.put(format_args!("<p class=\"failure\">{lost} losses are not finite.</p>\n"));
        }
    }

    fn put_memory(&self, html: &mut Html) {
        let points: Vec<(f64, f64)> = self.memory.iter().map(|&(time, bytes)| (time, bytes.0 as f64)).collect();
        let Some(&(end, _)) = points.last() else { return };
        html.put(format_args!("<h3>Memory over the run</h3>\n"));
        put_memory(html, "Device memory over the run", Axis::seconds(end), &points, self.budget);
    }

    fn put_fates(&self, html: &mut Html) {
        if self.fates.is_empty() {
            return;
        }
        html.put(format_args!(
            "<h3>Largest tensors in a step</h3>\n<table>\n<thead><tr><th>tensor</th><th>role</th><th class=\"n\">bytes</th>\
             <th class=\"n\">copies out</th><th class=\"n\">copies in</th><th class=\"n\">recomputed</th><th>what became of it</th></tr></thead>\n<tbody>\n"
        ));
        for fate in &self.fates {
            html.put(format_args!(
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
                Text(&fate.name),
                fate.role,
                fate.bytes,
                fate.outs,
                fate.ins,
                fate.reruns,
                fate.what()
            ));
        }
        html.put(format_args!("</tbody>\n</table>\n"));
    }
}

/// Memory as a line of steps, below a budget.
fn put_memory(html: &mut Html, title: &str, x: Axis, points: &[(f64, f64)], budget: Option<Bytes>) {
    let budget = budget.map(|budget| budget.0 as f64);
    let most = points.iter().map(|point| point.1).fold(budget.unwrap_or(0.0), f64::max);
    let chart = Chart { x, y: Axis::bytes(most), height: HEIGHT };
    let points = chart::highest(points);
    let (times, top): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
    chart.begin(html, title);
    chart.area(html, "area memory", title, &times, &vec![0.0; times.len()], &top);
    if let Some(budget) = budget {
        chart.level(html, budget, "budget");
    }
    chart.end(html);
}

/// Lanes and memory of one step.
fn put_step(html: &mut Html, step: &Process) {
    let spans = || step.tracks.iter().flat_map(|track| track.slices.iter().map(|slice| slice.span));
    let start = spans().map(|span| span.start).min().unwrap_or(0).min(0) as f64;
    let end = spans().map(|span| span.end).max().unwrap_or(0).max(step.period.0 as i64) as f64;
    html.put(format_args!("<h3>One step, {}: {}</h3>\n", Text(&step.name), step.period));
    let lanes = step.tracks.len() as f64;
    let chart = Chart { x: Axis::nanos(start, end), y: Axis::none(lanes), height: LANE * lanes + chart::FRAME };
    chart.begin(html, &format!("Lanes of a step, {}", step.name));
    for (index, track) in step.tracks.iter().enumerate() {
        let row = lanes - index as f64;
        chart.label(html, row - 0.5, track.name);
        put_lane(html, &chart, row, track);
    }
    chart.end(html);
    let keys = [("run", "first run"), ("rerun", "rerun"), ("out", "copy out"), ("in", "copy in"), ("wait", "wait")];
    let has = |kind: &str| step.tracks.iter().any(|track| track.slices.iter().any(|slice| slice.kind == kind));
    legend(html, keys.into_iter().filter(|key| has(key.0)).map(|(class, name)| (class.to_owned(), name)));
    if step.memory.len() > 1 {
        let points: Vec<(f64, f64)> = step.memory.iter().map(|&(time, bytes)| (time as f64, bytes.0 as f64)).collect();
        let title = format!("Live device bytes within a step, {}", step.name);
        put_memory(html, &title, Axis::nanos(start, end), &points, step.budget);
    }
}

/// Slices of a lane; those that are narrower than a screen shows are drawn with those beside them.
fn put_lane(html: &mut Html, chart: &Chart, row: f64, track: &Track) {
    let least = chart.least_width();
    let mut open: Option<(&'static str, [f64; 2], &str, usize)> = None;
    let draw = |html: &mut Html, (kind, [start, end], name, n): (&'static str, [f64; 2], &str, usize)| {
        let more = if n > 1 { format!(" and {} more", n - 1) } else { String::new() };
        let title = format!("{name}{more}: {}", chart::nanos(end - start));
        chart.block(html, kind, &title, [start, end.max(start + least)], [row - 0.85, row - 0.15]);
    };
    for slice in &track.slices {
        let [start, end] = [slice.span.start as f64, slice.span.end as f64];
        match &mut open {
            Some((kind, span, _, n))
                if *kind == slice.kind && start - span[1] < least && end - span[0] < 2.0 * least =>
            {
                span[1] = span[1].max(end);
                *n += 1;
            }
            _ => {
                let next = (slice.kind, [start, end], slice.name.as_str(), 1);
                if let Some(done) = open.replace(next) {
                    draw(html, done);
                }
            }
        }
    }
    if let Some(done) = open {
        draw(html, done);
    }
}
