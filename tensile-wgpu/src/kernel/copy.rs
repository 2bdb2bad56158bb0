//! `copy` of tensors of any type.

use tensile_core::op::copy::Copy;

use super::{Caps, Dispatch, Kernel, Place, Plan, Refused, Types, window, windows};
use crate::shader::Shader;

static SHADER: Shader = Shader {
    name: "copy",
    source: include_str!("copy.wgsl"),
    buffers: &[("x", "vec4<u32>"), ("y", "vec4<u32>")],
    params: &[("bytes", "u32")],
    snippets: &[],
    libraries: &[],
    workgroup: 256,
};

/// Bytes an invocation takes.
const VECTOR: u64 = 16;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SHADER];

impl Kernel for Copy {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let dispatches = windows(types.inputs[0].bytes() as u64, 1, caps).map(|(first, bytes)| Dispatch {
            shader: &SHADER,
            bindings: vec![window(Place::Input(0), first, bytes, 1), window(Place::Output(0), first, bytes, 1)],
            params: vec![bytes as u32],
            groups: bytes.div_ceil(VECTOR * u64::from(SHADER.workgroup)),
        });
        Ok(Plan { workspace: 0, dispatches: dispatches.collect() })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::{DType, TensorType};

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    #[test]
    fn floats() {
        for n in [1, 2, 3, 4, 1023, 1025] {
            check(Copy, &[random([n], 3)], 0.0);
        }
        check(Copy, &[given(&[f32::NAN, f32::INFINITY, -0.0, 1e-40])], 0.0);
        check_windows(1024, Copy, &[random([1000], 3)], 0.0);
    }

    #[test]
    fn integers_and_bytes() {
        for n in (1..=33).chain([4095, 4096, 4097, 10_001]) {
            let bytes: Vec<u8> = (0..4 * n).map(|i| (i * 37 + 11) as u8).collect();
            let u8s = (TensorType { dtype: DType::U8, shape: [n].into() }, bytes[..n].to_vec());
            check(Copy, std::slice::from_ref(&u8s), 0.0);
            check_windows(1024, Copy, &[u8s], 0.0);
            check(Copy, &[(TensorType::i32([n]), bytes)], 0.0);
        }
    }
}
