//! A step with a program for it that has been proved right, prepared for execution.

use std::sync::Arc;

use tensile_sched::{Bytes, Home, Instr, InstrId, Lane, Limits, OpId, Planned, Role, TensorId, Wait};

use super::error::ExecError;
use super::lower::Step;
use crate::device::{DeviceInfo, Region};

/// A step together with a planned program that `check` and `verify` have accepted. The only thing an executor runs.
#[derive(Clone, Debug)]
pub struct Compiled {
    step: Arc<Step>,
    planned: Planned,
    limits: Limits,
    work: Vec<Work>,
}

/// What to enqueue for one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A kernel, first time or again.
    Kernel {
        op: OpId,
        inputs: Vec<Region>,
        outputs: Vec<Region>,
        workspace: Region,
        /// Outputs that claim bytes, by index: those that do not take an input's.
        claims: Vec<usize>,
    },
    /// A copy; the host region is that of even and odd iterations.
    Copy { lane: Lane, device: Region, host: [Region; 2] },
    /// A release of these bytes: nothing to enqueue.
    Release(Region),
}

impl Work {
    fn regions(&self) -> Vec<Region> {
        match self {
            Work::Kernel { inputs, outputs, workspace, .. } => {
                inputs.iter().chain(outputs).chain([workspace]).copied().collect()
            }
            Work::Copy { device, .. } => vec![*device],
            Work::Release(_) => Vec::new(),
        }
    }
}

impl Compiled {
    /// Proves a program and prepares it.
    ///
    /// # Errors
    /// [`ExecError::Check`] or [`ExecError::Verify`] if the program is not a right and race-free way to run the step within the limits.
    ///
    /// # Complexity
    /// n log n in the number of accesses of all instructions.
    pub fn new(step: impl Into<Arc<Step>>, mut planned: Planned, limits: Limits) -> Result<Arc<Self>, ExecError> {
        let step = step.into();
        let synced = &planned.synced;
        let report = tensile_sched::check::check(&step.trace, &synced.placed, &limits)
            .map_err(|violations| ExecError::Check { violations })?;
        tensile_sched::verify::verify(&step.trace, synced).map_err(|races| ExecError::Verify { races })?;
        planned.report = report;
        let work = prepare(&step, &planned);
        Ok(Arc::new(Self { step, planned, limits, work }))
    }

    /// The step.
    pub fn step(&self) -> &Arc<Step> {
        &self.step
    }

    /// The program, what `check` found of it, and its predicted timing.
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// The limits under which it was proved.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Device bytes it needs.
    pub fn arena(&self) -> Bytes {
        self.planned.synced.layout().arena
    }

    /// Host bytes it needs.
    pub fn host_arena(&self) -> Bytes {
        self.planned.synced.layout().host_arena
    }

    pub(super) fn homes(&self) -> &[Home] {
        &self.planned.synced.layout().homes
    }

    pub(super) fn work(&self) -> &[Work] {
        &self.work
    }

    pub(super) fn waits(&self) -> &[Vec<Wait>] {
        &self.planned.synced.waits
    }

    pub(super) fn instrs(&self) -> &[Instr] {
        self.planned.synced.instrs()
    }

    pub(super) fn bytes_of(&self, tensor: TensorId) -> u64 {
        self.step.trace.tensors()[tensor.index()].bytes.0
    }

    /// Host slot of an input or output in an iteration.
    pub(super) fn slot(&self, tensor: TensorId, iteration: u64) -> Region {
        let slots = &self.planned.synced.layout().slots;
        let at =
            slots.binary_search_by_key(&tensor, |slots| slots.tensor).expect("check: every input and output has slots");
        Region { offset: slots[at].host[(iteration % 2) as usize].0, bytes: self.bytes_of(tensor) }
    }

    /// Whether a device of this kind can run it: its addresses are aligned, and no region is larger than a block of the device's memory or lies in two of them.
    ///
    /// # Errors
    /// [`ExecError::Alignment`], [`ExecError::Block`].
    pub(super) fn fits_device(&self, info: &DeviceInfo) -> Result<(), ExecError> {
        if !self.limits.alignment.0.is_multiple_of(info.alignment) {
            return Err(ExecError::Alignment { planned: self.limits.alignment, device: Bytes(info.alignment) });
        }
        let tensors = self.step.trace.tensors();
        let home = |home: &Home| Some(Region { offset: home.device?.0, bytes: tensors[home.tensor.index()].bytes.0 });
        let homes = self.homes().iter().filter_map(home);
        let regions: Vec<Region> = homes.chain(self.work.iter().flat_map(Work::regions)).collect();
        let largest = regions.iter().map(|region| region.bytes).max().unwrap_or(0);
        if largest > info.max_block {
            return Err(ExecError::Block { needed: Bytes(largest), device: Bytes(info.max_block) });
        }
        let crosses = |region: &Region| {
            region.bytes > 0 && region.offset / info.max_block != (region.offset + region.bytes - 1) / info.max_block
        };
        if regions.iter().any(crosses) {
            // With blocks as planned it runs, and in one piece.
            let needed = self.limits.block().min(self.arena());
            return Err(ExecError::Block { needed, device: Bytes(info.max_block) });
        }
        Ok(())
    }
}

