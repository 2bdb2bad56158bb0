//! The thread that encodes and submits all work of a device, in the order in which it was enqueued.
//!
//! wgpu has one queue. Streams are worked off in the order of enqueueing, which satisfies every wait: what is waited for was enqueued before. So a wait only
//! hands failures on from stream to stream. Copies out end on the other thread, see [`crate::complete`]; a copy in whose host bytes such a copy has yet to write waits for it here.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel};
use std::sync::{Arc, Mutex};

use tensile_core::device::host::HostArena;
use tensile_core::{DeviceError, Region};

use crate::complete::{Flight, Landing};
use crate::core::{Core, Mark, lock};
use crate::gpu::{Prepared, Slice};
use crate::kernel::{Binding, Dispatch, Place, Plan};
use crate::shader::Shader;
use crate::staging::CHUNK;

/// Dispatches and copies of one submission at most, so that submissions follow one another smoothly.
const MOST_COMMANDS: usize = 256;

/// Timestamps of one submission at most: what a query set can hold.
pub(crate) const MOST_TIMESTAMPS: u32 = 4096;

/// Bytes on the device.
#[derive(Clone, Debug)]
pub(crate) struct DevicePiece {
    pub(crate) buffer: wgpu::Buffer,
    /// A multiple of 4.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Bytes on the host.
#[derive(Clone, Debug)]
pub(crate) enum HostPiece {
    Arena(HostArena, Region),
    Bytes(Arc<Mutex<Vec<u8>>>),
}

/// What the thread can be told.
#[derive(Debug)]
pub(crate) enum Command {
    Kernel {
        stream: u64,
        op: &'static str,
        dispatches: Vec<Prepared>,
    },
    Out {
        stream: u64,
        from: DevicePiece,
        to: HostPiece,
    },
    In {
        stream: u64,
        from: HostPiece,
        to: DevicePiece,
    },
    Record {
        stream: u64,
        mark: Arc<Mark>,
    },
    Wait {
        stream: u64,
        mark: Arc<Mark>,
    },
    /// As `Record`, and forgets the failure.
    Synchronize {
        stream: u64,
        mark: Arc<Mark>,
    },
}

/// Work that has been encoded and not submitted.
#[derive(Default)]
struct Batch {
    encoder: Option<wgpu::CommandEncoder>,
    pass: Option<wgpu::ComputePass<'static>>,
    n_commands: usize,
    /// What to say failed: the last op or copy, if the driver refuses the whole.
    last: &'static str,
    streams: BTreeSet<u64>,
    /// The last staging buffers are open: filled up to so many bytes.
    out: Vec<(wgpu::Buffer, u64)>,
    into: Vec<(wgpu::Buffer, u64)>,
    landings: Vec<Landing>,
    marks: Vec<Ending>,
    timestamps: Option<Timestamps>,
}

/// A mark to complete when its submission has ended.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) stream: u64,
    pub(crate) mark: Arc<Mark>,
    /// Index of its timestamp, if it has one.
    pub(crate) timestamp: Option<u32>,
    pub(crate) synchronizes: bool,
    /// The stream's failure, if known already.
    pub(crate) failed: Option<DeviceError>,
}

/// Timestamps of a submission.
#[derive(Debug)]
pub(crate) struct Timestamps {
    queries: wgpu::QuerySet,
    pub(crate) resolved: wgpu::Buffer,
    pub(crate) back: wgpu::Buffer,
    pub(crate) n: u32,
}

impl Timestamps {
    fn new(core: &Core) -> Self {
        let size = u64::from(MOST_TIMESTAMPS) * 8;
        let buffer = |usage| {
            core.gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        Self {
            queries: core.gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: MOST_TIMESTAMPS,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            back: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            n: 0,
        }
    }
}

/// The thread's state.
pub(crate) struct Submitter {
    core: Arc<Core>,
    flights: SyncSender<Flight>,
    batch: Batch,
    /// Number of the batch that is being encoded.
    number: u64,
    /// Copies to the host that have perhaps not ended, with their batch.
    pending: Vec<(HostArena, Region, u64)>,
    spare: Vec<Timestamps>,
    returned: Receiver<Timestamps>,
    give_back: std::sync::mpsc::Sender<Timestamps>,
    bounce: Vec<u8>,
}

impl Submitter {
    pub(crate) fn new(core: Arc<Core>, flights: SyncSender<Flight>) -> Self {
        let (give_back, returned) = channel();
        Self {
            core,
            flights,
            batch: Batch::default(),
            number: 1,
            pending: Vec::new(),
            spare: Vec::new(),
            returned,
            give_back,
            bounce: Vec::new(),
        }
    }

