//! `vdnn-conv` and `vdnn-all`: Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", MICRO 2016
//! (arXiv 1602.08124), section III.
//!
//! ```text
//! layer        0         1         2         2'        1'        0'       ' = backward
//! compute  [fwd 0]   [fwd 1]   [fwd 2]   [bwd 2]   [bwd 1]   [bwd 0]
//! out       [x0    ]  [x1  ]                                               a layer's input feature map leaves while the layer itself reads it …
//! in                                      [x1  ]    [x0    ]               … and returns while a layer before runs its backward pass
//!                  ▲ the next layer starts when both have ended, here too ▲
//! ```
//!
//! - **Offload** (III-B): during the forward pass of a layer its input feature maps leave, if it is their last consumer in the forward pass; their bytes go when the layer and the
//!   copy have ended. `vdnn-all` does so for every layer, `vdnn-conv` for convolutions.
//! - **Prefetch** (III-B and its search for the layer to prefetch): when the backward pass of a layer starts, the nearest layer before it whose input has left starts to come back, but the search
//!   goes no further than the next convolution before, so that nothing comes too early. What was not prefetched comes when it is wanted.
//! - **Layer-wise synchronisation**: a layer starts when the copy that was started together with the layer before has ended. These waits are added to those that keep lanes from racing.
//!
//! A trace knows ops, not layers; here an op of the forward pass is a layer, and the forward pass ends where the first gradient is written. An op is a convolution if its class says `conv`.
//! An input feature map is any non-persistent tensor that it reads and that the backward pass reads again. A layer's backward pass starts with the first backward op that
//! reads its input feature maps.
//!
//! Differences: the plan is the same for every budget, as in the static policies of the paper (its dynamic one also picks convolution algorithms, which a trace fixes). The
//! classifier's feature maps, which the paper leaves alone because they are small, are treated as the others. All else is freed when it is dead, and in-place layers work in place, as
//! there. It only swaps; in [`Mode::Recompute`] nothing leaves.

use super::fit::fit_with;
use crate::id::{InstrId, TensorId};
use crate::limits::{Limits, Mode};
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::follow;
use crate::planner::{Infeasible, Planned, Planner};
use crate::program::{Instr, Synced, Wait};
use crate::trace::{Role, Trace};

/// Which layers offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Offload {
    /// Convolutions.
    #[default]
    Conv,
    /// All.
    All,
}

/// vDNN's static policies (Rhu et al., MICRO 2016): a layer's input feature maps leave during its forward pass and come back one layer ahead of its backward pass.
///
/// Linear, plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vdnn {
    /// Which layers do so.
    pub offload: Offload,
}

impl Planner for Vdnn {
    fn name(&self) -> &'static str {
        match self.offload {
            Offload::Conv => "vdnn-conv",
            Offload::All => "vdnn-all",
        }
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        let offloads = if limits.mode == Mode::Recompute { Vec::new() } else { offloads(&facts, self.offload) };
        let plan = plan_of(&facts, &offloads);
        let make = |_| follow(&facts, &plan).expect("a plan without reruns can be followed");
        fit_with(trace, limits, make, &|synced| synchronise(&offloads, synced))
    }
}

/// A feature map that leaves and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offloaded {
    tensor: TensorId,
    /// The op of the forward pass that reads it last.
    layer: usize,
    /// The first backward op that reads it.
    needed: usize,
    /// The backward op together with which it comes back, if it is prefetched, and the first op of the next layer's backward pass.
    prefetch: Option<(usize, usize)>,
}

fn offloads(facts: &Facts<'_>, offload: Offload) -> Vec<Offloaded> {
    let trace = facts.trace;
    let writes_gradient = |op: &crate::trace::Op| op.writes.iter().any(|&tensor| facts.role(tensor) == Role::Gradient);
    let n_layers = trace.ops().iter().position(writes_gradient).unwrap_or(0);
    let is_conv = |layer: usize| trace.ops()[layer].class.to_ascii_lowercase().contains("conv");
    let mut offloads: Vec<Offloaded> = Vec::new();
    // By layer, where its backward pass starts.
    let mut backward: Vec<Option<usize>> = vec![None; n_layers];
    for (layer, op) in trace.ops()[..n_layers].iter().enumerate() {
        for &tensor in op.reads.iter().filter(|&&tensor| !facts.is_persistent(tensor)) {
            let Some(needed) = facts.next_use(tensor, n_layers).filter(|&needed| needed < facts.n_ops()) else {
                continue;
            };
            backward[layer] = Some(backward[layer].map_or(needed, |first| first.min(needed)));
            let is_last = facts.next_use(tensor, layer + 1) == Some(needed);
            let leaves = offload == Offload::All || is_conv(layer);
            if is_last && leaves && needed > layer + 1 {
                offloads.push(Offloaded { tensor, layer, needed, prefetch: None });
            }
        }
    }
    let mut passes: Vec<(usize, usize)> =
        backward.iter().enumerate().filter_map(|(layer, &start)| Some((start?, layer))).collect();
    // Where one op starts several, the last layer's comes first.
    passes.sort_by_key(|&(start, layer)| (start, std::cmp::Reverse(layer)));
    for &(start, layer) in &passes {
        let next = passes.iter().map(|pass| pass.0).find(|&other| other > start).unwrap_or(start);
        for before in (0..layer).rev() {
            let mut found = false;
            for one in offloads.iter_mut().filter(|one| one.layer == before) {
                if one.prefetch.is_none() && one.needed > start {
                    one.prefetch = Some((start, next));
                    found = true;
                }
            }
            if found || is_conv(before) {
                break;
            }
        }
    }
    offloads
}

