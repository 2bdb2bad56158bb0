//! `tensile run`: several jobs within one budget, as a user sees them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A folder of this test's own, empty at first.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn file(folder: &Path, text: &str) -> String {
    let path = folder.join("jobs.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn tensile(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tensile")).args(args).output().unwrap()
}

fn lines(out: &[u8]) -> Vec<Value> {
    let json = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("'{line}': {error}"));
    String::from_utf8_lossy(out).lines().map(json).collect()
}

#[track_caller]
fn succeeds(args: &[&str]) -> Vec<Value> {
    let output = tensile(args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tensile {args:?} ended with {}:\n{err}", output.status);
    lines(&output.stdout)
}

/// The command ends with status 1 and says so many lines; gives them, and standard output.
#[track_caller]
fn fails(args: &[&str], n_lines: usize) -> (String, Vec<u8>) {
    let output = tensile(args);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "tensile {args:?}: {err}");
    assert_eq!(err.lines().count(), n_lines, "tensile {args:?}:\n{err}");
    assert!(err.lines().all(|line| line.starts_with("error: ")) && !err.contains("panicked"), "{err}");
    (err, output.stdout)
}

/// Step and bits of the loss of each training step of each job.
fn losses(lines: &[Value]) -> BTreeMap<String, Vec<(u64, u64)>> {
    let mut losses: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line["loss_bits"].is_u64()) {
        let step = (line["step"].as_u64().unwrap(), line["loss_bits"].as_u64().unwrap());
        losses.entry(line["job"].as_str().unwrap_or("").to_owned()).or_default().push(step);
    }
    losses
}

/// Losses of the same training alone, without a limit.
fn alone(args: &[&str]) -> Vec<(u64, u64)> {
    losses(&succeeds(&[&["train", "--json"], args].concat())).remove("").unwrap()
}

/// The last line of the report: jobs by name, and the whole.
fn report(lines: &[Value]) -> (BTreeMap<&str, &Value>, &Value) {
    let last = lines.last().unwrap();
    let jobs = last["jobs"].as_array().unwrap();
    (jobs.iter().map(|job| (job["job"].as_str().unwrap(), job)).collect(), last)
}

const THREE: &str = r#"
budget = "60%"

[[job]]
model = "digit-cnn"
epochs = 2
last-batch = "partial"

[[job]]
name = "wide"
model = "digit-cnn"
batch = 96
steps = 25
seed = 3
weight = 2

[[job]]
name = "texts"
model = "gpt-bytes"
set = { layers = 1, width = 32, context = 64 }
batch = 16
buckets = [32, 64]
steps = 30
optimizer = "adamw"
"#;

const TEXTS: [&str; 11] = [
    "gpt-bytes",
    "--set",
    "layers=1,width=32,context=64",
    "--batch",
    "16",
    "--buckets",
    "32,64",
    "--steps",
    "30",
    "--optimizer",
    "adamw",
];

#[test]
fn three_jobs_within_sixty_per_cent_of_their_memory_have_the_bits_they_have_alone() {
    let folder = folder("three");
    let page = folder.join("report.html");
    let jobs = file(&folder, THREE);
    let lines = succeeds(&["run", &jobs, "--json", "--report", page.to_str().unwrap()]);
    let losses = losses(&lines);
    assert_eq!(losses["digit-cnn"], alone(&["digit-cnn", "--epochs", "2", "--last-batch", "partial"]));
    assert_eq!(losses["wide"], alone(&["digit-cnn", "--batch", "96", "--steps", "25", "--seed", "3"]));
    assert_eq!(losses["texts"], alone(&TEXTS));
    let (jobs, all) = report(&lines);
    assert!(jobs.values().all(|job| job["done"] == true), "{all}");
    let bytes = |of: &Value| of.as_u64().unwrap();
    assert!(bytes(&all["peak_bytes"]) <= bytes(&all["budget_bytes"]), "{all}");
    assert!(bytes(&all["budget_bytes"]) * 10 <= bytes(&all["full_bytes"]) * 6, "{all}");
    // Side by side: the shares in the middle of it are less than what each takes without a limit.
    assert!(jobs.values().any(|job| job["smallest_share_bytes"].as_u64() < job["full_bytes"].as_u64()), "{all}");
    let evictions = |job: &Value| job["evictions"].as_u64().unwrap_or(0) + job["reruns"].as_u64().unwrap_or(0);
    assert!(jobs.values().any(|job| evictions(job) > 0), "{all}");
    assert_eq!(
        jobs["digit-cnn"]["accuracy"],
        lines.iter().rfind(|line| line["job"] == "digit-cnn" && line["accuracy"].is_f64()).unwrap()["accuracy"]
    );

    let page = std::fs::read_to_string(page).unwrap();
    for words in ["<h2>All jobs</h2>", "<h2>wide</h2>", "admitted with", "One step, measured", "Largest tensors"] {
        assert!(page.contains(words), "no {words}");
    }
    assert!(page.len() < 2 << 20);
}

