//! Ops against right values from PyTorch in float64 (`tests/data/ops.json`): outputs, and gradients of all inputs; optimizers after three steps.
//!
//! Tolerances are bounds on |a − b| / (1 + |b|), stated with each case.

use std::sync::Arc;

use serde_json::Value as Json;
use tensile_sched::{Bytes, NoEviction, Planner};

use super::cases::with_gradients;
use crate::device::Device;
use crate::exec::{Compiled, Executor, ExecutorOptions, lower};
use crate::graph::{Graph, GraphError, Init, Value};
use crate::op::conv2d::Conv2d;
use crate::op::pool::Pool2d;
use crate::optim::{Optimizer, Rule, SCALARS};
use crate::tensor::TensorType;
use crate::testing::{float_bytes, floats, int_bytes, largest_difference, values};

/// Sums of a few terms in f32.
const TIGHT: f64 = 2e-6;

/// A graph with inputs and the right values of its outputs or persistent tensors.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// Its name in the file.
    pub name: String,
    /// The graph.
    pub graph: Graph,
    /// Bytes of the inputs, by name, for each step.
    pub steps: Vec<Vec<(String, Vec<u8>)>>,
    /// First bytes of persistent tensors, by name; the others begin as the graph says.
    pub persistents: Vec<(String, Vec<u8>)>,
    /// Right values by the name of an output, or of a persistent tensor after the last step, and a factor that a result is to be multiplied by.
    right: Vec<(String, Vec<f64>, f32)>,
    /// Most that |a − b| / (1 + |b|) may be.
    pub tolerance: f64,
}

impl Fixture {
    /// Compares results, bytes by name, with the right values.
    ///
    /// # Panics
    /// If they differ by more than the tolerance.
    pub fn compare(&self, result: impl Fn(&str) -> Vec<u8>) {
        for (name, right, factor) in &self.right {
            let got: Vec<f32> = floats(&result(name)).iter().map(|x| x * factor).collect();
            let difference = largest_difference(&got, right);
            assert!(difference <= self.tolerance, "{}: '{name}' differs by {difference:.1e}", self.name);
        }
    }
}

fn data() -> Json {
    serde_json::from_str(include_str!("../../tests/data/ops.json")).expect("the file is JSON")
}

fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn dims(json: &Json) -> Vec<usize> {
    json.as_array().expect("a list").iter().map(|x| x.as_u64().expect("a size") as usize).collect()
}

