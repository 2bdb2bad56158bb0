//! What an adapter must compute rightly before it is trusted.

use std::fmt;

use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::op::conv2d::Conv2d;
use tensile_core::op::dropout::Dropout;
use tensile_core::op::matmul::MatMul;
use tensile_core::op::reduce_sum::ReduceSum;
use tensile_core::op::softmax::Softmax;
use tensile_core::{Arg, Device, DeviceError, Lane, Op, OpCall, Region, TensorType};

use crate::WgpuDevice;
use crate::kernel::{Binding, Dispatch, Place, Plan};
use crate::shader::Shader;

/// Results of an adapter's tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfTest {
    /// What was computed, and what is wrong with the result if anything is.
    pub results: Vec<(&'static str, Option<String>)>,
}

impl SelfTest {
    /// What is wrong, if anything is.
    pub fn failure(&self) -> Option<String> {
        let wrong =
            self.results.iter().filter_map(|(what, wrong)| wrong.as_ref().map(|detail| format!("{what}: {detail}")));
        Some(wrong.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
    }
}

impl fmt::Display for SelfTest {
    /// `passed (long loop, matmul, …)`, or what failed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failure() {
            _ if self.results.is_empty() => f.write_str("not run"),
            Some(failure) => write!(f, "FAILED: {failure}"),
            None => {
                let names: Vec<&str> = self.results.iter().map(|(what, _)| *what).collect();
                write!(f, "passed ({})", names.join(", "))
            }
        }
    }
}

/// Turns of the loop that a driver is known to leave too early (after 65,535, Mesa 22.3).
const TURNS: u32 = 70_000;

static LOOP: Shader = Shader {
    name: "self-test loop",
    source: "fn run(group: u32, lane: u32) {\n    if group == 0u {\n        var x = 0u;\n        for (var i = 0u; i < p.turns; i++) {\n            x = x * 3u + 1u;\n        }\n        $y[0] = x;\n    }\n}\n",
    buffers: &[("y", "u32")],
    params: &[("turns", "u32")],
    snippets: &[],
    libraries: &[],
    workgroup: 1,
};

/// Numbers in [−1, 1), by a linear congruence.
fn numbers(n: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut bytes = Vec::with_capacity(4 * n);
    for _ in 0..n {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend_from_slice(&((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes());
    }
    bytes
}

/// Runs an op with one output on any device.
fn compute<D: Device>(device: &D, op: &Op, inputs: &[(TensorType, Vec<u8>)]) -> Result<Vec<u8>, DeviceError> {
    let types: Vec<TensorType> = inputs.iter().map(|(ty, _)| ty.clone()).collect();
    let output = op.def().infer(&types).expect("the tests' shapes fit").swap_remove(0);
    let scratch = device.workspace(op, &types, std::slice::from_ref(&output))?;
    let mut end = 0;
    let mut next = |bytes: u64| {
        let region = Region { offset: end, bytes };
        end = region.end().next_multiple_of(device.info().alignment);
        region
    };
    let regions: Vec<Region> = types.iter().map(|ty| next(ty.bytes() as u64)).collect();
    let (result, workspace) = (next(output.bytes() as u64), next(scratch));
    let arena = device.alloc_arena(end)?;
    for (region, (_, bytes)) in regions.iter().zip(inputs) {
        device.write(&arena, *region, bytes)?;
    }
    let args: Vec<Arg<'_>> = regions.iter().zip(&types).map(|(&region, ty)| Arg { region, ty }).collect();
    let stream = device.stream(Lane::Compute)?;
    let outputs = [Arg { region: result, ty: &output }];
    device.launch(&stream, &arena, &OpCall { op, inputs: &args, outputs: &outputs, workspace })?;
    device.synchronize(&stream)?;
    let mut bytes = vec![0; output.bytes()];
    device.read(&arena, result, &mut bytes)?;
    Ok(bytes)
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")))
}

fn run_loop(device: &WgpuDevice) -> Result<Option<String>, DeviceError> {
    let plan = Plan {
        workspace: 0,
        dispatches: vec![Dispatch {
            shader: &LOOP,
            bindings: vec![Binding { place: Place::Output(0), offset: 0, bytes: 4 }],
            params: vec![TURNS],
            groups: 1,
        }],
    };
    let arena = device.alloc_arena(256)?;
    let region = Region { offset: 0, bytes: 4 };
    device.dispatch("self-test loop", &plan, |_| arena.at(region))?;
    let mut bytes = [0; 4];
    device.read(&arena, region, &mut bytes)?;
    let right = (0..TURNS).fold(0u32, |x, _| x.wrapping_mul(3).wrapping_add(1));
    let got = u32::from_le_bytes(bytes);
    Ok((got != right).then(|| format!("{TURNS} turns give {got:#x}, not {right:#x}")))
}

/// Name, op, inputs, and most that a result may differ.
type Case = (&'static str, Op, Vec<(TensorType, Vec<u8>)>, f32);

/// Tests an adapter against the host device.
///
/// # Errors
/// If the device fails altogether; wrong results are in the answer.
pub(crate) fn run(device: &WgpuDevice) -> Result<SelfTest, DeviceError> {
    let host = HostDevice::new(HostOptions::nominal(1))?;
    let random = |dims: &[usize]| {
        let ty = TensorType::f32(dims);
        let bytes = numbers(ty.numel());
        (ty, bytes)
    };
    let key: Vec<u8> = [5i32, -7, 3, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let cases: Vec<Case> = vec![
        (
            "matmul",
            MatMul { trans_a: false, trans_b: false, sum_batch: false }.into(),
            vec![random(&[37, 70]), random(&[70, 29])],
            2e-5,
        ),
        ("convolution", Conv2d::new(1, 1).into(), vec![random(&[2, 5, 9, 7]), random(&[6, 5, 3, 3])], 2e-5),
        ("softmax", Softmax { causal: false }.into(), vec![random(&[5, 130])], 2e-6),
        ("reduction", ReduceSum { axes: vec![0], keep_dims: false, scale: 1.0 }.into(), vec![random(&[70_000])], 2e-4),
        ("Philox", Dropout { p: 0.3, number: 2 }.into(), vec![random(&[1001]), (TensorType::i32([4]), key)], 0.0),
    ];
    let mut test = SelfTest { results: vec![("long loop", run_loop(device)?)] };
    for (name, op, inputs, tolerance) in cases {
        let (got, right) = (compute(device, &op, &inputs)?, compute(&host, &op, &inputs)?);
        let worst = floats(&got).zip(floats(&right)).map(|(got, right)| {
            let difference = (got - right).abs() / (1.0 + right.abs());
            if difference.is_nan() { f32::INFINITY } else { difference }
        });
        let worst = worst.fold(0.0, f32::max);
        test.results
            .push((name, (worst > tolerance).then(|| format!("differs from the processor's result by {worst:.1e}"))));
    }
    Ok(test)
}
