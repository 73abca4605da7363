//! The free numbers of a range. It uses no I/O, so a test can simulate hours of calls.

use std::collections::VecDeque;

/// Port numbers, which are allocated singly or in even/odd pairs.
///
/// Each number is drawn at random from the free ones, so that a caller cannot infer the ports of the next calls from its own. A released
/// number is in quarantine first. In a busy range, a value (`T`, open sockets) is kept with each released number. Numbers with a value are
/// drawn first, also at random, if there are enough of them.
#[derive(Debug)]
pub(super) struct Numbers<T> {
    first: u16,
    step: u16,
    /// Units that can be drawn, in no order.
    free: Vec<u32>,
    /// The place of each unit in `free`, or [`TAKEN`].
    places: Vec<u32>,
    in_use: u32,
    /// Released units in the order in which their quarantines end. All quarantines have the same length.
    resting: VecDeque<Resting<T>>,
    /// Units with a kept value whose quarantine is over, in no order.
    rested: Vec<Rested<T>>,
    quarantine_ns: u64,
}

#[derive(Debug)]
struct Resting<T> {
    unit: u32,
    /// End of the quarantine.
    free_ns: u64,
    kept: Option<T>,
}

#[derive(Debug)]
struct Rested<T> {
    unit: u32,
    /// End of the quarantine.
    free_ns: u64,
    kept: T,
}

/// A number that was drawn, with its kept value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken<T> {
    pub(super) number: u16,
    pub(super) kept: Option<T>,
}

impl<T> Numbers<T> {
    /// Creates the numbers from `first` to `last`, of which each user gets `step`.
    pub(super) fn new(first: u16, last: u16, step: u16, quarantine_ns: u64) -> Numbers<T> {
        let units = (u32::from(last) + 1 - u32::from(first)) / u32::from(step);
        Numbers {
            first,
            step,
            free: (0..units).collect(),
            places: (0..units).collect(),
            in_use: 0,
            resting: VecDeque::new(),
            rested: Vec::new(),
            quarantine_ns,
        }
    }

    /// Draws a number. `random` contains 64 random bits.
    pub(super) fn take(&mut self, now_ns: u64, random: u64) -> Option<Taken<T>> {
        self.end_quarantines(now_ns);
        let has_choice = self.rested.len() * CHOICE_PART >= self.units();
        let prefers_rested = self.is_busy(0) && has_choice && !random.is_multiple_of(MIX_PART);
        if (prefers_rested || self.free.is_empty()) && !self.rested.is_empty() {
            let Rested { unit, kept, .. } =
                self.rested.swap_remove(drawn(random, self.rested.len()));
            self.in_use += 1;
            return Some(self.taken(unit, Some(kept)));
        }
        if self.free.is_empty() {
            return None;
        }
        let unit = self.free[drawn(random, self.free.len())];
        self.remove_free(unit);
        self.in_use += 1;
        Some(self.taken(unit, None))
    }

    /// Moves units whose quarantine is over to the free ones, or to those with a kept value.
    fn end_quarantines(&mut self, now_ns: u64) {
        while self
            .resting
            .front()
            .is_some_and(|next| next.free_ns <= now_ns)
            && let Some(Resting {
                unit,
                free_ns,
                kept,
            }) = self.resting.pop_front()
        {
            match kept {
                Some(kept) => self.rested.push(Rested {
                    unit,
                    free_ns,
                    kept,
                }),
                None => self.add_free(unit),
            }
        }
    }

    /// Whether to keep a value with the number that is released next.
    pub(super) fn is_to_keep(&self) -> bool {
        self.is_busy(1)
    }

    /// Whether calls come and go so fast that many numbers wait for reuse, with `more` added to them.
    fn is_busy(&self, more: usize) -> bool {
        (self.resting.len() + self.rested.len() + more) * BUSY_PART >= self.units()
    }

    /// Takes this number, if it is in the range and has no user. Its quarantine may still run, because the user of a given number had it
    /// before.
    pub(super) fn take_at(&mut self, number: u16) -> Option<Taken<T>> {
        let unit = self.unit_at(number)?;
        let mut kept = None;
        if self.places[unit as usize] != TAKEN {
            self.remove_free(unit);
        } else if let Some(place) = self.resting.iter().position(|one| one.unit == unit) {
            kept = self.resting.remove(place)?.kept;
        } else {
            let place = self.rested.iter().position(|one| one.unit == unit)?;
            kept = Some(self.rested.swap_remove(place).kept);
        }
        self.in_use += 1;
        Some(self.taken(unit, kept))
    }

