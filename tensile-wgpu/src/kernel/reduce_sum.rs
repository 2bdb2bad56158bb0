//! `reduce_sum`, and all other plain sums.

use tensile_core::op::reduce_sum::ReduceSum;

use super::reduction::{Extra, Reduction, reductions, scratch_at};
use super::{ALIGNMENT, Binding, Caps, Kernel, Place, Plan, Refused, Types, scratch, window, windows};
use crate::shader::Shader;

static SUM: [Shader; 3] = reductions!("reduce_sum", "reduce_sum.wgsl", "one", [("x", E), ("partial", W1), ("y", S)]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SUM[0], &SUM[1], &SUM[2]];

/// Sums of input 0 over `axes`, times `factor`, to output 0.
///
/// # Errors
/// If a tensor is larger than a binding, and the result not one number.
pub(super) fn plan(types: Types<'_>, axes: &[usize], factor: f32, caps: &Caps) -> Result<Plan, Refused> {
    if types.inputs[0].bytes() as u64 > caps.max_binding && types.outputs[0].numel() == 1 {
        return in_windows(types.inputs[0].numel() as u64, factor, caps);
    }
    let (x, y) = (types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?);
    let reduction = Reduction::new(types.inputs[0].dims(), axes);
    let extra = Extra { factor, ..Extra::default() };
    let (dispatches, workspace) =
        reduction.dispatches(reduction.shader(&SUM), caps, (0, 1), extra, |partial| vec![x, partial, y])?;
    Ok(Plan { workspace, dispatches })
}

/// The sum of all `n` elements of input 0, a window at a time: the windows' sums stand in scratch, [`ALIGNMENT`] bytes apart, and are added in order.
fn in_windows(n: u64, factor: f32, caps: &Caps) -> Result<Plan, Refused> {
    let windows: Vec<(u64, u64)> = windows(n, 4, caps).collect();
    let sums = windows.len() as u64 * ALIGNMENT;
    let (mut dispatches, mut workspace) = (Vec::new(), 0);
    let mut add = |reduction: Reduction, factor, x: Binding, y: Binding| -> Result<(), Refused> {
        let extra = Extra { factor, ..Extra::default() };
        let shader = reduction.shader(&SUM);
        let (more, end) = reduction.dispatches(shader, caps, (sums, 1), extra, |partial| vec![x, partial, y])?;
        dispatches.extend(more);
        workspace = end.max(workspace);
        Ok(())
    };
    for (&(first, n), index) in windows.iter().zip(0..) {
        let sum = scratch_at(index * ALIGNMENT, 4);
        add(Reduction::new(&[n as usize], &[0]), 1.0, window(Place::Input(0), first, n, 4), sum)?;
    }
    let all = Reduction::of_places(windows.len() as u64, ALIGNMENT / 4);
    add(all, factor, scratch(sums, caps)?, Binding { place: Place::Output(0), offset: 0, bytes: 4 })?;
    Ok(Plan { workspace, dispatches })
}

impl Kernel for ReduceSum {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        plan(types, &self.axes, self.scale, caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_all_caps, check_windows, random, results};

    fn sum(axes: &[usize]) -> ReduceSum {
        ReduceSum { axes: axes.to_vec(), keep_dims: false, scale: 0.5 }
    }

    #[test]
    fn shapes() {
        let cases: &[(&[usize], &[usize])] = &[
            (&[1], &[0]),
            (&[5], &[]),
            (&[3, 7], &[0, 1]),
            (&[3, 7], &[0]),
            (&[3, 8], &[0]),
            (&[3, 7], &[1]),
            (&[3, 8], &[1]),
            (&[130, 129], &[1]),
            (&[129, 132], &[0]),
            (&[2, 3, 4, 5], &[0, 2]),
            (&[2, 3, 4, 8], &[0, 2]),
            (&[2, 3, 4, 5], &[1, 3]),
            (&[2, 3, 4, 8], &[1, 3]),
            (&[1, 3, 1, 5], &[0, 2]),
            (&[2, 3, 2, 3, 2, 3, 2, 3], &[0, 2, 4, 6]),
            (&[2, 3, 2, 3, 2, 3, 2, 3], &[1, 3, 5, 7]),
            (&[2, 3, 2, 3, 2, 3, 2, 4], &[0, 2, 4, 6]),
            (&[2, 3, 2, 3, 2, 3, 2, 4], &[1, 3, 5, 7]),
        ];
        for &(dims, axes) in cases {
            check_all_caps(sum(axes), &[random(dims, 3)], 2e-6);
        }
    }

