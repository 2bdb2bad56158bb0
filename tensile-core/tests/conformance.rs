//! The host device passes the suite.

tensile_core::device_conformance!(Exact, common_device());

fn common_device() -> Option<tensile_core::device::host::HostDevice> {
    use tensile_core::device::host::{HostDevice, HostOptions};
    let options = HostOptions { capacity: tensile_sched::Bytes(64 << 20), ..HostOptions::nominal(2) };
    Some(HostDevice::new(options).expect("the host device starts"))
}
