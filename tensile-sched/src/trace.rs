//! What one training step does, as plain data.
//!
//! A [`Trace`] lists tensors (one storage each; views share it) and operations in execution order. It is validated
//! when it is made, so that every other module can rely on the rules stated at [`Trace::new`].

use crate::id::{Bytes, Nanos, OpId, TensorId};

/// What a tensor is for, which decides how long it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A trained weight. Persists across iterations.
    Parameter,
    /// State of the optimizer, such as a moment. Persists across iterations.
    OptimizerState,
    /// Other persistent state, such as running statistics.
    Buffer,
    /// Comes from the data source: begins every step valid in its host slot, and not on the device.
    Input,
    /// Made in the step and used in the step.
    Activation,
    /// As [`Role::Activation`], made by the backward pass.
    Gradient,
    /// A result of the step: made in the step, and valid in its host slot when the step ends.
    Output,
}

impl Role {
    /// Whether tensors of this role leave one iteration as they enter the next.
    pub fn is_persistent(self) -> bool {
        matches!(self, Role::Parameter | Role::OptimizerState | Role::Buffer)
    }
}

/// One storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// For people; need not be unique.
    pub name: String,
    /// Size, above zero.
    pub bytes: Bytes,
    /// What it is for.
    pub role: Role,
    /// A non-persistent tensor that must be *on the device* when the step ends (a gradient in a step without an
    /// optimizer, say). Its bytes are given up between steps. Always false for persistent tensors.
    pub keep: bool,
}

/// An output that may take the bytes of an input, because the kernel can work in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InPlace {
    /// Read by the op; its value is gone when the takeover is used.
    pub input: TensorId,
    /// Written by the op; of the same size as `input`.
    pub output: TensorId,
}

/// One operation of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// For people; need not be unique.
    pub label: String,
    /// Kind of the operation, for policies that treat kinds differently (`conv2d`, `relu`, …).
    pub class: String,
    /// Tensors whose bytes it reads and leaves alone, each once (input tensor access, ITA, in the paper).
    pub reads: Vec<TensorId>,
    /// Non-persistent tensors it makes, each once (output tensor access, OTA, in the paper).
    pub writes: Vec<TensorId>,
    /// Persistent tensors it reads and changes in place, each once; none of them stands in `reads`.
    pub updates: Vec<TensorId>,
    /// Scratch bytes that live only while it runs.
    pub workspace: Bytes,
    /// Expected run time.
    pub latency: Nanos,
    /// Whether running it again with the same inputs gives the same outputs and changes nothing else.
    /// Always false for an op with updates.
    pub replayable: bool,
    /// Takeovers the kernel supports.
    pub in_place: Vec<InPlace>,
}

/// A fault found by [`Trace::new`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// An id beyond the list of tensors.
    #[error("op {op} '{label}' names tensor {tensor}, but there are only {n_tensors} tensors")]
    UnknownTensor {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The id it names.
        tensor: TensorId,
        /// How many tensors there are.
        n_tensors: usize,
    },
    /// A size of zero, or one so large that sums could overflow.
    #[error("tensor {tensor} '{name}' has {bytes} bytes; sizes go from 1 to 2^50")]
    Size {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// An op whose workspace is so large that sums could overflow.
    #[error("op {op} '{label}' asks for {bytes} bytes of workspace; the most is 2^50")]
    Workspace {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The workspace.
        bytes: u64,
    },
    /// An op so slow that sums could overflow.
    #[error("op {op} '{label}' takes {nanos} ns; the most is 2^50")]
    Latency {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The latency.
        nanos: u64,
    },
    /// A tensor named twice among reads, writes and updates of one op.
    #[error("op {op} '{label}' names tensor {tensor} '{name}' twice")]
    Repeated {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
    },
    /// A non-persistent tensor read before any op wrote it.
    #[error("op {op} '{label}' reads tensor {tensor} '{name}' before any op has written it")]
    ReadBeforeWrite {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
    },
    /// A non-persistent tensor written by two ops.
    #[error("op {op} '{label}' writes tensor {tensor} '{name}', which {first} has written already")]
    WrittenTwice {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
        /// The op that wrote it first.
        first: OpId,
    },
    /// A persistent tensor or an input among an op's writes.
    #[error(
        "op {op} '{label}' writes tensor {tensor} '{name}', whose role is {role:?}; only activations, gradients and outputs are written"
    )]
    WritesRole {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
        /// Its role.
        role: Role,
    },
    /// A non-persistent tensor among an op's updates.
    #[error(
        "op {op} '{label}' updates tensor {tensor} '{name}', whose role is {role:?}; only persistent tensors are updated"
    )]
    UpdatesRole {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
        /// Its role.
        role: Role,
    },
    /// An op that updates and yet calls itself replayable.
    #[error("op {op} '{label}' updates tensors and so cannot be replayable")]
    ReplayableUpdate {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
    },
    /// An in-place pair that is not a read and a write of equal size, or a tensor in two pairs.
    #[error("op {op} '{label}' pairs {input} with {output} in place: {reason}")]
    InPlace {
        /// The op.
        op: OpId,
        /// Its label.
        label: String,
        /// The input of the pair.
        input: TensorId,
        /// The output of the pair.
        output: TensorId,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An output or kept tensor that no op writes.
    #[error("tensor {tensor} '{name}' must exist when the step ends, but no op writes it")]
    NeverWritten {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
    },
    /// A persistent tensor marked `keep`.
    #[error("tensor {tensor} '{name}' is persistent; `keep` is for tensors that are not")]
    KeepPersistent {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: String,
    },
    /// More tensors or ops than ids.
    #[error("a trace holds at most 2^31 tensors and ops; this one has {count}")]
    TooLarge {
        /// How many there are.
        count: usize,
    },
}

