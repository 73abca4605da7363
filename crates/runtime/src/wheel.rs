//! A hierarchical timer wheel: six levels of 64 slots, O(1) insert, cancel and fire.
//!
//! Sans-IO: time is a parameter, in nanoseconds of any monotonic clock. All deadlines are rounded to ticks. The tick of a
//! throttled context is its slice, so that timers share the slice's wake-up.
//!
//! Idea: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7.

use slab::Slab;

/// Rounding of a deadline to the wheel's tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// At the tick nearest to the deadline. It shares a wake-up, and may be up to half a tick early.
    About,
    /// At the first tick that is not before the deadline.
    NotBefore,
}

/// Identifies a pending timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

/// The wheel. [`Wheel::advance`] returns the `T` of an expired deadline.
#[derive(Debug)]
pub struct Wheel<T> {
    tick_ns: u64,
    origin_ns: u64,
    /// Ticks up to and including this one have fired.
    tick_now: u64,
    levels: [Level; LEVELS],
    entries: Slab<Entry<T>>,
    generation: u32,
}

impl<T> Wheel<T> {
    /// Creates a wheel with ticks at `origin_ns + k * tick_ns`.
    ///
    /// # Panics
    /// Panics if `tick_ns` is 0.
    pub fn new(origin_ns: u64, tick_ns: u64) -> Self {
        assert!(tick_ns > 0, "a wheel needs a tick");
        Wheel {
            tick_ns,
            origin_ns,
            tick_now: 0,
            levels: std::array::from_fn(|_| Level::default()),
            entries: Slab::new(),
            generation: 0,
        }
    }

    /// Returns the number of pending timers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no timer is pending.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a timer. A deadline that has passed fires at the next [`Wheel::advance`] that reaches a new tick.
    pub fn insert(&mut self, deadline_ns: u64, precision: Precision, item: T) -> TimerKey {
        let since = deadline_ns.saturating_sub(self.origin_ns);
        let tick = match precision {
            Precision::About => (since + self.tick_ns / 2) / self.tick_ns,
            Precision::NotBefore => since.div_ceil(self.tick_ns),
        };
        // Never into the current slot: it has fired already.
        let tick = tick.clamp(self.tick_now + 1, self.tick_now + HORIZON_TICKS);
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.entries.insert(Entry {
            tick,
            generation,
            item,
            place: (0, 0),
            prev: NIL,
            next: NIL,
        });
        self.link(index as u32);
        TimerKey {
            index: index as u32,
            generation,
        }
    }

    /// Removes a timer. Returns `None` if it has already fired or been cancelled.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        self.unlink(key.index);
        Some(self.entries.remove(key.index as usize).item)
    }

    /// Fires all timers with ticks up to `now_ns`, earliest tick first. Returns their number.
    pub fn advance(&mut self, now_ns: u64, mut fire: impl FnMut(T)) -> usize {
        let target = now_ns.saturating_sub(self.origin_ns) / self.tick_ns;
        let mut fired = 0;
        while self.tick_now < target {
            let Some(tick) = self.next_tick().filter(|tick| *tick <= target) else {
                self.tick_now = target;
                break;
            };
            self.tick_now = tick;
            fired += self.turn(tick, &mut fire);
        }
        fired
    }

    /// Returns the time at which to call [`Wheel::advance`] next. It is never after the earliest deadline's tick. It may be
    /// before that tick if a timer in the distant future has to move to a finer level.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.next_tick()
            .map(|tick| self.origin_ns + tick * self.tick_ns)
    }

    /// Handles the wheel at `tick`: spreads the coarse slots that begin here, and fires the finest one.
    fn turn(&mut self, tick: u64, fire: &mut impl FnMut(T)) -> usize {
        for level in (1..LEVELS).rev() {
            if tick.is_multiple_of(1 << (SLOT_BITS * level as u32)) {
                let slot = slot_of(tick, level);
                while let Some(index) = self.pop(level, slot) {
                    self.link(index);
                }
            }
        }
        let mut fired = 0;
        let slot = slot_of(tick, 0);
        while let Some(index) = self.pop(0, slot) {
            let entry = self.entries.remove(index as usize);
            debug_assert_eq!(entry.tick, tick);
            fire(entry.item);
            fired += 1;
        }
        fired
    }

    /// Returns the next tick at which a slot of any level is due.
    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS)
            .filter_map(|level| self.next_tick_of(level))
            .min()
    }

    fn next_tick_of(&self, level: usize) -> Option<u64> {
        let occupied = self.levels[level].occupied;
        if occupied == 0 {
            return None;
        }
        let shift = SLOT_BITS * level as u32;
        let position = self.tick_now >> shift;
        // The slot at the current position has already been turned, so its next turn is the last one of the round.
        let first = (position + 1) & SLOT_MASK;
        let ahead = u64::from(occupied.rotate_right(first as u32).trailing_zeros());
        Some((position + 1 + ahead) << shift)
    }

    /// Places an entry by its distance from now.
    fn link(&mut self, index: u32) {
        let tick = self.entries[index as usize].tick;
        let differs = (tick ^ self.tick_now) | SLOT_MASK;
        let mut level = ((63 - differs.leading_zeros()) / SLOT_BITS) as usize;
        // A carry may change a bit above the coarsest level. The deadline is within [`HORIZON_TICKS`], so the entry fits that
        // level.
        level = level.min(LEVELS - 1);
        let slot = slot_of(tick, level);
        let head = self.levels[level].heads[slot];
        {
            let entry = &mut self.entries[index as usize];
            entry.place = (level as u8, slot as u8);
            entry.prev = NIL;
            entry.next = head;
        }
        if head != NIL {
            self.entries[head as usize].prev = index;
        }
        self.levels[level].heads[slot] = index;
        self.levels[level].occupied |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Entry {
            place: (level, slot),
            prev,
            next,
            ..
        } = self.entries[index as usize];
        let level = &mut self.levels[level as usize];
        if prev == NIL {
            level.heads[slot as usize] = next;
            if next == NIL {
                level.occupied &= !(1 << slot);
            }
        } else {
            self.entries[prev as usize].next = next;
        }
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
    }

    fn pop(&mut self, level: usize, slot: usize) -> Option<u32> {
        let head = self.levels[level].heads[slot];
        (head != NIL).then(|| {
            self.unlink(head);
            head
        })
    }
}

