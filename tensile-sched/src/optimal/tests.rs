use super::*;
use crate::limits::Link;
use crate::testing::{op, trace};
use crate::trace::Op;

const UNIT: u64 = 1000;

/// A unit takes 1,000 ns each way.
fn limits(units: u64, mode: Mode) -> Limits {
    let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos(0), ..Link::PCIE3_X16 };
    Limits { alignment: Bytes(1), link, mode, ..Limits::with_budget(Bytes(units * UNIT)) }
}

fn time(trace: &Trace, units: u64, mode: Mode) -> Option<u64> {
    match optimal(trace, &limits(units, mode)) {
        Ok(best) => {
            assert!(best.is_proven);
            Some(best.step_time.0)
        }
        Err(OptimalError::Infeasible { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// 0 is made by op 0 and needed by op 3; ops 1 and 2 need two units between them.
fn detour(latency: u64) -> Trace {
    let ops = vec![op(latency, &[], &[0]), op(5000, &[], &[1]), op(5000, &[1], &[2]), op(100, &[0, 2], &[])];
    trace(&[(UNIT, Role::Activation); 3], ops)
}

#[test]
fn the_cheaper_way_is_taken() {
    let quick = detour(100);
    assert_eq!(time(&quick, 3, Mode::Both), Some(10_200));
    // A rerun costs 100. The copy out hides, but there is room for the copy back only when op 2 has ended.
    assert_eq!(time(&quick, 2, Mode::Both), Some(10_200 + 100));
    assert_eq!(time(&quick, 2, Mode::Recompute), Some(10_200 + 100));
    assert_eq!(time(&quick, 2, Mode::Swap), Some(10_200 + 1000));
    assert_eq!(time(&quick, 1, Mode::Both), None);
    let slow = detour(3000);
    assert_eq!(time(&slow, 2, Mode::Both), Some(13_100 + 1000));
    assert_eq!(time(&slow, 2, Mode::Recompute), Some(13_100 + 3000));
}

#[test]
fn a_claim_waits_for_bytes_to_be_free_and_a_copy_back_hides() {
    // Op 1 writes three units, of which only one lives on.
    let ops = || vec![op(3000, &[], &[0]), op(5000, &[], &[1, 2, 3]), op(5000, &[1], &[]), op(100, &[0], &[])];
    let activation = trace(&[(UNIT, Role::Activation); 4], ops());
    // Op 1 waits for the copy of 0 to leave; it comes back during op 2.
    assert_eq!(time(&activation, 3, Mode::Swap), Some(13_100 + 1000));
    assert_eq!(time(&activation, 4, Mode::Swap), Some(13_100));
    // A weight that nobody updates is on the host anyhow.
    let mut sizes = [(UNIT, Role::Activation); 4];
    sizes[0].1 = Role::Parameter;
    let mut with_weight: Vec<Op> = ops();
    with_weight[0] = op(3000, &[0], &[]);
    assert_eq!(time(&trace(&sizes, with_weight.clone()), 3, Mode::Swap), Some(13_100));
    // One that is updated at the end has left behind its update in the step before.
    with_weight[3] = op(100, &[], &[]).with_updates(&[0]);
    let best = optimal(&trace(&sizes, with_weight), &limits(3, Mode::Swap)).expect("three units are enough");
    assert_eq!(best.step_time, Nanos(13_100));
    assert!(best.program.boundary[0].host_valid);
}

#[test]
fn bytes_may_go_to_an_output_in_place() {
    // 1 takes 0's bytes although op 2 needs 0 again: op 0 makes it anew.
    let ops =
        vec![op(100, &[], &[0]), op(1000, &[0], &[1]).with_in_place(0, 1), op(1000, &[1], &[]), op(100, &[0], &[])];
    let trace = trace(&[(UNIT, Role::Activation); 2], ops);
    assert_eq!(time(&trace, 1, Mode::Recompute), Some(2200 + 100));
    assert_eq!(time(&trace, 2, Mode::Recompute), Some(2200));
}

#[test]
fn an_input_comes_during_the_step_before_if_there_is_room() {
    let ops = vec![op(400, &[0], &[1]), op(3000, &[1], &[2]), op(100, &[2], &[])];
    let trace = trace(&[(UNIT, Role::Input), (UNIT, Role::Activation), (UNIT, Role::Activation)], ops);
    // With two units there is none before op 1 has ended and 1 is dead, but op 2 hides 100 of it and then op 0 waits.
    assert_eq!(time(&trace, 3, Mode::Both), Some(3500));
    assert_eq!(time(&trace, 2, Mode::Both), Some(3500 + 900));
}

#[test]
fn what_it_cannot_do_is_named() {
    let long = trace(&[], (0..9).map(|_| op(1, &[], &[])).collect());
    assert_eq!(optimal(&long, &Limits::unlimited()), Err(OptimalError::TooLarge { n_ops: 9 }));
    let given = Limits { boundary: Some(vec![]), ..Limits::unlimited() };
    assert_eq!(optimal(&trace(&[], vec![]), &given), Err(OptimalError::Boundary));
}