    /// Works commands off until the device goes. Submits when there is nothing more to encode for now, so that everything enqueued gets done without being asked for.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let command = match commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    match commands.recv() {
                        Ok(command) => command,
                        Err(_) => return,
                    }
                }
                Err(TryRecvError::Disconnected) => {
                    self.flush();
                    return;
                }
            };
            self.obey(command);
            if self.batch.n_commands >= MOST_COMMANDS {
                self.flush();
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Kernel { stream, op, dispatches } => {
                if self.core.failed(stream).is_none() {
                    self.begin(stream, op);
                    let pass = self.pass();
                    dispatches.iter().for_each(|dispatch| dispatch.encode(pass));
                    self.batch.n_commands += dispatches.len();
                }
            }
            Command::Out { stream, from, to } => {
                if self.core.failed(stream).is_none()
                    && let Err(error) = self.copy_out(stream, &from, &to)
                {
                    self.core.fail(stream, error);
                }
            }
            Command::In { stream, from, to } => {
                if self.core.failed(stream).is_none()
                    && let Err(error) = self.copy_in(stream, &from, &to)
                {
                    self.core.fail(stream, error);
                }
            }
            Command::Wait { stream, mark } => {
                if let Some(error) = lock(&mark.failed).clone() {
                    self.core.fail(stream, error);
                }
            }
            Command::Record { stream, mark } => self.mark(stream, mark, false),
            Command::Synchronize { stream, mark } => self.mark(stream, mark, true),
        }
    }

    fn mark(&mut self, stream: u64, mark: Arc<Mark>, synchronizes: bool) {
        let failed = if synchronizes { self.core.take_failure(stream) } else { self.core.failed(stream) };
        lock(&mark.failed).clone_from(&failed);
        let timestamp = if self.core.timestamps && failed.is_none() { Some(self.timestamp()) } else { None };
        self.batch.marks.push(Ending { stream, mark, timestamp, synchronizes, failed });
        if self.batch.timestamps.as_ref().is_some_and(|timestamps| timestamps.n == MOST_TIMESTAMPS) {
            self.flush();
        }
    }

    fn timestamp(&mut self) -> u32 {
        if self.batch.timestamps.is_none() {
            self.spare.extend(self.returned.try_iter());
            let timestamps = self.spare.pop().unwrap_or_else(|| Timestamps::new(&self.core));
            self.batch.timestamps = Some(Timestamps { n: 0, ..timestamps });
        }
        self.encoder();
        let Batch { encoder: Some(encoder), pass, timestamps: Some(timestamps), .. } = &mut self.batch else {
            unreachable!("both were just made");
        };
        match pass {
            Some(pass) => pass.write_timestamp(&timestamps.queries, timestamps.n),
            None => encoder.write_timestamp(&timestamps.queries, timestamps.n),
        }
        timestamps.n += 1;
        timestamps.n - 1
    }

    fn begin(&mut self, stream: u64, what: &'static str) {
        self.batch.streams.insert(stream);
        self.batch.last = what;
    }

    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        let device = &self.core.gpu.device;
        self.batch
            .encoder
            .get_or_insert_with(|| device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default()))
    }

    /// The open pass, or a new one.
    fn pass(&mut self) -> &mut wgpu::ComputePass<'static> {
        if self.batch.pass.is_none() {
            let pass = self.encoder().begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime();
            self.batch.pass = Some(pass);
        }
        self.batch.pass.as_mut().expect("just made")
    }

    fn copy_out(&mut self, stream: u64, from: &DevicePiece, to: &HostPiece) -> Result<(), DeviceError> {
        self.begin(stream, "copy out");
        let mut done = 0;
        while done < from.bytes {
            let room = self.batch.out.last().map_or(0, |(_, filled)| CHUNK - filled);
            if room < 4 {
                let chunk = match self.core.staging.out.try_take(&self.core)? {
                    Some(chunk) => chunk,
                    None => {
                        self.flush();
                        self.core.staging.out.take(&self.core)?
                    }
                };
                self.begin(stream, "copy out");
                self.batch.out.push((chunk, 0));
                continue;
            }
            let bytes = (from.bytes - done).min(room);
            let copied = bytes.next_multiple_of(4);
            let (chunk, filled) = self.batch.out.last_mut().expect("has room");
            let (chunk, at) = (chunk.clone(), std::mem::replace(filled, *filled + copied));
            self.batch.pass = None;
            self.encoder().copy_buffer_to_buffer(&from.buffer, from.offset + done, &chunk, at, copied);
            self.batch.n_commands += 1;
            let target = match to {
                HostPiece::Arena(arena, region) => {
                    let part = Region { offset: region.offset + done, bytes };
                    self.pending.push((arena.clone(), part, self.number));
                    HostPiece::Arena(arena.clone(), part)
                }
                HostPiece::Bytes(all) => HostPiece::Bytes(Arc::clone(all)),
            };
            let chunk = self.batch.out.len() - 1;
            self.batch.landings.push(Landing { stream, chunk, at, bytes, to: target, first: done as usize });
            done += bytes;
        }
        Ok(())
    }

    fn copy_in(&mut self, stream: u64, from: &HostPiece, to: &DevicePiece) -> Result<(), DeviceError> {
        if let HostPiece::Arena(arena, region) = from {
            self.wait_for_host(arena, *region)?;
        }
        self.begin(stream, "copy in");
        // Whole words are copied; of the last word a kernel sets the bytes that are the tensor's.
        let whole = to.bytes / 4 * 4;
        let mut done = 0;
        while done < whole {
            let room = self.batch.into.last().map_or(0, |(_, filled)| CHUNK - filled);
            if room == 0 {
                let chunk = match self.core.staging.into.try_take(&self.core)? {
                    Some(chunk) => chunk,
                    None => {
                        self.flush();
                        self.core.staging.into.take(&self.core)?
                    }
                };
                self.begin(stream, "copy in");
                self.batch.into.push((chunk, 0));
                continue;
            }
            let bytes = (whole - done).min(room);
            let (chunk, filled) = self.batch.into.last_mut().expect("has room");
            // Mapped ranges begin at multiples of 8.
            let next = (*filled + bytes).next_multiple_of(8);
            let (chunk, at) = (chunk.clone(), std::mem::replace(filled, next));
            self.read_host(from, done, bytes, |data| match chunk.get_mapped_range_mut(at..at + bytes) {
                Ok(mut mapped) => {
                    mapped.copy_from_slice(data);
                    Ok(())
                }
                Err(error) => {
                    let detail = format!("staging: {error}");
                    Err(DeviceError::Copy { direction: "in", bytes: tensile_sched::Bytes(bytes), detail })
                }
            })??;
            self.batch.pass = None;
            self.encoder().copy_buffer_to_buffer(&chunk, at, &to.buffer, to.offset + done, bytes);
            self.batch.n_commands += 1;
            done += bytes;
        }
        if whole < to.bytes {
            let mut word = [0; 4];
            let n = (to.bytes - whole) as usize;
            self.read_host(from, whole, n as u64, |data| word[..n].copy_from_slice(data))?;
            let at = to.offset + whole;
            let prepared = self.patch(&to.buffer, at, u32::from_le_bytes(word), (1 << (8 * n)) - 1)?;
            let pass = self.pass();
            prepared.iter().for_each(|dispatch| dispatch.encode(pass));
            self.batch.n_commands += 1;
        }
        Ok(())
    }

    /// Sets the bits of `mask` in the word at `at`.
    fn patch(&self, buffer: &wgpu::Buffer, at: u64, value: u32, mask: u32) -> Result<Vec<Prepared>, DeviceError> {
        static PATCH: Shader = Shader {
            name: "patch",
            source: "fn run(group: u32, lane: u32) {\n    if group == 0u {\n        $words[p.at] = ($words[p.at] & ~p.mask) | (p.value & p.mask);\n    }\n}\n",
            buffers: &[("words", "u32")],
            params: &[("at", "u32"), ("mask", "u32"), ("value", "u32")],
            snippets: &[],
            libraries: &[],
            workgroup: 1,
        };
        let start = at / crate::kernel::ALIGNMENT * crate::kernel::ALIGNMENT;
        let binding = Binding { place: Place::Output(0), offset: 0, bytes: at - start + 4 };
        let params = vec![((at - start) / 4) as u32, mask, value];
        let dispatch = Dispatch { shader: &PATCH, bindings: vec![binding], params, groups: 1 };
        let plan = Plan { workspace: 0, dispatches: vec![dispatch] };
        let bytes = crate::kernel::ALIGNMENT.min(buffer.size() - start);
        self.core
            .gpu
            .prepare(&plan, |_| Slice { buffer, offset: start, bytes })
            .map_err(|error| self.core.failure("copy in", &error))
    }

    /// Gives `use_bytes` a part of the host's bytes.
    fn read_host<T>(
        &mut self,
        from: &HostPiece,
        first: u64,
        bytes: u64,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, DeviceError> {
        match from {
            HostPiece::Arena(arena, region) => {
                self.bounce.resize(bytes as usize, 0);
                arena.read(Region { offset: region.offset + first, bytes }, &mut self.bounce)?;
                Ok(use_bytes(&self.bounce))
            }
            HostPiece::Bytes(all) => Ok(use_bytes(&lock(all)[first as usize..][..bytes as usize])),
        }
    }

    /// Waits until no copy out has yet to write these host bytes.
    fn wait_for_host(&mut self, arena: &HostArena, region: Region) -> Result<(), DeviceError> {
        let ended = self.core.ended();
        self.pending.retain(|(_, _, batch)| *batch > ended);
        let overlaps = |other: &Region| other.offset < region.end() && region.offset < other.end();
        let touching = self.pending.iter().filter(|(other, part, _)| other.is(arena) && overlaps(part));
        let Some(last) = touching.map(|(_, _, batch)| *batch).max() else { return Ok(()) };
        if last == self.number {
            self.flush();
        }
        self.core.wait_ended(last)
    }

    /// Submits what has been encoded, and hands it over to the thread that waits for it.
    fn flush(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.pass = None;
        if batch.encoder.is_none() && batch.marks.is_empty() {
            return;
        }
        for (chunk, _) in &batch.into {
            chunk.unmap();
        }
        let core = &self.core;
        let mut submission = None;
        if let Some(mut encoder) = batch.encoder {
            let submitted = core.check_lost().and_then(|()| {
                let submit = || {
                    if let Some(timestamps) = batch.timestamps.as_ref().filter(|timestamps| timestamps.n > 0) {
                        let bytes = u64::from(timestamps.n) * 8;
                        encoder.resolve_query_set(&timestamps.queries, 0..timestamps.n, &timestamps.resolved, 0);
                        encoder.copy_buffer_to_buffer(&timestamps.resolved, 0, &timestamps.back, 0, bytes);
                    }
                    core.gpu.queue.submit([encoder.finish()])
                };
                core.gpu.checked(submit).map_err(|error| core.failure(batch.last, &error))
            });
            match submitted {
                Ok(index) => submission = Some(index),
                Err(error) => {
                    // Nothing of it has run: not the kernels, not the copies.
                    for &stream in &batch.streams {
                        core.fail(stream, error.clone());
                    }
                    batch.landings.clear();
                    for ending in &mut batch.marks {
                        ending.timestamp = None;
                    }
                }
            }
        }
        let flight = Flight {
            number: self.number,
            submission,
            out: batch.out,
            into: batch.into.into_iter().map(|(chunk, _)| chunk).collect(),
            landings: batch.landings,
            marks: batch.marks,
            timestamps: batch.timestamps,
            give_back: self.give_back.clone(),
        };
        self.number += 1;
        // The other thread ends after this one.
        let _ = self.flights.send(flight);
    }
}
