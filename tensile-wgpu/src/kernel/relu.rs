//! `relu` and its gradient.

use tensile_core::op::relu::{Relu, ReluGrad};

use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types, window, windows};
use crate::shader::Shader;

/// Elements an invocation takes: one vector.
const VECTOR: u64 = 4;

static FORWARD: Shader = Shader {
    name: "relu",
    source: include_str!("relu.wgsl"),
    buffers: &[("x", "vec4<f32>"), ("y", "vec4<f32>")],
    params: &[("n", "u32")],
    snippets: &[],
    libraries: &[],
    workgroup: 256,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD];

impl Kernel for Relu {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let n = types.inputs[0].numel() as u64;
        let dispatches = windows(n, 4, caps).map(|(first, n)| Dispatch {
            shader: &FORWARD,
            bindings: vec![window(Place::Input(0), first, n, 4), window(Place::Output(0), first, n, 4)],
            params: vec![n as u32],
            groups: n.div_ceil(VECTOR * u64::from(FORWARD.workgroup)),
        });
        Ok(Plan { workspace: 0, dispatches: dispatches.collect() })
    }
}

impl Kernel for ReluGrad {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}
