//! Trace files: round trips, every kind of fault as one clear line, and the recorded traces of others where they are at hand.

#![allow(clippy::print_stderr)]

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};
use tensile_sched::strategy::{Sizes, traces};
use tensile_sched::{
    Bytes, FileError, InPlace, Limits, Liveness, Nanos, OpId, Role, TensorId, Trace, floor, read_trace, write_trace,
};

/// A small step in the neutral form: forward, in-place activation, gradient, update, and the updated weight read again.
fn neutral() -> Value {
    json!({
        "meta": { "model": "two layers" },
        "tensors": [
            { "id": 0, "bytes": 400, "kind": "param", "name": "w" },
            { "id": 1, "bytes": 100, "kind": "input" },
            { "id": 2, "bytes": 100, "kind": "activation" },
            { "id": 3, "bytes": 100, "kind": "activation", "inplace_of": 2 },
            { "id": 4, "bytes": 400, "kind": "gradient", "persist": true },
            { "id": 5, "bytes": 400, "kind": "param", "inplace_of": 0, "persist": true },
            { "id": 6, "bytes": 100, "kind": "activation", "inplace_of": 4 },
            { "id": 7, "bytes": 200, "kind": "param", "role": "optimizer_state" },
            { "id": 8, "bytes": 200, "kind": "param", "inplace_of": 7, "role": "updated_parameter" }
        ],
        "ops": [
            { "id": 0, "name": "matmul", "inputs": [1, 0, 1], "outputs": [2], "time_us": 1.2345, "phase": "fwd" },
            { "id": 1, "name": "relu", "inputs": [2], "outputs": [3], "time_us": 0 },
            { "id": 2, "name": "backward", "inputs": [3, 0], "outputs": [4], "time_us": 7, "workspace_bytes": 64 },
            { "id": 3, "name": "adam", "inputs": [0, 4, 7], "outputs": [5, 8], "time_us": 2 },
            { "id": 4, "name": "norm", "inputs": [5, 4], "outputs": [6], "time_us": 1 }
        ]
    })
}

fn read(value: &Value) -> Result<Trace, FileError> {
    read_trace(&serde_json::to_vec(value).unwrap())
}

#[test]
fn the_neutral_form_becomes_a_trace() {
    let trace = read(&neutral()).unwrap();
    // Tensors 5 and 8 are tensors 0 and 7.
    let roles: Vec<Role> = trace.tensors().iter().map(|tensor| tensor.role).collect();
    use Role::{Activation, Gradient, Input, OptimizerState, Parameter};
    assert_eq!(roles, [Parameter, Input, Activation, Activation, Gradient, Activation, OptimizerState]);
    let names: Vec<&str> = trace.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["w", "t1", "t2", "t3", "t4", "t6", "t7"]);
    assert_eq!(trace.tensor_ids().filter(|&id| trace.tensor(id).keep).collect::<Vec<_>>(), [TensorId(4)]);

    let op = |id| trace.op(OpId(id));
    assert_eq!(op(0).reads, [TensorId(1), TensorId(0)]);
    assert_eq!(op(0).latency, Nanos(1235));
    assert_eq!(op(1).in_place, [InPlace { input: TensorId(2), output: TensorId(3) }]);
    assert_eq!(op(2).workspace, Bytes(64));
    assert_eq!((&op(3).reads[..], &op(3).updates[..]), (&[TensorId(4)][..], &[TensorId(0), TensorId(6)][..]));
    assert!(op(2).replayable && !op(3).replayable);
    // Reads the updated weight; its pair with a tensor of another size is none.
    assert_eq!(op(4).reads, [TensorId(0), TensorId(4)]);
    assert_eq!(op(4).in_place, []);
}

