//! `conv2d` and its gradients: products of matrices whose patches are read straight from the images.

use tensile_core::op::conv2d::{Conv2d, Conv2dInputGrad, Conv2dWeightGrad};

use super::matmul::{Bias, Operand, Product};
use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types, block, scratch};
use crate::shader::Shader;

const PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("blocks", "u32"),
    ("images", "u32"),
    ("groups", "u32"),
    ("from_c", "u32"),
    ("to_c", "u32"),
    ("from_h", "u32"),
    ("from_w", "u32"),
    ("to_h", "u32"),
    ("to_w", "u32"),
    ("taps_h", "u32"),
    ("taps_w", "u32"),
    ("pixel_step_h", "i32"),
    ("pixel_step_w", "i32"),
    ("origin_h", "i32"),
    ("origin_w", "i32"),
    ("tap_step_h", "i32"),
    ("tap_step_w", "i32"),
    ("phases_h", "u32"),
    ("phases_w", "u32"),
    ("divisor_h", "i32"),
    ("divisor_w", "i32"),
    ("group_step", "u32"),
    ("row_step", "u32"),
    ("channel_step", "u32"),
    ("has_bias", "u32"),
];

const WEIGHT_GRAD_PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("blocks", "u32"),
    ("images", "u32"),
    ("groups", "u32"),
    ("from_c", "u32"),
    ("to_c", "u32"),
    ("from_h", "u32"),
    ("from_w", "u32"),
    ("to_h", "u32"),
    ("to_w", "u32"),
    ("taps_h", "u32"),
    ("taps_w", "u32"),
    ("pixel_step_h", "i32"),
    ("pixel_step_w", "i32"),
    ("origin_h", "i32"),
    ("origin_w", "i32"),
    ("tap_step_h", "i32"),
    ("tap_step_w", "i32"),
    ("part", "u32"),
];

macro_rules! conv {
    ($name:literal, $rows:ident) => {
        Shader {
            name: $name,
            source: include_str!("conv2d_block.wgsl"),
            buffers: &[("x", "f32"), ("a", "f32"), ("bias", "f32"), ("y", "f32")],
            params: PARAMS,
            snippets: &block::$rows!(),
            libraries: &[],
            workgroup: block::WORKGROUP,
        }
    };
}

macro_rules! weight_grad {
    ($name:literal, $rows:ident) => {
        Shader {
            name: $name,
            source: include_str!("conv2d_weight_grad.wgsl"),
            buffers: &[("a", "f32"), ("x", "f32"), ("dw", "f32")],
            params: WEIGHT_GRAD_PARAMS,
            snippets: &block::$rows!(),
            libraries: &[],
            workgroup: block::WORKGROUP,
        }
    };
}

static CONV_1: Shader = conv!("conv2d_1", one_row);
static CONV_4: Shader = conv!("conv2d_4", four_rows);
static CONV_8: Shader = conv!("conv2d_8", eight_rows);
static WEIGHT_GRAD_1: Shader = weight_grad!("conv2d_weight_grad_1", one_row);
static WEIGHT_GRAD_4: Shader = weight_grad!("conv2d_weight_grad_4", four_rows);
static WEIGHT_GRAD_8: Shader = weight_grad!("conv2d_weight_grad_8", eight_rows);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&CONV_1, &CONV_4, &CONV_8, &WEIGHT_GRAD_1, &WEIGHT_GRAD_4, &WEIGHT_GRAD_8];

/// The shader for as many rows, and its rows.
fn pick(rows: u64, shaders: [&'static Shader; 3]) -> (&'static Shader, u64) {
    match rows {
        1 => (shaders[0], 1),
        2..=4 => (shaders[1], 4),
        _ => (shaders[2], 8),
    }
}

/// Sizes of a convolution from x `[N, C, H, W]` to y `[N, K, P, Q]`. Pairs are (height, width).
struct Sizes<'a> {
    conv: &'a Conv2d,
    images: u64,
    groups: u64,
    /// Channels of a group in x and y.
    inputs: u64,
    outputs: u64,
    input: [u64; 2],
    output: [u64; 2],
    taps: [u64; 2],
}

