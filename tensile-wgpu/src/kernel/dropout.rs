//! `dropout`, with the host's masks bit by bit.

use tensile_core::op::dropout::Dropout;

use super::elementwise::{self, VECTOR};
use super::{Caps, Kernel, Place, Plan, Refused, Types, library};
use crate::shader::Shader;

// A vector's four elements are kept by the four words of one counter. A dropped element is 0 even if it is NaN.
static SHADER: Shader = Shader {
    name: "dropout",
    source: elementwise::SOURCE,
    buffers: &[("x", "vec4<f32>"), ("random", "vec4<u32>"), ("y", "vec4<f32>")],
    params: &[
        ("n", "u32"),
        ("steps", "u32"),
        ("first", "u32"),
        ("number", "u32"),
        ("bound", "u32"),
        ("all", "u32"),
        ("scale", "f32"),
    ],
    snippets: &[
        (
            "load",
            "let random = $random[0];\n    let words = philox4x32(vec4(p.first + i, p.number, random.zw), random.xy);",
        ),
        ("f", "select(vec4(0.0), $x[i] * p.scale, (words < vec4(p.bound)) | vec4(p.all != 0u))"),
    ],
    libraries: &[library::PHILOX],
    workgroup: 256,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&SHADER];

impl Kernel for Dropout {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let keep = 1.0 - f64::from(self.p);
        let scale = if keep > 0.0 { (1.0 / keep) as f32 } else { 0.0 };
        // A word is kept below the bound: none for p = 1, but for p = 0 the bound of 2³² does not fit.
        let (bound, all) = ((keep * 4_294_967_296.0) as u32, keep >= 1.0);
        let params = |first| vec![(first / VECTOR) as u32, self.number, bound, u32::from(all), scale.to_bits()];
        let random = types.whole(Place::Input(1), caps)?;
        Ok(elementwise::plan(&SHADER, types.inputs[0].numel() as u64, 1, &[random], params, caps))
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::testing::int_bytes;

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    #[test]
    fn masks_are_the_hosts() {
        for (n, p, number, words) in [
            (1, 0.5, 0, [0, 0, 0, 0]),
            (3, 0.5, 1, [1, 2, 3, 4]),
            (5, 0.0, 1, [1, 2, 3, 4]),
            (7, 1.0, 1, [1, 2, 3, 4]),
            (1025, 0.1, u32::MAX, [-1, i32::MIN, -7, i32::MAX]),
            (100_003, 0.3, 9, [5, -7, 3, 1]),
        ] {
            let words = (TensorType::i32([4]), int_bytes(&words));
            check(Dropout { p, number }, &[random([n], 3), words.clone()], 0.0);
            if n < 10_000 {
                check_windows(1024, Dropout { p, number }, &[random([n], 3), words], 0.0);
            }
        }
    }

    #[test]
    fn what_is_dropped_is_zero() {
        let words = (TensorType::i32([4]), int_bytes(&[1, 2, 3, 4]));
        check(Dropout { p: 0.5, number: 0 }, &[given(&[f32::NAN; 40]), words.clone()], 0.0);
        check(Dropout { p: 0.5, number: 0 }, &[given(&[f32::INFINITY; 40]), words], 0.0);
    }
}
