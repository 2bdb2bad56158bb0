//! Timing ops by a device's own events.

use std::time::{Duration, Instant};

use tensile_core::latency::{Features, Roofline, Sample};
use tensile_core::{Arg, DType, Device, DeviceError, Lane, Op, OpCall, Region, TensorType};
use tensile_sched::Bytes;

use super::Case;

/// Most device memory that each of two streams works in.
const ROOM: u64 = 192 << 20;
/// Most ops that are timed together.
const TOGETHER: usize = 64;
/// Timed runs, after one that is not, of each op alone and of each on both streams.
const RUNS: [usize; 2] = [7, 4];
/// Ops that take longer, in nanoseconds, are run half as often: noise is small beside them.
const LONG: u64 = 2_000_000;

/// Why ops could not be timed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device has less memory than the smallest ops take.
    #[error("no op fits into the {room} of device memory that may be used for measuring")]
    Room {
        /// What there is.
        room: Bytes,
    },
}

/// Times ops, in their order, until all are timed or the time is over: each alone on the device, and while another stream works too (a load of 2). Gives two samples for
/// each op that was timed.
///
/// Ops are timed in groups, one after another in real memory of their own, the whole group several times: so each finds its inputs where they are in a training step, where other ops have run since
/// they were made, and not always in the nearest cache. Of the times of an op counts the lower quartile: what else the machine does makes some of them longer,
/// none shorter. `progress` gets the part of the time that is over.
///
/// # Errors
/// [`MeasureError`].
pub fn measure<D: Device>(
    device: &D,
    cases: &[Case],
    time: Duration,
    mut progress: impl FnMut(f64),
) -> Result<Vec<Sample>, MeasureError> {
    let info = device.info();
    let roofline = Roofline::new(info);
    let room = info.memory.map_or(ROOM, |memory| ROOM.min(memory / 16));
    let streams = [Stream::new(device, room)?, Stream::new(device, room)?];
    // So that short measurements have several groups, too.
    let together = time.as_nanos() as f64 / 100.0;
    let mut samples = Vec::new();
    let mut left = cases.iter().peekable();
    let start = Instant::now();
    while left.peek().is_some() {
        let mut group: Vec<Placed<'_>> = Vec::new();
        let mut packing = Packing { at: 0, room, alignment: info.alignment, block: info.max_block };
        let mut expected = 0.0;
        while let Some(case) = left.peek() {
            let full = group.len() == TOGETHER || (!group.is_empty() && expected > together);
            let placed = if full { None } else { packing.place(case) };
            match placed {
                Some(placed) => group.push(placed),
                None if group.is_empty() => {} // It alone is too large: passed over.
                None => break,
            }
            expected += case.features.roofline;
            left.next();
        }
        if group.is_empty() {
            continue;
        }
        for stream in &streams {
            group.iter().try_for_each(|placed| placed.fill(device, &stream.arena))?;
        }
        for (load, runs) in [1, 2].into_iter().zip(RUNS) {
            let mut times: Vec<Vec<u64>> = vec![Vec::new(); group.len()];
            for run in 0..=runs {
                let is_short = |op: &usize| run <= runs.div_ceil(2) || times[*op].iter().all(|&time| time < LONG);
                let ops: Vec<usize> = (0..group.len()).filter(is_short).collect();
                let measured = time_ops(device, &streams[..load], &group, &ops)?;
                if run > 0 {
                    ops.into_iter().zip(measured).for_each(|(op, measured)| times[op].extend(measured));
                }
            }
            for (Placed { case, .. }, mut times) in group.iter().zip(times) {
                times.sort_unstable();
                let nanos = times[times.len() / 4].max(1) as f64;
                let features = Features::new(&roofline, &case.op, &case.inputs, &case.outputs, load as f64);
                samples.push(Sample { features, nanos });
            }
        }
        progress((start.elapsed().as_secs_f64() / time.as_secs_f64()).min(1.0));
        if start.elapsed() >= time {
            break;
        }
    }
    if samples.is_empty() && !cases.is_empty() {
        return Err(MeasureError::Room { room: Bytes(room) });
    }
    Ok(samples)
}

