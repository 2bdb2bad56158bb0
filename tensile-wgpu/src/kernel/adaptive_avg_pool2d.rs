//! `adaptive_avg_pool2d` and its gradient.
//!
//! Large windows are added in parts, by as many invocations each, into scratch, and a second dispatch adds those.

use tensile_core::TensorType;
use tensile_core::op::adaptive_avg_pool2d::{AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad};

use super::pool::{STORE, VECTOR, split};
use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types, scratch};
use crate::shader::Shader;

/// Elements of a window that one invocation adds, and most parts of a window.
const PART: usize = 1024;
const MAX_PARTS: usize = 256;

const PARAMS: &[(&str, &str)] =
    &[("first", "u32"), ("n", "u32"), ("h", "u32"), ("w", "u32"), ("out_h", "u32"), ("out_w", "u32"), ("parts", "u32")];

static SUM: Shader = Shader {
    name: "adaptive_avg_pool2d",
    source: include_str!("adaptive_avg_pool2d.wgsl"),
    buffers: &[("x", "f32"), ("y", "f32")],
    params: PARAMS,
    snippets: &[("window", WINDOW), ("finite", include_str!("adaptive_avg_pool2d_finite.wgsl"))],
    libraries: &[],
    workgroup: 64,
};

static PARTS: Shader = Shader {
    name: "adaptive_avg_pool2d_parts",
    source: include_str!("adaptive_avg_pool2d_parts.wgsl"),
    buffers: &[("sums", "f32"), ("y", "f32")],
    params: PARAMS,
    snippets: &[("window", WINDOW), ("finite", include_str!("adaptive_avg_pool2d_finite.wgsl"))],
    libraries: &[],
    workgroup: 64,
};

static GRAD: Shader = Shader {
    name: "adaptive_avg_pool2d_grad",
    source: include_str!("adaptive_avg_pool2d_grad.wgsl"),
    buffers: &[("dy", "f32"), ("y", "vec4<f32>")],
    params: PARAMS,
    snippets: &[STORE[0], STORE[1], ("window", WINDOW)],
    libraries: &[],
    workgroup: 64,
};

static GLOBAL_GRAD: Shader = Shader {
    name: "adaptive_avg_pool2d_global_grad",
    source: include_str!("adaptive_avg_pool2d_global_grad.wgsl"),
    buffers: &[("dy", "f32"), ("y", "vec4<f32>")],
    params: PARAMS,
    snippets: STORE,
    libraries: &[],
    workgroup: 64,
};

/// Where a window begins and ends.
const WINDOW: &str = include_str!("adaptive_avg_pool2d_window.wgsl");

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SUM, &PARTS, &GRAD, &GLOBAL_GRAD];

/// Words for planes like `x` averaged to planes like `y`.
///
/// # Errors
/// If a place in a window, as a fraction, does not fit a word.
fn params(x: &TensorType, y: &TensorType, n: usize, parts: usize) -> Result<Vec<u32>, Refused> {
    for axis in [2, 3] {
        let (size, windows) = (x.dims()[axis] as u64, y.dims()[axis] as u64);
        if (size + 1) * (windows + 1) >= 1 << 32 {
            return Err(Refused::Other(format!("{windows} windows over size {size}: their product has over 32 bits")));
        }
    }
    let mut words = vec![0, n as u32];
    words.extend(x.dims()[2..].iter().chain(&y.dims()[2..]).map(|&size| size as u32));
    words.push(parts as u32);
    Ok(words)
}

/// Most positions of a window.
fn area(x: &TensorType, y: &TensorType) -> usize {
    [2, 3].map(|axis| (x.dims()[axis].div_ceil(y.dims()[axis].max(1)) + 1).min(x.dims()[axis])).iter().product()
}

impl Kernel for AdaptiveAvgPool2d {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (x, y) = (types.inputs[0], types.outputs[0]);
        let area = area(x, y);
        let parts = area.div_ceil(PART).clamp(1, MAX_PARTS);
        let params = params(x, y, y.numel(), parts)?;
        let [x, whole] = [types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let workspace = if parts > 1 { 4 * (y.numel() * parts) as u64 } else { 0 };
        let sums = if parts > 1 { scratch(workspace, caps)? } else { whole };
        // One invocation computes one sum where `split` counts a vector.
        let n = y.numel() * parts;
        let mut dispatches = split(&SUM, &[x, sums], &params, (n * VECTOR as usize, area.div_ceil(parts)), caps);
        if parts > 1 {
            let groups = (y.numel() as u64).div_ceil(u64::from(PARTS.workgroup));
            dispatches.push(Dispatch { shader: &PARTS, bindings: vec![sums, whole], params, groups });
        }
        Ok(Plan { workspace, dispatches })
    }
}

impl Kernel for AdaptiveAvgPool2dGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (y, x) = (types.inputs[0], types.outputs[0]);
        let params = params(x, y, x.numel(), 1)?;
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let shader = if y.dims()[2..] == [1, 1] { &GLOBAL_GRAD } else { &GRAD };
        // Windows that an element can be in.
        let flops = area(y, x);
        Ok(Plan { workspace: 0, dispatches: split(shader, &bindings, &params, (x.numel(), flops), caps) })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::op::adaptive_avg_pool2d::{AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad};
    use tensile_core::TensorType;
    use tensile_core::testing::float_bytes;

    use super::super::tests::{check, check_with, random};
    use crate::kernel::Caps;

    /// Sums are compensated, the host's are in f64.
    const TOLERANCE: f64 = 5e-7;

    fn check_both([n, c, h, w]: [usize; 4], output: [usize; 2]) {
        check(AdaptiveAvgPool2d { output }, &[random([n, c, h, w], 3)], TOLERANCE);
        let grad = AdaptiveAvgPool2dGrad { shape: [n, c, h, w].into() };
        check(grad, &[random([n, c, output[0], output[1]], 4)], TOLERANCE);
    }

    #[test]
    fn windows_of_all_kinds() {
        check_both([1, 1, 1, 1], [1, 1]);
        check_both([2, 5, 7, 9], [3, 2]);
        check_both([3, 17, 7, 7], [1, 1]);
        check_both([1, 3, 5, 4], [7, 9]);
        check_both([2, 1, 13, 1], [4, 3]);
        check_both([1, 300, 4, 6], [4, 6]);
    }

    #[test]
    fn infinities_and_nan() {
        let mut x = vec![1.0; 4 * 9];
        (x[3], x[12], x[20], x[21], x[30]) = (f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
        check(AdaptiveAvgPool2d { output: [1, 1] }, &[(TensorType::f32([1, 4, 3, 3]), float_bytes(&x))], TOLERANCE);
        let mut x = vec![1.0; 2 * 41 * 50];
        (x[1000], x[4000]) = (f32::INFINITY, f32::NAN);
        check(AdaptiveAvgPool2d { output: [1, 1] }, &[(TensorType::f32([1, 2, 41, 50]), float_bytes(&x))], TOLERANCE);
    }

    #[test]
    fn windows_in_parts() {
        check_both([1, 2, 97, 101], [1, 1]);
        check_both([2, 3, 70, 65], [2, 1]);
        check_both([1, 1, 1000, 530], [1, 1]);
        let caps = |caps| Caps { max_flops: 3e5, ..caps };
        check_with(caps, AdaptiveAvgPool2d { output: [1, 1] }, &[random([3, 1, 330, 315], 3)], TOLERANCE);
        let grad = AdaptiveAvgPool2dGrad { shape: [3, 1, 330, 315].into() };
        check_with(caps, grad, &[random([3, 1, 1, 1], 4)], TOLERANCE);
    }
}
