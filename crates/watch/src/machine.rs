//! The media threads: load, lateness, and the last time that work blocked each of them.

use std::collections::{BTreeMap, VecDeque};

use threadbare_runtime::{Blocked, CountersSnapshot};

/// The last seconds of a media thread.
#[derive(Debug, Clone, Default)]
pub struct ThreadTrack {
    /// The last seconds, oldest first.
    pub recent: VecDeque<ThreadSecond>,
    /// The last time that work blocked the thread.
    pub blocked: Option<Blocked>,
    counted: Option<(u64, CountersSnapshot)>,
}

/// A second of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ThreadSecond {
    /// Share of the second in which the thread was not asleep, in thousandths.
    pub busy_permille: u16,
    /// Recent maximum lateness of the thread's slices.
    pub lateness_us: u32,
    /// Number of packets that the thread handled.
    pub packets: u32,
}

/// All media threads.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// The threads by name.
    pub threads: BTreeMap<String, ThreadTrack>,
    /// Number of seconds so far.
    pub seconds: u64,
}

/// A reading of a thread.
#[derive(Debug, Clone)]
pub struct ThreadSeen {
    /// The thread's name.
    pub name: String,
    /// The thread's counters.
    pub counters: CountersSnapshot,
    /// The last time that work blocked the thread.
    pub blocked: Option<Blocked>,
}

impl ThreadSeen {
    /// Reads all media threads of this process.
    #[must_use]
    pub fn all() -> Vec<ThreadSeen> {
        let contexts = threadbare_runtime::contexts();
        let threads = contexts.iter().flat_map(|context| &context.threads);
        let seen = threads.map(|shard| ThreadSeen {
            name: shard.name().to_owned(),
            counters: shard.counters_snapshot(),
            blocked: shard.blocked().pop(),
        });
        seen.collect()
    }
}

impl Machine {
    /// Adds a second. Call this once a second.
    pub fn look(&mut self, now_ns: u64, seen: Vec<ThreadSeen>) {
        self.seconds += 1;
        self.threads
            .retain(|name, _| seen.iter().any(|thread| thread.name == *name));
        for thread in seen {
            let track = self.threads.entry(thread.name).or_default();
            track.look(now_ns, thread.counters);
            track.blocked = thread.blocked;
        }
    }
}

impl ThreadTrack {
    fn look(&mut self, now_ns: u64, counters: CountersSnapshot) {
        let before = self.counted.replace((now_ns, counters));
        let Some((then_ns, before)) = before else {
            return;
        };
        let elapsed_ns = now_ns.saturating_sub(then_ns).max(1);
        let busy_ns = counters.busy_ns.saturating_sub(before.busy_ns);
        let packets = counters.packets.saturating_sub(before.packets);
        if self.recent.len() == SECONDS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(ThreadSecond {
            busy_permille: (u128::from(busy_ns) * 1000 / u128::from(elapsed_ns)).min(1000) as u16,
            lateness_us: (counters.lateness.recent_ns / 1000) as u32,
            packets: packets.min(u32::MAX.into()) as u32,
        });
    }
}

/// Number of stored seconds: the same as for streams.
const SECONDS_MAX: usize = super::RECENT_SECONDS;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(busy_ns: u64, packets: u64) -> Vec<ThreadSeen> {
        let counters = CountersSnapshot {
            busy_ns,
            packets,
            ..CountersSnapshot::default()
        };
        vec![ThreadSeen {
            name: "a".to_owned(),
            counters,
            blocked: None,
        }]
    }

    #[test]
    fn each_second_has_the_difference_of_counters_and_old_ones_are_dropped() {
        const S: u64 = 1_000_000_000;
        let mut machine = Machine::default();
        machine.look(S, seen(5 * S, 100));
        assert!(machine.threads["a"].recent.is_empty());
        machine.look(2 * S, seen(5 * S + S / 4, 150));
        let second = machine.threads["a"].recent[0];
        assert_eq!((second.busy_permille, second.packets), (250, 50));
        for now in 3..2000 {
            machine.look(now * S, seen(now * S, now));
        }
        assert_eq!(machine.threads["a"].recent.len(), SECONDS_MAX);
        machine.look(2000 * S, Vec::new());
        assert!(machine.threads.is_empty());
    }
}
