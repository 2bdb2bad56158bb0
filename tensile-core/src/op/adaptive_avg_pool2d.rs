//! `adaptive_avg_pool2d`: means over as many windows as asked for, and the gradient; with one window, global average pooling.

use std::ops::Range;

use rayon::prelude::*;

use super::lanes::sum;
use super::pool::Planes;
use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, Shape, TensorType};

/// Input `f32[N, C, H, W]`, output `f32[N, C, OH, OW]`: element (i, j) is the mean over rows ⌊iH/OH⌋..⌈(i+1)H/OH⌉ and columns likewise.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveAvgPool2d {
    /// Number of windows: height, width.
    pub output: [usize; 2],
}

/// Gradient of [`AdaptiveAvgPool2d`]: input dy `f32[N, C, OH, OW]`, output dx. It reads no other tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveAvgPool2dGrad {
    /// Shape of the forward op's input.
    pub shape: Shape,
}

fn window(index: usize, size: usize, windows: usize) -> Range<usize> {
    index * size / windows..((index + 1) * size).div_ceil(windows)
}

impl OpDef for AdaptiveAvgPool2d {
    fn name(&self) -> &'static str {
        "adaptive_avg_pool2d"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] if x.dtype == DType::F32 && x.dims().len() == 4 && !self.output.contains(&0) => {
                Ok(vec![TensorType::f32([x.dims()[0], x.dims()[1], self.output[0], self.output[1]])])
            }
            _ => Err(OpError("takes f32[N, C, H, W] and at least one window each way".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        let op = AdaptiveAvgPool2dGrad { shape: call.graph.shape(call.inputs[0]).clone() };
        Ok(vec![Some(call.graph.apply1(op, &[dy])?)])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, y) = (call.input::<f32>(0), call.output::<f32>(0));
        let planes = Planes::of(call.input_type(0), call.output_type(0));
        let (input, output, n) = (planes.input(), planes.output(), planes.at_once());
        y.par_chunks_mut(n * output).zip(x.par_chunks(n * input)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(output).zip(x.chunks_exact(input)) {
                for (index, y) in y.iter_mut().enumerate() {
                    let rows = window(index / planes.out_w, planes.h, planes.out_h);
                    let columns = window(index % planes.out_w, planes.w, planes.out_w);
                    let area = rows.len() * columns.len();
                    let total: f64 = if columns.len() == planes.w {
                        sum(&x[rows.start * planes.w..rows.end * planes.w])
                    } else {
                        rows.map(|row| sum(&x[row * planes.w..][columns.clone()])).sum()
                    };
                    *y = (total / area as f64) as f32;
                }
            }
        });
    }
}

impl OpDef for AdaptiveAvgPool2dGrad {
    fn name(&self) -> &'static str {
        "adaptive_avg_pool2d_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match (inputs, self.shape.dims()) {
            ([dy], [n, c, _, _]) if dy.dtype == DType::F32 && dy.dims().len() == 4 && dy.dims()[..2] == [*n, *c] => {
                Ok(vec![TensorType::f32(self.shape.clone())])
            }
            _ => Err(OpError(format!("takes a gradient f32[N, C, OH, OW] for an input {}", self.shape))),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (dy, dx) = (call.input::<f32>(0), call.output::<f32>(0));
        let planes = Planes::of(call.output_type(0), call.input_type(0));
        let (input, output, n) = (planes.input(), planes.output(), planes.at_once());
        dx.par_chunks_mut(n * input).zip(dy.par_chunks(n * output)).for_each(|(dx, dy)| {
            for (dx, dy) in dx.chunks_exact_mut(input).zip(dy.chunks_exact(output)) {
                dx.fill(0.0);
                for (index, dy) in dy.iter().enumerate() {
                    let rows = window(index / planes.out_w, planes.h, planes.out_h);
                    let columns = window(index % planes.out_w, planes.w, planes.out_w);
                    let share = dy / (rows.len() * columns.len()) as f32;
                    for row in rows {
                        dx[row * planes.w..][columns.clone()].iter_mut().for_each(|dx| *dx += share);
                    }
                }
            }
        });
    }
}

impl Graph {
    /// Means of x `f32[N, C, H, W]` over `output` windows.
    ///
    /// # Errors
    /// If `x` has another rank or a number of windows is 0.
    pub fn adaptive_avg_pool2d(&mut self, x: Value, output: [usize; 2]) -> Result<Value, GraphError> {
        self.apply1(AdaptiveAvgPool2d { output }, &[x])
    }

    /// Mean of each plane of x `f32[N, C, H, W]`, as `f32[N, C, 1, 1]`.
    ///
    /// # Errors
    /// If `x` has another rank.
    pub fn global_avg_pool2d(&mut self, x: Value) -> Result<Value, GraphError> {
        self.adaptive_avg_pool2d(x, [1, 1])
    }
}
