//! Reading patches with AVX-512: masked vector loads near the edges of images.
//!
//! One of the modules with `unsafe` code: vector loads and stores on pointers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Segment, Window};
use crate::kernel::gemm::avx512::{low_mask, spread};

/// Columns at a time.
const LANES: usize = 16;
/// Kernel columns whose ranges are kept.
const KEPT: usize = 16;

/// What to load for one tap and one segment: lanes, and where lane 0 would be in channel 0.
#[derive(Clone, Copy, Default)]
struct Load {
    mask: u16,
    start: isize,
}

/// Up to 16 of something.
#[derive(Clone, Copy)]
struct Few<T> {
    items: [T; LANES],
    len: usize,
}

impl<T: Copy> Few<T> {
    #[inline(always)]
    fn push(&mut self, item: T) {
        self.items[self.len] = item;
        self.len += 1;
    }

    #[inline(always)]
    fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }
}

/// [`Source::read`](crate::kernel::gemm::Source::read) with AVX-512, which the caller has found.
pub(super) fn read(window: &Window<'_>, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    let [height, width] = window.grid;
    let last_image = (columns.end - 1) / (height * width);
    let last_channel = (rows.end - 1) / window.n_taps();
    let image = window.size[0] * window.size[1];
    let end = last_image * window.steps[0] + last_channel * window.steps[1] + image;
    assert!(window.data.len() >= end, "images end at {}, not {end}", window.data.len());
    assert!(to.len() >= (rows.len() - 1) * stride + columns.len(), "target is too short");
    let mut first = columns.start;
    while first < columns.end {
        let to = to[first - columns.start..].as_mut_ptr();
        let n_columns = (columns.end - first).min(if columns.end - first <= 2 * LANES { 2 } else { 8 } * LANES);
        let block = first..first + n_columns;
        // SAFETY: the processor has AVX-512; every image and channel in use lies within `data`, every row within `to`.
        unsafe {
            if n_columns <= 2 * LANES {
                read_block::<2>(window, rows.clone(), block, to, stride);
            } else {
                read_block::<8>(window, rows.clone(), block, to, stride);
            }
        }
        first += n_columns;
    }
}

/// Reads up to `CHUNKS` times 16 columns: works out once for each tap which lanes meet the image and where, then goes through the channels.
///
/// # Safety
/// The processor must have AVX-512F; the images and channels of the block must lie within the window's data; `to` must be valid for the block.
#[target_feature(enable = "avx512f")]
unsafe fn read_block<const CHUNKS: usize>(
    window: &Window<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    to: *mut f32,
    stride: usize,
) {
    let n_taps = window.n_taps();
    let n_chunks = columns.len().div_ceil(LANES);
    let last_mask = low_mask(columns.len() - (n_chunks - 1) * LANES);
    let mut segments = [const { Few { items: [Segment::EMPTY; LANES], len: 0 } }; CHUNKS];
    for (chunk, segments) in segments.iter_mut().enumerate().take(n_chunks) {
        let first = columns.start + chunk * LANES;
        window.segments(first..(first + LANES).min(columns.end), |segment| segments.push(segment));
    }
    let mut inside = [const { 0..0 }; KEPT];
    for (tap, inside) in inside.iter_mut().enumerate().take(window.taps[1]) {
        *inside = window.inside(window.shift(tap));
    }
    let data = window.data.as_ptr();
    let mut loads = [const { Few { items: [Load { mask: 0, start: 0 }; LANES], len: 0 } }; CHUNKS];
    for tap in 0..n_taps {
        let shift = window.shift(tap);
        let inside = match inside.get(tap % window.taps[1]) {
            Some(inside) => inside.clone(),
            None => window.inside(shift),
        };
        for (segments, loads) in segments.iter().zip(&mut loads).take(n_chunks) {
            loads.len = 0;
            for segment in segments.as_slice() {
                let Some(image_row) = window.image_row(tap, segment.y) else { continue };
                let (start, end) = (inside.start.max(segment.x), inside.end.min(segment.x + segment.len));
                if start >= end {
                    continue;
                }
                let lane = segment.lane + start - segment.x;
                let column = (start * window.stride[1]) as isize + shift - (lane * window.stride[1]) as isize;
                let row = segment.image * window.steps[0] + image_row * window.size[1];
                loads.push(Load { mask: low_mask(end - start) << lane, start: row as isize + column });
            }
        }
        let channels = window.channels(tap, &rows);
        for channel in channels {
            let from = data.wrapping_add(channel * window.steps[1]);
            // SAFETY: the row and its columns are in the target, and each lane's mask is set only if its pixel is in the image.
            unsafe {
                if tap == 0 && window.grid[0] * window.grid[1] >= 16 * columns.len() {
                    // The next block is likely to be the one beside this.
                    if let Some(load) = loads[0].as_slice().first() {
                        let next = from.wrapping_offset(load.start).wrapping_add(columns.len() * window.stride[1]);
                        for line in 0..n_chunks * window.stride[1].min(2) {
                            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(line * LANES).cast());
                        }
                    }
                }
                let to = to.add((channel * n_taps + tap - rows.start) * stride);
                for (chunk, loads) in loads.iter().enumerate().take(n_chunks) {
                    let pixels = match window.stride[1] {
                        1 => gather_1(from, loads.as_slice()),
                        2 => gather_2(from, loads.as_slice()),
                        step => gather(from, loads.as_slice(), step),
                    };
                    let to = to.add(chunk * LANES);
                    if chunk + 1 < n_chunks {
                        _mm512_storeu_ps(to, pixels);
                    } else {
                        _mm512_mask_storeu_ps(to, last_mask, pixels);
                    }
                }
            }
        }
    }
}

/// Neighbouring pixels. Lanes without a load are zero.
///
/// # Safety
/// Pixel `start + lane` of each lane in a load's mask must be valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn gather_1(from: *const f32, loads: &[Load]) -> __m512 {
    let mut pixels = _mm512_setzero_ps();
    for load in loads {
        // SAFETY: only lanes in the mask are read.
        pixels = unsafe { _mm512_mask_loadu_ps(pixels, load.mask, from.wrapping_offset(load.start)) };
    }
    pixels
}

/// Every other pixel, from two neighbouring vectors.
///
/// # Safety
/// Pixel `start + 2·lane` of each lane in a load's mask must be valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn gather_2(from: *const f32, loads: &[Load]) -> __m512 {
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let (mut low, mut high) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    for load in loads {
        let from = from.wrapping_offset(load.start);
        // SAFETY: bit 2i of a spread mask is bit i of the mask, so only pixels of lanes in the mask are read.
        unsafe {
            low = _mm512_mask_loadu_ps(low, spread(load.mask & 0xFF), from);
            high = _mm512_mask_loadu_ps(high, spread(load.mask >> 8), from.wrapping_add(16));
        }
    }
    _mm512_permutex2var_ps(low, even, high)
}

/// Pixels any distance apart.
///
/// # Safety
/// Pixel `start + step·lane` of each lane in a load's mask must be valid.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn gather(from: *const f32, loads: &[Load], step: usize) -> __m512 {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let offsets = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step as i32));
    let mut pixels = _mm512_setzero_ps();
    for load in loads {
        let from = from.wrapping_offset(load.start);
        // SAFETY: only lanes in the mask are read.
        pixels = unsafe { _mm512_mask_i32gather_ps::<4>(pixels, load.mask, offsets, from.cast()) };
    }
    pixels
}
