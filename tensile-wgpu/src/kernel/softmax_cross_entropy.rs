//! `softmax_cross_entropy` and its gradient.

use tensile_core::op::softmax_cross_entropy::{SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad};

use super::reduction::{Extra, Reduction, reductions, scratch_at};
use super::rows::{dispatches, row_shaders};
use super::{ALIGNMENT, Caps, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

static ROWS: [Shader; 2] =
    row_shaders!("softmax_cross_entropy_rows", "softmax_cross_entropy_rows.wgsl", [("x", E), ("lse", F)]);
static LOSS: Shader = reductions!(
    @ scalar,
    "softmax_cross_entropy_loss",
    "softmax_cross_entropy_loss.wgsl",
    "reduction/two.wgsl",
    [("x", F), ("labels", I), ("lse", F), ("partial", W2), ("loss", F)]
);
static SCALE: Shader = reductions!(
    @ scalar,
    "softmax_cross_entropy_scale",
    "softmax_cross_entropy_scale.wgsl",
    "reduction/one.wgsl",
    [("labels", I), ("dloss", F), ("partial", W1), ("scale", F)]
);
static GRAD: [Shader; 2] = row_shaders!(
    "softmax_cross_entropy_grad",
    "softmax_cross_entropy_grad.wgsl",
    [("x", E), ("labels", I), ("lse", F), ("scale", F), ("dx", E)]
);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&ROWS[0], &ROWS[1], &LOSS, &SCALE, &GRAD[0], &GRAD[1]];

/// Rows and columns of the logits.
fn sizes(types: Types<'_>) -> (u64, u64) {
    let dims = types.inputs[0].dims();
    (dims[0] as u64, dims[1] as u64)
}

fn extra(ignore: Option<i32>, columns: u64) -> Extra {
    let (mode, word) = ignore.map_or((0, 0), |label| (1, label));
    Extra { mode, word, columns: columns as u32, ..Extra::default() }
}

impl Kernel for SoftmaxCrossEntropy {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (rows, columns) = sizes(types);
        let (x, labels) = (types.whole(Place::Input(0), caps)?, types.whole(Place::Input(1), caps)?);
        let (loss, lse) = (types.whole(Place::Output(0), caps)?, types.whole(Place::Output(1), caps)?);
        let mut all = dispatches(&ROWS, vec![x, lse], (rows, columns), (0, 0), 35.0, caps);
        let (sums, workspace) =
            Reduction::of_all(rows).dispatches(&LOSS, caps, (0, 2), extra(self.ignore, columns), |partial| {
                vec![x, labels, lse, partial, loss]
            })?;
        all.extend(sums);
        Ok(Plan { workspace, dispatches: all })
    }
}

impl Kernel for SoftmaxCrossEntropyGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (rows, columns) = sizes(types);
        let (x, labels) = (types.whole(Place::Input(0), caps)?, types.whole(Place::Input(1), caps)?);
        let (lse, dloss) = (types.whole(Place::Input(2), caps)?, types.whole(Place::Input(3), caps)?);
        let (scale, dx) = (scratch_at(0, 4), types.whole(Place::Output(0), caps)?);
        let extra = extra(self.ignore, columns);
        let (mut all, workspace) =
            Reduction::of_all(rows).dispatches(&SCALE, caps, (ALIGNMENT, 1), extra, |partial| {
                vec![labels, dloss, partial, scale]
            })?;
        let words = (extra.mode, extra.word.cast_unsigned());
        all.extend(dispatches(&GRAD, vec![x, labels, lse, scale, dx], (rows, columns), words, 25.0, caps));
        Ok(Plan { workspace, dispatches: all })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::{float_bytes, int_bytes};

    use super::*;
    use crate::kernel::tests::{check_all_caps, random};

    type Input = (TensorType, Vec<u8>);

    fn labels(labels: &[i32]) -> Input {
        (TensorType::i32([labels.len()]), int_bytes(labels))
    }

    fn floats(shape: &[usize], values: &[f32]) -> Input {
        (TensorType::f32(shape), float_bytes(values))
    }

    fn both(ignore: Option<i32>, x: Input, labels: Input, tolerance: f64) {
        let rows = labels.0.numel();
        check_all_caps(SoftmaxCrossEntropy { ignore }, &[x.clone(), labels.clone()], tolerance);
        let lse = random([rows], 7);
        check_all_caps(SoftmaxCrossEntropyGrad { ignore }, &[x, labels, lse, floats(&[], &[-1.5])], tolerance);
    }

    #[test]
    fn shapes() {
        for (rows, columns) in [(1, 1), (1, 7), (7, 1), (5, 8), (130, 10), (3, 1030), (70, 1000), (20_000, 3)] {
            let right: Vec<i32> = (0..rows).map(|row| (row * 7 % columns) as i32).collect();
            both(None, random([rows, columns], 3), labels(&right), 2e-6);
            if rows > 1 {
                both(Some(0), random([rows, columns], 4), labels(&right), 2e-6);
            }
        }
    }

    #[test]
    fn labels_that_do_not_count_or_are_wrong() {
        for columns in [3, 4] {
            both(Some(-100), random([4, columns], 3), labels(&[-100, 1, 2, -100]), 2e-6);
            both(Some(-100), random([4, columns], 3), labels(&[-100; 4]), 2e-6);
            both(Some(-100), random([4, columns], 3), labels(&[0, 1, -1, -100]), 2e-6);
            both(None, random([4, columns], 3), labels(&[0, 1, columns as i32, 2]), 2e-6);
            both(None, random([4, columns], 3), labels(&[0, 1, i32::MIN, i32::MAX]), 2e-6);
        }
    }

    #[test]
    fn large_logits_and_what_is_no_number() {
        let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
        for row in [[1e4, -1e4, 9e3, 0.0], [low, 1.0, 2.0, 3.0], [low; 4], [high, 1.0, 2.0, 3.0], [1.0, f32::NAN, 2.0, 3.0]] {
            both(None, floats(&[1, 4], &row), labels(&[1]), 2e-6);
            both(None, floats(&[1, 3], &row[..3]), labels(&[1]), 2e-6);
        }
    }
}
