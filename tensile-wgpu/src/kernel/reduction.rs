//! Sums over some of a tensor's dimensions in a fixed order, which many ops need: their shapes, how they are divided among invocations, and what a shader for them is made of.
//!
//! Each output is the sum of `segments` pieces of runs of neighbouring elements. Its segments are divided into chunks; a chunk is summed by up to [`MAX_LANES`] invocations side by side,
//! whose sums are added pairwise, and where there are several chunks a second dispatch of the same shader adds their sums, which stand in scratch. All these sums are compensated.
//!
//! A shader for it defines, beside `$partials` and a `run` that calls `reduce`:
//! - `fn center(o: u32) -> S`: what the terms of output `o` need to know of it;
//! - `fn term(i: u32, s: u32, center: S) -> V`: the term of element `i`, which is in run `s` of its output;
//! - `fn finish(o: u32, total: W)`: writes a result.
//!
//! Its types depend on the [`Layout`]: `E` is what an element is, `S` a number for each output, `V` a term and `W` an output's sum: `f32`s or vectors of them, in pairs where there are two sums; `One` is the type of a number that multiplies them.

use super::{ALIGNMENT, Binding, Caps, Dispatch, Place, Refused, scratch};
use crate::shader::Shader;

/// Most invocations that share a chunk.
const MAX_LANES: u64 = 64;
/// Terms of an invocation that are worth a second dispatch.
const WORTHWHILE: u64 = 32;
/// Most chunks of an output.
const MAX_CHUNKS: u64 = 1024;
/// Invocations in a workgroup of a reduction.
pub(super) const WORKGROUP: u32 = 128;

/// What elements are to a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Numbers.
    Scalar,
    /// Vectors of terms of one output.
    Rows4,
    /// Vectors of terms of four outputs.
    Columns4,
}

/// Parameters of a reduction's shader.
pub(super) const PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("end", "u32"),
    ("stage", "u32"),
    ("units", "u32"),
    ("outputs", "u32"),
    ("lanes", "u32"),
    ("run", "u32"),
    ("piece", "u32"),
    ("segments", "u32"),
    ("per_chunk", "u32"),
    ("chunks", "u32"),
    ("kept_rank", "u32"),
    ("kept_size0", "u32"),
    ("kept_size1", "u32"),
    ("kept_size2", "u32"),
    ("kept_stride0", "u32"),
    ("kept_stride1", "u32"),
    ("kept_stride2", "u32"),
    ("kept_stride3", "u32"),
    ("reduced_rank", "u32"),
    ("reduced_size0", "u32"),
    ("reduced_size1", "u32"),
    ("reduced_size2", "u32"),
    ("reduced_stride0", "u32"),
    ("reduced_stride1", "u32"),
    ("reduced_stride2", "u32"),
    ("reduced_stride3", "u32"),
    // For terms and results, as the shader pleases.
    ("factor", "f32"),
    ("eps", "f32"),
    ("mode", "u32"),
    ("word", "i32"),
    ("columns", "u32"),
];

/// Functions that keep chunks' sums in the buffer `partial`.
pub(super) const PARTIALS: &str = "
fn partial(i: u32) -> Total {
    return Total($partial[2u * i], $partial[2u * i + 1u]);
}

fn put_partial(i: u32, total: Total) {
    $partial[2u * i] = total.high;
    $partial[2u * i + 1u] = total.low;
}
";

/// The type of a buffer's elements by layout: E, S as in the module's docs, W1 and W2 for W of one and two sums, F for single numbers in any case.
macro_rules! element {
    ($layout:ident F) => {
        "f32"
    };
    ($layout:ident I) => {
        "i32"
    };
    (rows4 E) => {
        "vec4<f32>"
    };
    (columns4 W2) => {
        "mat2x4<f32>"
    };
    ($layout:ident W2) => {
        "vec2<f32>"
    };
    (columns4 $other:ident) => {
        "vec4<f32>"
    };
    ($layout:ident $other:ident) => {
        "f32"
    };
}
pub(super) use element;

