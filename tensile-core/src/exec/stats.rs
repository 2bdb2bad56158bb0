//! What an executor measures.

use std::sync::Arc;

use tensile_sched::{Instr, Nanos, OpId, Span, Trace, TraceError};

use super::compiled::Compiled;
use super::lower::Step;
use crate::tensor::{DType, TensorType};

/// Run times of one op, first runs and reruns alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// How often it was timed.
    pub count: u64,
    /// Sum of all times.
    pub total: Nanos,
    /// Shortest time.
    pub min: Nanos,
}

impl OpStats {
    pub(super) fn add(&mut self, time: Nanos) {
        self.min = if self.count == 0 { time } else { self.min.min(time) };
        self.count += 1;
        self.total += time;
    }

    /// Average; none if it was never timed.
    pub fn mean(&self) -> Option<Nanos> {
        self.total.0.checked_div(self.count).map(Nanos)
    }
}

/// Copies in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time they took, if timed.
    pub time: Nanos,
}

/// Sums over all steps of one program since its executor first ran it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Finished steps.
    pub steps: u64,
    /// Sum of their times; see [`StepTimings::step`].
    pub step_time: Nanos,
    /// Copies to the host.
    pub swap_outs: CopyStats,
    /// Copies to the device.
    pub swap_ins: CopyStats,
    /// Copies that the budget causes, in both directions: all but arrivals of inputs and deliveries of outputs.
    pub evictions: u64,
    /// Ops run again.
    pub reruns: u64,
    /// Kernel time, if timed.
    pub compute_time: Nanos,
    /// Time that the compute lane idled, if timed.
    pub stall_time: Nanos,
    /// For each op of the trace; all zero unless timed.
    pub ops: Vec<OpStats>,
}

impl ProgramStats {
    pub(super) fn new(n_ops: usize) -> Self {
        Self { ops: vec![OpStats::default(); n_ops], ..Self::default() }
    }

    /// Adds what was measured of another program of the same step.
    ///
    /// # Panics
    /// If the other is of a step with another number of ops.
    pub fn merge(&mut self, other: &Self) {
        self.steps += other.steps;
        self.step_time += other.step_time;
        self.compute_time += other.compute_time;
        self.stall_time += other.stall_time;
        for (sum, copies) in [(&mut self.swap_outs, other.swap_outs), (&mut self.swap_ins, other.swap_ins)] {
            sum.count += copies.count;
            sum.bytes += copies.bytes;
            sum.time += copies.time;
        }
        self.evictions += other.evictions;
        self.reruns += other.reruns;
        if self.ops.is_empty() {
            self.ops.clone_from(&other.ops);
            return;
        }
        assert_eq!(self.ops.len(), other.ops.len(), "both are of one step");
        for (sum, op) in self.ops.iter_mut().zip(&other.ops).filter(|(_, op)| op.count > 0) {
            sum.min = if sum.count == 0 { op.min } else { sum.min.min(op.min) };
            sum.count += op.count;
            sum.total += op.total;
        }
    }

    /// Counts a finished step of a program.
    pub(super) fn add_step(&mut self, compiled: &Compiled, timings: &StepTimings) {
        let report = &compiled.planned().report;
        self.steps += 1;
        self.step_time += timings.step;
        self.compute_time += timings.compute;
        self.stall_time += timings.stall;
        self.swap_outs.count += report.swap_outs as u64;
        self.swap_outs.bytes += report.bytes_out.0;
        self.swap_outs.time += timings.copies_out;
        self.swap_ins.count += report.swap_ins as u64;
        self.swap_ins.bytes += report.bytes_in.0;
        self.swap_ins.time += timings.copies_in;
        self.evictions += report.evictions as u64;
        self.reruns += report.reruns as u64;
    }

    /// The step's trace with measured latencies (means) where there are any, to plan again with.
    ///
    /// # Errors
    /// None for latencies that a clock can measure.
    pub fn measured_trace(&self, step: &Step) -> Result<Trace, TraceError> {
        let ops = step.trace.ops().iter().zip(&self.ops);
        let latencies: Vec<Nanos> = ops.map(|(op, stats)| stats.mean().unwrap_or(op.latency)).collect();
        step.trace.clone().with_latencies(&latencies)
    }
}

/// Times of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimings {
    /// From the end of the step before to the end of this one; from this one's start if the lanes were drained between.
    pub step: Nanos,
    /// Sum of the times of its kernels; zero unless timed.
    pub compute: Nanos,
    /// Time that the compute lane idled before and between its kernels; zero unless timed.
    pub stall: Nanos,
    /// Sum of the times of its copies to the host; zero unless timed.
    pub copies_out: Nanos,
    /// Sum of the times of its copies to the device; zero unless timed.
    pub copies_in: Nanos,
}

/// When the instructions of a step ran.
#[derive(Clone, Debug)]
pub struct StepSpans {
    /// The step's program.
    pub program: Arc<Compiled>,
    /// One for each instruction, in the form of [`Simulation::spans`](tensile_sched::Simulation::spans): in nanoseconds from the end of the step before, or from the step's own
    /// start if the lanes were drained in between.
    pub spans: Vec<Span>,
}

/// A result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutput {
    /// Its name in the graph.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// The elements, in the machine's byte order.
    pub bytes: Vec<u8>,
}

impl StepOutput {
    /// The elements as floats.
    ///
    /// # Panics
    /// If it is not of floats.
    pub fn f32s(&self) -> Vec<f32> {
        assert_eq!(self.ty.dtype, DType::F32, "'{}' is {}", self.name, self.ty);
        self.words().map(f32::from_ne_bytes).collect()
    }

    /// The elements as integers.
    ///
    /// # Panics
    /// If it is not of integers.
    pub fn i32s(&self) -> Vec<i32> {
        assert_eq!(self.ty.dtype, DType::I32, "'{}' is {}", self.name, self.ty);
        self.words().map(i32::from_ne_bytes).collect()
    }

    fn words(&self) -> impl Iterator<Item = [u8; 4]> {
        self.bytes.chunks_exact(4).map(|word| word.try_into().expect("four bytes"))
    }
}

/// What a finished step gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// Which step of its executor it was, from 0.
    pub iteration: u64,
    /// In the order of [`Step::outputs`].
    pub outputs: Vec<StepOutput>,
    /// How long it took.
    pub timings: StepTimings,
}

impl StepResult {
    /// The output of this name.
    pub fn output(&self, name: &str) -> Option<&StepOutput> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// The one float of the output of this name.
    ///
    /// # Panics
    /// If there is no such output, or it is not one float: a program's author knows its outputs.
    pub fn scalar(&self, name: &str) -> f32 {
        let output = self.output(name).unwrap_or_else(|| panic!("the step has no output '{name}'"));
        match output.f32s()[..] {
            [value] => value,
            _ => panic!("output '{name}' is {}, not one number", output.ty),
        }
    }
}

/// The op of a kernel instruction.
pub(super) fn op_of(instr: &Instr) -> Option<OpId> {
    match instr {
        Instr::Run { op, .. } | Instr::Rerun { op, .. } => Some(*op),
        _ => None,
    }
}
