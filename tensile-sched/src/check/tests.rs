//! A small program that is right, and what `check` says to each way of spoiling it.

use super::*;
use crate::program::{BoundaryTensor, Home, Layout, Program, Slots};
use crate::trace::Tensor;

const A: u64 = 256;
const W: TensorId = TensorId(0);
const M: TensorId = TensorId(1);
const X: TensorId = TensorId(2);
const H: TensorId = TensorId(3);
const R: TensorId = TensorId(4);
const Y: TensorId = TensorId(5);

fn tensor(name: &str, role: Role) -> Tensor {
    Tensor { name: name.into(), bytes: Bytes(A - 6), role, keep: false }
}

fn op(label: &str, reads: &[TensorId], writes: &[TensorId], updates: &[TensorId]) -> Op {
    Op {
        label: label.into(),
        class: label.into(),
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        updates: updates.to_vec(),
        workspace: Bytes::ZERO,
        latency: Nanos(10),
        replayable: updates.is_empty(),
        in_place: Vec::new(),
    }
}

/// `h = x w; r = relu h (in place or not); y = r h; w, m updated from r`.
fn trace() -> Trace {
    let tensors = vec![
        tensor("w", Role::Parameter),
        tensor("m", Role::OptimizerState),
        tensor("x", Role::Input),
        tensor("h", Role::Activation),
        tensor("r", Role::Activation),
        tensor("y", Role::Output),
    ];
    let mut ops = vec![
        op("matmul", &[X, W], &[H], &[]),
        op("relu", &[H], &[R], &[]),
        op("loss", &[R, H], &[Y], &[]),
        op("step", &[R], &[], &[W, M]),
    ];
    ops[0].workspace = Bytes(100);
    ops[1].in_place = vec![InPlace { input: H, output: R }];
    Trace::new(tensors, ops).unwrap()
}

fn on(device: &[u64], workspace: Option<u64>, host: Option<u64>) -> Placement {
    let at = |units: u64| Bytes(units * A);
    Placement { device: device.iter().map(|&d| at(d)).collect(), workspace: workspace.map(at), host: host.map(at) }
}

fn run(op: u32) -> Instr {
    Instr::Run { op: OpId(op), takeovers: vec![] }
}

/// `w` stays at unit 0; `m` lives on the host; relu takes `h` over, and `h` is regenerated from `x`, which comes twice.
fn placed() -> Placed {
    let relu = Instr::Run { op: OpId(1), takeovers: vec![InPlace { input: H, output: R }] };
    let steps = vec![
        (Instr::SwapIn(X), on(&[1], None, Some(1))),
        (run(0), on(&[2], Some(3), None)),
        (Instr::Release(X), on(&[], None, None)),
        (relu, on(&[2], None, None)),
        (Instr::SwapOut(R), on(&[], None, Some(5))),
        (Instr::SwapIn(X), on(&[1], None, Some(1))),
        (Instr::Rerun { op: OpId(0), takeovers: vec![] }, on(&[3], Some(4), None)),
        (Instr::Release(X), on(&[], None, None)),
        (run(2), on(&[1], None, None)),
        (Instr::Release(R), on(&[], None, None)),
        (Instr::SwapOut(Y), on(&[], None, Some(3))),
        (Instr::SwapIn(R), on(&[2], None, Some(5))),
        (Instr::SwapIn(M), on(&[4], None, Some(0))),
        (run(3), on(&[], None, None)),
        (Instr::SwapOut(M), on(&[], None, Some(0))),
        (Instr::Release(M), on(&[], None, None)),
    ];
    let (instrs, placements) = steps.into_iter().unzip();
    Placed {
        program: Program { boundary: vec![BoundaryTensor { tensor: W, host_valid: false }], instrs },
        layout: Layout {
            placements,
            homes: vec![
                Home { tensor: W, device: Some(Bytes(0)), host: None },
                Home { tensor: M, device: None, host: Some(Bytes(0)) },
            ],
            slots: vec![
                Slots { tensor: X, host: [Bytes(A), Bytes(2 * A)] },
                Slots { tensor: Y, host: [Bytes(3 * A), Bytes(4 * A)] },
            ],
            arena: Bytes(5 * A),
            host_arena: Bytes(6 * A),
        },
    }
}