/// Follows the addresses of tensors through the program.
fn prepare(step: &Step, planned: &Planned) -> Vec<Work> {
    let (synced, tensors) = (&planned.synced, step.trace.tensors());
    let layout = synced.layout();
    let mut address: Vec<Option<Bytes>> = vec![None; tensors.len()];
    for home in &layout.homes {
        address[home.tensor.index()] = home.device;
    }
    let region = |tensor: TensorId, at: Bytes| Region { offset: at.0, bytes: tensors[tensor.index()].bytes.0 };
    let mut all = Vec::with_capacity(synced.instrs().len());
    for (instr, placement) in synced.instrs().iter().zip(&layout.placements) {
        let work = match instr {
            Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                let call = &step.calls[op.index()];
                let resident = |tensor: TensorId| address[tensor.index()].expect("check: accesses find their tensors");
                let inputs = call.inputs.iter().map(|arg| region(arg.tensor, resident(arg.tensor))).collect();
                let outputs: Vec<(TensorId, Bytes)> =
                    call.outputs.iter().map(|arg| arg.tensor).zip(placement.device.iter().copied()).collect();
                let taken = |tensor: TensorId| takeovers.iter().any(|pair| pair.output == tensor);
                let claims = (0..outputs.len()).filter(|&index| !taken(outputs[index].0)).collect();
                let workspace = placement.workspace.map_or(Region::default(), |at| Region {
                    offset: at.0,
                    bytes: step.trace.ops()[op.index()].workspace.0,
                });
                for pair in takeovers {
                    address[pair.input.index()] = None;
                }
                for &(tensor, at) in &outputs {
                    // A tensor that is on the device already stays where it is: this one goes to scratch.
                    address[tensor.index()].get_or_insert(at);
                }
                let outputs = outputs.into_iter().map(|(tensor, at)| region(tensor, at)).collect();
                Work::Kernel { op: *op, inputs, outputs, workspace, claims }
            }
            Instr::SwapOut(tensor) | Instr::SwapIn(tensor) => {
                if matches!(instr, Instr::SwapIn(_)) {
                    address[tensor.index()] = Some(placement.device[0]);
                }
                let device = region(*tensor, address[tensor.index()].expect("check: copies find their tensors"));
                let host = placement.host.expect("check: copies have a slot");
                let host = match tensors[tensor.index()].role {
                    Role::Input | Role::Output => {
                        let at = layout.slots.binary_search_by_key(tensor, |slots| slots.tensor);
                        layout.slots[at.expect("check: every input and output has slots")].host
                    }
                    _ => [host; 2],
                };
                let lane = instr.lane().expect("copies have a lane");
                Work::Copy { lane, device, host: host.map(|at| region(*tensor, at)) }
            }
            Instr::Release(tensor) => {
                let at = address[tensor.index()].take().expect("check: what is released is on the device");
                Work::Release(region(*tensor, at))
            }
        };
        all.push(work);
    }
    all
}

/// Fills of bytes that must not be read any more, for tests: see [`ExecutorOptions::poison`](super::ExecutorOptions::poison).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Poison {
    /// Before the instruction, on its lane, after its waits: what it claims.
    pub(super) before: Vec<Region>,
    /// After the instruction, on its lane, before its event: what is released and was last used by it.
    pub(super) after: Vec<Region>,
    /// What the fills after it wait for: the last uses on other lanes.
    pub(super) waits: Vec<Wait>,
}

