//! Whole steps on the host device under hand-made programs: the same bits as the interpreter of graphs gives, and typed errors.

use std::sync::Arc;
use tensile_core::conformance::harness as common;

use common::{compile, evict_all, executor, feed, interpret_steps, keep_all, limits, normed_images, run_steps};
use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::exec::{ExecError, ExecutorOptions, StepSpans, lower};
use tensile_core::optim::Optimizer;
use tensile_sched::{Bytes, Lane};

#[test]
fn both_extremes_give_the_interpreters_bits() {
    for optimizer in [Optimizer::sgd(0.9), Optimizer::adam()] {
        let graph = normed_images(&optimizer).unwrap();
        let expected = interpret_steps(&graph, &optimizer, 4);
        for threads in [1, 2] {
            let device = Arc::new(HostDevice::new(HostOptions::nominal(threads)).unwrap());
            let step = Arc::new(lower(&graph, &*device).unwrap());
            let limits = limits(&device, Bytes::MAX);
            for program in [keep_all(&step.trace), evict_all(&step.trace)] {
                for poison in [false, true] {
                    let compiled = compile(&step, &program, &limits);
                    let options = ExecutorOptions { profile: true, poison };
                    let mut executor = executor(&device, &compiled, options);
                    assert_eq!(device.device_bytes(), compiled.arena());
                    let trained = run_steps(&mut executor, &compiled, &optimizer, 4);
                    assert_eq!(trained, expected, "{threads} threads, poison {poison}");
                    let stats = executor.stats(&compiled).unwrap();
                    assert_eq!(stats.steps, 4);
                    assert!(stats.ops.iter().all(|op| op.count == 4 && op.total.0 > 0));
                    drop(executor);
                    assert_eq!((device.device_bytes(), device.host_bytes()), (Bytes::ZERO, Bytes::ZERO));
                }
            }
        }
    }
}

#[test]
fn programs_with_other_boundaries_take_turns() {
    let optimizer = Optimizer::adam();
    let graph = normed_images(&optimizer).unwrap();
    let expected = interpret_steps(&graph, &optimizer, 6);
    let device = Arc::new(HostDevice::new(HostOptions::nominal(2)).unwrap());
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let limits = limits(&device, Bytes::MAX);
    let programs = [keep_all(&step.trace), evict_all(&step.trace)].map(|program| compile(&step, &program, &limits));
    let mut executor = executor(&device, &programs[0], ExecutorOptions { profile: false, poison: true });
    for iteration in 0..6 {
        let compiled = &programs[[0, 1, 1, 0, 0, 1][iteration]];
        let result = executor.step(compiled, feed(iteration as u64, &optimizer)).unwrap();
        assert_eq!(common::outputs_of(result), expected.outputs[iteration]);
        assert_eq!(device.device_bytes(), compiled.arena());
    }
    assert_eq!(executor.state().unwrap(), expected.state);
    let name = &expected.state[0].persistent.name;
    assert_eq!(executor.read_persistent(name).unwrap(), expected.state[0].bytes);
    executor.write_persistent(name, &vec![0; expected.state[0].bytes.len()]).unwrap();
    assert_eq!(executor.state().unwrap()[0].bytes, vec![0; expected.state[0].bytes.len()]);
    assert!(matches!(executor.write_persistent(name, &[0]), Err(ExecError::Size { .. })));
    assert!(matches!(executor.read_persistent("nobody"), Err(ExecError::UnknownPersistent { .. })));
}

