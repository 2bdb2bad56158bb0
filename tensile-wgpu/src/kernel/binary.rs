//! `add`, `sub`, `mul` and `div`, with broadcasting.

use tensile_core::op::{add::Add, div::Div, mul::Mul, sub::Sub};

use super::broadcast::{self, Forms};
use super::elementwise::{self, binary};
use super::{Caps, Kernel, Plan, Refused, Types};
use crate::shader::Shader;

/// The shaders and the kernel of an op.
macro_rules! kernel {
    ($op:ident, $shaders:ident, $name:literal, $f:literal) => {
        static $shaders: [Shader; 3] = [
            binary!($name, $f, &[]),
            broadcast::shader!(concat!($name, "_rows"), rows, ["a", "b"], $f, []),
            broadcast::shader!(concat!($name, "_each"), each, ["a", "b"], $f, []),
        ];

        impl Kernel for $op {
            fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
                let n = types.outputs[0].numel();
                Ok(if types.inputs.iter().all(|ty| ty.numel() == n) {
                    elementwise::plan(&$shaders[0], n as u64, 2, &[], |_| Vec::new(), caps)
                } else {
                    broadcast::plan(Forms { rows: &$shaders[1], each: &$shaders[2] }, types, &[], caps)
                })
            }
        }
    };
}

kernel!(Add, ADD, "add", "a + b");
kernel!(Sub, SUB, "sub", "a - b");
kernel!(Mul, MUL, "mul", "a * b");
kernel!(Div, DIV, "div", "a / b");

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[
    &ADD[0], &ADD[1], &ADD[2], &SUB[0], &SUB[1], &SUB[2], &MUL[0], &MUL[1], &MUL[2], &DIV[0], &DIV[1], &DIV[2],
];

#[cfg(test)]
mod tests {
    use tensile_core::{Op, TensorType};

    use super::*;
    use crate::kernel::tests::{check, check_windows, given, random};

    const TOLERANCE: f64 = 3e-7;

    /// Numbers that can be divided by.
    fn positive(shape: &[usize], seed: u64) -> (TensorType, Vec<u8>) {
        let (ty, _) = random(shape, seed);
        let values = tensile_core::testing::values(ty.numel(), seed).into_iter().map(|x| x.abs() + 0.25);
        (ty, tensile_core::testing::float_bytes(&values.collect::<Vec<_>>()))
    }

    fn all(a: &[usize], b: &[usize], check: impl Fn(Op, &[(TensorType, Vec<u8>)])) {
        for op in [Op::from(Add), Op::from(Sub), Op::from(Mul), Op::from(Div)] {
            check(op, &[random(a, 1), positive(b, 2)]);
        }
    }

    #[test]
    fn one_shape() {
        for n in [1, 2, 3, 4, 1023, 1025] {
            all(&[n], &[n], |op, inputs| check(op, inputs, TOLERANCE));
        }
        for n in [255, 257, 1000] {
            all(&[n], &[n], |op, inputs| check_windows(1024, op, inputs, TOLERANCE));
        }
        all(&[], &[1, 1], |op, inputs| check(op, inputs, TOLERANCE));
    }

    const SHAPES: [(&[usize], &[usize]); 17] = [
        (&[5], &[1]),
        (&[1], &[6]),
        (&[1030], &[]),
        (&[33, 64], &[64]),
        (&[33, 64], &[33, 1]),
        (&[64], &[33, 64]),
        (&[33, 7], &[7]),
        (&[33, 7], &[33, 1]),
        (&[33, 1], &[33, 7]),
        (&[3, 1], &[1, 5]),
        (&[3, 1], &[1, 8]),
        (&[2, 5, 6, 6], &[5, 1, 1]),
        (&[2, 5, 7, 7], &[5, 1, 1]),
        (&[2, 1, 3, 1], &[1, 4, 1, 12]),
        (&[2, 1, 3, 1, 2, 1, 3, 1], &[1, 2, 1, 3, 1, 2, 1, 3]),
        (&[2, 1, 3, 1, 2, 1, 3, 1], &[1, 2, 1, 3, 1, 2, 1, 4]),
        (&[1, 70_003], &[3, 1]),
    ];

    #[test]
    fn broadcasting() {
        for (a, b) in SHAPES {
            all(a, b, |op, inputs| check(op, inputs, TOLERANCE));
        }
    }

    #[test]
    fn broadcasting_in_windows() {
        for (a, b) in SHAPES.iter().filter(|(a, _)| a.iter().product::<usize>() < 5000) {
            for max_binding in [512, 1024, 4096] {
                check_windows(max_binding, Add, &[random(*a, 1), random(*b, 2)], TOLERANCE);
                check_windows(max_binding, Mul, &[random(*b, 1), random(*a, 2)], TOLERANCE);
            }
        }
    }

    #[test]
    fn what_is_not_finite() {
        let x = given(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 0.0, 1.0]);
        all(&[7], &[7], |op, _| check(op, &[x.clone(), x.clone()], 0.0));
        check(Div, &[x.clone(), given(&[0.0])], 0.0);
        check(Div, &[given(&[1.0]), x], 0.0);
    }
}
