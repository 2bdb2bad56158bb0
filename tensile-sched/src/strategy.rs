//! Random traces and links for property tests with [`mod@proptest`].
//!
//! [`traces`] mixes two shapes: [`wild_traces`], where any op may touch anything the rules of [`Trace::new`] allow, and [`training_traces`], with a
//! forward pass, a backward pass that needs what the forward pass made, and updates. Both are built from lists of small numbers, so that
//! shrinking drops ops and tensors and makes the rest smaller, and the result is a valid trace all the time.
//!
//! ```
//! use proptest::prelude::*;
//! use tensile_sched::strategy::{Sizes, traces};
//!
//! proptest!(|(trace in traces(Sizes { unit: 256, most_units: 4, odd: true }, 1..12))| {
//!     prop_assert!(trace.tensors().iter().all(|tensor| tensor.bytes.0 <= 4 * 256));
//! });
//! ```

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::id::{Bytes, Nanos, TensorId};
use crate::limits::{Duplex, Link};
use crate::trace::{InPlace, Op, Role, Tensor, Trace};

/// Sizes of tensors and workspaces.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a unit, the alignment under test, say. At least 1.
    pub unit: u64,
    /// Most units of a tensor or workspace. At least 1.
    pub most_units: u64,
    /// Whether sizes may lie between multiples of the unit.
    pub odd: bool,
}

impl Sizes {
    fn tensor(self) -> impl Strategy<Value = u64> + Clone {
        let trimmed = if self.odd { 0..self.unit } else { 0..1 };
        (1..=self.most_units, trimmed).prop_map(move |(units, trim)| units * self.unit - trim)
    }

    fn workspace(self) -> impl Strategy<Value = u64> + Clone {
        prop_oneof![3 => Just(0), 1 => self.tensor()]
    }
}

/// What a random op writes.
#[derive(Clone, Debug)]
struct WriteSeed {
    bytes: u64,
    role: Role,
    keep: bool,
    /// Takes the size of this read, and pairs with it, where some number is.
    pair: Option<u16>,
}

/// Numbers of which an op is made; tensors are picked modulo those there are.
#[derive(Clone, Debug)]
struct OpSeed {
    reads: Vec<u16>,
    writes: Vec<WriteSeed>,
    updates: Vec<u16>,
    workspace: u64,
    latency: u64,
    replayable: bool,
}

fn persistent_role() -> impl Strategy<Value = Role> + Clone {
    select(vec![Role::Parameter, Role::OptimizerState, Role::Buffer])
}

/// Latencies up to a millisecond; one in five is zero.
fn latency() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![1 => Just(0u64), 4 => 1u64..1_000_000]
}

fn write_seed(sizes: Sizes) -> impl Strategy<Value = WriteSeed> + Clone {
    let role = prop_oneof![5 => Just(Role::Activation), 3 => Just(Role::Gradient), 1 => Just(Role::Output)];
    let pair = prop_oneof![2 => Just(None), 1 => any::<u16>().prop_map(Some)];
    (sizes.tensor(), role, prop::bool::weighted(0.06), pair).prop_map(|(bytes, role, keep, pair)| WriteSeed {
        bytes,
        role,
        keep,
        pair,
    })
}

fn op_seed(sizes: Sizes) -> impl Strategy<Value = OpSeed> + Clone {
    let updates = prop_oneof![3 => Just(Vec::new()), 1 => vec(any::<u16>(), 1..3)];
    (
        vec(any::<u16>(), 0..4),
        vec(write_seed(sizes), 0..3),
        updates,
        sizes.workspace(),
        latency(),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(reads, writes, updates, workspace, latency, replayable)| OpSeed {
            reads,
            writes,
            updates,
            workspace,
            latency,
            replayable,
        })
}

/// Either shape of trace, with about as many ops as `n_ops` says.
pub fn traces(sizes: Sizes, n_ops: Range<usize>) -> impl Strategy<Value = Trace> + Clone {
    let layers = (n_ops.start / 3).max(1)..(n_ops.end / 3).max(2);
    prop_oneof![wild_traces(sizes, n_ops), training_traces(sizes, layers)]
}

