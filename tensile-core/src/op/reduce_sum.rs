//! `reduce_sum`: sums over some dimensions, with a factor that makes them means; `expand` is its gradient.

use rayon::prelude::*;

use super::broadcast::{MAX_RANK, Walk, reduce_to};
use super::elementwise::CHUNK;
use super::lanes::sum;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, Shape, TensorType};

/// scale·Σx over `axes` of an f32 tensor. Its gradient reads no tensor but dy.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceSum {
    /// Dimensions to sum over, ascending, each once.
    pub axes: Vec<usize>,
    /// Whether they stay, with size 1.
    pub keep_dims: bool,
    /// Factor of the sums.
    pub scale: f32,
}

/// scale·x, repeated to a larger shape by broadcasting.
#[derive(Clone, Debug, PartialEq)]
pub struct Expand {
    /// Shape of the output.
    pub shape: Shape,
    /// Factor.
    pub scale: f32,
}

/// Dimensions of one kind, innermost first, neighbours merged.
#[derive(Clone, Copy, Default)]
struct Dims {
    rank: usize,
    sizes: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Dims {
    fn push(&mut self, size: usize, stride: usize) {
        if self.rank > 0 && self.strides[self.rank - 1] * self.sizes[self.rank - 1] == stride {
            self.sizes[self.rank - 1] *= size;
        } else {
            self.sizes[self.rank] = size;
            self.strides[self.rank] = stride;
            self.rank += 1;
        }
    }

    fn numel(&self) -> usize {
        self.sizes[..self.rank].iter().product()
    }

    /// Whether elements along the innermost of these dimensions are neighbours.
    fn is_innermost(&self) -> bool {
        self.rank > 0 && self.strides[0] == 1
    }

    /// Position of element `index` of these dimensions without the first `skip`.
    fn offset(&self, skip: usize, mut index: usize) -> usize {
        let mut offset = 0;
        for axis in skip..self.rank {
            offset += index % self.sizes[axis] * self.strides[axis];
            index /= self.sizes[axis];
        }
        offset
    }
}

/// Kept and reduced dimensions, those of size 1 left out.
fn split(dims: &[usize], axes: &[usize]) -> (Dims, Dims) {
    let (mut kept, mut reduced) = (Dims::default(), Dims::default());
    let mut stride = 1;
    for (axis, &size) in dims.iter().enumerate().rev().filter(|(_, size)| **size != 1) {
        let of_kind = if axes.contains(&axis) { &mut reduced } else { &mut kept };
        of_kind.push(size, stride);
        stride *= size;
    }
    (kept, reduced)
}

impl OpDef for ReduceSum {
    fn name(&self) -> &'static str {
        "reduce_sum"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else {
            return Err(OpError(format!("takes one input, not {}", inputs.len())));
        };
        if x.dtype != DType::F32 || x.dims().len() > MAX_RANK {
            return Err(OpError(format!("takes an f32 tensor of at most {MAX_RANK} dimensions")));
        }
        if self.axes.iter().any(|&axis| axis >= x.dims().len()) || !self.axes.is_sorted_by(|a, b| a < b) {
            return Err(OpError(format!("cannot sum over dimensions {:?}", self.axes)));
        }
        let sizes = x.dims().iter().enumerate().filter_map(|(axis, &size)| match self.axes.contains(&axis) {
            true => self.keep_dims.then_some(1),
            false => Some(size),
        });
        Ok(vec![TensorType::f32(sizes.collect::<Vec<_>>())])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let shape = call.graph.shape(call.inputs[0]).clone();
        let mut kept = shape.dims().to_vec();
        self.axes.iter().for_each(|&axis| kept[axis] = 1);
        let dy = call.output_grad();
        let dy = call.graph.reshape(dy, kept)?;
        Ok(vec![Some(call.graph.apply1(Expand { shape, scale: self.scale }, &[dy])?)])
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: inputs[0].numel() as f64, bytes: (inputs[0].bytes() + outputs[0].bytes()) as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, y) = (call.input::<f32>(0), call.output::<f32>(0));
        let (kept, reduced) = split(call.input_type(0).dims(), &self.axes);
        let scale = f64::from(self.scale);
        if reduced.is_innermost() || reduced.rank == 0 {
            let (run, n_runs) =
                if reduced.rank == 0 { (1, 1) } else { (reduced.sizes[0], reduced.numel() / reduced.sizes[0]) };
            let at_once = (CHUNK / (run * n_runs)).max(1);
            y.par_chunks_mut(at_once).enumerate().for_each(|(chunk, y)| {
                for (index, y) in y.iter_mut().enumerate() {
                    let first = kept.offset(0, chunk * at_once + index);
                    let total: f64 = (0..n_runs).map(|outer| sum(&x[first + reduced.offset(1, outer)..][..run])).sum();
                    *y = (scale * total) as f32;
                }
            });
            return;
        }
        // Columns side by side: the innermost dimension stays.
        const COLUMNS: usize = 64;
        let (width, n) = (kept.sizes[0], reduced.numel());
        y.par_chunks_mut(width).enumerate().for_each(|(row, y)| {
            let first = kept.offset(1, row);
            y.par_chunks_mut(COLUMNS).enumerate().for_each(|(tile, y)| {
                let first = first + tile * COLUMNS;
                let mut totals = [0.0; COLUMNS];
                for index in 0..n {
                    let x = &x[first + reduced.offset(0, index)..][..y.len()];
                    totals.iter_mut().zip(x).for_each(|(total, x)| *total += f64::from(*x));
                }
                y.iter_mut().zip(totals).for_each(|(y, total)| *y = (scale * total) as f32);
            });
        });
    }
}

