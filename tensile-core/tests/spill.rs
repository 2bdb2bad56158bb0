//! Host arenas in files: the same bits, no bytes in memory, nothing left behind, errors that say what is short.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensile_core::conformance::harness as common;

use common::{compile, evict_all, executor, interpret_steps, limits, normed_images, run_steps};
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{HostDevice, HostOptions, available_disk};
use tensile_core::exec::{ExecError, Executor, ExecutorOptions, lower};
use tensile_core::optim::Optimizer;
use tensile_core::{Device, DeviceError, Lane, Region};
use tensile_sched::Bytes;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Counters, descriptors and resident memory are the whole process's, so tests here take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device(spill_dir: Option<&Path>) -> Arc<HostDevice> {
    let spill_dir = spill_dir.map(Path::to_owned);
    Arc::new(HostDevice::new(HostOptions { spill_dir, ..HostOptions::nominal(2) }).unwrap())
}

fn n_files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Open descriptors; none where the system does not list them.
fn n_descriptors() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

#[test]
fn a_file_gives_the_bits_of_memory_and_leaves_nothing() {
    let _turn = turn();
    let optimizer = Optimizer::adam();
    let graph = normed_images(&optimizer).unwrap();
    let expected = interpret_steps(&graph, &optimizer, 4);
    let dir = tempfile::tempdir().unwrap();
    let mut in_memory = 0;
    for spill_dir in [None, Some(dir.path())] {
        let device = device(spill_dir);
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let compiled = compile(&step, &evict_all(&step.trace), &limits(&device, Bytes::MAX));
        let mut descriptors = None;
        for round in 0..20 {
            let mut executor = executor(&device, &compiled, ExecutorOptions { profile: false, poison: true });
            assert!(run_steps(&mut executor, &compiled, &optimizer, 4) == expected);
            assert_eq!(device.host_bytes(), compiled.host_arena());
            assert_eq!(n_files(dir.path()), 0, "the file has no name");
            let counted = count::current(Tag::Host);
            match spill_dir {
                None => in_memory = counted,
                Some(_) => {
                    assert_eq!(device.spilled_bytes(), compiled.host_arena());
                    assert_eq!(counted, in_memory - compiled.host_arena().0);
                }
            }
            drop(executor);
            assert_eq!((device.host_bytes(), device.spilled_bytes()), (Bytes::ZERO, Bytes::ZERO));
            if round == 0 {
                descriptors = n_descriptors();
            }
        }
        assert_eq!(n_descriptors(), descriptors);
    }
    assert_eq!(n_files(dir.path()), 0);
}

/// Resident bytes of the process that are no file's.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[test]
fn spilled_bytes_are_not_resident() {
    let _turn = turn();
    let (n, part) = (128u64 << 20, 8u64 << 20);
    let dir = tempfile::tempdir().unwrap();
    let grown = |spill_dir: Option<&Path>| {
        let device = device(spill_dir);
        let (out, back) = (device.stream(Lane::Out).unwrap(), device.stream(Lane::In).unwrap());
        let arena = device.alloc_arena(part).unwrap();
        let all = Region { offset: 0, bytes: part };
        device.write(&arena, all, &vec![3; part as usize]).unwrap();
        let before = resident()?;
        let host = device.alloc_host_arena(n).unwrap();
        for offset in (0..n).step_by(part as usize) {
            device.copy_out(&out, (&arena, all), (&host, Region { offset, bytes: part })).unwrap();
        }
        device.synchronize(&out).unwrap();
        device.copy_in(&back, (&host, Region { offset: n - part, bytes: part }), (&arena, all)).unwrap();
        device.synchronize(&back).unwrap();
        Some(resident()?.saturating_sub(before))
    };
    let (Some(memory), Some(file)) = (grown(None), grown(Some(dir.path()))) else { return };
    assert!(memory >= n, "{memory} bytes more are resident with an arena of {n} in memory");
    assert!(file < n / 8, "{file} bytes more are resident with an arena of {n} in a file");
}

/// A file system of one mebibyte, where this user may make one.
struct Small(PathBuf);

impl Small {
    fn new(at: &Path) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at).output().ok()?;
        mount.status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_told_with_figures() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    // Without the right to mount, the disk there is must do: nothing is written to it.
    let small = Small::new(dir.path());
    let device = device(Some(dir.path()));
    let free = available_disk(dir.path()).unwrap();
    let much = Bytes(free.0 * 2);
    let DeviceError::DiskFull { dir: told, requested, .. } = device.alloc_host_arena(much.0).map(|_| ()).unwrap_err()
    else {
        panic!("another error")
    };
    assert_eq!((told.as_path(), requested), (dir.path(), much));
    assert_eq!(device.host_bytes(), Bytes::ZERO);
    if small.is_some() {
        assert_eq!(free, Bytes(1 << 20));
        // What is reserved cannot be had twice, although nothing has been written yet.
        let first = device.alloc_host_arena(700 << 10).unwrap();
        let error = device.alloc_host_arena(700 << 10).map(|_| ()).unwrap_err();
        let text = format!("too little disk space to spill to {}: 700 KiB needed, 324 KiB free", dir.path().display());
        assert_eq!(error.to_string(), text);
        drop(first);
        device.alloc_host_arena(700 << 10).unwrap();
        // A job on it is refused the same way.
        let optimizer = Optimizer::adam();
        let graph = common::classifier_of(tensile_core::Graph::new(), Some(&optimizer), [64, 1, 32, 32]).unwrap();
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let compiled = compile(&step, &evict_all(&step.trace), &limits(&device, Bytes::MAX));
        let init = |_: &tensile_core::Persistent, _: usize, _: &mut [u8]| {};
        let refused = Executor::new(Arc::clone(&device), &compiled, ExecutorOptions::default(), init).map(|_| ());
        assert!(matches!(refused, Err(ExecError::Device(DeviceError::DiskFull { .. }))), "{refused:?}");
    }
    let missing = HostOptions { spill_dir: Some(dir.path().join("missing")), ..HostOptions::default() };
    assert!(matches!(HostDevice::new(missing), Err(DeviceError::Spill { .. })));
}
