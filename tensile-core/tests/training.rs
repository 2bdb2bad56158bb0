//! Training within a budget on the host device: the bits of the unlimited run, an independently counted peak, any order of work, any failure.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensile_core::conformance::harness as common;

use common::{Way, executor, feed, interpret_steps, limits, normed_images, run_steps};
use tensile_core::checkpoint::{self, Contents};
use tensile_core::conformance::Case;
use tensile_core::device::host::count::{self, CountingAllocator, Tag};
use tensile_core::device::host::{Delays, Emulation, Failure, HostDevice, HostOptions};
use tensile_core::exec::{Compiled, ExecError, Executor, ExecutorOptions, Step, lower};
use tensile_core::optim::Optimizer;
use tensile_core::{Device, DeviceError, Graph, TensorType};
use tensile_sched::{Bytes, Duplex, Instr, Limits, Link, Mode, Nanos, NoEviction, Planner, Tensile, floor, simulate};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The counter counts the whole process, so tests here take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device(threads: usize, emulation: Emulation) -> Arc<HostDevice> {
    Arc::new(HostDevice::new(HostOptions { emulation, ..HostOptions::nominal(threads) }).unwrap())
}

fn plan(planner: &dyn Planner, step: &Arc<Step>, limits: &Limits) -> Arc<Compiled> {
    let planned = planner.plan(&step.trace, limits).unwrap();
    Compiled::new(Arc::clone(step), planned, limits.clone()).unwrap()
}

/// Budgets from the floor to what no eviction needs, in `n` steps.
fn budgets(step: &Step, limits: &Limits, n: u64) -> Vec<Bytes> {
    let top = NoEviction.plan(&step.trace, limits).unwrap().report.arena.0;
    let bottom = floor(&step.trace, limits).unwrap().bytes.0;
    (0..=n).map(|i| Bytes(bottom + (top - bottom) * i / n)).collect()
}

fn adam_images() -> (Graph, Optimizer) {
    let optimizer = Optimizer::adam();
    (normed_images(&optimizer).unwrap(), optimizer)
}

#[test]
fn every_budget_gives_the_same_bits_within_it() {
    let _turn = turn();
    let (graph, optimizer) = adam_images();
    let expected = interpret_steps(&graph, &optimizer, 3);
    for threads in [1, 2] {
        let device = device(threads, Emulation::default());
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let free = limits(&device, Bytes::MAX);
        assert_eq!(count::current(Tag::Device), 0);
        for mode in [Mode::Both, Mode::Swap] {
            let free = Limits { mode, ..free.clone() };
            for budget in budgets(&step, &free, 5) {
                let compiled = plan(&Tensile::default(), &step, &Limits { device: budget, ..free.clone() });
                count::reset_peak();
                let mut executor = executor(&device, &compiled, ExecutorOptions::default());
                let trained = run_steps(&mut executor, &compiled, &optimizer, 3);
                let peak = count::peak(Tag::Device);
                assert_eq!(trained, expected, "{threads} threads, {mode:?}, budget {budget}");
                assert!(peak <= budget.0, "{threads} threads, {mode:?}: peak {peak} above the budget {}", budget.0);
                assert_eq!(peak, compiled.arena().0, "the counter sees the arena and no scratch beside it");
                assert!(count::current(Tag::Host) >= compiled.host_arena().0);
                drop(executor);
                assert_eq!(count::current(Tag::Device), 0);
            }
        }
    }
}

/// A step time by events on the virtual clock is that of the simulation, to the nanosecond.
#[test]
fn the_virtual_clock_agrees_with_the_simulation() {
    let _turn = turn();
    let (graph, optimizer) = adam_images();
    let link = Link {
        out_bytes_per_s: 2e9,
        in_bytes_per_s: 3e9,
        latency: Nanos(700),
        duplex: Duplex::Full,
        kernel_slowdown: 1.0,
        copy_slowdown: 1.0,
    };
    for bytes_per_us in [2.0, 0.2] {
        let link = Link { out_bytes_per_s: link.out_bytes_per_s * bytes_per_us / 2.0, ..link };
        let device = device(2, Emulation { virtual_link: Some(link), ..Emulation::default() });
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let free = limits(&device, Bytes::MAX);
        assert_eq!(free.link, link);
        for budget in budgets(&step, &free, 3) {
            let compiled = plan(&Tensile::default(), &step, &Limits { device: budget, ..free.clone() });
            let simulation = simulate(&step.trace, &compiled.planned().synced, &link);
            let mut executor = executor(&device, &compiled, ExecutorOptions::default());
            let mut times = Vec::new();
            let mut before = None;
            for iteration in 0..20 {
                let ticket = executor.begin(&compiled, feed(iteration, &optimizer)).unwrap();
                if let Some(before) = before.replace(ticket) {
                    times.push(executor.finish(before).unwrap().timings);
                }
            }
            times.push(executor.finish(before.unwrap()).unwrap().timings);
            assert_eq!(times[0].step, simulation.first_step_time, "first step, budget {budget}");
            let steady: u64 = times[12..].iter().map(|timings| timings.step.0).sum();
            assert_eq!(Nanos((steady + 4) / 8), simulation.step_time, "steady state, budget {budget}");
            assert_eq!(times[19].stall, simulation.stall_time(), "stall, budget {budget}");
            let reruns = compiled.planned().report.recompute_time;
            assert_eq!(times[19].compute.0, simulation.compute_time.0 + reruns.0);
        }
    }
}

