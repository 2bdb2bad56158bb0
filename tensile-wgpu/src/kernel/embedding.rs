//! `embedding` and its gradient.
//!
//! The gradient adds the rows of dy by index, each sum in the order of the positions, without atomics:
//!
//! 1. a key for each position: its row of the table, or one past the last where it counts nowhere;
//! 2. a stable radix sort of keys and positions: for each digit, chunks of positions count, one group adds the counts up, and the chunks move their positions;
//! 3. where each row's positions begin, by bisection;
//! 4. sums. The sorted positions are cut into segments. A row with positions in several of them adds the sums of its segments, found before by as many
//!    invocations; others add their positions.
//!
//! Work: O(n · digits + V · log n + n · D) for n indices and V rows of D columns.

use tensile_core::op::embedding::{Embedding, EmbeddingGrad};

use super::{ALIGNMENT, Binding, Caps, Dispatch, Kernel, Place, Plan, Refused, Types, scratch};
use crate::shader::Shader;

/// Bits of a digit, and its values.
const DIGIT: u32 = 4;
const DIGITS: usize = 1 << DIGIT;
/// Positions of a chunk, unless there are more chunks than this.
const CHUNK: usize = 64;
const MAX_CHUNKS: usize = 4096;
/// Fewest positions of a segment.
const SEGMENT: usize = 64;

const WORDS: &[(&str, &str)] = &[("zero", "0.0")];
const VECTORS: &[(&str, &str)] = &[("zero", "vec4(0.0)")];

const fn shader(
    name: &'static str,
    source: &'static str,
    buffers: &'static [(&'static str, &'static str)],
    params: &'static [(&'static str, &'static str)],
    snippets: &'static [(&'static str, &'static str)],
) -> Shader {
    Shader { name, source, buffers, params, snippets, libraries: &[], workgroup: 64 }
}

static ROWS: [Shader; 2] = {
    const SOURCE: &str = include_str!("embedding.wgsl");
    const PARAMS: &[(&str, &str)] = &[("n", "u32"), ("width", "u32"), ("rows", "u32")];
    [
        shader(
            "embedding",
            SOURCE,
            &[("table", "u32"), ("indices", "u32"), ("y", "u32")],
            PARAMS,
            &[("nan", "0x7fc00000u")],
        ),
        shader(
            "embedding_vectors",
            SOURCE,
            &[("table", "vec4<u32>"), ("indices", "u32"), ("y", "vec4<u32>")],
            PARAMS,
            &[("nan", "vec4(0x7fc00000u)")],
        ),
    ]
};

static KEYS: Shader = shader(
    "embedding_keys",
    include_str!("embedding_keys.wgsl"),
    &[("indices", "u32"), ("keys", "u32"), ("positions", "u32")],
    &[("n", "u32"), ("rows", "u32"), ("padding", "u32")],
    &[],
);

static COUNT: Shader = shader(
    "embedding_count",
    include_str!("embedding_count.wgsl"),
    &[("keys", "u32"), ("counts", "u32")],
    &[("n", "u32"), ("chunk", "u32"), ("chunks", "u32"), ("shift", "u32")],
    &[],
);

static SCAN: Shader = Shader {
    name: "embedding_scan",
    source: include_str!("embedding_scan.wgsl"),
    buffers: &[("counts", "u32")],
    params: &[("n", "u32")],
    snippets: &[],
    libraries: &[],
    workgroup: 256,
};

static MOVE: Shader = shader(
    "embedding_move",
    include_str!("embedding_move.wgsl"),
    &[("keys", "u32"), ("positions", "u32"), ("counts", "u32"), ("next_keys", "u32"), ("next_positions", "u32")],
    &[("n", "u32"), ("chunk", "u32"), ("chunks", "u32"), ("shift", "u32")],
    &[],
);

static STARTS: Shader = shader(
    "embedding_starts",
    include_str!("embedding_starts.wgsl"),
    &[("keys", "u32"), ("starts", "u32")],
    &[("n", "u32"), ("rows", "u32")],
    &[],
);

