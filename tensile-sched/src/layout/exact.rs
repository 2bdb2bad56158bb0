//! Packing by search with backtracking, for few blocks that hardly fit.
//!
//! Any packing can be pushed down until every block rests on another or on the ground. Taken by ascending address, each block then lies on the highest of those before it that
//! share a position with it. So it suffices to choose an order in which addresses never fall:
//!
//! ```text
//! address                     placed so far, the last at address x. What is still to come lies at x or above, each block on the skyline below it:
//!   ▲            ┌───┐        c at 3, d at 5. Then d's positions need 5 + the bytes of all that is to come there. Where that is more than there is
//! x │ ┌─────┐    │   │        room, the choices so far were wrong.
//!   │ │     │┌───┴───┤
//!   └─┴─────┴┴───────┴► position
//! ```
//!
//! That this form suffices, and that bounds per position prune well, is known from Moffitt 2023, "MiniMalloc: a lightweight memory allocator for hardware-accelerated machine learning".
//! Where memory comes in blocks, the highest of those before it may leave too little room below the next border; a block then rests on that border. All else stays as it is, because lifting never
//! lets addresses fall.
//!
//! The search goes down to the lowest address first, and among equal ones to the block that ranks highest. It starts again with other ranks when it has been lost for long; blocks
//! that were in the way of a bound rank higher from then on.

use super::blocks::Block;
use super::skyline::Rank;
use crate::borders::Borders;

/// Nodes between restarts. Found by trial.
const STRETCH: u64 = 500;
/// What a block that was in the way gains in rank each time, in parts of its rank. Found by trial.
const GAIN: f64 = 0.03;

/// A block to place: one or two ranges of columns.
#[derive(Clone, Copy, Debug)]
struct Item {
    bytes: u64,
    columns: [(u32, u32); 2],
}

/// Blocks to be packed into ever the same room.
#[derive(Debug)]
pub(super) struct Exact {
    items: Vec<Item>,
    /// Lifetimes in positions.
    lengths: Vec<u32>,
    /// For each item those it shares a column with.
    meets: Vec<Vec<u32>>,
    base: u64,
    borders: Borders,
    room: u64,
    /// Nodes of the search tree so far, and at which count the search restarts.
    n_nodes: u64,
    stop_at: u64,
    weights: Vec<f64>,
    /// Items by descending rank, and the place of each among them.
    by_rank: Vec<u32>,
    place: Vec<u32>,
    /// Height of the skyline where items that are not placed lie, lifted to the border where they would cross one; of placed ones their address.
    address: Vec<u64>,
    is_placed: Vec<bool>,
    n_left: usize,
    /// For each column, the bytes still to come.
    to_come: Vec<u64>,
    /// Reused: the lowest that anything to come can lie in each column.
    lowest: Vec<u64>,
    /// Candidates of all nodes on the path: address, place by rank.
    candidates: Vec<(u64, u32)>,
    /// Skylines that placed items have covered: item, height before.
    covered: Vec<(u32, u64)>,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Packed,
    /// There is no packing below this node.
    Nowhere,
    /// The nodes are used up.
    Tired,
}

impl Exact {
    /// Takes the blocks with the given indices; each lives for some position and fits between two borders. They are to lie above `base`.
    pub(super) fn new(blocks: &[Block], indices: &[u32], n_positions: u32, base: u64, borders: Borders) -> Self {
        let pieces = |&index: &u32| blocks[index as usize].pieces.into_iter().filter(|piece| !piece.is_empty());
        // A column for each greatest set of blocks that live together: between a start and the next end.
        let mut starts = vec![false; n_positions as usize + 1];
        let mut ends = vec![false; n_positions as usize + 1];
        for piece in indices.iter().flat_map(pieces) {
            starts[piece.start as usize] = true;
            ends[piece.end as usize] = true;
        }
        // For each position, how many columns are before it.
        let mut before = Vec::with_capacity(n_positions as usize + 1);
        let (mut n_columns, mut has_started) = (0u32, false);
        for position in 0..=n_positions as usize {
            if ends[position] && has_started {
                n_columns += 1;
                has_started = false;
            }
            has_started |= starts[position];
            before.push(n_columns);
        }
        let item = |index: &u32| {
            let mut columns = [(0, 0); 2];
            for (range, piece) in columns.iter_mut().zip(pieces(index)) {
                *range = (before[piece.start as usize], before[piece.end as usize]);
            }
            Item { bytes: blocks[*index as usize].bytes, columns }
        };
        let items: Vec<Item> = indices.iter().map(item).collect();
        let lengths = indices.iter().map(|index| pieces(index).map(|piece| piece.end - piece.start).sum()).collect();
        let n_items = items.len() as u32;
        let share =
            |a: &Item, b: &Item| a.columns.iter().any(|p| b.columns.iter().any(|q| p.0.max(q.0) < p.1.min(q.1)));
        let meets = (0..n_items)
            .map(|a| (0..n_items).filter(|&b| a != b && share(&items[a as usize], &items[b as usize])).collect())
            .collect();
        Self {
            lengths,
            meets,
            base,
            borders,
            room: 0,
            n_nodes: 0,
            stop_at: 0,
            weights: vec![1.0; items.len()],
            by_rank: vec![],
            place: vec![0; items.len()],
            address: vec![],
            is_placed: vec![],
            n_left: 0,
            to_come: vec![0; n_columns as usize],
            lowest: vec![0; n_columns as usize],
            candidates: vec![],
            covered: vec![],
            items,
        }
    }

