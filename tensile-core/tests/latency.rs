//! Learned latencies: what they make of samples, and the files they are kept in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tensile_core::checkpoint;
use tensile_core::conformance::cases;
use tensile_core::device::host::{HostDevice, HostOptions};
use tensile_core::exec::{CallArg, lower};
use tensile_core::latency::{
    Accuracy, Features, Latencies, LatencyError, Learned, Roofline, Sample, TrainOptions, split,
};
use tensile_core::op::add::Add;
use tensile_core::op::matmul::MatMul;
use tensile_core::op::relu::Relu;
use tensile_core::{Op, TensorType};
use tensile_sched::Nanos;

const ROOFLINE: Roofline = Roofline { flops_per_s: 50e9, bytes_per_s: 10e9, launch_s: 10e-6 };
const DEVICE: &str = "host (2 threads)";

fn quick() -> TrainOptions {
    TrainOptions { hidden: 24, steps: 800, batch: 64, ..TrainOptions::default() }
}

fn types(args: &[CallArg]) -> Vec<TensorType> {
    args.iter().map(|arg| arg.ty.clone()).collect()
}

/// Every op of the suite that has all kinds, on its types.
fn every_kind() -> Vec<(Op, Vec<TensorType>, Vec<TensorType>)> {
    let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
    let steps = cases().into_iter().map(|case| lower(&case.graph(), &device).unwrap());
    let calls = steps.flat_map(|step| step.calls);
    calls.map(|call| (call.op, types(&call.inputs), types(&call.outputs))).collect()
}

/// Products, sums and rectifiers of many sizes under two loads, on a device that is nothing like its roofline: small inner dimensions are slow, large tensors fall out of
/// a cache, launches take longer, and two jobs get in each other's way.
fn synthetic() -> Vec<Sample> {
    let mut samples = Vec::new();
    let sizes = [1, 3, 8, 24, 64, 160, 512, 1536];
    for (m, k) in sizes.into_iter().flat_map(|m| sizes.map(|k| (m, k))) {
        for n in [16, 48, 256, 1024] {
            let (a, b) = (TensorType::f32([m, k]), TensorType::f32([k, n]));
            add(&mut samples, MatMul::default().into(), vec![a, b], |cost| {
                20e3 + cost.0 / 50.0 * (1.0 + 40.0 / k as f64) + cost.1 / 5.0
            });
        }
    }
    for (rows, columns) in sizes.into_iter().flat_map(|rows| sizes.map(|columns| (rows, columns))) {
        let x = TensorType::f32([rows * 4, columns]);
        let slow = |bytes: f64| if bytes > 1e6 { 3.0 } else { 0.5 };
        add(&mut samples, Add.into(), vec![x.clone(), x.clone()], |cost| 4e3 + cost.1 / 10.0 * slow(cost.1));
        add(&mut samples, Relu.into(), vec![x], |cost| 3e3 + cost.1 / 10.0 * slow(cost.1) * 0.8);
    }
    samples
}

/// `time` gets floating-point operations and bytes.
fn add(samples: &mut Vec<Sample>, op: Op, inputs: Vec<TensorType>, time: impl Fn((f64, f64)) -> f64) {
    let outputs = op.def().infer(&inputs).unwrap();
    let cost = op.def().cost(&inputs, &outputs);
    for load in [1.0, 2.0] {
        let features = Features::new(&ROOFLINE, &op, &inputs, &outputs, load);
        samples.push(Sample { features, nanos: time((cost.flops, cost.bytes)) * (1.6 * load - 0.6) });
    }
}

