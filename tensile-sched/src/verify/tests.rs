//! Small programs with the waits they need: none can go.

use super::*;
use crate::id::{Nanos, OpId};
use crate::program::{BoundaryTensor, Home, Layout, Placed, Program, Slots, Wait};
use crate::trace::{Op, Tensor};

const W: TensorId = TensorId(0);
const X: TensorId = TensorId(1);
const Y: TensorId = TensorId(2);

/// One op that reads an input, makes an output and updates a parameter.
fn trace() -> Trace {
    let tensor = |name: &str, role| Tensor { name: name.into(), bytes: Bytes(8), role, keep: false };
    let tensors = vec![tensor("w", Role::Parameter), tensor("x", Role::Input), tensor("y", Role::Output)];
    let op = Op {
        label: "step".into(),
        class: "step".into(),
        reads: vec![X],
        writes: vec![Y],
        updates: vec![W],
        workspace: Bytes::ZERO,
        latency: Nanos(1),
        replayable: false,
        in_place: vec![],
    };
    Trace::new(tensors, vec![op]).unwrap()
}

fn wait(on: u32, previous_iteration: bool) -> Wait {
    Wait { on: InstrId(on), previous_iteration }
}

/// `w` (host valid) stays at 0; `x` comes to 8, `y` goes to 16; the copy-out of `w` may finish in the next step.
fn synced() -> Synced {
    let instrs = vec![
        Instr::SwapIn(X),
        Instr::Run { op: OpId(0), takeovers: vec![] },
        Instr::Release(X),
        Instr::SwapOut(Y),
        Instr::Release(Y),
        Instr::SwapOut(W),
    ];
    let placement = |device: &[u64], host: Option<u64>| Placement {
        device: device.iter().map(|&at| Bytes(at)).collect(),
        workspace: None,
        host: host.map(Bytes),
    };
    Synced {
        placed: Placed {
            program: Program { boundary: vec![BoundaryTensor { tensor: W, host_valid: true }], instrs },
            layout: Layout {
                placements: vec![
                    placement(&[8], Some(8)),
                    placement(&[16], None),
                    placement(&[], None),
                    placement(&[], Some(24)),
                    placement(&[], None),
                    placement(&[], Some(0)),
                ],
                homes: vec![Home { tensor: W, device: Some(Bytes(0)), host: Some(Bytes(0)) }],
                slots: vec![
                    Slots { tensor: X, host: [Bytes(8), Bytes(16)] },
                    Slots { tensor: Y, host: [Bytes(24), Bytes(32)] },
                ],
                arena: Bytes(24),
                host_arena: Bytes(40),
            },
        },
        waits: vec![
            vec![wait(1, true)],
            vec![wait(0, false), wait(5, true)],
            vec![],
            vec![wait(1, false)],
            vec![],
            vec![],
        ],
    }
}

#[test]
fn the_waits_suffice_and_none_can_go() {
    let (trace, synced) = (trace(), synced());
    crate::check(&trace, &synced.placed, &crate::Limits { alignment: Bytes(8), ..crate::Limits::unlimited() }).unwrap();
    assert_eq!(verify(&trace, &synced), Ok(()));
    for instr in 0..synced.waits.len() {
        for place in 0..synced.waits[instr].len() {
            let mut fewer = synced.clone();
            fewer.waits[instr].remove(place);
            assert!(verify(&trace, &fewer).is_err(), "i{instr} without its wait {place}");
        }
    }
}

#[test]
fn races_are_named() {
    let mut synced = synced();
    synced.waits[1].remove(1);
    let races = verify(&trace(), &synced).unwrap_err();
    // The copies out of the first step still read `y` and `w` when the second step writes them.
    let messages: Vec<String> = races.iter().take(2).map(Race::to_string).collect();
    assert_eq!(
        messages,
        [
            "write by i1 of iteration 1 does not wait for the read by i5 of iteration 0, at device bytes [0, 8)",
            "write by i1 of iteration 1 does not wait for the read by i3 of iteration 0, at device bytes [16, 24)",
        ]
    );
}

#[test]
fn shared_slots_of_two_iterations_race() {
    let mut synced = synced();
    // Both slots of y at one place is check's concern; a slot of x on one of y is too, but here they race as well.
    synced.placed.layout.slots[0].host[1] = Bytes(24);
    let races = verify(&trace(), &synced).unwrap_err();
    assert!(races.iter().all(|race| matches!(race, Race::Unordered { side: Side::Host, .. })), "{races:?}");
}

#[test]
fn wrong_waits_are_named() {
    let refuses = |instr: usize, waits: Vec<Wait>, reason: &str| {
        let mut synced = synced();
        synced.waits[instr] = waits;
        let faults = verify(&trace(), &synced).unwrap_err();
        assert_eq!(faults[0].to_string(), reason);
    };
    refuses(0, vec![wait(9, true)], "i0 waits for i9: there is no such instruction");
    refuses(0, vec![wait(1, false)], "i0 waits for i1: it is not earlier in the step");
    refuses(3, vec![wait(5, true)], "i3 waits for i5: both are on the same lane");
    refuses(2, vec![wait(1, false)], "i2 waits for i1: a release is no work and waits for nothing");
    refuses(3, vec![wait(2, false)], "i3 waits for i2: a release is no work and cannot be waited for");
    refuses(3, vec![wait(1, false); 2], "i3 waits for i1: the waits are not in ascending order");
    let mut short = synced();
    short.waits.pop();
    assert_eq!(
        verify(&trace(), &short).unwrap_err()[0].to_string(),
        "6 instructions, 6 placements and 5 lists of waits"
    );
}

#[test]
fn wrong_programs_do_not_panic() {
    let mut synced = synced();
    synced.placed.program.instrs[0] = Instr::SwapIn(TensorId(77));
    synced.placed.layout.placements[3].host = Some(Bytes(u64::MAX));
    synced.placed.program.instrs[4] = Instr::Release(TensorId(78));
    synced.placed.layout.homes[0].tensor = TensorId(79);
    synced.placed.layout.slots[0].tensor = TensorId(79);
    assert!(verify(&trace(), &synced).is_err());
}
