//! From a trace and its limits to the linear program. The parent module has the argument.

use std::collections::BTreeMap;

use tensile_sched::liveness::{Access, AccessKind};
use tensile_sched::{Duplex, Limits, Liveness, Mode, OpId, Role, TensorId, Trace};

use super::Detail;
use super::lp::{Lp, Terms, Var};

/// The linear program; none if the step takes no time. Time is in units of the sum of all latencies.
pub(super) fn relaxation(trace: &Trace, limits: &Limits, detail: Detail) -> Option<Lp> {
    if trace.compute_time().0 == 0 {
        return None;
    }
    let mut relaxation = Relaxation::new(trace, limits, detail);
    for tensor in trace.tensor_ids() {
        if trace.tensor(tensor).role.is_persistent() {
            relaxation.persistent(tensor);
        } else {
            relaxation.transient(tensor);
        }
    }
    Some(relaxation.finish())
}

/// What goes over one lane.
#[derive(Default)]
struct Traffic {
    /// Between each sample and the next.
    between: Vec<Terms>,
    /// Between each sample and the next, of what is part of `fixed`.
    of_fixed: Vec<Terms>,
    /// At no special moment of the step.
    sometime: Terms,
    /// What goes over it in any case.
    fixed: f64,
}

/// Samples at which a tensor is idle, in the order of time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Gap {
    samples: Vec<usize>,
    /// Of a persistent tensor's gap across the end of the step, how many samples lie before the end; otherwise 0.
    n_before_end: usize,
    /// Behind the last access of a kept tensor.
    is_tail: bool,
}

/// What tensors have in common that can be one tensor to the linear program.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    gaps: Vec<Gap>,
    /// Runs of samples in which host copies are made, each run anew; none if the host copy is always valid.
    saves: Option<Vec<Vec<usize>>>,
    is_output: bool,
    /// Logarithms of the copy times per byte.
    times_per_byte: [i32; 2],
}

/// A tensor of a shape.
struct Member {
    bytes: f64,
    out_time: f64,
    in_time: f64,
    /// For each gap, whether it is made again then, and the samples at which that saves its bytes.
    again: Vec<Option<(Var, Vec<usize>)>>,
}

/// Tensors whose copy times per byte differ by less than this factor may be taken together, with the lesser time.
const SIMILAR: f64 = 1.1;

/// Copies of a thousand steps are taken as no longer, to keep the numbers of the linear program within reason.
const LONGEST: f64 = 1e3;

struct Relaxation<'a> {
    trace: &'a Trace,
    limits: &'a Limits,
    live: Liveness,
    detail: Detail,
    /// Sampled ops, ascending.
    sampled: Vec<usize>,
    /// Bytes needed at each sample if nothing is evicted, and whether that is over the budget.
    over: Vec<bool>,
    lp: Lp,
    /// Between each sample and the next.
    stalls: Vec<Var>,
    /// Bytes at each sample that are not evicted, variables aside.
    needed: Vec<f64>,
    /// Bytes saved at each sample.
    relief: Vec<Terms>,
    out: Traffic,
    back: Traffic,
    groups: BTreeMap<Shape, Vec<Member>>,
    /// Times of reruns.
    reruns: Terms,
    /// For ops with several outputs, how often they run again.
    times_rerun: Vec<Option<Var>>,
    /// Bytes of kept tensors that have been used for the last time, at each sample.
    kept: Vec<f64>,
    /// Bytes of persistent tensors that come in for the next step before each sample, since the one before it.
    prefetched: Vec<Terms>,
    /// Nanoseconds and bytes are divided by these.
    time_unit: f64,
    bytes_unit: f64,
}

impl<'a> Relaxation<'a> {
    fn new(trace: &'a Trace, limits: &'a Limits, detail: Detail) -> Self {
        let live = Liveness::new(trace);
        let usage: Vec<u64> = live.usage(trace, limits).iter().map(|bytes| bytes.0).collect();
        let sampled = samples(trace, &usage, detail.samples);
        let m = sampled.len();
        let mut lp = Lp::default();
        let stalls = (0..m).map(|_| lp.costly()).collect();
        let traffic =
            || Traffic { between: vec![Terms::new(); m], of_fixed: vec![Terms::new(); m], ..Traffic::default() };
        // Usage counts inputs before their first and outputs after their last access as the relaxation does, but takeovers of tensors that live on twice.
        let over = sampled.iter().map(|&op| usage[op] > limits.device.0).collect();
        let mut relaxation = Self {
            trace,
            limits,
            live,
            detail,
            over,
            lp,
            stalls,
            needed: vec![0.0; m],
            relief: vec![Terms::new(); m],
            out: traffic(),
            back: traffic(),
            groups: BTreeMap::new(),
            reruns: Terms::new(),
            times_rerun: vec![None; trace.ops().len()],
            kept: vec![0.0; m],
            prefetched: vec![Terms::new(); m],
            time_unit: trace.compute_time().0 as f64,
            bytes_unit: usage.iter().copied().max().unwrap_or(1).max(1) as f64,
            sampled,
        };
        for sample in 0..m {
            relaxation.needed[sample] = relaxation.working_set(relaxation.sampled[sample]);
        }
        relaxation
    }