/// Traces without any pattern: persistent tensors of all roles, updates anywhere, in-place pairs, ops with many outputs or none,
/// outputs that nobody reads, inputs read often or never, kept tensors, workspaces, ops that cannot be replayed.
pub fn wild_traces(sizes: Sizes, n_ops: Range<usize>) -> impl Strategy<Value = Trace> + Clone {
    let persistent = vec((sizes.tensor(), persistent_role()), 0..5);
    let inputs = vec((sizes.tensor(), prop::bool::weighted(0.1)), 0..3);
    (persistent, inputs, vec(op_seed(sizes), n_ops)).prop_map(|(persistent, inputs, ops)| {
        let mut builder = Builder::default();
        for (bytes, role) in persistent {
            builder.tensor(bytes, role, false);
        }
        for (bytes, keep) in inputs {
            builder.tensor(bytes, Role::Input, keep);
        }
        for seed in &ops {
            builder.wild_op(seed);
        }
        builder.finish()
    })
}

/// Numbers of which a layer of a training step is made.
#[derive(Clone, Debug)]
struct LayerSeed {
    weight: u64,
    activation: u64,
    workspace: u64,
    latency: u64,
    relu: bool,
    /// Reads the activation of this earlier layer too, where some number is.
    skip: Option<u16>,
    momentum: bool,
    statistics: bool,
    random: bool,
}

