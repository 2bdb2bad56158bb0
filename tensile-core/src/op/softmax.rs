//! `softmax`: over the last dimension, optionally causal, and its gradient from its output.

use rayon::prelude::*;

use super::elementwise::{CHUNK, infer_same, split};
use super::lanes::{largest, map_sum2, sum};
use super::math::exp;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::work::{Work, vectorized};
use crate::tensor::{DType, TensorType};

/// Softmax over the last dimension of an f32 tensor. Causal: of `[…, Q, K]`, row i sees columns 0 ..= i + K − Q only, the others become 0.
/// Its gradient reads its output.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// Whether later columns are hidden.
    pub causal: bool,
}

/// Gradient of [`Softmax`]: inputs dy and y of one f32 type, output y·(dy − Σ dy·y).
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxGrad;

impl OpDef for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else {
            return Err(OpError(format!("takes one input, not {}", inputs.len())));
        };
        let rank = if self.causal { 2 } else { 1 };
        if x.dtype != DType::F32 || x.dims().len() < rank {
            return Err(OpError(format!("takes an f32 tensor of at least {rank} dimensions")));
        }
        if let (true, &[.., q, k]) = (self.causal, x.dims())
            && q > k
        {
            return Err(OpError(format!("has {q} rows but only {k} columns, so that the first would see none")));
        }
        Ok(vec![x.clone()])
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(SoftmaxGrad, &[dy, call.outputs[0]])?)])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 20.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let dims = call.input_type(0).dims();
        let columns = *dims.last().expect("infer has checked the rank");
        // Columns that row `row` of all sees.
        let visible = |row: usize| match (self.causal, dims) {
            (true, &[.., q, k]) => row % q + k - q + 1,
            _ => columns,
        };
        let rows = (CHUNK / columns).max(1);
        let (y, x) = split(call.in_out::<f32>(0, 0));
        y.par_chunks_mut(rows * columns).enumerate().for_each(|(chunk, y)| {
            let first = chunk * rows;
            if let Some(x) = x {
                y.copy_from_slice(&x[first * columns..][..y.len()]);
            }
            for (row, y) in y.chunks_exact_mut(columns).enumerate() {
                let (seen, hidden) = y.split_at_mut(visible(first + row));
                vectorized(Row(seen));
                hidden.fill(0.0);
            }
        });
    }
}

/// Softmax of one row in place.
struct Row<'a>(&'a mut [f32]);

impl Work for Row<'_> {
    #[inline(always)]
    fn run(self) {
        let largest = largest(self.0);
        for y in self.0.iter_mut() {
            *y = exp(*y - largest);
        }
        let scale = (1.0 / sum(self.0)) as f32;
        for y in self.0 {
            *y *= scale;
        }
    }
}

impl OpDef for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_same(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 4.0 * n, bytes: 12.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let y: &[f32] = call.input(1);
        let columns = *call.input_type(0).dims().last().expect("a softmax has a dimension");
        let length = (CHUNK / columns).max(1) * columns;
        let (dx, dy) = split(call.in_out::<f32>(0, 0));
        dx.par_chunks_mut(length).zip(y.par_chunks(length)).enumerate().for_each(|(chunk, (dx, y))| {
            if let Some(dy) = dy {
                dx.copy_from_slice(&dy[chunk * length..][..dx.len()]);
            }
            for (dx, y) in dx.chunks_exact_mut(columns).zip(y.chunks_exact(columns)) {
                vectorized(GradRow { dx, y });
            }
        });
    }
}

/// Gradient of one row; `dx` holds dy.
struct GradRow<'a> {
    dx: &'a mut [f32],
    y: &'a [f32],
}

impl Work for GradRow<'_> {
    #[inline(always)]
    fn run(self) {
        let (dot, _) = map_sum2(self.dx, self.y, |dy, y| (dy * y, 0.0));
        let dot = dot as f32;
        for (dx, y) in self.dx.iter_mut().zip(self.y) {
            *dx = y * (*dx - dot);
        }
    }
}

impl Graph {
    /// Softmax over the last dimension.
    ///
    /// # Errors
    /// If `x` is not f32 or has no dimensions.
    pub fn softmax(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Softmax { causal: false }, &[x])
    }

    /// Softmax over the last dimension of scores `[…, Q, K]`, where row i sees columns 0 ..= i + K − Q only.
    ///
    /// # Errors
    /// If `x` is not f32 of at least two dimensions, or Q > K.
    pub fn causal_softmax(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Softmax { causal: true }, &[x])
    }
}
