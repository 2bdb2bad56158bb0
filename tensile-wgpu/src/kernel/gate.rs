//! `gate`: one decision before the updates of a step.

use tensile_core::op::gate::Gate;

use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types, library};
use crate::shader::Shader;

/// A shader: name, buffer of the loss if there is one, the loss in WGSL.
macro_rules! shader {
    ($name:literal, [$($loss:expr)?], $of_loss:literal) => {
        Shader {
            name: $name,
            source: include_str!("gate.wgsl"),
            buffers: &[("sum", "f32"), $($loss,)? ("gates", "f32"), ("norm", "f32")],
            params: &[("clips", "u32"), ("max_norm", "f32"), ("skips", "u32")],
            snippets: &[("of_loss", $of_loss)],
            libraries: &[library::JOINED],
            workgroup: 1,
        }
    };
}

static WITHOUT_LOSS: Shader = shader!("gate", [], "0.0");
static WITH_LOSS: Shader = shader!("gate_loss", [("loss", "f32")], "$loss[0]");

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&WITHOUT_LOSS, &WITH_LOSS];

impl Kernel for Gate {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let places = (0..types.inputs.len()).map(Place::Input).chain([Place::Output(0), Place::Output(1)]);
        let bindings = places.map(|place| types.whole(place, caps)).collect::<Result<_, _>>()?;
        let shader = if types.inputs.len() > 1 { &WITH_LOSS } else { &WITHOUT_LOSS };
        let max_norm = self.max_norm.unwrap_or(0.0);
        let params = vec![u32::from(self.max_norm.is_some()), max_norm.to_bits(), u32::from(self.skip_nonfinite)];
        Ok(Plan { workspace: 0, dispatches: vec![Dispatch { shader, bindings, params, groups: 1 }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, given};

    #[test]
    fn gate() {
        let nan = f32::NAN;
        let sums = [[0.0, 0.0], [4.0, 1e-7], [1e-3, 0.0], [1e20, 1e10], [f32::INFINITY, 0.0], [nan, 0.0]];
        for sum in sums {
            for max_norm in [None, Some(1.0), Some(1e-3), Some(f32::INFINITY)] {
                for skip_nonfinite in [false, true] {
                    let op = Gate { max_norm, skip_nonfinite };
                    check(op.clone(), &[given(&sum)], 5e-7);
                    for loss in [1.0, f32::NEG_INFINITY, nan] {
                        check(op.clone(), &[given(&sum), given(&[loss])], 5e-7);
                    }
                }
            }
        }
    }
}
