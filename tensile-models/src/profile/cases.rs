//! Which ops on which shapes are measured.

use std::collections::{BTreeMap, BTreeSet};

use tensile_core::exec::{Step, lower};
use tensile_core::latency::{Features, Roofline};
use tensile_core::optim::Optimizer;
use tensile_core::random::{philox4x32, words};
use tensile_core::{Device, GraphError, Op, TensorType};
use tensile_sched::Bytes;

use super::nets;
use crate::job::{Job, Recipe};
use crate::zoo;

/// An op on certain types.
#[derive(Clone, Debug)]
pub struct Case {
    /// The op and its attributes.
    pub op: Op,
    /// In the op's order, updated ones included.
    pub inputs: Vec<TensorType>,
    /// In the op's order.
    pub outputs: Vec<TensorType>,
    /// Scratch that the device's kernel needs.
    pub workspace: Bytes,
    /// What the roofline says of it, alone on the device.
    pub features: Features,
}

/// A model's name, settings and batch sizes.
type Taken = (&'static str, &'static [(&'static str, f64)], &'static [usize]);

/// Models whose steps are taken apart: small enough for the slowest device to get through, of all kinds.
const MODELS: &[Taken] = &[
    ("mlp", &[], &[16, 256]),
    ("lenet", &[], &[8, 64]),
    ("digit-cnn", &[], &[16, 64]),
    ("vgg16", &[("size", 32.0), ("classes", 10.0)], &[1, 8]),
    ("vgg16", &[("size", 64.0), ("classes", 100.0)], &[4]),
    ("resnet18", &[("size", 32.0), ("classes", 10.0)], &[4, 32]),
    ("resnet18", &[("size", 96.0), ("classes", 100.0)], &[8]),
    ("resnet50", &[("size", 64.0)], &[2, 8]),
    ("resnet50", &[("size", 128.0)], &[2]),
    ("inception-v3", &[("size", 107.0), ("classes", 100.0)], &[1, 4]),
    ("inception-v4", &[("size", 107.0), ("classes", 100.0)], &[2]),
    ("densenet121", &[("size", 64.0)], &[2, 8]),
    ("gpt-bytes", &[], &[2, 16]),
    ("bert-bytes", &[], &[4, 16]),
    ("gcn", &[], &[1]),
];

/// Ops of each kind that come first, so that a short measurement knows all kinds.
const OF_EACH: usize = 6;

/// Distinct ops, in the order in which they are best measured: a few of every kind first, then in random order. They are those of the zoo's steps and those of
/// small networks of drawn sizes. Ops that a device lacks, and those that take longer than `most_ns` by its rates, are left out. Equal devices give equal cases.
///
/// # Errors
/// [`GraphError`] if a network cannot be built: a bug.
pub fn cases<D: Device>(device: &D, most_ns: f64) -> Result<Vec<Case>, GraphError> {
    let roofline = Roofline::new(device.info());
    let optimizers = [Optimizer::adam(), Optimizer::sgd(0.9), Optimizer::adamw(0.01).with_clip_norm(1.0)];
    let mut gathered = Gathered { roofline, most_ns, known: BTreeSet::new(), classes: BTreeMap::new() };
    let mut turn = optimizers.iter().cycle();
    for (name, settings, batches) in MODELS {
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let network = zoo::find(name).and_then(|model| model.network(&settings).ok());
        let Some(network) = network else { continue };
        for (&batch, optimizer) in batches.iter().zip(&mut turn) {
            match Job::new(&network, Recipe::new(batch, optimizer.clone()), device) {
                Ok(job) => [&job.train, &job.eval].into_iter().for_each(|step| gathered.add(step)),
                // A device that lacks an op of a model is measured on the others.
                Err(GraphError::Device { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    for (graph, optimizer) in nets::graphs().zip(&mut turn) {
        match lower(&graph(optimizer)?, device) {
            Ok(step) => gathered.add(&step),
            Err(GraphError::Device { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(gathered.in_order())
}

struct Gathered {
    roofline: Roofline,
    most_ns: f64,
    /// What the network would see as the same.
    known: BTreeSet<(&'static str, Vec<u64>)>,
    classes: BTreeMap<&'static str, Vec<Case>>,
}

impl Gathered {
    fn add(&mut self, step: &Step) {
        for (call, op) in step.calls.iter().zip(step.trace.ops()) {
            let types = |args: &[tensile_core::exec::CallArg]| args.iter().map(|arg| arg.ty.clone()).collect();
            let (inputs, outputs): (Vec<TensorType>, Vec<TensorType>) = (types(&call.inputs), types(&call.outputs));
            let features = Features::new(&self.roofline, &call.op, &inputs, &outputs, 1.0);
            let bits = features.values.iter().map(|value| value.to_bits()).collect();
            if features.roofline <= self.most_ns && self.known.insert((features.class, bits)) {
                let class = self.classes.entry(features.class).or_default();
                class.push(Case { op: call.op.clone(), inputs, outputs, workspace: op.workspace, features });
            }
        }
    }

    fn in_order(self) -> Vec<Case> {
        let mut keyed: Vec<(usize, u32, Case)> = Vec::new();
        let random = |index: usize, class: usize| philox4x32([index as u32, class as u32, 0, 0], words(1))[0];
        for (class, (_, mut cases)) in self.classes.into_iter().enumerate() {
            let mut order: Vec<(u32, usize)> = (0..cases.len()).map(|index| (random(index, class), index)).collect();
            order.sort_unstable();
            let mut places = vec![0; cases.len()];
            order.iter().enumerate().for_each(|(place, &(_, index))| places[index] = place);
            for (index, case) in cases.drain(..).enumerate() {
                keyed.push((places[index].min(OF_EACH), random(index, class), case));
            }
        }
        keyed.sort_by_key(|&(place, random, _)| (place, random));
        keyed.into_iter().map(|(_, _, case)| case).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensile_core::device::host::{HostDevice, HostOptions};

    #[test]
    fn nearly_every_kind_comes_soon_and_nothing_twice() {
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let all = cases(&device, 20e6).unwrap();
        let classes: BTreeSet<&str> = all.iter().map(|case| case.features.class).collect();
        let first: BTreeSet<&str> = all.iter().take(classes.len()).map(|case| case.features.class).collect();
        assert_eq!(first, classes);
        // All kinds there are, but for those that no training step of the zoo has.
        assert!(classes.len() + 3 >= Op::KINDS.len(), "{} of {}: {classes:?}", classes.len(), Op::KINDS.len());
        assert!(all.len() > 2000, "{}", all.len());
        let distinct: BTreeSet<String> = all.iter().map(|case| format!("{:?}", case.features)).collect();
        assert_eq!(distinct.len(), all.len());
        assert!(all.iter().all(|case| case.features.roofline <= 20e6));
        let again = cases(&device, 20e6).unwrap();
        assert_eq!(format!("{again:?}"), format!("{all:?}"));
    }
}
