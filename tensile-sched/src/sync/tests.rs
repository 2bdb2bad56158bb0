use super::*;
use crate::layout::layout;
use crate::testing::*;
use crate::trace::Role::{Activation, Input, Output, Parameter};

/// Waits as (waiting, on, previous iteration), for a program laid out without limits.
fn waits(trace: &Trace, program: &crate::Program) -> Vec<(usize, u32, bool)> {
    let placed = layout(trace, program, &bytewise()).unwrap();
    flat(&sync(trace, placed))
}

fn flat(synced: &Synced) -> Vec<(usize, u32, bool)> {
    synced
        .waits
        .iter()
        .enumerate()
        .flat_map(|(index, waits)| waits.iter().map(move |wait| (index, wait.on.0, wait.previous_iteration)))
        .collect()
}

#[test]
fn true_dependencies_come_out_of_the_bytes() {
    // compute   [run 0]          [run 2]        a is made, copied out, brought back elsewhere in time, and read.
    // out              [out a]
    // in                    [in a]
    let trace = trace(&[(10, Activation)], vec![op(1, &[], &[0]), op(1, &[0], &[])]);
    let program = program(&[], vec![run(0), swap_out(0), release(0), swap_in(0), run(1)]);
    // Into the step before: run 0 overwrites what run 1 read, on the same lane. The swap-out overwrites the slot that the swap-in
    // read; run 1 waited for that, run 0 comes after run 1, and the swap-out waits for run 0.
    assert_eq!(waits(&trace, &program), [(1, 0, false), (3, 1, false), (4, 3, false)]);
}

#[test]
fn reuse_of_bytes_waits_for_their_last_reader() {
    // a is copied out while b, at a's address, must not be written yet.
    let trace = trace(&[(10, Activation), (10, Activation)], vec![op(1, &[], &[0]), op(1, &[], &[1])]);
    let program = program(&[], vec![run(0), swap_out(0), release(0), run(1)]);
    // In the next step run 0 writes there after run 1, on the same lane. The slot is written by the out lane alone.
    assert_eq!(waits(&trace, &program), [(1, 0, false), (3, 1, false)]);
}

#[test]
fn waits_reach_into_the_iteration_before() {
    // w leaves after its update at the end of the step and comes back at the start of the next.
    let trace = trace(&[(10, Parameter)], vec![op(1, &[], &[]).with_updates(&[0])]);
    let program = program(&[], vec![swap_in(0), run(0), swap_out(0), release(0)]);
    // The swap-in writes the device bytes that the swap-out of the step before reads, and reads what that wrote: one wait.
    assert_eq!(waits(&trace, &program), [(0, 2, true), (1, 0, false), (2, 1, false)]);
}

#[test]
fn slots_of_inputs_alternate() {
    // Two inputs into a device slot of their own each: nothing to wait for on the host; the device bytes were read by run 0 before.
    let trace = trace(&[(10, Input), (4, Output)], vec![op(1, &[0], &[1])]);
    let program = program(&[], vec![swap_in(0), run(0), swap_out(1)]);
    assert_eq!(waits(&trace, &program), [(0, 1, true), (1, 0, false), (1, 2, true), (2, 1, false)]);
}

#[test]
fn what_follows_from_other_waits_is_dropped() {
    // b is read by op 2, which waits for b's swap-in; that came after a's on the in lane, so a's needs no wait.
    let trace =
        trace(&[(10, Activation), (10, Activation)], vec![op(1, &[], &[0, 1]), op(1, &[], &[]), op(1, &[0, 1], &[])]);
    let instrs = vec![run(0), swap_out(0), swap_out(1), release(0), release(1), run(1), swap_in(0), swap_in(1), run(2)];
    let mut placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    // Both come back to where they were.
    let places = placed.layout.placements[0].device.clone();
    placed.layout.placements[6].device = vec![places[0]];
    placed.layout.placements[7].device = vec![places[1]];
    // The swap-ins wait for the copies they read; run 0 is implied by those, and run 1 touches nothing.
    assert_eq!(flat(&sync(&trace, placed)), [(1, 0, false), (6, 1, false), (7, 2, false), (8, 7, false)]);
}

#[test]
fn a_wait_within_the_iteration_never_leans_on_the_one_before() {
    // SwapOut x (2) reads what run 0 wrote. In the steady state the out lane also knows much of the iteration before; run 0 must still be waited for.
    let trace = trace(&[(10, Parameter), (10, Output)], vec![op(1, &[], &[1]).with_updates(&[0])]);
    let program = program(&[(0, true)], vec![run(0), swap_out(0), swap_out(1)]);
    let found = waits(&trace, &program);
    assert_eq!(found, [(0, 2, true), (1, 0, false)]);
}

#[test]
fn workspace_and_scratch_are_writes() {
    // in: x comes to bytes that were run 0's workspace; they must be free.
    let trace = trace(&[(10, Activation), (10, Input)], vec![op(1, &[], &[0]).with_workspace(10), op(1, &[0, 1], &[])]);
    let instrs = vec![run(0), swap_in(1), run(1), release(1)];
    let placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    assert_eq!(
        placed.layout.placements[0].workspace,
        Some(placed.layout.placements[1].device[0]),
        "the test needs them at one place"
    );
    assert_eq!(flat(&sync(&trace, placed)), [(1, 0, false), (2, 1, false)]);
}

#[test]
fn a_claim_conflicts_with_all_whose_bytes_it_takes() {
    let event = |lane, count| Event { lane, count };
    let mut arena = Arena::default();
    let mut need = Clock::default();
    let old = arena.claim(Bytes(0), Bytes(100), event(Lane::Compute, 1), &mut need);
    arena.read(Some(old), event(Lane::Out, 1), &mut need);
    assert_eq!(need, [1, 0, 0]);
    // In its middle; then over all three pieces.
    let mut need = Clock::default();
    arena.claim(Bytes(40), Bytes(20), event(Lane::In, 1), &mut need);
    assert_eq!(need, [1, 1, 0]);
    let mut need = Clock::default();
    arena.claim(Bytes(10), Bytes(190), event(Lane::Compute, 2), &mut need);
    assert_eq!(need, [1, 1, 1]);
    // The first ten bytes are still the old one's; a new claim of the others meets the latest alone.
    let mut need = Clock::default();
    arena.claim(Bytes(5), Bytes(5), event(Lane::In, 2), &mut need);
    assert_eq!(need, [1, 1, 0]);
    let mut need = Clock::default();
    arena.claim(Bytes(150), Bytes(200), event(Lane::Out, 2), &mut need);
    assert_eq!(need, [2, 0, 0]);
}
