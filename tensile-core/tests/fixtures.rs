//! Ops against right values from PyTorch in float64 (`tests/data/ops.json`): outputs, and gradients of all inputs.
//!
//! Tolerances are bounds on |a − b| / (1 + |b|), stated with each case.

use serde_json::Value as Json;
use tensile_core::op::conv2d::Conv2d;
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::{Optimizer, Rule, SCALARS};
use tensile_core::testing::{self, Interpreter, float_bytes, int_bytes, largest_difference, values};
use tensile_core::{Graph, GraphError, Init, TensorType, Value};

/// Sums of a few terms in f32.
const TIGHT: f64 = 2e-6;

fn data() -> Json {
    serde_json::from_str(include_str!("data/ops.json")).expect("the file is JSON")
}

fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
}

fn dims(json: &Json) -> Vec<usize> {
    json.as_array().expect("a list").iter().map(|x| x.as_u64().expect("a size") as usize).collect()
}

/// Runs a case with inputs `scale.0 · x + scale.1` on 1 to 3 threads, with and without in-place use; all must agree bit for bit, and with the right
/// values within `tolerance`.
fn check(
    name: &str,
    tolerance: f64,
    scale: impl Fn(usize) -> (f32, f32),
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, GraphError>,
) {
    let data = data();
    let (case, seed) = (&data["cases"][name], data["seed"].as_u64().expect("a seed"));
    let mut graph = Graph::new();
    let (mut inputs, mut names) = (Vec::new(), Vec::new());
    for (k, shape) in case["input_shapes"].as_array().unwrap_or_else(|| panic!("no case {name}")).iter().enumerate() {
        let ty = TensorType::f32(dims(shape));
        let (factor, summand) = scale(k);
        let x: Vec<f32> = values(ty.numel(), seed + k as u64).iter().map(|x| factor * x + summand).collect();
        names.push((format!("x{k}"), float_bytes(&x)));
        inputs.push(graph.input(&format!("x{k}"), ty).expect("a new input"));
    }
    let y = build(&mut graph, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(graph.dims(y), dims(&case["output_shape"]), "{name}: shape");
    graph.output("y", y).expect("a new output");
    testing::add_gradients(&mut graph, y, &inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let n = graph.ty(y).numel();
    let upstream = if graph.dims(y).is_empty() { vec![1.0] } else { values(n, seed + 100) };
    names.push(("upstream".to_owned(), float_bytes(&upstream)));
    let labels: Vec<i32> = (0..5).map(|i| i * 3 % 7).collect();
    if graph.inputs().any(|(name, _)| name == "labels") {
        names.push(("labels".to_owned(), int_bytes(&labels)));
    }
    if graph.inputs().any(|(name, _)| name == "indices") {
        names.push(("indices".to_owned(), int_bytes(&[1, 3, 3, 8, 0, 1])));
    }
    let given: Vec<(&str, Vec<u8>)> = names.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let outcome = testing::run(&graph, &given, &[], 1);
    let difference = largest_difference(&outcome.output("y"), &numbers(&case["output"]));
    assert!(difference <= tolerance, "{name}: output differs by {difference:.1e}");
    for (k, right) in case["gradients"].as_array().expect("a list").iter().enumerate() {
        // The file's gradients are by the values before they are scaled.
        let grad: Vec<f32> = outcome.output(&format!("grad{k}")).iter().map(|x| x * scale(k).0).collect();
        let difference = largest_difference(&grad, &numbers(right));
        assert!(difference <= tolerance, "{name}: gradient {k} differs by {difference:.1e}");
    }
    for threads in 1..=3 {
        for in_place in [false, true] {
            let other = Interpreter { threads, in_place }.run(&graph, &given, &[]);
            assert_eq!(outcome, other, "{name}: bits depend on {threads} threads or in place {in_place}");
        }
    }
}

fn plain(_: usize) -> (f32, f32) {
    (1.0, 0.0)
}

#[test]
fn relu() {
    check("relu", TIGHT, plain, |graph, x| graph.relu(x[0]));
}

#[test]
fn max_pool2d() {
    check("max_pool_3_s2_p1", TIGHT, plain, |graph, x| graph.max_pool2d(x[0], Pool2d::new(3, 2).padding(1)));
    check("max_pool_2_s2", TIGHT, plain, |graph, x| graph.max_pool2d(x[0], Pool2d::new(2, 2)));
    check("max_pool_ceil", TIGHT, plain, |graph, x| graph.max_pool2d(x[0], Pool2d::new(3, 2).ceil_mode()));
}

#[test]
fn avg_pool2d() {
    let pool = Pool2d::new(3, 1).padding(1);
    check("avg_pool_3_s1_p1_exclude", TIGHT, plain, |graph, x| graph.avg_pool2d(x[0], pool, false));
    check("avg_pool_3_s1_p1_include", TIGHT, plain, |graph, x| graph.avg_pool2d(x[0], pool, true));
}

#[test]
fn adaptive_avg_pool2d() {
    check("global_avg_pool", TIGHT, plain, |graph, x| graph.global_avg_pool2d(x[0]));
    check("adaptive_avg_pool_3x2", TIGHT, plain, |graph, x| graph.adaptive_avg_pool2d(x[0], [3, 2]));
}

#[test]
fn batch_norm() {
    check("batch_norm_train", 5e-6, plain, |graph, x| Ok(graph.batch_norm(x[0], x[1], x[2], 1e-5)?[0]));
}

#[test]
fn softmax_cross_entropy() {
    check(
        "softmax_cross_entropy_mean",
        TIGHT,
        |_| (4.0, 0.0),
        |graph, x| {
            let labels = graph.input("labels", TensorType::i32([5]))?;
            graph.softmax_cross_entropy(x[0], labels)
        },
    );
}

/// Three steps from parameters `value(6, seed)` with gradients `value(6, seed + 1 + step)`, in one chunk and in chunks of two elements.
fn check_optimizer(name: &str, rule: Rule, lr: f64) {
    let data = data();
    let seed = data["seed"].as_u64().expect("a seed");
    for chunk_bytes in [1 << 20, 16, 1] {
        let optimizer = Optimizer { chunk_bytes, ..rule.clone().into() };
        let mut graph = Graph::new();
        let p = graph.parameter("w", [6], Init::Constant(0.0)).expect("a new parameter");
        let g = graph.input("g", TensorType::f32([6])).expect("a new input");
        optimizer.apply(&mut graph, None, &[(p, g)]).expect("types fit");
        let mut state = vec![("w".to_owned(), float_bytes(&values(6, seed)))];
        for step in 0..3 {
            let given: Vec<(&str, Vec<u8>)> = state.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
            let inputs =
                [("g", float_bytes(&values(6, seed + 1 + step))), (SCALARS, float_bytes(&optimizer.scalars(step, lr)))];
            let outcome = testing::run(&graph, &inputs, &given, 2);
            state = outcome.persistents.into_iter().collect();
        }
        let (_, w) = state.iter().find(|(name, _)| name == "w").expect("the parameter");
        let difference = largest_difference(&testing::floats(w), &numbers(&data["optimizers_after_3_steps"][name]));
        assert!(difference <= TIGHT, "{name}, chunks of {chunk_bytes} bytes: differs by {difference:.1e}");
    }
}

#[test]
fn optimizers() {
    check_optimizer("sgd_momentum", Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }, 0.1);
    check_optimizer("sgd_nesterov_decay", Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 }, 0.1);
    check_optimizer("adam", Optimizer::adam().rule, 0.01);
    check_optimizer("adamw", Optimizer::adamw(0.1).rule, 0.01);
}

