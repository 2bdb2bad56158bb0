//! How a batch of products is cut into tasks. Changes nothing but the time.

use std::ops::Range;

use crate::kernel::isa::Isa;

/// Sizes of a batch of products: `batch` times m × k by k × n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Number of products.
    pub(crate) batch: usize,
    /// Rows of A and C.
    pub(crate) m: usize,
    /// Columns of B and C.
    pub(crate) n: usize,
    /// Length of the sum.
    pub(crate) k: usize,
}

/// A cut of C into pieces of equal size, but for the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    row_parts: usize,
    column_parts: usize,
    /// Most rows of a piece.
    pub(super) rows: usize,
    /// Most columns of a piece.
    pub(super) columns: usize,
}

/// Time to pack one row of A and one panel of B, as multiples of the time for one row times one panel.
const PACK_A: f64 = 0.6;
const PACK_B: f64 = 8.0;
/// Time that a task costs by itself, in the same unit.
const TASK: f64 = 20.0;
/// Part of a task's time for which threads wait for each other at the end: something else may slow one of them down.
const TAIL: f64 = 0.25;

impl Grid {
    /// The cut with the least estimated time on some threads, among those with pieces of at most `limit` rows and columns. Tries some hundred cuts at most.
    pub(super) fn new(isa: Isa, size: Size, limit: [usize; 2], threads: usize) -> Self {
        let n_panels = size.n.div_ceil(isa.tile_columns()).max(1);
        let n_tiles = size.m.div_ceil(isa.tile_rows()).max(1);
        let least = [size.m.div_ceil(limit[0]), n_panels.div_ceil(limit[1] / isa.tile_columns()).max(1)];
        let most = 4 * threads;
        let mut best = (f64::INFINITY, (least[0], least[1]));
        for row_parts in least[0]..=most.min(n_tiles).max(least[0]) {
            for column_parts in least[1]..=(most / row_parts).min(n_panels).max(least[1]) {
                let rows = size.m.div_ceil(row_parts);
                let panels = n_panels.div_ceil(column_parts) as f64;
                let blocks = rows.div_ceil(isa.row_block()).max(1) as f64;
                let rows = rows as f64;
                let task = TASK + rows * panels + PACK_A * rows + PACK_B * panels * blocks;
                let rounds = (size.batch * row_parts * column_parts).div_ceil(threads) as f64;
                let time = (rounds + if threads > 1 { TAIL } else { 0.0 }) * task;
                if time < best.0 {
                    best = (time, (row_parts, column_parts));
                }
            }
        }
        let (row_parts, column_parts) = best.1;
        let columns = n_panels.div_ceil(column_parts) * isa.tile_columns();
        Self { row_parts, column_parts, rows: size.m.div_ceil(row_parts), columns: columns.min(size.n) }
    }

    /// Number of tasks.
    pub(super) fn tasks(&self, size: Size) -> usize {
        size.batch * self.row_parts * self.column_parts
    }

    /// A task: which product of the batch, and which rows and columns of it.
    pub(super) fn task(&self, isa: Isa, size: Size, task: usize) -> (usize, Range<usize>, Range<usize>) {
        let rows = part(&(0..size.m), self.row_parts, task % self.row_parts, 1);
        let task = task / self.row_parts;
        let columns = part(&(0..size.n), self.column_parts, task % self.column_parts, isa.tile_columns());
        (task / self.column_parts, rows, columns)
    }
}

/// One of `n` parts of a range, as equal as they can be in units of `unit`; the first ones are the larger ones. Parts may be empty.
pub(super) fn part(range: &Range<usize>, n: usize, index: usize, unit: usize) -> Range<usize> {
    let units = range.len().div_ceil(unit);
    let (each, more) = (units / n, units % n);
    let at = |index: usize| (range.start + (index * each + index.min(more)) * unit).min(range.end);
    at(index)..at(index + 1)
}
