//! Trips to the host under a limit: when bytes go and come, given when the copies run and how much there is room for.

use super::away::{first_from, running};
use crate::id::TensorId;
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;

/// A tensor's way to the host, in undisturbed time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Leave {
    /// The first op that may run without it: the one behind the access before.
    pub(super) after: usize,
    /// Its bytes are given up before this op at the latest, copied or not: an op that wants them then waits. The number of ops: not in this step.
    pub(super) latest: usize,
    /// When its copy starts and ends.
    pub(super) copy: (u64, u64),
}

/// A tensor's way back, in undisturbed time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Return {
    /// Its bytes are not claimed before this op.
    pub(super) earliest: usize,
    /// The op of the access it must be back for.
    pub(super) until: usize,
    /// When its copy starts.
    pub(super) start: u64,
}

/// A swap; across the end of the step it is two of them, one for each half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trip {
    pub(super) tensor: TensorId,
    /// Whether it hides, so that it takes its room before those that do not.
    pub(super) hides: bool,
    pub(super) leave: Option<Leave>,
    pub(super) back: Option<Return>,
}

/// Writes trips into a plan.
///
/// `load` has the bytes at each position, all trips taken from the access before to the access after. Bytes go when their copy has ended, but earlier if the load would exceed the limit;
/// they come when their copy starts, but later if the load would exceed it.
pub(super) fn enter_trips(facts: &Facts<'_>, plan: &mut Plan, load: &mut [u64], limit: u64, mut trips: Vec<Trip>) {
    let n_ops = facts.n_ops();
    trips.sort_by_key(|trip| (!trip.hides, trip.leave.map(|leave| leave.copy.0), trip.tensor));
    let mut saves = Vec::new();
    let mut gone = vec![0; trips.len()];
    for (trip, gone) in trips.iter().zip(&mut gone) {
        let Some(leave) = trip.leave else { continue };
        let bytes = facts.bytes(trip.tensor);
        let until = trip.back.map_or(n_ops, |back| back.until);
        let latest = if trip.back.is_some() { leave.latest.min(until - 1) } else { leave.latest };
        let copied = first_from(facts, leave.copy.1).min(latest).max(leave.after);
        let full = (leave.after..copied).find(|&position| load[position] + bytes > limit);
        *gone = full.unwrap_or(copied);
        load[leave.after..*gone].iter_mut().for_each(|load| *load += bytes);
        let ended = facts.start[1..].partition_point(|&end| end <= leave.copy.0);
        if let Some(save) = ended.clamp(leave.after, (*gone).max(leave.after)).checked_sub(1) {
            saves.push((leave.copy.0, trip.tensor, save));
        }
        plan.release_before[*gone].push((trip.tensor, until));
    }
    saves.sort_unstable();
    for (_, tensor, save) in saves {
        plan.save_after[save].push(tensor);
    }
    let mut order: Vec<usize> = (0..trips.len()).filter(|&index| trips[index].back.is_some()).collect();
    let until = |index: usize| trips[index].back.map(|back| back.until);
    order.sort_by_key(|&index| std::cmp::Reverse((trips[index].hides, until(index), index)));
    let mut claims = Vec::new();
    for index in order {
        let (trip, Some(back)) = (&trips[index], trips[index].back) else { continue };
        let bytes = facts.bytes(trip.tensor);
        let earliest = if trip.leave.is_some() { gone[index] + 1 } else { 0 };
        let wanted = running(facts, back.start).max(back.earliest).max(earliest).min(back.until);
        let full = (wanted..back.until).rev().find(|&position| load[position] + bytes > limit);
        let claim = full.map_or(wanted, |full| full + 1);
        load[claim..back.until].iter_mut().for_each(|load| *load += bytes);
        if claim < back.until {
            claims.push((claim, back.start, back.until, trip.tensor));
        }
    }
    claims.sort_unstable();
    for (claim, _, _, tensor) in claims {
        plan.claim_before[claim].push(tensor);
    }
}

/// Bytes at each position without evictions: those of plain liveness, less persistent tensors that no op touches.
pub(super) fn load(facts: &Facts<'_>, plan: &Plan) -> Vec<u64> {
    let is_away = |tensor: &TensorId| facts.is_persistent(*tensor) && !plan.residents[tensor.index()];
    let away: u64 = facts.trace.tensor_ids().filter(is_away).map(|tensor| facts.bytes(tensor)).sum();
    let usage = facts.live.usage(facts.trace, facts.limits);
    usage[..facts.n_ops()].iter().map(|bytes| bytes.0 - away).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bytewise, op, trace};
    use crate::trace::Role;

    /// A tensor of 10 bytes idles from op 0 to op 5, ops take 10 ns; its copy out ends within op 2, its copy back starts within op 3.
    #[test]
    fn bytes_go_and_come_with_the_copies_if_there_is_room() {
        let ops = vec![
            op(10, &[], &[0]),
            op(10, &[], &[]),
            op(10, &[], &[]),
            op(10, &[], &[]),
            op(10, &[], &[]),
            op(10, &[0], &[]),
        ];
        let trace = trace(&[(10, Role::Activation)], ops);
        let limits = bytewise();
        let facts = Facts::new(&trace, &limits);
        let trip = Trip {
            tensor: TensorId(0),
            hides: true,
            leave: Some(Leave { after: 1, latest: 5, copy: (10, 25) }),
            back: Some(Return { earliest: 0, until: 5, start: 35 }),
        };
        let entered = |mut load: [u64; 6], limit: u64| {
            let mut plan = Plan::keep_all(&facts);
            enter_trips(&facts, &mut plan, &mut load, limit, vec![trip]);
            assert_eq!(plan.save_after[0], [TensorId(0)]);
            let released = plan.release_before.iter().position(|list| !list.is_empty()).unwrap();
            (released, plan.claim_before.iter().position(|list| !list.is_empty()), load)
        };
        assert_eq!(entered([10, 0, 0, 0, 0, 10], 10), (3, Some(4), [10, 10, 10, 0, 10, 10]));
        assert_eq!(entered([10, 0, 1, 0, 1, 10], 10), (2, None, [10, 10, 1, 0, 1, 10]));
        assert_eq!(entered([10, 1, 1, 1, 0, 10], 10), (1, Some(4), [10, 1, 1, 1, 10, 10]));
    }
}