/// Changes one thing in the neutral step and expects this message.
fn refuses(expected: &str, spoil: impl FnOnce(&mut Value)) {
    let mut value = neutral();
    spoil(&mut value);
    match read(&value) {
        Ok(_) => panic!("accepted, where this was expected: {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

#[test]
fn each_fault_is_one_clear_line() {
    refuses("tensor t1: bytes is -5, but must be a whole number, not negative", |v| {
        v["tensors"][1]["bytes"] = json!(-5)
    });
    refuses("tensor t1: bytes is 0, but must be a whole number from 1 to 2^50", |v| {
        v["tensors"][1]["bytes"] = json!(0)
    });
    refuses("tensor t1: bytes is 18446744073709551615, but must be a whole number from 1 to 2^50", |v| {
        v["tensors"][1]["bytes"] = json!(u64::MAX);
    });
    refuses("tensor t1: bytes is missing, but must be a whole number, not negative", |v| {
        v["tensors"][1].as_object_mut().unwrap().remove("bytes");
    });
    refuses("tensor t1: kind is \"weights\", but must be param, input, activation or gradient", |v| {
        v["tensors"][1]["kind"] = json!("weights");
    });
    refuses("tensor t1: role is \"buffer\", but must be a role that fits the kind", |v| {
        v["tensors"][1]["role"] = json!("buffer");
    });
    refuses("tensor t1: persist is 1, but must be true or false", |v| v["tensors"][1]["persist"] = json!(1));
    refuses("op op1 'relu': time_us is -1.0, but must be a time in microseconds, not negative", |v| {
        v["ops"][1]["time_us"] = json!(-1.0);
    });
    refuses("op op1 'relu': time_us is null, but must be a time in microseconds, not negative", |v| {
        v["ops"][1]["time_us"] = json!(f64::NAN);
    });
    refuses("op op1 'relu': time_us is 1e+300, but must be at most 2^50 ns", |v| v["ops"][1]["time_us"] = json!(1e300));
    refuses("op op1 'relu': workspace_bytes is 18446744073709551615, but must be at most 2^50", |v| {
        v["ops"][1]["workspace_bytes"] = json!(u64::MAX);
    });
    refuses("op op1 'relu': inputs is \"2\", but must be a list of tensor ids", |v| v["ops"][1]["inputs"] = json!("2"));
    refuses("op op1 'relu': inputs is -2, but must be a list of tensor ids", |v| v["ops"][1]["inputs"] = json!([-2]));
    refuses("op op1 'relu' names tensor 99, but there are only 9 tensors", |v| v["ops"][1]["inputs"] = json!([99]));
    refuses("op op1 'relu': in_place is a list of 1, but must be a list of pairs of tensor ids", |v| {
        v["ops"][1]["in_place"] = json!([[1, 2, 3]]);
    });
    refuses("op op1 'relu\\n': time_us is missing, but must be a time in microseconds, not negative", |v| {
        v["ops"][1] = json!({ "id": 1, "name": "relu\n", "inputs": [2], "outputs": [3] });
    });
    refuses("the tensor at position 1 has id 0; ids must count up from 0, each once", |v| {
        v["tensors"][1]["id"] = json!(0)
    });
    refuses("the op at position 2 has id 3; ids must count up from 0, each once", |v| v["ops"][2]["id"] = json!(3));
    refuses("trace file: tensors is missing, but must be a list", |v| _ = v.as_object_mut().unwrap().remove("tensors"));
    refuses("trace file: content is a list of 0, but must be an object with ops and tensors", |v| *v = json!([]));
}

#[test]
fn faults_of_the_step_are_named_by_the_ids_of_the_file() {
    refuses("op op0 'matmul' reads tensor t3 't3' before any op has written it", |v| {
        v["ops"][0]["inputs"] = json!([3])
    });
    refuses("op op2 'backward' reads tensor 2 after op op1 has overwritten it in place", |v| {
        v["ops"][2]["inputs"] = json!([3, 2]);
    });
    refuses("op op4 'norm' reads tensor 0 after op op3 has overwritten it in place", |v| {
        v["ops"][4]["inputs"] = json!([0]);
    });
    refuses("op op4 'norm' writes tensor t6 't6', which op3 has written already", |v| {
        v["tensors"][6] = json!({ "id": 6, "bytes": 100, "kind": "activation" });
        v["ops"][3]["outputs"] = json!([5, 8, 6]);
    });
    refuses(
        "op op4 'norm' writes tensor t7 't7', whose role is OptimizerState; only activations, gradients and outputs are written",
        |v| {
            v["ops"][4]["outputs"] = json!([7]);
            v["tensors"][6] = json!({ "id": 6, "bytes": 100, "kind": "activation" });
        },
    );
    refuses("tensor 5 says it overwrites tensor 0 in place, but it is an update of a param of another size", |v| {
        v["tensors"][5]["bytes"] = json!(399);
    });
    refuses("tensor 5 says it overwrites tensor 5 in place, but that tensor does not exist at that time", |v| {
        v["tensors"][5]["inplace_of"] = json!(5);
    });
    refuses("tensor 5 says it overwrites tensor 77 in place, but there is no such tensor", |v| {
        v["tensors"][5]["inplace_of"] = json!(77);
    });
    refuses("tensor 8 says it overwrites tensor 0 in place, but another has overwritten that one already", |v| {
        v["tensors"][8]["inplace_of"] = json!(0);
    });
    refuses("tensor 6 says it overwrites tensor 4 in place, but no op outputs it", |v| {
        v["ops"][4]["outputs"] = json!([])
    });
    refuses("tensor t4 't4' must exist when the step ends, but no op writes it", |v| {
        v["ops"].as_array_mut().unwrap().truncate(2);
        v["tensors"].as_array_mut().unwrap().truncate(5);
    });
}

#[test]
fn broken_data_is_refused() {
    let message = |bytes: &[u8]| read_trace(bytes).unwrap_err().to_string();
    assert_eq!(message(b""), "the file is not JSON: EOF while parsing a value at line 1 column 0");
    assert_eq!(message(b"{\"ops\": [NaN]}"), "the file is not JSON: expected value at line 1 column 10");
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert!(message(&deep).starts_with("the file is not JSON: recursion limit exceeded"));
    let whole = write_trace(&read(&neutral()).unwrap(), true);
    for length in 2..whole.len() {
        let error = read_trace(&whole[..length]).unwrap_err();
        assert!(matches!(error, FileError::Gzip { .. } | FileError::Json { .. }), "{length} bytes: {error}");
    }
    assert!(message(&whole[..whole.len() - 9]).starts_with("the gzip data is damaged or truncated: "));
}

fn any_trace() -> impl Strategy<Value = Trace> {
    traces(Sizes { unit: 16, most_units: 1 << 20, odd: true }, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("proptest-regressions/file.txt"))),
        ..ProptestConfig::with_cases(128)
    })]

    #[test]
    fn what_is_written_is_read_back(trace in any_trace(), compress: bool) {
        let bytes = write_trace(&trace, compress);
        prop_assert_eq!(bytes.starts_with(&[0x1f, 0x8b]), compress);
        prop_assert_eq!(&bytes, &write_trace(&trace, compress));
        prop_assert_eq!(read_trace(&bytes).unwrap(), trace);
    }

    /// A reader that knows the neutral fields only sees the same reads, writes and updates.
    #[test]
    fn the_neutral_fields_suffice(trace in any_trace()) {
        let mut file: Value = serde_json::from_slice(&write_trace(&trace, false)).unwrap();
        for op in file["ops"].as_array_mut().unwrap() {
            for field in ["class", "nanos", "replayable", "in_place"] {
                op.as_object_mut().unwrap().remove(field);
            }
        }
        for tensor in file["tensors"].as_array_mut().unwrap() {
            tensor.as_object_mut().unwrap().remove("role");
        }
        let neutral = read(&file).unwrap();
        prop_assert_eq!(neutral.tensors().len(), trace.tensors().len());
        for (found, op) in neutral.ops().iter().zip(trace.ops()) {
            prop_assert_eq!((&found.reads, &found.writes, &found.updates), (&op.reads, &op.writes, &op.updates));
            prop_assert_eq!((found.workspace, found.latency), (op.workspace, op.latency));
            prop_assert!(found.in_place.iter().all(|pair| op.in_place.contains(pair)));
        }
    }

    #[test]
    fn changed_bytes_never_panic(
        trace in any_trace(), compress: bool, changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..6), cut: Option<u16>,
    ) {
        let mut bytes = write_trace(&trace, compress);
        for (at, to) in changes {
            let at = at as usize % bytes.len();
            bytes[at] = to;
        }
        if let Some(cut) = cut {
            bytes.truncate(bytes.len() * usize::from(cut) / usize::from(u16::MAX));
        }
        one_line(read_trace(&bytes))?;
    }

    #[test]
    fn changed_values_never_panic(trace in any_trace(), places in proptest::collection::vec((any::<u32>(), value()), 1..4)) {
        let mut file: Value = serde_json::from_slice(&write_trace(&trace, false)).unwrap();
        for (place, to) in places {
            let count = leaves(&mut file).len();
            if count > 0 {
                *leaves(&mut file).swap_remove(place as usize % count) = to;
            }
        }
        one_line(read(&file))?;
    }
}

