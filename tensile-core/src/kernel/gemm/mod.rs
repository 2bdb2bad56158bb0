//! Matrix products C = A·B (+ bias, or + C) in f32, from operands that need not be matrices in memory.
//!
//! ```text
//!            columns ──►
//!          ┌────────────────┐
//!          │ B: one panel    │  packed: up to 256 deep, as wide as one tile or a few   (L1, L2)
//!          └────────────────┘
//!  ┌─────┐ ┌───┬───┬───┬────┐
//!  │ A   │ │   │   │   │    │  each piece of C is one task: it belongs to one thread,
//!  │rows │ ├───┼───┼───┼────┤  which packs what it needs of A and B into scratch of its own
//!  │     │ │   │   │   │    │  and goes through the sum from its start to its end
//!  └─────┘ └───┴───┴───┴────┘
//!   packed in blocks of some hundred rows, 256 deep   (L2)
//! ```
//!
//! An element of C is a sum of blocks of at most 256 terms, cut by the length of the sum alone; a block is a sum of chains of 64 multiply-adds in order (rounding
//! grows with the length of a chain). Neither the pieces nor the tiles nor the number of threads change that, so neither do they change a bit of the result.
//!
//! The scheme of blocks and packing is that of Goto and van de Geijn, *Anatomy of High-Performance Matrix Multiplication* (2008). Here packing reads through
//! a [`Source`], so that a convolution packs patches straight from the image, and every thread packs for itself, so that nothing waits.

pub(crate) mod avx2;
pub(crate) mod avx512;
mod grid;
pub(crate) mod portable;
mod source;
mod target;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

pub(crate) use grid::Size;
use grid::{Grid, part};
pub(crate) use source::{Along, Dense, Source};
pub(crate) use target::{Bias, Block, Columns, Output, Target};

use crate::kernel::isa::Isa;

/// Most terms in a block of the sum.
const DEPTH: usize = 256;
/// Most terms that are added up one after another.
pub(crate) const CHAIN: usize = 64;
/// Floats between packed rows of A: not a power of two, so that the rows of a tile do not meet in one set of the cache.
pub(crate) const PACKED_ROW: usize = DEPTH + 16;
/// Most columns of any family's tile.
pub(crate) const MOST_COLUMNS: usize = 32;
/// Most rows of any family's tile.
const MOST_ROWS: usize = 14;
/// Rows of B, or columns of A, that are transposed at a time.
const TRANSPOSED: usize = 64;
/// Floats between rows that wait to be transposed.
const TRANSPOSED_ROW: usize = TRANSPOSED + 16;
/// Floats for rows that wait to be transposed.
const SCRATCH: usize = MOST_COLUMNS * TRANSPOSED_ROW;

/// Operands and result of one product.
#[derive(Debug)]
pub(crate) struct Product<'a, A, B> {
    /// m × k.
    pub(crate) a: A,
    /// k × n.
    pub(crate) b: B,
    /// m × n.
    pub(crate) c: Target<'a>,
}

/// Floats of scratch that [`multiply`] needs on some threads. `transposed` is [`Target::is_transposed`].
pub(crate) fn workspace_floats(size: Size, transposed: bool, threads: usize) -> usize {
    workspace_floats_with(Isa::detect(), size, transposed, threads)
}

fn workspace_floats_with(isa: Isa, size: Size, transposed: bool, threads: usize) -> usize {
    threads * Slot::lengths(isa, size, &grid(isa, size, transposed, threads), transposed).iter().sum::<usize>()
}

/// Whether a piece's sums stay in scratch until they are whole: where each block, or each of many, would be slow to transpose.
fn keeps_sums(isa: Isa, size: Size, transposed: bool) -> bool {
    transposed && (isa != Isa::Avx512 || size.k > 4 * DEPTH)
}

fn grid(isa: Isa, size: Size, transposed: bool, threads: usize) -> Grid {
    // Pieces with sums in scratch are kept small.
    let limit = if keeps_sums(isa, size, transposed) { [isa.row_block().min(280), 256] } else { [usize::MAX / 2; 2] };
    Grid::new(isa, size, limit, threads)
}

/// Computes the products `product(0)`, … of a batch, all of one size, on `threads` threads. Targets of the batch must not overlap.
///
/// # Panics
/// If `workspace` is shorter than [`workspace_floats`] says, or a source or target does not have the size.
pub(crate) fn multiply<'a, A: Source, B: Source>(
    size: Size,
    threads: usize,
    workspace: &mut [f32],
    product: impl Fn(usize) -> Product<'a, A, B> + Sync,
) {
    multiply_with(Isa::detect(), size, threads, workspace, product);
}

