//! A small network that tells by what factor an op takes longer, or less long, than the roofline says.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Nanos, Planner};

use super::features::{Features, N_FEATURES};
use super::{Latencies, LatencyError, Roofline, nanos};
use crate::device::Device;
use crate::device::host::{HostDevice, HostOptions, Rates};
use crate::exec::{Compiled, Executor, ExecutorOptions, Named, PersistentValue, Step, lower};
use crate::graph::{Graph, GraphError, Init};
use crate::nn::init_part;
use crate::op::Op;
use crate::optim::{Optimizer, SCALARS, train};
use crate::random::{philox4x32, words};
use crate::tensor::TensorType;

/// An op as it was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What it was, and under what load.
    pub features: Features,
    /// How long it took, in nanoseconds.
    pub nanos: f64,
}

/// How the network is trained. Equal samples and options give equal networks, on whatever machine and number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOptions {
    /// Width of both hidden layers.
    pub hidden: usize,
    /// Updates.
    pub steps: usize,
    /// Samples for each update; a sixteenth of all if that is less.
    pub batch: usize,
    /// First learning rate; it falls to zero by half a cosine.
    pub learning_rate: f64,
    /// Pull of weights towards 0, as in AdamW.
    pub weight_decay: f32,
    /// Of first weights and of the order of samples.
    pub seed: u64,
}

impl Default for TrainOptions {
    /// On ops of the host, wider networks and more updates did not lessen the error on shapes held out.
    fn default() -> Self {
        Self { hidden: 64, steps: 1000, batch: 256, learning_rate: 5e-3, weight_decay: 0.02, seed: 1 }
    }
}

/// How far predictions are off: |predicted − measured| / measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    /// Predictions that were compared.
    pub count: usize,
    /// Half of the errors are below.
    pub median: f64,
    /// Nine tenths of the errors are below.
    pub p90: f64,
}

impl Accuracy {
    /// Of pairs (predicted, measured); none if there are none.
    pub fn new(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut errors: Vec<f64> =
            pairs.into_iter().map(|(predicted, measured)| (predicted - measured).abs() / measured).collect();
        errors.sort_by(f64::total_cmp);
        let at = |part: f64| errors.get((errors.len() as f64 * part) as usize).copied();
        Some(Self { count: errors.len(), median: at(0.5)?, p90: at(0.9)? })
    }
}

/// Parts samples in two, by shape: about every `every`-th shape, under whatever load it was measured, goes to the second part. Which ones they are depends on the
/// shapes alone.
pub fn split(samples: &[Sample], every: u64) -> [Vec<Sample>; 2] {
    let (second, first) = samples.iter().cloned().partition(|sample| {
        let (class, bits) = sample.features.shape();
        // FNV-1a.
        let bytes = class.bytes().chain(bits.into_iter().flat_map(u64::to_le_bytes));
        let hash =
            bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        (hash >> 32).is_multiple_of(every.max(1))
    });
    [first, second]
}

/// A dense layer: `outputs` rows of weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layer {
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

/// Latencies as a network has learned them from ops that were measured.
///
/// Two hidden layers get the op's class (one-hot) and [`Features`], and give the logarithm of measured over roofline time. So an op of a class that was not measured
/// takes what the [`Roofline`] says. The paper has a network for each kind of kernel; one for all has more to learn each
/// number's meaning from, and on ops of the host was nearer on shapes held out (median 20 % off against 21 %, 90th percentile 70 % against 76 %).
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    pub(super) device: String,
    pub(super) roofline: Roofline,
    /// Sorted.
    pub(super) classes: Vec<String>,
    /// Mean, standard deviation, least and greatest value of each feature.
    pub(super) scales: [[f32; N_FEATURES]; 4],
    /// Least and greatest factor that was measured, as logarithms: the network says nothing beyond.
    pub(super) limits: [f32; 2],
    pub(super) layers: [Layer; 3],
    /// On shapes held out.
    pub(super) accuracy: Option<Accuracy>,
}

