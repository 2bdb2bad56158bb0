//! Reading patches with AVX2: whole runs of pixels, worked out once for each tap and then copied for each channel.
//!
//! One of the modules with `unsafe` code: vector loads and stores on pointers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::Range;

use super::Window;
use crate::kernel::gemm::avx2::{LANES, copy, copy_run, zero_run};

/// Columns at a time.
const COLUMNS: usize = 128;
/// Most runs of a tap: one for each column.
const RUNS_OF_TAP: usize = COLUMNS;
/// Runs that are kept at a time.
const RUNS: usize = 3 * RUNS_OF_TAP;
/// Taps whose runs are kept at a time.
const TAPS: usize = 64;
/// Most columns of taps with masks.
const MASKS: usize = 8;
/// Instead of a place in the image: the run lies outside.
const OUTSIDE: isize = isize::MIN;

/// Neighbouring columns.
#[derive(Clone, Copy)]
struct Run {
    /// First column, counted from the first one of the block.
    lane: u32,
    len: u32,
    /// Where the first one is in channel 0; or [`OUTSIDE`].
    from: isize,
}

/// The runs of some taps, in the order in which they are to be written.
struct Runs {
    runs: [Run; RUNS],
    len: usize,
    /// Where each tap's runs end.
    ends: [usize; TAPS],
    n_taps: usize,
}

impl Runs {
    #[inline(always)]
    fn push(&mut self, lanes: Range<usize>, from: isize) {
        if !lanes.is_empty() {
            self.runs[self.len] = Run { lane: lanes.start as u32, len: lanes.len() as u32, from };
            self.len += 1;
        }
    }

    /// Ends a tap; says whether there is room for another.
    fn end_tap(&mut self) -> bool {
        self.ends[self.n_taps] = self.len;
        self.n_taps += 1;
        self.n_taps < TAPS && self.len + RUNS_OF_TAP <= RUNS
    }
}

/// [`Source::read`](crate::kernel::gemm::Source::read) with AVX2, which the caller has found.
pub(super) fn read(window: &Window<'_>, rows: Range<usize>, columns: Range<usize>, to: &mut [f32], stride: usize) {
    if rows.is_empty() || columns.is_empty() {
        return;
    }
    let [n_rows, n_columns] = [rows.len(), columns.len()];
    let plane = window.grid[0] * window.grid[1];
    let last_image = (columns.end - 1) / plane;
    let last_channel = (rows.end - 1) / window.n_taps();
    let end = last_image * window.steps[0] + last_channel * window.steps[1] + window.size[0] * window.size[1];
    assert!(window.data.len() >= end, "images end at {}, not {end}", window.data.len());
    assert!(to.len() >= (n_rows - 1) * stride + n_columns, "target is too short");
    let is_plain = window.n_taps() == 1 && window.first == [0; 2] && is_flat(window) && window.grid == window.size;
    let mut first = columns.start;
    while first < columns.end {
        let lane = first - columns.start;
        // SAFETY: the processor has AVX2; every image and channel in use lies within `data`, every row within `to`.
        unsafe {
            if is_plain {
                let (image, pixel) = (first / plane, first % plane);
                let n = (plane - pixel).min(columns.end - first);
                let from = window.data[image * window.steps[0] + rows.start * window.steps[1] + pixel..].as_ptr();
                copy(n_rows, n, (from, window.steps[1]), (to.as_mut_ptr().add(lane), stride));
                first += n;
            } else {
                let n = (columns.end - first).min(COLUMNS);
                let to = to.as_mut_ptr().add(lane);
                let (rows, columns) = (rows.clone(), first..first + n);
                match window.stride[1] {
                    1 if is_flat(window) && window.taps[1] <= MASKS => {
                        read_block::<FLAT>(window, rows, columns, to, stride);
                    }
                    1 => read_block::<1>(window, rows, columns, to, stride),
                    2 => read_block::<2>(window, rows, columns, to, stride),
                    _ => read_block::<0>(window, rows, columns, to, stride),
                }
                first += n;
            }
        }
    }
}

/// Instead of a step: the window is flat, and runs go on from one row of the image to the next.
const FLAT: usize = usize::MAX;

