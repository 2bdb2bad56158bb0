//! Slowdown against budget, all policies and the bound in one picture.

use std::path::Path;

use anyhow::anyhow;
use plotters::prelude::*;

use super::measure::Measured;

/// Slowdowns in percent are drawn between these.
const RANGE: std::ops::Range<f64> = 0.1..1000.0;

/// One colour for each policy, by its place in `names`; `tensile` comes first.
const COLOURS: [RGBColor; 12] = [
    RGBColor(214, 39, 40),
    RGBColor(140, 140, 140),
    RGBColor(199, 199, 199),
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(152, 223, 138),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// Draws one trace as SVG.
pub(super) fn plot(path: &Path, measured: &Measured, names: &[String]) -> anyhow::Result<()> {
    draw(path, measured, names).map_err(|error| anyhow!("cannot draw '{}': {error}", path.display()))
}

fn draw(path: &Path, measured: &Measured, names: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let share = |bytes: u64| bytes as f64 / measured.peak as f64 * 100.0;
    let area = SVGBackend::new(path, (900, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let lowest = measured.budgets.iter().map(|budget| share(budget.bytes)).fold(90.0, f64::min);
    let mut chart = ChartBuilder::on(&area)
        .caption(&measured.name, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d((lowest - 3.0)..103.0, RANGE.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("budget, percent of the peak without eviction")
        .y_desc("slowdown, percent (at most 0.1 drawn at 0.1)")
        .axis_desc_style(("sans-serif", 17))
        .label_style(("sans-serif", 15))
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if *y < 1.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(220, 220, 220))
        .draw()?;
    let line = |of: &dyn Fn(&super::measure::Budget) -> Option<f64>| {
        let mut points: Vec<(f64, f64)> = measured
            .budgets
            .iter()
            .filter_map(|budget| Some((share(budget.bytes), of(budget).filter(|value| value.is_finite())? * 100.0)))
            .map(|(x, y)| (x, y.clamp(RANGE.start, RANGE.end)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    // What matters most is drawn last, on top.
    for (index, name) in names.iter().enumerate().rev() {
        let points = line(&|budget| budget.slowdown(name));
        if points.is_empty() {
            continue;
        }
        let width = if index == 0 { 3 } else { 2 };
        let style = COLOURS[index % COLOURS.len()].stroke_width(width);
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    let points = line(&|budget| budget.bounds[0]);
    if !points.is_empty() {
        chart
            .draw_series(DashedLineSeries::new(points, 7, 5, BLACK.stroke_width(2)))?
            .label("lower bound")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], BLACK.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 15))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present()?;
    Ok(())
}
