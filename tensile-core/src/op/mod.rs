//! Operations: one file each, with shape rule, gradient, cost and host kernel.
//!
//! # Adding an op
//!
//! Write `op/NAME.rs` with a struct that holds the attributes and implements [`OpDef`], and builder methods on
//! [`Graph`](crate::graph::Graph); add one variant to [`Op`]. A backend then lacks one kernel, and refuses the op by its name;
//! a case in the conformance suite, which has to have every op, says so.
//! An op of your own needs no variant: wrap it in [`Op::Custom`]; it runs on the host device.

pub mod adam;
pub mod adaptive_avg_pool2d;
pub mod add;
pub mod affine;
pub mod avg_pool2d;
pub mod batch_norm;
pub mod batch_norm_stats;
pub(crate) mod broadcast;
pub mod channel_sum;
pub mod concat;
pub mod conv2d;
pub mod copy;
pub mod count_correct;
pub mod div;
pub mod dropout;
pub(crate) mod elementwise;
pub mod embedding;
pub mod fill;
pub mod gate;
pub mod gelu;
pub mod heads;
mod lanes;
pub mod layer_norm;
mod math;
pub mod matmul;
pub mod max_pool2d;
pub mod mul;
pub mod pad;
pub mod permute;
pub mod pool;
pub mod reduce_sum;
pub mod relu;
pub mod sgd;
pub mod sigmoid;
pub mod softmax;
pub mod softmax_cross_entropy;
pub mod square_sum;
pub mod sub;
pub mod tanh;

use std::fmt;
use std::sync::Arc;

use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{GraphError, Value};
use crate::tensor::TensorType;

/// Work an op does, for predicting how long it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts as two.
    pub flops: f64,
    /// Bytes read and written at least.
    pub bytes: f64,
}

/// Inputs an op does not accept, said in one sentence without the op's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub String);

/// What an op is: shape rule, gradient, cost, purity and the host reference kernel.
///
/// Every op is a pure function of its inputs and attributes, except that it changes the inputs that it lists in [`updates`](Self::updates).
pub trait OpDef: fmt::Debug + Send + Sync {
    /// Kind of op, as shown in reports and used as op class in traces: `conv2d`, `relu`, …
    fn name(&self) -> &'static str;

    /// Types of the outputs for inputs of these types.
    ///
    /// # Errors
    /// Says what is wrong with the inputs, with their shapes.
    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError>;

    /// Adds ops that compute the gradients of the inputs from the gradients of the outputs.
    ///
    /// One entry for each input; `None` where there is no gradient (integers) or none is asked for ([`GradCall::needs`]). Only the values
    /// that the added ops use stay alive until the backward pass, so use as few as possible.
    ///
    /// # Errors
    /// If an added op refuses its inputs, or the op has no gradient.
    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError>;

    /// Indices of inputs that the op changes in place; these must be persistent tensors.
    fn updates(&self) -> &[usize] {
        &[]
    }

    /// Whether, as an update, it accepts a gate as one more input behind the others: the output 0 of a [`Gate`](gate::Gate). With
    /// a gate that is shut it must leave everything as it is.
    fn takes_gate(&self) -> bool {
        false
    }

    /// Pairs (input, output) where the host kernel may find both at the same address, if they have the same size for the shapes at hand. The
    /// result must have the same bits. Each output stands in one pair at most.
    fn in_place(&self) -> &[(usize, usize)] {
        &[]
    }

    /// Whether running it again gives the same bits. True for everything but updates.
    fn replayable(&self) -> bool {
        self.updates().is_empty()
    }

    /// Work for inputs and outputs of these types. The default counts one operation per output element and every byte once.
    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            flops: outputs.iter().map(|ty| ty.numel() as f64).sum(),
            bytes: inputs.iter().chain(outputs).map(|ty| ty.bytes() as f64).sum(),
        }
    }

    /// Scratch bytes the host kernel needs when it runs on `threads` threads. It may use no other memory that grows with the shapes.
    fn host_workspace(&self, inputs: &[TensorType], outputs: &[TensorType], threads: usize) -> usize {
        let _ = (inputs, outputs, threads);
        0
    }

    /// Computes the outputs on the host. The bits of the result may depend on nothing but the inputs, attributes and shapes: not on
    /// addresses, in-place use, or the number of threads.
    fn host_kernel(&self, call: &HostCall<'_>);
}

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident($ty:ty),)*) => {
        /// An op with its attributes. Cheap to clone.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Op {
            $($(#[$doc])* $name($ty),)*
            /// An op from outside this crate.
            Custom(Arc<dyn OpDef>),
        }

        impl Op {
            /// Names of all variants but `Custom`.
            pub const KINDS: &[&str] = &[$(stringify!($name)),*];

            /// Name of the variant.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Op::$name(_) => stringify!($name),)*
                    Op::Custom(_) => "Custom",
                }
            }

            /// What the op is.
            pub fn def(&self) -> &dyn OpDef {
                match self {
                    $(Op::$name(def) => def,)*
                    Op::Custom(def) => def.as_ref(),
                }
            }
        }

        $(impl From<$ty> for Op {
            fn from(def: $ty) -> Self {
                Op::$name(def)
            }
        })*
    };
}

