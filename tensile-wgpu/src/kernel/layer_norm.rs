//! `layer_norm` and its gradient.

use tensile_core::op::layer_norm::{LayerNorm, LayerNormGrad};

use super::reduction::{Extra, Reduction, reductions};
use super::rows::{dispatches, row_shaders};
use super::{Caps, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

static FORWARD: [Shader; 2] = row_shaders!(
    "layer_norm",
    "layer_norm.wgsl",
    [("x", E), ("weight", E), ("bias", E), ("y", E), ("mean", F), ("rstd", F)]
);
static GRAD: [Shader; 2] = row_shaders!(
    "layer_norm_grad",
    "layer_norm_grad.wgsl",
    [("x", E), ("dy", E), ("mean", E), ("rstd", E), ("weight", E), ("dx", E)]
);
static GRAD_SUMS: [Shader; 3] = reductions!(
    "layer_norm_grad_sums",
    "layer_norm_grad_sums.wgsl",
    "two",
    [("x", E), ("dy", E), ("mean", F), ("rstd", F), ("partial", W2), ("dweight", S), ("dbias", S)]
);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] =
    &[&FORWARD[0], &FORWARD[1], &GRAD[0], &GRAD[1], &GRAD_SUMS[0], &GRAD_SUMS[2]];

/// Rows and their length.
fn sizes(types: Types<'_>) -> (u64, u64) {
    let width = types.inputs[0].dims().last().copied().unwrap_or(1) as u64;
    (types.inputs[0].numel() as u64 / width.max(1), width)
}

impl Kernel for LayerNorm {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let places = [0, 1, 2].map(Place::Input).into_iter().chain([0, 1, 2].map(Place::Output));
        let bindings = places.map(|place| types.whole(place, caps)).collect::<Result<_, _>>()?;
        let dispatches = dispatches(&FORWARD, bindings, sizes(types), (0, self.eps.to_bits()), 20.0, caps);
        Ok(Plan { workspace: 0, dispatches })
    }
}

impl Kernel for LayerNormGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let input = |index| types.whole(Place::Input(index), caps);
        let output = |index| types.whole(Place::Output(index), caps);
        let (x, dy, mean, rstd, weight) = (input(0)?, input(1)?, input(2)?, input(3)?, input(4)?);
        let (dx, dweight, dbias) = (output(0)?, output(1)?, output(2)?);
        let (rows, width) = sizes(types);
        let sums = Reduction::of_rows(rows, width);
        // The sums come first: dx may go over dy.
        let (mut all, workspace) =
            sums.dispatches(sums.shader(&GRAD_SUMS), caps, (0, 2), Extra::default(), |partial| {
                vec![x, dy, mean, rstd, partial, dweight, dbias]
            })?;
        all.extend(dispatches(&GRAD, vec![x, dy, mean, rstd, weight, dx], (rows, width), (0, 0), 30.0, caps));
        Ok(Plan { workspace, dispatches: all })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::{float_bytes, values};

    use super::*;
    use crate::kernel::tests::{check, check_all_caps, random};

    type Input = (TensorType, Vec<u8>);

    /// mean + deviation·numbers in [−1, 1).
    fn around(shape: &[usize], mean: f32, deviation: f32, seed: u64) -> Input {
        let ty = TensorType::f32(shape);
        let x: Vec<f32> = values(ty.numel(), seed).iter().map(|x| mean + deviation * x).collect();
        (ty, float_bytes(&x))
    }

    fn both(dims: &[usize], mean: f32) {
        let width = [dims[dims.len() - 1]];
        let rows = [dims.iter().product::<usize>() / width[0]];
        let x = around(dims, mean, 1.7, 1);
        let weight = random(width, 2);
        check_all_caps(LayerNorm { eps: 1e-5 }, &[x.clone(), weight.clone(), random(width, 3)], 2e-5);
        let inputs = [x, random(dims, 4), around(&rows, mean, 0.1, 5), around(&rows, 1.0, 0.5, 6), weight];
        check_all_caps(LayerNormGrad, &inputs, 2e-5);
    }

    #[test]
    fn shapes() {
        for dims in [&[1][..], &[7], &[8], &[9, 1], &[8, 1], &[3, 5], &[2, 3, 8], &[301, 33], &[300, 64], &[2, 1030], &[3, 4100]] {
            both(dims, 0.0);
        }
    }

    #[test]
    fn large_means() {
        both(&[20, 768], 100.0);
        both(&[20, 255], 100.0);
    }

    #[test]
    fn one_tensor_several_times() {
        let (x, c) = (random([8, 8], 1), around(&[8], 1.0, 0.5, 2));
        check(LayerNormGrad, &[x.clone(), x, c.clone(), c.clone(), c], 2e-5);
    }
}
