//! `sgd`, with momentum or without.

use tensile_core::op::sgd::Sgd;

use super::update::{self, Shaders};
use super::{Caps, Kernel, Plan, Refused, Types};
#[cfg(test)]
use crate::shader::Shader;

static PLAIN: Shaders = update::shaders!("sgd", "sgd.wgsl", [], [("group", "u32"), ("decay", "f32")]);
static MOMENTUM: Shaders = update::shaders!(
    "sgd_momentum",
    "sgd_momentum.wgsl",
    ["m"],
    [("group", "u32"), ("decay", "f32"), ("momentum", "f32"), ("nesterov", "u32")]
);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = update::list!(PLAIN, MOMENTUM);

impl Kernel for Sgd {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let mut params = vec![self.group as u32, self.weight_decay.to_bits()];
        if self.momentum == 0.0 {
            return update::plan(&PLAIN, self.part, 0, &params, types, caps);
        }
        params.extend([self.momentum.to_bits(), u32::from(self.nesterov)]);
        update::plan(&MOMENTUM, self.part, 1, &params, types, caps)
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::op::sgd::Part;

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    const TOLERANCE: f64 = 5e-7;

    fn inputs(n: usize, part: Part, momentum: bool, gate: Option<[f32; 2]>) -> Vec<(TensorType, Vec<u8>)> {
        let mut inputs = vec![random([n], 1), random([n], 2), random([3, 1], 3)];
        inputs.extend(momentum.then(|| random([part.len], 4)));
        inputs.extend(gate.map(|gate| given(&gate)));
        inputs
    }

    fn op(part: Part, momentum: f32, nesterov: bool) -> Sgd {
        Sgd { part, group: 2, momentum, nesterov, weight_decay: 0.01 }
    }

    #[test]
    fn whole_parameters() {
        for n in [1, 2, 3, 4, 1023, 1025] {
            let part = Part { offset: 0, len: n };
            for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
                for gate in [None, Some([0.25, 1.0]), Some([0.25, 0.0])] {
                    check(op(part, momentum, nesterov), &inputs(n, part, momentum != 0.0, gate), TOLERANCE);
                }
            }
        }
    }

    #[test]
    fn parts() {
        for (offset, len) in [(64, 64), (16, 100), (1, 1), (3, 6), (70, 130), (199, 1)] {
            let part = Part { offset, len };
            for gate in [None, Some([0.25, 1.0]), Some([f32::NAN, 0.0])] {
                check(op(part, 0.0, false), &inputs(200, part, false, gate), TOLERANCE);
                check(op(part, 0.9, true), &inputs(200, part, true, gate), TOLERANCE);
            }
        }
    }

    #[test]
    fn windows() {
        for (offset, len) in [(0, 1200), (64, 1100), (20, 1001), (3, 1099), (1199, 1)] {
            let part = Part { offset, len };
            check_windows(2048, op(part, 0.0, false), &inputs(1200, part, false, None), TOLERANCE);
            check_windows(2048, op(part, 0.9, true), &inputs(1200, part, true, Some([0.25, 1.0])), TOLERANCE);
        }
    }
}
