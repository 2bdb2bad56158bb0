//! `matmul`: products of matrices, in blocks or tiles of the output.

use tensile_core::TensorType;
use tensile_core::op::matmul::MatMul;

use super::{Binding, Caps, Dispatch, Kernel, Place, Plan, Refused, Types, block, scratch};
use crate::shader::Shader;

/// Rows and columns of a workgroup's part of C where it goes through workgroup memory.
const TILE: u64 = 64;

const PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("blocks", "u32"),
    ("batches", "u32"),
    ("m", "u32"),
    ("n", "u32"),
    ("sums", "u32"),
    ("k", "u32"),
    ("parts", "u32"),
    ("part", "u32"),
    ("a_batch", "u32"),
    ("a_row", "u32"),
    ("a_k", "u32"),
    ("a_sum", "u32"),
    ("b_batch", "u32"),
    ("b_column", "u32"),
    ("b_k", "u32"),
    ("b_sum", "u32"),
    ("c_row", "u32"),
    ("c_column", "u32"),
    ("has_bias", "u32"),
    ("bias_row", "u32"),
    ("bias_column", "u32"),
];

/// A shader of blocks with so many rows, of which B's four columns are fetched in one way.
macro_rules! block {
    ($name:literal, $rows:ident, $b:literal, $fetch:literal) => {
        Shader {
            name: $name,
            source: include_str!("matmul_block.wgsl"),
            buffers: &[("a", "f32"), ("b", $b), ("bias", "f32"), ("c", "f32")],
            params: PARAMS,
            snippets: &block::$rows!(("fetch", $fetch)),
            libraries: &[],
            workgroup: block::WORKGROUP,
        }
    };
    ($name:literal, $rows:ident) => {
        block!($name, $rows, "f32", "let x = vec4($b[b.x], $b[b.y], $b[b.z], $b[b.w]); b += vec4(p.b_k);")
    };
}

static BLOCK_1: Shader = block!("matmul_block_1", one_row);
static BLOCK_4: Shader = block!("matmul_block_4", four_rows);
static BLOCK_8: Shader = block!("matmul_block_8", eight_rows);

/// For B whose columns lie side by side, with whole vectors in a row.
static BLOCK_8_VECTORS: Shader =
    block!("matmul_block_8_vectors", eight_rows, "vec4<f32>", "let x = $b[b.x / 4u]; b.x += p.b_k;");

static TILES: Shader = Shader {
    name: "matmul_tile",
    source: include_str!("matmul_tile.wgsl"),
    buffers: &[("a", "f32"), ("b", "f32"), ("bias", "f32"), ("c", "f32")],
    params: PARAMS,
    snippets: &[],
    libraries: &[],
    workgroup: 128,
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[&BLOCK_1, &BLOCK_4, &BLOCK_8, &BLOCK_8_VECTORS, &TILES, &block::SUM_PARTS];

/// Where an operand's elements lie: steps between neighbours in each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) binding: Binding,
    /// From one product of the batch to the next.
    pub(super) batch: u64,
    /// From one row of A, or one column of B, to the next.
    pub(super) across: u64,
    /// From one term of the sum to the next.
    pub(super) along: u64,
    /// From one matrix of a sum of products to the next.
    pub(super) sum: u64,
}

impl Operand {
    /// Whether four columns are a vector in memory, for every fourth of `n`.
    fn is_vectors(&self, n: u64) -> bool {
        self.across == 1 && [n, self.batch, self.along, self.sum].into_iter().all(|step| step.is_multiple_of(4))
    }
}

/// What is added to C.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bias {
    None,
    /// An element for each row.
    Rows(Binding),
    /// An element for each column.
    Columns(Binding),
}

/// A batch of products C = Σ A·B + bias, each of `sums` pairs of an m × k and a k × n matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) batches: u64,
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) sums: u64,
    pub(super) k: u64,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) bias: Bias,
    /// Matrices one after another.
    pub(super) c: Binding,
    /// Steps from one row of C to the next, and from one column.
    pub(super) c_steps: [u64; 2],
}

impl Product {
    /// The same with a sum over matrices as one long sum, where memory allows it.
    fn merged(self) -> Self {
        let Self { sums, k, mut a, mut b, .. } = self;
        if sums == 1 || a.sum != k * a.along || b.sum != k * b.along {
            return self;
        }
        (a.sum, b.sum) = (0, 0);
        Self { sums: 1, k: sums * k, a, b, ..self }
    }

    /// The transposed product.
    fn turned(self) -> Self {
        let bias = match self.bias {
            Bias::None => Bias::None,
            Bias::Rows(bias) => Bias::Columns(bias),
            Bias::Columns(bias) => Bias::Rows(bias),
        };
        let [row, column] = self.c_steps;
        Self { m: self.n, n: self.m, a: self.b, b: self.a, bias, c_steps: [column, row], ..self }
    }

