//! [`WgpuDevice`]: the device, its options, its streams and events.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tensile_core::device::host::{HostArena, Rates};
use tensile_core::device::ledger::Ledger;
use tensile_core::device::recording::Outcome;
use tensile_core::{Arg, Device, DeviceError, DeviceInfo, Lane, Op, OpCall, Region, TensorType};
use tensile_sched::{Bytes, Duplex};

use crate::adapter::{self, AdapterChoice, AdapterError, AdapterInfo};
use crate::arena::WgpuArena;
use crate::complete;
use crate::core::{Core, Mark, lock};
use crate::gpu::Slice;
use crate::kernel::{self, ALIGNMENT, Place, Plan, Refused, Types};
use crate::measure;
use crate::self_test::{self, SelfTest};
use crate::staging;
use crate::submit::{Command, DevicePiece, HostPiece, Submitter};

/// Commands that wait to be encoded at most; enqueueing more blocks until there is room.
const MOST_QUEUED: usize = 4096;

/// Submissions that wait for the GPU at most.
const MOST_IN_FLIGHT: usize = 3;

/// How to open a [`WgpuDevice`].
#[derive(Clone, Debug, PartialEq)]
pub struct WgpuOptions {
    /// Which adapter.
    pub adapter: AdapterChoice,
    /// Bytes that all device arenas together may have.
    pub capacity: Bytes,
    /// Bytes that all host arenas together may have. Staging is not counted there: see [`WgpuDevice::staging_bytes`].
    pub host_capacity: Bytes,
    /// Directory for host arenas in files; none for ordinary memory.
    pub spill_dir: Option<PathBuf>,
    /// Speed to report; none to measure it.
    pub rates: Option<Rates>,
    /// Time every event by the GPU's clock. Costs time for every event (80 µs on a software adapter); without it an event has the time at which the submission ended that it is in, so that
    /// times between events of one submission are zero.
    pub timestamps: bool,
    /// Open an adapter that fails its self-test.
    pub allow_faulty: bool,
    /// Time without progress after which waiting is an error.
    pub timeout: Duration,
    /// What to emulate, for tests.
    pub emulation: Emulation,
}

/// An adapter other than the one there is, for tests. By default nothing is emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    /// Most bytes of a block of device memory; a multiple of 256.
    pub block: Option<u64>,
    /// Most bytes of a tensor that a kernel sees at a time; a multiple of 256.
    pub binding: Option<u64>,
    /// Most workgroups in a row of a grid, as 65,535 are on real adapters.
    pub row: Option<u32>,
    /// Software adapters get the kernels of real GPUs, and the other way round.
    pub other_kernels: bool,
    /// Nothing waits for the GPU, so that no event ever happens.
    pub no_progress: bool,
}

impl Default for WgpuOptions {
    /// The adapter that the machine prefers, no limits, measured rates, no timestamps.
    fn default() -> Self {
        Self {
            adapter: AdapterChoice::default(),
            capacity: Bytes::MAX,
            host_capacity: Bytes::MAX,
            spill_dir: None,
            rates: None,
            timestamps: false,
            allow_faulty: false,
            timeout: Duration::from_secs(60),
            emulation: Emulation::default(),
        }
    }
}

impl WgpuOptions {
    /// For tests: [`Rates::NOMINAL`] on a link that overlaps nothing.
    pub fn nominal() -> Self {
        let mut rates = Rates::NOMINAL;
        rates.link.duplex = Duplex::NoOverlap;
        Self { rates: Some(rates), ..Self::default() }
    }
}

/// Why a device could not be opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The adapter computes wrong results.
    #[error(
        "adapter '{adapter}' with driver '{driver}' fails its self-test: {detail}. Update the driver, choose another adapter, or override with --allow-faulty-driver"
    )]
    Faulty {
        /// Its name.
        adapter: String,
        /// Name and version of the driver.
        driver: String,
        /// What it computes wrongly.
        detail: String,
    },
    /// It failed while it was tested and measured.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// An adapter as a [`Device`]. A handle: cloning gives another one to the same device.
