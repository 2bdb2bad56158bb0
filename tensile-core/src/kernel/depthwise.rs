//! Convolutions with few channels in each group, plane by plane: too small to be matrix products.

use rayon::prelude::*;

use super::conv::Geometry;
use super::isa::Isa;

/// Lanes of partial sums in a dot product; part of the result's bits.
const LANES: usize = 16;

/// Whether the planes kernels take a convolution. Depends on the shape only.
pub(crate) fn takes(g: &Geometry) -> bool {
    g.groups > 1 && g.group_inputs() * g.group_outputs() <= 4
}

/// Output columns at which kernel column `s` meets the image, and the image column of the first one.
fn inside(g: &Geometry, s: usize) -> (std::ops::Range<usize>, usize) {
    let (stride, shift) = (g.stride[1] as isize, (s * g.dilation[1]) as isize - g.padding[1] as isize);
    let start = if shift < 0 { shift.unsigned_abs().div_ceil(g.stride[1]) } else { 0 };
    let end = ((g.input[1] as isize - shift).max(0) as usize).div_ceil(g.stride[1]).min(g.output[1]);
    (start..end.max(start), (start as isize * stride + shift).max(0) as usize)
}

/// Image row that kernel row `r` meets at output row `p`, if there is one.
fn image_row(g: &Geometry, r: usize, p: usize) -> Option<usize> {
    (p * g.stride[0] + r * g.dilation[0]).checked_sub(g.padding[0]).filter(|&row| row < g.input[0])
}

/// Output from input, weight and bias.
pub(crate) fn forward(g: &Geometry, x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    let isa = Isa::detect();
    y.par_chunks_mut(g.output_plane()).enumerate().for_each(|(index, y)| {
        isa.vectorize(|| {
            let (image, k) = (index / g.outputs, index % g.outputs);
            y.fill(bias.map_or(0.0, |bias| bias[k]));
            let first = k / g.group_outputs() * g.group_inputs();
            for c in 0..g.group_inputs() {
                let x = &x[(image * g.inputs + first + c) * g.input_plane()..][..g.input_plane()];
                let w = &w[(k * g.group_inputs() + c) * g.n_taps()..][..g.n_taps()];
                each_row(g, |r, s, p, row, columns, from| {
                    let w = w[r * g.kernel[1] + s];
                    let y = &mut y[p * g.output[1]..][columns];
                    let x = &x[row * g.input[1] + from..];
                    if g.stride[1] == 1 {
                        y.iter_mut().zip(x).for_each(|(y, x)| *y += w * x);
                    } else {
                        y.iter_mut().zip(x.iter().step_by(g.stride[1])).for_each(|(y, x)| *y += w * x);
                    }
                });
            }
        });
    });
}

/// Gradient of the input from those of the output, and the weight.
pub(crate) fn input_grad(g: &Geometry, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let isa = Isa::detect();
    dx.par_chunks_mut(g.input_plane()).enumerate().for_each(|(index, dx)| {
        isa.vectorize(|| {
            let (image, channel) = (index / g.inputs, index % g.inputs);
            let (group, c) = (channel / g.group_inputs(), channel % g.group_inputs());
            dx.fill(0.0);
            for k in group * g.group_outputs()..(group + 1) * g.group_outputs() {
                let dy = &dy[(image * g.outputs + k) * g.output_plane()..][..g.output_plane()];
                let w = &w[(k * g.group_inputs() + c) * g.n_taps()..][..g.n_taps()];
                each_row(g, |r, s, p, row, columns, from| {
                    let w = w[r * g.kernel[1] + s];
                    let dy = &dy[p * g.output[1]..][columns];
                    let dx = &mut dx[row * g.input[1] + from..];
                    if g.stride[1] == 1 {
                        dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += w * dy);
                    } else {
                        dx.iter_mut().step_by(g.stride[1]).zip(dy).for_each(|(dx, dy)| *dx += w * dy);
                    }
                });
            }
        });
    });
}

/// Gradient of the weight from that of the output, and the input.
pub(crate) fn weight_grad(g: &Geometry, dy: &[f32], x: &[f32], dw: &mut [f32]) {
    let isa = Isa::detect();
    dw.par_chunks_mut(g.n_taps()).enumerate().for_each(|(index, dw)| {
        isa.vectorize(|| {
            let (k, c) = (index / g.group_inputs(), index % g.group_inputs());
            let channel = k / g.group_outputs() * g.group_inputs() + c;
            dw.fill(0.0);
            for image in 0..g.images {
                let dy = &dy[(image * g.outputs + k) * g.output_plane()..][..g.output_plane()];
                let x = &x[(image * g.inputs + channel) * g.input_plane()..][..g.input_plane()];
                // A tap at a time: its sum over the image has partial sums of its own.
                for (tap, dw) in dw.iter_mut().enumerate() {
                    let mut sums = [0.0f32; LANES];
                    each_row_of(g, tap, |p, row, columns, from| {
                        let dy = &dy[p * g.output[1]..][columns];
                        add_products(&mut sums, dy, &x[row * g.input[1] + from..], g.stride[1]);
                    });
                    *dw += sums.iter().sum::<f32>();
                }
            }
        });
    });
}

/// Adds dy[i]·x[i·step] to lane i mod [`LANES`].
#[inline(always)]
fn add_products(sums: &mut [f32; LANES], dy: &[f32], x: &[f32], step: usize) {
    let whole = dy.len() / LANES * LANES;
    if step == 1 {
        for (dy, x) in dy[..whole].chunks_exact(LANES).zip(x.chunks_exact(LANES)) {
            sums.iter_mut().zip(dy).zip(x).for_each(|((sum, dy), x)| *sum += dy * x);
        }
    } else {
        for i in (0..whole).step_by(LANES) {
            for lane in 0..LANES {
                sums[lane] += dy[i + lane] * x[(i + lane) * step];
            }
        }
    }
    for i in whole..dy.len() {
        sums[i - whole] += dy[i] * x[i * step];
    }
}

/// Calls `each(r, s, output row, image row, output columns, first image column)` wherever a tap meets the image.
#[inline(always)]
fn each_row(g: &Geometry, mut each: impl FnMut(usize, usize, usize, usize, std::ops::Range<usize>, usize)) {
    for tap in 0..g.n_taps() {
        let (r, s) = (tap / g.kernel[1], tap % g.kernel[1]);
        each_row_of(g, tap, |p, row, columns, from| each(r, s, p, row, columns, from));
    }
}

/// [`each_row`] for one tap.
#[inline(always)]
fn each_row_of(g: &Geometry, tap: usize, mut each: impl FnMut(usize, usize, std::ops::Range<usize>, usize)) {
    let (r, s) = (tap / g.kernel[1], tap % g.kernel[1]);
    let (columns, from) = inside(g, s);
    if columns.is_empty() {
        return;
    }
    for p in 0..g.output[0] {
        if let Some(row) = image_row(g, r, p) {
            each(p, row, columns.clone(), from);
        }
    }
}
