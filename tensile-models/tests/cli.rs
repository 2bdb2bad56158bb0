//! The `tensile` command: what it prints, and how it ends on bad input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn tensile(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensile")).args(args).output().unwrap()
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let output = tensile(args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "tensile {args:?} ended with {}:\n{out}{err}", output.status);
    out.into_owned()
}

/// The command ends with `status`, and says why in one line that contains all of `words`.
#[track_caller]
fn fails(status: i32, args: &[&str], words: &[&str]) {
    let output = tensile(args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "tensile {args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "tensile {args:?} says more than one line:\n{err}");
    assert!(err.starts_with("error: "), "{err}");
    assert!(!err.contains("panicked"), "{err}");
    for word in words {
        assert!(err.contains(word), "tensile {args:?} does not say '{word}': {err}");
    }
    let clauses: Vec<&str> = err.trim_end().split(": ").collect();
    for (index, clause) in clauses.iter().enumerate() {
        assert!(!clauses[..index].contains(clause), "tensile {args:?} says '{clause}' twice: {err}");
    }
}

/// A folder of this test's own, empty at first.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("'{line}': {error}"))
}

#[test]
fn comparing_proves_equal_losses_and_real_evictions() {
    let out = succeeds(&["train", "digit-cnn", "--budget", "50%", "--compare", "--json", "--epochs", "1"]);
    let lines: Vec<Value> = out.lines().map(json).collect();
    let last = lines.last().unwrap();
    assert_eq!(last["losses_equal"], true);
    let [unlimited, limited] = last["reports"].as_array().unwrap().as_slice() else { panic!("two reports") };
    assert_eq!(unlimited["evictions"], 0);
    assert_eq!(unlimited["reruns"], 0);
    assert!(limited["evictions"].as_u64().unwrap() + limited["reruns"].as_u64().unwrap() > 0);
    assert!(limited["peak_bytes"].as_u64() <= limited["budget_bytes"].as_u64());
    assert!(limited["peak_bytes"].as_u64().unwrap() * 10 < unlimited["peak_bytes"].as_u64().unwrap() * 6);
    assert_eq!(lines.len(), 22 + 22 + 1);
    for step in 0..22 {
        assert_eq!(lines[step]["loss_bits"], lines[22 + step]["loss_bits"]);
    }
    assert_eq!(lines[21]["accuracy"], lines[43]["accuracy"]);
    assert!(lines[21]["accuracy"].is_f64());
}

#[test]
fn the_digits_are_learnt_within_half_the_memory() {
    let out = succeeds(&["train", "digit-cnn", "--budget", "50%", "--json", "--epochs", "6"]);
    let report = json(out.lines().last().unwrap())["reports"][0].clone();
    assert!(report["accuracy"].as_f64().unwrap() >= 0.97, "{report}");
}

#[test]
fn plain_output_ends_with_a_report() {
    let out = succeeds(&["train", "mlp", "--steps", "3", "--budget", "70%"]);
    for words in ["test accuracy", "peak on the device", "swap-outs per step", "reruns per step", "resident memory"] {
        assert!(out.contains(words), "no '{words}' in:\n{out}");
    }
}

#[test]
fn weights_are_saved_and_loaded() {
    let file = folder("weights").join("mlp.safetensors");
    let file = file.to_str().unwrap();
    let accuracy = |args: &[&str]| {
        let out = succeeds(&[&["train", "mlp", "--json", "--seed", "3"], args].concat());
        json(out.lines().last().unwrap())["reports"][0]["accuracy"].as_f64().unwrap()
    };
    let trained = accuracy(&["--epochs", "8", "--save", file]);
    let untrained = accuracy(&["--steps", "1", "--lr", "1e-30"]);
    let loaded = accuracy(&["--steps", "1", "--lr", "1e-30", "--load", file]);
    assert!(trained > 0.9 && untrained < 0.5, "{trained} {untrained}");
    assert!((loaded - trained).abs() < 0.02, "{loaded} {trained}");
    fails(1, &["train", "lenet", "--load", file, "--steps", "1"], &["mlp.safetensors", "conv1.weight"]);
}

