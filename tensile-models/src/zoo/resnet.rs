//! ResNet-18 and ResNet-50 (He et al., "Deep Residual Learning for Image Recognition", 2015, table 1; a bottleneck's stride is in its 3×3
//! convolution, as in torchvision).

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net, WeightInit};
use tensile_core::op::pool::Pool2d;

use super::Settings;

/// Residual blocks.
#[derive(Clone, Copy)]
enum Block {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3, and 1×1 to four times the width.
    Bottleneck,
}

impl Block {
    fn expansion(self) -> usize {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

pub(super) fn resnet18(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    resnet(net, images, Block::Basic, [2, 2, 2, 2], settings)
}

pub(super) fn resnet50(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    resnet(net, images, Block::Bottleneck, [3, 4, 6, 3], settings)
}

fn resnet(
    net: &mut Net<'_>,
    images: Value,
    block: Block,
    depth: [usize; 4],
    settings: &Settings,
) -> Result<Value, GraphError> {
    let x = conv_norm(net, ["conv1", "bn1"], images, Conv::new(64, 7).stride(2).padding(3))?;
    let x = net.graph().relu(x)?;
    let mut x = net.graph().max_pool2d(x, Pool2d::new(3, 2).padding(1))?;
    for (stage, n_blocks) in depth.into_iter().enumerate() {
        let width = 64 << stage;
        for index in 0..n_blocks {
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let name = format!("layer{}.{index}", stage + 1);
            x = net.scoped(&name, |net| residual(net, x, block, width, stride))?;
        }
    }
    let x = net.graph().global_avg_pool2d(x)?;
    let x = net.flatten(x)?;
    net.linear("fc", x, settings.count("classes"))
}

fn residual(net: &mut Net<'_>, x: Value, block: Block, width: usize, stride: usize) -> Result<Value, GraphError> {
    let out = width * block.expansion();
    let three = |stride| Conv::new(width, 3).stride(stride).padding(1);
    let y = match block {
        Block::Basic => {
            let y = conv_norm(net, ["conv1", "bn1"], x, three(stride))?;
            let y = net.graph().relu(y)?;
            conv_norm(net, ["conv2", "bn2"], y, three(1))?
        }
        Block::Bottleneck => {
            let y = conv_norm(net, ["conv1", "bn1"], x, Conv::new(width, 1))?;
            let y = net.graph().relu(y)?;
            let y = conv_norm(net, ["conv2", "bn2"], y, three(stride))?;
            let y = net.graph().relu(y)?;
            conv_norm(net, ["conv3", "bn3"], y, Conv::new(out, 1))?
        }
    };
    let shortcut = if stride != 1 || net.graph().dims(x)[1] != out {
        conv_norm(net, ["downsample.0", "downsample.1"], x, Conv::new(out, 1).stride(stride))?
    } else {
        x
    };
    let sum = net.graph().add(y, shortcut)?;
    net.graph().relu(sum)
}

/// A convolution without bias, then batch norm.
fn conv_norm(net: &mut Net<'_>, [conv, norm]: [&str; 2], x: Value, layer: Conv) -> Result<Value, GraphError> {
    let y = net.conv2d(conv, x, layer.no_bias().init(WeightInit::HeFanOut))?;
    net.batch_norm(norm, y)
}
