//! candle. Its max pooling has a gradient only where windows do not overlap: 2×2 in place of 3×3.

use candle_core::{DType, Device, Module, ModuleT, Result, Tensor};
use candle_nn::{
    AdamW, BatchNorm, Conv2d, Conv2dConfig, Linear, Optimizer, ParamsAdamW, VarBuilder, VarMap, batch_norm,
    conv2d_no_bias, linear, loss,
};

use crate::peer::{DEPTHS, EXPANSION, Peer, Shape};

/// A convolution and its batch norm.
struct ConvNorm(Conv2d, BatchNorm);

impl ConvNorm {
    fn new(channels: [usize; 2], kernel: usize, stride: usize, vars: VarBuilder<'_>) -> Result<Self> {
        let config = Conv2dConfig { padding: kernel / 2, stride, ..Conv2dConfig::default() };
        let conv = conv2d_no_bias(channels[0], channels[1], kernel, config, vars.pp("conv"))?;
        Ok(Self(conv, batch_norm(channels[1], 1e-5, vars.pp("norm"))?))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward_t(&self.0.forward(x)?, true)
    }
}

struct Block {
    convs: [ConvNorm; 3],
    shortcut: Option<ConvNorm>,
}

impl Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [first, second, third] = &self.convs;
        let y = third.forward(&second.forward(&first.forward(x)?.relu()?)?.relu()?)?;
        let shortcut = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x)?,
            None => x.clone(),
        };
        (y + shortcut)?.relu()
    }
}

pub struct ResNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    head: Linear,
    optimizer: AdamW,
    images: Tensor,
    labels: Tensor,
}

impl ResNet {
    pub fn new(shape: Shape) -> Result<Self> {
        let map = VarMap::new();
        let vars = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
        let stem = ConvNorm::new([3, 64], 7, 2, vars.pp("stem"))?;
        let mut blocks = Vec::new();
        let mut channels = 64;
        for (stage, depth) in DEPTHS.into_iter().enumerate() {
            let width = 64 << stage;
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let vars = vars.pp(format!("{stage}.{index}"));
                let out = width * EXPANSION;
                let convs = [
                    ConvNorm::new([channels, width], 1, 1, vars.pp("1"))?,
                    ConvNorm::new([width, width], 3, stride, vars.pp("2"))?,
                    ConvNorm::new([width, out], 1, 1, vars.pp("3"))?,
                ];
                let shortcut = match index {
                    0 => Some(ConvNorm::new([channels, out], 1, stride, vars.pp("shortcut"))?),
                    _ => None,
                };
                blocks.push(Block { convs, shortcut });
                channels = out;
            }
        }
        let head = linear(channels, 1000, vars.pp("head"))?;
        let optimizer =
            AdamW::new(map.all_vars(), ParamsAdamW { lr: 1e-4, weight_decay: 0.0, ..ParamsAdamW::default() })?;
        let images = Tensor::from_vec(shape.pixels(), (shape.batch, 3, shape.size, shape.size), &Device::Cpu)?;
        let labels = Tensor::new(shape.labels(), &Device::Cpu)?;
        Ok(Self { stem, blocks, head, optimizer, images, labels })
    }
}

impl Peer for ResNet {
    fn name(&self) -> &'static str {
        "candle 0.11.1"
    }

    fn note(&self) -> &'static str {
        "max pooling 2×2 in place of 3×3, whose gradient it does not have"
    }

    fn step(&mut self) -> std::result::Result<f32, Box<dyn std::error::Error>> {
        let mut x = self.stem.forward(&self.images)?.relu()?.max_pool2d(2)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        let logits = self.head.forward(&x.mean((2, 3))?)?;
        let loss = loss::cross_entropy(&logits, &self.labels)?;
        self.optimizer.backward_step(&loss)?;
        Ok(loss.to_scalar()?)
    }
}
