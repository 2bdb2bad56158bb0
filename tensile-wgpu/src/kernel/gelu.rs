//! `gelu` in both forms, and its gradient.

use tensile_core::op::gelu::{Gelu, GeluGrad};

use super::elementwise::{self, binary, unary};
use super::{Caps, Kernel, Plan, Refused, Types, library};
use crate::shader::Shader;

const LIBRARIES: &[&str] = &[library::EXP, library::TANH, library::NORMAL_CDF, include_str!("gelu.wgsl")];

static EXACT: Shader = unary!("gelu", "x * normal_cdf(x)", [], LIBRARIES);
static BY_TANH: Shader = unary!("gelu_tanh", "0.5 * x * (1.0 + accurate_tanh(gelu_inner(x)))", [], LIBRARIES);
static EXACT_GRAD: Shader = binary!("gelu_grad", "a * gelu_slope(b)", LIBRARIES);
static BY_TANH_GRAD: Shader = binary!("gelu_tanh_grad", "a * gelu_tanh_slope(b)", LIBRARIES);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&EXACT, &BY_TANH, &EXACT_GRAD, &BY_TANH_GRAD];

impl Kernel for Gelu {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let shader = if self.tanh { &BY_TANH } else { &EXACT };
        Ok(elementwise::plan(shader, types.inputs[0].numel() as u64, 1, &[], |_| Vec::new(), caps))
    }
}

impl Kernel for GeluGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let shader = if self.tanh { &BY_TANH_GRAD } else { &EXACT_GRAD };
        Ok(elementwise::plan(shader, types.inputs[0].numel() as u64, 2, &[], |_| Vec::new(), caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random, range};

    #[test]
    fn forward() {
        for tanh in [false, true] {
            for n in [1, 3, 1023, 1025] {
                check(Gelu { tanh }, &[random([n], 3)], 1e-6);
            }
            check(Gelu { tanh }, &[range(-12.0, 12.0, 20_001)], 1e-6);
            check(Gelu { tanh }, &[given(&[f32::NAN, f32::INFINITY, 100.0, -100.0, 0.0])], 1e-6);
            check_windows(1024, Gelu { tanh }, &[random([1000], 3)], 1e-6);
        }
    }

    #[test]
    fn backward() {
        for tanh in [false, true] {
            for n in [1, 3, 1023, 1025] {
                check(GeluGrad { tanh }, &[random([n], 3), random([n], 4)], 1e-6);
            }
            check(GeluGrad { tanh }, &[random([20_001], 3), range(-12.0, 12.0, 20_001)], 1e-6);
            check(GeluGrad { tanh }, &[given(&[1.0, f32::NAN, 1.0, 2.0]), given(&[f32::NAN, 0.0, 100.0, -100.0])], 1e-6);
            check_windows(1024, GeluGrad { tanh }, &[random([1000], 3), random([1000], 4)], 1e-6);
        }
    }
}
