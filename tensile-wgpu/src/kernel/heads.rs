//! `split_heads` and `merge_heads`: one copy for each part.

use tensile_core::TensorType;
use tensile_core::op::heads::{MergeHeads, SplitHeads};

use super::strided::{Dim, copy};
use super::{Caps, Kernel, Place, Plan, Refused, Types};
#[cfg(test)]
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

/// Sizes of a part `[B, H, T, D]`, with the strides of each dimension among features side by side and in the part: innermost first.
fn dims(part: &TensorType, parts: usize) -> [(usize, usize, usize); 4] {
    let [b, h, t, d] = [0, 1, 2, 3].map(|axis| part.dims()[axis]);
    [(d, 1, 1), (t, parts * h * d, d), (h, d, t * d), (b, t * parts * h * d, h * t * d)]
}

impl Kernel for SplitHeads {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let x = types.whole(Place::Input(0), caps)?;
        let mut dispatches = Vec::with_capacity(self.parts);
        for (index, part) in types.outputs.iter().enumerate() {
            let dims = dims(part, self.parts).map(|(n, side, own)| Dim { n, x: side, y: own });
            let first = index * part.dims()[1] * part.dims()[3];
            dispatches.extend(copy(dims, [first, 0], [x, types.whole(Place::Output(index), caps)?]));
        }
        Ok(Plan { workspace: 0, dispatches })
    }
}

impl Kernel for MergeHeads {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let y = types.whole(Place::Output(0), caps)?;
        let mut dispatches = Vec::with_capacity(types.inputs.len());
        for (index, part) in types.inputs.iter().enumerate() {
            let dims = dims(part, types.inputs.len()).map(|(n, side, own)| Dim { n, x: own, y: side });
            let first = index * part.dims()[1] * part.dims()[3];
            dispatches.extend(copy(dims, [0, first], [types.whole(Place::Input(index), caps)?, y]));
        }
        Ok(Plan { workspace: 0, dispatches })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::op::heads::{MergeHeads, SplitHeads};

    use super::super::tests::{check, random};

    #[test]
    fn heads_of_all_kinds() {
        for [b, t, parts, heads, d] in
            [[1, 1, 1, 1, 1], [2, 3, 3, 2, 5], [3, 70, 2, 4, 33], [2, 9, 3, 2, 8], [1, 9, 1, 3, 8], [2, 16, 10, 4, 1]]
        {
            check(SplitHeads { parts, heads }, &[random([b, t, parts * heads * d], 2)], 0.0);
            let inputs: Vec<_> = (0..parts).map(|part| random([b, heads, t, d], part as u64)).collect();
            check(MergeHeads, &inputs, 0.0);
        }
    }
}