    /// Bytes that op `op` touches, in-place pairs once.
    fn working_set(&self, op: usize) -> f64 {
        let of = &self.trace.ops()[op];
        let bytes = |tensor: TensorId| self.limits.occupied(self.trace.tensor(tensor).bytes).0;
        let touched = of.reads.iter().chain(&of.writes).chain(&of.updates);
        let all: u64 = touched.map(|&tensor| bytes(tensor)).sum();
        let shared: u64 = of.in_place.iter().map(|pair| bytes(pair.output)).sum();
        (all - shared + self.limits.occupied(of.workspace).0) as f64 / self.bytes_unit
    }

    fn bytes(&self, tensor: TensorId) -> f64 {
        self.limits.occupied(self.trace.tensor(tensor).bytes).0 as f64 / self.bytes_unit
    }

    fn out_time(&self, tensor: TensorId) -> f64 {
        (self.limits.link.out_time(self.trace.tensor(tensor).bytes).0 as f64 / self.time_unit).min(LONGEST)
    }

    fn in_time(&self, tensor: TensorId) -> f64 {
        (self.limits.link.in_time(self.trace.tensor(tensor).bytes).0 as f64 / self.time_unit).min(LONGEST)
    }

    /// Samples strictly between two ops.
    fn samples_between(&self, from: usize, to: usize) -> std::ops::Range<usize> {
        let start = self.sampled.partition_point(|&op| op <= from);
        let end = self.sampled.partition_point(|&op| op < to);
        start..end.max(start)
    }

    fn is_large(&self, tensor: TensorId) -> bool {
        self.trace.tensor(tensor).bytes >= self.detail.least_bytes
    }

    /// Idle intervals between consecutive accesses that matter, with the access before each. Counts the bytes of all.
    fn gaps(&mut self, tensor: TensorId, accesses: &[Access]) -> Vec<(usize, Gap)> {
        let mut gaps = Vec::new();
        for pair in accesses.windows(2) {
            let from = pair[0].op.index();
            let samples: Vec<usize> = self.samples_between(from, pair[1].op.index()).collect();
            gaps.extend(self.gap(tensor, Gap { samples, n_before_end: 0, is_tail: false }).map(|gap| (from, gap)));
        }
        gaps
    }

    /// Counts the tensor's bytes; gives the gap back if it has a sample over the budget.
    fn gap(&mut self, tensor: TensorId, gap: Gap) -> Option<Gap> {
        for &sample in &gap.samples {
            self.needed[sample] += self.bytes(tensor);
        }
        gap.samples.iter().any(|&sample| self.over[sample]).then_some(gap)
    }

    fn persistent(&mut self, tensor: TensorId) {
        let accesses = self.live.accesses(tensor).to_vec();
        if self.limits.mode == Mode::Recompute {
            for sample in 0..self.sampled.len() {
                let op = OpId::from_index(self.sampled[sample]);
                if accesses.binary_search_by_key(&op, |access| access.op).is_err() {
                    self.needed[sample] += self.bytes(tensor);
                }
            }
            return;
        }
        let (Some(first), Some(last)) = (accesses.first(), accesses.last()) else { return };
        if !self.is_large(tensor) {
            return;
        }
        let mut gaps: Vec<Gap> = self.gaps(tensor, &accesses).into_iter().map(|(_, gap)| gap).collect();
        let tail = self.samples_between(last.op.index(), self.trace.ops().len());
        let n_before_end = tail.len();
        let samples = tail.chain(self.samples_before(first.op.index())).collect();
        gaps.extend(self.gap(tensor, Gap { samples, n_before_end, is_tail: false }));
        let is_update = |access: &&Access| access.kind == AccessKind::Update;
        let updates: Vec<usize> = accesses.iter().filter(is_update).map(|access| access.op.index()).collect();
        let saves = updates.iter().enumerate().map(|(index, &update)| match updates.get(index + 1) {
            Some(&next) => self.samples_between(update, next).collect(),
            // Until the first update of the next step.
            None => {
                self.samples_between(update, self.trace.ops().len()).chain(self.samples_before(updates[0])).collect()
            }
        });
        let saves = (!updates.is_empty()).then(|| saves.collect());
        self.swappable(tensor, gaps, saves, vec![]);
    }