/// The source of a copy must live until the copy has read it, in whatever order work gets done: 200 patterns of delays, and one run of 200 steps (meta-pytorch/torchtune#1867).
#[test]
fn c11_sources_live_until_they_are_copied() {
    let _turn = turn();
    let (graph, optimizer) = adam_images();
    let (few, many) = (interpret_steps(&graph, &optimizer, 3), interpret_steps(&graph, &optimizer, 200));
    for seed in 0..=200 {
        let (expected, longest_us) = if seed == 200 { (&many, 5) } else { (&few, 20) };
        let emulation = Emulation { delays: Some(Delays { seed, longest_us }), poison: true, ..Emulation::default() };
        let device = device(1 + seed as usize % 2, emulation);
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let free = limits(&device, Bytes::MAX);
        let compiled = match seed % 4 {
            0 => common::compile(&step, &common::evict_all(&step.trace), &free),
            1 => common::compile(&step, &common::evict(&step.trace, true, mixed), &free),
            _ => {
                let budget = budgets(&step, &free, 4)[seed as usize / 4 % 3];
                plan(&Tensile::default(), &step, &Limits { device: budget, ..free })
            }
        };
        let options = ExecutorOptions { profile: seed % 3 == 0, poison: true };
        let mut executor = executor(&device, &compiled, options);
        let trained = run_steps(&mut executor, &compiled, &optimizer, expected.outputs.len() as u64);
        assert_eq!(trained, *expected, "seed {seed}");
    }
}

/// Host memory is as large as what is swapped, not rounded up to a power of two (pytorch/pytorch#95823), and what is reported is what is allocated.
#[test]
fn c29_host_memory_is_not_rounded_up() {
    let _turn = turn();
    // A power of two and a page, ten times.
    let bytes = (1 << 20) + 4096;
    let mut graph = Graph::new();
    let mut x = graph.input("x", TensorType::f32([bytes / 4])).unwrap();
    let mut sum = x;
    let mut all = Vec::new();
    for _ in 0..10 {
        x = graph.tanh(x).unwrap();
        all.push(x);
    }
    for &x in all.iter().rev() {
        sum = graph.add(sum, x).unwrap();
    }
    let sum = graph.sum(sum, &[0]).unwrap();
    graph.output("sum", sum).unwrap();
    let device = device(1, Emulation::default());
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let limits = Limits { mode: Mode::Swap, ..limits(&device, Bytes::MAX) };
    let lowest = floor(&step.trace, &limits).unwrap().bytes;
    let compiled = plan(&Tensile::default(), &step, &Limits { device: lowest, ..limits });
    let report = &compiled.planned().report;
    let swapped = compiled.planned().synced.instrs().iter().filter(|instr| matches!(instr, Instr::SwapOut(_))).count();
    assert!(swapped > 5, "{swapped} tensors are swapped out");
    let before = count::current(Tag::Host);
    let optimizer = Optimizer::adam();
    let mut executor = executor(&device, &compiled, ExecutorOptions::default());
    run_steps(&mut executor, &compiled, &optimizer, 2);
    // Two slots of the input, two of the sum, and the buffer through which inputs come.
    let inputs = 3 * bytes as u64 + 4 * 64;
    let held = count::current(Tag::Host) - before;
    let most = swapped as u64 * bytes as u64 * 11 / 10 + inputs;
    assert!(held <= most, "{held} bytes of host memory for {swapped} tensors of {bytes}");
    assert_eq!(executor.host_bytes(), report.host_arena);
    let off = held.abs_diff(executor.host_bytes().0 + bytes as u64);
    assert!(off * 20 <= held, "{held} held, {} reported beside the buffer for inputs", executor.host_bytes());
}

