//! AVX-512: tiles of up to 14 × 32 in 28 of the 32 registers.
//!
//! One of the modules with `unsafe` code: vector intrinsics on pointers. [`Isa`](crate::kernel::isa::Isa) checks sizes before it calls.
#![allow(unsafe_code)]

/// Most rows of a tile.
pub(crate) const ROWS: usize = 14;
/// Columns of a tile: two vectors.
pub(crate) const COLUMNS: usize = 32;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::{Bias, Block, CHAIN, PACKED_ROW};
    use super::COLUMNS;

    /// Runs `work` compiled with these instructions.
    ///
    /// # Safety
    /// The processor must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn vectorize<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    /// See [`Isa::tile`](crate::kernel::isa::Isa::tile).
    ///
    /// # Safety
    /// The processor must have AVX-512F; `a` must be valid for `rows` rows of `depth`, `b` for `depth` rows and `acc` for `rows` rows of 32.
    #[target_feature(enable = "avx512f")]
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
                7 => tile_of::<7>(depth, a, b, acc),
                8 => tile_of::<8>(depth, a, b, acc),
                9 => tile_of::<9>(depth, a, b, acc),
                10 => tile_of::<10>(depth, a, b, acc),
                11 => tile_of::<11>(depth, a, b, acc),
                12 => tile_of::<12>(depth, a, b, acc),
                13 => tile_of::<13>(depth, a, b, acc),
                14 => tile_of::<14>(depth, a, b, acc),
                _ => unreachable!("tiles have 1 to 14 rows"),
            }
        }
    }

    /// One height of tile, its accumulators in registers.
    ///
    /// # Safety
    /// As [`tile`], for `R` rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile_of<const R: usize>(depth: usize, a: *const f32, b: *const f32, acc: *mut f32) {
        for first in (0..depth.max(1)).step_by(CHAIN) {
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            for l in first..depth.min(first + CHAIN) {
                // SAFETY: row `l` of `b` and element `l` of each row of `a` are within what the caller promises.
                unsafe {
                    let b0 = _mm512_loadu_ps(b.add(l * COLUMNS));
                    let b1 = _mm512_loadu_ps(b.add(l * COLUMNS + 16));
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let a = _mm512_set1_ps(*a.add(i * PACKED_ROW + l));
                        sum[0] = _mm512_fmadd_ps(a, b0, sum[0]);
                        sum[1] = _mm512_fmadd_ps(a, b1, sum[1]);
                    }
                }
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: row `i` of the tile is within what the caller promises.
                unsafe {
                    if first > 0 {
                        sum[0] = _mm512_add_ps(_mm512_loadu_ps(acc.add(i * COLUMNS)), sum[0]);
                        sum[1] = _mm512_add_ps(_mm512_loadu_ps(acc.add(i * COLUMNS + 16)), sum[1]);
                    }
                    _mm512_storeu_ps(acc.add(i * COLUMNS), sum[0]);
                    _mm512_storeu_ps(acc.add(i * COLUMNS + 16), sum[1]);
                }
            }
        }
    }

    /// Stores a block of at most 32 columns; see [`Isa::store`](crate::kernel::isa::Isa::store).
    ///
    /// # Safety
    /// The processor must have AVX-512F; `from` and `to` must be valid for the block, and the bias must fit it.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn store(block: Block, from: *const f32, to: *mut f32, bias: Bias<'_>, add: bool) {
        for first in (0..block.columns).step_by(16) {
            let mask = low_mask(block.columns - first);
            // SAFETY: all lanes in the mask are columns of the block.
            unsafe {
                let (from, to) = (from.add(first), to.add(first * block.to_steps[1]));
                match (block.to_steps, bias) {
                    ([_, 1], _) => store_rows(block, mask, from, to, after(bias, first), add),
                    ([_, 2], Bias::None) => store_spread(block, mask, from, to, add),
                    ([1, _], Bias::None) => store_columns(block, mask, from, to, add),
                    _ => store_scattered(block, mask, from, to, after(bias, first), add),
                }
            }
        }
    }

    /// The bias from some column on.
    fn after(bias: Bias<'_>, column: usize) -> Bias<'_> {
        match bias {
            Bias::Columns(bias) => Bias::Columns(&bias[column..]),
            bias => bias,
        }
    }

    /// What is added to row `row` of the first 16 columns.
    ///
    /// # Safety
    /// The processor must have AVX-512F; the bias must fit the row and the lanes in the mask.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn biased(sums: __m512, bias: Bias<'_>, row: usize, mask: u16) -> __m512 {
        match bias {
            Bias::None => sums,
            Bias::Rows(bias) => _mm512_add_ps(sums, _mm512_set1_ps(bias[row])),
            Bias::Columns(bias) => {
                // SAFETY: the bias has a value for each column in the mask.
                let bias = unsafe { _mm512_maskz_loadu_ps(mask, bias.as_ptr()) };
                _mm512_add_ps(sums, bias)
            }
        }
    }

    /// Columns that are neighbours.
    ///
    /// # Safety
    /// As [`store`], for the lanes in the mask.
    #[target_feature(enable = "avx512f")]
    unsafe fn store_rows(block: Block, mask: u16, from: *const f32, to: *mut f32, bias: Bias<'_>, add: bool) {
        for row in 0..block.rows {
            // SAFETY: the row is valid in both places for the lanes in the mask.
            unsafe {
                let to = to.add(row * block.to_steps[0]);
                let sums = _mm512_maskz_loadu_ps(mask, from.add(row * block.from_stride));
                let sums = match add {
                    true => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums),
                    false => biased(sums, bias, row, mask),
                };
                _mm512_mask_storeu_ps(to, mask, sums);
            }
        }
    }

    /// Columns at every other place.
    ///
    /// # Safety
    /// As [`store`], for the lanes in the mask.
    #[target_feature(enable = "avx512f")]
    unsafe fn store_spread(block: Block, mask: u16, from: *const f32, to: *mut f32, add: bool) {
        let low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
        for row in 0..block.rows {
            // SAFETY: the row is valid in both places for the lanes in the mask; bit 2i of a spread mask is bit i of the mask.
            unsafe {
                let to = to.add(row * block.to_steps[0]);
                let sums = _mm512_maskz_loadu_ps(mask, from.add(row * block.from_stride));
                for (lanes, mask, to) in [(low, mask & 0xFF, to), (high, mask >> 8, to.wrapping_add(16))] {
                    let (mask, mut sums) = (spread(mask), _mm512_permutexvar_ps(lanes, sums));
                    if add {
                        sums = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), sums);
                    }
                    _mm512_mask_storeu_ps(to, mask, sums);
                }
            }
        }
    }

    /// Rows that are neighbours: transposes 16 at a time.
    ///
    /// # Safety
    /// As [`store`], for the lanes in the mask.
    #[target_feature(enable = "avx512f")]
    unsafe fn store_columns(block: Block, mask: u16, from: *const f32, to: *mut f32, add: bool) {
        for first in (0..block.rows).step_by(16) {
            let n_rows = (block.rows - first).min(16);
            let mut rows = [_mm512_setzero_ps(); 16];
            for (i, row) in rows.iter_mut().enumerate().take(n_rows) {
                // SAFETY: the row is valid for the lanes in the mask.
                *row = unsafe { _mm512_maskz_loadu_ps(mask, from.add((first + i) * block.from_stride)) };
            }
            let row_mask = low_mask(n_rows);
            for (j, column) in transposed(rows).into_iter().enumerate().take(mask.count_ones() as usize) {
                // SAFETY: the column is valid for the rows in their mask.
                unsafe {
                    let to = to.add(first + j * block.to_steps[1]);
                    let sums = match add {
                        true => _mm512_add_ps(_mm512_maskz_loadu_ps(row_mask, to), column),
                        false => column,
                    };
                    _mm512_mask_storeu_ps(to, row_mask, sums);
                }
            }
        }
    }

    /// Columns any distance apart.
    ///
    /// # Safety
    /// As [`store`], for the lanes in the mask.
    #[target_feature(enable = "avx512f")]
    unsafe fn store_scattered(block: Block, mask: u16, from: *const f32, to: *mut f32, bias: Bias<'_>, add: bool) {
        let mut sums = [0.0f32; 16];
        for row in 0..block.rows {
            // SAFETY: the row is valid in both places for the lanes in the mask.
            unsafe {
                let to = to.add(row * block.to_steps[0]);
                let lanes = _mm512_maskz_loadu_ps(mask, from.add(row * block.from_stride));
                _mm512_storeu_ps(sums.as_mut_ptr(), if add { lanes } else { biased(lanes, bias, row, mask) });
                for (column, sum) in sums.iter().enumerate().take(mask.count_ones() as usize) {
                    let to = to.add(column * block.to_steps[1]);
                    *to = if add { *to + sum } else { *sum };
                }
            }
        }
    }

    /// Bit i of a byte to bit 2i.
    pub(crate) fn spread(byte: u16) -> u16 {
        let nibbles = (byte | byte << 4) & 0x0F0F;
        let pairs = (nibbles | nibbles << 2) & 0x3333;
        (pairs | pairs << 1) & 0x5555
    }

    /// Transposes a block of 16 × 16.
    ///
    /// # Safety
    /// The processor must have AVX-512F; both pointers must be valid for 16 rows of 16 at their strides.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        let mut rows = [_mm512_setzero_ps(); 16];
        for (i, row) in rows.iter_mut().enumerate() {
            // SAFETY: row `i` is valid.
            *row = unsafe { _mm512_loadu_ps(from.add(i * from_stride)) };
        }
        for (j, column) in transposed(rows).into_iter().enumerate() {
            // SAFETY: row `j` of the target is valid.
            unsafe { _mm512_storeu_ps(to.add(j * to_stride), column) };
        }
    }

    /// Columns of 16 rows.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transposed(rows: [__m512; 16]) -> [__m512; 16] {
        let mut columns = [_mm512_setzero_ps(); 16];
        // quads[j][g]: in its lane L, column 4L + j of rows 4g to 4g + 3.
        let mut quads = [[_mm512_setzero_ps(); 4]; 4];
        for g in 0..4 {
            let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
            let (ab0, ab1) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            quads[0][g] = _mm512_shuffle_ps::<0x44>(ab0, cd0);
            quads[1][g] = _mm512_shuffle_ps::<0xEE>(ab0, cd0);
            quads[2][g] = _mm512_shuffle_ps::<0x44>(ab1, cd1);
            quads[3][g] = _mm512_shuffle_ps::<0xEE>(ab1, cd1);
        }
        for (j, [q0, q1, q2, q3]) in quads.into_iter().enumerate() {
            let (even01, odd01) = (_mm512_shuffle_f32x4::<0x88>(q0, q1), _mm512_shuffle_f32x4::<0xDD>(q0, q1));
            let (even23, odd23) = (_mm512_shuffle_f32x4::<0x88>(q2, q3), _mm512_shuffle_f32x4::<0xDD>(q2, q3));
            columns[j] = _mm512_shuffle_f32x4::<0x88>(even01, even23);
            columns[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd01, odd23);
            columns[8 + j] = _mm512_shuffle_f32x4::<0xDD>(even01, even23);
            columns[12 + j] = _mm512_shuffle_f32x4::<0xDD>(odd01, odd23);
        }
        columns
    }

    /// The lowest `n` bits, at most 16.
    pub(crate) fn low_mask(n: usize) -> u16 {
        if n >= 16 { u16::MAX } else { (1 << n) - 1 }
    }

    /// Columns of a block that is too narrow for the processor to see where reading goes on.
    const NARROW: usize = 64;

    /// Copies rows of any length.
    ///
    /// # Safety
    /// The processor must have AVX-512F; both pointers must be valid for `rows` rows of `columns` at their strides.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn copy(
        rows: usize,
        columns: usize,
        (from, from_stride): (*const f32, usize),
        (to, to_stride): (*mut f32, usize),
    ) {
        let (whole, mask) = (columns / 16 * 16, low_mask(columns % 16));
        for row in 0..rows {
            // SAFETY: the row is valid in both places, and the mask cuts the last vector off at its end.
            unsafe {
                let (from, to) = (from.add(row * from_stride), to.add(row * to_stride));
                if columns <= NARROW {
                    // The next block is likely to be the one beside this.
                    for c in (0..columns).step_by(16) {
                        _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(columns + c).cast());
                    }
                }
                for c in (0..whole).step_by(16) {
                    _mm512_storeu_ps(to.add(c), _mm512_loadu_ps(from.add(c)));
                }
                if mask != 0 {
                    _mm512_mask_storeu_ps(to.add(whole), mask, _mm512_maskz_loadu_ps(mask, from.add(whole)));
                }
            }
        }
    }
}
