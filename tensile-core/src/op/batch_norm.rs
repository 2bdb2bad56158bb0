//! `batch_norm`: normalises each channel over batch and positions; its gradient; inference from running statistics.

use rayon::prelude::*;

use super::elementwise::CHUNK;
use super::lanes::{map_sum, map_sum2, sum};
use super::{Cost, OpDef, OpError};
use crate::device::host::{HostCall, InOut};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Batch normalisation in training: inputs x `f32[N, C, …]`, weight `f32[C]`, bias `f32[C]`; outputs
/// y = (x − mean)/√(var + ε)·weight + bias, and the batch's mean `f32[C]` and biased variance `f32[C]`.
///
/// There is no gradient through mean and variance as outputs. The gradient reads x, mean, variance and weight, not y.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub eps: f32,
}

/// Gradient of [`BatchNorm`] and [`BatchNormInference`]: inputs x, dy, mean, variance, weight; outputs dx, dweight, dbias.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNormGrad {
    /// Added to the variance.
    pub eps: f32,
    /// Whether mean and variance are functions of x.
    pub training: bool,
}

/// Batch normalisation by given statistics: inputs x `f32[N, C, …]`, mean, variance, weight, bias, all `f32[C]`; output of x's type.
/// Mean and variance have no gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchNormInference {
    /// Added to the variance.
    pub eps: f32,
}

/// Rows of `hw` elements of one channel, channels turning fastest.
#[derive(Clone, Copy)]
struct Layout {
    channels: usize,
    hw: usize,
}

impl Layout {
    fn of(x: &TensorType) -> Self {
        let dims = x.dims();
        Self { channels: dims[1], hw: dims[2..].iter().product() }
    }

    /// Elements of one channel.
    fn per_channel(self, x: &[f32]) -> usize {
        x.len() / self.channels
    }

    fn rows(self, x: &[f32], channel: usize) -> impl Iterator<Item = &[f32]> {
        x.chunks_exact(self.hw).skip(channel).step_by(self.channels)
    }

    /// Elements a thread takes at a time: whole rows.
    fn chunk(self) -> usize {
        self.hw * (CHUNK / self.hw).max(1)
    }

    /// Runs `f(channel, row, range of the row in the whole)` for the rows of chunk number `index`.
    fn each_row(self, index: usize, chunk: &mut [f32], f: impl Fn(usize, &mut [f32], std::ops::Range<usize>)) {
        let first = index * self.chunk() / self.hw;
        for (row, y) in chunk.chunks_exact_mut(self.hw).enumerate() {
            let row = first + row;
            f(row % self.channels, y, row * self.hw..(row + 1) * self.hw);
        }
    }
}

/// Type rule: x `f32[N, C, …]`, and `companions` tensors `f32[C]`.
fn check_types(x: &TensorType, companions: &[TensorType], n: usize, expected: &str) -> Result<(), OpError> {
    let fits = x.dtype == DType::F32 && x.dims().len() >= 2 && companions.len() == n && {
        let channels = TensorType::f32([x.dims()[1]]);
        companions.iter().all(|ty| *ty == channels)
    };
    if fits { Ok(()) } else { Err(OpError(format!("takes {expected}, with C the size of x's dimension 1"))) }
}

fn rstd(var: f32, eps: f32) -> f32 {
    (1.0 / (f64::from(var) + f64::from(eps)).sqrt()) as f32
}

impl OpDef for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        check_types(&inputs[0], &inputs[1..], 2, "x f32[N, C, …], weight f32[C] and bias f32[C]")?;
        if inputs[0].numel() <= inputs[0].dims()[1] {
            return Err(OpError("needs more than one value per channel in training".to_owned()));
        }
        Ok(vec![inputs[0].clone(), inputs[1].clone(), inputs[1].clone()])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (Some(dy), None, None) = (call.output_grads[0], call.output_grads[1], call.output_grads[2]) else {
            return Err(call.no_gradient("batch_norm (mean and variance)"));
        };
        let inputs = [call.inputs[0], dy, call.outputs[1], call.outputs[2], call.inputs[1]];
        let grads = call.graph.apply(BatchNormGrad { eps: self.eps, training: true }, &inputs)?;
        Ok(grads.into_iter().map(Some).collect())
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 7.0 * n, bytes: 4.0 * 4.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, weight, bias): (&[f32], &[f32], &[f32]) = (call.input(0), call.input(1), call.input(2));
        let (y, mean, var) = (call.output::<f32>(0), call.output::<f32>(1), call.output::<f32>(2));
        let layout = Layout::of(call.input_type(0));
        let n = layout.per_channel(x) as f64;
        mean.par_iter_mut().zip(var.par_iter_mut()).enumerate().for_each(|(channel, (mean, var))| {
            *mean = (layout.rows(x, channel).map(sum).sum::<f64>() / n) as f32;
            let center = *mean;
            let square = |x: f32| (x - center) * (x - center);
            *var = (layout.rows(x, channel).map(|row| map_sum(row, square)).sum::<f64>() / n) as f32;
        });
        let (mean, var) = (&*mean, &*var);
        y.par_chunks_mut(layout.chunk()).enumerate().for_each(|(index, y)| {
            layout.each_row(index, y, |channel, y, range| {
                let (mean, bias) = (mean[channel], bias[channel]);
                let scale = weight[channel] * rstd(var[channel], self.eps);
                for (y, x) in y.iter_mut().zip(&x[range]) {
                    *y = (x - mean) * scale + bias;
                }
            });
        });
    }
}

