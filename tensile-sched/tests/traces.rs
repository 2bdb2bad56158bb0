//! Plans for real training traces, which are not part of the repository.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tensile_sched::{
    Bytes, Limits, Liveness, NoEviction, Planner, Role, Tensile, Trace, check, floor, read_trace, verify,
};

/// The folder, if it is there: `../shared/traces` beside the repository, or below the folder that `TENSILE_SHARED` names.
fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("TENSILE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    let folder = shared.join("traces");
    if folder.is_dir() {
        return Some(folder);
    }
    say(&format!("SKIPPED: no traces in {}; set TENSILE_SHARED to the folder that holds them", folder.display()));
    None
}

/// What was planned and what was skipped is worth reading even of a test that passes, so it goes past the test runner's capture.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Names and traces, by name; without the files that hold only lifetimes if `training`.
fn traces(training: bool) -> Vec<(String, Trace)> {
    let Some(folder) = folder() else { return Vec::new() };
    let entries =
        std::fs::read_dir(folder).expect("a readable folder").map(|entry| entry.expect("a readable folder").path());
    let mut traces: Vec<(String, Trace)> = entries
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix(".json.gz")?.to_string();
            let holds_lifetimes_only = name.starts_with("minimalloc") || name.starts_with("somas");
            if training && holds_lifetimes_only {
                return None;
            }
            let bytes = std::fs::read(&path).expect("a readable file");
            let trace = read_trace(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            Some((name, trace))
        })
        .collect();
    assert!(!traces.is_empty(), "the folder of traces holds none");
    traces.sort_by(|a, b| a.0.cmp(&b.0));
    traces
}

/// At the floor, at half of `none`'s arena (the floor if that is more) and at all of it: within the budget, and accepted by both provers.
#[test]
fn every_training_trace_is_planned() {
    let traces = traces(true);
    let next = AtomicUsize::new(0);
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                while let Some((name, trace)) = traces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    plan_at_three_budgets(name, trace);
                }
            });
        }
    });
}

fn plan_at_three_budgets(name: &str, trace: &Trace) {
    let unlimited = Limits::unlimited();
    let floor = floor(trace, &unlimited).expect("no block limit and no boundary");
    let none = NoEviction.plan(trace, &unlimited).expect("no limit");
    let whole = none.report.arena;
    for (label, device) in [("floor", floor.bytes), ("50 %", floor.bytes.max(Bytes(whole.0 / 2))), ("100 %", whole)] {
        let limits = Limits { device, ..unlimited.clone() };
        let begin = Instant::now();
        let planned =
            Tensile::default().plan(trace, &limits).unwrap_or_else(|error| panic!("{name} at {label}: {error}"));
        let time = begin.elapsed();
        let report = check(trace, &planned.synced.placed, &limits)
            .unwrap_or_else(|faults| panic!("{name} at {label}: {}", faults[0]));
        assert_eq!(report, planned.report);
        assert!(report.arena <= device, "{name} at {label}: {} above {device}", report.arena);
        verify(trace, &planned.synced).unwrap_or_else(|races| panic!("{name} at {label}: {}", races[0]));
        say(&format!(
            "{name} at {label}: planned in {} ms, {} of {whole}, overhead {:.2} %, {} evictions, {} reruns",
            time.as_millis(),
            report.arena,
            planned.simulation.overhead() * 100.0,
            report.evictions,
            report.reruns,
        ));
        if label == "100 %" {
            assert_eq!((report.evictions, report.reruns), (0, 0), "{name} with room for everything");
            assert!(planned.simulation.step_time <= none.simulation.step_time);
        }
    }
}

/// Sequential peaks published with the traces: with inputs there from the start until their last reader, which ours are not before their first.
const PEAKS: [(&str, u64); 19] = [
    ("dnnpart_bert12_op", 5822453048),
    ("dnnpart_bert3_op", 1239195448),
    ("dtr_inceptionv4_bs64", 11245092208),
    ("dtr_lstm_128", 4278034352),
    ("dtr_resnet32_bs56", 10061176456),
    ("dtr_transformer_bs10", 9346670784),
    ("minimalloc_a", 1048576),
    ("minimalloc_h", 1048576),
    ("mlsys26_13", 50855936),
    ("monet_googlenet_bs320", 14635602048),
    ("monet_resnet50_bs184", 22768414272),
    ("monet_unet_bs11", 18709898760),
    ("param_linear20", 230862848),
    ("param_resnet18_bs128", 2960092552),
    ("param_resnet50_ddp", 3089965864),
    ("pipedream_densenet121", 8121978176),
    ("pipedream_gnmt_large", 2531027712),
    ("pipedream_resnet50", 11003031616),
    ("pipedream_vgg16", 9065944128),
];

#[test]
fn peaks_are_the_published_ones() {
    let limits = Limits { alignment: Bytes(1), ..Limits::unlimited() };
    for (name, trace) in traces(false) {
        let Some(&(_, published)) = PEAKS.iter().find(|peak| peak.0 == name) else { continue };
        let peak = Liveness::new(&trace).peak(&trace, &limits).bytes.0;
        let inputs: u64 =
            trace.tensors().iter().filter(|tensor| tensor.role == Role::Input).map(|tensor| tensor.bytes.0).sum();
        assert!(peak <= published && published - peak <= inputs, "{name}: {peak}, published {published}");
    }
}
