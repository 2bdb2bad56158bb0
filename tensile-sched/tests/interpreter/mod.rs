//! An abstract interpreter: memory is an image of cells, one per alignment unit, and every cell holds a value.
//!
//! It knows nothing of versions, validity or live ranges. Kernels compute values from the values they read, copies move whatever is there, given-up bytes
//! are poisoned. A sequential run of the trace without any memory says which value every kernel must read, and what must be
//! where when a step ends. So a program is right exactly if the values are.

use std::ops::Range;

use tensile_sched::{Bytes, InPlace, Instr, OpId, Placed, Placement, Role, TensorId, Trace};

/// How many iterations are run: both host slots of inputs and outputs are used, the first one twice.
pub(crate) const ITERATIONS: usize = 3;
/// An image larger than this is refused; tests use small sizes.
const MOST_CELLS: u64 = 1 << 16;
const POISON: u64 = 0;

/// An access to cells.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) iteration: usize,
    pub(crate) instr: usize,
    pub(crate) on_device: bool,
    pub(crate) cells: Range<usize>,
    pub(crate) write: bool,
}

type Outcome<T> = Result<T, String>;

/// The value of cell `index` of a tensor whose value is `value`.
fn cell(value: u64, index: usize) -> u64 {
    mix(&[value, index as u64 + 1])
}

/// A number that stands for "computed from these"; different for different arguments, and never [`POISON`].
fn mix(parts: &[u64]) -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for &part in parts {
        state = (state ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state ^= state >> 29;
        state = state.wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 32;
    }
    state | 1
}

/// What an op makes of what it reads: values of its writes, then of its updates.
fn compute(trace: &Trace, op: OpId, iteration: usize, executions: u64, operands: &[u64]) -> Vec<u64> {
    let op_data = trace.op(op);
    // An op that cannot be replayed gives something else each time it is executed.
    let again = if op_data.replayable { 0 } else { executions };
    let n_results = op_data.writes.len() + op_data.updates.len();
    (0..n_results)
        .map(|result| {
            let mut parts = vec![3, u64::from(op.0), iteration as u64, again, result as u64];
            parts.extend(operands);
            mix(&parts)
        })
        .collect()
}

fn input_value(tensor: TensorId, iteration: usize) -> u64 {
    mix(&[2, u64::from(tensor.0), iteration as u64])
}

/// The step as the trace says it, without memory: for each iteration and op the values it reads and updates, and all values at the end.
struct Truth {
    operands: Vec<Vec<Vec<u64>>>,
    at_end: Vec<Vec<u64>>,
}

fn truth(trace: &Trace, start: &[u64]) -> Truth {
    let mut values = start.to_vec();
    let mut truth = Truth { operands: Vec::new(), at_end: Vec::new() };
    for iteration in 0..ITERATIONS {
        for tensor in trace.tensor_ids().filter(|&id| trace.tensor(id).role == Role::Input) {
            values[tensor.index()] = input_value(tensor, iteration);
        }
        let mut operands_of_ops = Vec::new();
        for op in trace.op_ids() {
            let data = trace.op(op);
            let operands: Vec<u64> = data.reads.iter().chain(&data.updates).map(|id| values[id.index()]).collect();
            let results = compute(trace, op, iteration, 1, &operands);
            for (tensor, result) in data.writes.iter().chain(&data.updates).zip(results) {
                values[tensor.index()] = result;
            }
            operands_of_ops.push(operands);
        }
        truth.operands.push(operands_of_ops);
        truth.at_end.push(values.clone());
    }
    truth
}

struct Machine<'a> {
    trace: &'a Trace,
    placed: &'a Placed,
    unit: u64,
    truth: Truth,
    device: Vec<u64>,
    host: Vec<u64>,
    /// Cells of each tensor on the device.
    place: Vec<Option<Range<usize>>>,
    executions: Vec<u64>,
    has_run: Vec<bool>,
    iteration: usize,
    instr: usize,
    touches: Vec<Touch>,
}