/// A reduction's shaders for the three layouts, with the buffers named; `one` or `two` sums.
macro_rules! reductions {
    ($name:literal, $source:literal, $sums:literal, [$(($buffer:literal, $element:ident)),*]) => {
        [
            $crate::kernel::reduction::reductions!(@ scalar, $name, $source, concat!("reduction/", $sums, ".wgsl"), [$(($buffer, $element)),*]),
            $crate::kernel::reduction::reductions!(@ rows4, concat!($name, "_rows4"), $source, concat!("reduction/", $sums, "_rows4.wgsl"), [$(($buffer, $element)),*]),
            $crate::kernel::reduction::reductions!(@ columns4, concat!($name, "_columns4"), $source, concat!("reduction/", $sums, "_columns4.wgsl"), [$(($buffer, $element)),*]),
        ]
    };
    (@ $layout:ident, $name:expr, $source:literal, $types:expr, [$(($buffer:literal, $element:ident)),*]) => {
        $crate::shader::Shader {
            name: $name,
            source: include_str!($source),
            buffers: &[$(($buffer, $crate::kernel::reduction::element!($layout $element))),*],
            params: $crate::kernel::reduction::PARAMS,
            snippets: &[("partials", $crate::kernel::reduction::PARTIALS)],
            libraries: &[include_str!($types), $crate::kernel::library::JOINED, $crate::kernel::library::REDUCTION],
            workgroup: $crate::kernel::reduction::WORKGROUP,
        }
    };
}
pub(super) use reductions;

/// Dimensions of one kind, innermost first, neighbours merged.
#[derive(Clone, Debug, Default)]
struct Dims(Vec<(u64, u64)>);

impl Dims {
    fn push(&mut self, size: u64, stride: u64) {
        match self.0.last_mut() {
            Some((inner, of_inner)) if *inner * *of_inner == stride => *inner *= size,
            _ => self.0.push((size, stride)),
        }
    }

    fn numel(&self) -> u64 {
        self.0.iter().map(|(size, _)| size).product()
    }

    fn is_innermost(&self) -> bool {
        self.0.first().is_some_and(|&(_, stride)| stride == 1)
    }

    /// Sizes and strides in vectors, where the innermost dimension of all is of this kind or not.
    fn in_vectors(&mut self) {
        for (size, stride) in &mut self.0 {
            if *stride == 1 { *size /= 4 } else { *stride /= 4 }
        }
    }

    /// Rank, three sizes, four strides.
    fn words(&self) -> impl Iterator<Item = u32> {
        let size = |axis: usize| self.0.get(axis).map_or(1, |dim| dim.0 as u32);
        let stride = |axis: usize| self.0.get(axis).map_or(0, |dim| dim.1 as u32);
        let words = [self.0.len() as u32, size(0), size(1), size(2), stride(0), stride(1), stride(2), stride(3)];
        words.into_iter()
    }
}

/// Which elements each output sums.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) layout: Layout,
    /// Outputs, in vectors for [`Layout::Columns4`].
    outputs: u64,
    /// Neighbours in a run of terms.
    run: u64,
    kept: Dims,
    /// Of runs.
    reduced: Dims,
}

/// Values of the last parameters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extra {
    pub(super) factor: f32,
    pub(super) eps: f32,
    pub(super) mode: u32,
    pub(super) word: i32,
    pub(super) columns: u32,
}

impl Reduction {
    /// Sums of a tensor of at most eight dimensions over `axes`, which the ops' own rules see to.
    pub(super) fn new(dims: &[usize], axes: &[usize]) -> Self {
        let (mut kept, mut reduced) = (Dims::default(), Dims::default());
        let mut stride = 1;
        for (axis, &size) in dims.iter().enumerate().rev().filter(|(_, size)| **size != 1) {
            let of_kind = if axes.contains(&axis) { &mut reduced } else { &mut kept };
            of_kind.push(size as u64, stride);
            stride *= size as u64;
        }
        let rows = reduced.is_innermost();
        let innermost = if rows { &reduced } else { &kept }.0.first().map_or(1, |dim| dim.0);
        let layout = match (innermost % 4, rows) {
            (0, true) => Layout::Rows4,
            (0, false) => Layout::Columns4,
            _ => Layout::Scalar,
        };
        if layout != Layout::Scalar {
            kept.in_vectors();
            reduced.in_vectors();
        }
        let run = if rows { reduced.0.remove(0).0 } else { 1 };
        Self { layout, outputs: kept.numel(), run, kept, reduced }
    }

    /// The sum of `n` terms.
    pub(super) fn of_all(n: u64) -> Self {
        Self { layout: Layout::Scalar, outputs: 1, run: n, kept: Dims::default(), reduced: Dims::default() }
    }

    /// The sum of `n` numbers, each `stride` elements behind the one before.
    pub(super) fn of_places(n: u64, stride: u64) -> Self {
        Self { reduced: Dims(vec![(n, stride)]), ..Self::of_all(1) }
    }

    /// Sums of the columns of `rows` rows: run s of an output is its number in row s.
    pub(super) fn of_rows(rows: u64, width: u64) -> Self {
        let (layout, width) =
            if width.is_multiple_of(4) { (Layout::Columns4, width / 4) } else { (Layout::Scalar, width) };
        let (kept, reduced) = (Dims(vec![(width, 1)]), Dims(vec![(rows, width)]));
        Self { layout, outputs: width, run: 1, kept, reduced }
    }

