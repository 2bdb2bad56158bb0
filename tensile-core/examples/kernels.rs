//! Speed of matrix products and convolutions on the host, beside that of the `gemm` crate in the same run.
//!
//! `cargo run -p tensile-core --example kernels [THREADS [FILTER]]`. Each time is the best of several; every case is measured between two
//! measurements of the reference, and the ratio is to the reference's best over the whole run. With a filter, only cases whose name contains it.

#![allow(clippy::print_stdout)] // a program

use std::ptr::NonNull;
use std::time::Instant;

use tensile_core::device::host::{HostArg, HostCall};
use tensile_core::op::conv2d::{Conv2d, Conv2dInputGrad, Conv2dWeightGrad};
use tensile_core::op::matmul::MatMul;
use tensile_core::{Op, TensorType};

const BATCH: usize = 8;

/// Convolutions of ResNet-50 at 224²: how many, input channels, output channels, input size, kernel, stride.
const RESNET_50: [[usize; 6]; 21] = [
    [1, 3, 64, 224, 7, 2],
    [1, 64, 64, 56, 1, 1],
    [3, 64, 64, 56, 3, 1],
    [4, 64, 256, 56, 1, 1],
    [2, 256, 64, 56, 1, 1],
    [1, 256, 128, 56, 1, 1],
    [1, 128, 128, 56, 3, 2],
    [3, 128, 128, 28, 3, 1],
    [4, 128, 512, 28, 1, 1],
    [1, 256, 512, 56, 1, 2],
    [3, 512, 128, 28, 1, 1],
    [1, 512, 256, 28, 1, 1],
    [1, 256, 256, 28, 3, 2],
    [5, 256, 256, 14, 3, 1],
    [6, 256, 1024, 14, 1, 1],
    [1, 512, 1024, 28, 1, 2],
    [5, 1024, 256, 14, 1, 1],
    [1, 1024, 512, 14, 1, 1],
    [1, 512, 512, 14, 3, 2],
    [2, 512, 512, 7, 3, 1],
    [3, 512, 2048, 7, 1, 1],
];

/// Convolutions of other kinds, in VGG-16, DenseNet-121 and Inception V3: input channels, output channels, input size, kernel height and width.
const OTHERS: [[usize; 5]; 10] = [
    [64, 64, 224, 3, 3],
    [512, 512, 28, 3, 3],
    [128, 32, 56, 3, 3],
    [128, 32, 28, 3, 3],
    [128, 32, 14, 3, 3],
    [128, 32, 7, 3, 3],
    [512, 128, 14, 1, 1],
    [48, 64, 35, 5, 5],
    [160, 160, 17, 1, 7],
    [160, 160, 17, 7, 1],
];

/// 64 bytes at an aligned address.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

fn buffer(bytes: usize) -> Vec<Line> {
    let mut state = 1u32;
    let mut number = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..bytes.div_ceil(64).max(1)).map(|_| Line(std::array::from_fn(|_| number()))).collect()
}

fn pointer(buffer: &mut [Line]) -> NonNull<u8> {
    NonNull::new(buffer.as_mut_ptr().cast()).expect("a vector's pointer is not null")
}

/// Best seconds of some runs, after one to warm up.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 3 || (runs < 30 && start.elapsed().as_secs_f64() < 0.5) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// Seconds of an op.
fn time(op: &Op, inputs: &[TensorType], threads: usize) -> f64 {
    let outputs = op.def().infer(inputs).expect("the shapes fit");
    let mut buffers: Vec<Vec<Line>> = inputs.iter().chain(&outputs).map(|ty| buffer(ty.bytes())).collect();
    let workspace_bytes = op.def().host_workspace(inputs, &outputs, threads);
    let mut workspace = buffer(workspace_bytes);
    let args: Vec<HostArg<'_>> = (buffers.iter_mut().zip(inputs.iter().chain(&outputs)))
        .map(|(buffer, ty)| HostArg::new(pointer(buffer), ty))
        .collect();
    let (inputs, outputs) = args.split_at(inputs.len());
    best(|| {
        // SAFETY: every argument and the workspace is an aligned, initialised buffer of its own that nothing else uses during the call.
        let call = unsafe { HostCall::new(inputs, outputs, (pointer(&mut workspace), workspace_bytes), threads) };
        op.def().host_kernel(&call);
    })
}

/// Operations per second of the `gemm` crate on two square matrices.
fn reference(threads: usize) -> f64 {
    const N: usize = 1024;
    let (a, b, mut c) = (vec![0.5f32; N * N], vec![0.25f32; N * N], vec![0.0f32; N * N]);
    let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    let n = N as isize;
    let seconds = best(|| {
        // SAFETY: the three matrices have 1024 × 1024 elements, row-major.
        unsafe {
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            gemm::gemm(N, N, N, c, 1, n, false, a, 1, n, b, 1, n, 0.0, 1.0, false, false, false, parallelism);
        }
    });
    2.0 * (N * N * N) as f64 / seconds
}

struct Case {
    name: String,
    /// How often it counts in ResNet-50's total.
    in_total: usize,
    ops: Vec<(Op, Vec<TensorType>)>,
}

/// Forward, gradient of the input, gradient of the weight, with a square kernel.
fn convolution(in_total: usize, [c, k, size, kernel, stride]: [usize; 5], groups: usize) -> Case {
    convolution_by(in_total, [c, k, size], [kernel; 2], stride, groups)
}

