//! Vector instructions of this processor, chosen at run time.
//!
//! One of the modules with `unsafe` code: it calls functions compiled for instructions that [`Isa::detect`] has found.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use super::gemm::{Bias, Block, avx2, avx512, portable};

/// A family of vector instructions. The kernels of a process all use the same one, so that results depend on the processor only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// 16 lanes, masks and 32 registers. x86-64 only.
    Avx512,
    /// 8 lanes and fused multiply-add. x86-64 only.
    Avx2,
    /// Whatever the compiler's target has.
    Portable,
}

impl Isa {
    /// The best family that this processor has.
    pub(crate) fn detect() -> Self {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(|| Self::all().next().expect("the portable kernels run everywhere"))
    }

    /// All families that this processor has, the best one first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Avx512, Self::Avx2, Self::Portable].into_iter().filter(|isa| isa.is_available())
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Self::Portable => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// Most rows of a tile.
    pub(crate) fn tile_rows(self) -> usize {
        match self {
            Self::Avx512 => avx512::ROWS,
            Self::Avx2 => avx2::ROWS,
            Self::Portable => portable::ROWS,
        }
    }

    /// Columns of a tile; a multiple of 16.
    pub(crate) fn tile_columns(self) -> usize {
        match self {
            Self::Avx512 => avx512::COLUMNS,
            Self::Avx2 => avx2::COLUMNS,
            Self::Portable => portable::COLUMNS,
        }
    }

    /// Columns of B that are packed at a time; a multiple of a tile's.
    pub(crate) fn panel_columns(self) -> usize {
        match self {
            Self::Avx512 => avx512::COLUMNS,
            Self::Avx2 => avx2::PANEL_COLUMNS,
            Self::Portable => portable::COLUMNS,
        }
    }

    /// Floats between packed rows of B.
    pub(crate) fn panel_row(self) -> usize {
        match self {
            Self::Avx512 => avx512::COLUMNS,
            Self::Avx2 => avx2::PANEL_ROW,
            Self::Portable => portable::COLUMNS,
        }
    }

    /// Most rows of A that are packed at a time: what the second-level caches of such processors hold.
    pub(crate) fn row_block(self) -> usize {
        match self {
            Self::Avx512 => 560,
            Self::Avx2 | Self::Portable => 240,
        }
    }

    /// Runs `work`, compiled for these instructions where it is inlined: the compiler vectorises its loops with them.
    #[inline(always)]
    pub(crate) fn vectorize<R>(self, work: impl FnOnce() -> R) -> R {
        match self {
            // SAFETY: `detect` and `all` give families that the processor has.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::vectorize(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::vectorize(work) },
            _ => work(),
        }
    }

    /// The product of one tile: `acc[i][j] = Σ a[i][l]·b[l][j]` over l < `depth`, in chains of [`CHAIN`](super::gemm::CHAIN) terms in that order, with fused multiply-adds where the processor has them.
    /// `a` has rows of [`PACKED_ROW`](super::gemm::PACKED_ROW) floats, `b` of [`panel_row`](Self::panel_row), `acc` of [`tile_columns`](Self::tile_columns).
    pub(crate) fn tile(self, rows: usize, depth: usize, a: &[f32], b: &[f32], acc: &mut [f32]) {
        let columns = self.tile_columns();
        assert!(rows > 0 && rows <= self.tile_rows(), "a tile of {rows} rows");
        assert!(depth == 0 || a.len() >= (rows - 1) * super::gemm::PACKED_ROW + depth, "packed rows are too short");
        assert!(depth == 0 || b.len() >= (depth - 1) * self.panel_row() + columns, "panel is too short");
        assert!(acc.len() >= rows * columns, "tile is too short");
        match self {
            // SAFETY: the processor has these instructions, and the slices have been checked to hold what is read and written.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::tile(rows, depth, a.as_ptr(), b.as_ptr(), acc.as_mut_ptr()) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::tile(rows, depth, a.as_ptr(), b.as_ptr(), acc.as_mut_ptr()) },
            _ => portable::tile(rows, depth, a, b, acc),
        }
    }

    /// Asks for the memory at an address, which may be anything.
    #[inline(always)]
    pub(crate) fn prefetch(self, at: *const f32) {
        #[cfg(target_arch = "x86_64")]
        if self != Self::Portable {
            // SAFETY: a hint; it reads nothing and never faults.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Puts a block of a tile into its place: adds it to what is there, or replaces that by the block plus the bias.
    ///
    /// # Safety
    /// `to` must be valid for the block, and no other thread may use these elements. `from` and the bias must have the block's size.
    pub(crate) unsafe fn store(self, block: Block, from: &[f32], to: *mut f32, bias: Bias<'_>, add: bool) {
        match self {
            // SAFETY: the processor has these instructions; the rest is the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::store(block, from.as_ptr(), to, bias, add) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::store(block, from.as_ptr(), to, bias, add) },
            // SAFETY: passes on the caller's promise.
            _ => self.vectorize(|| unsafe { block.store(from.as_ptr(), to, bias, add) }),
        }
    }

    /// `to[c·to_stride + r] = from[r·from_stride + c]` for whole blocks of 16 × 16: `rows` and `columns` are multiples of 16.
    pub(crate) fn transpose(
        self,
        (rows, columns): (usize, usize),
        (from, from_stride): (&[f32], usize),
        (to, to_stride): (&mut [f32], usize),
    ) {
        assert!(rows % 16 == 0 && columns % 16 == 0, "whole blocks");
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(from.len() >= (rows - 1) * from_stride + columns, "source is too short");
        assert!(to.len() >= (columns - 1) * to_stride + rows, "target is too short");
        for r in (0..rows).step_by(16) {
            for c in (0..columns).step_by(16) {
                let (from, to) = (&from[r * from_stride + c..], &mut to[c * to_stride + r..]);
                match self {
                    // SAFETY: the processor has these instructions; the block lies within both slices, as checked above.
                    #[cfg(target_arch = "x86_64")]
                    Self::Avx512 => unsafe {
                        avx512::transpose(from.as_ptr(), from_stride, to.as_mut_ptr(), to_stride)
                    },
                    // SAFETY: as above.
                    #[cfg(target_arch = "x86_64")]
                    Self::Avx2 => unsafe { avx2::transpose(from.as_ptr(), from_stride, to.as_mut_ptr(), to_stride) },
                    _ => {
                        for i in 0..16 {
                            for j in 0..16 {
                                to[j * to_stride + i] = from[i * from_stride + j];
                            }
                        }
                    }
                }
            }
        }
    }

    /// Copies a block of `rows` × `columns` from rows `from_stride` apart to rows `to_stride` apart.
    pub(crate) fn copy(
        self,
        (rows, columns): (usize, usize),
        (from, from_stride): (&[f32], usize),
        (to, to_stride): (&mut [f32], usize),
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(from.len() >= (rows - 1) * from_stride + columns, "source is too short");
        assert!(to.len() >= (rows - 1) * to_stride + columns, "target is too short");
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has these instructions; every row lies within both slices, as checked above.
            Self::Avx512 => unsafe {
                avx512::copy(rows, columns, (from.as_ptr(), from_stride), (to.as_mut_ptr(), to_stride));
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe {
                avx2::copy(rows, columns, (from.as_ptr(), from_stride), (to.as_mut_ptr(), to_stride));
            },
            _ => {
                for row in 0..rows {
                    let to = &mut to[row * to_stride..][..columns];
                    to.copy_from_slice(&from[row * from_stride..][..columns]);
                }
            }
        }
    }
}
