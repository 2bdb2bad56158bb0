//! Clipping, skipping, parameter groups and micro-batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use tensile_core::conformance::harness as common;

use common::{executor, interpret_steps, limits, run_steps};
use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::exec::{Compiled, ExecutorOptions, Step, lower};
use tensile_core::nn::{Conv, Mode, Net, init_value};
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::{Group, Optimizer, SCALARS, Select, Trained, train, train_accumulated};
use tensile_core::testing::{Outcome, float_bytes, floats, int_bytes, run, values};
use tensile_core::{Graph, GraphError, Init, Persistent, TensorType, Value};
use tensile_sched::{Bytes, Effort, Limits, NoEviction, Planner, Tensile, floor};

/// Gradients given as inputs, so that right values can be had by hand.
struct Given {
    graph: Graph,
    optimizer: Optimizer,
    sizes: Vec<usize>,
}

impl Given {
    fn new(optimizer: Optimizer, sizes: &[usize]) -> Self {
        let mut graph = Graph::new();
        let mut updates = Vec::new();
        for (index, &size) in sizes.iter().enumerate() {
            let parameter = graph.parameter(&format!("w{index}"), [size], Init::Uniform { bound: 1.0 }).expect("new");
            updates.push((parameter, graph.input(&format!("g{index}"), TensorType::f32([size])).expect("new")));
        }
        let loss = graph.input("loss", TensorType::f32([])).expect("new");
        if let Some(guard) = optimizer.apply(&mut graph, Some(loss), &updates).expect("fits") {
            graph.output("gate", guard.gate).expect("new");
            graph.output("norm", guard.grad_norm).expect("new");
        }
        Self { graph, optimizer, sizes: sizes.to_vec() }
    }

    /// One step from the state before, or from the start.
    fn step(&self, number: u64, loss: f32, gradients: &[Vec<f32>], state: Option<&Outcome>, threads: usize) -> Outcome {
        let scalars = float_bytes(&self.optimizer.scalars(number, 0.1));
        let mut inputs = vec![(SCALARS.to_owned(), scalars), ("loss".to_owned(), float_bytes(&[loss]))];
        inputs.extend(gradients.iter().enumerate().map(|(index, g)| (format!("g{index}"), float_bytes(g))));
        let inputs: Vec<(&str, Vec<u8>)> = inputs.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
        let state: Vec<(&str, Vec<u8>)> =
            state.iter().flat_map(|state| &state.persistents).map(|(name, x)| (name.as_str(), x.clone())).collect();
        run(&self.graph, &inputs, &state, threads)
    }

    fn start(&self, index: usize) -> Vec<f32> {
        let name = format!("w{index}");
        let (persistent, _) = self.graph.persistents().find(|(p, _)| p.name == name).expect("declared");
        floats(&init_value(persistent, 0))
    }

    fn gradients(&self, factor: f32) -> Vec<Vec<f32>> {
        self.sizes.iter().zip(1..).map(|(&n, seed)| values(n, seed).iter().map(|x| factor * x).collect()).collect()
    }
}

fn norm(gradients: &[Vec<f32>]) -> f64 {
    gradients.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt()
}

#[test]
fn clipping_is_by_the_norm_of_all_gradients() {
    let given = Given::new(Optimizer::sgd(0.0).with_clip_norm(2.0), &[7, 40_000, 300]);
    for factor in [1.0, 1e-2, 1e-4, 100.0] {
        let gradients = given.gradients(factor);
        let right_norm = norm(&gradients);
        let scale = (2.0 / (right_norm + 1e-6)).min(1.0);
        let outcome = given.step(0, 0.0, &gradients, None, 1);
        let got = f64::from(outcome.output("norm")[0]);
        assert!((got / right_norm - 1.0).abs() < 1e-6, "{got} against {right_norm}");
        assert_eq!(outcome.output("gate")[1], 1.0);
        for (index, g) in gradients.iter().enumerate() {
            for ((new, old), g) in outcome.persistent(&format!("w{index}")).iter().zip(given.start(index)).zip(g) {
                let right = f64::from(old) - 0.1 * scale * f64::from(*g);
                assert!((f64::from(*new) - right).abs() < 1e-6, "{new} against {right}");
            }
        }
        assert_eq!(outcome, given.step(0, 0.0, &gradients, None, 3));
        // Below the limit, the bits are those without clipping.
        if scale == 1.0 {
            let plain = Given::new(Optimizer::sgd(0.0), &given.sizes).step(0, 0.0, &gradients, None, 1);
            assert_eq!(outcome.persistents, plain.persistents);
        }
    }
}

