//! `matmul`: products of matrices and of batches of them, with a bias for linear layers.

use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::gemm::{self, Along, Bias, Columns, Dense, Output, Product, Size, Target};
use crate::tensor::{DType, TensorType};

/// Matrix product a·b (+ bias) of f32 tensors.
///
/// Inputs a `[…, M, K]`, b `[…, K, N]` and, if given, bias `[N]`; output `[…, M, N]`. The leading dimensions are a batch: equal on both sides, or
/// missing on one, which then takes part in every product.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatMul {
    /// a is `[…, K, M]`.
    pub trans_a: bool,
    /// b is `[…, N, K]`.
    pub trans_b: bool,
    /// The products of the batch are added up: output `[M, N]`. Both sides then must have the batch.
    pub sum_batch: bool,
}

/// Sizes of a batch of products.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    size: Size,
    /// Elements from one matrix of the batch to the next.
    steps: [usize; 2],
}

impl MatMul {
    fn sizes(&self, a: &TensorType, b: &TensorType) -> Result<Sizes, OpError> {
        let Some(((batch_a, [a0, a1]), (batch_b, [b0, b1]))) =
            a.dims().split_last_chunk::<2>().zip(b.dims().split_last_chunk::<2>())
        else {
            return Err(OpError(format!("takes matrices, not {} and {}", a.shape, b.shape)));
        };
        let (m, k) = if self.trans_a { (*a1, *a0) } else { (*a0, *a1) };
        let (n, k_b) = if self.trans_b { (*b0, *b1) } else { (*b1, *b0) };
        if k != k_b {
            let side = |transposed| if transposed { ", transposed" } else { "" };
            return Err(OpError(format!(
                "the sum runs over {k} columns of a {}{} but {k_b} rows of b {}{}",
                a.shape,
                side(self.trans_a),
                b.shape,
                side(self.trans_b)
            )));
        }
        let one_sided = batch_a.is_empty() || batch_b.is_empty();
        if batch_a != batch_b && (self.sum_batch || !one_sided) {
            return Err(OpError(format!("a {} and b {} differ in their batches", a.shape, b.shape)));
        }
        let batch = if batch_a.is_empty() { batch_b } else { batch_a };
        let step = |batch: &[usize], rows, columns| if batch.is_empty() { 0 } else { rows * columns };
        Ok(Sizes {
            size: Size { batch: batch.iter().product(), m, n, k },
            steps: [step(batch_a, m, k), step(batch_b, k, n)],
        })
    }

    fn types<'a>(&self, inputs: &'a [TensorType]) -> Result<(&'a TensorType, &'a TensorType), OpError> {
        if !(2..=3).contains(&inputs.len()) || inputs.iter().any(|ty| ty.dtype != DType::F32) {
            return Err(OpError("takes two matrices and perhaps a bias, all f32".to_owned()));
        }
        Ok((&inputs[0], &inputs[1]))
    }

    /// The same work in as few products as possible: a batch on one side becomes more rows, or a sum over it a longer sum, where memory allows it.
    fn merged(&self, sizes: Sizes) -> Sizes {
        let Sizes { mut size, mut steps } = sizes;
        if self.sum_batch && self.trans_a && !self.trans_b {
            size.k *= size.batch;
            (size.batch, steps) = (1, [0; 2]);
        } else if steps[1] == 0 && !self.trans_a {
            size.m *= size.batch;
            (size.batch, steps) = (1, [0; 2]);
        }
        Sizes { size, steps }
    }
}

/// Invariant of kernels, costs and workspaces: they see only types that `infer` has accepted.
const INFERRED: &str = "shapes were checked when the op was added";

/// Whether the product is computed transposed: where C is narrow, tiles are filled better that way.
fn is_turned(size: Size) -> bool {
    let padded = |n: usize| n.next_multiple_of(gemm::MOST_COLUMNS);
    4 * size.n * padded(size.m) < 3 * size.m * padded(size.n)
}

fn turned(size: Size) -> Size {
    Size { m: size.n, n: size.m, ..size }
}

