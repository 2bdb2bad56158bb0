//! Linear programs, bounded from below through their duals.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, SolverStatus};

/// A variable: its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Var(usize);

/// Coefficients of a row.
pub(super) type Terms = Vec<(Var, f64)>;

/// Minimise `cost · x` where every row of `A x` is at most its right-hand side, and 0 ≤ x ≤ `upper`.
#[derive(Debug, Default)]
pub(super) struct Lp {
    cost: Vec<f64>,
    /// Infinite only for variables with a cost above zero.
    upper: Vec<f64>,
    rows: Vec<Terms>,
    rhs: Vec<f64>,
}

impl Lp {
    /// A new variable from 0 to `upper`, without a cost.
    pub(super) fn var(&mut self, upper: f64) -> Var {
        debug_assert!(upper.is_finite() && upper >= 0.0);
        self.cost.push(0.0);
        self.upper.push(upper);
        Var(self.cost.len() - 1)
    }

    /// A new variable from 0 up, that adds itself to the objective.
    pub(super) fn costly(&mut self) -> Var {
        self.cost.push(1.0);
        self.upper.push(f64::INFINITY);
        Var(self.cost.len() - 1)
    }

    /// `terms ≤ rhs`.
    pub(super) fn at_most(&mut self, terms: Terms, rhs: f64) {
        self.rows.push(terms);
        self.rhs.push(rhs);
    }

    /// A value that no feasible point is below: infinite if there is no feasible point.
    ///
    /// An interior-point solver gives the multipliers; the value is computed from them by weak duality: for any multipliers y ≥ 0 and any feasible x,
    /// `c·x ≥ c·x + y·(A x − b) ≥ −y·b + Σ min(0, (c + yᵀA)ᵢ) uᵢ`. So a solver that is not exact, or gives up early, makes the bound weaker but not wrong.
    pub(super) fn lower_bound(&self) -> f64 {
        let (n, n_rows) = (self.cost.len(), self.rows.len());
        let boxed: Vec<usize> = (0..n).filter(|&var| self.upper[var].is_finite()).collect();
        // Rows of the solver: ours, then -x ≤ 0, then x ≤ upper.
        let mut columns: Vec<Vec<(usize, f64)>> = vec![Vec::new(); n];
        for (row, terms) in self.rows.iter().enumerate() {
            for &(Var(var), factor) in terms {
                match columns[var].last_mut() {
                    Some(last) if last.0 == row => last.1 += factor,
                    _ => columns[var].push((row, factor)),
                }
            }
        }
        let mut matrix = columns.clone();
        for (var, column) in matrix.iter_mut().enumerate() {
            column.push((n_rows + var, -1.0));
        }
        for (index, &var) in boxed.iter().enumerate() {
            matrix[var].push((n_rows + n + index, 1.0));
        }
        let mut rhs = self.rhs.clone();
        rhs.resize(n_rows + n, 0.0);
        rhs.extend(boxed.iter().map(|&var| self.upper[var]));

        let mut starts = vec![0];
        let (mut rows, mut factors) = (Vec::new(), Vec::new());
        for column in &matrix {
            rows.extend(column.iter().map(|entry| entry.0));
            factors.extend(column.iter().map(|entry| entry.1));
            starts.push(rows.len());
        }
        let matrix = CscMatrix::new(rhs.len(), n, starts, rows, factors);
        let settings =
            DefaultSettings { verbose: false, max_iter: 100, presolve_enable: false, ..DefaultSettings::default() };
        let cones = [NonnegativeConeT(rhs.len())];
        let mut solver = DefaultSolver::new(&CscMatrix::zeros((n, n)), &self.cost, &matrix, &rhs, &cones, settings)
            .expect("dimensions agree");
        solver.solve();
        if matches!(solver.solution.status, SolverStatus::PrimalInfeasible | SolverStatus::AlmostPrimalInfeasible) {
            return f64::INFINITY;
        }
        self.weak_duality(&columns, &solver.solution.z[..n_rows]).max(0.0)
    }

    /// The bound that these multipliers give, negative ones taken as zero.
    fn weak_duality(&self, columns: &[Vec<(usize, f64)>], multipliers: &[f64]) -> f64 {
        let multiplier = |row: usize| if multipliers[row] > 0.0 { multipliers[row] } else { 0.0 };
        let gradient: Vec<f64> =
            columns.iter().map(|column| column.iter().map(|&(row, factor)| factor * multiplier(row)).sum()).collect();
        // Where a variable has no upper bound, its cost must cover what the multipliers promise; scaled down they do.
        let scale = (0..gradient.len())
            .filter(|&var| self.upper[var].is_infinite() && gradient[var] < -self.cost[var])
            .map(|var| self.cost[var] / -gradient[var])
            .fold(1.0, f64::min);
        let constant: f64 = self.rhs.iter().enumerate().map(|(row, rhs)| -rhs * multiplier(row)).sum();
        let boxes: f64 = (0..gradient.len())
            .filter(|&var| self.upper[var].is_finite())
            .map(|var| (self.cost[var] + scale * gradient[var]).min(0.0) * self.upper[var])
            .sum();
        scale * constant + boxes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_optimum_is_met_from_below() {
        // Two stalls s, t ≥ 0; x ≤ 1; 3 - 2x ≤ s + t, x ≤ t. Best is x = 1, s + t = 1.
        let mut lp = Lp::default();
        let (s, t, x) = (lp.costly(), lp.costly(), lp.var(1.0));
        lp.at_most(vec![(x, -2.0), (s, -1.0), (t, -1.0)], -3.0);
        lp.at_most(vec![(x, 1.0), (t, -1.0)], 0.0);
        let bound = lp.lower_bound();
        assert!(bound <= 1.0 && bound > 1.0 - 1e-6, "{bound}");
    }

    #[test]
    fn wrong_multipliers_weaken_the_bound_only() {
        let mut lp = Lp::default();
        let (s, x) = (lp.costly(), lp.var(1.0));
        lp.at_most(vec![(x, -2.0), (s, -1.0)], -3.0);
        let columns = vec![vec![(0, -1.0)], vec![(0, -2.0)]];
        for multiplier in [-1.0, 0.0, 0.5, 1.0, 1.5, 10.0] {
            assert!(lp.weak_duality(&columns, &[multiplier]) <= 1.0, "{multiplier}");
        }
        assert_eq!(lp.weak_duality(&columns, &[1.0]), 1.0);
    }

    #[test]
    fn no_feasible_point_means_no_limit() {
        let mut lp = Lp::default();
        let (s, x) = (lp.costly(), lp.var(1.0));
        lp.at_most(vec![(x, -2.0)], -3.0);
        lp.at_most(vec![(x, 1.0), (s, -1.0)], 0.0);
        assert_eq!(lp.lower_bound(), f64::INFINITY);
    }
}