    /// Addresses of all blocks that end at `room` or below, if the search meets such a packing within `most_nodes`.
    pub(super) fn pack(&mut self, room: u64, most_nodes: u64) -> Option<&[u64]> {
        self.room = room;
        self.n_nodes = 0;
        for rank in Rank::ALL.into_iter().cycle() {
            self.stop_at = (self.n_nodes + STRETCH).min(most_nodes);
            self.restart(rank);
            match self.descend(self.base, None) {
                End::Packed => return Some(&self.address),
                End::Nowhere => return None,
                End::Tired if self.n_nodes >= most_nodes => return None,
                End::Tired => {}
            }
        }
        None
    }

    fn restart(&mut self, rank: Rank) {
        let ranks: Vec<f64> = self
            .items
            .iter()
            .zip(&self.lengths)
            .zip(&self.weights)
            .map(|((item, &length), weight)| rank.of(item.bytes, length) * weight)
            .collect();
        self.by_rank = (0..self.items.len() as u32).collect();
        self.by_rank.sort_by(|&a, &b| ranks[b as usize].total_cmp(&ranks[a as usize]));
        for (place, &item) in self.by_rank.iter().enumerate() {
            self.place[item as usize] = place as u32;
        }
        self.address = self.items.iter().map(|item| self.borders.lift(self.base, item.bytes)).collect();
        self.is_placed = vec![false; self.items.len()];
        self.n_left = self.items.len();
        self.to_come.fill(0);
        for item in &self.items {
            for (from, to) in item.columns {
                self.to_come[from as usize..to as usize].iter_mut().for_each(|bytes| *bytes += item.bytes);
            }
        }
        self.candidates.clear();
        self.covered.clear();
    }

    /// Places what is left at `floor` or above; at `floor` only items behind `last` by rank.
    fn descend(&mut self, floor: u64, last: Option<u32>) -> End {
        if self.n_left == 0 {
            return End::Packed;
        }
        if self.n_nodes >= self.stop_at {
            return End::Tired;
        }
        self.n_nodes += 1;
        let Some(ceiling) = self.ceiling(floor, last) else { return End::Nowhere };
        let begin = self.candidates.len();
        for place in 0..self.by_rank.len() as u32 {
            let item = self.by_rank[place as usize] as usize;
            let address = self.address[item];
            if !self.is_placed[item] && address < ceiling && is_open(address, place, floor, last) {
                self.candidates.push((address, place));
            }
        }
        self.candidates[begin..].sort_unstable();
        for next in begin..self.candidates.len() {
            let (address, place) = self.candidates[next];
            let n_covered = self.covered.len();
            let item = self.by_rank[place as usize];
            self.put(item);
            let end = self.descend(address, Some(place));
            if end != End::Nowhere {
                return end;
            }
            self.take_back(item, n_covered);
        }
        self.candidates.truncate(begin);
        End::Nowhere
    }

    /// The next item must lie below this; none if what is left cannot be placed.
    fn ceiling(&mut self, floor: u64, last: Option<u32>) -> Option<u64> {
        self.lowest.fill(u64::MAX);
        let mut ceiling = u64::MAX;
        for (index, item) in self.items.iter().enumerate() {
            if self.is_placed[index] {
                continue;
            }
            let mut address = self.address[index];
            if is_open(address, self.place[index], floor, last) {
                // Whatever lies at its top or above could as well come after it.
                ceiling = ceiling.min(address + item.bytes);
            } else {
                // Its turn has passed, so something to come must lift it.
                let lifts = self.meets[index].iter().map(|&other| other as usize);
                let lifts = lifts.filter(|&other| !self.is_placed[other]);
                address = lifts.map(|other| self.address[other].max(floor) + self.items[other].bytes).min()?;
            }
            for (from, to) in item.columns {
                for lowest in &mut self.lowest[from as usize..to as usize] {
                    *lowest = (*lowest).min(address);
                }
            }
        }
        for (column, (&lowest, &bytes)) in self.lowest.iter().zip(&self.to_come).enumerate() {
            if bytes == 0 {
                continue;
            }
            let highest = self.room.checked_sub(bytes).filter(|&highest| lowest <= highest);
            let Some(highest) = highest else {
                self.blame(column as u32);
                return None;
            };
            ceiling = ceiling.min(highest + 1);
        }
        Some(ceiling)
    }

