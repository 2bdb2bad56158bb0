use super::rounds::{Round, Rounds};
use super::*;
use crate::baseline::away::Away;
use crate::id::{Bytes, Nanos, TensorId};
use crate::limits::{Link, Mode};
use crate::program::Instr;
use crate::simulate::simulate;
use crate::testing::{bytewise, op, trace};
use crate::trace::Role;

/// A byte takes a nanosecond, and nothing beside.
fn limits(mode: Mode) -> Limits {
    let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos::ZERO, ..Link::PCIE3_X16 };
    Limits { link, mode, ..bytewise() }
}

fn play(trace: &Trace, mode: Mode, ratio: f64) -> Rounds {
    let limits = limits(mode);
    Rounds::play(&Facts::new(trace, &limits), ratio)
}

/// ```text
/// op       0    1    2    3    4    5       ops of 100 ns
/// a  (40)  W    R                   R
/// b  (30)       W    R    R    R
/// c  (50)            W    R
/// d  (10)                 W    R    R
/// ```
fn skips() -> Trace {
    let sizes = [40, 30, 50, 10].map(|bytes| (bytes, Role::Activation));
    let op = |reads: &[u32], writes: &[u32]| op(100, reads, writes);
    trace(
        &sizes,
        vec![op(&[], &[0]), op(&[0], &[1]), op(&[1], &[2]), op(&[1, 2], &[3]), op(&[1, 3], &[]), op(&[0, 3], &[])],
    )
}

/// At the end of op 2, a, b and c are resident: 120 bytes. The last input access before that which leaves its tensor alive is b's in op 3, which starts then: no
/// copy may start later. c, the largest, has just been made. a was made at 100, and its own access in op 1 is cut out of the window: its copy leaves at 200, and
/// comes back as late as possible for op 5. Then only b and c are resident at the peak, and b is used all the time.
#[test]
fn the_largest_that_fits_leaves_early_and_returns_late() {
    let rounds = play(&skips(), Mode::Swap, 1.0);
    let first = Away { tensor: TensorId(0), after: 2, until: 5, out: Some((200, 240)), back: 460 };
    assert_eq!(rounds.rounds[0], Round::Swap(vec![first]));
    assert_eq!(rounds.rounds.len(), 1);
    assert_eq!(rounds.peaks, [120, 80]);
}

/// With a ratio of 0 nothing is swapped.
#[test]
fn the_ratio_limits_swaps() {
    assert_eq!(play(&skips(), Mode::Swap, 0.0).rounds, []);
    assert_eq!(max_swap_ratios(&[1.0, 2.0, 0.0, -1.0]), [0.5, 1.0, 0.0, 0.0]);
    assert_eq!(max_swap_ratios(&[1.0, 1.0]), [1.0, 1.0]);
    assert_eq!(max_swap_ratios(&[0.0]), [0.0]);
}

/// Nothing can be swapped over a link without bandwidth, so what has the most bytes per time is recomputed. b and c are needed by the very next op; a is not
/// until op 5.
#[test]
fn recomputation_comes_when_swaps_end() {
    let trace = skips();
    let limits = Limits { link: Link { out_bytes_per_s: 0.0, ..Link::PCIE3_X16 }, ..limits(Mode::Both) };
    let rounds = Rounds::play(&Facts::new(&trace, &limits), 1.0);
    assert_eq!(rounds.rounds[0], Round::Recompute { tensor: TensorId(0), after: 1 });
    assert_eq!(rounds.rounds.len(), 1);
    assert_eq!(play(&trace, Mode::Recompute, 1.0).rounds, rounds.rounds);
    let both = play(&trace, Mode::Both, 1.0);
    assert!(matches!(both.rounds[0], Round::Swap(_)), "swaps come first");
}

/// m is written by the optimizer at the end of a step and first read in op 2 of the next.
///
/// ```text
/// op       0    1    2    3
/// m  (60)            U
/// x  (90)                 W     kept
/// ```
#[test]
fn what_the_optimizer_wrote_leaves_across_the_boundary() {
    let mut tensors =
        crate::testing::trace(&[(60, Role::OptimizerState), (90, Role::Activation)], vec![]).tensors().to_vec();
    tensors[1].keep = true;
    let ops = vec![op(100, &[], &[]), op(100, &[], &[]), op(100, &[], &[]).with_updates(&[0]), op(100, &[], &[1])];
    let trace = Trace::new(tensors, ops).unwrap();
    let rounds = play(&trace, Mode::Swap, 1.0);
    let across = Round::Across { tensor: TensorId(0), updated: 2, out: (300, 360), first: 2, back: 140 };
    assert_eq!(rounds.rounds, [across]);
    assert_eq!(rounds.peaks, [150, 90]);
    let limits = limits(Mode::Swap);
    let program = rounds.program(&Facts::new(&trace, &limits), 0);
    assert_eq!(program.boundary, [], "it is on the host between steps");
    let out = program.instrs.iter().position(|instr| *instr == Instr::SwapOut(TensorId(0))).unwrap();
    let back = program.instrs.iter().position(|instr| *instr == Instr::SwapIn(TensorId(0))).unwrap();
    let run = |wanted: u32| {
        let is_it = |instr: &Instr| matches!(instr, Instr::Run { op, .. } if op.0 == wanted);
        program.instrs.iter().position(is_it).unwrap()
    };
    assert!(run(0) < back && back < run(1), "it comes while op 1 runs");
    assert!(run(2) < out);
}

/// A budget ends the rounds; all rounds hide their copies behind kernels.
#[test]
fn budgets_end_rounds_early() {
    let trace = skips();
    let unlimited = limits(Mode::Swap);
    let none = Paper::default().plan(&trace, &unlimited).unwrap();
    assert_eq!((none.report.swap_outs, none.report.arena), (0, Bytes(130)));
    let lowest = match Paper::default().plan(&trace, &Limits { device: Bytes(0), ..unlimited.clone() }) {
        Err(Infeasible::Device { lowest, .. }) => lowest,
        other => panic!("{other:?}"),
    };
    // c comes while a's copy leaves.
    assert_eq!(lowest, Bytes(120));
    let limits = Limits { device: lowest, ..unlimited };
    let planned = Paper::default().plan(&trace, &limits).unwrap();
    assert_eq!((planned.report.swap_outs, planned.report.swap_ins), (1, 1));
    assert_eq!(simulate(&trace, &planned.synced, &limits.link).overhead(), 0.0);
}
