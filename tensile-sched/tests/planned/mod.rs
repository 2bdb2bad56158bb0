//! The planners on random traces, at budgets from the floor to what `none` needs.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use tensile_sched::strategy::{Sizes, links, training_traces, wild_traces};
use tensile_sched::{
    Bytes, Effort, Floor, Infeasible, Instr, Limits, Link, Mode, Nanos, NoEviction, OpId, Planned, Planner, Synced,
    Tensile, Trace, check, floor, planner, simulate,
};

use crate::mutate::mutations;
use crate::{UNIT, accepted, any_trace, config, mutants_are_caught, unlimited, waits_are_judged_right};

const MODES: [Mode; 3] = [Mode::Swap, Mode::Recompute, Mode::Both];

fn modes() -> impl Strategy<Value = Mode> {
    select(MODES.to_vec())
}

/// Every planner: the default one with little effort with every mode; with all effort, like the published ones, with one of them; those that know no modes once.
fn planners(mode: Mode) -> Vec<(Box<dyn Planner>, Mode)> {
    let fast = MODES.map(|mode| (Box::new(Tensile { effort: Effort::Fast }) as Box<dyn Planner>, mode));
    let all = planner::all().into_iter().map(|planner| match planner.name() {
        "none" | "retain" => (planner, Mode::Both),
        _ => (planner, mode),
    });
    all.filter(|(planner, _)| planner.name() != "tensile-fast").chain(fast).collect()
}

/// The lowest budget of a planner and the highest that makes a difference.
fn range(planner: &dyn Planner, trace: &Trace, limits: &Limits) -> Result<(Bytes, Bytes), TestCaseError> {
    let highest = planned(&NoEviction, trace, limits)?.report.arena;
    let lowest = match planner.plan(trace, &Limits { device: Bytes::ZERO, ..limits.clone() }) {
        Ok(_) => Bytes::ZERO,
        Err(Infeasible::Device { lowest, .. }) => lowest,
        Err(error) => return Err(TestCaseError::fail(format!("{} without memory: {error}", planner.name()))),
    };
    match planner.name() {
        "tensile" | "tensile-fast" => {
            let floor = floor(trace, limits).map_err(|error| TestCaseError::fail(error.to_string()))?.bytes;
            prop_assert_eq!(lowest, floor);
        }
        // Everything stays to the end, so that it takes more than `none`.
        "retain" => return Ok((lowest, lowest.max(highest))),
        _ => {}
    }
    prop_assert!(lowest <= highest, "{} starts at {}, above none's arena of {}", planner.name(), lowest, highest);
    Ok((lowest, highest))
}

/// Ten budgets, both ends included.
fn budgets((lowest, highest): (Bytes, Bytes)) -> impl Iterator<Item = Bytes> {
    (0..10).map(move |step| Bytes(lowest.0 + (highest.0 - lowest.0) * step / 9))
}

fn planned(planner: &dyn Planner, trace: &Trace, limits: &Limits) -> Result<Planned, TestCaseError> {
    let planned = planner
        .plan(trace, limits)
        .map_err(|error| TestCaseError::fail(format!("{} in mode {:?}: {error}", planner.name(), limits.mode)))?;
    prop_assert!(planned.report.arena <= limits.device, "arena {} above {}", planned.report.arena, limits.device);
    prop_assert!(planned.report.host_arena <= limits.host);
    let report = check(trace, &planned.synced.placed, limits);
    prop_assert_eq!(report.as_ref(), Ok(&planned.report), "{} {:?}", planner.name(), limits);
    Ok(planned)
}

/// Sum of the latencies of all kernels of a program.
fn kernel_time(trace: &Trace, synced: &Synced) -> Nanos {
    let latency = |instr: &Instr| match instr {
        Instr::Run { op, .. } | Instr::Rerun { op, .. } => trace.op(*op).latency,
        _ => Nanos::ZERO,
    };
    synced.instrs().iter().map(latency).sum()
}

