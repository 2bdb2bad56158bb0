//! Packing: an address for each block, so that blocks that live at once do not overlap and the arena is small.
//!
//! This is dynamic storage allocation with known lifetimes, which is NP-hard; on training steps simple heuristics are near the lower bound. [`Skyline`] is tried with several ranks, then
//! the best one is improved by raising the rank of the block that stands highest ("squeaky wheel"), until the arena is good enough or the work is used up. Where blocks are few,
//! [`Exact`] looks for a packing that reaches the target, too.
//!
//! Where addresses are given and leave gaps, and where all that does not suffice, blocks are placed first-fit: several orders are
//! tried, then the best one is improved by moving the block that broke the target forward.
//!
//! Memory that comes in blocks ([`Borders`]) is packed as if it were in one piece where one block is enough. Where it is not, every placer keeps what it places clear of the borders.

use super::blocks::{Block, Piece};
use super::exact::Exact;
use super::skyline::{Rank, Skyline};
use crate::borders::Borders;
use crate::id::Bytes;

/// Array entries looked at before a search for a better order ends; about 0.05 s.
const MOST_VISITS: u64 = 20_000_000;
/// Most rounds of improvement.
const MOST_ROUNDS: usize = 400;
/// Most rounds of a quick search.
const QUICK_ROUNDS: usize = 8;
/// What the rank of the highest block is multiplied by. Found by trial.
const PROMOTION: f64 = 1.5;
/// Tree nodes looked at before a search for better ranks ends; about 0.05 s.
const MOST_SKYLINE_VISITS: u64 = 4_000_000;
/// The same for a quick search; about 3 ms.
const QUICK_VISITS: u64 = 150_000;
/// More blocks than this are not packed by backtracking.
const FEW_BLOCKS: usize = 400;
/// More blocks than this are placed first-fit only around given ones.
const MOST_FIRST_FIT: usize = 4000;
/// How far forward improvement moves a block, in turns: to this many quarters of its place. Found by trial.
const JUMPS: [usize; 4] = [2, 1, 2, 0];
/// A block with more neighbours than this is placed by a scan over everything.
const MOST_NEIGHBOURS: usize = 128;

/// How good is good enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Limit of the arena; `MAX` for none.
    limit: u64,
    /// Without a limit, other orders are tried until the arena exceeds the lower bound by at most one part in this many.
    order_slack: u64,
    /// The same for rounds of improvement.
    round_slack: u64,
    /// Most rounds of improvement.
    n_rounds: usize,
    /// Most tree nodes looked at, where blocks are packed from the bottom up.
    most_visits: u64,
    /// Nodes of a search with backtracking: so many for each block, and so many over the number of blocks.
    nodes: (u64, u64),
    /// Blocks with more neighbours are placed by a scan.
    most_neighbours: usize,
}

impl Effort {
    /// For the device, where every byte counts.
    pub(super) fn device(limit: Bytes) -> Self {
        Self {
            limit: limit.0,
            order_slack: u64::MAX,
            round_slack: 512,
            n_rounds: MOST_ROUNDS,
            most_visits: MOST_SKYLINE_VISITS,
            nodes: (100, 3_000_000),
            most_neighbours: MOST_NEIGHBOURS,
        }
    }

    /// For the host, where a few per cent do not matter unless there is a limit.
    pub(super) fn host(limit: Bytes) -> Self {
        let n_rounds = if limit == Bytes::MAX { 0 } else { MOST_ROUNDS };
        Self { limit: limit.0, order_slack: 32, round_slack: 32, n_rounds, nodes: (0, 0), ..Self::device(limit) }
    }

    /// The same with few rounds of improvement: for planners, which lay out many programs and keep one.
    pub(super) fn quick(self) -> Self {
        Self { n_rounds: self.n_rounds.min(QUICK_ROUNDS), most_visits: QUICK_VISITS, nodes: (0, 0), ..self }
    }

    /// The same with all the work that is worth it for a program that will be kept; about a second where blocks are few and hardly fit.
    pub(super) fn hard(self) -> Self {
        Self { round_slack: u64::MAX, nodes: (1_000, 40_000_000), ..self }
    }

    /// The same for memory in blocks, where the lower bound is far away and most searches go on to their end.
    fn in_blocks(self) -> Self {
        Self { most_visits: self.most_visits / 4, nodes: (self.nodes.0 / 4, self.nodes.1 / 8), ..self }
    }

