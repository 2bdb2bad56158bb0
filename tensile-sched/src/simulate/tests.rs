use super::*;
use crate::layout::layout;
use crate::limits::Duplex;
use crate::program::Program;
use crate::sync::sync;
use crate::testing::*;
use crate::trace::Role::{Activation, Input, Output, Parameter};

/// One byte takes one nanosecond, without latency.
fn link(duplex: Duplex) -> Link {
    Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos::ZERO, duplex, ..Link::PCIE3_X16 }
}

fn synced(trace: &Trace, program: &Program) -> Synced {
    sync(trace, layout(trace, program, &bytewise()).unwrap())
}

fn span(simulation: &Simulation, instr: usize) -> (i64, i64) {
    (simulation.spans[instr].start, simulation.spans[instr].end)
}

/// a is made, evicted while op 1 computes, and read by op 2.
///
/// ```text
/// 0 run 0   1 swap-out a   2 release a   3 run 1   4 swap-in a   5 run 2
/// ```
fn evicting(bytes: u64) -> (Trace, Program) {
    let trace = trace(
        &[(bytes, Activation), (bytes, Activation)],
        vec![op(10, &[], &[0]), op(50, &[], &[1]), op(10, &[0], &[])],
    );
    (trace, program(&[], vec![run(0), swap_out(0), release(0), run(1), release(1), swap_in(0), run(2)]))
}

#[test]
fn without_copies_a_step_takes_the_sum_of_latencies() {
    let trace = trace(&[(8, Activation)], vec![op(10, &[], &[0]), op(7, &[0], &[])]);
    let simulation = simulate(&trace, &synced(&trace, &program(&[], vec![run(0), run(1)])), &link(Duplex::Full));
    assert_eq!(simulation.step_time, Nanos(17));
    assert_eq!(simulation.first_step_time, Nanos(17));
    assert_eq!(simulation.compute_time, Nanos(17));
    assert_eq!(simulation.stalls, []);
    assert_eq!((span(&simulation, 0), span(&simulation, 1)), ((0, 10), (10, 17)));
    assert_eq!(simulation.overhead(), 0.0);
}

#[test]
fn an_infinite_link_costs_nothing() {
    let (trace, program) = evicting(1000);
    let simulation = simulate(&trace, &synced(&trace, &program), &Link::INFINITE);
    assert_eq!(simulation.step_time, trace.compute_time());
}

#[test]
fn a_late_copy_stalls_the_kernel_that_needs_it() {
    // a and b share one place, so that b's kernel waits for a's copy-out, and a's copy-in for b's kernel.
    //
    // compute  [run 0][.. 20 ..][   run 1, 50   ][.. 20 ..][run 2]
    // out             [out a 20]
    // in                                         [in a 20]
    let (trace, program) = evicting(20);
    let simulation = simulate(&trace, &synced(&trace, &program), &link(Duplex::Full));
    assert_eq!(simulation.step_time, Nanos(10 + 20 + 50 + 20 + 10));
    let stalls = [
        Stall { instr: InstrId(3), time: Nanos(20), cause: Some(InstrId(1)) },
        Stall { instr: InstrId(6), time: Nanos(20), cause: Some(InstrId(5)) },
    ];
    assert_eq!(simulation.stalls, stalls);
    assert_eq!(simulation.stall_time(), Nanos(40));
    assert_eq!(span(&simulation, 2), (30, 30), "a release stands after what precedes it");
    assert_eq!(span(&simulation, 5), (80, 100));
}

#[test]
fn prefetch_crosses_the_step_boundary() {
    // x (30 bytes) is read by op 0 only; the next x comes while op 1 (40) computes.
    //
    // compute  [run 0 10][     run 1 40     ][run 0]
    // in                 [ in x 30 ]
    let trace = trace(&[(30, Input), (5, Activation)], vec![op(10, &[0], &[]), op(40, &[], &[1])]);
    let program = program(&[], vec![swap_in(0), run(0), release(0), run(1)]);
    let mut synced = synced(&trace, &program);
    // The activation must not lie where x comes to, or there is nothing to gain.
    synced.placed.layout.placements[3].device[0] = crate::Bytes(30);
    let synced = sync(&trace, synced.placed);
    let simulation = simulate(&trace, &synced, &link(Duplex::Full));
    assert_eq!(simulation.first_step_time, Nanos(80));
    assert_eq!(simulation.step_time, Nanos(50));
    assert_eq!(span(&simulation, 0), (-40, -10));
    assert_eq!(simulation.stalls, []);
}

