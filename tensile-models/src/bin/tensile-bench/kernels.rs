//! Single kernels, timed through the public interface of a device.

use std::time::Instant;

use serde::Serialize;
use tensile_core::device::host::HostDevice;
use tensile_core::op::conv2d::Conv2d;
use tensile_core::op::matmul::MatMul;
use tensile_core::{Arg, Device, DeviceError, Lane, Op, OpCall, Region, TensorType};

/// One kernel on a device and on the host device.
#[derive(Serialize)]
pub(crate) struct KernelAnswer {
    kernel: &'static str,
    flops: f64,
    seconds: f64,
    host_seconds: f64,
}

/// A product of 1024×1024 matrices, and a 3×3 convolution as in the first stage of ResNets.
pub(crate) fn measure<D: Device>(device: &D, host: &HostDevice) -> anyhow::Result<Vec<KernelAnswer>> {
    let matmul: Op = MatMul { trans_a: false, trans_b: false, sum_batch: false }.into();
    let square = TensorType::f32([1024, 1024]);
    let (images, filters) = (TensorType::f32([2, 64, 56, 56]), TensorType::f32([64, 64, 3, 3]));
    [
        ("matmul 1024³", matmul, [square.clone(), square]),
        ("3×3 convolution, 2×64×56×56 to 64 channels", Conv2d::new(1, 1).into(), [images, filters]),
    ]
    .into_iter()
    .map(|(kernel, op, inputs)| {
        let output = op.def().infer(&inputs)?.swap_remove(0);
        Ok(KernelAnswer {
            kernel,
            flops: op.def().cost(&inputs, std::slice::from_ref(&output)).flops,
            seconds: seconds(device, &op, &inputs, &output)?,
            host_seconds: seconds(host, &op, &inputs, &output)?,
        })
    })
    .collect()
}

/// Least time of a launch of some, after one to warm up.
fn seconds<D: Device>(device: &D, op: &Op, inputs: &[TensorType], output: &TensorType) -> Result<f64, DeviceError> {
    let scratch = device.workspace(op, inputs, std::slice::from_ref(output))?;
    let mut end = 0;
    let mut next = |bytes: u64| {
        let region = Region { offset: end, bytes };
        end = region.end().next_multiple_of(device.info().alignment);
        region
    };
    let regions: Vec<Region> = inputs.iter().map(|ty| next(ty.bytes() as u64)).collect();
    let (result, workspace) = (next(output.bytes() as u64), next(scratch));
    let arena = device.alloc_arena(end)?;
    for region in &regions {
        let numbers: Vec<f32> = (0..region.bytes / 4).map(|i| (i % 17) as f32 - 8.0).collect();
        device.write(&arena, *region, bytemuck::cast_slice(&numbers))?;
    }
    let args: Vec<Arg<'_>> = regions.iter().zip(inputs).map(|(&region, ty)| Arg { region, ty }).collect();
    let outputs = [Arg { region: result, ty: output }];
    let call = OpCall { op, inputs: &args, outputs: &outputs, workspace };
    let stream = device.stream(Lane::Compute)?;
    let mut best = f64::INFINITY;
    for run in 0..=5 {
        let start = Instant::now();
        device.launch(&stream, &arena, &call)?;
        device.synchronize(&stream)?;
        if run > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}
