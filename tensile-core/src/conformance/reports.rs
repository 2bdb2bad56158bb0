//! Faults that people have met in other systems, as experiments: each must not occur on any device. Links name the public reports.
//!
//! Every experiment panics if it finds the fault. `held` gives the device bytes that are held now, or have been at most since it was last asked, by a count that knows nothing of plans.

use std::sync::Arc;

use tensile_sched::{Bytes, Infeasible, Instr, Limits, NoEviction, Planner, Tensile, TensorId, floor};

use super::harness::{
    Trained, Way, classifier_of, compile, evict, executor, feed, keep_all, limits, outputs_of, run_steps,
};
use super::{Places, args, read, write};
use crate::device::{Device, OpCall, Region};
use crate::exec::{Compiled, ExecutorOptions, Step, lower};
use crate::graph::{Graph, GraphError, Init, Value};
use crate::op::Op;
use crate::op::conv2d::Conv2d;
use crate::op::fill::Fill;
use crate::op::matmul::MatMul;
use crate::op::pool::Pool2d;
use crate::optim::{Optimizer, train};
use crate::tensor::{Shape, TensorType};
use crate::testing::{float_bytes, ints, values};

/// The step on the device with nothing evicted, and what it gives.
fn reference<D: Device>(device: &Arc<D>, graph: &Graph, optimizer: &Optimizer, n_steps: u64) -> (Arc<Step>, Trained) {
    let step = Arc::new(lower(graph, &**device).unwrap_or_else(|error| panic!("{error}")));
    let compiled = compile(&step, &keep_all(&step.trace), &limits(device, Bytes::MAX));
    let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, poison: true });
    let trained = run_steps(&mut executor, &compiled, optimizer, n_steps);
    (step, trained)
}

fn planned<D: Device>(device: &Arc<D>, step: &Arc<Step>, budget: u64) -> Arc<Compiled> {
    let limits = limits(device, Bytes(budget));
    let planned = Tensile::default().plan(&step.trace, &limits).unwrap_or_else(|error| panic!("{error}"));
    Compiled::new(Arc::clone(step), planned, limits).unwrap_or_else(|error| panic!("{error}"))
}

/// Device bytes of a plan without eviction, and the floor.
fn ends<D: Device>(device: &Arc<D>, step: &Step) -> (u64, u64) {
    let free = limits(device, Bytes::MAX);
    let plain = NoEviction.plan(&step.trace, &free).unwrap_or_else(|error| panic!("{error}"));
    (plain.report.arena.0, floor(&step.trace, &free).unwrap_or_else(|error| panic!("{error}")).bytes.0)
}

/// Runs a graph with every activation recomputed, with half of them swapped, and within the floor; each must give what it gives with nothing evicted.
///
/// # Panics
/// If it does not, or nothing was evicted.
pub fn holds<D: Device>(device: &Arc<D>, graph: &Graph, optimizer: &Optimizer, n_steps: u64) -> Trained {
    let (step, expected) = reference(device, graph, optimizer, n_steps);
    let free = limits(device, Bytes::MAX);
    let (_, bottom) = ends(device, &step);
    let programs = [
        ("recompute", compile(&step, &evict(&step.trace, true, |_| Way::Recompute), &free)),
        ("both", compile(&step, &evict(&step.trace, false, mixed), &free)),
        ("floor", planned(device, &step, bottom)),
    ];
    for (name, compiled) in &programs {
        let report = &compiled.planned().report;
        assert!(report.reruns > 0 || *name == "floor", "{name}: {report:?}");
        assert!(report.evictions > 0 || *name == "recompute", "{name}: {report:?}");
        let mut executor = executor(device, compiled, ExecutorOptions { profile: false, poison: true });
        let trained = run_steps(&mut executor, compiled, optimizer, n_steps);
        assert!(trained.outputs == expected.outputs, "{name}: outputs");
        assert!(trained.state == expected.state, "{name}: persistent tensors");
    }
    expected
}

/// Every second tensor is swapped, the others are recomputed.
pub fn mixed(tensor: TensorId) -> Way {
    if tensor.index().is_multiple_of(2) { Way::Swap } else { Way::Recompute }
}

fn linear(graph: &mut Graph, x: Value, name: &str, outputs: usize) -> Result<Value, GraphError> {
    let inputs = graph.dims(x)[1];
    let weight = graph.parameter(&format!("{name}.weight"), [outputs, inputs], Init::Uniform { bound: 0.3 })?;
    let bias = graph.parameter(&format!("{name}.bias"), [outputs], Init::Uniform { bound: 0.1 })?;
    graph.linear(x, weight, Some(bias))
}

