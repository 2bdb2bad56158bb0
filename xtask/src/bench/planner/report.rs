//! Markdown from the measurements, and which properties do not hold.

use std::fmt::Write as _;

use super::figures::{DTR, ILP};
use super::measure::{Budget, FAST_NAME, Measured, Plan};
use super::{Report, TraceReport};
use crate::bench::bound::percentage;

/// Label of the budget that is the peak of the reference's own plan.
pub(super) const REFERENCE: &str = "reference's peak";

/// The most that `tensile` may be slower with more memory.
const MONOTONE: f64 = 1.01;
/// The most that an arena may be above the bytes live at once.
const ARENA: f64 = 1.02;

pub(super) fn markdown(report: &Report) -> String {
    let mut text = String::from(
        "# Planners on recorded training steps\n\nLink 12 GB/s each way, full duplex, 10 us; budgets in percent of the peak of plain liveness; slowdown = simulated step time / sum of latencies - 1, in percent.\n\n",
    );
    summary(&mut text, report);
    never_worse(&mut text, report);
    against_dtr(&mut text, report);
    against_ilp(&mut text, report);
    near_bound(&mut text, report);
    times(&mut text, report);
    placement(&mut text, report);
    text += "## All traces\n\nEach cell: slowdown in percent (evictions + reruns, milliseconds of planning).\n\n";
    for trace in report.traces.iter().filter_map(|trace| trace.measured.as_ref()) {
        details(&mut text, trace, &report.policies);
    }
    text
}

/// Adds a line; writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $($format:tt)*) => { _ = writeln!($text, $($format)*) };
}

fn summary(text: &mut String, report: &Report) {
    let violations = violations(report);
    line!(text, "## Summary\n\n| goal | result |\n|---|---|");
    let count = |start: &str| violations.iter().filter(|violation| violation.starts_with(start)).count();
    line!(text, "| 1. never slower than another policy | {} violations |", count("slower"));
    line!(text, "| 1. a plan wherever there can be one | {} missing |", count("no plan"));
    line!(text, "| 1. never more than 1 % slower than with less memory | {} violations |", count("monotone"));
    let rows = || report.traces.iter().flat_map(|trace| &trace.against_dtr);
    let below = rows().filter(|row| is_below(&row.tensile, row.authors)).count();
    line!(text, "| 2. below h_DTR, recompute only | {below} of {} |", rows().count());
    let rows = || report.traces.iter().flat_map(|trace| &trace.against_ilp);
    let near = rows().filter(|row| is_below(&row.tensile, row.solution.map(|solution| solution + 0.01))).count();
    line!(text, "| 3. within a point of the integer programs, recompute only | {near} of {} |", rows().count());
    for label in [REFERENCE, "60 %", "50 %"] {
        let found = reference_budgets(report, "_b16", label);
        let mean = mean(found.iter().filter_map(|(_, budget)| budget.slowdown("tensile")));
        let bound = mean_bound(&found);
        let near = found.iter().filter(|(_, budget)| is_near_bound(budget) == Some(true)).count();
        line!(
            text,
            "| 4. batch 16 at {label} | mean {} (bound {}); within 2 x bound + 0.5: {near} of {} |",
            optional(mean),
            optional(bound),
            found.len()
        );
    }
    if let Some(figures) = &report.near_optimum {
        line!(text, "| 5. random small steps against the optimum | {figures} |");
    }
    for time in report.times.iter().chain(&report.chains) {
        if let Some(goal) = time.goal_ms {
            line!(
                text,
                "| 6. planning {} at {} % ({} ops) | {:.1} ms of {goal} ms |",
                time.name,
                time.percent,
                time.ops,
                time.plan_ms
            );
        }
    }
    if let Some(ratio) = fast_over_best(report) {
        line!(text, "| 6. slowdown of `fast` over that of `best`, mean | {ratio:.2} of 1.5 |");
    }
    if let Some(exponent) = report.exponent {
        line!(text, "| 6. exponent of planning time over ops | {exponent:.2} of 1.3 |");
    }
    line!(text, "| 7. addresses | {} violations |\n", count("arena"));
}

/// Mean slowdown of effort `fast` over the mean of `best`, where both have plans.
fn fast_over_best(report: &Report) -> Option<f64> {
    let measured = report.traces.iter().filter_map(|trace| trace.measured.as_ref());
    let pairs: Vec<(f64, f64)> = measured
        .flat_map(|measured| &measured.budgets)
        .filter_map(|budget| Some((budget.slowdown(FAST_NAME)?, budget.slowdown("tensile")?)))
        .collect();
    let (fast, best) = pairs.iter().fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
    (best > 0.0).then_some(fast / best)
}

