//! `count_correct`: how many rows have their largest logit at their label.

use super::{OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{Graph, GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Number `i32[]` of rows of logits `f32[N, C]` whose first largest element stands at the row's label, of labels `i32[N]`. A label outside
/// 0..C is never right; a row whose first element is NaN counts as class 0.
#[derive(Clone, Debug, PartialEq)]
pub struct CountCorrect;

impl OpDef for CountCorrect {
    fn name(&self) -> &'static str {
        "count_correct"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [logits, labels]
                if logits.dtype == DType::F32
                    && logits.dims().len() == 2
                    && *labels == TensorType::i32([logits.dims()[0]]) =>
            {
                Ok(vec![TensorType::i32([])])
            }
            _ => Err(OpError("takes logits f32[N, C] and labels i32[N]".to_owned())),
        }
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let (logits, labels): (&[f32], &[i32]) = (call.input(0), call.input(1));
        let rows = logits.chunks_exact(call.input_type(0).dims()[1]);
        let right = rows.zip(labels).filter(|(row, label)| {
            let mut best = 0;
            for (class, x) in row.iter().enumerate() {
                if *x > row[best] {
                    best = class;
                }
            }
            usize::try_from(**label) == Ok(best)
        });
        call.output::<i32>(0)[0] = right.count() as i32;
    }
}

impl Graph {
    /// How many rows of logits `f32[N, C]` are largest at their label `i32[N]`, as `i32[]`.
    ///
    /// # Errors
    /// If the types do not fit.
    pub fn count_correct(&mut self, logits: Value, labels: Value) -> Result<Value, GraphError> {
        self.apply1(CountCorrect, &[logits, labels])
    }
}
