//! `split_heads` and `merge_heads`: from features side by side to one matrix for each head of attention, and back; each is the other's gradient.

use rayon::prelude::*;

use super::elementwise::CHUNK;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Input x `f32[B, T, P·H·D]` with P parts of H heads; P outputs `f32[B, H, T, D]`: queries, keys and values, say, that one linear layer has made.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitHeads {
    /// P.
    pub parts: usize,
    /// H.
    pub heads: usize,
}

/// P inputs `f32[B, H, T, D]` of one type, output `f32[B, T, P·H·D]`: what [`SplitHeads`] has split.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeHeads;

/// Sizes of a split: [B, T, H, D] and P.
fn sizes(split: &TensorType, parts: usize) -> [usize; 5] {
    let dims = split.dims();
    [dims[0], dims[2], dims[1], dims[3], parts]
}

impl OpDef for SplitHeads {
    fn name(&self) -> &'static str {
        "split_heads"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        let n = self.parts * self.heads;
        match inputs {
            [x] if x.dtype == DType::F32 && x.dims().len() == 3 && n > 0 && x.dims()[2] % n == 0 => {
                let part = TensorType::f32([x.dims()[0], self.heads, x.dims()[1], x.dims()[2] / n]);
                Ok(vec![part; self.parts])
            }
            _ => Err(OpError(format!(
                "takes f32[B, T, W] with W a multiple of {} parts of {} heads",
                self.parts, self.heads
            ))),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let mut dys = Vec::with_capacity(self.parts);
        for (&output, &dy) in call.outputs.iter().zip(call.output_grads) {
            dys.push(match dy {
                Some(dy) => dy,
                None => call.graph.fill(call.graph.shape(output).clone(), 0.0)?,
            });
        }
        Ok(vec![Some(call.graph.apply1(MergeHeads, &dys)?)])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * inputs[0].bytes() as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let x: &[f32] = call.input(0);
        let [_, t, h, d, parts] = sizes(call.output_type(0), self.parts);
        let at_once = (CHUNK / (t * d)).max(1);
        for part in 0..parts {
            let y = call.output::<f32>(part);
            y.par_chunks_mut(at_once * t * d).enumerate().for_each(|(chunk, y)| {
                for (index, y) in y.chunks_exact_mut(t * d).enumerate() {
                    let (b, head) = ((chunk * at_once + index) / h, (chunk * at_once + index) % h);
                    let first = (b * t * parts + part) * h * d + head * d;
                    for (row, y) in y.chunks_exact_mut(d).enumerate() {
                        y.copy_from_slice(&x[first + row * parts * h * d..][..d]);
                    }
                }
            });
        }
    }
}

impl OpDef for MergeHeads {
    fn name(&self) -> &'static str {
        "merge_heads"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [first, ..]
                if first.dtype == DType::F32 && first.dims().len() == 4 && inputs.iter().all(|ty| ty == first) =>
            {
                let [b, t, h, d, parts] = sizes(first, inputs.len());
                Ok(vec![TensorType::f32([b, t, parts * h * d])])
            }
            _ => Err(OpError("takes tensors f32[B, H, T, D] of one shape".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let (dy, heads) = (call.output_grad(), call.graph.dims(call.inputs[0])[1]);
        let split = SplitHeads { parts: call.inputs.len(), heads };
        Ok(call.graph.apply(split, &[dy])?.into_iter().map(Some).collect())
    }

    fn cost(&self, _inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: 2.0 * outputs[0].bytes() as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let y = call.output::<f32>(0);
        let [_, t, h, d, parts] = sizes(call.input_type(0), call.n_inputs());
        let width = parts * h * d;
        let rows = (CHUNK / width).max(1);
        y.par_chunks_mut(rows * width).enumerate().for_each(|(chunk, y)| {
            for (row, y) in y.chunks_exact_mut(width).enumerate() {
                let (b, row) = ((chunk * rows + row) / t, (chunk * rows + row) % t);
                for (part, y) in y.chunks_exact_mut(h * d).enumerate() {
                    let x: &[f32] = call.input(part);
                    for (head, y) in y.chunks_exact_mut(d).enumerate() {
                        y.copy_from_slice(&x[((b * h + head) * t + row) * d..][..d]);
                    }
                }
            }
        });
    }
}

impl Graph {
    /// Heads of x `f32[B, T, P·H·D]`: for each of `parts` P, `f32[B, heads, T, D]`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn split_heads(&mut self, x: Value, parts: usize, heads: usize) -> Result<Vec<Value>, GraphError> {
        self.apply(SplitHeads { parts, heads }, &[x])
    }

    /// Heads `f32[B, H, T, D]` side by side: `f32[B, T, H·D]`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn merge_heads(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(MergeHeads, &[x])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{float_bytes, run, values};

    #[test]
    fn splitting_is_a_permutation_and_merging_undoes_it() {
        // One size within a chunk, one across several.
        for [b, t, parts, h, d] in [[2, 3, 3, 2, 5], [3, 70, 2, 4, 33], [1, 9, 1, 3, 8]] {
            let mut graph = Graph::new();
            let x = graph.input("x", TensorType::f32([b, t, parts * h * d])).unwrap();
            let heads = graph.split_heads(x, parts, h).unwrap();
            let merged = graph.apply1(MergeHeads, &heads).unwrap();
            graph.output("merged", merged).unwrap();
            let split = graph.reshape(x, [b, t, parts, h, d]).unwrap();
            let split = graph.permute(split, &[2, 0, 3, 1, 4]).unwrap();
            for (part, y) in heads.into_iter().enumerate() {
                let expected = graph.slice(split, 0, part, 1).unwrap();
                let expected = graph.reshape(expected, [b, h, t, d]).unwrap();
                let difference = graph.sub(y, expected).unwrap();
                graph.output(&format!("difference {part}"), difference).unwrap();
            }
            let x = values(b * t * parts * h * d, 1);
            let outcome = run(&graph, &[("x", float_bytes(&x))], &[], 2);
            assert_eq!(outcome.output("merged"), x);
            for part in 0..parts {
                assert!(outcome.output(&format!("difference {part}")).iter().all(|x| *x == 0.0));
            }
        }
    }

    #[test]
    fn heads_that_do_not_divide_are_refused() {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32([2, 3, 20])).unwrap();
        let error = graph.split_heads(x, 3, 2).unwrap_err().to_string();
        assert!(error.contains("f32[2, 3, 20]") && error.contains("3 parts of 2 heads"), "{error}");
    }
}
