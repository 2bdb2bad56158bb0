//! A synthetic training step of any length: a chain of layers with skip connections.

use tensile_sched::{Bytes, Nanos, Op, Role, Tensor, TensorId, Trace};

/// A step of about `n_ops` ops: a third of them forward (every fourth layer reads the output of the layer four before, too), a third backward, a third updates.
/// Sizes and times vary in a fixed pattern.
pub(super) fn chain(n_ops: usize) -> Trace {
    let n_layers = (n_ops / 3).max(1);
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut tensor = |bytes: u64, role: Role| {
        tensors.push(Tensor { name: format!("t{}", tensors.len()), bytes: Bytes(bytes), role, keep: false });
        TensorId::from_index(tensors.len() - 1)
    };
    let size = |layer: usize| (1 << 20) * (1 + (layer * 7 % 5) as u64);
    let time = |layer: usize| 40_000 + 10_000 * (layer * 11 % 13) as u64;
    let mut ops: Vec<Op> = Vec::new();
    let mut activations = vec![tensor(size(0), Role::Input)];
    let mut weights = Vec::new();
    for layer in 1..=n_layers {
        let weight = tensor(size(layer) / 8, Role::Parameter);
        let made = tensor(size(layer), Role::Activation);
        let mut reads = vec![activations[layer - 1], weight];
        reads.extend(skip(layer).map(|from| activations[from]));
        ops.push(op("forward", reads, vec![made], vec![], time(layer)));
        activations.push(made);
        weights.push(weight);
    }
    let mut gradient = tensor(size(n_layers), Role::Gradient);
    ops.push(op("loss", vec![activations[n_layers]], vec![gradient], vec![], 5_000));
    for layer in (1..=n_layers).rev() {
        let of_weight = tensor(size(layer) / 8, Role::Gradient);
        let below = tensor(size(layer - 1), Role::Gradient);
        let mut reads = vec![gradient, activations[layer - 1], weights[layer - 1]];
        reads.extend(skip(layer).map(|from| activations[from]));
        ops.push(op("backward", reads, vec![below, of_weight], vec![], 2 * time(layer)));
        ops.push(op("update", vec![of_weight], vec![], vec![weights[layer - 1]], 6_000));
        gradient = below;
    }
    Trace::new(tensors, ops).expect("a chain is a valid trace")
}

fn skip(layer: usize) -> Option<usize> {
    (layer.is_multiple_of(4) && layer > 4).then(|| layer - 4)
}

fn op(class: &str, reads: Vec<TensorId>, writes: Vec<TensorId>, updates: Vec<TensorId>, latency: u64) -> Op {
    Op {
        label: class.to_owned(),
        class: class.to_owned(),
        reads,
        writes,
        replayable: updates.is_empty(),
        updates,
        workspace: Bytes::ZERO,
        latency: Nanos(latency),
        in_place: vec![],
    }
}