/// Swaps some activations and recomputes the others.
fn mixed(tensor: tensile_sched::TensorId) -> Way {
    if tensor.index().is_multiple_of(3) { Way::Swap } else { Way::Recompute }
}

#[test]
fn every_failure_is_typed_and_stays_in_its_job() {
    let _turn = turn();
    let (graph, optimizer) = adam_images();
    let expected = interpret_steps(&graph, &optimizer, 3);
    let kernel = |error: &DeviceError| matches!(error, DeviceError::Kernel { .. });
    let copy = |error: &DeviceError| matches!(error, DeviceError::Copy { .. });
    let lost = |error: &DeviceError| matches!(error, DeviceError::DeviceLost { .. });
    type Expected<'a> = &'a dyn Fn(&DeviceError) -> bool;
    let cases: [(Failure, Expected<'_>); 10] = [
        (Failure::Allocation(1), &|error| matches!(error, DeviceError::OutOfMemory { .. })),
        (Failure::HostAllocation(1), &|error| matches!(error, DeviceError::HostOutOfMemory { .. })),
        (Failure::Copy(1), &copy),
        (Failure::Copy(40), &copy),
        (Failure::Kernel(1), &kernel),
        (Failure::Kernel(30), &kernel),
        (Failure::Kernel(60), &kernel),
        (Failure::KernelPanic(33), &kernel),
        (Failure::DeviceLoss(1), &lost),
        (Failure::DeviceLoss(77), &lost),
    ];
    for (failure, fits) in cases {
        let device = device(2, Emulation { failures: vec![failure], ..Emulation::default() });
        let step = Arc::new(lower(&graph, &*device).unwrap());
        let free = limits(&device, Bytes::MAX);
        let compiled = common::compile(&step, &common::evict_all(&step.trace), &free);
        let init = |_: &tensile_core::Persistent, _: usize, _: &mut [u8]| {};
        let outcome =
            Executor::new(Arc::clone(&device), &compiled, ExecutorOptions::default(), init).and_then(|mut executor| {
                let mut run = || -> Result<(), ExecError> {
                    for iteration in 0..3 {
                        executor.step(&compiled, feed(iteration, &optimizer))?;
                    }
                    Ok(())
                };
                let result = run();
                // Afterwards the job says that it has failed, and nothing else.
                let again = executor.step(&compiled, feed(0, &optimizer)).unwrap_err();
                assert!(matches!(again, ExecError::Failed(_)), "{failure:?}: {again}");
                assert!(matches!(executor.state(), Err(ExecError::Failed(_))), "{failure:?}");
                result
            });
        match outcome {
            Err(ExecError::Device(error)) if fits(&error) => {}
            other => panic!("{failure:?} gives {other:?}"),
        }
        assert_eq!(count::current(Tag::Device), 0, "{failure:?}");
        assert_eq!((device.device_bytes(), device.host_bytes()), (Bytes::ZERO, Bytes::ZERO), "{failure:?}");
        // The same device serves again, unless it is lost; then a new one does.
        let device = if matches!(failure, Failure::DeviceLoss(_)) {
            let gone = device.alloc_arena(64).map(|_| ()).unwrap_err();
            assert!(lost(&gone), "{gone}");
            self::device(2, Emulation::default())
        } else {
            device
        };
        let mut executor = executor(&device, &compiled, ExecutorOptions::default());
        assert_eq!(run_steps(&mut executor, &compiled, &optimizer, 3), expected, "after {failure:?}");
    }
}

#[test]
fn a_failure_leaves_the_other_job_alone_and_a_lost_device_ends_both() {
    let _turn = turn();
    let (graph, optimizer) = adam_images();
    let expected = interpret_steps(&graph, &optimizer, 3);
    for loss in [false, true] {
        // Each job runs once before the failure strikes in the first job's second step.
        let probe = device(1, Emulation::default());
        let step = Arc::new(lower(&graph, &*probe).unwrap());
        let n_ops = step.trace.ops().len() as u64;
        let compiled = common::compile(&step, &common::keep_all(&step.trace), &limits(&probe, Bytes::MAX));
        let n_copies = compiled.planned().report.swap_ins + compiled.planned().report.swap_outs;
        let failure =
            if loss { Failure::DeviceLoss(2 * (n_ops + n_copies as u64) + 3) } else { Failure::Kernel(2 * n_ops + 3) };
        let device = device(2, Emulation { failures: vec![failure], ..Emulation::default() });
        let options = ExecutorOptions::default();
        let (mut first, mut second) = (executor(&device, &compiled, options), executor(&device, &compiled, options));
        first.step(&compiled, feed(0, &optimizer)).unwrap();
        let begun = second.step(&compiled, feed(0, &optimizer)).unwrap();
        assert_eq!(common::outputs_of(begun), expected.outputs[0]);
        let failed = first.step(&compiled, feed(1, &optimizer)).unwrap_err();
        if loss {
            assert!(matches!(failed, ExecError::Device(DeviceError::DeviceLost { .. })), "{failed}");
            let other = second.step(&compiled, feed(1, &optimizer)).unwrap_err();
            assert!(matches!(other, ExecError::Device(DeviceError::DeviceLost { .. })), "{other}");
        } else {
            assert!(matches!(failed, ExecError::Device(DeviceError::Kernel { .. })), "{failed}");
            drop(first);
            for iteration in 1..3 {
                let result = second.step(&compiled, feed(iteration, &optimizer)).unwrap();
                assert_eq!(common::outputs_of(result), expected.outputs[iteration as usize]);
            }
            assert_eq!(second.state().unwrap(), expected.state);
        }
    }
}

/// The device's capacity holds for all jobs together, and a new budget moves a job to another arena.
#[test]
fn capacity_is_shared_and_jobs_can_shrink() {
    let _turn = turn();
    let (graph, optimizer) = adam_images();
    let expected = interpret_steps(&graph, &optimizer, 4);
    let probe = device(1, Emulation::default());
    let step = Arc::new(lower(&graph, &*probe).unwrap());
    let free = limits(&probe, Bytes::MAX);
    let large = plan(&NoEviction, &step, &free);
    let budgets = budgets(&step, &free, 2);
    let small = plan(&Tensile::default(), &step, &Limits { device: budgets[0], ..free });
    let capacity = Bytes(large.arena().0 + small.arena().0);
    let options = HostOptions { capacity, ..HostOptions::nominal(1) };
    let device = Arc::new(HostDevice::new(options).unwrap());
    let mut first = executor(&device, &large, ExecutorOptions::default());
    let init = |_: &tensile_core::Persistent, _: usize, _: &mut [u8]| {};
    let refused = Executor::new(Arc::clone(&device), &large, ExecutorOptions::default(), init).map(|_| ()).unwrap_err();
    assert_eq!(refused, DeviceError::OutOfMemory { requested: large.arena(), free: small.arena() }.into());
    first.step(&large, feed(0, &optimizer)).unwrap();
    count::reset_peak();
    first.step(&small, feed(1, &optimizer)).unwrap();
    assert_eq!(device.device_bytes(), small.arena());
    assert_eq!(count::current(Tag::Device), small.arena().0);
    let second = executor(&device, &large, ExecutorOptions::default());
    // There is no room to grow again until the other job has gone; the job goes on as it is.
    let refused = first.step(&large, feed(2, &optimizer)).unwrap_err();
    assert!(matches!(refused, ExecError::Device(DeviceError::OutOfMemory { .. })), "{refused}");
    first.step(&small, feed(2, &optimizer)).unwrap();
    drop(second);
    let last = first.step(&large, feed(3, &optimizer)).unwrap();
    assert_eq!(common::outputs_of(last), expected.outputs[3]);
    assert_eq!(first.state().unwrap(), expected.state);
    assert!(count::peak(Tag::Device) <= capacity.0);
}

/// Evaluation from the boundary of training under the same budget: it changes nothing, and memory stays the same from epoch to epoch
/// (reported as tracel-ai/burn#4792).
#[test]
fn evaluation_takes_turns_with_training() {
    let _turn = turn();
    let optimizer = Optimizer::adam();
    let graph = common::classifier(Graph::new(), Some(&optimizer)).unwrap();
    let expected = interpret_steps(&graph, &optimizer, 6);
    let sibling = common::classifier(graph.sibling(), None).unwrap();
    let device = device(2, Emulation { poison: true, ..Emulation::default() });
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let evaluation = Arc::new(lower(&sibling, &*device).unwrap());
    let free = limits(&device, Bytes::MAX);
    for budget in budgets(&step, &free, 3) {
        let limits = Limits { device: budget, ..free.clone() };
        let training = plan(&Tensile::default(), &step, &limits);
        let boundary = Some(training.planned().synced.layout().homes.clone());
        let evaluating = plan(&Tensile::default(), &evaluation, &Limits { boundary, ..limits });
        count::reset_peak();
        let mut executor = executor(&device, &training, ExecutorOptions { profile: true, poison: true });
        let (mut losses, mut bytes) = (Vec::new(), Vec::new());
        for iteration in 0..6 {
            let ticket = executor.begin(&training, feed(iteration, &optimizer)).unwrap();
            // The step in flight is drained before the other program begins; its result waits for its ticket.
            let first = executor.begin(&evaluating, feed(100, &optimizer)).unwrap();
            let second = executor.begin(&evaluating, feed(100, &optimizer)).unwrap();
            let second = executor.finish(second).unwrap();
            assert_eq!(executor.finish(first).unwrap().outputs, second.outputs);
            losses.push(second.scalar("loss"));
            let trained = executor.finish(ticket).unwrap();
            assert_eq!(common::outputs_of(trained), expected.outputs[iteration as usize], "budget {budget}");
            bytes.push((executor.arena_bytes(), executor.host_bytes(), count::current(Tag::Device)));
        }
        assert_eq!(executor.state().unwrap(), expected.state, "budget {budget}");
        assert!(losses.windows(2).all(|pair| pair[0] != pair[1]), "evaluation sees training: {losses:?}");
        assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]), "{bytes:?}");
        assert!(count::peak(Tag::Device) <= budget.0);
    }
}