fn one_line(result: Result<Trace, FileError>) -> Result<(), TestCaseError> {
    if let Err(error) = result {
        let message = error.to_string();
        prop_assert!(!message.is_empty() && message.lines().count() == 1, "{:?}", message);
    }
    Ok(())
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..40).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "param|input|gradient|output|buffer|x\n".prop_map(Value::from),
        Just(json!([])),
        Just(json!([0, 0])),
        Just(json!({})),
    ]
}

/// All values in a file that hold no others.
fn leaves(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Array(items) => items.iter_mut().flat_map(leaves).collect(),
        Value::Object(fields) => fields.values_mut().flat_map(leaves).collect(),
        leaf => vec![leaf],
    }
}

/// The folder of recorded traces, if it is there.
fn recorded() -> Option<PathBuf> {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared"));
    let folder = std::env::var_os("TENSILE_SHARED").map_or(beside, PathBuf::from).join("traces");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no recorded traces at {}", folder.display());
    None
}

/// The peak as the table counts it: as [`Liveness::usage`], but inputs are there from the start.
fn sequential_peak(trace: &Trace, limits: &Limits) -> u64 {
    let live = Liveness::new(trace);
    let to_come = |op: usize| -> u64 {
        let inputs = trace.tensor_ids().filter(|&id| trace.tensor(id).role == Role::Input);
        let later = inputs.filter(|&id| live.first_use(id).is_some_and(|first| first.index() > op));
        later.map(|id| trace.tensor(id).bytes.0).sum()
    };
    live.usage(trace, limits).iter().enumerate().map(|(op, bytes)| bytes.0 + to_come(op)).max().unwrap_or(0)
}

