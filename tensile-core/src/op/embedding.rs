//! `embedding`: rows of a table by index, and the gradient by the table.

use rayon::prelude::*;

use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Inputs table `f32[V, D]` and indices `i32[…]`; output `f32[…, D]`. An index outside 0..V gives a row of NaN. The gradient reads the indices alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding;

/// Gradient of [`Embedding`] by its table: inputs dy `f32[…, D]` and indices `i32[…]`, output `f32[V, D]`. Indices outside 0..V count nowhere.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGrad {
    /// Rows of the table.
    pub rows: usize,
}

impl OpDef for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [table, indices] if table.dtype == DType::F32 && table.dims().len() == 2 && indices.dtype == DType::I32 => {
                let mut dims = indices.dims().to_vec();
                dims.push(table.dims()[1]);
                Ok(vec![TensorType::f32(dims)])
            }
            _ => Err(OpError("takes a table f32[V, D] and indices i32".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (dy, rows) = (call.output_grad(), call.graph.dims(call.inputs[0])[0]);
        Ok(vec![Some(call.graph.apply1(EmbeddingGrad { rows }, &[dy, call.inputs[1]])?), None])
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: (inputs[1].bytes() + 2 * outputs[0].bytes()) as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (table, indices): (&[f32], &[i32]) = (call.input(0), call.input(1));
        let y = call.output::<f32>(0);
        let d = call.input_type(0).dims()[1];
        y.par_chunks_exact_mut(d).zip(indices).for_each(|(y, &index)| {
            match usize::try_from(index).ok().and_then(|index| table.chunks_exact(d).nth(index)) {
                Some(row) => y.copy_from_slice(row),
                None => y.fill(f32::NAN),
            }
        });
    }
}

impl OpDef for EmbeddingGrad {
    fn name(&self) -> &'static str {
        "embedding_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [dy, indices] if dy.dtype == DType::F32 && indices.dtype == DType::I32 => {
                if let Some((&d, batch)) = dy.dims().split_last()
                    && batch == indices.dims()
                {
                    return Ok(vec![TensorType::f32([self.rows, d])]);
                }
            }
            _ => {}
        }
        Err(OpError("takes a gradient f32[…, D] and indices i32[…]".to_owned()))
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: inputs[0].numel() as f64, bytes: (2 * inputs[0].bytes() + outputs[0].bytes()) as f64 }
    }

    /// Each task owns some rows of the table and adds, in order, what belongs there.
    fn host_kernel(&self, call: &HostCall<'_>) {
        const TASKS: usize = 64;
        let (dy, indices): (&[f32], &[i32]) = (call.input(0), call.input(1));
        let dtable = call.output::<f32>(0);
        let d = call.output_type(0).dims()[1];
        let rows = self.rows.div_ceil(TASKS);
        dtable.par_chunks_mut(rows * d).enumerate().for_each(|(task, dtable)| {
            dtable.fill(0.0);
            let first = task * rows;
            for (dy, &index) in dy.chunks_exact(d).zip(indices) {
                let own = usize::try_from(index).ok().and_then(|index| index.checked_sub(first));
                if let Some(row) = own.and_then(|row| dtable.chunks_exact_mut(d).nth(row)) {
                    row.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
                }
            }
        });
    }
}

impl Graph {
    /// Rows of a table `f32[V, D]` by indices `i32[…]`: `f32[…, D]`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn embedding(&mut self, table: Value, indices: Value) -> Result<Value, GraphError> {
        self.apply1(Embedding, &[table, indices])
    }
}
