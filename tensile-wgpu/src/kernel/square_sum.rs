//! `square_sum`: a running sum of squares with twice an f32's digits.
//!
//! The first dispatch, or one for each window of a large tensor, makes a sum for each of its invocations; further ones make one of 64 until 64 are left, and the last adds those.

use tensile_core::op::square_sum::SquareSum;

use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types, library, scratch, window, windows};
use crate::shader::Shader;

/// Invocations in a workgroup of the first dispatch.
const WORKGROUP: u32 = 64;
/// Vectors that an invocation of it adds.
const STEPS: u64 = 64;
/// Sums that an invocation of the others adds.
const FOLD: u64 = 64;
/// Bytes of a sum.
const SUM: u64 = 8;

static SQUARES: Shader = Shader {
    name: "square_sum",
    source: include_str!("square_sum.wgsl"),
    buffers: &[("x", "vec4<f32>"), ("sums", "vec2<f32>")],
    params: &[("n", "u32"), ("steps", "u32"), ("groups", "u32"), ("to", "u32"), ("zero", "u32")],
    snippets: &[],
    libraries: &[library::ADD_SUMS],
    workgroup: WORKGROUP,
};

static FOLDED: Shader = Shader {
    name: "square_sum_fold",
    source: include_str!("square_sum_fold.wgsl"),
    buffers: &[("sums", "vec2<f32>")],
    params: &[("start", "u32"), ("m", "u32"), ("to", "u32"), ("n", "u32"), ("zero", "u32")],
    snippets: &[],
    libraries: &[library::ADD_SUMS],
    workgroup: WORKGROUP,
};

/// The last shader: name, buffer of the sum so far if there is one, that sum in WGSL.
macro_rules! last {
    ($name:literal, [$($before:expr)?], $of_before:literal) => {
        Shader {
            name: $name,
            source: include_str!("square_sum_last.wgsl"),
            buffers: &[("sums", "vec2<f32>"), $($before,)? ("sum", "f32")],
            params: &[("start", "u32"), ("m", "u32"), ("zero", "u32")],
            snippets: &[("before", $of_before)],
            libraries: &[library::ADD_SUMS, library::JOINED],
            workgroup: 1,
        }
    };
}

static FIRST_SUM: Shader = last!("square_sum_last", [], "vec2(0.0)");
static NEXT_SUM: Shader = last!("square_sum_next", [("so_far", "f32")], "vec2($so_far[0], $so_far[1])");

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SQUARES, &FOLDED, &FIRST_SUM, &NEXT_SUM];

impl Kernel for SquareSum {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let windows: Vec<(u64, u64)> = windows(types.inputs[0].numel() as u64, 4, caps).collect();
        let groups = |n: u64| n.div_ceil(4 * STEPS * u64::from(WORKGROUP));
        let sums = windows.iter().map(|&(_, n)| groups(n) * u64::from(WORKGROUP)).sum::<u64>();
        // Numbers of sums that the dispatches leave.
        let mut levels = vec![sums];
        while levels.last().is_some_and(|&left| left > FOLD) {
            levels.push(levels[levels.len() - 1].div_ceil(FOLD));
        }
        let workspace = (levels.iter().sum::<u64>() * SUM).max(1);
        let scratch = scratch(workspace, caps)?;
        let mut dispatches = Vec::new();
        let mut to = 0;
        for (first, n) in windows {
            let groups = groups(n);
            dispatches.push(Dispatch {
                shader: &SQUARES,
                bindings: vec![window(Place::Input(0), first, n, 4), scratch],
                params: vec![n as u32, STEPS as u32, groups as u32, to as u32, 0],
                groups,
            });
            to += groups * u64::from(WORKGROUP);
        }
        let mut from = 0;
        for pair in levels.windows(2) {
            let to = from + pair[0];
            dispatches.push(Dispatch {
                shader: &FOLDED,
                bindings: vec![scratch],
                params: vec![from as u32, pair[0] as u32, to as u32, pair[1] as u32, 0],
                groups: pair[1].div_ceil(u64::from(WORKGROUP)),
            });
            from = to;
        }
        let mut bindings = vec![scratch];
        if types.inputs.len() > 1 {
            bindings.push(types.whole(Place::Input(1), caps)?);
        }
        bindings.push(types.whole(Place::Output(0), caps)?);
        dispatches.push(Dispatch {
            shader: if types.inputs.len() > 1 { &NEXT_SUM } else { &FIRST_SUM },
            bindings,
            params: vec![from as u32, levels[levels.len() - 1] as u32, 0],
            groups: 1,
        });
        Ok(Plan { workspace, dispatches })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::testing::{floats, values};

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random, results};

    /// Whether a sum has an f64's value almost, and its parts are as they should be.
    fn is_near(parts: &[f32], right: f64) {
        let sum = f64::from(parts[0]) + f64::from(parts[1]);
        assert!((sum / right - 1.0).abs() < 1e-11, "{parts:?} against {right}");
        assert_eq!(sum as f32, parts[0], "the first part is the nearest f32");
    }

    #[test]
    fn sums_have_twice_an_f32s_digits() {
        for n in [1, 2, 3, 5, 1000, 16_384, 16_385, 70_001, 1_100_000] {
            let x = values(n, 7);
            let right: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let Some([got, _]) = results(SquareSum, &[given(&x)]) else { return };
            is_near(&floats(&got[0]), right);
            let Some([got, _]) = results(SquareSum, &[given(&x), given(&[3e7, 0.7])]) else { return };
            is_near(&floats(&got[0]), f64::from(3e7f32) + f64::from(0.7f32) + right);
        }
    }

    #[test]
    fn chains_keep_small_summands() {
        let mut sum = vec![16_384.0 * 16_384.0, 0.0];
        for _ in 0..40 {
            let Some([got, _]) = results(SquareSum, &[given(&[1.0]), given(&sum)]) else { return };
            sum = floats(&got[0]);
        }
        assert_eq!(f64::from(sum[0]) + f64::from(sum[1]), 16_384.0 * 16_384.0 + 40.0);
    }

    #[test]
    fn as_the_host_does() {
        for n in [0, 1, 3, 4, 5, 70] {
            // Sums so small that the parts' order of magnitude is below the tolerance.
            check(SquareSum, &[random([n], 3)], 3e-6);
            check(SquareSum, &[random([n], 3), given(&[0.25, 1e-9])], 3e-6);
        }
        check_windows(4096, SquareSum, &[given(&[0.5; 2500])], 0.0);
        check_windows(4096, SquareSum, &[given(&[0.5; 2500]), given(&[4.0, 0.0])], 0.0);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let nan_of_low_digits = f32::from_bits(0x7f80_0001);
        for x in [[1.0, f32::INFINITY], [1.0, f32::NAN], [3e38, 1.0], [f32::INFINITY, f32::NAN], [1.0, nan_of_low_digits]] {
            check(SquareSum, &[given(&x)], 0.0);
            check(SquareSum, &[given(&x), given(&[5.0, 0.0])], 0.0);
        }
        check(SquareSum, &[given(&[1.0]), given(&[f32::INFINITY, 0.0])], 0.0);
        check(SquareSum, &[given(&[1.0]), given(&[f32::NAN, 0.0])], 0.0);
    }
}