    /// Releases a number, which may be used again after the quarantine. `kept` is the value to keep with it.
    pub(super) fn release(&mut self, now_ns: u64, number: u16, kept: Option<T>) {
        let unit = self.unit_of(number);
        self.in_use -= 1;
        let free_ns = now_ns.saturating_add(self.quarantine_ns);
        // Threads read the clock before they lock, so times may be out of order.
        let last_ns = self.resting.back().map_or(0, |last| last.free_ns);
        self.resting.push_back(Resting {
            unit,
            free_ns: free_ns.max(last_ns),
            kept,
        });
    }

    /// Puts back a number that was not used after all. It is free at once.
    pub(super) fn put_back(&mut self, number: u16) {
        self.in_use -= 1;
        self.add_free(self.unit_of(number));
    }

    /// Removes and returns the values of numbers that were not drawn within a second quarantine. The numbers become free.
    pub(super) fn take_unwanted(&mut self, now_ns: u64) -> Vec<T> {
        self.end_quarantines(now_ns);
        let free_before_ns = now_ns.saturating_sub(self.quarantine_ns);
        let is_unwanted = |one: &mut Rested<T>| one.free_ns <= free_before_ns;
        let unwanted: Vec<Rested<T>> = self.rested.extract_if(.., is_unwanted).collect();
        unwanted.into_iter().map(|one| self.give_up(one)).collect()
    }

    /// Removes and returns the value of one number. If none is past its quarantine, it is that of the oldest.
    pub(super) fn take_one_kept(&mut self) -> Option<T> {
        match self.rested.pop() {
            Some(one) => Some(self.give_up(one)),
            None => self.resting.iter_mut().find_map(|one| one.kept.take()),
        }
    }

    /// Removes and returns all kept values.
    pub(super) fn take_kept(&mut self) -> Vec<T> {
        let rested = std::mem::take(&mut self.rested);
        let mut kept: Vec<T> = rested.into_iter().map(|one| self.give_up(one)).collect();
        kept.extend(self.resting.iter_mut().filter_map(|one| one.kept.take()));
        kept
    }

    fn give_up(&mut self, one: Rested<T>) -> T {
        self.add_free(one.unit);
        one.kept
    }

    /// Returns the number of users for which the range has room.
    pub(super) fn units(&self) -> usize {
        self.places.len()
    }

    /// Whether a user has this number.
    pub(super) fn is_in_use(&self, number: u16) -> bool {
        let Some(unit) = number
            .checked_sub(self.first)
            .map(|above| u32::from(above / self.step))
        else {
            return false;
        };
        let is_taken = self.places.get(unit as usize) == Some(&TAKEN);
        is_taken
            && !self.resting.iter().any(|one| one.unit == unit)
            && !self.rested.iter().any(|one| one.unit == unit)
    }

    /// Returns how many numbers are in use, and how many are between two users.
    pub(super) fn occupied(&self) -> (u32, u32) {
        let between = self.resting.len() + self.rested.len();
        (self.in_use, between as u32)
    }

    fn taken(&self, unit: u32, kept: Option<T>) -> Taken<T> {
        let number = self.first + unit as u16 * self.step;
        Taken { number, kept }
    }

    fn unit_of(&self, number: u16) -> u32 {
        u32::from((number - self.first) / self.step)
    }

    /// Returns the unit that starts with this number.
    fn unit_at(&self, number: u16) -> Option<u32> {
        let above = number.checked_sub(self.first)?;
        let unit = above / self.step;
        (above % self.step == 0 && usize::from(unit) < self.units()).then_some(unit.into())
    }

    fn add_free(&mut self, unit: u32) {
        self.places[unit as usize] = self.free.len() as u32;
        self.free.push(unit);
    }

    /// Removes a unit from the free ones. The last free unit takes its place.
    fn remove_free(&mut self, unit: u32) {
        let place = std::mem::replace(&mut self.places[unit as usize], TAKEN) as usize;
        self.free.swap_remove(place);
        if let Some(moved) = self.free.get(place) {
            self.places[*moved as usize] = place as u32;
        }
    }
}

/// Maps 64 random bits to one of `places` places (Lemire, "Fast random integer generation in an interval", 2019). The bias is below 2^-47.
fn drawn(random: u64, places: usize) -> usize {
    ((u128::from(random) * places as u128) >> 64) as usize
}

