//! `gate`: one decision before the updates of a step, which all of them read: whether they are made, and by how much gradients are scaled.

use super::square_sum::{joined, sum_type};
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Gate of a step's updates: inputs the gradients' [`SquareSum`](super::square_sum::SquareSum), and the loss if it is to be looked at;
/// outputs the gate `f32[2]` = [scale of gradients, 1 to update or 0 to leave everything as it is] and the gradients' norm `f32[]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Gradients of a larger norm are scaled by `max_norm`/(norm + 10⁻⁶), as PyTorch's `clip_grad_norm_` does. A norm that is infinite makes 0 of
    /// finite gradients, one that is NaN makes NaN of all.
    pub max_norm: Option<f32>,
    /// Whether there is no update if the norm or the loss is infinite or NaN.
    pub skip_nonfinite: bool,
}

/// Whether `inputs`, those behind an update's own, are a gate or none.
pub(crate) fn fits(inputs: &[TensorType]) -> bool {
    inputs.is_empty() || *inputs == [TensorType::f32([2])]
}

/// By how much the gate in input `index` of an update scales gradients: 1 if there is no such input; none if there is to be no update.
pub(crate) fn scale(call: &HostCall<'_>, index: usize) -> Option<f32> {
    if index == call.n_inputs() {
        return Some(1.0);
    }
    let gate = call.input::<f32>(index);
    (gate[1] != 0.0).then_some(gate[0])
}

impl OpDef for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [sum, losses @ ..]
                if *sum == sum_type()
                    && losses.len() <= 1
                    && losses.iter().all(|loss| loss.dtype == DType::F32 && loss.numel() == 1) =>
            {
                Ok(vec![TensorType::f32([2]), TensorType::f32([])])
            }
            _ => Err(OpError(format!("takes a sum {} and perhaps a loss of one f32", sum_type()))),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let norm = joined(call.input::<f32>(0)).sqrt();
        let loss = if call.n_inputs() > 1 { call.input::<f32>(1)[0] } else { 0.0 };
        let factor = self.max_norm.map_or(1.0, |most| (f64::from(most) / (norm + 1e-6)) as f32);
        // A comparison rather than a minimum, which would take 1 for NaN.
        let scale = if factor > 1.0 { 1.0 } else { factor };
        let shut = self.skip_nonfinite && !(norm.is_finite() && loss.is_finite());
        call.output::<f32>(0).copy_from_slice(&[scale, if shut { 0.0 } else { 1.0 }]);
        call.output::<f32>(1)[0] = norm as f32;
    }
}
