//! Packing from the bottom up: the lowest valley of the skyline is filled with the block that ranks highest among those that fit between its walls.
//!
//! ```text
//! address                              the valley between positions 2 and 5 is the lowest: of the blocks that live within it, the one that
//!   ▲      ┌────┐                      ranks highest goes there; where none does, the valley is raised to its lower wall
//!   │ ┌────┘    └──┐        ┌────
//!   │ │            └────────┘
//!   └─┴────────────────────────► position; the end of the step is followed by its start
//!     0            2        5
//! ```
//!
//! Where memory comes in blocks, a block of bytes fits into a valley only if it ends at the next border or below, and a valley into which nothing fits is raised to that border at most. What is there for
//! the whole step then goes first, so that blocks are filled from their bottoms.
//!
//! Nothing is ever placed below anything, so bytes are wasted only where valleys are raised. Best-fit by lifetime of Sekiyama et al. 2018, "Profile-guided memory optimization for deep
//! neural networks", is this with the longest block first; here ranks also weigh sizes, and the step is a circle.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::blocks::Block;
use crate::borders::Borders;

/// What blocks rank by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rank {
    /// Lifetime × square root of the size.
    Balanced,
    /// Lifetime × size.
    Area,
    /// Lifetime, then size.
    Lifetime,
    /// Square root of the lifetime × size.
    Bulk,
    /// Size, then lifetime.
    Size,
}

impl Rank {
    pub(super) const ALL: [Rank; 5] = [Rank::Balanced, Rank::Area, Rank::Lifetime, Rank::Bulk, Rank::Size];

    /// Above zero.
    pub(super) fn of(self, bytes: u64, length: u32) -> f64 {
        let (bytes, length) = (bytes as f64, f64::from(length));
        // The last terms break ties: sizes are at most 2^50 bytes, lengths at most 2^33 positions.
        let rank = match self {
            Rank::Balanced => bytes.sqrt() * length,
            Rank::Area => bytes * length,
            Rank::Lifetime => length + bytes * 1e-16,
            Rank::Bulk => bytes * length.sqrt(),
            Rank::Size => bytes + length * 1e-10,
        };
        rank.max(f64::MIN_POSITIVE)
    }
}

/// Factor by which what is there for the whole step ranks higher where memory comes in blocks: above all else, and far from infinity.
const WHOLE: f64 = 1e30;

/// A block to place: positions `start..end` of a circle, where `end` may lie beyond its end.
#[derive(Clone, Copy, Debug)]
struct Item {
    bytes: u64,
    start: u32,
    end: u32,
    /// Its index among all blocks.
    block: u32,
}

impl Item {
    fn len(self) -> u32 {
        self.end - self.start
    }
}

/// A stretch of the skyline: `len` positions from `start` on are taken up to `height`. A ring, by position.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    start: u32,
    len: u32,
    height: u64,
    before: u32,
    after: u32,
    is_there: bool,
}

/// Blocks to be packed again and again under changing ranks.
#[derive(Debug)]
pub(super) struct Skyline {
    n_positions: u32,
    borders: Borders,
    /// By start.
    items: Vec<Item>,
    /// For each position, how many items start before it.
    started: Vec<u32>,
    /// Ranks of items.
    ranks: Vec<f64>,
    unplaced: Unplaced,
    stretches: Vec<Stretch>,
    /// Stretches by height, the lowest on top; outdated entries included.
    lowest: BinaryHeap<(Reverse<u64>, Reverse<u32>)>,
    /// Tree nodes looked at.
    pub(super) visits: u64,
}

impl Skyline {
    /// Takes the blocks with the given indices; each lives for some position and fits between two borders.
    pub(super) fn new(blocks: &[Block], indices: &[u32], n_positions: u32, borders: Borders) -> Self {
        let item = |&index: &u32| {
            let Block { bytes, pieces: [back, front], .. } = blocks[index as usize];
            let wraps = if front.is_empty() { 0 } else { front.end };
            let end = if wraps > 0 { n_positions + wraps } else { back.end };
            Item { bytes, start: back.start, end, block: index }
        };
        let mut items: Vec<Item> = indices.iter().map(item).collect();
        items.sort_unstable_by_key(|item| (item.start, item.block));
        let unplaced = Unplaced::of(&items);
        let mut started = vec![0; n_positions as usize + 1];
        for item in &items {
            started[item.start as usize + 1] += 1;
        }
        for position in 1..started.len() {
            started[position] += started[position - 1];
        }
        Self {
            n_positions,
            borders,
            started,
            ranks: vec![0.0; items.len()],
            items,
            unplaced,
            stretches: vec![],
            lowest: BinaryHeap::new(),
            visits: 0,
        }
    }

