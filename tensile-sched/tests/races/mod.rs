//! Happens-before by brute force: the full ancestor set of every instruction of the unrolled program, and all pairs of accesses.

use tensile_sched::{InstrId, Lane, Placed, Synced, Wait};

use crate::interpreter::{ITERATIONS, Touch};

/// Pairs of conflicting accesses, as nodes of the unrolled program, the earlier one first.
pub(crate) struct Conflicts {
    pairs: Vec<(usize, usize)>,
}

impl Conflicts {
    /// Compares all pairs of accesses.
    pub(crate) fn new(synced: &Synced, touches: &[Touch]) -> Self {
        let n_instrs = synced.instrs().len();
        let node = |touch: &Touch| touch.iteration * n_instrs + touch.instr;
        let mut pairs = Vec::new();
        for (index, second) in touches.iter().enumerate() {
            for first in &touches[..index] {
                let same_bytes = first.on_device == second.on_device
                    && first.cells.start.max(second.cells.start) < first.cells.end.min(second.cells.end);
                if same_bytes && (first.write || second.write) && node(first) != node(second) {
                    pairs.push((node(first), node(second)));
                }
            }
        }
        pairs.sort();
        pairs.dedup();
        Self { pairs }
    }

    /// Whether lanes, waits and the limit of two iterations in flight order every pair.
    pub(crate) fn are_ordered(&self, synced: &Synced) -> bool {
        let ancestors = ancestors(synced);
        self.pairs.iter().all(|&(first, second)| ancestors[second][first / 64] & (1 << (first % 64)) != 0)
    }
}

/// For each node a bit for each node that has ended before it starts.
fn ancestors(synced: &Synced) -> Vec<Vec<u64>> {
    let n_instrs = synced.instrs().len();
    let n_nodes = ITERATIONS * n_instrs;
    let mut ancestors: Vec<Vec<u64>> = Vec::with_capacity(n_nodes);
    let mut last_on_lane: [Option<usize>; 3] = [None; 3];
    for node in 0..n_nodes {
        let (iteration, instr) = (node / n_instrs, node % n_instrs);
        let mut bits = vec![0u64; n_nodes.div_ceil(64)];
        let lane = synced.instrs()[instr].lane();
        let mut before: Vec<usize> = Vec::new();
        before.extend(lane.and_then(|lane| last_on_lane[lane.index()]));
        for wait in &synced.waits[instr] {
            match (wait.previous_iteration, iteration) {
                (false, _) => before.push(iteration * n_instrs + wait.on.index()),
                (true, 0) => {}
                (true, _) => before.push((iteration - 1) * n_instrs + wait.on.index()),
            }
        }
        if iteration >= 2 {
            before.extend((iteration - 2) * n_instrs..(iteration - 1) * n_instrs);
        }
        for earlier in before {
            bits[earlier / 64] |= 1 << (earlier % 64);
            for (mine, theirs) in bits.iter_mut().zip(&ancestors[earlier]) {
                *mine |= theirs;
            }
        }
        if let Some(lane) = lane {
            last_on_lane[lane.index()] = Some(node);
        }
        ancestors.push(bits);
    }
    ancestors
}

/// Waits that make every instruction start after all before it: right for any program, and slow.
pub(crate) fn one_after_the_other(placed: Placed) -> Synced {
    let lanes: Vec<Option<Lane>> = placed.program.instrs.iter().map(|instr| instr.lane()).collect();
    let last_before = |lane: Lane, end: usize| lanes[..end].iter().rposition(|there| *there == Some(lane));
    let waits = (0..lanes.len()).map(|instr| {
        let mut waits = Vec::new();
        for lane in Lane::ALL.into_iter().filter(|&lane| lanes[instr].is_some_and(|own| own != lane)) {
            let mut wait = |on: Option<usize>, previous_iteration| {
                waits.extend(on.map(|on| Wait { on: InstrId::from_index(on), previous_iteration }));
            };
            wait(last_before(lane, instr), false);
            wait(last_before(lane, lanes.len()), true);
        }
        waits.sort();
        waits
    });
    Synced { waits: waits.collect(), placed }
}