/// [`multiply`] with given instructions.
pub(crate) fn multiply_with<'a, A: Source, B: Source>(
    isa: Isa,
    size: Size,
    threads: usize,
    workspace: &mut [f32],
    product: impl Fn(usize) -> Product<'a, A, B> + Sync,
) {
    if size.batch == 0 || size.m == 0 || size.n == 0 {
        return;
    }
    let transposed = product(0).c.is_transposed();
    let grid = grid(isa, size, transposed, threads);
    let lengths = Slot::lengths(isa, size, &grid, transposed);
    let slot = lengths.iter().sum();
    assert!(workspace.len() >= threads * slot, "scratch of {} floats, not {}", workspace.len(), threads * slot);
    let next = AtomicUsize::new(0);
    let work = |scratch: &mut [f32]| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= grid.tasks(size) {
                return;
            }
            let (index, rows, columns) = grid.task(isa, size, task);
            let slot = Slot::new(lengths, scratch);
            piece(isa, &product(index), size.k, rows, columns, slot);
        }
    };
    if threads == 1 || grid.tasks(size) == 1 {
        work(&mut workspace[..slot]);
    } else {
        workspace.par_chunks_mut(slot).take(threads).for_each(work);
    }
}

/// A thread's scratch.
struct Slot<'a> {
    a: &'a mut [f32],
    panel: &'a mut [f32],
    transposed: &'a mut [f32],
    /// Sums of one piece, row-major, where the target would be slow to add to; else empty.
    c: &'a mut [f32],
}

impl<'a> Slot<'a> {
    /// Lengths of the parts.
    fn lengths(isa: Isa, size: Size, grid: &Grid, transposed: bool) -> [usize; 4] {
        let a = grid.rows.min(isa.row_block()).next_multiple_of(MOST_COLUMNS) * PACKED_ROW;
        let panel = size.k.next_multiple_of(16).clamp(16, DEPTH) * isa.panel_row();
        let c = if keeps_sums(isa, size, transposed) { grid.rows * grid.columns } else { 0 };
        [a, panel, SCRATCH, c.next_multiple_of(16)]
    }

    fn new([a, panel, transposed, c]: [usize; 4], scratch: &'a mut [f32]) -> Self {
        let (a, rest) = scratch.split_at_mut(a);
        let (panel, rest) = rest.split_at_mut(panel);
        let (transposed, rest) = rest.split_at_mut(transposed);
        Self { a, panel, transposed, c: &mut rest[..c] }
    }
}

/// Computes one piece of C.
fn piece<A: Source, B: Source>(
    isa: Isa,
    product: &Product<'_, A, B>,
    depth: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    slot: Slot<'_>,
) {
    let Slot { a, panel, transposed, c } = slot;
    if c.is_empty() {
        sum(isa, product, &product.c, depth, (rows, columns), (a, panel, transposed));
        return;
    }
    let sums = Target {
        output: Output::new(c),
        start: 0,
        row_step: columns.len(),
        columns: Columns::Even { step: 1 },
        bias: Bias::None,
        accumulate: false,
    };
    // The local target counts rows and columns from the piece's own corner.
    let local = Corner { source: &product.a, shift: rows.start };
    let (b, c_columns) = (Corner { source: &product.b, shift: columns.start }, columns.len());
    let shifted = Product { a: local, b, c: sums };
    sum(isa, &shifted, &sums, depth, (0..rows.len(), 0..c_columns), (a, panel, transposed));
    for first in columns.clone().step_by(MOST_COLUMNS) {
        let last = (first + MOST_COLUMNS).min(columns.end);
        let runs = product.c.runs(first..last);
        let tile = &c[first - columns.start..];
        product.c.store(isa, tile, c_columns, rows.clone(), &runs, product.c.accumulate);
    }
}

/// A source seen from another first row of A or column of B.
struct Corner<'a, S> {
    source: &'a S,
    shift: usize,
}

impl<S: Source> Source for Corner<'_, S> {
    fn along(&self) -> Along {
        self.source.along()
    }

    fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
        let shift = |range: Range<usize>| range.start + self.shift..range.end + self.shift;
        match self.along() {
            Along::Sum => self.source.read(isa, shift(rows), columns, to, stride),
            Along::Across => self.source.read(isa, rows, shift(columns), to, stride),
        }
    }
}

