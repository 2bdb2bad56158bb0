//! Random programs that are right by construction, with addresses of their own: no planner, no layout pass.
//!
//! A list of numbers decides at every turn whether tensors stay, go to the host, are dropped and come back by a copy or by a rerun, and which takeovers
//! are used. With no numbers left everything stays.

use tensile_sched::{
    BoundaryTensor, Bytes, Home, InPlace, Instr, Layout, OpId, Placed, Placement, Program, Role, Slots, TensorId, Trace,
};

/// Makes a program of the trace by the given choices; sizes are counted in units.
pub(crate) fn wander(trace: &Trace, unit: Bytes, choices: &[u8]) -> Placed {
    let mut walk = Walk::start(trace, unit, choices);
    for op in trace.op_ids() {
        walk.run(op);
        walk.evict(op);
    }
    walk.finish()
}

struct Walk<'a> {
    trace: &'a Trace,
    unit: u64,
    choices: std::slice::Iter<'a, u8>,
    /// Whether dropping the tensor is safe because its producer, and theirs, can be rerun until the step ends.
    regenerable: Vec<bool>,
    last_read: Vec<Option<usize>>,
    resident: Vec<Option<usize>>,
    host_valid: Vec<bool>,
    slot: Vec<Option<u64>>,
    taken: Vec<bool>,
    device_cells: usize,
    host_cells: u64,
    placed: Placed,
}

impl<'a> Walk<'a> {
    fn start(trace: &'a Trace, unit: Bytes, choices: &'a [u8]) -> Self {
        let n_tensors = trace.tensors().len();
        let mut walk = Self {
            trace,
            unit: unit.0,
            choices: choices.iter(),
            regenerable: vec![false; n_tensors],
            last_read: vec![None; n_tensors],
            resident: vec![None; n_tensors],
            host_valid: vec![false; n_tensors],
            slot: vec![None; n_tensors],
            taken: Vec::new(),
            device_cells: 0,
            host_cells: 0,
            placed: Placed::default(),
        };
        let mut last_update = vec![None; n_tensors];
        for op in trace.op_ids() {
            for read in trace.op(op).reads.iter() {
                walk.last_read[read.index()] = Some(op.index());
            }
            for update in &trace.op(op).updates {
                last_update[update.index()] = Some(op);
            }
        }
        for op in trace.op_ids() {
            let data = trace.op(op);
            let sources_stay = data.reads.iter().all(|&read| match trace.tensor(read).role {
                Role::Input => true,
                role if role.is_persistent() => last_update[read.index()].is_none_or(|update| update < op),
                _ => walk.regenerable[read.index()],
            });
            for write in &data.writes {
                walk.regenerable[write.index()] = data.replayable && sources_stay;
            }
        }
        for tensor in trace.tensor_ids() {
            match trace.tensor(tensor).role {
                role if role.is_persistent() => walk.home(tensor),
                Role::Input | Role::Output => {
                    let host = [walk.host_slot(tensor), walk.host_slot(tensor)];
                    walk.slot[tensor.index()] = Some(host[0].0);
                    walk.host_valid[tensor.index()] = trace.tensor(tensor).role == Role::Input;
                    walk.placed.layout.slots.push(Slots { tensor, host });
                }
                _ => {}
            }
        }
        walk
    }

    /// 0 to `n` − 1; 0 when the numbers have run out.
    fn choose(&mut self, n: u8) -> u8 {
        self.choices.next().map_or(0, |number| number % n)
    }

    /// Chooses whether a persistent tensor is on the device, on the host or on both between steps.
    fn home(&mut self, tensor: TensorId) {
        let (on_device, on_host) = [(true, false), (true, true), (false, true)][usize::from(self.choose(3))];
        let mut home = Home { tensor, device: None, host: None };
        if on_device {
            let cells = self.cells(self.trace.tensor(tensor).bytes);
            let start = self.allocate(cells);
            self.resident[tensor.index()] = Some(start);
            home.device = Some(self.address(start));
            self.placed.program.boundary.push(BoundaryTensor { tensor, host_valid: on_host });
        }
        if on_host {
            let slot = self.host_slot(tensor);
            self.slot[tensor.index()] = Some(slot.0);
            self.host_valid[tensor.index()] = true;
            home.host = Some(slot);
        }
        self.placed.layout.homes.push(home);
    }

