//! Windows over the last two dimensions, for the pooling ops.

use std::ops::Range;

use super::OpError;
use super::elementwise::CHUNK;
use crate::tensor::{DType, TensorType};

/// Windows that slide over height and width; each pair is (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2d {
    /// Size of a window.
    pub kernel: [usize; 2],
    /// Distance between windows.
    pub stride: [usize; 2],
    /// Positions added on each side.
    pub padding: [usize; 2],
    /// Whether a last window that reaches past the end is kept, as long as it begins within the input or its padding on the left.
    pub ceil_mode: bool,
}

impl Pool2d {
    /// Square windows without padding, rounded down.
    pub fn new(kernel: usize, stride: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], padding: [0; 2], ceil_mode: false }
    }

    /// With padding on all four sides.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding: [padding; 2], ..self }
    }

    /// With the number of windows rounded up.
    pub fn ceil_mode(self) -> Self {
        Self { ceil_mode: true, ..self }
    }

    /// Number of windows along axis 0 (height) or 1 (width) of an input of that size, by PyTorch's rule.
    fn windows(&self, axis: usize, size: usize) -> usize {
        let (kernel, stride, padding) = (self.kernel[axis], self.stride[axis], self.padding[axis]);
        let room = size + 2 * padding - kernel;
        if !self.ceil_mode {
            return room / stride + 1;
        }
        let windows = room.div_ceil(stride) + 1;
        if (windows - 1) * stride >= size + padding { windows - 1 } else { windows }
    }

    /// Shape `f32[N, C, H, W]` of the output.
    pub(crate) fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, OpError> {
        let [x] = inputs else {
            return Err(OpError(format!("takes one input, not {}", inputs.len())));
        };
        let &[n, c, h, w] = x.dims() else {
            return Err(OpError("takes f32[N, C, H, W]".to_owned()));
        };
        if x.dtype != DType::F32 {
            return Err(OpError("takes f32[N, C, H, W]".to_owned()));
        }
        for (axis, size) in [h, w].into_iter().enumerate() {
            let (kernel, padding) = (self.kernel[axis], self.padding[axis]);
            if kernel == 0 || self.stride[axis] == 0 {
                return Err(OpError("needs kernel and stride above 0".to_owned()));
            }
            if padding > kernel / 2 {
                return Err(OpError(format!("has padding {padding}, more than half of its kernel of {kernel}")));
            }
            if size + 2 * padding < kernel {
                return Err(OpError(format!(
                    "has a kernel of {kernel}, more than size {size} with padding {padding} on each side"
                )));
            }
        }
        Ok(TensorType::f32([n, c, self.windows(0, h), self.windows(1, w)]))
    }

    /// Input positions of window `index` along an axis, without padding.
    pub(crate) fn window(&self, axis: usize, index: usize, size: usize) -> Range<usize> {
        let start = index * self.stride[axis];
        let end = (start + self.kernel[axis]).saturating_sub(self.padding[axis]).min(size);
        start.saturating_sub(self.padding[axis])..end
    }

    /// Those of `windows` along the width whose tap `tap` lies within an input of width `size`, and the input position of the first of them.
    pub(crate) fn taps(&self, tap: usize, size: usize, windows: Range<usize>) -> (Range<usize>, usize) {
        let (stride, padding) = (self.stride[1], self.padding[1]);
        // A division by any number takes as long as a short row.
        let windows_in = |n: usize| match stride {
            1 => n,
            2 => n.div_ceil(2),
            _ => n.div_ceil(stride),
        };
        let first = windows_in(padding.saturating_sub(tap)).max(windows.start);
        let end = windows_in((size + padding).saturating_sub(tap)).min(windows.end);
        if first >= end { (0..0, 0) } else { (first..end, first * stride + tap - padding) }
    }
}

/// Sizes of input and output planes.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    pub(crate) h: usize,
    pub(crate) w: usize,
    pub(crate) out_h: usize,
    pub(crate) out_w: usize,
}

impl Planes {
    pub(crate) fn of(x: &TensorType, y: &TensorType) -> Self {
        let (x, y) = (x.dims(), y.dims());
        Self { h: x[2], w: x[3], out_h: y[2], out_w: y[3] }
    }

    pub(crate) fn input(self) -> usize {
        self.h * self.w
    }

    pub(crate) fn output(self) -> usize {
        self.out_h * self.out_w
    }

    /// Planes a thread takes at a time.
    pub(crate) fn at_once(self) -> usize {
        (CHUNK / self.input().max(self.output())).max(1)
    }
}

/// Outputs of one row that are worked on at a time.
pub(crate) const TILE: usize = 64;

/// Calls `f(i, x[i · stride])` for i in 0..n, n ≥ 1; strides 1 and 2 vectorise.
///
/// Loops over ranges: other iterators count with a check for overflow where a profile asks for such checks, and then do not vectorise.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
pub(crate) fn strided(x: &[f32], stride: usize, n: usize, mut f: impl FnMut(usize, f32)) {
    match stride {
        1 => {
            let x = &x[..n];
            for i in 0..n {
                f(i, x[i]);
            }
        }
        2 => {
            // The last pair may be cut off by the end of the row.
            let pairs = x[..2 * n - 1].as_chunks::<2>().0;
            let pairs = &pairs[..n - 1];
            for i in 0..n - 1 {
                f(i, pairs[i][0]);
            }
            f(n - 1, x[2 * n - 2]);
        }
        _ => {
            for i in 0..n {
                f(i, x[i * stride]);
            }
        }
    }
}
