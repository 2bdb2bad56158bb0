//! The host device: real kernels on the CPU, its device memory an arena of a hard size.
//!
//! Each stream is a thread with a queue; kernels run in a thread pool of the device's own, copies on the threads of their streams. The "host" that
//! tensors are swapped to is ordinary memory, or a file ([`HostOptions::spill_dir`]) so that a machine without another device saves memory. For tests it can be a virtual device, see [`Emulation`].
//!
//! As on any device, it is the caller's duty (of the executor, by the waits of a verified program) that work on two streams does not use the same
//! bytes at one time. Sizes, bounds and overlaps within one call are checked.

mod call;
pub mod count;
mod emulate;
mod memory;
mod rates;
mod store;
mod stream;
mod system;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rayon::{ThreadPool, ThreadPoolBuilder};
use tensile_sched::{Bytes, Lane, Link, Nanos};

pub use call::{HostArg, HostCall, InOut};
pub use emulate::{Delays, Emulation, Failure};
pub use rates::Rates;
pub use store::available_disk;
pub use stream::HostStream;
pub use system::{available_memory, total_memory};

use crate::device::ledger::Ledger;
use crate::device::recording::Recording;
use crate::device::{Device, DeviceError, DeviceInfo, OpCall, Region};
use crate::op::Op;
use crate::tensor::TensorType;
use count::Tag;
use emulate::Injections;
use memory::Memory;
use rates::Spill;
use store::Store;
use stream::{Command, Kernel, Transfer};

/// Every kernel argument starts at a multiple of this: a cache line, and the widest vector register.
const REGION_ALIGNMENT: u64 = 64;

/// How to set a [`HostDevice`] up.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOptions {
    /// Threads that kernels use; 0 for as many as the machine has. Results do not depend on it.
    pub threads: usize,
    /// Bytes that all device arenas together may have.
    pub capacity: Bytes,
    /// Bytes that all host arenas together may have.
    pub host_capacity: Bytes,
    /// Directory for host arenas: each is a file there, without a name, whose bytes are not in the process's memory (though the system may cache
    /// them while memory is free). None for ordinary memory. How fast copies are then depends on the size of the file:
    /// [`HostDevice::link_for`].
    pub spill_dir: Option<PathBuf>,
    /// Speed to report; none to measure it.
    pub rates: Option<Rates>,
    /// What to emulate, for tests.
    pub emulation: Emulation,
}

impl Default for HostOptions {
    /// All threads, no limits, measured rates.
    fn default() -> Self {
        Self {
            threads: 0,
            capacity: Bytes::MAX,
            host_capacity: Bytes::MAX,
            spill_dir: None,
            rates: None,
            emulation: Emulation::default(),
        }
    }
}

impl HostOptions {
    /// For tests: that many threads, [`Rates::NOMINAL`], no limits.
    pub fn nominal(threads: usize) -> Self {
        Self { threads, rates: Some(Rates::NOMINAL), ..Self::default() }
    }
}

/// The CPU as a [`Device`].
#[derive(Debug)]
pub struct HostDevice {
    shared: Arc<Shared>,
}

/// What streams and their threads share with the device.
#[derive(Debug)]
struct Shared {
    info: DeviceInfo,
    is_measured: bool,
    threads: usize,
    pool: ThreadPool,
    device_ledger: Arc<Ledger>,
    host_ledger: Arc<Ledger>,
    spill_dir: Option<PathBuf>,
    emulation: Emulation,
    injections: Injections,
    lost: OnceLock<String>,
    epoch: Instant,
    /// Latest virtual time that a caller has waited for.
    host_time: AtomicU64,
}

impl Shared {
    fn check_lost(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            Some(detail) => Err(DeviceError::DeviceLost { detail: detail.clone() }),
            None => Ok(()),
        }
    }

    fn lose(&self, detail: String) {
        // A device is lost once; later reasons do not matter.
        let _ = self.lost.set(detail);
    }

    fn is_virtual(&self) -> bool {
        self.emulation.virtual_link.is_some()
    }

    /// The device's clock: real, or a stream's virtual time.
    fn time(&self, virtual_now: u64) -> u64 {
        if self.is_virtual() { virtual_now } else { self.epoch.elapsed().as_nanos() as u64 }
    }

    /// How long work takes on a virtual clock; zero on the real one.
    fn virtual_time(&self, predict: impl FnOnce(&DeviceInfo) -> Nanos) -> u64 {
        if self.is_virtual() { predict(&self.info).0 } else { 0 }
    }

    fn host_time(&self) -> u64 {
        self.host_time.load(Ordering::Relaxed)
    }

    /// Blocks the caller for a recording.
    fn wait_for(&self, recording: &Recording) -> Result<(), DeviceError> {
        let outcome = recording.wait();
        if self.is_virtual() {
            self.host_time.fetch_max(outcome.time, Ordering::Relaxed);
        }
        outcome.result
    }
}

