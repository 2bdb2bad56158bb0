//! One step on the three lanes: enqueueing it, and reading its events afterwards.

use tensile_sched::{Instr, Lane, Nanos, Span, Wait};

use super::compiled::Work;
use super::executor::{Executor, Program};
use super::stats::{StepTimings, op_of};
use crate::device::{Arg, Device, DeviceError, OpCall, Region};
use crate::op::fill::Fill;
use crate::tensor::{Shape, TensorType};

impl<D: Device> Executor<D> {
    /// Enqueues the current program.
    pub(super) fn enqueue(&mut self, iteration: u64) -> Result<(), DeviceError> {
        let program = &self.programs[self.current];
        let compiled = &program.compiled;
        let (device, parity) = (&*self.device, (iteration % 2) as usize);
        let (start, ends) = &self.marks[(iteration % 3) as usize];
        device.record(&self.streams[Lane::Compute.index()], start)?;
        let wait = |stream: &D::Stream, wait: &Wait| {
            let parity = if wait.previous_iteration { 1 - parity } else { parity };
            match &program.after[parity][wait.on.index()] {
                // Nothing to wait for: the lanes were drained since.
                _ if wait.previous_iteration && self.drained => Ok(()),
                Some(event) => device.wait(stream, event),
                None => unreachable!("what is waited for has an event"),
            }
        };
        for (index, work) in compiled.work().iter().enumerate() {
            let Some(lane) = compiled.instrs()[index].lane() else { continue };
            let stream = &self.streams[lane.index()];
            for other in &compiled.waits()[index] {
                wait(stream, other)?;
            }
            let poison = &program.poison[index];
            for &region in &poison.before {
                self.fill_nan(stream, region)?;
            }
            if let Some(event) = &program.before[parity][index] {
                device.record(stream, event)?;
            }
            match work {
                Work::Kernel { op, inputs, outputs, workspace, .. } => {
                    let call = &compiled.step().calls[op.index()];
                    let inputs: Vec<Arg<'_>> = zip_args(inputs, &call.inputs);
                    let outputs: Vec<Arg<'_>> = zip_args(outputs, &call.outputs);
                    let call = OpCall { op: &call.op, inputs: &inputs, outputs: &outputs, workspace: *workspace };
                    device.launch(stream, &self.arena, &call)?;
                }
                Work::Copy { lane: Lane::Out, device: from, host } => {
                    device.copy_out(stream, (&self.arena, *from), (&self.host, host[parity]))?;
                }
                Work::Copy { device: to, host, .. } => {
                    device.copy_in(stream, (&self.host, host[parity]), (&self.arena, *to))?;
                }
                Work::Release(_) => unreachable!("a release has no lane"),
            }
            for other in &poison.waits {
                wait(stream, other)?;
            }
            for &region in &poison.after {
                self.fill_nan(stream, region)?;
            }
            if let Some(event) = &program.after[parity][index] {
                device.record(stream, event)?;
            }
        }
        for lane in Lane::ALL {
            device.record(&self.streams[lane.index()], &ends[lane.index()])?;
        }
        Ok(())
    }

    fn fill_nan(&self, stream: &D::Stream, region: Region) -> Result<(), DeviceError> {
        let shape = Shape::from([region.bytes as usize / 4]);
        let ty = TensorType::f32(shape.clone());
        let op = Fill { shape, value: f32::from_bits(u32::MAX) }.into();
        let outputs = [Arg { region, ty: &ty }];
        let call = OpCall { op: &op, inputs: &[], outputs: &outputs, workspace: Region::default() };
        self.device.launch(stream, &self.arena, &call)
    }

    /// Reads the events of a step that has ended, and adds the times of its ops to the program's statistics.
    pub(super) fn timings(
        &mut self,
        iteration: u64,
        program: usize,
        drained: bool,
    ) -> Result<StepTimings, DeviceError> {
        let (device, parity) = (&*self.device, (iteration % 2) as usize);
        let (start, ends) = &self.marks[(iteration % 3) as usize];
        let (start_before, ends_before) = &self.marks[((iteration + 2) % 3) as usize];
        let latest = |from: &D::Event, ends: &[D::Event; 3]| -> Result<u64, DeviceError> {
            ends.iter().try_fold(0, |latest, end| Ok(device.elapsed_ns(from, end)?.max(latest)))
        };
        let step = if drained {
            latest(start, ends)?
        } else {
            latest(start_before, ends)?.saturating_sub(latest(start_before, ends_before)?)
        };
        let mut timings = StepTimings { step: Nanos(step), ..StepTimings::default() };
        let Program { compiled, after, before, stats, .. } = &mut self.programs[program];
        let mut idle_since = if drained { start } else { &ends_before[Lane::Compute.index()] };
        for (index, instr) in compiled.instrs().iter().enumerate() {
            let (Some(begin), Some(end)) = (&before[parity][index], &after[parity][index]) else { continue };
            let time = Nanos(device.elapsed_ns(begin, end)?);
            match (op_of(instr), instr) {
                (Some(op), _) => {
                    timings.compute += time;
                    timings.stall += Nanos(device.elapsed_ns(idle_since, begin)?);
                    idle_since = end;
                    stats.ops[op.index()].add(time);
                }
                (None, Instr::SwapOut(_)) => timings.copies_out += time,
                (None, _) => timings.copies_in += time,
            }
        }
        Ok(timings)
    }
}

impl<D: Device> Executor<D> {
    /// Reads the events of the latest step: when each instruction ran.
    pub(super) fn spans(&self, iteration: u64, program: usize, drained: bool) -> Result<Vec<Span>, DeviceError> {
        let (device, parity) = (&*self.device, (iteration % 2) as usize);
        let (start, _) = &self.marks[(iteration % 3) as usize];
        let (start_before, ends_before) = &self.marks[((iteration + 2) % 3) as usize];
        let from = if drained { start } else { start_before };
        // Devices measure forward only, and a copy may have begun before the compute lane's mark.
        let since = |event: &D::Event| -> Result<i64, DeviceError> {
            let time = |from, to| Ok(i64::try_from(device.elapsed_ns(from, to)?).unwrap_or(i64::MAX));
            match time(from, event)? {
                0 => Ok(-time(event, from)?),
                after => Ok(after),
            }
        };
        let mut origin = 0;
        if !drained {
            for end in ends_before {
                origin = since(end)?.max(origin);
            }
        }
        let Program { compiled, after, before, .. } = &self.programs[program];
        let mut spans = Vec::with_capacity(compiled.instrs().len());
        let mut latest: Option<i64> = None;
        for (before, after) in before[parity].iter().zip(&after[parity]) {
            let span = match (before, after) {
                (Some(before), Some(after)) => Span { start: since(before)? - origin, end: since(after)? - origin },
                // A release: behind all that comes before it.
                _ => Span { start: latest.unwrap_or(0), end: latest.unwrap_or(0) },
            };
            latest = Some(latest.map_or(span.end, |latest| latest.max(span.end)));
            spans.push(span);
        }
        Ok(spans)
    }
}

fn zip_args<'a>(regions: &[Region], args: &'a [super::CallArg]) -> Vec<Arg<'a>> {
    debug_assert_eq!(regions.len(), args.len());
    regions.iter().zip(args).map(|(&region, arg)| Arg { region, ty: &arg.ty }).collect()
}