#[test]
fn two_jobs_one_after_the_other_or_together() {
    let folder = folder("two");
    let text = "[[job]]\nname = \"first\"\nmodel = \"mlp\"\nsteps = 40\n\n[[job]]\nmodel = \"mlp\"\nname = \"second\"\nsteps = 40\nseed = 2\n";
    let expected = [alone(&["mlp", "--steps", "40"]), alone(&["mlp", "--steps", "40", "--seed", "2"])];
    for (more, budget) in [("after = \"first\"\n", "60%"), ("arrival = \"100ms\"\n", "60%"), ("", "unlimited")] {
        let jobs = file(&folder, &format!("{text}{more}"));
        let lines = succeeds(&["run", &jobs, "--json", "--budget", budget]);
        let losses = losses(&lines);
        assert_eq!([&losses["first"], &losses["second"]], [&expected[0], &expected[1]], "{more}");
        let when = |job: &str, event: &str| {
            let found = lines
                .iter()
                .find(|line| line["job"] == job && line["event"].as_str().is_some_and(|e| e.starts_with(event)));
            found.unwrap()["time_ns"].as_u64().unwrap()
        };
        if more.starts_with("after") {
            assert!(when("second", "arrived") >= when("first", "done"));
        }
        if more.starts_with("arrival") {
            assert!(when("second", "arrived") >= 100_000_000);
        }
    }
    // What the file says at the top counts less than the command line.
    let jobs = file(&folder, &format!("budget = \"1KiB\"\njson = true\n{text}"));
    assert_eq!(losses(&succeeds(&["run", &jobs, "--budget", "70%"])).len(), 2);
    let plain = tensile(&["run", &file(&folder, text)]);
    let plain = String::from_utf8_lossy(&plain.stdout).into_owned();
    for words in ["2 jobs: without a limit", "first: admitted with", "test accuracy", "peak on the device (counted)"] {
        assert!(plain.contains(words), "no '{words}' in:\n{plain}");
    }
}

#[test]
fn a_job_that_does_not_fit_is_refused_with_figures_and_others_go_on() {
    let folder = folder("refused");
    let text = "[[job]]\nmodel = \"digit-cnn\"\nsteps = 60\n\n[[job]]\nname = \"late\"\nmodel = \"digit-cnn\"\nbatch = 512\narrival = \"300ms\"\nadmission = \"refuse\"\n";
    let jobs = file(&folder, text);
    let (err, out) = fails(&["run", &jobs, "--json", "--budget", "4MiB"], 1);
    for words in ["job 'late'", "floor", "MiB"] {
        assert!(err.contains(words), "no '{words}' in: {err}");
    }
    assert_eq!(losses(&lines(&out))["digit-cnn"], alone(&["digit-cnn", "--steps", "60"]));
}

#[test]
fn a_job_that_fails_is_told_in_one_line_and_harms_nobody() {
    let folder = folder("failing");
    let jobs = "[[job]]\nname = \"wild\"\nmodel = \"mlp\"\nlr = 1e30\nnonfinite = \"stop\"\n\n[[job]]\nmodel = \"mlp\"\nsteps = 30\n";
    let (err, out) = fails(&["run", &file(&folder, jobs), "--json", "--budget", "70%"], 1);
    for words in ["job 'wild'", "step 2", "loss is"] {
        assert!(err.contains(words), "no '{words}' in: {err}");
    }
    let out = lines(&out);
    assert_eq!(losses(&out)["mlp"], alone(&["mlp", "--steps", "30"]));
    let (jobs, _) = report(&out);
    assert_eq!((&jobs["wild"]["done"], &jobs["mlp"]["done"]), (&Value::Bool(false), &Value::Bool(true)));
}

