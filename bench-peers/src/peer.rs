//! What a framework has to offer to be timed.

/// Size of the images and of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Images.
    pub batch: usize,
    /// Height and width.
    pub size: usize,
}

impl Shape {
    /// Pixels of a batch, the same for all frameworks.
    pub fn pixels(self) -> Vec<f32> {
        let n = self.batch * 3 * self.size * self.size;
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Their labels.
    pub fn labels(self) -> Vec<u32> {
        (0..self.batch as u32).map(|i| i * 37 % 1000).collect()
    }
}

/// A network with its optimizer.
pub trait Peer {
    /// Framework and version.
    fn name(&self) -> &'static str;

    /// What it does differently.
    fn note(&self) -> &'static str;

    /// Forward, backward, update; gives the loss.
    fn step(&mut self) -> Result<f32, Box<dyn std::error::Error>>;
}

/// Blocks of each stage.
pub const DEPTHS: [usize; 4] = [3, 4, 6, 3];
/// How much wider a bottleneck's output is than its middle.
pub const EXPANSION: usize = 4;
