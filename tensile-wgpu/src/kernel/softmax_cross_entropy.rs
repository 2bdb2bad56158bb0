use tensile_core::op::softmax_cross_entropy::{SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad};

use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[];

impl Kernel for SoftmaxCrossEntropy {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}

impl Kernel for SoftmaxCrossEntropyGrad {
    fn plan(&self, _types: Types<'_>, _caps: &Caps) -> Result<Plan, Refused> {
        Err(Refused::NoKernel)
    }
}