/// A range is busy if at least one in this many of its numbers is in quarantine or has a kept value.
const BUSY_PART: usize = 4;
/// There must be at least one in this many numbers to choose from. With fewer, users that have just released theirs could predict the ports
/// of the next calls.
const CHOICE_PART: usize = 16;
/// One in this many draws adds another number to those that calls reuse.
const MIX_PART: u64 = 8;
/// The place of a unit that is not free.
const TAKEN: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    type Named = Numbers<&'static str>;

    /// Returns the next random number of SplitMix64 (Steele, Lea and Flood, 2014).
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn plain<T>(number: u16) -> Option<Taken<T>> {
        Some(Taken { number, kept: None })
    }

    #[test]
    fn pairs_begin_with_even_numbers_and_end_in_the_range() {
        for last in [10_007, 10_008] {
            let mut numbers = Named::new(10_000, last, 2, 0);
            let mut state = 1;
            let draws = std::iter::from_fn(|| numbers.take(0, random(&mut state)));
            let all: BTreeSet<u16> = draws.map(|taken| taken.number).collect();
            assert_eq!(Vec::from_iter(all), [10_000, 10_002, 10_004, 10_006]);
            assert_eq!(numbers.occupied(), (4, 0));
        }
    }

    #[test]
    fn a_released_number_is_free_only_after_the_quarantine() {
        for kept in [None, Some("sockets")] {
            let mut numbers = Named::new(7, 7, 1, 5 * S);
            assert_eq!(numbers.take(S, 1), plain(7));
            numbers.release(2 * S, 7, kept);
            assert_eq!(numbers.take(7 * S - 1, 2), None);
            assert_eq!(numbers.occupied(), (0, 1));
            assert_eq!(numbers.take(7 * S, 3), Some(Taken { number: 7, kept }));
        }
    }

    /// A caller knows its own ports, and may make one call after another.
    #[test]
    fn draws_reach_each_pair_and_are_unpredictable() {
        let (pairs, rounds) = (50, 20_000);
        // Without kept values, all pairs are equally frequent. With them, draws come from a smaller pool, so the bound is wider.
        for (kept, is_even) in [(None, true), (Some("sockets"), false)] {
            let mut numbers = Named::new(30_000, 30_099, 2, 0);
            let (mut state, mut counts) = (7, BTreeMap::<u16, u32>::new());
            let mut steps = BTreeMap::<i32, u32>::new();
            let mut before = 0;
            for now_ns in 0..rounds {
                let number = numbers.take(now_ns, random(&mut state)).unwrap().number;
                numbers.release(now_ns, number, kept);
                *counts.entry(number).or_default() += 1;
                *steps.entry(i32::from(number) - before).or_default() += 1;
                before = i32::from(number);
            }
            assert_eq!(counts.len(), pairs);
            // This is Pearson's test with 49 degrees of freedom, in which 85.35 is exceeded in one of 1000 trials.
            let expected = f64::from(rounds as u32) / pairs as f64;
            let square = |count: &u32| (f64::from(*count) - expected).powi(2) / expected;
            let chi_squared: f64 = counts.values().map(square).sum();
            assert!(!is_even || chi_squared < 85.35, "{chi_squared}");
            // If all pairs are equally likely, the most frequent step is 0, in one of 50 draws. An allocator that always takes the next
            // port would always have the same step.
            let likeliest = f64::from(*steps.values().max().unwrap());
            let allowed = if is_even { 1.2 } else { 6.0 };
            assert!(likeliest < allowed * expected, "{steps:?}");
        }
    }

    /// Sockets are reused in a busy range, but their previous users cannot know by which call.
    #[test]
    fn a_busy_range_draws_from_many_numbers_with_sockets() {
        let mut numbers = Numbers::new(1, 160, 1, 5 * S);
        let mut state = 3;
        // There are ten calls a second, and each lasts a second. So at least 50 numbers are in quarantine.
        let mut reused = BTreeMap::<u64, u32>::new();
        for call in 0..6000_u64 {
            let now_ns = call * S / 10;
            if let Some(ended) = call.checked_sub(10) {
                numbers.release(now_ns, number_of(&reused, ended), Some(ended));
            }
            numbers.end_quarantines(now_ns);
            let choice = numbers.rested.len();
            let taken = numbers.take(now_ns, random(&mut state)).unwrap();
            if taken.kept.is_some() {
                assert!(choice >= 10, "{choice} of 160");
            }
            reused.insert(
                call,
                u32::from(taken.number) << 1 | u32::from(taken.kept.is_some()),
            );
        }
        let with_sockets = reused
            .values()
            .skip(1000)
            .filter(|one| *one & 1 == 1)
            .count();
        assert!(with_sockets > 4200, "{with_sockets} of 5000");
    }

    fn number_of(taken: &BTreeMap<u64, u32>, call: u64) -> u16 {
        (taken[&call] >> 1) as u16
    }

    #[test]
    fn ports_with_open_sockets_are_used_if_no_other_is_free() {
        let mut numbers = Named::new(1, 8, 1, 5 * S);
        for _ in 1..=8 {
            assert!(numbers.take(0, 0).is_some());
        }
        numbers.release(0, 8, Some("eight"));
        assert_eq!(numbers.take(5 * S - 1, 0), None);
        let eight = Taken {
            number: 8,
            kept: Some("eight"),
        };
        assert_eq!(numbers.take(5 * S, 0), Some(eight));
        assert_eq!(numbers.take(5 * S, 0), None);
    }

    #[test]
    fn open_sockets_are_closed_after_a_second_quarantine() {
        let mut numbers = Named::new(1, 9, 1, 5 * S);
        for (now_ns, number, kept) in [(0, 1, Some("one")), (S, 2, None), (2 * S, 3, Some("three"))]
        {
            assert_eq!(numbers.take_at(number), plain(number));
            numbers.release(now_ns, number, kept);
        }
        assert!(numbers.take_unwanted(10 * S - 1).is_empty());
        assert_eq!(numbers.take_unwanted(10 * S), ["one"]);
        assert_eq!(numbers.occupied(), (0, 1), "two has nothing kept");
        assert_eq!(numbers.take_one_kept(), Some("three"));
        assert_eq!(numbers.take_one_kept(), None);
        assert_eq!(numbers.occupied(), (0, 0), "its quarantine is over");
        assert_eq!(numbers.take_at(1), plain(1));
        numbers.release(20 * S, 1, Some("one"));
        assert_eq!(numbers.take_one_kept(), Some("one"));
        assert_eq!(numbers.occupied(), (0, 1), "its quarantine is not");
    }

    #[test]
    fn given_number_is_taken_once_and_only_if_valid() {
        let mut numbers = Named::new(10_000, 10_007, 2, 5 * S);
        for other in [9_998, 10_003, 10_008, 0, u16::MAX] {
            assert_eq!(numbers.take_at(other), None, "{other}");
        }
        for kept in [None, Some("sockets"), None] {
            let taken = numbers.take_at(10_006).unwrap();
            assert_eq!(taken.number, 10_006);
            assert_eq!(numbers.take_at(10_006), None);
            // Even if the number was given, its late packets belong to it.
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
        Take(u64),
        TakeAt(u16),
        Release(prop::sample::Index, bool),
        TakeUnwanted,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u64>().prop_map(Step::Take),
            2 => (990_u16..1170).prop_map(Step::TakeAt),
            5 => any::<(prop::sample::Index, bool)>().prop_map(|(index, keeps)| Step::Release(index, keeps)),
            1 => Just(Step::TakeUnwanted),
        ]
    }

    /// The state of a number that is not free.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Known {
        InUse,
        Rests { since_ns: u64, kept: Option<u32> },
    }

    proptest! {
        /// A number has one user at a time. It is never drawn in its quarantine, and a draw succeeds if any number is free. Its kept value
        /// is returned together with it.
        #[test]
        fn random_draws_and_releases_keep_the_rules_for_ports(
            first in 1000_u16..1010, count in 1_u16..150,
            steps in prop::collection::vec((step(), 0..3 * S), 1..400),
        ) {
            let mut numbers = Numbers::new(first, first + count - 1, 1, 4 * S);
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
                        let unwanted = known.iter().filter(|(_, at)| is_unwanted(at));
                        let expected: BTreeSet<u32> = unwanted.filter_map(|(n, _)| kept_of(*n)).collect();
                        let found: BTreeSet<u32> = numbers.take_unwanted(now_ns).into_iter().collect();
                        prop_assert_eq!(found, expected);
                        known.retain(|_, at| !is_unwanted(at));
                    }
                    Step::Take(random) => match numbers.take(now_ns, random) {
                        Some(Taken { number, kept }) => {
                            prop_assert!(is_free(&number) && all.contains(&number));
                            prop_assert_eq!(kept, kept_of(number));
                            known.insert(number, Known::InUse);
                        }
                        None => prop_assert_eq!(all.filter(is_free).count(), 0),
                    },
                }
                for number in first - 1..=first + count {
                    let is_in_use = known.get(&number) == Some(&Known::InUse);
                    prop_assert_eq!(numbers.is_in_use(number), is_in_use);
                }
            }
        }
    }
}
