//! A graph convolutional network of two layers (Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", 2016), with the
//! names of PyTorch Geometric's `GCNConv`.

use std::sync::Arc;

use tensile_core::graph::{GraphError, Init, Value};
use tensile_core::nn::Net;

use super::{Made, Network, Setting, Settings, Task};

/// Settings of a network for Zachary's karate club: 34 nodes told apart by their number, 78 edges both ways and one from each node to itself.
pub(super) const KARATE: &[Setting] = &[
    Setting::count("nodes", 34, [1, 1 << 24]),
    Setting::count("features", 34, [1, 1 << 20]),
    Setting::count("edges", 190, [1, 1 << 28]),
    Setting::count("classes", 2, [1, 1 << 16]),
    Setting::count("width", 16, [1, 1 << 16]),
    Setting::probability("dropout", 0.5),
];

#[derive(Debug)]
struct Gcn {
    settings: Settings,
}

/// A network of these sizes.
pub(super) fn network(settings: &Settings) -> Made {
    Ok(Arc::new(Gcn { settings: settings.clone() }))
}

impl Network for Gcn {
    fn task(&self) -> Task {
        let [nodes, features, edges] = ["nodes", "features", "edges"].map(|name| self.settings.count(name));
        Task::Nodes { nodes, features, edges }
    }

    fn classes(&self) -> usize {
        self.settings.count("classes")
    }

    fn forward(&self, net: &mut Net<'_>, inputs: &[Value]) -> Result<Value, GraphError> {
        let [nodes, features, edges] = ["nodes", "features", "edges"].map(|name| self.settings.count(name));
        // A graph is one sample: another batch than 1 is refused here.
        let x = net.graph().reshape(inputs[0], [nodes, features])?;
        let edges = Edges {
            sources: net.graph().reshape(inputs[1], [edges])?,
            targets: net.graph().reshape(inputs[2], [edges])?,
            weights: net.graph().reshape(inputs[3], [edges, 1])?,
        };
        let dropout = self.settings.number("dropout") as f32;
        let x = net.dropout(x, dropout)?;
        let x = convolution(net, "conv1", x, &edges, self.settings.count("width"))?;
        let x = net.graph().relu(x)?;
        let x = net.dropout(x, dropout)?;
        convolution(net, "conv2", x, &edges, self.classes())
    }
}

/// A sparse matrix of nodes by nodes: entry (target, source) is the weight.
struct Edges {
    sources: Value,
    targets: Value,
    weights: Value,
}

/// A·X·Wᵀ + b for x f32[nodes, in] and the matrix A of edges: `lin.weight` [out, in] (Glorot and Bengio, 2010: uniform within ±√(6/(in + out))) and `bias` [out] (0).
fn convolution(
    net: &mut Net<'_>,
    name: &str,
    x: Value,
    edges: &Edges,
    out_features: usize,
) -> Result<Value, GraphError> {
    net.graph().scoped(name, |graph| {
        let [nodes, in_features] = [0, 1].map(|axis| graph.dims(x)[axis]);
        let bound = (6.0 / (in_features + out_features) as f64).sqrt() as f32;
        let weight = graph.parameter("lin.weight", [out_features, in_features], Init::Uniform { bound })?;
        let bias = graph.parameter("bias", [out_features], Init::Constant(0.0))?;
        let x = graph.linear(x, weight, None)?;
        let messages = graph.embedding(x, edges.sources)?;
        let messages = graph.mul(messages, edges.weights)?;
        let sums = graph.scatter_add(messages, edges.targets, nodes)?;
        graph.add(sums, bias)
    })
}
