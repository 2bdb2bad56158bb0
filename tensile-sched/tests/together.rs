//! Several jobs on one simulated device.

use std::io::Write as _;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use tensile_sched::strategy::{Sizes, traces};
use tensile_sched::{
    Bytes, Duplex, Effort, Instr, Limits, Link, Nanos, NoEviction, Planned, Planner, Synced, Tensile, Trace, floor,
    read_trace, simulate, simulate_together,
};

/// A step planned in the middle between the floor and the arena of `none`.
fn tight(trace: &Trace, link: Link) -> Planned {
    let unlimited = Limits { alignment: Bytes(16), link, ..Limits::unlimited() };
    let floor = floor(trace, &unlimited).expect("no block limit and no boundary").bytes;
    let none = NoEviction.plan(trace, &unlimited).expect("no limit").report.arena;
    let device = floor.max(Bytes(floor.0 / 2 + none.0 / 2));
    Tensile { effort: Effort::Fast }.plan(trace, &Limits { device, ..unlimited }).expect("at the floor or above")
}

/// Time that a step takes of the kernels' place and of each way of the link.
fn use_of(trace: &Trace, synced: &Synced, link: &Link) -> [u64; 3] {
    let mut time = [0; 3];
    for instr in synced.instrs() {
        match instr {
            Instr::Run { op, .. } | Instr::Rerun { op, .. } => time[0] += trace.op(*op).latency.0,
            Instr::SwapOut(tensor) => time[1] += link.out_time(trace.tensor(*tensor).bytes).0,
            Instr::SwapIn(tensor) => time[2] += link.in_time(trace.tensor(*tensor).bytes).0,
            Instr::Release(_) => {}
        }
    }
    time
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No part of the device works more than all the time. Averages end with whole steps, so that each job may have up to a step's work more, of 16 or more.
    #[test]
    fn nothing_is_used_twice_at_once(
        traces in vec(traces(Sizes { unit: 16, most_units: 4, odd: true }, 1..24), 1..5),
        duplex in prop_oneof![Just(Duplex::Full), Just(Duplex::Half), Just(Duplex::NoOverlap)],
    ) {
        // A byte takes as long as a few nanoseconds of kernels, so that both matter.
        let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos(3), duplex, ..Link::PCIE3_X16 };
        let planned: Vec<Planned> = traces.iter().map(|trace| tight(trace, link)).collect();
        let jobs: Vec<(&Trace, &Synced)> = traces.iter().zip(&planned).map(|(trace, planned)| (trace, &planned.synced)).collect();
        let simulations = simulate_together(&jobs, &link);
        prop_assert_eq!(&simulate_together(&jobs, &link), &simulations);
        let mut used = [0.0; 3];
        for ((trace, synced), simulation) in jobs.iter().zip(&simulations) {
            prop_assert!(simulation.step_time >= simulation.compute_time && simulation.step_time < Nanos::MAX);
            for (used, time) in used.iter_mut().zip(use_of(trace, synced, &link)) {
                *used += time as f64 / simulation.step_time.0.max(1) as f64;
            }
        }
        let parts = match duplex {
            Duplex::Full => used.to_vec(),
            Duplex::Half => vec![used[0], used[1] + used[2]],
            Duplex::NoOverlap => vec![used.iter().sum()],
        };
        prop_assert!(parts.iter().all(|part| *part <= 1.0 + 1.5 / 16.0), "{:?}", parts);
    }

    /// An idle neighbour makes no difference, nor does a job's place in the list to a job that is alone.
    #[test]
    fn beside_a_job_without_work_a_step_is_as_alone(trace in traces(Sizes { unit: 16, most_units: 4, odd: true }, 1..24)) {
        let idle = Trace::new(vec![], vec![]).unwrap();
        let nothing = NoEviction.plan(&idle, &Limits::unlimited()).unwrap();
        let planned = tight(&trace, Link::PCIE3_X16);
        let simulations = simulate_together(&[(&idle, &nothing.synced), (&trace, &planned.synced)], &Link::PCIE3_X16);
        let alone = simulate(&trace, &planned.synced, &Link::PCIE3_X16);
        prop_assert_eq!(simulations[1].first_step_time, alone.first_step_time);
        let (beside, alone) = (simulations[1].step_time.0 as f64, alone.step_time.0 as f64);
        prop_assert!((beside - alone).abs() <= 1.0 + alone * 0.01, "{} and {}", beside, alone);
    }
}

/// A recorded step, if the folder is there: `../shared/traces` beside the repository, or below the folder that `TENSILE_SHARED` names.
fn recorded(name: &str) -> Option<Trace> {
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

/// Past the test runner's capture.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// One recorded step alone, beside a job that has nothing to do, and twice.
#[test]
fn recorded_steps_alone_and_together() {
    let idle = Trace::new(vec![], vec![]).expect("an empty step");
    let nothing = NoEviction.plan(&idle, &Limits::unlimited()).expect("nothing fits").synced;
    let link = Link::PCIE3_X16;
    for model in ["vgg16", "inceptionv3", "inceptionv4", "resnet50", "densenet121"] {
        let Some(trace) = recorded(&format!("tensile_{model}_b2")) else { return };
        let planned = tight(&trace, link);
        let job = (&trace, &planned.synced);
        let alone = simulate(job.0, job.1, &link);
        assert_eq!(simulate_together(&[job], &link), std::slice::from_ref(&alone));
        let beside = &simulate_together(&[job, (&idle, &nothing)], &link)[0];
        assert_eq!((beside.step_time, beside.first_step_time), (alone.step_time, alone.first_step_time), "{model}");
        let twice = simulate_together(&[job, job], &link);
        // Both take turns, so each is between once and twice as slow as alone, and they are done when the kernels of both are.
        let kernels = use_of(job.0, job.1, &link)[0];
        for simulation in &twice {
            let times = simulation.step_time.0 as f64 / kernels as f64;
            say(&format!(
                "{model} twice: {times:.3} times its kernels; alone {:.3}",
                alone.step_time.0 as f64 / kernels as f64
            ));
            assert!(simulation.step_time.0 <= 2 * alone.step_time.0 + 1 && times >= 1.99, "{model}: {times}");
        }
    }
}
