//! The state of a shard's sleep, in one atomic word.
//!
//! ```text
//!            fall_asleep(Throttled)              fall_asleep(Idle)
//!   ACTIVE ------------------------> THROTTLED      ACTIVE ---> IDLE
//!   THROTTLED --notify_control--> NOTIFIED     IDLE --notify_control, notify_data--> NOTIFIED
//!   any --awake--> ACTIVE
//! ```
//!
//! Only the shard's thread falls asleep and wakes up; any thread notifies. Only the thread that changes the state to NOTIFIED
//! writes the eventfd.

use crate::sync::{AtomicU8, Ordering};

const ACTIVE: u8 = 0;
const THROTTLED: u8 = 1;
const IDLE: u8 = 2;
const NOTIFIED: u8 = 3;

/// The two ways to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepKind {
    /// Until the next slice edge. Data wait for the edge; control items interrupt the sleep.
    Throttled,
    /// Until any event.
    Idle,
}

#[derive(Debug)]
pub(crate) struct State(AtomicU8);

impl State {
    pub(crate) fn new() -> Self {
        State(AtomicU8::new(ACTIVE))
    }

    pub(crate) fn fall_asleep(&self, sleep: SleepKind) {
        let word = match sleep {
            SleepKind::Throttled => THROTTLED,
            SleepKind::Idle => IDLE,
        };
        self.0.store(word, Ordering::SeqCst);
    }

    /// Returns `true` if a notification came during the sleep.
    pub(crate) fn awake(&self) -> bool {
        self.0.swap(ACTIVE, Ordering::SeqCst) == NOTIFIED
    }

    /// Returns `true` if the caller changed the state and must write the eventfd.
    pub(crate) fn notify_control(&self) -> bool {
        self.step(THROTTLED) || self.step(IDLE)
    }

    /// Returns `true` if the caller changed the state and must write the eventfd.
    pub(crate) fn notify_data(&self) -> bool {
        self.step(IDLE)
    }

    fn step(&self, from: u8) -> bool {
        // The plain load keeps the cache line shared while the shard is busy, which is the common case.
        self.0.load(Ordering::SeqCst) == from
            && self
                .0
                .compare_exchange(from, NOTIFIED, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
    }
}