    fn samples_before(&self, op: usize) -> std::ops::Range<usize> {
        0..self.sampled.partition_point(|&sampled| sampled < op)
    }

    fn transient(&mut self, tensor: TensorId) {
        let of = self.trace.tensor(tensor);
        let (role, keep) = (of.role, of.keep);
        let accesses = self.live.accesses(tensor).to_vec();
        if role == Role::Input && (keep || !accesses.is_empty()) {
            self.back.fixed += self.in_time(tensor);
        }
        if role == Role::Output {
            self.out.fixed += self.out_time(tensor);
        }
        let (Some(first), Some(last)) = (accesses.first(), accesses.last()) else { return };
        if !self.is_large(tensor) {
            return;
        }
        let (first, last) = (first.op.index(), last.op.index());
        let n_ops = self.trace.ops().len();
        let mut gaps = self.gaps(tensor, &accesses);
        if keep {
            let samples: Vec<usize> = self.samples_between(last, n_ops).collect();
            for &sample in &samples {
                self.kept[sample] += self.bytes(tensor);
            }
            gaps.extend(self.gap(tensor, Gap { samples, n_before_end: 0, is_tail: true }).map(|gap| (last, gap)));
        }
        let again: Vec<_> = gaps.iter().map(|(from, gap)| self.make_again(tensor, *from, gap)).collect();
        self.rerun(tensor, again.iter().flatten().map(|&(var, _)| (var, 1.0)).collect());
        let gaps = gaps.into_iter().map(|(_, gap)| gap).collect();
        if role == Role::Input {
            self.swappable(tensor, gaps, None, again);
        } else if self.limits.mode != Mode::Recompute {
            let saves = vec![self.samples_between(first, n_ops).collect()];
            self.swappable(tensor, gaps, Some(saves), again);
        }
    }

    /// Whether the tensor is made again in this gap behind op `from`, and the samples at which that saves its bytes; none if it cannot be.
    fn make_again(&mut self, tensor: TensorId, from: usize, gap: &Gap) -> Option<(Var, Vec<usize>)> {
        let producer = self.trace.producer(tensor)?;
        let op = self.trace.op(producer);
        if self.limits.mode == Mode::Swap || !op.replayable {
            return None;
        }
        let updated = |read: &TensorId| {
            let accesses = self.live.accesses(*read);
            let later = &accesses[accesses.partition_point(|access| access.op <= producer)..];
            later.iter().find(|access| access.kind == AccessKind::Update).map(|access| access.op.index())
        };
        let deadline = op.reads.iter().filter_map(updated).min().unwrap_or(usize::MAX);
        if deadline <= from {
            return None;
        }
        let samples: Vec<usize> =
            gap.samples.iter().copied().filter(|&sample| self.sampled[sample] < deadline).collect();
        if samples.is_empty() {
            return None;
        }
        let var = self.lp.var(1.0);
        let bytes = self.bytes(tensor);
        for &sample in &samples {
            self.relief[sample].push((var, bytes));
        }
        Some((var, samples))
    }

    /// Charges the reruns that make this tensor again.
    fn rerun(&mut self, tensor: TensorId, made_again: Terms) {
        if made_again.is_empty() {
            return;
        }
        let producer = self.trace.producer(tensor).expect("it has been made again");
        let op = self.trace.op(producer);
        let time = op.latency.0 as f64 / self.time_unit;
        if op.writes.len() == 1 {
            self.reruns.extend(made_again.iter().map(|&(var, _)| (var, time)));
            return;
        }
        let times = match self.times_rerun[producer.index()] {
            Some(times) => times,
            None => {
                // More often than there are gaps is of no use.
                let times = self.lp.var(self.trace.ops().len() as f64);
                self.times_rerun[producer.index()] = Some(times);
                self.reruns.push((times, time));
                times
            }
        };
        let mut terms = made_again;
        terms.push((times, -1.0));
        self.lp.at_most(terms, 0.0);
    }