impl Learned {
    /// Trains a network on ops that were measured on a device of that name, whose features were made with this roofline. `progress` is called before each update.
    ///
    /// # Errors
    /// [`LatencyError::NoSamples`] if there are none with a finite time above zero. [`LatencyError::Training`] if the host has no memory for it.
    pub fn train(
        device: &str,
        roofline: Roofline,
        samples: &[Sample],
        options: &TrainOptions,
        mut progress: impl FnMut(usize),
    ) -> Result<Self, LatencyError> {
        let samples: Vec<&Sample> =
            samples.iter().filter(|sample| sample.nanos.is_finite() && sample.nanos > 0.0).collect();
        if samples.is_empty() {
            return Err(LatencyError::NoSamples);
        }
        let classes: BTreeSet<&str> = samples.iter().map(|sample| sample.features.class).collect();
        let classes: Vec<String> = classes.into_iter().map(str::to_owned).collect();
        let residuals: Vec<f32> =
            samples.iter().map(|sample| (sample.nanos / sample.features.roofline).ln() as f32).collect();
        let mut learned = Self {
            device: device.to_owned(),
            roofline,
            scales: scales(&samples),
            limits: residuals.iter().fold([f32::MAX, f32::MIN], |[least, most], &x| [least.min(x), most.max(x)]),
            layers: std::array::from_fn(|_| Layer { weight: Vec::new(), bias: Vec::new() }),
            classes,
            accuracy: None,
        };
        let rows: Vec<Vec<f32>> = samples.iter().map(|sample| learned.row(&sample.features)).collect();
        let mean = residuals.iter().map(|&x| f64::from(x)).sum::<f64>() / residuals.len() as f64;
        let batch = options.batch.min(samples.len() / 16).max(1);
        let optimizer = Optimizer::adamw(options.weight_decay).without_decay_on_vectors();
        let training = |error: &dyn std::fmt::Display| LatencyError::Training { detail: error.to_string() };
        let graph =
            graph(batch, learned.width(), options.hidden.max(1), &optimizer).map_err(|error| training(&error))?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let host = HostOptions { threads, rates: Some(Rates::NOMINAL), ..HostOptions::default() };
        let host = Arc::new(HostDevice::new(host).map_err(|error| training(&error))?);
        let step = lower(&graph, &*host).map_err(|error| training(&error))?;
        let mut executor = executor(host, step, options.seed, mean as f32).map_err(|error| training(&error))?;
        let compiled = Arc::clone(executor.compiled());
        let mut order = Order::new(samples.len(), options.seed);
        for update in 0..options.steps {
            progress(update);
            let chosen: Vec<usize> = (0..batch).map(|_| order.draw()).collect();
            let part = update as f64 / options.steps as f64;
            let rate = options.learning_rate * 0.5 * (1.0 + (std::f64::consts::PI * part).cos());
            let fill = |input: &Named, bytes: &mut [u8]| {
                let values: Vec<f32> = match input.name.as_str() {
                    SCALARS => optimizer.scalars(update as u64, rate),
                    FEATURES => chosen.iter().flat_map(|&index| rows[index].iter().copied()).collect(),
                    _ => chosen.iter().map(|&index| residuals[index]).collect(),
                };
                bytes.copy_from_slice(bytemuck::cast_slice(&values));
            };
            executor.step(&compiled, fill).map_err(|error| training(&error))?;
        }
        let state = executor.state().map_err(|error| training(&error))?;
        learned.layers = layers(&state);
        Ok(learned)
    }

    /// Numbers that the network gets.
    pub(super) fn width(&self) -> usize {
        N_FEATURES + self.classes.len()
    }

    /// What the network gets for an op: features scaled, and the class.
    fn row(&self, features: &Features) -> Vec<f32> {
        let [mean, deviation, least, most] = &self.scales;
        let mut row = vec![0.0; self.width()];
        for (index, &value) in features.values.iter().enumerate() {
            row[index] = ((value as f32).clamp(least[index], most[index]) - mean[index]) / deviation[index];
        }
        if let Ok(class) = self.classes.binary_search_by(|class| class.as_str().cmp(features.class)) {
            row[N_FEATURES + class] = 1.0;
        }
        row
    }

    /// Nanoseconds that an op will take: the roofline's where its class was never measured.
    pub fn nanos(&self, features: &Features) -> f64 {
        if self.classes.binary_search_by(|class| class.as_str().cmp(features.class)).is_err() {
            return features.roofline;
        }
        let mut values = self.row(features);
        for (index, layer) in self.layers.iter().enumerate() {
            let rows = layer.weight.chunks_exact(values.len()).zip(&layer.bias);
            let next = rows.map(|(row, bias)| bias + row.iter().zip(&values).map(|(w, x)| w * x).sum::<f32>());
            values = if index < 2 { next.map(|x| x.max(0.0)).collect() } else { next.collect() };
        }
        let [least, most] = self.limits;
        features.roofline * f64::from(values[0].clamp(least, most)).exp()
    }

    /// Name of the device whose ops it knows.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What it corrects, with the device's rates when it was measured.
    pub fn roofline(&self) -> &Roofline {
        &self.roofline
    }

    /// Names of the ops that it knows, sorted.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// How far it was off on shapes held out, if that was [measured](Self::measure).
    pub fn accuracy(&self) -> Option<Accuracy> {
        self.accuracy
    }

    /// Compares it with measurements that it was not trained on, and keeps the result with it.
    pub fn measure(&mut self, held_out: &[Sample]) -> Option<Accuracy> {
        self.accuracy = Accuracy::new(held_out.iter().map(|sample| (self.nanos(&sample.features), sample.nanos)));
        self.accuracy
    }
}

impl Latencies for Learned {
    fn predict(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType], load: f64) -> Nanos {
        nanos(self.nanos(&Features::new(&self.roofline, op, inputs, outputs, load)))
    }
}

