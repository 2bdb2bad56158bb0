//! Charts as inline SVG.

use tensile_sched::{Bytes, Nanos};

use super::{Html, Text};

/// Size of a chart's inside in units of its view box, and what is around it.
const WIDTH: f64 = 820.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 30.0;

/// What a chart's height takes beside its inside.
pub(super) const FRAME: f64 = TOP + BOTTOM;

/// Points of a line; more cannot be told apart.
const MOST_POINTS: usize = 400;

/// Room for the number of a mark.
const NUMBER: f64 = 18.0;

/// Distance of ticks, about.
const TICK: [f64; 2] = [110.0, 44.0];

/// A scale with marks.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    min: f64,
    max: f64,
    /// What one unit of the labels is worth.
    unit: f64,
    /// Name of the unit, behind labels.
    name: String,
    /// Name of what is on the axis.
    title: &'static str,
    has_ticks: bool,
    whole: bool,
}

impl Axis {
    fn new([min, max]: [f64; 2], (unit, name): (f64, &str), title: &'static str) -> Self {
        // An empty scale has no inside.
        let max = if max > min { max } else { min + unit };
        Self { min, max, unit, name: name.to_owned(), title, has_ticks: true, whole: false }
    }

    pub(super) fn bytes(max: f64) -> Self {
        const UNITS: [(f64, &str); 5] = [
            (1024.0 * 1024.0 * 1024.0 * 1024.0, "TiB"),
            (1024.0 * 1024.0 * 1024.0, "GiB"),
            (1024.0 * 1024.0, "MiB"),
            (1024.0, "KiB"),
            (1.0, "B"),
        ];
        Self::new([0.0, max * 1.05], unit(max, &UNITS), "")
    }

    pub(super) fn seconds(max: f64) -> Self {
        Self::new([0.0, max], unit(max, &[(3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")]), "time")
    }

    pub(super) fn nanos(min: f64, max: f64) -> Self {
        Self::new([min, max], unit(max - min, &NANOS), "time in the step")
    }

    pub(super) fn count(title: &'static str, max: f64) -> Self {
        Self { whole: true, ..Self::new([1.0, max], (1.0, ""), title) }
    }

    pub(super) fn between(low: f64, high: f64) -> Self {
        let margin = ((high - low) * 0.06).max(low.abs() * 1e-6).max(f64::MIN_POSITIVE);
        Self::new([low - margin, high + margin], (1.0, ""), "")
    }

    /// From 0 to so many, unmarked.
    pub(super) fn none(max: f64) -> Self {
        Self { has_ticks: false, ..Self::new([0.0, max], (1.0, ""), "") }
    }

    /// Where a value is, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        ((value - self.min) / (self.max - self.min)).clamp(0.0, 1.0)
    }

    /// Values to mark, at 1, 2 or 5 times powers of ten.
    fn ticks(&self, room: f64, distance: f64) -> Vec<(f64, String)> {
        if !self.has_ticks {
            return Vec::new();
        }
        let [min, max] = [self.min / self.unit, self.max / self.unit];
        let rough = (max - min) / (room / distance).max(1.0);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough).max(if self.whole { 1.0 } else { 0.0 });
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let first = (min / step).ceil() as i64;
        let last = ((max / step).floor() as i64).min(first + 50);
        let text = |value: f64| match digits {
            // Values far smaller than one, or far larger.
            7.. => format!("{value:.1e}"),
            digits => format!("{value:.digits$}"),
        };
        let label = |value: f64| format!("{} {}", text(value), self.name).trim_end().to_owned();
        (first..=last).map(|n| (n as f64 * step * self.unit, label(n as f64 * step))).collect()
    }
}

const NANOS: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];

/// The largest unit that is not above a value; else the smallest.
fn unit<'a>(value: f64, units: &[(f64, &'a str)]) -> (f64, &'a str) {
    units.iter().copied().find(|unit| value >= unit.0).unwrap_or(units[units.len() - 1])
}

/// A time for people.
pub(super) fn nanos(value: f64) -> Nanos {
    Nanos(value.max(0.0) as u64)
}

/// A frame with two scales.
pub(super) struct Chart {
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// With the frame.
    pub(super) height: f64,
}

impl Chart {
    fn inside(&self) -> f64 {
        self.height - FRAME
    }

    fn at_x(&self, value: f64) -> f64 {
        LEFT + WIDTH * self.x.place(value)
    }

    fn at_y(&self, value: f64) -> f64 {
        TOP + self.inside() * (1.0 - self.y.place(value))
    }

    /// What a width of a unit stands for.
    pub(super) fn least_width(&self) -> f64 {
        (self.x.max - self.x.min) / WIDTH
    }

