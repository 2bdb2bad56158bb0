//! The suite that every device must pass: compiled with the feature `conformance`.
//!
//! A backend's `tests/conformance.rs` is one line, [`device_conformance!`](crate::device_conformance) with an expression that gives a new
//! device, or `None` where there is none (the tests then say that they were skipped).
//!
//! - [`ops`]: every op, forward and gradient, against the reference interpreter; each op launched again at other addresses, beside poisoned
//!   bytes, and in place where it allows that: the same bits.
//! - [`fixtures`]: ops and optimizers against right values from PyTorch.
//! - [`programs`]: whole training steps under tight and loose budgets: the same bits on the device itself.
//! - [`reports`]: faults that people have met in other systems, as experiments.
//! - [`streams`]: copies, events between streams, failures.
//! - [`jobs`]: several jobs that share a device.
//! - [`memory`]: limits, resizing, out of memory.

mod cases;
pub mod fixtures;
pub mod harness;
pub mod jobs;
pub mod memory;
pub mod ops;
pub mod programs;
pub mod reports;
pub mod streams;

pub use cases::{Case, cases};

use crate::device::{Arg, Device, OpCall, Region};
use crate::op::Op;
use crate::tensor::TensorType;

/// How close a device must come to the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closeness {
    /// The same bits: for the host device, whose kernels are the reference.
    Exact,
    /// Within each case's tolerance.
    Tolerance,
}

/// Declares the suite's tests for a device.
///
/// ```ignore
/// tensile_core::device_conformance!(Tolerance, MyDevice::open());
/// ```
///
/// The first argument is a variant of [`Closeness`](crate::conformance::Closeness), the second an expression of type `Option<D>` where `D` is a
/// [`Device`](crate::Device); it is evaluated in each test.
#[macro_export]
macro_rules! device_conformance {
    ($closeness:ident, $device:expr) => {
        $crate::device_conformance!(@test ops_agree_with_the_reference, $device, |device| {
            $crate::conformance::ops::agree_with_the_reference(device, $crate::conformance::Closeness::$closeness)
        });
        $crate::device_conformance!(@test ops_agree_with_pytorch, $device, $crate::conformance::fixtures::agree_with_pytorch);
        $crate::device_conformance!(@test ops_repeat_their_bits, $device, $crate::conformance::ops::repeat_their_bits);
        $crate::device_conformance!(@test foreign_ops_run_or_are_refused, $device, $crate::conformance::ops::foreign_ops);
        $crate::device_conformance!(@test budgets_keep_the_bits, $device, $crate::conformance::programs::budgets_keep_the_bits);
        $crate::device_conformance!(@test copies_move_the_bytes_named, $device, $crate::conformance::streams::copies);
        $crate::device_conformance!(@test events_order_streams, $device, $crate::conformance::streams::events);
        $crate::device_conformance!(@test limits_are_sound, $device, $crate::conformance::memory::limits);
        $crate::device_conformance!(@test arenas_keep_their_bytes, $device, $crate::conformance::memory::resize);
        $crate::device_conformance!(@test out_of_memory_is_typed, $device, $crate::conformance::memory::out_of_memory);
    };
    (@test $name:ident, $device:expr, $run:expr) => {
        #[test]
        fn $name() {
            match $device {
                Some(device) => ($run)(&std::sync::Arc::new(device)),
                None => $crate::conformance::skipped(stringify!($name)),
            }
        }
    };
}

/// Says that a test had no device to run on.
#[allow(clippy::print_stderr)] // what a test prints is for the person who runs it
pub fn skipped(test: &str) {
    eprintln!("{test}: skipped, there is no such device here");
}

/// Places regions one after another at the device's alignment.
struct Places {
    alignment: u64,
    end: u64,
}

impl Places {
    fn new<D: Device>(device: &D) -> Self {
        Self { alignment: device.info().alignment, end: 0 }
    }

    fn next(&mut self, bytes: u64) -> Region {
        let region = Region { offset: self.end, bytes };
        self.end = region.end().next_multiple_of(self.alignment);
        region
    }
}

fn args<'a>(regions: &[Region], types: &'a [TensorType]) -> Vec<Arg<'a>> {
    regions.iter().zip(types).map(|(&region, ty)| Arg { region, ty }).collect()
}

/// Launches an op and waits for it.
fn launch<D: Device>(
    device: &D,
    stream: &D::Stream,
    arena: &D::Arena,
    op: &Op,
    (inputs, outputs): (&[Arg<'_>], &[Arg<'_>]),
    workspace: Region,
) {
    let call = OpCall { op, inputs, outputs, workspace };
    device.launch(stream, arena, &call).and_then(|()| device.synchronize(stream)).unwrap_or_else(|error| {
        panic!("{} on {}: {error}", op.def().name(), device.info().name);
    });
}

fn read<D: Device>(device: &D, arena: &D::Arena, region: Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes as usize];
    device.read(arena, region, &mut bytes).expect("device bytes can be read");
    bytes
}

fn write<D: Device>(device: &D, arena: &D::Arena, region: Region, bytes: &[u8]) {
    device.write(arena, region, bytes).expect("device bytes can be written");
}

/// Some bytes, different for each seed.
fn pattern(bytes: u64, seed: u8) -> Vec<u8> {
    (0..bytes).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