impl<'a> Sizes<'a> {
    fn new(conv: &'a Conv2d, x: &[usize], y: &[usize], taps: [usize; 2]) -> Self {
        let pair = |dims: &[usize]| [dims[2] as u64, dims[3] as u64];
        Self {
            conv,
            images: x[0] as u64,
            groups: conv.groups as u64,
            inputs: (x[1] / conv.groups) as u64,
            outputs: (y[1] / conv.groups) as u64,
            input: pair(x),
            output: pair(y),
            taps: taps.map(|taps| taps as u64),
        }
    }

    fn input_plane(&self) -> u64 {
        self.input[0] * self.input[1]
    }

    fn n_taps(&self) -> u64 {
        self.taps[0] * self.taps[1]
    }

    /// Whether pixels of the input and the output are the same, so that it is a product of matrices in memory.
    fn is_product(&self) -> bool {
        let Conv2d { stride, padding, .. } = self.conv;
        self.groups == 1 && self.taps == [1, 1] && *stride == [1, 1] && *padding == [0, 0]
    }
}

/// What pixels see; see `conv2d_block.wgsl`.
struct Map {
    pixel_step: [u64; 2],
    origin: [i64; 2],
    tap_step: [i64; 2],
    phases: [u64; 2],
    divisor: [u64; 2],
    /// Steps in the weights from one group to the next, from one channel of the destination, and from one of the source.
    steps: [u64; 3],
}

/// A word of parameters: unsigned, or signed by its bits.
fn words<const N: usize>(values: [u64; N]) -> [u32; N] {
    values.map(|value| value as u32)
}

fn signed(values: [i64; 2]) -> [u32; 2] {
    values.map(|value| value as i32 as u32)
}

impl Kernel for Conv2d {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let [x, w] = [types.inputs[0].dims(), types.inputs[1].dims()];
        let sizes = Sizes::new(self, x, types.outputs[0].dims(), [w[2], w[3]]);
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Input(1), caps)?];
        let y = types.whole(Place::Output(0), caps)?;
        let bias = if types.inputs.len() > 2 { Some(types.whole(Place::Input(2), caps)?) } else { None };
        let patch = sizes.inputs * sizes.n_taps();
        if sizes.is_product() {
            let plane = sizes.input_plane();
            let (a, b) = (
                Operand { binding: bindings[1], batch: 0, across: patch, along: 1, sum: 0 },
                Operand { binding: bindings[0], batch: sizes.inputs * plane, across: 1, along: plane, sum: 0 },
            );
            return Product {
                batches: sizes.images,
                m: sizes.outputs,
                n: plane,
                sums: 1,
                k: sizes.inputs,
                a,
                b,
                bias: bias.map_or(Bias::None, Bias::Rows),
                c: y,
                c_steps: [plane, 1],
            }
            .plan(caps);
        }
        let map = Map {
            pixel_step: self.stride.map(|step| step as u64),
            origin: self.padding.map(|padding| -(padding as i64)),
            tap_step: self.dilation.map(|step| step as i64),
            phases: [1; 2],
            divisor: [1; 2],
            steps: [sizes.outputs * patch, patch, sizes.n_taps()],
        };
        let (from, to) = ((sizes.inputs, sizes.input), (sizes.outputs, sizes.output));
        Ok(plan(&sizes, &map, from, to, [bindings[0], bindings[1], bias.unwrap_or(y), y], bias.is_some(), caps))
    }
}

