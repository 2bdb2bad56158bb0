//! `batch_norm`: normalises each channel over batch and positions; its gradient; inference from running statistics.

use rayon::prelude::*;

use super::elementwise::{CHUNK, split};
use super::lanes::{Total, add_both};
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::channels::{Channel, par_channels};
use crate::kernel::work::{Work, vectorized};
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

    /// Channels a thread takes at a time.
    fn at_once(self, x: &[f32]) -> usize {
        (CHUNK / self.per_channel(x).max(1)).max(1)
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
        let statistics = mean.par_iter_mut().zip(var.par_iter_mut()).zip(weight.par_iter().zip(bias));
        let channels = par_channels(y, layout.channels, layout.hw).zip(statistics).enumerate();
        channels.with_min_len(layout.at_once(x)).for_each(|(channel, (y, ((mean, var), (weight, bias))))| {
            vectorized(Forward { layout, channel, x, y, mean, var, weight: *weight, bias: *bias, eps: self.eps });
        });
    }
}

/// One channel in training.
struct Forward<'a> {
    layout: Layout,
    channel: usize,
    x: &'a [f32],
    y: Channel<'a, f32>,
    mean: &'a mut f32,
    var: &'a mut f32,
    weight: f32,
    bias: f32,
    eps: f32,
}

impl Work for Forward<'_> {
    #[inline(always)]
    fn run(mut self) {
        let n = self.layout.per_channel(self.x) as f64;
        let (mut sum, mut squares) = (Total::default(), Total::default());
        for x in self.layout.rows(self.x, self.channel) {
            sum.add(x, |x| x);
        }
        let mean = (sum.value() / n) as f32;
        for x in self.layout.rows(self.x, self.channel) {
            squares.add(x, |x| (x - mean) * (x - mean));
        }
        (*self.mean, *self.var) = (mean, (squares.value() / n) as f32);
        let (scale, bias) = (self.weight * rstd(*self.var, self.eps), self.bias);
        for (y, x) in self.y.rows().zip(self.layout.rows(self.x, self.channel)) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = (x - mean) * scale + bias;
            }
        }
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
        let (dx, dy) = split(call.in_out::<f32>(1, 0));
        let sums = dweight.par_iter_mut().zip(dbias.par_iter_mut());
        let channels = par_channels(dx, layout.channels, layout.hw).zip(sums).enumerate();
        channels.with_min_len(layout.at_once(x)).for_each(|(channel, (dx, (dweight, dbias)))| {
            let (mean, var, weight) = (mean[channel], var[channel], weight[channel]);
            vectorized(Backward { op: self, layout, channel, x, dy, dx, mean, var, weight, dweight, dbias });
        });
    }
}

/// One channel of the gradient.
struct Backward<'a> {
    op: &'a BatchNormGrad,
    layout: Layout,
    channel: usize,
    x: &'a [f32],
    /// None if `dx` holds it.
    dy: Option<&'a [f32]>,
    dx: Channel<'a, f32>,
    mean: f32,
    var: f32,
    weight: f32,
    dweight: &'a mut f32,
    dbias: &'a mut f32,
}

impl Work for Backward<'_> {
    #[inline(always)]
    fn run(mut self) {
        let (mean, rstd) = (self.mean, rstd(self.var, self.op.eps));
        let rows = || self.layout.rows(self.x, self.channel);
        let mut totals = [Total::default(); 2];
        let terms = |x: f32, dy: f32| (dy, dy * (x - mean));
        // In place, dy is read for the sums before dx goes over it.
        match self.dy {
            Some(dy) => {
                for (x, dy) in rows().zip(self.layout.rows(dy, self.channel)) {
                    add_both(&mut totals, x, dy, terms);
                }
            }
            None => {
                for (x, dy) in rows().zip(self.dx.rows()) {
                    add_both(&mut totals, x, dy, terms);
                }
            }
        }
        *self.dweight = (totals[1].value() * f64::from(rstd)) as f32;
        *self.dbias = totals[0].value() as f32;
        let n = self.layout.per_channel(self.x) as f32;
        let scale = self.weight * rstd;
        let (slope, offset) =
            if self.op.training { (-scale * rstd * *self.dweight / n, -scale * *self.dbias / n) } else { (0.0, 0.0) };
        let gradient = |dy: f32, x: f32| scale * dy + (slope * (x - mean) + offset);
        match self.dy {
            Some(dy) => {
                for ((dx, dy), x) in self.dx.rows().zip(self.layout.rows(dy, self.channel)).zip(rows()) {
                    for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
                        *dx = gradient(*dy, *x);
                    }
                }
            }
            None => {
                for (dx, x) in self.dx.rows().zip(rows()) {
                    for (dx, x) in dx.iter_mut().zip(x) {
                        *dx = gradient(*dx, *x);
                    }
                }
            }
        }
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
        let (y, x) = split(call.in_out::<f32>(0, 0));
        par_channels(y, layout.channels, layout.hw).enumerate().for_each(|(channel, y)| {
            let (mean, bias) = (mean[channel], bias[channel]);
            let scale = weight[channel] * rstd(var[channel], self.eps);
            vectorized(Inference { layout, channel, x, y, mean, scale, bias });
        });
    }
}

/// One channel by given statistics.
struct Inference<'a> {
    layout: Layout,
    channel: usize,
    /// None if `y` holds it.
    x: Option<&'a [f32]>,
    y: Channel<'a, f32>,
    mean: f32,
    scale: f32,
    bias: f32,
}

impl Work for Inference<'_> {
    #[inline(always)]
    fn run(mut self) {
        let (mean, scale, bias) = (self.mean, self.scale, self.bias);
        match self.x {
            Some(x) => {
                for (y, x) in self.y.rows().zip(self.layout.rows(x, self.channel)) {
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = (x - mean) * scale + bias;
                    }
                }
            }
            None => {
                for y in self.y.rows() {
                    for y in y {
                        *y = (*y - mean) * scale + bias;
                    }
                }
            }
        }
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
