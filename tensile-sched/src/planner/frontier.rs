//! Memory against time: what each budget costs, and the least memory that a slowdown buys.

use super::{Infeasible, Planned, Planner};
use crate::baseline::NoEviction;
use crate::id::{Bytes, Nanos};
use crate::limits::Limits;
use crate::trace::Trace;

/// A budget and the best plan for it.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontierPoint {
    /// The device budget.
    pub budget: Bytes,
    /// The fastest plan found for this budget or a smaller one.
    pub planned: Planned,
}

/// The curve of budget against step time: plans at `n_points` budgets, evenly from the lowest that `policy` can plan for to the arena of `none`, both included.
///
/// Ascending in the budget and never rising in the step time: where a smaller budget has the faster plan, which is possible because planning is a search, that plan stands for the larger one too.
/// `limits.device` is not looked at. If the policy takes more than `none` at any budget, there is one point, its lowest budget.
///
/// Takes as long as `n_points` plans.
///
/// # Errors
/// [`Infeasible`] if the policy has no plan even with all the memory of the world: blocks, boundary, or host budget.
///
/// # Example
/// See [`least_memory`].
pub fn frontier(
    policy: &dyn Planner,
    trace: &Trace,
    limits: &Limits,
    n_points: usize,
) -> Result<Vec<FrontierPoint>, Infeasible> {
    let (lowest, highest) = range(policy, trace, limits)?;
    let mut points: Vec<FrontierPoint> = Vec::with_capacity(n_points);
    let last = n_points.saturating_sub(1).max(1) as u128;
    for index in 0..n_points {
        let part = u128::from(highest.0 - lowest.0) * index as u128 / last;
        let budget = Bytes(lowest.0 + part as u64);
        if points.last().is_some_and(|point| point.budget == budget) {
            break;
        }
        let planned = policy.plan(trace, &Limits { device: budget, ..limits.clone() });
        let before = points.last().map(|point| &point.planned);
        let planned = match (planned, before) {
            (Ok(planned), Some(before)) if planned.simulation.step_time > before.simulation.step_time => before.clone(),
            (Ok(planned), _) => planned,
            (Err(_), Some(before)) => before.clone(),
            // The host budget may rule out the smallest device budgets.
            (Err(Infeasible::Host { .. }), None) if index + 1 < n_points => continue,
            (Err(error), None) => return Err(error),
        };
        points.push(FrontierPoint { budget, planned });
    }
    Ok(points)
}

/// Plans made by [`least_memory`].
const MOST_STEPS: usize = 12;

/// The plan with the smallest device budget whose step takes at most `1 + slowdown` times that of `none`, and that budget.
///
/// Found by bisection, which takes it that more memory is not slower; so a smaller budget may exist, but the result keeps to the slowdown in any case.
/// `limits.device` is the most it may take. About a dozen plans.
///
/// # Errors
/// [`Infeasible`] as for the budget `limits.device`; [`Infeasible::Slow`] if even that is slower than allowed.
///
/// # Example
/// ```
/// use tensile_sched::{Bytes, Limits, Nanos, Op, Role, Tensile, Tensor, TensorId, Trace, frontier, least_memory};
/// # let tensor = |name: &str, role| Tensor { name: name.into(), bytes: Bytes(1 << 20), role, keep: false };
/// # let op = |reads: Vec<u32>, write: u32| Op {
/// #     class: "op".into(), label: format!("op{write}"), reads: reads.into_iter().map(TensorId).collect(), writes: vec![TensorId(write)],
/// #     updates: vec![], workspace: Bytes::ZERO, latency: Nanos(1_000_000), replayable: true, in_place: vec![],
/// # };
/// # let names = ["x", "a", "b", "c", "d", "e"];
/// # let mut tensors: Vec<Tensor> = names.iter().map(|name| tensor(name, Role::Activation)).collect();
/// # tensors[0].role = Role::Input;
/// # let ops = vec![op(vec![0], 1), op(vec![1], 2), op(vec![2], 3), op(vec![3, 2], 4), op(vec![4, 1], 5)];
/// # let trace = Trace::new(tensors, ops)?;
/// let limits = Limits::unlimited();
/// let curve = frontier(&Tensile::default(), &trace, &limits, 5)?;
/// assert!(curve.windows(2).all(|pair| pair[1].planned.simulation.step_time <= pair[0].planned.simulation.step_time));
///
/// let (budget, planned) = least_memory(&Tensile::default(), &trace, &limits, 0.25)?;
/// assert!(budget <= curve.last().unwrap().budget && planned.report.arena <= budget);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn least_memory(
    policy: &dyn Planner,
    trace: &Trace,
    limits: &Limits,
    slowdown: f64,
) -> Result<(Bytes, Planned), Infeasible> {
    let free = NoEviction.plan(trace, &Limits { device: Bytes::MAX, host: Bytes::MAX, ..limits.clone() })?;
    let allowed = Nanos((free.simulation.step_time.0 as f64 * (1.0 + slowdown.max(0.0))) as u64);
    let (mut low, highest) = range(policy, trace, limits)?;
    let mut high = highest.min(limits.device);
    let planned = policy.plan(trace, &Limits { device: high, ..limits.clone() })?;
    if planned.simulation.step_time > allowed {
        return Err(Infeasible::Slow { budget: high, time: planned.simulation.step_time, allowed });
    }
    let mut best = (high, planned);
    for _ in 0..MOST_STEPS {
        if low >= high {
            break;
        }
        let middle = Bytes(low.0 + (high.0 - low.0) / 2);
        match policy.plan(trace, &Limits { device: middle, ..limits.clone() }) {
            Ok(planned) if planned.simulation.step_time <= allowed => {
                // It may need even less than it was given.
                high = planned.report.arena.min(middle);
                best = (high, planned);
            }
            _ => low = middle + Bytes(1),
        }
    }
    Ok(best)
}

