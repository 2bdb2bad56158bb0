//! The least device budget under which a step can run at all.

use crate::baseline::NoEviction;
use crate::borders::Borders;
use crate::id::{Bytes, OpId, TensorId};
use crate::limits::{Limits, Mode};
use crate::liveness::Liveness;
use crate::planner::{Infeasible, Planner, recompute_floor};
use crate::trace::Trace;

/// The least device budget, and the op that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Floor {
    /// Bytes, rounded up to the alignment.
    pub bytes: Bytes,
    /// With swapping the op whose tensors need them; the last op where it is the end of the step that does (kept tensors, or the residents
    /// of a given boundary). By recomputation alone, and where blocks make `none`'s program the smallest, the op at the peak of plain liveness. `op0` for a trace without ops.
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
/// - Where a working set needs more than one block of the device ([`Limits::max_block`]), the arena it takes is that of a packing into blocks: largest first, each into the first block with room, the emptiest
///   block last. That is a bin packing, of which the best is hard to find, so a published policy may happen to run in less. `Tensile` claims nothing below, but that `none`'s arena is enough where it is smaller.
/// - By recomputation alone ([`Mode::Recompute`]) no such closed form is known. The floor is the arena of the smallest program that a fixed, budget-independent
///   search finds (`recompute_floor` in `planner/tensile/mod.rs`). A plan for a budget a little below may succeed all the same, for it tries other programs.
///
/// `limits.device` and `limits.host` are not looked at. Linear in the number of accesses with swapping, and one layout of `none` if a working set needs more than a block; some dozens of planning
/// passes without.
///
/// # Errors
/// [`Infeasible::Block`] if a tensor or workspace that must be on the device is above the largest block (it names `op0` if no op touches it); [`Infeasible::Boundary`] if the given
/// boundary does not fit the trace.
pub fn floor(trace: &Trace, limits: &Limits) -> Result<Floor, Infeasible> {
    check_blocks(trace, limits)?;
    check_boundary(trace, limits)?;
    match limits.mode {
        Mode::Swap | Mode::Both => {
            let floor = swap_floor(trace, limits);
            if floor.bytes <= limits.block() {
                return Ok(floor);
            }
            match NoEviction.plan(trace, &Limits { device: floor.bytes - Bytes(1), host: Bytes::MAX, ..limits.clone() })
            {
                Ok(none) => Ok(Floor { bytes: none.report.arena, op: Liveness::new(trace).peak(trace, limits).op }),
                Err(Infeasible::Device { .. }) => Ok(floor),
                Err(error) => Err(error),
            }
        }
        Mode::Recompute => recompute_floor(trace, limits),
    }
}

/// The floor of modes with swapping, unless blocks make it larger than `none`'s arena.
pub(crate) fn swap_floor(trace: &Trace, limits: &Limits) -> Floor {
    let mut floor = Floor { bytes: Bytes::ZERO, op: OpId(0) };
    for op in trace.op_ids() {
        let bytes = working_set(trace, limits, op);
        let bytes = if bytes <= limits.block() { bytes } else { WorkingPlaces::new(trace, limits, op).extent };
        if bytes > floor.bytes {
            floor = Floor { bytes, op };
        }
    }
    let end = EndPlaces::new(trace, limits).extent;
    if end > floor.bytes {
        floor = Floor { bytes: end, op: OpId::from_index(trace.ops().len().saturating_sub(1)) };
    }
    floor
}

/// Bytes that must be on the device at once for one op, all in-place pairs used.
pub(crate) fn working_set(trace: &Trace, limits: &Limits, op: OpId) -> Bytes {
    let of = trace.op(op);
    let tensors = of.reads.iter().chain(&of.writes).chain(&of.updates);
    let all: Bytes = tensors.map(|&tensor| limits.occupied(trace.tensor(tensor).bytes)).sum();
    let shared: Bytes = of.in_place.iter().map(|pair| limits.occupied(trace.tensor(pair.output).bytes)).sum();
    all - shared + limits.occupied(of.workspace)
}

/// Where what one op touches goes if nothing else is on the device, all in-place pairs used.
///
/// One behind the other from address 0 on, where a block of the device holds it all. Otherwise in blocks: largest first, each into the first block with room; then the blocks are put in order of how full they
/// are, the fullest first, so that the last one may be short.
///
/// k² for k tensors.
pub(crate) struct WorkingPlaces {
    /// Of the op's reads, of its updates, of its writes that take no input's bytes, and of its workspace if it has one.
    pub(crate) addresses: Vec<Bytes>,
    /// The highest end.
    pub(crate) extent: Bytes,
}