fn slot_of(tick: u64, level: usize) -> usize {
    ((tick >> (SLOT_BITS * level as u32)) & SLOT_MASK) as usize
}

#[derive(Debug)]
struct Entry<T> {
    tick: u64,
    generation: u32,
    item: T,
    /// Level and slot.
    place: (u8, u8),
    prev: u32,
    next: u32,
}

#[derive(Debug)]
struct Level {
    /// Bit i is set if slot i is not empty.
    occupied: u64,
    heads: [u32; SLOTS],
}

impl Default for Level {
    fn default() -> Self {
        Level {
            occupied: 0,
            heads: [NIL; SLOTS],
        }
    }
}

const NIL: u32 = u32::MAX;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_MASK: u64 = SLOTS as u64 - 1;
const LEVELS: usize = 6;
/// Distance of the latest possible tick. A deadline beyond it fires at that tick (with ticks of 1 ms: after 2 years).
const HORIZON_TICKS: u64 =
    (1 << (SLOT_BITS * LEVELS as u32)) - (1 << (SLOT_BITS * (LEVELS as u32 - 1))) - 1;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_not_before_timer_is_never_early_and_an_about_timer_is_at_the_nearest_tick() {
        let mut wheel = Wheel::new(0, 20);
        wheel.insert(101, Precision::NotBefore, "not before");
        wheel.insert(109, Precision::About, "about");
        let mut fired = Vec::new();
        wheel.advance(100, |item| fired.push(item));
        assert_eq!(fired, ["about"]);
        assert_eq!(wheel.next_deadline_ns(), Some(120));
        wheel.advance(119, |item| fired.push(item));
        assert_eq!(fired.len(), 1);
        wheel.advance(120, |item| fired.push(item));
        assert_eq!(fired, ["about", "not before"]);
    }

    #[test]
    fn a_cancelled_timer_does_not_fire_and_its_key_is_dead() {
        let mut wheel = Wheel::new(0, 1);
        let key = wheel.insert(70_000, Precision::NotBefore, 1);
        assert_eq!(wheel.cancel(key), Some(1));
        assert_eq!(wheel.cancel(key), None);
        let other = wheel.insert(70_000, Precision::NotBefore, 2);
        assert_ne!(key, other);
        assert_eq!(wheel.cancel(key), None, "the slot was used again");
        assert_eq!(wheel.len(), 1);
    }

    /// A simple model: an ordered map of ticks.
    #[derive(Default)]
    struct Naive {
        timers: BTreeMap<(u64, u32), ()>,
    }

    proptest! {
        /// Compares the wheel with a simple model. For any mix of inserts, cancels and steps, both fire the same timers, tick by
        /// tick, and `next_deadline_ns` is never after the earliest deadline.
        #[test]
        fn equals_the_naive_twin(
            tick in 1u64..50,
            steps in prop::collection::vec((0u64..400_000, 0u64..9_000, any::<bool>()), 1..200),
        ) {
            let mut wheel = Wheel::new(0, tick);
            let mut naive = Naive::default();
            let mut keys = Vec::new();
            let (mut now, mut tick_now) = (0u64, 0u64);
            for (id, (delay, step, cancel)) in steps.into_iter().enumerate() {
                let id = id as u32;
                let due = (now + delay).div_ceil(tick).max(tick_now + 1);
                keys.push((wheel.insert(now + delay, Precision::NotBefore, id), due, id));
                naive.timers.insert((due, id), ());
                if cancel {
                    let (key, due, id) = keys[id as usize / 2];
                    let there = naive.timers.remove(&(due, id)).is_some();
                    prop_assert_eq!(wheel.cancel(key).is_some(), there);
                }
                if let Some((&(earliest, _), _)) = naive.timers.first_key_value() {
                    prop_assert!(wheel.next_deadline_ns().unwrap() <= earliest * tick);
                }
                now += step;
                let target = now / tick;
                let mut expected: Vec<u32> = Vec::new();
                while let Some((&(due, id), _)) = naive.timers.first_key_value() {
                    if due > target { break; }
                    naive.timers.remove(&(due, id));
                    expected.push(id);
                }
                tick_now = tick_now.max(target);
                let mut fired = Vec::new();
                wheel.advance(now, |id| fired.push(id));
                expected.sort_unstable();
                fired.sort_unstable();
                prop_assert_eq!(fired, expected);
                prop_assert_eq!(wheel.len(), naive.timers.len());
            }
        }
    }
}
