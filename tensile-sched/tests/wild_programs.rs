//! Layout, sync and simulate against `check` and `verify`, on programs that no planner would write: random but valid sequences of swaps, releases,
//! reruns (with scratch) and takeovers, random boundaries, with a random amount of each.

use proptest::prelude::*;
use tensile_sched::strategy::{Sizes, links, traces};
use tensile_sched::{
    BoundaryTensor, Bytes, Duplex, InPlace, Instr, Lane, LayoutError, Limits, Link, OpId, Placed, Program, Role,
    Synced, TensorId, Trace, check, layout, simulate, spread, sync, verify,
};

/// A stream of decisions.
struct Dice(u64);

impl Dice {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        // An LCG by Knuth; the upper bits are good enough here.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

/// How often things happen, in per cent.
#[derive(Clone, Copy, Debug)]
struct Habits {
    boundary: usize,
    act: usize,
    takeover: usize,
}

/// Writes a random valid program.
struct Author<'a> {
    trace: &'a Trace,
    dice: Dice,
    habits: Habits,
    program: Program,
    resident: Vec<bool>,
    on_host: Vec<bool>,
    /// Accesses of each tensor that are still to come as a read or update of a first run.
    to_come: Vec<usize>,
    /// How often each tensor has been updated, now and when each op ran.
    updates: Vec<usize>,
    updates_at_run: Vec<Option<Vec<usize>>>,
}

impl<'a> Author<'a> {
    fn write(trace: &'a Trace, seed: u64, habits: Habits) -> Program {
        let n_tensors = trace.tensors().len();
        let mut to_come = vec![0; n_tensors];
        for op in trace.ops() {
            for tensor in op.reads.iter().chain(&op.updates) {
                to_come[tensor.index()] += 1;
            }
        }
        let mut author = Self {
            trace,
            dice: Dice(seed),
            habits,
            program: Program::default(),
            resident: vec![false; n_tensors],
            on_host: vec![false; n_tensors],
            to_come,
            updates: vec![0; n_tensors],
            updates_at_run: vec![None; trace.ops().len()],
        };
        author.begin();
        for op in trace.op_ids() {
            while author.dice.percent(author.habits.act) {
                author.act();
            }
            author.run(op);
        }
        author.finish();
        author.program
    }

    fn begin(&mut self) {
        for tensor in self.trace.tensor_ids() {
            let role = self.trace.tensor(tensor).role;
            if role.is_persistent() && self.dice.percent(self.habits.boundary) {
                let host_valid = self.dice.percent(50);
                self.program.boundary.push(BoundaryTensor { tensor, host_valid });
                self.resident[tensor.index()] = true;
                self.on_host[tensor.index()] = host_valid;
            } else {
                self.on_host[tensor.index()] = role.is_persistent() || role == Role::Input;
            }
        }
    }

    /// Whether a tensor's value may be lost.
    fn is_dead(&self, tensor: TensorId) -> bool {
        let facts = self.trace.tensor(tensor);
        !facts.role.is_persistent() && facts.role != Role::Output && !facts.keep && self.to_come[tensor.index()] == 0
    }

    fn may_go(&self, tensor: TensorId) -> bool {
        self.resident[tensor.index()] && (self.on_host[tensor.index()] || self.is_dead(tensor))
    }

    fn emit(&mut self, instr: Instr) {
        match &instr {
            Instr::SwapOut(tensor) => self.on_host[tensor.index()] = true,
            Instr::SwapIn(tensor) => self.resident[tensor.index()] = true,
            Instr::Release(tensor) => self.resident[tensor.index()] = false,
            Instr::Run { .. } | Instr::Rerun { .. } => {}
        }
        self.program.instrs.push(instr);
    }

