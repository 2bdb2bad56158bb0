//! Tensors over time, drawn with characters.

use std::fmt;

use crate::id::TensorId;
use crate::program::{Instr, Program};
use crate::trace::{Role, Trace};

use super::Names;

/// Rows of a drawing; see [`residency`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// Kind of each instruction.
    kinds: String,
    /// Name and states of each tensor: between steps, then after each instruction.
    rows: Vec<(String, String)>,
}

/// Draws where every tensor is: one row per tensor, one column per instruction, the first column for the time between steps.
///
/// ```text
/// kinds    <  swap in    k  run    K  rerun    >  swap out    -  release
/// tensors  =  on the device        .  on the host only        (blank)  nowhere
///          r, w, u  a kernel reads, writes, updates it   s  it is regenerated to scratch
///          <  it comes to the device   >  it goes to the host, and is still on the device
/// ```
///
/// Meant for small programs: rows are as long as the program. Linear in tensors times instructions.
///
/// # Example
/// A weight is given up while it is not needed, for its host copy is valid; an activation is dropped and made again:
/// ```
/// use tensile_sched::{text, Bytes, Instr, Nanos, Op, OpId, Program, Role, Tensor, TensorId, Trace};
///
/// let tensor = |name: &str, role| Tensor { name: name.into(), bytes: Bytes(64), role, keep: false };
/// let op = |label: &str, reads: &[u32], write: u32| Op {
///     label: label.into(),
///     class: label.into(),
///     reads: reads.iter().map(|&id| TensorId(id)).collect(),
///     writes: vec![TensorId(write)],
///     updates: vec![],
///     workspace: Bytes::ZERO,
///     latency: Nanos(10),
///     replayable: true,
///     in_place: vec![],
/// };
/// let tensors = vec![
///     tensor("w", Role::Parameter),
///     tensor("x", Role::Input),
///     tensor("a", Role::Activation),
///     tensor("b", Role::Activation),
///     tensor("y", Role::Output),
/// ];
/// let trace = Trace::new(tensors, vec![op("first", &[0, 1], 2), op("second", &[2], 3), op("third", &[0, 2, 3], 4)])?;
///
/// let (w, x, a, b, y) = (TensorId(0), TensorId(1), TensorId(2), TensorId(3), TensorId(4));
/// let run = |op| Instr::Run { op: OpId(op), takeovers: vec![] };
/// let program = Program {
///     boundary: vec![],
///     instrs: vec![
///         Instr::SwapIn(w), Instr::SwapIn(x), run(0), Instr::Release(w),
///         run(1), Instr::Release(a), Instr::SwapIn(w),
///         Instr::Rerun { op: OpId(0), takeovers: vec![] }, Instr::Release(x),
///         run(2), Instr::Release(w), Instr::Release(a), Instr::Release(b), Instr::SwapOut(y), Instr::Release(y),
///     ],
/// };
/// let expected = [
///     "             1",
///     "   012345678901234",
///     "   <<k-k-<K-k--->-",
///     "w .<=r...<r=r.....",
///     "x ..<r====r.......",
///     "a    w=r  w=r=",
///     "b      w====r==",
///     "y           w===>.",
/// ];
/// assert!(text::residency(&trace, &program).to_string().lines().eq(expected));
/// # Ok::<(), tensile_sched::TraceError>(())
/// ```
pub fn residency(trace: &Trace, program: &Program) -> Drawing {
    let n_tensors = trace.tensors().len();
    let names = Names::new(trace);
    let mut on_device = vec![false; n_tensors];
    let mut on_host: Vec<bool> =
        trace.tensors().iter().map(|t| t.role.is_persistent() || t.role == Role::Input).collect();
    for entry in &program.boundary {
        if entry.tensor.index() < n_tensors {
            on_device[entry.tensor.index()] = true;
            on_host[entry.tensor.index()] = entry.host_valid;
        }
    }
    let state = |on_device: bool, on_host: bool| match (on_device, on_host) {
        (true, _) => '=',
        (false, true) => '.',
        (false, false) => ' ',
    };
    let mut rows: Vec<String> =
        (0..n_tensors).map(|tensor| state(on_device[tensor], on_host[tensor]).to_string()).collect();
    let mut kinds = String::new();
    for instr in &program.instrs {
        let mut marks: Vec<(TensorId, char)> = Vec::new();
        let set = |list: &mut Vec<bool>, tensor: TensorId, to: bool| {
            if let Some(there) = list.get_mut(tensor.index()) {
                *there = to;
            }
        };
        match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                kinds.push(if matches!(instr, Instr::Run { .. }) { 'k' } else { 'K' });
                if let Some(op) = trace.ops().get(op.index()) {
                    marks.extend(op.reads.iter().map(|&id| (id, 'r')));
                    marks.extend(op.updates.iter().map(|&id| (id, 'u')));
                    for &id in &op.writes {
                        marks.push((id, if on_device[id.index()] { 's' } else { 'w' }));
                        set(&mut on_device, id, true);
                    }
                    for &id in &op.updates {
                        set(&mut on_host, id, false);
                    }
                }
                for pair in takeovers {
                    set(&mut on_device, pair.input, false);
                }
            }
            Instr::SwapOut(tensor) => {
                kinds.push('>');
                set(&mut on_host, *tensor, true);
                marks.push((*tensor, '>'));
            }
            Instr::SwapIn(tensor) => {
                kinds.push('<');
                set(&mut on_device, *tensor, true);
                marks.push((*tensor, '<'));
            }
            Instr::Release(tensor) => {
                kinds.push('-');
                set(&mut on_device, *tensor, false);
            }
        }
        for (tensor, row) in rows.iter_mut().enumerate() {
            row.push(state(on_device[tensor], on_host[tensor]));
        }
        for (tensor, mark) in marks {
            if let Some(row) = rows.get_mut(tensor.index()) {
                row.pop();
                row.push(mark);
            }
        }
    }
    Drawing { kinds, rows: trace.tensor_ids().map(|id| names.get(id)).zip(rows).collect() }
}

impl fmt::Display for Drawing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut line = |name: &str, rest: &str| writeln!(f, "{}", format!("{name:<width$} {rest}").trim_end());
        let columns = 0..self.kinds.len();
        if self.kinds.len() > 10 {
            let tens = columns.clone().map(|column| match column {
                0 => ' ',
                _ if column % 10 == 0 => char::from(b'0' + (column / 10 % 10) as u8),
                _ => ' ',
            });
            line("", &format!(" {}", tens.collect::<String>()))?;
        }
        let ones = columns.map(|column| char::from(b'0' + (column % 10) as u8));
        line("", &format!(" {}", ones.collect::<String>()))?;
        line("", &format!(" {}", self.kinds))?;
        for (name, row) in &self.rows {
            line(name, row)?;
        }
        Ok(())
    }
}
