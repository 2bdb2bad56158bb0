//! `softmax_cross_entropy`: mean negative log-likelihood of labels under a softmax, and its gradient.

use rayon::prelude::*;

use super::lanes::{largest, map_sum};
use super::math::exp;
use super::{Cost, OpDef, OpError};
use crate::device::host::{HostCall, InOut};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Cross-entropy: inputs logits `f32[N, C]` and labels `i32[N]`; outputs the mean loss `f32[]` over the rows that count, and each row's log-sum-exp
/// `f32[N]`, which the gradient reads beside the logits.
///
/// A label outside 0..C makes the loss NaN, and its row of the gradient too; data sources refuse such labels before. If no row
/// counts, the loss is NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxCrossEntropy {
    /// Rows with this label do not count.
    pub ignore: Option<i32>,
}

/// Gradient of [`SoftmaxCrossEntropy`] by the logits: inputs logits, labels, log-sum-exp, and the gradient `f32[]` of the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxCrossEntropyGrad {
    /// As in the forward op.
    pub ignore: Option<i32>,
}

fn infer_rows(inputs: &[TensorType]) -> Result<usize, OpError> {
    match inputs {
        [logits, labels, ..]
            if logits.dtype == DType::F32
                && logits.dims().len() == 2
                && *labels == TensorType::i32([logits.dims()[0]]) =>
        {
            Ok(logits.dims()[0])
        }
        _ => Err(OpError("takes logits f32[N, C] and labels i32[N]".to_owned())),
    }
}

/// Rows that count.
fn count(labels: &[i32], ignore: Option<i32>) -> f64 {
    labels.iter().filter(|&&label| Some(label) != ignore).count() as f64
}

/// The logit of a row's label; NaN if there is none.
fn logit_of(row: &[f32], label: i32) -> f32 {
    usize::try_from(label).ok().and_then(|label| row.get(label)).copied().unwrap_or(f32::NAN)
}

impl OpDef for SoftmaxCrossEntropy {
    fn name(&self) -> &'static str {
        "softmax_cross_entropy"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let n = infer_rows(inputs)?;
        if inputs.len() != 2 {
            return Err(OpError(format!("takes two inputs, not {}", inputs.len())));
        }
        Ok(vec![TensorType::f32([]), TensorType::f32([n])])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (Some(dloss), None) = (call.output_grads[0], call.output_grads[1]) else {
            return Err(call.no_gradient("softmax_cross_entropy (log-sum-exp)"));
        };
        let inputs = [call.inputs[0], call.inputs[1], call.outputs[1], dloss];
        Ok(vec![Some(call.graph.apply1(SoftmaxCrossEntropyGrad { ignore: self.ignore }, &inputs)?), None])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 20.0 * n, bytes: 2.0 * 4.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (logits, labels): (&[f32], &[i32]) = (call.input(0), call.input(1));
        let (loss, lse) = (call.output::<f32>(0), call.output::<f32>(1));
        let classes = call.input_type(0).dims()[1];
        lse.par_iter_mut().zip(logits.par_chunks_exact(classes)).for_each(|(lse, row)| {
            let largest = largest(row);
            let sum = map_sum(row, |x| exp(x - largest));
            *lse = largest + sum.ln() as f32;
        });
        let mut total = 0.0;
        for ((row, &label), &lse) in logits.chunks_exact(classes).zip(labels).zip(&*lse) {
            if Some(label) != self.ignore {
                total += f64::from(lse) - f64::from(logit_of(row, label));
            }
        }
        loss[0] = (total / count(labels, self.ignore)) as f32;
    }
}

impl OpDef for SoftmaxCrossEntropyGrad {
    fn name(&self) -> &'static str {
        "softmax_cross_entropy_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let n = infer_rows(inputs)?;
        match inputs {
            [logits, _, lse, dloss] if *lse == TensorType::f32([n]) && *dloss == TensorType::f32([]) => {
                Ok(vec![logits.clone()])
            }
            _ => Err(OpError(
                "takes logits f32[N, C], labels i32[N], log-sum-exp f32[N] and a gradient f32[]".to_owned(),
            )),
        }
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 20.0 * n, bytes: 2.0 * 4.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (labels, lse): (&[i32], &[f32]) = (call.input(1), call.input(2));
        let dloss = call.input::<f32>(3)[0];
        let classes = call.input_type(0).dims()[1];
        let scale = (f64::from(dloss) / count(labels, self.ignore)) as f32;
        let gradient = |x: f32, class: usize, label: i32, lse: f32| {
            if Some(label) == self.ignore {
                return 0.0;
            }
            if label < 0 || label as usize >= classes {
                return f32::NAN;
            }
            let hot = if class == label as usize { 1.0 } else { 0.0 };
            (exp(x - lse) - hot) * scale
        };
        match call.in_out::<f32>(0, 0) {
            InOut::Same(dx) => {
                dx.par_chunks_exact_mut(classes).zip(labels).zip(lse).for_each(|((dx, &label), &lse)| {
                    dx.iter_mut().enumerate().for_each(|(class, dx)| *dx = gradient(*dx, class, label, lse));
                });
            }
            InOut::Separate(x, dx) => {
                let rows = dx.par_chunks_exact_mut(classes).zip(x.par_chunks_exact(classes));
                rows.zip(labels).zip(lse).for_each(|(((dx, x), &label), &lse)| {
                    for (class, (dx, x)) in dx.iter_mut().zip(x).enumerate() {
                        *dx = gradient(*x, class, label, lse);
                    }
                });
            }
        }
    }
}

impl Graph {
    /// Mean cross-entropy of logits `f32[N, C]` against labels `i32[N]`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn softmax_cross_entropy(&mut self, logits: Value, labels: Value) -> Result<Value, GraphError> {
        Ok(self.apply(SoftmaxCrossEntropy { ignore: None }, &[logits, labels])?[0])
    }

    /// As [`softmax_cross_entropy`](Self::softmax_cross_entropy), over the rows whose label is not `ignore`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn softmax_cross_entropy_ignoring(
        &mut self,
        logits: Value,
        labels: Value,
        ignore: i32,
    ) -> Result<Value, GraphError> {
        Ok(self.apply(SoftmaxCrossEntropy { ignore: Some(ignore) }, &[logits, labels])?[0])
    }
}
