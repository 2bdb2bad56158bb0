//! What products and convolutions share: sums that an invocation computes for a block of rows × four columns, and sums in parts.
//!
//! The template of a block has a row's text for each of its rows, so that all sums stay in registers. It defines `row_at(start, row)`, where a row begins in buffer `a`, and
//! `store(block, row, total)`, and has variables `start`, `row` (the first), `a` (the term's place in each row), `x` (the term's four columns) and `block`.

use super::{Binding, Dispatch};
use crate::shader::Shader;

/// Columns of a block.
pub(super) const COLUMNS: u64 = 4;

/// Invocations in a workgroup.
pub(super) const WORKGROUP: u32 = 64;

/// Fewest terms of a part of a sum that is computed in parts.
pub(super) const LEAST_PART: u64 = 256;

/// Snippets of a block with these rows, and others.
macro_rules! snippets {
    ($n:literal, [$($row:literal)*], $($other:expr),*) => {
        [
            ("rows", $n),
            ("begin", concat!($("let row", $row, " = row_at(start, row + ", $row, "u);\nvar total", $row, " = vec4(0.0);\n"),*)),
            ("chain", concat!($("var chain", $row, " = vec4(0.0);\n"),*)),
            ("multiply", concat!($("chain", $row, " += $a[row", $row, " + a] * x;\n"),*)),
            ("flush", concat!($("total", $row, " += chain", $row, ";\nchain", $row, " = vec4(0.0);\n"),*)),
            ("store", concat!($("store(block, row + ", $row, "u, total", $row, ");\n"),*)),
            $($other),*
        ]
    };
}

macro_rules! one_row {
    ($($other:expr),*) => { block::snippets!("1u", [0], $($other),*) };
}

macro_rules! four_rows {
    ($($other:expr),*) => { block::snippets!("4u", [0 1 2 3], $($other),*) };
}

macro_rules! eight_rows {
    ($($other:expr),*) => { block::snippets!("8u", [0 1 2 3 4 5 6 7], $($other),*) };
}

pub(super) use {eight_rows, four_rows, one_row, snippets};

pub(super) static SUM_PARTS: Shader = Shader {
    name: "sum_parts",
    source: include_str!("sum_parts.wgsl"),
    buffers: &[("parts", "f32"), ("bias", "f32"), ("c", "f32")],
    params: &[("n", "u32"), ("parts", "u32"), ("biases", "u32")],
    snippets: &[],
    libraries: &[],
    workgroup: 64,
};

/// How a sum is divided: number of parts, at most `wanted`, and terms of each but perhaps the last, at least `least`.
pub(super) fn parts(terms: u64, wanted: u64, least: u64) -> (u64, u64) {
    let part = terms.div_ceil(wanted.max(1)).max(least).min(terms.max(1));
    (terms.div_ceil(part).max(1), part)
}

/// Ranges (first, number) of at most `at_once` that divide `n`.
pub(super) fn split(n: u64, at_once: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..n).step_by(at_once as usize).map(move |first| (first, at_once.min(n - first)))
}

/// Adds up `parts` arrays of `n` floats, and the element of `biases` for each column, if there are any.
pub(super) fn sum_parts(from: Binding, bias: Binding, biases: u64, to: Binding, n: u64, parts: u64) -> Dispatch {
    Dispatch {
        shader: &SUM_PARTS,
        bindings: vec![from, bias, to],
        params: vec![n as u32, parts as u32, biases as u32],
        groups: n.div_ceil(u64::from(SUM_PARTS.workgroup)),
    }
}
