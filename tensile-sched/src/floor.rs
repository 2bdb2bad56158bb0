//! The least device budget under which a step can run at all.

use crate::id::{Bytes, OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::planner::Infeasible;
use crate::planner::recompute_floor;
use crate::trace::Trace;

/// The least device budget, and the op that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Floor {
    /// Bytes, rounded up to the alignment.
    pub bytes: Bytes,
    /// With swapping the op whose tensors need them; the last op where it is the end of the step that does (kept tensors, or the residents
    /// of a given boundary). By recomputation alone the op at the peak of plain liveness. `op0` for a trace without ops.
    pub op: OpId,
}

impl Floor {
    /// The error for a budget below this floor.
    pub fn infeasible(&self, trace: &Trace, limits: &Limits) -> Infeasible {
        Infeasible::Device {
            budget: limits.device,
            lowest: self.bytes,
            op: self.op,
            label: trace.ops().get(self.op.index()).map(|op| op.label.clone()).unwrap_or_default(),
        }
    }
}

/// The least device budget under which `Tensile` is sure to plan a step; it plans at every budget from there up.
///
/// - With swapping: the largest working set of one op, that is its reads, writes, updates and workspace, each in-place pair counted once,
///   everything rounded up to the alignment. No program of any planner runs in less. Everything else can be on the host while the op
///   runs. No plan succeeds below. If it is more, what must be on the device at the end: kept tensors together with the residents of a given boundary at
///   their addresses.
/// - By recomputation alone ([`Mode::Recompute`]) no such closed form is known. The floor is the arena of the smallest program that a fixed, budget-independent
///   search finds (`recompute_floor` in `planner/tensile/mod.rs`). A plan for a budget a little below may succeed all the same, for it tries other programs.
///
/// `limits.device` and `limits.host` are not looked at. Linear in the number of accesses with swapping; some dozens of planning passes without.
///
/// # Errors
/// [`Infeasible::Block`] if a tensor or workspace that must be on the device is above the largest block (it names `op0` if no op touches it); [`Infeasible::Boundary`] if the given
/// boundary does not fit the trace.
pub fn floor(trace: &Trace, limits: &Limits) -> Result<Floor, Infeasible> {
    check_blocks(trace, limits)?;
    check_boundary(trace, limits)?;
    match limits.mode {
        Mode::Swap | Mode::Both => {
            let end = EndPlaces::new(trace, limits).extent;
            let mut floor = Floor { bytes: Bytes::ZERO, op: OpId(0) };
            for op in trace.op_ids() {
                let bytes = working_set(trace, limits, op);
                if bytes > floor.bytes {
                    floor = Floor { bytes, op };
                }
            }
            if end > floor.bytes {
                floor = Floor { bytes: end, op: OpId::from_index(trace.ops().len().saturating_sub(1)) };
            }
            Ok(floor)
        }
        Mode::Recompute => recompute_floor(trace, limits),
    }
}

/// Bytes that must be on the device at once for one op, all in-place pairs used.
pub(crate) fn working_set(trace: &Trace, limits: &Limits, op: OpId) -> Bytes {
    let of = trace.op(op);
    let tensors = of.reads.iter().chain(&of.writes).chain(&of.updates);
    let all: Bytes = tensors.map(|&tensor| limits.occupied(trace.tensor(tensor).bytes)).sum();
    let shared: Bytes = of.in_place.iter().map(|pair| limits.occupied(trace.tensor(pair.output).bytes)).sum();
    all - shared + limits.occupied(of.workspace)
}

/// Whether everything that has to be on the device fits into its largest block.
pub(crate) fn check_blocks(trace: &Trace, limits: &Limits) -> Result<(), Infeasible> {
    let fault = |op: OpId, bytes: Bytes| {
        let label = trace.ops().get(op.index()).map(|op| op.label.clone()).unwrap_or_default();
        Err(Infeasible::Block { op, label, bytes, max_block: limits.max_block })
    };
    for op in trace.op_ids() {
        let of = trace.op(op);
        let tensors = of.reads.iter().chain(&of.writes).chain(&of.updates);
        let largest = tensors.map(|&tensor| trace.tensor(tensor).bytes).chain([of.workspace]).max();
        if let Some(bytes) = largest.filter(|&bytes| bytes > limits.max_block) {
            return fault(op, bytes);
        }
    }
    let untouched = trace.tensors().iter().filter(|tensor| tensor.role.is_persistent() || tensor.keep);
    match untouched.map(|tensor| tensor.bytes).find(|&bytes| bytes > limits.max_block) {
        Some(bytes) => fault(OpId(0), bytes),
        None => Ok(()),
    }
}