///
/// All streams share wgpu's one queue. Work is encoded, batched and submitted by one thread, in the order in which it was enqueued; another one waits for it. So events happen, and copies arrive,
/// without anybody polling.
#[derive(Clone)]
pub struct WgpuDevice(Arc<Inner>);

/// Streams and the device's handles share it; the threads do not, so that it ends them.
struct Inner {
    core: Arc<Core>,
    info: DeviceInfo,
    adapter: AdapterInfo,
    self_test: SelfTest,
    commands: Option<SyncSender<Command>>,
    threads: Vec<JoinHandle<()>>,
    next_stream: AtomicU64,
    device_ledger: Arc<Ledger>,
    host_ledger: Arc<Ledger>,
    spill_dir: Option<PathBuf>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.commands.take());
        for thread in self.threads.drain(..) {
            // A panic of theirs has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for WgpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuDevice").field("info", &self.0.info).finish_non_exhaustive()
    }
}

/// A stream of a [`WgpuDevice`]. Keeps the device open.
pub struct WgpuStream {
    inner: Arc<Inner>,
    id: u64,
}

impl fmt::Debug for WgpuStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuStream").field("id", &self.id).finish_non_exhaustive()
    }
}

/// An event of a [`WgpuDevice`].
#[derive(Debug, Default)]
pub struct WgpuEvent(Mutex<Option<Arc<Mark>>>);

impl WgpuEvent {
    fn latest(&self) -> Option<Arc<Mark>> {
        lock(&self.0).clone()
    }

    fn outcome(&self) -> Result<u64, DeviceError> {
        let outcome = self.latest().and_then(|mark| mark.recording.get());
        let Outcome { time, result } = outcome.ok_or(DeviceError::NotRecorded)?;
        result.map(|()| time)
    }
}

