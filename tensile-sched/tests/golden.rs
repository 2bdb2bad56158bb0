//! Text forms compared with the files in `tests/golden`; `UPDATE_GOLDEN=1` rewrites them.

mod small;

use std::fmt::Write as _;
use std::path::PathBuf;

use small::Small;
use tensile_sched::{
    BoundaryTensor, Bytes, InPlace, Infeasible, Instr, Limits, Link, Nanos, Op, OpId, Planned, Program, Role, Tensor,
    TensorId, Trace, layout, planner, sync, text,
};

fn matches_golden(name: &str, found: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{} differs; UPDATE_GOLDEN=1 rewrites it", path.display());
}

/// Two layers forward and backward with an update; the first activation is swapped, the second regenerated in the
/// bytes of its input.
fn example() -> (Trace, Program) {
    let tensor = |name: &str, role, bytes| Tensor { name: name.into(), bytes: Bytes(bytes), role, keep: false };
    let tensors = vec![
        tensor("w1", Role::Parameter, 100),
        tensor("w2", Role::Parameter, 100),
        tensor("m", Role::OptimizerState, 100),
        tensor("x", Role::Input, 64),
        tensor("a", Role::Activation, 128),
        tensor("a", Role::Activation, 128),
        tensor("loss", Role::Output, 4),
        tensor("g2", Role::Gradient, 128),
        tensor("g1", Role::Gradient, 100),
    ];
    let op = |label: &str, reads: &[u32], writes: &[u32], updates: &[u32]| {
        let ids = |list: &[u32]| list.iter().map(|&id| TensorId(id)).collect::<Vec<_>>();
        Op {
            label: label.into(),
            class: label.into(),
            reads: ids(reads),
            writes: ids(writes),
            updates: ids(updates),
            workspace: Bytes::ZERO,
            latency: Nanos(1000),
            replayable: updates.is_empty(),
            in_place: vec![],
        }
    };
    let mut ops = vec![
        op("conv", &[3, 0], &[4], &[]),
        op("relu", &[4], &[5], &[]),
        op("loss", &[5, 1], &[6, 7], &[]),
        op("relu_grad", &[7, 5, 4], &[8], &[]),
        op("adam", &[8], &[], &[0, 2]),
    ];
    ops[0].workspace = Bytes(32);
    ops[1].in_place = vec![InPlace { input: TensorId(4), output: TensorId(5) }];
    let trace = Trace::new(tensors, ops).unwrap();

    let t = TensorId;
    let run = |op| Instr::Run { op: OpId(op), takeovers: vec![] };
    let in_place = vec![InPlace { input: t(4), output: t(5) }];
    let instrs = vec![
        Instr::SwapIn(t(3)),
        run(0),
        Instr::Release(t(3)),
        Instr::SwapOut(t(4)),
        Instr::Run { op: OpId(1), takeovers: in_place.clone() },
        Instr::SwapIn(t(1)),
        run(2),
        Instr::Release(t(1)),
        Instr::SwapOut(t(6)),
        Instr::Release(t(6)),
        Instr::Release(t(5)),
        Instr::SwapIn(t(4)),
        Instr::Rerun { op: OpId(1), takeovers: vec![] },
        run(3),
        Instr::Release(t(4)),
        Instr::Release(t(5)),
        Instr::Release(t(7)),
        Instr::SwapIn(t(2)),
        run(4),
        Instr::Release(t(8)),
        Instr::SwapOut(t(2)),
        Instr::Release(t(2)),
    ];
    let boundary = vec![BoundaryTensor { tensor: t(0), host_valid: false }];
    (trace, Program { boundary, instrs })
}

#[test]
fn program() {
    let (trace, program) = example();
    matches_golden("program.txt", &text::program(&trace, &program).to_string());
}

#[test]
fn placed_and_synced() {
    let (trace, program) = example();
    let limits = Limits { alignment: Bytes(64), ..Limits::unlimited() };
    let placed = layout(&trace, &program, &limits).unwrap();
    tensile_sched::check(&trace, &placed, &limits).unwrap();
    let synced = sync(&trace, placed.clone());
    tensile_sched::verify(&trace, &synced).unwrap();
    matches_golden("placed.txt", &text::placed(&trace, &placed).to_string());
    matches_golden("synced.txt", &text::synced(&trace, &synced).to_string());
}

#[test]
fn residency() {
    let (trace, program) = example();
    matches_golden("residency.txt", &text::residency(&trace, &program).to_string());
}

#[test]
fn wrong_programs_are_shown_too() {
    let (trace, _) = example();
    let instrs = vec![
        Instr::SwapIn(TensorId(70)),
        Instr::Run { op: OpId(70), takeovers: vec![InPlace { input: TensorId(71), output: TensorId(72) }] },
        Instr::Release(TensorId(0)),
    ];
    let program = Program { boundary: vec![BoundaryTensor { tensor: TensorId(73), host_valid: true }], instrs };
    let listing = text::program(&trace, &program).to_string();
    let expected = "\
between steps: t73 on the device and on the host
i0 in       swap in t70
i1 compute  run op70
i2          release w1
";
    assert_eq!(listing, expected);
    assert_eq!(text::residency(&trace, &program).to_string().lines().count(), 2 + trace.tensors().len());
}

/// What a policy makes of a step at the lowest budget it names.
fn lowest_plan(step: &Small, policy: &str) -> Planned {
    // A byte takes a nanosecond, so that a copy of most tensors takes as long as an op.
    let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos::ZERO, ..Link::PCIE3_X16 };
    let limits = Limits { alignment: Bytes(1), link, ..Limits::with_budget(Bytes::ZERO) };
    let planner = planner::find(policy).expect("a policy by that name");
    let Err(Infeasible::Device { lowest, .. }) = planner.plan(&step.trace, &limits) else {
        panic!("{} by {policy} runs without memory", step.name);
    };
    planner.plan(&step.trace, &Limits { device: lowest, ..limits }).expect("its lowest budget")
}

/// Figures and drawings of what the policies make of a small step.
fn plans(policies: &[&str], step: &Small) -> String {
    let none = lowest_plan(step, "none");
    let mut out = format!("{}: {}\n\n", step.name, step.about);
    for &policy in policies {
        let planned = lowest_plan(step, policy);
        if policy != "none" && planned == none {
            writeln!(out, "{policy}: in no less than none\n").unwrap();
            continue;
        }
        let (report, simulation) = (&planned.report, &planned.simulation);
        let (step_time, compute_time) = (simulation.step_time.0, simulation.compute_time.0);
        let (swap_outs, swap_ins, reruns) = (report.swap_outs, report.swap_ins, report.reruns);
        writeln!(out, "{policy}: {} bytes; {step_time} ns for {compute_time} ns of kernels", report.arena.0).unwrap();
        writeln!(out, "{swap_outs} copies out, {swap_ins} in, {reruns} reruns").unwrap();
        writeln!(out, "{}", text::residency(&step.trace, &planned.synced.placed.program)).unwrap();
    }
    out
}

#[test]
fn published_policies_on_small_steps() {
    let steps = small::all();
    assert_eq!(steps.len(), 12);
    for step in &steps {
        let name = format!("plans/{}.txt", step.name);
        matches_golden(&name, &plans(&["none", "paper", "vdnn-conv", "vdnn-all", "autoswap", "capuchin"], step));
    }
}

#[test]
fn the_default_planner_on_small_steps() {
    let texts: Vec<String> = small::all().iter().map(|step| plans(&["tensile"], step)).collect();
    matches_golden("plans/tensile.txt", &texts.concat());
}
