//! Moves residencies within the arena so that copies wait less for bytes to come free.
//!
//! A packed layout gives a swap-in the lowest bytes that are free in program order, often those of the tensor that has just left, so that the copy cannot start before the
//! last kernel on that tensor, or its swap-out, has ended. Elsewhere in the arena there may be bytes that nobody has touched for long:
//!
//! ```text
//! address 4..6   a  a  a↑ ·  c↓ c       c waits for a's swap-out
//!         2..4   b  b  ·  ·  ·  ·       better here
//!         0..2   p  p  p  p  p  p
//! ```
//!
//! Each block gets two times from an ideal schedule, in which kernels follow each other without a stall: when its bytes should be *wanted* free, and when they are
//! *freed* again. A block that succeeds another at the same bytes costs as much as it is wanted before the other is freed. Blocks that cost something are moved, one after the other, to where they cost least.

use super::LayoutError;
use super::alive::Alive;
use super::blocks::{Block, Piece, Residencies};
use crate::borders::Borders;
use crate::id::Bytes;
use crate::limits::{Duplex, Limits};
use crate::program::{Instr, Placed};
use crate::trace::Trace;

/// Passes over all blocks.
const N_PASSES: usize = 2;
/// Time at which bytes are freed that nobody touched: so early that it delays nothing, and far from overflow.
const NEVER: f64 = -1e18;
/// Most blocks looked at before and after a block in time, in its own iteration and in the neighbouring one each. More find little more and cost much.
const MOST_RIVALS: usize = 24;
/// Neighbours looked at, for each block there is, in one pass; where that does not suffice, only those that cost most are moved.
const MOST_NEIGHBOURS: u64 = 200;

/// The same program with addresses that let copies start earlier, in an arena of the same size or, where `limits.device` is finite, of at most that size. What crosses no border of the device's
/// blocks crosses none in the result.
///
/// This is a heuristic by estimated times: the result may be slower than what it was given, and `simulate` is the judge. Given homes and host addresses stay.
///
/// # Errors
/// As [`layout`](crate::layout::layout), if the program is malformed.
///
/// # Panics
/// If the addresses are not one for each claim, as `check` demands.
///
/// # Complexity
/// O(b log b) for b residencies.
pub fn spread(trace: &Trace, placed: Placed, limits: &Limits) -> Result<Placed, LayoutError> {
    let residencies = Residencies::of(trace, &placed.program, limits)?;
    let blocks = &residencies.device;
    let Some(times) = Times::of(trace, &placed, limits, &residencies) else { return Ok(placed) };
    let mut addresses = vec![0; blocks.len()];
    let mut is_placed = vec![false; blocks.len()];
    let mut cursor = vec![0; placed.layout.placements.len()];
    for &(instr, block) in &residencies.claims {
        let place = &mut cursor[instr as usize];
        addresses[block as usize] = placed.layout.placements[instr as usize].device[*place].0;
        is_placed[block as usize] = true;
        *place += 1;
    }
    for &(instr, block) in &residencies.workspaces {
        addresses[block as usize] = placed.layout.placements[instr as usize].workspace.map_or(0, |at| at.0);
        is_placed[block as usize] = true;
    }
    for home in &placed.layout.homes {
        if let (Some(at), Some(block)) = (home.device, residencies.own[home.tensor.index()].device) {
            addresses[block as usize] = at.0;
            is_placed[block as usize] = true;
        }
    }
    let (arena, borders) = (placed.layout.arena.0, Borders::of(limits));
    // Of the blocks that are not in use, one is enough.
    let most = limits.device.0.max(arena).min(arena.saturating_add(borders.room(arena)));
    let capacity = if limits.device == Bytes::MAX { arena } else { most };
    let mut mover = Mover {
        blocks,
        times: &times,
        alive: Alive::of(blocks),
        addresses,
        is_placed,
        capacity,
        borders: borders.below(capacity).collect(),
        before: vec![],
        after: vec![],
        by_address: vec![],
        rank: vec![MOVED; blocks.len()],
        met: vec![0; blocks.len().div_ceil(64)],
        taken: vec![],
        moved: vec![],
        edges: vec![],
    };
    let mut order: Vec<u32> = (0..blocks.len() as u32).filter(|&index| mover.may_move(index)).collect();
    order.sort_by_key(|&index| (times.wanted[index as usize], index));
    for _ in 0..N_PASSES {
        let least = mover.least_worth(&order);
        mover.rank_by_address();
        for &index in &order {
            mover.improve(index, least);
        }
    }
    let addresses = mover.addresses;
    Ok(readdress(placed, &residencies, &addresses))
}

