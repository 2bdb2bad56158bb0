//! First values of persistent tensors.

use crate::graph::{Init, Persistent};
use crate::random::{philox4x32, unit_f32, words};
use crate::tensor::DType;

/// Little-endian bytes with which a persistent tensor begins.
///
/// Random values are a function of the job's seed, the tensor's name and the element's index alone: Philox keyed by the seed, with a hash of the
/// name in the counter. Uniform values have a resolution of 2⁻²⁴; normal ones come by the Box–Muller transform. Integer tensors take constants only.
///
/// # Panics
/// If an integer tensor asks for random values.
pub fn init_value(persistent: &Persistent, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; persistent.ty.bytes()];
    init_part(persistent, seed, 0, &mut bytes);
    bytes
}

/// As many of the bytes of [`init_value`] as there is room for, from byte `first` on, which is a multiple of 16: large tensors need never stand in memory twice.
///
/// # Panics
/// As [`init_value`]; if `first` is not a multiple of 16.
pub fn init_part(persistent: &Persistent, seed: u64, first: usize, into: &mut [u8]) {
    if let Init::Constant(value) = persistent.init {
        match persistent.ty.dtype {
            DType::F32 => into.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&value.to_le_bytes())),
            DType::I32 => into.chunks_exact_mut(4).for_each(|to| to.copy_from_slice(&(value as i32).to_le_bytes())),
            DType::U8 => into.fill(value as u8),
        }
        return;
    }
    assert_eq!(persistent.ty.dtype, DType::F32, "'{}': only f32 tensors begin at random", persistent.name);
    assert!(first.is_multiple_of(BLOCK), "a part begins at a whole block, not at byte {first}");
    let (key, [low, high]) = (words(seed), words(hash(&persistent.name)));
    for (block, to) in (first as u64 / BLOCK as u64..).zip(into.chunks_mut(BLOCK)) {
        // Names take the upper half of the counter, the element its lower half.
        let [block_low, block_high] = words(block);
        let random = philox4x32([block_low, block_high, low, high], key);
        let values: [f32; 4] = match persistent.init {
            Init::Constant(value) => [value; 4],
            Init::Uniform { bound } => random.map(|word| bound * (2.0 * unit_f32(word) - 1.0)),
            Init::Normal { std } => {
                let [a, b] = box_muller(random[0], random[1]);
                let [c, d] = box_muller(random[2], random[3]);
                [a, b, c, d].map(|value| std * value)
            }
        };
        to.chunks_exact_mut(4).zip(values).for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
    }
}

/// Bytes of the elements that one random draw gives.
const BLOCK: usize = 16;

/// Two normal numbers from two words.
fn box_muller(a: u32, b: u32) -> [f32; 2] {
    let radius = (-2.0 * ((f64::from(a) + 0.5) / 4_294_967_296.0).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * f64::from(b) / 4_294_967_296.0).sin_cos();
    [(radius * cos) as f32, (radius * sin) as f32]
}

/// FNV-1a, 64 bits.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::TensorType;
    use tensile_sched::Role;

    fn draw(name: &str, seed: u64, init: Init, n: usize) -> Vec<f32> {
        let ty = TensorType::f32([n]);
        let bytes = init_value(&Persistent { name: name.to_owned(), role: Role::Parameter, ty, init }, seed);
        assert_eq!(bytes.len(), 4 * n);
        let mut parts = vec![0; 4 * n];
        let persistent = Persistent { name: name.to_owned(), role: Role::Parameter, ty: TensorType::f32([n]), init };
        for (index, part) in parts.chunks_mut(48).enumerate() {
            init_part(&persistent, seed, 48 * index, part);
        }
        assert!(parts == bytes, "the whole is its parts");
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn depends_on_seed_and_name_and_nothing_else() {
        let init = Init::Uniform { bound: 0.5 };
        assert_eq!(draw("a.weight", 1, init, 101), draw("a.weight", 1, init, 101));
        assert_eq!(draw("a.weight", 1, init, 101)[..9], draw("a.weight", 1, init, 9));
        assert_ne!(draw("a.weight", 1, init, 9), draw("a.weight", 2, init, 9));
        assert_ne!(draw("a.weight", 1, init, 9), draw("b.weight", 1, init, 9));
    }

    #[test]
    fn moments_are_right() {
        let n = 40_000;
        let mean = |x: &[f32]| x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
        let uniform = draw("w", 3, Init::Uniform { bound: 2.0 }, n);
        assert!(uniform.iter().all(|v| (-2.0..2.0).contains(v)));
        let squares: Vec<f32> = uniform.iter().map(|v| v * v).collect();
        // Standard errors: 2/√(3n) = 0.006 and 4·√(4/45)/√n = 0.006.
        assert!(mean(&uniform).abs() < 0.03 && (mean(&squares) - 4.0 / 3.0).abs() < 0.03);
        let normal = draw("w", 3, Init::Normal { std: 2.0 }, n);
        let squares: Vec<f32> = normal.iter().map(|v| v * v).collect();
        // Standard errors: 2/√n = 0.01 and 4·√2/√n = 0.03.
        assert!(mean(&normal).abs() < 0.05 && (mean(&squares) - 4.0).abs() < 0.15);
        assert!(normal.iter().any(|v| *v > 6.0), "three standard deviations occur among 40,000");
    }

    #[test]
    fn integers_begin_with_constants() {
        let ty = TensorType::i32([2]);
        let counter = Persistent { name: "n".to_owned(), role: Role::Buffer, ty, init: Init::Constant(7.0) };
        assert_eq!(init_value(&counter, 0), [7, 0, 0, 0, 7, 0, 0, 0]);
    }
}
