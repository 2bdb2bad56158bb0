//! Models of the zoo: sizes of the published ones.

mod common;

use common::network;
use tensile_core::graph::{Graph, Value};
use tensile_core::nn::{Mode, Net};
use tensile_models::zoo::Task;
use tensile_sched::Role;

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
