use super::*;
use crate::testing::*;
use crate::trace::Role::{Activation, Input, Output, Parameter};

fn device(placed: &Placed, instr: usize) -> Vec<u64> {
    placed.layout.placements[instr].device.iter().map(|at| at.0).collect()
}

fn host(placed: &Placed, instr: usize) -> u64 {
    placed.layout.placements[instr].host.expect("a swap").0
}

/// A chain of three: x → a → b → c.
fn chain() -> Trace {
    trace(
        &[(10, Input), (20, Activation), (30, Activation), (40, Activation)],
        vec![op(1, &[0], &[1]), op(1, &[1], &[2]), op(1, &[2], &[3])],
    )
}

#[test]
fn released_bytes_are_used_again() {
    // x ████
    // a    █████
    // b        █████
    // c             ██     peak at the last op: b + c = 70
    let instrs = vec![swap_in(0), run(0), release(0), run(1), release(1), run(2), release(2), release(3)];
    let placed = layout(&chain(), &program(&[], instrs), &bytewise()).unwrap();
    assert_eq!(placed.layout.arena, Bytes(70));
    assert_eq!(placed.layout.slots.len(), 1);
    assert_eq!(placed.layout.host_arena, Bytes(20), "two slots for the input");
    assert_eq!(host(&placed, 0), placed.layout.slots[0].host[0].0);
}

#[test]
fn alignment_rounds_sizes_and_addresses() {
    let instrs = vec![swap_in(0), run(0), run(1), run(2)];
    let limits = Limits { alignment: Bytes(16), ..Limits::unlimited() };
    let placed = layout(&chain(), &program(&[], instrs), &limits).unwrap();
    assert_eq!(placed.layout.arena, Bytes(16 + 32 + 32 + 48));
    assert!((0..4).all(|instr| device(&placed, instr)[0].is_multiple_of(16)));
}

#[test]
fn workspace_and_operands_live_together() {
    // a of op 0 is released before op 1 claims: workspace 50 + a 20, then b 30 alone.
    let trace =
        trace(&[(20, Activation), (30, Activation)], vec![op(1, &[], &[0]).with_workspace(50), op(1, &[], &[1])]);
    let placed = layout(&trace, &program(&[], vec![run(0), release(0), run(1)]), &bytewise()).unwrap();
    assert_eq!(placed.layout.arena, Bytes(70));
    let workspace = placed.layout.placements[0].workspace.unwrap().0;
    let a = device(&placed, 0)[0];
    assert!(workspace + 50 <= a || a + 20 <= workspace);
    assert_eq!(placed.layout.placements[2].workspace, None);
}

#[test]
fn a_takeover_chain_keeps_one_address() {
    // a ─takeover→ b ─takeover→ c, all of 10 bytes: one block. d lives beside it from the start.
    let trace = trace(
        &[(10, Activation), (10, Activation), (10, Activation), (7, Activation)],
        vec![
            op(1, &[], &[0]),
            op(1, &[], &[3]),
            op(1, &[0], &[1]).with_in_place(0, 1),
            op(1, &[1, 3], &[2]).with_in_place(1, 2),
        ],
    );
    let instrs = vec![run(0), run(1), run_in_place(2, 0, 1), run_in_place(3, 1, 2)];
    let placed = layout(&trace, &program(&[], instrs.clone()), &bytewise()).unwrap();
    assert_eq!(placed.layout.arena, Bytes(17));
    assert_eq!(device(&placed, 0), device(&placed, 2));
    assert_eq!(device(&placed, 0), device(&placed, 3));

    let mut wrong = instrs;
    wrong[2] = run_in_place(2, 3, 1);
    let error = layout(&trace, &program(&[], wrong), &bytewise()).unwrap_err();
    assert!(matches!(error, LayoutError::Takeover { instr: InstrId(2), .. }), "{error}");
}

#[test]
fn a_rerun_writes_scratch_where_its_tensor_is_resident() {
    // op 0 makes a and b; a stays, b goes and is made again: a's second copy is scratch.
    let trace = trace(&[(10, Activation), (5, Activation)], vec![op(1, &[], &[0, 1]), op(1, &[0, 1], &[])]);
    let instrs = vec![run(0), release(1), rerun(0), run(1)];
    let placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    assert_eq!(placed.layout.arena, Bytes(25));
    let (first, second) = (device(&placed, 0), device(&placed, 2));
    assert!(second[0].abs_diff(first[0]) >= 10, "scratch must not lie on the resident tensor");
}

