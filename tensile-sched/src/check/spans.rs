//! Disjoint ranges of addresses, each with an owner.

use std::collections::BTreeMap;

/// Disjoint, non-empty half-open ranges by start address. All methods take time logarithmic in the number of ranges (times the ranges met).
#[derive(Clone, Debug)]
pub(super) struct Spans<T> {
    by_start: BTreeMap<u64, (u64, T)>,
}

impl<T: Copy + PartialEq> Spans<T> {
    pub(super) fn new() -> Self {
        Self { by_start: BTreeMap::new() }
    }

    /// The lowest range that shares bytes with `start..end`.
    pub(super) fn first_overlap(&self, start: u64, end: u64) -> Option<(u64, u64, T)> {
        if let Some((&other, &(other_end, owner))) = self.by_start.range(..=start).next_back()
            && other_end > start
        {
            return Some((other, other_end, owner));
        }
        let (&other, &(other_end, owner)) = self.by_start.range(start..).next()?;
        (other < end).then_some((other, other_end, owner))
    }

    /// Adds a range that overlaps none.
    pub(super) fn insert(&mut self, start: u64, end: u64, owner: T) {
        debug_assert!(self.first_overlap(start, end).is_none(), "ranges are disjoint");
        self.by_start.insert(start, (end, owner));
    }

    /// Removes the range at `start` if it is there and belongs to `owner`; returns its length.
    pub(super) fn remove(&mut self, start: u64, owner: T) -> Option<u64> {
        match self.by_start.get(&start) {
            Some(&(end, found)) if found == owner => {
                self.by_start.remove(&start);
                Some(end - start)
            }
            _ => None,
        }
    }
}
