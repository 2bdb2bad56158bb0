//! Gradients of all ops by finite differences: central differences at h and h/2 of Σ y·r (summed in f64), extrapolated, so that the error
//! is of order h⁴ in theory and rounding in f32 dominates. The tolerance is 10⁻³ on |a − b| / (1 + |b|) unless stated.

use tensile_core::op::conv2d::Conv2d;
use tensile_core::op::pool::Pool2d;
use tensile_core::testing::{self, add_gradients, float_bytes, int_bytes, values};
use tensile_core::{Graph, GraphError, TensorType, Value};

const STEP: f32 = 0.02;
const TOLERANCE: f64 = 1e-3;

type Build<'a> = &'a dyn Fn(&mut Graph, &[Value]) -> Result<Value, GraphError>;

/// Σ y·r for each of `points`.
fn project(graph: &Graph, given: &[(&str, Vec<u8>)], upstream: &[f32]) -> f64 {
    let y = testing::run(graph, given, &[], 1).output("y");
    y.iter().zip(upstream).map(|(&y, &r)| f64::from(y) * f64::from(r)).sum()
}

/// Compares the gradients of every input with differences; `others` are further inputs that `build` declares.
fn check(name: &str, inputs: &[(&[usize], Vec<f32>)], others: &[(&str, Vec<u8>)], build: Build<'_>) {
    let mut graph = Graph::new();
    let names: Vec<String> = (0..inputs.len()).map(|k| format!("x{k}")).collect();
    let declare = |(name, (shape, _)): (&String, &(&[usize], Vec<f32>))| {
        graph.input(name, TensorType::f32(*shape)).expect("a new input")
    };
    let xs: Vec<Value> = names.iter().zip(inputs).map(declare).collect();
    let y = build(&mut graph, &xs).unwrap_or_else(|error| panic!("{name}: {error}"));
    graph.output("y", y).expect("a new output");
    let forward = graph.clone();
    add_gradients(&mut graph, y, &xs).unwrap_or_else(|error| panic!("{name}: {error}"));
    let upstream = values(graph.ty(y).numel(), 77);
    let mut given: Vec<(&str, Vec<u8>)> =
        names.iter().zip(inputs).map(|(name, (_, x))| (name.as_str(), float_bytes(x))).collect();
    given.extend(others.iter().cloned());
    let mut with_upstream = given.clone();
    with_upstream.push(("upstream", float_bytes(&upstream)));
    let outcome = testing::run(&graph, &with_upstream, &[], 1);
    for (k, (_, x)) in inputs.iter().enumerate() {
        let grad = outcome.output(&format!("grad{k}"));
        for i in 0..x.len() {
            let mut difference = |h: f32| {
                let mut at = |x_i: f32| {
                    let mut x = x.clone();
                    x[i] = x_i;
                    given[k].1 = float_bytes(&x);
                    project(&forward, &given, &upstream)
                };
                let (low, high) = (x[i] - h, x[i] + h);
                (at(high) - at(low)) / (f64::from(high) - f64::from(low))
            };
            let expected = (4.0 * difference(STEP / 2.0) - difference(STEP)) / 3.0;
            let error = (f64::from(grad[i]) - expected).abs() / (1.0 + expected.abs());
            assert!(error <= TOLERANCE, "{name}: input {k}[{i}]: {} by the op, {expected} by differences", grad[i]);
        }
        given[k].1 = float_bytes(x);
    }
}

/// Numbers in [−1, 1).
fn plain(shape: &[usize], seed: u64) -> (&[usize], Vec<f32>) {
    (shape, values(shape.iter().product(), seed))
}

/// Numbers at least 0.05 away from 0 and, if they are few, from each other: for ops with kinks.
fn apart(shape: &[usize], seed: u64) -> (&[usize], Vec<f32>) {
    let x = values(shape.iter().product(), seed);
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[a].total_cmp(&x[b]));
    let mut apart = vec![0.0; x.len()];
    for (rank, index) in order.into_iter().enumerate() {
        apart[index] = 0.1 * (rank as f32 - (x.len() / 2) as f32) + 0.05;
    }
    (shape, apart)
}

#[test]
fn elementwise() {
    check("relu", &[apart(&[3, 5], 1)], &[], &|graph, x| graph.relu(x[0]));
    check("affine", &[plain(&[7], 1)], &[], &|graph, x| {
        let scaled = graph.scale(x[0], -1.5)?;
        graph.add_scalar(scaled, 0.25)
    });
    check("copy", &[plain(&[7], 1)], &[], &|graph, x| graph.copy(x[0]));
}

