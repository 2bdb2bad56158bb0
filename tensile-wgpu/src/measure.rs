//! How fast an adapter is, measured when it is opened, in a fraction of a second.

use std::time::Instant;

use tensile_core::device::host::{HostArena, Rates};
use tensile_core::op::add::Add;
use tensile_core::op::matmul::MatMul;
use tensile_core::{Arg, Device, DeviceError, Lane, Op, OpCall, Region, TensorType};
use tensile_sched::{Duplex, Nanos};

use crate::WgpuDevice;
use crate::arena::WgpuArena;
use crate::device::WgpuStream;

/// What is said of an adapter before it has been measured.
pub(crate) const UNKNOWN: Rates = {
    let mut rates = Rates::NOMINAL;
    rates.link.duplex = Duplex::NoOverlap;
    rates
};

/// Side of the product that is timed.
const SIDE: usize = 256;

/// Bytes of a copy, and of a tensor that is added.
const COPY: u64 = 8 << 20;

/// Small launches timed together.
const LAUNCHES: u32 = 64;

struct Bench<'a> {
    device: &'a WgpuDevice,
    stream: WgpuStream,
    arena: WgpuArena,
    host: HostArena,
}

impl Bench<'_> {
    /// Seconds of the fastest of some runs of enqueued work, after a first one that warms up.
    fn seconds(&self, runs: usize, enqueue: impl Fn() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        let mut best = f64::INFINITY;
        for run in 0..=runs {
            let start = Instant::now();
            enqueue()?;
            self.device.synchronize(&self.stream)?;
            if run > 0 {
                best = best.min(start.elapsed().as_secs_f64());
            }
        }
        Ok(best.max(1e-9))
    }

    fn launch(&self, op: &Op, ty: &TensorType) -> Result<(), DeviceError> {
        let bytes = ty.bytes() as u64;
        let arg = |index: u64| Arg { region: Region { offset: index * COPY, bytes }, ty };
        let call = OpCall {
            op,
            inputs: &[arg(0), arg(1)],
            outputs: &[arg(2)],
            workspace: Region {
                offset: 3 * COPY,
                bytes: self.device.workspace(op, &[ty.clone(), ty.clone()], std::slice::from_ref(ty))?,
            },
        };
        self.device.launch(&self.stream, &self.arena, &call)
    }

    fn copy(&self, out: bool) -> Result<(), DeviceError> {
        let region = Region { offset: 0, bytes: COPY };
        if out {
            self.device.copy_out(&self.stream, (&self.arena, region), (&self.host, region))
        } else {
            self.device.copy_in(&self.stream, (&self.host, region), (&self.arena, region))
        }
    }
}

/// Measures products, sums, copies and small launches.
///
/// # Errors
/// If the device fails, or has no 32 MiB.
pub(crate) fn measure(device: &WgpuDevice) -> Result<Rates, DeviceError> {
    let bench = Bench {
        device,
        stream: device.stream(Lane::Compute)?,
        arena: device.alloc_arena(4 * COPY)?,
        host: device.alloc_host_arena(COPY)?,
    };
    let product: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
    let add: Op = Add.into();
    let (square, long, small) =
        (TensorType::f32([SIDE, SIDE]), TensorType::f32([COPY as usize / 4]), TensorType::f32([64]));
    let product_s = bench.seconds(2, || bench.launch(&product, &square))?;
    let add_s = bench.seconds(2, || bench.launch(&add, &long))?;
    let launches_s = bench.seconds(2, || (0..LAUNCHES).try_for_each(|_| bench.launch(&add, &small)))?;
    let out_s = bench.seconds(3, || bench.copy(true))?;
    let in_s = bench.seconds(3, || bench.copy(false))?;
    // Copies beside kernels: if both together take hardly less than one after the other, nothing overlaps.
    let n = (4.0 * (out_s + in_s) / product_s).ceil().clamp(1.0, 64.0) as u32;
    let kernels_s = bench.seconds(2, || (0..n).try_for_each(|_| bench.launch(&product, &square)))?;
    let copies_s = bench.seconds(2, || (0..4).try_for_each(|_| bench.copy(true)))?;
    let both_s = bench.seconds(2, || {
        (0..n).try_for_each(|_| bench.launch(&product, &square))?;
        (0..4).try_for_each(|_| bench.copy(true))
    })?;
    let overlap = both_s < kernels_s.max(copies_s) + 0.5 * kernels_s.min(copies_s);
    let mut rates = UNKNOWN;
    rates.flops_per_s = 2.0 * (SIDE * SIDE * SIDE) as f64 / product_s;
    rates.bytes_per_s = 3.0 * COPY as f64 / add_s;
    rates.launch_s = launches_s / f64::from(LAUNCHES);
    rates.link.out_bytes_per_s = COPY as f64 / out_s;
    rates.link.in_bytes_per_s = COPY as f64 / in_s;
    rates.link.latency = Nanos((rates.launch_s * 1e9) as u64);
    rates.link.duplex = if overlap { Duplex::Half } else { Duplex::NoOverlap };
    Ok(rates)
}