fn limits() -> Limits {
    Limits { host: Bytes(6 * A), ..Limits::with_budget(Bytes(5 * A)) }
}

#[test]
fn a_right_program_is_accepted_and_counted() {
    let report = check(&trace(), &placed(), &limits()).unwrap();
    let expected = CheckReport {
        peak: Bytes(5 * A),
        arena: Bytes(5 * A),
        host_arena: Bytes(6 * A),
        swap_outs: 3,
        swap_ins: 4,
        bytes_out: Bytes(3 * (A - 6)),
        bytes_in: Bytes(4 * (A - 6)),
        evictions: 5,
        reruns: 1,
        recompute_time: Nanos(10),
    };
    assert_eq!(report, expected);
    assert_eq!(report.fragmentation(), Bytes::ZERO);
}

/// Spoils the program and the limits, and expects the first violation to read so.
fn refuses(expected: &str, spoil: impl FnOnce(&mut Placed, &mut Limits)) {
    let (mut placed, mut limits) = (placed(), limits());
    spoil(&mut placed, &mut limits);
    match check(&trace(), &placed, &limits) {
        Ok(report) => panic!("accepted, where this was expected: {expected}\n{report:?}"),
        Err(violations) => assert_eq!(violations[0].to_string(), expected, "{violations:#?}"),
    }
}

#[test]
fn shape() {
    refuses("the alignment of 0 in the limits is not a power of two", |_, l| l.alignment = Bytes(0));
    refuses("15 placements for 16 instructions", |p, _| _ = p.layout.placements.pop());
    refuses("boundary entry 1 (t0): ids must ascend", |p, _| {
        p.program.boundary.push(BoundaryTensor { tensor: W, host_valid: false });
    });
    refuses("boundary entry 1 (t2): it is not persistent", |p, _| {
        p.program.boundary.push(BoundaryTensor { tensor: X, host_valid: false });
    });
    refuses("boundary entry 1 (t99): there is no such tensor", |p, _| {
        p.program.boundary.push(BoundaryTensor { tensor: TensorId(99), host_valid: false });
    });
    refuses("home 1: expected one of Some(t1), found one of None", |p, _| _ = p.layout.homes.pop());
    refuses("home of t0 'w': its host copy is valid between steps, but it has no host address", |p, _| {
        p.program.boundary[0].host_valid = true;
    });
    refuses("home of t1 'm': it is not in the boundary, but has a device address", |p, _| {
        p.layout.homes[1].device = Some(Bytes(4 * A));
    });
    refuses("slots 0: expected those of Some(t2), found those of Some(t5)", |p, _| p.layout.slots.reverse());
    refuses("home 1 differs from the boundary given in the limits", |p, l| {
        l.boundary = Some(p.layout.homes.clone());
        l.boundary.as_mut().unwrap()[1].host = Some(Bytes(A));
    });
    refuses("i0: 0 device addresses in its placement where 1 belong", |p, _| p.layout.placements[0].device.clear());
    refuses("i1: 0 workspace addresses in its placement where 1 belong", |p, _| {
        p.layout.placements[1].workspace = None;
    });
    refuses("i2: 1 host addresses in its placement where 0 belong", |p, _| {
        p.layout.placements[2].host = Some(Bytes(0));
    });
}

#[test]
fn order_and_versions() {
    refuses("i1: needs t3 'h' on the device, where it is not", |p, _| {
        p.program.instrs.swap(1, 3);
        p.layout.placements.swap(1, 3);
    });
    refuses("i1: there is no op9; the trace has 4 ops", |p, _| p.program.instrs[1] = run(9));
    refuses("i2: there is no tensor t9; the trace has 6 tensors", |p, _| {
        p.program.instrs[2] = Instr::Release(TensorId(9));
    });
    refuses("i6: runs op0 'matmul', which has run at i1 already", |p, _| p.program.instrs[6] = run(0));
    refuses("i1: reruns op0 'matmul', which has not run yet", |p, _| {
        p.program.instrs[1] = p.program.instrs[6].clone();
    });
    refuses("op3 'step' never runs", |p, _| {
        p.program.instrs.truncate(12);
        p.layout.placements.truncate(12);
    });
    refuses("i14: reruns op3 'step', which is not replayable", |p, _| {
        p.program.instrs.insert(14, Instr::Rerun { op: OpId(3), takeovers: vec![] });
        p.layout.placements.insert(14, Placement::default());
    });
    refuses(
        "i14: reruns op0 'matmul', but t0 'w', which it reads, was updated at i13 after the op ran at i1",
        |p, _| {
            p.program.instrs.insert(14, p.program.instrs[6].clone());
            p.layout.placements.insert(14, on(&[1], Some(2), None));
        },
    );
}

