//! Faults that people have met in other systems, on the host device with random delays: `tensile_core::conformance::reports`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensile_core::conformance::harness::interpret_steps;
use tensile_core::conformance::reports;
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{Delays, Emulation, HostDevice, HostOptions};
use tensile_core::optim::Optimizer;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counter counts the whole process, so tests here take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device() -> Arc<HostDevice> {
    let emulation =
        Emulation { delays: Some(Delays { seed: 7, longest_us: 20 }), poison: true, ..Emulation::default() };
    Arc::new(HostDevice::new(HostOptions { emulation, ..HostOptions::nominal(2) }).unwrap())
}

/// Most device bytes since it was last asked.
fn held() -> u64 {
    let peak = count::peak(Tag::Device);
    count::reset_peak();
    peak
}

/// What runs on the device with nothing evicted is what the interpreter of graphs gives, which knows no plan.
#[test]
fn the_reference_is_the_interpreters() {
    let _turn = turn();
    let (graph, optimizer) = (reports::mlp(0.5).unwrap(), Optimizer::adam());
    assert_eq!(reports::holds(&device(), &graph, &optimizer, 10), interpret_steps(&graph, &optimizer, 10));
}

macro_rules! reports {
    ($($name:ident($($held:expr)?);)*) => {
        $(#[test]
        fn $name() {
            let _turn = turn();
            reports::$name(&device() $(, $held)?);
        })*
    };
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
