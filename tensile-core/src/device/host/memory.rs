//! Arenas of the host device.
//!
//! The only `unsafe` code here allocates, frees and copies; every access is checked against the size of the memory. That no two accesses race is
//! the duty of whoever enqueues work, see [`Memory`].
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use tensile_sched::Bytes;

use super::count::{Tag, with_tag};
use super::system;
use crate::device::ledger::Ledger;
use crate::device::{DeviceError, Region};

/// Arenas start at a page, so that addresses in them are as well aligned as their offsets.
const PAGE: usize = 4096;

/// One allocation, page-aligned, zeroed at first.
///
/// Threads read and write it through raw pointers. What they do at one time must not conflict: a program's waits see to it, and
/// [`Device`](crate::Device)'s methods for reading and writing ask for it.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    ledger: Arc<Ledger>,
}

// SAFETY: the memory belongs to this value alone; accesses go through raw pointers under the rule stated at `Memory`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates within a ledger, under a tag of the counter.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`], [`DeviceError::OutOfMemory`] (also if the system has no more).
    pub(super) fn new(ledger: &Arc<Ledger>, tag: Tag, bytes: u64) -> Result<Self, DeviceError> {
        ledger.book(0, bytes)?;
        match refuse_beyond_system(bytes, 0).map(|()| allocate(tag, bytes)) {
            Ok(Some(start)) => Ok(Self { start, bytes: bytes as usize, ledger: Arc::clone(ledger) }),
            refused => {
                ledger.book(bytes, 0).expect("giving bytes back always fits");
                Err(refused.err().unwrap_or_else(|| out_of_memory(bytes, 0)))
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// First byte of a region.
    ///
    /// # Panics
    /// If the region goes beyond the memory: a program that was not checked.
    pub(super) fn at(&self, region: Region) -> NonNull<u8> {
        assert!(
            region.offset.checked_add(region.bytes).is_some_and(|end| end <= self.bytes as u64),
            "region {region} goes beyond the arena's {} bytes",
            self.bytes
        );
        // SAFETY: the offset is within the allocation, or at its end for an empty region.
        unsafe { self.start.add(region.offset as usize) }
    }

    /// Sets every byte.
    pub(super) fn fill(&self, region: Region, value: u8) {
        // SAFETY: `at` checks the bounds; the rule at `Memory` excludes conflicts.
        unsafe { self.at(region).as_ptr().write_bytes(value, region.bytes as usize) }
    }

    pub(super) fn read(&self, region: Region, into: &mut [u8]) {
        assert_eq!(region.bytes, into.len() as u64, "a read fills its buffer");
        // SAFETY: `at` checks the bounds, the buffer is as large; the rule at `Memory` excludes conflicts.
        unsafe { self.at(region).as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }

    pub(super) fn write(&self, region: Region, from: &[u8]) {
        assert_eq!(region.bytes, from.len() as u64, "a write takes its whole buffer");
        // SAFETY: as in `read`.
        unsafe { self.at(region).as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    /// Runs `use_bytes` on the bytes of a region.
    pub(super) fn with<T>(&self, region: Region, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: `at` checks the bounds, memory is initialised when it is made; the rule at `Memory` excludes conflicts.
        use_bytes(unsafe { std::slice::from_raw_parts(self.at(region).as_ptr(), region.bytes as usize) })
    }

    /// Runs `change` on the bytes of a region.
    pub(super) fn with_mut<T>(&self, region: Region, change: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: as in `with`; the rule at `Memory` excludes that anything else uses these bytes meanwhile.
        change(unsafe { std::slice::from_raw_parts_mut(self.at(region).as_ptr(), region.bytes as usize) })
    }

    /// Copies between two memories.
    pub(super) fn copy(from: (&Memory, Region), to: (&Memory, Region)) {
        assert_eq!(from.1.bytes, to.1.bytes, "a copy has one size");
        let (source, target) = (from.0.at(from.1), to.0.at(to.1));
        // SAFETY: `at` checks the bounds; two memories do not overlap, and one memory is never copied to itself; the rule at `Memory` excludes conflicts.
        unsafe { source.as_ptr().copy_to_nonoverlapping(target.as_ptr(), from.1.bytes as usize) }
    }

    /// The same bytes in a memory of another size. Goes through a buffer of the host, so that the two sizes never exist at once.
    ///
    /// # Errors
    /// As [`new`](Self::new); then the memory is unchanged.
    pub(super) fn resize(&mut self, tag: Tag, bytes: u64) -> Result<(), DeviceError> {
        let before = self.bytes();
        // What is given back counts as long as it is there.
        let booked = before.max(bytes);
        self.ledger.book(before, booked)?;
        if let Err(error) = refuse_beyond_system(bytes, before) {
            self.ledger.book(booked, before).expect("these bytes were booked before");
            return Err(error);
        }
        let kept = Region { offset: 0, bytes: before.min(bytes) };
        let mut saved = with_tag(Tag::Host, || vec![0; kept.bytes as usize]);
        self.read(kept, &mut saved);
        self.free();
        let (start, result) = match allocate(tag, bytes) {
            Some(start) => (start, Ok(())),
            None => {
                let start = allocate(tag, before).expect("the bytes just freed can be had again");
                (start, Err(out_of_memory(bytes, before)))
            }
        };
        self.start = start;
        self.bytes = if result.is_ok() { bytes } else { before } as usize;
        self.ledger.book(booked, self.bytes()).expect("fewer bytes always fit");
        self.write(kept, &saved);
        result
    }

    fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `allocate` with this layout, and not used after this.
            unsafe { dealloc(self.start.as_ptr(), layout(self.bytes).expect("was valid when allocated")) }
        }
        self.bytes = 0;
        self.start = NonNull::dangling();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let bytes = self.bytes();
        self.free();
        self.ledger.book(bytes, 0).expect("giving bytes back always fits");
    }
}

/// Refuses what the machine does not have now, although it might promise it; `held` bytes are given back for it.
fn refuse_beyond_system(bytes: u64, held: u64) -> Result<(), DeviceError> {
    match system::available_memory() {
        Some(available) if bytes > available.0.saturating_add(held) => Err(out_of_memory(bytes, held)),
        _ => Ok(()),
    }
}

fn out_of_memory(requested: u64, held: u64) -> DeviceError {
    let free = system::available_memory().unwrap_or_default().0.saturating_add(held);
    DeviceError::OutOfMemory { requested: Bytes(requested), free: Bytes(free) }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, PAGE).ok()
}

/// Zeroed, page-aligned; none if the system refuses.
fn allocate(tag: Tag, bytes: u64) -> Option<NonNull<u8>> {
    if bytes == 0 {
        return Some(NonNull::dangling());
    }
    let layout = layout(usize::try_from(bytes).ok()?)?;
    // SAFETY: the layout's size is above zero.
    NonNull::new(with_tag(tag, || unsafe { alloc_zeroed(layout) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_is_hard_and_typed() {
        let ledger = Arc::new(Ledger::new(1000));
        let mut first = Memory::new(&ledger, Tag::Device, 600).unwrap();
        assert_eq!(
            Memory::new(&ledger, Tag::Device, 500).unwrap_err(),
            DeviceError::OutOfMemory { requested: Bytes(500), free: Bytes(400) }
        );
        assert_eq!(
            Memory::new(&ledger, Tag::Device, 1001).unwrap_err(),
            DeviceError::TooLarge { requested: Bytes(1001), capacity: Bytes(1000) }
        );
        let second = Memory::new(&ledger, Tag::Device, 400).unwrap();
        first.fill(Region { offset: 0, bytes: 600 }, 7);
        assert!(first.resize(Tag::Device, 601).is_err());
        drop(second);
        first.resize(Tag::Device, 1000).unwrap();
        let mut bytes = vec![0; 1000];
        first.read(Region { offset: 0, bytes: 1000 }, &mut bytes);
        assert_eq!((bytes[599], bytes[600]), (7, 0));
        assert_eq!(ledger.used(), 1000);
        drop(first);
        assert_eq!(ledger.used(), 0);
    }

    #[test]
    fn an_absurd_size_is_an_error_not_an_abort() {
        let ledger = Arc::new(Ledger::new(u64::MAX));
        assert!(matches!(Memory::new(&ledger, Tag::Host, 1 << 62), Err(DeviceError::OutOfMemory { .. })));
        assert_eq!(ledger.used(), 0);
    }
}
