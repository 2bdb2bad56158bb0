//! Elementary functions that vectorise, and that have the same bits on every machine.

/// eˣ within 2 units in the last place; 0 below −104, infinite above 89, NaN for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln 2/2, and e^r by its Taylor polynomial of degree 7, whose rest is below 6·10⁻⁹.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let (n, r) = parts(x);
    let polynomial = (tail(r) * r + 1.0) * r + 1.0;
    // 2ⁿ in two factors, so that neither leaves the range of normal numbers.
    let power = |n: i32| f32::from_bits((n.wrapping_add(127).cast_unsigned() & 0xFF) << 23);
    polynomial * power(n >> 1) * power(n.wrapping_sub(n >> 1))
}

/// n and r of x = n·ln 2 + r with |r| ≤ ln 2/2, for |x| below 200.
#[inline(always)]
fn parts(x: f32) -> (i32, f32) {
    // ln 2 in two parts; products of the first with small whole numbers are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Adding it rounds to a whole number, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let whole = rounded - ROUND;
    (n, (x - whole * LN_2[0]) - whole * LN_2[1])
}

/// (eʳ − 1 − r)/r² by Taylor's series up to r⁵.
#[inline(always)]
fn tail(r: f32) -> f32 {
    const TERMS: [f32; 6] = [1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0];
    // Written out: a fold over the terms is not always unrolled.
    let [t2, t3, t4, t5, t6, t7] = TERMS;
    ((((t7 * r + t6) * r + t5) * r + t4) * r + t3) * r + t2
}

/// Hyperbolic tangent within 3 units in the last place; NaN for NaN.
///
/// tanh t = e/(e + 2) with e = e²ᵗ − 1 for t ≥ 0, and e²ᵗ − 1 = 2ⁿ·(eʳ − 1) + (2ⁿ − 1) for 2t = n·ln 2 + r, so that nothing is lost near 0.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let t = x.abs();
    // Beyond, the result rounds to 1.
    let t = if t > 10.0 { 10.0 } else { t };
    let (n, r) = parts(2.0 * t);
    let power = f32::from_bits((n.wrapping_add(127).cast_unsigned() & 0xFF) << 23);
    let e = power * (r + r * r * tail(r)) + (power - 1.0);
    (e / (e + 2.0)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_accurate() {
        let mut largest = 0.0f64;
        for i in 1..=120_000 {
            for x in [i as f32 / 10_000.0, i as f32 * 1e-7] {
                let right = f64::from(x).tanh();
                largest = largest.max((f64::from(tanh(x)) - right).abs() / right);
                assert_eq!(tanh(-x), -tanh(x));
            }
        }
        assert!(largest < 3.0 * f64::from(f32::EPSILON), "{largest:.2e}");
        assert_eq!(tanh(0.0), 0.0);
        assert_eq!([tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)], [1.0, -1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn exp_is_accurate() {
        let mut largest = 0.0f64;
        for i in -104_000..=89_000 {
            let x = i as f32 / 1000.0 + 1e-4;
            let right = f64::from(x).exp();
            let error = (f64::from(exp(x)) - right).abs();
            if right > f64::from(f32::MIN_POSITIVE) && right < f64::from(f32::MAX) {
                largest = largest.max(error / right);
            } else if right < 1.0 {
                assert!(error <= 1.5e-45, "{x}: {} against {right}", exp(x));
            }
        }
        assert!(largest < 2.0 * f64::from(f32::EPSILON), "{largest:.2e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
