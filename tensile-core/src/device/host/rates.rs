//! How fast this machine is: measured once per process and number of threads, in a fraction of a second.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
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
const COPY: usize = 8 << 20;

/// Products timed in one go, long enough for the system's scheduler to share the cores between them and the copies.
const PRODUCTS: usize = 24;

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
            scope.spawn(|| copy(first));
            copy(second);
        });
    });
    let duplex = if both_s < 1.5 * alone_s { Duplex::Full } else { Duplex::Half };

    let mut sums = vec![0f32; COPY / 4];
    let adds: Vec<f32> = vec![1.0; COPY / 4];
    let add_s = best_of(3, || {
        pool.install(|| {
            sums.par_chunks_mut(1 << 14).zip(adds.par_chunks(1 << 14)).for_each(|(sums, adds)| {
                for (sum, add) in sums.iter_mut().zip(adds) {
                    *sum += add;
                }
            });
        });
    });

    // A matrix product alone and beside copies: on a CPU they share cores and memory.
    let product = Product::new(pool);
    let product_s = best_of(4, || product.run(pool));
    let run_all = || seconds(|| (0..PRODUCTS).for_each(|_| product.run(pool)));
    let all_s = run_all();
    let stop = AtomicBool::new(false);
    let beside_s = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                copy(&mut buffers[..2]);
            }
        });
        let seconds = run_all();
        stop.store(true, Ordering::Relaxed);
        seconds
    });
    Rates {
        flops_per_s: Product::FLOPS / product_s,
        bytes_per_s: 3.0 * COPY as f64 / add_s,
        launch_s,
        link: Link {
            out_bytes_per_s: COPY as f64 / alone_s,
            in_bytes_per_s: COPY as f64 / alone_s,
            latency: Nanos((launch_s * 1e9) as u64),
            duplex,
            kernel_slowdown: (beside_s / all_s).clamp(1.0, 2.0),
        },
    }
}

/// A matrix product by the device's own kernel.
struct Product(Kernel);

impl Product {
    const N: usize = 384;
    const FLOPS: f64 = 2.0 * (Self::N * Self::N * Self::N) as f64;

    fn new(pool: &ThreadPool) -> Self {
        let op: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
        let ty = [TensorType::f32([Self::N, Self::N]), TensorType::f32([Self::N, Self::N])];
        let bytes = ty[0].bytes() as u64;
        let scratch = op.def().host_workspace(&ty, &ty[..1], pool.current_num_threads()) as u64;
        let regions = [0, 1, 2].map(|index| Region { offset: index * bytes, bytes });
        let workspace = Region { offset: 3 * bytes, bytes: scratch };
        let memory = Memory::new(&Arc::new(Ledger::new(u64::MAX)), Tag::Other, workspace.end());
        let memory = memory.expect("some megabytes to measure with can be had");
        let arg = |index: usize| Arg { region: regions[index], ty: &ty[0] };
        let (inputs, outputs) = ([arg(0), arg(1)], [arg(2)]);
        let call = OpCall { op: &op, inputs: &inputs, outputs: &outputs, workspace };
        Self(Kernel::new(&Arc::new(memory), &call))
    }

    fn run(&self, pool: &ThreadPool) {
        self.0.run(pool);
    }
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
