//! Inception V4 (Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", 2016), with timm's names.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net};
use tensile_core::op::pool::Pool2d;

use super::super::Settings;
use super::{chain, fork, halving, layer, max_pool, same};

pub(in super::super) fn inception_v4(
    net: &mut Net<'_>,
    images: Value,
    settings: &Settings,
) -> Result<Value, GraphError> {
    let x = net.scoped("features", |net| features(net, images))?;
    let x = net.graph().global_avg_pool2d(x)?;
    let x = net.flatten(x)?;
    let x = net.dropout(x, settings.number("dropout") as f32)?;
    net.linear("last_linear", x, settings.count("classes"))
}

/// One of the blocks that the network is a sequence of.
type Block = fn(&mut Net<'_>, Value) -> Result<Value, GraphError>;

fn features(net: &mut Net<'_>, images: Value) -> Result<Value, GraphError> {
    let stem: [Block; 3] = [stem_73, stem_71, stem_35];
    let blocks = stem
        .into_iter()
        .chain([block_35 as Block; 4])
        .chain([reduction_35 as Block])
        .chain([block_17 as Block; 7])
        .chain([reduction_17 as Block])
        .chain([block_8 as Block; 3]);
    let mut x = chain(net, "", 0, images, [halving(32), Conv::new(32, 3), same(64, [3, 3])])?;
    for (index, block) in (3..).zip(blocks) {
        x = net.scoped(&index.to_string(), |net| block(net, x))?;
    }
    Ok(x)
}

/// The stem's first two branches, from 147×147 to 73×73 (figure 3).
fn stem_73(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let parts = [max_pool(net, x)?, layer(net, "conv", x, halving(96))?];
    net.graph().concat(&parts, 1)
}

/// From 73×73 to 71×71.
fn stem_71(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let factored = [same(64, [1, 1]), same(64, [1, 7]), same(64, [7, 1]), Conv::new(96, 3)];
    let parts =
        [chain(net, "branch0.", 0, x, [same(64, [1, 1]), Conv::new(96, 3)])?, chain(net, "branch1.", 0, x, factored)?];
    net.graph().concat(&parts, 1)
}

/// From 71×71 to 35×35.
fn stem_35(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let parts = [layer(net, "conv", x, halving(192))?, max_pool(net, x)?];
    net.graph().concat(&parts, 1)
}

/// Averages over 3×3 windows (of what lies in the image), then a 1×1 convolution.
fn pooled(net: &mut Net<'_>, x: Value, out_channels: usize) -> Result<Value, GraphError> {
    let x = net.graph().avg_pool2d(x, Pool2d::new(3, 1).padding(1), false)?;
    layer(net, "branch3.1", x, same(out_channels, [1, 1]))
}

/// Inception-A, on 35×35 (figure 4).
fn block_35(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let parts = [
        layer(net, "branch0", x, same(96, [1, 1]))?,
        chain(net, "branch1.", 0, x, [same(64, [1, 1]), same(96, [3, 3])])?,
        chain(net, "branch2.", 0, x, [same(64, [1, 1]), same(96, [3, 3]), same(96, [3, 3])])?,
        pooled(net, x, 96)?,
    ];
    net.graph().concat(&parts, 1)
}

/// Reduction-A, to 17×17 (figure 7).
fn reduction_35(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let parts = [
        layer(net, "branch0", x, halving(384))?,
        chain(net, "branch1.", 0, x, [same(192, [1, 1]), same(224, [3, 3]), halving(256)])?,
        max_pool(net, x)?,
    ];
    net.graph().concat(&parts, 1)
}

/// Inception-B, on 17×17 (figure 5).
fn block_17(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let (row, column) = ([1, 7], [7, 1]);
    let twice = [same(192, [1, 1]), same(192, column), same(224, row), same(224, column), same(256, row)];
    let parts = [
        layer(net, "branch0", x, same(384, [1, 1]))?,
        chain(net, "branch1.", 0, x, [same(192, [1, 1]), same(224, row), same(256, column)])?,
        chain(net, "branch2.", 0, x, twice)?,
        pooled(net, x, 128)?,
    ];
    net.graph().concat(&parts, 1)
}

/// Reduction-B, to 8×8 (figure 8).
fn reduction_17(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let factored = [same(256, [1, 1]), same(256, [1, 7]), same(320, [7, 1]), halving(320)];
    let parts = [
        chain(net, "branch0.", 0, x, [same(192, [1, 1]), halving(192)])?,
        chain(net, "branch1.", 0, x, factored)?,
        max_pool(net, x)?,
    ];
    net.graph().concat(&parts, 1)
}

/// Inception-C, on 8×8 (figure 6).
fn block_8(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    let mut parts = vec![layer(net, "branch0", x, same(256, [1, 1]))?];
    let y = layer(net, "branch1_0", x, same(384, [1, 1]))?;
    parts.extend(fork(net, "branch1_1", y, 256)?);
    let y = chain(net, "branch2_", 0, x, [same(384, [1, 1]), same(448, [3, 1]), same(512, [1, 3])])?;
    parts.extend(fork(net, "branch2_3", y, 256)?);
    parts.push(pooled(net, x, 256)?);
    net.graph().concat(&parts, 1)
}
