//! `gelu`: Gaussian error linear unit x·Φ(x), and its gradient from its input.

use super::elementwise::{binary, infer_same, infer_unary, unary};
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::TensorType;

/// Elementwise Gaussian error linear unit x·Φ(x) of an f32 tensor. Its gradient reads its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Gelu {
    /// Whether Φ is approximated by a hyperbolic tangent, as in GPT-2; else it is exact.
    pub tanh: bool,
}

/// Gradient of [`Gelu`]: inputs dy and the forward op's input, of one f32 type.
#[derive(Clone, Debug, PartialEq)]
pub struct GeluGrad {
    /// As in the forward op.
    pub tanh: bool,
}

impl OpDef for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_unary(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(GeluGrad { tanh: self.tanh }, &[dy, call.inputs[0]])?)])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 30.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        if self.tanh {
            unary(call, |x| 0.5 * x * (1.0 + inner(x).tanh()));
        } else {
            unary(call, |x| x * normal_cdf(x));
        }
    }
}

impl OpDef for GeluGrad {
    fn name(&self) -> &'static str {
        "gelu_grad"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        infer_same(inputs)
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 40.0 * n, bytes: 12.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        if self.tanh {
            binary(call, |dy, x| {
                let t = inner(x).tanh();
                let slope = ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
                dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
            });
        } else {
            // d(x·Φ(x))/dx = Φ(x) + x·φ(x)
            binary(call, |dy, x| dy * (normal_cdf(x) + x * ONE_OVER_ROOT_2_PI * (-0.5 * x * x).exp()));
        }
    }
}

impl Graph {
    /// Elementwise x·Φ(x), Φ being the normal distribution function.
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn gelu(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Gelu { tanh: false }, &[x])
    }

    /// Elementwise x/2·(1 + tanh(√(2/π)(x + 0.044715x³))).
    ///
    /// # Errors
    /// If `x` is not f32.
    pub fn gelu_tanh(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(Gelu { tanh: true }, &[x])
    }
}

const ROOT_2_OVER_PI: f32 = 0.797_884_6;
const ONE_OVER_ROOT_2_PI: f32 = 0.398_942_3;
const CUBIC: f32 = 0.044_715;

fn inner(x: f32) -> f32 {
    ROOT_2_OVER_PI * (x + CUBIC * x * x * x)
}

/// Φ(x) = erfc(−x/√2)/2 by formula 7.1.26 of Abramowitz and Stegun in f64, whose absolute error is below 1.5·10⁻⁷.
fn normal_cdf(x: f32) -> f32 {
    const COEFFICIENTS: [f64; 5] = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let z = f64::from(x.abs()) * std::f64::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let polynomial = COEFFICIENTS.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    let tail = 0.5 * polynomial * (-z * z).exp();
    (if x < 0.0 { tail } else { 1.0 - tail }) as f32
}
