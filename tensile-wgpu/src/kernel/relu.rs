//! `relu` and its gradient.

use tensile_core::op::relu::{Relu, ReluGrad};

use super::elementwise::{self, binary, unary};
use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

// NaN stays NaN.
static FORWARD: Shader = unary!("relu", "select(x, vec4(0.0), x < vec4(0.0))", [], &[]);
static BACKWARD: Shader = binary!("relu_grad", "select(vec4(0.0), a, b > vec4(0.0))", &[]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD, &BACKWARD];

impl Kernel for Relu {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(elementwise::plan(&FORWARD, types.inputs[0].numel() as u64, 1, &[], |_| Vec::new(), caps))
    }
}

impl Kernel for ReluGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(elementwise::plan(&BACKWARD, types.inputs[0].numel() as u64, 2, &[], |_| Vec::new(), caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_windows, check_with, given, random};

    #[test]
    fn forward() {
        for n in [1, 2, 3, 4, 5, 1023, 1024, 1025, 300_001] {
            check(Relu, &[random([n], 3)], 0.0);
        }
        check(Relu, &[given(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40, -1e-40])], 0.0);
    }

    #[test]
    fn backward() {
        for n in [1, 3, 4, 1023, 1025, 300_001] {
            check(ReluGrad, &[random([n], 3), random([n], 4)], 0.0);
        }
        let dy = given(&[f32::NAN, f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY]);
        check(ReluGrad, &[dy, given(&[0.0, 2.0, f32::NAN, 0.0, 1.0])], 0.0);
    }

    #[test]
    fn as_on_a_gpu() {
        // One vector for each invocation, and several from 2²⁰ elements on.
        for n in [1, 1023, 1025, 1 << 20, (1 << 20) + 3] {
            check_with(|caps| Caps { software: false, ..caps }, Relu, &[random([n], 3)], 0.0);
        }
    }

    #[test]
    fn windows() {
        for n in [255, 256, 257, 512, 513, 1000] {
            check_windows(1024, Relu, &[random([n], 3)], 0.0);
            check_windows(1024, ReluGrad, &[random([n], 3), random([n], 4)], 0.0);
        }
    }
}
