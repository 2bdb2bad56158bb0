//! `tanh` and its gradient.

use tensile_core::op::tanh::{Tanh, TanhGrad};

use super::elementwise::{self, binary, unary};
use super::{Caps, Kernel, Plan, Refused, Types, library};
use crate::shader::Shader;

static FORWARD: Shader = unary!("tanh", "accurate_tanh(x)", [], &[library::EXP, library::TANH]);
static BACKWARD: Shader = binary!("tanh_grad", "a * (1.0 - b * b)", &[]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD, &BACKWARD];

impl Kernel for Tanh {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(elementwise::plan(&FORWARD, types.inputs[0].numel() as u64, 1, &[], |_| Vec::new(), caps))
    }
}

impl Kernel for TanhGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(elementwise::plan(&BACKWARD, types.inputs[0].numel() as u64, 2, &[], |_| Vec::new(), caps))
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::testing::floats;

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random, range, results};

    #[test]
    fn forward() {
        for n in [1, 3, 1023, 1025] {
            check(Tanh, &[random([n], 3)], 5e-7);
        }
        check(Tanh, &[range(-20.0, 20.0, 20_001)], 5e-7);
        check(Tanh, &[given(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 0.0])], 5e-7);
        check_windows(1024, Tanh, &[random([1000], 3)], 5e-7);
    }

    #[test]
    fn nothing_is_lost_near_zero() {
        let x = range(-1e-3, 1e-3, 2001);
        let Some([got, expected]) = results(Tanh, &[x]) else { return };
        for (got, expected) in floats(&got[0]).into_iter().zip(floats(&expected[0])) {
            assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{got} against {expected}");
        }
    }

    #[test]
    fn backward() {
        for n in [1, 3, 1023, 1025] {
            check(TanhGrad, &[random([n], 3), random([n], 4)], 5e-7);
        }
        check_windows(1024, TanhGrad, &[random([1000], 3), random([1000], 4)], 5e-7);
    }
}
