//! `avg_pool2d`: mean of each window, and its gradient.

use rayon::prelude::*;

use super::pool::{Planes, Pool2d, TILE, strided};
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::work::{Work, vectorized};
use crate::tensor::{Shape, TensorType};

/// Average pooling: input `f32[N, C, H, W]`, output the sum of each window divided by its size.
#[derive(Clone, Debug, PartialEq)]
pub struct AvgPool2d {
    /// The windows.
    pub pool: Pool2d,
    /// Whether padding counts towards the size of a window; what lies past the padding never does.
    pub count_include_pad: bool,
}

/// Gradient of [`AvgPool2d`]: input dy, output dx. It reads no other tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct AvgPool2dGrad {
    /// The forward op.
    pub forward: AvgPool2d,
    /// Shape of the forward op's input.
    pub shape: Shape,
}

impl AvgPool2d {
    /// What window `index` along an axis contributes to the divisor.
    fn extent(&self, axis: usize, index: usize, size: usize) -> usize {
        if self.count_include_pad {
            let start = index * self.pool.stride[axis];
            (start + self.pool.kernel[axis]).min(size + 2 * self.pool.padding[axis]) - start
        } else {
            self.pool.window(axis, index, size).len()
        }
    }

    /// [`extent`](Self::extent) along the width, 0 for windows that begin past everything.
    fn extent_or_zero(&self, index: usize, size: usize) -> usize {
        let past = index * self.pool.stride[1] >= size + 2 * self.pool.padding[1];
        if past { 0 } else { self.extent(1, index, size) }
    }
}

impl OpDef for AvgPool2d {
    fn name(&self) -> &'static str {
        "avg_pool2d"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![self.pool.infer(inputs)?])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        let op = AvgPool2dGrad { forward: self.clone(), shape: call.graph.shape(call.inputs[0]).clone() };
        Ok(vec![Some(call.graph.apply1(op, &[dy])?)])
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let window: usize = self.pool.kernel.iter().product();
        Cost {
            flops: (outputs[0].numel() * (window + 1)) as f64,
            bytes: (inputs[0].bytes() + outputs[0].bytes()) as f64,
        }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, y) = (call.input::<f32>(0), call.output::<f32>(0));
        let planes = Planes::of(call.input_type(0), call.output_type(0));
        let (input, output, n) = (planes.input(), planes.output(), planes.at_once());
        y.par_chunks_mut(n * output).zip(x.par_chunks(n * input)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(output).zip(x.chunks_exact(input)) {
                vectorized(Plane { op: self, planes, x, y });
            }
        });
    }
}

/// What the windows of one tile contribute to the divisor along the width: the same in every row. Whole numbers, so that products are exact.
struct Widths {
    /// Which tile they are of; none at first.
    tile: usize,
    widths: [f32; TILE],
}

impl Widths {
    fn new() -> Self {
        Self { tile: usize::MAX, widths: [0.0; TILE] }
    }

    #[inline(always)]
    fn of(&mut self, op: &AvgPool2d, size: usize, tile: usize) -> &[f32; TILE] {
        if self.tile != tile {
            self.tile = tile;
            for (index, width) in self.widths.iter_mut().enumerate() {
                // Past the last window there may be nothing; nobody asks for those.
                *width = op.extent_or_zero(tile * TILE + index, size) as f32;
            }
        }
        &self.widths
    }
}

/// One plane of the forward op, tap by tap over whole rows of outputs.
struct Plane<'a> {
    op: &'a AvgPool2d,
    planes: Planes,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Work for Plane<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { op, planes, x, y } = self;
        let (pool, w) = (&op.pool, planes.w);
        let mut widths = Widths::new();
        for (out_h, y) in y.chunks_exact_mut(planes.out_w).enumerate() {
            y.fill(0.0);
            for row in pool.window(0, out_h, planes.h) {
                let x = &x[row * w..(row + 1) * w];
                for tap in 0..pool.kernel[1] {
                    let (windows, first) = pool.taps(tap, w, 0..planes.out_w);
                    if !windows.is_empty() {
                        let y = &mut y[windows.clone()];
                        let n = y.len();
                        strided(&x[first..], pool.stride[1], n, |i, x| y[i] += x);
                    }
                }
            }
            let height = op.extent(0, out_h, planes.h) as f32;
            for (tile, y) in y.chunks_mut(TILE).enumerate() {
                for (y, width) in y.iter_mut().zip(widths.of(op, w, tile)) {
                    *y /= height * width;
                }
            }
        }
    }
}

impl OpDef for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        "avg_pool2d_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = TensorType::f32(self.shape.clone());
        let y = self.forward.pool.infer(std::slice::from_ref(&x))?;
        if *inputs == [y.clone()] { Ok(vec![x]) } else { Err(OpError(format!("takes a gradient {y}"))) }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        self.forward.cost(outputs, inputs)
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (dy, dx) = (call.input::<f32>(0), call.output::<f32>(0));
        let planes = Planes::of(call.output_type(0), call.input_type(0));
        let (input, output, n) = (planes.input(), planes.output(), planes.at_once());
        dx.par_chunks_mut(n * input).zip(dy.par_chunks(n * output)).for_each(|(dx, dy)| {
            for (dx, dy) in dx.chunks_exact_mut(input).zip(dy.chunks_exact(output)) {
                vectorized(GradPlane { op: &self.forward, planes, dx, dy });
            }
        });
    }
}

/// One plane of the gradient.
struct GradPlane<'a> {
    op: &'a AvgPool2d,
    planes: Planes,
    dx: &'a mut [f32],
    dy: &'a [f32],
}

impl Work for GradPlane<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { op, planes, dx, dy } = self;
        let (pool, w) = (&op.pool, planes.w);
        let mut widths = Widths::new();
        dx.fill(0.0);
        for (out_h, dy) in dy.chunks_exact(planes.out_w).enumerate() {
            let height = op.extent(0, out_h, planes.h) as f32;
            for (index, dy) in dy.chunks(TILE).enumerate() {
                let tile = index * TILE..index * TILE + dy.len();
                let mut shares = [0.0; TILE];
                for ((share, dy), width) in shares.iter_mut().zip(dy).zip(widths.of(op, w, index)) {
                    *share = dy / (height * width);
                }
                for row in pool.window(0, out_h, planes.h) {
                    for tap in 0..pool.kernel[1] {
                        let (windows, first) = pool.taps(tap, w, tile.clone());
                        let shares = &shares[..windows.end.saturating_sub(tile.start)];
                        let shares = &shares[windows.start.saturating_sub(tile.start)..];
                        let dx = &mut dx[row * w + first..(row + 1) * w];
                        match pool.stride[1] {
                            1 => {
                                for (dx, share) in dx.iter_mut().zip(shares) {
                                    *dx += share;
                                }
                            }
                            stride => {
                                for (i, share) in shares.iter().enumerate() {
                                    dx[i * stride] += share;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

impl Graph {
    /// Mean of each window of x `f32[N, C, H, W]`; `count_include_pad` as in PyTorch, where it is the default.
    ///
    /// # Errors
    /// If the windows do not fit the shape.
    pub fn avg_pool2d(&mut self, x: Value, pool: Pool2d, count_include_pad: bool) -> Result<Value, GraphError> {
        self.apply1(AvgPool2d { pool, count_include_pad }, &[x])
    }
}
