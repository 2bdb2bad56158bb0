//! Layers and training steps, on the reference interpreter.

use std::collections::BTreeMap;

use tensile_core::nn::{Conv, Mode, Net, RANDOM, WeightInit, init_value, random_value};
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::{Optimizer, SCALARS, train};
use tensile_core::testing::{Interpreter, Outcome, float_bytes, int_bytes, ints, values};
use tensile_core::{DType, Graph, GraphError, TensorType, Value};

const BATCH: usize = 8;

fn model(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let x = net.conv2d("conv1", x, Conv::new(6, 3).padding(1).no_bias().init(WeightInit::HeFanOut))?;
    let x = net.batch_norm("bn1", x)?;
    let x = net.graph().relu(x)?;
    let x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
    let x = net.scoped("head", |net| {
        let x = net.flatten(x)?;
        let x = net.dropout(x, 0.2)?;
        let x = net.linear("0", x, 16)?;
        let x = net.graph().relu(x)?;
        net.dropout(x, 0.2)
    })?;
    net.linear("fc", x, 3)
}

/// A step of training (with an optimizer) or evaluation.
fn step(graph: &mut Graph, mode: Mode, optimizer: Option<&Optimizer>) -> Result<(), GraphError> {
    let images = graph.input("images", TensorType::f32([BATCH, 2, 6, 6]))?;
    let labels = graph.input("labels", TensorType::i32([BATCH]))?;
    let logits = model(&mut Net::new(graph, mode), images)?;
    let loss = graph.softmax_cross_entropy(logits, labels)?;
    let correct = graph.count_correct(logits, labels)?;
    graph.output("loss", loss)?;
    graph.output("correct", correct)?;
    if let Some(optimizer) = optimizer {
        train(graph, loss, optimizer)?;
    }
    Ok(())
}

struct Trainer {
    graph: Graph,
    optimizer: Optimizer,
    state: BTreeMap<String, Vec<u8>>,
}

impl Trainer {
    fn new(optimizer: Optimizer) -> Self {
        let mut graph = Graph::new();
        step(&mut graph, Mode::Train, Some(&optimizer)).expect("shapes fit");
        let state = graph.persistents().map(|(p, _)| (p.name.clone(), init_value(p, 1))).collect();
        Self { graph, optimizer, state }
    }

    fn inputs(&self, n: u64) -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("images", float_bytes(&values(BATCH * 72, 5))),
            ("labels", int_bytes(&[0, 1, 2, 0, 1, 2, 0, 1])),
            (RANDOM, int_bytes(&random_value(9, n))),
            (SCALARS, float_bytes(&self.optimizer.scalars(n, 0.01))),
        ]
    }

    fn step(&mut self, n: u64, interpreter: Interpreter) -> Outcome {
        let state: Vec<(&str, Vec<u8>)> = self.state.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
        let outcome = interpreter.run(&self.graph, &self.inputs(n), &state);
        self.state = outcome.persistents.clone();
        outcome
    }
}

#[test]
fn names_and_initial_values() {
    let trainer = Trainer::new(Optimizer::adam());
    let names: Vec<&str> = trainer.graph.persistents().map(|(p, _)| p.name.as_str()).collect();
    assert_eq!(
        names[..10],
        [
            "conv1.weight",
            "bn1.weight",
            "bn1.bias",
            "bn1.running_mean",
            "bn1.running_var",
            "bn1.num_batches_tracked",
            "head.0.weight",
            "head.0.bias",
            "fc.weight",
            "fc.bias"
        ]
    );
    assert_eq!(names[10..13], ["conv1.weight.exp_avg", "conv1.weight.exp_avg_sq", "bn1.weight.exp_avg"]);
    assert_eq!(names.len(), 10 + 2 * 7);
    let start = |name: &str| tensile_core::testing::floats(&trainer.state[name]);
    // √(2/(6·9)) = 0.19 is the standard deviation of conv1, 1/√54 = 0.136 the bound of head.0.
    let conv1 = start("conv1.weight");
    let std = (conv1.iter().map(|x| x * x).sum::<f32>() / conv1.len() as f32).sqrt();
    assert!((std - 0.19).abs() < 0.04, "{std}");
    let bound = 54f32.powf(-0.5);
    for name in ["head.0.weight", "head.0.bias"] {
        let largest = start(name).iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        assert!(largest <= bound && largest > 0.8 * bound, "{name}: {largest}");
    }
    assert_eq!(start("bn1.running_var"), [1.0; 6]);
}

