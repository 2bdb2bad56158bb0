//! Inception V3 (Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015), with torchvision's names, without the auxiliary head.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net, WeightInit};
use tensile_core::op::pool::Pool2d;

use super::super::Settings;
use super::{chain, fork, max_pool};

/// The weights' standard deviation at the beginning.
const INIT: WeightInit = WeightInit::Normal(0.1);

fn same(out_channels: usize, kernel: [usize; 2]) -> Conv {
    super::same(out_channels, kernel).init(INIT)
}

fn halving(out_channels: usize) -> Conv {
    super::halving(out_channels).init(INIT)
}

fn layer(net: &mut Net<'_>, name: &str, x: Value, conv: Conv) -> Result<Value, GraphError> {
    super::layer(net, name, x, conv.init(INIT))
}

pub(in super::super) fn inception_v3(
    net: &mut Net<'_>,
    images: Value,
    settings: &Settings,
) -> Result<Value, GraphError> {
    let x = layer(net, "Conv2d_1a_3x3", images, halving(32))?;
    let x = layer(net, "Conv2d_2a_3x3", x, Conv::new(32, 3))?;
    let x = layer(net, "Conv2d_2b_3x3", x, same(64, [3, 3]))?;
    let x = max_pool(net, x)?;
    let x = layer(net, "Conv2d_3b_1x1", x, same(80, [1, 1]))?;
    let x = layer(net, "Conv2d_4a_3x3", x, Conv::new(192, 3))?;
    let mut x = max_pool(net, x)?;
    for (name, pooled) in [("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)] {
        x = net.scoped(name, |net| block_35(net, x, pooled))?;
    }
    x = net.scoped("Mixed_6a", |net| reduction_35(net, x))?;
    for (name, width) in [("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)] {
        x = net.scoped(name, |net| block_17(net, x, width))?;
    }
    x = net.scoped("Mixed_7a", |net| reduction_17(net, x))?;
    for name in ["Mixed_7b", "Mixed_7c"] {
        x = net.scoped(name, |net| block_8(net, x))?;
    }
    let x = net.graph().global_avg_pool2d(x)?;
    let x = net.flatten(x)?;
    let x = net.dropout(x, settings.number("dropout") as f32)?;
    net.linear_init("fc", x, settings.count("classes"), INIT)
}

/// Averages over 3×3 windows (zeros around the image count), then a 1×1 convolution.
fn pooled(net: &mut Net<'_>, x: Value, out_channels: usize) -> Result<Value, GraphError> {
    let x = net.graph().avg_pool2d(x, Pool2d::new(3, 1).padding(1), true)?;
    layer(net, "branch_pool", x, same(out_channels, [1, 1]))
}

/// On 35×35 (the paper's figure 5).
fn block_35(net: &mut Net<'_>, x: Value, pooled_channels: usize) -> Result<Value, GraphError> {
    let parts = [
        layer(net, "branch1x1", x, same(64, [1, 1]))?,
        chain(net, "branch5x5_", 1, x, [same(48, [1, 1]), same(64, [5, 5])])?,
        chain(net, "branch3x3dbl_", 1, x, [same(64, [1, 1]), same(96, [3, 3]), same(96, [3, 3])])?,
        pooled(net, x, pooled_channels)?,
    ];
    net.graph().concat(&parts, 1)
}

/// From 35×35 to 17×17 (figure 10).
fn reduction_35(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let parts = [
        layer(net, "branch3x3", x, halving(384))?,
        chain(net, "branch3x3dbl_", 1, x, [same(64, [1, 1]), same(96, [3, 3]), halving(96)])?,
        max_pool(net, x)?,
    ];
    net.graph().concat(&parts, 1)
}

/// On 17×17, with 7×7 convolutions in two factors (figure 6).
fn block_17(net: &mut Net<'_>, x: Value, width: usize) -> Result<Value, GraphError> {
    let (row, column) = ([1, 7], [7, 1]);
    let twice = [same(width, [1, 1]), same(width, column), same(width, row), same(width, column), same(192, row)];
    let parts = [
        layer(net, "branch1x1", x, same(192, [1, 1]))?,
        chain(net, "branch7x7_", 1, x, [same(width, [1, 1]), same(width, row), same(192, column)])?,
        chain(net, "branch7x7dbl_", 1, x, twice)?,
        pooled(net, x, 192)?,
    ];
    net.graph().concat(&parts, 1)
}

/// From 17×17 to 8×8.
fn reduction_17(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let factored = [same(192, [1, 1]), same(192, [1, 7]), same(192, [7, 1]), halving(192)];
    let parts = [
        chain(net, "branch3x3_", 1, x, [same(192, [1, 1]), halving(320)])?,
        chain(net, "branch7x7x3_", 1, x, factored)?,
        max_pool(net, x)?,
    ];
    net.graph().concat(&parts, 1)
}

/// On 8×8, with forks (figure 7).
fn block_8(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let mut parts = vec![layer(net, "branch1x1", x, same(320, [1, 1]))?];
    let y = layer(net, "branch3x3_1", x, same(384, [1, 1]))?;
    parts.extend(fork(net, "branch3x3_2", y, 384)?);
    let y = chain(net, "branch3x3dbl_", 1, x, [same(448, [1, 1]), same(384, [3, 3])])?;
    parts.extend(fork(net, "branch3x3dbl_3", y, 384)?);
    parts.push(pooled(net, x, 192)?);
    net.graph().concat(&parts, 1)
}
