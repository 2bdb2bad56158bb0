//! Packing: an address for each block, so that blocks that live at once do not overlap and the arena is small.
//!
//! This is dynamic storage allocation with known lifetimes, which is NP-hard; first-fit in a well-chosen order is near the lower bound on training steps. Several orders are
//! tried, then the best one is improved by moving the block that broke the target forward ("squeaky wheel"), until the arena is good enough or the work is used up.

use super::blocks::{Block, Piece};
use crate::id::Bytes;

/// Array entries looked at before the search for something better ends; about 0.1 s.
const MOST_VISITS: u64 = 60_000_000;
/// Most rounds of improvement.
const MOST_ROUNDS: usize = 60;

/// How good is good enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Limit of the arena.
    limit: u64,
}

impl Effort {
    pub(super) fn within(limit: Bytes) -> Self {
        Self { limit: limit.0 }
    }
}

/// Addresses of all blocks.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) addresses: Vec<u64>,
    /// Highest end.
    pub(super) arena: u64,
}

/// Packs `blocks`, whose pieces lie within `0..n_positions`.
///
/// # Errors
/// The indices of two blocks whose given addresses collide.
pub(super) fn pack(blocks: &[Block], n_positions: u32, effort: Effort) -> Result<Packed, (usize, usize)> {
    let ground = Ground::new(blocks, n_positions)?;
    let bound = ground.bound(blocks, n_positions);
    // A budget below the lower bound cannot be met: any layout tells the caller so.
    let goal = if effort.limit < bound {
        u64::MAX
    } else if effort.limit == u64::MAX {
        bound
    } else {
        effort.limit
    };
    let mut search = Search { blocks, ground, visits: 0, best: None, order: vec![] };
    for rule in [Rule::Area, Rule::Size, Rule::Lifetime, Rule::PeakFirst, Rule::Start] {
        search.attempt(rule.order(blocks, &search.ground, n_positions));
        if search.arena() <= goal || search.visits > MOST_VISITS {
            break;
        }
    }
    search.improve(goal);
    Ok(search.best.expect("the first attempt has nothing to be compared with"))
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
    /// Addresses of blocks that never move; zero for the others.
    addresses: Vec<u64>,
    /// Given blocks that do not lie in the solid bottom, by address.
    entries: Vec<Entry>,
    /// Below this everything is taken for the whole step.
    base: u64,
    /// Highest end of what never moves.
    top: u64,
    /// Blocks to place, by index.
    free: Vec<u32>,
}

impl Ground {
    fn new(blocks: &[Block], n_positions: u32) -> Result<Self, (usize, usize)> {
        let mut addresses = vec![0; blocks.len()];
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
        let mut ground = Self { addresses: vec![], entries: vec![], base: 0, top: 0, free: vec![] };
        for &(address, index) in &given {
            let block = &blocks[index];
            addresses[index] = address;
            let top = address.saturating_add(block.bytes);
            ground.top = ground.top.max(top);
            if is_whole(block) && address == ground.base {
                ground.base = top;
            } else {
                insert(&mut ground.entries, address, block);
            }
        }
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.fixed.is_none()) {
            let is_absent = block.pieces.iter().all(|piece| piece.is_empty());
            if is_absent {
                // Gone into a circular block, or there for no position: any address will do.
            } else if is_whole(block) && given.is_empty() {
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

    /// No layout has a smaller arena.
    fn bound(&self, blocks: &[Block], n_positions: u32) -> u64 {
        profile(blocks, n_positions).into_iter().max().unwrap_or(0).max(self.top)
    }
}

fn insert(entries: &mut Vec<Entry>, address: u64, block: &Block) {
    for piece in block.pieces.into_iter().filter(|piece| !piece.is_empty()) {
        let at = entries.partition_point(|entry| entry.address <= address);
        entries.insert(at, Entry { address, top: address.saturating_add(block.bytes), piece });
    }
}

struct Search<'a> {
    blocks: &'a [Block],
    ground: Ground,
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
    fn attempt(&mut self, order: Vec<u32>) -> Option<usize> {
        let mut addresses = self.ground.addresses.clone();
        let mut entries = self.ground.entries.clone();
        entries.reserve(order.len());
        let mut arena = self.ground.top;
        for (place, &index) in order.iter().enumerate() {
            let block = &self.blocks[index as usize];
            let address = self.lowest(&entries, block);
            arena = arena.max(address.saturating_add(block.bytes));
            if self.best.as_ref().is_some_and(|best| arena >= best.arena) {
                return Some(place);
            }
            addresses[index as usize] = address;
            insert(&mut entries, address, block);
        }
        self.best = Some(Packed { addresses, arena });
        self.order = order;
        None
    }

    /// The lowest address where a block fits among `entries`.
    fn lowest(&mut self, entries: &[Entry], block: &Block) -> u64 {
        let [first, second] = block.pieces;
        let mut address = self.ground.base;
        let mut visited = entries.len();
        for (index, entry) in entries.iter().enumerate() {
            let meets = |piece: Piece| entry.piece.start < piece.end && piece.start < entry.piece.end;
            if !(meets(first) || meets(second)) {
                continue;
            }
            if entry.address >= address.saturating_add(block.bytes) {
                visited = index;
                break;
            }
            address = address.max(entry.top);
        }
        self.visits += visited as u64;
        address
    }

    /// Moves the block that breaks the best arena forward, again and again.
    fn improve(&mut self, goal: u64) {
        let mut order = self.order.clone();
        for _ in 0..MOST_ROUNDS {
            if self.arena() <= goal || self.visits > MOST_VISITS {
                return;
            }
            match self.attempt(order.clone()) {
                Some(0) => return,
                Some(place) => order[place / 2..=place].rotate_right(1),
                // Better: go on from here.
                None => {}
            }
        }
    }
}
