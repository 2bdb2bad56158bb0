//! `adam`, which is AdamW too.

use tensile_core::op::adam::Adam;

use super::update::{self, Shaders};
use super::{Caps, Kernel, Plan, Refused, Types};
#[cfg(test)]
use crate::shader::Shader;

static ADAM: Shaders = update::shaders!(
    "adam",
    "adam.wgsl",
    ["m", "v"],
    [
        ("group", "u32"),
        ("new1", "f32"),
        ("beta2", "f32"),
        ("new2", "f32"),
        ("eps", "f32"),
        ("decay", "f32"),
        ("decoupled", "u32")
    ]
);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = update::list!(ADAM);

impl Kernel for Adam {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let bits = |x: f64| (x as f32).to_bits();
        let params = [
            self.group as u32,
            bits(1.0 - self.beta1),
            bits(self.beta2),
            bits(1.0 - self.beta2),
            self.eps.to_bits(),
            if self.decoupled { 0.0f32 } else { self.weight_decay }.to_bits(),
            u32::from(self.decoupled),
        ];
        update::plan(&ADAM, self.part, 2, &params, types, caps)
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::op::sgd::Part;
    use tensile_core::testing::{float_bytes, values};

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    const TOLERANCE: f64 = 1e-6;

    fn inputs(n: usize, part: Part, gate: Option<[f32; 2]>) -> Vec<(TensorType, Vec<u8>)> {
        let scalars = (TensorType::f32([2, 3]), float_bytes(&[9.0, 9.0, 9.0, 0.01, 0.3, 0.99]));
        let second = given(&values(part.len, 5).iter().map(|x| x * x).collect::<Vec<_>>());
        let mut inputs = vec![random([n], 1), random([n], 2), scalars, random([part.len], 4), second];
        inputs.extend(gate.map(|gate| given(&gate)));
        inputs
    }

    fn op(part: Part, decoupled: bool) -> Adam {
        Adam { part, group: 1, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, decoupled }
    }

    #[test]
    fn whole_parameters() {
        for n in [1, 2, 3, 4, 1023, 1025] {
            let part = Part { offset: 0, len: n };
            for decoupled in [false, true] {
                for gate in [None, Some([0.25, 1.0]), Some([0.25, 0.0])] {
                    check(op(part, decoupled), &inputs(n, part, gate), TOLERANCE);
                }
            }
        }
    }

    #[test]
    fn parts() {
        for (offset, len) in [(64, 64), (16, 100), (1, 1), (3, 6), (70, 130), (199, 1)] {
            let part = Part { offset, len };
            for gate in [None, Some([0.25, 1.0]), Some([f32::NAN, 0.0])] {
                check(op(part, true), &inputs(200, part, gate), TOLERANCE);
            }
        }
    }

    #[test]
    fn windows() {
        for (offset, len) in [(0, 1200), (64, 1100), (20, 1001), (3, 1099), (1199, 1)] {
            let part = Part { offset, len };
            check_windows(2048, op(part, true), &inputs(1200, part, None), TOLERANCE);
            check_windows(2048, op(part, false), &inputs(1200, part, Some([0.25, 1.0])), TOLERANCE);
        }
    }
}
