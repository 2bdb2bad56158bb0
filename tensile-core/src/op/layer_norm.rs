//! `layer_norm`: normalises each row over the last dimension, and its gradient.

use rayon::prelude::*;

use super::elementwise::CHUNK;
use super::lanes::{map_sum, map_sum2, sum};
use super::{Cost, OpDef, OpError};
use crate::device::host::{HostCall, InOut};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::isa::Isa;
use crate::tensor::{DType, TensorType};

/// Layer normalisation: inputs x `f32[…, D]`, weight `f32[D]`, bias `f32[D]`; outputs y = (x − mean)/√(var + ε)·weight + bias with mean and biased variance of
/// each row, and the rows' mean and 1/√(var + ε), `f32[rows]` each. The gradient reads x, these two and the weight.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
}

/// Gradient of [`LayerNorm`]: inputs x, dy, mean, 1/√(var + ε), weight; outputs dx, dweight, dbias.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNormGrad;

impl OpDef for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x, weight, bias]
                if x.dtype == DType::F32
                    && x.dims().last().is_some_and(|&d| d > 0 && *weight == TensorType::f32([d]))
                    && bias == weight =>
            {
                let rows = TensorType::f32([x.numel() / weight.numel()]);
                Ok(vec![x.clone(), rows.clone(), rows])
            }
            _ => Err(OpError("takes x f32[…, D], weight f32[D] and bias f32[D]".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (Some(dy), None, None) = (call.output_grads[0], call.output_grads[1], call.output_grads[2]) else {
            return Err(call.no_gradient("layer_norm (statistics)"));
        };
        let inputs = [call.inputs[0], dy, call.outputs[1], call.outputs[2], call.inputs[1]];
        Ok(call.graph.apply(LayerNormGrad, &inputs)?.into_iter().map(Some).collect())
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 7.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, weight, bias): (&[f32], &[f32], &[f32]) = (call.input(0), call.input(1), call.input(2));
        let (y, mean, rstd) = (call.output::<f32>(0), call.output::<f32>(1), call.output::<f32>(2));
        let d = weight.len();
        let rows = (CHUNK / d).max(1);
        let isa = Isa::detect();
        let statistics = mean.par_chunks_mut(rows).zip(rstd.par_chunks_mut(rows));
        y.par_chunks_mut(rows * d).zip(x.par_chunks(rows * d)).zip(statistics).for_each(|((y, x), (mean, rstd))| {
            let each = y.chunks_exact_mut(d).zip(x.chunks_exact(d)).zip(mean.iter_mut().zip(rstd));
            isa.vectorize(|| {
                for ((y, x), (mean, rstd)) in each {
                    *mean = (sum(x) / d as f64) as f32;
                    let center = *mean;
                    let var = map_sum(x, |x| (x - center) * (x - center)) / d as f64;
                    *rstd = (1.0 / (var + f64::from(self.eps)).sqrt()) as f32;
                    let scale = *rstd;
                    for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                        *y = (x - center) * scale * weight + bias;
                    }
                }
            });
        });
    }
}

impl OpDef for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x, dy, mean, rstd, weight]
                if x.dtype == DType::F32
                    && dy == x
                    && x.dims().last().is_some_and(|&d| d > 0 && *weight == TensorType::f32([d]))
                    && *mean == TensorType::f32([x.numel() / weight.numel()])
                    && rstd == mean =>
            {
                Ok(vec![x.clone(), weight.clone(), weight.clone()])
            }
            _ => Err(OpError("takes x and dy f32[…, D], two statistics f32[rows], and weight f32[D]".to_owned())),
        }
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(1, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 12.0 * n, bytes: 20.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, weight): (&[f32], &[f32]) = (call.input(0), call.input(4));
        let (mean, rstd): (&[f32], &[f32]) = (call.input(2), call.input(3));
        let (dweight, dbias) = (call.output::<f32>(1), call.output::<f32>(2));
        let d = weight.len();
        let isa = Isa::detect();
        // Sums over rows, some columns at a time, before dx may go over dy.
        let mut reduce = |dy: &[f32]| {
            const COLUMNS: usize = 32;
            let tiles = dweight.par_chunks_mut(COLUMNS).zip(dbias.par_chunks_mut(COLUMNS));
            tiles.enumerate().for_each(|(tile, (dweight, dbias))| {
                let mut totals = ([0.0; COLUMNS], [0.0; COLUMNS]);
                isa.vectorize(|| {
                    for (row, (mean, rstd)) in mean.iter().zip(rstd).enumerate() {
                        let first = row * d + tile * COLUMNS;
                        let (x, dy) = (&x[first..][..dbias.len()], &dy[first..][..dbias.len()]);
                        let totals = totals.0.iter_mut().zip(&mut totals.1);
                        for ((x, dy), (by_weight, by_bias)) in x.iter().zip(dy).zip(totals) {
                            *by_weight += f64::from(dy * ((x - mean) * rstd));
                            *by_bias += f64::from(*dy);
                        }
                    }
                });
                dweight.iter_mut().zip(totals.0).for_each(|(to, total)| *to = total as f32);
                dbias.iter_mut().zip(totals.1).for_each(|(to, total)| *to = total as f32);
            });
        };
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
        let rows = (CHUNK / d).max(1);
        dx.par_chunks_mut(rows * d).enumerate().for_each(|(chunk, dx)| {
            let first = chunk * rows * d;
            if let Some(dy) = separate {
                dx.copy_from_slice(&dy[first..][..dx.len()]);
            }
            isa.vectorize(|| {
                for (row, dx) in dx.chunks_exact_mut(d).enumerate() {
                    let row = chunk * rows + row;
                    let (x, mean, rstd) = (&x[row * d..][..d], mean[row], rstd[row]);
                    // With g = dy·weight and x̂ the normalised row: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)).
                    for (dx, weight) in dx.iter_mut().zip(weight) {
                        *dx *= weight;
                    }
                    let (sum_g, sum_g_x) = map_sum2(dx, x, |g, x| (g, g * ((x - mean) * rstd)));
                    let (mean_g, mean_g_x) = ((sum_g / d as f64) as f32, (sum_g_x / d as f64) as f32);
                    for (dx, x) in dx.iter_mut().zip(x) {
                        *dx = rstd * (*dx - mean_g - (x - mean) * rstd * mean_g_x);
                    }
                }
            });
        });
    }
}

impl Graph {
    /// Layer normalisation of x `f32[…, D]` over the last dimension.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn layer_norm(&mut self, x: Value, weight: Value, bias: Value, eps: f32) -> Result<Value, GraphError> {
        Ok(self.apply(LayerNorm { eps }, &[x, weight, bias])?[0])
    }
}
