//! Random numbers for orders, augmentation and synthetic samples.

/// SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014): small, and good enough for shuffles and pixels.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Begins a stream of its own for each seed and number.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut first = Self(seed ^ stream.wrapping_mul(0xA24B_AED4_963E_E407));
        Self(first.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [−1, 1).
    pub fn next_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Uniform below `n`, which is above 0 and much smaller than 2⁶⁴.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }
}
