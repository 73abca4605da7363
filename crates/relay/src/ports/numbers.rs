//! Which numbers of a range are free: sans-IO, so that hours of calls are an ordinary test.

use std::collections::VecDeque;

/// Port numbers in units of one port, or of an even and an odd one. Next-fit: a number comes back as late as possible.
#[derive(Debug)]
pub(super) struct Numbers {
    first: u16,
    step: u16,
    units: u32,
    /// Bit i: unit i is in use or in quarantine.
    taken: Vec<u64>,
    /// The unit to try next.
    next: u32,
    in_use: u32,
    /// Released units, and the times from which they are free again: in order, as the quarantine is the same for all.
    quarantined: VecDeque<(u64, u32)>,
    quarantine_ns: u64,
}

impl Numbers {
    /// Numbers from `first` to `last`, `step` of them for each user. Starts at a place that `seed` chooses.
    pub(super) fn new(first: u16, last: u16, step: u16, seed: u64, quarantine_ns: u64) -> Numbers {
        let units = (u32::from(last) + 1 - u32::from(first)) / u32::from(step);
        Numbers {
            first,
            step,
            units,
            taken: vec![0; units.div_ceil(64) as usize],
            next: (seed % u64::from(units.max(1))) as u32,
            in_use: 0,
            quarantined: VecDeque::new(),
            quarantine_ns,
        }
    }

    /// The next free number.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<u16> {
        self.end_quarantines(now_ns);
        let unit = self
            .free_from(self.next, self.units)
            .or_else(|| self.free_from(0, self.next))?;
        self.taken[unit as usize / 64] |= 1 << (unit % 64);
        self.in_use += 1;
        self.next = (unit + 1) % self.units;
        Some(self.first + unit as u16 * self.step)
    }

    /// This number, if it is one of the range's and free.
    pub(super) fn take_at(&mut self, now_ns: u64, number: u16) -> Option<u16> {
        self.end_quarantines(now_ns);
        let above = number.checked_sub(self.first)?;
        let unit = u32::from(above / self.step);
        if above % self.step != 0 || unit >= self.units {
            return None;
        }
        let word = &mut self.taken[unit as usize / 64];
        let bit = 1 << (unit % 64);
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        self.in_use += 1;
        Some(number)
    }

    /// Frees what nobody sends to any more.
    fn end_quarantines(&mut self, now_ns: u64) {
        while let Some(&(free_ns, unit)) = self.quarantined.front()
            && free_ns <= now_ns
        {
            self.quarantined.pop_front();
            self.clear(unit);
        }
    }

    /// The user of a number has gone: free again after the quarantine.
    pub(super) fn release(&mut self, now_ns: u64, number: u16) {
        let unit = self.unit_of(number);
        self.in_use -= 1;
        let free_ns = now_ns.saturating_add(self.quarantine_ns);
        // Threads read the clock before they take the lock.
        let last_ns = self.quarantined.back().map_or(0, |(free_ns, _)| *free_ns);
        self.quarantined.push_back((free_ns.max(last_ns), unit));
    }

    /// The number was not used after all: free at once.
    pub(super) fn put_back(&mut self, number: u16) {
        let unit = self.unit_of(number);
        self.in_use -= 1;
        self.clear(unit);
    }

    /// Users that the range has room for.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Numbers in use and in quarantine.
    pub(super) fn occupied(&self) -> (u32, u32) {
        (self.in_use, self.quarantined.len() as u32)
    }

    fn unit_of(&self, number: u16) -> u32 {
        u32::from((number - self.first) / self.step)
    }

    fn clear(&mut self, unit: u32) {
        self.taken[unit as usize / 64] &= !(1 << (unit % 64));
    }

    /// The first free unit of `from..to`, 64 looked at together.
    fn free_from(&self, from: u32, to: u32) -> Option<u32> {
        let mut at = from;
        while at < to {
            let free = !self.taken[at as usize / 64] >> (at % 64);
            if free != 0 {
                let unit = at + free.trailing_zeros();
                return (unit < to).then_some(unit);
            }
            at += 64 - at % 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn pairs_begin_with_even_numbers_and_end_in_the_range() {
        let mut numbers = Numbers::new(10_000, 10_007, 2, 3, 0);
        let mut all: Vec<u16> = std::iter::from_fn(|| numbers.take(0)).collect();
        assert_eq!(all[0], 10_006, "the seed chooses the start");
        all.sort_unstable();
        assert_eq!(all, [10_000, 10_002, 10_004, 10_006]);
        assert_eq!(numbers.occupied(), (4, 0));
    }

    #[test]
    fn a_released_number_is_free_after_the_quarantine_only() {
        let mut numbers = Numbers::new(7, 7, 1, 0, 5 * S);
        assert_eq!(numbers.take(S), Some(7));
        numbers.release(2 * S, 7);
        assert_eq!(numbers.take(7 * S - 1), None);
        assert_eq!(numbers.occupied(), (0, 1));
        assert_eq!(numbers.take(7 * S), Some(7));
    }

    #[test]
    fn a_number_is_taken_by_name_once_and_only_if_it_is_one() {
        let mut numbers = Numbers::new(10_000, 10_007, 2, 0, 5 * S);
        for other in [9_998, 10_003, 10_008, 0, u16::MAX] {
            assert_eq!(numbers.take_at(0, other), None, "{other}");
        }
        assert_eq!(numbers.take_at(0, 10_006), Some(10_006));
        assert_eq!(numbers.take_at(0, 10_006), None);
        numbers.release(0, 10_006);
        assert_eq!(numbers.take_at(5 * S - 1, 10_006), None);
        assert_eq!(numbers.take_at(5 * S, 10_006), Some(10_006));
    }

    proptest! {
        /// Whatever comes and goes: a number is given once at a time, never in its quarantine, and always if one is free.
        #[test]
        fn equals_the_definition(
            first in 1000_u16..1010, count in 1_u16..150, seed: u64,
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 0..3 * S), 1..400),
            named in prop::collection::vec(prop::option::weighted(0.3, 990_u16..1170), 400),
        ) {
            let mut numbers = Numbers::new(first, first + count - 1, 1, seed, 4 * S);
            // Number -> when it was released, or in use.
            let mut known: BTreeMap<u16, Option<u64>> = BTreeMap::new();
            let mut now_ns = 0;
            for ((takes, index, pause_ns), named) in steps.into_iter().zip(named) {
                now_ns += pause_ns;
                let used: Vec<u16> = known.iter().filter(|(_, at)| at.is_none()).map(|(n, _)| *n).collect();
                if !takes && !used.is_empty() {
                    let number = *index.get(&used);
                    numbers.release(now_ns, number);
                    known.insert(number, Some(now_ns));
                    continue;
                }
                let is_free = |n: &u16| known.get(n).is_none_or(|at| at.is_some_and(|at| at + 4 * S <= now_ns));
                let free = (first..first + count).filter(is_free).count();
                if let Some(number) = named {
                    let is_one = (first..first + count).contains(&number) && is_free(&number);
                    prop_assert_eq!(numbers.take_at(now_ns, number), is_one.then_some(number));
                    if is_one {
                        known.insert(number, None);
                    }
                    continue;
                }
                match numbers.take(now_ns) {
                    Some(number) => {
                        prop_assert!(is_free(&number));
                        prop_assert!((first..first + count).contains(&number));
                        known.insert(number, None);
                    }
                    None => prop_assert_eq!(free, 0),
                }
            }
        }
    }
}