/// One training step: tensors, and ops in execution order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    producers: Vec<Option<OpId>>,
}

/// Sizes, workspaces and latencies stay at or below this, so that sums over a trace cannot overflow 64 bits.
const LARGEST: u64 = 1 << 50;

impl Trace {
    /// Validates a step.
    ///
    /// # Errors
    /// Unless all of this holds, a [`TraceError`] names the op and the tensor:
    /// every id exists; sizes are positive; no op names a tensor twice among its reads, writes and updates;
    /// persistent tensors are read or updated, never written; others are written once (inputs: never) and not read
    /// before; in-place pairs join a read and a write of equal size, each tensor in one pair at most; ops with
    /// updates are not replayable; outputs and kept tensors are written (a kept input needs no write).
    ///
    /// Linear in the number of accesses.
    pub fn new(tensors: Vec<Tensor>, ops: Vec<Op>) -> Result<Self, TraceError> {
        let count = tensors.len().max(ops.len());
        if count > 1 << 31 {
            return Err(TraceError::TooLarge { count });
        }
        for (index, tensor) in tensors.iter().enumerate() {
            let (id, name) = (TensorId::from_index(index), &tensor.name);
            if tensor.bytes.0 == 0 || tensor.bytes.0 > LARGEST {
                return Err(TraceError::Size { tensor: id, name: name.clone(), bytes: tensor.bytes.0 });
            }
            if tensor.keep && tensor.role.is_persistent() {
                return Err(TraceError::KeepPersistent { tensor: id, name: name.clone() });
            }
        }
        let mut producers: Vec<Option<OpId>> = vec![None; tensors.len()];
        let mut last_named: Vec<Option<OpId>> = vec![None; tensors.len()];
        for (index, op) in ops.iter().enumerate() {
            let id = OpId::from_index(index);
            check_op(&tensors, &mut producers, &mut last_named, id, op)?;
        }
        for (index, tensor) in tensors.iter().enumerate() {
            let must_be_written = tensor.role == Role::Output || (tensor.keep && tensor.role != Role::Input);
            if must_be_written && producers[index].is_none() {
                return Err(TraceError::NeverWritten {
                    tensor: TensorId::from_index(index),
                    name: tensor.name.clone(),
                });
            }
        }
        Ok(Self { tensors, ops, producers })
    }

    /// All tensors, by id.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// All ops, in execution order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// One tensor.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    /// One op.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    /// Ids of all tensors, ascending.
    pub fn tensor_ids(&self) -> impl ExactSizeIterator<Item = TensorId> + DoubleEndedIterator<Item = TensorId> + use<> {
        (0..self.tensors.len()).map(TensorId::from_index)
    }

    /// Ids of all ops, in execution order.
    pub fn op_ids(&self) -> impl DoubleEndedIterator<Item = OpId> + use<> {
        (0..self.ops.len()).map(OpId::from_index)
    }

