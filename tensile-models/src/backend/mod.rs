//! The devices that this build has: the host always, wgpu with the cargo feature `wgpu`. The one place that chooses between them.

#[cfg(feature = "wgpu")]
mod wgpu;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tensile_core::device::host::count::{self, Tag};
use tensile_core::device::host::{HostDevice, HostOptions, available_disk, available_memory};
use tensile_core::{Device, DeviceError};
use tensile_sched::{Bytes, Link};

/// What budgets and reports need of a device beside [`Device`].
pub trait Backend: Device {
    /// Begins a count of device bytes; gives the bytes that are there already and are not the run's.
    fn begin_count(&self) -> Bytes;

    /// Most device bytes since [`begin_count`](Self::begin_count), which gave `before`, by a counter that knows nothing of plans. Where the counter tells of the present
    /// only, it is asked at the end of a run, whose arenas only grow. None if nothing counts.
    fn counted_bytes(&self, before: Bytes) -> Option<Bytes>;

    /// Bytes of host arenas that are in files.
    fn spilled_bytes(&self) -> Bytes;

    /// Device bytes that could be had now. None where nothing tells.
    fn available_bytes(&self) -> Option<Bytes>;

    /// The link as a job meets it whose host arena takes up to `bytes`.
    ///
    /// # Errors
    /// [`DeviceError::Spill`], [`DeviceError::DiskFull`] if the directory for files cannot be used.
    fn link_for(&self, bytes: Bytes) -> Result<Link, DeviceError>;

    /// Whether device memory is the machine's own, so that what the device takes is no longer on offer for the host.
    fn is_host_memory(&self) -> bool;

    /// Whether ops are timed one by one.
    fn times_ops(&self) -> bool;

    /// What reports tell of an adapter; none for the host.
    fn adapter(&self) -> Option<AdapterReport>;
}

/// The adapter that a run used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdapterReport {
    /// Its name.
    pub name: String,
    /// Name and version of its driver.
    pub driver: String,
    /// Which kind of kernels it gets.
    pub kernels: &'static str,
    /// What it was tested for when it was opened.
    pub self_test: String,
    /// Host memory that copies pass through, beside the host arena.
    pub staging_bytes: u64,
}

/// An adapter of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdapterRow {
    /// For `--adapter`.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// Discrete, integrated, software.
    pub kind: String,
    /// How it is reached: vulkan, metal, dx12.
    pub graphics_api: &'static str,
    /// Name and version of its driver.
    pub driver: String,
    /// Most bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Most bytes of a tensor that a kernel sees at a time.
    pub max_binding_bytes: u64,
    /// What it was tested for, or why it cannot be opened.
    pub self_test: String,
}

/// Opens and tests all adapters. None if this build has no device for them.
pub fn adapters() -> Option<Vec<AdapterRow>> {
    #[cfg(feature = "wgpu")]
    return Some(wgpu::adapters());
    #[cfg(not(feature = "wgpu"))]
    None
}

/// Names of the backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU through Vulkan, Metal or DX12; in builds with the feature `wgpu`.
    Wgpu,
}

impl Name {
    /// As written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Name::Cpu => "cpu",
            Name::Wgpu => "wgpu",
        }
    }
}

/// Interfaces to GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GraphicsApi {
    /// Linux, Windows, Android; software too.
    Vulkan,
    /// macOS and iOS.
    Metal,
    /// Windows.
    Dx12,
}

/// What to prefer where a machine has several adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Power {
    /// The fastest.
    High,
    /// The most economical.
    Low,
}

/// The device that is asked for.
#[derive(Args, Clone, Debug, Default)]
pub struct Choice {
    /// Device to run on.
    #[arg(long, value_enum, default_value_t)]
    pub backend: Name,
    /// Threads of the host device; 0 = one per core.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Adapter of --backend wgpu, by a part of its name or its driver's, or by the number that `tensile info` gives; default: WGPU_ADAPTER_NAME.
    #[arg(long, value_name = "NAME-OR-NUMBER")]
    pub adapter: Option<String>,
    /// Adapters to choose from, by the interface they are reached through; default: WGPU_BACKEND.
    #[arg(long, value_enum)]
    pub graphics_api: Option<GraphicsApi>,
    /// Which of several adapters to prefer; default: WGPU_POWER_PREF, or high.
    #[arg(long, value_enum)]
    pub power: Option<Power>,
    /// Use an adapter that fails its self-test.
    #[arg(long)]
    pub allow_faulty_driver: bool,
}

/// How a device is to be opened, beside the choice of it.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Directory for host arenas in files; none for ordinary memory.
    pub spill_dir: Option<PathBuf>,
    /// Bytes that all host arenas together may have.
    pub host_capacity: Bytes,
    /// Time ops one by one even where that costs time.
    pub op_times: bool,
}