/// Whether there is a plan no slower than a figure; without a figure any plan is.
fn is_below(plan: &Plan, figure: Option<f64>) -> bool {
    plan.result.as_ref().is_some_and(|result| figure.is_none_or(|figure| result.slowdown <= figure))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn mean_bound(budgets: &[(&str, &Budget)]) -> Option<f64> {
    mean(budgets.iter().filter_map(|(_, budget)| budget.least_bound()))
}

/// Nothing without a bound.
fn is_near_bound(budget: &Budget) -> Option<bool> {
    let bound = budget.least_bound()?;
    Some(budget.slowdown("tensile").is_some_and(|slowdown| slowdown <= 2.0 * bound + 0.005))
}

/// The reference's own step graphs of one batch size, at one budget.
fn reference_budgets<'a>(report: &'a Report, batch: &str, label: &str) -> Vec<(&'a str, &'a Budget)> {
    let measured = report.traces.iter().filter_map(|trace| trace.measured.as_ref());
    measured
        .filter(|measured| measured.name.starts_with("tensile_") && measured.name.ends_with(batch))
        .flat_map(|measured| measured.budgets.iter().map(|budget| (measured.name.as_str(), budget)))
        .filter(|(_, budget)| budget.label == label)
        .collect()
}

/// Properties that must hold and do not.
pub(super) fn violations(report: &Report) -> Vec<String> {
    let mut violations = Vec::new();
    for trace in &report.traces {
        if let Some(measured) = &trace.measured {
            compare(measured, &report.policies, &mut violations);
        }
        check_placement(trace, &mut violations);
    }
    violations
}

fn compare(measured: &Measured, policies: &[String], violations: &mut Vec<String>) {
    if !policies.iter().any(|policy| policy == "tensile") {
        return;
    }
    let name = &measured.name;
    for budget in &measured.budgets {
        for half_duplex in [false, true] {
            let duplex = if half_duplex { ", half duplex" } else { "" };
            let plans = || budget.plans.iter().filter(|plan| plan.half_duplex == half_duplex);
            let tensile = plans().find(|plan| plan.policy == "tensile").and_then(|plan| plan.result.as_ref());
            let Some(tensile) = tensile else {
                violations.push(format!("no plan for {name} at {}{duplex}", budget.label));
                continue;
            };
            for other in plans() {
                let Some(result) = &other.result else { continue };
                if tensile.step_ns > result.step_ns {
                    violations.push(format!(
                        "slower: {name} at {}{duplex}: {} %, {} has {} %",
                        budget.label,
                        percentage(tensile.slowdown),
                        other.policy,
                        percentage(result.slowdown)
                    ));
                }
            }
        }
    }
    let mut ascending: Vec<&Budget> = measured.budgets.iter().collect();
    ascending.sort_by_key(|budget| budget.bytes);
    for (index, budget) in ascending.iter().enumerate() {
        let step = |budget: &Budget| Some(budget.plan("tensile")?.result.as_ref()?.step_ns);
        let Some(here) = step(budget) else { continue };
        let less = ascending[..index].iter().filter_map(|less| Some((step(less)?, less))).min_by_key(|less| less.0);
        if let Some((time, less)) = less
            && here as f64 > time as f64 * MONOTONE
        {
            violations.push(format!(
                "monotone: {name} takes {:.2} % longer at {} than at {}",
                (here as f64 / time as f64 - 1.0) * 100.0,
                budget.label,
                less.label
            ));
        }
    }
}

/// Two files are known to fit into this.
const MINIMALLOC: u64 = 1_048_576;

fn check_placement(trace: &TraceReport, violations: &mut Vec<String>) {
    let (name, placement) = (&trace.name, &trace.placement);
    match placement.at_half.ratio() {
        Some(ratio) if ratio <= ARENA || placement.at_half.budget == placement.at_floor.budget => {}
        Some(ratio) => violations.push(format!("arena: {name} is {ratio:.3} times the peak at half of it")),
        None => violations.push(format!("arena: {name} has no plan at half the peak")),
    }
    if placement.at_floor.plan.result.is_none() {
        violations.push(format!("arena: {name} has no plan at the floor"));
    }
    if name.starts_with("minimalloc") && placement.none_arena > MINIMALLOC {
        violations.push(format!("arena: {name} takes {} bytes and fits in {MINIMALLOC}", placement.none_arena));
    }
}