/// The same with a kernel of any height and width.
fn convolution_by(in_total: usize, [c, k, size]: [usize; 3], kernel: [usize; 2], stride: usize, groups: usize) -> Case {
    let conv = Conv2d { padding: kernel.map(|taps| taps / 2), ..Conv2d::new(stride, 0).groups(groups) };
    let x = TensorType::f32([BATCH, c, size, size]);
    let w = TensorType::f32([k, c / groups, kernel[0], kernel[1]]);
    let forward: Op = conv.clone().into();
    let y = forward.def().infer(&[x.clone(), w.clone()]).expect("the shapes fit").remove(0);
    let input_grad = Conv2dInputGrad { conv: conv.clone(), size: [size; 2] };
    let weight_grad = Conv2dWeightGrad { conv, kernel };
    let groups = if groups > 1 { format!(" groups {groups}") } else { String::new() };
    Case {
        name: format!("conv {}x{}/{stride} {c:>4} -> {k:>4} at {size}{groups}", kernel[0], kernel[1]),
        in_total,
        ops: vec![
            (forward, vec![x.clone(), w.clone()]),
            (input_grad.into(), vec![y.clone(), w]),
            (weight_grad.into(), vec![y, x]),
        ],
    }
}

/// The same for a linear layer.
fn linear(rows: usize, inputs: usize, outputs: usize) -> Case {
    let (x, w) = (TensorType::f32([rows, inputs]), TensorType::f32([outputs, inputs]));
    let y = TensorType::f32([rows, outputs]);
    let matmul = |trans_a, trans_b| Op::from(MatMul { trans_a, trans_b, sum_batch: false });
    Case {
        name: format!("linear {rows} x {inputs} -> {outputs}"),
        in_total: 0,
        ops: vec![
            (matmul(false, true), vec![x.clone(), w.clone()]),
            (matmul(false, false), vec![y.clone(), w]),
            (matmul(true, false), vec![y, x]),
        ],
    }
}

fn cases() -> Vec<Case> {
    let square = TensorType::f32([1024, 1024]);
    let heads = TensorType::f32([96, 128, 64]);
    let batched = MatMul { trans_b: true, ..MatMul::default() };
    let mut cases = vec![
        Case {
            name: "matmul 1024^3".to_owned(),
            in_total: 0,
            ops: vec![(MatMul::default().into(), vec![square.clone(), square])],
        },
        Case {
            name: "matmul 96 x 128 x 64 x 128".to_owned(),
            in_total: 0,
            ops: vec![(batched.into(), vec![heads.clone(), heads])],
        },
        linear(512, 768, 3072),
        linear(BATCH, 2048, 1000),
        linear(BATCH, 25088, 4096),
    ];
    cases.extend(RESNET_50.map(|[count, c, k, size, kernel, stride]| {
        // The first layer's input is data, which needs no gradient.
        let mut case = convolution(count, [c, k, size, kernel, stride], 1);
        if c == 3 {
            case.ops.remove(1);
        }
        case
    }));
    cases.extend(OTHERS.map(|[c, k, size, rows, columns]| convolution_by(0, [c, k, size], [rows, columns], 1, 1)));
    cases.push(convolution(0, [128, 128, 28, 3, 1], 32));
    cases.push(convolution(0, [144, 144, 56, 3, 1], 144));
    cases
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(2, |n| n.parse().expect("THREADS is a number"));
    let filter = arguments.next().unwrap_or_default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
    pool.install(|| run(threads, &filter));
}

fn run(threads: usize, filter: &str) {
    let mut fastest = reference(threads);
    let mut rows = Vec::new();
    for case in cases().into_iter().filter(|case| case.name.contains(filter)) {
        let times: Vec<(f64, f64)> = (case.ops.iter())
            .map(|(op, inputs)| {
                let outputs = op.def().infer(inputs).expect("the shapes fit");
                (op.def().cost(inputs, &outputs).flops, time(op, inputs, threads))
            })
            .collect();
        fastest = fastest.max(reference(threads));
        rows.push((case, times));
    }
    println!("{threads} threads; the gemm crate's product of 1024 x 1024 matrices: {:.1} GFLOP/s", fastest / 1e9);
    println!("milliseconds (share of the gemm crate's rate): forward, gradient of the input, gradient of the weight");
    let (mut flops, mut seconds) = (0.0, 0.0);
    for (case, times) in rows {
        print!("{:36}", case.name);
        for (flops, seconds) in &times {
            print!(" {:8.2} ({:3.0} %)", seconds * 1e3, flops / seconds / fastest * 100.0);
        }
        let sums = times.iter().fold((0.0, 0.0), |sums, time| (sums.0 + time.0, sums.1 + time.1));
        println!(
            "   all {:8.2} {:6.1} GFLOP/s ({:3.0} %)",
            sums.1 * 1e3,
            sums.0 / sums.1 / 1e9,
            sums.0 / sums.1 / fastest * 100.0
        );
        flops += sums.0 * case.in_total as f64;
        seconds += sums.1 * case.in_total as f64;
    }
    if seconds > 0.0 {
        println!(
            "ResNet-50's convolutions above, batch {BATCH}: {seconds:.2} s, {:.1} GFLOP/s ({:.0} %)",
            flops / seconds / 1e9,
            flops / seconds / fastest * 100.0
        );
    }
}
