//! Sums in an order that is fixed and yet vectorises: 16 running sums in f32 over short blocks, blocks added in f64.

/// Running sums side by side.
const LANES: usize = 16;
/// Elements after which the running sums move on to f64; each has then added 32 numbers.
const BLOCK: usize = 32 * LANES;

/// Sum of f(x), as in `map_sum2` with one slice.
#[inline(always)]
pub(crate) fn map_sum(x: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
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
        total += add_up(&sums);
    }
    total
}

/// Sum of x.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f64 {
    map_sum(x, |x| x)
}

/// Sums of both components of f(a, b) over two slices of one length.
#[inline(always)]
pub(crate) fn map_sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> (f32, f32)) -> (f64, f64) {
    let mut total = (0.0, 0.0);
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
        total.0 += add_up(&first);
        total.1 += add_up(&second);
    }
    total
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

#[inline(always)]
fn add_up(sums: &[f32; LANES]) -> f64 {
    sums.iter().map(|&sum| f64::from(sum)).sum()
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