/// Whether a given boundary fits the trace: one home for each persistent tensor, at aligned addresses that do not overlap.
pub(crate) fn check_boundary(trace: &Trace, limits: &Limits) -> Result<(), Infeasible> {
    let Some(homes) = &limits.boundary else { return Ok(()) };
    let fault = |reason: String| Err(Infeasible::Boundary { reason });
    let persistent: Vec<TensorId> = trace.tensor_ids().filter(|&t| trace.tensor(t).role.is_persistent()).collect();
    if homes.len() != persistent.len() || homes.iter().zip(&persistent).any(|(home, &tensor)| home.tensor != tensor) {
        return fault(format!(
            "it lists {} tensors, not the {} persistent ones in order",
            homes.len(),
            persistent.len()
        ));
    }
    let mut on_device: Vec<(Bytes, Bytes, TensorId)> = Vec::new();
    for home in homes {
        let name = &trace.tensor(home.tensor).name;
        match (home.device, home.host) {
            (None, None) => {
                return fault(format!("tensor {} '{name}' is neither on the device nor on the host", home.tensor));
            }
            (None, Some(_)) if limits.mode == Mode::Recompute => {
                return fault(format!("tensor {} '{name}' is on the host, and this mode does not swap", home.tensor));
            }
            (Some(address), _) => {
                let bytes = trace.tensor(home.tensor).bytes;
                if bytes > limits.max_block {
                    return fault(format!("tensor {} '{name}' of {bytes} is above the largest block", home.tensor));
                }
                on_device.push((address, address.saturating_add(limits.occupied(bytes)), home.tensor));
            }
            (None, Some(_)) => {}
        }
    }
    on_device.sort_unstable();
    for &(address, _, tensor) in &on_device {
        if address.0 % limits.alignment.0 != 0 {
            return fault(format!("tensor {tensor} is at device address {}, which is not aligned", address.0));
        }
    }
    for pair in on_device.windows(2) {
        if pair[1].0 < pair[0].1 {
            return fault(format!("tensors {} and {} overlap on the device", pair[0].2, pair[1].2));
        }
    }
    Ok(())
}

/// Device addresses at the end of a step of all that must be there: residents of a given boundary at their homes, kept tensors in the
/// gaps between them, largest first, each at the lowest address where it fits.
///
/// Without a given boundary the kept tensors stand one behind the other.
pub(crate) struct EndPlaces {
    /// By ascending id.
    pub(crate) places: Vec<(TensorId, Bytes)>,
    /// The highest end.
    pub(crate) extent: Bytes,
}

impl EndPlaces {
    pub(crate) fn new(trace: &Trace, limits: &Limits) -> Self {
        let mut taken: Vec<(Bytes, Bytes, TensorId)> = Vec::new();
        for home in limits.boundary.iter().flatten() {
            if let Some(address) = home.device {
                taken.push((address, address + limits.occupied(trace.tensor(home.tensor).bytes), home.tensor));
            }
        }
        taken.sort_unstable();
        let mut kept: Vec<TensorId> = trace.tensor_ids().filter(|&tensor| trace.tensor(tensor).keep).collect();
        kept.sort_by_key(|&tensor| (std::cmp::Reverse(trace.tensor(tensor).bytes), tensor));
        for tensor in kept {
            let bytes = limits.occupied(trace.tensor(tensor).bytes);
            let mut address = Bytes::ZERO;
            let mut slot = taken.len();
            for (index, &(start, end, _)) in taken.iter().enumerate() {
                if start >= address + bytes {
                    slot = index;
                    break;
                }
                address = address.max(end);
            }
            taken.insert(slot, (address, address + bytes, tensor));
        }
        let extent = taken.iter().map(|&(_, end, _)| end).max().unwrap_or_default();
        let mut places: Vec<(TensorId, Bytes)> = taken.into_iter().map(|(start, _, tensor)| (tensor, start)).collect();
        places.sort_unstable();
        Self { places, extent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Home;
    use crate::testing::{op, trace};
    use crate::trace::Role;

    fn limits() -> Limits {
        Limits { alignment: Bytes(10), ..Limits::unlimited() }
    }

    #[test]
    fn the_largest_working_set_counts_pairs_once() {
        let trace = trace(
            &[(15, Role::Parameter), (40, Role::Activation), (40, Role::Activation), (1, Role::Activation)],
            vec![op(1, &[0], &[1]).with_workspace(5), op(1, &[1], &[2]).with_in_place(1, 2), op(1, &[1, 2], &[3])],
        );
        // op 0: 20 + 40 + 10; op 1: 40, once; op 2: 40 + 40 + 10.
        assert_eq!(floor(&trace, &limits()), Ok(Floor { bytes: Bytes(90), op: OpId(2) }));
    }

    #[test]
    fn blocks_above_the_limit_are_named() {
        let trace = trace(&[(15, Role::Parameter), (40, Role::Activation)], vec![op(1, &[0], &[1])]);
        let limits = Limits { max_block: Bytes(39), ..limits() };
        let expected = Infeasible::Block { op: OpId(0), label: String::new(), bytes: Bytes(40), max_block: Bytes(39) };
        assert_eq!(floor(&trace, &limits), Err(expected));
    }

    #[test]
    fn a_given_boundary_sets_the_floor_and_is_checked() {
        let trace = trace(&[(10, Role::Parameter), (10, Role::Parameter)], vec![op(1, &[0], &[])]);
        let home = |tensor, device| Home { tensor: TensorId(tensor), device: Some(Bytes(device)), host: None };
        let given = |homes| Limits { boundary: Some(homes), ..limits() };
        let ok = given(vec![home(0, 0), home(1, 50)]);
        assert_eq!(floor(&trace, &ok).map(|floor| floor.bytes), Ok(Bytes(60)));
        for wrong in [vec![home(0, 0)], vec![home(0, 0), home(1, 5)], vec![home(0, 20), home(1, 20)]] {
            assert!(matches!(floor(&trace, &given(wrong)), Err(Infeasible::Boundary { .. })));
        }
    }
}
