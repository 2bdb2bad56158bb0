//! How fast this machine is: measured once per process and number of threads, in a fraction of a second.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rayon::ThreadPool;
use rayon::prelude::*;
use tensile_sched::{Duplex, Link, Nanos};

use super::count::Tag;
use super::memory::Memory;
use super::store::Store;
use super::stream::Kernel;
use crate::device::ledger::Ledger;
use crate::device::{Arg, DeviceError, OpCall, Region};
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
            copy_slowdown: 1.0,
        },
    };

    /// Measures, or gives what was measured before for this number of threads and this place of host arenas.
    ///
    /// # Errors
    /// [`DeviceError::Spill`], [`DeviceError::DiskFull`] if files cannot be used.
    pub(super) fn measured(pool: &ThreadPool, spill: Option<Spill<'_>>) -> Result<Self, DeviceError> {
        type Key = (usize, Option<(PathBuf, bool)>);
        static KNOWN: Mutex<BTreeMap<Key, Rates>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (pool.current_num_threads(), spill.map(|spill| (spill.dir.to_owned(), spill.cached)));
        if let Some(rates) = known.get(&key) {
            return Ok(*rates);
        }
        let rates = measure(pool, spill)?;
        known.insert(key, rates);
        Ok(rates)
    }
}

/// Host arenas in files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spill<'a> {
    /// Where.
    pub(super) dir: &'a Path,
    /// Whether copies go to the system's cache, or wait for the disk.
    pub(super) cached: bool,
}

impl Spill<'_> {
    /// Copies that are timed in a row. Through the cache as much as a step of a middling job moves, so that no cache of the processor has it; to the
    /// disk less, which takes time enough.
    fn copies(&self) -> u64 {
        if self.cached { 32 } else { 8 }
    }
}

/// Size of one copy: larger than caches, small enough to be quick.
const COPY: u64 = 8 << 20;

/// Products timed in one go, long enough for the system's scheduler to share the cores between them and the copies.
const PRODUCTS: usize = 12;

/// How often kernels and copies are timed alone and beside each other.
const TURNS: usize = 5;

fn middle(mut values: [f64; TURNS]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[TURNS / 2]
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64().max(1e-9)
}

fn best_of(n: usize, mut run: impl FnMut()) -> f64 {
    (0..n).map(|_| seconds(&mut run)).fold(f64::INFINITY, f64::min)
}

/// As [`seconds`], for what can fail.
fn tried<E>(run: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let mut result = Ok(());
    let seconds = seconds(|| result = run());
    result.map(|()| seconds)
}

/// Device memory and a host arena to copy between.
struct Copies {
    device: Memory,
    host: Store,
    n: u64,
}

impl Copies {
    fn new(spill: Option<Spill<'_>>) -> Result<Self, DeviceError> {
        let ledger = Arc::new(Ledger::new(u64::MAX));
        let n = spill.map_or(1, |spill| spill.copies());
        let device = Memory::new(&ledger, Tag::Other, 2 * COPY)?;
        // Fresh pages would be counted in.
        device.fill(Region { offset: 0, bytes: 2 * COPY }, 1);
        let host = match spill {
            Some(spill) => Store::new(&ledger, Some(spill.dir), n * COPY)?,
            None => Store::Memory(Memory::new(&ledger, Tag::Other, n * COPY)?),
        };
        Ok(Self { device, host, n })
    }

    fn device_half(&self, half: u64) -> (&Memory, Region) {
        (&self.device, Region { offset: half * COPY, bytes: COPY })
    }

    fn place(&self, index: u64) -> Region {
        Region { offset: index % self.n * COPY, bytes: COPY }
    }

    /// Copy number `index` to the host.
    fn out(&self, index: u64) -> Result<(), DeviceError> {
        self.host.copy_from(self.place(index), self.device_half(0)).map_err(|error| self.error("written", &error))
    }

    /// Copy number `index` back.
    fn back(&self, index: u64) -> Result<(), DeviceError> {
        self.host.copy_to(self.place(index), self.device_half(1)).map_err(|error| self.error("read", &error))
    }

    fn error(&self, what: &str, error: &std::io::Error) -> DeviceError {
        match &self.host {
            Store::File(file) => file.error(&format!("cannot be {what}"), error),
            Store::Memory(_) => unreachable!("memory has no errors of input and output"),
        }
    }

    /// Makes reads and writes go to the disk, if they are to.
    fn settle(&self, spill: Option<Spill<'_>>) -> Result<(), DeviceError> {
        if let (Store::File(file), Some(Spill { cached: false, .. })) = (&self.host, spill) {
            file.flush().map_err(|error| self.error("written", &error))?;
            file.uncache();
        }
        Ok(())
    }

    /// Seconds of one copy out and of one back: the best of some rounds, so that the first, which makes a file's pages, does not count. A job
    /// writes to the same places in each step.
    fn times(&self, spill: Option<Spill<'_>>) -> Result<(f64, f64), DeviceError> {
        let (mut out_s, mut back_s) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..if spill.is_some() { 3 } else { 5 } {
            let all_out = tried(|| {
                (0..self.n).try_for_each(|index| self.out(index))?;
                self.settle(spill)
            })?;
            let all_back = tried(|| (0..self.n).try_for_each(|index| self.back(index)))?;
            out_s = out_s.min(all_out / self.n as f64);
            back_s = back_s.min(all_back / self.n as f64);
        }
        Ok((out_s, back_s))
    }
}

