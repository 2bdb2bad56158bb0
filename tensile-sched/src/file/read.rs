//! JSON to trace.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use serde_json::{Map, Value};

use crate::id::{Bytes, Nanos, OpId, TensorId};
use crate::trace::{InPlace, Op, Role, Tensor, Trace, TraceError};

use super::FileError;

/// Nothing larger is unpacked: a small damaged or hostile file could otherwise fill the memory.
const MOST_BYTES: u64 = 1 << 30;
/// As in [`Trace::new`].
const LARGEST: u64 = 1 << 50;

pub(super) fn read(bytes: &[u8]) -> Result<Trace, FileError> {
    let value: Value = if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        let mut decoder = MultiGzDecoder::new(bytes).take(MOST_BYTES + 1);
        decoder.read_to_end(&mut text).map_err(|error| FileError::Gzip { reason: error.to_string() })?;
        if text.len() as u64 > MOST_BYTES {
            return Err(FileError::TooLarge { limit: MOST_BYTES });
        }
        parse(&text)?
    } else {
        parse(bytes)?
    };
    let Value::Object(file) = value else {
        return Err(Place::File.field("content", "an object with ops and tensors", Some(&value)));
    };
    let tensors = list(&file, "tensors")?.iter().enumerate().map(read_tensor).collect::<Result<Vec<_>, _>>()?;
    let ops = list(&file, "ops")?.iter().enumerate();
    let ops = ops.map(|op| read_op(op, &tensors)).collect::<Result<Vec<_>, _>>()?;
    let roots = roots(&tensors, &ops)?;
    build(&tensors, ops, &roots)
}

fn parse(text: &[u8]) -> Result<Value, FileError> {
    serde_json::from_slice(text).map_err(|error| FileError::Json { reason: error.to_string() })
}

/// A tensor as it stands in the file.
struct FileTensor {
    tensor: Tensor,
    inplace_of: Option<u64>,
}

/// An op as it stands in the file: all ids are the file's, and exist.
struct FileOp {
    op: Op,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    in_place: Option<Vec<[usize; 2]>>,
}

fn list<'a>(file: &'a Map<String, Value>, field: &'static str) -> Result<&'a Vec<Value>, FileError> {
    match file.get(field) {
        Some(Value::Array(items)) if items.len() < 1 << 31 => Ok(items),
        other => Err(Place::File.field(field, "a list", other)),
    }
}

fn read_tensor((index, value): (usize, &Value)) -> Result<FileTensor, FileError> {
    let place = Place::Tensor(index);
    let fields = object(&place, "tensor", index, value)?;
    let name = match fields.get("name") {
        None | Some(Value::Null) => format!("t{index}"),
        Some(Value::String(name)) => name.clone(),
        other => return Err(place.field("name", "a text", other)),
    };
    let bytes = whole(&place, fields, "bytes")?;
    if !(1..=LARGEST).contains(&bytes) {
        return Err(place.field("bytes", "a whole number from 1 to 2^50", fields.get("bytes")));
    }
    let kind = match fields.get("kind").and_then(Value::as_str) {
        Some("param") => Role::Parameter,
        Some("input") => Role::Input,
        Some("activation") => Role::Activation,
        Some("gradient") => Role::Gradient,
        _ => return Err(place.field("kind", "param, input, activation or gradient", fields.get("kind"))),
    };
    let role = match (kind, fields.get("role").map(Value::as_str)) {
        (_, None) => kind,
        (Role::Parameter, Some(Some("parameter" | "updated_parameter"))) => Role::Parameter,
        (Role::Parameter, Some(Some("optimizer_state"))) => Role::OptimizerState,
        (Role::Parameter, Some(Some("buffer"))) => Role::Buffer,
        (Role::Activation | Role::Gradient, Some(Some("output"))) => Role::Output,
        _ => return Err(place.field("role", "a role that fits the kind", fields.get("role"))),
    };
    let persist = flag(&place, fields, "persist")?.unwrap_or(false);
    let inplace_of = match fields.get("inplace_of") {
        None | Some(Value::Null) => None,
        Some(_) => Some(whole(&place, fields, "inplace_of")?),
    };
    let tensor = Tensor { name, bytes: Bytes(bytes), role, keep: persist && !role.is_persistent() };
    Ok(FileTensor { tensor, inplace_of })
}

