//! A small network for the 8×8 digits: three stages of two 3×3 convolutions with batch norm.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net};
use tensile_core::op::pool::Pool2d;

use super::Settings;

/// Channels of the stages.
const CHANNELS: [usize; 3] = [32, 64, 96];

pub(super) fn forward(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    let mut x = images;
    for (stage, channels) in CHANNELS.into_iter().enumerate() {
        x = net.scoped(&format!("stage{}", stage + 1), |net| {
            for index in ["1", "2"] {
                x = net.conv2d(&format!("conv{index}"), x, Conv::new(channels, 3).padding(1).no_bias())?;
                x = net.batch_norm(&format!("bn{index}"), x)?;
                x = net.graph().relu(x)?;
            }
            Ok(x)
        })?;
        if stage < 2 {
            x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
        }
    }
    let x = net.flatten(x)?;
    let x = net.dropout(x, settings.number("dropout") as f32)?;
    net.linear("fc", x, settings.count("classes"))
}