    /// Puts a tensor that may be swapped in these gaps to those of its shape.
    fn swappable(
        &mut self,
        tensor: TensorId,
        gaps: Vec<Gap>,
        saves: Option<Vec<Vec<usize>>>,
        mut again: Vec<Option<(Var, Vec<usize>)>>,
    ) {
        if gaps.is_empty() {
            return;
        }
        let is_idle = |sample: &usize| gaps.iter().any(|gap| gap.samples.contains(sample));
        let until_last_gap = |mut run: Vec<usize>| {
            run.truncate(run.iter().rposition(is_idle).map_or(0, |last| last + 1));
            run
        };
        let saves = saves.map(|saves| saves.into_iter().map(until_last_gap).filter(|run| !run.is_empty()).collect());
        let (bytes, out_time, in_time) = (self.bytes(tensor), self.out_time(tensor), self.in_time(tensor));
        let class = |time: f64| ((time / bytes).max(1e-12).ln() / SIMILAR.ln()).floor() as i32;
        let is_output = self.trace.tensor(tensor).role == Role::Output;
        let times_per_byte = [if saves.is_some() { class(out_time) } else { 0 }, class(in_time)];
        again.resize_with(gaps.len(), || None);
        let member = Member { bytes, out_time, in_time, again };
        self.groups.entry(Shape { gaps, saves, is_output, times_per_byte }).or_default().push(member);
    }

    /// Tensors of one shape as one tensor of all their bytes, which is easier to swap than they are.
    fn group(&mut self, shape: &Shape, members: &[Member]) {
        let bytes: f64 = members.iter().map(|member| member.bytes).sum();
        let least = |time: fn(&Member) -> f64| {
            members.iter().map(|member| time(member) / member.bytes).fold(f64::INFINITY, f64::min) * bytes
        };
        let in_time = least(|member| member.in_time);
        let saved = shape.saves.as_ref().map(|runs| self.save(runs, least(|member| member.out_time), shape.is_output));
        for (index, gap) in shape.gaps.iter().enumerate() {
            let mut away = Vec::with_capacity(gap.samples.len());
            for &sample in &gap.samples {
                let var = self.lp.var(1.0);
                self.relief[sample].push((var, bytes));
                if let Some(saved) = &saved {
                    let saved = saved[sample].expect("gaps lie behind a write or an update");
                    self.lp.at_most(vec![(var, 1.0), (saved, -1.0)], 0.0);
                }
                let made_again = members.iter().filter_map(|member| {
                    let (again, samples) = member.again[index].as_ref()?;
                    samples.contains(&sample).then_some((*again, member.bytes / bytes))
                });
                let mut terms: Terms = made_again.collect();
                if !terms.is_empty() {
                    terms.push((var, 1.0));
                    self.lp.at_most(terms, 1.0);
                }
                away.push(var);
            }
            self.bring_back(gap, &away, bytes, in_time);
        }
    }

    /// By sample, the part whose host copy is valid.
    fn save(&mut self, runs: &[Vec<usize>], time: f64, is_output: bool) -> Vec<Option<Var>> {
        let mut saved = vec![None; self.sampled.len()];
        for run in runs {
            let mut before: Option<Var> = None;
            for &sample in run {
                let var = self.lp.var(1.0);
                saved[sample] = Some(var);
                let slice = (sample + self.sampled.len() - 1) % self.sampled.len();
                // An output goes out anyway: this is when.
                let traffic = if is_output { &mut self.out.of_fixed[slice] } else { &mut self.out.between[slice] };
                traffic.push((var, time));
                if let Some(before) = before {
                    traffic.push((before, -time));
                    self.lp.at_most(vec![(before, 1.0), (var, -1.0)], 0.0);
                }
                before = Some(var);
            }
        }
        saved
    }

    /// Charges the way back of the part that is away at each sample of a gap.
    fn bring_back(&mut self, gap: &Gap, away: &[Var], bytes: f64, time: f64) {
        if gap.is_tail {
            let comes = self.lp.var(1.0);
            for &var in away {
                self.lp.at_most(vec![(var, 1.0), (comes, -1.0)], 0.0);
            }
            self.back.sometime.push((comes, time));
            return;
        }
        for (index, (&var, &sample)) in away.iter().zip(&gap.samples).enumerate() {
            match away.get(index + 1) {
                Some(&next) => {
                    let comes = self.lp.var(1.0);
                    self.lp.at_most(vec![(var, 1.0), (next, -1.0), (comes, -1.0)], 0.0);
                    self.back.between[sample].push((comes, time));
                    if index + 1 < gap.n_before_end {
                        self.prefetched[sample + 1].push((comes, bytes));
                    }
                }
                None => self.back.between[sample].push((var, time)),
            }
        }
    }