    /// The arena at which the search stops.
    fn goal(self, bound: u64, slack: u64) -> u64 {
        if self.limit < bound {
            // It cannot be met: any layout tells the caller so.
            u64::MAX
        } else if self.limit == u64::MAX {
            bound + bound / slack
        } else {
            self.limit
        }
    }
}

/// Addresses of all blocks.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) addresses: Vec<u64>,
    /// Highest end.
    pub(super) arena: u64,
}

/// Packs `blocks`, whose pieces lie within `0..n_positions`, across no border; each that lives fits between two borders.
///
/// # Errors
/// The indices of two blocks whose given addresses collide.
pub(super) fn pack(
    blocks: &[Block],
    n_positions: u32,
    effort: Effort,
    borders: Borders,
) -> Result<Packed, (usize, usize)> {
    let bound = bound(blocks, n_positions);
    if bound <= borders.block() {
        let packed = pack_within(blocks, n_positions, bound, effort, Borders::NONE)?;
        if packed.arena <= borders.block() {
            return Ok(packed);
        }
    }
    let effort = if borders == Borders::NONE { effort } else { effort.in_blocks() };
    pack_within(blocks, n_positions, bound, effort, borders)
}

/// The same, even if one of the device's blocks would do. No layout has a smaller arena than `bound`.
fn pack_within(
    blocks: &[Block],
    n_positions: u32,
    bound: u64,
    effort: Effort,
    borders: Borders,
) -> Result<Packed, (usize, usize)> {
    let ground = Ground::new(blocks, n_positions, borders)?;
    let bound = bound.max(ground.top);
    if !ground.entries.is_empty() {
        return Ok(pack_around(blocks, ground, n_positions, bound, effort));
    }
    let packed = pack_up(blocks, &ground, n_positions, bound, effort);
    let is_enough = packed.arena <= effort.goal(bound, effort.round_slack);
    if is_enough || effort.n_rounds <= QUICK_ROUNDS || ground.free.len() > MOST_FIRST_FIT {
        return Ok(packed);
    }
    // The two do well on different steps.
    let other = pack_around(blocks, ground, n_positions, bound, effort);
    Ok(if other.arena < packed.arena { other } else { packed })
}

/// On an even ground.
fn pack_up(blocks: &[Block], ground: &Ground, n_positions: u32, bound: u64, effort: Effort) -> Packed {
    let mut skyline = Skyline::new(blocks, &ground.free, n_positions, ground.borders);
    let mut addresses = ground.addresses.clone();
    let mut best = Packed { addresses: vec![], arena: u64::MAX };
    let mut start = (0, vec![]);
    let is_enough = |arena: u64, slack, visits| arena <= effort.goal(bound, slack) || visits > effort.most_visits;
    for rank in Rank::ALL {
        skyline.rank_by(rank);
        let (arena, highest) = skyline.pack(ground.base, &mut addresses);
        if arena < best.arena {
            best = Packed { addresses: addresses.clone(), arena };
            start = (highest, skyline.ranks());
        }
        if is_enough(best.arena, effort.order_slack, skyline.visits) {
            break;
        }
    }
    let (mut highest, ranks) = start;
    skyline.set_ranks(ranks);
    let n_free = ground.free.len();
    for round in 0..effort.n_rounds {
        if n_free == 0 || is_enough(best.arena, effort.round_slack, skyline.visits) {
            break;
        }
        if round == QUICK_ROUNDS && n_free <= FEW_BLOCKS {
            let goal = effort.goal(bound, effort.round_slack);
            let n_nodes = (effort.nodes.0 * n_free as u64).min(effort.nodes.1 / n_free as u64);
            let mut exact = Exact::new(blocks, &ground.free, n_positions, ground.base, ground.borders);
            if let Some(found) = exact.pack(goal, n_nodes) {
                for (&block, &address) in ground.free.iter().zip(found) {
                    addresses[block as usize] = address;
                }
                let tops = ground.free.iter().map(|&block| addresses[block as usize] + blocks[block as usize].bytes);
                let arena = tops.max().unwrap_or(ground.base);
                return Packed { addresses, arena };
            }
        }
        skyline.promote(highest, PROMOTION);
        let arena;
        (arena, highest) = skyline.pack(ground.base, &mut addresses);
        if arena < best.arena {
            best = Packed { addresses: addresses.clone(), arena };
        }
    }
    best
}