fn never_worse(text: &mut String, report: &Report) {
    let violations = violations(report);
    line!(text, "## 1. Never worse\n");
    if violations.is_empty() {
        line!(text, "No violations.");
    }
    for violation in violations {
        line!(text, "- {violation}");
    }
    line!(text, "");
}

fn optional(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), percentage)
}

fn slowdown(plan: &Plan) -> String {
    plan.result.as_ref().map_or("-".to_owned(), |result| percentage(result.slowdown))
}

fn against_dtr(text: &mut String, report: &Report) {
    line!(text, "## 2. Recompute only, against h_DTR\n");
    line!(
        text,
        "At equal bytes; `theirs`: the authors' simulator; `dtr, their accounting`: ours as in it; `dtr` and `tensile`: programs with addresses, inputs copied in, in-place pairs.\n"
    );
    line!(text, "| trace | of their peak | theirs | dtr, their accounting | dtr | tensile | bound | plan ms | below |");
    line!(text, "|---|--:|--:|--:|--:|--:|--:|--:|---|");
    for trace in report.traces.iter().filter(|trace| DTR.iter().any(|entry| entry.0 == trace.name)) {
        for row in &trace.against_dtr {
            line!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {:.0} | {} |",
                trace.name,
                row.ratio,
                optional(row.authors),
                optional(row.dtr_accounted),
                slowdown(&row.dtr),
                slowdown(&row.tensile),
                optional(row.bound),
                row.tensile.plan_ms,
                yes(is_below(&row.tensile, row.authors))
            );
        }
    }
    line!(text, "");
}

fn yes(holds: bool) -> &'static str {
    if holds { "yes" } else { "NO" }
}

fn against_ilp(text: &mut String, report: &Report) {
    line!(text, "## 3. Recompute only, against integer programs of 24 hours\n");
    line!(
        text,
        "Under their accounting: parameters, the batch and all gradients of parameters on the device throughout, no workspace. `within`: at most a point above the solution, in less than 2 s.\n"
    );
    line!(text, "| trace | GiB | solution | tensile | bound | plan ms | within |\n|---|--:|--:|--:|--:|--:|---|");
    for trace in report.traces.iter().filter(|trace| ILP.iter().any(|entry| entry.0 == trace.name)) {
        for row in &trace.against_ilp {
            let is_within = is_below(&row.tensile, row.solution.map(|solution| solution + 0.01));
            line!(
                text,
                "| {} | {} | {} | {} | {} | {:.0} | {} |",
                trace.name,
                row.gib,
                row.solution.map_or("none found".to_owned(), percentage),
                slowdown(&row.tensile),
                optional(row.bound),
                row.tensile.plan_ms,
                yes(is_within && row.tensile.plan_ms < 2_000.0)
            );
        }
    }
    line!(text, "");
}

fn near_bound(text: &mut String, report: &Report) {
    line!(text, "## 4. Swap and recompute, the reference's own step graphs\n");
    line!(
        text,
        "`within`: at most 2 x bound + 0.5, by the lesser of two bounds: of the file's order of ops and of the order that `tensile` runs them in.\n"
    );
    for batch in ["_b16", "_b2", "_b32"] {
        line!(
            text,
            "| trace | budget | tensile | bound | own order | within | paper | half duplex | bound, half duplex |"
        );
        line!(text, "|---|---|--:|--:|--:|---|--:|--:|--:|");
        for label in [REFERENCE, "60 %", "50 %"] {
            let found = reference_budgets(report, batch, label);
            for (name, budget) in &found {
                let half = budget.plans.iter().find(|plan| plan.half_duplex && plan.policy == "tensile");
                line!(
                    text,
                    "| {name} | {label} | {} | {} | {} | {} | {} | {} | {} |",
                    optional(budget.slowdown("tensile")),
                    optional(budget.bounds[0]),
                    optional(budget.bound_in_own_order),
                    is_near_bound(budget).map_or("-", yes),
                    optional(budget.slowdown("paper")),
                    half.map_or("-".to_owned(), slowdown),
                    optional(budget.bounds[1])
                );
            }
            let tensile = mean(found.iter().filter_map(|(_, budget)| budget.slowdown("tensile")));
            line!(
                text,
                "| **mean** | {label} | **{}** | {} (lesser) | | | {} | | |",
                optional(tensile),
                optional(mean_bound(&found)),
                optional(mean(found.iter().filter_map(|(_, budget)| budget.slowdown("paper"))))
            );
        }
        line!(text, "");
    }
}

