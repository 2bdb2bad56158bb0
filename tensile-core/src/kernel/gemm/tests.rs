use proptest::prelude::*;

use super::*;
use crate::testing::values;

/// C from a naive sum in f64, and Σ|a·b| for each element.
fn reference(size: Size, a: impl Fn(usize, usize) -> f32, b: impl Fn(usize, usize) -> f32) -> Vec<(f64, f64)> {
    let mut c = Vec::new();
    for i in 0..size.m {
        for j in 0..size.n {
            let products = (0..size.k).map(|l| f64::from(a(i, l)) * f64::from(b(l, j)));
            c.push(products.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs())));
        }
    }
    c
}

/// How operands and result lie in memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    trans_a: bool,
    trans_b: bool,
    trans_c: bool,
    /// Floats before the result's first element.
    shift: usize,
}

const PLAIN: Layout = Layout { trans_a: false, trans_b: false, trans_c: false, shift: 0 };
/// Stands around scratch and results.
const GUARD: f32 = -12345.0;

/// Computes a·b + bias, or c + a·b, by `multiply`, row-major; checks that nothing else has been written.
fn compute(isa: Isa, size: Size, layout: Layout, bias: Option<&[f32]>, threads: usize) -> Vec<f32> {
    let (a, b) = (values(size.m * size.k, 1), values(size.k * size.n, 2));
    let dense = |data, transposed, rows, columns, rows_are_along| Dense {
        data,
        stride: if transposed { rows } else { columns },
        along: match (transposed, rows_are_along) {
            (false, along) => along,
            (true, Along::Sum) => Along::Across,
            (true, Along::Across) => Along::Sum,
        },
    };
    let floats = workspace_floats_with(isa, size, layout.trans_c && size.m != 1, threads);
    let mut scratch = vec![GUARD; floats + 64];
    scratch[32..floats + 32].fill(f32::NAN);
    let mut c = vec![GUARD; size.m * size.n + 64];
    let c_range = layout.shift + 16..layout.shift + 16 + size.m * size.n;
    c[c_range.clone()].fill(if bias.is_some() { f32::NAN } else { 0.5 });
    let output = Output::new(&mut c[c_range.clone()]);
    multiply_with(isa, size, threads, &mut scratch[32..floats + 32], |_| Product {
        a: dense(&a, layout.trans_a, size.m, size.k, Along::Sum),
        b: dense(&b, layout.trans_b, size.k, size.n, Along::Across),
        c: Target {
            output,
            start: 0,
            row_step: if layout.trans_c { 1 } else { size.n },
            columns: Columns::Even { step: if layout.trans_c { size.m } else { 1 } },
            bias: bias.map_or(Bias::None, Bias::Columns),
            accumulate: bias.is_none(),
        },
    });
    let guarded = scratch[..32].iter().chain(&scratch[floats + 32..]).chain(&c[..c_range.start]);
    assert!(guarded.chain(&c[c_range.end..]).all(|&x| x == GUARD), "{isa:?} {size:?} {layout:?}: guards");
    let c = &c[c_range];
    if layout.trans_c {
        (0..size.m * size.n).map(|index| c[index % size.n * size.m + index / size.n]).collect()
    } else {
        c.to_vec()
    }
}

fn check(size: Size, layout: Layout) {
    let (a, b, bias) = (values(size.m * size.k, 1), values(size.k * size.n, 2), values(size.n, 3));
    let at = |data: &[f32], transposed, rows: usize, columns: usize, i, j| {
        if transposed { data[j * rows + i] } else { data[i * columns + j] }
    };
    let expected = reference(
        size,
        |i, l| at(&a, layout.trans_a, size.m, size.k, i, l),
        |l, j| at(&b, layout.trans_b, size.k, size.n, l, j),
    );
    for isa in Isa::all() {
        for bias in [None, Some(&bias[..])] {
            let c = compute(isa, size, layout, bias, 1);
            for (index, (&c, (sum, magnitude))) in c.iter().zip(&expected).enumerate() {
                let expected = sum + bias.map_or(0.5, |bias| f64::from(bias[index % size.n]));
                let error = (f64::from(c) - expected).abs();
                assert!(
                    error <= 1e-6 * (magnitude + 1.0),
                    "{isa:?} {size:?} {layout:?} element {index}: {c}, not {expected}"
                );
            }
            for threads in [2, 3, 7] {
                let layout = Layout { shift: threads, ..layout };
                let other = compute(isa, size, layout, bias, threads);
                assert!(bits(&c) == bits(&other), "{isa:?} {size:?} {layout:?}: other bits on {threads} threads");
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_of_many_shapes_and_layouts() {
    let shapes = [
        (1, 1, 1),
        (1, 33, 300),
        (14, 32, 256),
        (15, 31, 257),
        (29, 65, 513),
        (3, 100, 7),
        (100, 3, 64),
        (601, 40, 20),
        (37, 1, 1000),
        (64, 70, 0),
    ];
    for (m, n, k) in shapes {
        for flags in 0..8 {
            let [trans_a, trans_b, trans_c] = [1, 2, 4].map(|bit| flags & bit != 0);
            check(Size { batch: 1, m, n, k }, Layout { trans_a, trans_b, trans_c, shift: 0 });
        }
    }
}

#[test]
fn families_with_fused_multiply_add_agree_to_the_bit() {
    let size = Size { batch: 1, m: 45, n: 77, k: 600 };
    let fused: Vec<Isa> = Isa::all().filter(|&isa| isa != Isa::Portable).collect();
    for pair in fused.windows(2) {
        assert_eq!(
            bits(&compute(pair[0], size, PLAIN, None, 1)),
            bits(&compute(pair[1], size, PLAIN, None, 2)),
            "{pair:?}"
        );
    }
}

#[test]
fn transposes_blocks() {
    let from = values(48 * 40, 4);
    for isa in Isa::all() {
        let mut to = vec![0.0; 32 * 50];
        isa.transpose((48, 32), (&from, 40), (&mut to, 50));
        for (r, c) in (0..48).flat_map(|r| (0..32).map(move |c| (r, c))) {
            assert_eq!(to[c * 50 + r], from[r * 40 + c], "{isa:?} {r} {c}");
        }
    }
}

#[test]
fn tasks_cover_every_element_once() {
    for (batch, m, n) in [(1, 1, 1), (1, 14, 32), (3, 100, 1000), (1, 2048, 49), (7, 600, 33)] {
        for threads in [1, 2, 5, 16] {
            for transposed in [false, true] {
                let (isa, size) = (Isa::detect(), Size { batch, m, n, k: 10 });
                let grid = grid(isa, size, transposed, threads);
                let mut seen = vec![0; batch * m * n];
                for task in 0..grid.tasks(size) {
                    let (index, rows, columns) = grid.task(isa, size, task);
                    assert!(rows.len() <= grid.rows && columns.len() <= grid.columns, "{size:?} {grid:?}");
                    for (i, j) in rows.flat_map(|i| columns.clone().map(move |j| (i, j))) {
                        seen[(index * m + i) * n + j] += 1;
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{size:?} {grid:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_any_shape(
        m in 1usize..80, n in 1usize..80, k in 0usize..530, flags in 0usize..8, shift in 0usize..16,
    ) {
        let [trans_a, trans_b, trans_c] = [1, 2, 4].map(|bit| flags & bit != 0);
        check(Size { batch: 1, m, n, k }, Layout { trans_a, trans_b, trans_c, shift });
    }
}
