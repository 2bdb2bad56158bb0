//! Philox4x32-10: random numbers as a function of a counter and a key.
//!
//! Salmon, Moraes, Dror, Shaw: *Parallel Random Numbers: As Easy as 1, 2, 3* (SC 2011). There is no state, so that a rerun, another thread
//! count or another device draws the same numbers.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Four random words for a counter and a key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let lanes = philox4x32_lanes([[counter[0]], [counter[1]], [counter[2]], [counter[3]]], key);
    [lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]]
}

/// [`philox4x32`] of `N` counters at once, word by word: `counters[word][lane]`. A loop over lanes for the compiler to vectorise.
#[inline(always)]
pub fn philox4x32_lanes<const N: usize>(counters: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counters;
    for _ in 0..ROUNDS {
        for lane in 0..N {
            let a = u64::from(MULTIPLIERS[0]) * u64::from(c0[lane]);
            let b = u64::from(MULTIPLIERS[1]) * u64::from(c2[lane]);
            c0[lane] = (b >> 32) as u32 ^ c1[lane] ^ key[0];
            c1[lane] = b as u32;
            c2[lane] = (a >> 32) as u32 ^ c3[lane] ^ key[1];
            c3[lane] = a as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    [c0, c1, c2, c3]
}

/// A 64-bit number as two words, the low one first.
pub fn words(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// A random word as a float in [0, 1), a multiple of 2⁻²⁴.
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 / (1u32 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the generator (Random123).
    #[test]
    fn known_answers() {
        let ones = u32::MAX;
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([ones; 4], [ones; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn lanes_equal_single_calls() {
        let counters: [[u32; 5]; 4] =
            std::array::from_fn(|word| std::array::from_fn(|lane| (word * 77 + lane * 1_000_003) as u32));
        let lanes = philox4x32_lanes(counters, [5, 9]);
        for lane in 0..5 {
            let counter = counters.map(|word| word[lane]);
            assert_eq!(philox4x32(counter, [5, 9]), lanes.map(|word| word[lane]));
        }
    }
}
