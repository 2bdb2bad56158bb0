//! Tensors that several threads share: results against plain loops in f64, or bit for bit against the same op on parts of the tensor;
//! and the same bits on 1, 2 and 3 threads, in place or not.

use tensile_core::op::pool::Pool2d;
use tensile_core::optim::{Optimizer, Rule, SCALARS};
use tensile_core::testing::{
    Interpreter, Outcome, add_gradients, float_bytes, int_bytes, largest_difference, run, values,
};
use tensile_core::{Graph, GraphError, Init, TensorType, Value};

/// Above the elements that one thread takes at a time.
const MANY: usize = 40_000;

type Build<'a> = &'a dyn Fn(&mut Graph, &[Value]) -> Result<Value, GraphError>;

/// Runs `build` and its gradients on inputs of these shapes; the outcome has `y`, `grad0`, `grad1`, …
fn outcome(
    inputs: &[(Vec<usize>, Vec<f32>)],
    upstream: &[f32],
    others: &[(&str, Vec<u8>)],
    build: Build<'_>,
) -> Outcome {
    let mut graph = Graph::new();
    let names: Vec<String> = (0..inputs.len()).map(|k| format!("x{k}")).collect();
    let xs: Vec<Value> = (names.iter().zip(inputs))
        .map(|(name, (shape, _))| graph.input(name, TensorType::f32(shape.clone())).expect("a new input"))
        .collect();
    let y = build(&mut graph, &xs).expect("shapes fit");
    graph.output("y", y).expect("a new output");
    add_gradients(&mut graph, y, &xs).expect("has gradients");
    let mut given: Vec<(&str, Vec<u8>)> =
        names.iter().zip(inputs).map(|(name, (_, x))| (name.as_str(), float_bytes(x))).collect();
    given.push(("upstream", float_bytes(upstream)));
    given.extend(others.iter().cloned());
    let reference = run(&graph, &given, &[], 1);
    for (threads, in_place) in [(1, true), (2, false), (3, true)] {
        let other = Interpreter { threads, in_place }.run(&graph, &given, &[]);
        assert!(reference == other, "bits depend on {threads} threads or in place {in_place}");
    }
    reference
}

fn given(shape: &[usize], seed: u64) -> (Vec<usize>, Vec<f32>) {
    (shape.to_vec(), values(shape.iter().product(), seed))
}

/// Ops that treat each entry along dimension 0 alone: the whole must have the bits of its entries.
fn check_by_entry(name: &str, shape: &[usize], build: Build<'_>) {
    let (n, x) = (shape[0], given(shape, 1));
    let mut graph = Graph::new();
    let value = graph.input("x", TensorType::f32(shape)).expect("new");
    let y = build(&mut graph, &[value]).expect("shapes fit");
    let upstream = values(graph.ty(y).numel(), 2);
    let whole = outcome(std::slice::from_ref(&x), &upstream, &[], build);
    let mut one = shape.to_vec();
    one[0] = 1;
    for entry in [0, 1, n / 2, n - 1] {
        let part = |x: &[f32]| x[entry * x.len() / n..(entry + 1) * x.len() / n].to_vec();
        let alone = outcome(&[(one.clone(), part(&x.1))], &part(&upstream), &[], build);
        assert!(part(&whole.output("y")) == alone.output("y"), "{name}: output of entry {entry}");
        assert!(part(&whole.output("grad0")) == alone.output("grad0"), "{name}: gradient of entry {entry}");
    }
}

#[test]
fn entries_are_alone() {
    let images = [37, 3, 21, 23];
    check_by_entry("max_pool2d", &images, &|graph, x| graph.max_pool2d(x[0], Pool2d::new(3, 2).padding(1)));
    check_by_entry("avg_pool2d", &images, &|graph, x| graph.avg_pool2d(x[0], Pool2d::new(2, 2).ceil_mode(), true));
    check_by_entry("global_avg_pool2d", &images, &|graph, x| graph.global_avg_pool2d(x[0]));
    check_by_entry("adaptive_avg_pool2d", &images, &|graph, x| graph.adaptive_avg_pool2d(x[0], [5, 4]));
    check_by_entry("relu", &images, &|graph, x| graph.relu(x[0]));
    check_by_entry("gelu", &images, &|graph, x| graph.gelu(x[0]));
    check_by_entry("affine", &images, &|graph, x| graph.scale(x[0], 1.7));
    check_by_entry("softmax", &[613, 67], &|graph, x| graph.softmax(x[0]));
    check_by_entry("causal_softmax", &[11, 61, 67], &|graph, x| graph.causal_softmax(x[0]));
    check_by_entry("slice", &images, &|graph, x| graph.slice(x[0], 2, 3, 11));
    check_by_entry("pad", &images, &|graph, x| graph.pad(x[0], &[0, 1, 0, 2], &[0, 0, 3, 0]));
    check_by_entry("permute", &images, &|graph, x| graph.permute(x[0], &[0, 2, 3, 1]));
    check_by_entry("sum", &images, &|graph, x| graph.sum(x[0], &[2, 3]));
    check_by_entry("mean", &images, &|graph, x| graph.mean(x[0], &[1]));
    check_by_entry("expand", &[601, 3, 1], &|graph, x| graph.expand(x[0], [graph.dims(x[0])[0], 3, 31]));
}

