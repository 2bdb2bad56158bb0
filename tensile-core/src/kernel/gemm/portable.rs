//! Tiles of up to 4 × 16 in plain Rust, for processors without known vector instructions.

use super::{CHAIN, PACKED_ROW};

/// Most rows of a tile.
pub(crate) const ROWS: usize = 4;
/// Columns of a tile.
pub(crate) const COLUMNS: usize = 16;

/// See [`Isa::tile`](crate::kernel::isa::Isa::tile). Multiplies and adds apart: a fused multiply-add without an instruction for it is a slow call.
pub(crate) fn tile(rows: usize, depth: usize, a: &[f32], b: &[f32], acc: &mut [f32]) {
    match rows {
        1 => tile_of::<1>(depth, a, b, acc),
        2 => tile_of::<2>(depth, a, b, acc),
        3 => tile_of::<3>(depth, a, b, acc),
        4 => tile_of::<4>(depth, a, b, acc),
        _ => unreachable!("tiles have 1 to 4 rows"),
    }
}

fn tile_of<const R: usize>(depth: usize, a: &[f32], b: &[f32], acc: &mut [f32]) {
    const HALF: usize = COLUMNS / 2; // eight columns of four rows fit into 16 registers of four lanes
    for half in 0..2 {
        for first in (0..depth.max(1)).step_by(CHAIN) {
            let mut sums = [[0.0f32; HALF]; R];
            for (l, b) in b.chunks_exact(COLUMNS).enumerate().take(depth.min(first + CHAIN)).skip(first) {
                let b: &[f32; HALF] = b[half * HALF..][..HALF].try_into().expect("half a row");
                for (i, sum) in sums.iter_mut().enumerate() {
                    let a = a[i * PACKED_ROW + l];
                    for (sum, b) in sum.iter_mut().zip(b) {
                        *sum += a * b;
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                let total = &mut acc[i * COLUMNS + half * HALF..][..HALF];
                for (total, sum) in total.iter_mut().zip(sums) {
                    *total = if first > 0 { *total + sum } else { *sum };
                }
            }
        }
    }
}