#[test]
fn saved_weights_are_measured_and_used() {
    let file = folder("trained").join("mlp.safetensors");
    let file = file.to_str().unwrap();
    let out = succeeds(&["train", "mlp", "--json", "--epochs", "4", "--save", file]);
    let trained = json(out.lines().last().unwrap())["reports"][0]["accuracy"].as_f64().unwrap();
    for more in [&["--batch", "64"][..], &["--batch", "7", "--budget", "90%"]] {
        let answer = json(&succeeds(&[&["eval", "mlp", "--load", file, "--json"], more].concat()));
        assert_eq!(answer["accuracy"].as_f64().unwrap(), trained);
        assert_eq!(answer["labels"], 360);
    }
    let out = succeeds(&["predict", "mlp", "--load", file, "--json", "--samples", "0", "--top", "3", "--batch", "50"]);
    let told: Vec<Value> = out.lines().map(json).collect();
    assert_eq!(told.len(), 360);
    let right = told.iter().filter(|told| told["label"] == told["classes"][0]["class"]).count();
    assert_eq!(right as f64 / 360.0, trained);
    for told in &told {
        let probability = |index: usize| told["classes"][index]["probability"].as_f64().unwrap();
        assert!(
            probability(0) >= probability(1) && probability(1) >= probability(2) && probability(0) <= 1.0,
            "{told}"
        );
    }
    let out = succeeds(&["predict", "mlp", "--load", file, "--samples", "3"]);
    assert_eq!(out.lines().count(), 3, "{out}");
    fails(2, &["eval", "mlp"], &["--load"]);
    fails(1, &["eval", "mlp", "--load", "/no/such/file"], &["/no/such/file", "No such file"]);
    fails(1, &["predict", "lenet", "--load", file], &["mlp.safetensors", "conv1.weight"]);
    fails(2, &["predict", "mlp", "--load", file, "--prompt", "x"], &["--prompt", "next tokens"]);
    fails(1, &["eval", "mlp", "--load", file, "--budget", "1KiB"], &["floor"]);
}

#[test]
fn resumed_training_goes_on_bit_by_bit_under_another_budget() {
    let folder = folder("checkpoints");
    let dir = folder.join("run");
    let dir = dir.to_str().unwrap();
    let common = ["train", "mlp", "--json", "--epochs", "3", "--warmup", "5", "--clip-norm", "2"];
    let losses = |more: &[&str]| -> Vec<(u64, u64)> {
        let out = succeeds(&[&common, more].concat());
        let steps = out.lines().map(json).filter(|line| line["loss_bits"].is_u64());
        steps.map(|line| (line["step"].as_u64().unwrap(), line["loss_bits"].as_u64().unwrap())).collect()
    };
    let whole = losses(&["--schedule", "step:1:0.5"]);
    assert_eq!(whole.len(), 66);
    let until = |steps: &str, more: &[&str]| {
        losses(&[&["--schedule", "step:1:0.5", "--checkpoint", dir, "--every", "7", "--steps", steps], more].concat())
    };
    // The first run ends in the middle of an epoch.
    assert_eq!(until("25", &[]), whole[..25]);
    assert_eq!(until("40", &["--resume", "--budget", "80%"]), whole[25..40]);
    assert_eq!(until("66", &["--resume"]), whole[40..]);
    // The last checkpoint is the end: nothing is left to do.
    assert_eq!(until("66", &["--resume"]), []);
    fails(1, &[&common, &["--checkpoint", dir, "--resume", "--seed", "9"][..]].concat(), &["--seed 1", "checkpoint"]);
    let empty = folder.join("empty");
    fails(
        1,
        &[&common, &["--checkpoint", empty.to_str().unwrap(), "--resume"][..]].concat(),
        &["empty", "No such file"],
    );
    fails(1, &["train", "lenet", "--steps", "1", "--checkpoint", dir, "--resume"], &["checkpoint", "conv1.weight"]);
    fails(2, &["train", "mlp", "--resume"], &["--checkpoint"]);
}

