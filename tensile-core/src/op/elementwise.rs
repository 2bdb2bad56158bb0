//! What elementwise kernels share.

use rayon::prelude::*;

use super::OpError;
use crate::device::host::{HostCall, InOut};
use crate::kernel::work::{Work, vectorized};
use crate::tensor::{DType, TensorType};

/// Elements a thread takes at a time: 64 KiB, which leaves room for two inputs in a second-level cache.
pub(crate) const CHUNK: usize = 1 << 14;

/// Type rule: one f32 tensor in, the same type out.
pub(crate) fn infer_unary(inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
    match inputs {
        [x] if x.dtype == DType::F32 => Ok(vec![x.clone()]),
        _ => Err(OpError("takes one f32 tensor".to_owned())),
    }
}

/// Type rule: two f32 tensors of one shape in, the same type out.
pub(crate) fn infer_same(inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
    match inputs {
        [a, b] if a == b && a.dtype == DType::F32 => Ok(vec![a.clone()]),
        _ => Err(OpError("takes two f32 tensors of one shape".to_owned())),
    }
}

/// An op that makes each element from one. Implementations are `#[inline(always)]`, or else they are not vectorised.
pub(crate) trait Unary: Sync {
    /// The element for x.
    fn of(&self, x: f32) -> f32;
}

/// An op that makes each element from two. Implementations are `#[inline(always)]`, or else they are not vectorised.
pub(crate) trait Binary: Sync {
    /// The element for a and b.
    fn of(&self, a: f32, b: f32) -> f32;
}

struct UnaryWork<'a, F> {
    f: &'a F,
    /// The input; none if `y` holds it.
    x: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl<F: Unary> Work for UnaryWork<'_, F> {
    #[inline(always)]
    fn run(self) {
        match self.x {
            Some(x) => {
                for (y, x) in self.y.iter_mut().zip(x) {
                    *y = self.f.of(*x);
                }
            }
            None => {
                for y in self.y {
                    *y = self.f.of(*y);
                }
            }
        }
    }
}

struct BinaryWork<'a, F> {
    f: &'a F,
    /// The first input; none if `y` holds it.
    a: Option<&'a [f32]>,
    b: &'a [f32],
    y: &'a mut [f32],
}

impl<F: Binary> Work for BinaryWork<'_, F> {
    #[inline(always)]
    fn run(self) {
        match self.a {
            Some(a) => {
                for ((y, a), b) in self.y.iter_mut().zip(a).zip(self.b) {
                    *y = self.f.of(*a, *b);
                }
            }
            None => {
                for (y, b) in self.y.iter_mut().zip(self.b) {
                    *y = self.f.of(*y, *b);
                }
            }
        }
    }
}

/// Output 0 from input 0, which may share its place.
pub(crate) fn unary<F: Unary>(call: &HostCall<'_>, f: &F) {
    let (y, x) = split(call.in_out::<f32>(0, 0));
    y.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, y)| {
        let x = x.map(|x| &x[chunk * CHUNK..][..y.len()]);
        vectorized(UnaryWork { f, x, y });
    });
}

/// Output 0 from inputs 0 and 1 of the same size; input 0 may share its place.
pub(crate) fn binary<F: Binary>(call: &HostCall<'_>, f: &F) {
    let b: &[f32] = call.input(1);
    let (y, a) = split(call.in_out::<f32>(0, 0));
    y.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).enumerate().for_each(|(chunk, (y, b))| {
        let a = a.map(|a| &a[chunk * CHUNK..][..y.len()]);
        vectorized(BinaryWork { f, a, b, y });
    });
}

/// The output, and the input if it lies elsewhere.
pub(crate) fn split<T>(pair: InOut<'_, T>) -> (&mut [T], Option<&[T]>) {
    match pair {
        InOut::Same(y) => (y, None),
        InOut::Separate(x, y) => (y, Some(x)),
    }
}
