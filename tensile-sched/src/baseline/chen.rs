//! `chen-sqrt`: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016, arXiv 1604.06174), sections 4.2 and 4.3.
//!
//! ```text
//! forward    [ a  b  c ]  [ d  e  f ]  [ g  h  i ]     segments; the last result of each is kept, the others are dropped
//! kept              c            f       g  h  i
//! backward                             i' h' g'   d e  f' e' d'   a b  c' b' a'     each segment but the last is computed again when its turn comes
//! ```
//!
//! With segments of about √n equal layers this takes O(√n) memory and one forward pass more. For layers of different sizes the planning with a budget B (algorithm 3) walks the forward
//! pass and ends a segment where the sizes of its results exceed B; B is found by search (section 4.3): a first pass gives x, the bytes kept at the ends of segments, and y, those of the largest segment, and
//! `B = √(x·y)` is the middle of a grid of six values from B/√2 to √2·B.
//!
//! For a device budget the plan with the least time among those that fit is taken: those of the grid, and of powers of two from the largest result to all of them, so that more memory means fewer reruns.
//!
//! Differences:
//! - A segment ends only where all that the rest of the forward pass reads is kept anyway, for the backward pass: those are the candidates C of algorithm 3. Where the paper would keep a tensor
//!   for recomputation alone, the cut moves on to the next candidate.
//! - The last segment is not dropped: the backward pass begins with it.
//! - Where forward turns to backward is found by [`Forward`](super::forward::Forward).
//! - Only what legal reruns bring back is dropped. Reruns are those that are needed for the op at hand and what they make stays until its last use, which over a segment is the same as running it as a whole.
//! - The plan for nested segments (section 4.4) is not part of it. It recomputes only; in [`Mode::Swap`] nothing is dropped.

use super::fit;
use super::forward::{Forward, Stashed};
use super::tally::tally;
use crate::id::TensorId;
use crate::limits::{Limits, Mode};
use crate::planner::facts::Facts;
use crate::planner::plan::Plan;
use crate::planner::walk::follow;
use crate::planner::{Infeasible, Planned, Planner};
use crate::program::Program;
use crate::trace::Trace;

/// Sublinear memory (Chen et al. 2016): the forward pass is cut into segments, what a segment makes is dropped but for its end, and made again for the backward pass.
///
/// Some two dozen walks of the step, plus layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChenSqrt;

impl Planner for ChenSqrt {
    fn name(&self) -> &'static str {
        "chen-sqrt"
    }

    fn plan(&self, trace: &Trace, limits: &Limits) -> Result<Planned, Infeasible> {
        let facts = Facts::new(trace, limits);
        let candidates = candidates(&facts);
        fit(trace, limits, |cap| {
            let fitting = candidates.iter().filter(|one| one.peak <= cap).min_by_key(|one| (one.rerun_time, one.peak));
            let least = || candidates.iter().min_by_key(|one| (one.peak, one.rerun_time));
            fitting.or_else(least).expect("there is the one without cuts").program.clone()
        })
    }
}

/// A program and what it costs.
struct Candidate {
    program: Program,
    peak: u64,
    rerun_time: u64,
}

/// The programs of all sizes of segments, first the one that drops nothing.
fn candidates(facts: &Facts<'_>) -> Vec<Candidate> {
    let mut made = Vec::new();
    let mut add = |drops: &[Stashed]| {
        let mut plan = Plan::keep_all(facts);
        for one in drops {
            plan.drop_after[one.last].push(one.tensor);
        }
        if let Ok(program) = follow(facts, &plan) {
            let tally = tally(facts, &program);
            made.push(Candidate { program, peak: tally.peak, rerun_time: tally.rerun_time });
        }
    };
    add(&[]);
    if facts.limits.mode == Mode::Swap {
        return made;
    }
    let forward = Forward::new(facts);
    let layers = Layers::new(facts, &forward);
    let mut sizes: Vec<u64> = Vec::new();
    let mut size = layers.bytes.iter().copied().max().unwrap_or(0).max(1);
    let total: u64 = layers.bytes.iter().sum();
    while size < total {
        sizes.push(size);
        size *= 2;
    }
    // All in one segment.
    sizes.push(total);
    let first = layers.segments(*sizes.get(sizes.len() / 2).unwrap_or(&total));
    let middle = ((first.kept as f64) * (first.largest as f64)).sqrt();
    sizes.extend((0..6).map(|step| (middle * 2f64.powf(f64::from(step) / 5.0 - 0.5)) as u64));
    sizes.sort_unstable();
    sizes.dedup();
    let mut before: Option<Vec<Stashed>> = None;
    for size in sizes {
        let drops = layers.segments(size).drops;
        if before.as_ref() != Some(&drops) {
            add(&drops);
            before = Some(drops);
        }
    }
    made
}

/// The forward pass as algorithm 3 sees it.
struct Layers<'a> {
    facts: &'a Facts<'a>,
    forward: &'a Forward,
    /// Bytes of results that the backward pass needs, by the op that makes them.
    bytes: Vec<u64>,
    /// Whether a segment may end behind an op.
    may_end: Vec<bool>,
}

/// What one pass of algorithm 3 gives.
struct Segments {
    /// Dropped behind their last use in the forward pass.
    drops: Vec<Stashed>,
    /// x: bytes that are kept at the ends of segments.
    kept: u64,
    /// y: bytes of the largest segment.
    largest: u64,
}

