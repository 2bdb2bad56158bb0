//! When each tensor is needed: access sequences, idle intervals, and the memory that plain liveness needs.
//!
//! ```text
//! op            0     1     2     3     4
//! parameter p   R─────────────────────U──┐   persists: idle 0→4, and 4→0 of the next step
//!               └────────────────────────┘
//! activation x  W─────R───────────R          lives from its write to its last read; idle 1→3
//! input i             R                      comes by swap-in for its first read
//! ```

use crate::id::{Bytes, OpId, TensorId};
use crate::limits::Limits;
use crate::trace::{InPlace, Role, Trace};

/// How an op touches a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccessKind {
    /// Reads it and leaves it alone.
    Read,
    /// Makes it.
    Write,
    /// Reads it and changes it in place.
    Update,
}

/// One tensor access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    /// The op.
    pub op: OpId,
    /// How it touches the tensor.
    pub kind: AccessKind,
}

/// A span without an access to a tensor whose value is still needed: the chance to evict it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Idle {
    /// The tensor.
    pub tensor: TensorId,
    /// The access before.
    pub from: OpId,
    /// The access after.
    pub to: OpId,
    /// Whether `to` belongs to the next iteration (persistent tensors only).
    pub across_boundary: bool,
}

/// Most bytes on the device, and the op that runs at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peak {
    /// Bytes, each tensor rounded up to the alignment.
    pub bytes: Bytes,
    /// The first op with that many; `op0` for a trace without ops.
    pub op: OpId,
}

/// Access sequences of all tensors of one trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Accesses of tensor t: `accesses[offsets[t]..offsets[t + 1]]`, by ascending op.
    offsets: Vec<usize>,
    accesses: Vec<Access>,
}

impl Liveness {
    /// Collects the accesses of a trace; linear in their number.
    pub fn new(trace: &Trace) -> Self {
        let mut offsets = vec![0; trace.tensors().len() + 1];
        for op in trace.ops() {
            for tensor in op.reads.iter().chain(&op.writes).chain(&op.updates) {
                offsets[tensor.index() + 1] += 1;
            }
        }
        for index in 1..offsets.len() {
            offsets[index] += offsets[index - 1];
        }
        let mut next = offsets.clone();
        let total = *offsets.last().expect("offsets has one entry more than there are tensors");
        let mut accesses = vec![Access { op: OpId(0), kind: AccessKind::Read }; total];
        for op in trace.op_ids() {
            let lists = [
                (&trace.op(op).reads, AccessKind::Read),
                (&trace.op(op).writes, AccessKind::Write),
                (&trace.op(op).updates, AccessKind::Update),
            ];
            for (tensors, kind) in lists {
                for tensor in tensors {
                    accesses[next[tensor.index()]] = Access { op, kind };
                    next[tensor.index()] += 1;
                }
            }
        }
        Self { offsets, accesses }
    }

    /// The access sequence of a tensor, by ascending op.
    pub fn accesses(&self, tensor: TensorId) -> &[Access] {
        &self.accesses[self.offsets[tensor.index()]..self.offsets[tensor.index() + 1]]
    }

    /// The first op that touches a tensor.
    pub fn first_use(&self, tensor: TensorId) -> Option<OpId> {
        self.accesses(tensor).first().map(|access| access.op)
    }

    /// The last op that touches a tensor.
    pub fn last_use(&self, tensor: TensorId) -> Option<OpId> {
        self.accesses(tensor).last().map(|access| access.op)
    }

    /// The last op that updates a tensor.
    pub fn last_update(&self, tensor: TensorId) -> Option<OpId> {
        self.accesses(tensor).iter().rev().find(|access| access.kind == AccessKind::Update).map(|access| access.op)
    }

    /// The op after which nobody needs the tensor's device bytes; none for persistent and kept tensors and for those that no op touches.
    pub fn dies_at(&self, trace: &Trace, tensor: TensorId) -> Option<OpId> {
        let of = trace.tensor(tensor);
        if of.role.is_persistent() || of.keep { None } else { self.last_use(tensor) }
    }

    /// The in-place pairs of an op that cost nothing to use: the input dies there, and nobody copies it out.
    pub fn takeovers(&self, trace: &Trace, op: OpId) -> Vec<InPlace> {
        let free = |pair: &InPlace| {
            trace.tensor(pair.input).role != Role::Output && self.dies_at(trace, pair.input) == Some(op)
        };
        trace.op(op).in_place.iter().copied().filter(free).collect()
    }

    /// All idle intervals, by tensor and time. Those of length zero (consecutive ops) are left out.
    pub fn idle(&self, trace: &Trace) -> Vec<Idle> {
        let mut idle = Vec::new();
        for tensor in trace.tensor_ids() {
            let accesses = self.accesses(tensor);
            for pair in accesses.windows(2) {
                if pair[1].op.0 > pair[0].op.0 + 1 {
                    idle.push(Idle { tensor, from: pair[0].op, to: pair[1].op, across_boundary: false });
                }
            }
            let is_persistent = trace.tensor(tensor).role.is_persistent();
            if let (true, Some(first), Some(last)) = (is_persistent, accesses.first(), accesses.last()) {
                let between = first.op.index() + trace.ops().len() - last.op.index();
                if between > 1 {
                    idle.push(Idle { tensor, from: last.op, to: first.op, across_boundary: true });
                }
            }
        }
        idle
    }

