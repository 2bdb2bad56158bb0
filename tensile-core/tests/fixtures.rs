//! The host's kernels against right values from PyTorch, on 1 to 3 threads, with and without in-place use: all agree bit for bit.

use tensile_core::conformance::fixtures;
use tensile_core::testing::Interpreter;

fn by_name(list: &[(String, Vec<u8>)]) -> Vec<(&str, Vec<u8>)> {
    list.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect()
}

#[test]
fn every_way_to_run_agrees_with_pytorch() {
    fixtures::each(&mut |fixture| {
        let run = |how: Interpreter| {
            let mut state = fixture.persistents.clone();
            let mut outcome = None;
            for step in &fixture.steps {
                let result = how.run(&fixture.graph, &by_name(step), &by_name(&state));
                state = result.persistents.clone().into_iter().collect();
                outcome = Some(result);
            }
            outcome.expect("a case has a step")
        };
        let outcome = run(Interpreter { threads: 1, in_place: false });
        fixture.compare(|name| {
            outcome.outputs.get(name).or_else(|| outcome.persistents.get(name)).expect("computed").clone()
        });
        for threads in 1..=3 {
            for in_place in [false, true] {
                let other = run(Interpreter { threads, in_place });
                assert_eq!(outcome, other, "{}: bits depend on {threads} threads or in place {in_place}", fixture.name);
            }
        }
    });
}