    /// Something that no op asks for.
    fn act(&mut self) {
        let n_tensors = self.trace.tensors().len();
        if n_tensors == 0 {
            return;
        }
        let tensor = TensorId::from_index(self.dice.below(n_tensors));
        let index = tensor.index();
        match self.dice.below(6) {
            0 | 1 if self.may_go(tensor) => self.emit(Instr::Release(tensor)),
            2 if self.resident[index] => self.emit(Instr::SwapOut(tensor)),
            3 if !self.resident[index] && self.on_host[index] => self.emit(Instr::SwapIn(tensor)),
            4 | 5 => {
                let op = OpId::from_index(self.dice.below(self.trace.ops().len()));
                self.rerun(op);
            }
            _ => {}
        }
    }

    fn rerun(&mut self, op: OpId) {
        let facts = self.trace.op(op);
        let Some(then) = &self.updates_at_run[op.index()] else { return };
        let is_same = facts.reads.iter().all(|read| then[read.index()] == self.updates[read.index()]);
        if !facts.replayable || !is_same || !facts.reads.iter().all(|read| self.resident[read.index()]) {
            return;
        }
        let takeovers = self.takeovers(op);
        self.move_bytes(op, &takeovers);
        self.emit(Instr::Rerun { op, takeovers });
    }

    fn run(&mut self, op: OpId) {
        let facts = self.trace.op(op);
        for &tensor in facts.reads.iter().chain(&facts.updates) {
            if !self.resident[tensor.index()] {
                self.emit(Instr::SwapIn(tensor));
            }
            self.to_come[tensor.index()] -= 1;
        }
        let takeovers = self.takeovers(op);
        self.updates_at_run[op.index()] = Some(self.updates.clone());
        self.move_bytes(op, &takeovers);
        for &tensor in &facts.updates {
            self.updates[tensor.index()] += 1;
            self.on_host[tensor.index()] = false;
        }
        self.emit(Instr::Run { op, takeovers });
    }

    fn takeovers(&mut self, op: OpId) -> Vec<InPlace> {
        let mut chosen = Vec::new();
        for pair in &self.trace.op(op).in_place {
            if self.may_go(pair.input) && !self.resident[pair.output.index()] && self.dice.percent(self.habits.takeover)
            {
                chosen.push(*pair);
            }
        }
        chosen
    }

    fn move_bytes(&mut self, op: OpId, takeovers: &[InPlace]) {
        for pair in takeovers {
            self.resident[pair.input.index()] = false;
        }
        for tensor in &self.trace.op(op).writes {
            self.resident[tensor.index()] = true;
        }
    }

    /// Meets what must hold at the end of a step.
    fn finish(&mut self) {
        let mut boundary = self.program.boundary.clone().into_iter().peekable();
        for tensor in self.trace.tensor_ids() {
            let facts = self.trace.tensor(tensor);
            let at_boundary = boundary.next_if(|entry| entry.tensor == tensor);
            let (stay, copy) = match at_boundary {
                Some(entry) => (true, entry.host_valid),
                None => (facts.keep, facts.role.is_persistent() || facts.role == Role::Output),
            };
            if copy && !self.on_host[tensor.index()] {
                self.emit(Instr::SwapOut(tensor));
            }
            if stay && !self.resident[tensor.index()] {
                self.emit(Instr::SwapIn(tensor));
            }
            if !stay && self.resident[tensor.index()] && facts.role.is_persistent() {
                self.emit(Instr::Release(tensor));
            }
        }
    }
}

const ALIGNMENT: Bytes = Bytes(64);

fn limits() -> Limits {
    Limits { alignment: ALIGNMENT, ..Limits::unlimited() }
}

fn cases() -> impl Strategy<Value = (Trace, Program)> {
    let sizes = Sizes { unit: ALIGNMENT.0, most_units: 6, odd: true };
    let habits = (0usize..=100, 0usize..=85, 0usize..=100).prop_map(|(boundary, act, takeover)| Habits {
        boundary,
        act,
        takeover,
    });
    (traces(sizes, 1..12), any::<u64>(), habits)
        .prop_map(|(trace, seed, habits)| {
            let program = Author::write(&trace, seed, habits);
            (trace, program)
        })
        .prop_filter("a takeover chain may hold a boundary address too long", |(trace, program)| {
            !matches!(layout(trace, program, &limits()), Err(LayoutError::BoundaryHeld { .. }))
        })
}