impl HostDevice {
    /// A device with these options.
    ///
    /// # Errors
    /// [`DeviceError::DeviceLost`] if the threads cannot be had; [`DeviceError::Spill`] or [`DeviceError::DiskFull`] if the spill directory cannot be used.
    ///
    /// # Panics
    /// If the emulated link is not full duplex without slowdown.
    pub fn new(options: HostOptions) -> Result<Self, DeviceError> {
        options.emulation.assert_valid();
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|index| format!("tensile-kernel-{index}"))
            .exit_handler(|_| count::set_tag(Tag::Other))
            .build()
            .map_err(|error| DeviceError::DeviceLost { detail: format!("no threads for kernels: {error}") })?;
        let threads = pool.current_num_threads();
        let is_measured = options.rates.is_none() && options.emulation.virtual_link.is_none();
        let spill = options.spill_dir.as_deref().map(|dir| Spill { dir, cached: true });
        let mut rates = match options.rates {
            Some(rates) => rates,
            None => Rates::measured(&pool, spill)?,
        };
        if let Some(link) = options.emulation.virtual_link {
            rates.link = link;
        }
        // What the pool's threads allocate for themselves at their start and end is not scratch of a kernel.
        pool.broadcast(|_| count::set_kernel_thread());
        let capacity = (options.capacity != Bytes::MAX).then_some(options.capacity.0);
        let info = DeviceInfo {
            name: format!("host ({threads} thread{})", if threads == 1 { "" } else { "s" }),
            alignment: REGION_ALIGNMENT,
            max_block: isize::MAX as u64,
            memory: [capacity, total_memory().map(|total| total.0)].into_iter().flatten().min(),
            link: rates.link,
            flops_per_s: rates.flops_per_s,
            bytes_per_s: rates.bytes_per_s,
            launch_s: rates.launch_s,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                info,
                is_measured,
                threads,
                pool,
                device_ledger: Arc::new(Ledger::new(options.capacity.0)),
                host_ledger: Arc::new(Ledger::new(options.host_capacity.0)),
                spill_dir: options.spill_dir,
                injections: Injections::new(options.emulation.failures.clone()),
                emulation: options.emulation,
                lost: OnceLock::new(),
                epoch: Instant::now(),
                host_time: AtomicU64::new(0),
            }),
        })
    }

    /// Threads that kernels use.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Bytes of all device arenas.
    pub fn device_bytes(&self) -> Bytes {
        Bytes(self.shared.device_ledger.used())
    }

    /// Bytes of all host arenas, those in files included.
    pub fn host_bytes(&self) -> Bytes {
        Bytes(self.shared.host_ledger.used())
    }

    /// Bytes of host arenas that are in files.
    pub fn spilled_bytes(&self) -> Bytes {
        if self.shared.spill_dir.is_some() { self.host_bytes() } else { Bytes::ZERO }
    }

    /// The link as a job meets it whose host arena takes up to `bytes`. Ordinary memory, and a file that the system caches and writes to the disk
    /// beside the job, give [`DeviceInfo::link`]; copies to and from a larger file wait for the disk, which then is measured, once per process and
    /// directory, in about a second.
    ///
    /// # Errors
    /// [`DeviceError::Spill`], [`DeviceError::DiskFull`] if the spill directory cannot be used.
    pub fn link_for(&self, bytes: Bytes) -> Result<Link, DeviceError> {
        let shared = &self.shared;
        match &shared.spill_dir {
            Some(dir) if shared.is_measured && !is_cached(bytes) => {
                Ok(Rates::measured(&shared.pool, Some(Spill { dir, cached: false }))?.link)
            }
            _ => Ok(shared.info.link),
        }
    }

    fn injected_shortage(&self, bytes: u64) -> Result<(), DeviceError> {
        if self.shared.injections.of_allocation() {
            return Err(DeviceError::OutOfMemory { requested: Bytes(bytes), free: Bytes::ZERO });
        }
        Ok(())
    }

    fn poison(&self, memory: &Memory, from: u64) {
        if self.shared.emulation.poison && from < memory.bytes() {
            memory.fill(Region { offset: from, bytes: memory.bytes() - from }, POISON);
        }
    }
}