/// Sums one piece into a target, block by block.
fn sum<A: Source, B: Source>(
    isa: Isa,
    product: &Product<'_, A, B>,
    target: &Target<'_>,
    depth: usize,
    (rows, columns): (Range<usize>, Range<usize>),
    (packed_a, panel, transposed): (&mut [f32], &mut [f32], &mut [f32]),
) {
    let mut tile = [0.0f32; MOST_ROWS * MOST_COLUMNS];
    let width = isa.tile_columns();
    let n_row_blocks = rows.len().div_ceil(isa.row_block());
    let n_blocks = depth.div_ceil(DEPTH).max(1);
    for row_block in 0..n_row_blocks {
        let rows = part(&rows, n_row_blocks, row_block, 1);
        let n_tiles = rows.len().div_ceil(isa.tile_rows());
        for block in 0..n_blocks {
            let terms = part(&(0..depth), n_blocks, block, 1);
            pack_a(isa, &product.a, rows.clone(), terms.clone(), packed_a, transposed);
            for start in columns.clone().step_by(isa.panel_columns()) {
                let panel_lanes = start..(start + isa.panel_columns()).min(columns.end);
                pack_b(isa, &product.b, terms.clone(), panel_lanes.clone(), panel, transposed);
                for first in panel_lanes.clone().step_by(width) {
                    let runs = target.runs(first..(first + width).min(panel_lanes.end));
                    let b = &panel[first - start..];
                    for index in 0..n_tiles {
                        let tile_rows = part(&rows, n_tiles, index, 1);
                        let a = &packed_a[(tile_rows.start - rows.start) * PACKED_ROW..];
                        target.prefetch(isa, tile_rows.clone(), &runs);
                        isa.tile(tile_rows.len(), terms.len(), a, b, &mut tile);
                        let add = block > 0 || target.accumulate;
                        target.store(isa, &tile, width, tile_rows, &runs, add);
                    }
                }
            }
        }
    }
}

/// Packs rows of A: one after another, [`PACKED_ROW`] apart.
fn pack_a<A: Source>(isa: Isa, a: &A, rows: Range<usize>, terms: Range<usize>, to: &mut [f32], transposed: &mut [f32]) {
    if a.along() == Along::Sum {
        a.read(isa, rows, terms, to, PACKED_ROW);
        return;
    }
    for row in rows.clone().step_by(MOST_COLUMNS) {
        let some_rows = row..(row + MOST_COLUMNS).min(rows.end);
        for term in terms.clone().step_by(TRANSPOSED) {
            let some_terms = term..(term + TRANSPOSED).min(terms.end);
            a.read(isa, some_terms.clone(), some_rows.clone(), transposed, MOST_COLUMNS);
            let block = (some_terms.len().next_multiple_of(16), some_rows.len().next_multiple_of(16));
            let to = &mut to[(row - rows.start) * PACKED_ROW + (term - terms.start)..];
            isa.transpose(block, (transposed, MOST_COLUMNS), (to, PACKED_ROW));
        }
    }
}

/// Packs a panel of B: its rows one after another. Lanes past the last column hold anything; nobody reads their sums.
fn pack_b<B: Source>(
    isa: Isa,
    b: &B,
    terms: Range<usize>,
    lanes: Range<usize>,
    to: &mut [f32],
    transposed: &mut [f32],
) {
    let row = isa.panel_row();
    if b.along() == Along::Across {
        b.read(isa, terms, lanes, to, row);
        return;
    }
    for lane in lanes.clone().step_by(MOST_COLUMNS) {
        let some_lanes = lane..(lane + MOST_COLUMNS).min(lanes.end);
        for term in terms.clone().step_by(TRANSPOSED) {
            let some_terms = term..(term + TRANSPOSED).min(terms.end);
            b.read(isa, some_lanes.clone(), some_terms.clone(), transposed, TRANSPOSED_ROW);
            let block = (some_lanes.len().next_multiple_of(16), some_terms.len().next_multiple_of(16));
            let to = &mut to[(term - terms.start) * row + (lane - lanes.start)..];
            isa.transpose(block, (transposed, TRANSPOSED_ROW), (to, row));
        }
    }
}

#[cfg(test)]
mod tests;