impl WorkingPlaces {
    pub(crate) fn new(trace: &Trace, limits: &Limits, op: OpId) -> Self {
        let of = trace.op(op);
        let own = of.writes.iter().filter(|&&tensor| !of.in_place.iter().any(|pair| pair.output == tensor));
        let tensors = of.reads.iter().chain(&of.updates).chain(own);
        let mut sizes: Vec<Bytes> = tensors.map(|&tensor| limits.occupied(trace.tensor(tensor).bytes)).collect();
        sizes.extend((of.workspace > Bytes::ZERO).then(|| limits.occupied(of.workspace)));
        let block = limits.block();
        let all: Bytes = sizes.iter().copied().sum();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        if all > block {
            order.sort_by_key(|&index| std::cmp::Reverse(sizes[index]));
        }
        // What each block holds, and how much that is.
        let mut blocks: Vec<(Vec<usize>, Bytes)> = Vec::new();
        for index in order {
            let bytes = sizes[index];
            match blocks.iter_mut().find(|(_, used)| *used + bytes <= block) {
                Some((there, used)) => {
                    there.push(index);
                    *used += bytes;
                }
                None => blocks.push((vec![index], bytes)),
            }
        }
        blocks.sort_by_key(|&(_, used)| std::cmp::Reverse(used));
        let mut addresses = vec![Bytes::ZERO; sizes.len()];
        let (mut start, mut extent) = (Bytes::ZERO, Bytes::ZERO);
        for (there, used) in blocks {
            let mut next = start;
            for index in there {
                addresses[index] = next;
                next += sizes[index];
            }
            extent = start + used;
            start = start.saturating_add(block);
        }
        Self { addresses, extent }
    }
}

/// Whether everything that has to be on the device fits into its largest block.
pub(crate) fn check_blocks(trace: &Trace, limits: &Limits) -> Result<(), Infeasible> {
    let max_block = limits.block();
    let fault = |op: OpId, bytes: Bytes| {
        let label = trace.ops().get(op.index()).map(|op| op.label.clone()).unwrap_or_default();
        Err(Infeasible::Block { op, label, bytes, max_block })
    };
    for op in trace.op_ids() {
        let of = trace.op(op);
        let tensors = of.reads.iter().chain(&of.writes).chain(&of.updates);
        let largest = tensors.map(|&tensor| trace.tensor(tensor).bytes).chain([of.workspace]).max();
        if let Some(bytes) = largest.filter(|&bytes| bytes > max_block) {
            return fault(op, bytes);
        }
    }
    let untouched = trace.tensors().iter().filter(|tensor| tensor.role.is_persistent() || tensor.keep);
    match untouched.map(|tensor| tensor.bytes).find(|&bytes| bytes > max_block) {
        Some(bytes) => fault(OpId(0), bytes),
        None => Ok(()),
    }
}

