//! What memory is worth to one job.

use crate::id::{Bytes, Nanos};
use crate::planner::FrontierPoint;

/// Step time against budget: a job within a budget takes the time of the highest point that the budget reaches.
///
/// ```
/// use tensile_sched::{Bytes, Nanos, share::Curve};
///
/// let curve = Curve::new(vec![(Bytes(100), Nanos(30)), (Bytes(200), Nanos(20))])?;
/// assert_eq!(curve.time_at(Bytes(99)), None);
/// assert_eq!(curve.time_at(Bytes(199)), Some(Nanos(30)));
/// assert_eq!(curve.slowdown_at(Bytes(199)), Some(1.5));
/// assert_eq!((curve.lowest(), curve.full()), (Bytes(100), Bytes(200)));
/// # Ok::<(), tensile_sched::share::CurveError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    points: Vec<(Bytes, Nanos)>,
}

/// Why points are not a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CurveError {
    /// There are none.
    #[error("a curve has at least one point")]
    Empty,
    /// A budget is not above the one before it.
    #[error("budgets ascend, but point {point} has {budget} ({} bytes) after {before} ({} bytes)", budget.0, before.0)]
    Budget {
        /// Position of the point.
        point: usize,
        /// Its budget.
        budget: Bytes,
        /// The budget of the point before it.
        before: Bytes,
    },
    /// A step takes longer with more memory.
    #[error("step times never rise, but point {point} has {time} ({} ns) after {before} ({} ns)", time.0, before.0)]
    Time {
        /// Position of the point.
        point: usize,
        /// Its step time.
        time: Nanos,
        /// The step time of the point before it.
        before: Nanos,
    },
}

impl Curve {
    /// A curve through points of budget and step time, by ascending budget; the last one is all that the job can use.
    ///
    /// # Errors
    /// [`CurveError`] if there are no points, budgets do not ascend or step times rise.
    pub fn new(points: Vec<(Bytes, Nanos)>) -> Result<Self, CurveError> {
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        for (point, pair) in (1..).zip(points.windows(2)) {
            let [(budget_before, time_before), (budget, time)] = [pair[0], pair[1]];
            if budget <= budget_before {
                return Err(CurveError::Budget { point, budget, before: budget_before });
            }
            if time > time_before {
                return Err(CurveError::Time { point, time, before: time_before });
            }
        }
        Ok(Self { points })
    }

    /// The points, by ascending budget.
    pub fn points(&self) -> &[(Bytes, Nanos)] {
        &self.points
    }

    /// The lowest budget within which the job runs.
    pub fn lowest(&self) -> Bytes {
        self.points[0].0
    }

    /// All that the job can use.
    pub fn full(&self) -> Bytes {
        self.last().0
    }

    /// The step time with all of it.
    pub fn least_time(&self) -> Nanos {
        self.last().1
    }

    /// The step time within a budget, or nothing if the job does not run in it. O(log points).
    pub fn time_at(&self, budget: Bytes) -> Option<Nanos> {
        let above = self.points.partition_point(|point| point.0 <= budget);
        above.checked_sub(1).map(|point| self.points[point].1)
    }

    /// The step time within a budget over the [least](Self::least_time), at least 1; nothing if the job does not run in it. O(log points).
    pub fn slowdown_at(&self, budget: Bytes) -> Option<f64> {
        self.time_at(budget).map(|time| self.slowdown(time))
    }

    pub(super) fn slowdown(&self, time: Nanos) -> f64 {
        // Of a step that takes no time each nanosecond more counts as once more.
        time.0.max(1) as f64 / self.least_time().0.max(1) as f64
    }

    /// The nearest point above `budget` with a shorter step, and how much of the slowdown it saves.
    pub(super) fn next_better(&self, budget: Bytes) -> Option<(Bytes, f64)> {
        let now = self.time_at(budget)?;
        let above = self.points.partition_point(|point| point.0 <= budget);
        let &(budget, time) = self.points[above..].iter().find(|point| point.1 < now)?;
        Some((budget, self.slowdown(now) - self.slowdown(time)))
    }

    fn last(&self) -> (Bytes, Nanos) {
        self.points[self.points.len() - 1]
    }
}

/// Budgets and the step times of their plans.
impl TryFrom<&[FrontierPoint]> for Curve {
    type Error = CurveError;

    fn try_from(points: &[FrontierPoint]) -> Result<Self, CurveError> {
        Self::new(points.iter().map(|point| (point.budget, point.planned.simulation.step_time)).collect())
    }
}
