//! Models of the zoo: sizes of the published ones, and loading their files.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use common::{device, limits, network};
use safetensors::tensor::{Dtype, TensorView};
use tensile_core::device::host::{Emulation, HostDevice};
use tensile_core::exec::{ExecutorOptions, PersistentValue};
use tensile_core::graph::{Graph, Value};
use tensile_core::nn::{Mode, Net};
use tensile_core::optim::Optimizer;
use tensile_models::job::{Job, Recipe};
use tensile_models::trainer::Trainer;
use tensile_models::zoo::Task;
use tensile_sched::baseline::NoEviction;
use tensile_sched::{Bytes, Role};

/// Elements of the parameters whose name begins so, from the graph alone.
fn n_parameters(model: &str, settings: &[(&str, f64)], prefix: &str) -> usize {
    let network = network(model, settings);
    let batch = if matches!(network.task(), Task::Nodes { .. }) { 1 } else { 2 };
    let mut graph = Graph::new();
    let inputs: Vec<Value> =
        network.task().fields().iter().map(|field| graph.input(field.name, field.batched(batch)).unwrap()).collect();
    let logits = network.forward(&mut Net::new(&mut graph, Mode::Train), &inputs).unwrap();
    assert_eq!(graph.dims(logits), [batch * network.task().labels().shape.numel(), network.classes()]);
    graph
        .persistents()
        .filter(|(p, _)| p.role == Role::Parameter && p.name.starts_with(prefix))
        .map(|(p, _)| p.ty.numel())
        .sum()
}

#[test]
fn parameter_counts_are_the_published_ones() {
    for (model, expected) in [
        ("vgg16", 138_357_544),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("inception-v3", 23_834_568),
        ("inception-v4", 42_679_816),
        ("densenet121", 7_978_856),
        ("gpt2-small", 124_439_808),
    ] {
        assert_eq!(n_parameters(model, &[], ""), expected, "{model}");
    }
    // Embeddings, encoder and pooler.
    assert_eq!(n_parameters("bert-base", &[("pooler", 1.0)], "bert."), 109_482_240);
    // Kipf and Welling's two layers on the karate club: 34·16 + 16 and 16·2 + 2.
    assert_eq!(n_parameters("gcn", &[], ""), 594);
}

fn trainer(model: &str, settings: &[(&str, f64)], seed: u64) -> Trainer<'static, HostDevice> {
    let device = device(2, Emulation::default());
    let recipe = Recipe::new(2, Optimizer::sgd(0.0));
    let job = Job::new(&network(model, settings), recipe, &*device).unwrap();
    let limits = limits(&device, Bytes::MAX);
    Trainer::new(Arc::clone(&device), job, &NoEviction, limits, ExecutorOptions::default(), seed).unwrap()
}

/// Parameters and buffers of a new model.
fn state(trainer: &mut Trainer<'_, HostDevice>) -> Vec<PersistentValue> {
    let mut state = trainer.executor().state().unwrap();
    state.retain(|value| matches!(value.persistent.role, Role::Parameter | Role::Buffer));
    state
}

/// A file as another program writes it, removed at the end.
struct Published(PathBuf);