fn read_op((index, value): (usize, &Value), tensors: &[FileTensor]) -> Result<FileOp, FileError> {
    let fields = object(&Place::Op(index, ""), "op", index, value)?;
    let label = match fields.get("name") {
        None | Some(Value::Null) => format!("op{index}"),
        Some(Value::String(name)) => name.clone(),
        other => return Err(Place::Op(index, "").field("name", "a text", other)),
    };
    let place = Place::Op(index, &label);
    let class = match fields.get("class") {
        None => label.clone(),
        Some(Value::String(class)) => class.clone(),
        other => return Err(place.field("class", "a text", other)),
    };
    let workspace = match fields.get("workspace_bytes") {
        None | Some(Value::Null) => 0,
        Some(_) => whole(&place, fields, "workspace_bytes")?,
    };
    if workspace > LARGEST {
        return Err(place.field("workspace_bytes", "at most 2^50", fields.get("workspace_bytes")));
    }
    let inputs = ids(&place, "inputs", "a list of tensor ids", fields.get("inputs"), tensors.len())?;
    let outputs = ids(&place, "outputs", "a list of tensor ids", fields.get("outputs"), tensors.len())?;
    let in_place = match fields.get("in_place") {
        None => None,
        Some(Value::Array(pairs)) => {
            const PAIR: &str = "a list of pairs of tensor ids";
            let pairs = pairs.iter().map(|pair| {
                let pair = ids(&place, "in_place", PAIR, Some(pair), tensors.len())?;
                <[usize; 2]>::try_from(pair).map_err(|_| place.field("in_place", PAIR, fields.get("in_place")))
            });
            Some(pairs.collect::<Result<Vec<_>, _>>()?)
        }
        other => return Err(place.field("in_place", "a list of pairs of tensor ids", other)),
    };
    let replayable = flag(&place, fields, "replayable")?;
    let latency = latency(&place, fields)?;
    // Reads, writes and updates follow when it is known which tensors are one; `replayable` too, unless the file says it.
    let op = Op {
        class,
        reads: Vec::new(),
        writes: Vec::new(),
        updates: Vec::new(),
        workspace: Bytes(workspace),
        latency,
        replayable: replayable.unwrap_or(true),
        in_place: Vec::new(),
        label,
    };
    Ok(FileOp { op, inputs, outputs, in_place })
}

fn latency(place: &Place<'_>, fields: &Map<String, Value>) -> Result<Nanos, FileError> {
    let nanos = match (fields.get("nanos"), fields.get("time_us")) {
        (Some(_), _) => whole(place, fields, "nanos")?,
        (None, time) => {
            let micros = time.and_then(Value::as_f64).filter(|micros| *micros >= 0.0);
            let Some(micros) = micros else {
                return Err(place.field("time_us", "a time in microseconds, not negative", time));
            };
            (micros * 1e3).round() as u64
        }
    };
    if nanos > LARGEST {
        let field = if fields.contains_key("nanos") { "nanos" } else { "time_us" };
        return Err(place.field(field, "at most 2^50 ns", fields.get(field)));
    }
    Ok(Nanos(nanos))
}

