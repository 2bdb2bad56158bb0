//! What transformers have in common: their sizes.

use tensile_core::graph::{Graph, Value};

use super::{Setting, SettingError, Settings};

/// Sizes of a transformer.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Features of a token.
    pub(super) width: usize,
    /// Tokens in a sample.
    pub(super) context: usize,
    /// Rows of the table of positions.
    pub(super) positions: usize,
    /// Number of different tokens.
    pub(super) vocab: usize,
    /// Probability with which training drops elements.
    pub(super) dropout: f32,
}

/// Settings for [`Sizes`]. No `positions`: as many as `context`.
pub(super) const fn settings(
    [layers, heads, width]: [u32; 3],
    [context, positions]: [u32; 2],
    vocab: u32,
) -> [Setting; 7] {
    [
        Setting::count("layers", layers, [1, 1000]),
        Setting::count("heads", heads, [1, 1000]),
        Setting::count("width", width, [1, 1 << 16]),
        Setting::count("context", context, [2, 1 << 16]),
        Setting::count("positions", positions, [0, 1 << 16]),
        Setting::count("vocab", vocab, [2, 1 << 20]),
        Setting::probability("dropout", 0.1),
    ]
}

impl Sizes {
    pub(super) fn new(model: &'static str, settings: &Settings) -> Result<Self, SettingError> {
        let [layers, heads, width, context, positions, vocab] =
            ["layers", "heads", "width", "context", "positions", "vocab"].map(|name| settings.count(name));
        let positions = if positions == 0 { context } else { positions };
        if width % heads != 0 {
            return Err(SettingError::Together {
                model,
                reason: format!(
                    "width {width} is not a multiple of {heads} heads; try {}",
                    width.next_multiple_of(heads)
                ),
            });
        }
        if context > positions {
            return Err(SettingError::Together {
                model,
                reason: format!("context {context} is longer than the {positions} positions there are embeddings for"),
            });
        }
        Ok(Self { layers, heads, width, context, positions, vocab, dropout: settings.number("dropout") as f32 })
    }
}

/// Tokens in each text of `tokens` i32[B, T]; as many as there are positions if that is no such tensor, for which the ops that follow have errors.
pub(super) fn length(graph: &Graph, tokens: Value, positions: usize) -> usize {
    graph.dims(tokens).get(1).copied().unwrap_or(positions)
}