impl OpDef for BatchNormGrad {
    fn name(&self) -> &'static str {
        "batch_norm_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let expected = "x f32[N, C, …], dy of x's type, and mean, variance and weight f32[C]";
        check_types(&inputs[0], &inputs[2..], 3, expected)?;
        if inputs[1] != inputs[0] {
            return Err(OpError(format!("takes {expected}")));
        }
        Ok(vec![inputs[0].clone(), inputs[2].clone(), inputs[2].clone()])
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(1, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 9.0 * n, bytes: 5.0 * 4.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let x: &[f32] = call.input(0);
        let (mean, var, weight): (&[f32], &[f32], &[f32]) = (call.input(2), call.input(3), call.input(4));
        let (dweight, dbias) = (call.output::<f32>(1), call.output::<f32>(2));
        let layout = Layout::of(call.input_type(0));
        let mut reduce = |dy: &[f32]| {
            dweight.par_iter_mut().zip(dbias.par_iter_mut()).enumerate().for_each(|(channel, (dweight, dbias))| {
                let mean = mean[channel];
                let rows = layout.rows(x, channel).zip(layout.rows(dy, channel));
                let (sum_dy, sum_dy_x) = rows
                    .map(|(x, dy)| map_sum2(x, dy, |x, dy| (dy, dy * (x - mean))))
                    .fold((0.0, 0.0), |total, row| (total.0 + row.0, total.1 + row.1));
                *dweight = (sum_dy_x * f64::from(rstd(var[channel], self.eps))) as f32;
                *dbias = sum_dy as f32;
            });
        };
        // In place, dy is read for the sums before dx goes over it.
        let (dx, separate) = match call.in_out::<f32>(1, 0) {
            InOut::Same(dx) => {
                reduce(dx);
                (dx, None)
            }
            InOut::Separate(dy, dx) => {
                reduce(dy);
                (dx, Some(dy))
            }
        };
        let (dweight, dbias) = (&*dweight, &*dbias);
        let n = layout.per_channel(x) as f32;
        dx.par_chunks_mut(layout.chunk()).enumerate().for_each(|(index, dx)| {
            layout.each_row(index, dx, |channel, dx, range| {
                let rstd = rstd(var[channel], self.eps);
                let (scale, mean) = (weight[channel] * rstd, mean[channel]);
                let (slope, offset) = if self.training {
                    (-scale * rstd * dweight[channel] / n, -scale * dbias[channel] / n)
                } else {
                    (0.0, 0.0)
                };
                let gradient = |dy: f32, x: f32| scale * dy + (slope * (x - mean) + offset);
                let x = &x[range.clone()];
                match separate {
                    None => dx.iter_mut().zip(x).for_each(|(dx, x)| *dx = gradient(*dx, *x)),
                    Some(dy) => {
                        for ((dx, dy), x) in dx.iter_mut().zip(&dy[range]).zip(x) {
                            *dx = gradient(*dy, *x);
                        }
                    }
                }
            });
        });
    }
}

impl OpDef for BatchNormInference {
    fn name(&self) -> &'static str {
        "batch_norm_inference"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        check_types(&inputs[0], &inputs[1..], 4, "x f32[N, C, …], and mean, variance, weight and bias f32[C]")?;
        Ok(vec![inputs[0].clone()])
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        let inputs = [call.inputs[0], dy, call.inputs[1], call.inputs[2], call.inputs[3]];
        let grads = call.graph.apply(BatchNormGrad { eps: self.eps, training: false }, &inputs)?;
        Ok(vec![Some(grads[0]), None, None, Some(grads[1]), Some(grads[2])])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (mean, var): (&[f32], &[f32]) = (call.input(1), call.input(2));
        let (weight, bias): (&[f32], &[f32]) = (call.input(3), call.input(4));
        let layout = Layout::of(call.input_type(0));
        let (y, separate) = match call.in_out::<f32>(0, 0) {
            InOut::Same(y) => (y, None),
            InOut::Separate(x, y) => (y, Some(x)),
        };
        y.par_chunks_mut(layout.chunk()).enumerate().for_each(|(index, y)| {
            layout.each_row(index, y, |channel, y, range| {
                let (mean, bias) = (mean[channel], bias[channel]);
                let scale = weight[channel] * rstd(var[channel], self.eps);
                match separate {
                    None => y.iter_mut().for_each(|y| *y = (*y - mean) * scale + bias),
                    Some(x) => {
                        for (y, x) in y.iter_mut().zip(&x[range]) {
                            *y = (x - mean) * scale + bias;
                        }
                    }
                }
            });
        });
    }
}

impl Graph {
    /// Batch normalisation of x `f32[N, C, …]` in training; gives y, the batch's mean and its biased variance.
    ///
    /// # Errors
    /// If the types do not fit or a channel has only one value.
    pub fn batch_norm(&mut self, x: Value, weight: Value, bias: Value, eps: f32) -> Result<[Value; 3], GraphError> {
        let outputs = self.apply(BatchNorm { eps }, &[x, weight, bias])?;
        Ok([outputs[0], outputs[1], outputs[2]])
    }

    /// Batch normalisation of x `f32[N, C, …]` by given `[mean, variance]`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn batch_norm_inference(
        &mut self,
        x: Value,
        [mean, var]: [Value; 2],
        weight: Value,
        bias: Value,
        eps: f32,
    ) -> Result<Value, GraphError> {
        self.apply1(BatchNormInference { eps }, &[x, mean, var, weight, bias])
    }
}
