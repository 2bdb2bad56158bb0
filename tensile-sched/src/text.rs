//! Programs as text that a person can read, and a drawing of where tensors are.
//!
//! [`program`], [`placed`] and [`synced`] give one line per instruction: position, lane, what it does, addresses (`@`), waits (`i3'` is instruction
//! 3 of the step before). [`residency`] draws small programs. [`explain`](explain()) says why a plan is as it is.
//!
//! The first four show wrong programs as well as right ones: what does not exist is shown by its id.

mod drawing;
mod explain;

use std::collections::BTreeMap;
use std::fmt;

use crate::id::{Bytes, OpId, TensorId};
use crate::program::{Instr, Lane, Layout, Placed, Placement, Program, Synced, Wait};
use crate::trace::{InPlace, Trace};

pub use drawing::{Drawing, residency};
pub use explain::{Again, Explanation, Fate, Story, Waiting, explain};

/// A program as text; see [`program`], [`placed`], [`synced`].
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    trace: &'a Trace,
    names: Names,
    program: &'a Program,
    layout: Option<&'a Layout>,
    waits: Option<&'a [Vec<Wait>]>,
}

/// The instructions of a program, one a line.
pub fn program<'a>(trace: &'a Trace, program: &'a Program) -> Listing<'a> {
    Listing { trace, names: Names::new(trace), program, layout: None, waits: None }
}

/// Instructions and addresses.
pub fn placed<'a>(trace: &'a Trace, placed: &'a Placed) -> Listing<'a> {
    Listing { layout: Some(&placed.layout), ..program(trace, &placed.program) }
}

/// Instructions, addresses and waits.
pub fn synced<'a>(trace: &'a Trace, synced: &'a Synced) -> Listing<'a> {
    Listing { waits: Some(&synced.waits), ..placed(trace, &synced.placed) }
}

/// Names of tensors; with the id where the name alone would not do.
#[derive(Clone, Debug)]
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(crate) fn new(trace: &Trace) -> Self {
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in trace.tensors() {
            *uses.entry(tensor.name.as_str()).or_default() += 1;
        }
        let name = |id: TensorId| {
            let name = trace.tensor(id).name.as_str();
            let plain = !name.is_empty() && uses[name] == 1 && !name.contains(char::is_whitespace);
            if plain { name.to_owned() } else { format!("{}:{id}", name.replace(char::is_whitespace, "_")) }
        };
        Self(trace.tensor_ids().map(name).collect())
    }

    pub(crate) fn get(&self, id: TensorId) -> String {
        self.0.get(id.index()).cloned().unwrap_or_else(|| id.to_string())
    }
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.boundary(f)?;
        let width = self.program.instrs.len().saturating_sub(1).to_string().len();
        for (index, instr) in self.program.instrs.iter().enumerate() {
            let placement = self.layout.and_then(|layout| layout.placements.get(index));
            let lane = match instr.lane() {
                Some(Lane::Compute) => "compute",
                Some(Lane::Out) => "out",
                Some(Lane::In) => "in",
                None => "",
            };
            write!(f, "i{index:<width$} {lane:<7}  {}", self.instr(instr, placement))?;
            let waits = self.waits.and_then(|waits| waits.get(index)).filter(|waits| !waits.is_empty());
            if let Some(waits) = waits {
                let prime = |wait: &Wait| if wait.previous_iteration { "'" } else { "" };
                let waits: Vec<String> = waits.iter().map(|wait| format!("{}{}", wait.on, prime(wait))).collect();
                write!(f, "   after {}", waits.join(", "))?;
            }
            writeln!(f)?;
        }
        if let Some(layout) = self.layout {
            writeln!(f, "arena {} bytes, host arena {} bytes", layout.arena.0, layout.host_arena.0)?;
        }
        Ok(())
    }
}

impl Listing<'_> {
    /// Where persistent tensors are between steps, and the slots of inputs and outputs.
    fn boundary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries = Vec::new();
        match self.layout {
            None => {
                for entry in &self.program.boundary {
                    let host = if entry.host_valid { " and on the host" } else { "" };
                    entries.push(format!("{} on the device{host}", self.names.get(entry.tensor)));
                }
            }
            Some(layout) => {
                for home in &layout.homes {
                    let device = home.device.map(|address| format!(" @{}", address.0)).unwrap_or_default();
                    let host = home.host.map(|address| format!(" host@{}", address.0)).unwrap_or_default();
                    entries.push(format!("{}{device}{host}", self.names.get(home.tensor)));
                }
                for slots in &layout.slots {
                    let [even, odd] = slots.host;
                    entries.push(format!("{} slots host@{} host@{}", self.names.get(slots.tensor), even.0, odd.0));
                }
            }
        }
        let all = if entries.is_empty() { "nothing".to_owned() } else { entries.join(", ") };
        writeln!(f, "between steps: {all}")
    }

    fn instr(&self, instr: &Instr, placement: Option<&Placement>) -> String {
        let first = placement.and_then(|placement| placement.device.first()).copied();
        let host = placement.and_then(|placement| placement.host);
        let host = host.map(|address| format!(" host@{}", address.0)).unwrap_or_default();
        match instr {
            Instr::Run { op, takeovers } => format!("run {}", self.kernel(*op, takeovers, placement)),
            Instr::Rerun { op, takeovers } => format!("rerun {}", self.kernel(*op, takeovers, placement)),
            Instr::SwapOut(tensor) => format!("swap out {}{host}", self.names.get(*tensor)),
            Instr::SwapIn(tensor) => format!("swap in {}{}{host}", self.names.get(*tensor), at(first)),
            Instr::Release(tensor) => format!("release {}", self.names.get(*tensor)),
        }
    }

    /// `matmul (x, w) -> h @512, r = h @0; updates m; workspace @1024`.
    fn kernel(&self, id: OpId, takeovers: &[InPlace], placement: Option<&Placement>) -> String {
        let Some(op) = self.trace.ops().get(id.index()) else { return id.to_string() };
        let list = |tensors: &[TensorId]| tensors.iter().map(|&id| self.names.get(id)).collect::<Vec<_>>().join(", ");
        let mut text = format!("{} ({})", op.label, list(&op.reads));
        let writes = op.writes.iter().enumerate().map(|(index, &output)| {
            let taken = takeovers.iter().find(|pair| pair.output == output);
            let taken = taken.map(|pair| format!(" = {}", self.names.get(pair.input))).unwrap_or_default();
            let address = placement.and_then(|placement| placement.device.get(index)).copied();
            format!("{}{taken}{}", self.names.get(output), at(address))
        });
        let writes: Vec<String> = writes.collect();
        if !writes.is_empty() {
            text += &format!(" -> {}", writes.join(", "));
        }
        if !op.updates.is_empty() {
            text += &format!("; updates {}", list(&op.updates));
        }
        if let Some(address) = placement.and_then(|placement| placement.workspace) {
            text += &format!("; workspace{}", at(Some(address)));
        }
        text
    }
}

fn at(address: Option<Bytes>) -> String {
    address.map(|address| format!(" @{}", address.0)).unwrap_or_default()
}
