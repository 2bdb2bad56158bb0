//! `slice` cuts a box out of a tensor, `pad` puts zeros around one; each is the other's gradient.

use rayon::prelude::*;

use super::broadcast::MAX_RANK;
use super::elementwise::CHUNK;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// The box of an f32 tensor that begins at `start` and has sizes `size`. Its gradient pads dy.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// First position along each dimension.
    pub start: Vec<usize>,
    /// Sizes of the output.
    pub size: Vec<usize>,
}

/// An f32 tensor with zeros around it. Its gradient is a slice of dy.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Zeros before the first position of each dimension.
    pub before: Vec<usize>,
    /// Zeros behind the last.
    pub after: Vec<usize>,
}

fn one_f32(inputs: &[TensorType], ranks: [usize; 2]) -> Result<&TensorType, OpError> {
    match inputs {
        [x] if x.dtype == DType::F32 && x.dims().len() <= MAX_RANK && ranks == [x.dims().len(); 2] => Ok(x),
        _ => Err(OpError(format!("takes one f32 tensor of {} dimensions (at most {MAX_RANK})", ranks[0]))),
    }
}

/// A box within a larger tensor, in rows along the innermost dimension.
struct Window {
    rank: usize,
    large: [usize; MAX_RANK],
    small: [usize; MAX_RANK],
    start: [usize; MAX_RANK],
}

impl Window {
    /// Dimensions that the box spans whole are merged with the one before, so that rows are as long as can be.
    fn new(large: &[usize], small: &[usize], start: &[usize]) -> Self {
        let mut window = Self { rank: 1, large: [1; MAX_RANK], small: [1; MAX_RANK], start: [0; MAX_RANK] };
        for axis in (0..large.len()).rev() {
            let inner = window.rank - 1;
            if window.large[inner] == window.small[inner] {
                let whole = window.large[inner];
                window.large[inner] = large[axis] * whole;
                window.small[inner] = small[axis] * whole;
                window.start[inner] = start[axis] * whole;
            } else {
                window.large[window.rank] = large[axis];
                window.small[window.rank] = small[axis];
                window.start[window.rank] = start[axis];
                window.rank += 1;
            }
        }
        window
    }

    /// Where row `row` of the box lies in the large tensor.
    fn in_large(&self, mut row: usize) -> usize {
        let (mut at, mut stride) = (self.start[0], self.large[0]);
        for axis in 1..self.rank {
            at += (row % self.small[axis] + self.start[axis]) * stride;
            row /= self.small[axis];
            stride *= self.large[axis];
        }
        at
    }

    /// Where row `row` of the large tensor lies in the box, if it does.
    fn in_small(&self, mut row: usize) -> Option<usize> {
        let (mut at, mut stride) = (0, self.small[0]);
        for axis in 1..self.rank {
            let index = (row % self.large[axis]).checked_sub(self.start[axis])?;
            if index >= self.small[axis] {
                return None;
            }
            at += index * stride;
            row /= self.large[axis];
            stride *= self.small[axis];
        }
        Some(at)
    }
}

impl OpDef for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one_f32(inputs, [self.start.len(), self.size.len()])?;
        for (axis, &size) in x.dims().iter().enumerate() {
            if self.size[axis] == 0 || self.start[axis] + self.size[axis] > size {
                return Err(OpError(format!(
                    "cannot take {} elements from {} on along dimension {axis} of size {size}",
                    self.size[axis], self.start[axis]
                )));
            }
        }
        Ok(vec![TensorType::f32(self.size.clone())])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dims = call.graph.dims(call.inputs[0]);
        let after = dims.iter().zip(&self.start).zip(&self.size).map(|((dim, start), size)| dim - start - size);
        let pad = Pad { before: self.start.clone(), after: after.collect() };
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(pad, &[dy])?)])
    }

    fn cost(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * outputs[0].bytes() as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, y) = (call.input::<f32>(0), call.output::<f32>(0));
        let window = Window::new(call.input_type(0).dims(), &self.size, &self.start);
        let length = window.small[0];
        let rows = (CHUNK / length).max(1);
        y.par_chunks_mut(rows * length).enumerate().for_each(|(chunk, y)| {
            for (row, y) in y.chunks_exact_mut(length).enumerate() {
                y.copy_from_slice(&x[window.in_large(chunk * rows + row)..][..length]);
            }
        });
    }
}

impl OpDef for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let x = one_f32(inputs, [self.before.len(), self.after.len()])?;
        let sizes =
            x.dims().iter().zip(&self.before).zip(&self.after).map(|((dim, before), after)| dim + before + after);
        Ok(vec![TensorType::f32(sizes.collect::<Vec<_>>())])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let slice = Slice { start: self.before.clone(), size: call.graph.dims(call.inputs[0]).to_vec() };
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(slice, &[dy])?)])
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: (inputs[0].bytes() + outputs[0].bytes()) as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, y) = (call.input::<f32>(0), call.output::<f32>(0));
        let window = Window::new(call.output_type(0).dims(), call.input_type(0).dims(), &self.before);
        let length = window.large[0];
        let rows = (CHUNK / length).max(1);
        y.par_chunks_mut(rows * length).enumerate().for_each(|(chunk, y)| {
            for (row, y) in y.chunks_exact_mut(length).enumerate() {
                y.fill(0.0);
                if let Some(from) = window.in_small(chunk * rows + row) {
                    y[window.start[0]..][..window.small[0]].copy_from_slice(&x[from..][..window.small[0]]);
                }
            }
        });
    }
}

impl Graph {
    /// Positions `start .. start + len` of `x` along one dimension.
    ///
    /// # Errors
    /// If `x` is not f32 or has no such positions.
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Result<Value, GraphError> {
        let mut slice = Slice { start: vec![0; self.dims(x).len()], size: self.dims(x).to_vec() };
        if axis < slice.start.len() {
            (slice.start[axis], slice.size[axis]) = (start, len);
        } else {
            // No such dimension: one too many makes the op refuse.
            slice.start.push(start);
        }
        self.apply1(slice, &[x])
    }

    /// `x` with zeros around it: `before` and `after` have one entry for each dimension.
    ///
    /// # Errors
    /// If `x` is not f32 or has another number of dimensions.
    pub fn pad(&mut self, x: Value, before: &[usize], after: &[usize]) -> Result<Value, GraphError> {
        self.apply1(Pad { before: before.to_vec(), after: after.to_vec() }, &[x])
    }
}
