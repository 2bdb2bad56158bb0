//! `batch_norm` in training and at inference, and its gradient: sums by channel, then one pass over all elements.

use tensile_core::op::batch_norm::{BatchNorm, BatchNormGrad, BatchNormInference};

use super::channel_sum::all_but_channels;
use super::reduction::{Extra, Layout, Reduction, element, in_parts, reductions};
use super::{Binding, Caps, Dispatch, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

/// Elements that an invocation of the pass over all elements takes, as long as a row has so many.
const AT_ONCE: u64 = 4;
const WORKGROUP: u32 = 128;

static MOMENTS: [Shader; 3] = reductions!(
    "batch_norm_moments",
    "batch_norm_moments.wgsl",
    "one",
    [("x", E), ("partial", W1), ("mean", S), ("var", S)]
);
static GRAD_SUMS: [Shader; 3] = reductions!(
    "batch_norm_grad_sums",
    "batch_norm_grad_sums.wgsl",
    "two",
    [("x", E), ("dy", E), ("mean", S), ("var", S), ("partial", W2), ("dweight", S), ("dbias", S)]
);

/// Shaders of the pass over all elements for the three layouts.
macro_rules! passes {
    ($name:literal, $source:literal, $buffers:tt) => {
        [
            passes!(@ scalar, "alias S = f32;", $name, $source, $buffers),
            passes!(@ rows4, "alias S = f32;", concat!($name, "_rows4"), $source, $buffers),
            passes!(@ columns4, "alias S = vec4<f32>;", concat!($name, "_columns4"), $source, $buffers),
        ]
    };
    (@ $layout:ident, $types:literal, $name:expr, $source:literal, [$(($buffer:literal, $element:ident)),*]) => {
        Shader {
            name: $name,
            source: include_str!($source),
            buffers: &[$(($buffer, element!($layout $element))),*],
            params: PARAMS,
            snippets: &[],
            libraries: &[$types],
            workgroup: WORKGROUP,
        }
    };
}

const PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("end", "u32"),
    ("units", "u32"),
    ("per_row", "u32"),
    ("channels", "u32"),
    ("width", "u32"),
    ("eps", "f32"),
    ("n", "f32"),
];

static PASS: [Shader; 3] = passes!(
    "batch_norm",
    "batch_norm.wgsl",
    [("x", E), ("mean", S), ("var", S), ("weight", S), ("bias", S), ("y", E)]
);
static GRAD_PASS: [Shader; 3] = passes!(
    "batch_norm_grad",
    "batch_norm_grad.wgsl",
    [("x", E), ("dy", E), ("mean", S), ("var", S), ("weight", S), ("dweight", S), ("dbias", S), ("dx", E)]
);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[
    &MOMENTS[0],
    &MOMENTS[1],
    &MOMENTS[2],
    &GRAD_SUMS[0],
    &GRAD_SUMS[1],
    &GRAD_SUMS[2],
    &PASS[0],
    &PASS[1],
    &PASS[2],
    &GRAD_PASS[0],
    &GRAD_PASS[1],
    &GRAD_PASS[2],
];

/// Sums by channel of a call's first input.
fn by_channel(types: Types<'_>) -> Reduction {
    let dims = types.inputs[0].dims();
    Reduction::new(dims, &all_but_channels(dims.len()))
}

/// Values of a channel.
fn per_channel(types: Types<'_>) -> f32 {
    let x = types.inputs[0];
    (x.numel() / x.dims()[1].max(1)) as f32
}

/// The pass over all elements of a call's first input by these shaders, at about `flops` operations an element.
fn pass(
    shaders: &'static [Shader; 3],
    types: Types<'_>,
    bindings: Vec<Binding>,
    (eps, n): (f32, f32),
    flops: f64,
    caps: &Caps,
) -> Vec<Dispatch> {
    let dims = types.inputs[0].dims();
    let (images, channels) = (dims[0] as u64, dims[1] as u64);
    let plane: u64 = dims[2..].iter().product::<usize>() as u64;
    let (layout, channels, width) = if plane == 1 && channels.is_multiple_of(4) {
        (Layout::Columns4, channels / 4, 1)
    } else if plane.is_multiple_of(4) {
        (Layout::Rows4, channels, plane / 4)
    } else {
        (Layout::Scalar, channels, plane)
    };
    let per_row = width.div_ceil(AT_ONCE);
    let units = images * channels * per_row;
    let words = [units, per_row, channels, width].map(|n| n as u32);
    let dispatch = Dispatch {
        shader: &shaders[layout as usize],
        bindings,
        params: words.into_iter().chain([eps.to_bits(), n.to_bits()]).collect(),
        groups: units.div_ceil(u64::from(WORKGROUP)),
    };
    in_parts(dispatch, flops * types.inputs[0].numel() as f64, caps)
}

