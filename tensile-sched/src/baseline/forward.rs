//! Where the forward pass of a step ends, and what it leaves to the backward pass; a trace says neither.

use crate::id::TensorId;
use crate::planner::facts::Facts;
use crate::trace::Role;

/// A tensor of the forward pass that the backward pass needs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stashed {
    pub(super) tensor: TensorId,
    /// The op of the forward pass that uses it last.
    pub(super) last: usize,
    /// The first position of the backward pass at which it is needed; the number of ops for the end of the step.
    pub(super) needed: usize,
}

/// The forward pass: the ops before `end`.
///
/// ```text
/// op            0     1     2  │  3     4     5
/// activation    W─────R────────│──────────────R     waits at the end of the forward pass, where most bytes do
/// gradient                     │  W─────R
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forward {
    /// The first op of the backward pass.
    pub(super) end: usize,
    /// What waits there, by the op that uses it last before, then by id; persistent tensors do not count.
    pub(super) stash: Vec<Stashed>,
}

impl Forward {
    /// The forward pass ends where most bytes wait between a read before and a read after. A tensor with one reader does not count: gradients of weights that wait for the optimizer at the
    /// end of the step have one, activations have one in each pass.
    pub(super) fn new(facts: &Facts<'_>) -> Self {
        let n_ops = facts.n_ops();
        let may_wait = |tensor: &TensorId| !facts.is_persistent(*tensor) && facts.live.accesses(*tensor).len() > 2;
        let mut changes = vec![0i128; n_ops + 1];
        for tensor in facts.trace.tensor_ids().filter(may_wait) {
            for pair in facts.live.accesses(tensor).windows(2) {
                let bytes = i128::from(facts.bytes(tensor));
                changes[pair[0].op.index() + 1] += bytes;
                changes[pair[1].op.index()] -= bytes;
            }
        }
        let (mut end, mut most, mut waiting) = (n_ops, 0, 0);
        for (position, change) in changes.iter().enumerate() {
            waiting += change;
            if waiting > most {
                (end, most) = (position, waiting);
            }
        }
        let mut stash: Vec<Stashed> = Vec::new();
        for tensor in facts.trace.tensor_ids().filter(|&tensor| !facts.is_persistent(tensor)) {
            let accesses = facts.live.accesses(tensor);
            let before = accesses.partition_point(|access| access.op.index() < end);
            if let (Some(last), Some(needed)) = (before.checked_sub(1), facts.next_use(tensor, end)) {
                stash.push(Stashed { tensor, last: accesses[last].op.index(), needed });
            }
        }
        stash.sort_by_key(|one| (one.last, one.tensor));
        Self { end, stash }
    }

    /// Where a tensor's value begins: the op that makes it; for an input the first that uses it.
    pub(super) fn begins(facts: &Facts<'_>, tensor: TensorId) -> usize {
        facts.live.first_use(tensor).map_or(0, |op| op.index())
    }

    /// Whether a tensor can be dropped behind its last use in the forward pass, because reruns bring it back.
    pub(super) fn can_be_made_again(facts: &Facts<'_>, one: &Stashed) -> bool {
        facts.role(one.tensor) != Role::Input && facts.deadline[one.tensor.index()] >= one.needed as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bytewise, op, trace};

    #[test]
    fn the_turn_is_where_activations_wait() {
        // w 0 (updated at the end), x 1; a 2, b 3; their gradients 4, 5; the weight's 6, larger than all, which waits for the update.
        let sizes = [
            (9, Role::Parameter),
            (1, Role::Input),
            (4, Role::Activation),
            (4, Role::Activation),
            (4, Role::Gradient),
            (4, Role::Gradient),
            (99, Role::Gradient),
        ];
        let ops = vec![
            op(1, &[0, 1], &[2]),
            op(1, &[2], &[3]),
            op(1, &[3], &[4]),
            op(1, &[2, 3, 4], &[5]),
            op(1, &[0, 1, 5], &[6]),
            op(1, &[], &[]),
            op(1, &[6], &[]).with_updates(&[0]),
        ];
        let trace = trace(&sizes, ops);
        let limits = bytewise();
        let facts = Facts::new(&trace, &limits);
        let forward = Forward::new(&facts);
        // At op 2 the input and a wait; b is read there. At op 4 nothing does but the input.
        assert_eq!(forward.end, 2);
        let stashed = |tensor, last, needed| Stashed { tensor: TensorId(tensor), last, needed };
        assert_eq!(forward.stash, [stashed(1, 0, 4), stashed(2, 1, 3), stashed(3, 1, 2)]);
    }
}
