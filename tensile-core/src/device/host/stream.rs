//! Streams of the host device: a worker thread each, with a queue of commands in order.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rayon::ThreadPool;
use tensile_sched::{Bytes, Lane};

use super::call::{HostArg, HostCall};
use super::count::{Tag, with_tag};
use super::emulate::{Injected, Random};
use super::memory::Memory;
use super::store::Store;
use super::{REGION_ALIGNMENT, Shared};
use crate::device::recording::{Outcome, Recording};
use crate::device::{DeviceError, OpCall, Region};
use crate::latency::Roofline;
use crate::op::Op;
use crate::tensor::TensorType;

/// A kernel with its arguments. Holds the arena, so that the bytes stay while it is queued.
#[derive(Debug)]
pub(super) struct Kernel {
    op: Op,
    arena: Arc<Memory>,
    inputs: Vec<(Region, TensorType)>,
    outputs: Vec<(Region, TensorType)>,
    workspace: Region,
}

impl Kernel {
    /// Takes a call's arguments over.
    ///
    /// # Panics
    /// If regions have wrong sizes or alignment, lie beyond the arena, or overlap in a way [`OpCall`] excludes: a program that was not checked.
    pub(super) fn new(arena: &Arc<Memory>, call: &OpCall<'_>) -> Self {
        let (def, name) = (call.op.def(), call.op.def().name());
        for arg in call.inputs.iter().chain(call.outputs) {
            assert_eq!(
                arg.region.bytes,
                arg.ty.bytes() as u64,
                "{name}: a region is as large as its tensor {}",
                arg.ty
            );
        }
        for region in call.inputs.iter().chain(call.outputs).map(|arg| arg.region).chain([call.workspace]) {
            assert!(region.offset.is_multiple_of(REGION_ALIGNMENT), "{name}: region {region} is not aligned");
            arena.at(region);
        }
        let overlap = |a: Region, b: Region| a.offset < b.end() && b.offset < a.end();
        for (index, output) in call.outputs.iter().enumerate() {
            let mut later = call.outputs[index + 1..].iter().map(|other| other.region).chain([call.workspace]);
            assert!(later.all(|other| !overlap(output.region, other)), "{name}: output {index} overlaps another");
            for (input_index, input) in call.inputs.iter().enumerate() {
                let in_place = def.in_place().contains(&(input_index, index)) && input.region == output.region;
                assert!(in_place || !overlap(output.region, input.region), "{name}: output {index} overlaps an input");
            }
        }
        for (index, input) in call.inputs.iter().enumerate() {
            assert!(!overlap(input.region, call.workspace), "{name}: the workspace overlaps an input");
            if def.updates().contains(&index) {
                let mut others = call.inputs.iter().enumerate().filter(|&(other, _)| other != index);
                assert!(others.all(|(_, other)| !overlap(input.region, other.region)), "{name}: an update is aliased");
            }
        }
        let owned = |args: &[crate::device::Arg<'_>]| args.iter().map(|arg| (arg.region, arg.ty.clone())).collect();
        Self {
            op: call.op.clone(),
            arena: Arc::clone(arena),
            inputs: owned(call.inputs),
            outputs: owned(call.outputs),
            workspace: call.workspace,
        }
    }

    fn name(&self) -> &'static str {
        self.op.def().name()
    }

    pub(super) fn run(&self, pool: &ThreadPool) {
        let threads = pool.current_num_threads();
        pool.install(|| {
            // The lists of arguments are the device's own, not scratch of the kernel.
            let (inputs, outputs) = with_tag(Tag::Other, || (self.args(&self.inputs), self.args(&self.outputs)));
            let workspace = (self.arena.at(self.workspace), self.workspace.bytes as usize);
            // SAFETY: `new` has checked sizes, alignment, bounds and overlaps; arenas are initialised when made; that nothing else uses these
            // bytes meanwhile is what a program's waits are for.
            let call = unsafe { HostCall::new(&inputs, &outputs, workspace, threads) };
            self.op.def().host_kernel(&call);
        });
    }