    /// Opens the drawing, with grid and labels.
    pub(super) fn begin(&self, html: &mut Html, title: &str) {
        let width = LEFT + WIDTH + RIGHT;
        html.put(format_args!(
            "<svg viewBox=\"0 0 {width} {:.0}\" role=\"img\"><title>{}</title>\n",
            self.height,
            Text(title)
        ));
        for (value, label) in self.y.ticks(self.inside(), TICK[1]) {
            let y = self.at_y(value);
            html.put(format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}h{WIDTH}\"/><text class=\"end\" x=\"{}\" y=\"{:.1}\">{label}</text>\n",
                LEFT - 6.0,
                y + 4.0
            ));
        }
        let bottom = TOP + self.inside();
        for (value, label) in self.x.ticks(WIDTH, TICK[0]) {
            let x = self.at_x(value);
            html.put(format_args!(
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/><text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>\n",
                bottom + 15.0
            ));
        }
        html.put(format_args!(
            "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>\n",
            LEFT + WIDTH,
            bottom + 27.0,
            Text(self.x.title)
        ));
    }

    pub(super) fn end(&self, html: &mut Html) {
        html.put(format_args!("</svg>\n"));
    }

    /// A name left of the inside.
    pub(super) fn label(&self, html: &mut Html, y: f64, text: &str) {
        html.put(format_args!(
            "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>\n",
            LEFT - 6.0,
            self.at_y(y) + 4.0,
            Text(text)
        ));
    }

    /// A line through points.
    pub(super) fn line(&self, html: &mut Html, class: &str, points: &[(f64, f64)]) {
        let Some((first, rest)) = points.split_first() else { return };
        html.put(format_args!("<path class=\"{class}\" d=\"M{:.1} {:.1}", self.at_x(first.0), self.at_y(first.1)));
        // Of a single point a dot is seen.
        let dot = [*first];
        for point in if rest.is_empty() { &dot } else { rest } {
            html.put(format_args!("L{:.1} {:.1}", self.at_x(point.0), self.at_y(point.1)));
        }
        html.put(format_args!("\"/>\n"));
    }

    /// What lies between two lines of steps, each value from its time to the next one's, the last to the end.
    pub(super) fn area(&self, html: &mut Html, class: &str, title: &str, times: &[f64], bottom: &[f64], top: &[f64]) {
        let Some(first) = times.first() else { return };
        let end = self.at_x(self.x.max);
        html.put(format_args!(
            "<path class=\"{class}\" d=\"M{:.1} {:.1}V{:.1}",
            self.at_x(*first),
            self.at_y(bottom[0]),
            self.at_y(top[0])
        ));
        for (time, value) in times.iter().zip(top).skip(1) {
            html.put(format_args!("H{:.1}V{:.1}", self.at_x(*time), self.at_y(*value)));
        }
        html.put(format_args!("H{end:.1}"));
        for index in (0..times.len()).rev() {
            html.put(format_args!("V{:.1}H{:.1}", self.at_y(bottom[index]), self.at_x(times[index])));
        }
        html.put(format_args!("Z\"><title>{}</title></path>\n", Text(title)));
    }

    /// A line across, with a name.
    pub(super) fn level(&self, html: &mut Html, value: f64, name: &str) {
        let y = self.at_y(value);
        html.put(format_args!(
            "<path class=\"level\" d=\"M{LEFT} {y:.1}h{WIDTH}\"/><text class=\"end\" x=\"{}\" y=\"{:.1}\">{} {}</text>\n",
            LEFT + WIDTH - 4.0,
            y - 4.0,
            Text(name),
            Bytes(value as u64)
        ));
    }

    /// Lines upwards with titles, numbered from 1 where there is room for the number. In order.
    pub(super) fn marks<'a>(&self, html: &mut Html, marks: impl Iterator<Item = (f64, String)> + 'a) {
        let mut free = f64::NEG_INFINITY;
        for (index, (value, title)) in marks.enumerate() {
            let x = self.at_x(value);
            html.put(format_args!(
                "<g><title>{}</title><path class=\"mark\" d=\"M{x:.1} {TOP}v{:.1}\"/>",
                Text(&title),
                self.inside()
            ));
            if x >= free {
                html.put(format_args!(
                    "<text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                    TOP - 5.0,
                    index + 1
                ));
                free = x + NUMBER;
            }
            html.put(format_args!("</g>\n"));
        }
    }

    /// A filled rectangle.
    pub(super) fn block(&self, html: &mut Html, class: &str, title: &str, x: [f64; 2], y: [f64; 2]) {
        let [left, right] = x.map(|x| self.at_x(x));
        let [bottom, top] = y.map(|y| self.at_y(y));
        html.put(format_args!(
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
            (right - left).max(0.5),
            bottom - top,
            Text(title)
        ));
    }
}

/// The parts of a series that is too long to show; short ones come point by point.
fn parts(points: &[(f64, f64)]) -> impl Iterator<Item = &[(f64, f64)]> {
    points.chunks(points.len().div_ceil(MOST_POINTS).max(1))
}

/// A line of steps with few points; of each part that has one point left, it is the highest, so that no peak is lost.
pub(super) fn highest(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    parts(points).map(|part| (part[0].0, part.iter().map(|point| point.1).fold(f64::NEG_INFINITY, f64::max))).collect()
}

/// A line with few points, means of each part.
pub(super) fn means(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mean = |part: &[(f64, f64)]| {
        let n = part.len() as f64;
        (part.iter().map(|point| point.0).sum::<f64>() / n, part.iter().map(|point| point.1).sum::<f64>() / n)
    };
    parts(points).map(mean).collect()
}
