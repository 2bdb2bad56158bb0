//! The device itself: progress, losses, memory that stays flat, limits that are made smaller.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{open, options, turn};
use tensile_core::conformance::{harness, reports, skipped};
use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::exec::{Compiled, ExecError, ExecutorOptions, lower};
use tensile_core::op::add::Add;
use tensile_core::op::matmul::MatMul;
use tensile_core::optim::{Optimizer, train};
use tensile_core::testing::{float_bytes, floats, values};
use tensile_core::{Arg, Device, DeviceError, Graph, Init, Lane, Op, OpCall, Region, TensorType};
use tensile_sched::{Bytes, Limits, NoEviction, Planner, Tensile};
use tensile_wgpu::{Emulation, WgpuDevice, WgpuOptions, adapters};

/// Resident memory of the process in bytes, if the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn add_64(device: &WgpuDevice, stream: &tensile_wgpu::WgpuStream, arena: &tensile_wgpu::WgpuArena) {
    let (op, ty): (Op, _) = (Add.into(), TensorType::f32([64]));
    let arg = |index: u64| Arg { region: Region { offset: 256 * index, bytes: 256 }, ty: &ty };
    let call = OpCall { op: &op, inputs: &[arg(0), arg(1)], outputs: &[arg(2)], workspace: Region::default() };
    device.launch(stream, arena, &call).expect("enqueued");
}

#[test]
fn adapters_tell_what_they_are() {
    let Some(device) = common::device() else { return skipped("adapters_tell_what_they_are") };
    let found = adapters();
    assert!(found.contains(device.adapter()), "{found:?}");
    assert!(found.iter().enumerate().all(|(index, info)| info.index == index && !info.name.is_empty()));
    assert_eq!(device.self_test().failure(), None, "{}", device.self_test());
    assert!(device.self_test().to_string().contains("Philox"), "{}", device.self_test());
}

#[test]
fn measured_rates_are_rates() {
    let _turn = turn();
    let Some(device) = open(WgpuOptions { rates: None, ..options() }) else {
        return skipped("measured_rates_are_rates");
    };
    let info = device.info();
    for rate in [info.flops_per_s, info.bytes_per_s, info.link.out_bytes_per_s, info.link.in_bytes_per_s] {
        assert!(rate > 1e6 && rate < 1e15, "{info:?}");
    }
}

/// Ops are timed by the adapter's clock where that is asked for: in order, and together no longer than the step.
#[test]
fn timestamps_time_every_op() {
    let _turn = turn();
    let Some(device) = open(WgpuOptions { timestamps: true, ..options() }) else {
        return skipped("timestamps_time_every_op");
    };
    let device = Arc::new(device);
    let (graph, optimizer) = (reports::mlp(0.5).expect("a graph"), Optimizer::adam());
    let step = Arc::new(lower(&graph, &*device).expect("all kernels"));
    let compiled = harness::compile(&step, &harness::evict_all(&step.trace), &device.info().limits(Bytes::MAX));
    let mut executor = harness::executor(&device, &compiled, ExecutorOptions { profile: true, poison: false });
    harness::run_steps(&mut executor, &compiled, &optimizer, 3);
    let stats = executor.stats(&compiled).expect("it has run").clone();
    assert!(stats.ops.iter().all(|op| op.count == 3 && op.total.0 > 0), "{stats:?}");
    assert!(stats.compute_time.0 > 0 && stats.compute_time <= stats.step_time, "{stats:?}");
    let spans = executor.latest_spans().expect("nothing failed").expect("profiled").spans;
    assert!(spans.windows(2).all(|pair| pair[0].start <= pair[1].end), "{spans:?}");
}

/// gfx-rs/wgpu#2266: copies to the host arrive though nobody polls and nothing else is submitted.
#[test]
fn c54_copies_arrive_without_polling() {
    let _turn = turn();
    let Some(device) = open(options()) else { return skipped("c54_copies_arrive_without_polling") };
    let arena = device.alloc_arena(4096).expect("memory");
    let host = device.alloc_host_arena(4096).expect("memory");
    let region = Region { offset: 0, bytes: 1000 };
    let (stream, event) = (device.stream(Lane::Out).expect("a stream"), device.event().expect("an event"));
    for round in 0..1000u32 {
        let data = vec![round as u8; 1000];
        device.write(&arena, region, &data).expect("written");
        device.copy_out(&stream, (&arena, region), (&host, region)).expect("enqueued");
        device.record(&stream, &event).expect("recorded");
        device.wait_event(&event).expect("it happens");
        let mut back = vec![0; 1000];
        device.read_host(&host, region, &mut back).expect("read");
        assert!(back == data, "round {round}");
    }
}