#[test]
fn training_learns_and_is_the_same_on_any_number_of_threads() {
    for optimizer in [Optimizer::sgd(0.9), Optimizer::adam(), Optimizer::adamw(0.01)] {
        let mut losses = Vec::new();
        let mut reference = Trainer::new(optimizer.clone());
        let mut others: Vec<(Interpreter, Trainer)> = [(2, false), (1, true), (3, true)]
            .map(|(threads, in_place)| (Interpreter { threads, in_place }, Trainer::new(optimizer.clone())))
            .into();
        for n in 0..30 {
            let outcome = reference.step(n, Interpreter { threads: 1, in_place: false });
            losses.push(outcome.output("loss")[0]);
            for (interpreter, trainer) in &mut others {
                assert_eq!(outcome, trainer.step(n, *interpreter), "step {n}, {interpreter:?}");
            }
        }
        assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
        assert_eq!(ints(&reference.state["bn1.num_batches_tracked"]), [30]);
        // The evaluation program has the same persistent tensors and changes none of them.
        let mut eval = reference.graph.sibling();
        step(&mut eval, Mode::Eval, None).expect("shapes fit");
        assert_eq!(eval.persistents().len(), reference.graph.persistents().len());
        let inputs = &reference.inputs(0)[..2];
        let state: Vec<(&str, Vec<u8>)> = reference.state.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
        let outcome = tensile_core::testing::run(&eval, inputs, &state, 1);
        assert_eq!(outcome.persistents, reference.state);
        assert!(ints(&outcome.outputs["correct"])[0] >= 7);
    }
}

/// Running statistics after one batch: (1 − m)·start + m·batch, with the unbiased variance.
#[test]
fn running_statistics() {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32([2, 1, 3])).expect("new");
    let y = Net::new(&mut graph, Mode::Train).batch_norm("bn", x).expect("fits");
    graph.output("y", y).expect("new");
    let inputs = [("x", float_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 9.0]))];
    let outcome = tensile_core::testing::run(&graph, &inputs, &[], 1);
    assert_eq!(ints(&outcome.persistents["bn.num_batches_tracked"]), [1]);
    // Mean 4, squares of deviations 9 + 4 + 1 + 0 + 1 + 25 = 40, so the unbiased variance is 8.
    assert!((outcome.persistent("bn.running_mean")[0] - 0.4).abs() < 1e-6);
    assert!((outcome.persistent("bn.running_var")[0] - (0.9 + 0.8)).abs() < 1e-6);
}

#[test]
fn labels_out_of_range_give_nan_and_read_nothing_else() {
    for label in [-1, 3, i32::MAX, i32::MIN] {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32([2, 3])).expect("new");
        let labels = graph.input("labels", TensorType::i32([2])).expect("new");
        let loss = graph.softmax_cross_entropy(x, labels).expect("fits");
        let grad = graph.grad(loss, &[x]).expect("has a gradient")[0].expect("depends on x");
        let correct = graph.count_correct(x, labels).expect("fits");
        for (name, value) in [("loss", loss), ("grad", grad), ("correct", correct)] {
            graph.output(name, value).expect("new");
        }
        let inputs = [("x", float_bytes(&[0.0, 1.0, 0.0, 3.0, 0.0, 0.0])), ("labels", int_bytes(&[1, label]))];
        let outcome = tensile_core::testing::run(&graph, &inputs, &[], 1);
        assert!(outcome.output("loss")[0].is_nan());
        let grad = outcome.output("grad");
        assert!(grad[..3].iter().all(|x| x.is_finite()) && grad[3..].iter().all(|x| x.is_nan()), "{grad:?}");
        assert_eq!(ints(&outcome.outputs["correct"]), [1]);
    }
}

