//! What can go wrong on a device.

use std::path::PathBuf;

use tensile_sched::Bytes;

/// A fault of a device. Out of memory is a variant of its own, because replanning acts on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Too little device memory is free now.
    #[error("device out of memory: {requested} requested, {free} free")]
    OutOfMemory {
        /// Bytes asked for.
        requested: Bytes,
        /// Bytes free.
        free: Bytes,
    },
    /// More than the device has in all.
    #[error("{requested} of device memory can never be had: the device has {capacity}")]
    TooLarge {
        /// Bytes asked for.
        requested: Bytes,
        /// Bytes the device has.
        capacity: Bytes,
    },
    /// Too little host memory.
    #[error("host out of memory: {requested} requested")]
    HostOutOfMemory {
        /// Bytes asked for.
        requested: Bytes,
    },
    /// The device has no kernel for an op.
    #[error("{device} has no kernel for op '{op}'{}", if detail.is_empty() { String::new() } else { format!(": {detail}") })]
    Unsupported {
        /// Name of the device.
        device: String,
        /// Name of the op.
        op: String,
        /// Why, if there is more to say.
        detail: String,
    },
    /// A tensor is larger than a kernel of this device can see at a time.
    #[error(
        "{device}: {tensor} of op '{op}' has {bytes}, but a kernel sees at most {limit} of a tensor at a time: use a smaller batch or layer, or the host device (--backend cpu)"
    )]
    Binding {
        /// Name of the device.
        device: String,
        /// Name of the op.
        op: String,
        /// Which tensor: `input 1 f32[4096, 9216]`.
        tensor: String,
        /// Its size.
        bytes: Bytes,
        /// The device's limit.
        limit: Bytes,
    },
    /// A kernel failed or panicked.
    #[error("kernel '{op}' failed: {detail}")]
    Kernel {
        /// Name of the op.
        op: String,
        /// What happened.
        detail: String,
    },
    /// A copy failed.
    #[error("copy {direction} of {bytes} failed: {detail}")]
    Copy {
        /// `out` or `in`.
        direction: &'static str,
        /// Size of the copy.
        bytes: Bytes,
        /// What happened.
        detail: String,
    },
    /// The device or its context is gone; all its jobs get this.
    #[error("device lost: {detail}")]
    DeviceLost {
        /// What happened.
        detail: String,
    },
    /// The device made no progress for a long time. Its work may be lost, so its jobs should end.
    #[error("the device made no progress for {seconds} s: {detail}")]
    Timeout {
        /// How long.
        seconds: u64,
        /// What was waited for.
        detail: String,
    },
    /// The time of an event was asked for that has not happened.
    #[error("an event's time was asked for before it was recorded and had happened")]
    NotRecorded,
    /// Too little disk space for a host arena kept in a file.
    #[error("too little disk space to spill to {}: {requested} needed, {free} free", dir.display())]
    DiskFull {
        /// Directory of the file.
        dir: PathBuf,
        /// Bytes asked for.
        requested: Bytes,
        /// Bytes free there.
        free: Bytes,
    },
    /// A host arena kept in a file could not be used.
    #[error("spill file: {detail}")]
    Spill {
        /// What happened.
        detail: String,
    },
}