impl OpDef for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let (a, b) = self.types(inputs)?;
        let Sizes { size, .. } = self.sizes(a, b)?;
        if let Some(bias) = inputs.get(2) {
            if bias.dims() != [size.n] {
                return Err(OpError(format!("the bias must be [{}], not {}", size.n, bias.shape)));
            }
            if self.sum_batch {
                return Err(OpError("a sum over the batch takes no bias".to_owned()));
            }
        }
        let longer = if a.shape.rank() >= b.shape.rank() { a } else { b };
        let mut dims = if self.sum_batch { Vec::new() } else { longer.dims()[..longer.shape.rank() - 2].to_vec() };
        dims.extend([size.m, size.n]);
        Ok(vec![TensorType::f32(dims)])
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        if self.sum_batch {
            return Err(call.no_gradient(self.name()));
        }
        let dy = call.output_grads[0].expect("an op with one output is visited only if that output has a gradient");
        let (a, b) = (call.inputs[0], call.inputs[1]);
        let (rank_a, rank_b) = (call.graph.dims(a).len(), call.graph.dims(b).len());
        let mut grads = vec![None; call.inputs.len()];
        if call.needs[0] {
            let sum_batch = rank_a < rank_b;
            let (lhs, rhs, trans_a, trans_b) =
                if self.trans_a { (b, dy, self.trans_b, true) } else { (dy, b, false, !self.trans_b) };
            grads[0] = Some(call.graph.apply1(Self { trans_a, trans_b, sum_batch }, &[lhs, rhs])?);
        }
        if call.needs[1] {
            let sum_batch = rank_b < rank_a;
            let (lhs, rhs, trans_a, trans_b) =
                if self.trans_b { (dy, a, true, self.trans_a) } else { (a, dy, !self.trans_a, false) };
            grads[1] = Some(call.graph.apply1(Self { trans_a, trans_b, sum_batch }, &[lhs, rhs])?);
        }
        if call.needs.get(2) == Some(&true) {
            let n = *call.graph.dims(dy).last().expect("a product has at least two dimensions");
            let rows = call.graph.ty(dy).numel() / n.max(1);
            let dy = call.graph.reshape(dy, [rows, n])?;
            grads[2] = Some(call.graph.channel_sum(dy)?);
        }
        Ok(grads)
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let Sizes { size, .. } = self.sizes(&inputs[0], &inputs[1]).expect(INFERRED);
        let bias = if inputs.len() > 2 { outputs[0].numel() as f64 } else { 0.0 };
        Cost {
            flops: 2.0 * (size.batch * size.m * size.n) as f64 * size.k as f64 + bias,
            bytes: inputs.iter().chain(outputs).map(|ty| ty.bytes() as f64).sum(),
        }
    }

    fn host_workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], threads: usize) -> usize {
        let Sizes { size, .. } = self.merged(self.sizes(&inputs[0], &inputs[1]).expect(INFERRED));
        let size = if self.sum_batch { Size { batch: 1, ..size } } else { size };
        let floats = if is_turned(size) {
            gemm::workspace_floats(turned(size), size.n != 1, threads)
        } else {
            gemm::workspace_floats(size, false, threads)
        };
        floats * size_of::<f32>()
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let Sizes { size, steps } = self.merged(self.sizes(call.input_type(0), call.input_type(1)).expect(INFERRED));
        let (a, b): (&[f32], &[f32]) = (call.input(0), call.input(1));
        let bias: Option<&[f32]> = (call.n_inputs() > 2).then(|| call.input(2));
        let output = Output::new(call.output(0));
        let (workspace, threads) = (call.workspace(), call.threads());
        let a_of = |index: usize| {
            let (stride, along) = if self.trans_a { (size.m, Along::Across) } else { (size.k, Along::Sum) };
            Dense { data: &a[index * steps[0]..], stride, along }
        };
        let b_of = |index: usize| {
            let (stride, along) = if self.trans_b { (size.k, Along::Sum) } else { (size.n, Along::Across) };
            Dense { data: &b[index * steps[1]..], stride, along }
        };
        let turn = is_turned(size);
        let product = |index: usize, start: usize, accumulate: bool| {
            let (a, b) = if turn { (b_of(index), a_of(index)) } else { (a_of(index), b_of(index)) };
            let (row_step, step) = if turn { (1, size.n) } else { (size.n, 1) };
            let bias = match bias {
                None => Bias::None,
                Some(bias) if turn => Bias::Rows(bias),
                Some(bias) => Bias::Columns(bias),
            };
            Product { a, b, c: Target { output, start, row_step, columns: Columns::Even { step }, bias, accumulate } }
        };
        let shape = if turn { turned(size) } else { size };
        if self.sum_batch {
            for index in 0..size.batch {
                let one = Size { batch: 1, ..shape };
                gemm::multiply(one, threads, workspace, |_| product(index, 0, index > 0));
            }
        } else {
            gemm::multiply(shape, threads, workspace, |index| product(index, index * size.m * size.n, false));
        }
    }
}

impl Graph {
    /// Matrix product of a `[…, M, K]` (`[…, K, M]` if `trans_a`) and b `[…, K, N]` (`[…, N, K]` if `trans_b`); see [`MatMul`] for batches.
    ///
    /// # Errors
    /// If the shapes or types do not fit.
    pub fn matmul(&mut self, a: Value, b: Value, trans_a: bool, trans_b: bool) -> Result<Value, GraphError> {
        self.apply1(MatMul { trans_a, trans_b, sum_batch: false }, &[a, b])
    }

    /// Linear layer x·weightᵀ + bias of x `[…, in]`, weight `[out, in]` and bias `[out]`: output `[…, out]`.
    ///
    /// # Errors
    /// If the shapes or types do not fit.
    pub fn linear(&mut self, x: Value, weight: Value, bias: Option<Value>) -> Result<Value, GraphError> {
        let inputs: Vec<Value> = [x, weight].into_iter().chain(bias).collect();
        self.apply1(MatMul { trans_a: false, trans_b: true, sum_batch: false }, &inputs)
    }
}

#[cfg(test)]
mod tests;