/// As PyTorch's `clip_grad_norm_` does by default.
#[test]
fn clipping_does_not_hide_what_is_not_finite() {
    let given = Given::new(Optimizer::sgd(0.0).with_clip_norm(2.0), &[3, 2]);
    let outcome = given.step(0, 0.0, &[vec![1.0, f32::NAN, 1.0], vec![1.0; 2]], None, 1);
    assert!(outcome.output("norm")[0].is_nan() && outcome.persistent("w1").iter().all(|x| x.is_nan()));
    let outcome = given.step(0, 0.0, &[vec![1.0, f32::INFINITY, 1.0], vec![1.0; 2]], None, 1);
    assert_eq!(outcome.output("norm")[0], f32::INFINITY);
    assert!(outcome.persistent("w0")[1].is_nan());
    assert_eq!(outcome.persistent("w1"), given.start(1));
}

#[test]
fn steps_that_are_not_finite_are_skipped() {
    for optimizer in [Optimizer::sgd(0.0), Optimizer::sgd(0.9), Optimizer::adamw(0.1)] {
        let given = Given::new(Optimizer { chunk_bytes: 64, ..optimizer.with_skip_nonfinite() }, &[7, 40]);
        let good = given.gradients(1.0);
        let first = given.step(0, 1.0, &good, None, 1);
        assert_eq!(first.output("gate"), [1.0, 1.0]);
        let bad = |value: f32| {
            let mut gradients = good.clone();
            gradients[1][39] = value;
            gradients
        };
        for (loss, gradients) in [
            (f32::NAN, good.clone()),
            (f32::NEG_INFINITY, good.clone()),
            (1.0, bad(f32::NAN)),
            (1.0, bad(f32::INFINITY)),
            (1.0, bad(3e38)),
        ] {
            let skipped = given.step(1, loss, &gradients, Some(&first), 1);
            assert_eq!(skipped.output("gate")[1], 0.0, "loss {loss}");
            assert_eq!(skipped.persistents, first.persistents, "loss {loss}");
        }
        let second = given.step(1, 1.0, &good, Some(&first), 1);
        assert!(second.persistents.iter().all(|(name, bytes)| bytes != &first.persistents[name]));
    }
}

#[test]
fn groups_have_their_own_decay_and_rate() {
    let build = |optimizer: &Optimizer| -> Result<Graph, GraphError> {
        let mut graph = Graph::new();
        let mut updates = Vec::new();
        for (name, dims) in [("a.weight", vec![2, 3]), ("a.bias", vec![3]), ("head.weight", vec![4, 2])] {
            let parameter = graph.parameter(name, dims.clone(), Init::Constant(1.0))?;
            updates.push((parameter, graph.input(name, TensorType::f32(dims))?));
        }
        optimizer.apply(&mut graph, None, &updates)?;
        Ok(graph)
    };
    let named = |patterns: &[&str], weight_decay, lr_factor| {
        let select = Select::Named(patterns.iter().map(|&pattern| pattern.to_owned()).collect());
        Group { select, weight_decay, lr_factor }
    };
    let zeros = [("a.weight", 6), ("a.bias", 3), ("head.weight", 8)];
    // With gradients of 0, only decay moves anything.
    let decayed = |optimizer: Optimizer| {
        let graph = build(&optimizer).expect("fits");
        let mut inputs: Vec<(&str, Vec<u8>)> =
            zeros.iter().map(|(name, n)| (*name, float_bytes(&vec![0.0; *n]))).collect();
        inputs.push((SCALARS, float_bytes(&optimizer.scalars(0, 0.1))));
        let outcome = run(&graph, &inputs, &[], 1);
        zeros.map(|(name, _)| {
            let values = outcome.persistent(name);
            assert!(values.iter().all(|x| *x == values[0]));
            values[0]
        })
    };
    assert_eq!(decayed(Optimizer::adamw(0.5)), [0.95; 3]);
    assert_eq!(decayed(Optimizer::adamw(0.5).without_decay_on_vectors()), [0.95, 1.0, 0.95]);
    // The first group that selects a parameter counts.
    let optimizer = Optimizer::adamw(0.5).with_group(named(&["head.*"], 1.0, 0.5)).without_decay_on_vectors();
    assert_eq!(decayed(optimizer), [0.95, 1.0, 0.95]);
    let optimizer =
        Optimizer::adamw(0.5).with_group(named(&["*.weight"], 1.0, 2.0)).with_group(named(&["*"], 0.0, 1.0));
    assert_eq!(decayed(optimizer), [0.8, 1.0, 0.8]);
    let mut sgd = Optimizer::sgd(0.0).with_group(named(&["a.bias", "head.weight"], 0.5, 3.0));
    assert_eq!(decayed(sgd.clone()), [1.0, 0.85, 0.85]);
    assert_eq!(sgd.scalars(7, 0.1), [0.1, (3.0 * 0.1) as f32]);
    sgd.groups.push(named(&["a.weight", "a.wait"], 0.0, 1.0));
    let error = build(&sgd).expect_err("a misspelt name");
    assert_eq!(error.to_string(), "no parameter that is updated has a name like 'a.wait'");
}