#[test]
fn updates_are_made_as_asked() {
    let losses = |more: &[&str]| -> Vec<f64> {
        let out = succeeds(&[&["train", "mlp", "--json", "--set", "classes=10", "--steps", "6"], more].concat());
        out.lines().map(json).filter_map(|line| line["loss"].as_f64()).collect()
    };
    let plain = losses(&[]);
    // Without dropout there would be rounding between them only; with it, micro-batches draw anew.
    let accumulated = losses(&["--batch", "16", "--accumulate", "4"]);
    assert_eq!(accumulated.len(), 6);
    assert!((plain[0] - accumulated[0]).abs() < 0.2, "{plain:?} {accumulated:?}");
    assert_eq!(losses(&["--batch", "16", "--accumulate", "4", "--budget", "80%"]), accumulated);
    assert_ne!(losses(&["--clip-norm", "0.01"])[5], plain[5]);
    assert_ne!(losses(&["--weight-decay", "0.5"])[5], plain[5]);
    assert_ne!(losses(&["--group", "fc3.*:lr=0"])[5], plain[5]);
    let frozen = losses(&["--group", "*:lr=0", "--seed", "4"]);
    assert!(frozen.iter().all(|loss| (loss - frozen[0]).abs() < 0.3), "{frozen:?}");
    // What becomes of it at this rate is not finite from the second step on; training ends all the same.
    assert_eq!(losses(&["--lr", "1e30", "--nonfinite", "skip"]).len(), 1);
    fails(1, &["train", "mlp", "--group", "fc9.*:lr=0"], &["fc9.*"]);
    fails(2, &["train", "mlp", "--group", "fc1.*:speed=2"], &["fc1.*:speed=2", "lr="]);
    fails(2, &["train", "mlp", "--clip-norm", "0"], &["--clip-norm 0"]);
    fails(2, &["train", "mlp", "--schedule", "sometimes"], &["--schedule", "sometimes", "cosine"]);
    fails(2, &["train", "mlp", "--accumulate", "0"], &["--accumulate"]);
    fails(2, &["train", "mlp", "--weight-decay=-1"], &["--weight-decay -1", "from 0"]);
}