#[test]
fn half_duplex_copies_take_turns_in_the_order_they_become_ready() {
    // y (20) is delivered after op 0; z (30) arrives for op 1, ready at the same time as y because it takes w's place.
    //
    // full     compute [run 0 10][..... 30 .....][run 1 5]         period 45
    //          out               [ y 20 ]
    //          in                [    z 30      ]
    // half     compute [run 0 10][....... 50 ........][run 1 5]    period 65
    //          link              [ y 20 ][    z 30    ]
    let trace = trace(&[(30, Activation), (20, Output), (30, Parameter)], vec![op(10, &[], &[0, 1]), op(5, &[2], &[])]);
    let program = program(&[], vec![run(0), release(0), swap_out(1), swap_in(2), run(1), release(2), release(1)]);
    let synced = synced(&trace, &program);
    let full = simulate(&trace, &synced, &link(Duplex::Full));
    assert_eq!((full.step_time, span(&full, 2), span(&full, 3)), (Nanos(45), (10, 30), (10, 40)));
    let half = simulate(&trace, &synced, &link(Duplex::Half));
    assert_eq!((half.step_time, span(&half, 2), span(&half, 3)), (Nanos(65), (10, 30), (30, 60)));
    assert_eq!(half.stalls, [Stall { instr: InstrId(4), time: Nanos(50), cause: Some(InstrId(3)) }]);
}

#[test]
fn no_overlap_runs_one_thing_at_a_time() {
    let trace = trace(&[(20, Output), (8, Activation)], vec![op(10, &[], &[0]), op(5, &[], &[1])]);
    let program = program(&[], vec![run(0), swap_out(0), run(1)]);
    let simulation = simulate(&trace, &synced(&trace, &program), &link(Duplex::NoOverlap));
    assert_eq!(simulation.step_time, Nanos(35));
    // The copy and run 1 are ready together; the copy stands first.
    assert_eq!((span(&simulation, 1), span(&simulation, 2)), ((10, 30), (30, 35)));
    assert_eq!(simulation.stalls, [Stall { instr: InstrId(2), time: Nanos(20), cause: None }]);
    assert_eq!(
        simulate(&trace, &synced(&trace, &program), &link(Duplex::Full)).step_time,
        Nanos(30),
        "run 0 must not overwrite y too early"
    );
}

#[test]
fn kernels_slow_down_while_copies_run() {
    // compute [run 0 10][ run 1: 20 ns of copy give 10 of work, then 30 more ][run 0]
    // out               [ y 20 ]
    let trace = trace(&[(20, Output), (8, Activation)], vec![op(10, &[], &[0]), op(40, &[], &[1])]);
    let program = program(&[], vec![run(0), swap_out(0), run(1)]);
    let slow = Link { kernel_slowdown: 2.0, ..link(Duplex::Full) };
    let simulation = simulate(&trace, &synced(&trace, &program), &slow);
    assert_eq!(simulation.step_time, Nanos(10 + 50));
    assert_eq!(span(&simulation, 2), (10, 60));
    // A factor that does not divide evenly rounds up.
    let odd = Link { kernel_slowdown: 1.5, ..link(Duplex::Full) };
    // 20 ns of copy give 13.33 of work; 26.67 are left: ends at 10 + 20 + 26.67.
    assert_eq!(simulate(&trace, &synced(&trace, &program), &odd).step_time, Nanos(57));
}

#[test]
fn two_copies_slow_a_kernel_twice_as_much() {
    // y (20) is delivered while x (30) comes in; the kernel loses half a nanosecond to each nanosecond of a copy.
    //
    // compute [run 0 10][run 1: 20 ns beside two copies give 10 of work, 10 ns beside one 6.67, then 23.33 more]
    // out               [ y 20 ]
    // in                [   x 30   ]
    let trace = trace(
        &[(20, Output), (8, Activation), (30, Input), (9, Activation)],
        vec![op(10, &[], &[0]), op(40, &[], &[1]), op(10, &[2], &[3])],
    );
    let program = program(&[], vec![run(0), swap_out(0), release(0), swap_in(2), run(1), release(1), run(2)]);
    let mut synced = synced(&trace, &program);
    synced.waits[3] = vec![crate::Wait { on: InstrId(0), previous_iteration: false }];
    synced.waits[4] = vec![];
    let slow = Link { kernel_slowdown: 1.5, ..link(Duplex::Full) };
    let simulation = simulate(&trace, &synced, &slow);
    assert_eq!(span(&simulation, 1), (10, 30));
    assert_eq!(span(&simulation, 3), (10, 40));
    assert_eq!(span(&simulation, 4), (10, 64));
}

