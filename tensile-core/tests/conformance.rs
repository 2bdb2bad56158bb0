//! The host device passes the suite, with host arenas in memory and in files.

use std::path::PathBuf;

use tensile_core::device::host::{HostDevice, HostOptions};

fn device(spill_dir: Option<PathBuf>) -> Option<HostDevice> {
    let options = HostOptions { capacity: tensile_sched::Bytes(64 << 20), spill_dir, ..HostOptions::nominal(2) };
    Some(HostDevice::new(options).expect("the host device starts"))
}

mod memory {
    tensile_core::device_conformance!(Exact, super::device(None));
}

mod files {
    tensile_core::device_conformance!(Exact, super::device(Some(std::env::temp_dir())));
}
