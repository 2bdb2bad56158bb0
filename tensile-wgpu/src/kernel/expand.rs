//! `expand`: repeats by broadcasting.

use tensile_core::op::reduce_sum::Expand;

use super::broadcast::{self, Forms};
use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

static ROWS: Shader = broadcast::shader!("expand_rows", rows, ["a"], "p.scale * a", [("scale", "f32")]);
static EACH: Shader = broadcast::shader!("expand_each", each, ["a"], "p.scale * a", [("scale", "f32")]);

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&ROWS, &EACH];

impl Kernel for Expand {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        Ok(broadcast::plan(Forms { rows: &ROWS, each: &EACH }, types, &[self.scale.to_bits()], caps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    #[test]
    fn expand() {
        for (from, to) in [
            (&[][..], &[1][..]),
            (&[], &[5]),
            (&[1], &[1030]),
            (&[7], &[3, 7]),
            (&[8], &[300, 8]),
            (&[3, 1], &[3, 8]),
            (&[3, 1], &[3, 9]),
            (&[5, 1, 1], &[2, 5, 3, 3]),
            (&[1, 2, 1, 3, 1, 2, 1, 3], &[2, 2, 3, 3, 2, 2, 3, 3]),
            (&[2, 3], &[2, 3]),
        ] {
            let op = Expand { shape: to.to_vec().into(), scale: 0.3 };
            check(op.clone(), &[random(from, 1)], 1e-7);
            for max_binding in [512, 1024] {
                check_windows(max_binding, op.clone(), &[random(from, 1)], 1e-7);
            }
        }
        check(Expand { shape: [3, 2].into(), scale: 1.0 }, &[given(&[f32::NAN, f32::INFINITY])], 0.0);
    }
}
