//! Latencies of one step, corrected by measurements.

use tensile_sched::{Nanos, Trace, TraceError};

use crate::exec::{OpStats, ProgramStats};

/// Weight of a new measurement in the average; that of the paper.
const NEW: f64 = 0.9;

/// Exponentially weighted latencies of a step's ops: `0.9·measured + 0.1·before` each time that measurements are taken in (the paper's correction after each iteration).
#[derive(Clone, Debug)]
pub struct Corrected {
    latencies: Vec<Nanos>,
    /// Sum that the plan in force was made with.
    planned: u128,
    /// What had been measured when [`measure`](Self::measure) was last called.
    seen: Vec<OpStats>,
}

impl Corrected {
    /// Begins with the latencies that a step was planned with.
    pub fn new(trace: &Trace) -> Self {
        let latencies: Vec<Nanos> = trace.ops().iter().map(|op| op.latency).collect();
        let seen = vec![OpStats::default(); latencies.len()];
        Self { planned: sum(&latencies), latencies, seen }
    }

    /// Takes in what has been measured since the last call: the mean of each op's new times. Ops without new times stay as they are.
    /// Statistics that begin again (those of another program of the step) are taken as a whole.
    ///
    /// # Panics
    /// If the statistics are of another step.
    pub fn measure(&mut self, stats: &ProgramStats) {
        assert_eq!(stats.ops.len(), self.latencies.len(), "statistics of the same step");
        for ((latency, seen), now) in self.latencies.iter_mut().zip(&mut self.seen).zip(&stats.ops) {
            if now.count < seen.count || now.total < seen.total {
                *seen = OpStats::default();
            }
            let (count, total) = (now.count - seen.count, now.total - seen.total);
            if count > 0 {
                let measured = total.0 as f64 / count as f64;
                *latency = super::nanos(NEW * measured + (1.0 - NEW) * latency.0 as f64);
            }
            *seen = *now;
        }
    }

    /// To be called when another program begins whose statistics start at zero.
    pub fn restart(&mut self) {
        self.seen.fill(OpStats::default());
    }

    /// How far the step has left what the plan in force was made with: |Σnew − Σold| / Σold.
    pub fn drift(&self) -> f64 {
        let now = sum(&self.latencies);
        now.abs_diff(self.planned) as f64 / self.planned.max(1) as f64
    }

    /// To be called when a plan was made with the latencies as they are now: [`drift`](Self::drift) is 0 again.
    pub fn replanned(&mut self) {
        self.planned = sum(&self.latencies);
    }

    /// One for each op of the trace.
    pub fn latencies(&self) -> &[Nanos] {
        &self.latencies
    }

    /// The step's trace with the corrected latencies, to plan again with.
    ///
    /// # Errors
    /// None for latencies that a clock can measure.
    ///
    /// # Panics
    /// If the trace is of another step.
    pub fn trace(&self, trace: &Trace) -> Result<Trace, TraceError> {
        trace.clone().with_latencies(&self.latencies)
    }
}

fn sum(latencies: &[Nanos]) -> u128 {
    latencies.iter().map(|latency| u128::from(latency.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::host::{HostDevice, HostOptions};
    use crate::exec::lower;
    use crate::graph::{Graph, GraphError};
    use crate::tensor::TensorType;

    fn trace() -> Result<Trace, GraphError> {
        let mut graph = Graph::new();
        let x = graph.input("x", TensorType::f32([8]))?;
        let y = graph.relu(x)?;
        let y = graph.add(x, y)?;
        graph.output("y", y)?;
        let device = HostDevice::new(HostOptions::nominal(1)).unwrap();
        let trace = lower(&graph, &device)?.trace;
        Ok(trace.with_latencies(&[Nanos(100), Nanos(300)])?)
    }

    fn stats(ops: [(u64, u64); 2]) -> ProgramStats {
        let ops = ops.map(|(count, total)| OpStats { count, total: Nanos(total), min: Nanos(1) });
        ProgramStats { ops: ops.to_vec(), ..ProgramStats::default() }
    }

    #[test]
    fn new_measurements_weigh_nine_tenths() {
        let trace = trace().unwrap();
        let mut corrected = Corrected::new(&trace);
        assert_eq!((corrected.drift(), corrected.latencies()), (0.0, &[Nanos(100), Nanos(300)][..]));
        // Two runs of the first op with 200 in the mean, none of the second.
        corrected.measure(&stats([(2, 400), (0, 0)]));
        assert_eq!(corrected.latencies(), [Nanos(190), Nanos(300)]);
        assert!((corrected.drift() - 0.225).abs() < 1e-12);
        // Nothing new: nothing changes. Then one run of each.
        corrected.measure(&stats([(2, 400), (0, 0)]));
        assert_eq!(corrected.latencies(), [Nanos(190), Nanos(300)]);
        corrected.measure(&stats([(3, 410), (1, 100)]));
        assert_eq!(corrected.latencies(), [Nanos(28), Nanos(120)]);
        let planned_again = corrected.trace(&trace).unwrap();
        assert_eq!(planned_again.compute_time(), Nanos(148));
        corrected.replanned();
        assert_eq!(corrected.drift(), 0.0);
    }

    #[test]
    fn another_programs_statistics_begin_again() {
        let trace = trace().unwrap();
        let mut corrected = Corrected::new(&trace);
        corrected.measure(&stats([(5, 500), (5, 1500)]));
        assert_eq!(corrected.drift(), 0.0);
        corrected.measure(&stats([(1, 200), (1, 300)]));
        assert_eq!(corrected.latencies(), [Nanos(190), Nanos(300)]);
        // Not to be seen from the counts alone.
        corrected.restart();
        corrected.measure(&stats([(2, 380), (2, 600)]));
        assert_eq!(corrected.latencies(), [Nanos(190), Nanos(300)]);
    }
}
