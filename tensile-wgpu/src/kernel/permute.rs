use tensile_core::op::permute::{Permute};

use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

impl Kernel for Permute {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}