/// Shared by all jobs and bit-exact: a state that is saved in the middle and loaded by a job under another budget goes on as if nothing had been.
#[test]
fn a_checkpoint_continues_under_another_budget() {
    let _turn = turn();
    let optimizer = Optimizer::adam();
    let graph = common::classifier(Graph::new(), Some(&optimizer)).unwrap();
    let expected = interpret_steps(&graph, &optimizer, 6);
    let device = device(2, Emulation::default());
    let step = Arc::new(lower(&graph, &*device).unwrap());
    let free = limits(&device, Bytes::MAX);
    let budgets = budgets(&step, &free, 3);
    let compiled = [budgets[3], budgets[0]]
        .map(|budget| plan(&Tensile::default(), &step, &Limits { device: budget, ..free.clone() }));
    let path = std::env::temp_dir().join(format!("tensile-continue-{}.safetensors", std::process::id()));
    let mut first = executor(&device, &compiled[0], ExecutorOptions::default());
    let half = run_steps(&mut first, &compiled[0], &optimizer, 3);
    checkpoint::save(&path, &half.state, Contents::Training, &Default::default()).unwrap();
    drop(first);
    let mut second = executor(&device, &compiled[1], ExecutorOptions::default());
    second.write_state(&checkpoint::load(&path, &step.persistents, Contents::Training).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    for iteration in 3..6 {
        let result = second.step(&compiled[1], feed(iteration, &optimizer)).unwrap();
        assert_eq!(common::outputs_of(result), expected.outputs[iteration as usize]);
    }
    assert_eq!(second.state().unwrap(), expected.state);
}

/// Kernels allocate nothing that grows with the shapes: what they need is in their workspace, where the planner sees it.
#[test]
fn kernels_allocate_nothing() {
    let _turn = turn();
    let optimizer = Optimizer::adam();
    let graphs = [
        ("classifier", common::classifier_of(Graph::new(), Some(&optimizer), [32, 3, 24, 24]).unwrap()),
        ("evaluation", common::classifier_of(Graph::new(), None, [32, 3, 24, 24]).unwrap()),
    ];
    let cases = tensile_core::conformance::cases().into_iter().map(|case| (case.name, case.graph()));
    let mut guilty = Vec::new();
    for (name, graph) in cases.chain(graphs) {
        for threads in [1, 2] {
            let device = device(threads, Emulation::default());
            let step = Arc::new(lower(&graph, &*device).unwrap());
            let compiled = plan(&NoEviction, &step, &limits(&device, Bytes::MAX));
            let mut executor = executor(&device, &compiled, ExecutorOptions::default());
            count::reset_peak();
            executor
                .step(&compiled, |input, bytes| bytes.copy_from_slice(&Case::input(&input.name, &input.ty)))
                .unwrap();
            let scratch = count::peak(Tag::Device) - compiled.arena().0;
            if scratch > 0 {
                guilty.push((threads, name, scratch));
            }
        }
    }
    assert!(guilty.is_empty(), "(threads, case, bytes): {guilty:?}");
}
