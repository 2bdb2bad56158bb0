//! Convolutions as matrix products whose patches are read straight from the images.

use std::ops::Range;

use rayon::prelude::*;

use super::depthwise;
use super::gemm::{self, Along, Bias, Columns, Dense, Output, Product, Size, Source, Target};
use super::isa::Isa;
use super::window::Window;

/// All sizes of a convolution. Pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Images in the batch.
    pub(crate) images: usize,
    /// Groups that channels are divided into.
    pub(crate) groups: usize,
    /// Channels of the input.
    pub(crate) inputs: usize,
    /// Channels of the output.
    pub(crate) outputs: usize,
    /// Size of an input image.
    pub(crate) input: [usize; 2],
    /// Size of an output image.
    pub(crate) output: [usize; 2],
    /// Size of the kernel.
    pub(crate) kernel: [usize; 2],
    /// Pixels between neighbouring positions.
    pub(crate) stride: [usize; 2],
    /// Zeros around the input.
    pub(crate) padding: [usize; 2],
    /// Pixels between neighbouring taps.
    pub(crate) dilation: [usize; 2],
}

impl Geometry {
    pub(crate) fn group_inputs(&self) -> usize {
        self.inputs / self.groups
    }

    pub(crate) fn group_outputs(&self) -> usize {
        self.outputs / self.groups
    }

    pub(crate) fn input_plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    pub(crate) fn output_plane(&self) -> usize {
        self.output[0] * self.output[1]
    }

    pub(crate) fn n_taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Weights of one output channel.
    fn patch(&self) -> usize {
        self.group_inputs() * self.n_taps()
    }

    /// Multiply-adds as operations, zeros of the padding included.
    pub(crate) fn flops(&self) -> f64 {
        2.0 * (self.images * self.outputs * self.output_plane()) as f64 * self.patch() as f64
    }

    /// Patches of one group's input.
    fn patches<'a>(&self, x: &'a [f32], group: usize, along: Along) -> Window<'a> {
        Window {
            data: &x[group * self.group_inputs() * self.input_plane()..],
            steps: [self.inputs * self.input_plane(), self.input_plane()],
            size: self.input,
            grid: self.output,
            stride: self.stride,
            taps: self.kernel,
            first: [-(self.padding[0] as isize), -(self.padding[1] as isize)],
            tap_step: [self.dilation[0] as isize, self.dilation[1] as isize],
            along,
        }
    }

    fn forward_size(&self) -> Size {
        Size { batch: self.groups, m: self.group_outputs(), n: self.images * self.output_plane(), k: self.patch() }
    }

    fn weight_grad_size(&self) -> Size {
        Size { batch: self.groups, m: self.patch(), n: self.group_outputs(), k: self.images * self.output_plane() }
    }

    fn phase_size(&self, phase: &Phase) -> Size {
        Size {
            batch: self.groups,
            m: self.group_inputs(),
            n: self.images * phase.0[0].n_pixels * phase.0[1].n_pixels,
            k: self.group_outputs() * phase.n_taps(),
        }
    }

    /// Input pixels that share their taps: those with one remainder by the stride in each direction.
    fn phases(&self) -> impl Iterator<Item = Phase> + '_ {
        let [height, width] = [0, 1].map(|axis| self.stride[axis].min(self.input[axis]));
        (0..height * width).map(move |index| Phase::new(self, [index / width, index % width]))
    }
}

/// Input pixels with one remainder by the stride in each direction (height, width), and the taps that reach them.
#[derive(Clone, Copy, Debug)]
struct Phase([Axis; 2]);

/// One direction of a [`Phase`].
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// First pixel; the others follow at the stride.
    offset: usize,
    /// Number of pixels.
    n_pixels: usize,
    /// Taps `first_tap`, `first_tap` + `tap_step`, …
    first_tap: usize,
    tap_step: usize,
    n_taps: usize,
    /// Output pixel that the first tap takes to the first pixel, and how much further the next tap's is.
    first_output: isize,
    output_step: isize,
}

impl Phase {
    fn new(g: &Geometry, offset: [usize; 2]) -> Self {
        let mut phase = Self([0, 1].map(|axis| Axis::new(g, axis, offset[axis])));
        if phase.n_taps() == 0 {
            phase.0.iter_mut().for_each(|axis| axis.n_taps = 0);
        }
        phase
    }