fn layer_seed(sizes: Sizes) -> impl Strategy<Value = LayerSeed> + Clone {
    let skip = prop_oneof![3 => Just(None), 1 => any::<u16>().prop_map(Some)];
    (
        (sizes.tensor(), sizes.tensor(), sizes.workspace(), latency()),
        any::<bool>(),
        skip,
        any::<bool>(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    )
        .prop_map(|((weight, activation, workspace, latency), relu, skip, momentum, statistics, random)| {
            LayerSeed { weight, activation, workspace, latency, relu, skip, momentum, statistics, random }
        })
}

/// Training steps: `layers` layers forward (some with an in-place activation, skip connections, running statistics, or an op that
/// cannot be replayed), a loss, the same backward, and an update of each weight right after its gradient.
pub fn training_traces(sizes: Sizes, layers: Range<usize>) -> impl Strategy<Value = Trace> + Clone {
    (sizes.tensor(), vec(layer_seed(sizes), layers), prop::bool::weighted(0.2)).prop_map(|(input, layers, keep)| {
        let mut builder = Builder::default();
        builder.training_step(input, &layers, keep);
        builder.finish()
    })
}

/// Links of all kinds: infinite and slow, with and without latency, all ways to share.
pub fn links() -> impl Strategy<Value = Link> + Clone {
    let rate =
        || prop_oneof![1 => Just(f64::INFINITY), 1 => Just(12e9), 4 => (1u32..2000).prop_map(|mb| f64::from(mb) * 1e6)];
    let duplex = select(vec![Duplex::Full, Duplex::Half, Duplex::NoOverlap]);
    let slowdown = || prop_oneof![2 => Just(1.0), 1 => 1.0..3.0];
    (rate(), rate(), prop_oneof![Just(0u64), 1u64..50_000], duplex, slowdown(), slowdown()).prop_map(
        |(out_bytes_per_s, in_bytes_per_s, latency, duplex, kernel_slowdown, copy_slowdown)| Link {
            out_bytes_per_s,
            in_bytes_per_s,
            latency: Nanos(latency),
            duplex,
            kernel_slowdown,
            copy_slowdown,
        },
    )
}

/// Collects tensors and ops.
#[derive(Default)]
struct Builder {
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
}

impl Builder {
    fn tensor(&mut self, bytes: u64, role: Role, keep: bool) -> TensorId {
        let id = TensorId::from_index(self.tensors.len());
        let letter = match role {
            Role::Parameter => 'w',
            Role::OptimizerState => 'm',
            Role::Buffer => 'b',
            Role::Input => 'x',
            Role::Activation => 'a',
            Role::Gradient => 'g',
            Role::Output => 'y',
        };
        self.tensors.push(Tensor { name: format!("{letter}{}", id.0), bytes: Bytes(bytes), role, keep });
        id
    }

    fn op(&mut self, label: &str, reads: &[TensorId], writes: &[TensorId], updates: &[TensorId]) -> &mut Op {
        let mut distinct: Vec<TensorId> = Vec::new();
        for &read in reads {
            if !distinct.contains(&read) && !updates.contains(&read) {
                distinct.push(read);
            }
        }
        self.ops.push(Op {
            label: format!("{label}{}", self.ops.len()),
            class: label.into(),
            reads: distinct,
            writes: writes.to_vec(),
            updates: updates.to_vec(),
            workspace: Bytes::ZERO,
            latency: Nanos::ZERO,
            replayable: updates.is_empty(),
            in_place: Vec::new(),
        });
        self.ops.last_mut().expect("one was pushed")
    }

    fn wild_op(&mut self, seed: &OpSeed) {
        let there: Vec<TensorId> = (0..self.tensors.len()).map(TensorId::from_index).collect();
        let persistent: Vec<TensorId> =
            there.iter().copied().filter(|id| self.tensors[id.index()].role.is_persistent()).collect();
        let pick = |from: &[TensorId], number: u16| (!from.is_empty()).then(|| from[usize::from(number) % from.len()]);
        let mut updates: Vec<TensorId> = seed.updates.iter().filter_map(|&number| pick(&persistent, number)).collect();
        updates.sort();
        updates.dedup();
        let reads: Vec<TensorId> = seed.reads.iter().filter_map(|&number| pick(&there, number)).collect();
        let mut pairs: Vec<InPlace> = Vec::new();
        let mut writes = Vec::new();
        for write in &seed.writes {
            let input = write.pair.and_then(|number| pick(&reads, number));
            let input = input.filter(|id| !updates.contains(id) && pairs.iter().all(|pair| pair.input != *id));
            let bytes = input.map_or(write.bytes, |id| self.tensors[id.index()].bytes.0);
            let output = self.tensor(bytes, write.role, write.keep);
            pairs.extend(input.map(|input| InPlace { input, output }));
            writes.push(output);
        }
        let op = self.op("op", &reads, &writes, &updates);
        op.workspace = Bytes(seed.workspace);
        op.latency = Nanos(seed.latency);
        op.replayable &= seed.replayable;
        op.in_place = pairs;
    }

    fn training_step(&mut self, input: u64, layers: &[LayerSeed], keep_gradients: bool) {
        let x = self.tensor(input, Role::Input, false);
        // What the backward pass of each layer needs: layer, weight, what it read, what it made.
        let mut saved: Vec<(&LayerSeed, TensorId, Vec<TensorId>, TensorId)> = Vec::new();
        let mut last = x;
        for layer in layers {
            let weight = self.tensor(layer.weight, Role::Parameter, false);
            let mut reads = vec![last, weight];
            if let (Some(skip), false) = (layer.skip, saved.is_empty()) {
                reads.push(saved[usize::from(skip) % saved.len()].3);
            }
            let made = self.tensor(layer.activation, Role::Activation, false);
            let op = self.op("forward", &reads, &[made], &[]);
            // Some policies look at the class.
            op.class = if layer.relu { "conv".into() } else { "linear".into() };
            op.workspace = Bytes(layer.workspace);
            op.latency = Nanos(layer.latency);
            op.replayable = !layer.random;
            if layer.statistics {
                let statistics = self.tensor(1, Role::Buffer, false);
                self.op("statistics", &[made], &[], &[statistics]);
            }
            last = made;
            if layer.relu {
                last = self.tensor(layer.activation, Role::Activation, false);
                let op = self.op("relu", &[made], &[last], &[]);
                op.in_place = vec![InPlace { input: made, output: last }];
                op.latency = Nanos(layer.latency / 10);
            }
            saved.push((layer, weight, reads, last));
        }
        let loss = self.tensor(1, Role::Output, false);
        let bytes = self.tensors[last.index()].bytes.0;
        let mut gradient = self.tensor(bytes, Role::Gradient, false);
        self.op("loss", &[last], &[loss, gradient], &[]);
        for (layer, weight, reads, made) in saved.into_iter().rev() {
            let weight_gradient = self.tensor(layer.weight, Role::Gradient, keep_gradients);
            let bytes = self.tensors[reads[0].index()].bytes.0;
            let below = self.tensor(bytes, Role::Gradient, false);
            let mut needs = vec![gradient, made];
            needs.extend(&reads);
            let op = self.op("backward", &needs, &[below, weight_gradient], &[]);
            op.workspace = Bytes(layer.workspace);
            op.latency = Nanos(layer.latency.saturating_mul(2));
            if !keep_gradients {
                let mut updates = vec![weight];
                if layer.momentum {
                    updates.push(self.tensor(layer.weight, Role::OptimizerState, false));
                }
                self.op("update", &[weight_gradient], &[], &updates);
            }
            gradient = below;
        }
    }

    fn finish(self) -> Trace {
        Trace::new(self.tensors, self.ops).expect("the strategies keep to the rules of traces")
    }
}