ops! {
    /// One step of Adam or AdamW.
    Adam(adam::Adam),
    /// Means over as many windows as asked for.
    AdaptiveAvgPool2d(adaptive_avg_pool2d::AdaptiveAvgPool2d),
    /// Gradient of [`Op::AdaptiveAvgPool2d`].
    AdaptiveAvgPool2dGrad(adaptive_avg_pool2d::AdaptiveAvgPool2dGrad),
    /// Elementwise sum with broadcasting.
    Add(add::Add),
    /// The same scale and shift for every element.
    Affine(affine::Affine),
    /// Mean of each window.
    AvgPool2d(avg_pool2d::AvgPool2d),
    /// Gradient of [`Op::AvgPool2d`].
    AvgPool2dGrad(avg_pool2d::AvgPool2dGrad),
    /// Normalisation of each channel by its own statistics.
    BatchNorm(batch_norm::BatchNorm),
    /// Gradient of [`Op::BatchNorm`] and [`Op::BatchNormInference`].
    BatchNormGrad(batch_norm::BatchNormGrad),
    /// Normalisation of each channel by given statistics.
    BatchNormInference(batch_norm::BatchNormInference),
    /// Step of batch norm's running statistics.
    BatchNormStats(batch_norm_stats::BatchNormStats),
    /// Sum over everything but the channels.
    ChannelSum(channel_sum::ChannelSum),
    /// Tensors side by side.
    Concat(concat::Concat),
    /// Convolution.
    Conv2d(conv2d::Conv2d),
    /// Gradient of a convolution by its input.
    Conv2dInputGrad(conv2d::Conv2dInputGrad),
    /// Gradient of a convolution by its weight.
    Conv2dWeightGrad(conv2d::Conv2dWeightGrad),
    /// The same tensor in other bytes.
    Copy(copy::Copy),
    /// How many rows are largest at their label.
    CountCorrect(count_correct::CountCorrect),
    /// Elementwise quotient with broadcasting.
    Div(div::Div),
    /// Zeroes at random; its own gradient.
    Dropout(dropout::Dropout),
    /// Rows of a table by index.
    Embedding(embedding::Embedding),
    /// Sums of rows by index; gradient of [`Op::Embedding`].
    EmbeddingGrad(embedding::EmbeddingGrad),
    /// Repeats to a larger shape.
    Expand(reduce_sum::Expand),
    /// A tensor of one value.
    Fill(fill::Fill),
    /// Whether updates are made, and how far gradients are scaled.
    Gate(gate::Gate),
    /// Gaussian error linear unit.
    Gelu(gelu::Gelu),
    /// Gradient of [`Op::Gelu`].
    GeluGrad(gelu::GeluGrad),
    /// Normalisation of each row.
    LayerNorm(layer_norm::LayerNorm),
    /// Gradient of [`Op::LayerNorm`].
    LayerNormGrad(layer_norm::LayerNormGrad),
    /// Matrix product.
    MatMul(matmul::MatMul),
    /// Heads of attention side by side; gradient of [`Op::SplitHeads`].
    MergeHeads(heads::MergeHeads),
    /// Largest value of each window.
    MaxPool2d(max_pool2d::MaxPool2d),
    /// Gradient of [`Op::MaxPool2d`].
    MaxPool2dGrad(max_pool2d::MaxPool2dGrad),
    /// Elementwise product with broadcasting.
    Mul(mul::Mul),
    /// Zeros around a tensor.
    Pad(pad::Pad),
    /// Dimensions in another order.
    Permute(permute::Permute),
    /// Sums or means over some dimensions.
    ReduceSum(reduce_sum::ReduceSum),
    /// Elementwise max(x, 0).
    Relu(relu::Relu),
    /// Gradient of [`Op::Relu`].
    ReluGrad(relu::ReluGrad),
    /// One step of stochastic gradient descent.
    Sgd(sgd::Sgd),
    /// Elementwise logistic function.
    Sigmoid(sigmoid::Sigmoid),
    /// Gradient of [`Op::Sigmoid`].
    SigmoidGrad(sigmoid::SigmoidGrad),
    /// A box out of a tensor.
    Slice(pad::Slice),
    /// Softmax over the last dimension.
    Softmax(softmax::Softmax),
    /// Mean cross-entropy of labels under a softmax.
    SoftmaxCrossEntropy(softmax_cross_entropy::SoftmaxCrossEntropy),
    /// Gradient of [`Op::SoftmaxCrossEntropy`].
    SoftmaxCrossEntropyGrad(softmax_cross_entropy::SoftmaxCrossEntropyGrad),
    /// Gradient of [`Op::Softmax`].
    SoftmaxGrad(softmax::SoftmaxGrad),
    /// Features to heads of attention; gradient of [`Op::MergeHeads`].
    SplitHeads(heads::SplitHeads),
    /// Running sum of squares.
    SquareSum(square_sum::SquareSum),
    /// Elementwise difference with broadcasting.
    Sub(sub::Sub),
    /// Elementwise hyperbolic tangent.
    Tanh(tanh::Tanh),
    /// Gradient of [`Op::Tanh`].
    TanhGrad(tanh::TanhGrad),
}