    fn n_taps(&self) -> usize {
        self.0[0].n_taps * self.0[1].n_taps
    }
}

impl Axis {
    fn new(g: &Geometry, axis: usize, offset: usize) -> Self {
        let stride = g.stride[axis];
        // Tap r takes output p to input p·stride − padding + r·dilation.
        let distance = |tap: usize| (offset + g.padding[axis]) as isize - (tap * g.dilation[axis]) as isize;
        let mut taps = (0..g.kernel[axis]).filter(|&tap| distance(tap).rem_euclid(stride as isize) == 0);
        let (first, second) = (taps.next(), taps.next());
        let first_tap = first.unwrap_or(0);
        let second_tap = second.unwrap_or(first_tap);
        let output = |tap: usize| distance(tap).div_euclid(stride as isize);
        Self {
            offset,
            n_pixels: (g.input[axis] - offset).div_ceil(stride),
            first_tap,
            tap_step: second_tap - first_tap,
            n_taps: first.iter().len() + second.iter().len() + taps.count(),
            first_output: output(first_tap),
            output_step: output(second_tap) - output(first_tap),
        }
    }
}

/// Weights as the matrix with a row for each input channel of a group and a column for each output channel and tap of a phase; for kernels of one
/// tap its transpose, which is what is in memory.
#[derive(Clone, Copy, Debug)]
struct PhaseWeights<'a> {
    /// From the group's first output channel on.
    weights: &'a [f32],
    n_inputs: usize,
    kernel: [usize; 2],
    phase: Phase,
}

impl Source for PhaseWeights<'_> {
    fn along(&self) -> Along {
        if self.kernel == [1, 1] { Along::Across } else { Along::Sum }
    }

    fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
        if self.kernel == [1, 1] {
            let weights = Dense { data: self.weights, stride: self.n_inputs, along: Along::Across };
            return weights.read(isa, rows, columns, to, stride);
        }
        /// Taps whose places are worked out once.
        const KEPT: usize = 64;
        let n_taps = self.phase.n_taps();
        let [vertical, horizontal] = self.phase.0;
        let plane = self.kernel[0] * self.kernel[1];
        let place = |tap: usize| {
            let r = vertical.first_tap + tap / horizontal.n_taps * vertical.tap_step;
            let s = horizontal.first_tap + tap % horizontal.n_taps * horizontal.tap_step;
            r * self.kernel[1] + s
        };
        let mut places = [0; KEPT];
        places.iter_mut().enumerate().take(n_taps).for_each(|(tap, at)| *at = place(tap));
        let mut column = columns.start;
        while column < columns.end {
            let (k, first) = (column / n_taps, column % n_taps);
            let taps = first..(first + columns.end - column).min(n_taps);
            let from = &self.weights[(k * self.n_inputs + rows.start) * plane..][..rows.len() * plane];
            let to = &mut to[column - columns.start..];
            for (row, from) in from.chunks_exact(plane).enumerate() {
                let to = &mut to[row * stride..][..taps.len()];
                if n_taps == plane {
                    to.iter_mut().zip(&from[taps.clone()]).for_each(|(to, from)| *to = *from);
                } else if let Some(places) = places[..n_taps.min(KEPT)].get(taps.clone()) {
                    to.iter_mut().zip(places).for_each(|(to, &place)| *to = from[place]);
                } else {
                    to.iter_mut().zip(taps.clone()).for_each(|(to, tap)| *to = from[place(tap)]);
                }
            }
            column += taps.len();
        }
    }
}

/// Floats of scratch for [`forward`].
pub(crate) fn forward_workspace(g: &Geometry, threads: usize) -> usize {
    if depthwise::takes(g) { 0 } else { gemm::workspace_floats(g.forward_size(), false, threads) }
}

/// Output from input, weight and bias. Product of weights and patches.
pub(crate) fn forward(
    g: &Geometry,
    (x, w, bias): (&[f32], &[f32], Option<&[f32]>),
    y: &mut [f32],
    workspace: &mut [f32],
    threads: usize,
) {
    if depthwise::takes(g) {
        return depthwise::forward(g, x, w, bias, y);
    }
    let output = Output::new(y);
    gemm::multiply(g.forward_size(), threads, workspace, |group| Product {
        a: Dense { data: &w[group * g.group_outputs() * g.patch()..], stride: g.patch(), along: Along::Sum },
        b: g.patches(x, group, Along::Across),
        c: Target {
            output,
            start: group * g.group_outputs() * g.output_plane(),
            row_step: g.output_plane(),
            columns: Columns::Pixels { size: [1, g.output_plane()], steps: [g.outputs * g.output_plane(), 0, 1] },
            bias: bias.map_or(Bias::None, |bias| Bias::Rows(&bias[group * g.group_outputs()..])),
            accumulate: false,
        },
    });
}