    fn args<'a>(&self, list: &'a [(Region, TensorType)]) -> Vec<HostArg<'a>> {
        list.iter().map(|(region, ty)| HostArg::new(self.arena.at(*region), ty)).collect()
    }
}

/// A copy between a device arena and a host arena.
#[derive(Debug)]
pub(super) struct Transfer {
    direction: Lane,
    device: (Arc<Memory>, Region),
    host: (Arc<Store>, Region),
}

impl Transfer {
    /// # Panics
    /// If the regions differ in size or lie beyond their memory: a program that was not checked.
    pub(super) fn new(direction: Lane, device: (Arc<Memory>, Region), host: (Arc<Store>, Region)) -> Self {
        assert_eq!(device.1.bytes, host.1.bytes, "a copy has one size");
        device.0.at(device.1);
        host.0.assert_holds(host.1);
        Self { direction, device, host }
    }

    fn run(&self) -> std::io::Result<()> {
        let device = (&*self.device.0, self.device.1);
        match self.direction {
            Lane::Out => self.host.0.copy_from(self.host.1, device),
            _ => self.host.0.copy_to(self.host.1, device),
        }
    }

    fn error(&self, detail: String) -> DeviceError {
        let direction = if self.direction == Lane::Out { "out" } else { "in" };
        DeviceError::Copy { direction, bytes: Bytes(self.device.1.bytes), detail }
    }
}

/// What a stream can be told.
#[derive(Debug)]
pub(super) enum Command {
    Kernel(Box<Kernel>),
    Copy(Transfer),
    Record(Arc<Recording>),
    Wait(Arc<Recording>),
    /// As `Record`, and forgets the failure.
    Synchronize(Arc<Recording>),
}

/// A command with what was known when it was enqueued.
#[derive(Debug)]
struct Queued {
    command: Command,
    /// The enqueuing thread's time on a virtual clock: work cannot begin before it was asked for.
    issued: u64,
    inject: Option<Injected>,
}

/// Work in order, on a thread of its own. Dropping it waits for the work.
#[derive(Debug)]
pub struct HostStream {
    queue: Option<Sender<Queued>>,
    worker: Option<JoinHandle<()>>,
}

