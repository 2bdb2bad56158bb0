//! What updates of parameters share: each invocation moves four elements of a part of a parameter, with their states, unless a gate is shut.
//!
//! A part may begin anywhere in its parameter, and its states begin with it. So there are two forms of a shader: for parts that begin at a whole vector,
//! and for others, whose tensors are arrays of numbers.

use tensile_core::op::sgd::Part;

use super::{ALIGNMENT, Caps, Dispatch, Place, Plan, Refused, Types, window, windows};
use crate::shader::Shader;

/// Elements an invocation takes.
const VECTOR: u64 = 4;
/// Elements between places where a window can start.
const STEP: u64 = ALIGNMENT / 4;

/// Shaders of an update: without and with a gate, each for whole vectors and for numbers.
pub(super) type Shaders = [[Shader; 2]; 2];

/// Stores vector `$x` in the buffer of that name.
macro_rules! store {
    (vectors, $x:literal, $at:literal) => {
        concat!(
            "if left >= 4 { $",
            $x,
            "[",
            $at,
            "] = ",
            $x,
            "; } else { for (var c = 0u; c < u32(left); c++) { $",
            $x,
            "[",
            $at,
            "][c] = ",
            $x,
            "[c]; } }"
        )
    };
    (numbers, $x:literal, $at:literal) => {
        concat!("for (var c = 0u; c < u32(min(left, 4)); c++) { $", $x, "[", $at, " + c] = ", $x, "[c]; }")
    };
}

/// Four elements of buffer `$x`, none behind `$last`.
macro_rules! four {
    ($x:literal, $at:literal, $last:literal) => {
        concat!(
            "vec4($", $x, "[", $at, "], $", $x, "[min(", $at, " + 1u, ", $last, ")], $", $x, "[min(", $at, " + 2u, ",
            $last, ")], $", $x, "[min(", $at, " + 3u, ", $last, ")])"
        )
    };
}

/// Snippets of an update's WGSL: `old_w`, `old_g`, `old_m` and `old_v` are the four elements of parameter, gradient and states; `store_w`, `store_m` and
/// `store_v` replace them by the vectors `w`, `m` and `v`; `scalar` is scalar `k`, and `gate` the gate's scale and whether it is open.
pub(super) const fn snippets(vectors: bool, gated: bool) -> &'static [(&'static str, &'static str)] {
    macro_rules! all {
        (vectors, $gate:literal) => {
            &[
                ("old_w", "$w[at / 4u]"),
                ("old_g", "$g[at / 4u]"),
                ("old_m", "$m[i]"),
                ("old_v", "$v[i]"),
                ("store_w", store!(vectors, "w", "at / 4u")),
                ("store_m", store!(vectors, "m", "i")),
                ("store_v", store!(vectors, "v", "i")),
                ("scalar", "$scalars[k / 4u][k % 4u]"),
                ("gate", $gate),
            ]
        };
        (numbers, $gate:literal) => {
            &[
                ("old_w", four!("w", "at", "p.skip + p.n - 1u")),
                ("old_g", four!("g", "at", "p.skip + p.n - 1u")),
                ("old_m", four!("m", "4u * i", "p.n - 1u")),
                ("old_v", four!("v", "4u * i", "p.n - 1u")),
                ("store_w", store!(numbers, "w", "at")),
                ("store_m", store!(numbers, "m", "4u * i")),
                ("store_v", store!(numbers, "v", "4u * i")),
                ("scalar", "$scalars[k]"),
                ("gate", $gate),
            ]
        };
    }
    match (vectors, gated) {
        (true, false) => all!(vectors, "vec2(1.0)"),
        (true, true) => all!(vectors, "$gates[0].xy"),
        (false, false) => all!(numbers, "vec2(1.0)"),
        (false, true) => all!(numbers, "vec2($gates[0], $gates[1])"),
    }
}

/// [`Shaders`] from one WGSL file: name, file, names of the states' buffers, parameters behind `n` and `skip`.
macro_rules! shaders {
    ($name:literal, $file:literal, $states:tt, $params:tt) => {
        [
            [
                $crate::kernel::update::shaders!(@one $name, $file, "vec4<f32>", true, false, $states, [], $params),
                $crate::kernel::update::shaders!(@one concat!($name, "_numbers"), $file, "f32", false, false, $states, [], $params),
            ],
            [
                $crate::kernel::update::shaders!(@one concat!($name, "_gated"), $file, "vec4<f32>", true, true, $states, ["gates"], $params),
                $crate::kernel::update::shaders!(@one concat!($name, "_gated_numbers"), $file, "f32", false, true, $states, ["gates"], $params),
            ],
        ]
    };
    (@one $name:expr, $file:literal, $ty:literal, $vectors:literal, $gated:literal, [$($state:literal),*], [$($gate:literal),*], [$($param:expr),*]) => {
        $crate::shader::Shader {
            name: $name,
            source: include_str!($file),
            buffers: &[("w", $ty), ("g", $ty), ("scalars", $ty), $(($state, $ty),)* $(($gate, $ty),)*],
            params: &[("n", "u32"), ("skip", "u32"), $($param),*],
            snippets: $crate::kernel::update::snippets($vectors, $gated),
            libraries: &[],
            workgroup: 256,
        }
    };
}
pub(super) use shaders;

/// Updates a part with `states` states; `params` stand behind the number of elements and how many stand before them in the parameter's window.
///
/// # Errors
/// If the scalars or the gate are larger than a binding.
pub(super) fn plan(
    shaders: &'static Shaders,
    part: Part,
    states: usize,
    params: &[u32],
    types: Types<'_>,
    caps: &Caps,
) -> Result<Plan, Refused> {
    let (offset, len) = (part.offset as u64, part.len as u64);
    let scalars = types.whole(Place::Input(2), caps)?;
    let gate = match types.inputs.len() - 3 - states {
        0 => None,
        _ => Some(types.whole(Place::Input(3 + states), caps)?),
    };
    let shader = &shaders[usize::from(gate.is_some())][usize::from(!offset.is_multiple_of(VECTOR))];
    let skip = offset % STEP;
    // A parameter's window begins up to a step before the part.
    let caps = Caps { max_binding: if skip == 0 { caps.max_binding } else { caps.max_binding - ALIGNMENT }, ..*caps };
    let dispatches = windows(len, 4, &caps).map(|(first, n)| {
        let moved = |input| window(Place::Input(input), offset + first - skip, skip + n, 4);
        let state = |state| window(Place::Input(3 + state), first, n, 4);
        Dispatch {
            shader,
            bindings: [moved(0), moved(1), scalars].into_iter().chain((0..states).map(state)).chain(gate).collect(),
            params: [n as u32, skip as u32].iter().chain(params).copied().collect(),
            groups: n.div_ceil(VECTOR * u64::from(shader.workgroup)),
        }
    });
    Ok(Plan { workspace: 0, dispatches: dispatches.collect() })
}

/// All of some updates' shaders.
#[cfg(test)]
macro_rules! list {
    ($($shaders:expr),*) => {
        &[$(&$shaders[0][0], &$shaders[0][1], &$shaders[1][0], &$shaders[1][1]),*]
    };
}
#[cfg(test)]
pub(super) use list;
