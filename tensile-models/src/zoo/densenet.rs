//! DenseNet-121 (Huang et al., "Densely Connected Convolutional Networks", 2016, table 1), with torchvision's names.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net, WeightInit};
use tensile_core::op::pool::Pool2d;

use super::Settings;

/// Layers of each block.
const BLOCKS: [usize; 4] = [6, 12, 24, 16];
/// Channels that each layer adds (the paper's growth rate k).
const GROWTH: usize = 32;

pub(super) fn densenet121(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    let x = net.scoped("features", |net| {
        let x = conv(net, "conv0", images, Conv::new(64, 7).stride(2).padding(3))?;
        let x = norm_relu(net, "norm0", x)?;
        let mut x = net.graph().max_pool2d(x, Pool2d::new(3, 2).padding(1))?;
        for (block, n_layers) in (1..).zip(BLOCKS) {
            if block > 1 {
                x = net.scoped(&format!("transition{}", block - 1), |net| transition(net, x))?;
            }
            x = net.scoped(&format!("denseblock{block}"), |net| dense_block(net, x, n_layers))?;
        }
        norm_relu(net, "norm5", x)
    })?;
    let x = net.graph().global_avg_pool2d(x)?;
    let x = net.flatten(x)?;
    net.linear("classifier", x, settings.count("classes"))
}

/// Every layer sees the block's input and what all layers before it have made. Each concatenation is of those parts, not of the one before, so
/// that it can be made again from them alone.
fn dense_block(net: &mut Net<'_>, x: Value, n_layers: usize) -> Result<Value, GraphError> {
    let mut parts = vec![x];
    for layer in 1..=n_layers {
        let x = net.scoped(&format!("denselayer{layer}"), |net| {
            let x = if parts.len() == 1 { x } else { net.graph().concat(&parts, 1)? };
            let x = norm_relu(net, "norm1", x)?;
            let x = conv(net, "conv1", x, Conv::new(4 * GROWTH, 1))?;
            let x = norm_relu(net, "norm2", x)?;
            conv(net, "conv2", x, Conv::new(GROWTH, 3).padding(1))
        })?;
        parts.push(x);
    }
    net.graph().concat(&parts, 1)
}

/// Half the channels, half the height and width.
fn transition(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let channels = net.graph().dims(x)[1];
    let x = norm_relu(net, "norm", x)?;
    let x = conv(net, "conv", x, Conv::new(channels / 2, 1))?;
    net.graph().avg_pool2d(x, Pool2d::new(2, 2), true)
}

fn norm_relu(net: &mut Net<'_>, name: &str, x: Value) -> Result<Value, GraphError> {
    let x = net.batch_norm(name, x)?;
    net.graph().relu(x)
}

/// A convolution without bias that begins normal with standard deviation √(2/fan_in), as He et al. propose for rectifiers.
fn conv(net: &mut Net<'_>, name: &str, x: Value, layer: Conv) -> Result<Value, GraphError> {
    let fan_in = net.graph().dims(x)[1] * layer.kernel.iter().product::<usize>();
    let std = (2.0 / fan_in as f64).sqrt() as f32;
    net.conv2d(name, x, layer.no_bias().init(WeightInit::Normal(std)))
}
