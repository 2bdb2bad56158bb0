//! `concat`: one copy for each input.

use tensile_core::op::concat::Concat;

use super::strided::{Dim, copy};
use super::{Caps, Kernel, Place, Plan, Refused, Types};
#[cfg(test)]
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

impl Kernel for Concat {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let target = types.whole(Place::Output(0), caps)?;
        let row: usize = types.outputs[0].dims()[self.axis..].iter().product();
        let rows: usize = types.outputs[0].dims()[..self.axis].iter().product();
        let (mut dispatches, mut at) = (Vec::with_capacity(types.inputs.len()), 0);
        for (index, ty) in types.inputs.iter().enumerate() {
            let n: usize = ty.dims()[self.axis..].iter().product();
            let dims = [Dim { n, x: 1, y: 1 }, Dim { n: rows, x: n, y: row }];
            dispatches.extend(copy(dims, [0, at], [types.whole(Place::Input(index), caps)?, target]));
            at += n;
        }
        Ok(Plan { workspace: 0, dispatches })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::op::concat::Concat;

    use super::super::tests::{check, random};

    fn check_sizes(before: &[usize], sizes: &[usize], after: &[usize]) {
        let inputs: Vec<_> = (sizes.iter().zip(1..))
            .map(|(&size, seed)| random([before, &[size], after].concat(), seed))
            .collect();
        check(Concat { axis: before.len() }, &inputs, 0.0);
    }

    #[test]
    fn along_any_dimension() {
        check_sizes(&[], &[1], &[]);
        check_sizes(&[], &[1, 3, 5], &[]);
        check_sizes(&[3], &[4, 2, 4], &[5]);
        check_sizes(&[2, 3], &[4, 8, 12], &[3, 2]);
        check_sizes(&[1, 7], &[2, 300], &[]);
        check_sizes(&[2], &[64, 32], &[7, 7]);
    }

    #[test]
    fn more_inputs_than_a_shader_has_buffers() {
        check_sizes(&[5], &[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], &[2]);
    }
}