/// For each tensor the param it is, if it is one: itself, or the one that its chain of `inplace_of` leads to. Checks on the way that
/// nothing is read or overwritten that is not there.
fn roots(tensors: &[FileTensor], ops: &[FileOp]) -> Result<Vec<Option<usize>>, FileError> {
    let is_param = |index: usize| tensors[index].tensor.role.is_persistent();
    let mut roots = vec![None; tensors.len()];
    let mut there = vec![false; tensors.len()];
    let mut overwritten: Vec<Option<OpId>> = vec![None; tensors.len()];
    for (index, tensor) in tensors.iter().enumerate() {
        if tensor.inplace_of.is_none() {
            roots[index] = is_param(index).then_some(index);
            there[index] = is_param(index) || tensor.tensor.role == Role::Input;
        }
    }
    for (index, FileOp { op, inputs, outputs, .. }) in ops.iter().enumerate() {
        let id = OpId::from_index(index);
        for &tensor in inputs {
            if let Some(by) = overwritten[tensor] {
                return Err(FileError::ReadAfterOverwrite { op: id, label: op.label.clone(), tensor, by });
            }
            if !there[tensor] {
                let name = tensors[tensor].tensor.name.clone();
                let tensor = TensorId::from_index(tensor);
                let label = op.label.clone();
                return Err(FileError::Trace(TraceError::ReadBeforeWrite { op: id, label, tensor, name }));
            }
        }
        for &tensor in outputs {
            if let Some(source_tensor) = tensors[tensor].inplace_of {
                let fault = |reason| FileError::Overwrite { tensor, source_tensor, reason };
                let source = usize::try_from(source_tensor).ok().filter(|&source| source < tensors.len());
                let source = source.ok_or(fault("there is no such tensor"))?;
                if !there[source] {
                    return Err(fault("that tensor does not exist at that time"));
                }
                if overwritten[source].is_some() {
                    return Err(fault("another has overwritten that one already"));
                }
                if there[tensor] {
                    return Err(fault("two ops output it"));
                }
                if let Some(root) = roots[source]
                    && tensors[root].tensor.bytes != tensors[tensor].tensor.bytes
                {
                    return Err(fault("it is an update of a param of another size"));
                }
                roots[tensor] = roots[source];
                overwritten[source] = Some(id);
            }
            there[tensor] = true;
        }
    }
    for (tensor, file_tensor) in tensors.iter().enumerate() {
        if let Some(source_tensor) = file_tensor.inplace_of
            && !there[tensor]
        {
            return Err(FileError::Overwrite { tensor, source_tensor, reason: "no op outputs it" });
        }
    }
    Ok(roots)
}

/// Makes one tensor of all that are one param, and the trace of what is left.
fn build(tensors: &[FileTensor], ops: Vec<FileOp>, roots: &[Option<usize>]) -> Result<Trace, FileError> {
    // File ids of the trace's tensors, and the reverse.
    let kept: Vec<usize> = (0..tensors.len()).filter(|&index| roots[index].is_none_or(|root| root == index)).collect();
    let mut new_ids: Vec<Option<TensorId>> = vec![None; tensors.len()];
    for (position, &index) in kept.iter().enumerate() {
        new_ids[index] = Some(TensorId::from_index(position));
    }
    let new_id = |index: usize| new_ids[roots[index].unwrap_or(index)].expect("roots are kept");
    // An update is an output that is a param by its chain; a param without one is an output that Trace::new refuses.
    let is_update = |index: usize| roots[index].is_some_and(|root| root != index);

    let mut result = Vec::with_capacity(ops.len());
    let mut named_in: Vec<Option<usize>> = vec![None; kept.len()];
    for (index, FileOp { mut op, inputs, outputs, in_place }) in ops.into_iter().enumerate() {
        op.updates = outputs.iter().filter(|&&output| is_update(output)).map(|&output| new_id(output)).collect();
        op.writes = outputs.iter().filter(|&&output| !is_update(output)).map(|&output| new_id(output)).collect();
        for &update in &op.updates {
            named_in[update.index()] = Some(index);
        }
        // A file may name an input twice; an op that updates a param reads it by that.
        for input in inputs.iter().map(|&input| new_id(input)) {
            if named_in[input.index()] != Some(index) {
                named_in[input.index()] = Some(index);
                op.reads.push(input);
            }
        }
        match in_place {
            Some(pairs) => {
                let pairs = pairs.into_iter();
                op.in_place =
                    pairs.map(|[input, output]| InPlace { input: new_id(input), output: new_id(output) }).collect();
            }
            None => {
                for &output in outputs.iter().filter(|&&output| !is_update(output)) {
                    let source = tensors[output].inplace_of.map(|source| source as usize);
                    let Some(source) = source.filter(|source| inputs.contains(source)) else { continue };
                    if tensors[source].tensor.bytes == tensors[output].tensor.bytes {
                        op.in_place.push(InPlace { input: new_id(source), output: new_id(output) });
                    }
                }
            }
        }
        op.replayable &= op.updates.is_empty();
        result.push(op);
    }
    let tensors = kept.iter().map(|&index| tensors[index].tensor.clone()).collect();
    Trace::new(tensors, result).map_err(|error| FileError::Trace(in_file_ids(error, &kept)))
}