/// Whether neighbours in the grid are neighbours in the image, from one row to the next too.
fn is_flat(window: &Window<'_>) -> bool {
    window.stride == [1, 1] && window.grid[1] == window.size[1]
}

/// Reads up to [`COLUMNS`] columns with step `STEP` between their pixels, 0 standing for any; or those of a flat window.
///
/// # Safety
/// The processor must have AVX2; the images and channels of the block must lie within the window's data; `to` must be valid for the block.
#[target_feature(enable = "avx2")]
unsafe fn read_block<const STEP: usize>(
    window: &Window<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    to: *mut f32,
    stride: usize,
) {
    let n_taps = window.n_taps();
    let empty = Run { lane: 0, len: 0, from: OUTSIDE };
    let mut runs = Runs { runs: [empty; RUNS], len: 0, ends: [0; TAPS], n_taps: 0 };
    let mut masks = [[u32::MAX; COLUMNS]; MASKS];
    if STEP == FLAT {
        masks
            .iter_mut()
            .enumerate()
            .take(window.taps[1])
            .for_each(|(tap, mask)| hide(window, tap, columns.clone(), mask));
    }
    let mut first_tap = 0;
    while first_tap < n_taps {
        (runs.len, runs.n_taps) = (0, 0);
        for tap in first_tap..n_taps {
            if STEP == FLAT {
                flat_runs(window, tap, columns.clone(), &mut runs);
            } else {
                row_runs(window, tap, columns.clone(), &mut runs);
            }
            if !runs.end_tap() {
                break;
            }
        }
        for channel in rows.start / n_taps..rows.end.div_ceil(n_taps) {
            let from = window.data.as_ptr().wrapping_add(channel * window.steps[1]);
            let mut start = 0;
            for (index, &end) in runs.ends[..runs.n_taps].iter().enumerate() {
                let row = channel * n_taps + first_tap + index;
                let some_runs = &runs.runs[start..end];
                start = end;
                if !rows.contains(&row) {
                    continue;
                }
                let mask = &masks[(first_tap + index) % window.taps[1] % MASKS];
                for run in some_runs {
                    let (lane, len) = (run.lane as usize, run.len as usize);
                    // SAFETY: the row and the run's columns are in the target; the run's pixels, if it has any, are in the channel's image.
                    unsafe {
                        let to = to.add((row - rows.start) * stride + lane);
                        let from = from.wrapping_offset(run.from);
                        match STEP {
                            _ if run.from == OUTSIDE => zero_run(to, len),
                            FLAT => copy_masked(from, mask.as_ptr().add(lane), to, len),
                            1 => copy_run(from, to, len),
                            2 => copy_every_other(from, to, len),
                            _ => (0..len).for_each(|i| *to.add(i) = *from.add(i * window.stride[1])),
                        }
                    }
                }
            }
        }
        first_tap += runs.n_taps;
    }
}

/// Runs that do not overlap: three at most for each row of the grid.
fn row_runs(window: &Window<'_>, tap: usize, columns: Range<usize>, runs: &mut Runs) {
    let shift = window.shift(tap);
    let inside = window.inside(shift);
    window.segments(columns, |segment| {
        let lanes = segment.lane..segment.lane + segment.len;
        let last = segment.x + segment.len;
        let (start, end) = (inside.start.clamp(segment.x, last), inside.end.clamp(segment.x, last));
        let Some(image_row) = window.image_row(tap, segment.y).filter(|_| start < end) else {
            return runs.push(lanes, OUTSIDE);
        };
        let row = segment.image * window.steps[0] + image_row * window.size[1];
        let from = (row + start * window.stride[1]) as isize + shift;
        let (first, last) = (lanes.start + start - segment.x, lanes.start + end - segment.x);
        runs.push(lanes.start..first, OUTSIDE);
        runs.push(first..last, from);
        runs.push(last..lanes.end, OUTSIDE);
    });
}

/// Zeros in a mask of all ones where a flat window's taps of one column lie beside the image, left or right.
fn hide(window: &Window<'_>, tap: usize, columns: Range<usize>, mask: &mut [u32; COLUMNS]) {
    let (width, inside) = (window.grid[1], window.inside(window.shift(tap)));
    if inside.len() == width {
        return;
    }
    let mut x = columns.start % width;
    for lane in &mut mask[..columns.len()] {
        if !inside.contains(&x) {
            *lane = 0;
        }
        x = if x + 1 == width { 0 } else { x + 1 };
    }
}