impl Default for OpenOptions {
    /// Ordinary memory without a limit, no times that cost time.
    fn default() -> Self {
        Self { spill_dir: None, host_capacity: Bytes::MAX, op_times: false }
    }
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// This build does not have the backend.
    #[error(
        "--backend wgpu: this program was built without it; build it with `cargo build --release -p tensile-models --features wgpu`"
    )]
    NotBuilt,
    /// An option of another backend.
    #[error("{option} is for --backend {backend} only")]
    OtherBackend {
        /// The option.
        option: &'static str,
        /// Whose it is.
        backend: &'static str,
    },
    /// More threads than any machine runs.
    #[error("--threads {0} is too many; the most is 1024")]
    Threads(usize),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No adapter, or one that cannot be used.
    #[cfg(feature = "wgpu")]
    #[error(transparent)]
    Wgpu(#[from] tensile_wgpu::OpenError),
}

impl OpenError {
    /// Whether the command line asks for something that does not exist.
    pub fn is_usage(&self) -> bool {
        matches!(self, OpenError::NotBuilt | OpenError::OtherBackend { .. } | OpenError::Threads(_))
    }
}

/// Work for whichever device is chosen.
pub trait Visitor {
    /// What comes of it.
    type Output;

    /// Does the work.
    fn visit<D: Backend>(self, device: Arc<D>) -> Self::Output;
}

impl Choice {
    /// Threads of the host device, if that is chosen.
    pub fn host_threads(&self) -> Option<usize> {
        let threads = match self.threads {
            None | Some(0) => std::thread::available_parallelism().map_or(1, usize::from),
            Some(threads) => threads,
        };
        (self.backend == Name::Cpu).then_some(threads)
    }

    /// Whether this build has the device, and all options are the device's.
    ///
    /// # Errors
    /// Those of [`OpenError`] that are [usage errors](OpenError::is_usage).
    pub fn check(&self) -> Result<(), OpenError> {
        if self.backend == Name::Wgpu && cfg!(not(feature = "wgpu")) {
            return Err(OpenError::NotBuilt);
        }
        let options = [
            (self.threads.is_some(), "--threads", Name::Cpu),
            (self.adapter.is_some(), "--adapter", Name::Wgpu),
            (self.graphics_api.is_some(), "--graphics-api", Name::Wgpu),
            (self.power.is_some(), "--power", Name::Wgpu),
            (self.allow_faulty_driver, "--allow-faulty-driver", Name::Wgpu),
        ];
        if let Some((_, option, owner)) = options.into_iter().find(|&(given, _, owner)| given && owner != self.backend)
        {
            return Err(OpenError::OtherBackend { option, backend: owner.name() });
        }
        match self.threads {
            Some(threads) if threads > 1024 => Err(OpenError::Threads(threads)),
            _ => Ok(()),
        }
    }

    /// Opens the device and hands it to the visitor.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open<V: Visitor>(&self, options: OpenOptions, visitor: V) -> Result<V::Output, OpenError> {
        self.check()?;
        match self.backend {
            Name::Cpu => Ok(visitor.visit(Arc::new(host(self.host_threads().unwrap_or(0), options)?))),
            #[cfg(feature = "wgpu")]
            Name::Wgpu => Ok(visitor.visit(Arc::new(wgpu::open(self, options)?))),
            #[cfg(not(feature = "wgpu"))]
            Name::Wgpu => Err(OpenError::NotBuilt),
        }
    }
}

/// The host device with that many threads; 0 = one per core.
///
/// # Errors
/// As [`HostDevice::new`].
pub fn host(threads: usize, options: OpenOptions) -> Result<HostDevice, DeviceError> {
    let OpenOptions { spill_dir, host_capacity, op_times: _ } = options;
    HostDevice::new(HostOptions { threads, spill_dir, host_capacity, ..HostOptions::default() })
}

/// Bytes that host arenas could have now: free memory, or free space of the directory for their files. None where the system does not tell.
pub fn available_host_bytes(spill_dir: Option<&Path>) -> Option<Bytes> {
    match spill_dir {
        Some(dir) => available_disk(dir),
        None => available_memory(),
    }
}

impl Backend for HostDevice {
    fn begin_count(&self) -> Bytes {
        count::reset_peak();
        Bytes::ZERO
    }

    /// By the counting allocator: arenas, and what kernels allocate in blocks of 4 KiB and more. None if the program does not use that allocator.
    fn counted_bytes(&self, before: Bytes) -> Option<Bytes> {
        count::is_installed().then(|| Bytes(count::peak(Tag::Device)) - before)
    }

    fn spilled_bytes(&self) -> Bytes {
        HostDevice::spilled_bytes(self)
    }

    fn available_bytes(&self) -> Option<Bytes> {
        available_memory()
    }

    fn link_for(&self, bytes: Bytes) -> Result<Link, DeviceError> {
        HostDevice::link_for(self, bytes)
    }

    fn is_host_memory(&self) -> bool {
        true
    }

    fn times_ops(&self) -> bool {
        true
    }

    fn adapter(&self) -> Option<AdapterReport> {
        None
    }
}