impl OpDef for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let y = TensorType::f32(self.shape.clone());
        match inputs {
            [x] if super::broadcast::infer(&[x.clone(), y.clone()]).is_ok_and(|types| types[0] == y) => Ok(vec![y]),
            _ => Err(OpError(format!("takes an f32 tensor that broadcasts to {}", self.shape))),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let shape = call.graph.shape(call.inputs[0]).clone();
        let dy = call.output_grad();
        Ok(vec![Some(reduce_to(call.graph, dy, &shape, self.scale)?)])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (x, y) = (call.input::<f32>(0), call.output::<f32>(0));
        let walk = Walk::new(call.output_type(0).dims(), [call.input_type(0).dims()]);
        y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            walk.runs(chunk * CHUNK, y.len(), |start, n, [from]| {
                let y = &mut y[start..start + n];
                if walk.moves(0) {
                    y.iter_mut().zip(&x[from..from + n]).for_each(|(y, x)| *y = self.scale * x);
                } else {
                    y.fill(self.scale * x[from]);
                }
            });
        });
    }
}

impl Graph {
    /// Sums of `x` over `axes`, which then are gone.
    ///
    /// # Errors
    /// If `x` is not f32 or `axes` are not ascending dimensions of it.
    pub fn sum(&mut self, x: Value, axes: &[usize]) -> Result<Value, GraphError> {
        self.apply1(ReduceSum { axes: axes.to_vec(), keep_dims: false, scale: 1.0 }, &[x])
    }

    /// Means of `x` over `axes`, which then are gone.
    ///
    /// # Errors
    /// If `x` is not f32 or `axes` are not ascending dimensions of it.
    pub fn mean(&mut self, x: Value, axes: &[usize]) -> Result<Value, GraphError> {
        let n: usize = axes.iter().filter_map(|&axis| self.dims(x).get(axis)).product();
        self.apply1(ReduceSum { axes: axes.to_vec(), keep_dims: false, scale: (1.0 / n as f64) as f32 }, &[x])
    }

    /// `x` repeated to `shape` by broadcasting.
    ///
    /// # Errors
    /// If `x` is not f32 or does not broadcast to that shape.
    pub fn expand(&mut self, x: Value, shape: impl Into<Shape>) -> Result<Value, GraphError> {
        self.apply1(Expand { shape: shape.into(), scale: 1.0 }, &[x])
    }
}
