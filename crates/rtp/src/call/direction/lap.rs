//! Codes that wait, and the last ones that were taken, in a few cache lines that are written again and again: thousands of directions have one each, and
//! nothing in it is moved from packet to packet.
//!
//! ```text
//!   this lap: | taken ......... | waiting | last lap, as far as it is not written over |
//!             0               taken      end                                        last_end
//! ```

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lap {
    bytes: Vec<u8>,
    taken: usize,
    end: usize,
    last_end: usize,
}

impl Lap {
    /// More codes wait. Another lap begins where nothing waits and this one has twice as much as `history`: of that, the last codes stay.
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

    /// All of them were taken.
    pub(super) fn take_all(&mut self) {
        self.taken = self.end;
    }

    /// So many were taken that nobody heard: where nobody takes the rest, no lap ends.
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

    /// The last codes, taken or not, as two pieces: no more than `history`.
    pub(super) fn last(&self, count: usize) -> [&[u8]; 2] {
        let own = count.min(self.end);
        let before = count - own;
        let older = &self.bytes[self.last_end - before..self.last_end];
        [older, &self.bytes[self.end - own..self.end]]
    }

    /// Where the next codes go.
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
        /// As a list of all codes has them, and in little memory.
        #[test]
        fn what_waits_and_the_last_codes_are_those_of_all(
            steps in prop::collection::vec((1_usize..12, 0_u8..6), 1..200)
        ) {
            let (mut lap, mut all, mut taken) = (Lap::default(), Vec::new(), 0);
            for (count, then) in steps {
                let codes: Vec<u8> = (0..count).map(|n| (all.len() + n) as u8).collect();
                lap.push(&codes, HISTORY);
                all.extend(&codes);
                match then {
                    0..4 => {
                        lap.take_all();
                        taken = all.len();
                    }
                    4 => {
                        lap.drop_first(1, HISTORY);
                        taken += 1;
                    }
                    _ => {}
                }
                let excess = (all.len() - taken).saturating_sub(4 * HISTORY);
                if excess > 0 {
                    lap.drop_first(excess, HISTORY);
                    taken += excess;
                }
                prop_assert_eq!(lap.waiting(), &all[taken..]);
                let known = all.len().min(HISTORY);
                prop_assert_eq!(lap.last(known).concat(), &all[all.len() - known..]);
                prop_assert!(lap.bytes.len() <= 8 * HISTORY);
            }
        }
    }
}
