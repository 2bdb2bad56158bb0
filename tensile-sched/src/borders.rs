//! Device memory that comes in blocks: where one ends and the next begins.
//!
//! ```text
//! address   0           B           2B          3B
//!           ├───────────┼───────────┼───────────┤
//! allowed   │  ■■■■■■■■■│■■■■       │
//! not so    │        ■■■│■■■                        crosses the border at B
//! ```

use crate::limits::Limits;

/// The multiples of a block size, which nothing may cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Borders {
    /// `u64::MAX` for none.
    block: u64,
}

impl Borders {
    /// Memory in one piece.
    pub(crate) const NONE: Borders = Borders { block: u64::MAX };

    /// Those of the device arena. Where one block holds the whole budget there are none.
    pub(crate) fn of(limits: &Limits) -> Self {
        if limits.device <= limits.block() { Self::NONE } else { Self::every(limits.block().0) }
    }

    /// One at each multiple of `block`; none for a block of no bytes, which holds nothing.
    pub(crate) const fn every(block: u64) -> Self {
        if block == 0 { Self::NONE } else { Self { block } }
    }

    /// The bytes of a block; `u64::MAX` without borders.
    pub(crate) fn block(self) -> u64 {
        self.block
    }

    /// Bytes from an address to the next border.
    pub(crate) fn room(self, address: u64) -> u64 {
        if self == Self::NONE { u64::MAX } else { self.block - address % self.block }
    }

    /// The lowest address from `address` on at which `bytes`, at most a block, cross no border. Never falls where `address` rises.
    pub(crate) fn lift(self, address: u64, bytes: u64) -> u64 {
        let room = self.room(address);
        if bytes <= room { address } else { address.saturating_add(room) }
    }

    /// All borders above zero and below `top`.
    pub(crate) fn below(self, top: u64) -> impl Iterator<Item = u64> {
        let n_borders = if self == Self::NONE { 0 } else { top.saturating_sub(1) / self.block };
        (1..=n_borders).map(move |number| number * self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Bytes;

    #[test]
    fn lifting_goes_to_the_next_border_and_no_further() {
        let borders = Borders::every(10);
        let lifted = [(0, 10), (1, 9), (1, 10), (9, 2), (10, 10), (19, 1), (15, 6)].map(|(at, n)| borders.lift(at, n));
        assert_eq!(lifted, [0, 1, 10, 10, 10, 19, 20]);
        assert_eq!((borders.room(0), borders.room(9), borders.room(10)), (10, 1, 10));
        assert_eq!(borders.below(30).collect::<Vec<_>>(), [10, 20]);
        assert_eq!(borders.below(31).collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(borders.below(0).count(), 0);
    }

    #[test]
    fn a_budget_within_one_block_has_no_borders() {
        let limits = |device, max_block| Limits {
            device: Bytes(device),
            max_block: Bytes(max_block),
            alignment: Bytes(16),
            ..Limits::unlimited()
        };
        assert_eq!(Borders::of(&limits(64, 64)), Borders::NONE);
        assert_eq!(Borders::of(&limits(65, 64)), Borders::every(64));
        assert_eq!(
            Borders::of(&limits(65, 79)),
            Borders::every(64),
            "what is no multiple of the alignment is rounded down"
        );
        assert_eq!(Borders::of(&limits(u64::MAX, u64::MAX)).below(1 << 60).count(), 0);
        let none = Borders::NONE;
        assert_eq!((none.lift(7, 1 << 50), none.room(7), none.below(u64::MAX).count()), (7, u64::MAX, 0));
    }
}
