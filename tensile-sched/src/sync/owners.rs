//! Whose bytes are whose: disjoint ranges of addresses, each with its last owner.

/// A range of bytes that belongs to one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    start: u64,
    end: u64,
    owner: u32,
}

/// Most segments of a chunk.
const MOST: usize = 64;

/// Disjoint segments by address, in chunks of limited length, so that putting one between others moves few.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// None of them empty.
    chunks: Vec<Vec<Segment>>,
}

impl Owners {
    /// Gives `start..end` to `owner`; calls `lost` with each owner that had some of it, once per segment.
    ///
    /// Logarithmic in the number of segments, plus linear in the number of those it takes from.
    pub(super) fn take(&mut self, start: u64, end: u64, owner: u32, mut lost: impl FnMut(u32)) {
        if start >= end {
            return;
        }
        let taken = Segment { start, end, owner };
        // The chunk of the last segment that starts at or before `start`, or the first chunk.
        let place = self.chunks.partition_point(|chunk| chunk[0].start <= start).saturating_sub(1);
        let Some(chunk) = self.chunks.get_mut(place) else {
            self.chunks.push(vec![taken]);
            return;
        };
        let first = chunk.partition_point(|segment| segment.end <= start);
        let n_met = chunk[first..].iter().take_while(|segment| segment.start < end).count();
        let mut pieces = [taken; 3];
        let mut n_pieces = 0;
        let mut add = |piece: Segment| {
            if piece.start < piece.end {
                pieces[n_pieces] = piece;
                n_pieces += 1;
            }
        };
        let met = &chunk[first..first + n_met];
        met.iter().for_each(|segment| lost(segment.owner));
        // What is left of the first one, the new one, what is left of the last one.
        if let Some(&segment) = met.first() {
            add(Segment { end: start.min(segment.end), ..segment });
        }
        add(taken);
        if let Some(&segment) = met.last() {
            add(Segment { start: end.max(segment.start), ..segment });
        }
        let reaches_on = first + n_met == chunk.len();
        if n_met == n_pieces {
            chunk[first..first + n_met].copy_from_slice(&pieces[..n_pieces]);
        } else {
            chunk.splice(first..first + n_met, pieces[..n_pieces].iter().copied());
        }
        let upper = (chunk.len() > MOST).then(|| chunk.split_off(MOST / 2));
        if reaches_on {
            self.cut_below(place + 1, end, lost);
        }
        if let Some(upper) = upper {
            self.chunks.insert(place + 1, upper);
        }
    }

    /// Takes the bytes below `end` from the chunks from `place` on.
    fn cut_below(&mut self, place: usize, end: u64, mut lost: impl FnMut(u32)) {
        let mut n_gone = 0;
        for chunk in &mut self.chunks[place..] {
            let n_met = chunk.iter().take_while(|segment| segment.start < end).count();
            chunk[..n_met].iter().for_each(|segment| lost(segment.owner));
            let n_covered = chunk[..n_met].iter().take_while(|segment| segment.end <= end).count();
            let is_gone = n_covered == chunk.len();
            if is_gone {
                n_gone += 1;
                continue;
            }
            chunk.drain(..n_covered);
            if n_met > n_covered {
                chunk[0].start = end;
            }
            break;
        }
        self.chunks.drain(place..place + n_gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_of_a_plain_array() {
        let mut state = 1u64;
        let mut below = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut owners = Owners::default();
        let mut plain = vec![None; 4000];
        for owner in 0..20_000u32 {
            let longest = if below(50) == 0 { 2000 } else { 12 };
            let start = below(plain.len() as u64 - 1);
            let end = (start + below(longest)).min(plain.len() as u64);
            let mut found = Vec::new();
            owners.take(start, end, owner, |other| found.push(other));
            let range = start as usize..end as usize;
            let mut expected: Vec<u32> = plain[range.clone()].iter().copied().flatten().collect();
            plain[range].fill(Some(owner));
            expected.dedup();
            found.dedup();
            assert_eq!(found, expected);
            assert!(owners.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= MOST + 1));
        }
        let segments: Vec<Segment> = owners.chunks.concat();
        assert!(segments.len() > 3 * MOST, "several chunks");
        assert!(segments.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
}
