//! Markdown from what was simulated.

use std::fmt::Write as _;

use tensile_sched::Effort;

use super::Report;
use super::figures::{MIX_MSR, MODELS};
use super::mix::Mix;
use super::rows::{Choice, Row};

/// Adds a line; writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $($format:tt)*) => { _ = writeln!($text, $($format)*) };
}

pub(super) fn markdown(report: &Report, effort: Effort) -> String {
    let mut text = String::from("# Several jobs on one simulated device\n\n");
    line!(
        text,
        "The authors' step graphs, 12 GB/s each way, full duplex, 10 us; one kernel at a time, what is ready first goes first. `tensile` plans with effort `{effort:?}`. MSR = 1 - sum of arenas / that of the baseline; EOR = mean over the jobs of step time / that under the baseline - 1, both with all jobs together; CBR = MSR / EOR. Two baselines: `retain` frees nothing until the step ends, as the authors' vanilla; `none` frees what is dead.\n"
    );
    rows(&mut text, report);
    policies(&mut text, report);
    divisions(&mut text, report);
    text
}

fn rows(text: &mut String, report: &Report) {
    line!(text, "## Jobs of one model\n");
    line!(
        text,
        "*Their memory*: the budget is what their MSR leaves of `retain`, less 0.1 %; a policy that needs more gets the least it needs; `tensile` divides it along its frontier. *Of none*: the same with `none` in the place of `retain`, which is more than they claim. *Their time*: little memory in which `tensile` keeps to their EOR (the least for one job alone; for several the first of six tries). *Cold*: EOR if the plan is made from latencies that are off by up to twice either way; memory is the same. *Beats* is a higher MSR at a lower EOR than theirs, both against `retain` (in the line *of none* against `none`).\n"
    );
    line!(
        text,
        "| jobs | who | MB | MSR (retain) | EOR (retain) | CBR | MSR (none) | EOR (none) | CBR (none) | EOR cold | evictions + reruns | beats |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
    );
    for row in &report.rows {
        let cold = row.cold_msr.map_or(String::new(), |cold| format!(" (cold {cold:.3})"));
        line!(
            text,
            "| **{} b{} x{}** | recorded, {} | | {:.3}{cold} | {} | {:.1} | | | | | | |",
            row.model,
            row.batch,
            row.jobs,
            row.commit,
            row.msr,
            percent(row.eor),
            row.msr / row.eor
        );
        for point in &row.points {
            let name = match point.choice {
                Choice::Unlimited => point.policy.clone(),
                Choice::TheirMemory => format!("{}, their memory", point.policy),
                Choice::OfNone => format!("{}, of none", point.policy),
                Choice::TheirTime => format!("{}, their time", point.policy),
            };
            let Some(taken) = &point.taken else {
                line!(text, "| | {name} | no plan | | | | | | | | | |");
                continue;
            };
            line!(
                text,
                "| | {name} | {:.0} | {:.3} | {} | {} | {:.3} | {} | {} | {} | {} + {} | {} |",
                taken.bytes as f64 / 1e6,
                taken.msr_retain(),
                percent(taken.eor_retain()),
                ratio(taken.msr_retain(), taken.eor_retain()),
                taken.msr_none(),
                percent(taken.eor_none()),
                ratio(taken.msr_none(), taken.eor_none()),
                point.cold_eor.map_or(String::new(), percent),
                taken.evictions,
                taken.reruns,
                if point.beats(row) { "yes" } else { "no" }
            );
        }
    }
    line!(text, "");
    for (choice, name) in
        [(Choice::TheirMemory, "their memory"), (Choice::TheirTime, "their time"), (Choice::OfNone, "of none")]
    {
        let beaten = report.rows.iter().filter(|row| beats(row, choice)).count();
        line!(text, "- `tensile`, {name}: beats {beaten} of {} recorded rows.", report.rows.len());
    }
    let worst = report
        .rows
        .iter()
        .flat_map(|row| &row.points)
        .filter(|point| point.choice == Choice::TheirMemory)
        .filter_map(|point| Some(point.cold_eor? - point.taken.as_ref()?.eor_retain()));
    line!(text, "- Their memory, cold: EOR at most {:.2} points above warm.\n", 100.0 * worst.fold(0.0, f64::max));
}

pub(super) fn beats(row: &Row, choice: Choice) -> bool {
    row.points.iter().any(|point| point.policy == "tensile" && point.choice == choice && point.beats(row))
}