impl<'a> Layers<'a> {
    fn new(facts: &'a Facts<'a>, forward: &'a Forward) -> Self {
        let mut bytes = vec![0; forward.end];
        let mut stashed = vec![false; facts.trace.tensors().len()];
        for one in &forward.stash {
            stashed[one.tensor.index()] = true;
            if facts.trace.producer(one.tensor).is_some() {
                bytes[Forward::begins(facts, one.tensor)] += facts.bytes(one.tensor);
            }
        }
        // How many tensors are made before, read behind, and not kept for the backward pass.
        let mut crossing = vec![0i64; forward.end + 1];
        let is_lost = |tensor: &TensorId| facts.trace.producer(*tensor).is_some() && !stashed[tensor.index()];
        for tensor in facts.trace.tensor_ids().filter(is_lost) {
            let (begin, last) =
                (Forward::begins(facts, tensor), facts.live.last_use(tensor).map_or(0, |op| op.index()));
            if begin < forward.end && last > begin {
                crossing[begin] += 1;
                crossing[last.min(forward.end)] -= 1;
            }
        }
        let mut n_crossing = 0;
        let may_end = crossing[..forward.end].iter().map(|change| {
            n_crossing += change;
            n_crossing == 0
        });
        Self { facts, forward, bytes, may_end: may_end.collect() }
    }

    fn segments(&self, size: u64) -> Segments {
        // By op, the number of its segment.
        let mut segment_of = Vec::with_capacity(self.forward.end);
        let (mut segment, mut sum, mut largest) = (0, 0, 0);
        for op in 0..self.forward.end {
            segment_of.push(segment);
            sum += self.bytes[op];
            largest = largest.max(sum);
            if sum > size && self.may_end[op] {
                segment += 1;
                sum = 0;
            }
        }
        let (mut drops, mut kept) = (Vec::new(), 0);
        for one in &self.forward.stash {
            let segment = segment_of[Forward::begins(self.facts, one.tensor)];
            if segment == segment_of[self.forward.end - 1] {
                continue;
            }
            let leaves_segment = segment_of[one.last] != segment;
            if leaves_segment || !Forward::can_be_made_again(self.facts, one) {
                kept += self.facts.bytes(one.tensor);
            } else {
                drops.push(*one);
            }
        }
        Segments { drops, kept, largest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Bytes;
    use crate::program::Instr;
    use crate::testing::{op, trace};
    use crate::trace::Role;

    const UNIT: u64 = 256;

    /// Nine equal layers forward and backward: activation k + 1 from k; gradient 10 + k from the one before and the activations k and k − 1 of its layer.
    fn chain() -> Trace {
        let mut sizes = vec![(UNIT, Role::Input)];
        sizes.extend([(UNIT, Role::Activation); 9]);
        sizes.extend([(UNIT, Role::Gradient); 10]);
        let mut ops: Vec<_> = (0..9).map(|layer| op(10, &[layer], &[layer + 1])).collect();
        ops.push(op(10, &[9], &[10]));
        ops.extend((0..9).map(|step| op(20, &[10 + step, 9 - step, 8 - step], &[11 + step])));
        trace(&sizes, ops)
    }

    #[test]
    fn segments_of_three_take_one_forward_pass_more() {
        let trace = chain();
        let limits = Limits::with_budget(Bytes(8 * UNIT));
        let facts = Facts::new(&trace, &limits);
        let forward = Forward::new(&facts);
        assert_eq!(forward.end, 9);
        let layers = Layers::new(&facts, &forward);
        let segments = layers.segments(2 * UNIT);
        // Kept: the input, 3 and 6, which later segments read, and the last segment; the largest makes three.
        assert_eq!(segments.drops.iter().map(|one| one.tensor.0).collect::<Vec<_>>(), [1, 2, 4, 5]);
        assert_eq!((segments.kept, segments.largest), (3 * UNIT, 3 * UNIT));

        let none = crate::NoEviction.plan(&trace, &Limits::unlimited()).expect("no limit");
        // The input, nine activations and two gradients, when the backward pass begins.
        assert_eq!(none.report.arena, Bytes(12 * UNIT));
        let planned = ChenSqrt.plan(&trace, &limits).expect("eight units are enough");
        assert!(planned.report.arena <= limits.device);
        let reruns = planned.synced.instrs().iter().filter(|instr| matches!(instr, Instr::Rerun { .. })).count();
        assert_eq!(reruns, 4);
    }

    #[test]
    fn what_others_read_later_is_not_lost_at_a_cut() {
        // 1 is read by ops 1 and 2 and by nobody afterwards, so no segment ends behind op 0 or op 1.
        let mut sizes = vec![(UNIT, Role::Input)];
        sizes.extend([(UNIT, Role::Activation); 4]);
        let ops =
            vec![op(1, &[0], &[1]), op(1, &[1], &[2]), op(1, &[1, 2], &[3]), op(1, &[3], &[4]), op(1, &[2, 3, 4], &[])];
        let trace = trace(&sizes, ops);
        let limits = Limits::unlimited();
        let facts = Facts::new(&trace, &limits);
        let forward = Forward::new(&facts);
        assert_eq!(forward.end, 3);
        assert_eq!(Layers::new(&facts, &forward).may_end, [false, false, true]);
    }
}