/// Around blocks that have addresses.
fn pack_around(blocks: &[Block], ground: Ground, n_positions: u32, bound: u64, effort: Effort) -> Packed {
    let mut search = Search {
        blocks,
        ground,
        neighbours: Neighbours::of(blocks, effort.most_neighbours),
        visits: 0,
        best: None,
        order: vec![],
    };
    for rule in [Rule::Area, Rule::Size, Rule::Lifetime, Rule::PeakFirst, Rule::Start] {
        search.attempt(&rule.order(blocks, &search.ground, n_positions));
        if search.arena() <= effort.goal(bound, effort.order_slack) || search.visits > MOST_VISITS {
            break;
        }
    }
    search.improve(effort.goal(bound, effort.round_slack), effort.n_rounds);
    search.best.expect("the first attempt has nothing to be compared with")
}

/// Orders in which blocks are placed.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// Largest bytes × positions first.
    Area,
    /// Largest first, longest first among equals.
    Size,
    /// Longest first.
    Lifetime,
    /// Those alive at the peak first, by length; then the others by size.
    PeakFirst,
    /// In program order.
    Start,
}

impl Rule {
    fn order(self, blocks: &[Block], ground: &Ground, n_positions: u32) -> Vec<u32> {
        let lifetime = |block: &Block| block.pieces[0].len() + block.pieces[1].len();
        let peak = match self {
            Rule::PeakFirst => profile(blocks, n_positions)
                .iter()
                .enumerate()
                .max_by_key(|&(at, live)| (*live, usize::MAX - at))
                .map_or(0, |(at, _)| at as u32),
            _ => 0,
        };
        let key = |index: u32| -> (u128, u64) {
            let block = &blocks[index as usize];
            // Larger keys go first.
            match self {
                Rule::Area => (u128::from(block.bytes) * u128::from(lifetime(block)), block.bytes),
                Rule::Size => (u128::from(block.bytes), lifetime(block)),
                Rule::Lifetime => (u128::from(lifetime(block)), block.bytes),
                Rule::PeakFirst => {
                    if block.pieces.iter().any(|piece| piece.start <= peak && peak < piece.end) {
                        (u128::MAX, lifetime(block))
                    } else {
                        (u128::from(block.bytes), lifetime(block))
                    }
                }
                // Circular blocks are there from the start.
                Rule::Start if !block.pieces[1].is_empty() => (u128::MAX, block.bytes),
                Rule::Start => (u128::from(u32::MAX - block.pieces[0].start), block.bytes),
            }
        };
        let mut order: Vec<(u128, u64, u32)> = ground
            .free
            .iter()
            .map(|&index| {
                let (first, second) = key(index);
                (first, second, index)
            })
            .collect();
        order.sort_unstable_by(|a, b| (b.0, b.1, a.2).cmp(&(a.0, a.1, b.2)));
        order.into_iter().map(|(_, _, index)| index).collect()
    }
}

/// Bytes live at each position.
fn profile(blocks: &[Block], n_positions: u32) -> Vec<u64> {
    let mut steps = vec![0i128; n_positions as usize + 1];
    for block in blocks {
        for piece in block.pieces.iter().filter(|piece| !piece.is_empty()) {
            steps[piece.start as usize] += i128::from(block.bytes);
            steps[piece.end as usize] -= i128::from(block.bytes);
        }
    }
    let mut live = 0;
    steps.pop();
    steps
        .into_iter()
        .map(|step| {
            live += step;
            u64::try_from(live).expect("live bytes are a sum of sizes of at most 2^50 each")
        })
        .collect()
}

/// No layout has a smaller arena.
fn bound(blocks: &[Block], n_positions: u32) -> u64 {
    profile(blocks, n_positions).into_iter().max().unwrap_or(0)
}

/// A placed piece of a block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    top: u64,
    piece: Piece,
}

/// What every attempt starts from: blocks that never move.
#[derive(Debug)]
struct Ground {
    /// Addresses of blocks that never move; `NOWHERE` for the others.
    addresses: Vec<u64>,
    /// Given blocks that do not lie in the solid bottom, by address.
    entries: Vec<Entry>,
    /// Below this everything is taken for the whole step.
    base: u64,
    /// Highest end of what never moves.
    top: u64,
    /// Blocks to place, by index.
    free: Vec<u32>,
    borders: Borders,
}

