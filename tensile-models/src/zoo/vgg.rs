//! VGG-16 (Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014, table 1, column D), with torchvision's names.

use tensile_core::graph::{GraphError, Value};
use tensile_core::nn::{Conv, Net, WeightInit};
use tensile_core::op::pool::Pool2d;

use super::Settings;

/// Number and width of the 3×3 convolutions of each stage.
const STAGES: [(usize, usize); 5] = [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)];

pub(super) fn vgg16(net: &mut Net<'_>, images: Value, settings: &Settings) -> Result<Value, GraphError> {
    let x = net.scoped("features", |net| features(net, images))?;
    let x = net.graph().adaptive_avg_pool2d(x, [7, 7])?;
    let x = net.flatten(x)?;
    net.scoped("classifier", |net| {
        let mut x = x;
        for name in ["0", "3"] {
            x = net.linear_init(name, x, 4096, WeightInit::Normal(0.01))?;
            x = net.graph().relu(x)?;
            x = net.dropout(x, settings.number("dropout") as f32)?;
        }
        net.linear_init("6", x, settings.count("classes"), WeightInit::Normal(0.01))
    })
}

fn features(net: &mut Net<'_>, images: Value) -> Result<Value, GraphError> {
    // Names count rectifiers and poolings too.
    let (mut x, mut index) = (images, 0);
    for (n_convs, width) in STAGES {
        for _ in 0..n_convs {
            let conv = Conv::new(width, 3).padding(1).init(WeightInit::HeFanOut);
            x = net.conv2d(&index.to_string(), x, conv)?;
            x = net.graph().relu(x)?;
            index += 2;
        }
        x = net.graph().max_pool2d(x, Pool2d::new(2, 2))?;
        index += 1;
    }
    Ok(x)
}