    /// What to dispatch. Rows of narrow products are taken as columns, and sums of few elements in parts, so that enough invocations have work.
    ///
    /// # Errors
    /// [`Refused::Binding`] if the parts' sums do not fit a binding.
    pub(super) fn plan(self, caps: &Caps) -> Result<Plan, Refused> {
        if self.batches * self.m * self.n == 0 {
            return Ok(Plan::default());
        }
        let product = self.merged();
        let product = if product.n < block::COLUMNS && product.m > product.n { product.turned() } else { product };
        let Self { batches, m, n, sums, k, .. } = product;
        let in_blocks = caps.software || m.min(n) <= 8;
        let (shader, rows, columns) = match (in_blocks, m) {
            (true, 1) => (&BLOCK_1, 1, block::COLUMNS),
            (true, 2..=4) => (&BLOCK_4, 4, block::COLUMNS),
            (true, _) if product.b.is_vectors(n) => (&BLOCK_8_VECTORS, 8, block::COLUMNS),
            (true, _) => (&BLOCK_8, 8, block::COLUMNS),
            (false, _) => (&TILES, TILE, TILE),
        };
        let blocks = batches * m.div_ceil(rows) * n.div_ceil(columns);
        let wanted = match (caps.software, in_blocks) {
            (true, _) => 1 << 11,
            (false, true) => 1 << 15,
            (false, false) => 1 << 8,
        };
        let (parts, part) = block::parts(sums * k, wanted / blocks, block::LEAST_PART);
        let floats = batches * m * n;
        let (target, bias) = if parts > 1 {
            (scratch(4 * parts * floats, caps)?, Bias::None)
        } else {
            (product.c, product.bias)
        };
        let (has_bias, bias_row, bias_column, bias) = match bias {
            Bias::None => (0, 0, 0, target),
            Bias::Rows(bias) => (1, 1, 0, bias),
            Bias::Columns(bias) => (1, 0, 1, bias),
        };
        // Operands of empty sums are not read, and may have no bytes to bind.
        let [a, b] = [product.a, product.b].map(|side| if sums * k == 0 { target } else { side.binding });
        let per_group = if in_blocks { u64::from(shader.workgroup) } else { 1 };
        let at_once = (caps.max_flops / (2 * rows * columns * part) as f64).max(1.0) as u64;
        let mut dispatches: Vec<Dispatch> = block::split(parts * blocks, at_once)
            .map(|(first, blocks)| {
                let (a_steps, b_steps) = (product.a, product.b);
                let params = [
                    &[first, blocks, batches, m, n, sums, k, parts, part][..],
                    &[a_steps.batch, a_steps.across, a_steps.along, a_steps.sum],
                    &[b_steps.batch, b_steps.across, b_steps.along, b_steps.sum],
                    &[product.c_steps[0], product.c_steps[1], has_bias, bias_row, bias_column],
                ]
                .concat();
                Dispatch {
                    shader,
                    bindings: vec![a, b, bias, target],
                    params: params.into_iter().map(|word| word as u32).collect(),
                    groups: blocks.div_ceil(per_group),
                }
            })
            .collect();
        if parts > 1 {
            let (bias, biases) = match self.bias {
                Bias::Columns(bias) => (bias, self.n),
                Bias::None | Bias::Rows(_) => (target, 0),
            };
            dispatches.push(block::sum_parts(target, bias, biases, product.c, floats, parts));
        }
        Ok(Plan { workspace: if parts > 1 { 4 * parts * floats } else { 0 }, dispatches })
    }
}

impl Kernel for MatMul {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let matrix = |index: usize, transposed: bool| {
            let ty: &TensorType = types.inputs[index];
            let (batch, dims) = ty.dims().split_at(ty.shape.rank() - 2);
            let [rows, columns] = [dims[0] as u64, dims[1] as u64];
            let batches: u64 = batch.iter().map(|&n| n as u64).product();
            let shape = if transposed { [columns, rows] } else { [rows, columns] };
            let step = if batch.is_empty() { 0 } else { rows * columns };
            let steps = if transposed { [1, columns] } else { [columns, 1] };
            types.whole(Place::Input(index), caps).map(|binding| (batches, shape, step, steps, binding))
        };
        let (batches_a, [m, k], step_a, [row, a_along], a) = matrix(0, self.trans_a)?;
        let (batches_b, [_, n], step_b, [b_along, column], b) = matrix(1, self.trans_b)?;
        let batches = if types.inputs[0].shape.rank() > 2 { batches_a } else { batches_b };
        let (batches, sums) = if self.sum_batch { (1, batches) } else { (batches, 1) };
        let over = |step: u64| if self.sum_batch { (0, step) } else { (step, 0) };
        let ((a_batch, a_sum), (b_batch, b_sum)) = (over(step_a), over(step_b));
        // A batch on the left only is more rows.
        let rows_merge = batches > 1 && step_b == 0 && !self.trans_a;
        Product {
            batches: if rows_merge { 1 } else { batches },
            m: if rows_merge { batches * m } else { m },
            n,
            sums,
            k,
            a: Operand { binding: a, batch: a_batch, across: row, along: a_along, sum: a_sum },
            b: Operand { binding: b, batch: b_batch, across: column, along: b_along, sum: b_sum },
            bias: match types.inputs.len() {
                2 => Bias::None,
                _ => Bias::Columns(types.whole(Place::Input(2), caps)?),
            },
            c: types.whole(Place::Output(0), caps)?,
            c_steps: [n, 1],
        }
        .plan(caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tests::{check, check_with, gpu, random, seconds};

    const TOLERANCE: f64 = 1e-5;

    /// Checks both variants.
    fn both(op: &MatMul, a: &[usize], b: &[usize], bias: Option<usize>) {
        let mut inputs = vec![random(a, 3), random(b, 4)];
        inputs.extend(bias.map(|n| random([n], 5)));
        for software in [true, false] {
            check_with(|caps| Caps { software, ..caps }, op.clone(), &inputs, TOLERANCE);
        }
    }

    #[test]
    fn sizes_and_transposes() {
        let sizes = [
            (1, 1, 1),
            (1, 1, 300),
            (1, 70, 5),
            (67, 1, 9),
            (2, 3, 64),
            (3, 130, 65),
            (8, 4, 63),
            (9, 5, 17),
            (64, 64, 16),
            (65, 66, 129),
            (63, 130, 1),
            (33, 17, 65),
            (3, 2, 0),
        ];
        for (m, n, k) in sizes {
            for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let a = if trans_a { [k, m] } else { [m, k] };
                let b = if trans_b { [n, k] } else { [k, n] };
                both(&MatMul { trans_a, trans_b, sum_batch: false }, &a, &b, None);
            }
        }
    }

