//! A model and an op of one's own, trained within half of the memory that the step takes: `cargo run -p tensile-models --example own_model`.
//!
//! The op is hard swish, x·min(max(x + 3, 0), 6)/6 (Howard et al.: arXiv 1905.02244), written here and unknown to the library: a shape rule, a gradient, a
//! cost and a kernel for the host make it an op like all others, to be planned, evicted and recomputed.
#![expect(clippy::print_stdout, reason = "a program's own output")]

use std::sync::Arc;

use rayon::prelude::*;
use tensile_core::device::host::{HostCall, HostDevice, HostOptions, InOut};
use tensile_core::exec::ExecutorOptions;
use tensile_core::grad::GradCall;
use tensile_core::nn::{Conv, Net};
use tensile_core::op::pool::Pool2d;
use tensile_core::optim::Optimizer;
use tensile_core::optim::schedule::{Decay, Schedule};
use tensile_core::{Cost, DType, Device, GraphError, Op, OpDef, OpError, TensorType, Value};
use tensile_models::data::{self, Loader, Position};
use tensile_models::job::{Job, Recipe};
use tensile_models::trainer::Trainer;
use tensile_models::zoo::{Network, Task};
use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Planner, Tensile};

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// Elementwise hard swish of an f32 tensor.
#[derive(Debug)]
struct HardSwish;

/// Its gradient: inputs dy and x, of one f32 type.
#[derive(Debug)]
struct HardSwishGrad;

fn hard_swish(x: f32) -> f32 {
    x * (x + 3.0).clamp(0.0, 6.0) * (1.0 / 6.0)
}

fn slope(x: f32) -> f32 {
    if x <= -3.0 {
        0.0
    } else if x >= 3.0 {
        1.0
    } else {
        (2.0 * x + 3.0) * (1.0 / 6.0)
    }
}

impl OpDef for HardSwish {
    fn name(&self) -> &'static str {
        "hard_swish"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] if x.dtype == DType::F32 => Ok(vec![x.clone()]),
            _ => Err(OpError("takes one f32 tensor".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        // It reads x, so x stays alive for the backward pass, or is brought back for it.
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(Op::Custom(Arc::new(HardSwishGrad)), &[dy, call.inputs[0]])?)])
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 5.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        // Threads take chunks of fixed size, so that the bits do not depend on how many there are.
        match call.in_out::<f32>(0, 0) {
            InOut::Separate(x, y) => y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| {
                y.iter_mut().zip(x).for_each(|(y, x)| *y = hard_swish(*x));
            }),
            InOut::Same(y) => {
                y.par_chunks_mut(CHUNK).for_each(|y| y.iter_mut().for_each(|y| *y = hard_swish(*y)));
            }
        }
    }
}

impl OpDef for HardSwishGrad {
    fn name(&self) -> &'static str {
        "hard_swish_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [dy, x] if dy == x && x.dtype == DType::F32 => Ok(vec![x.clone()]),
            _ => Err(OpError("takes two f32 tensors of one shape".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 4.0 * n, bytes: 12.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (dy, x, dx) = (call.input::<f32>(0), call.input::<f32>(1), call.output::<f32>(0));
        let inputs = dy.par_chunks(CHUNK).zip(x.par_chunks(CHUNK));
        dx.par_chunks_mut(CHUNK).zip(inputs).for_each(|(dx, (dy, x))| {
            dx.iter_mut().zip(dy.iter().zip(x)).for_each(|(dx, (dy, x))| *dx = dy * slope(*x));
        });
    }
}

/// A small convolutional network for the digits.
#[derive(Debug)]
struct OwnModel;

impl Network for OwnModel {
    fn task(&self) -> Task {
        Task::Images { shape: [1, 8, 8] }
    }

    fn classes(&self) -> usize {
        10
    }

