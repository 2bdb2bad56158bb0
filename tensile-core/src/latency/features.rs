//! What the network is told of an op.

use super::{Roofline, nanos};
use crate::op::Op;
use crate::tensor::TensorType;

/// Dimensions of a tensor that are told apart, the innermost ones; those further out are taken together.
const DIMS: usize = 4;

/// How many numbers describe an op beside its class.
pub const N_FEATURES: usize = 6 + 3 * DIMS;

/// An op as the network sees it: all numbers are logarithms, so that it learns factors.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// The op's name, as in traces.
    pub class: &'static str,
    /// Of 1 + floating-point operations, 1 + bytes read, 1 + bytes written, the roofline's nanoseconds, the number of inputs, the load; then of
    /// the dimensions of the first two inputs and the first output, the innermost last, 0 where there are fewer.
    pub values: [f64; N_FEATURES],
    /// Nanoseconds by the roofline under this load.
    pub roofline: f64,
}

impl Features {
    /// Describes an op on these types while `load` jobs share the device.
    pub fn new(roofline: &Roofline, op: &Op, inputs: &[TensorType], outputs: &[TensorType], load: f64) -> Self {
        let def = op.def();
        let load = if load > 1.0 { load } else { 1.0 };
        let cost = def.cost(inputs, outputs);
        let alone = roofline.time(cost).0 as f64;
        let bytes = |ty: &TensorType| ty.bytes() as f64;
        let read: f64 = inputs.iter().map(bytes).sum();
        let written: f64 = outputs.iter().chain(def.updates().iter().map(|&index| &inputs[index])).map(bytes).sum();
        let sizes = [cost.flops.max(0.0) + 1.0, read + 1.0, written + 1.0, alone, inputs.len().max(1) as f64, load];
        let mut values = [0.0; N_FEATURES];
        for (value, size) in values.iter_mut().zip(sizes) {
            *value = size.ln();
        }
        let tensors = [inputs.first(), inputs.get(1), outputs.first()];
        for (values, ty) in values[sizes.len()..].chunks_exact_mut(DIMS).zip(tensors) {
            let dims = ty.map_or(&[][..], TensorType::dims);
            let (outer, inner) = dims.split_at(dims.len().saturating_sub(DIMS - 1));
            let outer: f64 = outer.iter().map(|&dim| dim as f64).product();
            let inner = inner.iter().rev().map(|&dim| dim as f64);
            for (value, dim) in values.iter_mut().rev().zip(inner.chain([outer])) {
                *value = dim.max(1.0).ln();
            }
        }
        Self { class: def.name(), values, roofline: nanos(alone * load).0 as f64 }
    }

    /// Whether both are the same op on the same shapes, under whatever load.
    pub(super) fn shape(&self) -> (&'static str, [u64; N_FEATURES]) {
        let mut bits = self.values.map(f64::to_bits);
        bits[LOAD] = 0;
        (self.class, bits)
    }
}

/// Place of the load among the values.
const LOAD: usize = 5;