impl WgpuDevice {
    /// Opens an adapter, tests and measures it.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: WgpuOptions) -> Result<Self, OpenError> {
        let (rates, allow_faulty, works) = (options.rates, options.allow_faulty, !options.emulation.no_progress);
        let ledgers = [options.capacity, options.host_capacity].map(|capacity| Arc::new(Ledger::new(capacity.0)));
        let mut device = Self::untested(options)?;
        let tested = if works { self_test::run(&device)? } else { SelfTest::default() };
        if let (Some(detail), false) = (tested.failure(), allow_faulty) {
            let AdapterInfo { name: adapter, driver, .. } = device.adapter().clone();
            return Err(OpenError::Faulty { adapter, driver, detail });
        }
        let rates = match rates {
            Some(rates) => rates,
            None if works => measure::measure(&device)?,
            None => measure::UNKNOWN,
        };
        let inner = Arc::get_mut(&mut device.0).expect("tests and measurements keep no handle");
        [inner.device_ledger, inner.host_ledger] = ledgers;
        inner.self_test = tested;
        inner.set_rates(&rates);
        Ok(device)
    }

    /// Neither tested nor measured, and with room for both: without limits of capacity.
    fn untested(options: WgpuOptions) -> Result<Self, OpenError> {
        let (gpu, adapter) = adapter::open(&options.adapter, options.timestamps, options.emulation)?;
        let name = format!("wgpu: {}", adapter.name);
        let core = Arc::new(Core::new(gpu, name.clone(), options.timeout, options.timestamps));
        let (commands, received) = sync_channel(MOST_QUEUED);
        let (flights, landing) = sync_channel(MOST_IN_FLIGHT);
        let submitter = Submitter::new(Arc::clone(&core), flights);
        let (waiting, progress) = (Arc::clone(&core), !options.emulation.no_progress);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(run)
                .map_err(|error| DeviceError::DeviceLost { detail: format!("no thread for the device: {error}") })
        };
        let threads = vec![
            spawn("tensile-submit", Box::new(move || submitter.run(&received)))?,
            spawn("tensile-complete", Box::new(move || complete::run(&waiting, &landing, progress)))?,
        ];
        let max_block = options.emulation.block.unwrap_or(u64::MAX).min(adapter.max_buffer.0) / ALIGNMENT * ALIGNMENT;
        let capacity = (options.capacity != Bytes::MAX).then_some(options.capacity.0);
        let machine = core.gpu.caps.software.then(tensile_core::device::host::total_memory).flatten();
        let mut inner = Inner {
            info: DeviceInfo {
                name,
                alignment: ALIGNMENT,
                max_block,
                memory: [capacity, machine.map(|total| total.0)].into_iter().flatten().min(),
                link: Rates::NOMINAL.link,
                flops_per_s: 0.0,
                bytes_per_s: 0.0,
                launch_s: 0.0,
            },
            core,
            adapter,
            self_test: SelfTest::default(),
            commands: Some(commands),
            threads,
            next_stream: AtomicU64::new(0),
            device_ledger: Arc::new(Ledger::new(u64::MAX)),
            host_ledger: Arc::new(Ledger::new(u64::MAX)),
            spill_dir: options.spill_dir,
        };
        inner.set_rates(&options.rates.unwrap_or(measure::UNKNOWN));
        Ok(Self(Arc::new(inner)))
    }

    /// The adapter, as its driver describes it.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.0.adapter
    }

    /// What the adapter was tested for when it was opened.
    pub fn self_test(&self) -> &SelfTest {
        &self.0.self_test
    }

    /// Which kernels products and reductions get, by the kind of adapter: results are the same only where they are.
    pub fn kernels(&self) -> &'static str {
        if self.0.core.gpu.caps.software { "blocks in registers" } else { "tiles in workgroup memory" }
    }

    /// Bytes of all device arenas.
    pub fn device_bytes(&self) -> Bytes {
        Bytes(self.0.device_ledger.used())
    }

    /// Bytes of all host arenas, those in files included.
    pub fn host_bytes(&self) -> Bytes {
        Bytes(self.0.host_ledger.used())
    }

    /// Bytes of host arenas that are in files.
    pub fn spilled_bytes(&self) -> Bytes {
        if self.0.spill_dir.is_some() { self.host_bytes() } else { Bytes::ZERO }
    }

    /// Bytes of staging buffers now: host memory beside the host arenas, made when first needed, never above [`MOST_STAGING`].
    pub fn staging_bytes(&self) -> Bytes {
        Bytes(self.0.core.staging.bytes())
    }

    /// Bytes of all live buffers, by wgpu's own allocator: arenas, staging, and what wgpu keeps for itself. None where the backend does not tell.
    pub fn allocated_bytes(&self) -> Option<Bytes> {
        self.0.core.gpu.device.generate_allocator_report().map(|report| Bytes(report.total_allocated_bytes))
    }

    /// Whether events are timed by the GPU's clock.
    pub fn has_timestamps(&self) -> bool {
        self.0.core.timestamps
    }

    /// Most bytes of a tensor that a kernel sees at a time.
    pub fn max_binding(&self) -> Bytes {
        Bytes(self.0.core.gpu.caps.max_binding)
    }

    /// Dispatches that a launch of this op takes; long ones are divided so that none runs for long.
    ///
    /// # Errors
    /// As [`workspace`](Device::workspace).
    pub fn dispatches(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Result<usize, DeviceError> {
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.iter().collect(), outputs.iter().collect());
        Ok(self.plan(op, Types { inputs: &inputs, outputs: &outputs })?.dispatches.len())
    }

    /// Gives the device up, as a driver's reset would: all its jobs get [`DeviceError::DeviceLost`].
    pub fn lose(&self) {
        self.0.core.lose("given up".to_owned());
        self.0.core.gpu.device.destroy();
    }

    fn push(&self, command: Command) -> Result<(), DeviceError> {
        self.0.core.check_lost()?;
        self.0.push(command)
    }

    fn stream_id(&self) -> u64 {
        self.0.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    fn plan(&self, op: &Op, types: Types<'_>) -> Result<Plan, DeviceError> {
        let (device, name) = (self.0.core.name.clone(), op.def().name().to_owned());
        kernel::plan(op, types, &self.0.core.gpu.caps).map_err(|refused| match refused {
            Refused::NoKernel => DeviceError::Unsupported { device, op: name, detail: String::new() },
            Refused::Other(detail) => DeviceError::Unsupported { device, op: name, detail },
            Refused::Binding { what, bytes } => {
                let limit = Bytes(self.0.core.gpu.caps.max_binding);
                DeviceError::Binding { device, op: name, tensor: what, bytes: Bytes(bytes), limit }
            }
        })
    }

    fn read_arena(&self, arena: &WgpuArena, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        assert_eq!(region.bytes, into.len() as u64, "a read fills its buffer");
        let stream = self.stream_id();
        let mut done = 0;
        for piece in arena.pieces(region) {
            // Copies take whole words.
            let start = piece.offset / 4 * 4;
            let from = device_piece(arena, Region { offset: start, bytes: piece.end() - start });
            let bytes = Arc::new(Mutex::new(vec![0; from.bytes as usize]));
            self.push(Command::Out { stream, from, to: HostPiece::Bytes(Arc::clone(&bytes)) })?;
            self.drain(stream)?;
            let n = piece.bytes as usize;
            into[done..done + n].copy_from_slice(&lock(&bytes)[(piece.offset - start) as usize..][..n]);
            done += n;
        }
        Ok(())
    }

    fn write_arena(&self, arena: &WgpuArena, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        assert_eq!(region.bytes, from.len() as u64, "a write takes its whole buffer");
        let stream = self.stream_id();
        let mut rest = from;
        for piece in arena.pieces(region) {
            let (part, more) = rest.split_at(piece.bytes as usize);
            rest = more;
            let from = HostPiece::Bytes(Arc::new(Mutex::new(part.to_vec())));
            self.push(Command::In { stream, from, to: device_piece(arena, piece) })?;
        }
        self.drain(stream)
    }

    /// Runs a plan that is not an op's, and waits for it.
    pub(crate) fn dispatch<'a>(
        &self,
        op: &'static str,
        plan: &Plan,
        resolve: impl Fn(Place) -> Slice<'a>,
    ) -> Result<(), DeviceError> {
        let stream = self.stream_id();
        let dispatches = self.0.core.gpu.prepare(plan, resolve).map_err(|error| self.0.core.failure(op, &error))?;
        self.push(Command::Kernel { stream, op, dispatches })?;
        self.drain(stream)
    }

    /// Waits for a stream.
    fn drain(&self, stream: u64) -> Result<(), DeviceError> {
        let mark = Arc::new(Mark::default());
        self.0.push(Command::Synchronize { stream, mark: Arc::clone(&mark) })?;
        self.0.core.wait(&mark)
    }
}

