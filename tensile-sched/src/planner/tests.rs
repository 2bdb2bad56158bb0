//! Plans of random steps, at budgets from the floor up.

use crate::baseline::{NoEviction, Retain};
use crate::floor::floor;
use crate::id::{Bytes, Nanos, OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::planner::{Effort, Infeasible, Planned, Planner, Tensile};
use crate::program::{BoundaryTensor, Home, Instr};
use crate::trace::{InPlace, Op, Role, Tensor, Trace};

/// A small generator (xorshift), so that these tests need no crate.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A step with everything in it: shared inputs, updates in mid-step, ops that cannot be replayed, several and dead outputs, in-place pairs, kept tensors.
fn random_trace(seed: u64) -> Trace {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |random: &mut Random, role: Role, bytes: Option<u64>| {
        let bytes = bytes.unwrap_or_else(|| 1 + random.below(2000));
        let keep = !role.is_persistent() && random.one_in(25);
        tensors.push(Tensor { name: format!("t{}", tensors.len()), bytes: Bytes(bytes), role, keep });
        (TensorId::from_index(tensors.len() - 1), bytes)
    };
    let mut persistent = Vec::new();
    for _ in 0..random.below(6) {
        let role = [Role::Parameter, Role::OptimizerState, Role::Buffer][random.below(3) as usize];
        persistent.push(add(&mut random, role, None));
    }
    let mut readable = persistent.clone();
    for _ in 0..random.below(3) {
        readable.push(add(&mut random, Role::Input, None));
    }
    let mut ops = Vec::new();
    for index in 0..1 + random.below(40) {
        let mut reads: Vec<(TensorId, u64)> = Vec::new();
        for _ in 0..random.below(4) {
            if readable.is_empty() {
                break;
            }
            // Recent tensors are read more often, as in a network, but old ones are not forgotten.
            let back = if random.one_in(3) { readable.len() as u64 } else { readable.len().min(4) as u64 };
            let pick = readable[readable.len() - 1 - random.below(back) as usize];
            if !reads.contains(&pick) {
                reads.push(pick);
            }
        }
        let mut updates = Vec::new();
        if random.one_in(5)
            && let Some(&(tensor, _)) = persistent.get(random.below(6) as usize)
        {
            reads.retain(|read| read.0 != tensor);
            updates.push(tensor);
        }
        let (mut writes, mut in_place) = (Vec::new(), Vec::new());
        for position in 0..random.below(3) {
            let role = [Role::Activation, Role::Gradient, Role::Output][random.below(7).saturating_sub(4) as usize];
            let pair = reads.get(position as usize).filter(|_| random.one_in(2)).copied();
            let (tensor, bytes) = add(&mut random, role, pair.map(|pair| pair.1));
            if let Some((input, _)) = pair {
                in_place.push(InPlace { input, output: tensor });
            }
            writes.push(tensor);
            readable.push((tensor, bytes));
        }
        ops.push(Op {
            label: format!("op{index}"),
            class: String::new(),
            reads: reads.into_iter().map(|read| read.0).collect(),
            writes,
            replayable: updates.is_empty() && !random.one_in(8),
            updates,
            workspace: Bytes(if random.one_in(4) { random.below(1500) } else { 0 }),
            latency: Nanos(random.below(200_000)),
            in_place,
        });
    }
    Trace::new(tensors, ops).expect("the generator keeps to the rules of traces")
}

fn limits(mode: Mode, device: Bytes) -> Limits {
    Limits { mode, alignment: Bytes(64), ..Limits::with_budget(device) }
}

fn arena_of_none(trace: &Trace, limits: &Limits) -> Bytes {
    let unlimited = Limits { device: Bytes::MAX, ..limits.clone() };
    NoEviction.plan(trace, &unlimited).expect("no limit").report.arena
}

/// Some with all effort, most with little.
fn planner(seed: u64) -> Tensile {
    Tensile { effort: if seed.is_multiple_of(5) { Effort::Best } else { Effort::Fast } }
}

/// Ten budgets from the floor to `none`'s arena, then one below the floor.
fn plan_everywhere(planner: Tensile, trace: &Trace, limits: &Limits) {
    let floor = floor(trace, limits).expect("blocks and boundary fit");
    let top = arena_of_none(trace, limits);
    assert!(floor.bytes <= top, "floor {:?} above the arena of none, {top:?}", floor.bytes);
    for tenth in 0..=9 {
        let device = Bytes(floor.bytes.0 + (top.0 - floor.bytes.0) * tenth / 9);
        let limits = Limits { device, ..limits.clone() };
        // `plan` panics if `check` or `verify` refuses its program.
        let planned = planner.plan(trace, &limits).expect("the budget is at the floor or above");
        assert!(planned.report.arena <= device);
        assert_eq!(planner.plan(trace, &limits).as_ref(), Ok(&planned), "two plans differ");
        if tenth == 9 {
            assert_eq!((planned.report.evictions, planned.report.reruns), given_evictions(&limits, &planned));
        }
    }
    if floor.bytes > Bytes::ZERO {
        let limits = Limits { device: Bytes(floor.bytes.0 - 1), ..limits.clone() };
        match planner.plan(trace, &limits) {
            Err(Infeasible::Device { lowest, op, .. }) => assert_eq!((lowest, op), (floor.bytes, floor.op)),
            // The floor by recomputation alone is what a search guarantees; another may find less.
            Ok(planned) if limits.mode == Mode::Recompute => assert!(planned.report.arena <= limits.device),
            other => panic!("planned below the floor: {:?}", other.map(|planned| planned.report)),
        }
    }
}

/// With room for everything there is nothing to evict, but a given boundary may keep tensors on the host.
fn given_evictions(limits: &Limits, planned: &Planned) -> (usize, usize) {
    if limits.boundary.is_some() { (planned.report.evictions, 0) } else { (0, 0) }
}

#[test]
fn every_budget_from_the_floor_up() {
    for seed in 1..=25 {
        let trace = random_trace(seed);
        for mode in [Mode::Swap, Mode::Both, Mode::Recompute] {
            plan_everywhere(planner(seed), &trace, &limits(mode, Bytes::MAX));
        }
    }
}

/// Memory in blocks of one to three times the largest tensor.
#[test]
fn every_budget_in_blocks() {
    for seed in 1..=10 {
        let trace = random_trace(seed);
        let largest =
            trace.tensors().iter().map(|tensor| tensor.bytes).chain(trace.ops().iter().map(|op| op.workspace));
        let largest = largest.max().unwrap_or_default().align_up(Bytes(64));
        for mode in [Mode::Swap, Mode::Both, Mode::Recompute] {
            let max_block = Bytes(largest.0 * (4 + seed % 9) / 4);
            let free = Limits { max_block, ..limits(mode, Bytes::MAX) };
            plan_everywhere(planner(seed), &trace, &free);
            // From a boundary that a program in blocks has chosen.
            let top = arena_of_none(&trace, &free);
            let device = Bytes((floor(&trace, &free).expect("blocks fit").bytes.0 + top.0) / 2);
            let first = planner(seed).plan(&trace, &Limits { device, ..free.clone() }).expect("above the floor");
            let boundary: Vec<Home> = first.synced.layout().homes.clone();
            plan_everywhere(planner(seed), &trace, &Limits { boundary: Some(boundary), ..free });
        }
    }
}

/// One block that holds the budget is like memory in one piece.
#[test]
fn a_block_for_the_budget_changes_nothing() {
    for seed in 1..=25 {
        let trace = random_trace(seed);
        for mode in [Mode::Swap, Mode::Both, Mode::Recompute] {
            let free = limits(mode, Bytes::MAX);
            let (floor, top) = (floor(&trace, &free).expect("blocks fit").bytes, arena_of_none(&trace, &free));
            let in_one = Limits { max_block: top.max(Bytes(2048)), ..free.clone() };
            assert_eq!(crate::floor(&trace, &in_one).map(|floor| floor.bytes), Ok(floor));
            assert_eq!(NoEviction.plan(&trace, &in_one), NoEviction.plan(&trace, &free));
            for device in [floor, Bytes((floor.0 + top.0) / 2), top] {
                let planned = planner(seed).plan(&trace, &Limits { device, ..free.clone() });
                assert_eq!(planner(seed).plan(&trace, &Limits { device, ..in_one.clone() }), planned);
            }
        }
    }
}

/// Programs from a boundary that another program has chosen.
#[test]
fn every_budget_under_a_given_boundary() {
    for seed in 1..=25 {
        let trace = random_trace(seed);
        for mode in [Mode::Swap, Mode::Both, Mode::Recompute] {
            let free = limits(mode, Bytes::MAX);
            let floor = floor(&trace, &free).expect("blocks fit");
            let top = arena_of_none(&trace, &free);
            let device = Bytes((floor.bytes.0 + top.0) / 2);
            let first = planner(seed).plan(&trace, &Limits { device, ..free.clone() }).expect("above the floor");
            let boundary: Vec<Home> = first.synced.layout().homes.clone();
            plan_everywhere(planner(seed), &trace, &Limits { boundary: Some(boundary), ..free });
        }
    }
}

#[test]
fn retain_needs_at_least_what_none_needs() {
    for seed in 1..=50 {
        let trace = random_trace(seed);
        let unlimited = limits(Mode::Both, Bytes::MAX);
        let retain = Retain.plan(&trace, &unlimited).expect("no limit");
        let none = NoEviction.plan(&trace, &unlimited).expect("no limit");
        assert!(retain.report.peak >= none.report.peak);
        assert_eq!(none.report.evictions + none.report.reruns, 0);
        let below = Limits { device: Bytes(none.report.arena.0 - 1), ..unlimited };
        assert!(
            matches!(NoEviction.plan(&trace, &below), Err(Infeasible::Device { lowest, .. }) if lowest == none.report.arena)
        );
    }
}

/// p is read at op 0 and updated at op 2; x lives from op 0 to op 2, in place.
#[test]
fn none_takes_over_and_releases() {
    use crate::testing::{op, pair, trace};
    let trace = trace(
        &[(640, Role::Parameter), (64, Role::Activation), (64, Role::Activation)],
        vec![op(1, &[0], &[1]), op(1, &[1], &[2]).with_in_place(1, 2), op(1, &[2], &[]).with_updates(&[0])],
    );
    let planned = NoEviction.plan(&trace, &limits(Mode::Both, Bytes::MAX)).expect("no limit");
    let program = &planned.synced.placed.program;
    assert_eq!(program.boundary, [BoundaryTensor { tensor: TensorId(0), host_valid: false }]);
    assert_eq!(
        program.instrs,
        [
            Instr::Run { op: OpId(0), takeovers: vec![] },
            Instr::Run { op: OpId(1), takeovers: vec![pair(1, 2)] },
            Instr::Run { op: OpId(2), takeovers: vec![] },
            Instr::Release(TensorId(2)),
        ]
    );
    assert_eq!(planned.report.arena, Bytes(704));
    assert_eq!(planned.simulation.step_time, Nanos(3));
}

/// With three tensors' worth of budget, w or x must go while op 2 runs.
///
/// ```text
/// op         0     1     2     3     4
/// w (2560)   R───────────────────────U    parameter
/// x (2560)   W─────R───────────R          idle from op 1 to op 3
/// y (2560)               W─────R┐         op 2 has a workspace of 2560
/// z (2560)                     W┘────R    takes y's bytes over
/// ```
fn squeezed(latency: u64) -> Trace {
    use crate::testing::{op, trace};
    trace(
        &[(2560, Role::Parameter), (2560, Role::Activation), (2560, Role::Activation), (2560, Role::Activation)],
        vec![
            op(latency, &[0], &[1]),
            op(1_000_000, &[1], &[]),
            op(1_000_000, &[], &[2]).with_workspace(2560),
            op(1_000_000, &[1, 2], &[3]).with_in_place(2, 3),
            op(1_000_000, &[3], &[]).with_updates(&[0]),
        ],
    )
}

fn plan_squeezed(latency: u64, mode: Mode) -> Planned {
    let trace = squeezed(latency);
    let unlimited = limits(mode, Bytes::MAX);
    assert_eq!(arena_of_none(&trace, &unlimited), Bytes(4 * 2560));
    Tensile::default()
        .plan(&trace, &Limits { device: Bytes(3 * 2560), ..unlimited })
        .expect("the floor is three tensors")
}

/// Swapping alone: something leaves before op 2, and copies hide behind kernels that are a hundred times longer.
#[test]
fn copies_hide_behind_kernels() {
    let planned = plan_squeezed(1_000_000, Mode::Swap);
    assert!(planned.report.evictions > 0);
    assert_eq!(planned.report.reruns, 0);
    assert!(planned.simulation.overhead() < 0.02, "overhead {}", planned.simulation.overhead());
}

/// Recomputation alone: only x can leave, and op 0 runs again for it before op 3.
#[test]
fn the_idle_activation_is_regenerated() {
    let planned = plan_squeezed(1_000, Mode::Recompute);
    assert_eq!((planned.report.evictions, planned.report.reruns), (0, 1));
    let instrs = planned.synced.instrs();
    let rerun = instrs.iter().position(|instr| matches!(instr, Instr::Rerun { op: OpId(0), .. })).expect("one rerun");
    let run = |wanted| instrs.iter().position(|instr| matches!(instr, Instr::Run { op, .. } if *op == OpId(wanted)));
    assert!(run(2) < Some(rerun) && Some(rerun) < run(3));
    assert_eq!(planned.report.recompute_time, Nanos(1_000));
}

/// A parameter that nobody updates leaves without a copy: its host copy stays valid.
///
/// ```text
/// op         0     1     2
/// w (2560)   R───────────R     must go for op 1
/// x, y             W           two tensors of 2560
/// ```
#[test]
fn a_valid_host_copy_needs_no_swap_out() {
    use crate::testing::{op, trace};
    let trace = trace(
        &[(2560, Role::Parameter), (2560, Role::Activation), (2560, Role::Activation)],
        vec![op(1_000_000, &[0], &[]), op(1_000_000, &[], &[1, 2]), op(1_000_000, &[0], &[])],
    );
    let limits = limits(Mode::Swap, Bytes(2 * 2560));
    let planned = Tensile::default().plan(&trace, &limits).expect("the floor is two tensors");
    assert_eq!((planned.report.swap_outs, planned.report.swap_ins), (0, 1));
}
