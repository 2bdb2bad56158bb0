//! How long a program takes from its layout to its proofs, stage by stage: `cargo bench -p tensile-sched`.
//!
//! The programs are Tensile's at 55 % of `none`'s arena, for chains with skip connections of several lengths and, where the folder of recorded traces is there
//! (`../shared/traces` beside the repository, or below the folder that `TENSILE_SHARED` names), for some of those.

use std::hint::black_box;
use std::path::PathBuf;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use tensile_sched::{
    Bytes, Limits, Nanos, NoEviction, Op, Planner, Role, Synced, Tensile, Tensor, TensorId, Trace, check, floor,
    layout, read_trace, simulate, spread, sync, verify,
};

/// Lengths of chains, in ops.
const CHAINS: [usize; 3] = [1_000, 5_000, 20_000];
/// Recorded traces.
const RECORDED: [&str; 3] = ["tensile_resnet50_b16", "tensile_densenet121_b16", "dtr_lstm_128"];

/// Forward pass, backward pass and updates of a chain in which every third layer also reads one of the nine before.
fn chain(n_ops: usize) -> Trace {
    let mut state = 12345u64;
    let mut below = move |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |pages: u64, role: Role| {
        let id = TensorId(tensors.len() as u32);
        tensors.push(Tensor { name: format!("t{id}"), bytes: Bytes(4096 * pages), role, keep: false });
        id
    };
    let op = |label: String, reads: Vec<TensorId>, writes: Vec<TensorId>, updates: Vec<TensorId>, latency: u64| Op {
        class: String::from("layer"),
        label,
        reads,
        writes,
        replayable: updates.is_empty(),
        updates,
        workspace: Bytes(if latency.is_multiple_of(3) { 1 << 16 } else { 0 }),
        latency: Nanos(latency),
        in_place: vec![],
    };
    let n_layers = n_ops / 5 * 2;
    let mut ops = Vec::new();
    let mut activations = vec![add(256, Role::Input)];
    let mut parameters = Vec::new();
    for layer in 0..n_layers {
        let activation = add(64 + below(512), Role::Activation);
        let parameter = layer.is_multiple_of(2).then(|| add(1 + below(64), Role::Parameter));
        let mut reads = vec![activations[layer]];
        if layer > 10 && layer.is_multiple_of(3) {
            reads.push(activations[layer - 1 - below(9) as usize]);
        }
        reads.extend(parameter);
        ops.push(op(format!("forward{layer}"), reads, vec![activation], vec![], 50_000 + below(300_000)));
        activations.push(activation);
        parameters.push(parameter);
    }
    let mut gradient = add(1, Role::Gradient);
    ops.push(op("loss".into(), vec![activations[n_layers]], vec![gradient], vec![], 10_000));
    let mut updates = Vec::new();
    for layer in (0..n_layers).rev() {
        let next = add(64 + below(512), Role::Gradient);
        let mut reads = vec![gradient, activations[layer], activations[layer + 1]];
        let mut writes = vec![next];
        if let Some(parameter) = parameters[layer] {
            let of_parameter = add(1 + below(64), Role::Gradient);
            reads.push(parameter);
            writes.push(of_parameter);
            updates.push((parameter, of_parameter));
        }
        ops.push(op(format!("backward{layer}"), reads, writes, vec![], 100_000 + below(500_000)));
        gradient = next;
    }
    for (parameter, of_parameter) in updates {
        ops.push(op("update".into(), vec![of_parameter], vec![], vec![parameter], 5_000 + below(20_000)));
    }
    Trace::new(tensors, ops).expect("the chain is a valid trace")
}

/// A recorded trace, if the folder is there.
fn recorded(name: &str) -> Option<Trace> {
    let shared = std::env::var_os("TENSILE_SHARED")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared")), PathBuf::from);
    let bytes = std::fs::read(shared.join("traces").join(name).with_extension("json.gz")).ok()?;
    Some(read_trace(&bytes).expect("a valid trace file"))
}

/// A trace with a program under pressure.
struct Case {
    name: String,
    trace: Trace,
    limits: Limits,
    synced: Synced,
}

fn case(name: String, trace: Trace) -> Case {
    let unlimited = Limits::unlimited();
    let none = NoEviction.plan(&trace, &unlimited).expect("no limit").report.arena;
    let floor = floor(&trace, &unlimited).expect("no limit").bytes;
    let limits = Limits::with_budget(floor.max(Bytes(none.0 / 100 * 55)));
    let synced = Tensile::default().plan(&trace, &limits).expect("a budget above the floor").synced;
    Case { name, trace, limits, synced }
}

fn stages(criterion: &mut Criterion) {
    let recorded = RECORDED.into_iter().filter_map(|name| Some(case(name.into(), recorded(name)?)));
    let chains = CHAINS.into_iter().map(|n_ops| case(format!("chain_{n_ops}"), chain(n_ops)));
    for Case { name, trace, limits, synced } in recorded.chain(chains) {
        let placed = &synced.placed;
        let mut group = criterion.benchmark_group(&name);
        group.sample_size(10);
        let mut stage = |stage: &str, run: &dyn Fn()| {
            group.bench_function(BenchmarkId::from_parameter(stage), |bencher| bencher.iter(run));
        };
        stage("layout", &|| drop(black_box(layout(&trace, &placed.program, &limits))));
        stage("simulate", &|| drop(black_box(simulate(&trace, &synced, &limits.link))));
        stage("check", &|| drop(black_box(check(&trace, placed, &limits))));
        stage("verify", &|| drop(black_box(verify(&trace, &synced))));
        group.bench_function("sync", |bencher| {
            bencher.iter_batched(|| placed.clone(), |placed| sync(&trace, placed), BatchSize::LargeInput);
        });
        group.bench_function("spread", |bencher| {
            bencher.iter_batched(|| placed.clone(), |placed| spread(&trace, placed, &limits), BatchSize::LargeInput);
        });
        group.finish();
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
