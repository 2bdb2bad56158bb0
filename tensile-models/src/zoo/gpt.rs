//! Decoders as GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), with the names of Hugging Face's `GPT2LMHeadModel`.

use std::sync::Arc;

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::Net;

use super::transformer::{self, Sizes};
use super::{Made, Network, Setting, Settings, Task};

/// Settings of GPT-2 small.
pub(super) const SMALL: &[Setting] = &transformer::settings([12, 12, 768], [1024, 1024], 50257);

/// Settings of a small decoder whose tokens are bytes.
pub(super) const BYTES: &[Setting] = &transformer::settings([4, 4, 128], [128, 0], 256);

const EPS: f32 = 1e-5;
/// Standard deviation of weights at the beginning.
const STD: f32 = 0.02;

#[derive(Debug)]
struct Gpt(Sizes);

/// A decoder of these sizes.
pub(super) fn network(model: &'static str, settings: &Settings) -> Made {
    Ok(Arc::new(Gpt(Sizes::new(model, settings)?)))
}

impl Network for Gpt {
    fn task(&self) -> Task {
        Task::NextToken { context: self.0.context }
    }

    fn classes(&self) -> usize {
        self.0.vocab
    }

    fn forward(&self, net: &mut Net<'_>, inputs: &[Value]) -> Result<Value, GraphError> {
        net.scoped("transformer", |net| self.logits(net, inputs[0]))
    }

    /// Some files lack `transformer.` in front; masks are no weights, and the output layer's weight is the table of tokens.
    fn own_name(&self, published: &str) -> Option<String> {
        const SPARE: [&str; 3] = [".attn.bias", ".attn.masked_bias", "lm_head.weight"];
        if SPARE.iter().any(|spare| published.ends_with(spare)) {
            return None;
        }
        Some(format!("transformer.{published}"))
    }
}

impl Gpt {
    fn logits(&self, net: &mut Net<'_>, tokens: Value) -> Result<Value, GraphError> {
        let Sizes { layers, width, positions, vocab, dropout, .. } = self.0;
        let length = transformer::length(net.graph(), tokens, positions);
        let words = net.table("wte", [vocab, width], STD)?;
        let places = net.table("wpe", [positions, width], STD)?;
        let x = net.graph().embedding(words, tokens)?;
        let places = if length < positions { net.graph().slice(places, 0, 0, length)? } else { places };
        let x = net.graph().add(x, places)?;
        let mut x = net.dropout(x, dropout)?;
        for layer in 0..layers {
            x = net.scoped(&format!("h.{layer}"), |net| self.layer(net, x))?;
        }
        let x = net.layer_norm("ln_f", x, EPS)?;
        let rows = net.graph().ty(x).numel() / width;
        let x = net.graph().reshape(x, [rows, width])?;
        // The output layer's weight is the table of tokens.
        net.graph().matmul(x, words, false, true)
    }

    fn layer(&self, net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
        let Sizes { layers, heads, width, dropout, .. } = self.0;
        // Layers that add to the residual stream begin smaller, as many as there are.
        let residual_std = STD / (2.0 * layers as f32).sqrt();

        let y = net.layer_norm("ln_1", x, EPS)?;
        let y = net.scoped("attn", |net| {
            let qkv = net.linear_in_out("c_attn", y, 3 * width, STD)?;
            let parts = net.graph().split_heads(qkv, 3, heads)?;
            let y = net.attention([parts[0], parts[1], parts[2]], true, dropout)?;
            net.linear_in_out("c_proj", y, width, residual_std)
        })?;
        let y = net.dropout(y, dropout)?;
        let x = net.graph().add(x, y)?;

        let y = net.layer_norm("ln_2", x, EPS)?;
        let y = net.scoped("mlp", |net| {
            let y = net.linear_in_out("c_fc", y, 4 * width, STD)?;
            let y = net.graph().gelu_tanh(y)?;
            net.linear_in_out("c_proj", y, width, residual_std)
        })?;
        let y = net.dropout(y, dropout)?;
        net.graph().add(x, y)
    }
}
