//! Layers of transformers.

use super::Net;
use crate::graph::{GraphError, Init, Value};
use crate::op::matmul::MatMul;

impl Net<'_> {
    /// Layer norm of x `f32[…, D]`: `weight` (1) and `bias` (0), both `[D]`.
    ///
    /// # Errors
    /// If `x` is not f32 with at least one dimension, or a name is taken.
    pub fn layer_norm(&mut self, name: &str, x: Value, eps: f32) -> Result<Value, GraphError> {
        self.graph.scoped(name, |graph| {
            let width = graph.dims(x).last().copied().unwrap_or(1);
            let weight = graph.parameter("weight", [width], Init::Constant(1.0))?;
            let bias = graph.parameter("bias", [width], Init::Constant(0.0))?;
            graph.layer_norm(x, weight, bias, eps)
        })
    }

    /// A table of embeddings: `weight` `[rows, width]`, normal with standard deviation `std`.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn table(&mut self, name: &str, [rows, width]: [usize; 2], std: f32) -> Result<Value, GraphError> {
        self.graph.scoped(name, |graph| graph.parameter("weight", [rows, width], Init::Normal { std }))
    }

    /// Linear layer of x `f32[…, in]` whose `weight` is stored as `[in, out]`, as GPT-2's are: normal with standard deviation `std`; `bias` `[out]` (0).
    ///
    /// # Errors
    /// If `x` is not f32 with at least two dimensions, or a name is taken.
    pub fn linear_in_out(&mut self, name: &str, x: Value, out_features: usize, std: f32) -> Result<Value, GraphError> {
        self.graph.scoped(name, |graph| {
            let in_features = graph.dims(x).last().copied().unwrap_or(1);
            let weight = graph.parameter("weight", [in_features, out_features], Init::Normal { std })?;
            let bias = graph.parameter("bias", [out_features], Init::Constant(0.0))?;
            graph.apply1(MatMul::default(), &[x, weight, bias])
        })
    }

    /// Attention softmax(q·kᵀ/√D)·v of q, k, v `f32[B, H, T, D]` (Vaswani et al., arXiv 1706.03762, section 3.2.1): `f32[B, T, H·D]`, heads side by
    /// side. Causal: no place sees later ones. In training, weights are dropped with probability `dropout`.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn attention(&mut self, [q, k, v]: [Value; 3], causal: bool, dropout: f32) -> Result<Value, GraphError> {
        let width = self.graph.dims(q).last().copied().unwrap_or(1);
        // The queries are smaller than the scores.
        let q = self.graph.scale(q, (1.0 / (width as f64).sqrt()) as f32)?;
        let scores = self.graph.matmul(q, k, false, true)?;
        let weights = if causal { self.graph.causal_softmax(scores)? } else { self.graph.softmax(scores)? };
        let weights = self.dropout(weights, dropout)?;
        let heads = self.graph.matmul(weights, v, false, false)?;
        self.graph.merge_heads(heads)
    }
}