#[test]
fn recorded_traces_are_read_with_the_figures_of_their_table() {
    let Some(folder) = recorded() else { return };
    // name | repository | path | licence | ops | tensors | in-place | total bytes | parameter bytes | …
    let table = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let mut with_figures = 0;
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "gz"));
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().trim_end_matches(".json.gz").to_owned();
        let trace = read_trace(&std::fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read_trace(&write_trace(&trace, false)).as_ref(), Ok(&trace), "{name}");
        let Some(row) = table.lines().find(|line| line.starts_with(&format!("| {name} |"))) else { continue };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if cells.len() < 14 {
            continue;
        }
        with_figures += 1;
        let figure =
            |column: usize| cells[column].parse::<u64>().unwrap_or_else(|_| panic!("{name}: {}", cells[column]));
        let persistent = trace.tensors().iter().filter(|tensor| tensor.role.is_persistent());
        assert_eq!(trace.ops().len() as u64, figure(5), "{name}: ops");
        assert_eq!(persistent.map(|tensor| tensor.bytes.0).sum::<u64>(), figure(9), "{name}: parameter bytes");
        let exact = Limits { alignment: Bytes(1), ..Limits::unlimited() };
        assert_eq!(sequential_peak(&trace, &exact), figure(10), "{name}: sequential peak");
        let kept = trace.tensors().iter().filter(|tensor| tensor.keep).map(|tensor| tensor.bytes.0).sum::<u64>();
        // What must be on the device at the end can be more than any op needs.
        assert_eq!(floor(&trace, &exact).unwrap().bytes.0, figure(12).max(kept), "{name}: floor");
    }
    assert_eq!(with_figures, 20);
}
