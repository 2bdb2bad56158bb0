//! The thread that waits for submissions, brings what they copied out to the host, and completes marks. It is what drives progress: nobody else has to poll.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use tensile_core::device::recording::Outcome;
use tensile_core::{DeviceError, Region};
use tensile_sched::Bytes;

use crate::core::{Core, lock};
use crate::submit::{Ending, HostPiece, Timestamps};

/// Bytes that a submission copies to a staging buffer, and where they go from there.
#[derive(Debug)]
pub(crate) struct Landing {
    pub(crate) stream: u64,
    /// Which of the flight's staging buffers.
    pub(crate) chunk: usize,
    /// First byte there.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) to: HostPiece,
    /// First byte in `HostPiece::Bytes`.
    pub(crate) first: usize,
}

/// A submission under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) number: u64,
    /// None if it has only marks, or the driver refused it.
    pub(crate) submission: Option<wgpu::SubmissionIndex>,
    /// Staging buffers with the number of bytes to read.
    pub(crate) out: Vec<(wgpu::Buffer, u64)>,
    pub(crate) into: Vec<wgpu::Buffer>,
    pub(crate) landings: Vec<Landing>,
    pub(crate) marks: Vec<Ending>,
    pub(crate) timestamps: Option<Timestamps>,
    pub(crate) give_back: Sender<Timestamps>,
}

/// Waits for flights, in order, until the device goes. Without `progress`, for tests, it holds them and does nothing.
pub(crate) fn run(core: &Arc<Core>, flights: &Receiver<Flight>, progress: bool) {
    let mut held = Vec::new();
    for flight in flights {
        if progress {
            land(core, flight);
        } else {
            held.push(flight);
        }
    }
    // Streams may still be waited for by their owners.
    for flight in held {
        for ending in flight.marks {
            let result = Err(DeviceError::DeviceLost { detail: "closed with work under way".to_owned() });
            ending.mark.recording.complete(Outcome { time: core.now(), result });
        }
    }
}

fn land(core: &Arc<Core>, flight: Flight) {
    let Flight { number, submission, out, into, landings, marks, timestamps, give_back } = flight;
    let mut ticks: Vec<u64> = Vec::new();
    if let Some(index) = submission {
        let landed = wait_mapped(core, index, &out, timestamps.as_ref());
        match landed {
            Ok(()) => {
                for landing in &landings {
                    if let Err(error) = bring(landing, &out[landing.chunk].0) {
                        core.fail(landing.stream, error);
                    }
                }
                if let Some(timestamps) = timestamps.as_ref().filter(|timestamps| timestamps.n > 0) {
                    if let Ok(view) = timestamps.back.get_mapped_range(..u64::from(timestamps.n) * 8) {
                        ticks.extend(
                            view.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))),
                        );
                    }
                    timestamps.back.unmap();
                }
            }
            Err(error) => core.lose(error.to_string()),
        }
        for (chunk, _) in &out {
            chunk.unmap();
        }
    }
    for (chunk, _) in out {
        core.staging.out.give(chunk);
    }
    for chunk in into {
        remap(core, chunk);
    }
    // Maps of idle buffers happen at the next poll.
    let _ = core.gpu.device.poll(wgpu::PollType::Poll);
    let period = f64::from(core.gpu.queue.get_timestamp_period());
    let now = core.now();
    core.end(number);
    for Ending { stream, mark, timestamp, synchronizes, failed } in marks {
        let failed = failed.or_else(|| if synchronizes { core.take_failure(stream) } else { core.failed(stream) });
        let tick = timestamp.and_then(|index| ticks.get(index as usize)).map(|&tick| (tick as f64 * period) as u64);
        // On a device with timestamps, marks without one have no place on its clock: they follow failures only.
        let time = tick.unwrap_or(if core.timestamps { 0 } else { now });
        mark.recording.complete(Outcome { time, result: failed.map_or(Ok(()), Err) });
    }
    if let Some(timestamps) = timestamps {
        // Not needed any more if the other thread has gone.
        let _ = give_back.send(timestamps);
    }
}

/// Blocks until a submission has ended and its staging buffers can be read: until the callbacks have said so.
fn wait_mapped(
    core: &Core,
    index: wgpu::SubmissionIndex,
    out: &[(wgpu::Buffer, u64)],
    timestamps: Option<&Timestamps>,
) -> Result<(), DeviceError> {
    let (said, heard) = channel();
    let mut expected = 1;
    let maps = out.iter().map(|(chunk, bytes)| (chunk, *bytes));
    let times = timestamps.filter(|timestamps| timestamps.n > 0).map(|times| (&times.back, u64::from(times.n) * 8));
    for (buffer, bytes) in maps.chain(times) {
        let said = said.clone();
        expected += 1;
        let callback = move |result: Result<(), wgpu::BufferAsyncError>| {
            let _ = said.send(result.map_err(|error| error.to_string()));
        };
        core.gpu
            .checked(|| buffer.map_async(wgpu::MapMode::Read, ..bytes, callback))
            .map_err(|error| core.failure("copy out", &error))?;
    }
    core.gpu.queue.on_submitted_work_done(move || {
        let _ = said.send(Ok(()));
    });
    let seconds = core.timeout.as_secs();
    let stuck = |detail: &str| DeviceError::Timeout { seconds, detail: detail.to_owned() };
    let mut patience = core.patience("the GPU's callbacks");
    while expected > 0 {
        let poll = wgpu::PollType::Wait { submission_index: Some(index.clone()), timeout: Some(core.timeout) };
        match core.gpu.device.poll(poll) {
            Ok(_) => {}
            Err(wgpu::PollError::Timeout) => return Err(stuck("a submission did not end")),
            Err(error) => return Err(stuck(&error.to_string())),
        }
        for result in heard.try_iter() {
            expected -= 1;
            if let Err(detail) = result {
                core.check_lost()?;
                return Err(DeviceError::Copy { direction: "out", bytes: Bytes(0), detail });
            }
        }
        if expected > 0 {
            core.check_lost()?;
            patience.check()?;
        }
    }
    Ok(())
}

/// Brings bytes from a mapped staging buffer to the host.
fn bring(landing: &Landing, chunk: &wgpu::Buffer) -> Result<(), DeviceError> {
    let Landing { at, bytes, to, first, .. } = landing;
    let refused = |detail: String| DeviceError::Copy { direction: "out", bytes: Bytes(*bytes), detail };
    // Mapped ranges begin at multiples of 8.
    let start = at / 8 * 8;
    let view = chunk
        .get_mapped_range(start..(at + bytes).next_multiple_of(4))
        .map_err(|error| refused(format!("staging: {error}")))?;
    let data = &view[(at - start) as usize..][..*bytes as usize];
    match to {
        HostPiece::Arena(arena, region) => arena.write(Region { offset: region.offset, bytes: *bytes }, data),
        HostPiece::Bytes(all) => {
            lock(all)[*first..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }
}

/// Maps an upload buffer again and gives it back.
fn remap(core: &Arc<Core>, chunk: wgpu::Buffer) {
    let (pool, buffer) = (Arc::clone(core), chunk.clone());
    let mapped = core.gpu.checked(|| {
        chunk.map_async(wgpu::MapMode::Write, .., move |result| match result {
            Ok(()) => pool.staging.into.give(buffer),
            Err(_) => pool.staging.into.forget(),
        });
    });
    if let Err(error) = mapped
        && core.check_lost().is_ok()
    {
        core.lose(format!("a staging buffer cannot be mapped: {error}"));
    }
}
