//! `avg_pool2d` and its gradient.

use tensile_core::op::avg_pool2d::{AvgPool2d, AvgPool2dGrad};

use super::pool::{self, PARAMS, STORE, params, split};
use super::{Caps, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

/// Size of a window in the divisor.
const EXTENT: &str = include_str!("avg_pool2d_extent.wgsl");

static FORWARD: Shader = Shader {
    name: "avg_pool2d",
    source: include_str!("avg_pool2d.wgsl"),
    buffers: &[("x", "f32"), ("y", "vec4<f32>")],
    params: PARAMS,
    snippets: &[STORE[0], STORE[1], ("extent", EXTENT)],
    libraries: &[],
    workgroup: 64,
};

static GRAD: Shader = Shader {
    name: "avg_pool2d_grad",
    source: include_str!("avg_pool2d_grad.wgsl"),
    buffers: &[("dy", "f32"), ("y", "vec4<f32>")],
    params: PARAMS,
    snippets: &[STORE[0], STORE[1], ("extent", EXTENT), pool::GRAD],
    libraries: &[],
    workgroup: 64,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD, &GRAD];

impl Kernel for AvgPool2d {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (x, y) = (types.inputs[0], types.outputs[0]);
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let params = params(&self.pool, x, y, y.numel(), self.count_include_pad);
        let flops = self.pool.kernel.iter().product();
        Ok(Plan { workspace: 0, dispatches: split(&FORWARD, &bindings, &params, (y.numel(), flops), caps) })
    }
}

impl Kernel for AvgPool2dGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (y, x) = (types.inputs[0], types.outputs[0]);
        let bindings = [types.whole(Place::Input(0), caps)?, types.whole(Place::Output(0), caps)?];
        let pool = &self.forward.pool;
        let params = params(pool, x, y, x.numel(), self.forward.count_include_pad);
        // Windows that an element can be in.
        let flops = (0..2).map(|axis| pool.kernel[axis].div_ceil(pool.stride[axis])).product();
        Ok(Plan { workspace: 0, dispatches: split(&GRAD, &bindings, &params, (x.numel(), flops), caps) })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::op::avg_pool2d::{AvgPool2d, AvgPool2dGrad};
    use tensile_core::op::pool::Pool2d;
    use tensile_core::{OpDef, TensorType};

    use super::super::tests::{check, random};

    /// Forward in the host's order, but divisions need not be exact everywhere; the gradient adds in another order.
    const TOLERANCE: f64 = 5e-7;

    fn check_both(shape: [usize; 4], pool: Pool2d) {
        for count_include_pad in [false, true] {
            let op = AvgPool2d { pool, count_include_pad };
            check(op.clone(), &[random(shape, 3)], TOLERANCE);
            let y = op.infer(&[TensorType::f32(shape)]).unwrap().remove(0);
            check(AvgPool2dGrad { forward: op, shape: shape.into() }, &[random(y.shape, 4)], TOLERANCE);
        }
    }

    #[test]
    fn windows_of_all_kinds() {
        check_both([1, 1, 1, 1], Pool2d::new(1, 1));
        check_both([2, 3, 7, 8], Pool2d::new(3, 1).padding(1));
        check_both([1, 3, 8, 7], Pool2d::new(2, 2));
        check_both([1, 5, 7, 8], Pool2d::new(3, 2).ceil_mode());
        check_both([3, 2, 6, 5], Pool2d::new(2, 3).padding(1).ceil_mode());
        check_both([5, 13, 7, 7], Pool2d::new(7, 7));
        let uneven = Pool2d { kernel: [5, 2], stride: [1, 3], padding: [2, 1], ceil_mode: true };
        check_both([2, 3, 4, 13], uneven);
        check_both([1, 3, 64, 63], Pool2d::new(3, 2).padding(1));
    }
}