/// Where nothing drives progress, waiting ends with an error, not never.
#[test]
fn c54_no_progress_is_an_error() {
    let _turn = turn();
    let emulation = Emulation { no_progress: true, ..Emulation::default() };
    let stuck = WgpuOptions { emulation, timeout: Duration::from_millis(300), ..options() };
    let Some(device) = open(stuck) else { return skipped("c54_no_progress_is_an_error") };
    let arena = device.alloc_arena(4096).expect("memory");
    let host = device.alloc_host_arena(4096).expect("memory");
    let region = Region { offset: 0, bytes: 1000 };
    let (stream, event) = (device.stream(Lane::Out).expect("a stream"), device.event().expect("an event"));
    device.copy_out(&stream, (&arena, region), (&host, region)).expect("enqueued");
    device.record(&stream, &event).expect("recorded");
    let refused = device.wait_event(&event).unwrap_err();
    assert!(matches!(refused, DeviceError::Timeout { .. }), "{refused}");
    assert!(matches!(device.synchronize(&stream), Err(DeviceError::Timeout { .. })));
}

/// ALaggyDev/CoordsFinder#14: after a loss every job has a typed error, nothing hangs, and a new device opens in the same process.
#[test]
fn c56_a_lost_device_ends_its_jobs_and_no_others() {
    let _turn = turn();
    let Some(device) = open(options()) else { return skipped("c56_a_lost_device_ends_its_jobs_and_no_others") };
    let device = Arc::new(device);
    let (graph, optimizer) = (reports::mlp(0.5).expect("a graph"), Optimizer::adam());
    let step = Arc::new(lower(&graph, &*device).expect("all kernels"));
    let compiled = harness::compile(&step, &harness::evict_all(&step.trace), &device.info().limits(Bytes::MAX));
    let options = ExecutorOptions { profile: false, poison: false };
    let mut jobs = [0; 2].map(|_| harness::executor(&device, &compiled, options));
    let mut saved = None;
    for iteration in 0..5 {
        for job in &mut jobs {
            job.step(&compiled, harness::feed(iteration, &optimizer)).expect("a step");
        }
        if iteration == 3 {
            saved = Some(jobs[0].state().expect("nothing failed"));
        }
    }
    device.lose();
    for job in &mut jobs {
        let lost = job.step(&compiled, harness::feed(5, &optimizer)).unwrap_err();
        assert!(matches!(lost, ExecError::Device(DeviceError::DeviceLost { .. })), "{lost}");
        let again = job.step(&compiled, harness::feed(5, &optimizer)).unwrap_err();
        assert!(matches!(again, ExecError::Failed(DeviceError::DeviceLost { .. })), "{again}");
    }
    drop(jobs);
    // The last saved state goes on on a new device as it would have on the old one.
    let device = Arc::new(open(common::options()).expect("a new device"));
    let mut resumed = harness::executor(&device, &compiled, options);
    resumed.write_state(&saved.expect("saved before the loss")).expect("the same job");
    let mut whole = harness::executor(&device, &compiled, options);
    for iteration in 0..4 {
        whole.step(&compiled, harness::feed(iteration, &optimizer)).expect("a step");
    }
    let outputs = [&mut resumed, &mut whole]
        .map(|job| harness::outputs_of(job.step(&compiled, harness::feed(4, &optimizer)).expect("a step")));
    assert!(outputs[0] == outputs[1]);
    assert!(resumed.state().expect("works") == whole.state().expect("works"));
}

/// No dispatch of the largest products runs for long: they are divided, without a change of bits.
#[test]
fn c56_long_products_are_divided() {
    let Some(device) = common::device() else { return skipped("c56_long_products_are_divided") };
    let n = 512;
    let (op, ty): (Op, _) =
        (MatMul { trans_a: false, trans_b: false, sum_batch: false }.into(), TensorType::f32([n, n]));
    assert!(device.dispatches(&op, &[ty.clone(), ty.clone()], std::slice::from_ref(&ty)).expect("a kernel") == 1);
    let (tall, square) = (TensorType::f32([64 * n, n]), ty);
    let n_dispatches = device.dispatches(&op, &[tall.clone(), square], &[tall]).expect("a kernel");
    assert!(n_dispatches > 1, "{n_dispatches} dispatches");
}

