//! Faults that people have met in other systems, as experiments: each must not occur here. Links name the public reports.

mod common;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::{Trained, Way, compile, evict, executor, feed, interpret_steps, limits, outputs_of, run_steps};
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{Delays, Emulation, HostDevice, HostOptions};
use tensile_core::exec::{Compiled, ExecutorOptions, Step, lower};
use tensile_core::op::conv2d::Conv2d;
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::{Optimizer, train};
use tensile_core::testing::{floats, ints};
use tensile_core::{Graph, GraphError, Init, TensorType, Value};
use tensile_sched::{Bytes, Limits, NoEviction, Planner, Tensile, floor};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counter counts the whole process, so tests here take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device(seed: u64) -> Arc<HostDevice> {
    let emulation = Emulation { delays: Some(Delays { seed, longest_us: 20 }), poison: true, ..Emulation::default() };
    Arc::new(HostDevice::new(HostOptions { emulation, ..HostOptions::nominal(2) }).unwrap())
}

/// Runs a graph with every activation recomputed, with half of them swapped, and within the floor; each must give what the interpreter gives.
fn holds(graph: &Graph, optimizer: &Optimizer, n_steps: u64) -> Trained {
    let expected = interpret_steps(graph, optimizer, n_steps);
    let device = device(n_steps);
    let step = Arc::new(lower(graph, &*device).unwrap());
    let free = limits(&device, Bytes::MAX);
    let tight = Limits { device: floor(&step.trace, &free).unwrap().bytes, ..free.clone() };
    let planned = Tensile::default().plan(&step.trace, &tight).unwrap();
    let programs = [
        ("recompute", compile(&step, &evict(&step.trace, true, |_| Way::Recompute), &free)),
        ("both", compile(&step, &evict(&step.trace, false, mixed), &free)),
        ("floor", Compiled::new(Arc::clone(&step), planned, tight).unwrap()),
    ];
    for (name, compiled) in &programs {
        let report = &compiled.planned().report;
        assert!(report.reruns > 0 || *name == "floor", "{name}: {report:?}");
        assert!(report.evictions > 0 || *name == "recompute", "{name}: {report:?}");
        let options = ExecutorOptions { profile: false, poison: true };
        let mut executor = executor(&device, compiled, options);
        let trained = run_steps(&mut executor, compiled, optimizer, n_steps);
        assert_eq!(trained.outputs, expected.outputs, "{name}: outputs");
        assert_eq!(trained.state, expected.state, "{name}: persistent tensors");
    }
    expected
}

fn mixed(tensor: tensile_sched::TensorId) -> Way {
    if tensor.index().is_multiple_of(2) { Way::Swap } else { Way::Recompute }
}

fn linear(graph: &mut Graph, x: Value, name: &str, outputs: usize) -> Result<Value, GraphError> {
    let inputs = graph.dims(x)[1];
    let weight = graph.parameter(&format!("{name}.weight"), [outputs, inputs], Init::Uniform { bound: 0.3 })?;
    let bias = graph.parameter(&format!("{name}.bias"), [outputs], Init::Uniform { bound: 0.1 })?;
    graph.linear(x, weight, Some(bias))
}

fn mlp(p: f32) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut x = graph.input("x", TensorType::f32([12, 20]))?;
    let labels = graph.input("labels", TensorType::i32([12]))?;
    for layer in 0..3 {
        x = linear(&mut graph, x, &format!("layer{layer}"), 24)?;
        x = graph.relu(x)?;
        if p > 0.0 {
            let random = graph.input("random", TensorType::i32([4]))?;
            x = graph.dropout(x, random, p, layer)?;
        }
    }
    let logits = linear(&mut graph, x, "head", 4)?;
    let loss = graph.softmax_cross_entropy(logits, labels)?;
    graph.output("loss", loss)?;
    train(&mut graph, loss, &Optimizer::adam())?;
    Ok(graph)
}

/// A dropout mask is drawn again when its op runs again (allenai/OLMo-core#828).
#[test]
fn c01_dropout_repeats_its_mask() {
    let _turn = turn();
    let expected = holds(&mlp(0.5).unwrap(), &Optimizer::adam(), 50);
    // The mask matters, and it moves from step to step: the same weights without it give another loss.
    let without = interpret_steps(&mlp(0.0).unwrap(), &Optimizer::adam(), 1);
    assert_ne!(expected.outputs[0], without.outputs[0]);
}

/// Running statistics move once per step, though their layer runs twice (pytorch/pytorch#96136).
#[test]
fn c03_running_statistics_move_once() {
    let _turn = turn();
    let mut graph = Graph::new();
    let build = |graph: &mut Graph| -> Result<(), GraphError> {
        let mut x = graph.input("x", TensorType::f32([4, 3, 6, 6]))?;
        let labels = graph.input("labels", TensorType::i32([4]))?;
        for block in 0..3 {
            x = graph.scoped(&format!("block{block}"), |graph| {
                let channels = graph.dims(x)[1];
                let weight = graph.parameter("conv.weight", [5, channels, 3, 3], Init::Uniform { bound: 0.3 })?;
                let x = graph.conv2d(x, weight, None, Conv2d::new(1, 1))?;
                let scale = graph.parameter("norm.weight", [5], Init::Constant(1.0))?;
                let shift = graph.parameter("norm.bias", [5], Init::Constant(0.0))?;
                let [y, mean, var] = graph.batch_norm(x, scale, shift, 1e-5)?;
                let running_mean = graph.buffer("norm.running_mean", TensorType::f32([5]), Init::Constant(0.0))?;
                let running_var = graph.buffer("norm.running_var", TensorType::f32([5]), Init::Constant(1.0))?;
                let count = graph.buffer("norm.count", TensorType::i32([]), Init::Constant(0.0))?;
                graph.batch_norm_stats([running_mean, running_var, count], [mean, var], 4 * 36, 0.1)?;
                graph.relu(y)
            })?;
        }
        let x = graph.global_avg_pool2d(x)?;
        let x = graph.reshape(x, [4, 5])?;
        let loss = graph.softmax_cross_entropy(x, labels)?;
        graph.output("loss", loss)?;
        train(graph, loss, &Optimizer::sgd(0.9)).map(|_| ())
    };
    build(&mut graph).unwrap();
    let expected = holds(&graph, &Optimizer::sgd(0.9), 20);
    let counts = expected.state.iter().filter(|value| value.persistent.name.ends_with("norm.count"));
    assert_eq!(counts.map(|value| ints(&value.bytes)[0]).collect::<Vec<_>>(), [20, 20, 20]);
}

