//! `softmax`: over the last dimension, optionally causal, and its gradient from its output.

use rayon::prelude::*;

use super::elementwise::{CHUNK, infer_same};
use super::{Cost, OpDef, OpError};
use crate::device::host::{HostCall, InOut};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
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
        let (y, x) = match call.in_out::<f32>(0, 0) {
            InOut::Same(y) => (y, None),
            InOut::Separate(x, y) => (y, Some(x)),
        };
        y.par_chunks_mut(rows * columns).enumerate().for_each(|(chunk, y)| {
            let first = chunk * rows;
            if let Some(x) = x {
                y.copy_from_slice(&x[first * columns..][..y.len()]);
            }
            for (row, y) in y.chunks_exact_mut(columns).enumerate() {
                let (seen, hidden) = y.split_at_mut(visible(first + row));
                let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut sum = 0.0;
                for y in seen.iter_mut() {
                    *y = (*y - largest).exp();
                    sum += f64::from(*y);
                }
                let scale = (1.0 / sum) as f32;
                seen.iter_mut().for_each(|y| *y *= scale);
                hidden.fill(0.0);
            }
        });
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
        let (dx, dy) = match call.in_out::<f32>(0, 0) {
            InOut::Same(dx) => (dx, None),
            InOut::Separate(dy, dx) => (dx, Some(dy)),
        };
        dx.par_chunks_mut(length).zip(y.par_chunks(length)).enumerate().for_each(|(chunk, (dx, y))| {
            if let Some(dy) = dy {
                dx.copy_from_slice(&dy[chunk * length..][..dx.len()]);
            }
            for (dx, y) in dx.chunks_exact_mut(columns).zip(y.chunks_exact(columns)) {
                let dot: f64 = dx.iter().zip(y).map(|(dy, y)| f64::from(dy * y)).sum();
                let dot = dot as f32;
                dx.iter_mut().zip(y).for_each(|(dx, y)| *dx = y * (*dx - dot));
            }
        });
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