impl Kernel for BatchNorm {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let input = |index| types.whole(Place::Input(index), caps);
        let output = |index| types.whole(Place::Output(index), caps);
        let (x, weight, bias) = (input(0)?, input(1)?, input(2)?);
        let (y, mean, var) = (output(0)?, output(1)?, output(2)?);
        let sums = by_channel(types);
        let mut plan = Plan::default();
        for mode in [0, 1] {
            let extra = Extra { factor: per_channel(types), mode, ..Extra::default() };
            let (dispatches, workspace) = sums.dispatches(sums.shader(&MOMENTS), caps, (0, 1), extra, |partial| {
                vec![x, partial, mean, var]
            })?;
            plan.dispatches.extend(dispatches);
            plan.workspace = workspace;
        }
        let bindings = vec![x, mean, var, weight, bias, y];
        plan.dispatches.extend(pass(&PASS, types, bindings, (self.eps, 0.0), 4.0, caps));
        Ok(plan)
    }
}

impl Kernel for BatchNormGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let input = |index| types.whole(Place::Input(index), caps);
        let output = |index| types.whole(Place::Output(index), caps);
        let (x, dy, mean, var, weight) = (input(0)?, input(1)?, input(2)?, input(3)?, input(4)?);
        let (dx, dweight, dbias) = (output(0)?, output(1)?, output(2)?);
        let sums = by_channel(types);
        let extra = Extra { eps: self.eps, ..Extra::default() };
        let (mut dispatches, workspace) = sums.dispatches(sums.shader(&GRAD_SUMS), caps, (0, 2), extra, |partial| {
            vec![x, dy, mean, var, partial, dweight, dbias]
        })?;
        let n = if self.training { per_channel(types) } else { 0.0 };
        let bindings = vec![x, dy, mean, var, weight, dweight, dbias, dx];
        dispatches.extend(pass(&GRAD_PASS, types, bindings, (self.eps, n), 6.0, caps));
        Ok(Plan { workspace, dispatches })
    }
}

impl Kernel for BatchNormInference {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let places = [0, 1, 2, 3, 4].map(Place::Input).into_iter().chain([Place::Output(0)]);
        let bindings = places.map(|place| types.whole(place, caps)).collect::<Result<_, _>>()?;
        Ok(Plan { workspace: 0, dispatches: pass(&PASS, types, bindings, (self.eps, 0.0), 4.0, caps) })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::{float_bytes, values};

    use super::*;
    use crate::kernel::tests::{check, check_all_caps, random};

    type Input = (TensorType, Vec<u8>);

    /// mean + deviation·numbers in [−1, 1).
    fn around(shape: &[usize], mean: f32, deviation: f32, seed: u64) -> Input {
        let ty = TensorType::f32(shape);
        let x: Vec<f32> = values(ty.numel(), seed).iter().map(|x| mean + deviation * x).collect();
        (ty, float_bytes(&x))
    }

    fn all(dims: &[usize], mean: f32, tolerance: f64) {
        let channels = [dims[1]];
        let x = around(dims, mean, 1.7, 1);
        let (weight, bias) = (random(channels, 2), random(channels, 3));
        let (means, vars) = (around(&channels, mean, 0.1, 4), around(&channels, 1.0, 0.5, 5));
        let dy = random(dims, 6);
        let eps = 1e-5;
        if dims.iter().product::<usize>() > dims[1] {
            check_all_caps(BatchNorm { eps }, &[x.clone(), weight.clone(), bias.clone()], tolerance);
        }
        for training in [true, false] {
            let inputs = [x.clone(), dy.clone(), means.clone(), vars.clone(), weight.clone()];
            check_all_caps(BatchNormGrad { eps, training }, &inputs, tolerance);
        }
        check_all_caps(BatchNormInference { eps }, &[x, means, vars, weight, bias], tolerance);
    }

    #[test]
    fn shapes() {
        let shapes: [&[usize]; 10] = [
            &[1, 1],
            &[2, 1],
            &[1, 4, 1, 1],
            &[7, 5],
            &[65, 8],
            &[3, 5, 1, 3],
            &[2, 3, 4, 6],
            &[2, 130, 5, 5],
            &[5, 3, 2, 2, 2],
            &[40, 2, 31, 33],
        ];
        for dims in shapes {
            all(dims, 0.0, 2e-5);
        }
    }

    #[test]
    fn large_means() {
        for dims in [&[600, 4][..], &[8, 3, 15, 15], &[8, 3, 16, 16]] {
            all(dims, 100.0, 2e-5);
        }
        // One value far from all others, and first.
        let mut x = values(4000, 9);
        x.iter_mut().for_each(|x| *x += 100.0);
        (x[0], x[2000]) = (0.0, 0.0);
        let x = (TensorType::f32([2, 2, 1000]), float_bytes(&x));
        check(BatchNorm { eps: 1e-5 }, &[x, random([2], 2), random([2], 3)], 2e-5);
    }

    #[test]
    fn one_tensor_several_times() {
        let x = random([2, 4, 4, 4], 1);
        let c = around(&[4], 1.0, 0.5, 2);
        check(BatchNormGrad { eps: 1e-5, training: true }, &[x.clone(), x, c.clone(), c.clone(), c.clone()], 2e-5);
    }
}