/// A step that works in place is repeated when its result is recomputed, once (pytorch/torchtitan#4688).
#[test]
fn c05_in_place_steps_are_recomputed() {
    let _turn = turn();
    let mut graph = Graph::new();
    let build = |graph: &mut Graph| -> Result<(), GraphError> {
        let x = graph.parameter("x", [1], Init::Constant(2.0))?;
        let b = graph.copy(x)?;
        let b = graph.scale(b, 3.0)?;
        let square = graph.mul(b, b)?;
        let loss = graph.sum(square, &[0])?;
        let loss = graph.reshape(loss, [])?;
        graph.output("loss", loss)?;
        let grad = graph.grad(loss, &[x])?[0].expect("the loss depends on x");
        graph.output("grad", grad)
    };
    build(&mut graph).unwrap();
    let device = device(1);
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let program = evict(&step.trace, true, |_| Way::Recompute);
    let in_place_rerun = |instr: &tensile_sched::Instr| match instr {
        tensile_sched::Instr::Rerun { takeovers, .. } => !takeovers.is_empty(),
        _ => false,
    };
    assert!(program.instrs.iter().any(in_place_rerun), "{program:?}");
    let compiled = compile(&step, &program, &limits(&device, Bytes::MAX));
    let mut executor = executor(&device, &compiled, ExecutorOptions { profile: true, poison: true });
    for iteration in 0..3 {
        let result = executor.step(&compiled, feed(iteration, &Optimizer::adam())).unwrap();
        assert_eq!((result.scalar("loss"), result.output("grad").unwrap().f32s()[0]), (36.0, 36.0));
    }
}

/// Ties are broken the same way when their input is recomputed (NVIDIA-NeMo/Automodel#3156).
#[test]
fn c09_ties_fall_the_same_way() {
    let _turn = turn();
    let mut graph = Graph::new();
    let build = |graph: &mut Graph| -> Result<(), GraphError> {
        let x = graph.input("x", TensorType::f32([2, 3, 12, 12]))?;
        let labels = graph.input("labels", TensorType::i32([2]))?;
        // Most windows of the ReLU hold exact zeros only; the others nearly equal values.
        let weight = graph.parameter("weight", [4, 3, 1, 1], Init::Uniform { bound: 1e-6 })?;
        let y = graph.conv2d(x, weight, None, Conv2d::default())?;
        let y = graph.add_scalar(y, -1e-6)?;
        let y = graph.relu(y)?;
        let y = graph.add_scalar(y, 1.0)?;
        let y = graph.max_pool2d(y, Pool2d::new(3, 2))?;
        let y = graph.global_avg_pool2d(y)?;
        let logits = graph.reshape(y, [2, 4])?;
        let loss = graph.softmax_cross_entropy(logits, labels)?;
        graph.output("loss", loss)?;
        train(graph, loss, &Optimizer::sgd(0.0)).map(|_| ())
    };
    build(&mut graph).unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(holds(&graph, &Optimizer::sgd(0.0), 4));
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}

/// The first update with its moments keeps to the budget like every other step (hpcaitech/PaLM-colossalai#40).
#[test]
fn c20_the_first_update_keeps_to_the_budget() {
    let _turn = turn();
    let graph = mlp(0.5).unwrap();
    let optimizer = Optimizer::adam();
    let expected = interpret_steps(&graph, &optimizer, 3);
    let device = Arc::new(HostDevice::new(HostOptions::nominal(2)).unwrap());
    let step: Arc<Step> = Arc::new(lower(&graph, &*device).unwrap());
    let free = limits(&device, Bytes::MAX);
    let bottom = floor(&step.trace, &free).unwrap().bytes.0;
    let plain = NoEviction.plan(&step.trace, &free).unwrap().report.arena.0;
    // Below the plain run's memory, moments, parameters and activations do not fit together.
    assert!(bottom < plain, "{bottom}, {plain}");
    for budget in [bottom, bottom.midpoint(plain), plain - 64] {
        let limits = Limits { device: Bytes(budget), ..free.clone() };
        let planned = Tensile::default().plan(&step.trace, &limits).unwrap();
        let compiled = Compiled::new(Arc::clone(&step), planned, limits).unwrap();
        count::reset_peak();
        let mut executor = executor(&device, &compiled, ExecutorOptions::default());
        for iteration in 0..3 {
            let result = executor.step(&compiled, feed(iteration, &optimizer)).unwrap();
            assert_eq!(outputs_of(result), expected.outputs[iteration as usize]);
            let peak = count::peak(Tag::Device);
            assert!(peak <= budget, "step {iteration}: {peak} bytes above the budget {budget}");
            count::reset_peak();
        }
        assert_eq!(executor.state().unwrap(), expected.state);
        assert!(floats(&expected.outputs[2][0].1)[0].is_finite());
    }
}
