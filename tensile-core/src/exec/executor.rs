//! The executor: interprets a synced program, and measures.

use std::collections::VecDeque;
use std::sync::Arc;

use tensile_sched::{Bytes, Lane};

use super::compiled::{Compiled, Poison, poison};
use super::error::ExecError;
use super::lower::Named;
use super::stats::{ProgramStats, StepOutput, StepResult, StepSpans};
use crate::device::host::count::{Tag, with_tag};
use crate::device::{Device, DeviceError};
use crate::graph::Persistent;

/// Results kept for tickets that have not been given to [`Executor::finish`] yet; older ones are forgotten.
const MOST_RESULTS: usize = 16;

/// Most bytes of a persistent tensor that are set at a time, so that large ones never stand in memory twice. A multiple of 16.
const INIT_PART: usize = 1 << 20;

/// How an executor works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// Time every kernel and copy by events.
    pub profile: bool,
    /// For tests: fill with NaN what an instruction claims, before it, and what is released, after its last use. Fills are kernels; they cost time
    /// and change no result of a right program.
    pub poison: bool,
}

impl Default for ExecutorOptions {
    /// Profiling, no poison.
    fn default() -> Self {
        Self { profile: true, poison: false }
    }
}

/// A step that has been begun. Give it to [`Executor::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a step in flight is to be finished"]
pub struct Ticket {
    pub(super) iteration: u64,
}

impl Ticket {
    /// Which step of its executor it is, from 0.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }
}

/// What becomes of arenas when another program follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// They grow if they must, so that programs can take turns.
    Grow,
    /// They get the size of the program.
    Exact,
}

/// A step in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    iteration: u64,
    program: usize,
    /// Whether the lanes were empty when it began.
    drained: bool,
}

/// A program with what this executor keeps for it.
pub(super) struct Program<D: Device> {
    pub(super) compiled: Arc<Compiled>,
    /// For even and odd iterations, for each instruction: an event after it, if something waits for it or it is timed.
    pub(super) after: [Vec<Option<D::Event>>; 2],
    /// Likewise an event before it, if it is timed.
    pub(super) before: [Vec<Option<D::Event>>; 2],
    pub(super) poison: Vec<Poison>,
    pub(super) stats: ProgramStats,
}

/// Runs one job's programs on a device: owns its memory there and on the host, three streams, and the events between them.
///
/// [`begin`](Self::begin) enqueues a whole step: launches, copies, waits and events as the program says, and nothing else; [`finish`](Self::finish) waits for it
/// and reads the outputs. At most two steps are in flight. All programs of a job have the same persistent tensors; when another program follows, all lanes are drained, and
/// where its boundary differs, the persistent tensors move.
///
/// After a failure of the device the state is not to be trusted: every later call gives [`ExecError::Failed`]. Dropping an executor waits for the
/// work in flight and gives all its memory back.
pub struct Executor<D: Device> {
    // Streams come first: dropped first, they end before the memory they use goes.
    pub(super) streams: [D::Stream; 3],
    pub(super) arena: D::Arena,
    pub(super) arena_bytes: u64,
    pub(super) host: D::HostArena,
    pub(super) host_bytes: u64,
    pub(super) programs: Vec<Program<D>>,
    pub(super) current: usize,
    /// Start of a step on the compute lane, and its end on each lane, for the last three steps.
    pub(super) marks: [(D::Event, [D::Event; 3]); 3],
    in_flight: VecDeque<InFlight>,
    /// The step that ended last.
    latest: Option<InFlight>,
    finished: Vec<StepResult>,
    next_iteration: u64,
    pub(super) drained: bool,
    failed: Option<DeviceError>,
    staging: Vec<u64>,
    options: ExecutorOptions,
    pub(super) device: Arc<D>,
}

impl<D: Device> Executor<D> {
    /// Allocates for a program and sets the persistent tensors: `init` gets each, part by part, with the first byte of the part (a multiple of 16) and the
    /// part's bytes, zero at first.
    ///
    /// # Errors
    /// [`ExecError::Device`] if memory is short; [`ExecError::Alignment`], [`ExecError::Block`] if the program was planned for another device.
    pub fn new(
        device: Arc<D>,
        compiled: &Arc<Compiled>,
        options: ExecutorOptions,
        mut init: impl FnMut(&Persistent, usize, &mut [u8]),
    ) -> Result<Self, ExecError> {
        Self::try_new(device, compiled, options, |persistent, first, bytes| {
            init(persistent, first, bytes);
            Ok(())
        })
    }