/// Whether a file of this size stays in the system's cache and its writers do not wait: Linux slows them down when changed pages that are not on the
/// disk yet come to 15 % of available memory (the middle of `vm.dirty_background_ratio` and `vm.dirty_ratio`, as they are by default).
fn is_cached(spilled: Bytes) -> bool {
    available_memory().is_some_and(|available| spilled.0 <= available.0 / 8)
}

/// Four of these bytes are a NaN.
const POISON: u8 = 0xff;

/// Device memory of one job on the host device.
#[derive(Debug)]
pub struct HostDeviceArena(Arc<Memory>);

/// Host memory of one job: ordinary memory, or a file. Other backends whose host memory is not page-locked use it too.
///
/// What threads do with it at one time must not conflict, see [`Device`].
#[derive(Clone, Debug)]
pub struct HostArena(Arc<Store>);

impl HostArena {
    /// Allocates within a ledger: in a file without a name if there is a directory for it.
    ///
    /// # Errors
    /// [`DeviceError::HostOutOfMemory`], [`DeviceError::DiskFull`], [`DeviceError::Spill`].
    pub fn new(ledger: &Arc<Ledger>, spill_dir: Option<&Path>, bytes: u64) -> Result<Self, DeviceError> {
        Ok(Self(Arc::new(Store::new(ledger, spill_dir, bytes)?)))
    }

    /// Reads a region.
    ///
    /// # Errors
    /// [`DeviceError::Spill`] if the file cannot be read.
    ///
    /// # Panics
    /// If the region goes beyond the arena or has another size than the buffer: a program that was not checked.
    pub fn read(&self, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(region, into)
    }

    /// Writes a region.
    ///
    /// # Errors
    /// [`DeviceError::Spill`] if the file cannot be written.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub fn write(&self, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        self.0.write(region, from)
    }

    /// Whether both are the same memory.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// An event of the host device.
#[derive(Debug, Default)]
pub struct HostEvent(Mutex<Option<Arc<Recording>>>);

impl HostEvent {
    fn latest(&self) -> Option<Arc<Recording>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn time(&self) -> Result<u64, DeviceError> {
        let outcome = self.latest().and_then(|recording| recording.get());
        let outcome = outcome.ok_or(DeviceError::NotRecorded)?;
        outcome.result.map(|()| outcome.time)
    }
}