impl Kernel for Conv2dInputGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let [dy, w] = [types.inputs[0].dims(), types.inputs[1].dims()];
        let sizes = Sizes::new(&self.conv, types.outputs[0].dims(), dy, [w[2], w[3]]);
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Input(1), caps)?];
        let dx = types.whole(Place::Output(0), caps)?;
        let patch = sizes.inputs * sizes.n_taps();
        if sizes.is_product() {
            let plane = sizes.input_plane();
            let (a, b) = (
                Operand { binding: bindings[1], batch: 0, across: 1, along: patch, sum: 0 },
                Operand { binding: bindings[0], batch: sizes.outputs * plane, across: 1, along: plane, sum: 0 },
            );
            return Product {
                batches: sizes.images,
                m: sizes.inputs,
                n: plane,
                sums: 1,
                k: sizes.outputs,
                a,
                b,
                bias: Bias::None,
                c: dx,
                c_steps: [plane, 1],
            }
            .plan(caps);
        }
        let stride = self.conv.stride.map(|stride| stride as u64);
        let map = Map {
            pixel_step: [1; 2],
            origin: self.conv.padding.map(|padding| padding as i64),
            tap_step: self.conv.dilation.map(|step| -(step as i64)),
            phases: [0, 1].map(|axis| stride[axis].min(sizes.input[axis])),
            divisor: stride,
            steps: [sizes.outputs * patch, sizes.n_taps(), patch],
        };
        let (from, to) = ((sizes.outputs, sizes.output), (sizes.inputs, sizes.input));
        Ok(plan(&sizes, &map, from, to, [bindings[0], bindings[1], dx, dx], false, caps))
    }
}

/// A product of weights and patches; `from` and `to` are a group's channels and an image's size on each side.
fn plan(
    sizes: &Sizes<'_>,
    map: &Map,
    from: (u64, [u64; 2]),
    to: (u64, [u64; 2]),
    bindings: [super::Binding; 4],
    has_bias: bool,
    caps: &Caps,
) -> Plan {
    let (shader, rows) = pick(to.0, [&CONV_1, &CONV_4, &CONV_8]);
    let pixels = sizes.images * to.1[0].div_ceil(map.phases[0]) * to.1[1].div_ceil(map.phases[1]);
    let blocks = map.phases[0]
        * map.phases[1]
        * sizes.groups
        * to.0.div_ceil(rows)
        * pixels.div_ceil(block::COLUMNS);
    let flops = 2 * rows * block::COLUMNS * from.0 * sizes.n_taps();
    let at_once = (caps.max_flops / flops as f64).max(1.0) as u64;
    let dispatches = block::split(blocks, at_once).map(|(first, blocks)| Dispatch {
        shader,
        bindings: bindings.to_vec(),
        params: [
            &words([first, blocks, sizes.images, sizes.groups, from.0, to.0])[..],
            &words(from.1),
            &words(to.1),
            &words(sizes.taps),
            &words(map.pixel_step),
            &signed(map.origin),
            &signed(map.tap_step),
            &words(map.phases),
            &words(map.divisor),
            &words(map.steps),
            &[u32::from(has_bias)],
        ]
        .concat(),
        groups: blocks.div_ceil(u64::from(block::WORKGROUP)),
    });
    Plan { workspace: 0, dispatches: dispatches.collect() }
}