/// Runs a program; all accesses to memory, or what went wrong.
pub(crate) fn run(trace: &Trace, placed: &Placed, unit: Bytes) -> Outcome<Vec<Touch>> {
    let layout = &placed.layout;
    let cells = |bytes: Bytes| {
        let cells = bytes.0 / unit.0;
        if cells > MOST_CELLS { Err(format!("an arena of {} cells", cells)) } else { Ok(cells as usize) }
    };
    let start: Vec<u64> = trace.tensor_ids().map(|id| mix(&[1, u64::from(id.0)])).collect();
    let mut machine = Machine {
        trace,
        placed,
        unit: unit.0,
        truth: truth(trace, &start),
        device: vec![POISON; cells(layout.arena)?],
        host: vec![POISON; cells(layout.host_arena)?],
        place: vec![None; trace.tensors().len()],
        executions: Vec::new(),
        has_run: Vec::new(),
        iteration: 0,
        instr: 0,
        touches: Vec::new(),
    };
    if layout.placements.len() != placed.program.instrs.len() {
        return Err("placements are missing".into());
    }
    machine.first_boundary(&start)?;
    for iteration in 0..ITERATIONS {
        machine.iteration = iteration;
        machine.inputs_arrive()?;
        machine.executions = vec![0; trace.ops().len()];
        machine.has_run = vec![false; trace.ops().len()];
        for (instr, (instruction, placement)) in placed.program.instrs.iter().zip(&layout.placements).enumerate() {
            machine.instr = instr;
            machine
                .step(instruction, placement)
                .map_err(|fault| format!("iteration {iteration}, i{instr}: {fault}"))?;
        }
        machine.end().map_err(|fault| format!("end of iteration {iteration}: {fault}"))?;
    }
    Ok(machine.touches)
}