    /// The op that writes a tensor; none for persistent tensors and inputs.
    pub fn producer(&self, tensor: TensorId) -> Option<OpId> {
        self.producers[tensor.index()]
    }

    /// The same step with other latencies, one per op (measured ones, say).
    ///
    /// # Errors
    /// [`TraceError::Latency`] if one is too large to add up.
    ///
    /// # Panics
    /// If the number of latencies is not the number of ops.
    pub fn with_latencies(mut self, latencies: &[Nanos]) -> Result<Self, TraceError> {
        assert_eq!(latencies.len(), self.ops.len(), "one latency per op");
        for (index, (op, latency)) in self.ops.iter_mut().zip(latencies).enumerate() {
            if latency.0 > LARGEST {
                return Err(TraceError::Latency {
                    op: OpId::from_index(index),
                    label: op.label.clone(),
                    nanos: latency.0,
                });
            }
            op.latency = *latency;
        }
        Ok(self)
    }

    /// The same step with its ops in another order: `order[k]` is the op that comes k-th. The order must name each op once and keep what ops depend on.
    ///
    /// # Errors
    /// As [`new`](Self::new), if a tensor would be read before it is written.
    pub fn in_order(&self, order: &[OpId]) -> Result<Self, TraceError> {
        Self::new(self.tensors.clone(), order.iter().map(|&op| self.op(op).clone()).collect())
    }

    /// Sum of all latencies: the step time of a device with memory for everything.
    pub fn compute_time(&self) -> Nanos {
        self.ops.iter().map(|op| op.latency).sum()
    }
}

fn check_op(
    tensors: &[Tensor],
    producers: &mut [Option<OpId>],
    last_named: &mut [Option<OpId>],
    id: OpId,
    op: &Op,
) -> Result<(), TraceError> {
    let label = || op.label.clone();
    let name = |tensor: TensorId| tensors[tensor.index()].name.clone();
    if op.workspace.0 > LARGEST {
        return Err(TraceError::Workspace { op: id, label: label(), bytes: op.workspace.0 });
    }
    if op.latency.0 > LARGEST {
        return Err(TraceError::Latency { op: id, label: label(), nanos: op.latency.0 });
    }
    for &tensor in op.reads.iter().chain(&op.writes).chain(&op.updates) {
        if tensor.index() >= tensors.len() {
            return Err(TraceError::UnknownTensor { op: id, label: label(), tensor, n_tensors: tensors.len() });
        }
        if last_named[tensor.index()] == Some(id) {
            return Err(TraceError::Repeated { op: id, label: label(), tensor, name: name(tensor) });
        }
        last_named[tensor.index()] = Some(id);
    }
    for &tensor in &op.reads {
        let role = tensors[tensor.index()].role;
        if !role.is_persistent() && role != Role::Input && producers[tensor.index()].is_none() {
            return Err(TraceError::ReadBeforeWrite { op: id, label: label(), tensor, name: name(tensor) });
        }
    }
    for &tensor in &op.updates {
        let role = tensors[tensor.index()].role;
        if !role.is_persistent() {
            return Err(TraceError::UpdatesRole { op: id, label: label(), tensor, name: name(tensor), role });
        }
    }
    for &tensor in &op.writes {
        let role = tensors[tensor.index()].role;
        if role.is_persistent() || role == Role::Input {
            return Err(TraceError::WritesRole { op: id, label: label(), tensor, name: name(tensor), role });
        }
        if let Some(first) = producers[tensor.index()] {
            return Err(TraceError::WrittenTwice { op: id, label: label(), tensor, name: name(tensor), first });
        }
        producers[tensor.index()] = Some(id);
    }
    if op.replayable && !op.updates.is_empty() {
        return Err(TraceError::ReplayableUpdate { op: id, label: label() });
    }
    for (index, pair) in op.in_place.iter().enumerate() {
        let fault = |reason| {
            Err(TraceError::InPlace { op: id, label: label(), input: pair.input, output: pair.output, reason })
        };
        if !op.reads.contains(&pair.input) {
            return fault("the input is not read by the op");
        }
        if !op.writes.contains(&pair.output) {
            return fault("the output is not written by the op");
        }
        if tensors[pair.input.index()].bytes != tensors[pair.output.index()].bytes {
            return fault("the sizes differ");
        }
        if op.in_place[..index].iter().any(|other| other.input == pair.input || other.output == pair.output) {
            return fault("one of them stands in two pairs");
        }
    }
    Ok(())
}
