//! Several jobs on an adapter: `tensile_core::conformance::jobs`.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tensile_core::conformance::{jobs, skipped};
use tensile_wgpu::WgpuDevice;

/// Looks at wgpu's own allocator again and again, for that tells of the present only.
struct Sampler {
    /// What is there without jobs: staging, mostly.
    base: u64,
    most: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sampler {
    fn new(device: &Arc<WgpuDevice>) -> Self {
        let base = device.allocated_bytes().expect("this backend tells").0;
        let (most, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (device, seen, end) = (Arc::clone(device), Arc::clone(&most), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                seen.fetch_max(device.allocated_bytes().expect("this backend tells").0, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        Self { base, most, ends, thread: Some(thread) }
    }

    /// Most bytes since it was last asked, beside those that are always there.
    fn held(&self) -> u64 {
        self.most.swap(0, Ordering::Relaxed).saturating_sub(self.base)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the sampler runs to its end");
        }
    }
}

fn check(name: &str, test: impl FnOnce(&Arc<WgpuDevice>, &Sampler)) {
    let _turn = common::turn();
    let Some(device) = common::device() else { return skipped(name) };
    common::fill_staging(&device);
    let device = Arc::new(device);
    let sampler = Sampler::new(&device);
    test(&device, &sampler);
}

#[test]
fn jobs_share_a_budget() {
    check("jobs_share_a_budget", |device, sampler| jobs::jobs_share_a_budget(device, || sampler.held()));
}

#[test]
fn c39_a_full_device_has_rules() {
    check("c39_a_full_device_has_rules", |device, sampler| {
        jobs::c39_a_full_device_has_rules(device, || sampler.held())
    });
}

#[test]
fn c41_cancelling_one_leaves_the_others() {
    check("c41_cancelling_one_leaves_the_others", |device, _| jobs::c41_cancelling_one_leaves_the_others(device, 10));
}

#[test]
fn pauses_keep_the_bits() {
    check("pauses_keep_the_bits", |device, sampler| jobs::pauses_keep_the_bits(device, || sampler.held()));
}
