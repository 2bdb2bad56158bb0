//! Kernels: for each op a Rust file that says what to dispatch, beside the WGSL files that do it.
//!
//! A kernel's `plan` is a pure function of op, types and the adapter's capabilities: the same dispatches wherever the tensors lie, so the same bits. It asks for
//! scratch in [`Plan::workspace`], and each [`Dispatch`] names the bytes it binds. Dispatches of a plan run one after another, and each sees what those before it wrote.

mod block;
mod broadcast;
mod elementwise;
pub(crate) mod library;
mod pool;
mod reduction;
mod rows;
mod strided;
mod update;

use tensile_core::{Op, TensorType};

use crate::shader::Shader;

/// Regions start at multiples of this many bytes, and so do parts of them that are bound.
pub(crate) const ALIGNMENT: u64 = 256;

/// What kernels have to know of an adapter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Caps {
    /// Most bytes of a binding; a multiple of [`ALIGNMENT`].
    pub(crate) max_binding: u64,
    /// Whether the adapter runs on the CPU, where shared memory is no faster than any other and registers are what counts.
    pub(crate) software: bool,
    /// Most floating-point operations of one dispatch, so that none runs for long: drivers reset devices that do.
    pub(crate) max_flops: f64,
}

/// Types of a call's tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Types<'a> {
    pub(crate) inputs: &'a [&'a TensorType],
    pub(crate) outputs: &'a [&'a TensorType],
}

/// Which of a call's regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Input(usize),
    Output(usize),
    Workspace,
}

/// Bytes that a dispatch binds: a part of a region, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) place: Place,
    /// First byte in the region; a multiple of [`ALIGNMENT`].
    pub(crate) offset: u64,
    /// Bytes bound, at least 1. A launch rounds them up to 16, which stays within the region's last [`ALIGNMENT`] bytes; what is behind the tensor must be left as it is.
    pub(crate) bytes: u64,
}

/// One launch of a shader.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub(crate) shader: &'static Shader,
    /// One for each of the shader's buffers.
    pub(crate) bindings: Vec<Binding>,
    /// One word for each of the shader's parameters; floats by their bits.
    pub(crate) params: Vec<u32>,
    /// Workgroups, at least 1. More than a grid's row holds are folded into rows of equal length, so a shader may see groups beyond this number.
    pub(crate) groups: u64,
}

/// What a launch of an op does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Scratch bytes.
    pub(crate) workspace: u64,
    pub(crate) dispatches: Vec<Dispatch>,
}

/// Why there is no kernel for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No kernel for this op.
    NoKernel,
    /// A tensor or the scratch is larger than a binding, and the kernel needs it whole.
    Binding { what: String, bytes: u64 },
    /// Another limit of the kernel, in words.
    Other(String),
}

impl Types<'_> {
    /// Binds a whole input or output.
    ///
    /// # Errors
    /// [`Refused::Binding`] if it is larger than a binding may be.
    pub(crate) fn whole(&self, place: Place, caps: &Caps) -> Result<Binding, Refused> {
        let (what, ty) = match place {
            Place::Input(index) => (format!("input {index}"), self.inputs[index]),
            Place::Output(index) => (format!("output {index}"), self.outputs[index]),
            Place::Workspace => unreachable!("scratch has no type: see `scratch`"),
        };
        whole(place, ty.bytes() as u64, caps)
            .map_err(|_| Refused::Binding { what: format!("{what} {ty}"), bytes: ty.bytes() as u64 })
    }
}

/// Binds `bytes` of scratch from the start.
///
/// # Errors
/// [`Refused::Binding`] if it is larger than a binding may be.
pub(crate) fn scratch(bytes: u64, caps: &Caps) -> Result<Binding, Refused> {
    whole(Place::Workspace, bytes, caps).map_err(|_| Refused::Binding { what: "its scratch".to_owned(), bytes })
}

fn whole(place: Place, bytes: u64, caps: &Caps) -> Result<Binding, ()> {
    if bytes > caps.max_binding { Err(()) } else { Ok(Binding { place, offset: 0, bytes: bytes.max(1) }) }
}

/// A part of a region: `n` elements from element `first` on, of `size` bytes each.
pub(crate) fn window(place: Place, first: u64, n: u64, size: u64) -> Binding {
    debug_assert!((first * size).is_multiple_of(ALIGNMENT), "windows start at the alignment");
    Binding { place, offset: first * size, bytes: n * size }
}

/// Ranges (first, number) of elements that divide `n` elements so that a window of each, at up to `size` bytes an element, fits a binding and starts at the alignment
/// for elements of one byte too. A window is at most 2 GiB, so that element numbers fit an i32. No range for n = 0.
pub(crate) fn windows(n: u64, size: u64, caps: &Caps) -> impl Iterator<Item = (u64, u64)> {
    let step = (caps.max_binding.min(1 << 31) / size / ALIGNMENT * ALIGNMENT).max(ALIGNMENT);
    (0..n).step_by(step as usize).map(move |first| (first, step.min(n - first)))
}

macro_rules! kernels {
    ($($module:ident: $($op:ident),+;)*) => {
        $(mod $module;)*

        /// What a launch of `op` on these types does.
        ///
        /// # Errors
        /// [`Refused`] if there is no kernel for it.
        pub(crate) fn plan(op: &Op, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused> {
            match op {
                $($(Op::$op(op) => op.plan(types, caps),)+)*
                _ => Err(Refused::NoKernel),
            }
        }

        /// All shaders, for tests.
        #[cfg(test)]
        pub(crate) fn shaders() -> Vec<&'static Shader> {
            [$($module::SHADERS),*, strided::SHADERS].concat()
        }
    };
}

/// A backend's side of an op: how to run it.
pub(crate) trait Kernel {
    /// What a launch does. The shapes have been checked by the op's own rule.
    ///
    /// # Errors
    /// [`Refused`] where the kernel cannot do it.
    fn plan(&self, types: Types<'_>, caps: &Caps) -> Result<Plan, Refused>;
}

kernels! {
    adam: Adam;
    adaptive_avg_pool2d: AdaptiveAvgPool2d, AdaptiveAvgPool2dGrad;
    affine: Affine;
    avg_pool2d: AvgPool2d, AvgPool2dGrad;
    batch_norm: BatchNorm, BatchNormGrad, BatchNormInference;
    batch_norm_stats: BatchNormStats;
    binary: Add, Div, Mul, Sub;
    channel_sum: ChannelSum;
    concat: Concat;
    conv2d: Conv2d, Conv2dInputGrad, Conv2dWeightGrad;
    copy: Copy;
    count_correct: CountCorrect;
    dropout: Dropout;
    embedding: Embedding, EmbeddingGrad;
    expand: Expand;
    fill: Fill;
    gate: Gate;
    gelu: Gelu, GeluGrad;
    heads: MergeHeads, SplitHeads;
    layer_norm: LayerNorm, LayerNormGrad;
    matmul: MatMul;
    max_pool2d: MaxPool2d, MaxPool2dGrad;
    pad: Pad, Slice;
    permute: Permute;
    reduce_sum: ReduceSum;
    relu: Relu, ReluGrad;
    sgd: Sgd;
    sigmoid: Sigmoid, SigmoidGrad;
    softmax: Softmax, SoftmaxGrad;
    softmax_cross_entropy: SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad;
    square_sum: SquareSum;
    tanh: Tanh, TanhGrad;
}

#[cfg(test)]
mod tests;
