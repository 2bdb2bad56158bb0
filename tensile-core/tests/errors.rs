//! Faults in building a graph: each names the op, where it stands, and the shapes.

use tensile_core::op::conv2d::Conv2d;
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::Optimizer;
use tensile_core::{Graph, GraphError, Init, TensorType, Value};

fn input(graph: &mut Graph, ty: TensorType) -> Value {
    let name = format!("in{}", graph.inputs().len());
    graph.input(&name, ty).expect("a new input")
}

/// The error of `build` on inputs of these types must have this text.
fn check(types: &[TensorType], build: impl Fn(&mut Graph, &[Value]) -> Result<Value, GraphError>, text: &str) {
    let mut graph = Graph::new();
    let values: Vec<Value> = types.iter().map(|ty| input(&mut graph, ty.clone())).collect();
    let error = graph.scoped("net.block", |graph| build(graph, &values)).expect_err("the inputs do not fit");
    assert_eq!(error.to_string(), text);
}

#[test]
fn shapes_are_named() {
    let f32s = |dims: &[usize]| TensorType::f32(dims);
    check(
        &[f32s(&[2, 3]), f32s(&[4, 3])],
        |graph, x| graph.add(x[0], x[1]),
        "net.block.add: op 'add' on (f32[2, 3], f32[4, 3]): cannot match sizes 2 and 4 of dimension 0",
    );
    check(
        &[TensorType::i32([2])],
        |graph, x| graph.relu(x[0]),
        "net.block.relu: op 'relu' on (i32[2]): takes one f32 tensor",
    );
    check(
        &[f32s(&[1, 2, 4, 4])],
        |graph, x| graph.max_pool2d(x[0], Pool2d::new(5, 1)),
        "net.block.max_pool2d: op 'max_pool2d' on (f32[1, 2, 4, 4]): has a kernel of 5, more than size 4 with padding 0 on each side",
    );
    check(
        &[f32s(&[1, 2, 4, 4])],
        |graph, x| graph.avg_pool2d(x[0], Pool2d::new(3, 1).padding(2), true),
        "net.block.avg_pool2d: op 'avg_pool2d' on (f32[1, 2, 4, 4]): has padding 2, more than half of its kernel of 3",
    );
    check(
        &[f32s(&[1, 2, 40, 40])],
        |graph, x| graph.max_pool2d(x[0], Pool2d::new(17, 1)),
        "net.block.max_pool2d: op 'max_pool2d' on (f32[1, 2, 40, 40]): has windows of 289 positions; the most is 256",
    );
    check(
        &[f32s(&[1, 2]), f32s(&[2]), f32s(&[2])],
        |graph, x| Ok(graph.batch_norm(x[0], x[1], x[2], 1e-5)?[0]),
        "net.block.batch_norm: op 'batch_norm' on (f32[1, 2], f32[2], f32[2]): needs more than one value per channel in training",
    );
    check(
        &[f32s(&[4, 2]), f32s(&[3]), f32s(&[2])],
        |graph, x| Ok(graph.batch_norm(x[0], x[1], x[2], 1e-5)?[0]),
        "net.block.batch_norm: op 'batch_norm' on (f32[4, 2], f32[3], f32[2]): takes x f32[N, C, …], weight f32[C] and bias f32[C], with C the size of x's dimension 1",
    );
    check(
        &[f32s(&[4, 2]), TensorType::i32([5])],
        |graph, x| graph.softmax_cross_entropy(x[0], x[1]),
        "net.block.softmax_cross_entropy: op 'softmax_cross_entropy' on (f32[4, 2], i32[5]): takes logits f32[N, C] and labels i32[N]",
    );
    check(
        &[f32s(&[4]), TensorType::i32([4])],
        |graph, x| graph.dropout(x[0], x[1], 1.5, 0),
        "net.block.dropout: op 'dropout' on (f32[4], i32[4]): has probability 1.5, which is not between 0 and 1",
    );
    check(
        &[f32s(&[2, 3])],
        |graph, x| graph.sum(x[0], &[1, 0]),
        "net.block.reduce_sum: op 'reduce_sum' on (f32[2, 3]): cannot sum over dimensions [1, 0]",
    );
    check(
        &[f32s(&[2, 3]), f32s(&[2, 4])],
        |graph, x| graph.concat(x, 0),
        "net.block.concat: op 'concat' on (f32[2, 3], f32[2, 4]): takes f32 tensors that differ in dimension 0 at most",
    );
    check(
        &[f32s(&[2, 3])],
        |graph, x| graph.slice(x[0], 1, 2, 2),
        "net.block.slice: op 'slice' on (f32[2, 3]): cannot take 2 elements from 2 on along dimension 1 of size 3",
    );
    check(
        &[f32s(&[2, 3])],
        |graph, x| graph.slice(x[0], 2, 0, 1),
        "net.block.slice: op 'slice' on (f32[2, 3]): takes one f32 tensor of 3 dimensions (at most 8)",
    );
    check(
        &[f32s(&[2, 3])],
        |graph, x| graph.permute(x[0], &[0, 0]),
        "net.block.permute: op 'permute' on (f32[2, 3]): cannot order 2 dimensions as [0, 0]; each must stand there once, and at most 8 are possible",
    );
    check(
        &[f32s(&[3, 2])],
        |graph, x| graph.causal_softmax(x[0]),
        "net.block.softmax: op 'softmax' on (f32[3, 2]): has 3 rows but only 2 columns, so that the first would see none",
    );
    check(
        &[f32s(&[2, 3])],
        |graph, x| graph.reshape(x[0], [4]),
        "net.block.reshape: cannot view f32[2, 3] as shape [4]: 6 elements against 4",
    );
}