/// The same fault, with the tensor ids of the file.
fn in_file_ids(mut error: TraceError, kept: &[usize]) -> TraceError {
    let translate = |id: &mut TensorId| *id = TensorId::from_index(kept[id.index()]);
    match &mut error {
        TraceError::Size { tensor, .. }
        | TraceError::Repeated { tensor, .. }
        | TraceError::ReadBeforeWrite { tensor, .. }
        | TraceError::WrittenTwice { tensor, .. }
        | TraceError::WritesRole { tensor, .. }
        | TraceError::UpdatesRole { tensor, .. }
        | TraceError::NeverWritten { tensor, .. }
        | TraceError::KeepPersistent { tensor, .. } => translate(tensor),
        TraceError::InPlace { input, output, .. } => {
            translate(input);
            translate(output);
        }
        TraceError::UnknownTensor { .. }
        | TraceError::Workspace { .. }
        | TraceError::Latency { .. }
        | TraceError::ReplayableUpdate { .. }
        | TraceError::TooLarge { .. } => {}
    }
    error
}

/// Where in the file something stands, for messages.
enum Place<'a> {
    File,
    Tensor(usize),
    Op(usize, &'a str),
}

impl Place<'_> {
    fn describe(&self) -> String {
        match self {
            Place::File => "trace file".into(),
            Place::Tensor(index) => format!("tensor t{index}"),
            Place::Op(index, "") => format!("op op{index}"),
            Place::Op(index, label) => format!("op op{index} '{label}'"),
        }
    }

    fn field(&self, field: &'static str, expected: &'static str, found: Option<&Value>) -> FileError {
        const MOST_CHARS: usize = 40;
        let found = match found {
            None => "missing".into(),
            Some(Value::Object(_)) => "an object".into(),
            Some(Value::Array(items)) => format!("a list of {}", items.len()),
            Some(Value::String(text)) if text.chars().count() > MOST_CHARS => {
                format!("\"{}…\"", text.chars().take(MOST_CHARS).collect::<String>())
            }
            Some(value) => value.to_string(),
        };
        FileError::Field { place: self.describe(), field, expected, found }
    }
}

fn object<'a>(
    place: &Place<'_>,
    what: &'static str,
    index: usize,
    value: &'a Value,
) -> Result<&'a Map<String, Value>, FileError> {
    let Value::Object(fields) = value else { return Err(place.field("entry", "an object", Some(value))) };
    match fields.get("id") {
        None => Err(place.field("id", "its position", None)),
        Some(id) if id.as_u64() != Some(index as u64) => {
            Err(FileError::Id { what, position: index, found: id.to_string().chars().take(40).collect() })
        }
        Some(_) => Ok(fields),
    }
}

fn whole(place: &Place<'_>, fields: &Map<String, Value>, field: &'static str) -> Result<u64, FileError> {
    let value = fields.get(field);
    value.and_then(Value::as_u64).ok_or_else(|| place.field(field, "a whole number, not negative", value))
}

fn flag(place: &Place<'_>, fields: &Map<String, Value>, field: &'static str) -> Result<Option<bool>, FileError> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        other => Err(place.field(field, "true or false", other)),
    }
}

fn ids(
    place: &Place<'_>,
    field: &'static str,
    expected: &'static str,
    value: Option<&Value>,
    n_tensors: usize,
) -> Result<Vec<usize>, FileError> {
    let Some(Value::Array(items)) = value else { return Err(place.field(field, expected, value)) };
    let id = |item: &Value| {
        let tensor = item.as_u64().ok_or_else(|| place.field(field, expected, Some(item)))?;
        if tensor >= n_tensors as u64 {
            return Err(FileError::UnknownTensor { place: place.describe(), tensor, n_tensors });
        }
        Ok(tensor as usize)
    };
    items.iter().map(id).collect()
}