#[test]
fn a_loss_that_is_not_finite_stops_training_if_asked_to() {
    let folder = folder("nonfinite");
    let dir = folder.to_str().unwrap();
    let wild = ["train", "mlp", "--json", "--lr", "1e30", "--steps", "6", "--checkpoint", dir, "--every", "1"];
    let with = |more: &[&'static str]| [&wild[..], more].concat();
    // The first update makes the parameters huge, and so the second loss infinite.
    fails(1, &with(&["--nonfinite", "stop"]), &["step 2", "loss is", "--nonfinite stop"]);
    let steps = |more: &[&'static str]| -> Vec<Value> { succeeds(&with(more)).lines().map(json).collect() };
    // What was saved is the state after the first step, which the second did not change.
    let resumed = steps(&["--nonfinite", "skip", "--resume"]);
    let whole = steps(&["--nonfinite", "skip"]);
    assert_eq!(whole.len(), 6 + 1);
    assert_eq!(
        resumed[..5].iter().map(|line| &line["loss_bits"]).collect::<Vec<_>>(),
        whole[1..6].iter().map(|line| &line["loss_bits"]).collect::<Vec<_>>()
    );
    assert_eq!(resumed[0]["step"], 2);
    assert_eq!(steps(&[]).len(), 6 + 1);
    fails(2, &["train", "mlp", "--nonfinite", "explode"], &["--nonfinite", "explode", "skip"]);
}

#[test]
fn batches_may_have_several_shapes() {
    let equal = |args: &[&str], steps: usize| {
        let out = succeeds(&[&["train", "--budget", "50%", "--compare", "--json"], args].concat());
        let lines: Vec<Value> = out.lines().map(json).collect();
        assert_eq!(lines.last().unwrap()["losses_equal"], true, "{args:?}");
        assert_eq!(lines.len(), 2 * steps + 1, "{args:?}");
        lines.last().unwrap()["reports"][1].clone()
    };
    // 1437 samples: 22 batches of 64 and one of 29.
    let report = equal(&["digit-cnn", "--epochs", "2", "--last-batch", "partial"], 46);
    assert_eq!(report["plans"], 3);
    equal(&["digit-cnn", "--epochs", "1", "--last-batch", "partial", "--batch", "50", "--accumulate", "2"], 15);
    let small = "layers=1,width=32,context=64";
    let report = equal(&["gpt-bytes", "--set", small, "--batch", "8", "--buckets", "16,32,64", "--steps", "20"], 20);
    assert_eq!(report["plans"], 4);
    fails(2, &["train", "gpt-bytes", "--buckets", "16,400"], &["--buckets", "400", "from 1 to 128"]);
    fails(2, &["train", "mlp", "--buckets", "16"], &["--buckets", "images 1x8x8"]);
    fails(2, &["train", "mlp", "--last-batch", "half"], &["--last-batch", "half", "partial"]);
}

#[test]
fn swapped_tensors_can_lie_in_a_file() {
    let folder = folder("spill");
    let dir = folder.to_str().unwrap();
    let run = |more: &[&str]| {
        let out = succeeds(&[&["train", "digit-cnn", "--json", "--steps", "8", "--mode", "swap"], more].concat());
        let lines: Vec<Value> = out.lines().map(json).collect();
        let losses: Vec<u64> = lines.iter().filter_map(|line| line["loss_bits"].as_u64()).collect();
        (losses, lines.last().unwrap()["reports"][0].clone())
    };
    let (losses, report) = run(&[]);
    assert_eq!(report["spilled_bytes"], 0);
    let (spilled_losses, report) = run(&["--budget", "50%", "--spill-dir", dir]);
    assert_eq!(spilled_losses, losses);
    assert_eq!(report["spilled_bytes"], report["host_bytes"]);
    assert!(report["spilled_bytes"].as_u64().unwrap() > 1 << 20, "{report}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "nothing is left behind");
    fails(1, &["train", "mlp", "--spill-dir", "/no/such/dir"], &["/no/such/dir"]);
    succeeds(&["train", "mlp", "--steps", "1", "--budget", "auto"]);
    fails(2, &["train", "mlp", "--host-budget", "50%"], &["--host-budget", "auto"]);
}

#[test]
fn a_models_trace_can_be_written_and_planned() {
    let folder = folder("traces");
    for name in ["cnn.json", "cnn.json.gz"] {
        let path = folder.join(name);
        let path = path.to_str().unwrap();
        let direct = succeeds(&["plan", "digit-cnn", "--json", "--write-trace", path, "--link", "12GB/s"]);
        let read = succeeds(&["plan", "--trace", path, "--json", "--link", "12GB/s"]);
        let (direct, read) = (json(&direct), json(&read));
        for key in ["ops", "tensors", "floor_op"] {
            assert_eq!(direct[key], read[key], "{key}");
        }
        assert_eq!(read["budgets"].as_array().unwrap().len(), 5);
    }
}

#[test]
fn memory_is_set_against_time() {
    let curve = succeeds(&["plan", "mlp", "--frontier", "4", "--policy", "tensile-fast", "--json"]);
    let curve = json(&curve);
    let rows = curve["budgets"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0]["budget_bytes"], curve["floor_bytes"]);
    assert_eq!(rows[3]["budget_bytes"], curve["none_arena_bytes"]);
    for pair in rows.windows(2) {
        assert!(pair[0]["step_ns"].as_u64() >= pair[1]["step_ns"].as_u64(), "{rows:?}");
    }
    let least = json(&succeeds(&["plan", "digit-cnn", "--max-slowdown", "10%", "--policy", "tensile-fast", "--json"]));
    let row = &least["budgets"][0];
    // Ten per cent more than without a limit, where the step may wait for its input, and this figure is over the kernels alone.
    assert!(row["overhead"].as_f64().unwrap() <= 0.12, "{least}");
    assert!(row["budget_bytes"].as_u64() < least["none_arena_bytes"].as_u64(), "{least}");
    fails(2, &["plan", "mlp", "--max-slowdown", "much"], &["per cent"]);
    fails(2, &["plan", "mlp", "--frontier", "4", "--budget", "50%"], &["--frontier", "--budget"]);
}

#[test]
fn plans_show_their_programs() {
    let out = succeeds(&["plan", "mlp", "--budget", "80%", "--show"]);
    assert!(out.contains("floor") && out.contains("slowdown"), "{out}");
    assert!(out.contains("fc1.matmul") && out.contains("fc1.weight.update"), "{out}");
    let info = succeeds(&["info"]);
    for word in ["digit-cnn", "resnet50", "tensile", "none", "retain", "host"] {
        assert!(info.contains(word), "no '{word}' in:\n{info}");
    }
    assert!(!info.contains("cuda"), "{info}");
    if cfg!(not(feature = "wgpu")) {
        assert!(info.contains("built without the feature wgpu"), "{info}");
    }
}

#[test]
fn what_does_not_exist_is_a_usage_error() {
    fails(2, &["train", "vgg99"], &["'vgg99'", "digit-cnn"]);
    fails(2, &["plan", "vgg99"], &["'vgg99'", "digit-cnn"]);
    fails(2, &["train", "mlp", "--batch", "0"], &["--batch 0"]);
    fails(2, &["train", "mlp", "--batch", "-3"], &["-3"]);
    fails(2, &["train", "mlp", "--budget", "abc"], &["'abc'", "2GiB"]);
    fails(2, &["train", "mlp", "--budget", "0"], &["above zero"]);
    fails(2, &["plan", "mlp", "--budget", "50%,abc"], &["'abc'"]);
    fails(2, &["train", "mlp", "--policy", "magic"], &["'magic'", "tensile"]);
    fails(2, &["train", "mlp", "--optimizer", "lion"], &["'lion'", "adam"]);
    fails(2, &["train", "mlp", "--lr", "0"], &["--lr 0"]);
    fails(2, &["train", "mlp", "--epochs", "0"], &["--epochs 0"]);
    fails(2, &["train", "mlp", "--epochs", "999999999999999999"], &["too many", "1000000"]);
    fails(2, &["train", "mlp", "--size", "32"], &["'size'", "classes"]);
    fails(2, &["train", "mlp", "--host-budget", "50%"], &["--host-budget"]);
    fails(2, &["train"], &["MODEL"]);
    fails(2, &["plan"], &["MODEL"]);
    fails(2, &["fly"], &["fly"]);
    fails(2, &["train", "mlp", "--backend", "cuda"], &["--backend"]);
    fails(2, &["train", "mlp", "--threads", "1025"], &["--threads 1025", "1024"]);
}

#[test]
fn options_of_other_backends_are_refused() {
    let file = "/no/such/file";
    let commands: [&[&str]; 4] =
        [&["train", "mlp"], &["plan", "mlp"], &["eval", "mlp", "--load", file], &["predict", "mlp", "--load", file]];
    for command in commands {
        let options: [&[&str]; 4] =
            [&["--adapter", "0"], &["--graphics-api", "vulkan"], &["--power", "low"], &["--allow-faulty-driver"]];
        for option in options {
            fails(2, &[command, option].concat(), &[option[0], "--backend wgpu only"]);
        }
        if cfg!(not(feature = "wgpu")) {
            fails(
                2,
                &[command, &["--backend", "wgpu"]].concat(),
                &["--backend wgpu", "built without", "--features wgpu"],
            );
        }
    }
    fails(2, &["plan", "mlp", "--power", "some"], &["--power", "high"]);
}

#[test]
fn a_budget_below_the_floor_names_floor_and_op() {
    fails(1, &["train", "digit-cnn", "--budget", "10%"], &["below the floor of", "MiB", "op"]);
    fails(1, &["train", "digit-cnn", "--budget", "20KiB"], &["20.0 KiB", "below the floor of", "op"]);
    fails(1, &["plan", "digit-cnn", "--budget", "1%", "--json"], &["below the floor of"]);
    fails(1, &["train", "digit-cnn", "--budget", "40%", "--host-budget", "100KiB"], &["host"]);
    // More than any machine has: an error with both figures, not a kill in the middle of the run.
    fails(
        1,
        &["train", "resnet50", "--size", "8192", "--batch", "64", "--steps", "1"],
        &["TiB needed", "free", "--budget"],
    );
}

#[test]
fn data_faults_name_the_file() {
    let folder = folder("data");
    let missing = folder.join("missing.csv");
    fails(1, &["train", "mlp", "--data", missing.to_str().unwrap()], &["missing.csv", "No such file"]);
    let digits = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/data/digits.csv.gz")).unwrap();
    let truncated = folder.join("truncated.csv.gz");
    std::fs::write(&truncated, &digits[..digits.len() / 2]).unwrap();
    fails(1, &["train", "mlp", "--data", truncated.to_str().unwrap()], &["truncated.csv.gz"]);
    fails(1, &["train", "resnet18", "--data", "digits", "--size", "32", "--batch", "2"], &["1x8x8", "3x32x32"]);
    fails(1, &["train", "mlp", "--augment", "resize"], &["cannot augment", "digits"]);
    fails(2, &["train", "mlp", "--augment", "flip,crop=0"], &["crop=0"]);
    fails(1, &["train", "mlp", "--batch", "2000"], &["1437", "2000"]);
    fails(1, &["train", "resnet18", "--size", "32", "--batch", "100000"], &["4096", "100000"]);
}

#[test]
fn trace_faults_name_op_and_tensor() {
    let folder = folder("bad-traces");
    let check = |name: &str, text: &str, words: &[&str]| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        fails(1, &["plan", "--trace", path.to_str().unwrap()], &[&[name], words].concat());
    };
    let tensor = |id: usize, kind: &str, bytes: &str| format!(r#"{{"id":{id},"bytes":{bytes},"kind":"{kind}"}}"#);
    let op = |inputs: &str, outputs: &str| {
        format!(r#"{{"id":0,"name":"conv","inputs":[{inputs}],"outputs":[{outputs}],"time_us":1.0}}"#)
    };
    let trace = |ops: String, tensors: [String; 2]| {
        format!(r#"{{"meta":{{}},"ops":[{ops}],"tensors":[{}]}}"#, tensors.join(","))
    };
    let good = || [tensor(0, "param", "8"), tensor(1, "activation", "8")];
    check("not.json", "certainly not", &[]);
    check("nothing.json", r#"{"meta":{},"ops":[],"tensors":[]}"#, &["no ops"]);
    check("empty.json", "", &[]);
    check("unknown.json", &trace(op("7", "1"), good()), &["7", "conv"]);
    check("early.json", &trace(op("1", ""), good()), &["conv", "t1"]);
    check("negative.json", &trace(op("0", "1"), [tensor(0, "param", "-8"), tensor(1, "activation", "8")]), &["-8"]);
    let absurd = [tensor(0, "param", "99999999999999999999999"), tensor(1, "activation", "8")];
    check("absurd.json", &trace(op("0", "1"), absurd), &[]);
    check("zero.json", &trace(op("0", "1"), [tensor(0, "param", "0"), tensor(1, "activation", "8")]), &["0"]);
    let missing = folder.join("missing.json");
    fails(1, &["plan", "--trace", missing.to_str().unwrap()], &["missing.json", "No such file"]);
}

#[test]
fn output_paths_that_cannot_be_written_are_found_out_first() {
    let folder = folder("unwritable");
    let nowhere = folder.join("no/such/folder/file");
    let nowhere = nowhere.to_str().unwrap();
    fails(1, &["train", "mlp", "--steps", "1", "--save", nowhere], &["cannot write", "file"]);
    fails(1, &["plan", "mlp", "--write-trace", nowhere], &["cannot write", "file"]);
    let kept = folder.join("kept.safetensors");
    std::fs::write(&kept, "old").unwrap();
    fails(1, &["train", "mlp", "--data", "/no/data", "--save", kept.to_str().unwrap()], &["/no/data"]);
    fails(1, &["train", "mlp", "--budget", "1%", "--compare", "--save", kept.to_str().unwrap()], &["floor"]);
    assert_eq!(std::fs::read(&kept).unwrap(), b"old", "a failed run leaves the old file alone");
    fails(1, &["train", "mlp", "--steps", "1", "--save", folder.to_str().unwrap()], &["not a regular file"]);
}

#[test]
fn plans_are_explained() {
    let out = succeeds(&["plan", "digit-cnn", "--budget", "40%", "--explain", "--link", "1GB/s"]);
    let words = [
        "where the time goes:",
        "kernels",
        "run again",
        "waiting",
        "where tensors are while nobody uses them",
        "activation",
        "otherwise:",
        "what more memory would buy:",
        "5 % more",
        "10 % more",
    ];
    for words in words {
        assert!(out.contains(words), "no '{words}' in:\n{out}");
    }
    assert!(["swapped out and in", "released", "made again by"].iter().any(|fate| out.contains(fate)), "{out}");
    let out = succeeds(&["plan", "digit-cnn", "--budget", "100%", "--explain"]);
    assert!(out.contains("nothing: there is room for everything"), "{out}");
    fails(2, &["plan", "mlp", "--explain", "--json"], &["--explain", "--json"]);
}

/// Names of processes and of threads, kernels and copies of each process.
fn timeline(path: &str) -> Vec<(String, Vec<String>, usize, usize)> {
    let file = json(&std::fs::read_to_string(path).unwrap());
    let events = file["traceEvents"].as_array().unwrap();
    let names = |name: &str, pid: &Value| {
        let of = events.iter().filter(|event| event["name"] == *name && (pid.is_null() || event["pid"] == *pid));
        of.map(|event| (event["pid"].clone(), event["args"]["name"].as_str().unwrap().to_owned())).collect::<Vec<_>>()
    };
    let processes = names("process_name", &Value::Null);
    let count = |pid: &Value, kinds: &[&str]| {
        let of = events.iter().filter(|event| event["pid"] == *pid);
        of.filter(|event| event["cat"].as_str().is_some_and(|kind| kinds.contains(&kind))).count()
    };
    processes
        .into_iter()
        .map(|(pid, name)| {
            let threads = names("thread_name", &pid).into_iter().map(|thread| thread.1).collect();
            let memory = events.iter().filter(|event| event["pid"] == pid && event["name"] == "device memory");
            let budget = events.iter().find(|event| event["pid"] == pid && event["name"] == "budget").unwrap();
            let budget = budget["args"]["bytes"].as_u64().unwrap();
            assert!(memory.clone().count() > 1);
            if name == "predicted" {
                assert!(memory.clone().all(|event| event["args"]["bytes"].as_u64().unwrap() <= budget));
            }
            (name, threads, count(&pid, &["run", "rerun"]), count(&pid, &["out", "in"]))
        })
        .collect()
}

#[test]
fn timelines_show_predicted_and_measured_steps() {
    let file = folder("timelines").join("step.json");
    let file = file.to_str().unwrap();
    succeeds(&["plan", "digit-cnn", "--budget", "50%", "--timeline", file]);
    let plan = timeline(file);
    let [(name, threads, kernels, copies)] = plan.as_slice() else { panic!("{plan:?}") };
    assert_eq!(name, "predicted");
    assert!(["compute", "out", "in"].iter().all(|lane| threads.iter().any(|thread| thread == lane)), "{threads:?}");
    assert!(*kernels > 20 && *copies > 2, "{plan:?}");

    succeeds(&["train", "digit-cnn", "--budget", "50%", "--steps", "3", "--timeline", file]);
    let train = timeline(file);
    let [(predicted, _, kernels, copies), (measured, threads, kernels_measured, copies_measured)] = train.as_slice()
    else {
        panic!("{train:?}")
    };
    assert_eq!((predicted.as_str(), measured.as_str()), ("predicted", "measured"));
    assert_eq!((kernels, copies), (kernels_measured, copies_measured));
    assert_eq!(threads.as_slice(), ["compute", "out", "in"]);

    let nowhere = folder("timelines").join("no/such/folder/file");
    let nowhere = nowhere.to_str().unwrap();
    fails(1, &["plan", "mlp", "--timeline", nowhere], &["cannot write", "file"]);
    fails(1, &["train", "mlp", "--steps", "1", "--timeline", nowhere], &["cannot write", "file"]);
}

#[test]
fn output_may_be_cut_off() {
    use std::process::Stdio;
    let mut child = Command::new(env!("CARGO_BIN_EXE_tensile"))
        .args(["train", "mlp", "--json", "--epochs", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn latencies_are_measured_learnt_and_planned_with() {
    let file = folder("profile").join("latencies.safetensors");
    let file = file.to_str().unwrap();
    let answer = json(&succeeds(&["profile", "--seconds", "2", "--out", file, "--json"]));
    assert_eq!(answer["file"], file);
    assert!(answer["shapes"].as_u64().unwrap() > 0 && answer["of"].as_u64() >= answer["shapes"].as_u64(), "{answer}");
    // A machine that is very busy measures too few ops to hold any out.
    for errors in [&answer["learned"], &answer["roofline"]].into_iter().filter(|errors| !errors.is_null()) {
        let [samples, median, p90] = ["samples", "median", "p90"].map(|name| errors[name].as_f64().unwrap());
        assert!(samples > 0.0 && median >= 0.0 && median <= p90, "{answer}");
        assert!(!answer["classes"].as_array().unwrap().is_empty(), "{answer}");
    }

    let plan =
        |latencies: &str| json(&succeeds(&["plan", "mlp", "--json", "--budget", "100%,70%", "--latencies", latencies]));
    let (told, estimated) = (plan(file), plan("none"));
    assert_eq!(told["latencies"], file);
    assert!(estimated["latencies"].is_null(), "{estimated}");
    assert_ne!(told["compute_ns"], estimated["compute_ns"]);
    // The file decides, not what the device's rates are measured to be this time.
    assert_eq!(told["compute_ns"], plan(file)["compute_ns"]);
    for memory in ["floor_bytes", "none_peak_bytes", "none_arena_bytes", "retain_peak_bytes"] {
        assert_eq!(told[memory], estimated[memory], "{memory}");
    }
    let out = succeeds(&["train", "mlp", "--steps", "2", "--budget", "70%", "--latencies", file]);
    assert!(out.contains("latencies of ops as learned") && out.contains(file), "{out}");

    let plan = ["plan", "mlp", "--latencies"];
    fails(1, &[&plan[..], &[file, "--threads", "3"]].concat(), &["host (3 threads)", "`tensile profile`"]);
    fails(1, &[&plan[..], &["/no/such/file"]].concat(), &["/no/such/file", "No such file"]);
    fails(
        1,
        &[&plan[..], &[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]].concat(),
        &["is not a file of latencies"],
    );
    fails(2, &["plan", "--trace", "step.json", "--latencies", file], &["--latencies", "--trace"]);
    fails(2, &["profile", "--seconds", "0"], &["--seconds"]);
    fails(1, &["profile", "--seconds", "1", "--out", "/no/such/folder/file"], &["/no/such/folder/file"]);
}

#[cfg(target_os = "linux")]
#[test]
fn latencies_of_a_device_are_kept_in_the_cache_folder() {
    let cache = folder("profile-cache");
    let run = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tensile")).args(args).env("XDG_CACHE_HOME", &cache).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(output.status.success(), "tensile {args:?}: {out}{err}");
        (out, err)
    };
    let plan = ["plan", "mlp", "--json", "--threads", "2", "--budget", "100%"];
    assert!(json(&run(&plan).0)["latencies"].is_null());
    run(&["profile", "--seconds", "1", "--threads", "2"]);
    let file = cache.join("tensile").join("latencies-host-2-threads.safetensors");
    assert_eq!(json(&run(&plan).0)["latencies"], file.to_str().unwrap());
    assert!(json(&run(&[&plan[..], &["--latencies", "none"]].concat()).0)["latencies"].is_null());
    // One that cannot be used is no reason to stop.
    std::fs::write(&file, "damaged").unwrap();
    let (out, err) = run(&plan);
    assert!(json(&out)["latencies"].is_null());
    assert!(err.starts_with("warning: ") && err.contains("`tensile profile`") && err.lines().count() == 1, "{err}");
}
