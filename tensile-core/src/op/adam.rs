//! `adam`: one step of Adam or AdamW, as an update of the parameter and its two moments.

use rayon::prelude::*;

use super::elementwise::CHUNK;
use super::gate;
use super::sgd::Part;
use super::{Cost, OpDef, OpError};
use crate::device::host::HostCall;
use crate::grad::GradCall;
use crate::graph::{GraphError, Value};
use crate::kernel::work::{Work, vectorized};
use crate::tensor::TensorType;

/// Adam (Kingma, Ba: arXiv 1412.6980) and AdamW (Loshchilov, Hutter: arXiv 1711.05101): inputs parameter (updated), gradient, scalars `f32[groups, 3]`,
/// first and second moment (updated), which begin as 0, and a [`Gate`](gate::Gate) if there is one. The scalars of a group for step t = 1, 2, … are
/// [lr/(1 − β₁ᵗ), √(1 − β₂ᵗ), 1 − lr·weight_decay].
///
/// g ← scale·gradient, where the scale is the gate's; AdamW first scales p by the third scalar, Adam adds weight_decay·p to g; then m ← m + (1 − β₁)(g − m), v ← β₂v + (1 − β₂)g²,
/// p ← p − scalar₀·m/(√v/scalar₁ + ε).
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    /// Elements to update.
    pub part: Part,
    /// The parameter's group: its row of the scalars.
    pub group: usize,
    /// Share of the first moment that is kept.
    pub beta1: f64,
    /// Share of the second moment that is kept.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f32,
    /// Pull towards 0.
    pub weight_decay: f32,
    /// Whether the pull acts on the parameter itself (AdamW) rather than through the gradient (Adam).
    pub decoupled: bool,
}

impl OpDef for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, OpError> {
        self.part.infer(inputs, self.group, 3, 2)
    }

    fn updates(&self) -> &[usize] {
        &[0, 3, 4]
    }

    fn takes_gate(&self) -> bool {
        true
    }

    fn grad(&self, call: &mut GradCall<'_>) -> Result<Vec<Option<Value>>, GraphError> {
        Err(call.no_gradient(self.name()))
    }

    fn cost(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        let n = self.part.len as f64;
        Cost { flops: 14.0 * n, bytes: 28.0 * n }
    }

    fn host_kernel(&self, call: &HostCall<'_>) {
        let Some(scale) = gate::scale(call, 5) else { return };
        let scalars = &call.input::<f32>(2)[3 * self.group..][..3];
        let p = self.part.of_mut(call.update::<f32>(0));
        let g = self.part.of(call.input::<f32>(1));
        let (m, v) = (call.update::<f32>(3), call.update::<f32>(4));
        let states = m.par_chunks_mut(CHUNK).zip(v.par_chunks_mut(CHUNK));
        p.par_chunks_mut(CHUNK).zip(g.par_chunks(CHUNK)).zip(states).for_each(|((p, g), (m, v))| {
            vectorized(Step { op: self, scalars, scale, p, g, m, v });
        });
    }
}

/// The step of some elements.
struct Step<'a> {
    op: &'a Adam,
    scalars: &'a [f32],
    scale: f32,
    p: &'a mut [f32],
    g: &'a [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
}

impl Work for Step<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { op, scalars, scale, p, g, m, v } = self;
        let (step_size, root, eps) = (scalars[0], scalars[1], op.eps);
        let (keep, decay) = if op.decoupled { (scalars[2], 0.0) } else { (1.0, op.weight_decay) };
        let (new1, beta2, new2) = ((1.0 - op.beta1) as f32, op.beta2 as f32, (1.0 - op.beta2) as f32);
        for ((p, g), (m, v)) in p.iter_mut().zip(g).zip(m.iter_mut().zip(v)) {
            let (kept, g) = (*p * keep, scale * g + decay * *p);
            *m += new1 * (g - *m);
            *v = beta2 * *v + new2 * (g * g);
            *p = kept - step_size * (*m / (v.sqrt() / root + eps));
        }
    }
}
