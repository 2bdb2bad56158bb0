//! An independent count of the bytes that a process holds, by what they are for.
//!
//! [`CountingAllocator`] knows nothing of arenas and plans. Installed as a program's global allocator, it counts every allocation under the tag of the
//! thread that makes it: what the host device's kernels allocate behind the planner's back is seen as well as its arenas, in blocks of
//! [`SMALLEST_SCRATCH`] bytes and more.
//!
//! ```
//! use tensile_core::device::host::count::{self, CountingAllocator, Tag};
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//!
//! let before = count::current(Tag::Device);
//! let scratch = count::with_tag(Tag::Device, || vec![0u8; 1000]);
//! assert_eq!(count::current(Tag::Device), before + 1000);
//! drop(scratch); // by whichever thread, under whichever tag
//! assert_eq!(count::current(Tag::Device), before);
//! ```
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// Everything that is neither of the others: code, plans, queues, data sets.
    Other,
    /// Device arenas, and what kernels allocate in blocks of [`SMALLEST_SCRATCH`] bytes and more.
    Device,
    /// Host arenas and buffers for what leaves the device.
    Host,
}

impl Tag {
    /// All tags.
    pub const ALL: [Tag; 3] = [Tag::Other, Tag::Device, Tag::Host];
}

struct Counter {
    current: AtomicU64,
    peak: AtomicU64,
}

impl Counter {
    const fn new() -> Self {
        Self { current: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    fn add(&self, bytes: usize) {
        let current = self.current.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(current, Ordering::Relaxed);
    }

    fn sub(&self, bytes: usize) {
        self.current.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

static COUNTERS: [Counter; 3] = [const { Counter::new() }; 3];
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Smaller blocks are not taken for scratch of a kernel when a thread of a kernel pool allocates them: they are the queues of the pool itself, whose
/// size does not depend on what runs on it.
pub const SMALLEST_SCRATCH: usize = 4096;

/// How a thread tags what it allocates.
#[derive(Clone, Copy)]
enum Tagging {
    Always(Tag),
    /// [`Tag::Device`] from [`SMALLEST_SCRATCH`] on.
    Kernels,
}

impl Tagging {
    fn tag(self, bytes: usize) -> Tag {
        match self {
            Tagging::Always(tag) => tag,
            Tagging::Kernels if bytes < SMALLEST_SCRATCH => Tag::Other,
            Tagging::Kernels => Tag::Device,
        }
    }
}

thread_local! {
    static TAGGING: Cell<Tagging> = const { Cell::new(Tagging::Always(Tag::Other)) };
}

/// Tag of a block that this thread allocates. A thread that is being torn down may allocate after its own tag has gone.
fn tag_of(bytes: usize) -> Tag {
    TAGGING.try_with(Cell::get).unwrap_or(Tagging::Always(Tag::Other)).tag(bytes)
}

/// Tags what this thread allocates from now on.
pub fn set_tag(tag: Tag) {
    TAGGING.set(Tagging::Always(tag));
}

/// Tags what this thread of a kernel pool allocates from now on: [`Tag::Device`] for blocks of [`SMALLEST_SCRATCH`] bytes and more.
pub fn set_kernel_thread() {
    TAGGING.set(Tagging::Kernels);
}

/// Tags what this thread allocates during `run`.
pub fn with_tag<T>(tag: Tag, run: impl FnOnce() -> T) -> T {
    /// Puts the tag back even if `run` panics.
    struct Restore(Tagging);
    impl Drop for Restore {
        fn drop(&mut self) {
            TAGGING.set(self.0);
        }
    }
    let _restore = Restore(TAGGING.replace(Tagging::Always(tag)));
    run()
}

/// Whether a [`CountingAllocator`] is at work; without one all counts are zero.
pub fn is_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Bytes held now under a tag.
pub fn current(tag: Tag) -> u64 {
    COUNTERS[tag as usize].current.load(Ordering::Relaxed)
}

/// Most bytes held at once under a tag since the start or the last [`reset_peak`].
pub fn peak(tag: Tag) -> u64 {
    COUNTERS[tag as usize].peak.load(Ordering::Relaxed)
}

/// Makes the current bytes of every tag its peak.
pub fn reset_peak() {
    for counter in &COUNTERS {
        counter.peak.store(counter.current.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// The system's allocator, with a tag before each block so that it is counted back to where it was counted first.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// The block that is really allocated, and how far into it the caller's bytes begin.
fn padded(layout: Layout) -> Option<(Layout, usize)> {
    let header = layout.align().max(16);
    let size = layout.size().checked_add(header)?;
    Some((Layout::from_size_align(size, header).ok()?, header))
}

impl CountingAllocator {
    /// # Safety
    /// `block` is null or the start of an allocation of `padded(layout)`.
    unsafe fn tagged(block: *mut u8, layout: Layout, header: usize) -> *mut u8 {
        if block.is_null() {
            return block;
        }
        INSTALLED.store(true, Ordering::Relaxed);
        let tag = tag_of(layout.size());
        COUNTERS[tag as usize].add(layout.size());
        // SAFETY: the block has `header` bytes, at least one, before the caller's.
        unsafe {
            block.write(tag as u8);
            block.add(header)
        }
    }
}

// SAFETY: hands on to the system's allocator; the caller's bytes begin a multiple of the alignment into each block.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((block_layout, header)) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: the layout is not empty; `tagged` gets the block of this layout.
        unsafe { Self::tagged(System.alloc(block_layout), layout, header) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((block_layout, header)) = padded(layout) else { return std::ptr::null_mut() };
        // SAFETY: as in `alloc`.
        unsafe { Self::tagged(System.alloc_zeroed(block_layout), layout, header) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let (block_layout, header) = padded(layout).expect("was valid when allocated");
        // SAFETY: `ptr` came from this allocator with this layout, so its block starts `header` bytes before with the tag.
        unsafe {
            let block = ptr.sub(header);
            COUNTERS[block.read() as usize].sub(layout.size());
            System.dealloc(block, block_layout);
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (block_layout, header) = padded(layout).expect("was valid when allocated");
        let Some(new_block_size) = new_size.checked_add(header).filter(|&size| size <= isize::MAX as usize) else {
            return std::ptr::null_mut();
        };
        // SAFETY: as in `dealloc`; the tag moves along with the block's first bytes.
        unsafe {
            let block = System.realloc(ptr.sub(header), block_layout, new_block_size);
            if block.is_null() {
                return block;
            }
            let before = block.read();
            // A kernel's scratch may begin as a small block.
            let after = if before == Tag::Other as u8 { tag_of(new_size) as u8 } else { before };
            COUNTERS[before as usize].sub(layout.size());
            COUNTERS[after as usize].add(new_size);
            block.write(after);
            block.add(header)
        }
    }
}
