//! Which numbers of a range are free: sans-IO, so that hours of calls are an ordinary test.

use std::collections::VecDeque;

/// Port numbers in units of one port, or of an even and an odd one. A number comes back as late as possible: next-fit. Where many come and go,
/// that is soon anyway, and something (`T`, open sockets) is kept of those that rest, to be used again after the quarantine, the oldest first.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    first: u16,
    step: u16,
    units: u32,
    /// Bit i: unit i is in use or rests.
    taken: Vec<u64>,
    /// The unit to try next.
    next: u32,
    in_use: u32,
    /// Released units, in the order in which they are free again, as the quarantine is the same for all.
    resting: VecDeque<Resting<T>>,
    quarantine_ns: u64,
}

#[derive(Debug)]
struct Resting<T> {
    unit: u32,
    /// From when on it may be used.
    free_ns: u64,
    /// `None`: it is free without being asked for when its quarantine is over.
    kept: Option<T>,
}

/// A number to use, and what was kept of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken<T> {
    pub(super) number: u16,
    pub(super) kept: Option<T>,
}

impl<T> Numbers<T> {
    /// Numbers from `first` to `last`, `step` of them for each user. Starts at a place that `seed` chooses.
    pub(super) fn new(
        first: u16,
        last: u16,
        step: u16,
        seed: u64,
        quarantine_ns: u64,
    ) -> Numbers<T> {
        let units = (u32::from(last) + 1 - u32::from(first)) / u32::from(step);
        Numbers {
            first,
            step,
            units,
            taken: vec![0; units.div_ceil(64) as usize],
            next: (seed % u64::from(units.max(1))) as u32,
            in_use: 0,
            resting: VecDeque::new(),
            quarantine_ns,
        }
    }

