//! The host device as a *virtual device* for tests: random delays, a virtual clock, poison, injected failures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tensile_sched::{Duplex, Link};

use super::stream::Command;

/// What is emulated. By default nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Emulation {
    /// Random pauses before and after kernels and copies, so that work that is not ordered runs in many orders.
    pub delays: Option<Delays>,
    /// A virtual clock with copies over this link: events carry times computed from predicted kernel times ([`Roofline`](crate::latency::Roofline)
    /// with the device's rates) and this link, each stream's work following the other's and the events it waits for. The times do not depend on how
    /// fast the machine is. The link must be full duplex without slowdown of kernels or copies.
    pub virtual_link: Option<Link>,
    /// Fresh device memory is filled with the byte `0xFF`, which makes a NaN of every float. (The executor can poison what is claimed and released.)
    pub poison: bool,
    /// Failures to inject.
    pub failures: Vec<Failure>,
}

/// Random pauses, the same sequence per stream for a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Chooses the sequence.
    pub seed: u64,
    /// Longest pause in microseconds.
    pub longest_us: u32,
}

impl Delays {
    /// Half of the time nothing, else a pause of up to the longest.
    pub(super) fn sleep(self, random: &mut Random) {
        let draw = random.next();
        if draw & 1 == 1 {
            std::thread::sleep(Duration::from_micros((draw >> 1) % (u64::from(self.longest_us) + 1)));
        }
    }
}

/// A failure to inject. Counts go from 1, in the order in which work is enqueued on the device, whatever the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The n-th allocation or resize of device memory finds too little.
    Allocation(u64),
    /// The n-th allocation of host memory finds too little.
    HostAllocation(u64),
    /// The n-th copy fails.
    Copy(u64),
    /// The n-th kernel fails.
    Kernel(u64),
    /// The n-th kernel panics.
    KernelPanic(u64),
    /// The device is lost at the n-th kernel or copy.
    DeviceLoss(u64),
}

/// What happens to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Injected {
    Failure,
    Panic,
    DeviceLoss,
}

/// Failures to inject and how far the counts have gone.
#[derive(Debug, Default)]
pub(super) struct Injections {
    failures: Vec<Failure>,
    allocations: AtomicU64,
    host_allocations: AtomicU64,
    kernels: AtomicU64,
    copies: AtomicU64,
    commands: AtomicU64,
}

impl Injections {
    pub(super) fn new(failures: Vec<Failure>) -> Self {
        Self { failures, ..Self::default() }
    }

    fn strikes(&self, counter: &AtomicU64, failure: impl Fn(u64) -> Failure) -> bool {
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        self.failures.contains(&failure(count))
    }

    pub(super) fn of_allocation(&self) -> bool {
        self.strikes(&self.allocations, Failure::Allocation)
    }

    pub(super) fn of_host_allocation(&self) -> bool {
        self.strikes(&self.host_allocations, Failure::HostAllocation)
    }

    pub(super) fn of_command(&self, command: &Command) -> Option<Injected> {
        let injected = match command {
            Command::Kernel(_) => {
                let count = self.kernels.fetch_add(1, Ordering::Relaxed) + 1;
                let fails = self.failures.contains(&Failure::Kernel(count)).then_some(Injected::Failure);
                fails.or(self.failures.contains(&Failure::KernelPanic(count)).then_some(Injected::Panic))
            }
            Command::Copy(_) => self.strikes(&self.copies, Failure::Copy).then_some(Injected::Failure),
            Command::Record(_) | Command::Wait(_) | Command::Synchronize(_) => return None,
        };
        let lost = self.strikes(&self.commands, Failure::DeviceLoss).then_some(Injected::DeviceLoss);
        lost.or(injected)
    }
}

impl Emulation {
    /// # Panics
    /// If the virtual link is of a kind whose times depend on more than the order of work.
    pub(super) fn assert_valid(&self) {
        if let Some(link) = self.virtual_link {
            assert!(
                link.duplex == Duplex::Full && link.kernel_slowdown == 1.0 && link.copy_slowdown == 1.0,
                "the virtual clock knows full duplex without slowdown only"
            );
        }
    }
}

/// splitmix64, by Sebastiano Vigna (public domain).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xa076_1d64_78bd_642f));
        random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