/// What the backward pass of an MLP with eight ReLU layers keeps: the input of each layer, the logits (f32) and one number per row.
#[test]
fn nothing_is_kept_in_vain() {
    let (batch, width) = (16, 32);
    let mut graph = Graph::new();
    let mut x = graph.input("x", TensorType::f32([batch, width])).expect("new");
    let labels = graph.input("labels", TensorType::i32([batch])).expect("new");
    let mut net = Net::new(&mut graph, Mode::Train);
    for layer in 0..8 {
        x = net.linear(&format!("{layer}"), x, width).expect("fits");
        x = net.graph().relu(x).expect("fits");
    }
    let logits = net.linear("head", x, 10).expect("fits");
    let loss = graph.softmax_cross_entropy(logits, labels).expect("fits");
    train(&mut graph, loss, &Optimizer::sgd(0.0)).expect("has gradients");
    let saved = graph.saved();
    let activations: usize = saved.iter().filter(|saved| !saved.is_input).map(|saved| saved.ty.bytes()).sum();
    assert_eq!(activations, 4 * (8 * batch * width + batch * 10 + batch));
    assert!(saved.iter().filter(|saved| saved.ty.dtype == DType::F32 && saved.is_input).count() == 1);
    // A block of convolution, batch norm, ReLU and pooling keeps x, the convolution's output, ReLU's, and a byte per window.
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32([2, 3, 8, 8])).expect("new");
    let mut net = Net::new(&mut graph, Mode::Train);
    let y = net.conv2d("conv", x, Conv::new(4, 3).padding(1)).expect("fits");
    let y = net.batch_norm("bn", y).expect("fits");
    let y = net.graph().relu(y).expect("fits");
    let y = net.graph().max_pool2d(y, Pool2d::new(2, 2)).expect("fits");
    let y = net.dropout(y, 0.5).expect("fits");
    let loss = graph.mean(y, &[0, 1, 2, 3]).expect("fits");
    train(&mut graph, loss, &Optimizer::adam()).expect("has gradients");
    let mut labels: Vec<String> = graph.saved().iter().map(|saved| format!("{} {}", saved.label, saved.ty)).collect();
    labels.sort();
    assert_eq!(
        labels,
        [
            "bn.batch_norm.1 f32[4]",
            "bn.batch_norm.2 f32[4]",
            "conv.conv2d f32[2, 4, 8, 8]",
            "max_pool2d.1 u8[2, 4, 4, 4]",
            "random i32[4]",
            "relu f32[2, 4, 8, 8]",
            "x f32[2, 3, 8, 8]",
        ]
    );
}

/// One causal attention block keeps its input, what each matrix product reads, and the softmax's output.
#[test]
fn attention_keeps_no_part_twice() {
    let (batch, length, width) = (2, 6, 8);
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32([batch, length, width])).expect("new");
    let mut net = Net::new(&mut graph, Mode::Train);
    let [q, k, v] = ["q", "k", "v"].map(|name| net.linear(name, x, width).expect("fits"));
    let scores = net.graph().matmul(q, k, false, true).expect("fits");
    let scores = net.graph().scale(scores, 0.5).expect("fits");
    let weights = net.graph().causal_softmax(scores).expect("fits");
    let mixed = net.graph().matmul(weights, v, false, false).expect("fits");
    let y = net.linear("out", mixed, width).expect("fits");
    let y = net.graph().add(y, x).expect("fits");
    let loss = graph.mean(y, &[0, 1, 2]).expect("fits");
    train(&mut graph, loss, &Optimizer::sgd(0.9)).expect("has gradients");
    let bytes: usize = graph.saved().iter().map(|saved| saved.ty.bytes()).sum();
    // x, q, k, v and the mixed values, and the weights; scores before and after scaling are not kept.
    assert_eq!(bytes, 4 * (5 * batch * length * width + batch * length * length));
}