#[test]
fn arithmetic() {
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[2, 3, 4], &[2, 3, 4]),
        (&[2, 3, 4], &[3, 1]),
        (&[4], &[2, 3, 4]),
        (&[2, 1, 4], &[1, 3, 1]),
        (&[2, 3], &[]),
        (&[1, 1], &[2, 1, 1, 3]),
    ];
    for (a, b) in shapes {
        check("add", &[plain(a, 1), plain(b, 2)], &[], &|graph, x| graph.add(x[0], x[1]));
        check("sub", &[plain(a, 1), plain(b, 2)], &[], &|graph, x| graph.sub(x[0], x[1]));
        check("mul", &[plain(a, 1), plain(b, 2)], &[], &|graph, x| graph.mul(x[0], x[1]));
        let (b, mut divisor) = plain(b, 2);
        divisor.iter_mut().for_each(|x| *x += 2.5);
        check("div", &[plain(a, 1), (b, divisor)], &[], &|graph, x| graph.div(x[0], x[1]));
    }
    check("square", &[plain(&[5], 1)], &[], &|graph, x| graph.mul(x[0], x[0]));
}

#[test]
fn reductions() {
    for axes in [&[0][..], &[1], &[2], &[3], &[0, 1], &[1, 2], &[0, 2], &[1, 3], &[0, 1, 2, 3], &[]] {
        check("sum", &[plain(&[2, 3, 2, 4], 1)], &[], &|graph, x| graph.sum(x[0], axes));
        check("mean", &[plain(&[2, 3, 2, 4], 1)], &[], &|graph, x| graph.mean(x[0], axes));
    }
    check("expand", &[plain(&[3, 1], 1)], &[], &|graph, x| graph.expand(x[0], [2, 3, 4]));
}

#[test]
fn pooling() {
    let shape: &[usize] = &[2, 2, 5, 6];
    let pools = [
        Pool2d::new(2, 2),
        Pool2d::new(3, 2).padding(1),
        Pool2d::new(3, 2).ceil_mode(),
        Pool2d::new(3, 1).padding(1),
        Pool2d { kernel: [1, 4], stride: [2, 3], padding: [0, 2], ceil_mode: true },
    ];
    for pool in pools {
        check("max_pool2d", &[apart(shape, 1)], &[], &|graph, x| graph.max_pool2d(x[0], pool));
        for include in [false, true] {
            check("avg_pool2d", &[plain(shape, 1)], &[], &|graph, x| graph.avg_pool2d(x[0], pool, include));
        }
    }
    for output in [[1, 1], [2, 4], [5, 6], [7, 2]] {
        check("adaptive_avg_pool2d", &[plain(shape, 1)], &[], &|graph, x| graph.adaptive_avg_pool2d(x[0], output));
    }
}

#[test]
fn batch_norm() {
    for shape in [&[4, 3, 2, 3][..], &[6, 3], &[2, 3, 5]] {
        let inputs = [plain(shape, 1), plain(&[3], 2), plain(&[3], 3)];
        check("batch_norm", &inputs, &[], &|graph, x| Ok(graph.batch_norm(x[0], x[1], x[2], 1e-2)?[0]));
        let statistics = [("mean", float_bytes(&[0.1, -0.2, 0.0])), ("var", float_bytes(&[0.5, 1.0, 2.0]))];
        check("batch_norm_inference", &inputs, &statistics, &|graph, x| {
            let mean = graph.input("mean", TensorType::f32([3]))?;
            let var = graph.input("var", TensorType::f32([3]))?;
            graph.batch_norm_inference(x[0], [mean, var], x[1], x[2], 1e-5)
        });
    }
}

#[test]
fn softmax_cross_entropy() {
    let labels = [("labels", int_bytes(&[0, 3, 2, -100, 3]))];
    check("softmax_cross_entropy", &[plain(&[5, 4], 1)], &labels, &|graph, x| {
        let labels = graph.input("labels", TensorType::i32([5]))?;
        graph.softmax_cross_entropy_ignoring(x[0], labels, -100)
    });
}

#[test]
fn dropout() {
    let random = [("random", int_bytes(&[1, 2, 3, 4]))];
    check("dropout", &[plain(&[7, 11], 1)], &random, &|graph, x| {
        let random = graph.input("random", TensorType::i32([4]))?;
        graph.dropout(x[0], random, 0.4, 5)
    });
}

#[test]
fn convolution() {
    let conv = |stride, padding, dilation, groups| Conv2d { stride, padding, dilation, groups };
    let cases: [(Conv2d, &[usize], &[usize]); 4] = [
        (conv([1, 1], [1, 1], [1, 1], 1), &[2, 2, 4, 5], &[3, 2, 3, 3]),
        (conv([2, 1], [0, 2], [1, 2], 1), &[1, 2, 5, 5], &[2, 2, 2, 3]),
        (conv([2, 2], [1, 1], [1, 1], 2), &[2, 4, 5, 4], &[4, 2, 3, 3]),
        (conv([1, 1], [1, 1], [1, 1], 3), &[2, 3, 4, 4], &[3, 1, 3, 3]),
    ];
    for (conv, x, weight) in cases {
        let inputs = [plain(x, 1), plain(weight, 2), plain(&weight[..1], 3)];
        check("conv2d", &inputs, &[], &|graph, x| graph.conv2d(x[0], x[1], Some(x[2]), conv.clone()));
    }
}

