//! `embedding`: rows of a table by index, and the gradient by the table, which adds rows up by index; each is the other's gradient.

use rayon::prelude::*;

use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Inputs table `f32[V, D]` and indices `i32[…]`; output `f32[…, D]`. An index outside 0..V gives a row of NaN. The gradient reads the indices alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// An index of padding: it gives its row as others do, but the row has no gradient from there.
    pub padding: Option<i32>,
}

/// Gradient of [`Embedding`] by its table: inputs dy `f32[…, D]` and indices `i32[…]`, output `f32[V, D]`, each row the sum of those with its index.
/// Indices outside 0..V count nowhere, and make the gradient by dy NaN there.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingGrad {
    /// Rows of the table.
    pub rows: usize,
    /// An index that counts nowhere.
    pub padding: Option<i32>,
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
        Ok(vec![Some(call.graph.apply1(EmbeddingGrad { rows, padding: self.padding }, &[dy, call.inputs[1]])?), None])
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
        if self.padding.is_some() {
            return Err(call.no_gradient("embedding_grad (with padding)"));
        }
        let dtable = call.output_grad();
        Ok(vec![Some(call.graph.embedding(dtable, call.inputs[1])?), None])
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
            for (dy, &index) in dy.chunks_exact(d).zip(indices).filter(|(_, index)| Some(**index) != self.padding) {
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
        self.apply1(Embedding { padding: None }, &[table, indices])
    }

    /// As [`embedding`](Self::embedding), where index `padding` fills up places that mean nothing: its row is not learned from them.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn embedding_padded(&mut self, table: Value, indices: Value, padding: i32) -> Result<Value, GraphError> {
        self.apply1(Embedding { padding: Some(padding) }, &[table, indices])
    }

    /// Sums of x `f32[…, D]` by index: row i of the result `f32[rows, D]` is the sum of those rows of `x` whose entry in `indices` `i32[…]` is i.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn scatter_add(&mut self, x: Value, indices: Value, rows: usize) -> Result<Value, GraphError> {
        self.apply1(EmbeddingGrad { rows, padding: None }, &[x, indices])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{add_gradients, float_bytes, int_bytes, run, values};

    #[test]
    fn padding_has_a_row_but_no_gradient() {
        let mut graph = Graph::new();
        let table = graph.input("table", TensorType::f32([4, 2])).unwrap();
        let indices = graph.input("indices", TensorType::i32([4])).unwrap();
        let y = graph.embedding_padded(table, indices, 1).unwrap();
        graph.output("y", y).unwrap();
        add_gradients(&mut graph, y, &[table]).unwrap();
        let x = values(8, 1);
        let inputs = [
            ("table", float_bytes(&x)),
            ("indices", int_bytes(&[1, 3, 1, 3])),
            ("upstream", float_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])),
        ];
        let outcome = run(&graph, &inputs, &[], 2);
        assert_eq!(outcome.output("y"), [x[2], x[3], x[6], x[7], x[2], x[3], x[6], x[7]]);
        assert_eq!(outcome.output("grad0"), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0, 12.0]);
    }
}
