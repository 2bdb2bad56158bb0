//! Copies, and events between streams.

use std::sync::Arc;

use tensile_sched::Lane;

use super::{Places, args, pattern, read, write};
use crate::device::{Device, DeviceError, OpCall, Region};
use crate::op::add::Add;
use crate::tensor::TensorType;
use crate::testing::{float_bytes, floats};

/// Copies of odd sizes between odd places move exactly the bytes named, both ways.
///
/// # Panics
/// If not.
pub fn copies<D: Device>(device: &Arc<D>) {
    let device = &**device;
    let unit = device.info().alignment;
    let arena = device.alloc_arena(64 * unit).expect("a small arena");
    let host = device.alloc_host_arena(64 * unit).expect("a small host arena");
    let whole = Region { offset: 0, bytes: 64 * unit };
    let (out, back) = (device.stream(Lane::Out).expect("a stream"), device.stream(Lane::In).expect("a stream"));
    let done = device.event().expect("an event");
    for (index, bytes) in [1, 3, unit - 1, unit, 7 * unit + 5, 20 * unit + 2].into_iter().enumerate() {
        let seed = index as u8;
        let from = Region { offset: 3 * unit, bytes };
        let slot = Region { offset: 5 * unit, bytes };
        let to = Region { offset: 33 * unit, bytes };
        let before = pattern(whole.bytes, 100 + seed);
        let host_before = pattern(whole.bytes, 200 + seed);
        write(device, &arena, whole, &before);
        device.write_host(&host, whole, &host_before).expect("host bytes can be written");
        device.copy_out(&out, (&arena, from), (&host, slot)).expect("enqueued");
        device.record(&out, &done).expect("recorded");
        device.wait(&back, &done).expect("enqueued");
        device.copy_in(&back, (&host, slot), (&arena, to)).expect("enqueued");
        device.synchronize(&back).expect("the copies work");
        device.synchronize(&out).expect("the copies work");

        let moved = before[from.offset as usize..from.end() as usize].to_vec();
        let expect = |mut bytes: Vec<u8>, region: Region| {
            bytes[region.offset as usize..region.end() as usize].copy_from_slice(&moved);
            bytes
        };
        let mut host_after = vec![0; whole.bytes as usize];
        device.read_host(&host, whole, &mut host_after).expect("host bytes can be read");
        assert!(host_after == expect(host_before, slot), "{bytes} bytes out");
        assert!(read(device, &arena, whole) == expect(before, to), "{bytes} bytes in");
    }
}

/// A chain of kernels and copies over three streams, ordered by events that are recorded again and again, gives the right sums.
///
/// # Panics
/// If not.
pub fn events<D: Device>(device: &Arc<D>) {
    let device = &**device;
    let n = 10_007usize;
    let ty = [TensorType::f32([n]), TensorType::f32([n])];
    let mut places = Places::new(device);
    let [x, step, sum] = [0; 3].map(|_| places.next(4 * n as u64));
    let arena = device.alloc_arena(places.end).expect("a small arena");
    let host = device.alloc_host_arena(places.end).expect("a small host arena");
    let streams = Lane::ALL.map(|lane| device.stream(lane).expect("a stream"));
    let [compute, out, back] = &streams;
    let [start, added, saved, restored] = [0; 4].map(|_| device.event().expect("an event"));

    // Nothing has been recorded: nothing to wait for, and no time.
    device.wait(compute, &added).expect("enqueued");
    device.wait_event(&added).expect("returns at once");
    assert_eq!(device.elapsed_ns(&start, &added), Err(DeviceError::NotRecorded));

    write(device, &arena, x, &float_bytes(&vec![0.0; n]));
    write(device, &arena, step, &float_bytes(&(0..n).map(|i| i as f32).collect::<Vec<_>>()));
    let add = Add.into();
    let (inputs, outputs) = (args(&[x, step], &ty), args(&[sum], &ty));
    let call = OpCall { op: &add, inputs: &inputs, outputs: &outputs, workspace: Region::default() };
    let workspace = device.workspace(&add, &ty, &ty[..1]).expect("every device can add");
    assert_eq!(workspace, 0, "a sum needs no scratch");
    let rounds = 40;
    device.record(compute, &start).expect("recorded");
    for _ in 0..rounds {
        // sum = x + step; x = sum, by way of the host.
        device.wait(compute, &restored).expect("enqueued");
        device.launch(compute, &arena, &call).expect("enqueued");
        device.record(compute, &added).expect("recorded");
        device.wait(out, &added).expect("enqueued");
        device.copy_out(out, (&arena, sum), (&host, sum)).expect("enqueued");
        device.record(out, &saved).expect("recorded");
        device.wait(back, &saved).expect("enqueued");
        device.copy_in(back, (&host, sum), (&arena, x)).expect("enqueued");
        device.record(back, &restored).expect("recorded");
    }
    device.wait_event(&restored).expect("all work is done");
    let right: Vec<f32> = (0..n).map(|i| (rounds * i) as f32).collect();
    assert!(floats(&read(device, &arena, x)) == right);
    streams.iter().for_each(|stream| device.synchronize(stream).expect("nothing failed"));
    assert!(device.elapsed_ns(&start, &restored).expect("both have happened") > 0);
    assert_eq!(device.elapsed_ns(&start, &start), Ok(0));
}