fn errors(learned: &Learned, samples: &[Sample]) -> [Accuracy; 2] {
    let told = samples.iter().map(|sample| (learned.nanos(&sample.features), sample.nanos));
    let roofline = samples.iter().map(|sample| (sample.features.roofline, sample.nanos));
    [Accuracy::new(told).unwrap(), Accuracy::new(roofline).unwrap()]
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn features_of_every_kind_are_finite() {
    let mut kinds = BTreeSet::new();
    for (op, inputs, outputs) in every_kind() {
        kinds.insert(op.kind());
        for load in [f64::NAN, 0.0, 1.0, 2.0, 1e9] {
            let features = Features::new(&ROOFLINE, &op, &inputs, &outputs, load);
            assert!(features.values.iter().all(|value| value.is_finite()), "{op:?} {features:?}");
            assert!(features.roofline >= 1.0 && features.roofline.is_finite(), "{op:?} {features:?}");
        }
    }
    assert!(Op::KINDS.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

#[test]
fn what_is_learnt_beats_the_roofline_on_shapes_held_out() {
    let samples = synthetic();
    let [seen, held_out] = split(&samples, 5);
    assert!(held_out.len() * 10 > samples.len() && held_out.len() * 3 < samples.len(), "{}", held_out.len());
    // A shape is on one side, whatever the load.
    let shape = |sample: &Sample| format!("{} {:?}", sample.features.class, &sample.features.values[6..]);
    let shapes: BTreeSet<String> = seen.iter().map(shape).collect();
    assert!(held_out.iter().all(|sample| !shapes.contains(&shape(sample))));
    let learned = Learned::train(DEVICE, ROOFLINE, &seen, &quick(), |_| {}).unwrap();
    let [learned, roofline] = errors(&learned, &held_out);
    assert!(learned.median * 3.0 < roofline.median, "{learned:?} {roofline:?}");
    assert!(learned.p90 * 1.5 < roofline.p90, "{learned:?} {roofline:?}");
}

#[test]
fn equal_samples_give_equal_networks() {
    let samples = synthetic();
    let options = TrainOptions { steps: 60, ..quick() };
    let train = |options: &TrainOptions| Learned::train(DEVICE, ROOFLINE, &samples, options, |_| {}).unwrap();
    let first = train(&options);
    assert_eq!(train(&options), first);
    assert_ne!(train(&TrainOptions { seed: 2, ..options }), first);
}

#[test]
fn predictions_are_neither_zero_nor_endless_and_unknown_ops_take_the_rooflines_time() {
    let learned = Learned::train(DEVICE, ROOFLINE, &synthetic(), &quick(), |_| {}).unwrap();
    assert_eq!(learned.classes(), ["add", "matmul", "relu"]);
    for (op, inputs, outputs) in every_kind() {
        for load in [1.0, 2.0, 7.0, f64::INFINITY] {
            let time = learned.predict(&op, &inputs, &outputs, load);
            assert!(time > Nanos::ZERO && time.0 <= 1 << 40, "{op:?}: {time}");
            if !["add", "matmul", "relu"].contains(&op.def().name()) {
                assert_eq!(time, ROOFLINE.predict(&op, &inputs, &outputs, load), "{op:?}");
            }
        }
    }
    // Far beyond what was measured, the factor is one that was measured.
    let wide = [TensorType::f32([1 << 15, 1 << 15]), TensorType::f32([1 << 15, 1 << 15])];
    let (op, outputs) = (Op::from(MatMul::default()), [TensorType::f32([1 << 15, 1 << 15])]);
    let factor =
        learned.predict(&op, &wide, &outputs, 1.0).0 as f64 / ROOFLINE.predict(&op, &wide, &outputs, 1.0).0 as f64;
    assert!((0.2..20.0).contains(&factor), "{factor}");
}

#[test]
fn odd_samples_do_no_harm() {
    assert!(matches!(Learned::train(DEVICE, ROOFLINE, &[], &quick(), |_| {}), Err(LatencyError::NoSamples)));
    let mut samples = synthetic();
    samples.truncate(1);
    let told = |samples: &[Sample]| {
        let learned = Learned::train(DEVICE, ROOFLINE, samples, &TrainOptions { steps: 20, ..quick() }, |_| {})?;
        Ok::<f64, LatencyError>(learned.nanos(&samples[0].features))
    };
    let one = told(&samples).unwrap();
    assert!((one / samples[0].nanos - 1.0).abs() < 0.01, "{one} {}", samples[0].nanos);
    for nanos in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        samples.push(Sample { nanos, ..samples[0].clone() });
    }
    assert_eq!(told(&samples).unwrap(), one);
    assert!(matches!(told(&samples[1..]), Err(LatencyError::NoSamples)));
}

#[test]
fn what_is_saved_is_loaded_and_steps_are_planned_with_it() {
    let path = folder("latency-round").join("host.safetensors");
    let samples = synthetic();
    let [seen, held_out] = split(&samples, 5);
    let mut learned = Learned::train(DEVICE, ROOFLINE, &seen, &TrainOptions { steps: 50, ..quick() }, |_| {}).unwrap();
    learned.save(&path).unwrap();
    assert_eq!(Learned::load(&path, DEVICE).unwrap(), learned);
    let accuracy = learned.measure(&held_out).unwrap();
    learned.save(&path).unwrap();
    let loaded = Learned::load(&path, DEVICE).unwrap();
    assert_eq!(loaded, learned);
    assert_eq!(loaded.accuracy(), Some(accuracy));
    assert_eq!((loaded.device(), loaded.roofline()), (DEVICE, &ROOFLINE));
    let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
    let step = lower(&cases()[0].graph(), &device).unwrap();
    let told = step.with_latencies(&loaded, 2.0).unwrap();
    let [call, op] = [&told.calls[0], &step.calls[0]];
    assert_eq!(call.op.kind(), op.op.kind());
    let expected = learned.predict(&call.op, &types(&call.inputs), &types(&call.outputs), 2.0);
    assert_eq!(told.trace.ops()[0].latency, expected);
    assert_ne!(told.trace, step.trace);
}

#[test]
fn files_that_do_not_fit_are_refused_with_what_to_do() {
    let folder = folder("latency-refused");
    let path = folder.join("host.safetensors");
    let samples = synthetic();
    let learned = Learned::train(DEVICE, ROOFLINE, &samples, &TrainOptions { steps: 1, ..quick() }, |_| {}).unwrap();
    learned.save(&path).unwrap();
    let one_line = |error: &LatencyError, words: &[&str]| {
        let text = error.to_string();
        assert!(!text.contains('\n') && words.iter().all(|word| text.contains(word)), "{text}");
    };
    let error = Learned::load(&path, "gpu").unwrap_err();
    assert!(matches!(error, LatencyError::Device { .. }), "{error}");
    one_line(&error, &["'host (2 threads)'", "'gpu'", "`tensile profile`"]);
    assert!(matches!(Learned::load(&folder.join("none"), DEVICE), Err(LatencyError::File(_))));
    // Cut short, and other bytes.
    let whole = std::fs::read(&path).unwrap();
    let other = folder.join("other.safetensors");
    for bytes in [&whole[..whole.len() - 1], &whole[..9], b"", b"latencies"] {
        std::fs::write(&other, bytes).unwrap();
        let error = Learned::load(&other, DEVICE).unwrap_err();
        assert!(matches!(error, LatencyError::Contents { .. }), "{error}");
        one_line(&error, &["other.safetensors", "`tensile profile`"]);
    }
    // Of another format, of no format, and with something wrong in each place that is read.
    let metadata = checkpoint::load_metadata(&path).unwrap();
    let change = |name: &str, value: &str| {
        let mut metadata: BTreeMap<String, String> = metadata.clone();
        metadata.insert(name.to_owned(), value.to_owned());
        checkpoint::save(&other, &[], checkpoint::Contents::Model, &metadata).unwrap();
        Learned::load(&other, DEVICE).unwrap_err()
    };
    let error = change("version", "2");
    assert!(matches!(error, LatencyError::Version { .. }), "{error}");
    one_line(&error, &["format 2", "format 1", "`tensile profile`"]);
    let faults = [
        ("format", "pt"),
        ("flops_per_s", "0"),
        ("bytes_per_s", "NaN"),
        ("launch_s", "fast"),
        ("hidden", "0"),
        ("hidden", "99999999999"),
        ("classes", "relu\nadd"),
        ("held_out", "3"),
        ("device", DEVICE), // nothing wrong but that there are no tensors
    ];
    for (name, value) in faults {
        let error = change(name, value);
        assert!(matches!(error, LatencyError::Contents { .. }), "{name} = {value}: {error}");
        one_line(&error, &["other.safetensors", "`tensile profile`"]);
    }
    // A number that is none.
    let mut bytes = whole.clone();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&other, &bytes).unwrap();
    one_line(&Learned::load(&other, DEVICE).unwrap_err(), &["not finite", "`tensile profile`"]);
}