/// A stream with memory and events of its own.
struct Stream<D: Device> {
    // The stream comes first: dropped first, it ends before its memory goes.
    stream: D::Stream,
    arena: D::Arena,
    /// Before and after each op of a group.
    events: Vec<[D::Event; 2]>,
}

impl<D: Device> Stream<D> {
    fn new(device: &D, room: u64) -> Result<Self, DeviceError> {
        let events =
            (0..TOGETHER).map(|_| Ok([device.event()?, device.event()?])).collect::<Result<_, DeviceError>>()?;
        Ok(Self { stream: device.stream(Lane::Compute)?, arena: device.alloc_arena(room)?, events })
    }
}

/// Runs ops of a group once on every stream at the same time, on each from another op on: the times of each op.
fn time_ops<D: Device>(
    device: &D,
    streams: &[Stream<D>],
    group: &[Placed<'_>],
    ops: &[usize],
) -> Result<Vec<Vec<u64>>, DeviceError> {
    let n = ops.len();
    for index in 0..n {
        for (number, Stream { stream, arena, events }) in streams.iter().enumerate() {
            let op = ops[(index + number * n / streams.len()) % n];
            device.record(stream, &events[op][0])?;
            group[op].launch(device, stream, arena)?;
            device.record(stream, &events[op][1])?;
        }
    }
    streams.iter().try_for_each(|stream| device.synchronize(&stream.stream))?;
    let time = |&op: &usize| {
        streams.iter().map(|stream| device.elapsed_ns(&stream.events[op][0], &stream.events[op][1])).collect()
    };
    ops.iter().map(time).collect()
}

/// An op with places for its tensors.
struct Placed<'a> {
    case: &'a Case,
    inputs: Vec<Region>,
    outputs: Vec<Region>,
    workspace: Region,
}

impl Placed<'_> {
    fn launch<D: Device>(&self, device: &D, stream: &D::Stream, arena: &D::Arena) -> Result<(), DeviceError> {
        fn args<'a>(regions: &[Region], types: &'a [TensorType]) -> Vec<Arg<'a>> {
            regions.iter().zip(types).map(|(&region, ty)| Arg { region, ty }).collect()
        }
        let (inputs, outputs) = (args(&self.inputs, &self.case.inputs), args(&self.outputs, &self.case.outputs));
        let call = OpCall { op: &self.case.op, inputs: &inputs, outputs: &outputs, workspace: self.workspace };
        device.launch(stream, arena, &call)
    }

    /// Sets the inputs to values that the op takes: floats from 0.1 to 1 (variances are positive), indices within what they index.
    fn fill<D: Device>(&self, device: &D, arena: &D::Arena) -> Result<(), DeviceError> {
        const PART: usize = 1 << 18;
        let choices = indices(self.case);
        for (ty, region) in self.case.inputs.iter().zip(&self.inputs) {
            let n = ty.numel().min(PART);
            let scattered = (0..n as u32).map(|index| index.wrapping_mul(2_654_435_761));
            let part: Vec<u8> = match ty.dtype {
                DType::F32 => {
                    let value = |random: u32| 0.1 + 0.9 * (random >> 8) as f32 / (1 << 24) as f32;
                    scattered.flat_map(|random| value(random).to_ne_bytes()).collect()
                }
                DType::I32 => {
                    let value = |random: u32| ((u64::from(random) * choices as u64) >> 32) as i32;
                    scattered.flat_map(|random| value(random).to_ne_bytes()).collect()
                }
                _ => vec![tap(&self.case.op); n],
            };
            let mut at = 0;
            while at < region.bytes {
                let bytes = (region.bytes - at).min(part.len() as u64);
                device.write(arena, Region { offset: region.offset + at, bytes }, &part[..bytes as usize])?;
                at += bytes;
            }
        }
        Ok(())
    }
}