/// Three hidden layers with dropout of probability `p`, trained with Adam.
///
/// # Errors
/// None.
pub fn mlp(p: f32) -> Result<Graph, GraphError> {
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

fn built(build: impl FnOnce(&mut Graph) -> Result<(), GraphError>) -> Graph {
    let mut graph = Graph::new();
    build(&mut graph).unwrap_or_else(|error| panic!("{error}"));
    graph
}

/// A dropout mask is drawn again when its op runs again (allenai/OLMo-core#828).
pub fn c01_dropout_repeats_its_mask<D: Device>(device: &Arc<D>) {
    let graph = |p| mlp(p).unwrap_or_else(|error| panic!("{error}"));
    let expected = holds(device, &graph(0.5), &Optimizer::adam(), 50);
    // The mask matters: the same weights without it give another loss.
    let (_, without) = reference(device, &graph(0.0), &Optimizer::adam(), 1);
    assert_ne!(expected.outputs[0], without.outputs[0]);
}

/// Running statistics move once per step, though their layer runs twice (pytorch/pytorch#96136).
pub fn c03_running_statistics_move_once<D: Device>(device: &Arc<D>) {
    let graph = built(|graph| {
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
    });
    let expected = holds(device, &graph, &Optimizer::sgd(0.9), 20);
    let counts = expected.state.iter().filter(|value| value.persistent.name.ends_with("norm.count"));
    assert_eq!(counts.map(|value| ints(&value.bytes)[0]).collect::<Vec<_>>(), [20, 20, 20]);
}

/// A step that works in place is repeated when its result is recomputed, once (pytorch/torchtitan#4688).
pub fn c05_in_place_steps_are_recomputed<D: Device>(device: &Arc<D>) {
    let graph = built(|graph| {
        let x = graph.parameter("x", [1], Init::Constant(2.0))?;
        let b = graph.copy(x)?;
        let b = graph.scale(b, 3.0)?;
        let square = graph.mul(b, b)?;
        let loss = graph.sum(square, &[0])?;
        let loss = graph.reshape(loss, [])?;
        graph.output("loss", loss)?;
        let grad = graph.grad(loss, &[x])?[0].expect("the loss depends on x");
        graph.output("grad", grad)
    });
    let step = Arc::new(lower(&graph, &**device).unwrap_or_else(|error| panic!("{error}")));
    let program = evict(&step.trace, true, |_| Way::Recompute);
    let in_place = |instr: &Instr| matches!(instr, Instr::Rerun { takeovers, .. } if !takeovers.is_empty());
    assert!(program.instrs.iter().any(in_place), "{program:?}");
    let compiled = compile(&step, &program, &limits(device, Bytes::MAX));
    let mut executor = executor(device, &compiled, ExecutorOptions { profile: true, poison: true });
    for iteration in 0..3 {
        let result = executor.step(&compiled, feed(iteration, &Optimizer::adam())).expect("a step");
        assert_eq!((result.scalar("loss"), result.output("grad").expect("an output").f32s()[0]), (36.0, 36.0));
    }
}

/// Four ways to run a chain, one result, and both mechanisms at work in the last (pytorch/pytorch#147565).
pub fn c07_swap_and_recompute_work_together<D: Device>(device: &Arc<D>) {
    let optimizer = Optimizer::adam();
    let graph = super::harness::normed_images(&optimizer).unwrap_or_else(|error| panic!("{error}"));
    let (step, expected) = reference(device, &graph, &optimizer, 2);
    let free = limits(device, Bytes::MAX);
    type Choice<'a> = &'a dyn Fn(TensorId) -> Way;
    let ways: [(&str, Choice<'_>, bool, bool); 4] = [
        ("keep", &|_| Way::Keep, false, false),
        ("swap", &|_| Way::Swap, true, false),
        ("recompute", &|_| Way::Recompute, false, true),
        ("both", &mixed, true, true),
    ];
    for (name, way, swaps, reruns) in ways {
        let compiled = compile(&step, &evict(&step.trace, true, way), &free);
        let report = &compiled.planned().report;
        assert_eq!((report.evictions > 0, report.reruns > 0), (swaps, reruns), "{name}: {report:?}");
        let mut executor = executor(device, &compiled, ExecutorOptions { profile: true, poison: true });
        assert!(run_steps(&mut executor, &compiled, &optimizer, 2) == expected, "{name}");
        let stats = executor.stats(&compiled).expect("it has run");
        assert_eq!(stats.reruns, 2 * report.reruns as u64);
        let runs = 2 * (step.trace.ops().len() + report.reruns) as u64;
        assert_eq!(stats.ops.iter().map(|op| op.count).sum::<u64>(), runs);
    }
}

/// Ties are broken the same way when their input is recomputed (NVIDIA-NeMo/Automodel#3156).
pub fn c09_ties_fall_the_same_way<D: Device>(device: &Arc<D>) {
    let graph = built(|graph| {
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
    });
    let seen: Vec<Trained> = (0..5).map(|_| holds(device, &graph, &Optimizer::sgd(0.0), 4)).collect();
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Bytes are not handed on while a kernel still reads them (huggingface/diffusers#14657): a product is queued, and right behind it a fill of its operand.
pub fn c13_bytes_change_hands_after_their_last_use<D: Device>(device: &Arc<D>) {
    let n = 192;
    let square = TensorType::f32([n, n]);
    let types = [square.clone(), square.clone()];
    let product: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
    let fill: Op = Fill { shape: Shape::from([n, n]), value: f32::NAN }.into();
    let mut places = Places::new(&**device);
    let [x, weight, y] = [0; 3].map(|_| places.next(square.bytes() as u64));
    let scratch = device.workspace(&product, &types, &types[..1]).expect("every device multiplies");
    let workspace = places.next(scratch);
    assert!(device.workspace(&fill, &[], &types[..1]).expect("every device fills") == 0, "a fill needs no scratch");
    let arena = device.alloc_arena(places.end).expect("a small arena");
    let stream = device.stream(tensile_sched::Lane::Compute).expect("a stream");
    let mut results = Vec::new();
    for spoil in [false, true] {
        write(&**device, &arena, x, &float_bytes(&values(n * n, 1)));
        write(&**device, &arena, weight, &float_bytes(&values(n * n, 2)));
        let (inputs, outputs) = (args(&[x, weight], &types), args(&[y], &types));
        let call = OpCall { op: &product, inputs: &inputs, outputs: &outputs, workspace };
        device.launch(&stream, &arena, &call).expect("enqueued");
        if spoil {
            let outputs = args(&[weight], &types);
            let call = OpCall { op: &fill, inputs: &[], outputs: &outputs, workspace: Region::default() };
            device.launch(&stream, &arena, &call).expect("enqueued");
        }
        device.synchronize(&stream).expect("both work");
        results.push(read(&**device, &arena, y));
    }
    assert!(results[0] == results[1], "the product changed");
}

/// The budget is a limit, and below the floor there is an error that names it (MegEngine/MegEngine#482).
pub fn c15_the_budget_is_a_limit<D: Device>(device: &Arc<D>, held: impl Fn() -> u64) {
    let optimizer = Optimizer::adam();
    let graph =
        classifier_of(Graph::new(), Some(&optimizer), [16, 1, 16, 16]).unwrap_or_else(|error| panic!("{error}"));
    let (step, expected) = reference(device, &graph, &optimizer, 3);
    let (plain, bottom) = ends(device, &step);
    for percent in [75, 50, 30] {
        let budget = (plain * percent / 100).max(bottom);
        let compiled = planned(device, &step, budget);
        assert!(compiled.planned().report.evictions + compiled.planned().report.reruns > 0, "{percent} %");
        let before = held();
        let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, poison: true });
        let trained = run_steps(&mut executor, &compiled, &optimizer, 3);
        let taken = held().saturating_sub(before.min(held()));
        assert!(taken <= budget, "{percent} %: {taken} bytes held, above the budget of {budget}");
        assert!(trained == expected, "{percent} %: other bits");
    }
    let limits = limits(device, Bytes(bottom - 1));
    match Tensile::default().plan(&step.trace, &limits) {
        Err(error @ Infeasible::Device { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&bottom.to_string()), "{text} does not name the floor, {bottom}");
        }
        other => panic!("below the floor: {other:?}"),
    }
}

/// With as much memory as the plain run takes, nothing is swapped or run again (parasj/checkmate#151).
pub fn c18_a_budget_that_fits_costs_nothing<D: Device>(device: &Arc<D>) {
    let graph = super::harness::normed_images(&Optimizer::adam()).unwrap_or_else(|error| panic!("{error}"));
    let step = lower(&graph, &**device).unwrap_or_else(|error| panic!("{error}"));
    let free = limits(device, Bytes::MAX);
    let plain = NoEviction.plan(&step.trace, &free).expect("there is no limit");
    for budget in [plain.report.arena, Bytes(plain.report.arena.0 * 101 / 100)] {
        let limits = Limits { device: budget, ..free.clone() };
        let planned = Tensile::default().plan(&step.trace, &limits).expect("the plain plan fits");
        assert_eq!((planned.report.evictions, planned.report.reruns), (0, 0));
        assert_eq!(planned.simulation.step_time, plain.simulation.step_time);
    }
}

/// The first update with its moments keeps to the budget like every other step (hpcaitech/PaLM-colossalai#40).
pub fn c20_the_first_update_keeps_to_the_budget<D: Device>(device: &Arc<D>, held: impl Fn() -> u64) {
    let (graph, optimizer) = (mlp(0.5).unwrap_or_else(|error| panic!("{error}")), Optimizer::adam());
    let (step, expected) = reference(device, &graph, &optimizer, 3);
    let (plain, bottom) = ends(device, &step);
    // Below the plain run's memory, moments, parameters and activations do not fit together.
    assert!(bottom < plain, "{bottom}, {plain}");
    for budget in [bottom, bottom.midpoint(plain), plain - device.info().alignment] {
        let compiled = planned(device, &step, budget);
        let before = held();
        let mut executor = executor(device, &compiled, ExecutorOptions::default());
        for iteration in 0..3 {
            let result = executor.step(&compiled, feed(iteration, &optimizer)).expect("a step");
            assert_eq!(outputs_of(result), expected.outputs[iteration as usize]);
            let now = held();
            let taken = now.saturating_sub(before.min(now));
            assert!(taken <= budget, "step {iteration}: {taken} bytes held, above the budget of {budget}");
        }
        assert!(executor.state().expect("nothing failed") == expected.state);
    }
}

/// The update needs no more than parameters, gradients, moments and a small multiple of the largest parameter (pytorch/pytorch#97712).
pub fn c22_the_update_has_no_large_temporaries<D: Device>(device: &Arc<D>) {
    let optimizer = Optimizer::adam();
    let graph = built(|graph| {
        let mut x = graph.input("x", TensorType::f32([1, 64]))?;
        let labels = graph.input("labels", TensorType::i32([1]))?;
        for layer in 0..4 {
            x = linear(graph, x, &format!("layer{layer}"), 64)?;
            x = graph.relu(x)?;
        }
        let logits = linear(graph, x, "head", 4)?;
        let loss = graph.softmax_cross_entropy(logits, labels)?;
        graph.output("loss", loss)?;
        train(graph, loss, &optimizer).map(|_| ())
    });
    let (step, expected) = reference(device, &graph, &optimizer, 3);
    let unit = device.info().alignment;
    let sizes = step.persistents.iter().filter(|persistent| persistent.role == tensile_sched::Role::Parameter);
    let sizes: Vec<u64> = sizes.map(|persistent| (persistent.ty.bytes() as u64).next_multiple_of(unit)).collect();
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let scratch = step.trace.ops().iter().map(|op| op.workspace.0.next_multiple_of(unit)).max().unwrap_or(0);
    let budget = 4 * sizes.iter().sum::<u64>() + 3 * largest + scratch;
    let limits = Limits { mode: tensile_sched::Mode::Recompute, ..limits(device, Bytes(budget)) };
    let planned = Tensile::default().plan(&step.trace, &limits).unwrap_or_else(|error| panic!("{error}"));
    let compiled = Compiled::new(step, planned, limits).expect("planners make right programs");
    let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, poison: true });
    assert!(run_steps(&mut executor, &compiled, &optimizer, 3) == expected);
}