    pub(super) fn rank_by(&mut self, rank: Rank) {
        let whole = if self.borders == Borders::NONE { 1.0 } else { WHOLE };
        for (item, own) in self.items.iter().zip(&mut self.ranks) {
            let factor = if item.len() == self.n_positions { whole } else { 1.0 };
            *own = rank.of(item.bytes, item.len()) * factor;
        }
    }

    /// Raises the rank of an item.
    pub(super) fn promote(&mut self, item: u32, factor: f64) {
        self.ranks[item as usize] *= factor;
    }

    pub(super) fn ranks(&self) -> Vec<f64> {
        self.ranks.clone()
    }

    pub(super) fn set_ranks(&mut self, ranks: Vec<f64>) {
        self.ranks = ranks;
    }

    /// Places all blocks above `base`, and writes their addresses. Returns the highest end, and the item that reaches it.
    pub(super) fn pack(&mut self, base: u64, addresses: &mut [u64]) -> (u64, u32) {
        self.unplaced.reset(&self.ranks);
        self.stretches.clear();
        self.lowest.clear();
        let whole = Stretch { start: 0, len: self.n_positions, height: base, before: 0, after: 0, is_there: true };
        self.stretches.push(whole);
        self.lowest.push((Reverse(base), Reverse(0)));
        let (mut arena, mut highest) = (base, 0);
        let mut n_left = self.items.len();
        while n_left > 0 {
            let Some((Reverse(height), Reverse(id))) = self.lowest.pop() else { break };
            let stretch = self.stretches[id as usize];
            if !stretch.is_there || stretch.height != height {
                continue;
            }
            let Some(place) = self.best_within(stretch) else {
                self.raise(id);
                continue;
            };
            self.unplaced.remove(place);
            n_left -= 1;
            let item = self.items[place as usize];
            addresses[item.block as usize] = height;
            let top = height + item.bytes;
            if top > arena {
                (arena, highest) = (top, place);
            }
            self.fill(id, item, top);
        }
        (arena, highest)
    }

    /// The highest-ranking unplaced item that lives within a stretch and fits below the next border.
    fn best_within(&mut self, stretch: Stretch) -> Option<u32> {
        let from = |start: u32| self.started[start.min(self.n_positions) as usize];
        let end = stretch.start + stretch.len;
        let n = self.n_positions;
        let room = self.borders.room(stretch.height);
        let mut query = Query { best: 0, found: None, visits: 0 };
        if stretch.len == n {
            query.search(&self.unplaced, 0, self.items.len() as u32, u32::MAX, room);
        } else {
            query.search(&self.unplaced, from(stretch.start), from(end), end, room);
            if end > n {
                query.search(&self.unplaced, 0, from(end - n), end - n, room);
            }
        }
        self.visits += query.visits;
        query.found
    }

    /// Raises a stretch to its lower neighbour, and joins them; to the next border, if that is lower or there is no neighbour.
    fn raise(&mut self, id: u32) {
        let Stretch { before, after, height, .. } = self.stretches[id as usize];
        let border = height.saturating_add(self.borders.room(height));
        let wall = self.stretches[before as usize].height.min(self.stretches[after as usize].height);
        let height = if before == id { border } else { wall.min(border) };
        self.stretches[id as usize].height = height;
        self.join(id);
        self.lowest.push((Reverse(height), Reverse(id)));
    }

    /// Puts an item that lives within a stretch on it.
    fn fill(&mut self, id: u32, item: Item, top: u64) {
        let n = self.n_positions;
        let old = self.stretches[id as usize];
        let (start, len) = (item.start % n, item.len().min(n));
        let offset = if old.len == n { 0 } else { (start + n - old.start) % n };
        let rest = old.len - offset - len;
        self.stretches[id as usize] = Stretch { start, len, height: top, ..old };
        if offset > 0 {
            self.insert(Stretch { len: offset, before: old.before, after: id, ..old });
        }
        if rest > 0 {
            let after = self.stretches[id as usize].after;
            self.insert(Stretch { start: (start + len) % n, len: rest, before: id, after, ..old });
        }
        self.join(id);
        self.lowest.push((Reverse(top), Reverse(id)));
    }

    /// Adds a stretch between two.
    fn insert(&mut self, stretch: Stretch) {
        let id = self.stretches.len() as u32;
        self.stretches.push(stretch);
        self.stretches[stretch.before as usize].after = id;
        self.stretches[stretch.after as usize].before = id;
        self.lowest.push((Reverse(stretch.height), Reverse(id)));
    }

