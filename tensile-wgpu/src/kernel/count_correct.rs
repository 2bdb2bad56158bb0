//! `count_correct`: first which rows are right, then their number.

use tensile_core::op::count_correct::CountCorrect;

use super::reduction::{Extra, Reduction, reductions};
use super::rows::{PARAMS, WORKGROUP, dispatches_of};
use super::{ALIGNMENT, Caps, Kernel, Place, Plan, Refused, Types, scratch};
use crate::shader::Shader;

static ROWS: Shader = Shader {
    name: "count_correct_rows",
    source: include_str!("count_correct_rows.wgsl"),
    buffers: &[("x", "f32"), ("labels", "i32"), ("right", "i32")],
    params: PARAMS,
    snippets: &[],
    libraries: &[],
    workgroup: WORKGROUP,
};
static COUNT: Shader = reductions!(
    @ scalar,
    "count_correct",
    "count_correct.wgsl",
    "reduction/count.wgsl",
    [("right", I), ("partial", I), ("y", I)]
);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&ROWS, &COUNT];

impl Kernel for CountCorrect {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let dims = types.inputs[0].dims();
        let (rows, columns) = (dims[0] as u64, dims[1] as u64);
        let (x, labels) = (types.whole(Place::Input(0), caps)?, types.whole(Place::Input(1), caps)?);
        let (right, y) = (scratch(4 * rows, caps)?, types.whole(Place::Output(0), caps)?);
        let mut all = dispatches_of(&ROWS, vec![x, labels, right], (rows, columns), (0, 0), 6.0, caps);
        let at = (4 * rows).next_multiple_of(ALIGNMENT);
        let (count, workspace) =
            Reduction::of_all(rows).dispatches(&COUNT, caps, (at, 1), Extra::default(), |partial| {
                vec![right, partial, y]
            })?;
        all.extend(count);
        Ok(Plan { workspace, dispatches: all })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::{float_bytes, int_bytes};

    use super::*;
    use crate::kernel::tests::{check_all_caps, random};

    #[test]
    fn shapes() {
        for (rows, columns) in [(1, 1), (1, 9), (5, 1), (129, 10), (3, 1000), (20_001, 3)] {
            let labels: Vec<i32> = (0..rows).map(|row| (row * 7 % columns) as i32).collect();
            let labels = (TensorType::i32([rows]), int_bytes(&labels));
            check_all_caps(CountCorrect, &[random([rows, columns], 3), labels], 0.0);
        }
    }

    #[test]
    fn equals_and_what_is_no_number() {
        let (nan, low) = (f32::NAN, f32::NEG_INFINITY);
        let rows = [[1.0, 2.0, 2.0], [nan, 2.0, 1.0], [1.0, nan, 2.0], [low, low, low], [0.0, -0.0, 0.0], [low, nan, low]];
        for label in -1..=3 {
            let labels = (TensorType::i32([rows.len()]), int_bytes(&[label; 6]));
            let x = (TensorType::f32([rows.len(), 3]), float_bytes(rows.as_flattened()));
            check_all_caps(CountCorrect, &[x, labels], 0.0);
        }
    }
}
