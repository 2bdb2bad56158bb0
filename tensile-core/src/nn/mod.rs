//! Layers: ops together with the parameters they declare, under PyTorch's names.
//!
//! ```
//! use tensile_core::nn::{Conv, Mode, Net};
//! use tensile_core::{Graph, GraphError, TensorType, Value};
//!
//! fn model(net: &mut Net<'_>, x: Value) -> Result<Value, GraphError> {
//!     let x = net.conv2d("conv1", x, Conv::new(8, 3).padding(1).no_bias())?;
//!     let x = net.batch_norm("bn1", x)?;
//!     let x = net.graph().relu(x)?;
//!     let x = net.graph().global_avg_pool2d(x)?;
//!     let x = net.flatten(x)?;
//!     let x = net.dropout(x, 0.5)?;
//!     net.linear("fc", x, 10)
//! }
//!
//! # fn main() -> Result<(), GraphError> {
//! let mut graph = Graph::new();
//! let x = graph.input("images", TensorType::f32([32, 3, 8, 8]))?;
//! let logits = model(&mut Net::new(&mut graph, Mode::Train), x)?;
//! assert_eq!(graph.dims(logits), [32, 10]);
//! let names: Vec<&str> = graph.persistents().map(|(persistent, _)| persistent.name.as_str()).collect();
//! assert_eq!(names[0], "conv1.weight");
//! assert_eq!(names[1..4], ["bn1.weight", "bn1.bias", "bn1.running_mean"]);
//! # Ok(())
//! # }
//! ```

mod init;
mod transformer;

pub use init::{init_part, init_value};

use crate::graph::{Graph, GraphError, Init, Value};
use crate::op::conv2d::Conv2d;
use crate::random::words;
use crate::tensor::TensorType;

/// Name of the input `i32[4]` that dropout draws from; see [`random_value`].
pub const RANDOM: &str = "random";

/// Content of the input [`RANDOM`] for a step of a job: [seed low, seed high, step low, step high].
pub fn random_value(seed: u64, step: u64) -> [i32; 4] {
    let ([seed_low, seed_high], [step_low, step_high]) = (words(seed), words(step));
    [seed_low, seed_high, step_low, step_high].map(u32::cast_signed)
}

/// What the model is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Batch norm normalises by the batch and moves its running statistics; dropout drops.
    Train,
    /// Batch norm normalises by its running statistics; dropout does nothing.
    Eval,
}

/// How a weight begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightInit {
    /// PyTorch's default for linear and convolutional layers: uniform within ±1/√fan_in (Kaiming uniform with a = √5).
    Default,
    /// He et al. (arXiv 1502.01852) for ReLU, as ResNets do: normal with standard deviation √(2/fan_out).
    HeFanOut,
    /// Normal with a given standard deviation.
    Normal(f32),
}

impl WeightInit {
    /// For a weight `[out, in per group, …]` of a layer with that many groups.
    fn of(self, shape: &[usize], groups: usize) -> Init {
        let receptive: usize = shape[2..].iter().product();
        match self {
            WeightInit::Default => Init::Uniform { bound: default_bound(shape[1] * receptive) },
            WeightInit::HeFanOut => Init::Normal { std: (2.0 / (shape[0] / groups * receptive) as f64).sqrt() as f32 },
            WeightInit::Normal(std) => Init::Normal { std },
        }
    }
}

fn default_bound(fan_in: usize) -> f32 {
    (1.0 / (fan_in as f64).sqrt()) as f32
}

/// A convolutional layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Channels that it makes.
    pub out_channels: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Stride, padding, dilation and groups.
    pub conv: Conv2d,
    /// Whether it has a bias.
    pub bias: bool,
    /// How its weight begins.
    pub init: WeightInit,
}

impl Conv {
    /// A square kernel with stride 1, no padding, one group, and a bias.
    pub fn new(out_channels: usize, kernel: usize) -> Self {
        let conv = Conv2d::new(1, 0);
        Self { out_channels, kernel: [kernel; 2], conv, bias: true, init: WeightInit::Default }
    }

    /// With this stride both ways.
    pub fn stride(mut self, stride: usize) -> Self {
        self.conv.stride = [stride; 2];
        self
    }

    /// With this padding on all four sides.
    pub fn padding(mut self, padding: usize) -> Self {
        self.conv.padding = [padding; 2];
        self
    }

    /// With channels in groups.
    pub fn groups(mut self, groups: usize) -> Self {
        self.conv.groups = groups;
        self
    }

    /// Without a bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = false;
        self
    }

    /// With another start of the weight.
    pub fn init(mut self, init: WeightInit) -> Self {
        self.init = init;
        self
    }
}

/// Constants of a batch norm layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to the variance.
    pub eps: f32,
    /// Weight of a new batch in the running statistics.
    pub momentum: f32,
}

impl Default for BatchNormOptions {
    /// ε = 10⁻⁵, momentum 0.1.
    fn default() -> Self {
        Self { eps: 1e-5, momentum: 0.1 }
    }
}

/// A model under construction: a graph, and what the model is for.
///
/// A graph for evaluation with the same persistent tensors begins with [`Graph::sibling`] of the one for training.
#[derive(Debug)]
pub struct Net<'a> {
    graph: &'a mut Graph,
    mode: Mode,
}

impl<'a> Net<'a> {
    /// Begins a model, or a part of one, in a graph. All dropouts of a graph draw differently.
    pub fn new(graph: &'a mut Graph, mode: Mode) -> Self {
        Self { graph, mode }
    }

    /// The graph, for ops without parameters.
    pub fn graph(&mut self) -> &mut Graph {
        self.graph
    }