/// Runs of a flat window: one for each image, from its first pixel inside to its last. What lies outside in between is for the masks.
fn flat_runs(window: &Window<'_>, tap: usize, columns: Range<usize>, runs: &mut Runs) {
    let width = window.grid[1];
    let plane = window.grid[0] * width;
    let shift = window.shift(tap);
    let inside = window.inside(shift);
    let down = window.first[0] + (tap / window.taps[1]) as isize * window.tap_step[0];
    let height = window.size[0] as isize;
    // Rows of the grid that meet the image.
    let top = (-down).clamp(0, window.grid[0] as isize) as usize;
    let bottom = (height - down).clamp(top as isize, window.grid[0] as isize) as usize;
    let mut column = columns.start;
    while column < columns.end {
        let (image, first) = (column / plane, column % plane);
        let len = (plane - first).min(columns.end - column);
        let (lane, last) = (column - columns.start, first + len);
        column += len;
        // The first and the last pixel inside.
        let (mut start, mut end) = (first.max(top * width), last.min(bottom * width));
        if inside.is_empty() || start >= end {
            runs.push(lane..lane + len, OUTSIDE);
            continue;
        }
        match start % width {
            x if x < inside.start => start += inside.start - x,
            x if x >= inside.end => start += width - x + inside.start,
            _ => {}
        }
        match (end - 1) % width {
            x if x >= inside.end => end -= x + 1 - inside.end,
            x if x < inside.start => end = (end - 1 - x + inside.end).saturating_sub(width),
            _ => {}
        }
        if start >= end {
            runs.push(lane..lane + len, OUTSIDE);
            continue;
        }
        let lane_of = |pixel: usize| lane + pixel - first;
        let from = (image * window.steps[0] + start) as isize + down * window.size[1] as isize + shift;
        runs.push(lane..lane_of(start), OUTSIDE);
        runs.push(lane_of(start)..lane_of(end), from);
        runs.push(lane_of(end)..lane + len, OUTSIDE);
    }
}

/// Copies neighbours, zero where the mask is. Where the last vector is not full, it overlaps the one before.
///
/// # Safety
/// The processor must have AVX2; the pointers must be valid for `n` floats, and apart.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy_masked(from: *const f32, mask: *const u32, to: *mut f32, n: usize) {
    // SAFETY: all that is read and written is among the `n`.
    unsafe {
        if n < LANES {
            return (0..n).for_each(|i| *to.add(i) = f32::from_bits((*from.add(i)).to_bits() & *mask.add(i)));
        }
        let eight = |c: usize| {
            let pixels = _mm256_loadu_ps(from.add(c));
            _mm256_storeu_ps(to.add(c), _mm256_and_ps(pixels, _mm256_loadu_ps(mask.add(c).cast())));
        };
        (0..n / LANES * LANES).step_by(LANES).for_each(eight);
        eight(n - LANES);
    }
}

/// Copies every other pixel. Where the last vector is not full, it overlaps the one before.
///
/// # Safety
/// The processor must have AVX2; `from` must be valid for 2·n − 1 floats and `to` for `n`, and they must be apart.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy_every_other(from: *const f32, to: *mut f32, n: usize) {
    // SAFETY: all that is read and written is among these.
    unsafe {
        if n < LANES {
            return (0..n).for_each(|i| *to.add(i) = *from.add(2 * i));
        }
        for c in (0..n / LANES * LANES).step_by(LANES) {
            copy_eight(from.add(2 * c), to.add(c));
        }
        copy_eight(from.add(2 * (n - LANES)), to.add(n - LANES));
    }
}

/// Eight pixels of fifteen.
///
/// # Safety
/// As [`copy_every_other`], for n = 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy_eight(from: *const f32, to: *mut f32) {
    // SAFETY: the two vectors hold pixels 0 to 7 and 7 to 14.
    unsafe {
        let (low, high) = (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(LANES - 1)));
        // In each half: pixels 0 and 2 of the low vector, 1 and 3 of the high one.
        let mixed = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_10_00>(low, high));
        _mm256_storeu_ps(to, _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(mixed)));
    }
}
