//! The model zoo: networks as functions from images to logits.
//!
//! Names and shapes of parameters and buffers are those of the published implementations, so that their files of weights load by name.

mod digit_cnn;
mod lenet;
mod mlp;
mod resnet;

use tensile_core::graph::{Graph, GraphError, Value};
use tensile_core::nn::{Mode, Net};

/// A network that tells images apart.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// As on the command line.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// Channels, height and width of the images it is made for.
    pub shape: [usize; 3],
    /// Whether it takes images of other heights and widths too.
    pub resizable: bool,
    /// Number of classes.
    pub classes: usize,
    forward: fn(&mut Net<'_>, Value) -> Result<Value, GraphError>,
}

impl Model {
    /// Channels, height and width for images of `size`×`size`, or the model's own if `size` is 0.
    pub fn shape_for(&self, size: usize) -> [usize; 3] {
        if size == 0 { self.shape } else { [self.shape[0], size, size] }
    }

    /// Adds the network to a graph: images f32[N, channels, height, width] to logits f32[N, classes].
    ///
    /// # Errors
    /// [`GraphError`] if the network does not take images of this shape.
    pub fn forward(&self, graph: &mut Graph, images: Value, mode: Mode) -> Result<Value, GraphError> {
        (self.forward)(&mut Net::new(graph, mode), images)
    }
}

const MODELS: &[Model] = &[
    Model {
        name: "mlp",
        about: "multilayer perceptron with dropout",
        shape: [1, 8, 8],
        resizable: false,
        classes: 10,
        forward: mlp::forward,
    },
    Model {
        name: "lenet",
        about: "LeNet-5 with rectifiers",
        shape: [1, 28, 28],
        resizable: false,
        classes: 10,
        forward: lenet::forward,
    },
    Model {
        name: "digit-cnn",
        about: "six convolutions with batch norm, and dropout",
        shape: [1, 8, 8],
        resizable: false,
        classes: 10,
        forward: digit_cnn::forward,
    },
    Model {
        name: "resnet18",
        about: "ResNet-18",
        shape: [3, 224, 224],
        resizable: true,
        classes: 1000,
        forward: resnet::resnet18,
    },
    Model {
        name: "resnet50",
        about: "ResNet-50",
        shape: [3, 224, 224],
        resizable: true,
        classes: 1000,
        forward: resnet::resnet50,
    },
];

/// All models.
pub fn all() -> &'static [Model] {
    MODELS
}

/// The model of a name, if there is one.
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}
