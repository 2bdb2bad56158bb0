//! Devices for tests.
#![allow(dead_code)] // each test uses what it needs

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tensile_core::{Device, Region};
use tensile_wgpu::{AdapterChoice, AdapterError, MOST_STAGING, OpenError, WgpuDevice, WgpuOptions};

/// Options of tests: the adapter that the environment names.
pub(crate) fn options() -> WgpuOptions {
    let adapter = AdapterChoice::from_env().expect("the environment's choice of an adapter");
    WgpuOptions { adapter, ..WgpuOptions::nominal() }
}

/// A device, or none where the machine has no adapter, which in continuous integration is a failure.
pub(crate) fn open(options: WgpuOptions) -> Option<WgpuDevice> {
    match WgpuDevice::open(options) {
        Ok(device) => Some(device),
        Err(OpenError::Adapter(AdapterError::NoDriver)) if std::env::var_os("CI").is_none() => None,
        Err(error) => panic!("{error}"),
    }
}

/// A handle to the device that all tests of a process share.
pub(crate) fn device() -> Option<WgpuDevice> {
    static DEVICE: OnceLock<Option<WgpuDevice>> = OnceLock::new();
    DEVICE.get_or_init(|| open(options())).clone()
}

/// Tests that count memory take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a device's staging as large as it gets, so that it does not grow while memory is counted.
pub(crate) fn fill_staging(device: &WgpuDevice) {
    let bytes = 2 * MOST_STAGING.0;
    let arena = device.alloc_arena(bytes).expect("memory");
    let mut data = vec![7; bytes as usize];
    let whole = Region { offset: 0, bytes };
    device.write(&arena, whole, &data).expect("written");
    device.read(&arena, whole, &mut data).expect("read");
}
