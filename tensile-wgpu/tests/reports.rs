//! Faults that people have met in other systems: `tensile_core::conformance::reports`.

mod common;

use std::sync::{Arc, OnceLock};

use tensile_core::conformance::{reports, skipped};
use tensile_wgpu::WgpuDevice;

/// One device, whose staging has grown to its full size, for tests that take turns.
fn device() -> Option<Arc<WgpuDevice>> {
    static DEVICE: OnceLock<Option<Arc<WgpuDevice>>> = OnceLock::new();
    DEVICE
        .get_or_init(|| {
            let device = common::device()?;
            common::fill_staging(&device);
            Some(Arc::new(device))
        })
        .clone()
}

macro_rules! reports {
    ($($name:ident($($held:ident)?);)*) => {
        $(#[test]
        fn $name() {
            let _turn = common::turn();
            match device() {
                Some(device) => reports::$name(&device $(, || $held(&device))?),
                None => skipped(stringify!($name)),
            }
        })*
    };
}

/// Device bytes by wgpu's own allocator.
fn held(device: &WgpuDevice) -> u64 {
    device.allocated_bytes().expect("this backend tells").0
}

reports! {
    c01_dropout_repeats_its_mask();
    c03_running_statistics_move_once();
    c05_in_place_steps_are_recomputed();
    c07_swap_and_recompute_work_together();
    c09_ties_fall_the_same_way();
    c13_bytes_change_hands_after_their_last_use();
    c15_the_budget_is_a_limit(held);
    c18_a_budget_that_fits_costs_nothing();
    c20_the_first_update_keeps_to_the_budget(held);
    c22_the_update_has_no_large_temporaries();
    c25_memory_does_not_fall_to_pieces();
    c27_c35_shapes_take_turns_and_memory_stays_flat(held);
    c32_the_host_has_a_budget_too();
    c33_forwards_leave_nothing_behind(held);
    c37_only_what_the_backward_needs_is_kept();
}