    /// Of these shaders for the three layouts, the one for this.
    pub(super) fn shader(&self, shaders: &'static [Shader; 3]) -> &'static Shader {
        &shaders[self.layout as usize]
    }

    /// The dispatches, and the end of their scratch, which begins at byte `at`. `bindings` gives a dispatch's bindings where that of `partial` is given; `sums` is the
    /// number of sums of each output.
    ///
    /// # Errors
    /// If the scratch is larger than a binding.
    pub(super) fn dispatches(
        &self,
        shader: &'static Shader,
        caps: &Caps,
        (at, sums): (u64, u64),
        extra: Extra,
        bindings: impl Fn(Binding) -> Vec<Binding>,
    ) -> Result<(Vec<Dispatch>, u64), Refused> {
        // Invocations that keep an adapter busy.
        let busy: u64 = if caps.software { 1 << 13 } else { 1 << 17 };
        let lanes = lanes(self.run, self.outputs, caps);
        let terms = self.run * self.reduced.numel();
        let most = (busy / (self.outputs * lanes).max(1)).min(terms / (lanes * WORTHWHILE)).clamp(1, MAX_CHUNKS);
        let runs = self.reduced.numel();
        let (piece, per_chunk) = if most <= runs {
            (self.run, runs.div_ceil(most))
        } else {
            (self.run.div_ceil(most.div_ceil(runs.max(1))).next_multiple_of(lanes), 1)
        };
        // A sum of no terms is 0.
        let (piece, per_chunk) = (piece.max(1), per_chunk.max(1));
        let pieces = self.run.div_ceil(piece);
        let segments = runs * pieces;
        let chunks = segments.div_ceil(per_chunk).max(1);
        let width = if self.layout == Layout::Columns4 { 4 } else { 1 };
        let partial_bytes = if chunks > 1 { 8 * sums * width * self.outputs * chunks } else { 32 };
        let partial = Binding { offset: at, ..scratch(partial_bytes, caps)? };
        let dispatch = |stage: u32, units: u64, lanes: u64, work: f64| {
            let head = [stage, units as u32, self.outputs as u32, lanes as u32, self.run as u32];
            let division = [piece, segments, per_chunk, chunks].map(|n| n as u32);
            let tail =
                [extra.factor.to_bits(), extra.eps.to_bits(), extra.mode, extra.word.cast_unsigned(), extra.columns];
            let words = head.into_iter().chain(division).chain(self.kept.words()).chain(self.reduced.words());
            let dispatch = Dispatch {
                shader,
                bindings: bindings(partial),
                params: words.chain(tail).collect(),
                groups: units.div_ceil(u64::from(WORKGROUP) / lanes),
            };
            in_parts(dispatch, work, caps)
        };
        let work = 8.0 * (sums * width * terms * self.outputs) as f64;
        let mut dispatches = dispatch(0, self.outputs * chunks, lanes, work);
        if chunks > 1 {
            let lanes = chunks.next_power_of_two().min(MAX_LANES);
            dispatches.extend(dispatch(1, self.outputs, lanes, 16.0 * (sums * width * chunks * self.outputs) as f64));
        }
        Ok((dispatches, (at + partial_bytes).next_multiple_of(ALIGNMENT)))
    }
}

/// Invocations, a power of two, that share a row of `run` elements where there are `rows` of them. Neighbours in a row are read side by side; on the CPU, whose caches bring in whole
/// lines, more than keep it busy are of no use.
pub(super) fn lanes(run: u64, rows: u64, caps: &Caps) -> u64 {
    let most = (1 << run.max(1).ilog2()).min(MAX_LANES);
    if caps.software { (256 / rows.max(1)).max(1).next_power_of_two().min(most) } else { most }
}

/// A dispatch, whose first two parameters `first` and `end` are not there yet, in parts that each do not exceed [`Caps::max_flops`]; all do `work` operations together.
pub(super) fn in_parts(dispatch: Dispatch, work: f64, caps: &Caps) -> Vec<Dispatch> {
    let parts = (work / caps.max_flops).ceil() as u64;
    let step = dispatch.groups.div_ceil(parts.max(1)).max(1);
    (0..dispatch.groups)
        .step_by(step as usize)
        .map(|first| {
            let end = (first + step).min(dispatch.groups);
            let params = [first as u32, end as u32].iter().chain(&dispatch.params).copied().collect();
            Dispatch { params, groups: end - first, bindings: dispatch.bindings.clone(), shader: dispatch.shader }
        })
        .collect()
}

/// The place of scratch from byte `offset` on.
pub(super) fn scratch_at(offset: u64, bytes: u64) -> Binding {
    Binding { place: Place::Workspace, offset, bytes }
}
