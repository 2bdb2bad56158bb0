//! Small graphs that together have every op in them.

use tensile_sched::Role;

use crate::graph::{Graph, GraphError, Init, Value};
use crate::op::conv2d::Conv2d;
use crate::op::pool::Pool2d;
use crate::optim::{Optimizer, Rule, SCALARS};
use crate::tensor::{DType, TensorType};
use crate::testing::{float_bytes, int_bytes, values};

/// A graph with inputs and outputs, and how close its results must come to the reference.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// For people.
    pub name: &'static str,
    /// Most that |a − b| / (1 + |b|) may be for floats; integers must be equal.
    pub tolerance: f64,
    build: fn(&mut Graph) -> Result<(), GraphError>,
}

impl Case {
    /// The graph.
    ///
    /// # Panics
    /// If it cannot be built: a bug of the suite.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        (self.build)(&mut graph).unwrap_or_else(|error| panic!("case {}: {error}", self.name));
        graph
    }

    /// Bytes of an input: a function of its name and type.
    pub fn input(name: &str, ty: &TensorType) -> Vec<u8> {
        let n = ty.numel();
        let seed = name.bytes().fold(5u64, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte));
        match ty.dtype {
            DType::F32 => {
                let positive = name.starts_with("positive") || name == SCALARS;
                let values = values(n, seed).into_iter();
                float_bytes(&values.map(|x| if positive { x.abs() + 0.25 } else { x }).collect::<Vec<_>>())
            }
            // Labels of up to four classes; seeds and counters may be anything.
            DType::I32 => int_bytes(&(0..n as i32).map(|i| (i * 7 + 3) % 4).collect::<Vec<_>>()),
            DType::U8 => (0..n).map(|i| (i % 2) as u8).collect(),
        }
    }
}

fn f32(graph: &mut Graph, name: &str, dims: impl Into<Vec<usize>>) -> Result<Value, GraphError> {
    graph.input(name, TensorType::f32(dims.into()))
}

/// Makes `y` an output, and the gradients of Σ y·upstream by each of `wrt`.
pub(super) fn with_gradients(graph: &mut Graph, y: Value, wrt: &[Value]) -> Result<(), GraphError> {
    graph.output("y", y)?;
    let upstream = graph.input("upstream", graph.ty(y).clone())?;
    let product = graph.mul(y, upstream)?;
    let axes: Vec<usize> = (0..graph.dims(product).len()).collect();
    let loss = if axes.is_empty() { product } else { graph.sum(product, &axes)? };
    let loss = graph.reshape(loss, [])?;
    for (index, grad) in graph.grad(loss, wrt)?.into_iter().enumerate() {
        let grad = grad.expect("y depends on all of wrt");
        graph.output(&format!("grad{index}"), grad)?;
    }
    Ok(())
}

fn conv(graph: &mut Graph, x: [usize; 4], weight: [usize; 4], bias: bool, conv: Conv2d) -> Result<(), GraphError> {
    let outputs = weight[0];
    let (x, weight) = (f32(graph, "x", x)?, f32(graph, "weight", weight)?);
    let bias = if bias { Some(f32(graph, "bias", [outputs])?) } else { None };
    let y = graph.conv2d(x, weight, bias, conv)?;
    let wrt: Vec<Value> = [x, weight].into_iter().chain(bias).collect();
    with_gradients(graph, y, &wrt)
}

fn update(graph: &mut Graph, rule: Rule, chunk_bytes: usize) -> Result<(), GraphError> {
    let parameter = graph.parameter("w", [37, 5], Init::Uniform { bound: 1.0 })?;
    let gradient = f32(graph, "gradient", [37, 5])?;
    Optimizer { chunk_bytes, ..rule.into() }.apply(graph, None, &[(parameter, gradient)]).map(|_| ())
}