    /// Takes the neighbours of equal height into a stretch.
    fn join(&mut self, id: u32) {
        loop {
            let Stretch { before, after, height, .. } = self.stretches[id as usize];
            let is_equal = |other: u32| other != id && self.stretches[other as usize].height == height;
            let other = if is_equal(before) {
                before
            } else if is_equal(after) {
                after
            } else {
                return;
            };
            let gone = self.stretches[other as usize];
            self.stretches[other as usize].is_there = false;
            let own = &mut self.stretches[id as usize];
            own.len += gone.len;
            if other == before {
                own.start = gone.start;
                own.before = gone.before;
                self.stretches[gone.before as usize].after = id;
            } else {
                own.after = gone.after;
                self.stretches[gone.after as usize].before = id;
            }
        }
    }
}

/// A tournament tree over the items by start: the highest rank, the earliest end and the least size below each node.
#[derive(Debug)]
struct Unplaced {
    n_leaves: usize,
    nodes: Vec<Node>,
    ends: Vec<u32>,
    bytes: Vec<u64>,
    /// Sizes in nodes are bytes without so many of the last bits, so that they take 32.
    shift: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Bits of the rank, which order as positive numbers do; 0 for none.
    rank: u64,
    end: u32,
    /// Rounded down.
    size: u32,
}

const EMPTY: Node = Node { rank: 0, end: u32::MAX, size: u32::MAX };

impl Node {
    fn over(a: Node, b: Node) -> Node {
        Node { rank: a.rank.max(b.rank), end: a.end.min(b.end), size: a.size.min(b.size) }
    }
}

impl Unplaced {
    fn of(items: &[Item]) -> Self {
        let n_leaves = items.len().next_power_of_two();
        let largest = items.iter().map(|item| item.bytes).max().unwrap_or(0);
        Self {
            n_leaves,
            nodes: vec![EMPTY; 2 * n_leaves],
            ends: items.iter().map(|item| item.end).collect(),
            bytes: items.iter().map(|item| item.bytes).collect(),
            shift: (u64::BITS - largest.leading_zeros()).saturating_sub(u32::BITS),
        }
    }

    /// Bytes as nodes have them.
    fn size(&self, bytes: u64) -> u32 {
        u32::try_from(bytes >> self.shift).unwrap_or(u32::MAX)
    }

    fn reset(&mut self, ranks: &[f64]) {
        for (place, (&end, rank)) in self.ends.iter().zip(ranks).enumerate() {
            let size = self.size(self.bytes[place]);
            self.nodes[self.n_leaves + place] = Node { rank: rank.to_bits(), end, size };
        }
        for node in (1..self.n_leaves).rev() {
            self.nodes[node] = Node::over(self.nodes[2 * node], self.nodes[2 * node + 1]);
        }
    }

    fn remove(&mut self, place: u32) {
        let mut node = self.n_leaves + place as usize;
        self.nodes[node] = EMPTY;
        while node > 1 {
            node /= 2;
            self.nodes[node] = Node::over(self.nodes[2 * node], self.nodes[2 * node + 1]);
        }
    }
}

/// What a query asks for.
struct Bounds {
    from: u32,
    to: u32,
    end: u32,
    room: u64,
    /// The room as nodes have it.
    size: u32,
}

/// Looks for the item of the highest rank; of the first among equals.
struct Query {
    best: u64,
    found: Option<u32>,
    visits: u64,
}

impl Query {
    /// Among the items at places `from..to`, those that end at `end` or before and take at most `room` bytes.
    fn search(&mut self, unplaced: &Unplaced, from: u32, to: u32, end: u32, room: u64) {
        if from < to {
            let bounds = Bounds { from, to, end, room, size: unplaced.size(room) };
            self.below(unplaced, 1, 0, unplaced.n_leaves as u32, &bounds);
        }
    }

    /// The same below a node that stands for the places `low..high`, some of which are within the bounds.
    fn below(&mut self, unplaced: &Unplaced, node: usize, low: u32, high: u32, bounds: &Bounds) {
        self.visits += 1;
        let &Bounds { from, to, end, room, size: most } = bounds;
        let Node { rank, end: earliest, size } = unplaced.nodes[node];
        if earliest > end || rank <= self.best || size > most {
            return;
        }
        if high - low == 1 {
            if unplaced.bytes[low as usize] <= room {
                (self.best, self.found) = (rank, Some(low));
            }
            return;
        }
        let middle = low.midpoint(high);
        let (left, right) = (2 * node, 2 * node + 1);
        let (has_left, has_right) = (from < middle, middle < to);
        let right_first = !has_left || unplaced.nodes[left].rank < unplaced.nodes[right].rank;
        if has_right && right_first {
            self.below(unplaced, right, middle, high, bounds);
        }
        if has_left {
            self.below(unplaced, left, low, middle, bounds);
        }
        if has_right && !right_first {
            self.below(unplaced, right, middle, high, bounds);
        }
    }
}