    #[test]
    fn biases() {
        let linear = MatMul { trans_b: true, ..MatMul::default() };
        for (m, n, k) in [(1, 1, 1), (19, 10, 40), (70, 1, 7), (1, 3, 2000), (9, 2, 1500), (66, 67, 70)] {
            both(&linear, &[m, k], &[n, k], Some(n));
        }
        both(&linear, &[2, 3, 5, 9], &[7, 9], Some(7));
    }

    #[test]
    fn batches() {
        for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let a = if trans_a { [20, 9] } else { [9, 20] };
            let b = if trans_b { [14, 20] } else { [20, 14] };
            let with = |matrix: [usize; 2]| [vec![2, 3], matrix.to_vec()].concat();
            for sum_batch in [false, true] {
                both(&MatMul { trans_a, trans_b, sum_batch }, &with(a), &with(b), None);
            }
            let op = MatMul { trans_a, trans_b, sum_batch: false };
            both(&op, &with(a), &b, None);
            both(&op, &a, &with(b), None);
        }
    }

    #[test]
    fn more_groups_than_a_row_of_the_grid_holds() {
        let batches = 65_536 * 64 + 3;
        let inputs = [random([batches, 1, 1], 3), random([batches, 1, 1], 4)];
        check(MatMul::default(), &inputs, TOLERANCE);
    }

    #[test]
    fn long_sums_are_exact_enough() {
        for (m, n, k) in [(1, 1, 100_003), (5, 9, 5000), (80, 70, 3000)] {
            both(&MatMul { trans_b: true, ..MatMul::default() }, &[m, k], &[n, k], None);
        }
        both(&MatMul { sum_batch: true, ..MatMul::default() }, &[300, 5, 7], &[300, 7, 6], None);
    }

    #[test]
    fn bits_do_not_depend_on_how_dispatches_are_split() {
        for (m, n, k) in [(130, 140, 70), (3, 5, 9000)] {
            let inputs = [random([m, k], 3), random([k, n], 4)];
            for software in [true, false] {
                let run = |flops: f64| {
                    let change = |caps| Caps { software, max_flops: flops, ..caps };
                    check_with(change, MatMul::default(), &inputs, TOLERANCE)
                };
                assert!(run(1e12) == run(3e5), "other bits when split");
            }
        }
    }

    #[test]
    fn operands_over_the_binding_limit_are_named() {
        let Some(gpu) = gpu() else { return };
        let caps = Caps { max_binding: 1024, ..gpu.caps };
        let (a, b, c) = (TensorType::f32([4, 65]), TensorType::f32([65, 4]), TensorType::f32([4, 4]));
        let types = Types { inputs: &[&a, &b], outputs: &[&c] };
        match MatMul::default().plan(types, &caps) {
            Err(Refused::Binding { what, bytes }) => assert!(what.starts_with("input 0") && bytes == 1040, "{what}"),
            other => panic!("{other:?}"),
        }
    }

    /// Prints speeds; see the tests of `conv2d` too.
    #[test]
    #[ignore = "prints speeds"]
    #[allow(clippy::print_stdout)]
    fn speed_of_matmul() {
        let Some(gpu) = gpu() else { return };
        let ty = TensorType::f32([1024, 1024]);
        let types = Types { inputs: &[&ty, &ty], outputs: &[&ty] };
        for software in [true, false] {
            for trans_b in [false, true] {
                let caps = Caps { software, ..gpu.caps };
                let plan = MatMul { trans_b, ..MatMul::default() }.plan(types, &caps).expect("a plan");
                let rate = 2.0 * 1024f64.powi(3) / seconds(gpu, &plan, types) / 1e9;
                println!("matmul 1024³, software {software}, b transposed {trans_b}: {rate:.2} GFLOP/s");
            }
        }
    }
}