#[test]
fn without_guards_a_step_has_no_more_ops() {
    let ops = |optimizer: Optimizer| {
        let mut graph = Graph::new();
        step(&mut graph, &optimizer, Shape { micro: 8, n: 1, dropout: 0.0, norm: false }).expect("fits");
        graph.n_ops()
    };
    let plain = ops(Optimizer::adam());
    let n_parameters = 6;
    assert_eq!(ops(Optimizer::adam().without_decay_on_vectors()), plain);
    assert_eq!(ops(Optimizer::adam().with_clip_norm(1.0)), plain + n_parameters + 1);
    assert_eq!(ops(Optimizer::adam().with_clip_norm(1.0).with_skip_nonfinite()), plain + n_parameters + 1);
}

/// How a step is built.
#[derive(Clone, Copy)]
struct Shape {
    /// Images in a micro-batch.
    micro: usize,
    /// Micro-batches.
    n: usize,
    dropout: f32,
    norm: bool,
}

/// A convolution, maybe batch norm and dropout, and a linear layer that is used twice.
fn logits(net: &mut Net<'_>, x: Value, shape: Shape) -> Result<Value, GraphError> {
    let mut x = net.conv2d("conv", x, Conv::new(6, 3).padding(1))?;
    if shape.norm {
        x = net.batch_norm("norm", x)?;
    }
    let x = net.graph().relu(x)?;
    let x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
    let x = net.flatten(x)?;
    let x = net.linear("first", x, 8)?;
    let x = net.dropout(x, shape.dropout)?;
    let weight = net.graph().parameter("tied.weight", [8, 8], Init::Normal { std: 0.4 })?;
    let x = net.graph().linear(x, weight, None)?;
    let x = net.graph().tanh(x)?;
    let x = net.graph().linear(x, weight, None)?;
    let x = net.dropout(x, shape.dropout)?;
    net.graph().slice(x, 1, 0, 4)
}

fn step(graph: &mut Graph, optimizer: &Optimizer, shape: Shape) -> Result<Trained, GraphError> {
    let trained = train_accumulated(graph, shape.n, optimizer, |graph, index| {
        let x = graph.input(&format!("x{index}"), TensorType::f32([shape.micro, 2, 8, 8]))?;
        let labels = graph.input(&format!("labels{index}"), TensorType::i32([shape.micro]))?;
        let bias = graph.parameter("bias", [4], Init::Uniform { bound: 0.5 })?;
        let logits = logits(&mut Net::new(graph, Mode::Train), x, shape)?;
        let logits = graph.add(logits, bias)?;
        graph.softmax_cross_entropy(logits, labels)
    })?;
    graph.output("loss", trained.loss)?;
    if let Some(norm) = trained.grad_norm {
        graph.output("norm", norm)?;
    }
    Ok(trained)
}