#[test]
fn copies_slow_down_while_kernels_run() {
    // compute [run 0 10][ run 1 12 ]                      [run 0]
    // out               [ y: 12 ns give 4, then 16 more  ]
    let trace = trace(&[(20, Output), (8, Activation)], vec![op(10, &[], &[0]), op(12, &[], &[1])]);
    let program = program(&[], vec![run(0), swap_out(0), run(1)]);
    let slow = Link { copy_slowdown: 3.0, ..link(Duplex::Full) };
    let simulation = simulate(&trace, &synced(&trace, &program), &slow);
    assert_eq!((span(&simulation, 1), span(&simulation, 2)), ((10, 38), (10, 22)));
    assert_eq!(simulation.step_time, Nanos(38));
    // Each slows the other: beside each other, the kernel's 12 take 24 ns, in which the copy moves 8 bytes.
    let both = Link { kernel_slowdown: 2.0, ..slow };
    let simulation = simulate(&trace, &synced(&trace, &program), &both);
    assert_eq!((span(&simulation, 1), span(&simulation, 2)), ((10, 46), (10, 34)));
    // A copy that never ends does not end sooner because something runs beside it.
    let dead = Link { out_bytes_per_s: 0.0, ..both };
    assert_eq!(simulate(&trace, &synced(&trace, &program), &dead).step_time, Nanos::MAX);
}

#[test]
fn at_most_two_iterations_are_in_flight() {
    // The copy of y takes 100 while op 0 and op 1 take 5 each; op 0 overwrites y, so it waits for the copy of the step before.
    let trace = trace(&[(100, Output), (8, Activation)], vec![op(5, &[], &[0]), op(5, &[], &[1])]);
    let program = program(&[], vec![run(0), swap_out(0), run(1)]);
    let simulation = simulate(&trace, &synced(&trace, &program), &link(Duplex::Full));
    assert_eq!(simulation.step_time, Nanos(105));

    // A copy-out nobody waits for: the kernels run ahead by one step, then the rule holds them back.
    let mut loose = synced(&trace, &program);
    loose.waits = vec![vec![]; 3];
    let simulation = simulate(&trace, &loose, &link(Duplex::Full));
    assert_eq!(simulation.step_time, Nanos(100));
    assert_eq!(simulation.stalls.len(), 1);
    assert_eq!(simulation.stalls[0].cause, None, "no wait is to blame");
}

#[test]
fn links_without_bandwidth_and_circular_waits_never_end() {
    let (trace, program) = evicting(20);
    let mut synced = synced(&trace, &program);
    let dead = Link { in_bytes_per_s: 0.0, ..link(Duplex::Full) };
    assert_eq!(simulate(&trace, &synced, &dead).step_time, Nanos::MAX);
    synced.waits[0].push(crate::Wait { on: InstrId(1), previous_iteration: false });
    assert_eq!(simulate(&trace, &synced, &link(Duplex::Full)).step_time, Nanos::MAX);
}

#[test]
fn nothing_to_do_takes_no_time() {
    let trace = trace(&[(8, Parameter)], vec![]);
    let simulation = simulate(&trace, &synced(&trace, &program(&[(0, false)], vec![])), &Link::PCIE3_X16);
    assert_eq!(simulation, Simulation::default());
}

/// A step of one kernel, which reads an input of so many bytes and makes an output of so many.
fn fed(latency: u64, input: u64, output: u64) -> (Trace, Synced) {
    let trace = trace(&[(input, Input), (output, Output)], vec![op(latency, &[0], &[1])]);
    let program = program(&[], vec![swap_in(0), run(0), release(0), swap_out(1), release(1)]);
    let synced = synced(&trace, &program);
    (trace, synced)
}

fn computing(latencies: &[u64]) -> (Trace, Synced) {
    let trace = trace(&[(8, Parameter)], latencies.iter().map(|&latency| op(latency, &[0], &[])).collect());
    let program = program(&[(0, false)], (0..latencies.len() as u32).map(run).collect());
    let synced = synced(&trace, &program);
    (trace, synced)
}

