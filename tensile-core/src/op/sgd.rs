//! `sgd`: one step of stochastic gradient descent, as an update of the parameter and its momentum.

use rayon::prelude::*;

use super::elementwise::CHUNK;
use super::gate;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{GraphError, Value};
use crate::tensor::{DType, TensorType};

/// Elements of a parameter that one update op handles, with the state it keeps for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First element of the parameter.
    pub offset: usize,
    /// Number of elements; the size of each state tensor.
    pub len: usize,
}

impl Part {
    /// Type rule of update ops: parameter and gradient of one f32 type, rows of `n_scalars` scalars of which row `group` is used, `n_states`
    /// states of this part's size, and a gate if there is one.
    pub(crate) fn infer(
        self,
        inputs: &[TensorType],
        group: usize,
        n_scalars: usize,
        n_states: usize,
    ) -> Result<Vec<TensorType>, OpError> {
        let fits = inputs.len() >= 3 + n_states
            && inputs[0] == TensorType::f32(inputs[0].shape.clone())
            && inputs[1] == inputs[0]
            && matches!(inputs[2].dims(), [rows, columns] if group < *rows && *columns == n_scalars)
            && inputs[2].dtype == DType::F32
            && self.offset + self.len <= inputs[0].numel()
            && inputs[3..][..n_states]
                .iter()
                .all(|ty| *ty == TensorType::f32(ty.shape.clone()) && ty.numel() == self.len)
            && gate::fits(&inputs[3 + n_states..]);
        if fits {
            return Ok(Vec::new());
        }
        Err(OpError(format!(
            "takes an f32 parameter with elements {}..{}, its gradient, scalars f32[more than {group}, {n_scalars}], {n_states} states of {} \
             elements, and perhaps a gate f32[2]",
            self.offset,
            self.offset + self.len,
            self.len
        )))
    }

    pub(crate) fn of<T>(self, x: &[T]) -> &[T] {
        &x[self.offset..self.offset + self.len]
    }

    pub(crate) fn of_mut<T>(self, x: &mut [T]) -> &mut [T] {
        &mut x[self.offset..self.offset + self.len]
    }
}

/// Stochastic gradient descent: inputs parameter (updated), gradient, scalars `f32[groups, 1]` with each group's learning rate, with momentum its
/// buffer (updated), which begins as 0, and a [`Gate`](gate::Gate) if there is one.
///
/// g ← scale·gradient + weight_decay·p, where the scale is the gate's; with momentum m: buffer ← m·buffer + g, g ← buffer, or g + m·buffer with Nesterov's form; p ← p − lr·g.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    /// Elements to update.
    pub part: Part,
    /// The parameter's group: its row of the scalars.
    pub group: usize,
    /// Share of the last direction that is kept; 0 for none, then there is no buffer.
    pub momentum: f32,
    /// Nesterov's form of momentum.
    pub nesterov: bool,
    /// Pull towards 0, added to the gradient.
    pub weight_decay: f32,
}

impl OpDef for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        self.part.infer(inputs, self.group, 1, usize::from(self.momentum != 0.0))
    }

    fn updates(&self) -> &[usize] {
        if self.momentum == 0.0 { &[0] } else { &[0, 3] }
    }

    fn takes_gate(&self) -> bool {
        true
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = self.part.len as f64;
        Cost { flops: 6.0 * n, bytes: if self.momentum == 0.0 { 12.0 * n } else { 20.0 * n } }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let Some(scale) = gate::scale(call, 3 + usize::from(self.momentum != 0.0)) else { return };
        let lr = call.input::<f32>(2)[self.group];
        let p = self.part.of_mut(call.update::<f32>(0));
        let g = self.part.of(call.input::<f32>(1));
        let steps = p.par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK));
        if self.momentum == 0.0 {
            steps.for_each(|(p, g)| {
                for (p, g) in p.iter_mut().zip(g) {
                    *p -= lr * (scale * g + self.weight_decay * *p);
                }
            });
            return;
        }
        steps.zip(call.update::<f32>(3).par_chunks_mut(CHUNK)).for_each(|((p, g), buffer)| {
            for ((p, g), buffer) in p.iter_mut().zip(g).zip(buffer) {
                let g = scale * g + self.weight_decay * *p;
                *buffer = self.momentum * *buffer + g;
                *p -= lr * if self.nesterov { g + self.momentum * *buffer } else { *buffer };
            }
        });
    }
}
