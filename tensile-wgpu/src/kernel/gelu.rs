use tensile_core::op::gelu::{Gelu, GeluGrad};

use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

impl Kernel for Gelu {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}

impl Kernel for GeluGrad {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}
