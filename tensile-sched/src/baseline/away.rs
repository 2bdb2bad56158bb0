//! Absences of tensors that were planned in time, as evictions by position: what the swapping baselines hand to the walk.

use crate::id::TensorId;
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;

/// An interval in which a tensor is on the host, in undisturbed time.
///
/// ```text
/// op          from         …        …        …         to
/// t           access ─────────┐                   ┌──── access
/// out lane             [copy ]
/// in lane                                   [copy ]
/// on device   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓             ▓▓▓▓▓▓▓▓▓▓
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away {
    pub(super) tensor: TensorId,
    /// The first op that may run without it: the one behind the access before.
    pub(super) after: usize,
    /// The op of the access it must be back for; the number of ops for the end of the step.
    pub(super) until: usize,
    /// When its copy to the host starts and ends; none if the host has its value.
    pub(super) out: Option<(u64, u64)>,
    /// When its copy back starts.
    pub(super) back: u64,
}

/// Positions of an [`Away`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Positions {
    /// Its copy leaves behind this op; none if before the first, or if there is no copy.
    pub(super) save_after: Option<usize>,
    /// Its bytes are given up before this op, the first that starts when the copy has ended.
    pub(super) release_before: usize,
    /// Its bytes are claimed before this op, during which the copy back starts.
    pub(super) claim_before: usize,
}

impl Away {
    /// None if no op runs without it: then there is nothing to gain.
    pub(super) fn positions(&self, facts: &Facts<'_>) -> Option<Positions> {
        let (save_after, release_before) = match self.out {
            // Op j has ended by then if op j + 1 could have started.
            Some((start, end)) => {
                let ended = facts.start[1..].partition_point(|&end| end <= start);
                (ended.max(self.after).checked_sub(1), first_from(facts, end).max(self.after))
            }
            None => (None, self.after),
        };
        let claim_before = if self.until == facts.n_ops() && self.back >= facts.step_time() {
            self.until
        } else {
            running(facts, self.back).min(self.until)
        };
        (release_before < claim_before).then_some(Positions { save_after, release_before, claim_before })
    }
}

/// A tensor that is on the host when the step starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) tensor: TensorId,
    /// The op of its first access.
    pub(super) until: usize,
    /// When its copy to the device starts.
    pub(super) back: u64,
}

/// The first op that starts at that time or later, in undisturbed time; the number of ops if none does.
pub(super) fn first_from(facts: &Facts<'_>, time: u64) -> usize {
    facts.start[..facts.n_ops()].partition_point(|&start| start < time)
}

/// The op during which something starts at that time, in undisturbed time.
pub(super) fn running(facts: &Facts<'_>, time: u64) -> usize {
    facts.start[..facts.n_ops()].partition_point(|&start| start <= time).saturating_sub(1)
}

/// Writes absences into a plan, copies in the order in which they start.
pub(super) fn enter(facts: &Facts<'_>, plan: &mut Plan, mut aways: Vec<Away>, arrivals: &[Arrival]) {
    aways.sort_by_key(|away| (away.out.map(|out| out.0), away.tensor, away.after));
    let mut claims = Vec::new();
    for away in &aways {
        let Some(at) = away.positions(facts) else { continue };
        if let Some(after) = at.save_after {
            plan.save_after[after].push(away.tensor);
        }
        plan.release_before[at.release_before].push((away.tensor, away.until));
        if at.claim_before < away.until {
            claims.push((away.back, away.until, away.tensor, at.claim_before));
        }
    }
    for arrival in arrivals {
        let claim_before = running(facts, arrival.back);
        if claim_before < arrival.until {
            claims.push((arrival.back, arrival.until, arrival.tensor, claim_before));
        }
    }
    claims.sort_unstable();
    for (_, _, tensor, claim_before) in claims {
        plan.claim_before[claim_before].push(tensor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bytewise, op, trace};
    use crate::trace::Role;

    /// Four ops of 10 ns: the copy out ends within op 1, the copy back starts within op 2.
    #[test]
    fn times_become_positions() {
        let trace = trace(
            &[(1, Role::Activation)],
            vec![op(10, &[], &[0]), op(10, &[], &[]), op(10, &[], &[]), op(10, &[0], &[])],
        );
        let limits = bytewise();
        let facts = Facts::new(&trace, &limits);
        let away = Away { tensor: TensorId(0), after: 1, until: 3, out: Some((10, 15)), back: 25 };
        // Released before op 2 starts and claimed during it: nothing gained.
        assert_eq!(away.positions(&facts), None);
        let later = Away { back: 30, ..away };
        let positions = Positions { save_after: Some(0), release_before: 2, claim_before: 3 };
        assert_eq!(later.positions(&facts), Some(positions));
        // Without a copy out it goes right behind the access before.
        let valid = Away { out: None, ..later };
        assert_eq!(valid.positions(&facts), Some(Positions { save_after: None, release_before: 1, claim_before: 3 }));
        let mut plan = Plan::keep_all(&facts);
        enter(&facts, &mut plan, vec![later], &[]);
        assert_eq!(plan.save_after[0], [TensorId(0)]);
        assert_eq!(plan.release_before[2], [(TensorId(0), 3)]);
        assert!(plan.claim_before.iter().all(Vec::is_empty), "it comes when it is needed");
        enter(&facts, &mut plan, vec![], &[Arrival { tensor: TensorId(0), until: 3, back: 5 }]);
        assert_eq!(plan.claim_before[0], [TensorId(0)]);
    }
}
