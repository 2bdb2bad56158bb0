//! `gelu`: Gaussian error linear unit x·Φ(x), and its gradient from its input.

use super::elementwise::{Binary, Unary, binary, infer_same, infer_unary, unary};
use super::math::{exp, tanh};
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

/// The loops of the two forms, apart so that each vectorises.
struct Exact;
struct ByTanh;

impl Unary for Exact {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        x * normal_cdf(x)
    }
}

impl Binary for Exact {
    #[inline(always)]
    fn of(&self, dy: f32, x: f32) -> f32 {
        // d(x·Φ(x))/dx = Φ(x) + x·φ(x)
        dy * (normal_cdf(x) + x * ONE_OVER_ROOT_2_PI * exp(-0.5 * x * x))
    }
}

impl Unary for ByTanh {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        0.5 * x * (1.0 + tanh(inner(x)))
    }
}

impl Binary for ByTanh {
    #[inline(always)]
    fn of(&self, dy: f32, x: f32) -> f32 {
        let t = tanh(inner(x));
        let slope = ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
        dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
    }
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
        if self.tanh { unary(call, &ByTanh) } else { unary(call, &Exact) }
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
        if self.tanh { binary(call, &ByTanh) } else { binary(call, &Exact) }
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

#[inline(always)]
fn inner(x: f32) -> f32 {
    ROOT_2_OVER_PI * (x + CUBIC * x * x * x)
}

/// Φ(x) = erfc(−x/√2)/2 by formula 7.1.26 of Abramowitz and Stegun, whose absolute error is below 1.5·10⁻⁷, in f32.
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let [c1, c2, c3, c4, c5] = COEFFICIENTS;
    let polynomial = ((((c5 * t + c4) * t + c3) * t + c2) * t + c1) * t;
    let tail = 0.5 * polynomial * exp(-z * z);
    if x < 0.0 { tail } else { 1.0 - tail }
}
