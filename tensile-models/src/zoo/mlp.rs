//! A multilayer perceptron: two hidden layers of 256 with dropout.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::Net;

use super::Settings;

pub(super) fn forward(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    let mut x = net.flatten(images)?;
    for name in ["fc1", "fc2"] {
        x = net.linear(name, x, 256)?;
        x = net.graph().relu(x)?;
        x = net.dropout(x, settings.number("dropout") as f32)?;
    }
    net.linear("fc3", x, settings.count("classes"))
}