/// A tensor of half the budget finds its place in every iteration among many small ones that live long (pytorch/pytorch#35901).
pub fn c25_memory_does_not_fall_to_pieces<D: Device>(device: &Arc<D>) {
    let optimizer = Optimizer::sgd(0.0);
    let graph = built(|graph| {
        let x = graph.input("x", TensorType::f32([8, 16]))?;
        let labels = graph.input("labels", TensorType::i32([8]))?;
        let mut kept = Vec::new();
        for index in 0..24 {
            let weight = graph.parameter(&format!("small{index}"), [16, 16], Init::Uniform { bound: 0.3 })?;
            kept.push(graph.matmul(x, weight, false, false)?);
            if index % 8 == 3 {
                let large = graph.parameter(&format!("large{index}"), [16, 512], Init::Uniform { bound: 0.1 })?;
                let wide = graph.matmul(x, large, false, false)?;
                let sum = graph.mean(wide, &[1])?;
                let sum = graph.reshape(sum, [8, 1])?;
                let last = kept.pop().expect("just added");
                kept.push(graph.add(last, sum)?);
            }
        }
        let mut all = kept.pop().expect("there are some");
        for other in kept.into_iter().rev() {
            all = graph.add(all, other)?;
        }
        let logits = graph.slice(all, 1, 0, 4)?;
        let loss = graph.softmax_cross_entropy(logits, labels)?;
        graph.output("loss", loss)?;
        train(graph, loss, &optimizer).map(|_| ())
    });
    let (step, expected) = reference(device, &graph, &optimizer, 5);
    let free = limits(device, Bytes::MAX);
    let plain = NoEviction.plan(&step.trace, &free).expect("there is no limit");
    let compiled = planned(device, &step, plain.report.peak.0 * 11 / 10);
    let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, poison: true });
    assert!(run_steps(&mut executor, &compiled, &optimizer, 5) == expected);
}