    /// As [`new`](Self::new), with first values that may fail to come.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and of `init`.
    pub fn try_new<E: From<ExecError>>(
        device: Arc<D>,
        compiled: &Arc<Compiled>,
        options: ExecutorOptions,
        mut init: impl FnMut(&Persistent, usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut executor = Self::allocate(device, compiled, options)?;
        for (index, persistent) in compiled.step().persistents.iter().enumerate() {
            let all = persistent.ty.bytes();
            for first in (0..all).step_by(INIT_PART) {
                executor.with_staging(INIT_PART.min(all - first), |executor, bytes| {
                    bytes.fill(0);
                    init(persistent, first, bytes)?;
                    Ok::<(), E>(executor.store(index, first, bytes)?)
                })?;
            }
        }
        Ok(executor)
    }

    /// Everything but the values of the persistent tensors.
    fn allocate(device: Arc<D>, compiled: &Arc<Compiled>, options: ExecutorOptions) -> Result<Self, ExecError> {
        compiled.fits_device(device.info())?;
        let (arena_bytes, host_bytes) = (compiled.arena().0, compiled.host_arena().0);
        let marks =
            || -> Result<_, DeviceError> { Ok((device.event()?, [device.event()?, device.event()?, device.event()?])) };
        let mut executor = Self {
            arena: device.alloc_arena(arena_bytes)?,
            arena_bytes,
            host: device.alloc_host_arena(host_bytes)?,
            host_bytes,
            streams: [device.stream(Lane::Compute)?, device.stream(Lane::Out)?, device.stream(Lane::In)?],
            programs: Vec::new(),
            current: 0,
            marks: [marks()?, marks()?, marks()?],
            in_flight: VecDeque::new(),
            latest: None,
            finished: Vec::new(),
            next_iteration: 0,
            drained: true,
            failed: None,
            staging: Vec::new(),
            options,
            device,
        };
        executor.current = executor.program(compiled)?;
        Ok(executor)
    }

    /// Begins a step: fills the inputs through `inputs` and enqueues everything.
    ///
    /// # Errors
    /// [`ExecError::InFlight`] if two steps are in flight; [`ExecError::OtherJob`] and such if the program does not fit;
    /// [`ExecError::Device`]; [`ExecError::Failed`].
    pub fn begin(
        &mut self,
        compiled: &Arc<Compiled>,
        mut inputs: impl FnMut(&Named, &mut [u8]),
    ) -> Result<Ticket, ExecError> {
        self.check_failed()?;
        if self.in_flight.len() >= 2 {
            return Err(ExecError::InFlight);
        }
        self.switch(compiled, Sizes::Grow)?;
        let iteration = self.next_iteration;
        for input in &compiled.step().inputs {
            let slot = compiled.slot(input.tensor, iteration);
            self.with_staging(input.ty.bytes(), |executor, bytes| {
                inputs(input, bytes);
                executor.device.write_host(&executor.host, slot, bytes)
            })?;
        }
        if let Err(error) = self.enqueue(iteration) {
            return Err(self.fail(error));
        }
        self.next_iteration += 1;
        self.in_flight.push_back(InFlight { iteration, program: self.current, drained: self.drained });
        self.drained = false;
        Ok(Ticket { iteration })
    }

    /// Waits for a step and reads its outputs.
    ///
    /// # Errors
    /// [`ExecError::Device`] if it failed; [`ExecError::Ticket`].
    pub fn finish(&mut self, ticket: Ticket) -> Result<StepResult, ExecError> {
        loop {
            if let Some(at) = self.finished.iter().position(|result| result.iteration == ticket.iteration) {
                return Ok(self.finished.swap_remove(at));
            }
            self.check_failed()?;
            if !self.in_flight.iter().any(|step| step.iteration == ticket.iteration) {
                return Err(ExecError::Ticket { iteration: ticket.iteration });
            }
            self.finish_oldest()?;
        }
    }

    /// Begins a step and finishes it.
    ///
    /// # Errors
    /// As [`begin`](Self::begin) and [`finish`](Self::finish).
    pub fn step(
        &mut self,
        compiled: &Arc<Compiled>,
        inputs: impl FnMut(&Named, &mut [u8]),
    ) -> Result<StepResult, ExecError> {
        let ticket = self.begin(compiled, inputs)?;
        self.finish(ticket)
    }

    /// Waits until nothing is in flight. Results of the last 16 steps not yet finished are kept for their tickets.
    ///
    /// # Errors
    /// [`ExecError::Device`] if work failed; [`ExecError::Failed`].
    pub fn drain(&mut self) -> Result<(), ExecError> {
        self.check_failed()?;
        while !self.in_flight.is_empty() {
            self.finish_oldest()?;
        }
        if !self.drained {
            for lane in Lane::ALL {
                if let Err(error) = self.device.synchronize(&self.streams[lane.index()]) {
                    return Err(self.fail(error));
                }
            }
        }
        self.drained = true;
        Ok(())
    }

    /// Drains the lanes and makes a program the current one, as beginning a step with it would, with arenas of exactly the size that it needs: where it needs less than the
    /// program before, the rest is given back to the device.
    ///
    /// # Errors
    /// As [`begin`](Self::begin). If memory is short ([`DeviceError::OutOfMemory`], [`DeviceError::HostOutOfMemory`], [`DeviceError::DiskFull`]) everything is as it was, and the job can go
    /// on with the program before.
    pub fn take_over(&mut self, compiled: &Arc<Compiled>) -> Result<(), ExecError> {
        self.check_failed()?;
        self.switch(compiled, Sizes::Exact)
    }

    /// Drains the lanes and forgets a program and its statistics, unless it is the current one. It can be run again later.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    pub fn forget(&mut self, compiled: &Arc<Compiled>) -> Result<(), ExecError> {
        self.drain()?;
        let known = self.programs.iter().position(|program| Arc::ptr_eq(&program.compiled, compiled));
        let Some(index) = known.filter(|&index| index != self.current) else { return Ok(()) };
        self.programs.remove(index);
        self.current -= usize::from(self.current > index);
        self.latest = self.latest.filter(|latest| latest.program != index).map(|mut latest| {
            latest.program -= usize::from(latest.program > index);
            latest
        });
        Ok(())
    }

    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The program that ran last, or that it was made for.
    pub fn compiled(&self) -> &Arc<Compiled> {
        &self.programs[self.current].compiled
    }

