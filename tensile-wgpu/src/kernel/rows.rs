//! Kernels that take rows of a tensor as a whole: one or more invocations side by side on a row, which read it several times.

use super::reduction::{in_parts, lanes};
use super::{Binding, Caps, Dispatch};
use crate::shader::Shader;

/// Invocations in a workgroup.
pub(super) const WORKGROUP: u32 = 128;

/// Parameters of a kernel of rows: which groups it is, rows, elements in a row, invocations on a row, and two words of the op's.
pub(super) const PARAMS: &[(&str, &str)] = &[
    ("first", "u32"),
    ("end", "u32"),
    ("rows", "u32"),
    ("width", "u32"),
    ("lanes", "u32"),
    ("a", "u32"),
    ("b", "u32"),
];

/// A kernel's shaders for rows of numbers and of vectors: element type `E` of buffers, `F` for single numbers in both.
macro_rules! row_shaders {
    ($name:literal, $source:literal, [$(($buffer:literal, $element:ident)),*]) => {
        [
            $crate::kernel::rows::row_shaders!(@ scalar, $crate::kernel::library::ELEMENT_ONE, $name, $source, [$(($buffer, $element)),*]),
            $crate::kernel::rows::row_shaders!(
                @ rows4, $crate::kernel::library::ELEMENT_FOUR, concat!($name, "_4"), $source, [$(($buffer, $element)),*]
            ),
        ]
    };
    (@ $layout:ident, $types:expr, $name:expr, $source:literal, [$(($buffer:literal, $element:ident)),*]) => {
        $crate::shader::Shader {
            name: $name,
            source: include_str!($source),
            buffers: &[$(($buffer, $crate::kernel::reduction::element!($layout $element))),*],
            params: $crate::kernel::rows::PARAMS,
            snippets: &[],
            libraries: &[
                $types,
                $crate::kernel::library::EXP,
                $crate::kernel::library::JOINED,
                $crate::kernel::library::ROWS,
            ],
            workgroup: $crate::kernel::rows::WORKGROUP,
        }
    };
}
pub(super) use row_shaders;

/// The dispatches of a kernel for `rows` rows of `width` numbers, at about `flops` operations a number.
pub(super) fn dispatches(
    shaders: &'static [Shader; 2],
    bindings: Vec<Binding>,
    (rows, width): (u64, u64),
    words: (u32, u32),
    flops: f64,
    caps: &Caps,
) -> Vec<Dispatch> {
    if width.is_multiple_of(4) {
        dispatches_of(&shaders[1], bindings, (rows, width / 4), words, 4.0 * flops, caps)
    } else {
        dispatches_of(&shaders[0], bindings, (rows, width), words, flops, caps)
    }
}

/// The same by one shader, for rows of `width` elements, at about `flops` operations an element.
pub(super) fn dispatches_of(
    shader: &'static Shader,
    bindings: Vec<Binding>,
    (rows, width): (u64, u64),
    (a, b): (u32, u32),
    flops: f64,
    caps: &Caps,
) -> Vec<Dispatch> {
    let lanes = lanes(width, rows, caps);
    let dispatch = Dispatch {
        shader,
        bindings,
        params: vec![rows as u32, width as u32, lanes as u32, a, b],
        groups: rows.div_ceil(u64::from(WORKGROUP) / lanes),
    };
    in_parts(dispatch, flops * (rows * width) as f64, caps)
}