/// Steps of two shapes and evaluations take turns: each shape has one plan, and memory is the same from turn to turn (tensorflow/models#6936,
/// tracel-ai/burn#4792, tracel-ai/burn#2743).
pub fn c27_c35_shapes_take_turns_and_memory_stays_flat<D: Device>(device: &Arc<D>, held: impl Fn() -> u64) {
    let optimizer = Optimizer::adam();
    let network = |graph: Graph, training: bool, images: usize| {
        let training = training.then_some(&optimizer);
        classifier_of(graph, training, [images, 1, 8, 8]).unwrap_or_else(|error| panic!("{error}"))
    };
    let whole = network(Graph::new(), true, 10);
    let graphs = [network(whole.sibling(), true, 3), network(whole.sibling(), false, 10)];
    let steps: Vec<Arc<Step>> = [&whole, &graphs[0], &graphs[1]]
        .into_iter()
        .map(|graph| Arc::new(lower(graph, &**device).unwrap_or_else(|error| panic!("{error}"))))
        .collect();
    let train_all = |budget: u64, turns: u64| {
        let first = planned(device, &steps[0], budget);
        let boundary = first.planned().synced.layout().homes.clone();
        let others = steps[1..].iter().map(|step| {
            let limits = Limits { boundary: Some(boundary.clone()), ..limits(device, Bytes(budget)) };
            let planned = Tensile::default().plan(&step.trace, &limits).unwrap_or_else(|error| panic!("{error}"));
            Compiled::new(Arc::clone(step), planned, limits).expect("planners make right programs")
        });
        let programs: Vec<Arc<Compiled>> = [first.clone()].into_iter().chain(others).collect();
        let mut executor = executor(device, &first, ExecutorOptions { profile: false, poison: true });
        let (mut outputs, mut bytes) = (Vec::new(), Vec::new());
        for turn in 0..turns {
            for (index, program) in programs.iter().enumerate() {
                let result = executor.step(program, feed(3 * turn + index as u64, &optimizer)).expect("a step");
                outputs.push(outputs_of(result));
            }
            bytes.push((held(), executor.arena_bytes(), executor.host_bytes()));
        }
        assert!(bytes[1..].windows(2).all(|pair| pair[0] == pair[1]), "{bytes:?}");
        (outputs, executor.state().expect("nothing failed"))
    };
    let (plain, bottom) = ends(device, &steps[0]);
    let expected = train_all(2 * plain, 10);
    assert!(train_all(bottom.midpoint(plain), 10) == expected, "a budget changes the bits");
}

