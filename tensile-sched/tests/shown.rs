//! What is shown of plans agrees with them.

use proptest::prelude::*;
use serde_json::Value;
use tensile_sched::strategy::{Sizes, links, traces};
use tensile_sched::text::{Fate, explain};
use tensile_sched::timeline::{lanes, to_json};
use tensile_sched::{Bytes, Instr, Limits, Mode, NoEviction, Planner, floor, planner};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn explanations_and_timelines_agree_with_plans(
        trace in traces(Sizes { unit: 256, most_units: 6, odd: true }, 1..20), link in links(), share in 0u64..5,
    ) {
        for mode in [Mode::Swap, Mode::Recompute, Mode::Both] {
            let unlimited = Limits { link, mode, ..Limits::unlimited() };
            let lowest = floor(&trace, &unlimited).unwrap().bytes;
            let highest = NoEviction.plan(&trace, &unlimited).unwrap().report.arena;
            let limits = Limits { device: Bytes(lowest.0 + (highest.0 - lowest.0) * share / 4), ..unlimited };
            for policy in planner::all() {
                let Ok(planned) = policy.plan(&trace, &limits) else { continue };
                let (simulation, instrs) = (&planned.simulation, planned.synced.instrs());
                let explanation = explain(&trace, &planned, &limits);
                prop_assert!(!explanation.to_string().is_empty());
                let reruns: usize = explanation.reruns.iter().map(|again| again.times).sum();
                prop_assert_eq!(reruns, planned.report.reruns);
                let waited: u64 = explanation.waiting.iter().map(|waiting| waiting.time.0).sum();
                prop_assert_eq!(waited, simulation.stall_time().0);
                let evicted = explanation.stories.iter().filter(|story| story.fate != Fate::Kept).count();
                let copied = explanation.stories.iter().filter(|story| story.fate == Fate::Swapped).count();
                let outs = instrs.iter().filter(|instr| matches!(instr, Instr::SwapOut(_))).count();
                prop_assert!(copied <= outs);
                let comes = instrs.iter().filter(|instr| matches!(instr, Instr::SwapIn(_) | Instr::Rerun { .. })).count();
                prop_assert!(evicted == 0 || comes > 0);

                let process = lanes("plan", &trace, &planned.synced, &limits, &simulation.spans, &simulation.stalls, simulation.step_time);
                let most = process.memory.iter().map(|entry| entry.1).max().unwrap_or_default();
                prop_assert!(most <= planned.report.arena, "{} of {} with {}", most, planned.report.arena, policy.name());
                let json: Value = serde_json::from_str(&to_json(&[process])).unwrap();
                let events = json["traceEvents"].as_array().unwrap();
                let slices = events.iter().filter(|event| event["ph"] == "X" && event["cat"] != "wait").count();
                prop_assert_eq!(slices, instrs.iter().filter(|instr| instr.lane().is_some()).count());
                for event in events.iter().filter(|event| event["ph"] != "M") {
                    prop_assert!(event["ts"].as_f64().unwrap() >= 0.0, "{}", event);
                    prop_assert!(event.get("dur").is_none_or(|time| time.as_f64().unwrap() >= 0.0), "{}", event);
                }
            }
        }
    }
}