    /// Bytes on the device while each op runs, and at the end of the step (one entry more than there are ops), when everything is
    /// released as soon as it is dead: persistent tensors always, inputs from their first read, others from their write, each until its last
    /// access (kept ones until the end), free takeovers counted once, workspace included.
    ///
    /// Linear in the number of accesses.
    pub fn usage(&self, trace: &Trace, limits: &Limits) -> Vec<Bytes> {
        let n_ops = trace.ops().len();
        let occupied = |tensor: TensorId| limits.occupied(trace.tensor(tensor).bytes);
        // Bytes that come before an op runs and go after it has run.
        let mut come = vec![Bytes::ZERO; n_ops + 1];
        let mut go = vec![Bytes::ZERO; n_ops + 1];
        let mut always = Bytes::ZERO;
        for tensor in trace.tensor_ids() {
            let of = trace.tensor(tensor);
            if of.role.is_persistent() {
                always += occupied(tensor);
            } else if let Some(first) = self.first_use(tensor) {
                come[first.index()] += occupied(tensor);
                if let Some(last) = self.dies_at(trace, tensor) {
                    go[last.index()] += occupied(tensor);
                }
            } else if of.keep {
                come[n_ops] += occupied(tensor);
            }
        }
        let mut now = always;
        let mut usage = Vec::with_capacity(n_ops + 1);
        for op in trace.op_ids() {
            now += come[op.index()];
            let shared: Bytes = self.takeovers(trace, op).iter().map(|pair| occupied(pair.output)).sum();
            usage.push(now - shared + limits.occupied(trace.op(op).workspace));
            now -= go[op.index()];
        }
        usage.push(now + come[n_ops]);
        usage
    }

    /// The peak of [`usage`](Self::usage): the least memory in which the step runs without any eviction, fragmentation aside.
    pub fn peak(&self, trace: &Trace, limits: &Limits) -> Peak {
        let mut peak = Peak { bytes: Bytes::ZERO, op: OpId(0) };
        let last = trace.ops().len().saturating_sub(1);
        for (index, &bytes) in self.usage(trace, limits).iter().enumerate() {
            if bytes > peak.bytes {
                peak = Peak { bytes, op: OpId::from_index(index.min(last)) };
            }
        }
        peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{op, trace};

    /// ```text
    /// op       0     1     2     3
    /// p (256)  R─────────────────U      persistent
    /// i (256)  R                        input
    /// x (512)  W─────R───────────R
    /// y (512)        W─────R┐
    /// z (512)              W┘────R      takes y's bytes over
    /// ```
    fn example() -> Trace {
        trace(
            &[
                (256, Role::Parameter),
                (256, Role::Input),
                (512, Role::Activation),
                (512, Role::Activation),
                (512, Role::Gradient),
            ],
            vec![
                op(1, &[0, 1], &[2]).with_workspace(100),
                op(1, &[2], &[3]),
                op(1, &[3], &[4]).with_in_place(3, 4),
                op(1, &[2, 4], &[]).with_updates(&[0]),
            ],
        )
    }

    #[test]
    fn accesses_are_in_order() {
        let live = Liveness::new(&example());
        let of = |tensor| live.accesses(TensorId(tensor)).iter().map(|a| (a.op.0, a.kind)).collect::<Vec<_>>();
        assert_eq!(of(0), [(0, AccessKind::Read), (3, AccessKind::Update)]);
        assert_eq!(of(2), [(0, AccessKind::Write), (1, AccessKind::Read), (3, AccessKind::Read)]);
        assert_eq!(live.last_update(TensorId(0)), Some(OpId(3)));
        assert_eq!(live.dies_at(&example(), TensorId(0)), None);
        assert_eq!(live.dies_at(&example(), TensorId(1)), Some(OpId(0)));
    }

    #[test]
    fn idle_intervals_wrap_for_persistent_tensors() {
        let idle = Liveness::new(&example()).idle(&example());
        let idle: Vec<_> = idle.iter().map(|i| (i.tensor.0, i.from.0, i.to.0, i.across_boundary)).collect();
        // From op 3 to op 0 of the next step nothing runs in between, so that is no idle interval.
        assert_eq!(idle, [(0, 0, 3, false), (2, 1, 3, false)]);
    }

    #[test]
    fn usage_counts_takeovers_once_and_workspace() {
        let limits = Limits::unlimited();
        let usage = Liveness::new(&example()).usage(&example(), &limits);
        let usage: Vec<u64> = usage.iter().map(|bytes| bytes.0).collect();
        assert_eq!(usage, [256 + 256 + 512 + 256, 256 + 512 + 512, 256 + 512 + 512, 256 + 512 + 512, 256]);
        let peak = Liveness::new(&example()).peak(&example(), &limits);
        assert_eq!(peak, Peak { bytes: Bytes(1280), op: OpId(0) });
    }
}
