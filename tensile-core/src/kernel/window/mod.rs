//! Patches of images as a matrix that is never formed.
//!
//! A convolution is a product with the matrix that has a row for each channel and tap (kernel position) and a column for each output pixel of each image, and
//! holds the input pixel that the tap meets there, or zero outside the image. [`Window`] reads blocks of it straight from the images.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

use super::gemm::{Along, Source};
use super::isa::Isa;

/// The matrix of patches. Row channel·taps + tap, column (image, y, x) in order; taps are in row-major order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    /// Images from the first channel that is used.
    pub(crate) data: &'a [f32],
    /// Floats from one image to the next and from one channel to the next.
    pub(crate) steps: [usize; 2],
    /// Height and width of the images.
    pub(crate) size: [usize; 2],
    /// Height and width of the grid of columns.
    pub(crate) grid: [usize; 2],
    /// Pixels between neighbours of that grid.
    pub(crate) stride: [usize; 2],
    /// Rows and columns of taps.
    pub(crate) taps: [usize; 2],
    /// Where the first tap of the grid's first pixel is; may be outside.
    pub(crate) first: [isize; 2],
    /// Pixels from one tap to the next; may be negative.
    pub(crate) tap_step: [isize; 2],
    /// What rows of this matrix run along.
    pub(crate) along: Along,
}

/// Grid pixels of one grid row.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// First column, counted from the first one of the block.
    lane: usize,
    len: usize,
    image: usize,
    y: usize,
    x: usize,
}

impl Segment {
    const EMPTY: Self = Self { lane: 0, len: 0, image: 0, y: 0, x: 0 };
}

impl Window<'_> {
    fn n_taps(&self) -> usize {
        self.taps[0] * self.taps[1]
    }

    /// Row of the image that a tap meets at grid row `y`, if there is one.
    fn image_row(&self, tap: usize, y: usize) -> Option<usize> {
        let row = (y * self.stride[0]) as isize + self.first[0] + (tap / self.taps[1]) as isize * self.tap_step[0];
        (row >= 0 && row < self.size[0] as isize).then_some(row as usize)
    }

    /// Column of the image that a tap meets at grid column 0.
    fn shift(&self, tap: usize) -> isize {
        self.first[1] + (tap % self.taps[1]) as isize * self.tap_step[1]
    }

    /// Grid columns at which a tap with this shift meets the image.
    fn inside(&self, shift: isize) -> Range<usize> {
        let stride = self.stride[1];
        let start = if shift < 0 { shift.unsigned_abs().div_ceil(stride) } else { 0 };
        let end = (self.size[1] as isize - shift).max(0) as usize;
        start..end.div_ceil(stride).min(self.grid[1]).max(start)
    }

    /// Calls `each` for the segments of some columns.
    #[inline(always)]
    fn segments(&self, columns: Range<usize>, mut each: impl FnMut(Segment)) {
        let [height, width] = self.grid;
        let (mut row, mut x) = (columns.start / width, columns.start % width);
        let (mut image, mut y) = (row / height, row % height);
        let mut column = columns.start;
        while column < columns.end {
            let len = (width - x).min(columns.end - column);
            each(Segment { lane: column - columns.start, len, image, y, x });
            column += len;
            (row, x) = (row + 1, 0);
            y += 1;
            if y == height {
                (image, y) = (row / height, 0);
            }
        }
    }

    /// Channels for which a tap is among some rows.
    fn channels(&self, tap: usize, rows: &Range<usize>) -> Range<usize> {
        let n_taps = self.n_taps();
        let from = |row: usize| row.saturating_sub(tap).div_ceil(n_taps);
        from(rows.start)..from(rows.end)
    }

    /// [`Source::read`] in plain Rust.
    fn read_portable(&self, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
        self.segments(columns, |segment| {
            for tap in 0..self.n_taps() {
                let shift = self.shift(tap);
                let inside = self.inside(shift);
                let last = segment.x + segment.len;
                let (start, end) = (inside.start.clamp(segment.x, last), inside.end.clamp(segment.x, last));
                let image_row = self.image_row(tap, segment.y).filter(|_| start < end);
                for channel in self.channels(tap, &rows) {
                    let to = &mut to[(channel * self.n_taps() + tap - rows.start) * stride + segment.lane..];
                    let to = &mut to[..segment.len];
                    let Some(image_row) = image_row else {
                        to.fill(0.0);
                        continue;
                    };
                    let row = segment.image * self.steps[0] + channel * self.steps[1] + image_row * self.size[1];
                    let from = &self.data[row + (start * self.stride[1]).wrapping_add_signed(shift)..];
                    to[..start - segment.x].fill(0.0);
                    to[end - segment.x..].fill(0.0);
                    let to = &mut to[start - segment.x..end - segment.x];
                    if self.stride[1] == 1 {
                        to.copy_from_slice(&from[..to.len()]);
                    } else {
                        to.iter_mut().zip(from.iter().step_by(self.stride[1])).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        });
    }
}

impl Source for Window<'_> {
    fn along(&self) -> Along {
        self.along
    }

    fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::read(self, rows, columns, to, stride),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::read(self, rows, columns, to, stride),
            _ => self.read_portable(rows, columns, to, stride),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::values;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn all_families_read_the_same(
            [images, channels] in [1usize..4, 1..4],
            size in [1usize..20, 1..40],
            grid in prop_oneof![Just(None), [1usize..20, 1..40].prop_map(Some)],
            stride in prop_oneof![Just([1, 1]), [1usize..4, 1..4]],
            taps in prop_oneof![Just([1, 1]), Just([3, 3]), [1usize..9, 1..10]],
            first in prop_oneof![Just([0, 0]), Just([-1, -1]), [-9isize..9, -9..9]],
            tap_step in prop_oneof![Just([1, 1]), Just([-1, -1]), [-2isize..3, -2..3]],
            corner in [0.0f64..1.0, 0.0..1.0],
            span in [0.0f64..1.0, 0.0..1.0],
        ) {
            let data = values(images * channels * size[0] * size[1], 1);
            let plane = size[0] * size[1];
            let grid = grid.unwrap_or(size);
            let window = Window {
                data: &data, steps: [channels * plane, plane], size, grid, stride, taps, first, tap_step, along: Along::Sum,
            };
            let range = |n: usize, corner: f64, span: f64| {
                let start = (n as f64 * corner) as usize;
                start..start + 1 + ((n - start - 1) as f64 * span) as usize
            };
            let rows = range(channels * taps[0] * taps[1], corner[0], span[0]);
            let columns = range(images * grid[0] * grid[1], corner[1], span[1]);
            let stride = columns.len() + 3;
            let mut expected = vec![7.0; rows.len() * stride];
            window.read_portable(rows.clone(), columns.clone(), &mut expected, stride);
            for isa in Isa::all() {
                let mut found = vec![7.0; rows.len() * stride];
                window.read(isa, rows.clone(), columns.clone(), &mut found, stride);
                prop_assert!(found == expected, "{isa:?} {window:?} {rows:?} {columns:?}");
            }
        }
    }
}
