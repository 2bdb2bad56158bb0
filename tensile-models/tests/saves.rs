//! Checkpoints that are interrupted: by a kill at any time, by a full disk.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

const TRAIN: [&str; 9] = ["train", "mlp", "--batch", "16", "--epochs", "40", "--json", "--every", "1"];

/// Steps of the whole training: more than 50 runs get through before they are killed.
const STEPS: &str = "3000";

fn tensile(args: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensile"));
    command.args(TRAIN).args(["--checkpoint", folder.to_str().expect("a name in UTF-8")]).args(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Losses by step, of a run's lines.
fn losses(output: &[u8]) -> Vec<(u64, u64)> {
    let text = String::from_utf8_lossy(output);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss_bits"].as_u64()?))).collect()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tensile-saves-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on its being gone.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads a child's lines on a thread, so that it never waits for somebody to do so, and counts them.
struct Lines {
    count: Arc<AtomicUsize>,
    reader: JoinHandle<Vec<u8>>,
}

impl Lines {
    fn of(child: &mut Child) -> Self {
        let stdout = child.stdout.take().expect("it is piped");
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            for line in BufReader::new(stdout).split(b'\n') {
                // The last line may be cut short by the kill.
                let Ok(line) = line else { break };
                all.extend(line);
                all.push(b'\n');
                counter.fetch_add(1, Ordering::Relaxed);
            }
            all
        });
        Self { count, reader }
    }

    /// Waits for so many lines.
    fn wait_for(&self, lines: usize) {
        let began = Instant::now();
        while self.count.load(Ordering::Relaxed) < lines {
            assert!(began.elapsed() < Duration::from_secs(120), "it does nothing");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn all(self) -> Vec<u8> {
        self.reader.join().expect("the reader ends")
    }
}

/// Training that saves after each step is killed 50 times: what it left can always be gone on from, and all losses together are those of a run that nobody disturbed
/// (Lightning-AI/pytorch-lightning#688).
#[test]
fn c45_a_kill_never_destroys_the_checkpoint() {
    let (whole, killed) = (Folder::new("whole"), Folder::new("killed"));
    let output = tensile(&["--steps", STEPS], &whole.0).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = losses(&output.stdout);
    let checkpoint = killed.0.join("checkpoint.safetensors");
    let mut kills = 0;
    let mut draw = 12345u64;
    let check = |output: &[u8], begins_after: Option<u64>| {
        let got = losses(output);
        for (step, loss) in &got {
            assert_eq!(expected[*step as usize - 1], (*step, *loss), "step {step}");
        }
        if let (Some(first), Some(before)) = (got.first(), begins_after) {
            assert_eq!(first.0, before + 1, "it goes on where it was saved");
        }
        got.len()
    };
    while kills < 50 {
        let first = kills == 0;
        let budget = ["unlimited", "80%", "65%"][kills % 3];
        let resume: &[&str] = if first { &[] } else { &["--resume"] };
        let saved_steps = (!first).then(|| steps_in(&checkpoint));
        let args = [resume, &["--steps", STEPS, "--budget", budget]].concat();
        let mut child = tensile(&args, &killed.0).spawn().expect("it runs");
        let lines = Lines::of(&mut child);
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        lines.wait_for(1 + (draw >> 40) as usize % 8);
        std::thread::sleep(Duration::from_micros((draw >> 20) % 4000));
        child.kill().expect("it can be killed");
        child.wait().expect("it is gone");
        check(&lines.all(), saved_steps);
        kills += 1;
    }
    let before = steps_in(&checkpoint);
    let until = (before + 20).to_string();
    let output = tensile(&["--resume", "--steps", &until], &killed.0).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(check(&output.stdout, Some(before)), 20);
    let left: Vec<_> =
        std::fs::read_dir(&killed.0).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.len() == 1, "what was half written is cleared away: {left:?}");
}

/// Steps that a checkpoint holds.
fn steps_in(checkpoint: &Path) -> u64 {
    let metadata = tensile_core::checkpoint::load_metadata(checkpoint).expect("what a kill leaves can be read");
    metadata["step"].parse().expect("a number")
}

/// Dropout, batch norm, Adam and a learning rate that changes: ten steps, a save, and ten more in a new process leave what twenty steps leave, without a limit and within tight ones: losses, parameters,
/// moments, running statistics, counters (pytorch/torchtitan#1213).
#[test]
fn c43_nothing_is_lost_between_save_and_load() {
    let run = |folder: &Folder, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensile"));
        command.args(["train", "digit-cnn", "--batch", "128", "--schedule", "step:1:0.5", "--warmup", "3", "--json"]);
        command.args(["--checkpoint", folder.0.to_str().expect("a name in UTF-8")]).args(more);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (losses(&output.stdout), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let state = |folder: &Folder| {
        let path = folder.0.join("checkpoint.safetensors");
        let bytes = std::fs::read(&path).expect("it was saved");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("it is whole");
        let tensors: BTreeMap<String, Vec<u8>> =
            file.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
        (tensors, tensile_core::checkpoint::load_metadata(&path).expect("it is whole"))
    };
    let straight = Folder::new("straight");
    let (expected, _) = run(&straight, &["--steps", "20"]);
    for budget in ["unlimited", "50%", "30%"] {
        let halves = Folder::new(&format!("halves-{}", budget.trim_end_matches('%')));
        let (mut got, _) = run(&halves, &["--steps", "10", "--budget", budget]);
        let (rest, text) = run(&halves, &["--steps", "20", "--budget", budget, "--resume"]);
        got.extend(rest);
        assert_eq!(got, expected, "{budget}");
        let (is, should) = (state(&halves), state(&straight));
        assert_eq!(is.1, should.1, "{budget}: step, seed, position of the data");
        assert!(is.0 == should.0, "{budget}: tensors differ");
        if budget != "unlimited" {
            assert!(!text.contains("\"evictions\":0,"), "{budget} is tight: {text}");
        }
    }
}

/// A disk that is full: an error in one line, and the checkpoint before is there and can be gone on from.
#[test]
fn c45_a_full_disk_keeps_the_checkpoint() {
    let folder = Folder::new("full");
    let output = tensile(&["--steps", "3"], &folder.0).output().expect("it runs");
    assert!(output.status.success());
    let checkpoint = folder.0.join("checkpoint.safetensors");
    let good = std::fs::read(&checkpoint).expect("it was saved");
    // No file may be larger than a few KiB, which to a program looks much like a full disk. The signal that comes with it is ignored, so that writing fails.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let mut limited = Command::new("bash");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_tensile")]).args(TRAIN);
    limited.args(["--steps", "6", "--resume", "--checkpoint", folder.0.to_str().expect("a name in UTF-8")]);
    let output = limited.output().expect("bash is there");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.lines().count() == 1 && error.contains("cannot write") && error.contains("checkpoint"), "{error}");
    assert_eq!(std::fs::read(&checkpoint).expect("it is there"), good);
    let left = std::fs::read_dir(&folder.0).expect("a folder").count();
    assert_eq!(left, 1, "nothing half written is left");
    let output = tensile(&["--steps", "6", "--resume"], &folder.0).output().expect("it runs");
    assert!(output.status.success());
    assert_eq!(losses(&output.stdout).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 5, 6]);
}