/// Positions of an element along each dimension.
fn positions(mut index: usize, dims: &[usize]) -> Vec<usize> {
    let mut positions = vec![0; dims.len()];
    for axis in (0..dims.len()).rev() {
        positions[axis] = index % dims[axis];
        index /= dims[axis];
    }
    positions
}

fn index(positions: &[usize], dims: &[usize]) -> usize {
    positions.iter().zip(dims).fold(0, |index, (position, dim)| index * dim + position)
}

/// Position in an operand of `dims` that meets `positions` of a broadcast output.
fn matched(positions: &[usize], dims: &[usize]) -> usize {
    let last = &positions[positions.len() - dims.len()..];
    let clipped: Vec<usize> = last.iter().zip(dims).map(|(&p, &dim)| if dim == 1 { 0 } else { p }).collect();
    index(&clipped, dims)
}

#[test]
fn broadcasting() {
    let shapes: [(&[usize], &[usize], &[usize]); 6] = [
        (&[MANY + 3], &[MANY + 3], &[MANY + 3]),
        (&[5, 67, 131], &[67, 1], &[5, 67, 131]),
        (&[131], &[5, 67, 131], &[5, 67, 131]),
        (&[MANY], &[], &[MANY]),
        (&[31, 1, 41], &[37, 1], &[31, 37, 41]),
        (&[2, 1, 3, 1, 5], &[7, 1, 900, 1], &[2, 7, 3, 900, 5]),
    ];
    for (a, b, out) in shapes {
        let (a, mut b) = (given(a, 1), given(b, 2));
        b.1.iter_mut().for_each(|x| *x += 2.0);
        let n: usize = out.iter().product();
        let upstream = values(n, 3);
        let build = |graph: &mut Graph, x: &[Value]| graph.div(x[0], x[1]);
        let outcome = outcome(&[a.clone(), b.clone()], &upstream, &[], &build);
        let (mut y, mut da, mut db) = (vec![0.0; n], vec![0.0; a.1.len()], vec![0.0; b.1.len()]);
        for i in 0..n {
            let positions = positions(i, out);
            let (from_a, from_b) = (matched(&positions, &a.0), matched(&positions, &b.0));
            let (x, divisor, dy) = (f64::from(a.1[from_a]), f64::from(b.1[from_b]), f64::from(upstream[i]));
            y[i] = x / divisor;
            da[from_a] += dy / divisor;
            db[from_b] -= dy * x / (divisor * divisor);
        }
        assert!(largest_difference(&outcome.output("y"), &y) < 1e-6);
        assert!(largest_difference(&outcome.output("grad0"), &da) < 1e-5);
        assert!(largest_difference(&outcome.output("grad1"), &db) < 1e-5);
    }
}

#[test]
fn reductions() {
    let dims = [7, 67, 3, 31];
    let (x, n) = (given(&dims, 1), 7 * 67 * 3 * 31);
    for axes in [&[0][..], &[1], &[2], &[3], &[0, 1], &[0, 2], &[1, 3], &[0, 2, 3], &[0, 1, 2, 3]] {
        let out: Vec<usize> = (0..4).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).collect();
        let mut y = vec![0.0; out.iter().product()];
        for i in 0..n {
            let kept: Vec<usize> = positions(i, &dims)
                .into_iter()
                .enumerate()
                .filter(|(axis, _)| !axes.contains(axis))
                .map(|(_, p)| p)
                .collect();
            y[index(&kept, &out)] += f64::from(x.1[i]);
        }
        let outcome = outcome(std::slice::from_ref(&x), &values(y.len(), 3), &[], &|graph, x| graph.sum(x[0], axes));
        assert!(largest_difference(&outcome.output("y"), &y) < 1e-6, "{axes:?}");
    }
}