/// Floats of scratch for [`input_grad`].
pub(crate) fn input_grad_workspace(g: &Geometry, threads: usize) -> usize {
    if depthwise::takes(g) {
        return 0;
    }
    g.phases().map(|phase| gemm::workspace_floats(g.phase_size(&phase), false, threads)).max().unwrap_or(0)
}

/// Gradient of the input from that of the output, and the weight. Phase by phase of the stride, a product of weights and patches of the output's gradient.
pub(crate) fn input_grad(
    g: &Geometry,
    (dy, w): (&[f32], &[f32]),
    dx: &mut [f32],
    workspace: &mut [f32],
    threads: usize,
) {
    if depthwise::takes(g) {
        return depthwise::input_grad(g, dy, w, dx);
    }
    if g.phases().any(|phase| phase.n_taps() == 0) {
        dx.par_chunks_mut(g.input_plane()).for_each(|plane| plane.fill(0.0));
    }
    let output = Output::new(dx);
    for phase in g.phases().filter(|phase| phase.n_taps() > 0) {
        let [vertical, horizontal] = phase.0;
        let grid = [vertical.n_pixels, horizontal.n_pixels];
        let image = g.inputs * g.input_plane();
        let columns = if g.stride == [1, 1] {
            Columns::Pixels { size: [1, g.input_plane()], steps: [image, 0, 1] }
        } else {
            Columns::Pixels { size: grid, steps: [image, g.stride[0] * g.input[1], g.stride[1]] }
        };
        gemm::multiply(g.phase_size(&phase), threads, workspace, |group| Product {
            a: PhaseWeights {
                weights: &w[group * g.group_outputs() * g.patch()..],
                n_inputs: g.group_inputs(),
                kernel: g.kernel,
                phase,
            },
            b: Window {
                data: &dy[group * g.group_outputs() * g.output_plane()..],
                steps: [g.outputs * g.output_plane(), g.output_plane()],
                size: g.output,
                grid,
                stride: [1, 1],
                taps: [vertical.n_taps, horizontal.n_taps],
                first: [vertical.first_output, horizontal.first_output],
                tap_step: [vertical.output_step, horizontal.output_step],
                along: Along::Across,
            },
            c: Target {
                output,
                start: group * g.group_inputs() * g.input_plane() + vertical.offset * g.input[1] + horizontal.offset,
                row_step: g.input_plane(),
                columns,
                bias: Bias::None,
                accumulate: false,
            },
        });
    }
}

/// Floats of scratch for [`weight_grad`].
pub(crate) fn weight_grad_workspace(g: &Geometry, threads: usize) -> usize {
    if depthwise::takes(g) {
        return 0;
    }
    gemm::workspace_floats(g.weight_grad_size(), g.patch() != 1, threads)
}

/// Gradient of the weight from that of the output, and the input. Product of patches and the output's gradient, transposed.
pub(crate) fn weight_grad(
    g: &Geometry,
    (dy, x): (&[f32], &[f32]),
    dw: &mut [f32],
    workspace: &mut [f32],
    threads: usize,
) {
    if depthwise::takes(g) {
        return depthwise::weight_grad(g, dy, x, dw);
    }
    let output = Output::new(dw);
    gemm::multiply(g.weight_grad_size(), threads, workspace, |group| Product {
        a: g.patches(x, group, Along::Sum),
        b: Window {
            data: &dy[group * g.group_outputs() * g.output_plane()..],
            steps: [g.outputs * g.output_plane(), g.output_plane()],
            size: [1, g.output_plane()],
            grid: [1, g.output_plane()],
            stride: [1, 1],
            taps: [1, 1],
            first: [0, 0],
            tap_step: [1, 1],
            along: Along::Sum,
        },
        c: Target {
            output,
            start: group * g.group_outputs() * g.patch(),
            row_step: 1,
            columns: Columns::Even { step: g.patch() },
            bias: Bias::None,
            accumulate: false,
        },
    });
}