/// More threads than this gain nothing on products as small as these.
const MOST_THREADS: usize = 4;

/// Names of the inputs of a training step.
const FEATURES: &str = "features";
const TARGET: &str = "target";

/// Names of the layers' parameters.
pub(super) const LAYERS: [&str; 3] = ["hidden1", "hidden2", "output"];

/// Sizes of the layers: inputs and outputs.
pub(super) fn sizes(width: usize, hidden: usize) -> [[usize; 2]; 3] {
    [[width, hidden], [hidden, hidden], [hidden, 1]]
}

/// The training step: the mean of the differences' sizes, which single measurements that are far off do not pull at as they would at squares.
fn graph(batch: usize, width: usize, hidden: usize, optimizer: &Optimizer) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut x = graph.input(FEATURES, TensorType::f32([batch, width]))?;
    for (name, [inputs, outputs]) in LAYERS.into_iter().zip(sizes(width, hidden)) {
        x = graph.scoped(name, |graph| {
            let std = (2.0 / inputs as f32).sqrt();
            let weight = graph.parameter("weight", [outputs, inputs], Init::Normal { std })?;
            let bias = graph.parameter("bias", [outputs], Init::Constant(0.0))?;
            let y = graph.linear(x, weight, Some(bias))?;
            if outputs > 1 { graph.relu(y) } else { Ok(y) }
        })?;
    }
    let target = graph.input(TARGET, TensorType::f32([batch, 1]))?;
    let difference = graph.sub(x, target)?;
    let (above, below) = (graph.relu(difference)?, graph.scale(difference, -1.0)?);
    let below = graph.relu(below)?;
    let size = graph.add(above, below)?;
    let loss = graph.mean(size, &[0, 1])?;
    let loss = graph.reshape(loss, [])?;
    train(&mut graph, loss, optimizer)?;
    Ok(graph)
}

/// An executor of the step, without a limit; the network begins with `mean` for everything.
fn executor(
    host: Arc<HostDevice>,
    step: Step,
    seed: u64,
    mean: f32,
) -> Result<Executor<HostDevice>, Box<dyn std::error::Error>> {
    let limits = host.info().limits(Bytes::MAX);
    let planned = NoEviction.plan(&step.trace, &limits)?;
    let compiled = Compiled::new(step, planned, limits)?;
    let options = ExecutorOptions { profile: false, poison: false };
    let output = LAYERS[2];
    Ok(Executor::new(host, &compiled, options, |persistent, first, bytes| {
        if persistent.name.strip_prefix(output) == Some(".bias") {
            bytes.copy_from_slice(&mean.to_ne_bytes());
        } else if persistent.name.strip_prefix(output) == Some(".weight") {
            bytes.fill(0);
        } else {
            init_part(persistent, seed, first, bytes);
        }
    })?)
}

/// The layers in a training step's state.
pub(super) fn layers(state: &[PersistentValue]) -> [Layer; 3] {
    LAYERS.map(|layer| {
        let values = |name: &str| {
            let name = format!("{layer}.{name}");
            let value = state.iter().find(|value| value.persistent.name == name);
            let bytes = value.map_or(&[][..], |value| &value.bytes);
            bytes.chunks_exact(4).map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
        };
        Layer { weight: values("weight"), bias: values("bias") }
    })
}

/// Mean, standard deviation, least and greatest value of each feature; a deviation of 1 where it is always the same.
fn scales(samples: &[&Sample]) -> [[f32; N_FEATURES]; 4] {
    let mut scales = [[0.0; N_FEATURES]; 4];
    let n = samples.len() as f64;
    for feature in 0..N_FEATURES {
        let values = || samples.iter().map(|sample| sample.features.values[feature]);
        let mean = values().sum::<f64>() / n;
        let deviation = (values().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        let deviation = if deviation > 1e-6 { deviation } else { 1.0 };
        let least = values().fold(f64::INFINITY, f64::min);
        let most = values().fold(f64::NEG_INFINITY, f64::max);
        for (scale, value) in scales.iter_mut().zip([mean, deviation, least, most]) {
            scale[feature] = value as f32;
        }
    }
    scales
}

/// All samples in random order, again and again.
struct Order {
    left: Vec<usize>,
    n: usize,
    drawn: u64,
    key: [u32; 2],
}

impl Order {
    fn new(n: usize, seed: u64) -> Self {
        Self { left: Vec::new(), n, drawn: 0, key: words(seed) }
    }

    fn draw(&mut self) -> usize {
        if self.left.is_empty() {
            self.left.extend(0..self.n);
        }
        let [low, high] = words(self.drawn);
        self.drawn += 1;
        let [random, ..] = philox4x32([low, high, 0, 0], self.key);
        let index = (u64::from(random) * self.left.len() as u64) >> 32;
        self.left.swap_remove(index as usize)
    }
}
