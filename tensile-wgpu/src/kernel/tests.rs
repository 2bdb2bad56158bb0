//! What tests of kernels share: [`check`] runs one op on an adapter and on the host device and compares. Shaders are validated without an adapter.

use std::sync::OnceLock;

use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::testing::{floats, largest_difference};
use tensile_core::{Arg, DType, Device, Lane, Op, OpCall, Region, TensorType};

use super::{ALIGNMENT, Caps, Place, Plan, Types, plan, shaders};
use crate::adapter::{AdapterChoice, AdapterError, open};
use crate::gpu::{Gpu, Slice};

/// An adapter for all tests of this process; none where the machine has none, which in continuous integration is a failure.
pub(super) fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let choice = AdapterChoice::from_env().expect("the environment's choice of an adapter");
    GPU.get_or_init(|| match open(&choice, false, crate::device::Emulation::default()) {
        Ok((gpu, _)) => Some(gpu),
        Err(AdapterError::NoDriver) if std::env::var_os("CI").is_none() => None,
        Err(error) => panic!("{error}"),
    })
    .as_ref()
}

/// What a launch leaves behind: outputs, then updated inputs.
pub(super) type Left = Vec<Vec<u8>>;

/// Places tensors one after another with a gap behind each, and scratch at the end.
struct Layout {
    inputs: Vec<Region>,
    outputs: Vec<Region>,
    workspace: Region,
    end: u64,
}

fn layout(first: u64, inputs: &[&TensorType], outputs: &[&TensorType], workspace: u64) -> Layout {
    let mut end = first;
    let mut next = |bytes: u64| {
        let region = Region { offset: end, bytes };
        end = (region.end() + 1).next_multiple_of(ALIGNMENT);
        region
    };
    let inputs = inputs.iter().map(|ty| next(ty.bytes() as u64)).collect();
    let outputs = outputs.iter().map(|ty| next(ty.bytes() as u64)).collect();
    let workspace = next(workspace);
    Layout { inputs, outputs, workspace, end }
}

fn on_host(op: &Op, inputs: &[(TensorType, Vec<u8>)], outputs: &[TensorType]) -> Left {
    let device = HostDevice::new(HostOptions::nominal(1)).expect("a host device");
    let input_types: Vec<TensorType> = inputs.iter().map(|(ty, _)| ty.clone()).collect();
    let workspace = device.workspace(op, &input_types, outputs).expect("the host has all kernels");
    let at = layout(0, &input_types.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>(), workspace);
    let arena = device.alloc_arena(at.end).expect("a small arena");
    for (region, (_, bytes)) in at.inputs.iter().zip(inputs) {
        device.write(&arena, *region, bytes).expect("written");
    }
    let args = |regions: &[Region], types: &'static [TensorType]| -> Vec<Arg<'static>> {
        regions.iter().zip(types).map(|(&region, ty)| Arg { region, ty }).collect()
    };
    let input_types: &'static [TensorType] = input_types.leak();
    let output_types: &'static [TensorType] = outputs.to_vec().leak();
    let (input_args, output_args) = (args(&at.inputs, input_types), args(&at.outputs, output_types));
    let stream = device.stream(Lane::Compute).expect("a stream");
    let call = OpCall { op, inputs: &input_args, outputs: &output_args, workspace: at.workspace };
    device.launch(&stream, &arena, &call).and_then(|()| device.synchronize(&stream)).expect("the host's kernel works");
    left(op, &at, |region| {
        let mut bytes = vec![0; region.bytes as usize];
        device.read(&arena, region, &mut bytes).expect("read");
        bytes
    })
}

fn left(op: &Op, at: &Layout, read: impl Fn(Region) -> Vec<u8>) -> Left {
    let updated = op.def().updates().iter().map(|&index| at.inputs[index]);
    at.outputs.iter().copied().chain(updated).map(read).collect()
}