impl Machine<'_> {
    fn cells(&self, address: Bytes, bytes: Bytes, on_device: bool) -> Outcome<Range<usize>> {
        let memory = if on_device { &self.device } else { &self.host };
        let (start, length) = (address.0 / self.unit, bytes.0.div_ceil(self.unit));
        if !address.0.is_multiple_of(self.unit) || start + length > memory.len() as u64 {
            return Err(format!("no cells at address {} for {} bytes", address.0, bytes.0));
        }
        Ok(start as usize..(start + length) as usize)
    }

    fn tensor_cells(&self, tensor: TensorId, address: Bytes, on_device: bool) -> Outcome<Range<usize>> {
        self.cells(address, self.trace.tensor(tensor).bytes, on_device)
    }

    fn touch(&mut self, on_device: bool, cells: &Range<usize>, write: bool) {
        let (iteration, instr) = (self.iteration, self.instr);
        self.touches.push(Touch { iteration, instr, on_device, cells: cells.clone(), write });
    }

    fn known(&self, tensor: TensorId) -> Outcome<TensorId> {
        if tensor.index() < self.place.len() { Ok(tensor) } else { Err(format!("no tensor {tensor}")) }
    }

    /// Persistent tensors are where the boundary says.
    fn first_boundary(&mut self, start: &[u64]) -> Outcome<()> {
        let mut homes = self.placed.layout.homes.iter();
        for tensor in self.trace.tensor_ids().filter(|&id| self.trace.tensor(id).role.is_persistent()) {
            let home = homes.next().filter(|home| home.tensor == tensor).ok_or("homes are missing")?;
            let listed = self.placed.program.boundary.iter().find(|entry| entry.tensor == tensor);
            if home.device.is_some() != listed.is_some()
                || home.host.is_some() != listed.is_none_or(|entry| entry.host_valid)
            {
                return Err(format!("the home of {tensor} does not fit the boundary"));
            }
            let value = start[tensor.index()];
            if let Some(address) = home.device {
                let cells = self.tensor_cells(tensor, address, true)?;
                fill(&mut self.device, &cells, value);
                self.place[tensor.index()] = Some(cells);
            }
            if let Some(address) = home.host {
                let cells = self.tensor_cells(tensor, address, false)?;
                fill(&mut self.host, &cells, value);
            }
        }
        self.holds_boundary(|machine, tensor| {
            let _ = machine;
            start[tensor.index()]
        })
    }

    /// The data source fills the slots one iteration ahead.
    fn inputs_arrive(&mut self) -> Outcome<()> {
        let placed = self.placed;
        for tensor in
            self.trace.tensor_ids().filter(|&id| matches!(self.trace.tensor(id).role, Role::Input | Role::Output))
        {
            let slots = placed.layout.slots.iter().find(|slots| slots.tensor == tensor).ok_or("slots are missing")?;
            if self.trace.tensor(tensor).role == Role::Output {
                continue;
            }
            let ahead = if self.iteration == 0 { 0..2 } else { self.iteration + 1..self.iteration + 2 };
            for iteration in ahead {
                let cells = self.tensor_cells(tensor, slots.host[iteration % 2], false)?;
                fill(&mut self.host, &cells, input_value(tensor, iteration));
            }
        }
        Ok(())
    }

    fn step(&mut self, instr: &Instr, placement: &Placement) -> Outcome<()> {
        let shape = |device: usize, host: bool| {
            let fits = placement.device.len() == device && placement.host.is_some() == host;
            if fits { Ok(()) } else { Err("the placement has too many or too few addresses".to_owned()) }
        };
        match instr {
            Instr::Run { op, takeovers } => {
                if op.index() >= self.has_run.len() || std::mem::replace(&mut self.has_run[op.index()], true) {
                    return Err(format!("{op} runs twice"));
                }
                self.kernel(*op, takeovers, placement)
            }
            Instr::Rerun { op, takeovers } => {
                if !self.has_run.get(op.index()).copied().unwrap_or(false) {
                    return Err(format!("{op} has not run"));
                }
                self.kernel(*op, takeovers, placement)
            }
            Instr::SwapOut(tensor) => {
                let tensor = self.known(*tensor)?;
                shape(0, true)?;
                let from = self.place[tensor.index()].clone().ok_or(format!("{tensor} is not on the device"))?;
                let to = self.host_cells(tensor, placement)?;
                self.touch(true, &from, false);
                self.touch(false, &to, true);
                self.host[to].copy_from_slice(&self.device[from]);
                Ok(())
            }
            Instr::SwapIn(tensor) => {
                let tensor = self.known(*tensor)?;
                shape(1, true)?;
                if self.place[tensor.index()].is_some() {
                    return Err(format!("{tensor} is on the device"));
                }
                let from = self.host_cells(tensor, placement)?;
                let to = self.tensor_cells(tensor, placement.device[0], true)?;
                self.touch(false, &from, false);
                self.touch(true, &to, true);
                self.device[to.clone()].copy_from_slice(&self.host[from]);
                self.place[tensor.index()] = Some(to);
                Ok(())
            }
            Instr::Release(tensor) => {
                let tensor = self.known(*tensor)?;
                shape(0, false)?;
                let cells = self.place[tensor.index()].take().ok_or(format!("{tensor} is not on the device"))?;
                self.device[cells].fill(POISON);
                Ok(())
            }
        }
    }

    fn host_cells(&self, tensor: TensorId, placement: &Placement) -> Outcome<Range<usize>> {
        let placed = placement.host.ok_or("no host address")?;
        let slots = self.placed.layout.slots.iter().find(|slots| slots.tensor == tensor);
        match slots {
            Some(slots) if slots.host[0] != placed => Err(format!("{tensor} does not use its slot")),
            Some(slots) => self.tensor_cells(tensor, slots.host[self.iteration % 2], false),
            None => self.tensor_cells(tensor, placed, false),
        }
    }

    fn kernel(&mut self, id: OpId, takeovers: &[InPlace], placement: &Placement) -> Outcome<()> {
        let trace = self.trace;
        let op = trace.op(id);
        if placement.device.len() != op.writes.len()
            || placement.workspace.is_some() != (op.workspace > Bytes::ZERO)
            || placement.host.is_some()
        {
            return Err("the placement has too many or too few addresses".into());
        }
        let mut outputs = Vec::new();
        for (&tensor, &address) in op.writes.iter().zip(&placement.device) {
            outputs.push(self.tensor_cells(tensor, address, true)?);
        }
        let workspace = match placement.workspace {
            Some(address) => self.cells(address, op.workspace, true)?,
            None => 0..0,
        };
        let mut taken: Vec<Option<TensorId>> = vec![None; op.writes.len()];
        for pair in takeovers {
            let index = op.writes.iter().position(|&output| output == pair.output);
            let index = index.filter(|_| op.in_place.contains(pair)).ok_or("no such in-place pair")?;
            let there = self.place[pair.input.index()].as_ref();
            if there != Some(&outputs[index]) || self.place[pair.output.index()].is_some() || taken[index].is_some() {
                return Err(format!("{} cannot take over {}", pair.output, pair.input));
            }
            taken[index] = Some(pair.input);
        }
        // A kernel may write its fresh bytes before it has read everything.
        for (cells, taken) in outputs.iter().zip(&taken) {
            if taken.is_none() {
                self.device[cells.clone()].fill(POISON);
            }
            self.touch(true, cells, true);
        }
        self.device[workspace.clone()].fill(POISON);
        self.touch(true, &workspace, true);

        let expected = self.truth.operands[self.iteration][id.index()].clone();
        for ((&tensor, value), write) in op
            .reads
            .iter()
            .zip(&expected)
            .map(|pair| (pair, false))
            .chain(op.updates.iter().zip(&expected[op.reads.len()..]).map(|pair| (pair, true)))
        {
            let cells = self.place[tensor.index()].clone().ok_or(format!("{id} needs {tensor} on the device"))?;
            holds(&self.device, &cells, *value).map_err(|fault| format!("{id} reads {tensor}: {fault}"))?;
            self.touch(true, &cells, write);
        }
        self.executions[id.index()] += 1;
        let results = compute(trace, id, self.iteration, self.executions[id.index()], &expected);
        let mut places = outputs.clone();
        for tensor in &op.updates {
            places.push(self.place[tensor.index()].clone().expect("it has been read"));
        }
        for (cells, &value) in places.iter().zip(&results) {
            fill(&mut self.device, cells, value);
        }
        self.device[workspace].fill(POISON);
        for (cells, &value) in places.iter().zip(&results) {
            holds(&self.device, cells, value).map_err(|fault| format!("{id} writes bytes twice: {fault}"))?;
        }
        for ((&tensor, cells), taken) in op.writes.iter().zip(outputs).zip(taken) {
            if let Some(input) = taken {
                self.place[input.index()] = None;
            }
            if self.place[tensor.index()].is_none() {
                self.place[tensor.index()] = Some(cells);
            } else {
                self.device[cells].fill(POISON);
            }
        }
        Ok(())
    }

    /// Everything that outlives the step is where it must be; the rest is lost.
    fn end(&mut self) -> Outcome<()> {
        if let Some(op) = self.has_run.iter().position(|has_run| !has_run) {
            return Err(format!("op{op} has not run"));
        }
        self.holds_boundary(|machine, tensor| machine.truth.at_end[machine.iteration][tensor.index()])?;
        let mut lasting_device = vec![false; self.device.len()];
        let mut lasting_host = vec![false; self.host.len()];
        for home in &self.placed.layout.homes {
            if let Some(address) = home.device {
                lasting_device[self.tensor_cells(home.tensor, address, true)?].fill(true);
            }
            if let Some(address) = home.host {
                lasting_host[self.tensor_cells(home.tensor, address, false)?].fill(true);
            }
        }
        for slots in &self.placed.layout.slots {
            self.holds_slots(slots.tensor, slots.host)?;
            for address in slots.host {
                lasting_host[self.tensor_cells(slots.tensor, address, false)?].fill(true);
            }
        }
        for tensor in self.trace.tensor_ids().filter(|&id| !self.trace.tensor(id).role.is_persistent()) {
            let place = self.place[tensor.index()].take();
            if self.trace.tensor(tensor).keep {
                let cells = place.ok_or(format!("kept {tensor} is not on the device"))?;
                holds(&self.device, &cells, self.truth.at_end[self.iteration][tensor.index()])
                    .map_err(|fault| format!("kept {tensor}: {fault}"))?;
            }
        }
        for (memory, lasting) in [(&mut self.device, lasting_device), (&mut self.host, lasting_host)] {
            for (cell, lasting) in memory.iter_mut().zip(lasting) {
                if !lasting {
                    *cell = POISON;
                }
            }
        }
        Ok(())
    }

    fn holds_boundary(&self, value: impl Fn(&Self, TensorId) -> u64) -> Outcome<()> {
        for home in &self.placed.layout.homes {
            let tensor = home.tensor;
            let due = home.device.map(|address| self.tensor_cells(tensor, address, true)).transpose()?;
            if self.place[tensor.index()] != due {
                return Err(format!("{tensor} is not at its home on the device"));
            }
            if let Some(cells) = due {
                holds(&self.device, &cells, value(self, tensor)).map_err(|fault| format!("{tensor}: {fault}"))?;
            }
            if let Some(address) = home.host {
                let cells = self.tensor_cells(tensor, address, false)?;
                holds(&self.host, &cells, value(self, tensor)).map_err(|fault| format!("host {tensor}: {fault}"))?;
            }
        }
        Ok(())
    }

    /// The slot of this iteration holds its value; the other one that of the next (input) or of the one before (output).
    fn holds_slots(&self, tensor: TensorId, slots: [Bytes; 2]) -> Outcome<()> {
        let now = self.iteration;
        let mut due = vec![(now, self.truth.at_end[now][tensor.index()])];
        match self.trace.tensor(tensor).role {
            Role::Input => due.push((now + 1, input_value(tensor, now + 1))),
            _ if now > 0 => due.push((now - 1, self.truth.at_end[now - 1][tensor.index()])),
            _ => {}
        }
        for (iteration, value) in due {
            let cells = self.tensor_cells(tensor, slots[iteration % 2], false)?;
            holds(&self.host, &cells, value).map_err(|fault| format!("slot of {tensor}: {fault}"))?;
        }
        Ok(())
    }
}

fn fill(memory: &mut [u64], cells: &Range<usize>, value: u64) {
    for (index, cell_there) in memory[cells.clone()].iter_mut().enumerate() {
        *cell_there = cell(value, index);
    }
}

fn holds(memory: &[u64], cells: &Range<usize>, value: u64) -> Outcome<()> {
    match memory[cells.clone()].iter().enumerate().find(|(index, there)| **there != cell(value, *index)) {
        None => Ok(()),
        Some((index, &there)) => {
            let what = if there == POISON { "nothing" } else { "something else" };
            Err(format!("cell {} holds {what}", cells.start + index))
        }
    }
}