/// An update behind a gate, and with groups; the inputs' norm is above the clipping.
fn guarded_update(graph: &mut Graph, optimizer: Optimizer) -> Result<(), GraphError> {
    let mut updates = Vec::new();
    for (name, dims) in [("w", vec![37, 5]), ("bias", vec![5])] {
        let parameter = graph.parameter(name, dims.clone(), Init::Uniform { bound: 1.0 })?;
        updates.push((parameter, f32(graph, &format!("{name} gradient"), dims)?));
    }
    let optimizer = optimizer.without_decay_on_vectors().with_clip_norm(0.5).with_skip_nonfinite();
    let loss = f32(graph, "loss", [])?;
    let guard = optimizer.apply(graph, Some(loss), &updates)?.expect("updates are guarded");
    graph.output("gate", guard.gate)?;
    graph.output("norm", guard.grad_norm)
}

type Binary = fn(&mut Graph, Value, Value) -> Result<Value, GraphError>;

fn binary(graph: &mut Graph, op: Binary, a: &[usize], b: &[usize]) -> Result<(), GraphError> {
    let (a, b) = (f32(graph, "a", a)?, f32(graph, "positive b", b)?);
    let y = op(graph, a, b)?;
    with_gradients(graph, y, &[a, b])
}

macro_rules! cases {
    ($($name:literal, $tolerance:expr, |$graph:ident| $build:expr;)*) => {
        vec![$(Case {
            name: $name,
            tolerance: $tolerance,
            build: |$graph: &mut Graph| -> Result<(), GraphError> { $build },
        }),*]
    };
}

/// Elementwise ops, and sums of a few terms.
const TIGHT: f64 = 2e-6;
/// Sums of hundreds of terms.
const SUMS: f64 = 2e-5;

