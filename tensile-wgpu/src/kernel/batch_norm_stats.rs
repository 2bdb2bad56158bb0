//! `batch_norm_stats`: the step of running statistics.

use tensile_core::op::batch_norm_stats::BatchNormStats;

use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

/// A shader: name, buffer of the gate if there is one, whether it is shut in WGSL.
macro_rules! shader {
    ($name:literal, [$($gate:expr)?], $shut:literal) => {
        Shader {
            name: $name,
            source: include_str!("batch_norm_stats.wgsl"),
            buffers: &[
                ("running_mean", "vec4<f32>"),
                ("running_var", "vec4<f32>"),
                ("count", "i32"),
                ("mean", "vec4<f32>"),
                ("var", "vec4<f32>"),
                $($gate)?
            ],
            params: &[("n", "u32"), ("keep", "f32"), ("momentum", "f32"), ("unbias", "f32")],
            snippets: &[("shut", $shut)],
            libraries: &[],
            workgroup: 64,
        }
    };
}

static UNGATED: Shader = shader!("batch_norm_stats", [], "false");
static GATED: Shader = shader!("batch_norm_stats_gated", [("gates", "vec4<f32>")], "$gates[0].y == 0.0");

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&UNGATED, &GATED];

impl Kernel for BatchNormStats {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let places = (0..types.inputs.len()).map(Place::Input);
        let bindings = places.map(|place| types.whole(place, caps)).collect::<Result<_, _>>()?;
        let shader = if types.inputs.len() > 5 { &GATED } else { &UNGATED };
        let n = types.inputs[0].numel() as u64;
        let floats = [1.0 - self.momentum, self.momentum, self.unbias];
        let params = [n as u32].into_iter().chain(floats.map(f32::to_bits)).collect();
        // One workgroup at least, for the counter.
        let groups = n.div_ceil(4 * u64::from(shader.workgroup)).max(1);
        Ok(Plan { workspace: 0, dispatches: vec![Dispatch { shader, bindings, params, groups }] })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::int_bytes;

    use super::*;
    use crate::kernel::tests::{check, given, random};

    #[test]
    fn batch_norm_stats() {
        for n in [1, 2, 3, 4, 5, 255, 256, 257, 1000] {
            for gate in [None, Some([1.0, 1.0]), Some([1.0, 0.0])] {
                let count = (TensorType::i32([]), int_bytes(&[i32::MAX]));
                let mut inputs = vec![random([n], 1), random([n], 2), count, random([n], 3), random([n], 4)];
                inputs.extend(gate.map(|gate| given(&gate)));
                check(BatchNormStats { momentum: 0.1, unbias: 1.25 }, &inputs, 3e-7);
            }
        }
    }
}