#[test]
fn the_boundary_piece_is_circular() {
    // p ██─────██     p has one address on both sides; a and b may use it in between.
    // a   ███
    let trace = trace(&[(10, Parameter), (10, Activation)], vec![op(1, &[0], &[]), op(1, &[], &[1]), op(1, &[0], &[])]);
    let instrs = vec![run(0), release(0), run(1), release(1), swap_in(0), run(2)];
    let placed = layout(&trace, &program(&[(0, true)], instrs), &bytewise()).unwrap();
    assert_eq!(placed.layout.arena, Bytes(10));
    let home = placed.layout.homes[0];
    assert_eq!(home.device.unwrap().0, device(&placed, 4)[0]);
    assert_eq!(home.host.unwrap().0, host(&placed, 4), "a home slot is the tensor's own");
    assert_eq!(placed.layout.host_arena, Bytes(10));
}

#[test]
fn a_boundary_address_held_by_a_takeover_is_an_error() {
    let trace = trace(&[(10, Parameter), (10, Activation)], vec![op(1, &[0], &[1]).with_in_place(0, 1)]);
    let instrs = vec![run_in_place(0, 0, 1), swap_in(0), release(1)];
    let error = layout(&trace, &program(&[(0, true)], instrs), &bytewise()).unwrap_err();
    assert_eq!(error, LayoutError::BoundaryHeld { tensor: TensorId(0) });
    let instrs = vec![run_in_place(0, 0, 1), release(1), swap_in(0)];
    assert_eq!(layout(&trace, &program(&[(0, true)], instrs), &bytewise()).unwrap().layout.arena, Bytes(10));
}

#[test]
fn given_addresses_are_kept_and_packed_around() {
    // p at 100 and q at 130 in the boundary, r at home on the host at 64: what is free below 100 and between is used.
    let trace = trace(
        &[(10, Parameter), (10, Parameter), (8, Parameter), (100, Activation), (20, Activation)],
        vec![op(1, &[0, 1], &[3]), op(1, &[2, 3], &[4])],
    );
    let home = |tensor: u32, device: Option<u64>, host: Option<u64>| Home {
        tensor: TensorId(tensor),
        device: device.map(Bytes),
        host: host.map(Bytes),
    };
    let homes = vec![home(0, Some(100), None), home(1, Some(130), None), home(2, None, Some(64))];
    let limits = |homes: &[Home]| Limits { boundary: Some(homes.to_vec()), ..bytewise() };
    let program = program(&[(0, false), (1, false)], vec![run(0), swap_in(2), run(1), release(2)]);
    let placed = layout(&trace, &program, &limits(&homes)).unwrap();
    assert_eq!(placed.layout.homes, homes);
    assert_eq!(device(&placed, 0), [0]);
    assert_eq!(device(&placed, 2), [110]);
    assert_eq!(placed.layout.arena, Bytes(148));
    assert_eq!(placed.layout.host_arena, Bytes(72));
    assert_eq!(host(&placed, 1), 64);

    let mut colliding = homes.clone();
    colliding[1].device = Some(Bytes(105));
    let error = layout(&trace, &program, &limits(&colliding)).unwrap_err();
    assert_eq!(error, LayoutError::Collision { first: TensorId(0), second: TensorId(1), host: false });
    let mut elsewhere = homes.clone();
    elsewhere[2] = home(2, Some(0), None);
    let error = layout(&trace, &program, &limits(&elsewhere)).unwrap_err();
    assert!(matches!(error, LayoutError::GivenBoundary { tensor: TensorId(2), .. }), "{error}");
    let error = layout(&trace, &program, &limits(&homes[..2])).unwrap_err();
    assert!(matches!(error, LayoutError::GivenBoundary { tensor: TensorId(2), .. }), "{error}");
}

#[test]
fn host_slots_are_used_again_after_the_last_swap_in() {
    // host:   a ███       (out at 1, last in at 4)
    //         b      ███  (out at 6, in at 8)      same bytes
    let trace = trace(
        &[(10, Activation), (10, Activation)],
        vec![op(1, &[], &[0]), op(1, &[0], &[1]), op(1, &[0], &[]), op(1, &[1], &[])],
    );
    let instrs = vec![
        run(0),
        swap_out(0),
        release(0),
        swap_in(0),
        run(1),
        swap_out(1),
        release(1),
        run(2),
        release(0),
        swap_in(1),
        run(3),
    ];
    let placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    assert_eq!(placed.layout.host_arena, Bytes(10));
    assert_eq!(host(&placed, 1), host(&placed, 3));
    assert_eq!(host(&placed, 5), host(&placed, 9));
}

#[test]
fn host_slots_in_use_are_left_alone() {
    // a's copy is used twice; b's copy-out in between needs bytes of its own.
    let trace = trace(
        &[(10, Activation), (10, Activation)],
        vec![op(1, &[], &[0]), op(1, &[0], &[1]), op(1, &[0], &[]), op(1, &[1, 0], &[])],
    );
    let instrs = vec![
        run(0),
        swap_out(0),
        run(1),
        swap_out(1),
        release(1),
        release(0),
        swap_in(0),
        run(2),
        release(0),
        swap_in(0),
        swap_in(1),
        run(3),
    ];
    let placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    assert_eq!(placed.layout.host_arena, Bytes(20));
}