/// Forward passes whose results nobody differentiates leave nothing behind (tracel-ai/burn#2743).
pub fn c33_forwards_leave_nothing_behind<D: Device>(device: &Arc<D>, held: impl Fn() -> u64) {
    let optimizer = Optimizer::adam();
    let graph = classifier_of(Graph::new(), None, [4, 1, 8, 8]).unwrap_or_else(|error| panic!("{error}"));
    let step = Arc::new(lower(&graph, &**device).unwrap_or_else(|error| panic!("{error}")));
    let compiled = compile(&step, &keep_all(&step.trace), &limits(device, Bytes::MAX));
    let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, poison: false });
    let mut seen = Vec::new();
    for pass in 0..500u64 {
        executor.step(&compiled, feed(pass, &optimizer)).expect("a step");
        if pass % 100 == 99 {
            seen.push((held(), executor.arena_bytes(), executor.host_bytes()));
        }
    }
    assert!(seen[1..].windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
}

/// What the forward pass keeps for the backward pass is what that needs, counted by hand (huggingface/candle#1241).
pub fn c37_only_what_the_backward_needs_is_kept<D: Device>(device: &Arc<D>) {
    let (batch, width, layers) = (32, 64, 8);
    let graph = built(|graph| {
        let mut x = graph.input("x", TensorType::f32([batch, width]))?;
        let labels = graph.input("labels", TensorType::i32([batch]))?;
        for layer in 0..layers {
            x = linear(graph, x, &format!("layer{layer}"), width)?;
            x = graph.relu(x)?;
        }
        let logits = linear(graph, x, "head", 4)?;
        let loss = graph.softmax_cross_entropy(logits, labels)?;
        graph.output("loss", loss)?;
        train(graph, loss, &Optimizer::sgd(0.0)).map(|_| ())
    });
    let step = lower(&graph, &**device).unwrap_or_else(|error| panic!("{error}"));
    let (tensors, ops) = (step.trace.tensors(), step.trace.ops());
    let is_gradient = |id: &TensorId| tensors[id.index()].role == tensile_sched::Role::Gradient;
    let backward = ops.iter().position(|op| op.writes.iter().any(is_gradient)).expect("there is a backward pass");
    let kept = tensors.iter().enumerate().filter(|(index, tensor)| {
        let id = TensorId::from_index(*index);
        let made = ops[..backward].iter().any(|op| op.writes.contains(&id));
        let used = ops[backward..].iter().any(|op| op.reads.contains(&id));
        !tensor.role.is_persistent() && used && (made || tensor.role == tensile_sched::Role::Input)
    });
    let kept: u64 = kept.map(|(_, tensor)| tensor.bytes.0).sum();
    // The input and every layer's output, for the gradients of the weights and, of the outputs' signs, of ReLU; logits, labels and the learning rate.
    let needed = 4 * (batch * width * (layers + 1) + batch * 4 + batch) as u64;
    assert!(kept <= needed * 11 / 10, "{kept} bytes kept, {needed} needed");
}