    /// What the model is for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Runs `build` with `name` added to the scope; see [`Graph::scoped`].
    ///
    /// # Errors
    /// Those of `build`.
    pub fn scoped<T>(
        &mut self,
        name: &str,
        build: impl FnOnce(&mut Net<'_>) -> Result<T, GraphError>,
    ) -> Result<T, GraphError> {
        let mode = self.mode;
        self.graph.scoped(name, |graph| build(&mut Net { graph, mode }))
    }

    /// Linear layer of x `f32[…, in]` with `weight` `[out, in]` and `bias` `[out]`, both uniform within ±1/√in.
    ///
    /// # Errors
    /// If `x` is not f32 with at least one dimension, or a name is taken.
    pub fn linear(&mut self, name: &str, x: Value, out_features: usize) -> Result<Value, GraphError> {
        self.linear_init(name, x, out_features, WeightInit::Default)
    }

    /// As [`linear`](Self::linear), with another start of the weight; unless that is the default, the bias begins as 0.
    ///
    /// # Errors
    /// As [`linear`](Self::linear).
    pub fn linear_init(
        &mut self,
        name: &str,
        x: Value,
        out_features: usize,
        init: WeightInit,
    ) -> Result<Value, GraphError> {
        self.graph.scoped(name, |graph| {
            let in_features = graph.dims(x).last().copied().unwrap_or(1);
            let shape = [out_features, in_features];
            let weight = graph.parameter("weight", shape, init.of(&shape, 1))?;
            let bias = graph.parameter("bias", [out_features], bias_init(init, in_features))?;
            graph.linear(x, weight, Some(bias))
        })
    }

    /// Convolution of x `f32[N, C, H, W]` with `weight` `[K, C/groups, R, S]` and, if wanted, `bias` `[K]`, uniform within ±1/√fan_in unless
    /// the weight begins otherwise; then the bias begins as 0.
    ///
    /// # Errors
    /// If the shapes do not fit or a name is taken.
    pub fn conv2d(&mut self, name: &str, x: Value, layer: Conv) -> Result<Value, GraphError> {
        self.graph.scoped(name, |graph| {
            let channels = graph.dims(x).get(1).copied().unwrap_or(1);
            let groups = layer.conv.groups.max(1);
            let shape = [layer.out_channels, channels / groups, layer.kernel[0], layer.kernel[1]];
            let weight = graph.parameter("weight", shape, layer.init.of(&shape, groups))?;
            let fan_in = shape[1..].iter().product();
            let bias = match layer.bias {
                true => Some(graph.parameter("bias", [layer.out_channels], bias_init(layer.init, fan_in))?),
                false => None,
            };
            graph.conv2d(x, weight, bias, layer.conv)
        })
    }

    /// Batch norm of x `f32[N, C, …]` with ε = 10⁻⁵ and momentum 0.1: `weight` (1) and `bias` (0), buffers `running_mean` (0), `running_var` (1), all `[C]`,
    /// and `num_batches_tracked` `i32[]` (0).
    ///
    /// # Errors
    /// If the shapes do not fit or a name is taken; in training also if a channel has only one value.
    pub fn batch_norm(&mut self, name: &str, x: Value) -> Result<Value, GraphError> {
        self.batch_norm_with(name, x, BatchNormOptions::default())
    }

    /// As [`batch_norm`](Self::batch_norm), with other constants.
    ///
    /// # Errors
    /// As [`batch_norm`](Self::batch_norm).
    pub fn batch_norm_with(&mut self, name: &str, x: Value, options: BatchNormOptions) -> Result<Value, GraphError> {
        let mode = self.mode;
        self.graph.scoped(name, |graph| {
            let channels = graph.dims(x).get(1).copied().unwrap_or(1);
            let weight = graph.parameter("weight", [channels], Init::Constant(1.0))?;
            let bias = graph.parameter("bias", [channels], Init::Constant(0.0))?;
            let ty = TensorType::f32([channels]);
            let mean = graph.buffer("running_mean", ty.clone(), Init::Constant(0.0))?;
            let var = graph.buffer("running_var", ty, Init::Constant(1.0))?;
            let count = graph.buffer("num_batches_tracked", TensorType::i32([]), Init::Constant(0.0))?;
            if mode == Mode::Eval {
                return graph.batch_norm_inference(x, [mean, var], weight, bias, options.eps);
            }
            let [y, batch_mean, batch_var] = graph.batch_norm(x, weight, bias, options.eps)?;
            let n = graph.ty(x).numel() / channels;
            graph.batch_norm_stats([mean, var, count], [batch_mean, batch_var], n, options.momentum)?;
            Ok(y)
        })
    }

    /// In training, zeroes elements with probability `p` and scales the others by 1/(1 − p), by the input [`RANDOM`]; otherwise gives `x`.
    ///
    /// # Errors
    /// If `x` is not f32 or `p` is no probability.
    pub fn dropout(&mut self, x: Value, p: f32) -> Result<Value, GraphError> {
        let number = self.graph.next_dropout();
        if self.mode == Mode::Eval || p == 0.0 {
            return Ok(x);
        }
        let random = self.graph.input(RANDOM, TensorType::i32([4]))?;
        self.graph.dropout(x, random, p, number)
    }

    /// All dimensions but the first as one.
    ///
    /// # Errors
    /// None; a `Result` like every other builder.
    pub fn flatten(&mut self, x: Value) -> Result<Value, GraphError> {
        let first = self.graph.dims(x).first().copied().unwrap_or(1);
        let rest = self.graph.ty(x).numel() / first.max(1);
        self.graph.reshape(x, [first, rest])
    }
}

fn bias_init(weight: WeightInit, fan_in: usize) -> Init {
    match weight {
        WeightInit::Default => Init::Uniform { bound: default_bound(fan_in) },
        WeightInit::HeFanOut | WeightInit::Normal(_) => Init::Constant(0.0),
    }
}
