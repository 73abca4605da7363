//! The timers of the calls. Each call has one, which can be moved to a later time at no cost.

use threadbare_runtime::{Precision, TimerKey, Wheel};

use crate::io::reserve;

pub(super) struct Timers {
    wheel: Wheel<u32>,
    /// The timers, by the places of their calls. Most calls only move their timer, which changes only this table.
    armed: Vec<Armed>,
    fired: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Armed {
    /// Time of the call's next turn. `NEVER`: there is none.
    due_ns: u64,
    /// The entry in the wheel, which may be for an earlier time.
    entry: Option<(u64, TimerKey)>,
}

impl Timers {
    pub(super) fn new() -> Timers {
        Timers {
            wheel: Wheel::new(0, TICK_NS),
            armed: Vec::new(),
            fired: Vec::new(),
        }
    }

    /// Sets the timer of call `index`, or clears it.
    #[inline]
    pub(super) fn set(&mut self, index: u32, due_ns: Option<u64>) {
        let place = index as usize;
        if place >= self.armed.len() {
            let none = Armed {
                due_ns: NEVER,
                entry: None,
            };
            self.armed.resize(place + 1, none);
            reserve(&mut self.fired, self.armed.len());
        }
        let armed = &mut self.armed[place];
        armed.due_ns = due_ns.unwrap_or(NEVER);
        match armed.entry {
            // The timer is moved to a later time. The entry stays, and is checked when it fires.
            Some((at_ns, _)) if at_ns <= armed.due_ns => {}
            None if armed.due_ns == NEVER => {}
            _ => self.insert(index),
        }
    }

    fn insert(&mut self, index: u32) {
        let armed = &mut self.armed[index as usize];
        if let Some((_, key)) = armed.entry.take() {
            self.wheel.cancel(key);
        }
        let key = self.wheel.insert(armed.due_ns, Precision::NotBefore, index);
        armed.entry = Some((armed.due_ns, key));
    }

    /// Removes the timer of a call.
    pub(super) fn remove(&mut self, index: u32) {
        if let Some(armed) = self.armed.get_mut(index as usize) {
            armed.due_ns = NEVER;
            if let Some((_, key)) = armed.entry.take() {
                self.wheel.cancel(key);
            }
        }
    }

    /// Appends the calls that are due to `due`.
    pub(super) fn advance(&mut self, now_ns: u64, due: &mut Vec<u32>) {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.advance(now_ns, |index| fired.push(index));
        for index in fired.drain(..) {
            let armed = &mut self.armed[index as usize];
            armed.entry = None;
            if armed.due_ns <= now_ns {
                armed.due_ns = NEVER;
                due.push(index);
            } else if armed.due_ns != NEVER {
                self.insert(index);
            }
        }
        self.fired = fired;
    }

    /// Returns the time of the next `advance`.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.wheel.next_deadline_ns()
    }
}

/// Stands for no time.
const NEVER: u64 = u64::MAX;
/// Resolution of the timers, ns. It is finer than a slice, in which times are rounded again.
const TICK_NS: u64 = 250_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the calls that are due, in any order.
    fn due(timers: &mut Timers, now_ns: u64) -> Vec<u32> {
        let mut due = Vec::new();
        timers.advance(now_ns, &mut due);
        due.sort_unstable();
        due
    }

    #[test]
    fn a_timer_fires_once_at_its_last_time_and_never_early() {
        let mut timers = Timers::new();
        timers.set(3, Some(10 * MS));
        timers.set(0, Some(10 * MS));
        timers.set(3, Some(25 * MS));
        assert_eq!(timers.next_ns(), Some(10 * MS), "the old entry");
        assert_eq!(due(&mut timers, 10 * MS), [0]);
        timers.set(3, Some(20 * MS));
        assert_eq!(due(&mut timers, 20 * MS - 1), [0_u32; 0]);
        assert_eq!(due(&mut timers, 20 * MS), [3]);
        assert_eq!(due(&mut timers, 60 * MS), [0_u32; 0]);
        assert_eq!(timers.next_ns(), None);
    }

    #[test]
    fn a_cleared_timer_does_not_fire() {
        let mut timers = Timers::new();
        timers.set(1, Some(10 * MS));
        timers.set(1, None);
        timers.set(2, Some(10 * MS));
        timers.remove(2);
        assert_eq!(due(&mut timers, 20 * MS), [0_u32; 0]);
        timers.set(1, Some(30 * MS));
        assert_eq!(due(&mut timers, 30 * MS), [1]);
    }
}