/// The largest working set of one op, or what must be on the device at the end: computed anew.
/// With all ops that have it; none if it is the kept tensors at the end that need the most.
fn largest_working_set(trace: &Trace) -> (Bytes, Vec<OpId>) {
    let occupied = |bytes: Bytes| bytes.0.div_ceil(UNIT.0) * UNIT.0;
    let of_ops: Vec<u64> = trace
        .ops()
        .iter()
        .map(|op| {
            let tensors = op.reads.iter().chain(&op.writes).chain(&op.updates);
            let all: u64 = tensors.map(|&id| occupied(trace.tensor(id).bytes)).sum();
            let shared: u64 = op.in_place.iter().map(|pair| occupied(trace.tensor(pair.output).bytes)).sum();
            all - shared + occupied(op.workspace)
        })
        .collect();
    let kept: u64 = trace.tensors().iter().filter(|tensor| tensor.keep).map(|tensor| occupied(tensor.bytes)).sum();
    let largest = of_ops.iter().copied().max().unwrap_or(0);
    let ops = trace.op_ids().zip(of_ops).filter(|&(_, bytes)| bytes == largest && bytes >= kept).map(|(id, _)| id);
    (Bytes(largest.max(kept)), ops.collect())
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn every_program_at_ten_budgets_is_right(
        trace in any_trace(), link in links(), mode in modes(), closer_look in 0usize..10, mutations in vec(mutations(), 6),
    ) {
        for (planner, mode) in planners(mode) {
            let limits = Limits { mode, link, ..unlimited() };
            let range = range(planner.as_ref(), &trace, &limits)?;
            let mut before: Option<Planned> = None;
            for (step, device) in budgets(range).enumerate() {
                let limits = Limits { device, ..limits.clone() };
                let planned = planned(planner.as_ref(), &trace, &limits)?;
                if step != closer_look && before.as_ref() == Some(&planned) {
                    continue;
                }
                let touches = accepted(&trace, &planned.synced.placed, &limits)?;
                let at_once = simulate(&trace, &planned.synced, &Link::INFINITE).step_time;
                prop_assert_eq!(at_once, kernel_time(&trace, &planned.synced), "with copies that take no time");
                if step == closer_look {
                    waits_are_judged_right(&trace, &planned.synced, &touches)?;
                    mutants_are_caught(&trace, &planned.synced.placed, &mutations)?;
                    let again = planner.plan(&trace, &limits);
                    prop_assert_eq!(again.as_ref(), Ok(&planned), "equal input");
                }
                before = Some(planned);
            }
        }
    }

    #[test]
    fn below_its_lowest_budget_a_planner_names_the_op(trace in any_trace(), mode in modes()) {
        for (planner, mode) in planners(mode) {
            let limits = Limits { mode, ..unlimited() };
            let (lowest, _) = range(planner.as_ref(), &trace, &limits)?;
            if lowest == Bytes::ZERO {
                continue;
            }
            let below = Limits { device: lowest - Bytes(1), ..limits.clone() };
            match planner.plan(&trace, &below) {
                Err(Infeasible::Device { budget, lowest: named, op, label }) => {
                    prop_assert_eq!((budget, named), (below.device, lowest));
                    // A trace without ops has nothing to name.
                    prop_assert_eq!(Some(&label), trace.ops().get(op.index()).map(|op| &op.label).or(Some(&label)));
                    if planner.name().starts_with("tensile") {
                        prop_assert_eq!(floor(&trace, &limits), Ok(Floor { bytes: lowest, op }));
                    }
                }
                // Published policies are not monotone, and the floor by recomputation alone is what a search guarantees: another may find less.
                Ok(planned)
                    if !["tensile", "tensile-fast", "none", "retain"].contains(&planner.name())
                        || planner.name().starts_with("tensile") && mode == Mode::Recompute =>
                {
                    prop_assert!(planned.report.arena <= below.device);
                }
                other => prop_assert!(false, "{}: {:?}", planner.name(), other.map(|planned| planned.report)),
            }
        }
    }

    #[test]
    fn the_floor_with_swapping_is_the_largest_working_set(trace in any_trace()) {
        for mode in [Mode::Swap, Mode::Both] {
            let floor = floor(&trace, &Limits { mode, ..unlimited() }).unwrap();
            let (bytes, ops) = largest_working_set(&trace);
            prop_assert_eq!(floor.bytes, bytes);
            prop_assert!(ops.is_empty() || ops.contains(&floor.op), "{} is not among {:?}", floor.op, ops);
        }
    }

    #[test]
    fn without_a_limit_steps_take_the_sum_of_latencies(trace in any_trace(), mode in modes()) {
        for (planner, mode) in planners(mode) {
            let limits = Limits { mode, link: Link::INFINITE, ..unlimited() };
            let planned = planned(planner.as_ref(), &trace, &limits)?;
            prop_assert_eq!(planned.simulation.step_time, trace.compute_time());
            prop_assert_eq!(planned.report.reruns, 0);
        }
    }

    /// A job that has a boundary gets programs that start and end there, under any budget at which that is possible.
    #[test]
    fn given_boundaries_are_kept(trace in any_trace(), from in 0usize..10, to in 0usize..10) {
        for (mode_before, mode) in [(Mode::Swap, Mode::Both), (Mode::Both, Mode::Swap), (Mode::Both, Mode::Both)] {
            let planner = Tensile { effort: Effort::Fast };
            let free = Limits { mode: mode_before, ..unlimited() };
            let device = budgets(range(&planner, &trace, &free)?).nth(from).expect("there are ten");
            let homes = planned(&planner, &trace, &Limits { device, ..free })?.synced.placed.layout.homes;
            let limits = Limits { mode, boundary: Some(homes), ..unlimited() };
            let device = budgets(range(&planner, &trace, &limits)?).nth(to).expect("there are ten");
            let limits = Limits { device, ..limits };
            let planned = planned(&planner, &trace, &limits)?;
            accepted(&trace, &planned.synced.placed, &limits)?;
        }
    }

    /// With little host memory a program keeps to it, or the error says how much is missing. Published policies may also find that the device budget does not
    /// suffice without the copies that they cannot make.
    #[test]
    fn host_budgets_are_kept(trace in any_trace(), mode in modes(), step in 0usize..10, share in 0u64..10) {
        for (planner, mode) in planners(mode) {
            let limits = Limits { mode, ..unlimited() };
            let device = budgets(range(planner.as_ref(), &trace, &limits)?).nth(step).expect("there are ten");
            let needed = planned(planner.as_ref(), &trace, &Limits { device, ..limits.clone() })?.report.host_arena;
            let limits = Limits { device, host: Bytes(needed.0 * share / 9), ..limits };
            match planner.plan(&trace, &limits) {
                Ok(_) => _ = planned(planner.as_ref(), &trace, &limits)?,
                Err(Infeasible::Host { budget, needed }) => {
                    prop_assert!(budget == limits.host && needed > budget, "{:?} of {:?}", budget, needed);
                }
                Err(Infeasible::Device { lowest, .. }) if !planner.name().starts_with("tensile") => {
                    prop_assert!(lowest > device, "{}: {} of {}", planner.name(), lowest, device);
                }
                Err(error) => prop_assert!(false, "{}: {}", planner.name(), error),
            }
        }
    }

    #[test]
    fn too_large_blocks_are_named(trace in any_trace(), mode in modes()) {
        let used = |id: &tensile_sched::TensorId| trace.ops().iter().any(|op| op.reads.contains(id) || op.writes.contains(id) || op.updates.contains(id));
        let largest_tensor = trace.tensor_ids().filter(used).map(|id| trace.tensor(id).bytes).max();
        let largest = largest_tensor.max(trace.ops().iter().map(|op| op.workspace).max()).unwrap_or(Bytes::ZERO);
        if largest > Bytes::ZERO {
            for (planner, mode) in planners(mode) {
                let limits = Limits { mode, max_block: largest - Bytes(1), ..unlimited() };
                match planner.plan(&trace, &limits) {
                    Err(Infeasible::Block { bytes, max_block, .. }) => {
                        prop_assert_eq!(max_block, limits.block());
                        prop_assert!(bytes > max_block);
                    }
                    other => prop_assert!(false, "{}: {:?}", planner.name(), other.map(|planned| planned.report)),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config(24))]

    /// Memory in blocks of one to three times the largest tensor: every planner's programs are right from its lowest budget up, and the default one names its floor below.
    #[test]
    fn programs_in_blocks_are_right(trace in any_trace(), link in links(), mode in modes(), percent in 100u64..300) {
        let sizes = trace.tensors().iter().map(|tensor| tensor.bytes).chain(trace.ops().iter().map(|op| op.workspace));
        let largest = sizes.max().unwrap_or(UNIT).align_up(UNIT);
        for (planner, mode) in planners(mode) {
            let limits = Limits { mode, link, max_block: Bytes(largest.0 * percent / 100), ..unlimited() };
            let range = range(planner.as_ref(), &trace, &limits)?;
            for device in budgets(range).step_by(3) {
                let limits = Limits { device, ..limits.clone() };
                let planned = planned(planner.as_ref(), &trace, &limits)?;
                accepted(&trace, &planned.synced.placed, &limits)?;
            }
            if range.0 > Bytes::ZERO && planner.name().starts_with("tensile") && mode != Mode::Recompute {
                let below = Limits { device: range.0 - Bytes(1), ..limits.clone() };
                let refused = planner.plan(&trace, &below);
                let is_named = matches!(refused, Err(Infeasible::Device { lowest, .. }) if lowest == range.0);
                prop_assert!(is_named, "{:?}", refused.map(|planned| planned.report));
            }
        }
    }
}

proptest! {
    #![proptest_config(config(4))]

    /// Large traces: planners panic when check or verify refuses their own program, so planning is the test.
    #[test]
    fn large_traces_are_planned(
        trace in prop_oneof![
            wild_traces(Sizes { unit: UNIT.0, most_units: 1 << 16, odd: true }, 60..160),
            training_traces(Sizes { unit: UNIT.0, most_units: 1 << 16, odd: true }, 20..40),
        ],
        link in links(), mode in modes(),
    ) {
        for (planner, mode) in planners(mode) {
            let limits = Limits { mode, link, ..unlimited() };
            let range = range(planner.as_ref(), &trace, &limits)?;
            for device in budgets(range).step_by(4) {
                planned(planner.as_ref(), &trace, &Limits { device, ..limits.clone() })?;
            }
        }
    }
}