#[test]
fn matrix_products() {
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let a: &[usize] = if trans_a { &[2, 5, 3] } else { &[2, 3, 5] };
        let b: &[usize] = if trans_b { &[2, 4, 5] } else { &[2, 5, 4] };
        for inputs in [[plain(a, 1), plain(b, 2)], [plain(&a[1..], 1), plain(b, 2)], [plain(a, 1), plain(&b[1..], 2)]] {
            check("matmul", &inputs, &[], &|graph, x| graph.matmul(x[0], x[1], trans_a, trans_b));
        }
    }
    let inputs = [plain(&[3, 5], 1), plain(&[4, 5], 2), plain(&[4], 3)];
    check("linear", &inputs, &[], &|graph, x| graph.linear(x[0], x[1], Some(x[2])));
}

/// A small network with shared values: gradients add up where paths meet.
#[test]
fn composition() {
    let inputs = [plain(&[2, 3, 4, 4], 1), plain(&[3, 3, 3, 3], 2), plain(&[3], 3), plain(&[3], 4)];
    check("residual block", &inputs, &[], &|graph, x| {
        let y = graph.conv2d(x[0], x[1], None, Conv2d::new(1, 1))?;
        let [y, ..] = graph.batch_norm(y, x[2], x[3], 1e-2)?;
        let z = graph.mul(y, y)?;
        let z = graph.conv2d(z, x[1], None, Conv2d::new(1, 1))?;
        let z = graph.add(z, x[0])?;
        graph.mean(z, &[2, 3])
    });
}

#[test]
fn activations() {
    let x = || [plain(&[3, 7], 1)];
    check("sigmoid", &x(), &[], &|graph, x| graph.sigmoid(x[0]));
    check("tanh", &x(), &[], &|graph, x| graph.tanh(x[0]));
    check("gelu", &x(), &[], &|graph, x| graph.gelu(x[0]));
    check("gelu_tanh", &x(), &[], &|graph, x| graph.gelu_tanh(x[0]));
    check("softmax", &x(), &[], &|graph, x| graph.softmax(x[0]));
    check("causal_softmax", &[plain(&[2, 3, 5], 1)], &[], &|graph, x| graph.causal_softmax(x[0]));
}

#[test]
fn layer_norm() {
    let inputs = [plain(&[2, 3, 5], 1), plain(&[5], 2), plain(&[5], 3)];
    check("layer_norm", &inputs, &[], &|graph, x| graph.layer_norm(x[0], x[1], x[2], 1e-2));
}

#[test]
fn layout() {
    for axis in 0..3 {
        check("slice", &[plain(&[3, 4, 5], 1)], &[], &|graph, x| graph.slice(x[0], axis, 1, 2));
        let mut shapes = [[3, 4, 5]; 3];
        (shapes[1][axis], shapes[2][axis]) = (1, 2);
        let inputs = [plain(&shapes[0], 1), plain(&shapes[1], 2), plain(&shapes[2], 3)];
        check("concat", &inputs, &[], &|graph, x| graph.concat(x, axis));
    }
    check("pad", &[plain(&[2, 3, 2], 1)], &[], &|graph, x| graph.pad(x[0], &[1, 0, 2], &[0, 2, 1]));
    check("pad", &[plain(&[2, 3, 2], 1)], &[], &|graph, x| graph.pad(x[0], &[0, 1, 0], &[0, 1, 0]));
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        check("permute", &[plain(&[2, 3, 4], 1)], &[], &|graph, x| graph.permute(x[0], &order));
    }
}

#[test]
fn embedding() {
    let indices = [("indices", int_bytes(&[1, 4, 4, 0, 1, 1]))];
    check("embedding", &[plain(&[5, 3], 1)], &indices, &|graph, x| {
        let indices = graph.input("indices", TensorType::i32([3, 2]))?;
        graph.embedding(x[0], indices)
    });
}

#[test]
fn scatter_add() {
    let indices = [("indices", int_bytes(&[1, 3, 3, 0]))];
    check("scatter_add", &[plain(&[2, 2, 3], 1)], &indices, &|graph, x| {
        let indices = graph.input("indices", TensorType::i32([2, 2]))?;
        graph.scatter_add(x[0], indices, 5)
    });
}

#[test]
fn heads() {
    check("split_heads", &[plain(&[2, 3, 12], 1)], &[], &|graph, x| {
        // The second part is left out: its gradient is 0.
        let heads = graph.split_heads(x[0], 3, 2)?;
        graph.mul(heads[0], heads[2])
    });
    check("merge_heads", &[plain(&[2, 3, 4, 2], 1)], &[], &|graph, x| graph.merge_heads(x[0]));
}