/// Puts new device addresses into a layout.
fn readdress(mut placed: Placed, residencies: &Residencies, addresses: &[u64]) -> Placed {
    let at = |block: u32| Bytes(addresses[block as usize]);
    for placement in &mut placed.layout.placements {
        placement.device.clear();
    }
    for &(instr, block) in &residencies.claims {
        placed.layout.placements[instr as usize].device.push(at(block));
    }
    for &(instr, block) in &residencies.workspaces {
        placed.layout.placements[instr as usize].workspace = Some(at(block));
    }
    for home in &mut placed.layout.homes {
        home.device = residencies.own[home.tensor.index()].device.map(at);
    }
    let ends = residencies.device.iter().zip(addresses).filter(|(block, _)| block.is_there());
    placed.layout.arena = Bytes(ends.map(|(block, at)| at + block.bytes).max().unwrap_or(0));
    placed
}

/// Ideal times of each block, in nanoseconds from the start of the step.
struct Times {
    wanted: Vec<i64>,
    freed: Vec<i64>,
    period: i64,
    /// Blocks by the end of their (first) piece, with the latest `freed` up to each.
    by_end: Vec<u32>,
    freed_until: Vec<i64>,
    /// Blocks by start, with the earliest `wanted` from each on.
    by_start: Vec<u32>,
    wanted_from: Vec<i64>,
    /// For each position, how many blocks have ended when it begins, and how many have begun before it.
    n_ended: Vec<u32>,
    n_begun: Vec<u32>,
}

impl Times {
    /// None if nothing can run beside anything, so that addresses do not matter, or nothing takes time.
    fn of(trace: &Trace, placed: &Placed, limits: &Limits, residencies: &Residencies) -> Option<Self> {
        let instrs = &placed.program.instrs;
        let duration = |instr: &Instr| match instr {
            Instr::Run { op, .. } | Instr::Rerun { op, .. } => trace.op(*op).latency.0,
            Instr::SwapOut(tensor) => limits.link.out_time(trace.tensor(*tensor).bytes).0,
            Instr::SwapIn(tensor) => limits.link.in_time(trace.tensor(*tensor).bytes).0,
            Instr::Release(_) => 0,
        } as f64;
        let mut totals = [0.0; 3];
        for instr in instrs {
            if let Some(lane) = instr.lane() {
                totals[lane.index()] += duration(instr);
            }
        }
        let [compute, out, back] = totals;
        let busiest = match limits.link.duplex {
            Duplex::Full => compute.max(out).max(back),
            Duplex::Half => compute.max(out + back),
            Duplex::NoOverlap => return None,
        };
        // Also turns down links that never deliver.
        if compute <= 0.0 || out + back <= 0.0 || busiest > 1e15 {
            return None;
        }
        // Kernels spread evenly over a period that the busiest lane needs.
        let stretch = busiest / compute;
        let mut start = vec![0.0; instrs.len()];
        let mut end = vec![0.0; instrs.len()];
        let (mut now, mut out_free) = (0.0f64, 0.0f64);
        for (index, instr) in instrs.iter().enumerate() {
            match instr {
                Instr::Run { .. } | Instr::Rerun { .. } => {
                    start[index] = now;
                    now += duration(instr) * stretch;
                    end[index] = now;
                }
                Instr::SwapOut(_) => {
                    start[index] = out_free.max(now);
                    out_free = start[index] + duration(instr);
                    end[index] = out_free;
                }
                Instr::SwapIn(_) | Instr::Release(_) => (start[index], end[index]) = (now, now),
            }
        }
        let period = now;
        let n_blocks = residencies.device.len();
        // First use after the claim; later claims of a takeover chain count as uses.
        let mut used = vec![f64::INFINITY; n_blocks];
        let mut freed = vec![NEVER; n_blocks];
        let is_kernel = |instr: u32| matches!(instrs[instr as usize], Instr::Run { .. } | Instr::Rerun { .. });
        let kernel_claims = residencies.claims.iter().filter(|claim| is_kernel(claim.0));
        let uses = residencies.reads.iter().chain(kernel_claims).chain(&residencies.workspaces);
        for &(instr, block) in uses {
            let piece = residencies.device[block as usize].pieces[0];
            // A use before the piece at the end of the step is one of the next step.
            let next_step = if instr >= piece.start { 0.0 } else { period };
            used[block as usize] = used[block as usize].min(start[instr as usize] + next_step);
            let is_front = residencies.device[block as usize].pieces[1].is_empty() || instr < piece.start;
            if is_front {
                freed[block as usize] = freed[block as usize].max(end[instr as usize]);
            }
        }
        // What has no use must be there when the step ends.
        used.iter_mut().filter(|time| time.is_infinite()).for_each(|time| *time = period);
        let mut wanted = used.clone();
        // The latest start of each swap-in that keeps all later ones in time.
        let mut in_free = f64::INFINITY;
        for &(instr, block) in residencies.claims.iter().rev() {
            if !is_kernel(instr) {
                in_free = in_free.min(used[block as usize]) - duration(&instrs[instr as usize]);
                wanted[block as usize] = in_free;
                if freed[block as usize] == NEVER && residencies.device[block as usize].pieces[1].is_empty() {
                    freed[block as usize] = in_free + duration(&instrs[instr as usize]);
                }
            }
        }
        let whole = |times: Vec<f64>| times.into_iter().map(|time| time as i64).collect::<Vec<i64>>();
        Some(Self::sorted(&residencies.device, whole(wanted), whole(freed), period as i64))
    }