static SEGMENTS: [Shader; 2] = {
    const SOURCE: &str = include_str!("embedding_segments.wgsl");
    const PARAMS: &[(&str, &str)] =
        &[("n", "u32"), ("width", "u32"), ("rows", "u32"), ("segment", "u32"), ("segments", "u32")];
    [
        shader(
            "embedding_segments",
            SOURCE,
            &[("dy", "f32"), ("keys", "u32"), ("positions", "u32"), ("sums", "f32")],
            PARAMS,
            WORDS,
        ),
        shader(
            "embedding_segments_vectors",
            SOURCE,
            &[("dy", "vec4<f32>"), ("keys", "u32"), ("positions", "u32"), ("sums", "vec4<f32>")],
            PARAMS,
            VECTORS,
        ),
    ]
};

static SUM: [Shader; 2] = {
    const SOURCE: &str = include_str!("embedding_sum.wgsl");
    const PARAMS: &[(&str, &str)] = &[("width", "u32"), ("rows", "u32"), ("segment", "u32")];
    [
        shader(
            "embedding_sum",
            SOURCE,
            &[("dy", "f32"), ("positions", "u32"), ("starts", "u32"), ("sums", "f32"), ("y", "f32")],
            PARAMS,
            WORDS,
        ),
        shader(
            "embedding_sum_vectors",
            SOURCE,
            &[("dy", "vec4<f32>"), ("positions", "u32"), ("starts", "u32"), ("sums", "vec4<f32>"), ("y", "vec4<f32>")],
            PARAMS,
            VECTORS,
        ),
    ]
};

#[cfg(test)]
pub(super) const SHADERS: &[&Shader] = &[
    &ROWS[0],
    &ROWS[1],
    &KEYS,
    &COUNT,
    &SCAN,
    &MOVE,
    &STARTS,
    &SEGMENTS[0],
    &SEGMENTS[1],
    &SUM[0],
    &SUM[1],
];

fn dispatch(shader: &'static Shader, bindings: &[Binding], params: &[usize], invocations: usize) -> Dispatch {
    Dispatch {
        shader,
        bindings: bindings.to_vec(),
        params: params.iter().map(|&word| word as u32).collect(),
        groups: (invocations as u64).div_ceil(u64::from(shader.workgroup)),
    }
}

impl Kernel for Embedding {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (table, y) = (types.inputs[0].dims(), types.outputs[0]);
        let bindings = [
            types.whole(Place::Input(0), caps)?,
            types.whole(Place::Input(1), caps)?,
            types.whole(Place::Output(0), caps)?,
        ];
        if y.numel() == 0 {
            return Ok(Plan::default());
        }
        let vectors = table[1].is_multiple_of(4);
        let unit = if vectors { 4 } else { 1 };
        let (n, width) = (y.numel() / unit, table[1] / unit);
        let rows = dispatch(&ROWS[usize::from(vectors)], &bindings, &[n, width, table[0]], n);
        Ok(Plan { workspace: 0, dispatches: vec![rows] })
    }
}

/// Hands out scratch.
struct Scratch<'a> {
    bytes: u64,
    caps: &'a Caps,
}

impl Scratch<'_> {
    fn words(&mut self, n: usize) -> Result<Binding, Refused> {
        let bytes = 4 * n.max(1) as u64;
        let binding = Binding { offset: self.bytes, ..scratch(bytes, self.caps)? };
        self.bytes = (self.bytes + bytes).next_multiple_of(ALIGNMENT);
        Ok(binding)
    }
}

impl Kernel for EmbeddingGrad {
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
        let (rows, d) = (self.rows, types.outputs[0].dims()[1]);
        let dy = types.whole(Place::Input(0), caps)?;
        let indices = types.whole(Place::Input(1), caps)?;
        let y = types.whole(Place::Output(0), caps)?;
        if rows * d == 0 {
            return Ok(Plan::default());
        }
        let n = types.inputs[1].numel();
        let vectors = d.is_multiple_of(4);
        let width = if vectors { d / 4 } else { d };

        let chunk = CHUNK.max(n.div_ceil(MAX_CHUNKS));
        let chunks = n.div_ceil(chunk);
        // About as many positions in a segment as there are segments.
        let segment = SEGMENT.max(n.isqrt().next_power_of_two());
        let segments = n.div_ceil(segment);
        let mut room = Scratch { bytes: 0, caps };
        let keys = [room.words(n)?, room.words(n)?];
        let positions = [room.words(n)?, room.words(n)?];
        let counts = room.words(DIGITS * chunks)?;
        let starts = room.words(rows + 1)?;
        // The first segment has no row that began before it.
        let sums = room.words(segments.saturating_sub(1) * d)?;

