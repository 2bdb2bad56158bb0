//! The accounting of the integer programs that [`figures::ILP`](super::figures::ILP) are solutions of.

use tensile_sched::{Bytes, Op, Role, Tensor, Trace};

/// The trace, and the bytes by which a budget shrinks, so that planning the one under the other is planning under their accounting: parameters, the batch and all gradients of
/// parameters are on the device from the start to the end, and workspace does not count.
///
/// Parameters stay anyway where nothing is swapped, and the batch becomes one. Gradients of parameters (those that the step must leave behind) become one byte each, and the budget
/// shrinks by their bytes. An op that makes them can still run again.
pub(super) fn their_accounting(trace: &Trace) -> anyhow::Result<(Trace, u64)> {
    let mut fixed = 0;
    let mut stay = |tensor: &Tensor| {
        let mut tensor = tensor.clone();
        if tensor.role == Role::Input {
            tensor.role = Role::Parameter;
            tensor.keep = false;
        } else if tensor.keep {
            fixed += tensor.bytes.0;
            tensor.bytes = Bytes(1);
        }
        tensor
    };
    let tensors = trace.tensors().iter().map(&mut stay).collect();
    // Pairs that join tensors of different sizes now would be refused.
    let shrinks =
        |op: &Op| op.in_place.iter().any(|pair| trace.tensor(pair.input).keep || trace.tensor(pair.output).keep);
    let ops = trace.ops().iter().map(|op| Op {
        workspace: Bytes::ZERO,
        in_place: if shrinks(op) { vec![] } else { op.in_place.clone() },
        ..op.clone()
    });
    Ok((Trace::new(tensors, ops.collect())?, fixed))
}
