//! What the pooling kernels share.

use tensile_core::TensorType;
use tensile_core::op::pool::Pool2d;

use super::{Binding, Caps, Dispatch};
use crate::shader::Shader;

/// Elements an invocation takes.
pub(super) const VECTOR: u64 = 4;

/// A function `store` for vectors of f32 in a buffer `y`, whose last may not be full.
pub(super) const STORE: &[(&str, &str)] = &[("store", include_str!("store.wgsl")), ("vector", "vec4<f32>")];

/// A function `run` for the gradient of an op with windows, around a function `sum`.
pub(super) const GRAD: (&str, &str) = ("run", include_str!("pool_grad.wgsl"));

/// Names of the words that [`params`] gives.
pub(super) const PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("n", "u32"),
    ("h", "u32"),
    ("w", "u32"),
    ("out_h", "u32"),
    ("out_w", "u32"),
    ("kernel_h", "u32"),
    ("kernel_w", "u32"),
    ("stride_h", "u32"),
    ("stride_w", "u32"),
    ("pad_h", "u32"),
    ("pad_w", "u32"),
    ("low", "f32"),
    ("count_pad", "u32"),
];

/// Words for an op from planes like `x` to planes like `y` that computes `n` elements; `low` is −∞.
pub(super) fn params(pool: &Pool2d, x: &TensorType, y: &TensorType, n: usize, count_pad: bool) -> Vec<u32> {
    let mut words = vec![0, n as u32];
    let pairs = [&x.dims()[2..], &y.dims()[2..], &pool.kernel, &pool.stride, &pool.padding];
    words.extend(pairs.iter().flat_map(|pair| pair.iter().map(|&word| word as u32)));
    words.extend([f32::NEG_INFINITY.to_bits(), u32::from(count_pad)]);
    words
}

/// Dispatches that compute `n` elements, a vector an invocation, at `flops` an element. The first parameter is the first vector of a dispatch.
pub(super) fn split(
    shader: &'static Shader,
    bindings: &[Binding],
    params: &[u32],
    (n, flops): (usize, usize),
    caps: &Caps,
) -> Vec<Dispatch> {
    let workgroup = u64::from(shader.workgroup);
    let groups = (n as u64).div_ceil(VECTOR * workgroup);
    let at_once = (caps.max_flops / (workgroup * VECTOR * flops.max(1) as u64) as f64).max(1.0) as u64;
    (0..groups)
        .step_by(at_once as usize)
        .map(|first| {
            let mut params = params.to_vec();
            params[0] = (first * workgroup) as u32;
            Dispatch { shader, bindings: bindings.to_vec(), params, groups: at_once.min(groups - first) }
        })
        .collect()
}
