//! `dropout`: zeroes elements at random and scales the others up; the same op is its own gradient.

use rayon::prelude::*;

use super::elementwise::{CHUNK, split};
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::work::{Work, vectorized};
use crate::random::philox4x32_lanes;
use crate::tensor::{DType, TensorType};

/// Dropout: inputs x f32 and random `i32[4]` = [seed low, seed high, step low, step high]; output of x's type: x/(1 − p) with probability 1 − p, else 0.
///
/// Element i draws word i mod 4 of Philox4x32-10 for counter [⌊i/4⌋, number, step low, step high] and key [seed low, seed high], and is kept if the
/// word is below (1 − p)·2³². So a rerun, and the gradient (the same op on dy), find the same mask without storing it.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of zero.
    pub p: f32,
    /// Tells apart the dropouts of a graph; its part of the counter.
    pub number: u32,
}

/// Counters drawn at once; four elements each.
const LANES: usize = 16;
const GROUP: usize = 4 * LANES;

impl OpDef for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x, random] if x.dtype == DType::F32 && *random == TensorType::i32([4]) => {
                if !(0.0..=1.0).contains(&self.p) {
                    return Err(OpError(format!("has probability {}, which is not between 0 and 1", self.p)));
                }
                if x.numel() as u64 > 1 << 34 {
                    return Err(OpError(format!("has {} elements; the most is 2^34", x.numel())));
                }
                Ok(vec![x.clone()])
            }
            _ => Err(OpError("takes an f32 tensor and random i32[4]".to_owned())),
        }
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        let dy = call.output_grad();
        Ok(vec![Some(call.graph.apply1(self.clone(), &[dy, call.inputs[1]])?), None])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = inputs[0].numel() as f64;
        Cost { flops: 20.0 * n, bytes: 8.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let random: &[u32] = call.input(1);
        let (key, step) = ([random[0], random[1]], [random[2], random[3]]);
        let (y, x) = split(call.in_out::<f32>(0, 0));
        y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
            if let Some(x) = x {
                y.copy_from_slice(&x[chunk * CHUNK..][..y.len()]);
            }
            vectorized(Drop { op: self, key, step, first_block: (chunk * CHUNK / 4) as u32, y });
        });
    }
}

/// Drops elements of `y` in place.
struct Drop<'a> {
    op: &'a Dropout,
    key: [u32; 2],
    step: [u32; 2],
    /// Counter of the first four elements.
    first_block: u32,
    y: &'a mut [f32],
}

impl Work for Drop<'_> {
    #[inline(always)]
    fn run(self) {
        let keep = 1.0 - f64::from(self.op.p);
        let scale = if keep > 0.0 { (1.0 / keep) as f32 } else { 0.0 };
        // A word is kept below it: no word for p = 1, but for p = 0 the bound of 2³² does not fit.
        let (bound, all) = ((keep * 4_294_967_296.0) as u32, keep >= 1.0);
        for (group, y) in self.y.chunks_mut(GROUP).enumerate() {
            let first = self.first_block + (group * LANES) as u32;
            let mut blocks = [first; LANES];
            for (block, lane) in blocks.iter_mut().zip(0..) {
                *block = block.wrapping_add(lane);
            }
            let (number, [low, high]) = ([self.op.number; LANES], self.step);
            let words = philox4x32_lanes([blocks, number, [low; LANES], [high; LANES]], self.key);
            let mut factors = [0.0; GROUP];
            for lane in 0..LANES {
                for word in 0..4 {
                    factors[4 * lane + word] = if (words[word][lane] < bound) | all { scale } else { 0.0 };
                }
            }
            for (y, factor) in y.iter_mut().zip(factors) {
                *y = if factor == 0.0 { 0.0 } else { *y * factor };
            }
        }
    }
}

impl Graph {
    /// Zeroes elements of `x` with probability `p` and scales the others by 1/(1 − p). `random` is `i32[4]` (see [`Dropout`]), `number` tells the
    /// dropouts of a graph apart.
    ///
    /// # Errors
    /// If the types do not fit or `p` is no probability.
    pub fn dropout(&mut self, x: Value, random: Value, p: f32, number: u32) -> Result<Value, GraphError> {
        self.apply1(Dropout { p, number }, &[x, random])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::philox4x32;
    use crate::testing::{Interpreter, add_gradients, float_bytes, int_bytes, run, values};

    fn graph(n: usize, p: f32, number: u32) -> Graph {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32([n])).expect("new");
        let random = graph.input("random", TensorType::i32([4])).expect("new");
        let y = graph.dropout(x, random, p, number).expect("types fit");
        graph.output("y", y).expect("new");
        add_gradients(&mut graph, y, &[x]).expect("dropout has a gradient");
        graph
    }

    #[test]
    fn mask_follows_the_counter() {
        // Across two chunks, and with a rest that fills no group.
        let n = CHUNK + 77;
        let x = values(n, 1);
        let random = [5, -7, 3, 0];
        let graph = graph(n, 0.3, 9);
        let inputs = [("x", float_bytes(&x)), ("random", int_bytes(&random)), ("upstream", float_bytes(&vec![1.0; n]))];
        let outcome = run(&graph, &inputs, &[], 2);
        let (y, dx) = (outcome.output("y"), outcome.output("grad0"));
        let mut n_kept = 0;
        for i in 0..n {
            let word = philox4x32([i as u32 / 4, 9, 3, 0], [5, -7i32 as u32])[i % 4];
            let kept = f64::from(word) < (1.0 - f64::from(0.3f32)) * 4_294_967_296.0;
            let factor = if kept { (1.0 / (1.0 - f64::from(0.3f32))) as f32 } else { 0.0 };
            assert_eq!((y[i], dx[i]), (if kept { x[i] * factor } else { 0.0 }, factor), "element {i}");
            n_kept += usize::from(kept);
        }
        // Standard deviation √(n·0.3·0.7) = 59.
        assert!((n_kept as f64 - 0.7 * n as f64).abs() < 300.0, "{n_kept} of {n} kept");
        for (threads, in_place) in [(1, true), (3, false), (3, true)] {
            assert_eq!(outcome, Interpreter { threads, in_place }.run(&graph, &inputs, &[]));
        }
    }

    #[test]
    fn step_seed_and_number_change_the_mask() {
        let n = 256;
        let mask = |number: u32, random: [i32; 4]| {
            let inputs = [
                ("x", float_bytes(&vec![1.0; n])),
                ("random", int_bytes(&random)),
                ("upstream", float_bytes(&vec![1.0; n])),
            ];
            run(&graph(n, 0.5, number), &inputs, &[], 1).output("y")
        };
        let masks = [
            mask(0, [0; 4]),
            mask(1, [0; 4]),
            mask(0, [1, 0, 0, 0]),
            mask(0, [0, 1, 0, 0]),
            mask(0, [0, 0, 1, 0]),
            mask(0, [0, 0, 0, 1]),
        ];
        for (i, a) in masks.iter().enumerate() {
            assert!(masks[..i].iter().all(|b| a != b), "mask {i} repeats an earlier one");
        }
    }

    #[test]
    fn extreme_probabilities() {
        let inputs =
            [("x", float_bytes(&[2.0; 5])), ("random", int_bytes(&[0; 4])), ("upstream", float_bytes(&[1.0; 5]))];
        assert_eq!(run(&graph(5, 0.0, 0), &inputs, &[], 1).output("y"), [2.0; 5]);
        assert_eq!(run(&graph(5, 1.0, 0), &inputs, &[], 1).output("y"), [0.0; 5]);
    }
}
