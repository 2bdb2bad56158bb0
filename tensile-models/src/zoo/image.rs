//! Networks that tell images apart.

use std::sync::Arc;

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::Net;

use super::settings::{Setting, Settings};
use super::{Made, Network, Task};

/// Adds a network to a graph: images f32[N, C, H, W] to logits f32[N, classes].
type Forward = fn(&mut Net<'_>, Value, &Settings) -> Result<Value, GraphError>;

/// Number of classes.
pub(super) const fn classes(default: u32) -> Setting {
    Setting::count("classes", default, [1, 1 << 20])
}

/// Height and width of the images.
pub(super) const fn size(default: u32) -> Setting {
    Setting::count("size", default, [1, 1 << 13])
}

/// Part of the elements that training drops before the last layers.
pub(super) const fn dropout(default: f64) -> Setting {
    Setting::probability("dropout", default)
}

#[derive(Debug)]
struct Images {
    shape: [usize; 3],
    settings: Settings,
    forward: Forward,
}

impl Network for Images {
    fn task(&self) -> Task {
        Task::Images { shape: self.shape }
    }

    fn classes(&self) -> usize {
        self.settings.count("classes")
    }

    fn forward(&self, net: &mut Net<'_>, inputs: &[Value]) -> Result<Value, GraphError> {
        (self.forward)(net, inputs[0], &self.settings)
    }

    /// Heads that helped in training, as Inception V3's files have, are not needed.
    fn own_name(&self, published: &str) -> Option<String> {
        (!published.starts_with("AuxLogits.")).then(|| published.to_owned())
    }
}

/// A network for images of one shape.
pub(super) fn network(shape: [usize; 3], settings: &Settings, forward: Forward) -> Made {
    Ok(Arc::new(Images { shape, settings: settings.clone(), forward }))
}

/// A network for square images of three channels.
pub(super) fn square(settings: &Settings, forward: Forward) -> Made {
    let size = settings.count("size");
    network([3, size, size], settings, forward)
}
