//! Limits of a device, and what happens beyond them.

use std::sync::Arc;

use tensile_sched::Bytes;

use super::{pattern, read, write};
use crate::device::{Device, DeviceError, Region};

/// What a device says of itself can be used by a planner.
///
/// # Panics
/// If not.
pub fn limits<D: Device>(device: &Arc<D>) {
    let info = device.info();
    assert!(!info.name.is_empty());
    assert!(info.alignment.is_power_of_two() && info.alignment >= 4, "alignment {}", info.alignment);
    assert!(info.max_block >= 1 << 20, "largest block {}", info.max_block);
    for rate in [info.flops_per_s, info.bytes_per_s, info.launch_s, info.link.out_bytes_per_s, info.link.in_bytes_per_s]
    {
        assert!(rate > 0.0 && !rate.is_nan(), "{info:?}");
    }
    assert!(info.link.kernel_slowdown >= 1.0 && info.link.copy_slowdown >= 1.0, "{info:?}");
    let limits = info.limits(Bytes(1000));
    assert_eq!((limits.device, limits.alignment.0, limits.max_block.0), (Bytes(1000), info.alignment, info.max_block));
}

/// An arena that grows and shrinks keeps its first bytes; nothing, too, is a size.
///
/// # Panics
/// If not.
pub fn resize<D: Device>(device: &Arc<D>) {
    let device = &**device;
    let mut arena = device.alloc_arena(0).expect("no bytes");
    device.resize_arena(&mut arena, 5000).expect("a small arena");
    let first = Region { offset: 0, bytes: 4096 };
    let bytes = pattern(first.bytes, 3);
    write(device, &arena, first, &bytes);
    for size in [100_000, 4096, 70_000] {
        device.resize_arena(&mut arena, size).expect("a small arena");
        assert!(read(device, &arena, first) == bytes, "resized to {size}");
    }
    device.resize_arena(&mut arena, 0).expect("no bytes");
}

/// Too much is a typed error with the figures, and a device serves on after it.
///
/// # Panics
/// If not.
pub fn out_of_memory<D: Device>(device: &Arc<D>) {
    let device = &**device;
    let absurd = 1 << 60;
    match device.alloc_arena(absurd).map(|_| ()) {
        Err(DeviceError::TooLarge { requested, .. } | DeviceError::OutOfMemory { requested, .. }) => {
            assert_eq!(requested, Bytes(absurd));
        }
        other => panic!("2^60 bytes give {other:?}"),
    }
    match device.alloc_host_arena(absurd).map(|_| ()) {
        Err(DeviceError::HostOutOfMemory { requested } | DeviceError::DiskFull { requested, .. }) => {
            assert_eq!(requested, Bytes(absurd))
        }
        other => panic!("2^60 bytes of the host give {other:?}"),
    }
    // Full now, or never possible: two different errors.
    if let Some(memory) = device.info().memory.filter(|&memory| memory <= 1 << 30) {
        let capacity = Bytes(memory);
        let never = device.alloc_arena(memory + 1).map(|_| ()).unwrap_err();
        assert_eq!(never, DeviceError::TooLarge { requested: Bytes(memory + 1), capacity });
        let mut half = device.alloc_arena(memory / 2).expect("half of the memory");
        let free = Bytes(memory - memory / 2);
        let now = device.alloc_arena(free.0 + 1).map(|_| ()).unwrap_err();
        assert_eq!(now, DeviceError::OutOfMemory { requested: Bytes(free.0 + 1), free });
        let other = device.alloc_arena(free.0).expect("the other half");
        let grown = device.resize_arena(&mut half, memory / 2 + 1).unwrap_err();
        assert!(matches!(grown, DeviceError::OutOfMemory { .. }), "{grown}");
        drop(other);
        device.resize_arena(&mut half, memory).expect("all of the memory");
    }
    let small = device.alloc_arena(4096).map(|_| ());
    assert!(small.is_ok() || device.info().memory.is_some(), "{small:?}");
}