    #[test]
    fn long_sums() {
        check_all_caps(sum(&[0]), &[random([1_500_001], 1)], 2e-5);
        check(sum(&[0]), &[random([1_500_000], 2)], 2e-5);
        check(sum(&[0]), &[random([400_001, 3], 3)], 2e-5);
        check(sum(&[0]), &[random([100_001, 12], 4)], 2e-5);
        check(sum(&[1]), &[random([3, 400_004], 5)], 2e-5);
    }

    #[test]
    fn long_sums_of_one_sign() {
        let x: Vec<f32> = tensile_core::testing::values(1_200_003, 6).iter().map(|x| 100.0 + x).collect();
        let x = (tensile_core::TensorType::f32([x.len()]), tensile_core::testing::float_bytes(&x));
        check_all_caps(sum(&[0]), &[x], 2e-6);
    }

    #[test]
    fn no_terms_and_no_outputs_have_plans() {
        let caps = Caps { max_binding: 1024, software: false, max_flops: 1e9 };
        for (dims, axes, n_dispatches) in [([0, 5], [0], 1), ([3, 0], [1], 1), ([3, 0], [0], 0)] {
            let x = tensile_core::TensorType::f32(dims);
            let y = tensile_core::TensorType::f32([dims[1 - axes[0]]]);
            let plan = sum(&axes).plan(Types { inputs: &[&x], outputs: &[&y] }, &caps).expect("planned");
            assert_eq!(plan.dispatches.len(), n_dispatches, "{x}");
        }
    }

    #[test]
    fn tensors_larger_than_a_binding_are_refused() {
        let caps = Caps { max_binding: 1024, software: false, max_flops: 1e9 };
        let (x, y) = (tensile_core::TensorType::f32([257, 2]), tensile_core::TensorType::f32([2]));
        let plan = sum(&[0]).plan(Types { inputs: &[&x], outputs: &[&y] }, &caps);
        assert_eq!(plan.err(), Some(Refused::Binding { what: "input 0 f32[257, 2]".to_owned(), bytes: 2056 }));
    }

    /// Compilers must not simplify what keeps count of lost digits: a sum that loses its small terms to a large one gets them back when that goes.
    #[test]
    fn small_terms_are_not_lost() {
        let mut x = [0.0f32; 48 * 4];
        x[..4].fill(3e7);
        x[16 * 4..32 * 4].fill(0.3);
        x[32 * 4..33 * 4].fill(-3e7);
        let x = (tensile_core::TensorType::f32([48, 4]), tensile_core::testing::float_bytes(&x));
        let Some([sums, _]) = results(sum(&[0]), &[x]) else { return };
        for sum in tensile_core::testing::floats(&sums[0]) {
            assert!((sum - 2.4).abs() < 1e-5, "{sum}");
        }
    }

    #[test]
    fn all_elements_of_what_is_larger_than_a_binding() {
        for n in [4097, 10_000, 40_961] {
            check_windows(1 << 14, sum(&[0]), &[random([n], 6)], 2e-5);
        }
        check_windows(1 << 20, sum(&[0, 1]), &[random([700, 1001], 6)], 2e-5);
    }

    #[test]
    fn more_outputs_than_a_row_of_groups() {
        // 128 outputs a group: 70,313 groups of single numbers.
        check(sum(&[1]), &[random([9_000_001, 1], 1)], 0.0);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        let ty = tensile_core::TensorType::f32([3, 40]);
        let mut x = vec![1.0; 120];
        (x[5], x[45], x[100]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
        check_all_caps(sum(&[1]), &[(ty.clone(), tensile_core::testing::float_bytes(&x))], 0.0);
        check_all_caps(sum(&[0]), &[(ty, tensile_core::testing::float_bytes(&x))], 0.0);
    }
}
