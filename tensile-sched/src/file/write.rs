//! Trace to JSON.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value, json};

use crate::id::{Bytes, TensorId};
use crate::trace::{Op, Role, Tensor, Trace};

pub(super) fn write(trace: &Trace, compress: bool) -> Vec<u8> {
    let text = serde_json::to_vec(&value(trace)).expect("writing JSON to memory cannot fail");
    if !compress {
        return text;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&text).and_then(|()| encoder.finish()).expect("writing to memory cannot fail")
}

fn value(trace: &Trace) -> Value {
    let mut tensors: Vec<Map<String, Value>> =
        trace.tensors().iter().enumerate().map(|(id, tensor)| tensor_value(id, tensor)).collect();
    // In the file every update makes a new tensor: the latest of each persistent one.
    let mut latest: Vec<usize> = (0..tensors.len()).collect();
    let last_reads = last_reads(trace);
    let mut ops = Vec::with_capacity(trace.ops().len());
    for (index, op) in trace.ops().iter().enumerate() {
        let mut inputs: Vec<usize> = op.reads.iter().map(|id| latest[id.index()]).collect();
        let mut outputs: Vec<usize> = op.writes.iter().map(|id| id.index()).collect();
        let pairs: Vec<[usize; 2]> =
            op.in_place.iter().map(|pair| [latest[pair.input.index()], pair.output.index()]).collect();
        for pair in &op.in_place {
            if overwrites(trace, pair.input, index, &last_reads) {
                tensors[pair.output.index()].insert("inplace_of".into(), json!(pair.input.index()));
            }
        }
        for &id in &op.updates {
            let before = latest[id.index()];
            let after = tensors.len();
            let bytes = trace.tensor(id).bytes.0;
            let alias = json!({ "id": after, "bytes": bytes, "kind": "param", "role": "updated_parameter", "persist": true, "inplace_of": before });
            let Value::Object(alias) = alias else { unreachable!("an object was made") };
            tensors.push(alias);
            inputs.push(before);
            outputs.push(after);
            latest[id.index()] = after;
        }
        ops.push(op_value(index, op, &inputs, &outputs, &pairs));
    }
    json!({ "meta": {}, "tensors": tensors, "ops": ops })
}

/// The last op that reads each tensor.
fn last_reads(trace: &Trace) -> Vec<usize> {
    let mut last = vec![0; trace.tensors().len()];
    for (index, op) in trace.ops().iter().enumerate() {
        for id in &op.reads {
            last[id.index()] = index;
        }
    }
    last
}

/// Whether an in-place pair can be said in the neutral form, where the overwritten tensor must be gone for good.
fn overwrites(trace: &Trace, input: TensorId, op: usize, last_reads: &[usize]) -> bool {
    let tensor = trace.tensor(input);
    last_reads[input.index()] == op && !tensor.keep && !tensor.role.is_persistent() && tensor.role != Role::Output
}

fn tensor_value(id: usize, tensor: &Tensor) -> Map<String, Value> {
    let (kind, role) = match tensor.role {
        Role::Parameter => ("param", Some("parameter")),
        Role::OptimizerState => ("param", Some("optimizer_state")),
        Role::Buffer => ("param", Some("buffer")),
        Role::Input => ("input", None),
        Role::Activation => ("activation", None),
        Role::Gradient => ("gradient", None),
        Role::Output => ("activation", Some("output")),
    };
    let mut fields = Map::new();
    fields.insert("id".into(), json!(id));
    fields.insert("bytes".into(), json!(tensor.bytes.0));
    fields.insert("kind".into(), json!(kind));
    fields.insert("name".into(), json!(tensor.name));
    if let Some(role) = role {
        fields.insert("role".into(), json!(role));
    }
    if tensor.keep {
        fields.insert("persist".into(), json!(true));
    }
    fields
}

fn op_value(id: usize, op: &Op, inputs: &[usize], outputs: &[usize], pairs: &[[usize; 2]]) -> Value {
    let nanos = op.latency.0;
    let mut fields = Map::new();
    fields.insert("id".into(), json!(id));
    fields.insert("name".into(), json!(op.label));
    fields.insert("inputs".into(), json!(inputs));
    fields.insert("outputs".into(), json!(outputs));
    if nanos.is_multiple_of(1000) {
        fields.insert("time_us".into(), json!(nanos / 1000));
    } else {
        fields.insert("time_us".into(), json!(nanos as f64 / 1e3));
        fields.insert("nanos".into(), json!(nanos));
    }
    if op.workspace > Bytes::ZERO {
        fields.insert("workspace_bytes".into(), json!(op.workspace.0));
    }
    if op.class != op.label {
        fields.insert("class".into(), json!(op.class));
    }
    if !op.replayable && op.updates.is_empty() {
        fields.insert("replayable".into(), json!(false));
    }
    if !pairs.is_empty() {
        fields.insert("in_place".into(), json!(pairs));
    }
    Value::Object(fields)
}
