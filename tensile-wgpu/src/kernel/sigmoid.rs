use tensile_core::op::sigmoid::{Sigmoid, SigmoidGrad};

use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

impl Kernel for Sigmoid {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}

impl Kernel for SigmoidGrad {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}
