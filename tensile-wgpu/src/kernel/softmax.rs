//! `softmax`, plain and causal, and its gradient.

use tensile_core::op::softmax::{Softmax, SoftmaxGrad};

use super::rows::{dispatches, row_shaders};
use super::{Caps, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

static FORWARD: [Shader; 2] = row_shaders!("softmax", "softmax.wgsl", [("x", E), ("y", E)]);
static BACKWARD: [Shader; 2] = row_shaders!("softmax_grad", "softmax_grad.wgsl", [("dy", E), ("y", E), ("dx", E)]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD[0], &FORWARD[1], &BACKWARD[0], &BACKWARD[1]];

/// Rows and their length; a tensor without dimensions is a row of one number.
fn rows_of(types: Types<'_>) -> (u64, u64) {
    let width = types.inputs[0].dims().last().copied().unwrap_or(1) as u64;
    (types.inputs[0].numel() as u64 / width.max(1), width)
}

impl Kernel for Softmax {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let bindings = vec![types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let queries = match (self.causal, types.inputs[0].dims()) {
            (true, &[.., queries, _]) => queries as u32,
            _ => 0,
        };
        let dispatches = dispatches(&FORWARD, bindings, rows_of(types), (queries, 0), 60.0, caps);
        Ok(Plan { workspace: 0, dispatches })
    }
}

impl Kernel for SoftmaxGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let places = [Place::Input(0), Place::Input(1), Place::Output(0)];
        let bindings = places.map(|place| types.whole(place, caps)).into_iter().collect::<Result<_, _>>()?;
        let dispatches = dispatches(&BACKWARD, bindings, rows_of(types), (0, 0), 12.0, caps);
        Ok(Plan { workspace: 0, dispatches })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::float_bytes;

    use super::*;
    use crate::kernel::tests::{check, check_all_caps, random};

    #[test]
    fn shapes() {
        for dims in [&[1][..], &[7], &[8], &[3, 1], &[5, 33], &[300, 4], &[2, 3, 65, 12], &[2, 1030], &[1, 5000]] {
            check_all_caps(Softmax { causal: false }, &[random(dims, 3)], 2e-6);
            check_all_caps(SoftmaxGrad, &[random(dims, 3), random(dims, 4)], 2e-6);
        }
    }

    #[test]
    fn causal() {
        for dims in [&[1, 1][..], &[3, 3], &[4, 4], &[2, 5, 9], &[2, 5, 12], &[2, 2, 33, 36]] {
            check_all_caps(Softmax { causal: true }, &[random(dims, 3)], 2e-6);
        }
    }

    #[test]
    fn one_tensor_twice() {
        let y = random([3, 20], 5);
        check(SoftmaxGrad, &[y.clone(), y], 2e-6);
    }

    #[test]
    fn large_numbers_and_what_is_no_number() {
        let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
        let rows: [[f32; 5]; 6] = [
            [1000.0, 999.0, -1000.0, 0.0, 1000.0],
            [-1e30, -2e30, -1e30, -3e38, -1e30],
            [low, 1.0, low, 2.0, low],
            [low; 5],
            [1.0, high, 2.0, 3.0, 4.0],
            [f32::NAN, 1.0, 2.0, 3.0, 4.0],
        ];
        let x = (TensorType::f32([6, 5]), float_bytes(rows.as_flattened()));
        check_all_caps(Softmax { causal: false }, &[x], 2e-6);
        let wide: Vec<f32> = rows.iter().flat_map(|row| row.iter().chain(&row[2..]).copied()).collect();
        check_all_caps(Softmax { causal: false }, &[(TensorType::f32([6, 8]), float_bytes(&wide))], 2e-6);
    }
}
