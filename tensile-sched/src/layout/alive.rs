//! Which blocks live during a piece of the step.

use super::blocks::{Block, Piece};

/// Pieces between two snapshots.
const STRIDE: usize = 256;

/// Pieces of blocks by start, with a snapshot of what is alive at every so many of them.
#[derive(Debug)]
pub(super) struct Alive {
    /// With the block's index.
    by_start: Vec<(Piece, u32)>,
    /// Ends of all pieces, in order.
    ends: Vec<u32>,
    /// For each multiple of [`STRIDE`], the places of earlier pieces that outlive the start of the piece there.
    snapshots: Vec<Vec<u32>>,
}

impl Alive {
    pub(super) fn of(blocks: &[Block]) -> Self {
        let pieces =
            blocks.iter().enumerate().flat_map(|(index, block)| block.pieces.map(|piece| (piece, index as u32)));
        let mut by_start: Vec<(Piece, u32)> = pieces.filter(|(piece, _)| !piece.is_empty()).collect();
        by_start.sort_unstable_by_key(|&(piece, index)| (piece.start, index));
        let mut ends: Vec<u32> = by_start.iter().map(|(piece, _)| piece.end).collect();
        ends.sort_unstable();
        let mut snapshots: Vec<Vec<u32>> = Vec::with_capacity(by_start.len() / STRIDE + 1);
        for place in (0..by_start.len()).step_by(STRIDE) {
            let start = by_start[place].0.start;
            let outlives = |&place: &u32| by_start[place as usize].0.end > start;
            let earlier = snapshots.last().map_or(&[][..], |last| last);
            let since = place.saturating_sub(STRIDE) as u32..place as u32;
            let snapshot = earlier.iter().copied().chain(since).filter(outlives).collect();
            snapshots.push(snapshot);
        }
        Self { by_start, ends, snapshots }
    }

    /// How many blocks live with a block (at most), itself included.
    pub(super) fn count(&self, block: &Block) -> u64 {
        let during = |piece: Piece| {
            let begun = self.by_start.partition_point(|(other, _)| other.start < piece.end);
            let ended = self.ends.partition_point(|&end| end <= piece.start);
            (begun - ended) as u64
        };
        block.pieces.into_iter().filter(|piece| !piece.is_empty()).map(during).sum()
    }

    /// Calls `found` with each block that lives during one of the pieces, perhaps twice.
    pub(super) fn during(&self, pieces: [Piece; 2], mut found: impl FnMut(u32)) {
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            let begun = self.by_start.partition_point(|(other, _)| other.start < piece.start);
            let snapshot = begun / STRIDE;
            let earlier = self.snapshots.get(snapshot).map_or(&[][..], |there| there);
            let since = (snapshot * STRIDE).min(begun) as u32..begun as u32;
            for place in earlier.iter().copied().chain(since) {
                let (other, index) = self.by_start[place as usize];
                if other.end > piece.start {
                    found(index);
                }
            }
            for &(_, index) in self.by_start[begun..].iter().take_while(|(other, _)| other.start < piece.end) {
                found(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_found_are_those_that_meet() {
        let mut state = 3u64;
        let mut below = move |n: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % n
        };
        let blocks: Vec<Block> = (0..900)
            .map(|_| {
                let start = below(300);
                let longest = if below(8) == 0 { 300 } else { 6 };
                let end = start + below(longest);
                let n_front = if below(10) == 0 { below(start + 1) } else { 0 };
                let front = Piece { start: 0, end: n_front };
                Block { bytes: 1, pieces: [Piece { start, end }, front], fixed: None }
            })
            .collect();
        let alive = Alive::of(&blocks);
        for block in &blocks {
            let meets = |other: &Block| {
                block.pieces.iter().any(|p| other.pieces.iter().any(|q| p.start.max(q.start) < p.end.min(q.end)))
            };
            let expected: Vec<u32> = (0..blocks.len() as u32).filter(|&index| meets(&blocks[index as usize])).collect();
            let mut found = Vec::new();
            alive.during(block.pieces, |index| found.push(index));
            assert_eq!(alive.count(block), found.len() as u64);
            found.sort_unstable();
            found.dedup();
            assert_eq!(found, expected);
        }
    }
}
