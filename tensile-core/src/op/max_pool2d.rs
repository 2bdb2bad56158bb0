//! `max_pool2d`: largest value of each window, and its gradient from the window indices.

use rayon::prelude::*;

use super::pool::{Planes, Pool2d, TILE, strided};
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::work::{Work, vectorized};
use crate::tensor::{DType, Shape, TensorType};

/// Max pooling: input `f32[N, C, H, W]`; outputs the largest value of each window, and where in the window it stands (row-major, u8, the first of equals;
/// NaN counts as largest). Windows have at most 256 positions. The gradient reads the indices alone: one byte per output.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxPool2d(pub Pool2d);

/// Gradient of [`MaxPool2d`]: inputs dy `f32[N, C, OH, OW]` and its indices u8 of the same shape.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxPool2dGrad {
    /// As in the forward op.
    pub pool: Pool2d,
    /// Shape of the forward op's input.
    pub shape: Shape,
}

impl OpDef for MaxPool2d {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let y = self.0.infer(inputs)?;
        let window: usize = self.0.kernel.iter().product();
        if window > 256 {
            return Err(OpError(format!("has windows of {window} positions; the most is 256")));
        }
        let indices = TensorType::new(DType::U8, y.shape.clone());
        Ok(vec![y, indices])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        let op = MaxPool2dGrad { pool: self.0, shape: call.graph.shape(call.inputs[0]).clone() };
        Ok(vec![Some(call.graph.apply1(op, &[dy, call.outputs[1]])?)])
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let window: usize = self.0.kernel.iter().product();
        Cost {
            flops: (outputs[0].numel() * window) as f64,
            bytes: (inputs[0].bytes() + outputs[0].bytes() + outputs[1].bytes()) as f64,
        }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let x: &[f32] = call.input(0);
        let (y, indices) = (call.output::<f32>(0), call.output::<u8>(1));
        let planes = Planes::of(call.input_type(0), call.output_type(0));
        let (input, output, n) = (planes.input(), planes.output(), planes.at_once());
        let chunks = y.par_chunks_mut(n * output).zip(indices.par_chunks_mut(n * output));
        chunks.zip(x.par_chunks(n * input)).for_each(|((y, indices), x)| {
            let each = y.chunks_exact_mut(output).zip(indices.chunks_exact_mut(output)).zip(x.chunks_exact(input));
            for ((y, indices), x) in each {
                vectorized(Plane { pool: &self.0, planes, x, y, indices });
            }
        });
    }
}

/// One plane, tap by tap over many outputs of a row, so that inner loops have no bounds of windows in them.
struct Plane<'a> {
    pool: &'a Pool2d,
    planes: Planes,
    x: &'a [f32],
    y: &'a mut [f32],
    indices: &'a mut [u8],
}

impl Work for Plane<'_> {
    #[inline(always)]
    fn run(self) {
        const NONE: u32 = u32::MAX;
        let Self { pool, planes, x, y, indices } = self;
        let w = planes.w;
        let rows = y.chunks_exact_mut(planes.out_w).zip(indices.chunks_exact_mut(planes.out_w));
        for (out_h, (y, indices)) in rows.enumerate() {
            let window = pool.window(0, out_h, planes.h);
            let top = window.start + pool.padding[0] - out_h * pool.stride[0];
            let tiles = y.chunks_mut(TILE).zip(indices.chunks_mut(TILE));
            for (tile, (y, indices)) in tiles.enumerate() {
                let tile = tile * TILE..tile * TILE + y.len();
                let (mut best, mut found) = ([f32::NEG_INFINITY; TILE], [NONE; TILE]);
                for (row, tap_h) in window.clone().zip(top..) {
                    for tap_w in 0..pool.kernel[1] {
                        let (windows, first) = pool.taps(tap_w, w, tile.clone());
                        if windows.is_empty() {
                            continue;
                        }
                        let tap = (tap_h * pool.kernel[1] + tap_w) as u32;
                        let (n, at) = (windows.len(), windows.start - tile.start);
                        let (best, found) = (&mut best[at..at + n], &mut found[at..at + n]);
                        strided(&x[row * w + first..(row + 1) * w], pool.stride[1], n, |i, x| {
                            let larger = (x > best[i]) | x.is_nan() | (found[i] == NONE);
                            best[i] = if larger { x } else { best[i] };
                            found[i] = if larger { tap } else { found[i] };
                        });
                    }
                }
                y.copy_from_slice(&best[..y.len()]);
                for (index, tap) in indices.iter_mut().zip(found) {
                    *index = tap as u8;
                }
            }
        }
    }
}

impl OpDef for MaxPool2dGrad {
    fn name(&self) -> &'static str {
        "max_pool2d_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = TensorType::f32(self.shape.clone());
        let y = self.pool.infer(std::slice::from_ref(&x))?;
        match inputs {
            [dy, indices] if *dy == y && *indices == TensorType::new(DType::U8, y.shape.clone()) => Ok(vec![x]),
            _ => Err(OpError(format!("takes a gradient {y} and indices of the same shape"))),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (dy, indices): (&[f32], &[u8]) = (call.input(0), call.input(1));
        let dx = call.output::<f32>(0);
        let planes = Planes::of(call.output_type(0), call.input_type(0));
        let (input, output, n) = (planes.input(), planes.output(), planes.at_once());
        let width = self.pool.kernel[1];
        let offsets: [usize; 256] = std::array::from_fn(|tap| tap / width * planes.w + tap % width);
        let chunks = dx.par_chunks_mut(n * input).zip(dy.par_chunks(n * output));
        chunks.zip(indices.par_chunks(n * output)).for_each(|((dx, dy), indices)| {
            let each = dx.chunks_exact_mut(input).zip(dy.chunks_exact(output)).zip(indices.chunks_exact(output));
            for ((dx, dy), indices) in each {
                self.plane(planes, &offsets, dx, dy, indices);
            }
        });
    }
}

impl MaxPool2dGrad {
    fn plane(&self, planes: Planes, offsets: &[usize; 256], dx: &mut [f32], dy: &[f32], indices: &[u8]) {
        let (stride, padding) = (self.pool.stride, self.pool.padding);
        // Window corners may lie in the padding, that is before the plane; the tap then is past it.
        let before = padding[0] * planes.w + padding[1];
        dx.fill(0.0);
        let rows = dy.chunks_exact(planes.out_w).zip(indices.chunks_exact(planes.out_w));
        for (out_h, (dy, indices)) in rows.enumerate() {
            let row = out_h * stride[0] * planes.w;
            for (out_w, (dy, &index)) in dy.iter().zip(indices).enumerate() {
                dx[row + out_w * stride[1] + offsets[usize::from(index)] - before] += dy;
            }
        }
    }
}

impl Graph {
    /// Largest value of each window of x `f32[N, C, H, W]`.
    ///
    /// # Errors
    /// If the windows do not fit the shape.
    pub fn max_pool2d(&mut self, x: Value, pool: Pool2d) -> Result<Value, GraphError> {
        Ok(self.apply(MaxPool2d(pool), &[x])?[0])
    }
}