/// All cases. A test of this crate sees to it that every op occurs.
pub fn cases() -> Vec<Case> {
    cases! {
        "add", TIGHT, |graph| binary(graph, Graph::add, &[5, 7, 3], &[5, 7, 3]);
        "add broadcast", SUMS, |graph| binary(graph, Graph::add, &[5, 7, 3], &[7, 1]);
        "sub broadcast", SUMS, |graph| binary(graph, Graph::sub, &[1, 70], &[33, 70]);
        "mul broadcast", SUMS, |graph| binary(graph, Graph::mul, &[4, 1, 9], &[4, 17, 9]);
        "div", SUMS, |graph| binary(graph, Graph::div, &[11, 13], &[11, 13]);
        "long add", TIGHT, |graph| binary(graph, Graph::add, &[40_001], &[40_001]);
        "scale and shift", TIGHT, |graph| {
            let x = f32(graph, "x", [129])?;
            let y = graph.scale(x, -1.5)?;
            let y = graph.add_scalar(y, 0.25)?;
            with_gradients(graph, y, &[x])
        };
        "relu", TIGHT, |graph| {
            let x = f32(graph, "x", [3, 1001])?;
            let y = graph.relu(x)?;
            with_gradients(graph, y, &[x])
        };
        "dropout", TIGHT, |graph| {
            let x = f32(graph, "x", [9, 77])?;
            let random = graph.input("random", TensorType::i32([4]))?;
            let y = graph.dropout(x, random, 0.3, 2)?;
            with_gradients(graph, y, &[x])
        };
        "copy, fill and view", TIGHT, |graph| {
            let x = f32(graph, "x", [6, 5])?;
            let y = graph.copy(x)?;
            let y = graph.reshape(y, [5, 6])?;
            let ones = graph.fill([5, 6], 1.5)?;
            let y = graph.mul(y, ones)?;
            let bytes = graph.input("bytes", TensorType::u8([13]))?;
            let copied = graph.copy(bytes)?;
            graph.output("bytes copied", copied)?;
            with_gradients(graph, y, &[x])
        };
        "sum and mean", SUMS, |graph| {
            let x = f32(graph, "x", [6, 50, 7])?;
            let a = graph.sum(x, &[1])?;
            let b = graph.mean(x, &[0, 2])?;
            let (a, b) = (graph.reshape(a, [6, 1, 7])?, graph.reshape(b, [50, 1])?);
            let y = graph.mul(a, b)?;
            with_gradients(graph, y, &[x])
        };
        "matmul", SUMS, |graph| {
            let (a, b) = (f32(graph, "a", [33, 65])?, f32(graph, "b", [65, 17])?);
            let y = graph.matmul(a, b, false, false)?;
            with_gradients(graph, y, &[a, b])
        };
        "batched matmul, transposed", SUMS, |graph| {
            let (a, b) = (f32(graph, "a", [3, 20, 9])?, f32(graph, "b", [3, 14, 20])?);
            let y = graph.matmul(a, b, true, true)?;
            with_gradients(graph, y, &[a, b])
        };
        "linear with bias", SUMS, |graph| {
            let (x, weight, bias) = (f32(graph, "x", [19, 40])?, f32(graph, "weight", [10, 40])?, f32(graph, "bias", [10])?);
            let y = graph.linear(x, weight, Some(bias))?;
            with_gradients(graph, y, &[x, weight, bias])
        };
        "conv2d 3x3", SUMS, |graph| conv(graph, [2, 5, 9, 7], [6, 5, 3, 3], true, Conv2d::new(1, 1));
        "conv2d 1x1", SUMS, |graph| conv(graph, [2, 16, 6, 6], [8, 16, 1, 1], false, Conv2d::default());
        "conv2d 7x7 stride 2", SUMS, |graph| conv(graph, [1, 3, 20, 20], [4, 3, 7, 7], false, Conv2d::new(2, 3));
        "conv2d dilated", SUMS, |graph| {
            conv(graph, [2, 3, 11, 10], [4, 3, 3, 2], true, Conv2d { dilation: [2, 3], ..Conv2d::new(1, 2) })
        };
        "conv2d in groups", SUMS, |graph| conv(graph, [2, 6, 8, 8], [9, 2, 3, 3], true, Conv2d::new(1, 1).groups(3));
        "conv2d by channel", SUMS, |graph| conv(graph, [2, 8, 9, 9], [8, 1, 3, 3], true, Conv2d::new(2, 1).groups(8));
        "max_pool2d", TIGHT, |graph| {
            let x = f32(graph, "x", [2, 3, 9, 9])?;
            let y = graph.max_pool2d(x, Pool2d::new(3, 2).padding(1))?;
            with_gradients(graph, y, &[x])
        };
        "avg_pool2d", TIGHT, |graph| {
            let x = f32(graph, "x", [2, 3, 7, 8])?;
            let a = graph.avg_pool2d(x, Pool2d::new(3, 1).padding(1), true)?;
            let b = graph.avg_pool2d(x, Pool2d::new(3, 1).padding(1), false)?;
            let y = graph.add(a, b)?;
            with_gradients(graph, y, &[x])
        };
        "adaptive_avg_pool2d", TIGHT, |graph| {
            let x = f32(graph, "x", [2, 5, 7, 9])?;
            let y = graph.adaptive_avg_pool2d(x, [3, 2])?;
            with_gradients(graph, y, &[x])
        };
        "batch_norm", SUMS, |graph| {
            let (x, weight, bias) = (f32(graph, "x", [4, 6, 5, 3])?, f32(graph, "weight", [6])?, f32(graph, "bias", [6])?);
            let [y, mean, var] = graph.batch_norm(x, weight, bias, 1e-5)?;
            let running_mean = graph.buffer("running_mean", TensorType::f32([6]), Init::Constant(0.0))?;
            let running_var = graph.buffer("running_var", TensorType::f32([6]), Init::Constant(1.0))?;
            let count = graph.persistent("count", Role::Buffer, TensorType::i32([]), Init::Constant(0.0))?;
            graph.batch_norm_stats([running_mean, running_var, count], [mean, var], 60, 0.1)?;
            with_gradients(graph, y, &[x, weight, bias])
        };
        "batch_norm at inference", SUMS, |graph| {
            let (x, weight, bias) = (f32(graph, "x", [3, 4, 5])?, f32(graph, "weight", [4])?, f32(graph, "bias", [4])?);
            let (mean, var) = (f32(graph, "mean", [4])?, f32(graph, "positive var", [4])?);
            let y = graph.batch_norm_inference(x, [mean, var], weight, bias, 1e-5)?;
            graph.output("y", y)
        };
        "softmax_cross_entropy", TIGHT, |graph| {
            let logits = f32(graph, "x", [21, 4])?;
            let labels = graph.input("labels", TensorType::i32([21]))?;
            let y = graph.softmax_cross_entropy(logits, labels)?;
            let right = graph.count_correct(logits, labels)?;
            graph.output("right", right)?;
            with_gradients(graph, y, &[logits])
        };
        "softmax_cross_entropy with ignored rows", TIGHT, |graph| {
            let logits = f32(graph, "x", [21, 4])?;
            let labels = graph.input("labels", TensorType::i32([21]))?;
            let y = graph.softmax_cross_entropy_ignoring(logits, labels, 2)?;
            with_gradients(graph, y, &[logits])
        };
        "activations", SUMS, |graph| {
            let x = f32(graph, "x", [5, 201])?;
            let y = graph.gelu(x)?;
            let y = graph.tanh(y)?;
            let y = graph.gelu_tanh(y)?;
            let y = graph.sigmoid(y)?;
            with_gradients(graph, y, &[x])
        };
        "softmax", SUMS, |graph| {
            let x = f32(graph, "x", [3, 7, 130])?;
            let y = graph.softmax(x)?;
            with_gradients(graph, y, &[x])
        };
        "causal softmax", SUMS, |graph| {
            let x = f32(graph, "x", [2, 9, 11])?;
            let y = graph.causal_softmax(x)?;
            with_gradients(graph, y, &[x])
        };
        "layer_norm", SUMS, |graph| {
            let (x, weight, bias) = (f32(graph, "x", [3, 11, 70])?, f32(graph, "weight", [70])?, f32(graph, "bias", [70])?);
            let y = graph.layer_norm(x, weight, bias, 1e-5)?;
            with_gradients(graph, y, &[x, weight, bias])
        };
        "embedding", SUMS, |graph| {
            let table = f32(graph, "table", [4, 33])?;
            let indices = graph.input("indices", TensorType::i32([5, 8]))?;
            let y = graph.embedding(table, indices)?;
            with_gradients(graph, y, &[table])
        };
        "scatter_add", SUMS, |graph| {
            let x = f32(graph, "x", [5, 8, 33])?;
            let indices = graph.input("indices", TensorType::i32([5, 8]))?;
            let y = graph.scatter_add(x, indices, 6)?;
            with_gradients(graph, y, &[x])
        };
        "attention", SUMS, |graph| {
            let x = f32(graph, "x", [2, 9, 30])?;
            let heads = graph.split_heads(x, 3, 2)?;
            let scores = graph.matmul(heads[0], heads[1], false, true)?;
            let weights = graph.causal_softmax(scores)?;
            let y = graph.matmul(weights, heads[2], false, false)?;
            let y = graph.merge_heads(y)?;
            with_gradients(graph, y, &[x])
        };
        "concat, slice, pad and permute", TIGHT, |graph| {
            let (a, b) = (f32(graph, "a", [3, 4, 5])?, f32(graph, "b", [3, 2, 5])?);
            let y = graph.concat(&[a, b, a], 1)?;
            let y = graph.permute(y, &[2, 0, 1])?;
            let y = graph.slice(y, 2, 1, 8)?;
            let y = graph.pad(y, &[1, 0, 2], &[0, 3, 0])?;
            with_gradients(graph, y, &[a, b])
        };
        "sgd", TIGHT, |graph| update(graph, Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 }, 1 << 20);
        "sgd without momentum", TIGHT, |graph| update(graph, Optimizer::sgd(0.0).rule, 1 << 20);
        "adam", TIGHT, |graph| update(graph, Optimizer::adam().rule, 1 << 20);
        "adamw in chunks", TIGHT, |graph| update(graph, Optimizer::adamw(0.1).rule, 64);
        "sgd behind a gate", TIGHT, |graph| guarded_update(graph, Optimizer::sgd(0.9));
        "adamw behind a gate", TIGHT, |graph| guarded_update(graph, Optimizer::adamw(0.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::{HostDevice, HostOptions};
    use crate::exec::lower;
    use crate::op::Op;

    #[test]
    fn every_op_occurs() {
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for case in cases() {
            seen.extend(lower(&case.graph(), &device).unwrap().calls.iter().map(|call| call.op.kind()));
        }
        let lacking: Vec<_> = Op::KINDS.iter().filter(|kind| !seen.contains(*kind)).collect();
        assert!(lacking.is_empty(), "the conformance suite lacks cases for {lacking:?}");
    }
}