    fn home_cell(&self, tensor: TensorId) -> Option<usize> {
        let home = self.placed.layout.homes.iter().find(|home| home.tensor == tensor)?;
        home.device.map(|address| (address.0 / self.unit) as usize)
    }

    fn cells(&self, bytes: Bytes) -> usize {
        bytes.0.div_ceil(self.unit) as usize
    }

    fn address(&self, cell: usize) -> Bytes {
        Bytes(cell as u64 * self.unit)
    }

    /// First free cells; those of homes are never free.
    fn allocate(&mut self, cells: usize) -> usize {
        let mut start = 0;
        let mut run = 0;
        while run < cells {
            if self.taken.get(start + run).copied().unwrap_or(false) {
                start += run + 1;
                run = 0;
            } else {
                run += 1;
            }
        }
        self.device_cells = self.device_cells.max(start + cells);
        if self.taken.len() < start + cells {
            self.taken.resize(start + cells, false);
        }
        self.taken[start..start + cells].fill(true);
        start
    }

    fn free(&mut self, start: usize, bytes: Bytes) {
        let cells = self.cells(bytes);
        self.taken[start..start + cells].fill(false);
    }

    fn host_slot(&mut self, tensor: TensorId) -> Bytes {
        let start = self.host_cells;
        self.host_cells += self.cells(self.trace.tensor(tensor).bytes) as u64;
        Bytes(start * self.unit)
    }

    fn push(&mut self, instr: Instr, placement: Placement) {
        self.placed.program.instrs.push(instr);
        self.placed.layout.placements.push(placement);
    }

    fn swap_out(&mut self, tensor: TensorId) {
        let address = match self.slot[tensor.index()] {
            Some(address) => Bytes(address),
            None => {
                let slot = self.host_slot(tensor);
                self.slot[tensor.index()] = Some(slot.0);
                slot
            }
        };
        self.host_valid[tensor.index()] = true;
        self.push(Instr::SwapOut(tensor), Placement { host: Some(address), ..Placement::default() });
    }

    fn release(&mut self, tensor: TensorId) {
        let start = self.resident[tensor.index()].take().expect("it is on the device");
        if self.home_cell(tensor) != Some(start) {
            self.free(start, self.trace.tensor(tensor).bytes);
        }
        self.push(Instr::Release(tensor), Placement::default());
    }

    /// Brings a tensor to the device: from the host if it is there, else by a rerun.
    fn ensure(&mut self, tensor: TensorId) {
        if self.resident[tensor.index()].is_some() {
            return;
        }
        if self.host_valid[tensor.index()] {
            let start = match self.home_cell(tensor) {
                Some(home) if self.choose(2) == 0 => home,
                _ => self.allocate(self.cells(self.trace.tensor(tensor).bytes)),
            };
            self.swap_in(tensor, start);
            return;
        }
        let producer = self.trace.producer(tensor).expect("persistent tensors and inputs are on the host");
        assert!(self.regenerable[tensor.index()], "{tensor} was lost");
        self.execute(producer, true);
    }

    fn swap_in(&mut self, tensor: TensorId, start: usize) {
        self.resident[tensor.index()] = Some(start);
        let host = self.slot[tensor.index()].map(Bytes);
        self.push(Instr::SwapIn(tensor), Placement { device: vec![self.address(start)], workspace: None, host });
    }

    fn run(&mut self, op: OpId) {
        self.execute(op, false);
        for update in &self.trace.op(op).updates {
            self.host_valid[update.index()] = false;
        }
    }

