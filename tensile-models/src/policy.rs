//! Planning policies by name.

use tensile_sched::Planner;
use tensile_sched::baseline::{NoEviction, Retain};
use tensile_sched::planner::Tensile;

/// All policies, the default first.
pub fn all() -> Vec<Box<dyn Planner>> {
    vec![Box::new(Tensile::default()), Box::new(NoEviction), Box::new(Retain)]
}

/// The policy of a name, if there is one.
pub fn find(name: &str) -> Option<Box<dyn Planner>> {
    all().into_iter().find(|policy| policy.name() == name)
}
