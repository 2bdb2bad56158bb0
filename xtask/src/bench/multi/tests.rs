//! What a bench of minutes shows in full, for some of its rows and with little effort.

use std::io::Write as _;

use tensile_sched::{Division, Effort, Tensile, read_trace};

use super::curves;
use super::figures::MODELS;
use super::mix::Policy;
use super::report::beats;
use super::rows::{Choice, Wanted};
use super::steps::Step;

const FAST: Tensile = Tensile { effort: Effort::Fast };

/// Past the test runner's capture.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The five recorded steps, if the folder is there: `../shared/traces` beside the repository, or below the folder that `TENSILE_SHARED` names.
fn steps(batch: u32) -> Option<Vec<Step>> {
    let shared = std::env::var_os("TENSILE_SHARED")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into(), std::path::PathBuf::from);
    let folder = shared.join("traces");
    if !folder.is_dir() {
        say(&format!("SKIPPED: no traces in {}; set TENSILE_SHARED to the folder that holds them", folder.display()));
        return None;
    }
    let step = |model: &&str| {
        let bytes = std::fs::read(folder.join(format!("tensile_{model}_b{batch}.json.gz"))).expect("a readable file");
        Step::new(read_trace(&bytes).expect("a trace")).expect("no limit")
    };
    Some(MODELS.iter().map(step).collect())
}

/// A higher saving at a lower slowdown than the authors', measured against `retain` as they did: every row.
#[test]
fn every_recorded_row_is_beaten() {
    for batch in [2, 16] {
        let Some(steps) = steps(batch) else { return };
        // At batch 16 each job is alone, so there is nothing to divide: from the floor to `none`.
        let n_points = if batch == 2 { 5 } else { 2 };
        let curves = curves(&FAST, &steps, n_points).expect("a plan without a limit");
        let wanted = Wanted { baselines: &[], all: false };
        let rows = super::rows(&FAST, batch, &steps, &curves, &wanted).expect("above the floor");
        assert_eq!(rows.len(), 15);
        for row in &rows {
            let taken = row.points[0].taken.as_ref().expect("a plan");
            say(&format!(
                "{} b{} x{}: MSR {:.3} (none: {:.3}) at EOR {:.2} %, recorded {:.3} at {:.1} %",
                row.model,
                row.batch,
                row.jobs,
                taken.msr_retain(),
                taken.msr_none(),
                taken.eor_retain() * 100.0,
                row.msr,
                row.eor * 100.0
            ));
            assert!(beats(row, Choice::TheirMemory), "{} b{batch} x{}", row.model, row.jobs);
        }
    }
}

/// The division along frontiers loses less than the others, each job alone; the five models at batch 2, equal weights and one heavy model.
#[test]
fn dividing_along_frontiers_slows_less() {
    let Some(steps) = steps(2) else { return };
    let curves = curves(&FAST, &steps, 9).expect("a plan without a limit");
    let policy = Policy::new("tensile", &FAST, &steps, curves);
    for (percent, weights) in [(60.0, [1.0; 5]), (60.0, [4.0, 1.0, 1.0, 1.0, 1.0])] {
        let slowdowns = [Division::Frontier, Division::Equal, Division::Proportional].map(|division| {
            let mix = policy.mix(2, percent, division, weights);
            let taken = mix.taken.as_ref().expect("above the floors");
            assert!(taken.bytes <= mix.budget, "{division:?} at {percent} %: {} above {}", taken.bytes, mix.budget);
            mix.alone.expect("above the floors") * 100.0
        });
        say(&format!("{percent} % by {weights:?}: {slowdowns:.1?} % along frontiers, equally, in proportion"));
        assert!(slowdowns[0] < slowdowns[1] && slowdowns[0] < slowdowns[2], "{percent} %: {slowdowns:?}");
    }
}