fn place(trace: &Trace, program: &Program, limits: &Limits) -> Placed {
    match layout(trace, program, limits) {
        Ok(placed) => placed,
        Err(error) => panic!("{error}\n{program:#?}"),
    }
}

/// Device intervals of a layout as (start, end), sizes rounded up: homes, claims, scratch, workspaces.
fn intervals(trace: &Trace, placed: &Placed) -> Vec<(u64, u64)> {
    let interval = |at: Bytes, bytes: Bytes| (at.0, at.0 + bytes.0.div_ceil(ALIGNMENT.0) * ALIGNMENT.0);
    let mut all = Vec::new();
    for home in &placed.layout.homes {
        all.extend(home.device.map(|at| interval(at, trace.tensor(home.tensor).bytes)));
    }
    for (instr, placement) in placed.program.instrs.iter().zip(&placed.layout.placements) {
        let claimed: Vec<TensorId> = match instr {
            Instr::Run { op, .. } | Instr::Rerun { op, .. } => {
                all.extend(placement.workspace.map(|at| interval(at, trace.op(*op).workspace)));
                trace.op(*op).writes.clone()
            }
            Instr::SwapIn(tensor) => vec![*tensor],
            Instr::SwapOut(_) | Instr::Release(_) => vec![],
        };
        all.extend(
            claimed.iter().zip(&placement.device).map(|(&tensor, &at)| interval(at, trace.tensor(tensor).bytes)),
        );
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// In blocks from the size of the largest interval up, layout and spread cross no border, and check refuses exactly what crosses one.
    #[test]
    fn layouts_in_blocks_cross_no_border((trace, program) in cases(), percent in 100u64..400, other in 100u64..400, link in links()) {
        let in_one = place(&trace, &program, &limits());
        let largest = intervals(&trace, &in_one).into_iter().map(|(start, end)| end - start).max().unwrap_or(ALIGNMENT.0);
        let limited = |percent: u64| Limits { max_block: Bytes(largest * percent / 100), link, ..limits() };
        let limits = limited(percent);
        let placed = place(&trace, &program, &limits);
        let report = check(&trace, &placed, &limits);
        prop_assert!(report.is_ok(), "{report:?}\n{placed:#?}");
        let tight = Limits { device: placed.layout.arena, ..limits.clone() };
        let again = place(&trace, &program, &tight);
        prop_assert!(again.layout.arena <= tight.device, "{} above {}", again.layout.arena, tight.device);
        prop_assert!(check(&trace, &again, &tight).is_ok());
        for (placed, limits) in [(&placed, &limits), (&again, &tight)] {
            let apart = spread(&trace, placed.clone(), limits).unwrap();
            let report = check(&trace, &apart, limits);
            prop_assert!(report.is_ok(), "{report:?}\n{apart:#?}");
        }
        let roomy = Limits { device: placed.layout.arena + Bytes(3 * largest), ..limits };
        let apart = spread(&trace, placed.clone(), &roomy).unwrap();
        prop_assert!(check(&trace, &apart, &roomy).is_ok());
        // Under blocks of another size.
        let limits = limited(other);
        let block = limits.block().0;
        for placed in [in_one, placed] {
            let crosses = intervals(&trace, &placed).into_iter().any(|(start, end)| start / block != (end - 1) / block);
            prop_assert_eq!(check(&trace, &placed, &limits).is_err(), crosses, "blocks of {}\n{:#?}", block, placed);
        }
    }

    #[test]
    fn check_accepts_every_layout((trace, program) in cases()) {
        let placed = place(&trace, &program, &limits());
        let report = check(&trace, &placed, &limits());
        prop_assert!(report.is_ok(), "{report:?}\n{placed:#?}");
        let report = report.unwrap();
        prop_assert_eq!(report.arena, placed.layout.arena);
        prop_assert_eq!(report.host_arena, placed.layout.host_arena);
        prop_assert!(report.peak <= report.arena);
        // As a budget, the arena it needed is enough.
        let tight = Limits { device: report.arena, host: report.host_arena, ..limits() };
        prop_assert!(place(&trace, &program, &tight).layout.arena <= report.arena);
        prop_assert_eq!(&place(&trace, &program, &limits()), &placed, "equal input, equal output");
    }

    #[test]
    fn a_given_boundary_is_kept((trace, program) in cases(), spread in 0u64..3) {
        let mut homes = place(&trace, &program, &limits()).layout.homes;
        for (index, home) in homes.iter_mut().enumerate() {
            // Further apart, in the same order of addresses.
            let shift = |at: Bytes| Bytes(at.0 * (1 + spread) + ALIGNMENT.0 * spread * (index as u64 % 2));
            home.device = home.device.map(shift);
            home.host = home.host.map(shift);
        }
        let given = Limits { boundary: Some(homes.clone()), ..limits() };
        let placed = match layout(&trace, &program, &given) {
            Err(LayoutError::Collision { .. }) => return Ok(()),
            other => other.unwrap(),
        };
        prop_assert_eq!(&placed.layout.homes, &homes);
        let report = check(&trace, &placed, &given);
        prop_assert!(report.is_ok(), "{report:?}\n{placed:#?}");
        let synced = sync(&trace, placed);
        let verified = verify(&trace, &synced);
        prop_assert!(verified.is_ok(), "{verified:?}\n{synced:#?}");
    }

    #[test]
    fn the_waits_are_enough_and_none_is_idle((trace, program) in cases()) {
        let mut synced = sync(&trace, place(&trace, &program, &limits()));
        let verified = verify(&trace, &synced);
        prop_assert!(verified.is_ok(), "{verified:?}\n{synced:#?}");
        for instr in 0..synced.waits.len() {
            for index in 0..synced.waits[instr].len() {
                let wait = synced.waits[instr].remove(index);
                prop_assert!(verify(&trace, &synced).is_err(), "{instr} need not wait for {wait:?}\n{synced:#?}");
                synced.waits[instr].insert(index, wait);
            }
        }
    }

    #[test]
    fn simulated_times_keep_the_rules((trace, program) in cases(), link in links()) {
        let synced = sync(&trace, place(&trace, &program, &limits()));
        timing(&trace, &synced, &link)?;
    }

    #[test]
    fn spreading_keeps_layouts_right((trace, program) in cases(), link in links(), room in 0u64..4) {
        let packed = place(&trace, &program, &limits());
        let budget = Bytes(packed.layout.arena.0 + room * ALIGNMENT.0);
        let limits = Limits { device: budget, link, ..limits() };
        let apart = spread(&trace, packed, &limits).unwrap();
        let report = check(&trace, &apart, &limits);
        prop_assert!(report.is_ok(), "{report:?}\n{apart:#?}");
        prop_assert_eq!(report.unwrap().arena, apart.layout.arena);
    }

    #[test]
    fn an_infinite_link_leaves_only_the_kernels((trace, program) in cases()) {
        let synced = sync(&trace, place(&trace, &program, &limits()));
        let simulation = simulate(&trace, &synced, &Link::INFINITE);
        let kernels: u64 = synced.instrs().iter().filter_map(|instr| match instr {
            Instr::Run { op, .. } | Instr::Rerun { op, .. } => Some(trace.op(*op).latency.0),
            _ => None,
        }).sum();
        prop_assert_eq!(simulation.step_time.0, kernels);
        prop_assert_eq!(simulation.first_step_time.0, kernels);
        prop_assert_eq!(simulation.stalls, vec![]);
    }
}

/// Durations, lanes, waits and shared resources of one simulated step and its shifted copies before and after.
fn timing(trace: &Trace, synced: &Synced, link: &Link) -> Result<(), TestCaseError> {
    let simulation = simulate(trace, synced, link);
    let period = i64::try_from(simulation.step_time.0).expect("these steps end");
    let spans = &simulation.spans;
    let work: Vec<usize> = (0..spans.len()).filter(|&index| synced.instrs()[index].lane().is_some()).collect();
    let lane = |index: usize| synced.instrs()[index].lane().expect("only work is listed");
    for &index in &work {
        let span = spans[index];
        let nominal = match &synced.instrs()[index] {
            Instr::Run { op, .. } | Instr::Rerun { op, .. } => trace.op(*op).latency,
            Instr::SwapOut(tensor) => link.out_time(trace.tensor(*tensor).bytes),
            Instr::SwapIn(tensor) => link.in_time(trace.tensor(*tensor).bytes),
            Instr::Release(_) => unreachable!("a release is no work"),
        };
        let took = (span.end - span.start) as u64;
        let slowest = match (lane(index), link.duplex) {
            (_, Duplex::NoOverlap) => 1.0,
            (Lane::Compute, Duplex::Half) => link.kernel_slowdown,
            (Lane::Compute, Duplex::Full) => 1.0 + 2.0 * (link.kernel_slowdown - 1.0),
            _ => link.copy_slowdown,
        };
        prop_assert!(took >= nominal.0 && took <= (nominal.0 as f64 * slowest).ceil() as u64, "{index}: {took}");
        for wait in &synced.waits[index] {
            let shift = if wait.previous_iteration { period } else { 0 };
            prop_assert!(spans[wait.on.index()].end - shift <= span.start, "{index} starts before {wait:?} has ended");
        }
    }
    for lane_of in Lane::ALL {
        let own: Vec<usize> = work.iter().copied().filter(|&index| lane(index) == lane_of).collect();
        for pair in own.windows(2) {
            prop_assert!(spans[pair[0]].end <= spans[pair[1]].start, "{pair:?} overlap on {lane_of:?}");
        }
    }
    let never_together = |a: usize, b: usize| match link.duplex {
        Duplex::Full => false,
        Duplex::Half => lane(a) != Lane::Compute && lane(b) != Lane::Compute,
        Duplex::NoOverlap => true,
    };
    for (place, &a) in work.iter().enumerate() {
        for &b in &work[place + 1..] {
            if never_together(a, b) {
                prop_assert!(
                    spans[a].end <= spans[b].start || spans[b].end <= spans[a].start,
                    "{a} and {b} run at once"
                );
            }
        }
    }
    // Nothing is faster than the busiest resource, or slower than one thing at a time.
    let busy = |lanes: &[Lane]| -> i64 {
        work.iter()
            .filter(|&&index| lanes.contains(&lane(index)))
            .map(|&index| spans[index].end - spans[index].start)
            .sum()
    };
    let least = match link.duplex {
        Duplex::Full => busy(&[Lane::Compute]).max(busy(&[Lane::Out])).max(busy(&[Lane::In])),
        Duplex::Half => busy(&[Lane::Compute]).max(busy(&[Lane::Out, Lane::In])),
        Duplex::NoOverlap => busy(&Lane::ALL),
    };
    prop_assert!(period + 1 >= least, "{period} < {least}");
    prop_assert!(period <= busy(&Lane::ALL), "{period} > {}", busy(&Lane::ALL));
    // The compute lane works or stalls. (Where kernels and copies compete, steps may alternate, and one of them need not take the average.)
    let competes = link.duplex != Duplex::Full || link.kernel_slowdown > 1.0 || link.copy_slowdown > 1.0;
    if !competes && work.iter().any(|&index| lane(index) == Lane::Compute) {
        prop_assert_eq!(busy(&[Lane::Compute]) + simulation.stall_time().0 as i64, period);
    }
    Ok(())
}
