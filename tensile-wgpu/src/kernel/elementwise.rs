//! Ops that make each element from those of the same number: one template, in windows where tensors are larger than a binding.

use super::{Binding, Caps, Dispatch, Place, Plan, window, windows};
use crate::shader::Shader;

/// WGSL with snippets `load` (statements that make what `f` uses) and `f` (the vector to store); vector `i` of the window; parameters `n` (elements) and `steps` (vectors of an invocation).
pub(super) const SOURCE: &str = include_str!("elementwise.wgsl");

/// Elements of a vector.
pub(super) const VECTOR: u64 = 4;
/// Vectors an invocation takes, where that leaves enough of them: setting out costs a software adapter as much as a vector's work.
const STEPS: u64 = 4;
/// Elements that keep all of a GPU busy at that rate.
const MANY: u64 = 1 << 20;

/// A shader for y = f(x): name, f in WGSL with a vector `x`, more parameters, libraries.
macro_rules! unary {
    ($name:literal, $f:literal, [$($param:expr),*], $libraries:expr) => {
        $crate::shader::Shader {
            name: $name,
            source: $crate::kernel::elementwise::SOURCE,
            buffers: &[("x", "vec4<f32>"), ("y", "vec4<f32>")],
            params: &[("n", "u32"), ("steps", "u32"), $($param),*],
            snippets: &[("load", "let x = $x[i];"), ("f", $f)],
            libraries: $libraries,
            workgroup: 256,
        }
    };
}
pub(super) use unary;

/// A shader for y = f(a, b), all of one shape: name, f in WGSL with vectors `a` and `b`, libraries.
macro_rules! binary {
    ($name:literal, $f:literal, $libraries:expr) => {
        $crate::shader::Shader {
            name: $name,
            source: $crate::kernel::elementwise::SOURCE,
            buffers: &[("a", "vec4<f32>"), ("b", "vec4<f32>"), ("y", "vec4<f32>")],
            params: &[("n", "u32"), ("steps", "u32")],
            snippets: &[("load", "let a = $a[i]; let b = $b[i];"), ("f", $f)],
            libraries: $libraries,
            workgroup: 256,
        }
    };
}
pub(super) use binary;

/// Runs `shader` on `n` elements of four bytes of the first inputs and output 0, those of `inputs` in windows and then `whole` as it is;
/// `params(first)` are the parameters behind `n` and `steps` for a window from element `first` on.
pub(super) fn plan(
    shader: &'static Shader,
    n: u64,
    inputs: usize,
    whole: &[Binding],
    params: impl Fn(u64) -> Vec<u32>,
    caps: &Caps,
) -> Plan {
    let steps = if caps.software || n >= MANY { STEPS } else { 1 };
    let dispatches = windows(n, 4, caps).map(|(first, n)| {
        let inputs = (0..inputs).map(|input| window(Place::Input(input), first, n, 4));
        let output = window(Place::Output(0), first, n, 4);
        Dispatch {
            shader,
            bindings: inputs.chain(whole.iter().copied()).chain([output]).collect(),
            params: [n as u32, steps as u32].into_iter().chain(params(first)).collect(),
            groups: n.div_ceil(VECTOR * steps * u64::from(shader.workgroup)),
        }
    });
    Plan { workspace: 0, dispatches: dispatches.collect() }
}
