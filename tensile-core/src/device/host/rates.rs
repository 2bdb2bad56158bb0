//! How fast this machine is: measured once per process and number of threads, in a fraction of a second.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use rayon::prelude::*;
use tensile_sched::{Duplex, Link, Nanos};

use super::count::Tag;
use super::memory::{Ledger, Memory};
use super::stream::Kernel;
use crate::device::{Arg, OpCall, Region};
use crate::op::Op;
use crate::op::matmul::MatMul;
use crate::tensor::TensorType;

/// What the planner is told of the host device's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations per second.
    pub flops_per_s: f64,
    /// Bytes per second of an elementwise op.
    pub bytes_per_s: f64,
    /// Seconds of the smallest op.
    pub launch_s: f64,
    /// Copies.
    pub link: Link,
}

impl Rates {
    /// Round numbers, the same on every machine: for tests, and for plans that should not depend on the machine.
    pub const NOMINAL: Rates = Rates {
        flops_per_s: 50e9,
        bytes_per_s: 10e9,
        launch_s: 10e-6,
        link: Link {
            out_bytes_per_s: 5e9,
            in_bytes_per_s: 5e9,
            latency: Nanos(10_000),
            duplex: Duplex::Full,
            kernel_slowdown: 1.0,
        },
    };

    /// Measures, or gives what was measured before for this number of threads.
    pub(super) fn measured(pool: &ThreadPool) -> Self {
        static KNOWN: Mutex<BTreeMap<usize, Rates>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(pool.current_num_threads()).or_insert_with(|| measure(pool))
    }
}

/// Size of the buffers to copy: larger than caches, small enough to be quick.
const COPY: usize = 16 << 20;

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64().max(1e-9)
}

fn best_of(n: usize, mut run: impl FnMut()) -> f64 {
    (0..n).map(|_| seconds(&mut run)).fold(f64::INFINITY, f64::min)
}

fn measure(pool: &ThreadPool) -> Rates {
    let launch_s = best_of(50, || pool.install(|| black_box(())));
    let flops_per_s = measure_flops(pool);

    let mut buffers = [vec![1u8; COPY], vec![2u8; COPY], vec![3u8; COPY], vec![4u8; COPY]];
    let copy = |buffers: &mut [Vec<u8>]| {
        let (from, to) = buffers.split_at_mut(1);
        to[0].copy_from_slice(&from[0]);
        black_box(&to[0]);
    };
    let alone_s = best_of(4, || copy(&mut buffers[..2]));
    // Two copies at once: full duplex if they lose little to each other.
    let both_s = best_of(3, || {
        let (first, second) = buffers.split_at_mut(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (from, to) = first.split_at_mut(1);
                to[0].copy_from_slice(&from[0]);
            });
            let (from, to) = second.split_at_mut(1);
            to[0].copy_from_slice(&from[0]);
        });
    });
    let duplex = if both_s < 1.5 * alone_s { Duplex::Full } else { Duplex::Half };

    // A kernel alone and beside copies: on a CPU they share cores and memory.
    let mut sums = vec![0f32; COPY / 4];
    let adds: Vec<f32> = vec![1.0; COPY / 4];
    let mut kernel = || {
        pool.install(|| {
            sums.par_chunks_mut(1 << 14).zip(adds.par_chunks(1 << 14)).for_each(|(sums, adds)| {
                for (sum, add) in sums.iter_mut().zip(adds) {
                    *sum += add;
                }
            });
        });
    };
    let kernel_s = best_of(3, &mut kernel);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let beside_s = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                copy(&mut buffers[..2]);
            }
        });
        let seconds = best_of(3, &mut kernel);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        seconds
    });
    Rates {
        flops_per_s,
        bytes_per_s: 3.0 * COPY as f64 / kernel_s,
        launch_s,
        link: Link {
            out_bytes_per_s: COPY as f64 / alone_s,
            in_bytes_per_s: COPY as f64 / alone_s,
            latency: Nanos((launch_s * 1e9) as u64),
            duplex,
            kernel_slowdown: (beside_s / kernel_s).clamp(1.0, 2.0),
        },
    }
}

/// A matrix product by the device's own kernel.
fn measure_flops(pool: &ThreadPool) -> f64 {
    const N: usize = 512;
    let op: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
    let ty = [TensorType::f32([N, N]), TensorType::f32([N, N])];
    let bytes = ty[0].bytes() as u64;
    let scratch = op.def().host_workspace(&ty, &ty[..1], pool.current_num_threads()) as u64;
    let regions = [0, 1, 2].map(|index| Region { offset: index * bytes, bytes });
    let workspace = Region { offset: 3 * bytes, bytes: scratch };
    let ledger = Arc::new(Ledger::new(u64::MAX));
    let Ok(memory) = Memory::new(&ledger, Tag::Other, workspace.end()) else {
        // Too little memory to measure: everything will fail anyway.
        return Rates::NOMINAL.flops_per_s;
    };
    let arg = |index: usize| Arg { region: regions[index], ty: &ty[0] };
    let (inputs, outputs) = ([arg(0), arg(1)], [arg(2)]);
    let call = OpCall { op: &op, inputs: &inputs, outputs: &outputs, workspace };
    let kernel = Kernel::new(&Arc::new(memory), &call);
    2.0 * (N * N * N) as f64 / best_of(4, || kernel.run(pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measuring_is_quick_and_done_once() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let first = Rates::measured(&pool);
        let again_s = seconds(|| assert_eq!(Rates::measured(&pool), first));
        assert!(again_s < 0.01, "{again_s} s");
        for rate in [first.flops_per_s, first.bytes_per_s, first.link.out_bytes_per_s] {
            assert!(rate > 1e7 && rate < 1e14, "{first:?}");
        }
    }
}