/// Places the fills.
///
/// A fill of released bytes follows the last instruction, in program order, that uses them. It waits for the last uses on the other lanes, which
/// come before; whoever claims the bytes next is ordered after that last instruction and so after the fill.
pub(super) fn poison(compiled: &Compiled) -> Vec<Poison> {
    let instrs = compiled.instrs();
    let align = |region: Region| Region { bytes: region.bytes.next_multiple_of(4), ..region };
    let mut all = vec![Poison::default(); instrs.len()];
    for (poison, work) in all.iter_mut().zip(compiled.work()) {
        poison.before = match work {
            Work::Kernel { outputs, workspace, claims, .. } => {
                let claimed = claims.iter().map(|&index| outputs[index]).chain([*workspace]);
                claimed.filter(|region| region.bytes > 0).map(align).collect()
            }
            Work::Copy { lane: Lane::In, device, .. } => vec![align(*device)],
            _ => Vec::new(),
        };
    }

    // Uses of each tensor's present residency: for each lane the last one. What is resident between steps has been used in the step before.
    let tensors = compiled.step.trace.tensors();
    let mut uses: Vec<Uses> = vec![[None; 3]; tensors.len()];
    let mut resident: Vec<bool> = vec![false; tensors.len()];
    for home in compiled.homes() {
        resident[home.tensor.index()] = home.device.is_some();
    }
    for round in 0..2 {
        for used in uses.iter_mut().flatten().flatten() {
            used.previous_iteration = true;
        }
        for (index, instr) in instrs.iter().enumerate() {
            let here = Some(Wait { on: InstrId::from_index(index), previous_iteration: false });
            match instr {
                Instr::Run { op, takeovers } | Instr::Rerun { op, takeovers } => {
                    let op = &compiled.step.trace.ops()[op.index()];
                    for pair in takeovers {
                        // The output has the bytes from now on, with all that used them before.
                        uses[pair.output.index()] = std::mem::take(&mut uses[pair.input.index()]);
                        uses[pair.output.index()][Lane::Compute.index()] = here;
                        resident[pair.input.index()] = false;
                        resident[pair.output.index()] = true;
                    }
                    for tensor in op.reads.iter().chain(&op.updates).filter(|tensor| resident[tensor.index()]) {
                        uses[tensor.index()][Lane::Compute.index()] = here;
                    }
                    // A written tensor that is resident already goes to scratch, which is not its residency.
                    for tensor in &op.writes {
                        if !std::mem::replace(&mut resident[tensor.index()], true) {
                            uses[tensor.index()] = [here, None, None];
                        }
                    }
                }
                Instr::SwapOut(tensor) => uses[tensor.index()][Lane::Out.index()] = here,
                Instr::SwapIn(tensor) => {
                    uses[tensor.index()] = [None, None, here];
                    resident[tensor.index()] = true;
                }
                Instr::Release(tensor) => {
                    let used = std::mem::take(&mut uses[tensor.index()]);
                    resident[tensor.index()] = false;
                    let last = used.into_iter().flatten().filter(|wait| !wait.previous_iteration).max();
                    // Without a use in this step the bytes were last used before a boundary, at which they still counted.
                    if let (1, Some(last), Work::Release(region)) = (round, last, &compiled.work[index]) {
                        let poison = &mut all[last.on.index()];
                        poison.after.push(align(*region));
                        poison.waits.extend(used.into_iter().flatten().filter(|wait| *wait != last));
                    }
                }
            }
        }
    }
    all
}

/// The last use on each lane, in the order of [`Lane::index`].
type Uses = [Option<Wait>; 3];

#[cfg(test)]
mod tests {
    use tensile_sched::{NoEviction, Planner};

    use super::*;
    use crate::device::Device;
    use crate::device::host::{HostDevice, HostOptions};
    use crate::exec::lower;
    use crate::graph::Graph;
    use crate::tensor::TensorType;

    /// Sums of vectors of three sizes.
    fn step(device: &HostDevice) -> Arc<Step> {
        let mut graph = Graph::new();
        for len in [64, 100, 300] {
            let x = graph.input(&format!("x{len}"), TensorType::f32([len])).unwrap();
            let y = graph.input(&format!("y{len}"), TensorType::f32([len])).unwrap();
            let sum = graph.add(x, y).unwrap();
            graph.output(&format!("sum{len}"), sum).unwrap();
        }
        Arc::new(lower(&graph, device).unwrap())
    }

    #[test]
    fn programs_for_larger_blocks_are_refused() {
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let step = step(&device);
        let compile = |max_block| {
            let limits = Limits { max_block: Bytes(max_block), ..device.info().limits(Bytes::MAX) };
            let planned = NoEviction.plan(&step.trace, &limits).unwrap();
            Compiled::new(Arc::clone(&step), planned, limits).unwrap()
        };
        let fits =
            |compiled: &Compiled, max_block| compiled.fits_device(&DeviceInfo { max_block, ..device.info().clone() });
        let in_one = compile(u64::MAX);
        let arena = in_one.arena().0;
        assert_eq!(fits(&in_one, arena), Ok(()));
        // Two vectors of 1200 bytes and their sum live at once, and their ends are no multiples of this.
        let block = 2048;
        assert!(arena > block);
        assert_eq!(fits(&in_one, block), Err(ExecError::Block { needed: Bytes(arena), device: Bytes(block) }));
        assert_eq!(fits(&in_one, 1199), Err(ExecError::Block { needed: Bytes(1200), device: Bytes(1199) }));
        let in_blocks = compile(block);
        assert_eq!(fits(&in_blocks, block), Ok(()));
        assert_eq!(fits(&in_blocks, in_blocks.arena().0), Ok(()));
    }
}