    /// Raises the rank of what was to come in a column that is too full.
    fn blame(&mut self, column: u32) {
        for (index, item) in self.items.iter().enumerate() {
            if !self.is_placed[index] && item.columns.iter().any(|&(from, to)| from <= column && column < to) {
                self.weights[index] += GAIN;
            }
        }
    }

    fn put(&mut self, item: u32) {
        let index = item as usize;
        let Item { bytes, columns } = self.items[index];
        self.is_placed[index] = true;
        self.n_left -= 1;
        for (from, to) in columns {
            self.to_come[from as usize..to as usize].iter_mut().for_each(|left| *left -= bytes);
        }
        let top = self.address[index] + bytes;
        for &other in &self.meets[index] {
            let height = &mut self.address[other as usize];
            if !self.is_placed[other as usize] && *height < top {
                self.covered.push((other, *height));
                *height = self.borders.lift(top, self.items[other as usize].bytes);
            }
        }
    }

    fn take_back(&mut self, item: u32, n_covered: usize) {
        let Item { bytes, columns } = self.items[item as usize];
        for (other, height) in self.covered.drain(n_covered..) {
            self.address[other as usize] = height;
        }
        for (from, to) in columns {
            self.to_come[from as usize..to as usize].iter_mut().for_each(|left| *left += bytes);
        }
        self.is_placed[item as usize] = false;
        self.n_left += 1;
    }
}

/// Whether the turn of an item at `address` has not passed yet.
fn is_open(address: u64, place: u32, floor: u64, last: Option<u32>) -> bool {
    address > floor || address == floor && last.is_none_or(|last| place > last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::blocks::Piece;

    /// The smallest arena over all orders in which blocks are put on each other, and on borders.
    fn smallest(
        blocks: &[Block],
        borders: Borders,
        meets: &dyn Fn(&Block, &Block) -> bool,
        placed: &mut Vec<(usize, u64)>,
    ) -> u64 {
        let top = |&(index, address): &(usize, u64)| address + blocks[index].bytes;
        if placed.len() == blocks.len() {
            return placed.iter().map(top).max().unwrap_or(0);
        }
        let mut least = u64::MAX;
        for index in 0..blocks.len() {
            if placed.iter().all(|&(other, _)| other != index) {
                let below = placed.iter().filter(|&&(other, _)| meets(&blocks[index], &blocks[other]));
                let address = borders.lift(below.map(top).max().unwrap_or(0), blocks[index].bytes);
                placed.push((index, address));
                least = least.min(smallest(blocks, borders, meets, placed));
                placed.pop();
            }
        }
        least
    }

    #[test]
    fn it_packs_exactly_what_can_be_packed() {
        let mut state = 11u64;
        let mut below = move |n: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % n
        };
        let meets = |a: &Block, b: &Block| {
            a.pieces.iter().any(|p| b.pieces.iter().any(|q| p.start.max(q.start) < p.end.min(q.end)))
        };
        let (mut n_above_peak, mut n_above_one) = (0, 0);
        for round in 0..300 {
            let n_positions = 9;
            let blocks: Vec<Block> = (0..6)
                .map(|_| {
                    let start = below(n_positions - 1);
                    let end = start + 1 + below(n_positions - start);
                    let is_circular = below(4) == 0 && start > 0;
                    let pieces = if is_circular {
                        [Piece { start, end: n_positions }, Piece { start: 0, end: below(start + 1) }]
                    } else {
                        [Piece { start, end }, Piece::default()]
                    };
                    Block { bytes: 1 + u64::from(below(6)), pieces, fixed: None }
                })
                .collect();
            let indices: Vec<u32> = (0..6).collect();
            let in_one = smallest(&blocks, Borders::NONE, &meets, &mut vec![]);
            let borders = [Borders::NONE, Borders::every(6), Borders::every(7), Borders::every(9)][round % 4];
            let least = smallest(&blocks, borders, &meets, &mut vec![]);
            n_above_one += usize::from(least > in_one);
            let mut exact = Exact::new(&blocks, &indices, n_positions, 0, borders);
            assert!(exact.pack(least - 1, 1_000_000).is_none());
            let found = exact.pack(least, 1_000_000).expect("there is a packing").to_vec();
            for (a, &at) in blocks.iter().zip(&found) {
                assert!(at + a.bytes <= least && borders.lift(at, a.bytes) == at);
            }
            for a in 0..blocks.len() {
                for b in 0..a {
                    let apart = found[a] + blocks[a].bytes <= found[b] || found[b] + blocks[b].bytes <= found[a];
                    assert!(apart || !meets(&blocks[a], &blocks[b]), "{blocks:?} at {found:?}");
                }
            }
            let live = |at: u32| {
                let there = |block: &&Block| block.pieces.iter().any(|piece| piece.start <= at && at < piece.end);
                blocks.iter().filter(there).map(|block| block.bytes).sum::<u64>()
            };
            n_above_peak += usize::from((0..n_positions).map(live).max() < Some(in_one));
        }
        assert!(n_above_one > 20, "{n_above_one} need more for their borders");
        assert!(n_above_peak > 3, "{n_above_peak} need more than their peak");
    }
}