impl HostStream {
    pub(super) fn new(shared: &Arc<Shared>, lane: Lane) -> Result<Self, DeviceError> {
        let (sender, receiver) = channel();
        let worker = Worker {
            random: shared.emulation.delays.map(|delays| Random::new(delays.seed, lane.index() as u64)),
            shared: Arc::clone(shared),
            failed: None,
            now: 0,
        };
        let name = format!("tensile-{}", ["compute", "out", "in"][lane.index()]);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || worker.run(receiver))
            .map_err(|error| DeviceError::DeviceLost { detail: format!("no thread for a stream: {error}") })?;
        Ok(Self { queue: Some(sender), worker: Some(thread) })
    }

    /// Enqueues.
    ///
    /// # Errors
    /// [`DeviceError::DeviceLost`].
    pub(super) fn push(&self, shared: &Shared, command: Command) -> Result<(), DeviceError> {
        shared.check_lost()?;
        self.push_even_if_lost(shared, command)
    }

    /// Enqueues on a lost device too, where commands do nothing but report the loss: so that a caller can wait for what runs still.
    ///
    /// # Errors
    /// [`DeviceError::DeviceLost`] if the thread has ended.
    pub(super) fn push_even_if_lost(&self, shared: &Shared, command: Command) -> Result<(), DeviceError> {
        let inject = shared.injections.of_command(&command);
        let queued = Queued { command, issued: shared.host_time(), inject };
        let queue = self.queue.as_ref().expect("a stream has its queue until it is dropped");
        queue.send(queued).map_err(|_| DeviceError::DeviceLost { detail: "a stream's thread has ended".to_owned() })
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(worker) = self.worker.take() {
            // The worker catches panics of what it runs; one of its own has been reported by the panic hook.
            let _ = worker.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    /// First failure since the last synchronisation: work is skipped until then.
    failed: Option<DeviceError>,
    /// Time on a virtual clock.
    now: u64,
    random: Option<Random>,
}

impl Worker {
    fn run(mut self, queue: Receiver<Queued>) {
        for Queued { command, issued, inject } in queue {
            self.now = self.now.max(issued);
            self.fail_if(self.shared.check_lost());
            if inject == Some(Injected::DeviceLoss) {
                self.shared.lose("injected".to_owned());
                self.fail_if(self.shared.check_lost());
            }
            match command {
                Command::Kernel(kernel) => self.work(|shared| run_kernel(&kernel, shared, inject)),
                Command::Copy(transfer) => self.work(|shared| run_copy(&transfer, shared, inject)),
                Command::Wait(recording) => {
                    let outcome = recording.wait();
                    self.now = self.now.max(outcome.time);
                    self.fail_if(outcome.result);
                }
                Command::Record(recording) => {
                    let result = self.failed.clone().map_or(Ok(()), Err);
                    recording.complete(Outcome { time: self.shared.time(self.now), result });
                }
                Command::Synchronize(recording) => {
                    let result = self.failed.take().map_or(Ok(()), Err);
                    recording.complete(Outcome { time: self.shared.time(self.now), result });
                }
            }
        }
    }

    fn fail_if(&mut self, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    /// Runs a piece of work, which gives the nanoseconds it takes on a virtual clock; skips it after a failure.
    fn work(&mut self, run: impl FnOnce(&Shared) -> Result<u64, DeviceError>) {
        if self.failed.is_some() {
            return;
        }
        self.delay();
        match run(&self.shared) {
            Ok(nanos) => self.now += nanos,
            Err(error) => self.failed = Some(error),
        }
        self.delay();
    }

    fn delay(&mut self) {
        if let (Some(random), Some(delays)) = (&mut self.random, self.shared.emulation.delays) {
            delays.sleep(random);
        }
    }
}

fn run_kernel(kernel: &Kernel, shared: &Shared, inject: Option<Injected>) -> Result<u64, DeviceError> {
    let failed = |detail| DeviceError::Kernel { op: kernel.name().to_owned(), detail };
    if inject == Some(Injected::Failure) {
        return Err(failed("injected".to_owned()));
    }
    let run = || {
        assert!(inject != Some(Injected::Panic), "injected panic");
        kernel.run(&shared.pool);
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| failed(panic_message(panic.as_ref())))?;
    let types = |args: &[(Region, TensorType)]| args.iter().map(|(_, ty)| ty.clone()).collect::<Vec<_>>();
    Ok(shared.virtual_time(|info| {
        Roofline::new(info).time(kernel.op.def().cost(&types(&kernel.inputs), &types(&kernel.outputs)))
    }))
}

fn run_copy(transfer: &Transfer, shared: &Shared, inject: Option<Injected>) -> Result<u64, DeviceError> {
    match inject {
        Some(Injected::Failure) => return Err(transfer.error("injected".to_owned())),
        Some(Injected::Panic) => return Err(transfer.error("injected panic".to_owned())),
        _ => {}
    }
    catch_unwind(AssertUnwindSafe(|| transfer.run()))
        .map_err(|panic| transfer.error(panic_message(panic.as_ref())))?
        .map_err(|error| transfer.error(format!("spill file: {error}")))?;
    let bytes = Bytes(transfer.device.1.bytes);
    Ok(shared.virtual_time(|info| match transfer.direction {
        Lane::Out => info.link.out_time(bytes),
        _ => info.link.in_time(bytes),
    }))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "with no message".to_owned()))
}