    fn forward(&self, net: &mut Net<'_>, inputs: &[Value]) -> Result<Value, GraphError> {
        let mut x = inputs[0];
        for (index, channels) in [16, 32, 32].into_iter().enumerate() {
            x = net.conv2d(&format!("conv{index}"), x, Conv::new(channels, 3).padding(1).no_bias())?;
            x = net.batch_norm(&format!("norm{index}"), x)?;
            x = net.graph().apply1(Op::Custom(Arc::new(HardSwish)), &[x])?;
        }
        let x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
        let x = net.flatten(x)?;
        net.linear("head", x, self.classes())
    }
}

/// What a training leaves.
struct Outcome {
    losses: Vec<f32>,
    accuracy: f64,
    /// Bytes of the step without a limit, and of the budget.
    bytes: [Bytes; 2],
    /// Tensors that left the device, and ops that ran again, in a step.
    evictions: usize,
    reruns: usize,
}

/// Trains for some steps within a fraction of what the step takes without a limit.
fn train(fraction: f64, steps: u64) -> anyhow::Result<Outcome> {
    let device = Arc::new(HostDevice::new(HostOptions::default())?);
    let network: Arc<dyn Network> = Arc::new(OwnModel);
    let optimizer = Optimizer::adamw(0.01).without_decay_on_vectors().with_clip_norm(5.0);
    let job = Job::new(&network, Recipe::new(64, optimizer), &*device)?;

    let unlimited = device.info().limits(Bytes::MAX);
    let full = NoEviction.plan(&job.train.trace, &unlimited)?.report.arena;
    let budget = Bytes((full.0 as f64 * fraction) as u64);
    let limits = device.info().limits(budget);
    let planner = Tensile::default();
    let mut trainer = Trainer::new(device, job, &planner, limits, ExecutorOptions::default(), 1)?;

    let data = data::open("digits", &*network, 1)?;
    let mut loader = Loader::new(Arc::clone(&data.train), 64, 1, Position::default())?;
    let schedule = Schedule { decay: Decay::Cosine { total: steps, floor: 0.1 }, warmup: steps / 10 };
    let mut losses = Vec::new();
    for step in 0..steps {
        let batch = loader.next_batch()?;
        losses.push(trainer.step(&batch, schedule.lr(step, 5e-3))?);
        loader.recycle(batch);
    }
    let accuracy = trainer.evaluate(&*data.test)?.accuracy;
    let report = &trainer.train_program().planned().report;
    Ok(Outcome { losses, accuracy, bytes: [full, budget], evictions: report.evictions, reruns: report.reruns })
}

fn main() -> anyhow::Result<()> {
    let outcome = train(0.5, 100)?;
    let [full, budget] = outcome.bytes;
    println!("{full} without a limit; trained within {budget}");
    println!("each step: {} evictions, {} ops run again", outcome.evictions, outcome.reruns);
    for (step, loss) in outcome.losses.iter().enumerate().step_by(20) {
        println!("step {step:3}  loss {loss:.4}");
    }
    println!("accuracy on the test digits {:.1} %", 100.0 * outcome.accuracy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_function() {
        for x in (-50..50).map(|x| x as f32 * 0.1 + 0.05) {
            let h = 0.01;
            let difference = (hard_swish(x + h) - hard_swish(x - h)) / (2.0 * h);
            assert!((slope(x) - difference).abs() < 1e-3, "at {x}: {} against {difference}", slope(x));
        }
    }

    #[test]
    fn half_of_the_memory_gives_the_same_losses() {
        let (whole, half) = (train(1.0, 60).unwrap(), train(0.5, 60).unwrap());
        assert!(half.evictions > 0 && whole.evictions == 0);
        assert_eq!(whole.losses, half.losses);
        assert!(half.losses[59] < 0.3 * half.losses[0], "{:?}", half.losses);
        assert!(half.accuracy > 0.85, "{}", half.accuracy);
        assert_eq!(whole.accuracy, half.accuracy);
    }
}
