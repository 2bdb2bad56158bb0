//! `affine`.

use tensile_core::op::affine::Affine;

use super::elementwise::{self, unary};
use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

static SHADER: Shader = unary!("affine", "p.scale * x + p.shift", [("scale", "f32"), ("shift", "f32")], &[]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SHADER];

impl Kernel for Affine {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let params = |_| vec![self.scale.to_bits(), self.shift.to_bits()];
        Ok(elementwise::plan(&SHADER, types.inputs[0].numel() as u64, 1, &[], params, caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    #[test]
    fn affine() {
        let op = Affine { scale: -2.5, shift: 0.75 };
        for n in [1, 3, 1023, 1025] {
            check(op.clone(), &[random([n], 3)], 3e-7);
        }
        check_windows(1024, op.clone(), &[random([1000], 3)], 3e-7);
        let values = given(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38]);
        check(op, std::slice::from_ref(&values), 3e-7);
        check(Affine { scale: 0.0, shift: f32::INFINITY }, &[values], 0.0);
    }
}