    fn sorted(blocks: &[Block], wanted: Vec<i64>, freed: Vec<i64>, period: i64) -> Self {
        // What is there all the time shares bytes with nobody.
        let n_positions = blocks.iter().map(|block| block.pieces[0].end).max().unwrap_or(0);
        let comes_and_goes = |&index: &u32| {
            let piece = blocks[index as usize].pieces[0];
            !piece.is_empty() && (piece.start > 0 || piece.end < n_positions)
        };
        let mut by_end: Vec<u32> = (0..blocks.len() as u32).filter(comes_and_goes).collect();
        by_end.sort_by_key(|&index| (front_end(&blocks[index as usize]), index));
        let mut latest = i64::MIN;
        let freed_until = by_end
            .iter()
            .map(|&index| {
                latest = latest.max(freed[index as usize]);
                latest
            })
            .collect();
        let mut by_start: Vec<u32> = (0..blocks.len() as u32).filter(comes_and_goes).collect();
        by_start.sort_by_key(|&index| (blocks[index as usize].pieces[0].start, index));
        let mut earliest = i64::MAX;
        let mut wanted_from: Vec<i64> = by_start
            .iter()
            .rev()
            .map(|&index| {
                earliest = earliest.min(wanted[index as usize]);
                earliest
            })
            .collect();
        wanted_from.reverse();
        let n_ended = by_end.iter().map(|&index| front_end(&blocks[index as usize]));
        let n_ended = running_counts(n_ended, n_positions);
        let n_begun = by_start.iter().map(|&index| blocks[index as usize].pieces[0].start + 1);
        let n_begun = running_counts(n_begun, n_positions);
        Self { wanted, freed, period, by_end, freed_until, by_start, wanted_from, n_ended, n_begun }
    }
}

/// For each position up to `n_positions`, how many of the given ones are not after it.
fn running_counts(positions: impl Iterator<Item = u32>, n_positions: u32) -> Vec<u32> {
    let mut counts = vec![0; n_positions as usize + 2];
    positions.for_each(|position| counts[position as usize] += 1);
    for position in 1..counts.len() {
        counts[position] += counts[position - 1];
    }
    counts
}