impl Ground {
    fn new(blocks: &[Block], n_positions: u32, borders: Borders) -> Result<Self, (usize, usize)> {
        let mut addresses = vec![NOWHERE; blocks.len()];
        let mut given: Vec<(u64, usize)> =
            blocks.iter().enumerate().filter_map(|(index, block)| Some((block.fixed?, index))).collect();
        given.sort_unstable();
        for pair in given.windows(2) {
            let (address, first) = pair[0];
            // All given blocks are there at the boundary, so they all live at once.
            if address.saturating_add(blocks[first].bytes) > pair[1].0 {
                return Err((first, pair[1].1));
            }
        }
        let is_whole = |block: &Block| block.pieces[0].start == 0 && block.pieces[0].end == n_positions;
        let mut ground = Self { addresses: vec![], entries: vec![], base: 0, top: 0, free: vec![], borders };
        for &(address, index) in &given {
            let block = &blocks[index];
            addresses[index] = address;
            let top = address.saturating_add(block.bytes);
            ground.top = ground.top.max(top);
            if is_whole(block) && address == ground.base {
                ground.base = top;
            } else {
                ground.entries.extend(entries_of(address, block));
            }
        }
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.fixed.is_none()) {
            let is_absent = block.pieces.iter().all(|piece| piece.is_empty());
            if is_absent {
                // Gone into a circular block, or there for no position: any address will do.
                addresses[index] = 0;
            } else if is_whole(block) && given.is_empty() && borders == Borders::NONE {
                addresses[index] = ground.base;
                ground.base += block.bytes;
                ground.top = ground.base;
            } else {
                ground.free.push(index as u32);
            }
        }
        ground.addresses = addresses;
        Ok(ground)
    }
}

/// The pieces of a block at its address.
fn entries_of(address: u64, block: &Block) -> impl Iterator<Item = Entry> {
    let top = address.saturating_add(block.bytes);
    block.pieces.into_iter().filter(|piece| !piece.is_empty()).map(move |piece| Entry { address, top, piece })
}

/// Blocks that live at the same time as a block, where they are few.
#[derive(Debug)]
struct Neighbours {
    /// End of each block's part of `list`; a block without one is alone or has too many.
    parts: Vec<Option<(u32, u32)>>,
    list: Vec<u32>,
}

impl Neighbours {
    /// Follows the pieces in order of their starts, with the set of those alive.
    fn of(blocks: &[Block], most: usize) -> Self {
        let mut pieces: Vec<(Piece, u32)> = blocks
            .iter()
            .enumerate()
            .flat_map(|(index, block)| block.pieces.into_iter().map(move |piece| (piece, index as u32)))
            .filter(|(piece, _)| !piece.is_empty())
            .collect();
        pieces.sort_unstable_by_key(|&(piece, index)| (piece.start, index));
        let mut found = Self { parts: vec![None; blocks.len()], list: vec![] };
        let mut alive: Vec<(u32, u32)> = Vec::new();
        for (place, &(piece, index)) in pieces.iter().enumerate() {
            alive.retain(|&(end, _)| end > piece.start);
            let n_later =
                pieces[place + 1..].iter().take(most + 1).take_while(|(later, _)| later.start < piece.end).count();
            let is_circular = !blocks[index as usize].pieces[1].is_empty();
            if alive.len() + n_later <= most && !is_circular {
                let start = found.list.len() as u32;
                found.list.extend(alive.iter().map(|&(_, other)| other));
                found.list.extend(pieces[place + 1..][..n_later].iter().map(|&(_, other)| other));
                found.parts[index as usize] = Some((start, found.list.len() as u32));
            }
            alive.push((piece.end, index));
        }
        found
    }

    fn get(&self, block: u32) -> Option<&[u32]> {
        self.parts[block as usize].map(|(start, end)| &self.list[start as usize..end as usize])
    }
}

/// Not placed yet.
const NOWHERE: u64 = u64::MAX;

/// What is placed, in the course of one attempt.
#[derive(Debug)]
struct Placing<'a> {
    blocks: &'a [Block],
    base: u64,
    borders: Borders,
    addresses: Vec<u64>,
    /// By address, all but the pending ones.
    entries: Vec<Entry>,
    pending: Vec<Entry>,
    /// Reused: what a block's neighbours take.
    taken: Vec<(u64, u64)>,
    visits: u64,
}

