//! Tensors `[N, C, …]` divided among threads channel by channel, so that all passes over a channel find it in a cache.
//!
//! One of the modules with `unsafe` code: each thread writes the rows of its own channels of one tensor.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use rayon::prelude::*;

/// Channels of a tensor for writing, in parallel and in order; a channel has one row of `row` elements for each entry of the batch.
///
/// # Panics
/// If the tensor does not consist of whole entries of `channels` rows.
pub(crate) fn par_channels<T: Send>(
    data: &mut [T],
    channels: usize,
    row: usize,
) -> impl IndexedParallelIterator<Item = Channel<'_, T>> {
    assert!(
        channels > 0 && data.len().is_multiple_of(channels * row),
        "{channels} rows of {row} do not divide the tensor"
    );
    let rows = if row == 0 { 0 } else { data.len() / (channels * row) };
    let shared = Shared(data.as_mut_ptr(), PhantomData::<&mut [T]>);
    (0..channels).into_par_iter().map(move |channel| {
        let shared = &shared;
        // SAFETY: the channel's first row is within the tensor.
        let first = unsafe { shared.0.add(channel * row) };
        Channel { first, row, step: channels * row, rows, _data: PhantomData }
    })
}

/// A tensor that several threads write, each its own rows.
struct Shared<'a, T>(*mut T, PhantomData<&'a mut [T]>);

// SAFETY: stands for a mutable slice; threads get different rows of it.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

/// Rows of one channel.
pub(crate) struct Channel<'a, T> {
    first: *mut T,
    row: usize,
    /// Elements from one row to the next.
    step: usize,
    rows: usize,
    _data: PhantomData<&'a mut [T]>,
}

// SAFETY: stands for mutable slices that nothing else has: every channel is made once.
unsafe impl<T: Send> Send for Channel<'_, T> {}

impl<T> Channel<'_, T> {
    /// The row of each entry of the batch, in order.
    #[inline(always)]
    pub(crate) fn rows(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (first, row, step) = (self.first, self.row, self.step);
        // SAFETY: rows of one channel do not overlap, nobody else has them, and all lie within the tensor.
        (0..self.rows).map(move |index| unsafe { std::slice::from_raw_parts_mut(first.add(index * step), row) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_belongs_to_its_channel() {
        let (entries, channels, row) = (3, 5, 7);
        let mut data = vec![0; entries * channels * row];
        par_channels(&mut data, channels, row).enumerate().for_each(|(channel, mut rows)| {
            for (entry, row) in rows.rows().enumerate() {
                row.iter_mut().enumerate().for_each(|(at, x)| *x += 10_000 * entry + 100 * channel + at);
            }
        });
        for (index, x) in data.into_iter().enumerate() {
            let (entry, channel, at) = (index / (channels * row), index / row % channels, index % row);
            assert_eq!(x, 10_000 * entry + 100 * channel + at);
        }
    }
}
