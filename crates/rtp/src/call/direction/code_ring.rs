//! A ring of queued codes and of the last codes that were taken. Thousands of directions have such a ring. So it uses few cache lines,
//! which are overwritten again and again, and nothing moves when a packet comes.
//!
//! ```text
//!   this round: | taken ......... | waiting | last round, as far as it is not overwritten |
//!               0               taken      end                                      last_end
//! ```

/// A ring of codes: see the module documentation.
#[derive(Debug, Default)]
pub(super) struct CodeRing {
    bytes: Vec<u8>,
    taken: usize,
    end: usize,
    last_end: usize,
}

impl CodeRing {
    /// Queues codes. If nothing is queued and this round has twice as much as `history`, writing starts at 0 again. The last codes of the
    /// old round stay.
    pub(super) fn push(&mut self, codes: &[u8], history: usize) {
        if self.is_over(history) {
            (self.last_end, self.taken, self.end) = (self.end, 0, 0);
        }
        let begin = self.end;
        self.end += codes.len();
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        self.bytes[begin..self.end].copy_from_slice(codes);
        self.last_end = self.last_end.max(self.end);
    }

    fn is_over(&self, history: usize) -> bool {
        self.taken == self.end && self.end >= 2 * history
    }

    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.taken..self.end]
    }

    /// Marks all queued codes as taken.
    pub(super) fn take_all(&mut self) {
        self.taken = self.end;
    }

    /// Drops `count` queued codes that no listener took. Otherwise, a round could not end.
    pub(super) fn drop_first(&mut self, count: usize, history: usize) {
        self.taken += count;
        if self.taken > 2 * history {
            let gone = self.taken - history;
            self.bytes.copy_within(gone..self.end, 0);
            self.taken -= gone;
            self.end -= gone;
            self.last_end = self.end;
        }
    }

    /// Returns the last `count` codes in two pieces, whether they were taken or not. `count` is at most the `history` of
    /// [`push`](Self::push).
    pub(super) fn last(&self, count: usize) -> [&[u8]; 2] {
        let own = count.min(self.end);
        let before = count - own;
        let older = &self.bytes[self.last_end - before..self.last_end];
        [older, &self.bytes[self.end - own..self.end]]
    }

    /// Returns the address at which the next codes will be written, for prefetching.
    pub(super) fn next_address(&self, history: usize) -> usize {
        let at = if self.is_over(history) { 0 } else { self.end };
        self.bytes.as_ptr() as usize + at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HISTORY: usize = 8;

    proptest! {
        /// The ring returns the same codes as a list of all codes, but needs little memory.
        #[test]
        fn ring_equals_a_list_of_all_codes(
            steps in prop::collection::vec((1_usize..12, 0_u8..6), 1..200)
        ) {
            let (mut ring, mut all, mut taken) = (CodeRing::default(), Vec::<u8>::new(), 0);
            for (count, then) in steps {
                let codes: Vec<u8> = (0..count).map(|n| (all.len() + n) as u8).collect();
                ring.push(&codes, HISTORY);
                all.extend(&codes);
                match then {
                    0..4 => {
                        ring.take_all();
                        taken = all.len();
                    }
                    4 => {
                        ring.drop_first(1, HISTORY);
                        taken += 1;
                    }
                    _ => {}
                }
                let excess = (all.len() - taken).saturating_sub(4 * HISTORY);
                if excess > 0 {
                    ring.drop_first(excess, HISTORY);
                    taken += excess;
                }
                prop_assert_eq!(ring.waiting(), &all[taken..]);
                let known = all.len().min(HISTORY);
                prop_assert_eq!(ring.last(known).concat(), &all[all.len() - known..]);
                prop_assert!(ring.bytes.len() <= 8 * HISTORY);
            }
        }
    }
}