fn plan_of(facts: &Facts<'_>, offloads: &[Offloaded]) -> Plan {
    let mut plan = Plan::keep_all(facts);
    for one in offloads {
        if let Some(before) = one.layer.checked_sub(1) {
            plan.save_after[before].push(one.tensor);
        }
        plan.release_before[one.layer + 1].push((one.tensor, one.needed));
        if let Some((start, _)) = one.prefetch {
            plan.claim_before[start].push(one.tensor);
        }
    }
    plan
}

/// A layer starts when the copy that started with the layer before has ended.
fn synchronise(offloads: &[Offloaded], synced: &mut Synced) {
    let n_tensors = offloads.iter().map(|one| one.tensor.index() + 1).max().unwrap_or(0);
    // The latest copy of each tensor, out and in.
    let mut copies: [Vec<Option<InstrId>>; 2] = [vec![None; n_tensors], vec![None; n_tensors]];
    // Which copies the ops wait for: op, direction, tensor.
    let outs = offloads.iter().map(|one| (one.layer + 1, 0, one.tensor));
    let ins = offloads.iter().filter_map(|one| Some((one.prefetch?.1, 1, one.tensor)));
    let mut wanted: Vec<(usize, usize, TensorId)> = outs.chain(ins).collect();
    wanted.sort_unstable();
    for index in 0..synced.instrs().len() {
        let op = match &synced.instrs()[index] {
            &Instr::SwapOut(tensor) | &Instr::SwapIn(tensor) if tensor.index() < n_tensors => {
                let direction = usize::from(matches!(synced.instrs()[index], Instr::SwapIn(_)));
                copies[direction][tensor.index()] = Some(InstrId::from_index(index));
                continue;
            }
            Instr::Run { op, .. } => op.index(),
            _ => continue,
        };
        let first = wanted.partition_point(|one| one.0 < op);
        for direction in [0, 1] {
            let those = wanted[first..].iter().take_while(|one| one.0 == op).filter(|one| one.1 == direction);
            // Lanes run in order, so the latest stands for all.
            let Some(on) = those.filter_map(|one| copies[direction][one.2.index()]).max() else { continue };
            let waits = &mut synced.waits[index];
            let lane = synced.placed.program.instrs[on.index()].lane();
            let is_known = waits.iter().any(|wait| {
                !wait.previous_iteration
                    && wait.on >= on
                    && synced.placed.program.instrs[wait.on.index()].lane() == lane
            });
            if !is_known {
                waits.push(Wait { on, previous_iteration: false });
                waits.sort_unstable();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Bytes, Nanos};
    use crate::limits::Link;
    use crate::simulate::simulate;
    use crate::testing::{bytewise, op, trace};
    use crate::trace::Op;

    /// A byte takes a nanosecond.
    fn limits(device: u64) -> Limits {
        let link = Link { out_bytes_per_s: 1e9, in_bytes_per_s: 1e9, latency: Nanos::ZERO, ..Link::PCIE3_X16 };
        Limits { link, device: Bytes(device), ..bytewise() }
    }

    fn of_class(class: &str, op: Op) -> Op {
        Op { class: class.into(), ..op }
    }

    /// conv, relu, conv, relu, each with its backward op; every feature map has 100 bytes, every op takes 50 ns.
    ///
    /// ```text
    /// op     0 conv  1 relu  2 conv  3 relu  4 loss  5 relu' 6 conv' 7 relu' 8 conv'
    /// x=0    R                                                               R
    /// a=1    W       R                                               R
    /// b=2            W       R                               R
    /// c=3                    W       R               R
    /// d=4                            W       R
    /// g=5…                                   W       RW      RW      RW      R
    /// ```
    fn net() -> Trace {
        let mut tensors = vec![(100, Role::Input)];
        tensors.extend([(100, Role::Activation); 4]);
        tensors.extend([(100, Role::Gradient); 4]);
        let op = |class: &str, reads: &[u32], writes: &[u32]| of_class(class, op(50, reads, writes));
        trace(
            &tensors,
            vec![
                op("Conv2d", &[0], &[1]),
                op("relu", &[1], &[2]),
                op("Conv2d", &[2], &[3]),
                op("relu", &[3], &[4]),
                op("loss", &[4], &[5]),
                op("relu_grad", &[3, 5], &[6]),
                op("conv_grad", &[2, 6], &[7]),
                op("relu_grad", &[1, 7], &[8]),
                op("conv_grad", &[0, 8], &[]),
            ],
        )
    }

    fn found(offload: Offload) -> Vec<Offloaded> {
        let trace = net();
        let limits = limits(u64::MAX);
        offloads(&Facts::new(&trace, &limits), offload)
    }

    fn offloaded(tensor: u32, layer: usize, needed: usize, prefetch: Option<(usize, usize)>) -> Offloaded {
        Offloaded { tensor: TensorId(tensor), layer, needed, prefetch }
    }

    /// Only the convolutions' inputs leave. The search from relu 3 ends at convolution 2, so x comes back with convolution 2's backward pass, two ops ahead.
    #[test]
    fn vdnn_conv_offloads_inputs_of_convolutions() {
        let expected = [offloaded(0, 0, 8, Some((6, 7))), offloaded(2, 2, 6, Some((5, 6)))];
        assert_eq!(found(Offload::Conv), expected);
    }

    /// Every layer's input leaves and comes back with the backward pass of the layer behind it; the last layer's is fetched on demand.
    #[test]
    fn vdnn_all_prefetches_one_layer_ahead() {
        let expected = [
            offloaded(0, 0, 8, Some((7, 8))),
            offloaded(1, 1, 7, Some((6, 7))),
            offloaded(2, 2, 6, Some((5, 6))),
            offloaded(3, 3, 5, None),
        ];
        assert_eq!(found(Offload::All), expected);
    }

    /// A feature map that a later layer reads as well leaves with that one.
    #[test]
    fn only_the_last_consumer_offloads() {
        let mut trace = net();
        let mut ops = trace.ops().to_vec();
        ops[3].reads.push(TensorId(1));
        trace = Trace::new(trace.tensors().to_vec(), ops).unwrap();
        let limits = limits(u64::MAX);
        let offloads = offloads(&Facts::new(&trace, &limits), Offload::All);
        let of_a: Vec<usize> = offloads.iter().filter(|one| one.tensor == TensorId(1)).map(|one| one.layer).collect();
        assert_eq!(of_a, [3]);
    }

    /// Copies take twice as long as kernels, and each layer waits for that of the layer before: the forward pass of vdnn-all takes the copies of a, b and c
    /// (x has its host copy), whatever memory is free.
    #[test]
    fn layers_wait_for_copies() {
        let trace = net();
        let planner = Vdnn { offload: Offload::All };
        let lowest = match planner.plan(&trace, &limits(0)) {
            Err(Infeasible::Device { lowest, .. }) => lowest,
            other => panic!("{other:?}"),
        };
        let planned = planner.plan(&trace, &limits(lowest.0)).unwrap();
        let run = |wanted: usize| {
            let is_it = |instr: &Instr| matches!(instr, Instr::Run { op, .. } if op.index() == wanted);
            planned.synced.instrs().iter().position(is_it).unwrap()
        };
        let copy = |wanted: Instr| planned.synced.instrs().iter().position(|instr| *instr == wanted).unwrap();
        let simulation = simulate(&trace, &planned.synced, &limits(0).link);
        for (tensor, layer) in [(1, 1), (2, 2), (3, 3)] {
            let out = copy(Instr::SwapOut(TensorId(tensor)));
            assert!(run(layer - 1) < out && out < run(layer), "it leaves while the layer runs");
            assert!(simulation.spans[run(layer + 1)].start >= simulation.spans[out].end);
        }
        for (tensor, started, next) in [(2, 5, 6), (1, 6, 7), (0, 7, 8)] {
            let back = planned.synced.instrs().iter().rposition(|i| *i == Instr::SwapIn(TensorId(tensor))).unwrap();
            assert!(run(started - 1) < back && back < run(started));
            assert!(simulation.spans[run(next)].start >= simulation.spans[back].end);
        }
        // Three copies out and four back, x's first included, of 100 ns, where kernels take 50; conv 0 and the loss run alone.
        assert!(simulation.step_time.0 >= 3 * 100 + 3 * 100);
        assert!(simulation.overhead() > 0.5, "{}", simulation.overhead());
    }

    #[test]
    fn recomputation_alone_leaves_nothing_to_do() {
        let trace = net();
        let limits = Limits { mode: Mode::Recompute, ..limits(u64::MAX) };
        let none = crate::baseline::NoEviction.plan(&trace, &limits).unwrap().report.arena;
        match Vdnn::default().plan(&trace, &Limits { device: Bytes(0), ..limits }) {
            Err(Infeasible::Device { lowest, .. }) => assert_eq!(lowest, none),
            other => panic!("{other:?}"),
        }
    }
}