/// The lowest budget of a policy and the highest that makes a difference.
fn range(policy: &dyn Planner, trace: &Trace, limits: &Limits) -> Result<(Bytes, Bytes), Infeasible> {
    let unlimited = Limits { device: Bytes::MAX, host: Bytes::MAX, ..limits.clone() };
    let highest = NoEviction.plan(trace, &unlimited)?.report.arena;
    let lowest = match policy.plan(trace, &Limits { device: Bytes::ZERO, host: Bytes::MAX, ..limits.clone() }) {
        Ok(_) => Bytes::ZERO,
        Err(Infeasible::Device { lowest, .. }) => lowest,
        Err(error) => return Err(error),
    };
    Ok((lowest, highest.max(lowest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Mode;
    use crate::planner::{Effort, Tensile};
    use crate::testing::{op, trace};
    use crate::trace::Role;

    /// Eight layers there and back.
    fn chain() -> Trace {
        let mut tensors = vec![(4096, Role::Parameter)];
        tensors.extend((0..16).map(|_| (1 << 20, Role::Activation)));
        let mut ops = vec![op(50_000, &[0], &[1])];
        ops.extend((1..8).map(|layer| op(50_000, &[layer], &[layer + 1])));
        ops.push(op(100_000, &[8], &[9]));
        ops.extend((1..8).map(|back| op(100_000, &[8 + back, 8 - back], &[9 + back])));
        trace(&tensors, ops)
    }

    #[test]
    fn more_memory_is_never_slower_and_the_ends_are_included() {
        for mode in [Mode::Swap, Mode::Recompute, Mode::Both] {
            let limits = Limits { mode, ..Limits::unlimited() };
            let policy = Tensile { effort: Effort::Fast };
            let curve = frontier(&policy, &chain(), &limits, 6).unwrap();
            assert_eq!(curve.len(), 6);
            assert_eq!(curve[0].budget, crate::floor(&chain(), &limits).unwrap().bytes);
            for pair in curve.windows(2) {
                assert!(pair[0].budget < pair[1].budget);
                assert!(pair[0].planned.simulation.step_time >= pair[1].planned.simulation.step_time);
            }
            assert!(curve.iter().all(|point| point.planned.report.arena <= point.budget));
            assert_eq!(curve[5].planned.simulation.step_time, chain().compute_time());
            assert!(curve[0].planned.simulation.step_time > chain().compute_time(), "the floor costs something");
        }
    }

    #[test]
    fn a_slowdown_buys_memory() {
        let limits = Limits { mode: Mode::Recompute, ..Limits::unlimited() };
        let policy = Tensile { effort: Effort::Fast };
        let none = NoEviction.plan(&chain(), &limits).unwrap();
        let (free, _) = least_memory(&policy, &chain(), &limits, 0.0).unwrap();
        let (some, planned) = least_memory(&policy, &chain(), &limits, 0.3).unwrap();
        assert!(some < free && free <= none.report.arena);
        assert!(planned.simulation.step_time.0 as f64 <= none.simulation.step_time.0 as f64 * 1.3);
        let tight = Limits { device: crate::floor(&chain(), &limits).unwrap().bytes, ..limits };
        let error = least_memory(&policy, &chain(), &tight, 0.0).unwrap_err();
        assert!(matches!(error, Infeasible::Slow { budget, .. } if budget == tight.device), "{error}");
    }
}
