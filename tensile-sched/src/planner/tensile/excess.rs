//! Bytes over budget along the step, with fast sums over ranges.

/// Positions looked at as one where that is enough.
const BLOCK: usize = 32;

/// Bytes above the cap by position; negative where there is room. The step is a circle: ranges may go on beyond its end, up to one turn further.
#[derive(Clone, Debug)]
pub(super) struct Excess {
    values: Vec<i64>,
    /// Least and most of each block of positions.
    bounds: Vec<(i64, i64)>,
}

impl Excess {
    pub(super) fn new(values: Vec<i64>) -> Self {
        let bounds = values.chunks(BLOCK).map(bounds_of).collect();
        Self { values, bounds }
    }

    /// The most at any position; zero without positions.
    pub(super) fn most(&self) -> i64 {
        self.bounds.iter().map(|bounds| bounds.1).max().unwrap_or(0)
    }

    /// The most in `low..high`; the least number there is for an empty range.
    pub(super) fn most_in(&self, low: usize, high: usize) -> i64 {
        let mut most = i64::MIN / 2;
        self.blocks(low, high, |values, bounds| match bounds {
            Some(bounds) => most = most.max(bounds.1),
            None => most = values.iter().copied().fold(most, i64::max),
        });
        most
    }

    /// Sum over `low..high` of what `bytes` fewer would take off the excess.
    pub(super) fn relief(&self, bytes: u64, low: usize, high: usize) -> f64 {
        let bytes = bytes as i64;
        let mut sum = 0.0;
        self.blocks(low, high, |values, bounds| match bounds {
            Some((_, most)) if most <= 0 => {}
            Some((least, _)) if least >= bytes => sum += (bytes * values.len() as i64) as f64,
            _ => sum += values.iter().map(|&value| value.clamp(0, bytes)).sum::<i64>() as f64,
        });
        sum
    }

    /// Sum over `low..high` of what `bytes` more would put above the cap.
    pub(super) fn burden(&self, bytes: u64, low: usize, high: usize) -> f64 {
        let bytes = bytes as i64;
        let mut sum = 0.0;
        self.blocks(low, high, |values, bounds| match bounds {
            Some((_, most)) if most + bytes <= 0 => {}
            Some((least, _)) if least >= 0 => sum += (bytes * values.len() as i64) as f64,
            _ => sum += values.iter().map(|&value| (value + bytes).clamp(0, bytes)).sum::<i64>() as f64,
        });
        sum
    }

    /// Adds `bytes` in `low..high`.
    pub(super) fn change(&mut self, bytes: i64, low: usize, high: usize) {
        let n = self.values.len();
        for (low, high) in turns(n, low, high) {
            self.values[low..high].iter_mut().for_each(|value| *value += bytes);
            if low < high {
                for block in low / BLOCK..=(high - 1) / BLOCK {
                    let end = ((block + 1) * BLOCK).min(n);
                    self.bounds[block] = bounds_of(&self.values[block * BLOCK..end]);
                }
            }
        }
    }

    /// Calls `visit` with the values of each block in `low..high`, and with their bounds for blocks that lie in it completely.
    fn blocks(&self, low: usize, high: usize, mut visit: impl FnMut(&[i64], Option<(i64, i64)>)) {
        for (low, high) in turns(self.values.len(), low, high) {
            let mut at = low;
            while at < high {
                let end = ((at / BLOCK + 1) * BLOCK).min(high);
                let is_whole = at % BLOCK == 0 && (end % BLOCK == 0 || end == self.values.len());
                visit(&self.values[at..end], is_whole.then(|| self.bounds[at / BLOCK]));
                at = end;
            }
        }
    }
}

/// The parts of `low..high` in this turn and in the next, on a circle of `n` positions.
fn turns(n: usize, low: usize, high: usize) -> [(usize, usize); 2] {
    let beyond = |at: usize| at.saturating_sub(n).min(n);
    [(low.min(n), high.min(n)), (beyond(low), beyond(high))]
}

fn bounds_of(values: &[i64]) -> (i64, i64) {
    let least = values.iter().copied().min().unwrap_or(0);
    let most = values.iter().copied().max().unwrap_or(0);
    (least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_those_of_single_positions() {
        let n = 150;
        let values: Vec<i64> =
            (0..n as i64).map(|at| (at * 37 % 101 - 50) * if at / 40 == 1 { 9 } else { 1 }).collect();
        let mut excess = Excess::new(values.clone());
        excess.change(25, 100, 200);
        let value = |at: usize| values[at % n] + if (100..200).contains(&at) || at < 50 { 25 } else { 0 };
        for (low, high) in [(0, 150), (3, 9), (31, 97), (140, 149), (120, 200), (150, 299), (70, 70)] {
            for bytes in [1, 20, 500] {
                let relief: i64 = (low..high).map(|at| value(at % n).clamp(0, bytes)).sum();
                let burden: i64 = (low..high).map(|at| (value(at % n) + bytes).clamp(0, bytes)).sum();
                assert_eq!(excess.relief(bytes as u64, low, high), relief as f64);
                assert_eq!(excess.burden(bytes as u64, low, high), burden as f64);
            }
            let most = (low..high).map(|at| value(at % n)).max();
            assert_eq!(excess.most_in(low, high), most.unwrap_or(i64::MIN / 2));
        }
    }
}
