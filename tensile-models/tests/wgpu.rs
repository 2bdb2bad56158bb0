//! The wgpu device through the `tensile` command and the library.

use std::process::{Command, Output};

use serde_json::Value;
use tensile_core::Device;
use tensile_models::backend::{Backend, Choice};
use tensile_sched::Bytes;
use tensile_wgpu::{WgpuDevice, WgpuOptions};

fn tensile(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensile"));
    command.args(args);
    command
}

#[track_caller]
fn succeeds(mut command: Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}:\n{out}{err}", output.status);
    out.into_owned()
}

/// One line of an error that contains all of `words`.
#[track_caller]
fn fails(status: i32, output: &Output, words: &[&str]) {
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.starts_with("error: ") && !err.contains("panicked"), "{err}");
    for word in words {
        assert!(err.contains(word), "no '{word}' in: {err}");
    }
}

/// Whether there is an adapter; in CI there has to be one.
fn has_adapter() -> bool {
    let found = !tensile_wgpu::adapters().is_empty();
    assert!(found || std::env::var_os("CI").is_none(), "no adapter, and this is CI");
    if !found {
        skip();
    }
    found
}

#[expect(clippy::print_stderr, reason = "a skip is told")]
fn skip() {
    eprintln!("skipped: no adapter for wgpu");
}

fn reports(out: &str) -> (Vec<Value>, Value) {
    let mut lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.pop().unwrap();
    (lines, last)
}

#[test]
fn half_the_memory_gives_the_same_losses() {
    if !has_adapter() {
        return;
    }
    let job = ["train", "digit-cnn", "--batch", "32", "--steps", "3", "--json"];
    let wgpu = ["--backend", "wgpu", "--budget", "50%", "--compare"];
    let (lines, last) = reports(&succeeds(tensile(&[&job[..], &wgpu].concat())));
    assert_eq!(last["losses_equal"], true, "{last}");
    let [unlimited, limited] = last["reports"].as_array().unwrap().as_slice() else { panic!("two reports: {last}") };
    assert_eq!(unlimited["evictions"], 0);
    assert!(limited["evictions"].as_u64().unwrap() + limited["reruns"].as_u64().unwrap() > 0);
    let (peak, budget) = (limited["peak_bytes"].as_u64().unwrap(), limited["budget_bytes"].as_u64().unwrap());
    assert!(0 < peak && peak <= budget, "{limited}");
    assert!(unlimited["peak_bytes"].as_u64().unwrap() > budget);
    assert_eq!(limited["stall_ns"], Value::Null, "ops were not timed");
    let adapter = &limited["adapter"];
    assert!(adapter["name"].is_string() && adapter["driver"].is_string(), "{adapter}");
    assert!(adapter["kernels"].is_string(), "{adapter}");
    assert!(adapter["self_test"].as_str().unwrap().starts_with("passed"), "{adapter}");
    assert!(adapter["staging_bytes"].as_u64() <= Some(tensile_wgpu::MOST_STAGING.0), "{adapter}");
    // The host device computes the same, but for rounding.
    let (host, _) = reports(&succeeds(tensile(&job)));
    for (line, host) in lines.iter().zip(&host) {
        let (loss, host) = (line["loss"].as_f64().unwrap(), host["loss"].as_f64().unwrap());
        assert!((loss - host).abs() < 1e-3, "{loss} {host}");
    }
}

/// What reports call counted is wgpu's own figure, and it sees nothing but the run.
#[test]
fn device_bytes_are_counted_by_the_allocator() {
    if !has_adapter() {
        return;
    }
    let device = WgpuDevice::open(WgpuOptions::nominal()).unwrap();
    let before = device.begin_count();
    let allocated = device.allocated_bytes().expect("the backend tells");
    assert_eq!(before, allocated - device.staging_bytes());
    let arena = device.alloc_arena(3 << 20).unwrap();
    assert_eq!(device.allocated_bytes(), Some(allocated + Bytes(3 << 20)));
    assert_eq!(device.counted_bytes(before), Some(Bytes(3 << 20)));
    drop(arena);
}

