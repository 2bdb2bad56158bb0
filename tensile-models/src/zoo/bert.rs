//! Encoders as BERT (Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018) that tell hidden tokens,
//! with the names of Hugging Face's `BertForMaskedLM`.

use std::sync::Arc;

use tensile_core::graph::{GraphError, Init, Value};
use tensile_core::nn::{Net, WeightInit};

use super::transformer::{self, Sizes};
use super::{Made, Network, Setting, SettingError, Settings, Task};

/// Settings of BERT-base, uncased.
pub(super) const BASE: &[Setting] = &settings(transformer::settings([12, 12, 768], [512, 512], 30522), [103, 0]);

/// Settings of a small encoder whose tokens are bytes, and one that hides a byte. No byte is padding.
pub(super) const BYTES: &[Setting] = &settings(transformer::settings([4, 4, 128], [128, 0], 257), [256, 257]);

/// The mask is the token that hides others. Padding is a token whose embedding is not learned from where it stands; there is none if it is not among the
/// tokens. The pooler is a layer of the published files that telling hidden tokens does without.
const fn settings([a, b, c, d, e, f, g]: [Setting; 7], [mask, padding]: [u32; 2]) -> [Setting; 10] {
    let token = [0, 1 << 20];
    let (mask, padding) = (Setting::count("mask", mask, token), Setting::count("padding", padding, token));
    [a, b, c, d, e, f, g, mask, padding, Setting::count("pooler", 0, [0, 1])]
}

const EPS: f32 = 1e-12;
/// Standard deviation of weights at the beginning.
const STD: f32 = 0.02;
/// Rows of the table of token types; all tokens are of the first.
const TYPES: usize = 2;

#[derive(Debug)]
struct Bert {
    sizes: Sizes,
    mask: usize,
    padding: usize,
    pooler: bool,
}

/// An encoder of these sizes.
pub(super) fn network(model: &'static str, settings: &Settings) -> Made {
    let (sizes, mask) = (Sizes::new(model, settings)?, settings.count("mask"));
    if mask >= sizes.vocab {
        let reason = format!("mask {mask} is not among the tokens 0 to {}", sizes.vocab - 1);
        return Err(SettingError::Together { model, reason });
    }
    Ok(Arc::new(Bert { sizes, mask, padding: settings.count("padding"), pooler: settings.count("pooler") > 0 }))
}

impl Network for Bert {
    fn task(&self) -> Task {
        Task::MaskedToken { context: self.sizes.context, mask: self.mask as i32 }
    }

    fn classes(&self) -> usize {
        self.sizes.vocab
    }

    fn forward(&self, net: &mut Net<'_>, inputs: &[Value]) -> Result<Value, GraphError> {
        let (x, words) = net.scoped("bert", |net| self.encoder(net, inputs[0]))?;
        net.scoped("cls.predictions", |net| self.head(net, x, words))
    }

    /// Some files lack `bert.` in front, and old ones call layer norm's weight and bias gamma and beta. The output layer's weight is the table of tokens; the pooler
    /// and the head that tells whether sentences follow each other are not needed to tell tokens.
    fn own_name(&self, published: &str) -> Option<String> {
        const PARTS: [&str; 3] = ["embeddings.", "encoder.", "pooler."];
        const SPARE: [&str; 3] = ["bert.embeddings.position_ids", "cls.predictions.decoder.", "cls.seq_relationship."];
        let starts_with = |name: &str, starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        let mut name = published.to_owned();
        if starts_with(&name, &PARTS) {
            name.insert_str(0, "bert.");
        }
        if starts_with(&name, &SPARE) || (!self.pooler && name.starts_with("bert.pooler.")) {
            return None;
        }
        for (old, new) in [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")] {
            if let Some(layer) = name.strip_suffix(old) {
                return Some(format!("{layer}{new}"));
            }
        }
        Some(name)
    }
}