impl Device for HostDevice {
    type Arena = HostDeviceArena;
    type HostArena = HostArena;
    type Stream = HostStream;
    type Event = HostEvent;

    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn workspace(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Result<u64, DeviceError> {
        Ok(op.def().host_workspace(inputs, outputs, self.shared.threads) as u64)
    }

    fn alloc_arena(&self, bytes: u64) -> Result<HostDeviceArena, DeviceError> {
        self.shared.check_lost()?;
        self.injected_shortage(bytes)?;
        let memory = Memory::new(&self.shared.device_ledger, Tag::Device, bytes)?;
        self.poison(&memory, 0);
        Ok(HostDeviceArena(Arc::new(memory)))
    }

    fn resize_arena(&self, arena: &mut HostDeviceArena, bytes: u64) -> Result<(), DeviceError> {
        self.shared.check_lost()?;
        self.injected_shortage(bytes)?;
        let before = arena.0.bytes();
        let memory =
            Arc::get_mut(&mut arena.0).expect("an arena is resized at a drained boundary, when no work holds it");
        memory.resize(Tag::Device, bytes)?;
        self.poison(&arena.0, before);
        Ok(())
    }

    fn alloc_host_arena(&self, bytes: u64) -> Result<HostArena, DeviceError> {
        self.shared.check_lost()?;
        let spill_dir = self.shared.spill_dir.as_deref();
        if self.shared.injections.of_host_allocation() {
            let requested = Bytes(bytes);
            return Err(match spill_dir {
                Some(dir) => DeviceError::DiskFull { dir: dir.to_owned(), requested, free: Bytes::ZERO },
                None => DeviceError::HostOutOfMemory { requested },
            });
        }
        HostArena::new(&self.shared.host_ledger, spill_dir, bytes)
    }

    fn stream(&self, lane: Lane) -> Result<HostStream, DeviceError> {
        self.shared.check_lost()?;
        HostStream::new(&self.shared, lane)
    }

    fn event(&self) -> Result<HostEvent, DeviceError> {
        self.shared.check_lost()?;
        Ok(HostEvent::default())
    }

    fn launch(&self, stream: &HostStream, arena: &HostDeviceArena, call: &OpCall<'_>) -> Result<(), DeviceError> {
        stream.push(&self.shared, Command::Kernel(Box::new(Kernel::new(&arena.0, call))))
    }

    fn copy_out(
        &self,
        stream: &HostStream,
        from: (&HostDeviceArena, Region),
        to: (&HostArena, Region),
    ) -> Result<(), DeviceError> {
        let (device, host) = ((Arc::clone(&from.0.0), from.1), (Arc::clone(&to.0.0), to.1));
        stream.push(&self.shared, Command::Copy(Transfer::new(Lane::Out, device, host)))
    }

    fn copy_in(
        &self,
        stream: &HostStream,
        from: (&HostArena, Region),
        to: (&HostDeviceArena, Region),
    ) -> Result<(), DeviceError> {
        let (device, host) = ((Arc::clone(&to.0.0), to.1), (Arc::clone(&from.0.0), from.1));
        stream.push(&self.shared, Command::Copy(Transfer::new(Lane::In, device, host)))
    }

    fn record(&self, stream: &HostStream, event: &HostEvent) -> Result<(), DeviceError> {
        let recording = Arc::new(Recording::default());
        stream.push(&self.shared, Command::Record(Arc::clone(&recording)))?;
        *event.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(recording);
        Ok(())
    }

    fn wait(&self, stream: &HostStream, event: &HostEvent) -> Result<(), DeviceError> {
        match event.latest() {
            Some(recording) => stream.push(&self.shared, Command::Wait(recording)),
            None => Ok(()),
        }
    }

    fn wait_event(&self, event: &HostEvent) -> Result<(), DeviceError> {
        match event.latest() {
            Some(recording) => self.shared.wait_for(&recording),
            None => Ok(()),
        }
    }

    fn synchronize(&self, stream: &HostStream) -> Result<(), DeviceError> {
        let recording = Arc::new(Recording::default());
        stream.push_even_if_lost(&self.shared, Command::Synchronize(Arc::clone(&recording)))?;
        self.shared.wait_for(&recording)
    }

    fn elapsed_ns(&self, from: &HostEvent, to: &HostEvent) -> Result<u64, DeviceError> {
        Ok(to.time()?.saturating_sub(from.time()?))
    }

    fn read(&self, arena: &HostDeviceArena, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        self.shared.check_lost()?;
        arena.0.read(region, into);
        Ok(())
    }

    fn write(&self, arena: &HostDeviceArena, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        self.shared.check_lost()?;
        arena.0.write(region, from);
        Ok(())
    }

    fn read_host(&self, arena: &HostArena, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        arena.read(region, into)
    }

    fn write_host(&self, arena: &HostArena, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        arena.write(region, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What fits the system's cache is copied as the device says; what does not, as the disk is measured.
    #[test]
    fn the_link_of_a_large_file_is_the_disks() {
        let dir = tempfile::tempdir().unwrap();
        let spilling = HostOptions { threads: 1, spill_dir: Some(dir.path().to_owned()), ..HostOptions::default() };
        let device = HostDevice::new(spilling.clone()).unwrap();
        let disk = Rates::measured(&device.shared.pool, Some(Spill { dir: dir.path(), cached: false })).unwrap().link;
        assert_ne!(device.info().link, disk, "two measurements");
        assert_eq!(device.link_for(Bytes(1 << 20)).unwrap(), device.info().link);
        assert_eq!(device.link_for(Bytes::MAX).unwrap(), disk);
        let in_memory = HostDevice::new(HostOptions { spill_dir: None, ..spilling.clone() }).unwrap();
        assert_eq!(in_memory.link_for(Bytes::MAX).unwrap(), in_memory.info().link);
        let told = HostDevice::new(HostOptions { rates: Some(Rates::NOMINAL), ..spilling }).unwrap();
        assert_eq!(told.link_for(Bytes::MAX).unwrap(), Rates::NOMINAL.link);
    }
}