    fn execute(&mut self, id: OpId, again: bool) {
        let trace = self.trace;
        let op = trace.op(id);
        for &tensor in op.reads.iter().chain(&op.updates) {
            self.ensure(tensor);
        }
        let mut takeovers: Vec<InPlace> = Vec::new();
        let mut placement = Placement::default();
        let mut scratch = Vec::new();
        for &output in &op.writes {
            let bytes = trace.tensor(output).bytes;
            if self.resident[output.index()].is_some() {
                let start = self.allocate(self.cells(bytes));
                scratch.push((start, bytes));
                placement.device.push(self.address(start));
                continue;
            }
            let pair = op.in_place.iter().find(|pair| pair.output == output).copied();
            // Reruns serve other ops, which may need the input as well.
            let pair = pair.filter(|pair| {
                !again && self.home_cell(pair.input).is_none() && self.may_go(pair.input, id.index() + 1)
            });
            let start = match pair {
                Some(pair) if self.choose(2) == 0 => {
                    takeovers.push(pair);
                    self.resident[pair.input.index()].take().expect("inputs are on the device")
                }
                _ => self.allocate(self.cells(bytes)),
            };
            self.resident[output.index()] = Some(start);
            placement.device.push(self.address(start));
        }
        if op.workspace > Bytes::ZERO {
            let start = self.allocate(self.cells(op.workspace));
            scratch.push((start, op.workspace));
            placement.workspace = Some(self.address(start));
        }
        for (start, bytes) in scratch {
            self.free(start, bytes);
        }
        let instr = if again { Instr::Rerun { op: id, takeovers } } else { Instr::Run { op: id, takeovers } };
        self.push(instr, placement);
    }

    /// Whether nothing is lost when a tensor leaves the device now, before op `next`.
    fn may_go(&self, tensor: TensorId, next: usize) -> bool {
        let data = self.trace.tensor(tensor);
        let wanted = data.keep || data.role == Role::Output || data.role.is_persistent();
        let dead = !wanted && self.last_read[tensor.index()].is_none_or(|last| last < next);
        dead || self.host_valid[tensor.index()] || self.regenerable[tensor.index()]
    }

    fn evict(&mut self, op: OpId) {
        for tensor in self.trace.tensor_ids() {
            if self.resident[tensor.index()].is_none() {
                continue;
            }
            match self.choose(8) {
                1 => self.swap_out(tensor),
                2 | 3 => {
                    if !self.host_valid[tensor.index()] {
                        self.swap_out(tensor);
                    }
                    self.release(tensor);
                }
                4..=6 if self.may_go(tensor, op.index() + 1) => self.release(tensor),
                _ => {}
            }
        }
    }

    /// Kept tensors to the device, outputs to the host, persistent tensors home.
    fn finish(mut self) -> Placed {
        let trace = self.trace;
        for tensor in trace.tensor_ids() {
            let data = trace.tensor(tensor);
            let deliver = data.role == Role::Output && !self.host_valid[tensor.index()];
            if data.keep || deliver {
                self.ensure(tensor);
            }
            if deliver {
                self.swap_out(tensor);
            }
        }
        for home in self.placed.layout.homes.clone() {
            let tensor = home.tensor;
            let due = self.home_cell(tensor);
            let is_home = self.resident[tensor.index()] == due;
            if (home.host.is_some() || !is_home) && !self.host_valid[tensor.index()] {
                self.swap_out(tensor);
            }
            if !is_home && self.resident[tensor.index()].is_some() {
                self.release(tensor);
            }
            if let (Some(start), None) = (due, self.resident[tensor.index()]) {
                self.swap_in(tensor, start);
            }
        }
        self.placed.layout = Layout {
            arena: self.address(self.device_cells),
            host_arena: Bytes(self.host_cells * self.unit),
            ..std::mem::take(&mut self.placed.layout)
        };
        let Placed { program: Program { boundary, instrs }, layout } = self.placed;
        Placed { program: Program { boundary, instrs }, layout }
    }
}