/// One step of a batch of 12 in `n` micro-batches, with the gradients as outputs.
fn of_twelve(optimizer: &Optimizer, n: usize, dropout: f32, norm: bool) -> (Outcome, BTreeMap<String, Vec<f32>>) {
    let shape = Shape { micro: 12 / n, n, dropout, norm };
    let mut graph = Graph::new();
    let trained = step(&mut graph, optimizer, shape).expect("fits");
    for (parameter, gradient) in &trained.updates {
        let name = format!("{}.grad", graph.persistent_of(*parameter).expect("a parameter").name);
        graph.output(&name, *gradient).expect("new");
    }
    let (pixels, labels) = (values(12 * 128, 3), (0..12).map(|i| i * 5 % 4).collect::<Vec<i32>>());
    let mut inputs = vec![(SCALARS.to_owned(), float_bytes(&optimizer.scalars(0, 0.01)))];
    for index in 0..n {
        inputs.push((format!("x{index}"), float_bytes(&pixels[index * shape.micro * 128..][..shape.micro * 128])));
        inputs.push((format!("labels{index}"), int_bytes(&labels[index * shape.micro..][..shape.micro])));
    }
    if dropout > 0.0 {
        inputs.push(("random".to_owned(), int_bytes(&[1, 2, 3, 4])));
    }
    let inputs: Vec<(&str, Vec<u8>)> = inputs.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
    let outcome = run(&graph, &inputs, &[], 2);
    let gradients = trained.updates.iter().map(|(parameter, _)| {
        let name = graph.persistent_of(*parameter).expect("a parameter").name.clone();
        (name.clone(), outcome.output(&format!("{name}.grad")))
    });
    let gradients = gradients.collect();
    (outcome, gradients)
}

#[test]
fn micro_batches_do_what_one_batch_does() {
    let optimizer = Optimizer::sgd(0.9).with_clip_norm(0.1);
    let (whole, right) = of_twelve(&optimizer, 1, 0.0, false);
    assert_eq!(right.len(), 6);
    for n in [2, 3, 4, 12] {
        let (outcome, gradients) = of_twelve(&optimizer, n, 0.0, false);
        for name in ["loss", "norm"] {
            let (got, right) = (outcome.output(name)[0], whole.output(name)[0]);
            assert!((got / right - 1.0).abs() < 1e-5, "{n} micro-batches: {name} {got} against {right}");
        }
        for (name, right) in &right {
            let largest = right.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            for (got, right) in gradients[name].iter().zip(right) {
                assert!((got - right).abs() < 1e-5 * largest, "{n} micro-batches: {name} {got} against {right}");
            }
        }
        for (name, bytes) in &whole.persistents {
            for (got, right) in outcome.persistent(name).iter().zip(floats(bytes)) {
                assert!((got - right).abs() < 1e-6, "{n} micro-batches: {name} {got} against {right}");
            }
        }
    }
}

#[test]
fn micro_batches_drop_differently() {
    let optimizer = Optimizer::sgd(0.0);
    let mut graph = Graph::new();
    let trained = train_accumulated(&mut graph, 3, &optimizer, |graph, index| {
        let x = graph.parameter("x", [64], Init::Constant(1.0))?;
        let y = Net::new(graph, Mode::Train).dropout(x, 0.5)?;
        graph.output(&format!("y{index}"), y)?;
        graph.mean(y, &[0])
    });
    trained.expect("fits");
    let inputs = [("random", int_bytes(&[1, 2, 3, 4])), (SCALARS, float_bytes(&optimizer.scalars(0, 0.1)))];
    let outcome = run(&graph, &inputs, &[], 1);
    let masks = ["y0", "y1", "y2"].map(|name| outcome.output(name));
    assert!(masks[0] != masks[1] && masks[1] != masks[2] && masks[0] != masks[2]);
    // The gradient is the mean of the masks.
    for (index, x) in outcome.persistent("x").iter().enumerate() {
        let mean = masks.iter().map(|mask| mask[index]).sum::<f32>() / 3.0;
        assert!((x - (1.0 - 0.1 * mean / 64.0)).abs() < 1e-6);
    }
}

/// Running statistics are the model's own update: they too stay as they are.
#[test]
fn a_skipped_step_changes_nothing_at_all() {
    let optimizer = Optimizer::adam().with_skip_nonfinite();
    for n in [1, 2] {
        let mut graph = Graph::new();
        step(&mut graph, &optimizer, Shape { micro: 4, n, dropout: 0.0, norm: true }).expect("fits");
        let step = |poisoned: bool| {
            let mut inputs = vec![(SCALARS.to_owned(), float_bytes(&optimizer.scalars(0, 0.01)))];
            for index in 0..n {
                let mut x = values(4 * 128, 3);
                x[17] = if poisoned && index + 1 == n { f32::NAN } else { x[17] };
                inputs.push((format!("x{index}"), float_bytes(&x)));
                inputs.push((format!("labels{index}"), int_bytes(&[0, 1, 2, 3])));
            }
            let inputs: Vec<(&str, Vec<u8>)> = inputs.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
            run(&graph, &inputs, &[], 1)
        };
        let start = |persistent: &Persistent| init_value(persistent, 0);
        let (skipped, made) = (step(true), step(false));
        assert!(skipped.output("loss")[0].is_nan());
        for (persistent, _) in graph.persistents() {
            let name = &persistent.name;
            assert!(skipped.persistents[name] == start(persistent), "{name} has changed");
            assert!(made.persistents[name] != start(persistent), "{name} has not changed");
        }
        assert_eq!(made.persistents["norm.num_batches_tracked"], int_bytes(&[n as i32]));
    }
}

