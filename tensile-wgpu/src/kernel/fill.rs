//! `fill`.

use tensile_core::op::fill::Fill;

use super::elementwise;
use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

// The value's bits, so that a NaN or a number below the normal ones stays as it is.
static SHADER: Shader = Shader {
    name: "fill",
    source: elementwise::SOURCE,
    buffers: &[("y", "vec4<u32>")],
    params: &[("n", "u32"), ("steps", "u32"), ("bits", "u32")],
    snippets: &[("load", ""), ("f", "vec4(p.bits)")],
    libraries: &[],
    workgroup: 256,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SHADER];

impl Kernel for Fill {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let n = types.outputs[0].numel() as u64;
        Ok(elementwise::plan(&SHADER, n, 0, &[], |_| vec![self.value.to_bits()], caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_windows};

    #[test]
    fn fill() {
        for (n, value) in [(1, 1.5), (2, f32::NEG_INFINITY), (3, f32::NAN), (1023, 1e-40), (1025, -0.0)] {
            check(Fill { shape: [n].into(), value }, &[], 0.0);
        }
        check(Fill { shape: Vec::<usize>::new().into(), value: 7.0 }, &[], 0.0);
        check_windows(1024, Fill { shape: [3, 251].into(), value: 2.0 }, &[], 0.0);
    }
}