impl Placing<'_> {
    fn place(&mut self, index: u32, address: u64) {
        self.addresses[index as usize] = address;
        self.pending.extend(entries_of(address, &self.blocks[index as usize]));
    }

    /// The lowest address where a block fits.
    fn lowest(&mut self, index: u32, neighbours: &Neighbours) -> u64 {
        match neighbours.get(index) {
            Some(neighbours) => self.lowest_among(index, neighbours),
            None => self.lowest_in_scan(index),
        }
    }

    fn lowest_among(&mut self, index: u32, neighbours: &[u32]) -> u64 {
        let block = &self.blocks[index as usize];
        self.taken.clear();
        for &other in neighbours {
            let address = self.addresses[other as usize];
            if address != NOWHERE {
                self.taken.push((address, address.saturating_add(self.blocks[other as usize].bytes)));
            }
        }
        self.visits += 1 + 2 * neighbours.len() as u64;
        self.taken.sort_unstable();
        let mut lowest = self.borders.lift(self.base, block.bytes);
        for &(address, top) in &self.taken {
            if address >= lowest.saturating_add(block.bytes) {
                break;
            }
            if top > lowest {
                lowest = self.borders.lift(top, block.bytes);
            }
        }
        lowest
    }

    fn lowest_in_scan(&mut self, index: u32) -> u64 {
        self.merge();
        let block = &self.blocks[index as usize];
        let [first, second] = block.pieces;
        let mut lowest = self.borders.lift(self.base, block.bytes);
        let mut visited = self.entries.len();
        for (place, entry) in self.entries.iter().enumerate() {
            let meets = |piece: Piece| entry.piece.start < piece.end && piece.start < entry.piece.end;
            if !(meets(first) || meets(second)) {
                continue;
            }
            if entry.address >= lowest.saturating_add(block.bytes) {
                visited = place;
                break;
            }
            if entry.top > lowest {
                lowest = self.borders.lift(entry.top, block.bytes);
            }
        }
        self.visits += visited as u64;
        lowest
    }

    /// Puts the pending entries in their places: from the back, so that each entry moves at most once.
    fn merge(&mut self) {
        let Some(&last) = self.pending.last() else { return };
        self.pending.sort_unstable_by_key(|entry| entry.address);
        let mut from = self.entries.len();
        self.entries.resize(from + self.pending.len(), last);
        let mut to = self.entries.len();
        while let Some(entry) = self.pending.last() {
            to -= 1;
            if from > 0 && self.entries[from - 1].address > entry.address {
                from -= 1;
                self.entries[to] = self.entries[from];
            } else {
                self.entries[to] = *entry;
                self.pending.pop();
            }
        }
    }
}

struct Search<'a> {
    blocks: &'a [Block],
    ground: Ground,
    neighbours: Neighbours,
    visits: u64,
    best: Option<Packed>,
    /// The order that gave `best`.
    order: Vec<u32>,
}