/// Runs on the adapter at addresses from `first` on; `pair` is an input and an output that share their bytes. Bytes beside the tensors must stay.
fn on_gpu(
    gpu: &Gpu,
    caps: &Caps,
    op: &Op,
    inputs: &[(TensorType, Vec<u8>)],
    outputs: &[TensorType],
    first: u64,
    pair: Option<(usize, usize)>,
) -> Left {
    let name = op.def().name();
    let input_types: Vec<&TensorType> = inputs.iter().map(|(ty, _)| ty).collect();
    let output_types: Vec<&TensorType> = outputs.iter().collect();
    let types = Types { inputs: &input_types, outputs: &output_types };
    let plan = plan(op, types, caps).unwrap_or_else(|why| panic!("{name}: {why:?}"));
    for binding in plan.dispatches.iter().flat_map(|dispatch| &dispatch.bindings) {
        assert!(binding.bytes <= caps.max_binding, "{name}: {binding:?} is over {} bytes", caps.max_binding);
    }
    let mut at = layout(first, &input_types, &output_types, plan.workspace);
    if let Some((input, output)) = pair {
        at.outputs[output] = at.inputs[input];
    }
    let mut image = vec![0xffu8; at.end as usize];
    for (region, (_, bytes)) in at.inputs.iter().zip(inputs) {
        image[region.offset as usize..region.end() as usize].copy_from_slice(bytes);
    }
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
    let buffer = |usage| {
        gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: at.end,
            usage,
            mapped_at_creation: false,
        })
    };
    let (arena, back) = (buffer(usage), buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST));
    gpu.queue.write_buffer(&arena, 0, &image);
    let resolve = |place: Place| {
        let region = match place {
            Place::Input(index) => at.inputs[index],
            Place::Output(index) => at.outputs[index],
            Place::Workspace => at.workspace,
        };
        Slice { buffer: &arena, offset: region.offset, bytes: region.bytes }
    };
    let prepared = gpu.prepare(&plan, resolve).unwrap_or_else(|error| panic!("{name}: {error}"));
    let after = gpu
        .checked(|| {
            let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            prepared.iter().for_each(|dispatch| dispatch.encode(&mut pass));
            drop(pass);
            encoder.copy_buffer_to_buffer(&arena, 0, &back, 0, at.end);
            gpu.queue.submit([encoder.finish()]);
            back.map_async(wgpu::MapMode::Read, .., |result| result.expect("mapped"));
            gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
            back.get_mapped_range(..).expect("mapped").to_vec()
        })
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut written = vec![false; at.end as usize];
    let updated: Vec<Region> = op.def().updates().iter().map(|&index| at.inputs[index]).collect();
    for region in at.outputs.iter().chain([&at.workspace]).chain(&updated) {
        written[region.offset as usize..region.end() as usize].fill(true);
    }
    let spoilt = (0..image.len()).find(|&byte| !written[byte] && image[byte] != after[byte]);
    assert!(spoilt.is_none(), "{name}: byte {spoilt:?} beside its outputs was written");
    left(op, &at, |region| after[region.offset as usize..region.end() as usize].to_vec())
}

/// What an op's kernel gives on the adapter, and what the host's gives: outputs, then updated inputs. None without an adapter.
pub(super) fn results(op: impl Into<Op>, inputs: &[(TensorType, Vec<u8>)]) -> Option<[Left; 2]> {
    let op = op.into();
    let gpu = gpu()?;
    let types: Vec<TensorType> = inputs.iter().map(|(ty, _)| ty.clone()).collect();
    let outputs = op.def().infer(&types).unwrap_or_else(|error| panic!("{}: {error}", op.def().name()));
    Some([on_gpu(gpu, &gpu.caps, &op, inputs, &outputs, 0, None), on_host(&op, inputs, &outputs)])
}

/// Checks an op's kernel against the host's: floats differ by |a − b|/(1 + |b|) of at most `tolerance`, all else is equal; a rerun at other
/// addresses and every permitted use in place give the same bits; nothing beside the outputs is written.
pub(super) fn check(op: impl Into<Op>, inputs: &[(TensorType, Vec<u8>)], tolerance: f64) {
    check_with(|caps| caps, op, inputs, tolerance);
}

/// [`check`] for an adapter that has at most `max_binding` bytes in a binding, so that kernels work in windows.
pub(super) fn check_windows(max_binding: u64, op: impl Into<Op>, inputs: &[(TensorType, Vec<u8>)], tolerance: f64) {
    check_with(|caps| Caps { max_binding, ..caps }, op, inputs, tolerance);
}

