//! Whole steps under programs of the planners.

use std::sync::Arc;

use tensile_sched::{Bytes, Limits, Mode, NoEviction, Planner, Tensile, floor};

use super::Case;
use crate::device::Device;
use crate::exec::{Compiled, Executor, ExecutorOptions, PersistentValue, Step, lower};
use crate::graph::{Graph, GraphError, Init};
use crate::nn::init_part;
use crate::op::conv2d::Conv2d;
use crate::optim::{Optimizer, train};
use crate::tensor::TensorType;

/// Convolution, batch norm, dropout, a residual sum and a linear layer, trained with Adam.
fn network() -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32([4, 3, 8, 8]))?;
    let labels = graph.input("labels", TensorType::i32([4]))?;
    let random = graph.input("random", TensorType::i32([4]))?;
    let weight = graph.parameter("conv.weight", [8, 3, 3, 3], Init::Uniform { bound: 0.4 })?;
    let y = graph.conv2d(x, weight, None, Conv2d::new(1, 1))?;
    let (scale, shift) = (
        graph.parameter("norm.weight", [8], Init::Constant(1.0))?,
        graph.parameter("norm.bias", [8], Init::Constant(0.0))?,
    );
    let [z, mean, var] = graph.batch_norm(y, scale, shift, 1e-5)?;
    let running_mean = graph.buffer("norm.running_mean", TensorType::f32([8]), Init::Constant(0.0))?;
    let running_var = graph.buffer("norm.running_var", TensorType::f32([8]), Init::Constant(1.0))?;
    let count = graph.buffer("norm.count", TensorType::i32([]), Init::Constant(0.0))?;
    graph.batch_norm_stats([running_mean, running_var, count], [mean, var], 256, 0.1)?;
    let z = graph.relu(z)?;
    let z = graph.dropout(z, random, 0.25, 0)?;
    let z = graph.add(z, y)?;
    let z = graph.reshape(z, [4, 512])?;
    let (weight, bias) = (
        graph.parameter("linear.weight", [4, 512], Init::Uniform { bound: 0.05 })?,
        graph.parameter("linear.bias", [4], Init::Constant(0.0))?,
    );
    let logits = graph.linear(z, weight, Some(bias))?;
    let loss = graph.softmax_cross_entropy(logits, labels)?;
    graph.output("loss", loss)?;
    train(&mut graph, loss, &Optimizer::adam())?;
    Ok(graph)
}

type Trained = (Vec<Vec<u8>>, Vec<PersistentValue>);

fn train_steps<D: Device>(device: &Arc<D>, step: &Arc<Step>, planner: &dyn Planner, limits: Limits) -> Trained {
    let planned = planner.plan(&step.trace, &limits).expect("the budget is at least the floor");
    let compiled = Compiled::new(Arc::clone(step), planned, limits).expect("planners make right programs");
    let init = |persistent: &crate::Persistent, first: usize, bytes: &mut [u8]| init_part(persistent, 1, first, bytes);
    let mut executor =
        Executor::new(Arc::clone(device), &compiled, ExecutorOptions { profile: true, poison: true }, init)
            .expect("a small job");
    let mut losses = Vec::new();
    for _ in 0..3 {
        let result = executor
            .step(&compiled, |input, bytes| bytes.copy_from_slice(&Case::input(&input.name, &input.ty)))
            .expect("a step");
        assert!(result.scalar("loss").is_finite());
        losses.push(result.outputs[0].bytes.clone());
    }
    (losses, executor.state().expect("nothing failed"))
}

/// Losses and all persistent tensors of a small training run have the same bits at the floor, half way, and without a limit.
///
/// # Panics
/// If not.
pub fn budgets_keep_the_bits<D: Device>(device: &Arc<D>) {
    let graph = network().expect("the network is well formed");
    let step = Arc::new(lower(&graph, &**device).expect("the device has all ops"));
    let free = device.info().limits(Bytes::MAX);
    let expected = train_steps(device, &step, &NoEviction, free.clone());
    assert_ne!(expected.0[0], expected.0[2], "training moves the loss");
    let top = NoEviction.plan(&step.trace, &free).expect("there is no limit").report.arena.0;
    for mode in [Mode::Swap, Mode::Both] {
        let limits = Limits { mode, ..free.clone() };
        let bottom = floor(&step.trace, &limits).expect("a floor").bytes.0;
        for budget in [bottom, bottom.midpoint(top), top] {
            let limits = Limits { device: Bytes(budget), ..limits.clone() };
            let trained = train_steps(device, &step, &Tensile::default(), limits);
            assert!(trained == expected, "{mode:?}: other bits within {budget} bytes");
        }
    }
}
