//! The machine's own rate: what the `gemm` crate reaches.

use std::time::Instant;

use gemm::{Parallelism, gemm};

/// Best of several products of 1024×1024 matrices on `threads` threads, in floating-point operations per second.
pub(crate) fn gemm_flops_per_s(threads: usize) -> f64 {
    const N: usize = 1024;
    let a: Vec<f32> = (0..N * N).map(|i| (i % 17) as f32 - 8.0).collect();
    let b: Vec<f32> = (0..N * N).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut c = vec![0.0f32; N * N];
    let mut best = f64::INFINITY;
    for _ in 0..12 {
        let start = Instant::now();
        product(&a, &b, &mut c, N, threads);
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&c);
    2.0 * (N * N * N) as f64 / best
}

fn product(a: &[f32], b: &[f32], c: &mut [f32], n: usize, threads: usize) {
    assert!(a.len() == n * n && b.len() == n * n && c.len() == n * n);
    let stride = n as isize;
    // SAFETY: all three matrices are n×n, row-major and distinct, and live until the call returns.
    unsafe {
        gemm(
            n,
            n,
            n,
            c.as_mut_ptr(),
            1,
            stride,
            false,
            a.as_ptr(),
            1,
            stride,
            b.as_ptr(),
            1,
            stride,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(threads),
        );
    }
}