/// Makes a case with inputs `scale.0 · x + scale.1`.
fn check(
    run: &mut dyn FnMut(&Fixture),
    name: &str,
    tolerance: f64,
    scale: impl Fn(usize) -> (f32, f32),
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, GraphError>,
) {
    let data = data();
    let (case, seed) = (&data["cases"][name], data["seed"].as_u64().expect("a seed"));
    let mut graph = Graph::new();
    let (mut inputs, mut given) = (Vec::new(), Vec::new());
    for (k, shape) in case["input_shapes"].as_array().unwrap_or_else(|| panic!("no case {name}")).iter().enumerate() {
        let ty = TensorType::f32(dims(shape));
        let (factor, summand) = scale(k);
        let x: Vec<f32> = values(ty.numel(), seed + k as u64).iter().map(|x| factor * x + summand).collect();
        given.push((format!("x{k}"), float_bytes(&x)));
        inputs.push(graph.input(&format!("x{k}"), ty).expect("a new input"));
    }
    let y = build(&mut graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(graph.dims(y), dims(&case["output_shape"]), "{name}: shape");
    with_gradients(&mut graph, y, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let upstream = if graph.dims(y).is_empty() { vec![1.0] } else { values(graph.ty(y).numel(), seed + 100) };
    given.push(("upstream".to_owned(), float_bytes(&upstream)));
    let labels: Vec<i32> = (0..5).map(|i| i * 3 % 7).collect();
    for (input, words) in [("labels", &labels[..]), ("indices", &[1, 3, 3, 8, 0, 1])] {
        if graph.inputs().any(|(name, _)| name == input) {
            given.push((input.to_owned(), int_bytes(words)));
        }
    }
    let mut right = vec![("y".to_owned(), numbers(&case["output"]), 1.0)];
    for (k, gradient) in case["gradients"].as_array().expect("a list").iter().enumerate() {
        // The file's gradients are by the values before they are scaled.
        right.push((format!("grad{k}"), numbers(gradient), scale(k).0));
    }
    let (name, steps) = (name.to_owned(), vec![given]);
    run(&Fixture { name, graph, steps, persistents: Vec::new(), right, tolerance });
}

fn plain(_: usize) -> (f32, f32) {
    (1.0, 0.0)
}

/// Calls `run` with every case of the file.
pub fn each(run: &mut dyn FnMut(&Fixture)) {
    let groups = [
        relu,
        max_pool2d,
        avg_pool2d,
        adaptive_avg_pool2d,
        batch_norm,
        softmax_cross_entropy,
        broadcasting,
        reductions,
        conv2d,
        matmul,
        activations,
        layout,
        layer_norm,
        embedding,
        attention,
        optimizers,
    ];
    for group in groups {
        group(run);
    }
}

/// Runs every case on a device.
///
/// # Panics
/// If a result differs by more than its tolerance.
pub fn agree_with_pytorch<D: Device>(device: &Arc<D>) {
    each(&mut |fixture| {
        let name = &fixture.name;
        let step = Arc::new(lower(&fixture.graph, &**device).unwrap_or_else(|error| panic!("{name}: {error}")));
        let limits = device.info().limits(Bytes::MAX);
        let planned = NoEviction.plan(&step.trace, &limits).expect("there is no limit");
        let compiled = Compiled::new(Arc::clone(&step), planned, limits).expect("planners make right programs");
        let mut executor = Executor::new(Arc::clone(device), &compiled, ExecutorOptions::default(), |_, _, _| {})
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        for (persistent, bytes) in &fixture.persistents {
            executor.write_persistent(persistent, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let mut outputs = Vec::new();
        for given in &fixture.steps {
            let result = executor.step(&compiled, |input, bytes| {
                let (_, given) = given.iter().find(|(name, _)| *name == input.name).expect("every input is given");
                bytes.copy_from_slice(given);
            });
            outputs = result.unwrap_or_else(|error| panic!("{name}: {error}")).outputs;
        }
        let state = executor.state().expect("nothing failed");
        fixture.compare(|wanted| {
            let output = outputs.iter().find(|output| output.name == wanted).map(|output| output.bytes.clone());
            let persistent =
                || state.iter().find(|value| value.persistent.name == wanted).map(|value| value.bytes.clone());
            output.or_else(persistent).unwrap_or_else(|| panic!("{name}: no '{wanted}'"))
        });
    });
}

fn relu(run: &mut dyn FnMut(&Fixture)) {
    check(run, "relu", TIGHT, plain, |graph, x| graph.relu(x[0]));
}

fn max_pool2d(run: &mut dyn FnMut(&Fixture)) {
    check(run, "max_pool_3_s2_p1", TIGHT, plain, |graph, x| graph.max_pool2d(x[0], Pool2d::new(3, 2).padding(1)));
    check(run, "max_pool_2_s2", TIGHT, plain, |graph, x| graph.max_pool2d(x[0], Pool2d::new(2, 2)));
    check(run, "max_pool_ceil", TIGHT, plain, |graph, x| graph.max_pool2d(x[0], Pool2d::new(3, 2).ceil_mode()));
}

fn avg_pool2d(run: &mut dyn FnMut(&Fixture)) {
    let pool = Pool2d::new(3, 1).padding(1);
    check(run, "avg_pool_3_s1_p1_exclude", TIGHT, plain, |graph, x| graph.avg_pool2d(x[0], pool, false));
    check(run, "avg_pool_3_s1_p1_include", TIGHT, plain, |graph, x| graph.avg_pool2d(x[0], pool, true));
}

fn adaptive_avg_pool2d(run: &mut dyn FnMut(&Fixture)) {
    check(run, "global_avg_pool", TIGHT, plain, |graph, x| graph.global_avg_pool2d(x[0]));
    check(run, "adaptive_avg_pool_3x2", TIGHT, plain, |graph, x| graph.adaptive_avg_pool2d(x[0], [3, 2]));
}

fn batch_norm(run: &mut dyn FnMut(&Fixture)) {
    check(run, "batch_norm_train", 5e-6, plain, |graph, x| Ok(graph.batch_norm(x[0], x[1], x[2], 1e-5)?[0]));
}

fn softmax_cross_entropy(run: &mut dyn FnMut(&Fixture)) {
    check(
        run,
        "softmax_cross_entropy_mean",
        TIGHT,
        |_| (4.0, 0.0),
        |graph, x| {
            let labels = graph.input("labels", TensorType::i32([5]))?;
            graph.softmax_cross_entropy(x[0], labels)
        },
    );
}

fn broadcasting(run: &mut dyn FnMut(&Fixture)) {
    check(run, "add_broadcast", TIGHT, plain, |graph, x| graph.add(x[0], x[1]));
    check(run, "sub_broadcast", TIGHT, plain, |graph, x| graph.sub(x[0], x[1]));
    check(run, "mul_broadcast", TIGHT, plain, |graph, x| graph.mul(x[0], x[1]));
    check(run, "div_broadcast", TIGHT, |k| (1.0, 3.0 * k as f32), |graph, x| graph.div(x[0], x[1]));
}

fn reductions(run: &mut dyn FnMut(&Fixture)) {
    check(run, "reduce_sum_axis1", TIGHT, plain, |graph, x| graph.sum(x[0], &[1]));
    check(run, "reduce_mean_all", TIGHT, plain, |graph, x| graph.mean(x[0], &[0, 1, 2]));
}

fn conv2d(run: &mut dyn FnMut(&Fixture)) {
    let conv = |stride, padding, dilation, groups| Conv2d { stride, padding, dilation, groups };
    for (name, conv) in [
        ("conv2d_3x3_s1_p1", conv([1, 1], [1, 1], [1, 1], 1)),
        ("conv2d_3x3_s2_p0", conv([2, 2], [0, 0], [1, 1], 1)),
        ("conv2d_1x7_p03", conv([1, 1], [0, 3], [1, 1], 1)),
        ("conv2d_7x7_s2_p3", conv([2, 2], [3, 3], [1, 1], 1)),
        ("conv2d_1x1_s2", conv([2, 2], [0, 0], [1, 1], 1)),
        ("conv2d_dilation2", conv([1, 1], [2, 2], [2, 2], 1)),
        ("conv2d_groups2", conv([1, 1], [1, 1], [1, 1], 2)),
        ("conv2d_depthwise", conv([1, 1], [1, 1], [1, 1], 4)),
    ] {
        check(run, name, 5e-6, plain, |graph, x| graph.conv2d(x[0], x[1], x.get(2).copied(), conv.clone()));
    }
}

fn matmul(run: &mut dyn FnMut(&Fixture)) {
    check(run, "linear", TIGHT, plain, |graph, x| graph.linear(x[0], x[1], Some(x[2])));
    check(run, "matmul_batched", TIGHT, plain, |graph, x| graph.matmul(x[0], x[1], false, false));
    check(run, "matmul_batched_transposed", TIGHT, plain, |graph, x| graph.matmul(x[0], x[1], false, true));
    check(run, "matmul_broadcast", TIGHT, plain, |graph, x| graph.matmul(x[0], x[1], false, false));
}

fn activations(run: &mut dyn FnMut(&Fixture)) {
    check(run, "gelu_erf", TIGHT, |_| (3.0, 0.0), |graph, x| graph.gelu(x[0]));
    check(run, "gelu_tanh", TIGHT, |_| (3.0, 0.0), |graph, x| graph.gelu_tanh(x[0]));
    check(run, "sigmoid", TIGHT, |_| (5.0, 0.0), |graph, x| graph.sigmoid(x[0]));
    check(run, "tanh", TIGHT, |_| (3.0, 0.0), |graph, x| graph.tanh(x[0]));
    check(run, "softmax", TIGHT, |_| (4.0, 0.0), |graph, x| graph.softmax(x[0]));
}

fn layout(run: &mut dyn FnMut(&Fixture)) {
    check(run, "concat_channels", TIGHT, plain, |graph, x| graph.concat(x, 1));
    check(run, "slice_channels", TIGHT, plain, |graph, x| graph.slice(x[0], 1, 2, 3));
    check(run, "pad_hw", TIGHT, plain, |graph, x| graph.pad(x[0], &[0, 0, 0, 1], &[0, 0, 1, 2]));
    check(run, "permute_0213", TIGHT, plain, |graph, x| graph.permute(x[0], &[0, 2, 1, 3]));
}

fn layer_norm(run: &mut dyn FnMut(&Fixture)) {
    check(run, "layer_norm", 5e-6, plain, |graph, x| graph.layer_norm(x[0], x[1], x[2], 1e-5));
}

fn embedding(run: &mut dyn FnMut(&Fixture)) {
    check(run, "embedding", TIGHT, plain, |graph, x| {
        let indices = graph.input("indices", TensorType::i32([2, 3]))?;
        graph.embedding(x[0], indices)
    });
}

fn attention(run: &mut dyn FnMut(&Fixture)) {
    check(run, "causal_attention_head", TIGHT, plain, |graph, x| {
        let scores = graph.matmul(x[0], x[1], false, true)?;
        let scores = graph.scale(scores, 0.5)?;
        let weights = graph.causal_softmax(scores)?;
        graph.matmul(weights, x[2], false, false)
    });
}

/// Three steps from parameters `value(6, seed)` with gradients `value(6, seed + 1 + step)`, in one chunk and in chunks of a few elements.
fn optimizer(run: &mut dyn FnMut(&Fixture), name: &str, rule: &Rule, lr: f64) {
    let data = data();
    let seed = data["seed"].as_u64().expect("a seed");
    for chunk_bytes in [1 << 20, 16, 1] {
        let optimizer = Optimizer { chunk_bytes, ..rule.clone().into() };
        let mut graph = Graph::new();
        let p = graph.parameter("w", [6], Init::Constant(0.0)).expect("a new parameter");
        let g = graph.input("g", TensorType::f32([6])).expect("a new input");
        optimizer.apply(&mut graph, None, &[(p, g)]).expect("types fit");
        let steps = (0..3).map(|step| {
            let gradient = float_bytes(&values(6, seed + 1 + step));
            vec![("g".to_owned(), gradient), (SCALARS.to_owned(), float_bytes(&optimizer.scalars(step, lr)))]
        });
        run(&Fixture {
            name: format!("{name}, chunks of {chunk_bytes} bytes"),
            steps: steps.collect(),
            graph,
            persistents: vec![("w".to_owned(), float_bytes(&values(6, seed)))],
            right: vec![("w".to_owned(), numbers(&data["optimizers_after_3_steps"][name]), 1.0)],
            tolerance: TIGHT,
        });
    }
}

fn optimizers(run: &mut dyn FnMut(&Fixture)) {
    optimizer(run, "sgd_momentum", &Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }, 0.1);
    optimizer(run, "sgd_nesterov_decay", &Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 }, 0.1);
    optimizer(run, "adam", &Optimizer::adam().rule, 0.01);
    optimizer(run, "adamw", &Optimizer::adamw(0.1).rule, 0.01);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every case of the file is checked here.
    #[test]
    fn no_case_is_left_out() {
        let (data, source) = (data(), include_str!("fixtures.rs"));
        let (cases, optimizers) = (&data["cases"], &data["optimizers_after_3_steps"]);
        for name in [cases, optimizers].into_iter().flat_map(|all| all.as_object().expect("an object").keys()) {
            assert!(source.contains(&format!("\"{name}\"")), "{name} is not checked");
        }
    }
}
