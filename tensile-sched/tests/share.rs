//! What every division of a device must be, on random curves.

use proptest::collection::vec;
use proptest::prelude::*;
use tensile_sched::{
    Bytes, Claim, Curve, CurveError, Division, Effort, Limits, Nanos, ShareError, Tensile, divide, frontier,
    weighted_slowdown,
};

const DIVISIONS: [Division; 3] = [Division::Frontier, Division::Equal, Division::Proportional];

/// A curve of up to `most` points: budgets ascend by 1 to `step` bytes, times fall by up to 100 ns.
fn curve(most: usize, step: u64) -> impl Strategy<Value = Curve> {
    (vec((1..=step, 0..100_u64), 1..=most), 0..50_u64).prop_map(|(steps, least)| {
        let (mut budget, mut points) = (0, Vec::new());
        let mut time = least + steps.iter().map(|step| step.1).sum::<u64>();
        for (more, faster) in steps {
            budget += more;
            points.push((Bytes(budget), Nanos(time)));
            time -= faster;
        }
        Curve::new(points).expect("ascends and falls")
    })
}

/// Curves with weights, and a budget from what they need to a little more than what they can use.
fn problem(jobs: usize, points: usize, step: u64) -> impl Strategy<Value = (Vec<(Curve, f64)>, u64)> {
    let weight = prop_oneof![Just(1.0), Just(0.0), 0.1..10.0];
    vec((curve(points, step), weight), 1..=jobs).prop_flat_map(|jobs| {
        let (needed, usable) = (sum(jobs.iter().map(|job| job.0.lowest())), sum(jobs.iter().map(|job| job.0.full())));
        (Just(jobs), needed..=usable + 3)
    })
}

fn sum(bytes: impl Iterator<Item = Bytes>) -> u64 {
    bytes.map(|bytes| bytes.0).sum()
}

fn claims(jobs: &[(Curve, f64)]) -> Vec<Claim<'_>> {
    jobs.iter().map(|(curve, weight)| Claim { curve, weight: *weight }).collect()
}

