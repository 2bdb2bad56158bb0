//! What a planner must keep to: budgets, link, alignment, boundary.

use crate::id::{Bytes, Nanos};
use crate::program::Home;

/// How copies share the link and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Duplex {
    /// Both directions at once, beside kernels.
    Full,
    /// One copy at a time, beside kernels (the paper's assumption).
    Half,
    /// Nothing runs beside anything: one kernel or copy at a time.
    NoOverlap,
}

/// The connection between device and host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second from the device to the host; infinite means that copies take no time.
    pub out_bytes_per_s: f64,
    /// Bytes per second from the host to the device.
    pub in_bytes_per_s: f64,
    /// Added to every copy.
    pub latency: Nanos,
    /// What can run at once.
    pub duplex: Duplex,
    /// A kernel takes this many times longer while a copy runs, and loses twice as much to two copies at once; 1 = no effect. At least 1.
    pub kernel_slowdown: f64,
    /// A copy takes this many times longer while a kernel runs; 1 = no effect. At least 1.
    pub copy_slowdown: f64,
}

impl Link {
    /// 12 GB/s each way, full duplex, 10 µs: a PCIe 3.0 x16 slot in practice, and the paper's setting.
    pub const PCIE3_X16: Link = Link {
        out_bytes_per_s: 12e9,
        in_bytes_per_s: 12e9,
        latency: Nanos(10_000),
        duplex: Duplex::Full,
        kernel_slowdown: 1.0,
        copy_slowdown: 1.0,
    };

    /// Copies take no time.
    pub const INFINITE: Link = Link {
        out_bytes_per_s: f64::INFINITY,
        in_bytes_per_s: f64::INFINITY,
        latency: Nanos::ZERO,
        duplex: Duplex::Full,
        kernel_slowdown: 1.0,
        copy_slowdown: 1.0,
    };

    /// What is left to each of `n` jobs that copy all the time: an `n`-th of the rates, everything else as it is. `n` of zero counts as one.
    ///
    /// This is for latencies as they are beside the other jobs. Jobs that share the kernels' time too are slowed down alike in both, so a step planned with the latencies that it has
    /// alone takes the whole link.
    ///
    /// ```
    /// use tensile_sched::{Bytes, Link};
    ///
    /// let third = Link::PCIE3_X16.shared(3);
    /// assert_eq!((third.out_bytes_per_s, third.in_bytes_per_s, third.latency), (4e9, 4e9, Link::PCIE3_X16.latency));
    /// assert_eq!(Link::INFINITE.shared(3), Link::INFINITE);
    /// ```
    pub fn shared(&self, n: usize) -> Self {
        let n = n.max(1) as f64;
        Self { out_bytes_per_s: self.out_bytes_per_s / n, in_bytes_per_s: self.in_bytes_per_s / n, ..*self }
    }

    /// Time to copy `bytes` to the host, rounded up.
    pub fn out_time(&self, bytes: Bytes) -> Nanos {
        self.latency.saturating_add(transfer(bytes, self.out_bytes_per_s))
    }

    /// Time to copy `bytes` to the device, rounded up.
    pub fn in_time(&self, bytes: Bytes) -> Nanos {
        self.latency.saturating_add(transfer(bytes, self.in_bytes_per_s))
    }
}

fn transfer(bytes: Bytes, bytes_per_s: f64) -> Nanos {
    // A float-to-integer cast saturates, so a rate of zero or below means "never".
    Nanos((bytes.0 as f64 / bytes_per_s.max(0.0) * 1e9).ceil() as u64)
}

/// Which ways out of memory a planner may use, beside releasing what is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Copies to the host and back; no `Rerun`.
    Swap,
    /// `Rerun`; the only copies are those that bring inputs (as often as needed) and deliver outputs. Persistent tensors stay on the device.
    Recompute,
    /// All of it.
    #[default]
    Both,
}

/// What a program must keep to.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Most bytes of the device arena.
    pub device: Bytes,
    /// Most bytes of the host arena.
    pub host: Bytes,
    /// Addresses are multiples of this, and sizes are rounded up to it. A power of two.
    pub alignment: Bytes,
    /// The device arena is a list of blocks of this size, the last one perhaps shorter: no tensor, scratch or workspace may be larger on the device,
    /// and none may cross an address that is a multiple of it. [`Bytes::MAX`] for an arena in one piece. It should be a multiple of the alignment; what is above
    /// the last multiple is not used (see [`Limits::block`]). The host arena is in one piece.
    pub max_block: Bytes,
    /// The link to the host.
    pub link: Link,
    /// Ways out of memory that may be used.
    pub mode: Mode,
    /// Where the job stands between steps already, if it does: one [`Home`] for each persistent tensor of the trace, by ascending
    /// id. A program then must start and end exactly there. Without it the planner chooses.
    pub boundary: Option<Vec<Home>>,
}

impl Limits {
    /// A device budget with everything else unlimited: alignment 256, PCIe 3.0 x16, all modes, free choice of the boundary.
    pub fn with_budget(device: Bytes) -> Self {
        Self {
            device,
            host: Bytes::MAX,
            alignment: Bytes(256),
            max_block: Bytes::MAX,
            link: Link::PCIE3_X16,
            mode: Mode::Both,
            boundary: None,
        }
    }

    /// No limit on the device either.
    pub fn unlimited() -> Self {
        Self::with_budget(Bytes::MAX)
    }

    /// Bytes that `bytes` occupy in an arena.
    pub fn occupied(&self, bytes: Bytes) -> Bytes {
        bytes.align_up(self.alignment)
    }

    /// Bytes of a block of the device arena: [`max_block`](Self::max_block), rounded down to the alignment.
    ///
    /// ```
    /// use tensile_sched::{Bytes, Limits};
    ///
    /// let limits = Limits { max_block: Bytes(1000), alignment: Bytes(256), ..Limits::unlimited() };
    /// assert_eq!(limits.block(), Bytes(768));
    /// ```
    pub fn block(&self) -> Bytes {
        Bytes(self.max_block.0 - self.max_block.0.checked_rem(self.alignment.0).unwrap_or(0))
    }
}
