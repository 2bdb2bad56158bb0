//! `channel_sum`: the sums of [`reduce_sum`].

use tensile_core::op::channel_sum::ChannelSum;

use super::{Caps, Kernel, Plan, Refused, Types, reduce_sum};
#[cfg(test)]
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

/// All dimensions of `[N, C, …]` but C.
pub(super) fn all_but_channels(rank: usize) -> Vec<usize> {
    (0..rank).filter(|&axis| axis != 1).collect()
}

impl Kernel for ChannelSum {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        reduce_sum::plan(types, &all_but_channels(types.inputs[0].dims().len()), 1.0, caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check_all_caps, random};

    #[test]
    fn shapes() {
        for dims in [&[1, 1][..], &[3, 5], &[33, 8], &[2, 3, 7, 7], &[2, 3, 4, 4], &[5, 64, 2, 2], &[300, 2, 31, 33]] {
            check_all_caps(ChannelSum, &[random(dims, 3)], 2e-6);
        }
    }
}