    /// The next number to use.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<Taken<T>> {
        let is_kept = |one: &Resting<T>| one.kept.is_some();
        while !self.resting.front().is_some_and(is_kept)
            && let Some(Resting { unit, .. }) = self.pop_rested(now_ns)
        {
            self.clear(unit);
        }
        let next_fit = match self.is_busy(0) {
            true => None,
            false => self.take_next(),
        };
        // All that has rested stands behind the oldest that is kept, if there is one.
        next_fit
            .or_else(|| self.take_rested(now_ns))
            .or_else(|| self.take_next())
    }

    fn take_next(&mut self) -> Option<Taken<T>> {
        let unit = self
            .free_from(self.next, self.units)
            .or_else(|| self.free_from(0, self.next))?;
        self.taken[unit as usize / 64] |= 1 << (unit % 64);
        self.in_use += 1;
        self.next = (unit + 1) % self.units;
        let number = self.number_of(unit);
        Some(Taken { number, kept: None })
    }

    fn take_rested(&mut self, now_ns: u64) -> Option<Taken<T>> {
        let Resting { unit, kept, .. } = self.pop_rested(now_ns)?;
        self.in_use += 1;
        let number = self.number_of(unit);
        Some(Taken { number, kept })
    }

    /// Whether something is to be kept of the next one that is released.
    pub(super) fn is_to_keep(&self) -> bool {
        self.is_busy(1)
    }

    /// So many numbers rest, and `more`, that next-fit comes back to them within some quarantines.
    fn is_busy(&self, more: usize) -> bool {
        (self.resting.len() + more) * BUSY_PART >= self.units as usize
    }

    /// This number, if it is one of the range's and nobody uses it. One that rests is had at once: who names it goes on with it.
    pub(super) fn take_at(&mut self, number: u16) -> Option<Taken<T>> {
        let above = number.checked_sub(self.first)?;
        let unit = u32::from(above / self.step);
        if above % self.step != 0 || unit >= self.units {
            return None;
        }
        let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
        let mut kept = None;
        if self.taken[word] & bit != 0 {
            let place = self.resting.iter().position(|one| one.unit == unit)?;
            kept = self.resting.remove(place)?.kept;
        }
        self.taken[word] |= bit;
        self.in_use += 1;
        Some(Taken { number, kept })
    }

    /// The user of a number has gone: it may be used again after the quarantine. `kept`: with this.
    pub(super) fn release(&mut self, now_ns: u64, number: u16, kept: Option<T>) {
        let unit = self.unit_of(number);
        self.in_use -= 1;
        let free_ns = now_ns.saturating_add(self.quarantine_ns);
        // Threads read the clock before they take the lock.
        let last_ns = self.resting.back().map_or(0, |last| last.free_ns);
        self.resting.push_back(Resting {
            unit,
            free_ns: free_ns.max(last_ns),
            kept,
        });
    }

    /// The number was not used after all: free at once.
    pub(super) fn put_back(&mut self, number: u16) {
        let unit = self.unit_of(number);
        self.in_use -= 1;
        self.clear(unit);
    }

    /// What is kept of numbers that could have been used for as long as they rested before, and were not. They are free.
    pub(super) fn take_unwanted(&mut self, now_ns: u64) -> Vec<T> {
        let rested_ns = now_ns.saturating_sub(self.quarantine_ns);
        let mut unwanted = Vec::new();
        while let Some(Resting { unit, kept, .. }) = self.pop_rested(rested_ns) {
            self.clear(unit);
            unwanted.extend(kept);
        }
        unwanted
    }

    /// The oldest that is kept.
    pub(super) fn take_oldest_kept(&mut self) -> Option<T> {
        self.resting.iter_mut().find_map(|one| one.kept.take())
    }

    /// All that is kept.
    pub(super) fn take_kept(&mut self) -> Vec<T> {
        let resting = self.resting.iter_mut();
        resting.filter_map(|one| one.kept.take()).collect()
    }

    /// Users that the range has room for.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Whether a user has this number.
    pub(super) fn is_in_use(&self, number: u16) -> bool {
        let Some(above) = number.checked_sub(self.first) else {
            return false;
        };
        let unit = u32::from(above / self.step);
        let is_taken = unit < self.units && self.taken[unit as usize / 64] & 1 << (unit % 64) != 0;
        is_taken && !self.resting.iter().any(|one| one.unit == unit)
    }

    /// Numbers in use, and those that rest.
    pub(super) fn occupied(&self) -> (u32, u32) {
        (self.in_use, self.resting.len() as u32)
    }

    /// The next one whose quarantine was over at `now_ns`.
    fn pop_rested(&mut self, now_ns: u64) -> Option<Resting<T>> {
        let next = self.resting.front()?;
        (next.free_ns <= now_ns)
            .then(|| self.resting.pop_front())
            .flatten()
    }

    fn number_of(&self, unit: u32) -> u16 {
        self.first + unit as u16 * self.step
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

/// Of all numbers, if they rest, one in so many is a busy range's.
const BUSY_PART: usize = 4;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    type Named = Numbers<&'static str>;

    fn plain<T>(number: u16) -> Option<Taken<T>> {
        Some(Taken { number, kept: None })
    }

    fn with(number: u16, kept: &'static str) -> Option<Taken<&'static str>> {
        let kept = Some(kept);
        Some(Taken { number, kept })
    }

    #[test]
    fn pairs_begin_with_even_numbers_and_end_in_the_range() {
        let mut numbers = Named::new(10_000, 10_007, 2, 3, 0);
        let mut all: Vec<u16> =
            std::iter::from_fn(|| numbers.take(0).map(|taken| taken.number)).collect();
        assert_eq!(all[0], 10_006, "the seed chooses the start");
        all.sort_unstable();
        assert_eq!(all, [10_000, 10_002, 10_004, 10_006]);
        assert_eq!(numbers.occupied(), (4, 0));
    }

    #[test]
    fn a_released_number_is_free_after_the_quarantine_only() {
        for kept in [None, Some("sockets")] {
            let mut numbers = Named::new(7, 7, 1, 0, 5 * S);
            assert_eq!(numbers.take(S), plain(7));
            numbers.release(2 * S, 7, kept);
            assert_eq!(numbers.take(7 * S - 1), None);
            assert_eq!(numbers.occupied(), (0, 1));
            assert_eq!(numbers.take(7 * S), Some(Taken { number: 7, kept }));
        }
    }

    #[test]
    fn of_a_busy_range_those_that_rested_come_first_the_oldest_before_others() {
        let mut numbers = Named::new(1, 12, 1, 0, 5 * S);
        for number in 1..=4 {
            assert_eq!(numbers.take(0), plain(number));
        }
        let mut is_kept = Vec::new();
        for (number, name) in [(2, "two"), (1, "one"), (3, "three"), (4, "four")] {
            let kept = numbers.is_to_keep().then_some(name);
            is_kept.push(kept.is_some());
            numbers.release(u64::from(number) * S, number, kept);
        }
        assert_eq!(
            is_kept,
            [false, false, true, true],
            "a quarter of twelve rests"
        );
        assert_eq!(numbers.take(7 * S), plain(5), "three rests");
        // Two and one are free for next-fit, and the range is not busy any more.
        assert_eq!(numbers.take(8 * S), plain(6));
        for number in [5, 6] {
            numbers.release(8 * S, number, None);
        }
        assert_eq!(numbers.take(8 * S), with(3, "three"));
        assert_eq!(
            numbers.take(8 * S),
            plain(7),
            "four rests, as it was released later"
        );
        assert_eq!(numbers.take(9 * S), with(4, "four"));
    }

    #[test]
    fn what_is_kept_is_used_before_none_is_free() {
        let mut numbers = Named::new(1, 8, 1, 0, 5 * S);
        for number in 1..=8 {
            assert_eq!(numbers.take(0), plain(number));
        }
        numbers.release(0, 8, Some("eight"));
        assert_eq!(numbers.take(5 * S - 1), None);
        assert_eq!(numbers.take(5 * S), with(8, "eight"));
        assert_eq!(numbers.take(5 * S), None);
    }

    #[test]
    fn what_is_kept_is_unwanted_when_it_has_rested_twice_as_long() {
        let mut numbers = Named::new(1, 9, 1, 0, 5 * S);
        for (now_ns, number, kept) in [(0, 1, Some("one")), (S, 2, None), (2 * S, 3, Some("three"))]
        {
            assert_eq!(numbers.take(0), plain(number));
            numbers.release(now_ns, number, kept);
        }
        assert!(numbers.take_unwanted(10 * S - 1).is_empty());
        assert_eq!(numbers.take_unwanted(10 * S), ["one"]);
        assert_eq!(numbers.occupied(), (0, 2));
        assert_eq!(numbers.take_oldest_kept(), Some("three"));
        assert_eq!(numbers.take_oldest_kept(), None);
        assert_eq!(numbers.occupied(), (0, 2), "its number rests all the same");
        assert!(numbers.take_unwanted(12 * S).is_empty());
        assert_eq!(numbers.occupied(), (0, 0));
    }

    #[test]
    fn a_number_is_taken_by_name_once_and_only_if_it_is_one() {
        let mut numbers = Named::new(10_000, 10_007, 2, 0, 5 * S);
        for other in [9_998, 10_003, 10_008, 0, u16::MAX] {
            assert_eq!(numbers.take_at(other), None, "{other}");
        }
        for kept in [None, Some("sockets"), None] {
            let taken = numbers.take_at(10_006).unwrap();
            assert_eq!(taken.number, 10_006);
            assert_eq!(numbers.take_at(10_006), None);
            // Who goes on with it does not wait for its late packets to end: they are its own.
            numbers.release(0, 10_006, kept);
            assert_eq!(
                numbers.take_at(10_006),
                Some(Taken {
                    number: 10_006,
                    kept
                })
            );
            numbers.release(0, 10_006, None);
        }
        assert_eq!(numbers.occupied(), (0, 1));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take,
        TakeAt(u16),
        Release(prop::sample::Index, bool),
        TakeUnwanted,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Take),
            2 => (990_u16..1170).prop_map(Step::TakeAt),
            5 => any::<(prop::sample::Index, bool)>().prop_map(|(index, keeps)| Step::Release(index, keeps)),
            1 => Just(Step::TakeUnwanted),
        ]
    }

    /// What the definition knows of a number that is not free.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Known {
        InUse,
        Rests { since_ns: u64, kept: Option<u32> },
    }

    proptest! {
        /// Whatever comes and goes: a number is given once at a time, never in its quarantine unless it is named, and always if one is free; and
        /// with what was kept of it.
        #[test]
        fn equals_the_definition(
            first in 1000_u16..1010, count in 1_u16..150, seed: u64,
            steps in prop::collection::vec((step(), 0..3 * S), 1..400),
        ) {
            let mut numbers = Numbers::new(first, first + count - 1, 1, seed, 4 * S);
            let mut known: BTreeMap<u16, Known> = BTreeMap::new();
            let mut now_ns = 0;
            for (i, (step, pause_ns)) in steps.into_iter().enumerate() {
                now_ns += pause_ns;
                let kept_of = |n: u16| match known.get(&n) {
                    Some(Known::Rests { kept, .. }) => *kept,
                    _ => None,
                };
                let is_free = |n: &u16| match known.get(n) {
                    None => true,
                    Some(Known::InUse) => false,
                    Some(Known::Rests { since_ns, .. }) => since_ns + 4 * S <= now_ns,
                };
                let all = first..first + count;
                match step {
                    Step::Release(index, keeps) => {
                        let used = known.iter().filter(|(_, at)| **at == Known::InUse);
                        let used: Vec<u16> = used.map(|(n, _)| *n).collect();
                        if !used.is_empty() {
                            let (number, kept) = (*index.get(&used), keeps.then_some(i as u32));
                            numbers.release(now_ns, number, kept);
                            known.insert(number, Known::Rests { since_ns: now_ns, kept });
                        }
                    }
                    Step::TakeAt(number) => {
                        let is_one = all.contains(&number) && known.get(&number) != Some(&Known::InUse);
                        let kept = kept_of(number);
                        prop_assert_eq!(numbers.take_at(number), is_one.then_some(Taken { number, kept }));
                        if is_one {
                            known.insert(number, Known::InUse);
                        }
                    }
                    Step::TakeUnwanted => {
                        let is_unwanted = |at: &Known| matches!(at, Known::Rests { since_ns, .. } if since_ns + 8 * S <= now_ns);
                        let mut expected: Vec<u32> =
                            known.iter().filter(|(_, at)| is_unwanted(at)).filter_map(|(n, _)| kept_of(*n)).collect();
                        expected.sort_unstable();
                        prop_assert_eq!(numbers.take_unwanted(now_ns), expected);
                        known.retain(|_, at| !is_unwanted(at));
                    }
                    Step::Take => match numbers.take(now_ns) {
                        Some(Taken { number, kept }) => {
                            prop_assert!(is_free(&number) && all.contains(&number));
                            prop_assert_eq!(kept, kept_of(number));
                            known.insert(number, Known::InUse);
                        }
                        None => prop_assert_eq!(all.filter(is_free).count(), 0),
                    },
                }
            }
        }
    }
}