/// `y = w; z = w; w updated; u = w`: the first two may change places, but none of them may change places with the update.
#[test]
fn ops_run_in_any_order_that_keeps_versions() {
    let tensors = vec![
        tensor("w", Role::Parameter),
        tensor("y", Role::Activation),
        tensor("z", Role::Activation),
        tensor("u", Role::Activation),
    ];
    let id = TensorId;
    let ops = vec![
        op("y", &[W], &[id(1)], &[]),
        op("z", &[W], &[id(2)], &[]),
        op("step", &[], &[], &[W]),
        op("u", &[W], &[id(3)], &[]),
    ];
    let trace = Trace::new(tensors, ops).unwrap();
    let checked = |order: [u32; 4]| {
        let boundary = vec![BoundaryTensor { tensor: W, host_valid: false }];
        let program = Program { boundary, instrs: order.map(run).into() };
        let placed = crate::layout::layout(&trace, &program, &Limits::unlimited()).unwrap();
        check(&trace, &placed, &Limits::unlimited())
    };
    assert!(checked([0, 1, 2, 3]).is_ok());
    assert!(checked([1, 0, 2, 3]).is_ok());
    let faults = checked([0, 2, 1, 3]).unwrap_err();
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].to_string(), "i2: runs op1 'z', which accesses t0 'w' after 0 of its updates, but 1 have run");
    let faults = checked([0, 1, 3, 2]).unwrap_err();
    assert_eq!(faults[0].to_string(), "i2: runs op3 'u', which accesses t0 'w' after 1 of its updates, but 0 have run");
}

#[test]
fn residency() {
    refuses("i5: needs t2 'x' on the device, where it is not", |p, _| {
        p.program.instrs.remove(5);
        p.layout.placements.remove(5);
    });
    refuses("i1: brings t2 'x' to the device, where it is already, at 256", |p, _| {
        p.program.instrs.insert(1, Instr::SwapIn(X));
        p.layout.placements.insert(1, p.layout.placements[0].clone());
    });
    refuses("i0: swaps t3 'h' in, which has no valid host copy", |p, _| p.program.instrs[0] = Instr::SwapIn(H));
    refuses("i0: uses host address 0 for t2 'x', whose slot is at 256", |p, _| {
        p.layout.placements[0].host = Some(Bytes(0));
    });
    refuses("i14: uses host address 1280 for t1 'm', whose slot is at 0", |p, _| {
        p.layout.placements[14].host = Some(Bytes(5 * A));
    });
    refuses("i3: takeover of t3 by t4 in op1 'relu': the output's address is not the input's", |p, _| {
        p.layout.placements[3].device[0] = Bytes(3 * A);
    });
    refuses("i1: takeover of t2 by t3 in op0 'matmul': it is not an in-place pair of the op", |p, _| {
        p.program.instrs[1] = Instr::Run { op: OpId(0), takeovers: vec![InPlace { input: X, output: H }] };
    });
    refuses("i3: takeover of t3 by t4 in op1 'relu': it is listed twice", |p, _| {
        let pair = InPlace { input: H, output: R };
        p.program.instrs[3] = Instr::Run { op: OpId(1), takeovers: vec![pair; 2] };
    });
}

