//! Dividing the memory of one device among several jobs.
//!
//! Each job has a [`Curve`]: how long its step takes within each budget, as [`frontier`](crate::frontier()) finds it. What the device has is divided so that the jobs'
//! weighted slowdown, Σ weight × T(share) / T(full), is least. Equal and proportional shares are there to compare with.
//!
//! ```text
//! step      job A                    job B
//! time  |\                       |-.                A loses much below its knee, B little:
//!       | \_____                 |  `-.__           what A needs is taken from B
//!       +----|------ budget      +--|------- budget
//!          share                  share
//! ```

mod curve;
mod joint;

use crate::id::Bytes;
pub use curve::{Curve, CurveError};

/// One job that wants memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim<'a> {
    /// What memory is worth to it.
    pub curve: &'a Curve,
    /// How much its slowdown counts beside that of the others. Finite, not below zero.
    pub weight: f64,
}

/// How to divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Division {
    /// So that the weighted slowdown is least.
    #[default]
    Frontier,
    /// The same to each, whatever its weight.
    Equal,
    /// In proportion to what each would take if it could, whatever its weight.
    Proportional,
}

/// Why nothing can be divided.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// What the jobs need at least is more than there is.
    #[error("the jobs need {needed} ({} bytes) together at least, and there are {budget} ({} bytes)", needed.0, budget.0)]
    TooMuch {
        /// The sum of the lowest budgets.
        needed: Bytes,
        /// What there is.
        budget: Bytes,
    },
    /// A weight is not a number that can be compared.
    #[error("claim {claim} has weight {weight}; weights are finite and not below zero")]
    Weight {
        /// Position in the list of claims.
        claim: usize,
        /// Its weight.
        weight: f64,
    },
}

/// Divides `budget` among the claims: one share for each, in their order.
///
/// Each share is at least the lowest budget of its curve and at most the full one, and together they are within the budget; so bytes are left over only when all have what they can use.
///
/// - [`Division::Frontier`] takes of all choices of one point from each curve the one with the least weighted slowdown. What is left then goes where the next better point is nearest for
///   the time it saves, and at last to those who lack least.
/// - [`Division::Equal`] gives all the same, but to each at least what it needs and at most what it can use; what some cannot use goes to the others.
/// - [`Division::Proportional`] is the same with one fraction of the full budget for all.
///
/// Equal input gives equal shares. With more budget the weighted slowdown of `Frontier` never rises (as long as nothing is thinned, see below); the share of one job may fall.
///
/// # Complexity
/// `Frontier`: O(n p L log p) for n claims of p points, where L is the number of sums of points that no other sum beats in both bytes and slowdown: at most pⁿ. Beyond
/// 16,384 they are thinned: the choice is then at least as good as the best one for a budget that is smaller by n/16,384 of the disputed bytes (what the jobs could use together beyond their lowest budgets),
/// and no worse than the other two divisions. These take O(n).
///
/// # Errors
/// [`ShareError::TooMuch`] if the lowest budgets do not fit together; [`ShareError::Weight`].
///
/// # Example
/// ```
/// use tensile_sched::{Bytes, Nanos};
/// use tensile_sched::share::{Claim, Curve, Division, divide, weighted_slowdown};
///
/// let steep = Curve::new(vec![(Bytes(10), Nanos(400)), (Bytes(30), Nanos(100))])?;
/// let flat = Curve::new(vec![(Bytes(10), Nanos(110)), (Bytes(30), Nanos(100))])?;
/// let claims = [Claim { curve: &steep, weight: 1.0 }, Claim { curve: &flat, weight: 1.0 }];
///
/// let shares = divide(&claims, Bytes(40), Division::Frontier)?;
/// assert_eq!(shares, [Bytes(30), Bytes(10)]);
/// assert_eq!(weighted_slowdown(&claims, &shares), Some(2.1));
///
/// let equal = divide(&claims, Bytes(40), Division::Equal)?;
/// assert_eq!(equal, [Bytes(20), Bytes(20)]);
/// assert_eq!(weighted_slowdown(&claims, &equal), Some(5.1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn divide(claims: &[Claim<'_>], budget: Bytes, division: Division) -> Result<Vec<Bytes>, ShareError> {
    if let Some(claim) = claims.iter().position(|claim| !(claim.weight.is_finite() && claim.weight >= 0.0)) {
        return Err(ShareError::Weight { claim, weight: claims[claim].weight });
    }
    let needed = claims.iter().map(|claim| claim.curve.lowest()).fold(Bytes::ZERO, Bytes::saturating_add);
    if needed > budget {
        return Err(ShareError::TooMuch { needed, budget });
    }
    let mut shares = match division {
        Division::Frontier => along_frontiers(claims, budget),
        Division::Equal => equal(claims, budget),
        Division::Proportional => proportional(claims, budget),
    };
    hand_out(claims, &mut shares, budget);
    Ok(shares)
}