#[test]
fn a_job_that_cannot_go_on_from_its_checkpoint_harms_nobody() {
    let folder = folder("resume");
    let jobs = |seed: u64| {
        let text = format!(
            "[[job]]\nname = \"first\"\nmodel = \"mlp\"\nsteps = 5\nseed = {seed}\n\n[[job]]\nname = \"second\"\nmodel = \"mlp\"\nsteps = 9\n"
        );
        file(&folder, &text)
    };
    let saves = folder.join("saves");
    let saves = saves.to_str().unwrap();
    let before = succeeds(&["run", &jobs(1), "--json", "--checkpoint", saves]);
    std::fs::remove_dir_all(Path::new(saves).join("second")).unwrap();
    let (err, out) = fails(&["run", &jobs(2), "--json", "--checkpoint", saves, "--resume"], 1);
    for words in ["job 'first'", "cannot resume", "--seed 1, not 2"] {
        assert!(err.contains(words), "no '{words}' in: {err}");
    }
    let after = losses(&lines(&out));
    assert!(!after.contains_key("first"));
    assert_eq!(after["second"], losses(&before)["second"]);
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_line() {
    let folder = folder("faults");
    let fault = |text: &str, words: &[&str]| {
        let (err, _) = fails(&["run", &file(&folder, text)], 1);
        for word in words.iter().chain(&["jobs.toml"]) {
            assert!(err.contains(word), "no '{word}' in: {err}");
        }
    };
    fault("", &["line 1", "[[job]]"]);
    fault("[[job]]\nmodel = \"mlp\"\nlearning-rate = 1", &["line 3", "'learning-rate'", "lr, "]);
    fault("[[job]]\nmodel = \"mlp\"\n\n[[job]]\nmodel = \"mpl\"", &["line 4", "'mpl'", "mlp, lenet"]);
    fault("budget = \"lots\"\n[[job]]\nmodel = \"mlp\"", &["'lots'", "2GiB"]);
    fault("[[job]]\nmodel = \"mlp\"\nlr = 0", &["line 1", "--lr 0", "above zero"]);
    fault("[[job]]\nmodel = \"mlp\"\ndata = \"/no/such/file\"", &["line 1", "/no/such/file"]);
    let (err, _) = fails(&["run", "/no/such/jobs.toml"], 1);
    assert!(err.contains("/no/such/jobs.toml"), "{err}");
}

/// The process is interrupted in the middle, and goes on later.
#[cfg(unix)]
#[test]
fn c41_interrupted_jobs_are_saved_and_go_on_bit_by_bit() {
    let folder = folder("interrupted");
    let text = "[[job]]\nmodel = \"digit-cnn\"\nepochs = 2\n\n[[job]]\nname = \"second\"\nmodel = \"mlp\"\nepochs = 12\nseed = 5\n";
    let jobs = file(&folder, text);
    let saves = folder.join("saves");
    let args = ["run", &jobs, "--json", "--budget", "70%", "--checkpoint", saves.to_str().unwrap(), "--resume"];
    let mut all: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    let mut n_interrupted = 0;
    for wanted in [5, 11, usize::MAX] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tensile"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = Vec::new();
        let mut steps = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            steps += usize::from(line.contains("\"digit-cnn\"") && line.contains("loss_bits"));
            if steps == wanted && line.contains("\"digit-cnn\"") && line.contains("loss_bits") {
                let kill = format!("kill -INT {}", child.id());
                assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
            }
            out.extend_from_slice(line.as_bytes());
            out.push(b'\n');
        }
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        if wanted < usize::MAX {
            assert_eq!(output.status.code(), Some(1), "{err}");
            assert!(err.starts_with("error: interrupted") && err.contains("--resume"), "{err}");
            assert_eq!(err.lines().count(), 1, "{err}");
            n_interrupted += 1;
        } else {
            assert!(output.status.success(), "{err}");
        }
        for (job, steps) in losses(&lines(&out)) {
            all.entry(job).or_default().extend(steps);
        }
    }
    assert_eq!(n_interrupted, 2);
    assert_eq!(all["digit-cnn"], alone(&["digit-cnn", "--epochs", "2"]));
    assert_eq!(all["second"], alone(&["mlp", "--epochs", "12", "--seed", "5"]));
    // All is done; nothing is left to do.
    assert_eq!(losses(&succeeds(&args)).len(), 0);
}