/// [`check`] for an adapter with other capabilities. Gives what the kernel leaves, nothing without an adapter.
pub(super) fn check_with(
    caps: impl Fn(Caps) -> Caps,
    op: impl Into<Op>,
    inputs: &[(TensorType, Vec<u8>)],
    tolerance: f64,
) -> Left {
    let op = op.into();
    let def = op.def();
    let Some(gpu) = gpu() else {
        tensile_core::conformance::skipped(def.name());
        return Left::new();
    };
    let caps = caps(gpu.caps);
    let types: Vec<TensorType> = inputs.iter().map(|(ty, _)| ty.clone()).collect();
    let outputs = def.infer(&types).unwrap_or_else(|error| panic!("{}: {error}", def.name()));
    let expected = on_host(&op, inputs, &outputs);
    let got = on_gpu(gpu, &caps, &op, inputs, &outputs, 0, None);
    let updated = def.updates().iter().map(|&index| &types[index]);
    for (index, (ty, (got, expected))) in outputs.iter().chain(updated).zip(got.iter().zip(&expected)).enumerate() {
        if ty.dtype != DType::F32 {
            assert!(got == expected, "{}: result {index} {ty} differs", def.name());
            continue;
        }
        let difference = difference(&floats(got), &floats(expected));
        assert!(difference <= tolerance, "{}: result {index} {ty} differs by {difference:.1e}", def.name());
    }
    assert!(
        on_gpu(gpu, &caps, &op, inputs, &outputs, 3 * ALIGNMENT, None) == got,
        "{}: a rerun has other bits",
        def.name()
    );
    for &(input, output) in def.in_place() {
        if types[input].bytes() == outputs[output].bytes() {
            let in_place = on_gpu(gpu, &caps, &op, inputs, &outputs, ALIGNMENT, Some((input, output)));
            assert!(in_place == got, "{}: other bits in place", def.name());
        }
    }
    got
}

/// Largest |a − b|/(1 + |b|); NaN against NaN and an infinity against itself do not differ.
fn difference(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len(), "lengths differ");
    let pairs = got.iter().zip(expected).filter(|(a, b)| a != b && !(a.is_nan() && b.is_nan()));
    let (a, b): (Vec<f32>, Vec<f64>) = pairs.map(|(&a, &b)| (a, f64::from(b))).unzip();
    largest_difference(&a, &b)
}

/// [`check`], also as on a graphics processor, and with large dispatches in parts.
pub(super) fn check_all_caps(op: impl Into<Op>, inputs: &[(TensorType, Vec<u8>)], tolerance: f64) {
    let op = op.into();
    check(op.clone(), inputs, tolerance);
    check_with(|caps| Caps { software: false, ..caps }, op.clone(), inputs, tolerance);
    check_with(|caps| Caps { max_flops: 3000.0, ..caps }, op, inputs, tolerance);
}

/// An f32 tensor of numbers in [−1, 1).
pub(super) fn random(shape: impl Into<tensile_core::Shape>, seed: u64) -> (TensorType, Vec<u8>) {
    let ty = TensorType::f32(shape);
    let bytes = tensile_core::testing::float_bytes(&tensile_core::testing::values(ty.numel(), seed));
    (ty, bytes)
}

/// Seconds that a plan takes on tensors of zeros: the best of several runs. For tests that print speeds.
pub(super) fn seconds(gpu: &Gpu, plan: &Plan, types: Types<'_>) -> f64 {
    let at = layout(0, types.inputs, types.outputs, plan.workspace);
    let arena = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: at.end,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let resolve = |place: Place| {
        let region = match place {
            Place::Input(index) => at.inputs[index],
            Place::Output(index) => at.outputs[index],
            Place::Workspace => at.workspace,
        };
        Slice { buffer: &arena, offset: region.offset, bytes: region.bytes }
    };
    let prepared = gpu.prepare(plan, resolve).expect("prepared");
    let run = || {
        let start = std::time::Instant::now();
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        prepared.iter().for_each(|dispatch| dispatch.encode(&mut pass));
        drop(pass);
        gpu.queue.submit([encoder.finish()]);
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device works");
        start.elapsed().as_secs_f64()
    };
    (0..4).map(|_| run()).fold(f64::INFINITY, f64::min)
}

#[test]
fn shaders_are_valid_and_their_names_unique() {
    let mut names = std::collections::BTreeSet::new();
    for shader in shaders() {
        assert!(names.insert(shader.name), "two shaders are called '{}'", shader.name);
        assert!(shader.buffers.len() <= 8 && shader.params.len() <= 32 && shader.workgroup <= 256, "{}", shader.name);
        let text = shader.wgsl(&(0..shader.buffers.len()).collect::<Vec<_>>());
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|error| panic!("{}: {}", shader.name, error.emit_to_string(&text)));
        let capabilities = naga::valid::Capabilities::IMMEDIATES;
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities)
            .validate(&module)
            .unwrap_or_else(|error| panic!("{}: {}", shader.name, error.emit_to_string(&text)));
    }
}

/// An f32 tensor of these numbers.
pub(super) fn given(values: &[f32]) -> (TensorType, Vec<u8>) {
    (TensorType::f32([values.len()]), tensile_core::testing::float_bytes(values))
}

/// An f32 tensor of `n` numbers from `low` to `high`, equally far apart.
pub(super) fn range(low: f32, high: f32, n: usize) -> (TensorType, Vec<u8>) {
    given(&(0..n).map(|i| low + (high - low) * i as f32 / (n - 1) as f32).collect::<Vec<_>>())
}
