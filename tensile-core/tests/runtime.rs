//! Several jobs on the host device, with random delays and poison: `tensile_core::conformance::jobs`, and what needs injected failures.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensile_core::conformance::jobs;
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{Delays, Emulation, HostDevice, HostOptions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counter counts the whole process, so tests here take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device() -> Arc<HostDevice> {
    let emulation =
        Emulation { delays: Some(Delays { seed: 11, longest_us: 20 }), poison: true, ..Emulation::default() };
    Arc::new(HostDevice::new(HostOptions { emulation, ..HostOptions::nominal(2) }).unwrap())
}

/// Most device bytes since it was last asked.
fn held() -> u64 {
    let peak = count::peak(Tag::Device);
    count::reset_peak();
    peak
}

/// Runs a test of the suite, and sees to it that the device is empty afterwards.
fn check(test: impl FnOnce(&Arc<HostDevice>)) {
    let _turn = turn();
    let device = device();
    test(&device);
    assert_eq!((device.device_bytes().0, device.host_bytes().0), (0, 0));
}

#[test]
fn jobs_share_a_budget() {
    check(|device| jobs::jobs_share_a_budget(device, held));
}

#[test]
fn shares_follow_arrivals_and_departures() {
    check(|device| jobs::shares_follow_arrivals_and_departures(device, held));
}

#[test]
fn c39_a_full_device_has_rules() {
    check(|device| jobs::c39_a_full_device_has_rules(device, held));
}

#[test]
fn c41_cancelling_one_leaves_the_others() {
    check(|device| jobs::c41_cancelling_one_leaves_the_others(device, 50));
}

#[test]
fn pauses_keep_the_bits() {
    check(|device| jobs::pauses_keep_the_bits(device, held));
}

#[test]
fn other_steps_run_within_the_share() {
    check(|device| jobs::other_steps_run_within_the_share(device, held));
}
