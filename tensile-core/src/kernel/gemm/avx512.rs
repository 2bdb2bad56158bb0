//! AVX-512: tiles of up to 14 × 32 in 28 of the 32 registers.
//!
//! One of the modules with `unsafe` code: vector intrinsics on pointers. [`Isa`](crate::kernel::isa::Isa) checks sizes before it calls.

/// Most rows of a tile.
pub(crate) const ROWS: usize = 14;
/// Columns of a tile: two vectors.
pub(crate) const COLUMNS: usize = 32;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::super::PACKED_ROW;
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
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        for l in 0..depth {
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
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: row `i` of the tile is within what the caller promises.
            unsafe {
                _mm512_storeu_ps(acc.add(i * COLUMNS), sum[0]);
                _mm512_storeu_ps(acc.add(i * COLUMNS + 16), sum[1]);
            }
        }
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
            // SAFETY: rows 0 to 15 of the target are valid.
            unsafe {
                _mm512_storeu_ps(to.add(j * to_stride), _mm512_shuffle_f32x4::<0x88>(even01, even23));
                _mm512_storeu_ps(to.add((4 + j) * to_stride), _mm512_shuffle_f32x4::<0x88>(odd01, odd23));
                _mm512_storeu_ps(to.add((8 + j) * to_stride), _mm512_shuffle_f32x4::<0xDD>(even01, even23));
                _mm512_storeu_ps(to.add((12 + j) * to_stride), _mm512_shuffle_f32x4::<0xDD>(odd01, odd23));
            }
        }
    }

    /// The lowest `n` bits, at most 16.
    pub(crate) fn low_mask(n: usize) -> u16 {
        if n >= 16 { u16::MAX } else { (1 << n) - 1 }
    }

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