fn budgets(step: &Step, limits: &Limits, n: u64) -> Vec<Bytes> {
    let top = NoEviction.plan(&step.trace, limits).unwrap().report.arena.0;
    let bottom = floor(&step.trace, limits).unwrap().bytes.0;
    (0..=n).map(|i| Bytes(bottom + (top - bottom) * i / n)).collect()
}

#[test]
fn every_budget_gives_the_same_bits() {
    let device = Arc::new(HostDevice::new(HostOptions::nominal(2)).unwrap());
    for (optimizer, n, norm) in [
        (Optimizer::adamw(0.1).without_decay_on_vectors().with_clip_norm(0.05).with_skip_nonfinite(), 1, true),
        (Optimizer::sgd(0.9).with_clip_norm(0.05), 3, true),
        (Optimizer { chunk_bytes: 256, ..Optimizer::adam().with_skip_nonfinite() }, 4, false),
    ] {
        let mut graph = Graph::new();
        step(&mut graph, &optimizer, Shape { micro: 6, n, dropout: 0.25, norm }).unwrap();
        let expected = interpret_steps(&graph, &optimizer, 3);
        let losses: Vec<f32> = expected.outputs.iter().map(|outputs| floats(&outputs[0].1)[0]).collect();
        assert!(losses.iter().all(|loss| loss.is_finite()) && losses[0] != losses[1]);
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let free = limits(&device, Bytes::MAX);
        for budget in budgets(&step, &free, 4) {
            let limits = Limits { device: budget, ..free.clone() };
            let planned = Tensile { effort: Effort::Fast }.plan(&step.trace, &limits).unwrap();
            let compiled = Compiled::new(Arc::clone(&step), planned, limits).unwrap();
            let mut executor = executor(&device, &compiled, ExecutorOptions { profile: false, poison: true });
            assert!(run_steps(&mut executor, &compiled, &optimizer, 3) == expected, "{n} micro-batches, {budget}");
        }
    }
}

/// Four micro-batches need little more than one.
#[test]
fn micro_batches_save_memory() {
    let device = Arc::new(HostDevice::new(HostOptions::nominal(1)).unwrap());
    let arena = |micro: usize, n: usize| {
        let mut graph = Graph::new();
        step(&mut graph, &Optimizer::sgd(0.0), Shape { micro, n, dropout: 0.0, norm: true }).unwrap();
        let step = lower(&graph, &*device).unwrap();
        NoEviction.plan(&step.trace, &limits(&device, Bytes::MAX)).unwrap().report.arena.0
    };
    let gradients = 4 * (6 * 18 + 6 * 3 + 96 * 8 + 8 + 64 + 4);
    let (one, four, whole) = (arena(64, 1), arena(64, 4), arena(256, 1));
    let inputs = 3 * 4 * 64 * 129;
    assert!(four <= one + inputs + 2 * gradients, "{four} against {one}");
    assert!(four < whole / 2, "{four} against {whole}");
}

#[test]
fn one_micro_batch_is_the_step_of_a_given_loss() {
    let optimizer = Optimizer::adam().with_clip_norm(1.0);
    let shape = Shape { micro: 4, n: 1, dropout: 0.1, norm: true };
    let mut accumulated = Graph::new();
    train_accumulated(&mut accumulated, 1, &optimizer, |graph, _| {
        let x = graph.input("x", TensorType::f32([4, 2, 8, 8]))?;
        let y = logits(&mut Net::new(graph, Mode::Train), x, shape)?;
        graph.mean(y, &[0, 1])
    })
    .unwrap();
    let mut plain = Graph::new();
    let x = plain.input("x", TensorType::f32([4, 2, 8, 8])).unwrap();
    let y = logits(&mut Net::new(&mut plain, Mode::Train), x, shape).unwrap();
    let loss = plain.mean(y, &[0, 1]).unwrap();
    train(&mut plain, loss, &optimizer).unwrap();
    assert_eq!(plain.to_string(), accumulated.to_string());
}