/// Whether a given boundary fits the trace: one home for each persistent tensor, at aligned addresses that do not overlap and within one block of the device each.
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
                if bytes > limits.block() {
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
        let room = Borders::every(limits.block().0).room(address.0);
        if limits.occupied(trace.tensor(tensor).bytes).0 > room {
            let border = address.0.saturating_add(room);
            return fault(format!(
                "tensor {tensor} at device address {} crosses the block border at {border}",
                address.0
            ));
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
/// gaps between them, largest first, each at the lowest address where it fits into a block of the device.
///
/// Without a given boundary, and in one block, the kept tensors stand one behind the other.
pub(crate) struct EndPlaces {
    /// By ascending id.
    pub(crate) places: Vec<(TensorId, Bytes)>,
    /// The highest end.
    pub(crate) extent: Bytes,
}

impl EndPlaces {
    pub(crate) fn new(trace: &Trace, limits: &Limits) -> Self {
        let borders = Borders::every(limits.block().0);
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
            let lift = |address: Bytes| Bytes(borders.lift(address.0, bytes.0));
            let mut address = lift(Bytes::ZERO);
            let mut slot = taken.len();
            for (index, &(start, end, _)) in taken.iter().enumerate() {
                if start >= address + bytes {
                    slot = index;
                    break;
                }
                address = lift(address.max(end));
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
    use crate::planner::Tensile;
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
        let expected = Infeasible::Block { op: OpId(0), label: String::new(), bytes: Bytes(40), max_block: Bytes(30) };
        assert_eq!(floor(&trace, &limits), Err(expected));
    }

    /// ```text
    /// block of 60 │ 40  10 │ 30  30 │      110 bytes in all; the fuller block first
    /// ```
    #[test]
    fn a_working_set_is_packed_into_blocks() {
        let sizes = [(30, Role::Input), (40, Role::Input), (30, Role::Activation), (30, Role::Activation)];
        let trace = trace(&sizes, vec![op(1, &[0, 1], &[2, 3]).with_in_place(0, 2).with_workspace(9)]);
        let with = |max_block| Limits { max_block: Bytes(max_block), alignment: Bytes(2), ..limits() };
        let places = |max_block| {
            let places = WorkingPlaces::new(&trace, &with(max_block), OpId(0));
            (places.addresses.iter().map(|at| at.0).collect::<Vec<_>>(), places.extent.0)
        };
        // t0 and with it t2, t1, t3, workspace.
        assert_eq!(places(110), (vec![0, 30, 70, 100], 110));
        assert_eq!(places(109), (vec![40, 0, 70, 108], 118));
        assert_eq!(places(60), (vec![0, 60, 30, 100], 110));
        assert_eq!(places(40), (vec![40, 0, 80, 70], 110));
        assert_eq!(floor(&trace, &with(109)).map(|floor| floor.bytes), Ok(Bytes(118)));
        for max_block in [40, 60, 110] {
            let floor = floor(&trace, &with(max_block)).unwrap();
            assert_eq!(floor, Floor { bytes: Bytes(110), op: OpId(0) });
        }
    }

    /// ```text
    /// block of 100 │ 40  40     │ 30  30  30   │ 30           largest first, first fit
    ///              │ 40  30  30 │ 40  30  30   │              as `none` is laid out
    /// ```
    #[test]
    fn the_floor_in_blocks_is_never_above_none() {
        let sizes = [40, 40, 30, 30, 30, 30].map(|bytes| (bytes, Role::Activation));
        let trace = trace(&sizes, vec![op(1, &[], &[0, 1, 2, 3, 4, 5])]);
        let limits = Limits { max_block: Bytes(100), alignment: Bytes(2), ..limits() };
        assert_eq!(swap_floor(&trace, &limits).bytes, Bytes(230));
        assert_eq!(floor(&trace, &limits), Ok(Floor { bytes: Bytes(200), op: OpId(0) }));
        let plan = |device| Tensile::default().plan(&trace, &Limits { device: Bytes(device), ..limits.clone() });
        assert_eq!(plan(200).map(|planned| planned.report.arena), Ok(Bytes(200)));
        assert!(matches!(plan(199), Err(Infeasible::Device { lowest: Bytes(200), .. })));
    }

    #[test]
    fn kept_tensors_and_given_homes_keep_clear_of_borders() {
        let mut trace =
            trace(&[(30, Role::Activation), (20, Role::Activation), (10, Role::Parameter)], vec![op(1, &[2], &[0, 1])]);
        let kept = trace
            .tensors()
            .iter()
            .map(|tensor| crate::trace::Tensor { keep: !tensor.role.is_persistent(), ..tensor.clone() });
        trace = Trace::new(kept.collect(), trace.ops().to_vec()).unwrap();
        let home = |device| Home { tensor: TensorId(2), device: Some(Bytes(device)), host: None };
        let places = |device, max_block| {
            let limits = Limits { max_block: Bytes(max_block), boundary: Some(vec![home(device)]), ..limits() };
            let end = EndPlaces::new(&trace, &limits);
            (end.places.iter().map(|&(_, at)| at.0).collect::<Vec<_>>(), end.extent.0)
        };
        assert_eq!(places(10, 100), (vec![20, 50, 10], 70));
        assert_eq!(places(10, 40), (vec![40, 20, 10], 70));
        assert_eq!(places(10, 30), (vec![30, 60, 10], 80));
        let across = Limits { max_block: Bytes(30), boundary: Some(vec![home(20)]), ..limits() };
        assert!(floor(&trace, &across).is_ok(), "it ends at the border");
        let mut wide = trace.tensors().to_vec();
        wide[2].bytes = Bytes(20);
        let wide = Trace::new(wide, trace.ops().to_vec()).unwrap();
        let Err(Infeasible::Boundary { reason }) = floor(&wide, &across) else { panic!("it crosses the border at 30") };
        assert!(reason.contains("crosses the block border at 30"), "{reason}");
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
