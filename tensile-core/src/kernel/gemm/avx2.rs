//! AVX2 and FMA: tiles of up to 6 × 16 in 12 of the 16 registers.
//!
//! One of the modules with `unsafe` code: vector intrinsics on pointers. [`Isa`](crate::kernel::isa::Isa) checks sizes before it calls.
#![allow(unsafe_code)]

/// Most rows of a tile.
pub(crate) const ROWS: usize = 6;
/// Columns of a tile: two vectors.
pub(crate) const COLUMNS: usize = 16;

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
    /// The processor must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(crate) unsafe fn vectorize<R>(work: impl FnOnce() -> R) -> R {
        work()
    }

    /// See [`Isa::tile`](crate::kernel::isa::Isa::tile).
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA; `a` must be valid for `rows` rows of `depth`, `b` for `depth` rows and `acc` for `rows` rows of 16.
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
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for l in 0..depth {
            // SAFETY: row `l` of `b` and element `l` of each row of `a` are within what the caller promises.
            unsafe {
                let b0 = _mm256_loadu_ps(b.add(l * COLUMNS));
                let b1 = _mm256_loadu_ps(b.add(l * COLUMNS + 8));
                for (i, sum) in sums.iter_mut().enumerate() {
                    let a = _mm256_set1_ps(*a.add(i * PACKED_ROW + l));
                    sum[0] = _mm256_fmadd_ps(a, b0, sum[0]);
                    sum[1] = _mm256_fmadd_ps(a, b1, sum[1]);
                }
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            // SAFETY: row `i` of the tile is within what the caller promises.
            unsafe {
                _mm256_storeu_ps(acc.add(i * COLUMNS), sum[0]);
                _mm256_storeu_ps(acc.add(i * COLUMNS + 8), sum[1]);
            }
        }
    }
}