fn times(text: &mut String, report: &Report) {
    line!(text, "## 6. Planning times\n\nLayout, sync, check and verify included; least of up to five runs.\n");
    line!(text, "| trace | ops | budget | ms | goal | slowdown |\n|---|--:|--:|--:|--:|--:|");
    for time in report.times.iter().chain(&report.chains) {
        line!(
            text,
            "| {} | {} | {} % | {:.1} | {} | {} |",
            time.name,
            time.ops,
            time.percent,
            time.plan_ms,
            time.goal_ms.map_or(String::new(), |goal| goal.to_string()),
            optional(time.slowdown)
        );
    }
    if let Some(exponent) = report.exponent {
        line!(text, "\nFitted exponent over the chains: {exponent:.2}.");
    }
    line!(text, "");
}

fn placement(text: &mut String, report: &Report) {
    line!(text, "## 7. Placement\n");
    line!(text, "Arena over the bytes live at once; `half` is half the peak, or the floor if that is more.\n");
    line!(text, "| trace | none: arena / peak | half: arena / peak | floor: arena / budget |\n|---|--:|--:|--:|");
    for trace in &report.traces {
        let placement = &trace.placement;
        let at_floor = placement.at_floor.plan.result.as_ref();
        let ratio = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
        line!(
            text,
            "| {} | {:.4} | {} | {} |",
            trace.name,
            placement.none_arena as f64 / placement.none_peak.max(1) as f64,
            ratio(placement.at_half.ratio()),
            ratio(at_floor.map(|result| result.arena as f64 / placement.at_floor.budget.max(1) as f64))
        );
    }
    line!(text, "");
}

fn details(text: &mut String, measured: &Measured, policies: &[String]) {
    let percent = |bytes: u64| bytes as f64 / measured.peak as f64 * 100.0;
    line!(
        text,
        "### {}\n\n{} ops, {} tensors, {:.1} ms; peak {} bytes, floor {:.1} %, arena of `none` {:.1} %.\n",
        measured.name,
        measured.ops,
        measured.tensors,
        measured.compute_ns as f64 * 1e-6,
        measured.peak,
        percent(measured.floor),
        percent(measured.none_arena)
    );
    let header: Vec<String> = measured
        .budgets
        .iter()
        .map(|budget| match budget.label.as_str() {
            REFERENCE => format!("{REFERENCE} ({:.1} %)", percent(budget.bytes)),
            label => label.to_owned(),
        })
        .collect();
    line!(text, "| policy | {} |\n|---|{}", header.join(" | "), "--:|".repeat(header.len()));
    for half_duplex in [false, true] {
        for policy in policies.iter().map(String::as_str) {
            let cell = |budget: &Budget| {
                let plan = budget.plans.iter().find(|plan| plan.half_duplex == half_duplex && plan.policy == policy)?;
                Some(match &plan.result {
                    Some(result) => format!(
                        "{} ({}+{}, {:.0} ms)",
                        percentage(result.slowdown),
                        result.evictions,
                        result.reruns,
                        plan.plan_ms
                    ),
                    None => plan.infeasible.clone().unwrap_or_default(),
                })
            };
            let cells: Option<Vec<String>> = measured.budgets.iter().map(cell).collect();
            if let Some(cells) = cells.filter(|cells| !cells.is_empty()) {
                let duplex = if half_duplex { ", half duplex" } else { "" };
                line!(text, "| {policy}{duplex} | {} |", cells.join(" | "));
            }
        }
        let bounds: Vec<String> =
            measured.budgets.iter().map(|budget| optional(budget.bounds[usize::from(half_duplex)])).collect();
        let duplex = if half_duplex { ", half duplex" } else { "" };
        line!(text, "| *lower bound{duplex}* | {} |", bounds.join(" | "));
        if !half_duplex && measured.budgets.iter().any(|budget| budget.bound_in_own_order.is_some()) {
            let bounds: Vec<String> =
                measured.budgets.iter().map(|budget| optional(budget.bound_in_own_order)).collect();
            line!(text, "| *lower bound, in the order of tensile* | {} |", bounds.join(" | "));
        }
    }
    line!(text, "\n![{0}]({0}.svg)\n", measured.name);
}
