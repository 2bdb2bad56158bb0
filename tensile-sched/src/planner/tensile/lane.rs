//! A copy lane as a circle of time: bookings of one step repeat in every step.

/// Times are in ns from the start of a step; those beyond its end mean the next steps.
#[derive(Clone, Debug)]
pub(super) struct Circle {
    period: u64,
    /// Booked spans within `0..period`, in order, apart from each other.
    booked: Vec<(u64, u64)>,
}

impl Circle {
    pub(super) fn new(period: u64) -> Self {
        Self { period, booked: Vec::new() }
    }

    /// The earliest start at or after `from` of a free span of length `time`; none if there is none within a period.
    pub(super) fn earliest(&self, from: u64, time: u64) -> Option<u64> {
        if time > self.period {
            return None;
        }
        let mut start = from;
        let lap = from / self.period.max(1);
        for turn in lap.saturating_sub(1)..=lap + 2 {
            let offset = turn * self.period;
            let first = self.booked.partition_point(|&(_, end)| end + offset <= start);
            for &(begin, end) in &self.booked[first..] {
                let (begin, end) = (begin + offset, end + offset);
                if begin >= start + time {
                    return (start <= from + self.period).then_some(start);
                }
                start = end;
            }
        }
        (start <= from + self.period).then_some(start)
    }

    /// The latest start, at or after `from`, of a free span of length `time` that ends at or before `until`.
    pub(super) fn latest(&self, from: u64, until: u64, time: u64) -> Option<u64> {
        if time > self.period {
            return None;
        }
        let mut end = until;
        for turn in (0..=until / self.period.max(1)).rev() {
            let offset = turn * self.period;
            let last = self.booked.partition_point(|&(begin, _)| begin + offset < end);
            for &(begin, stop) in self.booked[..last].iter().rev() {
                let (begin, stop) = (begin + offset, stop + offset);
                if end < from + time {
                    return None;
                }
                if stop + time <= end {
                    return Some(end - time);
                }
                end = begin;
            }
        }
        (end >= from + time).then(|| end - time)
    }

    /// Books a free span.
    pub(super) fn book(&mut self, start: u64, time: u64) {
        if self.period == 0 || time == 0 {
            return;
        }
        let start = start % self.period;
        let end = start + time;
        self.add(start, end.min(self.period));
        if end > self.period {
            self.add(0, end - self.period);
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        let at = self.booked.partition_point(|&(begin, _)| begin < start);
        self.booked.insert(at, (start, end));
        if at + 1 < self.booked.len() && self.booked[at].1 >= self.booked[at + 1].0 {
            self.booked[at].1 = self.booked[at].1.max(self.booked[at + 1].1);
            self.booked.remove(at + 1);
        }
        if at > 0 && self.booked[at - 1].1 >= self.booked[at].0 {
            self.booked[at - 1].1 = self.booked[at - 1].1.max(self.booked[at].1);
            self.booked.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```text
    /// 0    20   40   60   80   100
    /// ##   .    ####             ##
    /// ```
    #[test]
    fn spans_are_found_around_bookings() {
        let mut lane = Circle::new(100);
        lane.book(40, 20);
        lane.book(95, 15);
        assert_eq!(lane.booked, [(0, 10), (40, 60), (95, 100)]);
        assert_eq!(lane.earliest(0, 20), Some(10));
        assert_eq!(lane.earliest(0, 31), Some(60));
        assert_eq!(lane.earliest(70, 30), Some(110));
        assert_eq!(lane.earliest(0, 60), None);
        assert_eq!(lane.latest(0, 50, 20), Some(20));
        assert_eq!(lane.latest(0, 50, 31), None);
        assert_eq!(lane.latest(50, 130, 20), Some(110));
        assert_eq!(lane.latest(50, 130, 25), Some(70));
    }
}