    fn finish(mut self) -> Lp {
        for (shape, members) in std::mem::take(&mut self.groups) {
            self.group(&shape, &members);
        }
        self.relieve_kept();
        let budget = self.limits.device.0 as f64 / self.bytes_unit;
        for (sample, relief) in std::mem::take(&mut self.relief).into_iter().enumerate() {
            if self.needed[sample] > budget {
                let terms = relief.into_iter().map(|(var, bytes)| (var, -bytes)).collect();
                self.lp.at_most(terms, budget - self.needed[sample]);
            }
        }
        let all_stalls: Terms = self.stalls.iter().map(|&stall| (stall, -1.0)).collect();
        let (out, back) = (self.out, self.back);
        let mut lanes = vec![out, back];
        if self.limits.link.duplex != Duplex::Full {
            let [out, back] = <[Traffic; 2]>::try_from(lanes).ok().expect("there are two");
            let between = out.between.into_iter().zip(back.between).map(|(out, back)| [out, back].concat()).collect();
            let sometime = [out.sometime, back.sometime].concat();
            lanes = vec![Traffic { between, of_fixed: out.of_fixed, sometime, fixed: out.fixed + back.fixed }];
        }
        let beside = if self.limits.link.duplex == Duplex::NoOverlap { 0.0 } else { 1.0 };
        let mut kernels = self.reruns;
        let mut kernels_fixed = 0.0;
        let starts = starts(self.trace, self.time_unit);
        for lane in lanes {
            // Unless something goes over the lane at no special moment, the rows of all moments say all there is to say.
            let has_more = lane.fixed > 0.0 || !lane.sometime.is_empty();
            let mut all = [lane.between.concat(), lane.sometime].concat();
            for (sample, (between, of_fixed)) in lane.between.into_iter().zip(lane.of_fixed).enumerate() {
                let mut terms = [between, of_fixed].concat();
                if terms.is_empty() {
                    continue;
                }
                let start = starts[self.sampled[sample]];
                let end = match self.sampled.get(sample + 1) {
                    Some(&next) => starts[next],
                    None => 1.0 + starts[self.sampled[0]],
                };
                terms.push((self.stalls[sample], -1.0));
                self.lp.at_most(terms, beside * (end - start));
            }
            if self.limits.link.duplex == Duplex::NoOverlap {
                kernels.extend(&all);
                kernels_fixed += lane.fixed;
            } else if has_more {
                all.extend(&all_stalls);
                self.lp.at_most(all, 1.0 - lane.fixed);
            }
        }
        kernels.extend(all_stalls);
        self.lp.at_most(kernels, -kernels_fixed);
        self.lp
    }

    /// Kept tensors give way to what comes in for the next step.
    fn relieve_kept(&mut self) {
        if self.limits.mode == Mode::Recompute {
            return;
        }
        let mut before: Option<Var> = None;
        let mut most = 0.0;
        for (sample, mut terms) in std::mem::take(&mut self.prefetched).into_iter().enumerate() {
            most += terms.iter().map(|&(_, bytes)| bytes).sum::<f64>();
            if most == 0.0 {
                continue;
            }
            // var ≤ before + what has come since.
            let var = self.lp.var(most);
            for term in &mut terms {
                term.1 = -term.1;
            }
            terms.push((var, 1.0));
            terms.extend(before.map(|before| (before, -1.0)));
            self.lp.at_most(terms, 0.0);
            if self.kept[sample] > 0.0 {
                let relief = self.lp.var(self.kept[sample]);
                self.lp.at_most(vec![(relief, 1.0), (var, -1.0)], 0.0);
                self.relief[sample].push((relief, 1.0));
            }
            before = Some(var);
        }
    }
}

/// When each op starts if nothing stalls.
fn starts(trace: &Trace, unit: f64) -> Vec<f64> {
    let mut now = 0;
    let mut start = |latency: u64| {
        let start = now as f64 / unit;
        now += latency;
        start
    };
    trace.ops().iter().map(|op| start(op.latency.0)).collect()
}

/// Of at most `most` slices of equal time the op with the highest usage.
fn samples(trace: &Trace, usage: &[u64], most: usize) -> Vec<usize> {
    let n_ops = trace.ops().len();
    let starts = starts(trace, trace.compute_time().0 as f64);
    let mut edges = vec![0];
    for slice in 1..most.min(n_ops) {
        let least = edges[edges.len() - 1] + 1;
        let at = slice as f64 / most.min(n_ops) as f64;
        let edge = starts.partition_point(|&start| start < at).max(least);
        if edge < n_ops {
            edges.push(edge);
        }
    }
    edges.push(n_ops);
    let highest = |slice: &[usize]| (slice[0]..slice[1]).max_by_key(|&op| (usage[op], std::cmp::Reverse(op)));
    edges.windows(2).filter_map(highest).collect()
}
