//! Loops compiled for the vector instructions of this processor.
//!
//! One of the modules with `unsafe` code: it calls functions compiled for instructions that [`Isa::detect`] has found.
#![allow(unsafe_code)]

use super::isa::Isa;

/// A loop to be compiled once for each family of vector instructions. Types rather than closures, so that [`run`](Work::run) can be
/// `#[inline(always)]` and with it all that it calls; where the compiler leaves a call in the loop, nothing is vectorised.
/// For the same reason loops are written with `for`, not `for_each`, and arithmetic of integers is a wrapping one.
pub(crate) trait Work {
    /// Does it.
    fn run(self);
}

/// Runs `work` as compiled for the best instructions that this processor has. Rust never fuses or reorders floating-point operations by
/// itself, so the result has the same bits with all of them.
pub(crate) fn vectorized(work: impl Work) {
    match Isa::detect() {
        // SAFETY: the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { with_avx512(work) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { with_avx2(work) },
        _ => work.run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(work: impl Work) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(work: impl Work) {
    work.run();
}