impl Kernel for Conv2dWeightGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let [dy, x] = [types.inputs[0].dims(), types.inputs[1].dims()];
        let sizes = Sizes::new(&self.conv, x, dy, self.kernel);
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Input(1), caps)?];
        let dw = types.whole(Place::Output(0), caps)?;
        if sizes.is_product() {
            let plane = sizes.input_plane();
            let operand = |index: usize, channels: u64| Operand {
                binding: bindings[index],
                batch: 0,
                across: plane,
                along: 1,
                sum: channels * plane,
            };
            return Product {
                batches: 1,
                m: sizes.outputs,
                n: sizes.inputs,
                sums: sizes.images,
                k: plane,
                a: operand(0, sizes.outputs),
                b: operand(1, sizes.inputs),
                bias: Bias::None,
                c: dw,
                c_steps: [sizes.inputs, 1],
            }
            .plan(caps);
        }
        let (shader, rows) = pick(sizes.outputs, [&WEIGHT_GRAD_1, &WEIGHT_GRAD_4, &WEIGHT_GRAD_8]);
        let columns = sizes.inputs * sizes.n_taps();
        let blocks = sizes.groups * sizes.outputs.div_ceil(rows) * columns.div_ceil(block::COLUMNS);
        let wanted: u64 = if caps.software { 1 << 11 } else { 1 << 15 };
        let least = block::LEAST_PART.div_ceil(sizes.output[1]);
        let (parts, part) = block::parts(sizes.images * sizes.output[0], wanted / blocks, least);
        let floats = sizes.groups * sizes.outputs * columns;
        let workspace = if parts > 1 { 4 * parts * floats } else { 0 };
        let target = if parts > 1 { scratch(workspace, caps)? } else { dw };
        let flops = 2 * rows * block::COLUMNS * part * sizes.output[1];
        let at_once = (caps.max_flops / flops as f64).max(1.0) as u64;
        let mut dispatches: Vec<Dispatch> = block::split(parts * blocks, at_once)
            .map(|(first, blocks)| Dispatch {
                shader,
                bindings: vec![bindings[0], bindings[1], target],
                params: [
                    &words([first, blocks, sizes.images, sizes.groups, sizes.inputs, sizes.outputs])[..],
                    &words(sizes.input),
                    &words(sizes.output),
                    &words(sizes.taps),
                    &self.conv.stride.map(|step| step as u32),
                    &signed(self.conv.padding.map(|padding| -(padding as i64))),
                    &self.conv.dilation.map(|step| step as u32),
                    &[part as u32],
                ]
                .concat(),
                groups: blocks.div_ceil(u64::from(block::WORKGROUP)),
            })
            .collect();
        if parts > 1 {
            dispatches.push(block::sum_parts(target, target, 0, dw, floats, parts));
        }
        Ok(Plan { workspace, dispatches })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::op::OpDef;

    use super::*;
    use crate::kernel::tests::{check_with, gpu, random, seconds};

    const TOLERANCE: f64 = 1e-5;

    /// Checks a convolution and its gradients, in both variants where they differ.
    fn all(conv: &Conv2d, x: [usize; 4], w: [usize; 4], caps: impl Fn(Caps) -> Caps + Copy) -> Vec<Vec<Vec<u8>>> {
        let (input, weight, bias) = (random(x, 3), random(w, 4), random([w[0]], 5));
        let y = conv.infer(&[input.0.clone(), weight.0.clone()]).expect("a convolution").remove(0);
        let dy = random(y.dims(), 6);
        let input_grad = Conv2dInputGrad { conv: conv.clone(), size: [x[2], x[3]] };
        let weight_grad = Conv2dWeightGrad { conv: conv.clone(), kernel: [w[2], w[3]] };
        vec![
            check_with(caps, conv.clone(), &[input.clone(), weight.clone(), bias], TOLERANCE),
            check_with(caps, conv.clone(), &[input.clone(), weight.clone()], TOLERANCE),
            check_with(caps, input_grad, &[dy.clone(), weight], TOLERANCE),
            check_with(caps, weight_grad, &[dy, input], TOLERANCE),
        ]
    }

    fn both(conv: &Conv2d, x: [usize; 4], w: [usize; 4]) {
        for software in [true, false] {
            all(conv, x, w, |caps| Caps { software, ..caps });
        }
    }

    #[test]
    fn sizes() {
        both(&Conv2d::default(), [1, 1, 1, 1], [1, 1, 1, 1]);
        both(&Conv2d::new(1, 1), [2, 5, 9, 7], [6, 5, 3, 3]);
        both(&Conv2d::new(1, 1), [1, 70, 5, 5], [65, 70, 3, 3]);
        both(&Conv2d::new(1, 0), [3, 2, 4, 5], [3, 2, 4, 5]);
        both(&Conv2d::new(1, 3), [2, 1, 2, 1], [1, 1, 3, 2]);
        both(&Conv2d::default(), [2, 16, 6, 6], [9, 16, 1, 1]);
        both(&Conv2d::default(), [3, 3, 5, 1], [66, 3, 1, 1]);
    }

    #[test]
    fn strides_and_dilations() {
        both(&Conv2d::new(2, 3), [2, 3, 20, 19], [10, 3, 7, 7]);
        both(&Conv2d::new(2, 0), [2, 6, 7, 8], [5, 6, 1, 1]);
        both(&Conv2d::new(4, 0), [1, 3, 9, 9], [2, 3, 2, 2]);
        both(&Conv2d { stride: [3, 2], dilation: [2, 3], ..Conv2d::new(1, 2) }, [2, 3, 11, 10], [4, 3, 3, 2]);
        both(&Conv2d { stride: [1, 5], padding: [0, 4], ..Conv2d::default() }, [2, 3, 3, 3], [4, 3, 1, 3]);
        both(&Conv2d { stride: [4, 6], padding: [1, 2], dilation: [2, 4], groups: 1 }, [1, 2, 13, 15], [3, 2, 3, 3]);
    }

    #[test]
    fn groups() {
        both(&Conv2d::new(1, 1).groups(3), [2, 6, 8, 8], [9, 2, 3, 3]);
        both(&Conv2d::new(1, 1).groups(2), [2, 20, 5, 7], [18, 10, 3, 3]);
        both(&Conv2d::new(2, 1).groups(8), [2, 8, 9, 9], [8, 1, 3, 3]);
        both(&Conv2d::new(1, 2).groups(4), [3, 4, 6, 5], [8, 1, 5, 5]);
        both(&Conv2d::default().groups(4), [3, 8, 6, 5], [4, 2, 1, 1]);
    }

    #[test]
    fn long_sums() {
        both(&Conv2d::new(1, 1), [3, 3, 40, 70], [5, 3, 3, 3]);
        both(&Conv2d::new(1, 1), [1, 300, 4, 4], [3, 300, 3, 3]);
    }

    #[test]
    fn bits_do_not_depend_on_how_dispatches_are_split() {
        let conv = Conv2d { stride: [2, 1], ..Conv2d::new(1, 1) };
        let run = |max_flops| all(&conv, [2, 9, 30, 31], [10, 9, 3, 3], |caps| Caps { max_flops, ..caps });
        assert!(run(1e12) == run(2e5), "other bits when split");
    }

    #[test]
    fn operands_over_the_binding_limit_are_named() {
        let Some(gpu) = gpu() else { return };
        let caps = Caps { max_binding: 1024, ..gpu.caps };
        let (x, w, y) = (TensorType::f32([1, 1, 9, 9]), TensorType::f32([9, 1, 3, 3]), TensorType::f32([1, 9, 7, 7]));
        match Conv2d::default().plan(Types { inputs: &[&x, &w], outputs: &[&y] }, &caps) {
            Err(Refused::Binding { what, bytes }) => assert!(what.starts_with("output 0") && bytes == 1764, "{what}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    #[ignore = "prints speeds"]
    #[allow(clippy::print_stdout)]
    fn speed_of_convolutions() {
        let Some(gpu) = gpu() else { return };
        let cases = [
            ("3×3, 64 channels, 28 × 28", Conv2d::new(1, 1), [2, 64, 28, 28], [64, 64, 3, 3]),
            ("7×7 stride 2, 3 to 64 channels, 112 × 112", Conv2d::new(2, 3), [1, 3, 112, 112], [64, 3, 7, 7]),
            ("3×3 by channel, 128 channels, 28 × 28", Conv2d::new(1, 1).groups(128), [2, 128, 28, 28], [128, 1, 3, 3]),
        ];
        for (name, conv, x, w) in cases {
            let (x, w) = (TensorType::f32(x), TensorType::f32(w));
            let y = conv.infer(&[x.clone(), w.clone()]).expect("a convolution").remove(0);
            let input_grad = Conv2dInputGrad { conv: conv.clone(), size: [x.dims()[2], x.dims()[3]] };
            let weight_grad = Conv2dWeightGrad { conv: conv.clone(), kernel: [w.dims()[2], w.dims()[3]] };
            let flops = 2.0 * (y.numel() * w.numel() / w.dims()[0]) as f64;
            for software in [true, false] {
                let caps = Caps { software, ..gpu.caps };
                let rate = |op: &dyn Kernel, inputs: [&TensorType; 2], output: &TensorType| {
                    let types = Types { inputs: &inputs, outputs: &[output] };
                    flops / seconds(gpu, &op.plan(types, &caps).expect("a plan"), types) / 1e9
                };
                let rates = [
                    rate(&conv, [&x, &w], &y),
                    rate(&input_grad, [&y, &w], &x),
                    rate(&weight_grad, [&y, &x], &w),
                ];
                println!("{name}, software {software}: {rates:.2?} GFLOP/s (forward, input gradient, weight gradient)");
            }
        }
    }
}