#[test]
fn layouts() {
    let dims = [11, 13, 17, 19];
    let x = given(&dims, 1);
    for order in [[3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]] {
        let out = order.map(|axis| dims[axis]);
        let y = outcome(std::slice::from_ref(&x), &x.1, &[], &|graph, x| graph.permute(x[0], &order)).output("y");
        for (i, y) in y.iter().enumerate() {
            let mut from = [0; 4];
            positions(i, &out).iter().zip(order).for_each(|(&position, axis)| from[axis] = position);
            assert_eq!(*y, x.1[index(&from, &dims)]);
        }
    }
    for axis in 0..4 {
        let (start, mut out) = (axis + 1, dims);
        out[axis] = 5;
        let n = out.iter().product();
        let outcome =
            outcome(std::slice::from_ref(&x), &values(n, 3), &[], &|graph, x| graph.slice(x[0], axis, start, 5));
        let (y, dx, upstream) = (outcome.output("y"), outcome.output("grad0"), values(n, 3));
        let mut expected = vec![0.0; x.1.len()];
        for i in 0..n {
            let mut from = positions(i, &out);
            from[axis] += start;
            assert_eq!(y[i], x.1[index(&from, &dims)]);
            expected[index(&from, &dims)] = upstream[i];
        }
        assert_eq!(dx, expected);
        // What was cut in three comes together again.
        let whole = outcome_of_concat(&x, axis);
        assert_eq!(whole.output("y"), x.1);
        assert_eq!(whole.output("grad0"), values(x.1.len(), 4));
    }
}

fn outcome_of_concat(x: &(Vec<usize>, Vec<f32>), axis: usize) -> Outcome {
    let last = x.0[axis] - 6;
    outcome(std::slice::from_ref(x), &values(x.1.len(), 4), &[], &|graph, x| {
        let parts = [(0, 2), (2, 4), (6, last)].map(|(start, len)| graph.slice(x[0], axis, start, len));
        let [a, b, c] = parts;
        graph.concat(&[a?, b?, c?], axis)
    })
}

#[test]
fn normalisations() {
    let (n, c, hw) = (9, 5, 1_003);
    let inputs = [given(&[n, c, hw], 1), given(&[c], 2), given(&[c], 3)];
    let upstream = values(n * c * hw, 4);
    let outcome_bn = outcome(&inputs, &upstream, &[], &|graph, x| Ok(graph.batch_norm(x[0], x[1], x[2], 1e-5)?[0]));
    check_normalisation(&inputs, &upstream, &outcome_bn, c, &|i| i / hw % c, &|i| i / hw % c);
    let (rows, d) = (613, 67);
    let inputs = [given(&[rows, d], 1), given(&[d], 2), given(&[d], 3)];
    let upstream = values(rows * d, 4);
    let outcome_ln = outcome(&inputs, &upstream, &[], &|graph, x| graph.layer_norm(x[0], x[1], x[2], 1e-5));
    check_normalisation(&inputs, &upstream, &outcome_ln, rows, &|i| i / d, &|i| i % d);
}

