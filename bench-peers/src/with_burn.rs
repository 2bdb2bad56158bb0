//! burn with its Flex backend.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Int, Tensor, TensorData, activation::relu};

use crate::peer::{DEPTHS, EXPANSION, Peer, Shape};

/// A convolution and its batch norm.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Self {
        let padding = kernel / 2;
        let conv = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
            .with_bias(false)
            .init(device);
        Self { conv, norm: BatchNormConfig::new(channels[1]).init(device) }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}

#[derive(Module, Debug)]
struct Block {
    first: ConvNorm,
    second: ConvNorm,
    third: ConvNorm,
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = relu(self.first.forward(x.clone()));
        let y = relu(self.second.forward(y));
        let y = self.third.forward(y);
        let shortcut = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x),
            None => x,
        };
        relu(y + shortcut)
    }
}

#[derive(Module, Debug)]
struct ResNet {
    stem: ConvNorm,
    pool: MaxPool2d,
    blocks: Vec<Block>,
    mean: AdaptiveAvgPool2d,
    head: Linear,
}

impl ResNet {
    fn new(device: &Device) -> Self {
        let mut blocks = Vec::new();
        let mut channels = 64;
        for (stage, depth) in DEPTHS.into_iter().enumerate() {
            let width = 64 << stage;
            let out = width * EXPANSION;
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                blocks.push(Block {
                    first: ConvNorm::new([channels, width], 1, 1, device),
                    second: ConvNorm::new([width, width], 3, stride, device),
                    third: ConvNorm::new([width, out], 1, 1, device),
                    shortcut: (index == 0).then(|| ConvNorm::new([channels, out], 1, stride, device)),
                });
                channels = out;
            }
        }
        Self {
            stem: ConvNorm::new([3, 64], 7, 2, device),
            pool: MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(),
            blocks,
            mean: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(channels, 1000).init(device),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.stem.forward(images)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        self.head.forward(self.mean.forward(x).flatten(1, 3))
    }
}

pub struct Trainer {
    /// Always there between steps.
    network: Option<ResNet>,
    loss: CrossEntropyLoss,
    optimizer: ModuleOptimizer,
    images: Tensor<4>,
    labels: Tensor<1, Int>,
}

impl Trainer {
    pub fn new(shape: Shape) -> Self {
        let device = Device::flex().autodiff();
        let pixels = TensorData::new(shape.pixels(), [shape.batch, 3, shape.size, shape.size]);
        let labels: Vec<i32> = shape.labels().into_iter().map(|label| label as i32).collect();
        Self {
            network: Some(ResNet::new(&device)),
            loss: CrossEntropyLossConfig::new().init(&device),
            optimizer: AdamConfig::new().init(),
            images: Tensor::from_data(pixels, &device),
            labels: Tensor::from_data(TensorData::new(labels, [shape.batch]), &device),
        }
    }
}

impl Peer for Trainer {
    fn name(&self) -> &'static str {
        "burn 0.22.1 (Flex)"
    }

    fn note(&self) -> &'static str {
        ""
    }

    fn step(&mut self) -> Result<f32, Box<dyn std::error::Error>> {
        let network = self.network.take().ok_or("a step failed before")?;
        let loss = self.loss.forward(network.forward(self.images.clone()), self.labels.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &network);
        self.network = Some(self.optimizer.step(1e-4, network, gradients));
        Ok(loss.into_scalar::<f32>())
    }
}
