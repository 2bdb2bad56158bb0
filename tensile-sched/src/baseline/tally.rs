//! What a program needs before it has addresses.

use crate::planner::facts::Facts;
use crate::program::{Instr, Program};

/// Sums over a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Most bytes on the device while each op runs, reruns and copies on the way to it included; the last entry is the end of the step.
    pub(super) usage: Vec<u64>,
    /// The most of all.
    pub(super) peak: u64,
    /// Latencies of all reruns, in ns.
    pub(super) rerun_time: u64,
}

/// Linear in the accesses of the program.
pub(super) fn tally(facts: &Facts<'_>, program: &Program) -> Tally {
    let mut resident = vec![false; facts.trace.tensors().len()];
    let mut used = 0;
    for one in &program.boundary {
        resident[one.tensor.index()] = true;
        used += facts.bytes(one.tensor);
    }
    let mut tally = Tally { usage: vec![0; facts.n_ops() + 1], peak: 0, rerun_time: 0 };
    let mut position = 0;
    for instr in &program.instrs {
        let passing = match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                if matches!(instr, Instr::Rerun { .. }) {
                    tally.rerun_time += facts.trace.op(*op).latency.0;
                }
                for pair in takeovers {
                    resident[pair.input.index()] = false;
                    used -= facts.bytes(pair.input);
                }
                let mut passing = facts.workspace[op.index()];
                for &tensor in &facts.trace.op(*op).writes {
                    if std::mem::replace(&mut resident[tensor.index()], true) {
                        passing += facts.bytes(tensor);
                    } else {
                        used += facts.bytes(tensor);
                    }
                }
                passing
            }
            Instr::SwapIn(tensor) => {
                resident[tensor.index()] = true;
                used += facts.bytes(*tensor);
                0
            }
            Instr::Release(tensor) => {
                resident[tensor.index()] = false;
                used -= facts.bytes(*tensor);
                continue;
            }
            Instr::SwapOut(_) => continue,
        };
        let most = &mut tally.usage[position];
        *most = (*most).max(used + passing);
        position += usize::from(matches!(instr, Instr::Run { .. }));
    }
    let last = &mut tally.usage[position];
    *last = (*last).max(used);
    tally.peak = tally.usage.iter().copied().max().unwrap_or(0);
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TensorId;
    use crate::program::BoundaryTensor;
    use crate::testing::{bytewise, op, release, rerun, run, run_in_place, swap_in, swap_out, trace};
    use crate::trace::Role;

    #[test]
    fn sums_are_those_of_the_drawing() {
        let trace = trace(
            &[(1, Role::Parameter), (10, Role::Activation), (10, Role::Activation), (100, Role::Activation)],
            vec![op(7, &[0], &[1]).with_workspace(3), op(1, &[1], &[2, 3]).with_in_place(1, 2), op(1, &[2, 3], &[])],
        );
        let limits = bytewise();
        let facts = Facts::new(&trace, &limits);
        let boundary = vec![BoundaryTensor { tensor: TensorId(0), host_valid: false }];
        let program = |instrs| Program { boundary: boundary.clone(), instrs };
        let plain = tally(&facts, &program(vec![run(0), run_in_place(1, 1, 2), run(2), release(3)]));
        assert_eq!(plain, Tally { usage: vec![14, 111, 111, 11], peak: 111, rerun_time: 0 });
        let instrs = vec![
            run(0),
            run(1),
            swap_out(2),
            release(2),
            release(1),
            rerun(0),
            release(1),
            swap_in(2),
            run(2),
            release(2),
            release(3),
        ];
        let busy = tally(&facts, &program(instrs));
        // All four behind op 1; with 2 away the rerun's workspace is the most before op 2; at the end there is the parameter.
        assert_eq!(busy, Tally { usage: vec![14, 121, 114, 1], peak: 121, rerun_time: 7 });
    }
}