/// Against the formulas in f64: element i is normalised within group `group(i)` and scaled by weight `channel(i)`.
fn check_normalisation(
    inputs: &[(Vec<usize>, Vec<f32>)],
    upstream: &[f32],
    outcome: &Outcome,
    n_groups: usize,
    group: &dyn Fn(usize) -> usize,
    channel: &dyn Fn(usize) -> usize,
) {
    let [x, weight, bias] = [0, 1, 2].map(|k| inputs[k].1.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
    let n = (x.len() / n_groups) as f64;
    let mean_by_group = |f: &dyn Fn(usize) -> f64| {
        let mut means = vec![0.0; n_groups];
        (0..x.len()).for_each(|i| means[group(i)] += f(i) / n);
        means
    };
    let mean = mean_by_group(&|i| x[i]);
    let var = mean_by_group(&|i| (x[i] - mean[group(i)]).powi(2));
    let rstd: Vec<f64> = var.iter().map(|var| 1.0 / (var + 1e-5).sqrt()).collect();
    let normal = |i: usize| (x[i] - mean[group(i)]) * rstd[group(i)];
    let y: Vec<f64> = (0..x.len()).map(|i| normal(i) * weight[channel(i)] + bias[channel(i)]).collect();
    let g = |i: usize| f64::from(upstream[i]) * weight[channel(i)];
    let (mean_g, mean_g_x) = (mean_by_group(&g), mean_by_group(&|i| g(i) * normal(i)));
    let dx: Vec<f64> =
        (0..x.len()).map(|i| rstd[group(i)] * (g(i) - mean_g[group(i)] - normal(i) * mean_g_x[group(i)])).collect();
    let (mut dweight, mut dbias) = (vec![0.0; weight.len()], vec![0.0; weight.len()]);
    for (i, &dy) in upstream.iter().enumerate() {
        dweight[channel(i)] += f64::from(dy) * normal(i);
        dbias[channel(i)] += f64::from(dy);
    }
    for (name, expected) in [("y", y), ("grad0", dx), ("grad1", dweight), ("grad2", dbias)] {
        let difference = largest_difference(&outcome.output(name), &expected);
        assert!(difference < 5e-6, "{name}: {difference:.1e}");
    }
}

#[test]
fn cross_entropy_and_embedding() {
    let (n, classes) = (499, 101);
    let labels: Vec<i32> = (0..n as i32).map(|i| i * 37 % classes as i32).collect();
    let x = given(&[n, classes], 1);
    let others = [("labels", int_bytes(&labels))];
    let result = outcome(std::slice::from_ref(&x), &[1.0], &others, &|graph, x| {
        let labels = graph.input("labels", TensorType::i32([graph.dims(x[0])[0]]))?;
        graph.softmax_cross_entropy(x[0], labels)
    });
    let (mut loss, mut dx) = (0.0, Vec::new());
    for (row, &label) in x.1.chunks_exact(classes).zip(&labels) {
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        loss += (sum.ln() - f64::from(row[label as usize])) / n as f64;
        dx.extend(
            row.iter().enumerate().map(|(class, &x)| {
                (f64::from(x).exp() / sum - f64::from(u8::from(class == label as usize))) / n as f64
            }),
        );
    }
    assert!(largest_difference(&result.output("y"), &[loss]) < 1e-6);
    assert!(largest_difference(&result.output("grad0"), &dx) < 1e-7);

    let (rows, d) = (997, 33);
    let table = given(&[rows, d], 1);
    let indices: Vec<i32> = (0..3_000).map(|i| i * 7919 % rows as i32).collect();
    let upstream = values(indices.len() * d, 2);
    let others = [("indices", int_bytes(&indices))];
    let result = outcome(std::slice::from_ref(&table), &upstream, &others, &|graph, x| {
        let indices = graph.input("indices", TensorType::i32([3_000]))?;
        graph.embedding(x[0], indices)
    });
    let mut dtable = vec![0.0; rows * d];
    for (i, (&index, y)) in indices.iter().zip(result.output("y").chunks_exact(d)).enumerate() {
        assert_eq!(y, &table.1[index as usize * d..][..d]);
        (0..d).for_each(|j| dtable[index as usize * d + j] += f64::from(upstream[i * d + j]));
    }
    assert!(largest_difference(&result.output("grad0"), &dtable) < 1e-6);
}

/// An update in chunks has the bits of the whole; both on any number of threads.
#[test]
fn updates() {
    let rules = [
        Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.01 },
        Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
        Optimizer::adam().rule,
        Optimizer::adamw(0.1).rule,
    ];
    for rule in rules {
        let step = |chunk_bytes: usize, threads: usize| {
            let optimizer = Optimizer { chunk_bytes, ..rule.clone().into() };
            let mut graph = Graph::new();
            let w = graph.parameter("w", [MANY / 8, 8], Init::Uniform { bound: 1.0 }).expect("new");
            let g = graph.input("g", TensorType::f32([MANY / 8, 8])).expect("new");
            optimizer.apply(&mut graph, None, &[(w, g)]).expect("fits");
            let inputs = [("g", float_bytes(&values(MANY, 1))), (SCALARS, float_bytes(&optimizer.scalars(4, 0.1)))];
            let n_chunks = (4 * MANY).div_ceil(chunk_bytes);
            assert_eq!(graph.n_ops(), if n_chunks > 1 { n_chunks } else { 1 });
            let mut outcome = run(&graph, &inputs, &[], threads);
            let w = outcome.persistents.remove("w").expect("the parameter");
            // Chunks of a moment, in the order of their numbers, are the moment.
            let mut states: Vec<(String, Vec<u8>)> = Vec::new();
            for (persistent, _) in graph.persistents().filter(|(p, _)| p.name != "w") {
                let moment = persistent.name.split('.').nth(1).expect("a name in two parts").to_owned();
                let bytes = &outcome.persistents[&persistent.name];
                match states.iter_mut().find(|(name, _)| *name == moment) {
                    Some((_, whole)) => whole.extend(bytes),
                    None => states.push((moment, bytes.clone())),
                }
            }
            (w, states)
        };
        let whole = step(1 << 30, 1);
        for (chunk_bytes, threads) in [(1 << 30, 3), (64_000, 1), (64_000, 2), (1_000, 2)] {
            assert!(step(chunk_bytes, threads) == whole, "{rule:?}: chunks of {chunk_bytes}, {threads} threads");
        }
    }
}