/// A host that has no room for what leaves the device: the step is recomputed, or refused with figures before it begins (deepspeedai/DeepSpeed#4867).
pub fn c32_the_host_has_a_budget_too<D: Device>(device: &Arc<D>) {
    let optimizer = Optimizer::sgd(0.0);
    let graph =
        classifier_of(Graph::new(), Some(&optimizer), [16, 1, 16, 16]).unwrap_or_else(|error| panic!("{error}"));
    let (step, expected) = reference(device, &graph, &optimizer, 2);
    let free = limits(device, Bytes::MAX);
    let plain = NoEviction.plan(&step.trace, &free).expect("there is no limit");
    let limits = |percent: u64| {
        let device = Bytes(plain.report.arena.0 * percent / 100);
        Limits { device, host: plain.report.host_arena, ..free.clone() }
    };
    let mut recomputed = 0;
    for percent in [95, 85, 75, 50, 20] {
        let limits = limits(percent);
        match Tensile::default().plan(&step.trace, &limits) {
            Ok(planned) => {
                assert!(planned.report.reruns > 0 && planned.report.host_arena <= limits.host, "{:?}", planned.report);
                let compiled = Compiled::new(Arc::clone(&step), planned, limits).expect("planners make right programs");
                let mut executor = executor(device, &compiled, ExecutorOptions { profile: false, poison: true });
                assert!(run_steps(&mut executor, &compiled, &optimizer, 2) == expected, "{percent} %: other bits");
                recomputed += 1;
            }
            Err(error) => {
                let figures = [limits.host, limits.device].map(|bytes| format!("({} bytes)", bytes.0));
                assert!(figures.iter().any(|figure| error.to_string().contains(figure)), "{percent} %: {error}");
            }
        }
    }
    assert!(recomputed > 0, "no budget was held by recomputing");
}