#[test]
fn broadcasting() {
    check("add_broadcast", TIGHT, plain, |graph, x| graph.add(x[0], x[1]));
    check("sub_broadcast", TIGHT, plain, |graph, x| graph.sub(x[0], x[1]));
    check("mul_broadcast", TIGHT, plain, |graph, x| graph.mul(x[0], x[1]));
    check("div_broadcast", TIGHT, |k| (1.0, 3.0 * k as f32), |graph, x| graph.div(x[0], x[1]));
}

#[test]
fn reductions() {
    check("reduce_sum_axis1", TIGHT, plain, |graph, x| graph.sum(x[0], &[1]));
    check("reduce_mean_all", TIGHT, plain, |graph, x| graph.mean(x[0], &[0, 1, 2]));
}

#[test]
fn conv2d() {
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
        check(name, 5e-6, plain, |graph, x| graph.conv2d(x[0], x[1], x.get(2).copied(), conv.clone()));
    }
}

#[test]
fn matmul() {
    check("linear", TIGHT, plain, |graph, x| graph.linear(x[0], x[1], Some(x[2])));
    check("matmul_batched", TIGHT, plain, |graph, x| graph.matmul(x[0], x[1], false, false));
    check("matmul_batched_transposed", TIGHT, plain, |graph, x| graph.matmul(x[0], x[1], false, true));
    check("matmul_broadcast", TIGHT, plain, |graph, x| graph.matmul(x[0], x[1], false, false));
}

#[test]
fn activations() {
    check("gelu_erf", TIGHT, |_| (3.0, 0.0), |graph, x| graph.gelu(x[0]));
    check("gelu_tanh", TIGHT, |_| (3.0, 0.0), |graph, x| graph.gelu_tanh(x[0]));
    check("sigmoid", TIGHT, |_| (5.0, 0.0), |graph, x| graph.sigmoid(x[0]));
    check("tanh", TIGHT, |_| (3.0, 0.0), |graph, x| graph.tanh(x[0]));
    check("softmax", TIGHT, |_| (4.0, 0.0), |graph, x| graph.softmax(x[0]));
}

#[test]
fn layout() {
    check("concat_channels", TIGHT, plain, |graph, x| graph.concat(x, 1));
    check("slice_channels", TIGHT, plain, |graph, x| graph.slice(x[0], 1, 2, 3));
    check("pad_hw", TIGHT, plain, |graph, x| graph.pad(x[0], &[0, 0, 0, 1], &[0, 0, 1, 2]));
    check("permute_0213", TIGHT, plain, |graph, x| graph.permute(x[0], &[0, 2, 1, 3]));
}

#[test]
fn layer_norm() {
    check("layer_norm", 5e-6, plain, |graph, x| graph.layer_norm(x[0], x[1], x[2], 1e-5));
}

#[test]
fn embedding() {
    check("embedding", TIGHT, plain, |graph, x| {
        let indices = graph.input("indices", TensorType::i32([2, 3]))?;
        graph.embedding(x[0], indices)
    });
}

#[test]
fn attention() {
    check("causal_attention_head", TIGHT, plain, |graph, x| {
        let scores = graph.matmul(x[0], x[1], false, true)?;
        let scores = graph.scale(scores, 0.5)?;
        let weights = graph.causal_softmax(scores)?;
        graph.matmul(weights, x[2], false, false)
    });
}

/// Every case of the file is checked here.
#[test]
fn no_case_is_left_out() {
    let (data, source) = (data(), include_str!("fixtures.rs"));
    for name in data["cases"].as_object().expect("an object").keys() {
        assert!(source.contains(&format!("\"{name}\"")), "{name} is not checked");
    }
}