impl Inner {
    fn set_rates(&mut self, rates: &Rates) {
        self.info.link = rates.link;
        self.info.flops_per_s = rates.flops_per_s;
        self.info.bytes_per_s = rates.bytes_per_s;
        self.info.launch_s = rates.launch_s;
    }

    /// Enqueues on a lost device too, where commands do nothing but report the loss.
    fn push(&self, command: Command) -> Result<(), DeviceError> {
        let commands = self.commands.as_ref().expect("there until the device goes");
        commands
            .send(command)
            .map_err(|_| DeviceError::DeviceLost { detail: "the submitting thread has ended".to_owned() })
    }
}

/// Most bytes of staging that a device takes on the host.
pub const MOST_STAGING: Bytes = Bytes(staging::MOST_BYTES);

fn device_piece(arena: &WgpuArena, region: Region) -> DevicePiece {
    let Slice { buffer, offset, bytes } = arena.at(region);
    assert!(offset.is_multiple_of(4), "copies begin at whole words, not at {region}");
    DevicePiece { buffer: buffer.clone(), offset, bytes }
}

fn types_of<'a>(args: &[Arg<'a>]) -> Vec<&'a TensorType> {
    args.iter().map(|arg| arg.ty).collect()
}

impl Device for WgpuDevice {
    type Arena = WgpuArena;
    type HostArena = HostArena;
    type Stream = WgpuStream;
    type Event = WgpuEvent;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Compiles the op's shaders besides, so that none is compiled while work is under way.
    fn workspace(&self, op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Result<u64, DeviceError> {
        let (input_types, output_types): (Vec<_>, Vec<_>) = (inputs.iter().collect(), outputs.iter().collect());
        let plan = self.plan(op, Types { inputs: &input_types, outputs: &output_types })?;
        let same_bytes = |&&(input, output): &&(usize, usize)| inputs[input].bytes() == outputs[output].bytes();
        let pairs: Vec<(usize, usize)> = op.def().in_place().iter().filter(same_bytes).copied().collect();
        self.0.core.gpu.compile(&plan, &pairs).map_err(|error| self.0.core.failure(op.def().name(), &error))?;
        Ok(plan.workspace)
    }

    fn alloc_arena(&self, bytes: u64) -> Result<WgpuArena, DeviceError> {
        self.0.core.check_lost()?;
        WgpuArena::new(&self.0.core, &self.0.device_ledger, self.0.info.max_block, bytes)
    }

    fn resize_arena(&self, arena: &mut WgpuArena, bytes: u64) -> Result<(), DeviceError> {
        self.0.core.check_lost()?;
        arena.resize(
            bytes,
            |arena, region, into| self.read_arena(arena, region, into),
            |arena, region, from| self.write_arena(arena, region, from),
        )
    }

    fn alloc_host_arena(&self, bytes: u64) -> Result<HostArena, DeviceError> {
        self.0.core.check_lost()?;
        HostArena::new(&self.0.host_ledger, self.0.spill_dir.as_deref(), bytes)
    }

    fn stream(&self, _lane: Lane) -> Result<WgpuStream, DeviceError> {
        self.0.core.check_lost()?;
        Ok(WgpuStream { inner: Arc::clone(&self.0), id: self.stream_id() })
    }

    fn event(&self) -> Result<WgpuEvent, DeviceError> {
        self.0.core.check_lost()?;
        Ok(WgpuEvent::default())
    }

    fn launch(&self, stream: &WgpuStream, arena: &WgpuArena, call: &OpCall<'_>) -> Result<(), DeviceError> {
        let (inputs, outputs) = (types_of(call.inputs), types_of(call.outputs));
        let plan = self.plan(call.op, Types { inputs: &inputs, outputs: &outputs })?;
        let op = call.op.def().name();
        let region = |place: Place| match place {
            Place::Input(index) => call.inputs[index].region,
            Place::Output(index) => call.outputs[index].region,
            Place::Workspace => call.workspace,
        };
        let resolve = |place: Place| {
            let slice = arena.at(region(place));
            assert!(slice.offset.is_multiple_of(ALIGNMENT), "{op}: region {} is not aligned", region(place));
            slice
        };
        let dispatches = self.0.core.gpu.prepare(&plan, resolve).map_err(|error| self.0.core.failure(op, &error))?;
        self.push(Command::Kernel { stream: stream.id, op, dispatches })
    }

    fn copy_out(
        &self,
        stream: &WgpuStream,
        from: (&WgpuArena, Region),
        to: (&HostArena, Region),
    ) -> Result<(), DeviceError> {
        assert_eq!(from.1.bytes, to.1.bytes, "a copy has one size");
        let to = HostPiece::Arena(to.0.clone(), to.1);
        self.push(Command::Out { stream: stream.id, from: device_piece(from.0, from.1), to })
    }

    fn copy_in(
        &self,
        stream: &WgpuStream,
        from: (&HostArena, Region),
        to: (&WgpuArena, Region),
    ) -> Result<(), DeviceError> {
        assert_eq!(from.1.bytes, to.1.bytes, "a copy has one size");
        let from = HostPiece::Arena(from.0.clone(), from.1);
        self.push(Command::In { stream: stream.id, from, to: device_piece(to.0, to.1) })
    }

    fn record(&self, stream: &WgpuStream, event: &WgpuEvent) -> Result<(), DeviceError> {
        let mark = Arc::new(Mark::default());
        self.push(Command::Record { stream: stream.id, mark: Arc::clone(&mark) })?;
        *lock(&event.0) = Some(mark);
        Ok(())
    }

    fn wait(&self, stream: &WgpuStream, event: &WgpuEvent) -> Result<(), DeviceError> {
        match event.latest() {
            Some(mark) => self.push(Command::Wait { stream: stream.id, mark }),
            None => Ok(()),
        }
    }

    fn wait_event(&self, event: &WgpuEvent) -> Result<(), DeviceError> {
        match event.latest() {
            Some(mark) => self.0.core.wait(&mark),
            None => Ok(()),
        }
    }

    fn synchronize(&self, stream: &WgpuStream) -> Result<(), DeviceError> {
        let mark = Arc::new(Mark::default());
        stream.inner.push(Command::Synchronize { stream: stream.id, mark: Arc::clone(&mark) })?;
        self.0.core.wait(&mark)
    }

    fn elapsed_ns(&self, from: &WgpuEvent, to: &WgpuEvent) -> Result<u64, DeviceError> {
        Ok(to.outcome()?.saturating_sub(from.outcome()?))
    }

    fn read(&self, arena: &WgpuArena, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        self.read_arena(arena, region, into)
    }

    fn write(&self, arena: &WgpuArena, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        self.write_arena(arena, region, from)
    }

    fn read_host(&self, arena: &HostArena, region: Region, into: &mut [u8]) -> Result<(), DeviceError> {
        arena.read(region, into)
    }

    fn write_host(&self, arena: &HostArena, region: Region, from: &[u8]) -> Result<(), DeviceError> {
        arena.write(region, from)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use tensile_core::conformance::{memory, ops, skipped, streams};

    /// A device that has not been tested, so that it works without any kernel; none where the machine has no adapter.
    fn device() -> Option<Arc<WgpuDevice>> {
        static DEVICE: OnceLock<Option<Arc<WgpuDevice>>> = OnceLock::new();
        let adapter = AdapterChoice::from_env().expect("the environment's choice of an adapter");
        let open = || match WgpuDevice::untested(WgpuOptions { adapter, ..WgpuOptions::nominal() }) {
            Ok(device) => Some(Arc::new(device)),
            Err(OpenError::Adapter(AdapterError::NoDriver)) if std::env::var_os("CI").is_none() => None,
            Err(error) => panic!("{error}"),
        };
        DEVICE.get_or_init(open).clone()
    }

    #[test]
    fn memory_and_copies_need_no_kernels() {
        let Some(device) = device() else { return skipped("memory_and_copies_need_no_kernels") };
        memory::limits(&device);
        memory::resize(&device);
        memory::out_of_memory(&device);
        streams::copies(&device);
        ops::foreign_ops(&device);
    }

    #[test]
    fn large_arenas_move_through_staging_in_pieces() {
        let adapter = AdapterChoice::from_env().expect("the environment's choice of an adapter");
        let emulation = Emulation { block: Some(3 << 20), ..Emulation::default() };
        let options = WgpuOptions { adapter, emulation, ..WgpuOptions::nominal() };
        if device().is_none() {
            return skipped("large_arenas_move_through_staging_in_pieces");
        }
        let device = WgpuDevice::untested(options).expect("an adapter");
        // More than all staging buffers hold, over many blocks.
        let bytes = MOST_STAGING.0 + (5 << 20) + 7;
        let mut arena = device.alloc_arena(bytes).expect("memory");
        let whole = Region { offset: 0, bytes };
        let data: Vec<u8> = (0..bytes).map(|index| (index * 7 + index / 251) as u8).collect();
        device.write(&arena, whole, &data).expect("written");
        let mut back = vec![0; bytes as usize];
        device.read(&arena, whole, &mut back).expect("read");
        assert!(back == data);
        let kept = 10 << 20;
        device.resize_arena(&mut arena, kept).expect("smaller");
        device.resize_arena(&mut arena, bytes).expect("larger again");
        let first = Region { offset: 0, bytes: kept };
        device.read(&arena, first, &mut back[..kept as usize]).expect("read");
        assert!(back[..kept as usize] == data[..kept as usize]);
        assert!(device.staging_bytes() <= MOST_STAGING);
    }
}
