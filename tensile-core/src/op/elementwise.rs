//! What elementwise kernels share.

use rayon::prelude::*;

use super::OpError;
use crate::device::host::{HostCall, InOut};
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

/// Output 0 from input 0, which may share its place.
pub(crate) fn unary(call: &HostCall<'_>, f: impl Fn(f32) -> f32 + Sync) {
    match call.in_out::<f32>(0, 0) {
        InOut::Same(y) => y.par_chunks_mut(CHUNK).for_each(|y| y.iter_mut().for_each(|y| *y = f(*y))),
        InOut::Separate(x, y) => y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| {
            for (y, x) in y.iter_mut().zip(x) {
                *y = f(*x);
            }
        }),
    }
}

/// Output 0 from inputs 0 and 1 of the same size; input 0 may share its place.
pub(crate) fn binary(call: &HostCall<'_>, f: impl Fn(f32, f32) -> f32 + Sync) {
    let b: &[f32] = call.input(1);
    match call.in_out::<f32>(0, 0) {
        InOut::Same(y) => y.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).for_each(|(y, b)| {
            for (y, b) in y.iter_mut().zip(b) {
                *y = f(*y, *b);
            }
        }),
        InOut::Separate(a, y) => {
            y.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK)).for_each(|((y, a), b)| {
                for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                    *y = f(*a, *b);
                }
            });
        }
    }
}