#[test]
fn the_latest_step_tells_when_its_instructions_ran() {
    let optimizer = Optimizer::adam();
    let graph = normed_images(&optimizer).unwrap();
    let device = Arc::new(HostDevice::new(HostOptions::nominal(2)).unwrap());
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let compiled = compile(&step, &evict_all(&step.trace), &limits(&device, Bytes::MAX));
    let mut profiled = executor(&device, &compiled, ExecutorOptions::default());
    assert!(profiled.latest_spans().unwrap().is_none(), "nothing has run");
    // Drained before the first, and not before the last.
    for n_steps in [1, 3] {
        let mut ticket = profiled.begin(&compiled, feed(0, &optimizer)).unwrap();
        for iteration in 1..n_steps {
            let next = profiled.begin(&compiled, feed(iteration, &optimizer)).unwrap();
            profiled.finish(std::mem::replace(&mut ticket, next)).unwrap();
        }
        let timings = profiled.finish(ticket).unwrap().timings;
        let StepSpans { program, spans } = profiled.latest_spans().unwrap().expect("steps have run and are profiled");
        assert!(Arc::ptr_eq(&program, &compiled));
        let synced = &compiled.planned().synced;
        let instrs = synced.instrs();
        assert_eq!(spans.len(), instrs.len());
        for lane in Lane::ALL {
            let of_lane =
                || spans.iter().zip(instrs).filter(|(_, instr)| instr.lane() == Some(lane)).map(|(span, _)| span);
            let sum: i64 = of_lane().map(|span| span.end - span.start).sum();
            let expected = [timings.compute, timings.copies_out, timings.copies_in][lane.index()];
            assert_eq!(sum as u64, expected.0, "{lane:?}");
            assert!(of_lane().zip(of_lane().skip(1)).all(|(first, second)| first.end <= second.start), "{lane:?}");
        }
        for (index, waits) in synced.waits.iter().enumerate() {
            for wait in waits.iter().filter(|wait| !wait.previous_iteration) {
                assert!(spans[wait.on.index()].end <= spans[index].start, "i{index} waits for {}", wait.on);
            }
        }
        profiled.drain().unwrap();
    }
    let mut quick = executor(&device, &compiled, ExecutorOptions { profile: false, poison: false });
    quick.step(&compiled, feed(0, &optimizer)).unwrap();
    assert!(quick.latest_spans().unwrap().is_none(), "nothing was timed");
}

#[test]
fn wrong_use_is_a_typed_error() {
    let optimizer = Optimizer::sgd(0.0);
    let graph = normed_images(&optimizer).unwrap();
    let device = Arc::new(HostDevice::new(HostOptions::nominal(1)).unwrap());
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let limits = limits(&device, Bytes::MAX);
    let compiled = compile(&step, &keep_all(&step.trace), &limits);
    let mut executor = executor(&device, &compiled, ExecutorOptions::default());

    let first = executor.begin(&compiled, feed(0, &optimizer)).unwrap();
    let second = executor.begin(&compiled, feed(1, &optimizer)).unwrap();
    assert_eq!(executor.begin(&compiled, feed(2, &optimizer)).unwrap_err(), ExecError::InFlight);
    let (second, first) = (executor.finish(second).unwrap(), executor.finish(first).unwrap());
    assert_eq!((first.iteration, second.iteration), (0, 1));

    // A program that leaves an instruction out, or a wait, does not even become `Compiled`.
    let mut planned = compiled.planned().clone();
    planned.synced.placed.program.instrs.remove(0);
    planned.synced.placed.layout.placements.remove(0);
    planned.synced.waits.remove(0);
    let refused = tensile_core::exec::Compiled::new(Arc::clone(&step), planned, limits.clone());
    assert!(matches!(refused, Err(ExecError::Check { .. })));
    let mut planned = compiled.planned().clone();
    planned.synced.waits.iter_mut().for_each(Vec::clear);
    let refused = tensile_core::exec::Compiled::new(Arc::clone(&step), planned, limits.clone());
    assert!(matches!(refused, Err(ExecError::Verify { .. })));

    // A program of another job.
    let other = normed_images(&Optimizer::adam()).unwrap();
    let other = Arc::new(lower(&other, &*device).unwrap());
    let other = compile(&other, &keep_all(&other.trace), &limits);
    assert!(matches!(executor.begin(&other, feed(0, &optimizer)), Err(ExecError::OtherJob { .. })));
}

#[test]
fn dropping_with_steps_in_flight_gives_everything_back() {
    let optimizer = Optimizer::sgd(0.9);
    let graph = normed_images(&optimizer).unwrap();
    let device = Arc::new(HostDevice::new(HostOptions::nominal(2)).unwrap());
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let compiled = compile(&step, &evict_all(&step.trace), &limits(&device, Bytes::MAX));
    for _ in 0..20 {
        let mut executor = executor(&device, &compiled, ExecutorOptions::default());
        let _first = executor.begin(&compiled, feed(0, &optimizer)).unwrap();
        let _second = executor.begin(&compiled, feed(1, &optimizer)).unwrap();
        drop(executor);
        assert_eq!((device.device_bytes(), device.host_bytes()), (Bytes::ZERO, Bytes::ZERO));
    }
}