#[test]
fn addresses() {
    refuses("i1: tensor t3 'h' at [256, 512) overlaps tensor t2 'x' at [256, 512)", |p, _| {
        p.layout.placements[1].device[0] = Bytes(A);
    });
    refuses("i1: workspace of op0 'matmul' at [512, 768) overlaps tensor t3 'h' at [512, 768)", |p, _| {
        p.layout.placements[1].workspace = Some(Bytes(2 * A));
    });
    refuses("i0: tensor t2 'x' at address 300 is not aligned to 256", |p, _| {
        p.layout.placements[0].device[0] = Bytes(300);
    });
    refuses("i12: tensor t1 'm' at [1280, 1536) ends behind the arena of 1280 bytes", |p, _| {
        p.layout.placements[12].device[0] = Bytes(5 * A);
    });
    refuses(
        "i12: tensor t1 'm' at [18446744073709551360, 18446744073709551615) ends behind the arena of 1280 bytes",
        |p, _| {
            p.layout.placements[12].device[0] = Bytes(u64::MAX - 255);
        },
    );
    refuses("boundary: host copy of t2 'x' at [256, 512) overlaps host copy of t2 'x' at [256, 512)", |p, _| {
        p.layout.slots[0].host[1] = Bytes(A);
    });
    refuses("i4: host copy of t4 'r' at [0, 256) overlaps host copy of t1 'm' at [0, 256)", |p, _| {
        p.layout.placements[4].host = Some(Bytes(0));
    });
    refuses("i12: swaps t4 'r' in, whose host copy was overwritten at i10", |p, _| {
        p.program.instrs.insert(10, Instr::SwapOut(H));
        p.layout.placements.insert(10, on(&[], None, Some(5)));
    });
}

#[test]
fn limits_and_modes() {
    refuses("the device arena of 1280 B (1280 bytes) is above the budget of 1279 B (1279 bytes)", |_, l| {
        l.device = Bytes(5 * A - 1);
    });
    refuses("the host arena of 1536 B (1536 bytes) is above the host budget of 0 B (0 bytes)", |_, l| {
        l.host = Bytes(0);
    });
    refuses("boundary: tensor t0 'w' has 250 bytes; the device's largest block has 128", |_, l| {
        (l.max_block, l.alignment) = (Bytes(249), Bytes(128));
    });
    refuses("i6: a rerun in mode Swap", |_, l| l.mode = Mode::Swap);
    refuses("t1 'm' is not in the boundary, where mode Recompute keeps every persistent tensor", |_, l| {
        l.mode = Mode::Recompute;
    });
}

#[test]
fn block_borders() {
    let crosses = |what: &str, range: &str, border: u64| {
        format!(
            "{what} at {range} crosses the block border at {border}; the device's memory comes in blocks of {border} bytes"
        )
    };
    let refuses = |what, range, alignment, max_block| {
        refuses(&crosses(what, range, max_block), |_, l| {
            (l.alignment, l.max_block) = (Bytes(alignment), Bytes(max_block));
        });
    };
    refuses("i0: tensor t2 'x'", "[256, 512)", 128, 384);
    refuses("i1: workspace of op0 'matmul'", "[768, 896)", 64, 832);
    refuses("i6: tensor t3 'h'", "[768, 1024)", 128, 896);
    for units in [1, 2, 3, 5] {
        let limits = Limits { max_block: Bytes(units * A), ..limits() };
        assert!(check(&trace(), &placed(), &limits).is_ok(), "borders between tensors");
    }
}

#[test]
fn the_end() {
    let drop_last = |p: &mut Placed| {
        p.program.instrs.pop();
        p.layout.placements.pop();
    };
    refuses("t1 'm' is on the device when the step ends, but not in the boundary", |p, _| drop_last(p));
    refuses("t1 'm' has no valid host copy when the step ends", |p, _| {
        drop_last(p);
        p.program.instrs[14] = Instr::Release(M);
        p.layout.placements[14] = Placement::default();
    });
    refuses("t5 'y' has no valid host copy when the step ends", |p, _| {
        p.program.instrs.remove(10);
        p.layout.placements.remove(10);
    });
    refuses("t0 'w' is not on the device when the step ends", |p, _| {
        p.program.instrs.push(Instr::Release(W));
        p.layout.placements.push(Placement::default());
    });
    refuses("t0 'w' is at 256 when the step ends; its home is at 0", |p, _| {
        for (instr, placement) in [
            (Instr::Release(Y), Placement::default()),
            (Instr::SwapOut(W), on(&[], None, Some(5))),
            (Instr::Release(W), Placement::default()),
            (Instr::SwapIn(W), on(&[1], None, Some(5))),
        ] {
            p.program.instrs.push(instr);
            p.layout.placements.push(placement);
        }
    });
}
