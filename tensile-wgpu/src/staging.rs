//! Buffers that bytes pass through on their way between host and device: a bounded number in each direction, made when first needed and used again.

use std::sync::{Condvar, Mutex, PoisonError};

use tensile_core::DeviceError;

use crate::core::{Core, lock};
use crate::error::GpuError;

/// Bytes of one buffer. A copy may take several.
pub(crate) const CHUNK: u64 = 4 << 20;

/// Most buffers in one direction.
const MOST: usize = 8;

/// Most bytes of all staging: host memory that a device takes beside its host arenas.
pub(crate) const MOST_BYTES: u64 = 2 * MOST as u64 * CHUNK;

/// Buffers for both directions.
#[derive(Debug)]
pub(crate) struct Staging {
    /// To the host: mapped for reading after a submission.
    pub(crate) out: Pool,
    /// To the device: mapped for writing while they wait.
    pub(crate) into: Pool,
}

impl Staging {
    pub(crate) fn new() -> Self {
        Self { out: Pool::new(false), into: Pool::new(true) }
    }

    /// Bytes of all buffers that exist.
    pub(crate) fn bytes(&self) -> u64 {
        (self.out.made() + self.into.made()) as u64 * CHUNK
    }
}

/// Buffers of one direction.
#[derive(Debug)]
pub(crate) struct Pool {
    upload: bool,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<wgpu::Buffer>,
    made: usize,
}

impl Pool {
    fn new(upload: bool) -> Self {
        Self { upload, state: Mutex::default(), returned: Condvar::new() }
    }

    fn made(&self) -> usize {
        lock(&self.state).made
    }

    /// A buffer, if one is free or can be made.
    ///
    /// # Errors
    /// [`DeviceError::HostOutOfMemory`] if the driver has no memory for the first one; without memory for a further one it waits for one in use.
    pub(crate) fn try_take(&self, core: &Core) -> Result<Option<wgpu::Buffer>, DeviceError> {
        let mut state = lock(&self.state);
        if let Some(buffer) = state.free.pop() {
            return Ok(Some(buffer));
        }
        if state.made == MOST {
            return Ok(None);
        }
        let usage = if self.upload {
            wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC
        } else {
            wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST
        };
        let descriptor =
            wgpu::BufferDescriptor { label: Some("staging"), size: CHUNK, usage, mapped_at_creation: self.upload };
        match core.gpu.checked(|| core.gpu.device.create_buffer(&descriptor)) {
            Ok(buffer) => {
                state.made += 1;
                Ok(Some(buffer))
            }
            Err(GpuError::OutOfMemory) if state.made > 0 => Ok(None),
            Err(error) => Err(match core.check_lost() {
                Err(lost) => lost,
                Ok(()) if error == GpuError::OutOfMemory => {
                    DeviceError::HostOutOfMemory { requested: tensile_sched::Bytes(CHUNK) }
                }
                Ok(()) => core.failure("staging", &error),
            }),
        }
    }

    /// Waits for a buffer. Only for a caller that holds none back.
    ///
    /// # Errors
    /// [`DeviceError::Timeout`], [`DeviceError::DeviceLost`], and those of [`try_take`](Self::try_take).
    pub(crate) fn take(&self, core: &Core) -> Result<wgpu::Buffer, DeviceError> {
        let mut patience = core.patience("a staging buffer");
        loop {
            if let Some(buffer) = self.try_take(core)? {
                return Ok(buffer);
            }
            core.check_lost()?;
            patience.check()?;
            let state = lock(&self.state);
            if state.free.is_empty() {
                drop(self.returned.wait_timeout(state, patience.tick()).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Gives a buffer back: mapped if it is for uploads, else not.
    pub(crate) fn give(&self, buffer: wgpu::Buffer) {
        lock(&self.state).free.push(buffer);
        self.returned.notify_one();
    }

    /// Counts a buffer that cannot be used again as gone.
    pub(crate) fn forget(&self) {
        lock(&self.state).made -= 1;
        self.returned.notify_one();
    }
}
