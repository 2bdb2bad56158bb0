//! Other orders of the ops, in which less is needed at once.
//!
//! The order of a recorded step is one of many that compute the same. Two kinds of ops are worth moving, for both hold much and are wanted by nobody soon:
//!
//! ```text
//! forward … backward of layer 2 … backward of layer 1 … update 2, update 1       as recorded: all gradients live until the end
//! forward … backward of layer 2, update 2 … backward of layer 1, update 1        [`updates_early`]: each gradient goes at once
//! forward … input gradient 2 … backward of layer 1 … weight gradient 2, update 2 [`gradients_late`]: a large weight gradient whose operands
//!                                                                                are small is made when the activations have gone
//! ```
//!
//! Every order keeps the versions of persistent tensors that each op meets, so the results are the same bits.

use crate::id::{OpId, TensorId};
use crate::limits::Limits;
use crate::liveness::Liveness;
use crate::program::{Instr, Program};
use crate::trace::Trace;

/// A trace in another order, and which op of the original each of its ops is.
pub(super) struct Reordered {
    pub(super) trace: Trace,
    original: Vec<OpId>,
}

impl Reordered {
    fn new(trace: &Trace, original: Vec<OpId>) -> Self {
        let trace = trace.in_order(&original).expect("an order that keeps dependences is a valid trace");
        Self { trace, original }
    }

    /// A program of the reordered trace as one of the original.
    pub(super) fn restore(&self, program: &mut Program) {
        for instr in &mut program.instrs {
            if let Instr::Run { op, .. } | Instr::Rerun { op, .. } = instr {
                *op = self.original[op.index()];
            }
        }
    }
}

