//! Real training with real data ends where it should: the commands of the README, made short.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[allow(dead_code, reason = "the example's main is not used")]
#[path = "../examples/digits_as_cifar.rs"]
mod digits_as_cifar;

/// The report of a training run.
#[track_caller]
fn train(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tensile")).arg("train").args(args).arg("--json").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "tensile train {args:?} ended with {}:\n{err}", output.status);
    let line: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    line["reports"][0].clone()
}

#[test]
fn resnet18_learns_from_files_in_cifars_format() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cifar");
    digits_as_cifar::write(&folder).unwrap();
    let data = folder.to_str().unwrap();
    let settings = ["--set", "size=32,classes=10", "--augment", "crop=2", "--budget", "60%"];
    let report = train(&[&["resnet18", "--data", data, "--batch", "32", "--epochs", "2"], &settings[..]].concat());
    assert!(report["accuracy"].as_f64().unwrap() > 0.85, "{report}");
    assert!(report["evictions"].as_u64().unwrap() + report["reruns"].as_u64().unwrap() > 0, "{report}");
}

/// Entropy of single bytes in nats: the loss of a model that sees no context.
fn unigram_entropy(text: &[u8]) -> f64 {
    let mut counts: BTreeMap<u8, f64> = BTreeMap::new();
    for byte in text {
        *counts.entry(*byte).or_default() += 1.0;
    }
    let n = text.len() as f64;
    counts.values().map(|count| -count / n * (count / n).ln()).sum()
}

#[test]
fn a_decoder_learns_a_text() {
    let text = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let entropy = unigram_entropy(&std::fs::read(&text).unwrap());
    let report = train(&[
        "gpt-bytes",
        "--data",
        text.to_str().unwrap(),
        "--set",
        "layers=2,width=64,context=64,dropout=0",
        "--batch",
        "12",
        "--optimizer",
        "adamw",
        "--lr",
        "3e-3",
        "--warmup",
        "20",
        "--schedule",
        "cosine",
        "--clip-norm",
        "1",
        "--no-decay-on-vectors",
        "--epochs",
        "30",
        "--budget",
        "70%",
    ]);
    let loss = report["test_loss"].as_f64().unwrap();
    assert!(loss < 0.85 * entropy, "loss {loss} on text that was not seen, entropy {entropy}: {report}");
}

/// In this text each token follows from the one before three times out of four; there are 32, so that guessing has a loss of 3.47.
#[test]
fn an_encoder_learns_hidden_tokens() {
    let settings = "layers=2,width=64,context=32,vocab=32,mask=31,dropout=0";
    let schedule = ["--lr", "1e-3", "--warmup", "20", "--batch", "32", "--epochs", "4"];
    let report = train(&[&["bert-bytes", "--data", "synthetic", "--set", settings], &schedule[..]].concat());
    assert!(report["test_loss"].as_f64().unwrap() < 2.5, "{report}");
}

#[test]
fn graph_convolutions_tell_the_two_sides_of_the_karate_club() {
    let report = train(&["gcn", "--data", "karate", "--epochs", "200", "--lr", "1e-2"]);
    assert!(report["accuracy"].as_f64().unwrap() >= 0.9, "{report}");
}
