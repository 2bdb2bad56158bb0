//! Sums in an order that is fixed and yet vectorises: 16 running sums in f32 over short blocks, added to 16 sums in f64, which are added at the end.

/// Running sums side by side.
const LANES: usize = 16;
/// Elements after which the running sums move on to f64; each has then added 32 numbers.
const BLOCK: usize = 32 * LANES;

/// A sum that goes on from slice to slice.
#[derive(Clone, Copy, Default)]
pub(crate) struct Total([f64; LANES]);

impl Total {
    /// Adds f(x).
    #[inline(always)]
    pub(crate) fn add(&mut self, x: &[f32], f: impl Fn(f32) -> f32) {
        for block in x.chunks(BLOCK) {
            let mut sums = [0.0f32; LANES];
            let (whole, rest) = block.as_chunks::<LANES>();
            for x in whole {
                for lane in 0..LANES {
                    sums[lane] += f(x[lane]);
                }
            }
            for (sum, x) in sums.iter_mut().zip(rest) {
                *sum += f(*x);
            }
            self.take_up(&sums);
        }
    }

    /// The sum.
    #[inline(always)]
    pub(crate) fn value(&self) -> f64 {
        self.0.iter().sum()
    }

    #[inline(always)]
    fn take_up(&mut self, sums: &[f32; LANES]) {
        for (total, sum) in self.0.iter_mut().zip(sums) {
            *total += f64::from(*sum);
        }
    }
}

/// Adds both components of f(a, b) over two slices of one length to two sums.
#[inline(always)]
pub(crate) fn add_both(totals: &mut [Total; 2], a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> (f32, f32)) {
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        let (mut first, mut second) = ([0.0f32; LANES], [0.0f32; LANES]);
        let ((whole_a, rest_a), (whole_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in whole_a.iter().zip(whole_b) {
            for lane in 0..LANES {
                let (x, y) = f(a[lane], b[lane]);
                first[lane] += x;
                second[lane] += y;
            }
        }
        for (lane, (a, b)) in rest_a.iter().zip(rest_b).enumerate() {
            let (x, y) = f(*a, *b);
            first[lane] += x;
            second[lane] += y;
        }
        totals[0].take_up(&first);
        totals[1].take_up(&second);
    }
}

/// Sum of f(x).
#[inline(always)]
pub(crate) fn map_sum(x: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut total = Total::default();
    total.add(x, f);
    total.value()
}

/// Sum of x.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f64 {
    map_sum(x, |x| x)
}

/// Sums of both components of f(a, b) over two slices of one length.
#[inline(always)]
pub(crate) fn map_sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> (f32, f32)) -> (f64, f64) {
    let mut totals = [Total::default(); 2];
    add_both(&mut totals, a, b, f);
    (totals[0].value(), totals[1].value())
}

/// Largest of x, −∞ if there is none; NaNs are passed over.
#[inline(always)]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for lane in 0..LANES {
            lanes[lane] = if x[lane] > lanes[lane] { x[lane] } else { lanes[lane] };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_all_lengths() {
        for n in [0, 1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 37] {
            let x: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
            let expected: f64 = x.iter().map(|&x| f64::from(x)).sum();
            assert_eq!(sum(&x), expected);
            assert_eq!(map_sum(&x, |x| 2.0 * x), 2.0 * expected);
            assert_eq!(largest(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(map_sum2(&x, &x, |a, b| (a + b, b)), (2.0 * expected, expected));
        }
    }
}