/// gfx-rs/wgpu#7472: the driver never refuses, so the device's own ledger does: 256 MiB hold, and what is beside them is known.
#[test]
fn c52_the_ledger_refuses_what_the_driver_would_not() {
    let _turn = turn();
    let capacity = Bytes(256 << 20);
    let Some(device) = open(WgpuOptions { capacity, ..options() }) else {
        return skipped("c52_the_ledger_refuses_what_the_driver_would_not");
    };
    common::fill_staging(&device);
    let before = device.allocated_bytes().expect("this backend tells");
    let arena = device.alloc_arena(capacity.0).expect("all of it");
    let refused = device.alloc_arena(1).map(|_| ()).unwrap_err();
    assert_eq!(refused, DeviceError::OutOfMemory { requested: Bytes(1), free: Bytes::ZERO });
    let never = device.alloc_arena(600 << 20).map(|_| ()).unwrap_err();
    assert_eq!(never, DeviceError::TooLarge { requested: Bytes(600 << 20), capacity });
    let taken = device.allocated_bytes().expect("this backend tells").0 - before.0;
    assert!((capacity.0..capacity.0 + (1 << 20)).contains(&taken), "{taken} bytes allocated");
    assert!(device.staging_bytes() <= tensile_wgpu::MOST_STAGING);
    drop(arena);
    assert!(device.allocated_bytes().expect("this backend tells").0 < before.0 + (1 << 20));
}

/// tracel-ai/cubecl#1474: what fits once others have gone is not what never fits.
#[test]
fn c57_full_now_is_not_too_large() {
    let _turn = turn();
    // Less than is used when the device is tested and measured.
    let Some(device) = open(WgpuOptions { capacity: Bytes(8 << 20), rates: None, ..options() }) else {
        return skipped("c57_full_now_is_not_too_large");
    };
    let other = device.alloc_arena(6 << 20).expect("room");
    let full = device.alloc_arena(4 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(full, DeviceError::OutOfMemory { .. }), "{full}");
    drop(other);
    device.alloc_arena(4 << 20).expect("room again");
    let never = device.alloc_arena(9 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(never, DeviceError::TooLarge { .. }), "{never}");
}

#[test]
fn many_small_launches_leave_memory_flat() {
    let _turn = turn();
    let Some(device) = open(options()) else { return skipped("many_small_launches_leave_memory_flat") };
    let arena = device.alloc_arena(4096).expect("memory");
    let stream = device.stream(Lane::Compute).expect("a stream");
    let mut seen = Vec::new();
    for _ in 0..5 {
        for _ in 0..4000 {
            add_64(&device, &stream, &arena);
        }
        device.synchronize(&stream).expect("they work");
        seen.push((device.allocated_bytes(), resident()));
    }
    assert!(seen[1..].iter().all(|(bytes, _)| *bytes == seen[1].0), "{seen:?}");
    if let (Some(first), Some(last)) = (seen[1].1, seen[4].1) {
        assert!(last < first + (8 << 20), "resident memory grew from {first} to {last} in 12,000 launches");
    }
}

#[test]
fn opening_and_closing_leaks_nothing() {
    let _turn = turn();
    if common::device().is_none() {
        return skipped("opening_and_closing_leaks_nothing");
    }
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count());
    let mut seen = Vec::new();
    for round in 0..50 {
        let device = open(options()).expect("an adapter");
        let arena = device.alloc_arena(1 << 20).expect("memory");
        let stream = device.stream(Lane::Compute).expect("a stream");
        add_64(&device, &stream, &arena);
        device.synchronize(&stream).expect("works");
        drop((arena, stream, device));
        if round % 10 == 9 {
            seen.push((threads(), resident()));
        }
    }
    assert!(seen[1..].iter().all(|(threads, _)| *threads <= seen[0].0), "{seen:?}");
    if let (Some(first), Some(last)) = (seen[1].1, seen[4].1) {
        assert!(last < first + (16 << 20), "resident memory grew from {first} to {last} in 30 rounds");
    }
}