#[test]
fn inputs_and_outputs_have_two_slots_for_the_whole_step() {
    let trace = trace(&[(10, Input), (6, Output)], vec![op(1, &[0], &[1])]);
    let placed = layout(&trace, &program(&[], vec![swap_in(0), run(0), swap_out(1)]), &bytewise()).unwrap();
    assert_eq!(placed.layout.host_arena, Bytes(2 * 10 + 2 * 6));
    assert_eq!(placed.layout.slots.len(), 2);
    assert_eq!(host(&placed, 2), placed.layout.slots[1].host[0].0);
}

#[test]
fn persistent_tensors_outside_the_boundary_own_a_slot() {
    // p is updated and must be copied out to its home.
    let trace = trace(&[(10, Parameter)], vec![op(1, &[], &[]).with_updates(&[0])]);
    let instrs = vec![swap_in(0), run(0), swap_out(0), release(0)];
    let placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    assert_eq!(placed.layout.homes, [Home { tensor: TensorId(0), device: None, host: Some(Bytes(0)) }]);
    assert_eq!((host(&placed, 0), host(&placed, 2)), (0, 0));
}

#[test]
fn an_update_ends_the_host_copy_of_a_boundary_tensor() {
    // No home slot (host_valid is false): out, in, update; then a second swap-in has no copy.
    let trace = trace(&[(10, Parameter)], vec![op(1, &[], &[]).with_updates(&[0])]);
    let instrs = vec![swap_out(0), release(0), swap_in(0), run(0)];
    let placed = layout(&trace, &program(&[(0, false)], instrs.clone()), &bytewise()).unwrap();
    assert_eq!(placed.layout.homes[0].host, None);
    assert_eq!(placed.layout.host_arena, Bytes(10));
    let stale = [instrs, vec![release(0), swap_in(0)]].concat();
    let error = layout(&trace, &program(&[(0, false)], stale), &bytewise()).unwrap_err();
    assert_eq!(error, LayoutError::NoHostCopy { instr: InstrId(5), tensor: TensorId(0) });
}

#[test]
fn malformed_programs_are_typed_errors() {
    let trace = trace(&[(10, Parameter), (10, Activation)], vec![op(1, &[0], &[1])]);
    let error = |boundary: &[(u32, bool)], instrs| layout(&trace, &program(boundary, instrs), &bytewise()).unwrap_err();
    let (p, first) = (TensorId(0), InstrId(0));
    assert_eq!(error(&[], vec![release(0)]), LayoutError::NotResident { instr: first, tensor: p });
    assert_eq!(error(&[], vec![run(0)]), LayoutError::NotResident { instr: first, tensor: p });
    assert_eq!(error(&[], vec![swap_out(7)]), LayoutError::Unknown { instr: first });
    assert_eq!(error(&[], vec![run(3)]), LayoutError::Unknown { instr: first });
    assert_eq!(error(&[(0, true)], vec![swap_in(0)]), LayoutError::AlreadyResident { instr: first, tensor: p });
    assert_eq!(error(&[], vec![swap_in(0)]), LayoutError::BoundaryEnd { tensor: p, resident: true });
    assert_eq!(error(&[(0, true)], vec![release(0)]), LayoutError::BoundaryEnd { tensor: p, resident: false });
    assert_eq!(error(&[(1, true)], vec![]), LayoutError::BoundaryEntry { tensor: TensorId(1) });
    assert_eq!(error(&[(0, true), (0, true)], vec![]), LayoutError::BoundaryEntry { tensor: p });
}

#[test]
fn an_empty_program_keeps_its_boundary() {
    let trace = trace(&[(10, Parameter), (30, Parameter)], vec![]);
    let placed = layout(&trace, &program(&[(0, false), (1, false)], vec![]), &bytewise()).unwrap();
    assert_eq!(placed.layout.arena, Bytes(40));
    assert_eq!(placed.layout.host_arena, Bytes::ZERO);
}

