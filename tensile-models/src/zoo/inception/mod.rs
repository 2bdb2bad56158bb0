//! Inception networks, and the pieces they are made of: convolutions without bias, each with batch norm and a rectifier, in chains side by side.

mod v3;
mod v4;

pub(super) use v3::inception_v3;
pub(super) use v4::inception_v4;

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{BatchNormOptions, Conv, Net};
use tensile_core::op::pool::Pool2d;

/// A convolution with stride 1 that keeps height and width.
fn same(out_channels: usize, kernel: [usize; 2]) -> Conv {
    let mut conv = Conv::new(out_channels, 1);
    conv.kernel = kernel;
    conv.conv.padding = kernel.map(|size| size / 2);
    conv
}

/// A 3×3 convolution without padding that halves height and width, rounded down.
fn halving(out_channels: usize) -> Conv {
    Conv::new(out_channels, 3).stride(2)
}

/// The pooling that goes with [`halving`].
fn max_pool(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
    net.graph().max_pool2d(x, Pool2d::new(3, 2))
}

/// A convolution without bias, batch norm, and a rectifier: `NAME.conv` and `NAME.bn`.
fn layer(net: &mut Net<'_>, name: &str, x: Value, conv: Conv) -> Result<Value, GraphError> {
    net.scoped(name, |net| {
        let x = net.conv2d("conv", x, conv.no_bias())?;
        let x = net.batch_norm_with("bn", x, BatchNormOptions { eps: 1e-3, ..BatchNormOptions::default() })?;
        net.graph().relu(x)
    })
}

/// Layers one behind the other; their names are the prefix and a number, from `first` on.
fn chain<const N: usize>(
    net: &mut Net<'_>,
    prefix: &str,
    first: usize,
    x: Value,
    convs: [Conv; N],
) -> Result<Value, GraphError> {
    (first..).zip(convs).try_fold(x, |x, (index, conv)| layer(net, &format!("{prefix}{index}"), x, conv))
}

/// A 1×3 and a 3×1 layer side by side: the names end with `a` and `b`.
fn fork(net: &mut Net<'_>, prefix: &str, x: Value, out_channels: usize) -> Result<[Value; 2], GraphError> {
    Ok([
        layer(net, &format!("{prefix}a"), x, same(out_channels, [1, 3]))?,
        layer(net, &format!("{prefix}b"), x, same(out_channels, [3, 1]))?,
    ])
}
