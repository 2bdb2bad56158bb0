//! Device memory of one job: a list of buffers.

use std::sync::Arc;

use tensile_core::device::ledger::Ledger;
use tensile_core::{DeviceError, Region};
use tensile_sched::Bytes;

use crate::core::Core;
use crate::error::GpuError;
use crate::gpu::Slice;
use crate::kernel::ALIGNMENT;

/// Device memory of one job: blocks of the device's largest buffer, the last one as large as needed. Regions that kernels use lie within one block.
#[derive(Debug)]
pub struct WgpuArena {
    core: Arc<Core>,
    ledger: Arc<Ledger>,
    block: u64,
    blocks: Vec<wgpu::Buffer>,
    bytes: u64,
}

impl WgpuArena {
    /// # Errors
    /// [`DeviceError::TooLarge`], [`DeviceError::OutOfMemory`].
    pub(crate) fn new(core: &Arc<Core>, ledger: &Arc<Ledger>, block: u64, bytes: u64) -> Result<Self, DeviceError> {
        let mut arena =
            Self { core: Arc::clone(core), ledger: Arc::clone(ledger), block, blocks: Vec::new(), bytes: 0 };
        arena.ledger.book(0, bytes)?;
        if let Err(error) = arena.grow(bytes) {
            arena.blocks.clear();
            arena.ledger.book(bytes, 0).expect("giving bytes back always fits");
            return Err(error);
        }
        arena.bytes = bytes;
        Ok(arena)
    }

    /// Blocks of the first `bytes` bytes that are of full size.
    fn full_blocks(&self, bytes: u64) -> usize {
        (bytes / self.block) as usize
    }

    /// Adds blocks up to a size, behind those that are there.
    fn grow(&mut self, bytes: u64) -> Result<(), DeviceError> {
        let free = self.ledger.free();
        let out_of_memory = || DeviceError::OutOfMemory { requested: Bytes(bytes), free: Bytes(free) };
        // Software adapters promise more than the machine has, and end the process that uses it.
        if self.core.gpu.caps.software {
            let held = self.blocks.len() as u64 * self.block;
            let available = tensile_core::device::host::available_memory().unwrap_or(Bytes::MAX);
            if bytes.saturating_sub(held) > available.0 {
                return Err(DeviceError::OutOfMemory { requested: Bytes(bytes), free: available });
            }
        }
        while (self.blocks.len() as u64) < bytes.div_ceil(self.block) {
            let rest = bytes - self.blocks.len() as u64 * self.block;
            let descriptor = wgpu::BufferDescriptor {
                label: Some("arena"),
                size: rest.min(self.block).next_multiple_of(ALIGNMENT),
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            };
            let made = self.core.gpu.checked(|| self.core.gpu.device.create_buffer(&descriptor));
            self.blocks.push(made.map_err(|error| match error {
                GpuError::OutOfMemory => out_of_memory(),
                refused => self.core.failure("allocation", &refused),
            })?);
        }
        Ok(())
    }

    /// Changes the size. Blocks that are full before and after stay as they are; the last one's bytes go through the host, so that no two sizes of it
    /// exist at once. `read` and `write` move bytes of a region of the arena.
    ///
    /// # Errors
    /// As [`new`](Self::new); then the arena is unchanged.
    pub(crate) fn resize(
        &mut self,
        bytes: u64,
        read: impl FnOnce(&Self, Region, &mut [u8]) -> Result<(), DeviceError>,
        write: impl FnOnce(&Self, Region, &[u8]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let before = self.bytes;
        if bytes == before {
            return Ok(());
        }
        self.ledger.book(before, bytes)?;
        let kept_blocks = self.full_blocks(before.min(bytes));
        let first = kept_blocks as u64 * self.block;
        let moved = Region { offset: first, bytes: before.min(bytes) - first };
        let mut saved = vec![0; moved.bytes as usize];
        let mut dropped = false;
        let result = read(self, moved, &mut saved).and_then(|()| {
            dropped = true;
            self.blocks.truncate(kept_blocks);
            self.grow(bytes)
        });
        let size = if result.is_ok() { bytes } else { before };
        if result.is_err() {
            self.ledger.book(bytes, before).expect("these bytes were booked before");
            if dropped {
                self.blocks.truncate(kept_blocks);
                // If even the bytes just freed cannot be had again, the device is lost.
                if let Err(error) = self.grow(before) {
                    self.core.lose(format!("memory that was given up for resizing cannot be had again: {error}"));
                    return Err(error);
                }
            }
        }
        self.bytes = size;
        if moved.bytes > 0 {
            write(self, moved, &saved)?;
        }
        result
    }

    /// A region that lies within one block.
    ///
    /// # Panics
    /// If it goes beyond the arena or crosses a border between blocks: a program that was not checked.
    pub(crate) fn at(&self, region: Region) -> Slice<'_> {
        if region.bytes == 0 && self.blocks.is_empty() {
            panic!("an empty region in an empty arena has no buffer");
        }
        self.assert_holds(region);
        let block = ((region.offset / self.block) as usize).min(self.blocks.len() - 1);
        let offset = region.offset - block as u64 * self.block;
        assert!(
            offset + region.bytes <= self.block,
            "region {region} crosses a border between blocks of {}",
            self.block
        );
        Slice { buffer: &self.blocks[block], offset, bytes: region.bytes }
    }

    fn assert_holds(&self, region: Region) {
        assert!(
            region.offset.checked_add(region.bytes).is_some_and(|end| end <= self.bytes),
            "region {region} goes beyond the arena's {} bytes",
            self.bytes
        );
    }

    /// A region in pieces that lie within one block each.
    ///
    /// # Panics
    /// If it goes beyond the arena.
    pub(crate) fn pieces(&self, region: Region) -> impl Iterator<Item = Region> + use<> {
        self.assert_holds(region);
        let block = self.block;
        let mut at = region.offset;
        std::iter::from_fn(move || {
            let end = region.end().min((at / block + 1) * block);
            let piece = Region { offset: at, bytes: end - at };
            at = end;
            (piece.bytes > 0).then_some(piece)
        })
    }
}

impl Drop for WgpuArena {
    fn drop(&mut self) {
        self.ledger.book(self.bytes, 0).expect("giving bytes back always fits");
    }
}