/// Where a block's bytes come free within the step: a circular block's second piece is the one at the start.
fn front_end(block: &Block) -> u32 {
    if block.pieces[1].is_empty() { block.pieces[0].end } else { block.pieces[1].end }
}

/// A block that waits, or makes wait, when it shares bytes with the block in question.
struct Rival {
    index: u32,
    delay: i64,
}

struct Mover<'a> {
    blocks: &'a [Block],
    times: &'a Times,
    alive: Alive,
    addresses: Vec<u64>,
    is_placed: Vec<bool>,
    capacity: u64,
    /// Addresses that nothing may cross.
    borders: Vec<u64>,
    /// Reused: earlier blocks that are freed after the block in question is wanted, and later ones that are wanted before it is freed.
    before: Vec<Rival>,
    after: Vec<Rival>,
    /// Blocks in order of their addresses at the start of the pass, the place of each in it, and a bit for each place.
    by_address: Vec<u32>,
    rank: Vec<u32>,
    met: Vec<u64>,
    /// Reused: ranges in use during its life, those of blocks that have moved in this pass, and addresses worth trying.
    taken: Vec<(u64, u64)>,
    moved: Vec<(u64, u64)>,
    edges: Vec<u64>,
}

/// Rank of a block that has moved since blocks were ranked.
const MOVED: u32 = u32::MAX;