#[test]
fn spreading_gives_a_swap_in_bytes_that_are_free_already() {
    // a is made, copied out slowly and released; b comes in while op 1 still computes; the place of dead d has been free since op 0.
    //
    // packed   b at a's place: waits for a's copy-out       spread   b at d's place
    let trace = trace(
        &[(10, Activation), (10, Activation), (10, Parameter), (10, Activation)],
        vec![
            op(10, &[], &[3]),
            op(10, &[3], &[0]),
            op(100, &[], &[]),
            op(10, &[2], &[]),
            op(100, &[], &[]),
            op(10, &[0], &[]),
        ],
    );
    let instrs = vec![
        run(0),
        run(1),
        release(3),
        swap_out(0),
        release(0),
        swap_in(2),
        run(2),
        run(3),
        release(2),
        run(4),
        swap_in(0),
        run(5),
    ];
    let mut placed = layout(&trace, &program(&[], instrs), &bytewise()).unwrap();
    let (a, d) = (device(&placed, 1)[0], device(&placed, 0)[0]);
    placed.layout.placements[5].device = vec![Bytes(a)];
    placed.layout.placements[10].device = vec![Bytes(a)];
    let link = crate::Link {
        out_bytes_per_s: 1e8,
        in_bytes_per_s: 1e9,
        latency: crate::Nanos::ZERO,
        duplex: crate::Duplex::Full,
        kernel_slowdown: 1.0,
        copy_slowdown: 1.0,
    };
    let limits = Limits { link, ..bytewise() };
    let apart = spread(&trace, placed.clone(), &limits).unwrap();
    assert_eq!(device(&apart, 5), [d]);
    assert_eq!(apart.layout.arena, placed.layout.arena);
    crate::check(&trace, &apart, &limits).unwrap();
    let time = |placed: Placed| crate::simulate(&trace, &crate::sync(&trace, placed), &limits.link).step_time;
    assert!(time(apart.clone()) < time(placed), "{:?}", time(apart));
}

#[test]
fn nothing_crosses_a_block() {
    // a 40, b 30, c 30 live together. In blocks of 60, b and c share one; what is larger than a block has no layout.
    let trace = trace(
        &[(40, Activation), (30, Activation), (30, Activation)],
        vec![op(1, &[], &[0]), op(1, &[], &[1]), op(1, &[0, 1], &[2])],
    );
    let program = program(&[], vec![run(0), run(1), run(2)]);
    let arena = |device, max_block| {
        let limits = Limits { device: Bytes(device), max_block: Bytes(max_block), ..bytewise() };
        layout(&trace, &program, &limits).map(|placed| placed.layout.arena.0)
    };
    assert_eq!(arena(u64::MAX, 100), Ok(100));
    assert_eq!(arena(u64::MAX, 60), Ok(100));
    assert_eq!(arena(u64::MAX, 59), Ok(2 * 59 + 30), "one in each block, the largest not last");
    assert_eq!(arena(u64::MAX, 39), Err(LayoutError::Block { bytes: Bytes(40), block: Bytes(39) }));
    assert_eq!(arena(50, 59), Ok(100), "above a budget within one block");
}

/// Spread has free bytes on both sides of a border, but not enough on either.
///
/// ```text
/// address 0         10        20        30
///         a a a a a │ · d d · │          a leaves when b (of 10) comes; d's place (12..18) is no place for b; the third block is
/// ```
#[test]
fn spreading_crosses_no_border() {
    let trace = trace(
        &[(10, Activation), (10, Activation), (10, Parameter), (6, Activation)],
        vec![
            op(10, &[], &[3]),
            op(10, &[3], &[0]),
            op(100, &[], &[]),
            op(10, &[2], &[]),
            op(100, &[], &[]),
            op(10, &[0], &[]),
        ],
    );
    let instrs = vec![
        run(0),
        run(1),
        release(3),
        swap_out(0),
        release(0),
        swap_in(2),
        run(2),
        run(3),
        release(2),
        run(4),
        swap_in(0),
        run(5),
    ];
    let link = crate::Link {
        out_bytes_per_s: 1e8,
        in_bytes_per_s: 1e9,
        latency: crate::Nanos::ZERO,
        ..crate::Link::PCIE3_X16
    };
    let limits = |device| Limits { device: Bytes(device), max_block: Bytes(10), link, ..bytewise() };
    let mut placed = layout(&trace, &program(&[], instrs), &limits(25)).unwrap();
    for (instr, at) in [(0, 12), (1, 0), (5, 0), (10, 0)] {
        placed.layout.placements[instr].device = vec![Bytes(at)];
    }
    placed.layout.arena = Bytes(18);
    let moved = |device| device_of(&spread(&trace, placed.clone(), &limits(device)).unwrap(), 5);
    // In one piece there is room for b at 10.
    let in_one = Limits { max_block: Bytes::MAX, ..limits(22) };
    assert!(device_of(&spread(&trace, placed.clone(), &in_one).unwrap(), 5) >= 10);
    assert_eq!(moved(29), 10, "the whole second block, once d is gone");
    assert_eq!(moved(18), 0, "the second block is too short");
}

fn device_of(placed: &Placed, instr: usize) -> u64 {
    device(placed, instr)[0]
}
