//! Where a product goes: any layout of rows and columns in an output, with a bias added on the way.
//!
//! One of the modules with `unsafe` code: threads write disjoint elements of one output through a shared pointer.

use std::marker::PhantomData;
use std::ops::Range;

use crate::kernel::gemm::MOST_COLUMNS;

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

    /// Puts the rows `rows` of a tile, which lie `stride` apart in `tile`, into their place: added to what is there, or instead of it with the bias added.
    #[inline(always)]
    pub(crate) fn store(&self, tile: &[f32], stride: usize, rows: Range<usize>, runs: &Runs, add: bool) {
        for run in &runs.runs[..runs.n_runs] {
            let last = run.start + (rows.end - 1) * self.row_step + (run.len - 1) * runs.step;
            assert!(last < self.output.len, "element {last} of an output of {}", self.output.len);
            let first_column = runs.first_column + run.lane;
            for (i, row) in rows.clone().enumerate() {
                let from = &tile[i * stride + run.lane..][..run.len];
                // SAFETY: no element of the run lies past the last one, which has been checked; the driver gives each thread its own tiles.
                let to = unsafe { self.output.data.add(run.start + row * self.row_step) };
                if runs.step == 1 {
                    // SAFETY: as above; the elements of this run and row belong to this thread alone.
                    let to = unsafe { std::slice::from_raw_parts_mut(to, run.len) };
                    match (add, self.bias) {
                        (true, _) => to.iter_mut().zip(from).for_each(|(to, from)| *to += from),
                        (false, Bias::None) => to.copy_from_slice(from),
                        (false, Bias::Rows(bias)) => {
                            let bias = bias[row];
                            to.iter_mut().zip(from).for_each(|(to, from)| *to = from + bias);
                        }
                        (false, Bias::Columns(bias)) => {
                            let bias = &bias[first_column..][..run.len];
                            to.iter_mut().zip(from).zip(bias).for_each(|((to, from), bias)| *to = from + bias);
                        }
                    }
                } else {
                    for (j, &from) in from.iter().enumerate() {
                        let bias = match self.bias {
                            Bias::None => 0.0,
                            Bias::Rows(bias) => bias[row],
                            Bias::Columns(bias) => bias[first_column + j],
                        };
                        // SAFETY: as above.
                        unsafe {
                            let to = to.add(j * runs.step);
                            *to = match (add, self.bias) {
                                (true, _) => *to + from,
                                (false, Bias::None) => from,
                                (false, _) => from + bias,
                            };
                        }
                    }
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
