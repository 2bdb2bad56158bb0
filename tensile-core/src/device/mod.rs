//! The [`Device`] trait: memory, streams and launches that a backend offers.
//!
//! # The life of a swap
//!
//! 1. A kernel writes a tensor at some region of the device [`Arena`](Device::Arena): [`launch`](Device::launch) on the compute stream.
//! 2. [`record`](Device::record) an event after it; the out stream [`wait`](Device::wait)s for that event.
//! 3. [`copy_out`](Device::copy_out) on the out stream brings the bytes to a region of the [`HostArena`](Device::HostArena).
//! 4. An event after the copy lets the compute stream or the in stream reuse the device region.
//! 5. [`copy_in`](Device::copy_in) on the in stream brings the bytes back, to another region as a rule, after waiting for the copy-out and for
//!    whatever used that region before; an event after it lets the kernel that needs the tensor start.
//!
//! Where to wait is decided by the planner (`tensile_sched::sync`); a device only has to keep each stream in order and its events true.

pub mod error;
pub mod host;
pub mod ledger;
pub mod recording;

use std::fmt;

pub use error::DeviceError;
pub use tensile_sched::Lane;
use tensile_sched::{Bytes, Limits};

use crate::op::Op;
use crate::tensor::TensorType;

/// A range of bytes in an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Region {
    /// The byte after the last one.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }
}

/// One tensor argument of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    /// Where its bytes are in the device arena.
    pub region: Region,
    /// Element type and shape; `region.bytes` equals its size.
    pub ty: &'a TensorType,
}

/// A kernel launch: an op on regions of the device arena. Shapes have been checked; an output region may equal that of an input if the
/// op lists the pair as in place; no other regions overlap unless both are inputs.
#[derive(Clone, Copy, Debug)]
pub struct OpCall<'a> {
    /// The op and its attributes.
    pub op: &'a Op,
    /// Inputs in the op's order, those that it updates included.
    pub inputs: &'a [Arg<'a>],
    /// Outputs in the op's order.
    pub outputs: &'a [Arg<'a>],
    /// Scratch of the size that [`Device::workspace`] gave for this op and these types.
    pub workspace: Region,
}

/// What a device can do, as measured or as its driver says.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// For people: `host (2 threads)`.
    pub name: String,
    /// Multiple of which every region must start at.
    pub alignment: u64,
    /// Largest region a kernel can use, and the size of the blocks that an arena is made of, the last one perhaps shorter: no region of a program crosses a multiple of it. A device whose arenas are in
    /// one piece says the largest size it can address; one whose arenas are not says a multiple of [`alignment`](Self::alignment).
    pub max_block: u64,
    /// Bytes the device has in all, if known.
    pub memory: Option<u64>,
    /// Copies, link and overlap, for the planner.
    pub link: tensile_sched::Link,
    /// Floating-point operations per second that a large matrix product reaches, for predicting latencies.
    pub flops_per_s: f64,
    /// Bytes per second that a large elementwise op reaches.
    pub bytes_per_s: f64,
    /// Seconds that the smallest op takes.
    pub launch_s: f64,
}

impl DeviceInfo {
    /// Limits for planning on this device under a budget; host memory is not limited.
    pub fn limits(&self, budget: Bytes) -> Limits {
        Limits {
            alignment: Bytes(self.alignment),
            max_block: Bytes(self.max_block),
            link: self.link,
            ..Limits::with_budget(budget)
        }
    }
}