#[test]
fn inputs_of_the_wrong_rank_are_errors_not_panics() {
    for dims in [&[][..], &[3], &[2, 3], &[2, 3, 4], &[2, 3, 4, 5], &[1; 9]] {
        let mut graph = Graph::new();
        let x = input(&mut graph, TensorType::f32(dims));
        let labels = input(&mut graph, TensorType::i32([2]));
        let weight = input(&mut graph, TensorType::f32([7, 7, 1, 1]));
        let rank = dims.len();
        assert_eq!(graph.max_pool2d(x, Pool2d::new(2, 2)).is_ok(), rank == 4, "{dims:?}");
        assert_eq!(graph.global_avg_pool2d(x).is_ok(), rank == 4, "{dims:?}");
        assert_eq!(graph.softmax_cross_entropy(x, labels).is_ok(), rank == 2, "{dims:?}");
        assert_eq!(graph.count_correct(x, labels).is_ok(), rank == 2, "{dims:?}");
        assert_eq!(graph.sum(x, &[]).is_ok(), rank <= 8, "{dims:?}");
        assert_eq!(graph.mul(x, x).is_ok(), rank <= 8, "{dims:?}");
        assert!(graph.batch_norm(x, weight, weight, 0.0).is_err(), "{dims:?}");
        assert!(graph.conv2d(x, weight, None, Conv2d::default()).is_err(), "{dims:?}");
        assert!(graph.linear(x, weight, None).is_err(), "{dims:?}");
    }
}

#[test]
fn updates_of_what_does_not_persist() {
    let mut graph = Graph::new();
    let x = input(&mut graph, TensorType::f32([3]));
    let error = Optimizer::sgd(0.9).apply(&mut graph, None, &[(x, x)]).expect_err("an input cannot be updated");
    assert_eq!(error.to_string(), "update: op 'update' updates its input 0, which is not a persistent tensor");
    let mut graph = Graph::new();
    let x = input(&mut graph, TensorType::f32([3]));
    let w = graph.parameter("w", [2], Init::Constant(0.0)).expect("new");
    let error = Optimizer::adam().apply(&mut graph, None, &[(w, x)]).expect_err("the gradient has another shape");
    assert_eq!(
        error.to_string(),
        "w.update.adam: op 'adam' on (f32[2], f32[3], f32[1, 3], f32[2], f32[2]): takes an f32 parameter with elements 0..2, its gradient, \
         scalars f32[more than 0, 3], 2 states of 2 elements, and perhaps a gate f32[2]"
    );
}

#[test]
fn losses_and_gradients() {
    let mut graph = Graph::new();
    let x = input(&mut graph, TensorType::f32([3]));
    let error = graph.grad(x, &[x]).expect_err("three numbers");
    assert_eq!(error.to_string(), "gradients start from a scalar f32 loss, not from f32[3]");
    let loss = graph.sum(x, &[0]).expect("fits");
    let dx = graph.grad(loss, &[x]).expect("has a gradient")[0].expect("depends on x");
    let y = graph.relu(x).expect("fits");
    let loss = graph.sum(y, &[0]).expect("fits");
    let first = graph.grad(loss, &[x]).expect("has a gradient")[0].expect("depends on x");
    let loss = graph.sum(first, &[0]).expect("fits");
    let error = graph.grad(loss, &[x]).expect_err("relu_grad has no gradient");
    assert!(error.to_string().ends_with("op 'relu_grad' has no gradient"), "{error}");
    // A gradient that does not depend on x (that of a sum is 1) has none.
    let loss = graph.sum(dx, &[0]).expect("fits");
    assert_eq!(graph.grad(loss, &[x]).expect("no rule is asked"), [None]);
}
