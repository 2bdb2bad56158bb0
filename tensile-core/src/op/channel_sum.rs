//! `channel_sum`: sums over everything but the channels, the gradient of a bias.

use rayon::prelude::*;

use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::kernel::isa::Isa;
use crate::tensor::{DType, TensorType};

/// Sum of an f32 tensor `[N, C, …]` over all dimensions but C: output `[C]`.
///
/// Sums of up to 4,096 neighbours in 16 partial sums of f32, then in f64 from the first image to the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSum;

impl OpDef for ChannelSum {
    fn name(&self) -> &'static str {
        "channel_sum"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] if x.dtype == DType::F32 && x.shape.rank() >= 2 => Ok(vec![TensorType::f32([x.dims()[1]])]),
            _ => Err(OpError("takes one f32 tensor [N, C, …]".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: inputs[0].numel() as f64, bytes: (inputs[0].bytes() + outputs[0].bytes()) as f64 }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        /// Channels that one task takes where they are close together.
        const CHANNELS: usize = 64;
        let (x, sums): (&[f32], &mut [f32]) = (call.input(0), call.output(0));
        let n_channels = sums.len();
        let plane: usize = call.input_type(0).dims()[2..].iter().product();
        if n_channels == 0 || plane == 0 {
            return sums.fill(0.0);
        }
        let isa = Isa::detect();
        if plane >= LANES {
            sums.par_iter_mut().enumerate().for_each(|(channel, sum)| {
                let planes = x.chunks_exact(plane).skip(channel).step_by(n_channels);
                *sum = planes.flat_map(|plane| plane.chunks(4096)).map(|x| isa.vectorize(|| sum_of(x))).sum::<f64>()
                    as f32;
            });
            return;
        }
        sums.par_chunks_mut(CHANNELS).enumerate().for_each(|(block, sums)| {
            let mut totals = [0.0f64; CHANNELS];
            for image in x.chunks_exact(n_channels * plane) {
                let planes = &image[block * CHANNELS * plane..][..sums.len() * plane];
                for (total, plane) in totals.iter_mut().zip(planes.chunks_exact(plane)) {
                    plane.iter().for_each(|&x| *total += f64::from(x));
                }
            }
            sums.iter_mut().zip(totals).for_each(|(sum, total)| *sum = total as f32);
        });
    }
}

const LANES: usize = 16;

/// Sum in 16 partial sums.
#[inline(always)]
fn sum_of(x: &[f32]) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x);
    }
    lanes.iter().chain(rest).map(|&x| f64::from(x)).sum()
}

impl Graph {
    /// Sum of `[N, C, …]` over all dimensions but C.
    ///
    /// # Errors
    /// If `x` is not f32 or has fewer than two dimensions.
    pub fn channel_sum(&mut self, x: Value) -> Result<Value, GraphError> {
        self.apply1(ChannelSum, &[x])
    }
}