/// A device: arenas, streams in order, events between them, launches.
///
/// Methods that enqueue work return at once; a failure of the work itself shows up at the next [`synchronize`](Device::synchronize) of that stream (and
/// of each stream that waits for it), after which the stream can be used again.
pub trait Device: Send + Sync + 'static {
    /// Device memory of one job.
    type Arena: Send + Sync;
    /// Host memory of one job, page-locked where that speeds copies up.
    type HostArena: Send + Sync;
    /// Work in order.
    type Stream: Send;
    /// A point in a stream; can be recorded again.
    type Event: Send;

    /// Name, limits and rates.
    fn info(&self) -> &DeviceInfo;

    /// Scratch bytes for an op on these types. Depends on op, types and device only.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] if the device has no kernel for it; the error names the op.
    fn workspace(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Result<u64, DeviceError>;

    /// Allocates device memory.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if there is too little now, [`DeviceError::TooLarge`] if there never will be enough.
    fn alloc_arena(&self, bytes: u64) -> Result<Self::Arena, DeviceError>;

    /// Changes an arena's size while no work uses it. Bytes below both sizes stay.
    ///
    /// # Errors
    /// As [`alloc_arena`](Self::alloc_arena); the arena then is unchanged.
    fn resize_arena(&self, arena: &mut Self::Arena, bytes: u64) -> Result<(), DeviceError>;

    /// Allocates host memory.
    ///
    /// # Errors
    /// [`DeviceError::HostOutOfMemory`]; [`DeviceError::DiskFull`] and [`DeviceError::Spill`] where it is a file.
    fn alloc_host_arena(&self, bytes: u64) -> Result<Self::HostArena, DeviceError>;

    /// A new stream for a lane.
    ///
    /// # Errors
    /// If the device is lost or refuses.
    fn stream(&self, lane: Lane) -> Result<Self::Stream, DeviceError>;

    /// A new event, recorded nowhere; waiting for it returns at once.
    ///
    /// # Errors
    /// If the device is lost or refuses.
    fn event(&self) -> Result<Self::Event, DeviceError>;

    /// Enqueues a kernel.
    ///
    /// # Errors
    /// If the device is lost or has no kernel.
    fn launch(&self, stream: &Self::Stream, arena: &Self::Arena, call: &OpCall<'_>) -> Result<(), DeviceError>;

    /// Enqueues a copy from the device to the host; regions have equal sizes.
    ///
    /// # Errors
    /// If the device is lost or refuses.
    fn copy_out(
        &self,
        stream: &Self::Stream,
        from: (&Self::Arena, Region),
        to: (&Self::HostArena, Region),
    ) -> Result<(), DeviceError>;

    /// Enqueues a copy from the host to the device; regions have equal sizes.
    ///
    /// # Errors
    /// If the device is lost or refuses.
    fn copy_in(
        &self,
        stream: &Self::Stream,
        from: (&Self::HostArena, Region),
        to: (&Self::Arena, Region),
    ) -> Result<(), DeviceError>;

    /// Enqueues the event: it happens when everything enqueued on the stream before has ended.
    ///
    /// # Errors
    /// If the device is lost or refuses.
    fn record(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), DeviceError>;

    /// Makes the stream wait for the event's latest recording.
    ///
    /// # Errors
    /// If the device is lost or refuses.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), DeviceError>;

    /// Blocks the caller until the event's latest recording has happened.
    ///
    /// # Errors
    /// If work before it failed.
    fn wait_event(&self, event: &Self::Event) -> Result<(), DeviceError>;

    /// Blocks the caller until the stream is empty.
    ///
    /// # Errors
    /// The first failure of work on the stream since the last call.
    fn synchronize(&self, stream: &Self::Stream) -> Result<(), DeviceError>;

    /// Nanoseconds between two events that have happened.
    ///
    /// # Errors
    /// If one of them has not been recorded.
    fn elapsed_ns(&self, from: &Self::Event, to: &Self::Event) -> Result<u64, DeviceError>;

    /// Reads device bytes while no work uses them.
    ///
    /// # Errors
    /// If the device is lost.
    fn read(&self, arena: &Self::Arena, region: Region, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes device bytes while no work uses them.
    ///
    /// # Errors
    /// If the device is lost.
    fn write(&self, arena: &Self::Arena, region: Region, from: &[u8]) -> Result<(), DeviceError>;

    /// Reads bytes of a host arena while no work uses them.
    ///
    /// # Errors
    /// If the memory cannot be read (a file that has gone).
    fn read_host(&self, arena: &Self::HostArena, region: Region, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes bytes of a host arena while no work uses them.
    ///
    /// # Errors
    /// If the memory cannot be written (a full disk).
    fn write_host(&self, arena: &Self::HostArena, region: Region, from: &[u8]) -> Result<(), DeviceError>;
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.offset, self.end())
    }
}
