//! The model zoo: networks as functions from inputs to logits.
//!
//! Names and shapes of parameters and buffers are those of the published implementations, so that their files of weights load by name.

mod bert;
mod densenet;
mod digit_cnn;
mod gcn;
mod gpt;
mod image;
mod inception;
mod lenet;
mod mlp;
mod resnet;
mod settings;
mod task;
mod transformer;
mod vgg;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::Net;

use image::{classes, dropout, size};
pub use settings::{Setting, SettingError, Settings};
pub use task::{Field, IGNORED, Task};

/// A network for a task. It is trained by the mean cross-entropy of the labels that count.
pub trait Network: fmt::Debug + Send + Sync {
    /// What it takes and tells.
    fn task(&self) -> Task;

    /// Classes that it tells apart; labels are below.
    fn classes(&self) -> usize;

    /// Adds the network to a graph: `inputs` are those of [`Task::fields`] for a batch, in their order; gives logits f32[labels in the batch, classes].
    ///
    /// # Errors
    /// [`GraphError`] if the network does not take inputs of these types.
    fn forward(&self, net: &mut Net<'_>, inputs: &[Value]) -> Result<Value, GraphError>;

    /// What a name in a published file of weights stands for, if no tensor of the network has it: the name that it has here, or none if it is not needed.
    fn own_name(&self, published: &str) -> Option<String> {
        Some(published.to_owned())
    }
}

/// A network, unless its settings cannot be.
type Made = Result<Arc<dyn Network>, SettingError>;

/// A network that can be made by name.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// As on the command line.
    pub name: &'static str,
    /// One line on what it is.
    pub about: &'static str,
    /// Numbers that it can be made with.
    pub settings: &'static [Setting],
    make: fn(&'static str, &Settings) -> Made,
}

impl Model {
    /// The network with these settings, and defaults for the others.
    ///
    /// # Errors
    /// [`SettingError`] if there is no such setting, or a value is out of its range.
    pub fn network(&self, given: &BTreeMap<String, f64>) -> Made {
        (self.make)(self.name, &Settings::new(self.name, self.settings, given)?)
    }

    /// Whether it has such a setting.
    pub fn has(&self, setting: &str) -> bool {
        self.settings.iter().any(|known| known.name == setting)
    }
}

const MODELS: &[Model] = &[
    Model {
        name: "mlp",
        about: "multilayer perceptron with dropout",
        settings: &[classes(10), dropout(0.2)],
        make: |_, settings| image::network([1, 8, 8], settings, mlp::forward),
    },
    Model {
        name: "lenet",
        about: "LeNet-5 with rectifiers",
        settings: &[classes(10)],
        make: |_, settings| image::network([1, 28, 28], settings, lenet::forward),
    },
    Model {
        name: "digit-cnn",
        about: "six convolutions with batch norm, and dropout",
        settings: &[classes(10), dropout(0.25)],
        make: |_, settings| image::network([1, 8, 8], settings, digit_cnn::forward),
    },
    Model {
        name: "vgg16",
        about: "VGG-16",
        settings: &[size(224), classes(1000), dropout(0.5)],
        make: |_, settings| image::square(settings, vgg::vgg16),
    },
    Model {
        name: "resnet18",
        about: "ResNet-18",
        settings: &[size(224), classes(1000)],
        make: |_, settings| image::square(settings, resnet::resnet18),
    },
    Model {
        name: "resnet50",
        about: "ResNet-50",
        settings: &[size(224), classes(1000)],
        make: |_, settings| image::square(settings, resnet::resnet50),
    },
    Model {
        name: "inception-v3",
        about: "Inception V3",
        settings: &[size(299), classes(1000), dropout(0.5)],
        make: |_, settings| image::square(settings, inception::inception_v3),
    },
    Model {
        name: "inception-v4",
        about: "Inception V4",
        settings: &[size(299), classes(1000), dropout(0.2)],
        make: |_, settings| image::square(settings, inception::inception_v4),
    },
    Model {
        name: "densenet121",
        about: "DenseNet-121",
        settings: &[size(224), classes(1000)],
        make: |_, settings| image::square(settings, densenet::densenet121),
    },
    Model {
        name: "gpt2-small",
        about: "GPT-2 small: decoder that tells the next token",
        settings: gpt::SMALL,
        make: gpt::network,
    },
    Model {
        name: "gpt-bytes",
        about: "small decoder that tells the next byte",
        settings: gpt::BYTES,
        make: gpt::network,
    },
    Model {
        name: "bert-base",
        about: "BERT-base: encoder that tells hidden tokens",
        settings: bert::BASE,
        make: bert::network,
    },
    Model {
        name: "bert-bytes",
        about: "small encoder that tells hidden bytes",
        settings: bert::BYTES,
        make: bert::network,
    },
    Model {
        name: "gcn",
        about: "two graph convolutions that tell the class of nodes",
        settings: gcn::KARATE,
        make: |_, settings| gcn::network(settings),
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