impl Published {
    /// With the tensors of a model under other names (none: left out), and tensors of zeros.
    fn new(
        test: &str,
        state: &[PersistentValue],
        rename: impl Fn(&str) -> Option<String>,
        more: &[(&str, Dtype, &[usize])],
    ) -> Self {
        let zeros = vec![0; 1 << 10];
        let mut tensors = BTreeMap::new();
        for PersistentValue { persistent, bytes } in state {
            let dtype = if persistent.role == Role::Buffer && persistent.ty.dims().is_empty() {
                Dtype::I32
            } else {
                Dtype::F32
            };
            if let Some(name) = rename(&persistent.name) {
                tensors.insert(name, TensorView::new(dtype, persistent.ty.dims().to_vec(), bytes).unwrap());
            }
        }
        for &(name, dtype, shape) in more {
            let n_bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            tensors.insert(name.to_owned(), TensorView::new(dtype, shape.to_vec(), &zeros[..n_bytes]).unwrap());
        }
        let path = std::env::temp_dir().join(format!("tensile-zoo-{}-{test}.safetensors", std::process::id()));
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        Self(path)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A model with other parameters loads the file, and has the values from there.
#[track_caller]
fn loads(file: &Published, model: &str, settings: &[(&str, f64)], expected: &[PersistentValue]) {
    let mut other = trainer(model, settings, 2);
    assert!(state(&mut other) != expected);
    other.load(&file.0).unwrap();
    assert!(state(&mut other) == expected, "{model} has other values than the file");
}

const SMALL: [(&str, f64); 5] = [("layers", 2.0), ("heads", 2.0), ("width", 8.0), ("context", 4.0), ("vocab", 11.0)];

#[test]
fn files_of_torchvision_load_by_name() {
    let settings = [("size", 75.0), ("classes", 3.0)];
    let state = state(&mut trainer("inception-v3", &settings, 1));
    let auxiliary: [(&str, Dtype, &[usize]); 2] =
        [("AuxLogits.fc.weight", Dtype::F32, &[3, 5]), ("AuxLogits.conv0.bn.num_batches_tracked", Dtype::I64, &[])];
    let file = Published::new("torchvision", &state, |name| Some(name.to_owned()), &auxiliary);
    loads(&file, "inception-v3", &settings, &state);
}

#[test]
fn files_of_gpt2_load_with_and_without_their_prefix() {
    let state = state(&mut trainer("gpt-bytes", &SMALL, 1));
    let masks: [(&str, Dtype, &[usize]); 2] =
        [("h.0.attn.bias", Dtype::U8, &[1, 1, 4, 4]), ("h.1.attn.masked_bias", Dtype::F32, &[])];
    let bare = |name: &str| Some(name.strip_prefix("transformer.").unwrap().to_owned());
    loads(&Published::new("gpt2-bare", &state, bare, &masks), "gpt-bytes", &SMALL, &state);
    let head: [(&str, Dtype, &[usize]); 2] =
        [("lm_head.weight", Dtype::F32, &[11, 8]), ("transformer.h.0.attn.bias", Dtype::U8, &[1, 1, 4, 4])];
    let whole = |name: &str| Some(name.to_owned());
    loads(&Published::new("gpt2-whole", &state, whole, &head), "gpt-bytes", &SMALL, &state);
}

#[test]
fn files_of_bert_load_with_old_names_and_other_heads() {
    let mut settings = [("mask", 3.0); 6];
    settings[..5].copy_from_slice(&SMALL);
    let state = state(&mut trainer("bert-bytes", &settings, 1));
    let old = |name: &str| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        Some(name.strip_prefix("bert.").unwrap_or(&name).to_owned())
    };
    let more: [(&str, Dtype, &[usize]); 4] = [
        ("bert.pooler.dense.weight", Dtype::F32, &[8, 8]),
        ("cls.predictions.decoder.weight", Dtype::F32, &[11, 8]),
        ("cls.seq_relationship.bias", Dtype::F32, &[2]),
        ("embeddings.position_ids", Dtype::I64, &[1, 4]),
    ];
    loads(&Published::new("bert", &state, old, &more), "bert-bytes", &settings, &state);
}

#[test]
fn pooler_is_loaded_where_there_is_one() {
    let mut settings = [("mask", 3.0), ("pooler", 1.0)].to_vec();
    settings.extend(SMALL);
    let state = state(&mut trainer("bert-bytes", &settings, 1));
    assert!(state.iter().any(|value| value.persistent.name == "bert.pooler.dense.bias"));
    let bare = |name: &str| Some(name.strip_prefix("bert.").unwrap_or(name).to_owned());
    loads(&Published::new("pooler", &state, bare, &[]), "bert-bytes", &settings, &state);
}

#[test]
fn a_file_of_another_model_is_refused_with_all_differences() {
    let mut trainer = trainer("gpt-bytes", &SMALL, 1);
    let before = state(&mut trainer);
    let rename = |name: &str| match name {
        "transformer.wpe.weight" | "transformer.ln_f.bias" => None,
        "transformer.h.1.ln_1.weight" => Some("transformer.h.2.ln_1.weight".to_owned()),
        name => Some(name.to_owned()),
    };
    let file = Published::new("other", &before, rename, &[("transformer.wpe.weight", Dtype::F32, &[5, 8])]);
    let error = trainer.load(&file.0).unwrap_err().to_string();
    for part in [
        "missing transformer.h.1.ln_1.weight, transformer.ln_f.bias",
        "unexpected transformer.h.2.ln_1.weight",
        "transformer.wpe.weight is f32[4, 8] in the model and f32[5, 8] in the file",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(state(&mut trainer) == before, "a refused file changes nothing");
}

#[test]
fn sizes_that_do_not_go_together_are_refused() {
    let make = |model: &str, settings: &[(&str, f64)]| {
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        tensile_models::zoo::find(model).unwrap().network(&settings).unwrap_err().to_string()
    };
    assert_eq!(make("gpt2-small", &[("heads", 7.0)]), "gpt2-small: width 768 is not a multiple of 7 heads; try 770");
    let error = make("gpt2-small", &[("context", 2048.0)]);
    assert_eq!(error, "gpt2-small: context 2048 is longer than the 1024 positions there are embeddings for");
    assert_eq!(make("bert-bytes", &[("vocab", 256.0)]), "bert-bytes: mask 256 is not among the tokens 0 to 255");
}
