use tensile_core::op::batch_norm::{BatchNorm, BatchNormGrad, BatchNormInference};

use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

impl Kernel for BatchNorm {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}

impl Kernel for BatchNormGrad {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}

impl Kernel for BatchNormInference {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}