fn together(jobs: &[&(Trace, Synced)], link: &Link) -> Vec<Simulation> {
    let jobs: Vec<(&Trace, &Synced)> = jobs.iter().map(|job| (&job.0, &job.1)).collect();
    simulate_together(&jobs, link)
}

fn step_times(jobs: &[&(Trace, Synced)], link: &Link) -> Vec<u64> {
    together(jobs, link).iter().map(|simulation| simulation.step_time.0).collect()
}

#[test]
fn one_job_alone_or_beside_nothing_is_as_simulated_alone() {
    let nothing = computing(&[]);
    for duplex in [Duplex::Full, Duplex::Half, Duplex::NoOverlap] {
        let (trace, program) = evicting(20);
        let job = (trace.clone(), synced(&trace, &program));
        let alone = simulate(&job.0, &job.1, &link(duplex));
        assert_eq!(together(&[&job], &link(duplex)), std::slice::from_ref(&alone));
        assert_eq!(together(&[&nothing, &job], &link(duplex)), [Simulation::default(), alone]);
    }
    assert_eq!(simulate_together(&[], &link(Duplex::Full)), []);
    assert_eq!(together(&[&nothing, &nothing], &link(Duplex::Full)), [Simulation::default(), Simulation::default()]);
}

#[test]
fn kernels_of_two_jobs_take_turns() {
    // A [ 10 ]....[ 30 ]......[ 10 ]
    // B ......[5].......[5]
    let (a, b) = (computing(&[10, 30]), computing(&[5]));
    let simulations = together(&[&a, &b], &link(Duplex::Full));
    assert_eq!((simulations[0].step_time, simulations[1].step_time), (Nanos(50), Nanos(25)));
    assert_eq!((simulations[0].first_step_time, simulations[1].first_step_time), (Nanos(45), Nanos(15)));
    // A waits for B, for which no wait of its own is to blame.
    let stalls = [0, 1].map(|instr| Stall { instr: InstrId(instr), time: Nanos(5), cause: None });
    assert_eq!(simulations[0].stalls, stalls);
    assert_eq!((span(&simulations[0], 0), span(&simulations[0], 1)), ((5, 15), (20, 50)));
}

#[test]
fn copies_of_several_jobs_share_the_link() {
    // Each step brings 30 bytes; three jobs fill the way in, and the kernels of 10 hide.
    let job = fed(10, 30, 1);
    assert_eq!(step_times(&[&job], &link(Duplex::Full)), [40]);
    assert_eq!(step_times(&[&job; 3], &link(Duplex::Full)), [90; 3]);
    // Half duplex: 30 in and 20 out for each.
    let job = fed(10, 30, 20);
    assert_eq!(step_times(&[&job; 3], &link(Duplex::Full)), [90; 3]);
    assert_eq!(step_times(&[&job; 3], &link(Duplex::Half)), [150; 3]);
    assert_eq!(step_times(&[&job; 3], &link(Duplex::NoOverlap)), [180; 3]);
}

#[test]
fn one_jobs_copies_slow_the_kernels_of_the_other() {
    // B copies out all the time, so A's kernels take nearly 1.5 times as long.
    let (a, b) = (computing(&[90]), fed(0, 1, 1000));
    let slow = Link { kernel_slowdown: 1.5, ..link(Duplex::Full) };
    let times = step_times(&[&a, &b], &slow);
    assert!((130..=135).contains(&times[0]), "{times:?}");
    assert_eq!(step_times(&[&a], &slow), [90]);
}

#[test]
fn a_job_that_never_ends_or_takes_no_time_keeps_nobody_else_from_an_answer() {
    let (a, b) = (computing(&[10, 30]), fed(5, 10, 10));
    let dead = Link { out_bytes_per_s: 0.0, ..link(Duplex::Full) };
    // B's copy out never ends; A never needs that way.
    assert_eq!(step_times(&[&a, &b], &dead), [40, u64::MAX]);
    assert_eq!(step_times(&[&b, &a], &dead), [u64::MAX, 40]);
    let mut circular = computing(&[10, 30]);
    circular.1.waits[0].push(crate::Wait { on: InstrId(1), previous_iteration: false });
    assert_eq!(step_times(&[&a, &circular], &link(Duplex::Full)), [40, u64::MAX]);
    // A step without work in time goes round and round until it rests.
    let timeless = computing(&[0, 0]);
    assert_eq!(step_times(&[&timeless, &a], &link(Duplex::Full)), [0, 40]);
}
