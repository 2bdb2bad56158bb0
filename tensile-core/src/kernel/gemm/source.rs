//! Operands: where packing reads from.

use std::ops::Range;

use crate::kernel::isa::Isa;

/// What the rows of a [`Source`] run along. They are contiguous in packing, so this is the direction in which memory should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Along {
    /// Rows of a source are rows of A, or columns of B: they run along the sum.
    Sum,
    /// Rows of a source are columns of A, or rows of B: they run across the sum.
    Across,
}

/// A matrix that can be read in blocks: one in memory, or one that is never formed, such as the patches of an image.
pub(crate) trait Source: Sync {
    /// What its rows run along.
    fn along(&self) -> Along;

    /// Writes the block `rows` × `columns` to `to`, row-major with rows `stride` apart. What lies between the rows stays as it is.
    fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize);
}

/// A row-major matrix in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense<'a> {
    /// From its first element on.
    pub(crate) data: &'a [f32],
    /// Elements between the starts of two rows.
    pub(crate) stride: usize,
    /// What its rows run along.
    pub(crate) along: Along,
}

impl Source for Dense<'_> {
    fn along(&self) -> Along {
        self.along
    }

    fn read(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        let from = &self.data[rows.start * self.stride + columns.start..];
        isa.copy((rows.len(), columns.len()), (from, self.stride), (to, stride));
    }
}
