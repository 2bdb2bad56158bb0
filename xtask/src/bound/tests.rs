use proptest::prelude::*;
use tensile_sched::strategy::{Sizes, links, traces, training_traces, wild_traces};
use tensile_sched::{Bytes, Duplex, Limits, Link, Mode, NoEviction, Planner, Trace, floor, planner};

use super::{Detail, least_overhead};

const UNIT: Bytes = Bytes(256);
const MODES: [Mode; 3] = [Mode::Swap, Mode::Recompute, Mode::Both];

fn sizes(most_units: u64) -> Sizes {
    Sizes { unit: UNIT.0, most_units, odd: true }
}

/// No policy's program is faster than the bound says, at budgets from the floor to what needs no eviction.
fn is_below_all_policies(trace: &Trace, link: Link, detail: Detail, n_budgets: u64) -> Result<(), TestCaseError> {
    for mode in MODES {
        let unlimited = Limits { alignment: UNIT, link, mode, ..Limits::unlimited() };
        let lowest = floor(trace, &unlimited).expect("no limits on blocks").bytes;
        let highest = NoEviction.plan(trace, &unlimited).expect("no limit").report.arena;
        for step in 0..n_budgets {
            let device = Bytes(lowest.0 + (highest.0 - lowest.0) * step / n_budgets);
            let limits = Limits { device, ..unlimited.clone() };
            let of_file = least_overhead(trace, &limits, detail);
            prop_assert!(of_file >= 0.0);
            for policy in planner::all() {
                let Ok(planned) = policy.plan(trace, &limits) else { continue };
                let order = planned.synced.placed.program.order();
                let bound = if order.is_sorted() {
                    of_file
                } else {
                    least_overhead(&trace.in_order(&order).expect("a right order"), &limits, detail)
                };
                let reached = planned.simulation.overhead();
                // Times are whole nanoseconds.
                let slack = 1e-6 * (1.0 + reached) + 1.0 / trace.compute_time().0.max(1) as f64;
                prop_assert!(
                    bound <= reached + slack,
                    "{} reaches {reached} at {device} in mode {mode:?}, below the bound {bound}",
                    policy.name()
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_policy_beats_the_bound(trace in traces(sizes(6), 1..14), link in links()) {
        let detail = Detail { samples: 64, least_bytes: Bytes(1) };
        is_below_all_policies(&trace, link, detail, 3)?;
    }

    #[test]
    fn nor_one_with_few_samples(
        trace in prop_oneof![wild_traces(sizes(64), 8..30), training_traces(sizes(64), 3..10)],
        link in links(),
        samples in 1usize..12,
        least in 1u64..2000,
    ) {
        is_below_all_policies(&trace, link, Detail { samples, least_bytes: Bytes(least) }, 2)?;
    }
}

mod by_hand {
    use tensile_sched::{Nanos, Op, Role, Tensor, TensorId};

    use super::*;

    /// One nanosecond a byte each way, without latency.
    const LINK: Link = Link {
        out_bytes_per_s: 1e9,
        in_bytes_per_s: 1e9,
        latency: Nanos::ZERO,
        duplex: Duplex::Full,
        kernel_slowdown: 1.0,
        copy_slowdown: 1.0,
    };

    fn tensor(bytes: u64, role: Role) -> Tensor {
        Tensor { name: String::new(), bytes: Bytes(bytes), role, keep: false }
    }

    fn op(latency: u64, reads: &[u32], writes: &[u32], updates: &[u32]) -> Op {
        let ids = |ids: &[u32]| ids.iter().map(|&id| TensorId(id)).collect();
        Op {
            label: String::new(),
            class: String::new(),
            reads: ids(reads),
            writes: ids(writes),
            updates: ids(updates),
            workspace: Bytes::ZERO,
            latency: Nanos(latency),
            replayable: updates.is_empty(),
            in_place: vec![],
        }
    }

    fn bound(trace: &Trace, device: u64, mode: Mode, link: Link) -> f64 {
        let limits = Limits { device: Bytes(device), alignment: Bytes(1), link, mode, ..Limits::unlimited() };
        least_overhead(trace, &limits, Detail { samples: 64, least_bytes: Bytes(1) })
    }

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found}, not {expected}");
    }

    /// a (100) is made by op 0 and read by op 2; op 1 needs 150 of its own.
    fn one_large_tensor(latency: u64) -> Trace {
        let tensors = vec![tensor(100, Role::Activation), tensor(150, Role::Activation)];
        let ops = vec![op(20, &[], &[0], &[]), op(latency, &[], &[1], &[]), op(10, &[0], &[], &[])];
        Trace::new(tensors, ops).unwrap()
    }

    #[test]
    fn a_swap_takes_the_link_and_a_rerun_the_op() {
        let trace = one_large_tensor(30);
        // Half of a leaves before op 1 starts; in the relaxation it may begin when op 0 starts, 20 ns before. It comes back while op 1 runs and 20 ns more.
        assert_near(bound(&trace, 200, Mode::Swap, LINK), (30.0 + 20.0) / 60.0);
        // Half of a rerun.
        assert_near(bound(&trace, 200, Mode::Recompute, LINK), 10.0 / 60.0);
        // A quarter of each: while 5 ns are spent on the rerun, 25 bytes leave in 20 + 5 ns.
        assert_near(bound(&trace, 200, Mode::Both, LINK), 5.0 / 60.0);
        assert_near(bound(&trace, 250, Mode::Swap, LINK), 0.0);
        assert_eq!(bound(&trace, 149, Mode::Both, LINK), f64::INFINITY);
    }

    #[test]
    fn copies_share_the_link_or_the_device_as_it_says() {
        let trace = one_large_tensor(30);
        let with = |duplex| bound(&trace, 200, Mode::Swap, Link { duplex, ..LINK });
        assert_near(with(Duplex::Half), with(Duplex::Full));
        // 50 out and 50 back, nothing beside them.
        assert_near(with(Duplex::NoOverlap), 100.0 / 60.0);
    }

    #[test]
    fn parameters_leave_free_of_charge_unless_updated() {
        let tensors = vec![tensor(100, Role::Parameter), tensor(150, Role::Activation)];
        let step = |updates: &[u32]| {
            let reads: &[u32] = if updates.is_empty() { &[0] } else { &[] };
            let ops = vec![op(20, &[0], &[], &[]), op(30, &[], &[1], &[]), op(10, reads, &[], updates)];
            Trace::new(tensors.clone(), ops).unwrap()
        };
        assert_near(bound(&step(&[]), 150, Mode::Swap, LINK), 70.0 / 60.0);
        // The copy of the new version has the time from op 2 to op 1 of the next step: 30 ns, all of which the way back of the old one does not need.
        assert_near(bound(&step(&[0]), 150, Mode::Swap, LINK), 140.0 / 60.0);
        assert_eq!(bound(&step(&[]), 200, Mode::Recompute, LINK), f64::INFINITY);
    }

    #[test]
    fn inputs_come_and_outputs_go_every_step() {
        let tensors = vec![tensor(100, Role::Input), tensor(40, Role::Output)];
        let trace = Trace::new(tensors, vec![op(20, &[0], &[1], &[])]).unwrap();
        assert_near(bound(&trace, 1000, Mode::Both, LINK), 80.0 / 20.0);
        assert_near(bound(&trace, 1000, Mode::Recompute, Link { duplex: Duplex::Half, ..LINK }), 120.0 / 20.0);
    }
}