/// Σ weight × T(share) / T(full); nothing if a share is below what its job needs at least.
///
/// # Panics
/// If there is not one share for each claim.
pub fn weighted_slowdown(claims: &[Claim<'_>], shares: &[Bytes]) -> Option<f64> {
    assert_eq!(claims.len(), shares.len(), "one share for each claim");
    let costs = claims.iter().zip(shares).map(|(claim, &share)| Some(claim.weight * claim.curve.slowdown_at(share)?));
    costs.sum()
}

fn along_frontiers(claims: &[Claim<'_>], budget: Bytes) -> Vec<Bytes> {
    let joint::Choice { shares, is_exact } = joint::choose(claims, budget);
    if is_exact {
        return shares;
    }
    let others = [equal(claims, budget), proportional(claims, budget)];
    let cost = |shares: &Vec<Bytes>| weighted_slowdown(claims, shares).unwrap_or(f64::INFINITY);
    others.into_iter().fold(shares, |best, other| if cost(&other) < cost(&best) { other } else { best })
}

fn equal(claims: &[Claim<'_>], budget: Bytes) -> Vec<Bytes> {
    at_level(claims, budget, |level, _| level)
}

fn proportional(claims: &[Claim<'_>], budget: Bytes) -> Vec<Bytes> {
    at_level(claims, budget, |level, curve| ((u128::from(curve.full().0) * u128::from(level)) >> 64) as u64)
}

/// The highest level at which what `share` says, within what each claim needs and can use, fits the budget. At level 0 it does.
fn at_level(claims: &[Claim<'_>], budget: Bytes, share: impl Fn(u64, &Curve) -> u64) -> Vec<Bytes> {
    let shares = |level: u64| {
        let share = |claim: &Claim<'_>| share(level, claim.curve).clamp(claim.curve.lowest().0, claim.curve.full().0);
        claims.iter().map(share).map(Bytes).collect::<Vec<_>>()
    };
    let fits = |level: u64| {
        let sum = shares(level).iter().map(|share| u128::from(share.0)).sum::<u128>();
        sum <= u128::from(budget.0)
    };
    let (mut fitting, mut above) = (0, u64::MAX);
    while above - fitting > 1 {
        let middle = fitting + (above - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            above = middle;
        }
    }
    shares(fitting)
}

/// Gives what is left of the budget: first to who saves most for a byte on the way to its next better point, then to who lacks least.
fn hand_out(claims: &[Claim<'_>], shares: &mut [Bytes], budget: Bytes) {
    let mut left = shares.iter().fold(budget, |left, &share| left.saturating_sub(share));
    while left > Bytes::ZERO {
        let offers = claims.iter().zip(shares.iter()).enumerate().filter_map(|(index, (claim, &share))| {
            let (up_to, saved) = match claim.curve.next_better(share) {
                Some((budget, saved)) => (budget, claim.weight * saved),
                None => (claim.curve.full(), 0.0),
            };
            let lacking = up_to.saturating_sub(share);
            (lacking > Bytes::ZERO).then(|| (saved / lacking.0 as f64, lacking, index))
        });
        let best = offers.min_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let Some((_, lacking, index)) = best else { return };
        let given = lacking.min(left);
        shares[index] += given;
        left -= given;
    }
}
