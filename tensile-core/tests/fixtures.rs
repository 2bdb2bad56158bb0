//! Ops against right values from PyTorch in float64 (`tests/data/ops.json`): outputs, and gradients of all inputs.
//!
//! Tolerances are bounds on |a − b| / (1 + |b|), stated with each case.

use serde_json::Value as Json;
use tensile_core::testing::{self, Interpreter, float_bytes, largest_difference, values};
use tensile_core::{Graph, GraphError, TensorType, Value};

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
    let given: Vec<(&str, Vec<u8>)> = names.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let outcome = testing::run(&graph, &given, &[], 1);
    let difference = largest_difference(&outcome.output("y"), &numbers(&case["output"]));
    assert!(difference <= tolerance, "{name}: output differs by {difference:.1e}");
    for (k, right) in case["gradients"].as_array().expect("a list").iter().enumerate() {
        let difference = largest_difference(&outcome.output(&format!("grad{k}")), &numbers(right));
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
