//! What others have published about their policies on real traces, which are not part of the repository.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use tensile_sched::{Bytes, Dtr, Trace, read_trace};

/// A trace by name, if the folder is there: `../shared/traces` beside the repository, or below the folder that `TENSILE_SHARED` names.
fn trace(name: &str) -> Option<Trace> {
    let shared = std::env::var_os("TENSILE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    let folder = shared.join("traces");
    if !folder.is_dir() {
        say(&format!("SKIPPED: no traces in {}; set TENSILE_SHARED to the folder that holds them", folder.display()));
        return None;
    }
    let bytes = std::fs::read(folder.join(format!("{name}.json.gz"))).expect("a readable file");
    Some(read_trace(&bytes).unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// Figures are worth reading even of a test that passes, so they go past the test runner's capture.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Slowdowns of `h_DTR^eq` in the authors' own simulator, at 0.9, 0.8, … of the peak; none where it runs out of memory.
///
/// Their logs free a tensor when Python drops its last reference, which may be much later than its last use. The files have it as `released_after`, which the reader of traces leaves out: in a plan
/// made ahead nothing has to live beyond its last use. In the first two traces that concerns five small tensors, in the other two up to a quarter of the peak (with it ours are within
/// 0.5 points there as well, but for 1.1 in dtr_lstm_128 at 0.3).
struct Published {
    name: &'static str,
    peak: u64,
    slowdowns: [Option<f64>; 8],
    /// Most that may lie between their figures and ours.
    tolerance: Option<f64>,
}

const PUBLISHED: [Published; 4] = [
    Published {
        name: "dtr_resnet32_bs56",
        peak: 10061179152,
        slowdowns: [
            Some(1.013),
            Some(1.025),
            Some(1.046),
            Some(1.074),
            Some(1.107),
            Some(1.140),
            Some(1.179),
            Some(1.332),
        ],
        tolerance: Some(0.005),
    },
    Published {
        name: "dtr_inceptionv4_bs64",
        peak: 11245348984,
        slowdowns: [Some(1.008), Some(1.024), Some(1.044), Some(1.066), Some(1.092), Some(1.138), Some(1.244), None],
        tolerance: Some(0.005),
    },
    Published {
        name: "dtr_transformer_bs10",
        peak: 9864405000,
        slowdowns: [
            Some(1.009),
            Some(1.020),
            Some(1.031),
            Some(1.044),
            Some(1.058),
            Some(1.091),
            Some(1.124),
            Some(1.545),
        ],
        tolerance: None,
    },
    Published {
        name: "dtr_lstm_128",
        peak: 5595127736,
        slowdowns: [
            Some(1.017),
            Some(1.027),
            Some(1.031),
            Some(1.042),
            Some(1.071),
            Some(1.159),
            Some(1.365),
            Some(1.550),
        ],
        tolerance: None,
    },
];

#[test]
fn dtr_is_as_slow_as_its_authors_say() {
    for published in &PUBLISHED {
        let Some(trace) = trace(published.name) else { return };
        let compute = trace.compute_time().0 as f64;
        for (index, &theirs) in published.slowdowns.iter().enumerate() {
            let budget = Bytes(published.peak * (9 - index as u64) / 10);
            let begin = Instant::now();
            let ours = Dtr::step_time(&trace, budget).map(|time| time.0 as f64 / compute);
            say(&format!(
                "{} at 0.{}: {ours:.4?}, published {theirs:.3?}, in {} ms",
                published.name,
                9 - index,
                begin.elapsed().as_millis()
            ));
            if let Some(tolerance) = published.tolerance {
                let is_near = match (ours, theirs) {
                    (Some(ours), Some(theirs)) => (ours - theirs).abs() <= tolerance,
                    (ours, theirs) => ours == theirs,
                };
                assert!(is_near, "{} at 0.{}: {ours:?}, published {theirs:?}", published.name, 9 - index);
            }
        }
    }
}