/// The orders worth trying beside the recorded one, best guess first.
///
/// Near-linear in the accesses.
pub(super) fn orders(trace: &Trace, limits: &Limits) -> Vec<Reordered> {
    let mut orders = Vec::new();
    let recorded: Vec<OpId> = trace.op_ids().collect();
    let early = updates_early(trace);
    let late = |order: &[OpId]| gradients_late(trace, limits, order);
    for order in [late(&early), late(&recorded), Some(early)].into_iter().flatten() {
        if order != recorded && !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders.into_iter().map(|order| Reordered::new(trace, order)).collect()
}

/// For each op, the ops that must come before it, as far as data and versions ask for.
fn dependences(trace: &Trace) -> Vec<Vec<OpId>> {
    let live = Liveness::new(trace);
    let mut before = vec![Vec::new(); trace.ops().len()];
    for tensor in trace.tensor_ids() {
        let accesses = live.accesses(tensor);
        if !trace.tensor(tensor).role.is_persistent() {
            if let Some(producer) = trace.producer(tensor) {
                accesses
                    .iter()
                    .filter(|access| access.op != producer)
                    .for_each(|a| before[a.op.index()].push(producer));
            }
            continue;
        }
        // Reads follow the update before, an update follows all accesses since the one before.
        let mut update = None;
        let mut since: Vec<OpId> = Vec::new();
        for access in accesses {
            if access.kind == crate::liveness::AccessKind::Update {
                before[access.op.index()].append(&mut since);
                before[access.op.index()].extend(update);
                update = Some(access.op);
            } else {
                before[access.op.index()].extend(update);
                since.push(access.op);
            }
        }
    }
    before
}

/// Each update right behind the last op that it must follow.
fn updates_early(trace: &Trace) -> Vec<OpId> {
    let before = dependences(trace);
    // Ops by where they go: place of the op they follow, then in their own order.
    let mut place: Vec<(usize, usize)> = (0..trace.ops().len()).map(|index| (index, 0)).collect();
    for op in trace.op_ids() {
        if trace.op(op).updates.is_empty() {
            continue;
        }
        if let Some(last) = before[op.index()].iter().map(|before| place[before.index()]).max() {
            place[op.index()] = (last.0, last.1 + 1 + op.index());
        }
    }
    let mut order: Vec<OpId> = trace.op_ids().collect();
    order.sort_by_key(|op| (place[op.index()], *op));
    order
}

/// What a cluster holds beyond its operands must be this many times their bytes.
const WORTH_HOLDING: u64 = 8;
/// Ops of a cluster.
const MOST_OPS: usize = 24;
/// Share of the budget that a delayed cluster may fill together with what is alive anyway.
const FILLED: f64 = 0.85;

/// Updates with a large gradient that is made from small operands, together with the ops that make it, moved to where there is room for them.
/// None if there is nothing of the kind.
fn gradients_late(trace: &Trace, limits: &Limits, order: &[OpId]) -> Option<Vec<OpId>> {
    let n_ops = order.len();
    let mut place = vec![0; n_ops];
    for (at, op) in order.iter().enumerate() {
        place[op.index()] = at;
    }
    let live = Liveness::new(trace);
    let bytes = |tensor: TensorId| limits.occupied(trace.tensor(tensor).bytes).0;
    let last_place = |tensor: TensorId| live.accesses(tensor).iter().map(|access| place[access.op.index()]).max();
    // Bytes of activations, gradients and the like at each place of the order.
    let mut passing = vec![0i64; n_ops + 1];
    for tensor in trace.tensor_ids().filter(|&tensor| !trace.tensor(tensor).role.is_persistent()) {
        let first = live.accesses(tensor).iter().map(|access| place[access.op.index()]).min();
        if let (Some(first), Some(last)) = (first, last_place(tensor)) {
            passing[first] += bytes(tensor) as i64;
            passing[last + 1] -= bytes(tensor) as i64;
        }
    }
    let mut now = 0;
    for value in &mut passing {
        now += *value;
        *value = now;
    }
    // Ops that must follow each op.
    let mut followers = vec![Vec::new(); n_ops];
    for (op, before) in dependences(trace).into_iter().enumerate() {
        for other in before {
            followers[other.index()].push(OpId::from_index(op));
        }
    }
    let room = limits.device.0 as f64 * FILLED;
    let mut moves: Vec<(usize, Vec<OpId>)> = Vec::new();
    let mut is_moved = vec![false; n_ops];
    for &update in order.iter().filter(|&&op| !trace.op(op).updates.is_empty()) {
        let cluster = cluster(trace, &live, update);
        let at = cluster.iter().map(|op| place[op.index()]).max().expect("the update itself");
        let updated: Vec<TensorId> = cluster.iter().flat_map(|&op| trace.op(op).updates.iter().copied()).collect();
        if cluster.iter().any(|op| is_moved[op.index()]) {
            continue;
        }
        let outside = cluster.iter().flat_map(|op| &followers[op.index()]).filter(|op| !cluster.contains(op));
        let wanted = outside.map(|op| place[op.index()]).min().unwrap_or(n_ops);
        let made: u64 = cluster.iter().flat_map(|&op| &trace.op(op).writes).map(|&tensor| bytes(tensor)).sum();
        let mut operands: Vec<TensorId> = cluster.iter().flat_map(|&op| trace.op(op).reads.iter().copied()).collect();
        operands.sort_unstable();
        operands.dedup();
        let is_operand = |tensor: &&TensorId| {
            !trace.tensor(**tensor).role.is_persistent()
                && trace.producer(**tensor).is_none_or(|producer| !cluster.contains(&producer))
        };
        let held: u64 = operands.iter().filter(is_operand).map(|&tensor| bytes(tensor)).sum();
        if made < WORTH_HOLDING * held || made < limits.device.0 / 100 {
            continue;
        }
        let states: u64 = updated.iter().map(|&tensor| bytes(tensor)).sum();
        let fits = |place: usize| passing[place] as f64 + (made + states) as f64 <= room;
        if fits(at) {
            continue;
        }
        // Behind the op at that place, which must not be one that needs it.
        let target = (at + 1..wanted).find(|&place| fits(place)).unwrap_or(wanted - 1);
        if target > at {
            cluster.iter().for_each(|op| is_moved[op.index()] = true);
            moves.push((target, cluster));
        }
    }
    if moves.is_empty() {
        return None;
    }
    let mut delayed = vec![Vec::new(); n_ops];
    for (target, mut cluster) in moves {
        cluster.sort_by_key(|op| place[op.index()]);
        delayed[target].push(cluster);
    }
    let mut result = Vec::with_capacity(n_ops);
    for (at, &op) in order.iter().enumerate() {
        if !is_moved[op.index()] {
            result.push(op);
        }
        result.extend(delayed[at].drain(..).flatten());
    }
    Some(result)
}

/// An update and the ops whose results only it needs, however indirectly, and which do not grow what must be held.
fn cluster(trace: &Trace, live: &Liveness, update: OpId) -> Vec<OpId> {
    let mut cluster = vec![update];
    let mut next = 0;
    while next < cluster.len() && cluster.len() < MOST_OPS {
        let op = cluster[next];
        next += 1;
        for &tensor in &trace.op(op).reads {
            let Some(producer) = trace.producer(tensor) else { continue };
            let of = trace.op(producer);
            let is_private = of.updates.is_empty()
                && of.writes.iter().all(|&write| {
                    !trace.tensor(write).keep
                        && trace.tensor(write).role != crate::trace::Role::Output
                        && live
                            .accesses(write)
                            .iter()
                            .all(|access| access.op == producer || cluster.contains(&access.op))
                });
            let sum = |tensors: &[TensorId]| -> u64 {
                let passing = tensors.iter().filter(|&&tensor| !trace.tensor(tensor).role.is_persistent());
                passing.map(|&tensor| trace.tensor(tensor).bytes.0).sum()
            };
            let reads_versions = of.reads.iter().any(|&read| live.last_update(read).is_some());
            if is_private && !reads_versions && sum(&of.reads) <= sum(&of.writes) && !cluster.contains(&producer) {
                cluster.push(producer);
            }
        }
    }
    cluster
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Bytes;
    use crate::testing::{op, trace};
    use crate::trace::Role;

    fn ids(order: &Reordered) -> Vec<u32> {
        order.original.iter().map(|op| op.0).collect()
    }

    /// Two layers; both weights are updated at the end, from gradients made in ops 2 and 3.
    fn two_layers() -> Trace {
        trace(
            &[
                (256, Role::Parameter),
                (256, Role::Parameter),
                (512, Role::Activation),
                (512, Role::Activation),
                (256, Role::Gradient),
                (512, Role::Gradient),
                (256, Role::Gradient),
            ],
            vec![
                op(1, &[0], &[2]),
                op(1, &[1, 2], &[3]),
                op(1, &[3], &[4]),
                op(1, &[1, 3], &[5]),
                op(1, &[5], &[6]),
                op(1, &[6], &[]).with_updates(&[0]),
                op(1, &[4], &[]).with_updates(&[1]),
            ],
        )
    }

    #[test]
    fn updates_follow_their_gradients_but_not_before_the_last_read_of_the_weight() {
        let orders = orders(&two_layers(), &Limits::unlimited());
        // The gradient of weight 1 is there after op 2, but op 3 still reads weight 1.
        assert_eq!(ids(&orders[0]), [0, 1, 2, 3, 6, 4, 5]);
        assert_eq!(orders.len(), 1);
    }

    /// The gradient of a large weight from small operands is made in op 2, while a large activation still waits for op 4.
    #[test]
    fn a_large_gradient_waits_for_room() {
        let trace = trace(
            &[
                (4096, Role::Parameter),
                (8192, Role::Activation),
                (256, Role::Activation),
                (4096, Role::Gradient),
                (256, Role::Gradient),
                (256, Role::Gradient),
            ],
            vec![
                op(1, &[], &[1]),
                op(1, &[0, 1], &[2]),
                op(1, &[2], &[3]),
                op(1, &[3], &[]).with_updates(&[0]),
                op(1, &[1, 2], &[4]),
                op(1, &[4], &[5]),
            ],
        );
        let limits = Limits::with_budget(Bytes(14_000));
        let orders = orders(&trace, &limits);
        assert_eq!(ids(&orders[0]), [0, 1, 4, 5, 2, 3]);
        let wide = Limits::with_budget(Bytes(100_000));
        assert!(super::orders(&trace, &wide).is_empty());
    }
}