impl Search<'_> {
    /// The smallest arena so far.
    fn arena(&self) -> u64 {
        self.best.as_ref().map_or(u64::MAX, |best| best.arena)
    }

    /// Places in `order`; keeps the result if its arena is smaller than the best, else gives up and returns the place in the order of the block that
    /// reached the best arena.
    fn attempt(&mut self, order: &[u32]) -> Option<usize> {
        let mut placing = Placing {
            blocks: self.blocks,
            base: self.ground.base,
            borders: self.ground.borders,
            addresses: self.ground.addresses.clone(),
            entries: self.ground.entries.clone(),
            pending: vec![],
            taken: vec![],
            visits: 0,
        };
        let mut arena = self.ground.top;
        let mut broke_at = None;
        for (place, &index) in order.iter().enumerate() {
            let address = placing.lowest(index, &self.neighbours);
            arena = arena.max(address.saturating_add(self.blocks[index as usize].bytes));
            if self.best.as_ref().is_some_and(|best| arena >= best.arena) {
                broke_at = Some(place);
                break;
            }
            placing.place(index, address);
        }
        self.visits += placing.visits;
        if broke_at.is_none() {
            self.best = Some(Packed { addresses: placing.addresses, arena });
            self.order = order.to_vec();
        }
        broke_at
    }

    /// Moves the block that breaks the best arena forward, again and again.
    fn improve(&mut self, goal: u64, n_rounds: usize) {
        let mut order = self.order.clone();
        for jump in JUMPS.into_iter().cycle().take(n_rounds) {
            if self.arena() <= goal || self.visits > MOST_VISITS {
                return;
            }
            match self.attempt(&order) {
                Some(0) => return,
                Some(place) => order[place * jump / 4..=place].rotate_right(1),
                // Better: go on from here.
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks drawn from an LCG: most short, some circular.
    fn random_blocks(seed: u64, n_blocks: u32, n_positions: u32) -> Vec<Block> {
        let mut state = seed;
        let mut below = move |n: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % n
        };
        (0..n_blocks)
            .map(|_| {
                let start = below(n_positions - 1);
                let longest = if below(4) == 0 { n_positions } else { 8 };
                let end = (start + 1 + below(longest)).min(n_positions);
                let is_circular = below(20) == 0 && start > 0;
                let pieces = if is_circular {
                    [Piece { start, end: n_positions }, Piece { start: 0, end: below(start) }]
                } else {
                    [Piece { start, end }, Piece::default()]
                };
                Block { bytes: 1 + u64::from(below(50)), pieces, fixed: None }
            })
            .collect()
    }

    fn assert_apart(blocks: &[Block], packed: &Packed) {
        for (first, a) in blocks.iter().enumerate() {
            assert!(packed.addresses[first] + a.bytes <= packed.arena);
            for (second, b) in blocks.iter().enumerate().skip(first + 1) {
                let meet = a.pieces.iter().any(|p| b.pieces.iter().any(|q| p.start.max(q.start) < p.end.min(q.end)));
                let (at, other) = (packed.addresses[first], packed.addresses[second]);
                assert!(
                    !meet || at + a.bytes <= other || other + b.bytes <= at,
                    "{a:?} at {at} meets {b:?} at {other}"
                );
            }
        }
    }

    /// Blocks of memory from the largest interval up.
    const BLOCKS: [Borders; 4] = [Borders::NONE, Borders::every(50), Borders::every(64), Borders::every(150)];

    fn assert_in_blocks(blocks: &[Block], packed: &Packed, borders: Borders) {
        assert_apart(blocks, packed);
        for (block, &at) in blocks.iter().zip(&packed.addresses) {
            assert_eq!(borders.lift(at, block.bytes), at, "{block:?} at {at} crosses a border of {borders:?}");
        }
    }

    #[test]
    fn no_placer_crosses_a_border() {
        for (seed, borders) in (0..5).flat_map(|seed| BLOCKS.map(|borders| (seed, borders))) {
            let mut blocks = random_blocks(seed, 90, 50);
            // Some are there for the whole step.
            for block in blocks.iter_mut().step_by(9) {
                block.pieces = [Piece { start: 0, end: 50 }, Piece::default()];
            }
            let bound = bound(&blocks, 50);
            let effort = Effort::device(Bytes::MAX);
            let ground = || Ground::new(&blocks, 50, borders).unwrap();
            let up = pack_up(&blocks, &ground(), 50, bound, effort.quick());
            let around = pack_around(&blocks, ground(), 50, bound, effort);
            let all = [effort.quick(), effort].map(|effort| pack(&blocks, 50, effort, borders).unwrap());
            for packed in [&up, &around].into_iter().chain(&all) {
                assert_in_blocks(&blocks, packed, borders);
                assert!(packed.arena <= bound + bound / 4, "{} for {bound} with {borders:?}", packed.arena);
            }
            let again = pack(&blocks, 50, effort, borders).unwrap();
            assert_eq!(all[1].addresses, again.addresses);
        }
    }

    #[test]
    fn one_block_that_holds_everything_changes_nothing() {
        for seed in 0..20 {
            let blocks = random_blocks(seed, 90, 50);
            for effort in [Effort::device(Bytes::MAX), Effort::device(Bytes::MAX).quick()] {
                let in_one = pack(&blocks, 50, effort, Borders::NONE).unwrap();
                let in_blocks = pack(&blocks, 50, effort, Borders::every(in_one.arena)).unwrap();
                assert_eq!(in_one.addresses, in_blocks.addresses);
                let tighter = pack(&blocks, 50, effort, Borders::every(in_one.arena - 1)).unwrap();
                assert_in_blocks(&blocks, &tighter, Borders::every(in_one.arena - 1));
            }
        }
    }

    /// ```text
    /// address 0    10   20        given: 10 bytes at 2 for the whole step
    ///         ··■■■■■■■■│■■·      8 bytes fit neither below it nor between it and the border at 20
    /// ```
    #[test]
    fn what_is_placed_around_given_blocks_keeps_clear_of_borders() {
        let whole = |bytes, fixed| Block { bytes, pieces: [Piece { start: 0, end: 4 }, Piece::default()], fixed };
        let blocks = [whole(10, Some(2)), whole(9, None), whole(2, None), whole(8, None)];
        for most_neighbours in [0, MOST_NEIGHBOURS] {
            let effort = Effort { most_neighbours, ..Effort::device(Bytes::MAX) };
            let packed = pack(&blocks, 4, effort, Borders::every(20)).unwrap();
            assert_eq!(packed.addresses, [2, 20, 0, 12]);
            assert_eq!(packed.arena, 29);
        }
    }

    #[test]
    fn neighbours_and_scans_give_the_same_layout() {
        for (seed, borders) in (0..30).flat_map(|seed| BLOCKS.map(|borders| (seed, borders))) {
            let blocks = random_blocks(seed, 120, 80);
            let with = |most_neighbours| {
                let effort = Effort { most_neighbours, n_rounds: 5, ..Effort::device(Bytes::MAX) };
                pack_around(&blocks, Ground::new(&blocks, 80, borders).unwrap(), 80, 0, effort)
            };
            let (scan, mixed, neighbours) = (with(0), with(20), with(usize::MAX - 1));
            assert_in_blocks(&blocks, &scan, borders);
            assert_eq!(scan.addresses, mixed.addresses);
            assert_eq!(scan.addresses, neighbours.addresses);
        }
    }

    #[test]
    fn backtracking_packs_what_ranks_do_not() {
        let (mut n_packed, mut n_better) = (0, 0);
        for seed in 0..30 {
            let blocks = random_blocks(seed, 60, 40);
            let bound = profile(&blocks, 40).into_iter().max().unwrap();
            let with = |effort: Effort| pack(&blocks, 40, effort, Borders::NONE).unwrap();
            let (rough, fine) = (with(Effort::device(Bytes(bound)).quick()), with(Effort::device(Bytes(bound))));
            assert_apart(&blocks, &fine);
            n_packed += usize::from(fine.arena == bound);
            n_better += usize::from(fine.arena < rough.arena);
        }
        assert!(n_packed > 25 && n_better > 0, "{n_packed} packed, {n_better} better");
    }

    #[test]
    fn improvement_helps_and_stops_at_the_limit() {
        let blocks = random_blocks(7, 200, 60);
        let with = |n_rounds, limit| {
            let effort = Effort { n_rounds, ..Effort::device(Bytes(limit)) };
            pack(&blocks, 60, effort, Borders::NONE).unwrap()
        };
        let (rough, fine) = (with(0, u64::MAX), with(400, u64::MAX));
        assert_apart(&blocks, &fine);
        assert!(fine.arena < rough.arena, "{} and {}", fine.arena, rough.arena);
        let bound = profile(&blocks, 60).into_iter().max().unwrap();
        assert!(fine.arena >= bound && fine.arena <= bound + bound / 10, "{} for {bound}", fine.arena);
        let enough = with(400, rough.arena);
        assert!(enough.arena <= rough.arena && enough.arena >= fine.arena);
    }

    #[test]
    fn given_blocks_stay_and_collisions_are_found() {
        let whole = |bytes, fixed| Block { bytes, pieces: [Piece { start: 0, end: 4 }, Piece::default()], fixed };
        let blocks = [whole(10, Some(20)), whole(10, Some(0)), whole(5, None), whole(20, None)];
        let packed = pack(&blocks, 4, Effort::device(Bytes::MAX), Borders::NONE).unwrap();
        assert_eq!(packed.addresses, [20, 0, 10, 30]);
        assert_eq!(packed.arena, 50);
        let colliding = [whole(10, Some(5)), whole(10, Some(0))];
        assert_eq!(pack(&colliding, 4, Effort::device(Bytes::MAX), Borders::NONE).unwrap_err(), (1, 0));
    }
}
