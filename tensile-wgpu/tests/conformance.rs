//! The suite that every device must pass.

mod common;

use std::sync::Arc;

use tensile_core::conformance::{Closeness, ops, skipped};
use tensile_wgpu::{Emulation, WgpuOptions};

tensile_core::device_conformance!(Tolerance, common::device());

fn every_op_on(test: &str, emulation: Emulation) {
    let Some(device) = common::open(WgpuOptions { emulation, ..common::options() }) else { return skipped(test) };
    let device = Arc::new(device);
    ops::agree_with_the_reference(&device, Closeness::Tolerance);
    ops::repeat_their_bits(&device);
}

/// tracel-ai/burn#3011: more workgroups than a row of the grid holds are folded into rows. Here rows hold three, so that small tensors have many rows, the last one not full.
#[test]
fn c50_every_op_folds_its_grid() {
    every_op_on("c50_every_op_folds_its_grid", Emulation { row: Some(3), ..Emulation::default() });
}

/// Kernels that a software adapter does not get by itself.
#[test]
fn the_kernels_of_real_adapters_agree_too() {
    every_op_on("the_kernels_of_real_adapters_agree_too", Emulation { other_kernels: true, ..Emulation::default() });
}
