//! `sigmoid` and its gradient.

use tensile_core::op::sigmoid::{Sigmoid, SigmoidGrad};

use super::elementwise::{self, binary, unary};
use super::{Caps, Kernel, Plan, Refused, Types, library};
use crate::shader::Shader;

static FORWARD: Shader = unary!("sigmoid", "1.0 / (1.0 + accurate_exp(-x))", [], &[library::EXP]);
static BACKWARD: Shader = binary!("sigmoid_grad", "a * (b * (1.0 - b))", &[]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD, &BACKWARD];

impl Kernel for Sigmoid {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(elementwise::plan(&FORWARD, types.inputs[0].numel() as u64, 1, &[], |_| Vec::new(), caps))
    }
}

impl Kernel for SigmoidGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(elementwise::plan(&BACKWARD, types.inputs[0].numel() as u64, 2, &[], |_| Vec::new(), caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random, range};

    #[test]
    fn forward() {
        for n in [1, 3, 1023, 1025] {
            check(Sigmoid, &[random([n], 3)], 5e-7);
        }
        check(Sigmoid, &[range(-110.0, 110.0, 20_001)], 5e-7);
        check(Sigmoid, &[given(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38])], 5e-7);
        check_windows(1024, Sigmoid, &[random([1000], 3)], 5e-7);
    }

    #[test]
    fn backward() {
        for n in [1, 3, 1023, 1025] {
            check(SigmoidGrad, &[random([n], 3), random([n], 4)], 5e-7);
        }
        check_windows(1024, SigmoidGrad, &[random([1000], 3), random([1000], 4)], 5e-7);
    }
}
