//! `square_sum`: a running sum of squares, as the norm of all gradients together needs it.

use rayon::prelude::*;

use super::elementwise::CHUNK;
use super::lanes::map_sum;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::work::{Work, vectorized};
use crate::tensor::{DType, TensorType};

/// Σx² of an f32 tensor, added to a sum so far: inputs x, and the sum so far unless it is 0; output the sum.
///
/// A sum is `f32[2]`: two numbers whose sum it is, the first the nearest f32. So a chain of hundreds of sums keeps twice the digits of an f32.
#[derive(Clone, Debug, PartialEq)]
pub struct SquareSum;

/// Type of a sum.
pub(crate) fn sum_type() -> TensorType {
    TensorType::f32([2])
}

/// The number that a sum's two parts stand for.
pub(crate) fn joined(parts: &[f32]) -> f64 {
    f64::from(parts[0]) + f64::from(parts[1])
}

fn split(sum: f64) -> [f32; 2] {
    let high = sum as f32;
    [high, if high.is_finite() { (sum - f64::from(high)) as f32 } else { 0.0 }]
}

struct Squares<'a> {
    x: &'a [f32],
    sum: &'a mut f64,
}

impl Work for Squares<'_> {
    #[inline(always)]
    fn run(self) {
        *self.sum = map_sum(self.x, |x| x * x);
    }
}

impl OpDef for SquareSum {
    fn name(&self) -> &'static str {
        "square_sum"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x, before @ ..] if x.dtype == DType::F32 && (before.is_empty() || *before == [sum_type()]) => {
                Ok(vec![sum_type()])
            }
            _ => Err(OpError(format!("takes an f32 tensor and perhaps a sum {}", sum_type()))),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        Cost { flops: 2.0 * inputs[0].numel() as f64, bytes: inputs[0].bytes() as f64 }
    }

    fn host_workspace(&self, inputs: &[TensorType], _outputs: &[TensorType], _threads: usize) -> usize {
        inputs[0].numel().div_ceil(CHUNK) * size_of::<f64>()
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let x = call.input::<f32>(0);
        let before = if call.n_inputs() > 1 { joined(call.input::<f32>(1)) } else { 0.0 };
        let sums = call.workspace::<f64>();
        sums.par_iter_mut().zip(x.par_chunks(CHUNK)).for_each(|(sum, x)| vectorized(Squares { x, sum }));
        let total = sums.iter().sum::<f64>();
        call.output::<f32>(0).copy_from_slice(&split(before + total));
    }
}

impl Graph {
    /// Adds the squares of `x` to the sum `before`, or to 0; see [`SquareSum`].
    ///
    /// # Errors
    /// If `x` is not f32 or `before` is no such sum.
    pub fn square_sum(&mut self, x: Value, before: Option<Value>) -> Result<Value, GraphError> {
        let inputs: Vec<Value> = [x].into_iter().chain(before).collect();
        self.apply1(SquareSum, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{float_bytes, run, values};

    fn sum_of(tensors: &[Vec<f32>], threads: usize) -> f64 {
        let mut graph = Graph::new();
        let mut sum = None;
        let mut inputs = Vec::new();
        for (index, x) in tensors.iter().enumerate() {
            let name = format!("x{index}");
            let value = graph.input(&name, TensorType::f32([x.len()])).expect("new");
            sum = Some(graph.square_sum(value, sum).expect("fits"));
            inputs.push((name, float_bytes(x)));
        }
        graph.output("sum", sum.expect("some tensors")).expect("new");
        let inputs: Vec<(&str, Vec<u8>)> = inputs.iter().map(|(name, x)| (name.as_str(), x.clone())).collect();
        joined(&run(&graph, &inputs, &[], threads).output("sum"))
    }

    #[test]
    fn chains_are_as_good_as_f64() {
        let tensors: Vec<Vec<f32>> =
            [1, 3 * CHUNK + 5, 0, 40, CHUNK].iter().zip(1..).map(|(&n, seed)| values(n, seed)).collect();
        let right: f64 = tensors.iter().flatten().map(|&x| f64::from(x) * f64::from(x)).sum();
        let sum = sum_of(&tensors, 1);
        assert!((sum / right - 1.0).abs() < 1e-6, "{sum} against {right}");
        assert_eq!(sum, sum_of(&tensors, 3));
        // Hundreds of summands far below the sum's last digit in f32, but not in f64.
        let mut tensors = vec![vec![1.0]; 300];
        tensors[0] = vec![16_384.0];
        assert_eq!(sum_of(&tensors, 1), 16_384.0 * 16_384.0 + 299.0);
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        assert_eq!(sum_of(&[vec![1.0, f32::INFINITY], vec![1.0]], 1), f64::INFINITY);
        assert_eq!(sum_of(&[vec![3e38], vec![1.0]], 1), f64::INFINITY);
        assert!(sum_of(&[vec![1.0], vec![f32::NAN], vec![1.0]], 1).is_nan());
    }
}