impl Bert {
    /// Features f32[B, T, width] of tokens i32[B, T], and the table of tokens.
    fn encoder(&self, net: &mut Net<'_>, tokens: Value) -> Result<(Value, Value), GraphError> {
        let Sizes { layers, width, .. } = self.sizes;
        let (mut x, words) = net.scoped("embeddings", |net| self.embeddings(net, tokens))?;
        for layer in 0..layers {
            x = net.scoped(&format!("encoder.layer.{layer}"), |net| self.layer(net, x))?;
        }
        if self.pooler {
            net.graph().scoped("pooler.dense", |graph| {
                graph.parameter("weight", [width, width], Init::Normal { std: STD })?;
                graph.parameter("bias", [width], Init::Constant(0.0))
            })?;
        }
        Ok((x, words))
    }

    fn embeddings(&self, net: &mut Net<'_>, tokens: Value) -> Result<(Value, Value), GraphError> {
        let Sizes { width, positions, vocab, dropout, .. } = self.sizes;
        let length = transformer::length(net.graph(), tokens, positions);
        let words = net.table("word_embeddings", [vocab, width], STD)?;
        let places = net.table("position_embeddings", [positions, width], STD)?;
        let types = net.table("token_type_embeddings", [TYPES, width], STD)?;
        let x = net.graph().embedding_padded(words, tokens, self.padding as i32)?;
        let places = if length < positions { net.graph().slice(places, 0, 0, length)? } else { places };
        let first_type = net.graph().slice(types, 0, 0, 1)?;
        let rest = net.graph().add(places, first_type)?;
        let x = net.graph().add(x, rest)?;
        let x = net.layer_norm("LayerNorm", x, EPS)?;
        Ok((net.dropout(x, dropout)?, words))
    }

    fn layer(&self, net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
        let Sizes { heads, width, dropout, .. } = self.sizes;
        let x = net.scoped("attention", |net| {
            let y = net.scoped("self", |net| {
                let mut part = |name: &str| -> Result<Value, GraphError> {
                    let y = linear(net, name, x, width)?;
                    Ok(net.graph().split_heads(y, 1, heads)?[0])
                };
                let parts = [part("query")?, part("key")?, part("value")?];
                net.attention(parts, false, dropout)
            })?;
            net.scoped("output", |net| self.add_and_norm(net, x, y))
        })?;
        let y = net.scoped("intermediate", |net| linear(net, "dense", x, 4 * width))?;
        let y = net.graph().gelu(y)?;
        net.scoped("output", |net| self.add_and_norm(net, x, y))
    }

    /// A linear layer of y, added to x, normalised.
    fn add_and_norm(&self, net: &mut Net<'_>, x: Value, y: Value) -> Result<Value, GraphError> {
        let y = linear(net, "dense", y, self.sizes.width)?;
        let y = net.dropout(y, self.sizes.dropout)?;
        let x = net.graph().add(y, x)?;
        net.layer_norm("LayerNorm", x, EPS)
    }

    /// Logits f32[B·T, vocab].
    fn head(&self, net: &mut Net<'_>, x: Value, words: Value) -> Result<Value, GraphError> {
        let Sizes { width, vocab, .. } = self.sizes;
        let rows = net.graph().ty(x).numel() / width;
        let x = net.graph().reshape(x, [rows, width])?;
        let x = net.scoped("transform", |net| {
            let x = linear(net, "dense", x, width)?;
            let x = net.graph().gelu(x)?;
            net.layer_norm("LayerNorm", x, EPS)
        })?;
        // The output layer's weight is the table of tokens; its bias is its own.
        let bias = net.graph().parameter("bias", [vocab], Init::Constant(0.0))?;
        net.graph().linear(x, words, Some(bias))
    }
}

fn linear(net: &mut Net<'_>, name: &str, x: Value, out_features: usize) -> Result<Value, GraphError> {
    net.linear_init(name, x, out_features, WeightInit::Normal(STD))
}