fn slowdown(claims: &[Claim<'_>], budget: u64, division: Division) -> f64 {
    let shares = divide(claims, Bytes(budget), division).expect("the budget is enough");
    weighted_slowdown(claims, &shares).expect("each has what it needs")
}

/// The least weighted slowdown of all choices of points.
fn brute_force(claims: &[Claim<'_>], budget: u64) -> f64 {
    let mut sums = vec![(0, 0.0)];
    for claim in claims {
        let points = claim.curve.points();
        let least = points[points.len() - 1].1.0.max(1) as f64;
        let add = |&(bytes, cost): &(u64, f64)| {
            points
                .iter()
                .map(move |&(more, time)| (bytes + more.0, cost + claim.weight * (time.0.max(1) as f64 / least)))
        };
        sums = sums.iter().flat_map(add).collect();
    }
    sums.into_iter().filter(|sum| sum.0 <= budget).map(|sum| sum.1).fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn shares_fit_and_nothing_useful_is_left((jobs, budget) in problem(7, 9, 1000)) {
        let claims = claims(&jobs);
        for division in DIVISIONS {
            let shares = divide(&claims, Bytes(budget), division).unwrap();
            prop_assert_eq!(shares.len(), jobs.len());
            for (share, claim) in shares.iter().zip(&claims) {
                prop_assert!(claim.curve.lowest() <= *share && *share <= claim.curve.full(), "{:?}", division);
            }
            let usable = sum(claims.iter().map(|claim| claim.curve.full()));
            prop_assert_eq!(sum(shares.iter().copied()), budget.min(usable), "{:?}", division);
            prop_assert_eq!(divide(&claims, Bytes(budget), division).unwrap(), shares);
        }
    }

    #[test]
    fn the_frontier_division_is_the_best_choice((jobs, budget) in problem(4, 5, 30)) {
        let claims = claims(&jobs);
        prop_assert_eq!(slowdown(&claims, budget, Division::Frontier), brute_force(&claims, budget));
    }

    #[test]
    fn the_others_are_no_better((jobs, budget) in problem(8, 12, 1_000_000_000)) {
        let claims = claims(&jobs);
        let least = slowdown(&claims, budget, Division::Frontier);
        prop_assert!(least <= slowdown(&claims, budget, Division::Equal));
        prop_assert!(least <= slowdown(&claims, budget, Division::Proportional));
    }

    #[test]
    fn more_budget_is_never_slower((jobs, budget) in problem(5, 6, 40), more in 0..60_u64) {
        let claims = claims(&jobs);
        let (less, more) = (slowdown(&claims, budget, Division::Frontier), slowdown(&claims, budget + more, Division::Frontier));
        prop_assert!(more <= less);
    }

    /// Whoever has more than another has it because he needs it, or because the other cannot use more; likewise for fractions. All but for as many bytes as there are jobs, which do not divide.
    #[test]
    fn equal_and_proportional_are_what_they_say((jobs, budget) in problem(6, 5, 100_000)) {
        let claims = claims(&jobs);
        let odd = jobs.len() as u64;
        for division in [Division::Equal, Division::Proportional] {
            let shares = divide(&claims, Bytes(budget), division).unwrap();
            for (share, claim) in shares.iter().zip(&claims) {
                for (other, its) in shares.iter().zip(&claims) {
                    let (unit, its_unit) = match division {
                        Division::Proportional => (claim.curve.full().0 as f64, its.curve.full().0 as f64),
                        _ => (1.0, 1.0),
                    };
                    let has_more = share.0.saturating_sub(odd) as f64 / unit > (other.0 + odd) as f64 / its_unit;
                    let is_held = share.0 <= claim.curve.lowest().0 + odd || *other == its.curve.full();
                    prop_assert!(!has_more || is_held, "{:?}: {:?}", division, shares);
                }
            }
        }
    }
}

/// Many long curves have more sums than are kept: still within the budget, no worse than the others, and near the bound of Lagrange multipliers.
#[test]
fn many_long_curves_are_divided_nearly_best() {
    let curve = |job: u64| {
        let point = |index: u64| {
            let budget = 1_000_003 * (index + 1) + (index * index * 7919 * (job + 3)) % 900_001;
            (Bytes(budget), Nanos(1_000_000 + 40_000_000 * (job + 1) / (index + 1)))
        };
        Curve::new((0..24).map(point).collect()).expect("ascends and falls")
    };
    let jobs: Vec<(Curve, f64)> = (0..12).map(|job| (curve(job), 1.0 + job as f64 / 7.0)).collect();
    let claims = claims(&jobs);
    let (needed, usable) = (sum(jobs.iter().map(|job| job.0.lowest())), sum(jobs.iter().map(|job| job.0.full())));
    for percent in [0, 1, 5, 20, 50, 80, 100] {
        let budget = needed + (usable - needed) * percent / 100;
        let shares = divide(&claims, Bytes(budget), Division::Frontier).unwrap();
        assert!(sum(shares.iter().copied()) <= budget);
        let least = weighted_slowdown(&claims, &shares).unwrap();
        for other in [Division::Equal, Division::Proportional] {
            assert!(least <= slowdown(&claims, budget, other), "{other:?} is better at {percent} %");
        }
        let bound = lagrange(&claims, budget);
        assert!(
            bound <= least * (1.0 + 1e-9) && least <= bound * 1.05,
            "{least}, and {bound} is the bound, at {percent} %"
        );
    }
}

/// A lower bound of the weighted slowdown: each chooses alone and pays for bytes; the best of many prices.
fn lagrange(claims: &[Claim<'_>], budget: u64) -> f64 {
    let bound = |price: f64| {
        let least = claims.iter().map(|claim| {
            let last = claim.curve.least_time().0 as f64;
            let costs = claim
                .curve
                .points()
                .iter()
                .map(|point| claim.weight * point.1.0 as f64 / last + price * point.0.0 as f64);
            costs.fold(f64::INFINITY, f64::min)
        });
        least.sum::<f64>() - price * budget as f64
    };
    (0..400).map(|step| bound(1e-10 * 1.07_f64.powi(step))).fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn what_does_not_fit_says_how_much_it_needs() {
    let curve = Curve::new(vec![(Bytes(10), Nanos(2)), (Bytes(20), Nanos(1))]).unwrap();
    let claim = Claim { curve: &curve, weight: 1.0 };
    for division in DIVISIONS {
        let error = divide(&[claim; 3], Bytes(29), division).unwrap_err();
        assert_eq!(error, ShareError::TooMuch { needed: Bytes(30), budget: Bytes(29) });
        assert_eq!(divide(&[claim; 3], Bytes(30), division), Ok(vec![Bytes(10); 3]));
        assert_eq!(divide(&[claim; 3], Bytes::MAX, division), Ok(vec![Bytes(20); 3]));
        assert_eq!(divide(&[], Bytes(5), division), Ok(vec![]));
        for weight in [f64::NAN, -1.0, f64::INFINITY] {
            let error = divide(&[claim, Claim { weight, ..claim }], Bytes(100), division);
            assert!(matches!(error, Err(ShareError::Weight { claim: 1, .. })), "{weight}");
        }
    }
    let error = divide(&[claim; 3], Bytes(29), Division::Frontier).unwrap_err().to_string();
    assert_eq!(error, "the jobs need 30 B (30 bytes) together at least, and there are 29 B (29 bytes)");
}

#[test]
fn limits_of_the_numbers_do_no_harm() {
    let huge =
        Curve::new(vec![(Bytes(0), Nanos::MAX), (Bytes(u64::MAX - 1), Nanos(5)), (Bytes::MAX, Nanos(0))]).unwrap();
    let claim = Claim { curve: &huge, weight: f64::MAX };
    for division in DIVISIONS {
        let shares = divide(&[claim; 3], Bytes::MAX, division).unwrap();
        assert_eq!(shares.iter().map(|share| u128::from(share.0)).sum::<u128>(), u128::from(u64::MAX), "{division:?}");
        let shares = divide(&[Claim { weight: 1.0, ..claim }], Bytes::MAX, division).unwrap();
        assert_eq!(shares, [Bytes::MAX]);
    }
}

#[test]
fn only_curves_are_curves() {
    let of =
        |points: &[(u64, u64)]| Curve::new(points.iter().map(|&(bytes, time)| (Bytes(bytes), Nanos(time))).collect());
    assert_eq!(of(&[]), Err(CurveError::Empty));
    let error = of(&[(1, 9), (2, 9), (2, 8)]).unwrap_err();
    assert_eq!(error, CurveError::Budget { point: 2, budget: Bytes(2), before: Bytes(2) });
    let error = of(&[(1, 9), (2, 10)]).unwrap_err();
    assert_eq!(error, CurveError::Time { point: 1, time: Nanos(10), before: Nanos(9) });
    let flat = of(&[(1, 9), (2, 9)]).unwrap();
    assert_eq!(
        (flat.time_at(Bytes(0)), flat.time_at(Bytes(1)), flat.slowdown_at(Bytes(7))),
        (None, Some(Nanos(9)), Some(1.0))
    );
}

/// What a planner finds is a curve.
#[test]
fn a_frontier_is_a_curve() {
    use tensile_sched::{Op, Role, Tensor, TensorId, Trace};
    let tensor = |role| Tensor { name: String::new(), bytes: Bytes(1 << 20), role, keep: false };
    let op = |reads: Vec<u32>, write: u32| Op {
        class: String::new(),
        label: String::new(),
        reads: reads.into_iter().map(TensorId).collect(),
        writes: vec![TensorId(write)],
        updates: vec![],
        workspace: Bytes::ZERO,
        latency: Nanos(1_000_000),
        replayable: true,
        in_place: vec![],
    };
    let mut tensors = vec![tensor(Role::Input)];
    tensors.extend((0..5).map(|_| tensor(Role::Activation)));
    let ops = vec![op(vec![0], 1), op(vec![1], 2), op(vec![2], 3), op(vec![3, 2], 4), op(vec![4, 1], 5)];
    let trace = Trace::new(tensors, ops).unwrap();
    let points = frontier(&Tensile { effort: Effort::Fast }, &trace, &Limits::unlimited(), 5).unwrap();
    let curve = Curve::try_from(points.as_slice()).unwrap();
    assert_eq!(curve.points().len(), points.len());
    assert_eq!((curve.lowest(), curve.full()), (points[0].budget, points[points.len() - 1].budget));
    assert_eq!(curve.time_at(curve.full()), Some(points[points.len() - 1].planned.simulation.step_time));
}
