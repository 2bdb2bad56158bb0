//! LeNet-5 (LeCun et al., 1998) as it is trained today: rectifiers and max pooling, 61,706 parameters.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net};
use tensile_core::op::pool::Pool2d;

use super::Settings;

pub(super) fn forward(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    let x = net.conv2d("conv1", images, Conv::new(6, 5).padding(2))?;
    let x = net.graph().relu(x)?;
    let x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
    let x = net.conv2d("conv2", x, Conv::new(16, 5))?;
    let x = net.graph().relu(x)?;
    let x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
    let x = net.flatten(x)?;
    let x = net.linear("fc1", x, 120)?;
    let x = net.graph().relu(x)?;
    let x = net.linear("fc2", x, 84)?;
    let x = net.graph().relu(x)?;
    net.linear("fc3", x, settings.count("classes"))
}
