//! The choice of one point from each curve: a knapsack, solved claim by claim over the sums that no other sum beats.
//!
//! ```text
//! cost |x                       x  a sum of points of the claims so far; the next claim adds each of its points to each of them,
//!      | x   o                  o  a sum that takes more bytes and costs no less than some x: dropped
//!      |    x
//!      |      o  x
//!      +------------- bytes
//! ```
//! The lists do not depend on the budget, which only decides what is taken from the last one; so more budget never costs more.

use super::Claim;
use crate::id::Bytes;

/// Sums kept for the claims up to one.
const MOST_SUMS: usize = 1 << 14;

/// The cheapest sum within a budget.
pub(super) struct Choice {
    pub(super) shares: Vec<Bytes>,
    /// Whether all sums were looked at.
    pub(super) is_exact: bool,
}

/// A sum over the claims up to one.
#[derive(Clone, Copy)]
struct Sum {
    bytes: Bytes,
    cost: f64,
    /// The sum over the claims before, and the point of this claim.
    before: usize,
    point: usize,
}

/// The lowest budgets must fit the budget together.
pub(super) fn choose(claims: &[Claim<'_>], budget: Bytes) -> Choice {
    let disputed: u128 = claims.iter().map(|claim| u128::from(claim.curve.full().0 - claim.curve.lowest().0)).sum();
    let mut is_exact = true;
    let mut lists: Vec<Vec<Sum>> = Vec::with_capacity(claims.len());
    let nothing = vec![Sum { bytes: Bytes::ZERO, cost: 0.0, before: 0, point: 0 }];
    for claim in claims {
        let mut sums = unbeaten(add(lists.last().unwrap_or(&nothing), claim));
        if sums.len() > MOST_SUMS {
            is_exact = false;
            thin(&mut sums, disputed);
        }
        lists.push(sums);
    }
    let mut shares = vec![Bytes::ZERO; claims.len()];
    if let Some(last) = lists.last() {
        // Costs fall as bytes rise, so the last that fits is the cheapest.
        let mut index = last.partition_point(|sum| sum.bytes <= budget).saturating_sub(1);
        for ((share, claim), sums) in shares.iter_mut().zip(claims).zip(&lists).rev() {
            let sum = sums[index];
            *share = claim.curve.points()[sum.point].0;
            index = sum.before;
        }
    }
    Choice { shares, is_exact }
}

/// Each point of the claim added to each sum.
fn add(sums: &[Sum], claim: &Claim<'_>) -> Vec<Sum> {
    let points = claim.curve.points().iter().enumerate();
    points
        .flat_map(|(point, &(bytes, time))| {
            let cost = claim.weight * claim.curve.slowdown(time);
            sums.iter().enumerate().map(move |(before, sum)| Sum {
                bytes: sum.bytes.saturating_add(bytes),
                cost: sum.cost + cost,
                before,
                point,
            })
        })
        .collect()
}

/// By ascending bytes and falling cost.
fn unbeaten(mut sums: Vec<Sum>) -> Vec<Sum> {
    // Stable, so of equal sums the first stays. The list is one of sorted runs.
    sums.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.cost.total_cmp(&b.cost)));
    let mut least = None;
    sums.retain(|sum| {
        let stays = least.is_none_or(|least| sum.cost < least);
        if stays {
            least = Some(sum.cost);
        }
        stays
    });
    sums
}

/// Keeps of each `MOST_SUMS`-th part of the disputed bytes the smallest sum, and the largest of all.
fn thin(sums: &mut Vec<Sum>, disputed: u128) {
    let (first, last) = (sums[0].bytes, sums[sums.len() - 1].bytes);
    let mut latest = None;
    sums.retain(|sum| {
        let part = u128::from((sum.bytes - first).0) * MOST_SUMS as u128 / disputed.max(1);
        latest.replace(part) != Some(part) || sum.bytes == last
    });
}
