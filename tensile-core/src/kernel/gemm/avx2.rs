//! AVX2 and FMA: tiles of up to 6 × 16 in 12 of the 16 registers.
//!
//! One of the modules with `unsafe` code: vector intrinsics on pointers. [`Isa`](crate::kernel::isa::Isa) checks sizes before it calls.
#![allow(unsafe_code)]

/// Most rows of a tile.
pub(crate) const ROWS: usize = 6;
/// Columns of a tile: two vectors.
pub(crate) const COLUMNS: usize = 16;
/// Columns of B that are packed at a time: long runs of a row are read faster than short ones.
pub(crate) const PANEL_COLUMNS: usize = 128;
/// Floats between packed rows of B: an odd number of cache lines, so that the rows of one tile's columns spread over all sets of the cache.
pub(crate) const PANEL_ROW: usize = PANEL_COLUMNS + 16;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::{Bias, Block, CHAIN, PACKED_ROW};
    use super::{COLUMNS, PANEL_ROW};

    /// Floats in a vector.
    pub(crate) const LANES: usize = 8;

    /// Runs `work` compiled with these instructions.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(crate) unsafe fn vectorize<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    /// See [`Isa::tile`](crate::kernel::isa::Isa::tile).
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA; `a` must be valid for `rows` rows of `depth`, `b` for 16 floats of each of `depth` rows and `acc` for `rows` rows of 16.
    #[target_feature(enable = "avx2,fma")]
    pub(crate) unsafe fn tile(rows: usize, depth: usize, a: *const f32, b: *const f32, acc: *mut f32) {
        // SAFETY: passes on the caller's promises.
        unsafe {
            match rows {
                1 => tile_of::<1>(depth, a, b, acc),
                2 => tile_of::<2>(depth, a, b, acc),
                3 => tile_of::<3>(depth, a, b, acc),
                4 => tile_of::<4>(depth, a, b, acc),
                5 => tile_of::<5>(depth, a, b, acc),
                6 => tile_of::<6>(depth, a, b, acc),
                _ => unreachable!("tiles have 1 to 6 rows"),
            }
        }
    }

    /// One height of tile, its accumulators in registers.
    ///
    /// # Safety
    /// As [`tile`], for `R` rows.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile_of<const R: usize>(depth: usize, a: *const f32, b: *const f32, acc: *mut f32) {
        for first in (0..depth.max(1)).step_by(CHAIN) {
            let mut sums = [[_mm256_setzero_ps(); 2]; R];
            for l in first..depth.min(first + CHAIN) {
                // SAFETY: row `l` of `b` and element `l` of each row of `a` are within what the caller promises.
                unsafe {
                    let b0 = _mm256_loadu_ps(b.add(l * PANEL_ROW));
                    let b1 = _mm256_loadu_ps(b.add(l * PANEL_ROW + 8));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let a = _mm256_set1_ps(*a.add(i * PACKED_ROW + l));
                        sum[0] = _mm256_fmadd_ps(a, b0, sum[0]);
                        sum[1] = _mm256_fmadd_ps(a, b1, sum[1]);
                    }
                }
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: row `i` of the tile is within what the caller promises.
                unsafe {
                    if first > 0 {
                        sum[0] = _mm256_add_ps(_mm256_loadu_ps(acc.add(i * COLUMNS)), sum[0]);
                        sum[1] = _mm256_add_ps(_mm256_loadu_ps(acc.add(i * COLUMNS + 8)), sum[1]);
                    }
                    _mm256_storeu_ps(acc.add(i * COLUMNS), sum[0]);
                    _mm256_storeu_ps(acc.add(i * COLUMNS + 8), sum[1]);
                }
            }
        }
    }

    /// Stores a block; see [`Isa::store`](crate::kernel::isa::Isa::store).
    ///
    /// # Safety
    /// The processor must have AVX2; `from` and `to` must be valid for the block, and the bias must fit it.
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn store(block: Block, from: *const f32, to: *mut f32, bias: Bias<'_>, add: bool) {
        // SAFETY: passes on the caller's promises.
        unsafe {
            match (block.to_steps, bias) {
                ([_, 1], _) => store_rows(block, from, to, bias, add),
                ([1, _], Bias::None) => store_columns(block, from, to, add),
                (_, Bias::None) => store_scattered(block, from, to, add),
                _ => block.store(from, to, bias, add),
            }
        }
    }

    /// Columns that are neighbours.
    ///
    /// # Safety
    /// As [`store`].
    #[target_feature(enable = "avx2")]
    unsafe fn store_rows(block: Block, from: *const f32, to: *mut f32, bias: Bias<'_>, add: bool) {
        let whole = block.columns / LANES * LANES;
        for row in 0..block.rows {
            // SAFETY: all that is read and written are columns of this row.
            unsafe {
                let (from, to) = (from.add(row * block.from_stride), to.add(row * block.to_steps[0]));
                for c in (0..whole).step_by(LANES) {
                    let sums = _mm256_loadu_ps(from.add(c));
                    let sums = match (add, bias) {
                        (true, _) => _mm256_add_ps(_mm256_loadu_ps(to.add(c)), sums),
                        (false, Bias::None) => sums,
                        (false, Bias::Rows(bias)) => _mm256_add_ps(sums, _mm256_set1_ps(bias[row])),
                        (false, Bias::Columns(bias)) => _mm256_add_ps(sums, _mm256_loadu_ps(bias[c..].as_ptr())),
                    };
                    _mm256_storeu_ps(to.add(c), sums);
                }
                for c in whole..block.columns {
                    let sum = *from.add(c);
                    *to.add(c) = match (add, bias) {
                        (true, _) => *to.add(c) + sum,
                        (false, Bias::None) => sum,
                        (false, Bias::Rows(bias)) => sum + bias[row],
                        (false, Bias::Columns(bias)) => sum + bias[c],
                    };
                }
            }
        }
    }

    /// Columns any distance apart.
    ///
    /// # Safety
    /// As [`store`], without a bias.
    #[target_feature(enable = "avx2")]
    unsafe fn store_scattered(block: Block, from: *const f32, to: *mut f32, add: bool) {
        let [row_step, step] = block.to_steps;
        for row in 0..block.rows {
            // SAFETY: all that is read and written are columns of this row.
            unsafe {
                let (from, to) = (from.add(row * block.from_stride), to.add(row * row_step));
                if add {
                    (0..block.columns).for_each(|c| *to.add(c * step) += *from.add(c));
                } else {
                    (0..block.columns).for_each(|c| *to.add(c * step) = *from.add(c));
                }
            }
        }
    }

    /// Rows that are neighbours: transposes 8 × 8 at a time.
    ///
    /// # Safety
    /// As [`store`], without a bias.
    #[target_feature(enable = "avx2")]
    unsafe fn store_columns(block: Block, from: *const f32, to: *mut f32, add: bool) {
        let (rows, columns) = (block.rows / LANES * LANES, block.columns / LANES * LANES);
        for r in (0..rows).step_by(LANES) {
            for c in (0..columns).step_by(LANES) {
                // SAFETY: the 8 rows and columns are the block's.
                unsafe {
                    let mut lanes = [_mm256_setzero_ps(); LANES];
                    for (i, row) in lanes.iter_mut().enumerate() {
                        *row = _mm256_loadu_ps(from.add((r + i) * block.from_stride + c));
                    }
                    for (j, column) in transposed(lanes).into_iter().enumerate() {
                        let to = to.add(r + (c + j) * block.to_steps[1]);
                        let sums = if add { _mm256_add_ps(_mm256_loadu_ps(to), column) } else { column };
                        _mm256_storeu_ps(to, sums);
                    }
                }
            }
        }
        let rest = |first_row: usize, n_rows: usize, first_column: usize, n_columns: usize| {
            let block = Block { rows: n_rows, columns: n_columns, ..block };
            // SAFETY: a part of the block.
            unsafe {
                let from = from.add(first_row * block.from_stride + first_column);
                let to = to.add(first_row + first_column * block.to_steps[1]);
                block.store(from, to, Bias::None, add);
            }
        };
        rest(rows, block.rows - rows, 0, block.columns);
        rest(0, rows, columns, block.columns - columns);
    }

    /// Transposes a block of 16 × 16.
    ///
    /// # Safety
    /// The processor must have AVX2; both pointers must be valid for 16 rows of 16 at their strides.
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        for (r, c) in [(0, 0), (0, LANES), (LANES, 0), (LANES, LANES)] {
            let mut rows = [_mm256_setzero_ps(); LANES];
            for (i, row) in rows.iter_mut().enumerate() {
                // SAFETY: row r + i is valid.
                *row = unsafe { _mm256_loadu_ps(from.add((r + i) * from_stride + c)) };
            }
            for (j, column) in transposed(rows).into_iter().enumerate() {
                // SAFETY: row c + j of the target is valid.
                unsafe { _mm256_storeu_ps(to.add((c + j) * to_stride + r), column) };
            }
        }
    }

    /// Columns of 8 rows.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transposed(rows: [__m256; LANES]) -> [__m256; LANES] {
        let mut columns = [_mm256_setzero_ps(); LANES];
        // quads[j][g]: in its half h, column 4h + j of rows 4g to 4g + 3.
        let mut quads = [[_mm256_setzero_ps(); 2]; 4];
        for g in 0..2 {
            let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
            let (ab0, ab1) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            quads[0][g] = _mm256_shuffle_ps::<0x44>(ab0, cd0);
            quads[1][g] = _mm256_shuffle_ps::<0xEE>(ab0, cd0);
            quads[2][g] = _mm256_shuffle_ps::<0x44>(ab1, cd1);
            quads[3][g] = _mm256_shuffle_ps::<0xEE>(ab1, cd1);
        }
        for (j, [q0, q1]) in quads.into_iter().enumerate() {
            columns[j] = _mm256_permute2f128_ps::<0x20>(q0, q1);
            columns[4 + j] = _mm256_permute2f128_ps::<0x31>(q0, q1);
        }
        columns
    }

    /// Columns of a block that is too narrow for the processor to see where reading goes on.
    const NARROW: usize = 64;

    /// Copies rows of any length.
    ///
    /// # Safety
    /// The processor must have AVX2; both pointers must be valid for `rows` rows of `columns` at their strides, and apart.
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn copy(
        rows: usize,
        columns: usize,
        (from, from_stride): (*const f32, usize),
        (to, to_stride): (*mut f32, usize),
    ) {
        for row in 0..rows {
            if columns <= NARROW {
                // The next block is likely to be the one beside this.
                for c in (0..columns).step_by(16) {
                    let next = from.wrapping_add(row * from_stride + columns + c);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                }
            }
            // SAFETY: the row is valid in both places.
            unsafe { copy_run(from.add(row * from_stride), to.add(row * to_stride), columns) };
        }
    }

    /// Copies neighbours. Where the last vector is not full, it overlaps the one before.
    ///
    /// # Safety
    /// The processor must have AVX2; both pointers must be valid for `n` floats, and apart.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn copy_run(from: *const f32, to: *mut f32, n: usize) {
        // SAFETY: all that is read and written is among the `n`.
        unsafe {
            if n >= LANES {
                for c in (0..n / LANES * LANES).step_by(LANES) {
                    _mm256_storeu_ps(to.add(c), _mm256_loadu_ps(from.add(c)));
                }
                _mm256_storeu_ps(to.add(n - LANES), _mm256_loadu_ps(from.add(n - LANES)));
            } else if n >= 4 {
                let (head, tail) = (_mm_loadu_ps(from), _mm_loadu_ps(from.add(n - 4)));
                _mm_storeu_ps(to, head);
                _mm_storeu_ps(to.add(n - 4), tail);
            } else if n >= 2 {
                let (head, tail) = (*from, from.add(n - 2).cast::<u64>().read_unaligned());
                *to = head;
                to.add(n - 2).cast::<u64>().write_unaligned(tail);
            } else if n == 1 {
                *to = *from;
            }
        }
    }

    /// Writes zeros.
    ///
    /// # Safety
    /// The processor must have AVX2; the pointer must be valid for `n` floats.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn zero_run(to: *mut f32, n: usize) {
        // SAFETY: all that is written is among the `n`.
        unsafe {
            if n >= LANES {
                for c in (0..n / LANES * LANES).step_by(LANES) {
                    _mm256_storeu_ps(to.add(c), _mm256_setzero_ps());
                }
                _mm256_storeu_ps(to.add(n - LANES), _mm256_setzero_ps());
            } else if n >= 4 {
                _mm_storeu_ps(to, _mm_setzero_ps());
                _mm_storeu_ps(to.add(n - 4), _mm_setzero_ps());
            } else if n >= 2 {
                *to = 0.0;
                to.add(n - 2).cast::<u64>().write_unaligned(0);
            } else if n == 1 {
                *to = 0.0;
            }
        }
    }
}
