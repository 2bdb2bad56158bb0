//! What must hold for every program of every planner on random traces.

mod interpreter;
mod mutate;
mod planned;
mod races;
mod wander;

use mutate::{Mutation, mutations};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use races::{Conflicts, one_after_the_other};
use tensile_sched::strategy::{Sizes, traces};
use tensile_sched::{Bytes, Limits, Placed, Synced, Trace, check, layout, sync, verify};
use wander::wander;

/// Small, so that the interpreter's images are.
const UNIT: Bytes = Bytes(16);

fn any_trace() -> impl Strategy<Value = Trace> + Clone {
    traces(Sizes { unit: UNIT.0, most_units: 4, odd: true }, 0..24)
}

fn any_choices() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![vec(any::<u8>(), 0..40), vec(any::<u8>(), 0..600)]
}

fn unlimited() -> Limits {
    Limits { alignment: UNIT, ..Limits::unlimited() }
}

/// So many cases, or as many as the environment's `PROPTEST_CASES` says.
fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    // Shrunk failures are kept and tried first; the path is relative to the crate.
    let kept = FileFailurePersistence::Direct("proptest-regressions/properties.txt");
    ProptestConfig { failure_persistence: Some(Box::new(kept)), ..ProptestConfig::with_cases(asked.unwrap_or(cases)) }
}

/// A program that check and interpreter accept.
fn accepted(trace: &Trace, placed: &Placed, limits: &Limits) -> Result<Vec<interpreter::Touch>, TestCaseError> {
    if let Err(violations) = check(trace, placed, limits) {
        return Err(TestCaseError::fail(format!("check: {}\n{:#?}", violations[0], placed.program.instrs)));
    }
    interpreter::run(trace, placed, UNIT)
        .map_err(|fault| TestCaseError::fail(format!("interpreter: {fault}\n{:#?}", placed.program.instrs)))
}

/// If the interpreter fails on a spoiled program, check must refuse it.
fn mutants_are_caught(trace: &Trace, placed: &Placed, mutations: &[Mutation]) -> Result<(), TestCaseError> {
    for mutation in mutations {
        let Some(mutant) = mutation.apply(trace, placed, UNIT) else { continue };
        if let Err(fault) = interpreter::run(trace, &mutant, UNIT) {
            prop_assert!(
                check(trace, &mutant, &unlimited()).is_err(),
                "{:?}: check accepts what fails in the interpreter: {}\n{:#?}",
                mutation,
                fault,
                mutant
            );
        }
    }
    Ok(())
}

/// Verify agrees with brute force on the program, and on the program without any one of its waits.
fn waits_are_judged_right(trace: &Trace, synced: &Synced, touches: &[interpreter::Touch]) -> Result<(), TestCaseError> {
    let conflicts = Conflicts::new(synced, touches);
    prop_assert!(conflicts.are_ordered(synced), "brute force finds a race");
    prop_assert_eq!(verify(trace, synced), Ok(()));
    let mut fewer = synced.clone();
    for instr in 0..synced.waits.len() {
        for place in 0..synced.waits[instr].len() {
            let wait = fewer.waits[instr].remove(place);
            let verdict = verify(trace, &fewer);
            prop_assert_eq!(
                verdict.is_ok(),
                conflicts.are_ordered(&fewer),
                "without the wait of i{} for {:?} verify says {:?}",
                instr,
                wait,
                verdict
            );
            fewer.waits[instr].insert(place, wait);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn wandering_programs_are_accepted_by_all(trace in any_trace(), choices in any_choices()) {
        let placed = wander(&trace, UNIT, &choices);
        let touches = accepted(&trace, &placed, &unlimited())?;
        let slow = one_after_the_other(placed.clone());
        prop_assert!(Conflicts::new(&slow, &touches).are_ordered(&slow));
        prop_assert_eq!(verify(&trace, &slow), Ok(()));
        waits_are_judged_right(&trace, &sync(&trace, placed), &touches)?;
    }

    #[test]
    fn laid_out_again_they_still_are(trace in any_trace(), choices in any_choices()) {
        let program = wander(&trace, UNIT, &choices).program;
        let placed = layout(&trace, &program, &unlimited()).unwrap();
        let touches = accepted(&trace, &placed, &unlimited())?;
        waits_are_judged_right(&trace, &sync(&trace, placed), &touches)?;
    }

    #[test]
    fn spoiled_wandering_programs_are_refused(
        trace in any_trace(), choices in any_choices(), laid_out: bool, mutations in vec(mutations(), 8),
    ) {
        let mut placed = wander(&trace, UNIT, &choices);
        if laid_out {
            placed = layout(&trace, &placed.program, &unlimited()).unwrap();
        }
        mutants_are_caught(&trace, &placed, &mutations)?;
    }

    #[test]
    fn hostile_programs_do_not_panic(
        trace in any_trace(), choices in any_choices(), mutations in vec(mutations(), 0..6), address: u64, at: usize,
        alignment in prop_oneof![Just(Bytes(0)), Just(Bytes(1 << 63)), Just(UNIT)],
    ) {
        let mut placed = wander(&trace, UNIT, &choices);
        for mutation in mutations {
            placed = mutation.apply(&trace, &placed, UNIT).unwrap_or(placed);
        }
        let count = placed.layout.placements.len().max(1);
        if let Some(placement) = placed.layout.placements.get_mut(at % count) {
            for there in placement.device.iter_mut().chain(&mut placement.workspace).chain(&mut placement.host) {
                *there = Bytes(address);
            }
        }
        let _ = check(&trace, &placed, &Limits { alignment, ..unlimited() });
        let synced = Synced { waits: vec![Vec::new(); placed.program.instrs.len()], placed };
        let _ = verify(&trace, &synced);
    }
}