    /// Bytes of the device arena now.
    pub fn arena_bytes(&self) -> Bytes {
        Bytes(self.arena_bytes)
    }

    /// Bytes of the host arena now.
    pub fn host_bytes(&self) -> Bytes {
        Bytes(self.host_bytes)
    }

    /// Steps begun so far.
    pub fn iterations(&self) -> u64 {
        self.next_iteration
    }

    /// When each instruction of the latest step ran. Waits until nothing is in flight. None if no step has ended, or steps are not profiled.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    pub fn latest_spans(&mut self) -> Result<Option<StepSpans>, ExecError> {
        self.drain()?;
        let Some(step) = self.latest.filter(|_| self.options.profile) else { return Ok(None) };
        match self.spans(step.iteration, step.program, step.drained) {
            Ok(spans) => Ok(Some(StepSpans { program: Arc::clone(&self.programs[step.program].compiled), spans })),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// What was measured of a program; none if it never ran here.
    pub fn stats(&self, compiled: &Arc<Compiled>) -> Option<&ProgramStats> {
        self.programs.iter().find(|program| Arc::ptr_eq(&program.compiled, compiled)).map(|program| &program.stats)
    }

    pub(super) fn check_failed(&self) -> Result<(), ExecError> {
        self.failed.clone().map_or(Ok(()), |error| Err(ExecError::Failed(error)))
    }

    /// Notes a failure, waits for what runs still, and gives the error to report.
    pub(super) fn fail(&mut self, error: DeviceError) -> ExecError {
        for stream in &self.streams {
            // These give the same failure, or one that follows from it.
            let _ = self.device.synchronize(stream);
        }
        self.in_flight.clear();
        self.failed = Some(error.clone());
        ExecError::Device(error)
    }

    /// A buffer of that many bytes, 8-byte aligned, on the host.
    pub(super) fn with_staging<T>(&mut self, bytes: usize, run: impl FnOnce(&mut Self, &mut [u8]) -> T) -> T {
        let mut staging = std::mem::take(&mut self.staging);
        if staging.len() < bytes.div_ceil(8) {
            with_tag(Tag::Host, || staging.resize(bytes.div_ceil(8), 0));
        }
        let result = run(self, &mut bytemuck::cast_slice_mut(&mut staging)[..bytes]);
        self.staging = staging;
        result
    }

    /// Index of a program in the list, made ready if it is new.
    fn program(&mut self, compiled: &Arc<Compiled>) -> Result<usize, ExecError> {
        if let Some(known) = self.programs.iter().position(|program| Arc::ptr_eq(&program.compiled, compiled)) {
            return Ok(known);
        }
        let n_instrs = compiled.instrs().len();
        let poison = if self.options.poison { poison(compiled) } else { vec![Poison::default(); n_instrs] };
        let mut wanted = vec![false; n_instrs];
        for wait in compiled.waits().iter().flatten().chain(poison.iter().flat_map(|poison| &poison.waits)) {
            wanted[wait.on.index()] = true;
        }
        let timed = |index: usize| self.options.profile && compiled.instrs()[index].lane().is_some();
        let events = |want: &dyn Fn(usize) -> bool| -> Result<Vec<Option<D::Event>>, DeviceError> {
            (0..n_instrs).map(|index| want(index).then(|| self.device.event()).transpose()).collect()
        };
        let after = || events(&|index| wanted[index] || timed(index));
        let before = || events(&timed);
        let (after, before) = ([after()?, after()?], [before()?, before()?]);
        let stats = ProgramStats::new(compiled.step().trace.ops().len());
        self.programs.push(Program { compiled: Arc::clone(compiled), after, before, poison, stats });
        Ok(self.programs.len() - 1)
    }

    /// Makes a program the current one.
    fn switch(&mut self, compiled: &Arc<Compiled>, sizes: Sizes) -> Result<(), ExecError> {
        if Arc::ptr_eq(self.compiled(), compiled) && sizes == Sizes::Grow {
            return Ok(());
        }
        compiled.fits_device(self.device.info())?;
        same_job(&self.compiled().step().persistents, &compiled.step().persistents)?;
        self.drain()?;
        let known = self.programs.len();
        let next = self.program(compiled)?;
        if let Err(error) = self.make_room(compiled, sizes) {
            // One that was made ready for this goes again.
            self.programs.truncate(known);
            return Err(error);
        }
        self.current = next;
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<(), ExecError> {
        let step = *self.in_flight.front().expect("called with a step in flight");
        let InFlight { iteration, program, drained } = step;
        let waited = self.marks[(iteration % 3) as usize].1.iter().try_for_each(|end| self.device.wait_event(end));
        let timings = waited.and_then(|()| self.timings(iteration, program, drained));
        let timings = match timings {
            Ok(timings) => timings,
            Err(error) => return Err(self.fail(error)),
        };
        let compiled = Arc::clone(&self.programs[program].compiled);
        let mut outputs = Vec::with_capacity(compiled.step().outputs.len());
        for output in &compiled.step().outputs {
            let mut bytes = vec![0; output.ty.bytes()];
            self.device.read_host(&self.host, compiled.slot(output.tensor, iteration), &mut bytes)?;
            outputs.push(StepOutput { name: output.name.clone(), ty: output.ty.clone(), bytes });
        }
        self.programs[program].stats.add_step(&compiled, &timings);
        // A caller that has dropped its ticket will not come for the result.
        if self.finished.len() == MOST_RESULTS {
            self.finished.remove(0);
        }
        self.finished.push(StepResult { iteration, outputs, timings });
        self.in_flight.pop_front();
        self.latest = Some(step);
        Ok(())
    }
}

/// Programs of one job agree on the persistent tensors.
pub(super) fn same_job(ours: &[Persistent], theirs: &[Persistent]) -> Result<(), ExecError> {
    if ours.len() != theirs.len() {
        let detail = format!("{} against {} of them", theirs.len(), ours.len());
        return Err(ExecError::OtherJob { detail });
    }
    let differs = |(ours, theirs): &(&Persistent, &Persistent)| ours.name != theirs.name || ours.ty != theirs.ty;
    match ours.iter().zip(theirs).find(differs) {
        None => Ok(()),
        Some((ours, theirs)) => Err(ExecError::OtherJob {
            detail: format!("'{}' {} in place of '{}' {}", theirs.name, theirs.ty, ours.name, ours.ty),
        }),
    }
}

impl<D: Device> Drop for Executor<D> {
    fn drop(&mut self) {
        for stream in &self.streams {
            // Only to let work in flight end before its memory goes; there is nobody to tell of a failure.
            let _ = self.device.synchronize(stream);
        }
    }
}