impl Mover<'_> {
    fn may_move(&self, index: u32) -> bool {
        let block = &self.blocks[index as usize];
        self.is_placed[index as usize] && block.fixed.is_none() && block.is_there()
    }

    fn meets(&self, a: u32, b: u32) -> bool {
        let pieces = |index: u32| self.blocks[index as usize].pieces;
        pieces(a).iter().any(|p| pieces(b).iter().any(|q| p.start.max(q.start) < p.end.min(q.end)))
    }

    fn range(&self, index: u32) -> (u64, u64) {
        let at = self.addresses[index as usize];
        (at, at + self.blocks[index as usize].bytes)
    }

    /// The least cost that is worth a move, so that the work stays within bounds.
    fn least_worth(&mut self, order: &[u32]) -> i64 {
        let mut left = MOST_NEIGHBOURS * self.blocks.len() as u64;
        let mut costs: Vec<(i64, u64)> = Vec::new();
        for &index in order {
            self.find_rivals(index);
            let cost = self.cost(self.addresses[index as usize], self.blocks[index as usize].bytes);
            if cost > 0 {
                costs.push((cost, self.alive.count(&self.blocks[index as usize])));
            }
        }
        costs.sort_unstable_by_key(|&(cost, _)| std::cmp::Reverse(cost));
        for (cost, n_neighbours) in costs {
            match left.checked_sub(n_neighbours) {
                Some(rest) => left = rest,
                None => return cost,
            }
        }
        1
    }

    /// Finds the rivals of a block.
    fn find_rivals(&mut self, index: u32) {
        let times = self.times;
        let block = &self.blocks[index as usize];
        let (wanted, freed) = (times.wanted[index as usize], times.freed[index as usize]);
        let (mut before, mut after) = (std::mem::take(&mut self.before), std::mem::take(&mut self.after));
        before.clear();
        after.clear();
        let n_ended = times.n_ended[block.pieces[0].start as usize] as usize;
        for (upto, shift) in [(n_ended, 0), (times.by_end.len(), times.period)] {
            for place in (0..upto).rev().take(MOST_RIVALS) {
                if times.freed_until[place] - shift <= wanted {
                    break;
                }
                let other = times.by_end[place];
                let delay = times.freed[other as usize].saturating_sub(shift).saturating_sub(wanted);
                if delay > 0 && other != index && self.is_placed[other as usize] && !self.meets(other, index) {
                    before.push(Rival { index: other, delay });
                }
            }
        }
        let n_begun = times.n_begun[front_end(block) as usize] as usize;
        for (from, shift) in [(n_begun, 0), (0, times.period)] {
            for place in (from..times.by_start.len()).take(MOST_RIVALS) {
                if times.wanted_from[place].saturating_add(shift) >= freed {
                    break;
                }
                let other = times.by_start[place];
                let delay = freed.saturating_sub(times.wanted[other as usize] + shift);
                if delay > 0 && other != index && self.is_placed[other as usize] && !self.meets(other, index) {
                    after.push(Rival { index: other, delay });
                }
            }
        }
        (self.before, self.after) = (before, after);
    }

    /// What the block whose rivals have been found costs at an address.
    fn cost(&self, at: u64, bytes: u64) -> i64 {
        let worst = |rivals: &[Rival]| {
            rivals
                .iter()
                .filter(|rival| {
                    let (start, end) = self.range(rival.index);
                    start < at + bytes && at < end
                })
                .map(|rival| rival.delay)
                .max()
                .unwrap_or(0)
        };
        worst(&self.before) + worst(&self.after)
    }

    /// Moves a block that costs at least `least` to where it costs least.
    fn improve(&mut self, index: u32, least: i64) {
        self.find_rivals(index);
        let Block { bytes, pieces, .. } = self.blocks[index as usize];
        let now = self.addresses[index as usize];
        let mut best = (self.cost(now, bytes), now);
        if best.0 < least {
            return;
        }
        self.find_taken(index, pieces);
        let taken = std::mem::take(&mut self.taken);
        // Worth trying: both ends of each gap, and just beside each rival.
        let mut edges = std::mem::take(&mut self.edges);
        edges.clear();
        for rival in self.before.iter().chain(&self.after) {
            let (start, end) = self.range(rival.index);
            edges.extend([end, start.saturating_sub(bytes)]);
        }
        edges.sort_unstable();
        edges.dedup();
        let mut low = 0;
        for &(start, end) in &taken {
            if start >= low && start - low >= bytes {
                let inside = edges.partition_point(|&edge| edge <= low);
                let within = edges[inside..].iter().copied().take_while(|&edge| edge < start - bytes);
                for at in [low].into_iter().chain(within).chain([start - bytes]) {
                    let cost = self.cost(at, bytes);
                    if cost < best.0 {
                        best = (cost, at);
                    }
                }
            }
            if best.0 == 0 {
                break;
            }
            low = low.max(end);
        }
        if best.1 != now {
            self.addresses[index as usize] = best.1;
            self.rank[index as usize] = MOVED;
        }
        (self.taken, self.edges) = (taken, edges);
    }

    fn rank_by_address(&mut self) {
        self.by_address = (0..self.blocks.len() as u32).filter(|&index| self.is_placed[index as usize]).collect();
        self.by_address.sort_unstable_by_key(|&index| self.addresses[index as usize]);
        for (rank, &index) in self.by_address.iter().enumerate() {
            self.rank[index as usize] = rank as u32;
        }
    }

    /// Finds the ranges in use during the pieces of a block, and the borders, in order of their starts.
    fn find_taken(&mut self, index: u32, pieces: [Piece; 2]) {
        let (mut taken, mut moved) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.moved));
        let mut met = std::mem::take(&mut self.met);
        moved.clear();
        taken.clear();
        self.alive.during(pieces, |other| {
            let rank = self.rank[other as usize];
            if rank != MOVED {
                met[rank as usize / 64] |= 1 << (rank % 64);
            } else if self.is_placed[other as usize] {
                moved.push(self.range(other));
            }
        });
        let own = self.rank[index as usize];
        if own != MOVED {
            met[own as usize / 64] &= !(1 << (own % 64));
        } else {
            moved.retain(|&(start, _)| start != self.addresses[index as usize]);
        }
        moved.push((self.capacity, u64::MAX));
        // Nothing is taken there, but gaps end.
        moved.extend(self.borders.iter().map(|&border| (border, border)));
        moved.sort_unstable_by_key(|&(start, _)| start);
        let mut late = moved.iter().copied().peekable();
        for (word, bits) in met.iter_mut().enumerate() {
            while *bits != 0 {
                let rank = word * 64 + bits.trailing_zeros() as usize;
                *bits &= *bits - 1;
                let range = self.range(self.by_address[rank]);
                while let Some(range) = late.next_if(|&(start, _)| start < range.0) {
                    taken.push(range);
                }
                taken.push(range);
            }
        }
        taken.extend(late);
        (self.taken, self.moved, self.met) = (taken, moved, met);
    }
}