/// Trains a parameter of `n` elements by w ← w − lr·x, in which a tensor of that size takes part in every elementwise way, and gives it.
fn train_large(device: &Arc<impl Device>, n: usize, percent: Option<u64>) -> Vec<u8> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32([n])).expect("new");
    let weight = graph.parameter("w", [n], Init::Uniform { bound: 1.0 }).expect("new");
    let y = graph.mul(weight, x).expect("types fit");
    let y = graph.relu(y).expect("types fit");
    let loss = graph.mean(y, &[0]).expect("types fit");
    let loss = graph.reshape(loss, []).expect("one element");
    graph.output("loss", loss).expect("new");
    let optimizer = Optimizer { chunk_bytes: usize::MAX, ..Optimizer::adam() };
    train(&mut graph, loss, &optimizer).expect("a gradient");
    let step = Arc::new(lower(&graph, &**device).unwrap_or_else(|error| panic!("{error}")));
    let free = device.info().limits(Bytes::MAX);
    let none = NoEviction.plan(&step.trace, &free).expect("there is no limit");
    let (planned, limits) = match percent {
        None => (none, free),
        Some(percent) => {
            let lowest = tensile_sched::floor(&step.trace, &free).expect("a floor").bytes;
            let budget = Bytes(none.report.arena.0 * percent / 100).max(lowest);
            let limits = Limits { device: budget, ..free };
            (Tensile::default().plan(&step.trace, &limits).unwrap_or_else(|error| panic!("{error}")), limits)
        }
    };
    let compiled = Compiled::new(step, planned, limits).expect("planners make right programs");
    let mut executor = harness::executor(device, &compiled, ExecutorOptions { profile: false, poison: false });
    for iteration in 0..2 {
        executor.step(&compiled, harness::feed(iteration, &optimizer)).expect("a step");
    }
    executor.read_persistent("w").expect("there")
}

/// gfx-rs/wgpu#6221, and limits that are reached: tensors just under, at and over what a kernel sees at a time, in memory of small blocks.
#[test]
fn c48_small_limits_hold_large_tensors() {
    let _turn = turn();
    let emulation = Emulation { block: Some(32 << 20), binding: Some(16 << 20), ..Emulation::default() };
    let Some(device) = open(WgpuOptions { emulation, ..options() }) else {
        return skipped("c48_small_limits_hold_large_tensors");
    };
    assert_eq!((device.info().max_block, device.max_binding()), (32 << 20, Bytes(16 << 20)));
    let (device, host) = (Arc::new(device), Arc::new(HostDevice::new(HostOptions::nominal(2)).expect("a device")));
    let at_limit = (16 << 20) / 4;
    for n in [at_limit - 1, at_limit, at_limit + 1, at_limit + 70_001] {
        let right: Vec<f64> = floats(&train_large(&host, n, None)).into_iter().map(f64::from).collect();
        let got = train_large(&device, n, None);
        assert!(tensile_core::testing::largest_difference(&floats(&got), &right) < 1e-5, "{n} elements");
        assert!(train_large(&device, n, Some(60)) == got, "{n} elements: a budget changes the bits");
    }
}

/// What a kernel needs whole and cannot see whole is refused with its name, its size and the limit.
#[test]
fn c48_beyond_a_limit_is_a_typed_error() {
    let _turn = turn();
    let emulation = Emulation { binding: Some(1 << 20), ..Emulation::default() };
    let Some(device) = open(WgpuOptions { emulation, ..options() }) else {
        return skipped("c48_beyond_a_limit_is_a_typed_error");
    };
    let op: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
    let types = [TensorType::f32([8, 65_536]), TensorType::f32([65_536, 4]), TensorType::f32([8, 4])];
    let refused = device.workspace(&op, &types[..2], &types[2..]).unwrap_err();
    let DeviceError::Binding { op, tensor, bytes, limit, .. } = &refused else { panic!("{refused}") };
    assert_eq!((op.as_str(), *bytes, *limit), ("matmul", Bytes(2 << 20), Bytes(1 << 20)));
    assert!(tensor.contains("f32[8, 65536]") && refused.to_string().contains("batch"), "{refused}");
    // The device goes on.
    let arena = device.alloc_arena(4096).expect("memory");
    let x = values(64, 3);
    device.write(&arena, Region { offset: 0, bytes: 256 }, &float_bytes(&x)).expect("written");
    device.write(&arena, Region { offset: 256, bytes: 256 }, &float_bytes(&x)).expect("written");
    let stream = device.stream(Lane::Compute).expect("a stream");
    add_64(&device, &stream, &arena);
    device.synchronize(&stream).expect("works");
    let mut sum = vec![0; 256];
    device.read(&arena, Region { offset: 512, bytes: 256 }, &mut sum).expect("read");
    assert_eq!(floats(&sum), x.iter().map(|x| x + x).collect::<Vec<_>>());
}