/// The handwritten digits are learned, within half the memory and bit by bit as without a limit.
#[test]
fn digits_are_learned() {
    if !has_adapter() {
        return;
    }
    let job = ["train", "digit-cnn", "--epochs", "8", "--json", "--backend", "wgpu", "--budget", "50%", "--compare"];
    let (_, last) = reports(&succeeds(tensile(&job)));
    assert_eq!(last["losses_equal"], true, "{last}");
    for report in last["reports"].as_array().unwrap() {
        let accuracy = report["accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.97, "{accuracy} of the test digits are told right");
    }
}

#[test]
fn adapters_are_listed_and_chosen() {
    if !has_adapter() {
        return;
    }
    let info: Value = serde_json::from_str(&succeeds(tensile(&["info", "--json"]))).unwrap();
    let adapters = info["adapters"].as_array().unwrap();
    for (number, adapter) in adapters.iter().enumerate() {
        assert_eq!(adapter["number"], number);
        assert!(!adapter["self_test"].as_str().unwrap().is_empty(), "{adapter}");
        assert!(adapter["max_binding_bytes"].as_u64().unwrap() >= 128 << 20, "{adapter}");
    }
    let name = adapters[0]["name"].as_str().unwrap();
    assert!(succeeds(tensile(&["info"])).contains(name));
    let plan = ["plan", "mlp", "--backend", "wgpu", "--adapter"];
    succeeds(tensile(&[&plan[..], &["0"]].concat()));
    fails(1, &tensile(&[&plan[..], &["9999"]].concat()).output().unwrap(), &["number 9999", name]);
    fails(1, &tensile(&[&plan[..], &["no such name"]].concat()).output().unwrap(), &["no such name", name]);
    // The command line goes before the environment.
    let with_env = |args: &[&str], variable: &str, value: &str| {
        tensile(&[&["plan", "mlp", "--backend", "wgpu"], args].concat()).env(variable, value).output().unwrap()
    };
    fails(1, &with_env(&[], "WGPU_ADAPTER_NAME", "nobody"), &["nobody"]);
    assert!(with_env(&["--adapter", name], "WGPU_ADAPTER_NAME", "nobody").status.success());
    fails(1, &with_env(&[], "WGPU_POWER_PREF", "some"), &["WGPU_POWER_PREF=some"]);
}

#[test]
fn options_of_the_host_device_are_refused() {
    let output = tensile(&["plan", "mlp", "--backend", "wgpu", "--threads", "2"]).output().unwrap();
    fails(2, &output, &["--threads", "--backend cpu"]);
}

/// Case C51. Where there is no Vulkan, as on macOS, drivers cannot be hidden so.
#[cfg(target_os = "linux")]
mod without_drivers {
    use std::sync::Arc;

    use tensile_models::backend::{Name, OpenError, OpenOptions, Visitor};
    use tensile_wgpu::AdapterError;

    use super::*;

    fn hide(mut command: Command) -> Command {
        command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
        command
    }

    #[test]
    fn the_command_says_what_to_do() {
        let wgpu = ["train", "mlp", "--steps", "1", "--backend", "wgpu"];
        fails(1, &hide(tensile(&wgpu)).output().unwrap(), &["no adapter", "Install", "--backend cpu"]);
        succeeds(hide(tensile(&["train", "mlp", "--steps", "1", "--backend", "cpu"])));
        assert!(succeeds(hide(tensile(&["info"]))).contains("no driver"));
    }

    struct Nothing;

    impl Visitor for Nothing {
        type Output = ();

        fn visit<D: Backend>(self, _: Arc<D>) {}
    }

    /// In a process of its own, which has no drivers from its start.
    #[test]
    fn the_library_gives_a_typed_error() {
        const HIDDEN: &str = "TENSILE_TEST_DRIVERS_HIDDEN";
        if std::env::var_os(HIDDEN).is_none() {
            let mut own = Command::new(std::env::current_exe().unwrap());
            own.args(["--exact", "without_drivers::the_library_gives_a_typed_error"]).env(HIDDEN, "1");
            assert!(succeeds(hide(own)).contains("1 passed"));
            return;
        }
        let choice = Choice { backend: Name::Wgpu, ..Choice::default() };
        let opened = choice.open(OpenOptions::default(), Nothing);
        let no_driver = tensile_wgpu::OpenError::Adapter(AdapterError::NoDriver);
        assert!(matches!(&opened, Err(OpenError::Wgpu(error)) if *error == no_driver), "{opened:?}");
    }
}
