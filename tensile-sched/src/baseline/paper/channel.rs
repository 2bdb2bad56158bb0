//! The half-duplex channel: which times are taken, and where a copy fits.

/// Copies on the channel, by start; they do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    busy: Vec<(u64, u64)>,
}

/// The first of `spans` (by time, without overlaps) that `start..end` runs into.
fn first_hit(spans: &[(u64, u64)], start: u64, end: u64) -> Option<(u64, u64)> {
    let next = spans.partition_point(|span| span.1 <= start);
    spans.get(next).copied().filter(|span| span.0 < end)
}

/// The last of `spans` that `start..end` runs into.
fn last_hit(spans: &[(u64, u64)], start: u64, end: u64) -> Option<(u64, u64)> {
    let before = spans.partition_point(|span| span.0 < end);
    before.checked_sub(1).map(|last| spans[last]).filter(|span| span.1 > start)
}

impl Channel {
    /// Earliest start of a copy of that length within the window, beside the copies planned and the times that are closed to it.
    pub(super) fn earliest(&self, window: (u64, u64), length: u64, closed: &[(u64, u64)]) -> Option<u64> {
        let mut start = window.0;
        while start.saturating_add(length) <= window.1 {
            let end = start + length;
            let hit = first_hit(&self.busy, start, end).or_else(|| first_hit(closed, start, end));
            match hit {
                Some(hit) => start = hit.1,
                None => return Some(start),
            }
        }
        None
    }

    /// Latest start of a copy of that length within the window, beside the copies planned.
    pub(super) fn latest(&self, window: (u64, u64), length: u64) -> Option<u64> {
        let mut end = window.1;
        while end >= window.0.saturating_add(length) {
            match last_hit(&self.busy, end - length, end) {
                Some(hit) => end = hit.0,
                None => return Some(end - length),
            }
        }
        None
    }

    /// Takes a time in which nothing is planned.
    pub(super) fn take(&mut self, start: u64, length: u64) {
        if length > 0 {
            let place = self.busy.partition_point(|span| span.0 < start);
            self.busy.insert(place, (start, start + length));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_the_first_and_the_last_gap() {
        let mut channel = Channel::default();
        assert_eq!(channel.earliest((5, 20), 10, &[]), Some(5));
        channel.take(5, 10);
        assert_eq!(channel.earliest((0, 20), 5, &[]), Some(0));
        assert_eq!(channel.earliest((1, 20), 5, &[]), Some(15));
        assert_eq!(channel.earliest((1, 19), 5, &[]), None);
        assert_eq!(channel.earliest((0, 30), 5, &[(0, 1), (16, 20)]), Some(20));
        assert_eq!(channel.latest((0, 30), 5), Some(25));
        assert_eq!(channel.latest((0, 19), 5), Some(0));
        assert_eq!(channel.latest((1, 19), 5), None);
        // A copy that takes no time fits between two others.
        channel.take(0, 5);
        assert_eq!(channel.earliest((5, 5), 0, &[]), Some(5));
        assert_eq!(channel.latest((3, 7), 0), Some(3 + 2));
    }
}
