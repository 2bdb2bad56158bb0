//! `max_pool2d` and its gradient.

use tensile_core::op::max_pool2d::{MaxPool2d, MaxPool2dGrad};

use super::pool::{self, PARAMS, STORE, params, split};
use super::{Caps, Kernel, Place, Plan, Refused, Types};
use crate::shader::Shader;

static FORWARD: Shader = Shader {
    name: "max_pool2d",
    source: include_str!("max_pool2d.wgsl"),
    buffers: &[("x", "f32"), ("y", "vec4<f32>"), ("indices", "u32")],
    params: PARAMS,
    snippets: STORE,
    libraries: &[],
    workgroup: 64,
};

static GRAD: Shader = Shader {
    name: "max_pool2d_grad",
    source: include_str!("max_pool2d_grad.wgsl"),
    buffers: &[("dy", "f32"), ("indices", "u32"), ("y", "vec4<f32>")],
    params: PARAMS,
    snippets: &[STORE[0], STORE[1], pool::GRAD],
    libraries: &[],
    workgroup: 64,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&FORWARD, &GRAD];

impl Kernel for MaxPool2d {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (x, y) = (types.inputs[0], types.outputs[0]);
        let places = [Place::Input(0), Place::Output(0), Place::Output(1)];
        let bindings = places.map(|place| types.whole(place, caps)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let params = params(&self.0, x, y, y.numel(), false);
        let flops = self.0.kernel.iter().product();
        Ok(Plan { workspace: 0, dispatches: split(&FORWARD, &bindings, &params, (y.numel(), flops), caps) })
    }
}

impl Kernel for MaxPool2dGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (y, x) = (types.inputs[0], types.outputs[0]);
        let places = [Place::Input(0), Place::Input(1), Place::Output(0)];
        let bindings = places.map(|place| types.whole(place, caps)).into_iter().collect::<Result<Vec<_>, _>>()?;
        let params = params(&self.pool, x, y, x.numel(), false);
        // Windows that an element can be in.
        let flops = (0..2).map(|axis| self.pool.kernel[axis].div_ceil(self.pool.stride[axis])).product();
        Ok(Plan { workspace: 0, dispatches: split(&GRAD, &bindings, &params, (x.numel(), flops), caps) })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::op::max_pool2d::{MaxPool2d, MaxPool2dGrad};
    use tensile_core::op::pool::Pool2d;
    use tensile_core::testing::{float_bytes, values};
    use tensile_core::{DType, OpDef, TensorType};

    use super::super::tests::{check, check_with, random};
    use crate::kernel::Caps;

    /// The gradient adds in another order than the host's.
    const TOLERANCE: f64 = 5e-7;

    /// Both ops. Indices are any that stay within the input.
    fn check_both(shape: [usize; 4], pool: Pool2d, x: Option<&[f32]>) {
        let ty = TensorType::f32(shape);
        let x = x.map_or_else(|| values(ty.numel(), 7), <[f32]>::to_vec);
        check(MaxPool2d(pool), &[(ty.clone(), float_bytes(&x))], 0.0);
        let y = MaxPool2d(pool).infer(std::slice::from_ref(&ty)).unwrap().remove(0);
        let [h, w] = [shape[2], shape[3]];
        let indices = (0..y.numel()).map(|i| {
            let (row, column) = (i / y.dims()[3] % y.dims()[2], i % y.dims()[3]);
            // Taps of the window within the input, one of them by the number of the output.
            let within = |axis: usize, index: usize, size: usize| {
                let start = index * pool.stride[axis];
                let low = pool.padding[axis].saturating_sub(start);
                let high = pool.kernel[axis].min(size + pool.padding[axis] - start);
                low + i * 7 / 3 % (high - low)
            };
            (within(0, row, h) * pool.kernel[1] + within(1, column, w)) as u8
        });
        let indices = indices.collect();
        let grad = MaxPool2dGrad { pool, shape: ty.shape };
        check(grad, &[random(y.shape.clone(), 5), (TensorType::new(DType::U8, y.shape), indices)], TOLERANCE);
    }

    #[test]
    fn windows_of_all_kinds() {
        check_both([1, 1, 1, 1], Pool2d::new(1, 1), None);
        check_both([2, 3, 9, 9], Pool2d::new(3, 2).padding(1), None);
        check_both([1, 3, 8, 7], Pool2d::new(2, 2), None);
        check_both([1, 5, 7, 8], Pool2d::new(3, 2).ceil_mode(), None);
        check_both([3, 2, 6, 5], Pool2d::new(2, 3).padding(1).ceil_mode(), None);
        check_both([1, 2, 33, 21], Pool2d::new(16, 1), None);
        let uneven = Pool2d { kernel: [5, 2], stride: [1, 3], padding: [2, 0], ceil_mode: true };
        check_both([2, 3, 4, 13], uneven, None);
        check_both([1, 3, 64, 63], Pool2d::new(3, 2).padding(1), None);
    }

    #[test]
    fn equal_values_and_nan_as_on_the_host() {
        let nothing = [f32::NAN, f32::NEG_INFINITY, -0.0, 0.0, 1.0, f32::INFINITY];
        let x: Vec<f32> = (0..2 * 11 * 13).map(|i: usize| nothing[i * i * 7 % 31 % nothing.len()]).collect();
        check_both([1, 2, 11, 13], Pool2d::new(3, 2).padding(1), Some(&x));
        check_both([1, 2, 11, 13], Pool2d::new(2, 1), Some(&x));
        check_both([1, 1, 5, 5], Pool2d::new(2, 2), Some(&[f32::NEG_INFINITY; 25]));
        check_both([1, 1, 5, 5], Pool2d::new(3, 1), Some(&[1.0; 25]));
    }

    #[test]
    fn dispatches_of_few_operations() {
        let caps = |caps| Caps { max_flops: 5000.0, ..caps };
        let pool = Pool2d::new(3, 2).padding(1);
        check_with(caps, MaxPool2d(pool), &[random([1, 3, 63, 62], 7)], 0.0);
        // Taps that lie within the input for all windows.
        let indices = (TensorType::u8([1, 3, 32, 31]), (0..3 * 32 * 31).map(|i| [4, 5, 7, 8][i * 7 / 3 % 4]).collect());
        let grad = MaxPool2dGrad { pool, shape: [1, 3, 64, 62].into() };
        check_with(caps, grad, &[random([1, 3, 32, 31], 5), indices], TOLERANCE);
    }

    #[test]
    fn more_groups_than_a_row_holds() {
        check(MaxPool2d(Pool2d::new(1, 1)), &[random([4, 1, 2049, 2050], 7)], 0.0);
    }
}
