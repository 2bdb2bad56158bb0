//! `batch_norm_stats`: the step of batch norm's running statistics, an update of its own so that a rerun of the layer never repeats it.

use super::gate;
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Moves running statistics towards a batch's: inputs running mean `f32[C]`, running variance `f32[C]` and counter `i32[]` (all three updated), the
/// batch's mean `f32[C]` and biased variance `f32[C]`, then a gate if there is one. No outputs.
///
/// running ← (1 − momentum)·running + momentum·batch, the variance being unbiased first; the counter goes up by one.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNormStats {
    /// Weight of the new batch.
    pub momentum: f32,
    /// n/(n − 1) for n values per channel: what makes the biased variance unbiased.
    pub unbias: f32,
}

impl OpDef for BatchNormStats {
    fn name(&self) -> &'static str {
        "batch_norm_stats"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [running_mean, running_var, count, mean, var, gate @ ..]
                if gate::fits(gate)
                    && *count == TensorType::i32([])
                    && *running_mean == TensorType::f32([running_mean.numel()])
                    && [running_var, mean, var].iter().all(|ty| *ty == running_mean) =>
            {
                Ok(Vec::new())
            }
            _ => Err(OpError(
                "takes running mean and variance f32[C], a counter i32[], and a batch's mean and variance f32[C]"
                    .to_owned(),
            )),
        }
    }

    fn updates(&self) -> &[usize] {
        &[0, 1, 2]
    }

    fn takes_gate(&self) -> bool {
        true
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        if gate::scale(call, 5).is_none() {
            return;
        }
        let (running_mean, running_var) = (call.update::<f32>(0), call.update::<f32>(1));
        let (mean, var): (&[f32], &[f32]) = (call.input(3), call.input(4));
        let keep = 1.0 - self.momentum;
        for (running, mean) in running_mean.iter_mut().zip(mean) {
            *running = keep * *running + self.momentum * mean;
        }
        for (running, var) in running_var.iter_mut().zip(var) {
            *running = keep * *running + self.momentum * (var * self.unbias);
        }
        let count = &mut call.update::<i32>(2)[0];
        *count = count.wrapping_add(1);
    }
}

impl Graph {
    /// Moves `[running mean, running variance, counter]` by the statistics `[mean, variance]` of a batch with `n` values per channel.
    ///
    /// # Errors
    /// If the types do not fit or the first three are not persistent.
    pub fn batch_norm_stats(
        &mut self,
        running: [Value; 3],
        batch: [Value; 2],
        n: usize,
        momentum: f32,
    ) -> Result<(), GraphError> {
        let unbias = (n as f64 / (n as f64 - 1.0)) as f32;
        let inputs = [running[0], running[1], running[2], batch[0], batch[1]];
        self.apply(BatchNormStats { momentum, unbias }, &inputs).map(|_| ())
    }
}
