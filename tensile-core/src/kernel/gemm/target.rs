//! Where a product goes: any layout of rows and columns in an output, with a bias added on the way.
//!
//! One of the modules with `unsafe` code: threads write disjoint elements of one output through a shared pointer.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use crate::kernel::gemm::MOST_COLUMNS;
use crate::kernel::isa::Isa;

/// An output that several threads write, each its own elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output<'a> {
    data: *mut f32,
    len: usize,
    _data: PhantomData<&'a mut [f32]>,
}

// SAFETY: holds a slice of f32 mutably; `multiply` hands different elements to different threads.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Takes a slice for writing.
    pub(crate) fn new(data: &'a mut [f32]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), _data: PhantomData }
    }
}

/// Where the columns of a product are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Columns {
    /// Column j at j·`step`.
    Even {
        /// Elements between neighbours.
        step: usize,
    },
    /// Columns are pixels of images, image by image and row by row.
    Pixels {
        /// Rows and columns of an image.
        size: [usize; 2],
        /// Elements from one image to the next, from one of its rows to the next, and from one pixel to the next.
        steps: [usize; 3],
    },
}

/// What is added to a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bias<'a> {
    /// Nothing.
    None,
    /// One value for each row.
    Rows(&'a [f32]),
    /// One value for each column.
    Columns(&'a [f32]),
}

/// Where a product goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// The output.
    pub(crate) output: Output<'a>,
    /// Element (0, 0).
    pub(crate) start: usize,
    /// Elements from one row to the next.
    pub(crate) row_step: usize,
    /// Where columns are.
    pub(crate) columns: Columns,
    /// Added to the product.
    pub(crate) bias: Bias<'a>,
    /// Whether the product is added to what is there; the bias must then be none.
    pub(crate) accumulate: bool,
}

/// Columns that are evenly spaced in the output.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// First column, counted from the first one of the tile.
    lane: usize,
    /// How many.
    len: usize,
    /// Where the first one is in row 0.
    start: usize,
}

/// Where the columns of one tile are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    runs: [Run; MOST_COLUMNS],
    n_runs: usize,
    step: usize,
    first_column: usize,
}

impl Target<'_> {
    /// Whether columns, not rows, are contiguous in memory, so that adding block after block to a tile would be slow.
    pub(crate) fn is_transposed(&self) -> bool {
        matches!(self.columns, Columns::Even { step } if step != 1)
    }

    /// Where some columns are, at most as many as a tile has.
    pub(crate) fn runs(&self, columns: Range<usize>) -> Runs {
        let mut runs = Runs { runs: [Run::default(); MOST_COLUMNS], n_runs: 0, step: 1, first_column: columns.start };
        match self.columns {
            Columns::Even { step } => {
                runs.step = step;
                runs.push(0, columns.len(), self.start + columns.start * step);
            }
            Columns::Pixels { size: [height, width], steps } => {
                runs.step = steps[2];
                let (mut row, mut x) = (columns.start / width, columns.start % width);
                let (mut image, mut y) = (row / height, row % height);
                let mut column = columns.start;
                while column < columns.end {
                    let len = (width - x).min(columns.end - column);
                    let start = self.start + image * steps[0] + y * steps[1] + x * steps[2];
                    runs.push(column - columns.start, len, start);
                    column += len;
                    (row, x) = (row + 1, 0);
                    y += 1;
                    if y == height {
                        (image, y) = (image + 1, 0);
                    }
                }
            }
        }
        runs
    }

    /// Asks for the memory of some rows of a tile, which are about to be written.
    #[inline]
    pub(crate) fn prefetch(&self, isa: Isa, rows: Range<usize>, runs: &Runs) {
        for run in &runs.runs[..runs.n_runs] {
            for row in rows.clone() {
                let first = run.start + row * self.row_step;
                for index in [first, first + (run.len - 1) * runs.step] {
                    isa.prefetch(self.output.data.wrapping_add(index));
                }
            }
        }
    }

    /// Puts the rows `rows` of a tile, which lie `stride` apart in `tile`, into their place: added to what is there, or instead of it with the bias added.
    pub(crate) fn store(&self, isa: Isa, tile: &[f32], stride: usize, rows: Range<usize>, runs: &Runs, add: bool) {
        if rows.is_empty() {
            return;
        }
        for run in &runs.runs[..runs.n_runs] {
            let last = run.start + (rows.end - 1) * self.row_step + (run.len - 1) * runs.step;
            assert!(last < self.output.len, "element {last} of an output of {}", self.output.len);
            let tile = &tile[run.lane..];
            assert!(tile.len() >= (rows.len() - 1) * stride + run.len, "the tile is too short");
            let first_column = runs.first_column + run.lane;
            let bias = match self.bias {
                _ if add => Bias::None,
                Bias::None => Bias::None,
                Bias::Rows(bias) => Bias::Rows(&bias[rows.clone()]),
                Bias::Columns(bias) => Bias::Columns(&bias[first_column..][..run.len]),
            };
            // SAFETY: no element of the run lies past the last one, which has been checked.
            let to = unsafe { self.output.data.add(run.start + rows.start * self.row_step) };
            let block =
                Block { rows: rows.len(), columns: run.len, from_stride: stride, to_steps: [self.row_step, runs.step] };
            // SAFETY: the driver gives each thread its own tiles; the block lies within the tile and the output, the bias fits it.
            unsafe { isa.store(block, tile, to, bias, add) };
        }
    }
}

/// Sizes of a piece of a tile with its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Rows; at least one.
    pub(crate) rows: usize,
    /// Columns, at least one and at most as many as a tile has.
    pub(crate) columns: usize,
    /// Floats between rows of the tile.
    pub(crate) from_stride: usize,
    /// Floats between rows and between columns of the output.
    pub(crate) to_steps: [usize; 2],
}

impl Block {
    /// Stores the block in plain Rust; see [`Isa::store`].
    ///
    /// # Safety
    /// `from` and `to` must be valid for the block, and no other thread may use these elements.
    #[inline(always)]
    pub(crate) unsafe fn store(self, from: *const f32, to: *mut f32, bias: Bias<'_>, add: bool) {
        for row in 0..self.rows {
            for column in 0..self.columns {
                let bias = match bias {
                    Bias::None => None,
                    Bias::Rows(bias) => Some(bias[row]),
                    Bias::Columns(bias) => Some(bias[column]),
                };
                // SAFETY: the element is in the block.
                unsafe {
                    let from = *from.add(row * self.from_stride + column);
                    let to = to.add(row * self.to_steps[0] + column * self.to_steps[1]);
                    *to = match (add, bias) {
                        (true, _) => *to + from,
                        (false, None) => from,
                        (false, Some(bias)) => from + bias,
                    };
                }
            }
        }
    }
}

impl Runs {
    fn push(&mut self, lane: usize, len: usize, start: usize) {
        self.runs[self.n_runs] = Run { lane, len, start };
        self.n_runs += 1;
    }
}
