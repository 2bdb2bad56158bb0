//! The parts of a placed program that do not depend on its instructions: counts, boundary, homes, slots.

use crate::id::TensorId;
use crate::limits::Limits;
use crate::program::Placed;
use crate::trace::{Role, Trace};

use super::violation::{NamedTensor, Violation};

/// What is wrong with the shape; the instructions are looked at only if nothing is.
pub(super) fn violations(trace: &Trace, placed: &Placed, limits: &Limits) -> Vec<Violation> {
    let mut found = Vec::new();
    if !limits.alignment.0.is_power_of_two() {
        found.push(Violation::Alignment { alignment: limits.alignment });
    }
    let (instrs, placements) = (placed.program.instrs.len(), placed.layout.placements.len());
    if instrs != placements {
        found.push(Violation::PlacementCount { instrs, placements });
    }
    boundary(trace, placed, &mut found);
    homes(trace, placed, limits, &mut found);
    slots(trace, placed, &mut found);
    found.truncate(super::MOST_VIOLATIONS);
    found
}

fn boundary(trace: &Trace, placed: &Placed, found: &mut Vec<Violation>) {
    let mut before: Option<TensorId> = None;
    for (index, entry) in placed.program.boundary.iter().enumerate() {
        let tensor = entry.tensor;
        let reason = if tensor.index() >= trace.tensors().len() {
            "there is no such tensor"
        } else if !trace.tensor(tensor).role.is_persistent() {
            "it is not persistent"
        } else if before.is_some_and(|before| before >= tensor) {
            "ids must ascend"
        } else {
            before = Some(tensor);
            continue;
        };
        found.push(Violation::Boundary { index, tensor, reason });
    }
}

fn homes(trace: &Trace, placed: &Placed, limits: &Limits, found: &mut Vec<Violation>) {
    let homes = &placed.layout.homes;
    let persistent = trace.tensor_ids().filter(|&id| trace.tensor(id).role.is_persistent());
    if let Some((index, expected, found_there)) = first_difference(persistent, homes.iter().map(|home| home.tensor)) {
        found.push(Violation::HomeOrder { index, expected, found: found_there });
        return;
    }
    let mut in_boundary: Vec<Option<bool>> = vec![None; trace.tensors().len()];
    for entry in &placed.program.boundary {
        if let Some(slot) = in_boundary.get_mut(entry.tensor.index()) {
            *slot = Some(entry.host_valid);
        }
    }
    for home in homes {
        let resident = in_boundary[home.tensor.index()];
        let on_host = resident.unwrap_or(true);
        let tensor = || NamedTensor { id: home.tensor, name: trace.tensor(home.tensor).name.clone() };
        let mut report = |reason| found.push(Violation::Home { tensor: tensor(), reason });
        match (resident.is_some(), home.device.is_some()) {
            (true, false) => report("it is in the boundary, but has no device address"),
            (false, true) => report("it is not in the boundary, but has a device address"),
            _ => {}
        }
        match (on_host, home.host.is_some()) {
            (true, false) => report("its host copy is valid between steps, but it has no host address"),
            (false, true) => report("its host copy is not valid between steps, but it has a host address"),
            _ => {}
        }
    }
    if let Some(given) = &limits.boundary
        && given != homes
    {
        let same = given.iter().zip(homes).take_while(|(given, home)| given == home).count();
        found.push(Violation::GivenBoundary { index: same });
    }
}

fn slots(trace: &Trace, placed: &Placed, found: &mut Vec<Violation>) {
    let with_slots = trace.tensor_ids().filter(|&id| matches!(trace.tensor(id).role, Role::Input | Role::Output));
    let listed = placed.layout.slots.iter().map(|slots| slots.tensor);
    if let Some((index, expected, found_there)) = first_difference(with_slots, listed) {
        found.push(Violation::SlotOrder { index, expected, found: found_there });
    }
}

/// Where two lists differ first, and what stands there.
fn first_difference(
    mut expected: impl Iterator<Item = TensorId>,
    mut found: impl Iterator<Item = TensorId>,
) -> Option<(usize, Option<TensorId>, Option<TensorId>)> {
    for index in 0.. {
        match (expected.next(), found.next()) {
            (None, None) => return None,
            (due, there) if due != there => return Some((index, due, there)),
            _ => {}
        }
    }
    None
}