        // No index is −1 after the first comparison: it is outside the table.
        let padding = self.padding.unwrap_or(-1) as u32 as usize;
        let mut dispatches = vec![dispatch(&KEYS, &[indices, keys[0], positions[0]], &[n, rows, padding], n)];
        let digits = (rows as u32).ilog2() / DIGIT + 1;
        let mut at = 0;
        for digit in 0..digits {
            let params = [n, chunk, chunks, (digit * DIGIT) as usize];
            let next = 1 - at;
            dispatches.extend([
                dispatch(&COUNT, &[keys[at], counts], &params, chunks),
                dispatch(&SCAN, &[counts], &[DIGITS * chunks], 1),
                dispatch(&MOVE, &[keys[at], positions[at], counts, keys[next], positions[next]], &params, chunks),
            ]);
            at = next;
        }
        let (keys, positions) = (keys[at], positions[at]);
        dispatches.push(dispatch(&STARTS, &[keys, starts], &[n, rows], rows + 1));
        let kind = usize::from(vectors);
        if segments > 1 {
            let params = [n, width, rows, segment, segments];
            let bindings = [dy, keys, positions, sums];
            dispatches.push(dispatch(&SEGMENTS[kind], &bindings, &params, (segments - 1) * width));
        }
        dispatches.push(dispatch(
            &SUM[kind],
            &[dy, positions, starts, sums, y],
            &[width, rows, segment],
            rows * width,
        ));
        Ok(Plan { workspace: room.bytes, dispatches })
    }
}

#[cfg(test)]
mod tests {
    use tensile_core::TensorType;
    use tensile_core::op::embedding::{Embedding, EmbeddingGrad};
    use tensile_core::testing::{floats, int_bytes};

    use super::super::tests::{check, random};

    /// Sums of many rows are by segments, the host's one after another.
    const TOLERANCE: f64 = 5e-6;

    /// Indices in `span` places from `low` on, in no order.
    fn indices(shape: &[usize], low: i32, span: i32) -> (TensorType, Vec<u8>) {
        let ty = TensorType::i32(shape);
        let numbers = floats(&random([ty.numel()], 9).1);
        let numbers: Vec<i32> =
            numbers.iter().map(|x| low + ((x * 0.5 + 0.5) * span as f32).min(span as f32 - 1.0) as i32).collect();
        (ty, int_bytes(&numbers))
    }

    fn check_both(
        [rows, d]: [usize; 2],
        indices: (TensorType, Vec<u8>),
        padding: Option<i32>,
        tolerance: f64,
    ) {
        check(Embedding { padding }, &[random([rows, d], 1), indices.clone()], 0.0);
        let dy = random([indices.0.dims(), &[d]].concat(), 2);
        check(EmbeddingGrad { rows, padding }, &[dy, indices], tolerance);
    }

    #[test]
    fn tables_of_all_kinds() {
        check_both([1, 1], indices(&[1], 0, 1), None, 0.0);
        check_both([4, 33], indices(&[5, 8], 0, 4), None, 0.0);
        check_both([6, 32], indices(&[5, 8], 0, 6), Some(2), 0.0);
        check_both([17, 5], indices(&[], 0, 17), None, 0.0);
        check_both([16, 8], indices(&[3, 1, 7], -3, 22), None, 0.0);
        check_both([15, 3], indices(&[64], -5, 30), Some(-1), 0.0);
        check_both([5000, 12], indices(&[700], 0, 5000), Some(0), 0.0);
        check_both([70_000, 3], indices(&[1000], 69_000, 1100), None, 0.0);
        check_both([3, 4], indices(&[9], 3, 5), None, 0.0);
        check_both([300, 4], indices(&[20], i32::MIN, i32::MAX), Some(i32::MIN), 0.0);
    }

    #[test]
    fn rows_of_several_segments() {
        for (rows, span) in [(1, 1), (2, 2), (40, 5), (40, 45)] {
            check_both([rows, 4], indices(&[3001], 0, span), None, TOLERANCE);
            check_both([rows, 3], indices(&[777], 0, span), Some(1), TOLERANCE);
        }
        check_both([3, 1], indices(&[300_000], 0, 3), None, 1e-4);
    }

    #[test]
    fn a_large_table() {
        check_both([50_257, 64], indices(&[8, 512], 0, 50_257), None, TOLERANCE);
    }
}
