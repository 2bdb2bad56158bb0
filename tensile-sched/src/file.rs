//! Trace files: the neutral JSON form of a training step, plain or gzip, from bytes and to bytes.
//!
//! ```text
//! {"meta": {…},
//!  "tensors": [{"id": 0, "bytes": 4096, "kind": "param"},
//!              {"id": 1, "bytes": 1024, "kind": "input"},
//!              {"id": 2, "bytes": 1024, "kind": "activation"},
//!              {"id": 3, "bytes": 4096, "kind": "param", "inplace_of": 0}],
//!  "ops": [{"id": 0, "name": "matmul", "inputs": [0, 1], "outputs": [2], "time_us": 12.5},
//!          {"id": 1, "name": "sgd", "inputs": [0, 2], "outputs": [3], "time_us": 1}]}
//! ```
//!
//! - Ids are positions. Ops stand in execution order. Every tensor but params and inputs is an output of exactly one op.
//! - Op: `name`, `inputs`, `outputs`, `time_us`; optional `workspace_bytes`.
//! - Tensor: `bytes`; `kind` = `param`, `input`, `activation` or `gradient`; optional `name`, `persist` (still live after the last op) and `inplace_of`
//!   (overwrites that tensor's storage, which no op reads afterwards).
//! - Other fields are ignored.
//!
//! As a [`Trace`]: a tensor whose `inplace_of` leads to a param is that param, *updated* by the op that outputs it. Any
//! other `inplace_of` is an in-place pair of that op, if the op reads the one and both have the same size. Tensors with `persist` that are not
//! params are kept. Ops that update cannot be replayed, all others can.
//!
//! [`write_trace`] adds fields so that [`read_trace`] gives the very same trace back: tensor `role` (`parameter`, `optimizer_state`, `buffer`,
//! `updated_parameter`, `output`; the second and third are params, the last is an activation); op `class` (otherwise the
//! name), `nanos` (instead of `time_us`), `replayable`, and `in_place`, a list of `[input, output]` (instead of what `inplace_of` says).

mod read;
mod write;

use crate::id::OpId;
use crate::trace::{Trace, TraceError};

/// A trace file that cannot be read. Ids are those of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Damaged or truncated gzip data.
    #[error("the gzip data is damaged or truncated: {}", one_line(.reason))]
    Gzip {
        /// What the decoder says.
        reason: String,
    },
    /// More data than any trace needs.
    #[error("the file unpacks to more than {limit} bytes")]
    TooLarge {
        /// The most that is unpacked.
        limit: u64,
    },
    /// Not JSON.
    #[error("the file is not JSON: {}", one_line(.reason))]
    Json {
        /// What the parser says, with line and column.
        reason: String,
    },
    /// A field that is missing or holds something else than it must.
    #[error("{}: {field} is {}, but must be {expected}", one_line(.place), one_line(.found))]
    Field {
        /// The op or tensor, or the file.
        place: String,
        /// The field.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
        /// What stands there, shortened.
        found: String,
    },
    /// An id that is not the position of its op or tensor.
    #[error("the {what} at position {position} has id {}; ids must count up from 0, each once", one_line(.found))]
    Id {
        /// `op` or `tensor`.
        what: &'static str,
        /// Where it stands.
        position: usize,
        /// Its id.
        found: String,
    },
    /// A tensor id beyond the list.
    #[error("{} names tensor {tensor}, but there are only {n_tensors} tensors", one_line(.place))]
    UnknownTensor {
        /// Who names it.
        place: String,
        /// The id.
        tensor: u64,
        /// How many tensors there are.
        n_tensors: usize,
    },
    /// A read of a tensor after another took its storage.
    #[error("op {op} '{}' reads tensor {tensor} after op {by} has overwritten it in place", one_line(.label))]
    ReadAfterOverwrite {
        /// The op that reads.
        op: OpId,
        /// Its name.
        label: String,
        /// The tensor.
        tensor: usize,
        /// The op that overwrote it.
        by: OpId,
    },
    /// An `inplace_of` that cannot be.
    #[error("tensor {tensor} says it overwrites tensor {source_tensor} in place, but {reason}")]
    Overwrite {
        /// The tensor with the `inplace_of`.
        tensor: usize,
        /// The tensor named there.
        source_tensor: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// The step breaks a rule of traces.
    #[error("{}", one_line(&.0.to_string()))]
    Trace(TraceError),
}

/// Reads a trace file; gzip is recognised by its first bytes.
///
/// # Errors
/// [`FileError`] for anything but a valid trace, with the op or tensor and the figures in one line.
///
/// # Example
/// ```
/// use tensile_sched::{file, TensorId};
///
/// let text = br#"{
///     "tensors": [{"id": 0, "bytes": 4096, "kind": "param", "name": "w"}, {"id": 1, "bytes": 1024, "kind": "input"},
///                 {"id": 2, "bytes": 1024, "kind": "gradient"}, {"id": 3, "bytes": 4096, "kind": "param", "inplace_of": 0}],
///     "ops": [{"id": 0, "name": "backward", "inputs": [0, 1], "outputs": [2], "time_us": 12.5},
///             {"id": 1, "name": "sgd", "inputs": [0, 2], "outputs": [3], "time_us": 1}]}"#;
/// let trace = file::read_trace(text)?;
/// assert_eq!(trace.tensors().len(), 3);
/// assert_eq!(trace.ops()[1].updates, [TensorId(0)]);
///
/// let bytes = file::write_trace(&trace, true);
/// assert_eq!(file::read_trace(&bytes)?, trace);
/// # Ok::<(), file::FileError>(())
/// ```
pub fn read_trace(bytes: &[u8]) -> Result<Trace, FileError> {
    read::read(bytes)
}

/// Writes a trace as JSON, or as gzip of it.
///
/// Equal traces give equal bytes. [`read_trace`] gives the trace back; readers that know only the neutral fields see the same step.
pub fn write_trace(trace: &Trace, compress: bool) -> Vec<u8> {
    write::write(trace, compress)
}

/// Names come from the file: control characters must not break a message into lines.
fn one_line(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}
