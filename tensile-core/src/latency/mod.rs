//! How long ops will take: told before a job's first iteration, corrected by what is measured afterwards.
//!
//! A [`Roofline`] needs nothing but the device's rates. [`Learned`] corrects it by a small network, trained on ops that were measured on the device
//! (the paper's answer to cold starts). [`Corrected`] follows the latencies of one step while it runs.

mod corrected;
mod error;
mod features;
mod file;
mod learned;

use std::fmt;

use tensile_sched::{Nanos, TraceError};

pub use corrected::Corrected;
pub use error::LatencyError;
pub use features::{Features, N_FEATURES};
pub use learned::{Accuracy, Learned, Sample, TrainOptions, split};

use crate::device::DeviceInfo;
use crate::exec::Step;
use crate::op::{Cost, Op};
use crate::tensor::TensorType;

/// Largest latency that is predicted, about 18 minutes: sums of millions of them stay far from overflowing.
const MOST: u64 = 1 << 40;

/// Tells latencies of ops on one device.
pub trait Latencies: fmt::Debug + Send + Sync {
    /// How long an op on these types will take while `load` jobs share the device (1 = it is alone there). Neither zero nor without end.
    fn predict(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType], load: f64) -> Nanos;
}

/// The larger of arithmetic and memory time, at least a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Floating-point operations per second.
    pub flops_per_s: f64,
    /// Bytes per second, read and written.
    pub bytes_per_s: f64,
    /// Seconds of the smallest op.
    pub launch_s: f64,
}

impl Roofline {
    /// With a device's rates.
    pub fn new(info: &DeviceInfo) -> Self {
        Self { flops_per_s: info.flops_per_s, bytes_per_s: info.bytes_per_s, launch_s: info.launch_s }
    }

    /// Time for this work on a device of one's own.
    pub fn time(&self, cost: Cost) -> Nanos {
        let seconds = (cost.flops / self.flops_per_s).max(cost.bytes / self.bytes_per_s).max(self.launch_s);
        nanos(seconds * 1e9)
    }
}

impl Latencies for Roofline {
    /// Jobs take turns: `load` times the time alone.
    fn predict(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType], load: f64) -> Nanos {
        nanos(self.time(op.def().cost(inputs, outputs)).0 as f64 * load.max(1.0))
    }
}

/// A predicted time as whole nanoseconds; from 1 up, whatever the prediction.
fn nanos(time: f64) -> Nanos {
    // NaN, which rates of zero may give, becomes the least.
    Nanos((time.ceil() as u64).clamp(1, MOST))
}

impl Step {
    /// The same step with latencies as told for a device that `load` jobs share.
    ///
    /// # Errors
    /// [`TraceError::Latency`] if one is too large to add up.
    pub fn with_latencies(&self, latencies: &dyn Latencies, load: f64) -> Result<Step, TraceError> {
        let types = |args: &[crate::exec::CallArg]| args.iter().map(|arg| arg.ty.clone()).collect::<Vec<_>>();
        let predicted: Vec<Nanos> = (self.calls.iter())
            .map(|call| latencies.predict(&call.op, &types(&call.inputs), &types(&call.outputs), load))
            .collect();
        Ok(Step { trace: self.trace.clone().with_latencies(&predicted)?, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::cases;
    use crate::device::Device;
    use crate::device::host::{HostDevice, HostOptions};
    use crate::exec::lower;

    #[test]
    fn steps_begin_with_the_roofline_and_load_stretches_it() {
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let roofline = Roofline::new(device.info());
        for case in cases() {
            let step = lower(&case.graph(), &device).unwrap();
            let alone = step.with_latencies(&roofline, 1.0).unwrap();
            assert_eq!(alone.trace, step.trace, "{}", case.name);
            let shared = step.with_latencies(&roofline, 3.0).unwrap();
            assert_eq!(shared.trace.compute_time().0, 3 * step.trace.compute_time().0, "{}", case.name);
        }
    }

    #[test]
    fn silly_rates_give_latencies_all_the_same() {
        for rate in [0.0, f64::NAN, f64::INFINITY, -1.0, 1e-300] {
            let roofline = Roofline { flops_per_s: rate, bytes_per_s: rate, launch_s: rate };
            for cost in [Cost::default(), Cost { flops: 1e12, bytes: 1e9 }] {
                let time = roofline.time(cost);
                assert!(time >= Nanos(1) && time <= Nanos(MOST), "{rate} {cost:?}: {time}");
            }
        }
    }
}
