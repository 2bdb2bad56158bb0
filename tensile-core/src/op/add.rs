//! `add`: elementwise sum.

use rayon::prelude::*;

use super::{OpDef, OpError};
use crate::device::host::{HostCall, InOut};
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Elementwise sum of two f32 tensors of one shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Add;

impl OpDef for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [a, b] if a == b && a.dtype == DType::F32 => Ok(vec![a.clone()]),
            _ => Err(OpError("takes two f32 tensors of one shape".to_owned())),
        }
    }

    fn in_place(&self) -> &[(usize, usize)] {
        &[(0, 0)]
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Ok(vec![call.output_grads[0]; 2])
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        const CHUNK: usize = 1 << 14;
        let b: &[f32] = call.input(1);
        match call.in_out::<f32>(0, 0) {
            InOut::Same(a) => a.par_chunks_mut(CHUNK).zip(b.par_chunks(CHUNK)).for_each(|(a, b)| {
                for (a, b) in a.iter_mut().zip(b) {
                    *a += b;
                }
            }),
            InOut::Separate(a, y) => {
                y.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK)).for_each(|((y, a), b)| {
                    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                        *y = a + b;
                    }
                });
            }
        }
    }
}

impl Graph {
    /// Elementwise `a + b`.
    ///
    /// # Errors
    /// If the shapes or types do not fit.
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, GraphError> {
        self.apply1(Add, &[a, b])
    }
}