fn measure(pool: &ThreadPool, spill: Option<Spill<'_>>) -> Result<Rates, DeviceError> {
    let launch_s = best_of(50, || pool.install(|| black_box(())));
    let copies = Copies::new(spill)?;
    let (out_s, back_s) = copies.times(spill)?;
    // Two copies at once: full duplex if they lose little to each other.
    let mut both_s = f64::INFINITY;
    for _ in 0..3 {
        let both = tried(|| {
            std::thread::scope(|scope| {
                let back = scope.spawn(|| copies.back(0));
                copies.out(1).and(back.join().unwrap_or(Ok(())))
            })
        })?;
        both_s = both_s.min(both);
    }
    let duplex = if spill.is_some() || both_s < 1.5 * out_s.max(back_s) { Duplex::Full } else { Duplex::Half };

    let mut sums = vec![0f32; COPY as usize / 4];
    let adds: Vec<f32> = vec![1.0; COPY as usize / 4];
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
    let product = Product::new(pool)?;
    let product_s = best_of(4, || product.run(pool));
    let run_all = || seconds(|| (0..PRODUCTS).for_each(|_| product.run(pool)));
    // In turns, and the middle of the ratios: what other programs of the machine take should not count as an effect of copies.
    let (mut kernel_slowdowns, mut copy_slowdowns) = ([1.0; TURNS], [1.0; TURNS]);
    for (kernel, copy) in kernel_slowdowns.iter_mut().zip(&mut copy_slowdowns) {
        let kernels_s = run_all();
        let (beside_s, rounds) = beside(&copies, run_all)?;
        // Each round is a copy out and one back.
        let rounds_s = tried(|| (0..rounds).try_for_each(|index| copies.out(index).and(copies.back(index))))?;
        *kernel = beside_s / kernels_s;
        *copy = beside_s / rounds_s.max(rounds as f64 * (out_s + back_s));
    }
    Ok(Rates {
        flops_per_s: Product::FLOPS / product_s,
        bytes_per_s: 3.0 * COPY as f64 / add_s,
        launch_s,
        link: Link {
            out_bytes_per_s: COPY as f64 / out_s,
            in_bytes_per_s: COPY as f64 / back_s,
            latency: Nanos((launch_s * 1e9) as u64),
            duplex,
            kernel_slowdown: middle(kernel_slowdowns).clamp(1.0, 2.0),
            copy_slowdown: middle(copy_slowdowns).clamp(1.0, 2.0),
        },
    })
}

/// Seconds of `run` beside copies to and fro, and how many rounds of them it leaves time for.
fn beside(copies: &Copies, run: impl FnOnce() -> f64) -> Result<(f64, u64), DeviceError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                copies.out(rounds)?;
                copies.back(rounds)?;
                rounds += 1;
            }
            Ok(rounds)
        });
        let seconds = run();
        stop.store(true, Ordering::Relaxed);
        let rounds = copying.join().unwrap_or(Ok(0))?;
        Ok((seconds, rounds))
    })
}

/// A matrix product by the device's own kernel.
struct Product(Kernel);

impl Product {
    const N: usize = 384;
    const FLOPS: f64 = 2.0 * (Self::N * Self::N * Self::N) as f64;

    fn new(pool: &ThreadPool) -> Result<Self, DeviceError> {
        let op: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
        let ty = [TensorType::f32([Self::N, Self::N]), TensorType::f32([Self::N, Self::N])];
        let bytes = ty[0].bytes() as u64;
        let scratch = op.def().host_workspace(&ty, &ty[..1], pool.current_num_threads()) as u64;
        let regions = [0, 1, 2].map(|index| Region { offset: index * bytes, bytes });
        let workspace = Region { offset: 3 * bytes, bytes: scratch };
        let memory = Memory::new(&Arc::new(Ledger::new(u64::MAX)), Tag::Other, workspace.end())?;
        let arg = |index: usize| Arg { region: regions[index], ty: &ty[0] };
        let (inputs, outputs) = ([arg(0), arg(1)], [arg(2)]);
        let call = OpCall { op: &op, inputs: &inputs, outputs: &outputs, workspace };
        Ok(Self(Kernel::new(&Arc::new(memory), &call)))
    }

    fn run(&self, pool: &ThreadPool) {
        self.0.run(pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measuring_is_done_once() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let spill = |cached| Some(Spill { dir: dir.path(), cached });
        for spill in [None, spill(true), spill(false)] {
            let first = Rates::measured(&pool, spill).unwrap();
            assert_eq!(Rates::measured(&pool, spill).unwrap(), first, "a second measurement would differ");
            for rate in [first.flops_per_s, first.bytes_per_s, first.link.out_bytes_per_s, first.link.in_bytes_per_s] {
                assert!(rate > 1e6 && rate < 1e14, "{first:?}");
            }
        }
        let missing = Some(Spill { dir: Path::new("/nowhere/at/all"), cached: false });
        assert!(matches!(Rates::measured(&pool, missing), Err(DeviceError::Spill { .. })));
    }
}