/// How many values the indices or labels of an op may have, from 0 on.
fn indices(case: &Case) -> usize {
    match &case.op {
        Op::Embedding(_) => case.inputs[0].dims()[0],
        Op::EmbeddingGrad(_) => case.outputs[0].dims()[0],
        Op::SoftmaxCrossEntropy(_) | Op::SoftmaxCrossEntropyGrad(_) | Op::CountCorrect(_) => {
            case.inputs[0].dims().last().copied().unwrap_or(1)
        }
        _ => 1,
    }
}

/// A position that lies within every window, its padding left out.
fn tap(op: &Op) -> u8 {
    match op {
        Op::MaxPool2dGrad(grad) => {
            let [rows, columns] = grad.pool.padding;
            u8::try_from(rows * grad.pool.kernel[1] + columns).unwrap_or(0)
        }
        _ => 0,
    }
}

/// Places one behind another, none across the border of a block of the device's memory.
struct Packing {
    at: u64,
    room: u64,
    alignment: u64,
    block: u64,
}

impl Packing {
    fn place<'a>(&mut self, case: &'a Case) -> Option<Placed<'a>> {
        let begin = self.at;
        let mut all = |types: &[TensorType]| types.iter().map(|ty| self.claim(ty.bytes() as u64)).collect();
        let (inputs, outputs): (Option<Vec<Region>>, Option<Vec<Region>>) = (all(&case.inputs), all(&case.outputs));
        let workspace = self.claim(case.workspace.0);
        match (inputs, outputs, workspace) {
            (Some(inputs), Some(outputs), Some(workspace)) => Some(Placed { case, inputs, outputs, workspace }),
            _ => {
                self.at = begin;
                None
            }
        }
    }

    fn claim(&mut self, bytes: u64) -> Option<Region> {
        if bytes == 0 {
            return Some(Region::default());
        }
        let mut offset = self.at.next_multiple_of(self.alignment);
        if offset / self.block != (offset + bytes - 1) / self.block {
            offset = offset.next_multiple_of(self.block);
        }
        (bytes <= self.block && offset + bytes <= self.room).then(|| {
            self.at = offset + bytes;
            Region { offset, bytes }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::cases;
    use tensile_core::device::host::{HostDevice, HostOptions};

    #[test]
    fn regions_keep_to_blocks_and_room() {
        let mut packing = Packing { at: 0, room: 1000, alignment: 64, block: 256 };
        assert_eq!(packing.claim(200), Some(Region { offset: 0, bytes: 200 }));
        assert_eq!(packing.claim(0), Some(Region::default()));
        assert_eq!(packing.claim(64), Some(Region { offset: 256, bytes: 64 }));
        assert_eq!(packing.claim(64), Some(Region { offset: 320, bytes: 64 }));
        assert_eq!(packing.claim(257), None);
        assert_eq!(packing.claim(256), Some(Region { offset: 512, bytes: 256 }));
        assert_eq!(packing.claim(256), None);
    }

    /// Every kind of op takes the values that it is given.
    #[test]
    fn every_kind_is_timed_alone_and_beside_others() {
        let device = HostDevice::new(HostOptions::nominal(2)).unwrap();
        let mut some = cases(&device, 1e6).unwrap();
        some.truncate(4 * Op::KINDS.len());
        let mut parts = Vec::new();
        let samples = measure(&device, &some, Duration::from_secs(3600), |part| parts.push(part)).unwrap();
        assert_eq!(samples.len(), 2 * some.len());
        assert!(samples.iter().all(|sample| sample.nanos >= 1.0 && sample.nanos.is_finite()));
        assert!(parts.is_sorted() && !parts.is_empty());
        // Without any time there is one group at least.
        let samples = measure(&device, &some, Duration::from_nanos(1), |_| {}).unwrap();
        assert!(!samples.is_empty() && samples.len() < some.len());
        assert_eq!(device.device_bytes(), Bytes::ZERO);
    }
}