fn policies(text: &mut String, report: &Report) {
    line!(text, "## The five models together, equal weights\n");
    line!(
        text,
        "Budgets in percent of the sum of `none`'s arenas; each policy's share is divided along its own frontier, which it gets from here and not from its authors. *Useful* is the share of the time in which the device runs kernels that are not reruns: where one job waits for copies others get its time, so that some are faster than under `none`. The authors recorded an MSR of {MIX_MSR:.2} at batch 2.\n"
    );
    line!(
        text,
        "| batch | budget | policy | MB | MSR (retain) | EOR (retain) | CBR | MSR (none) | EOR (none) | CBR (none) | useful | step over none's: {} |\n|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
        MODELS.join(", ")
    );
    for mix in report.mixes.iter().filter(|mix| mix.division == "frontier" && is_equal(mix)) {
        let Some(taken) = &mix.taken else {
            let reason = mix.infeasible.as_deref().unwrap_or_default();
            line!(text, "| {} | {} % | {} | {reason} | | | | | | | | |", mix.batch, mix.percent, mix.policy);
            continue;
        };
        let each: Vec<String> = taken.over_none.iter().map(|slowdown| format!("{slowdown:.3}")).collect();
        line!(
            text,
            "| {} | {} % | {} | {:.0} | {:.3} | {} | {} | {:.3} | {} | {} | {:.1} % | {} |",
            mix.batch,
            mix.percent,
            mix.policy,
            taken.bytes as f64 / 1e6,
            taken.msr_retain(),
            percent(taken.eor_retain()),
            ratio(taken.msr_retain(), taken.eor_retain()),
            taken.msr_none(),
            percent(taken.eor_none()),
            ratio(taken.msr_none(), taken.eor_none()),
            100.0 * taken.useful,
            each.join(", ")
        );
    }
    line!(text, "");
}

fn is_equal(mix: &Mix) -> bool {
    mix.weights == [1.0; 5]
}

/// The three divisions of one budget under the same weights stand one after the other.
fn divisions(text: &mut String, report: &Report) {
    line!(text, "## Ways to divide, `tensile`\n");
    line!(
        text,
        "Weighted mean slowdown over `none` in percent: on the curves that are divided along / of the plans for the shares, each alone / of all together. *Useful* as above. *Heavy* has weight 4, the others 1.\n"
    );
    line!(
        text,
        "| batch | heavy | budget | frontier | equal | proportional | useful | least alone | least together | most useful |\n|--:|---|--:|--:|--:|--:|---|---|---|---|"
    );
    let of_tensile: Vec<&Mix> = report.mixes.iter().filter(|mix| mix.policy == "tensile").collect();
    let (mut compared, mut alone, mut together, mut useful) = (0, 0, 0, 0);
    let mut sums = [[0.0; 4]; 3];
    for mixes in of_tensile.chunks(3) {
        let cell = |mix: &Mix| match (mix.predicted, mix.alone, mix.simulated) {
            (Some(predicted), Some(alone), Some(simulated)) => {
                format!("{} / {} / {}", percent(predicted), percent(alone), percent(simulated))
            }
            _ => mix.infeasible.clone().unwrap_or_default(),
        };
        let least = |of: fn(&Mix) -> Option<f64>| {
            let best = mixes.iter().filter_map(|mix| of(mix)).fold(f64::INFINITY, f64::min);
            // Differences below a hundredth of a point are none.
            let names: Vec<&str> = mixes
                .iter()
                .filter(|mix| of(mix).is_some_and(|slowdown| slowdown <= best + 1e-4))
                .map(|mix| mix.division.as_str())
                .collect();
            if names.len() == mixes.len() { "all".to_owned() } else { names.join(", ") }
        };
        let (least_alone, least_together) = (least(|mix| mix.alone), least(|mix| mix.simulated));
        let most_useful = least(|mix| mix.taken.as_ref().map(|taken| -taken.useful));
        if mixes.iter().all(|mix| mix.taken.is_some()) {
            compared += 1;
            let is_least = |names: &str| usize::from(names == "all" || names.contains("frontier"));
            alone += is_least(&least_alone);
            together += is_least(&least_together);
            useful += is_least(&most_useful);
            for (sums, mix) in sums.iter_mut().zip(mixes) {
                let useful = mix.taken.as_ref().map(|taken| taken.useful);
                for (sum, value) in sums.iter_mut().zip([mix.predicted, mix.alone, mix.simulated, useful]) {
                    *sum += value.unwrap_or_default();
                }
            }
        }
        let heavy = mixes[0].weights.iter().position(|weight| *weight > 1.0).map_or("-", |heavy| MODELS[heavy]);
        line!(
            text,
            "| {} | {heavy} | {} % | {} | {} | {least_alone} | {least_together} | {most_useful} |",
            mixes[0].batch,
            mixes[0].percent,
            mixes.iter().map(|mix| cell(mix)).collect::<Vec<_>>().join(" | "),
            mixes
                .iter()
                .map(|mix| mix.taken.as_ref().map_or("-".to_owned(), |taken| percent(taken.useful)))
                .collect::<Vec<_>>()
                .join(" / ")
        );
    }
    let mean = |sum: f64| percent(sum / f64::from(compared.max(1)));
    let slowdowns = sums.map(|sums| sums[..3].iter().map(|&sum| mean(sum)).collect::<Vec<_>>().join(" / "));
    let usefuls = sums.map(|sums| mean(sums[3]));
    line!(text, "| **mean** | | | {} | {} | | | |", slowdowns.join(" | "), usefuls.join(" / "));
    line!(
        text,
        "\nOf {compared} comparisons the frontier division has the least weighted slowdown, to a hundredth of a point, in {alone} with each job alone and in {together} with all together; in {useful} the device does most useful work.\n"
    );
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", fraction * 100.0)
}

/// MSR over EOR; without a slowdown it has no bound.
fn ratio(msr: f64, eor: f64) -> String {
    if eor < 5e-5 { "-".to_owned() } else { format!("{:.1}", msr / eor) }
}
