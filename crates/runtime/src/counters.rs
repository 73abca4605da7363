//! Counters of a shard. Only the shard's thread writes them; readers take relaxed snapshots without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Values since the shard started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CountersSnapshot {
    /// Wake-ups from a sleep in the kernel.
    pub wakeups: u64,
    /// Nanoseconds in which the thread was not asleep. It is wall-clock time, so preemption counts as busy.
    pub busy_ns: u64,
    /// Packets reported by agents with [`crate::Cx::count_packets`].
    pub packets: u64,
    /// Number of agents on the shard.
    pub agents: u64,
    /// Longest ready queue at the start of a pass.
    pub ready_max: u64,
    /// Lateness of the slices.
    pub lateness: Lateness,
}

/// Lateness of slices, in ns: the time from a slice's edge to its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Slices counted.
    pub slices: u64,
    /// Median, as the upper bound of its histogram bucket. Buckets are at most 25 % wide.
    pub p50_ns: u64,
    /// 99th percentile, as the upper bound of its histogram bucket.
    pub p99_ns: u64,
    /// The maximum, exact.
    pub max_ns: u64,
    /// Recent lateness of slices. It includes the delay by an earlier slice that lasted too long. The value is a maximum that
    /// fades by an eighth with each slice; without slices, it does not change.
    pub recent_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) wakeups: Counter,
    pub(crate) busy_ns: Counter,
    pub(crate) packets: Counter,
    pub(crate) agents: Counter,
    pub(crate) ready_max: Counter,
    lateness_max_ns: Counter,
    lateness_recent_ns: Counter,
    lateness: [Counter; BUCKETS],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Counters {
            wakeups: Counter::default(),
            busy_ns: Counter::default(),
            packets: Counter::default(),
            agents: Counter::default(),
            ready_max: Counter::default(),
            lateness_max_ns: Counter::default(),
            lateness_recent_ns: Counter::default(),
            lateness: std::array::from_fn(|_| Counter::default()),
        }
    }

    pub(crate) fn slice_late_by(&self, late_ns: u64) {
        self.lateness[bucket_of(late_ns)].add(1);
        self.lateness_max_ns.raise_to(late_ns);
    }

    /// Updates the recent lateness with a slice that began `late_ns` after the end of the wait. This may be more than the slice's
    /// lateness against its edge: after a slice that lasted too long, the next slice gets a later edge.
    pub(crate) fn slice_overdue_by(&self, late_ns: u64) {
        let recent_ns = self.lateness_recent_ns.get();
        let faded_ns = recent_ns - recent_ns / FADES_IN;
        self.lateness_recent_ns.set(late_ns.max(faded_ns));
    }

    pub(crate) fn lateness_recent_ns(&self) -> u64 {
        self.lateness_recent_ns.get()
    }

    pub(crate) fn snapshot(&self) -> CountersSnapshot {
        let counts: Vec<u64> = self.lateness.iter().map(Counter::get).collect();
        let slices = counts.iter().sum();
        let max_ns = self.lateness_max_ns.get();
        let quantile = |per_cent: u64| quantile(&counts, slices, per_cent).min(max_ns);
        CountersSnapshot {
            wakeups: self.wakeups.get(),
            busy_ns: self.busy_ns.get(),
            packets: self.packets.get(),
            agents: self.agents.get(),
            ready_max: self.ready_max.get(),
            lateness: Lateness {
                slices,
                p50_ns: quantile(50),
                p99_ns: quantile(99),
                max_ns,
                recent_ns: self.lateness_recent_ns.get(),
            },
        }
    }
}

/// A number with one writer. An update is a load and a store, not an atomic read-modify-write.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    pub(crate) fn raise_to(&self, n: u64) {
        if n > self.0.load(Relaxed) {
            self.0.store(n, Relaxed);
        }
    }
}

/// With each later slice, the recent lateness fades by one part in this number.
const FADES_IN: u64 = 8;

/// Four buckets per octave, from 1 µs up to over an hour.
const BUCKETS: usize = 128;

fn bucket_of(ns: u64) -> usize {
    let us = ns / 1_000;
    if us < 4 {
        return us as usize;
    }
    let octave = 63 - us.leading_zeros() as usize;
    let quarter = ((us >> (octave - 2)) & 3) as usize;
    (4 * (octave - 1) + quarter).min(BUCKETS - 1)
}

/// Returns the first value, in ns, that is above the bucket.
fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket < 4 {
        return (bucket as u64 + 1) * 1_000;
    }
    let (octave, quarter) = (bucket / 4 + 1, (bucket % 4) as u64);
    ((4 + quarter + 1) << (octave - 2)) * 1_000
}

fn quantile(counts: &[u64], total: u64, per_cent: u64) -> u64 {
    let rank = (total * per_cent).div_ceil(100);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= rank && seen > 0 {
            return bucket_end_ns(bucket);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_hold_their_values() {
        for us in (0..5_000u64).chain([1 << 20, (1 << 20) + 1, 1 << 30]) {
            let bucket = bucket_of(us * 1_000);
            assert!(us * 1_000 < bucket_end_ns(bucket), "{us} µs");
            assert!(
                bucket == 0 || us * 1_000 >= bucket_end_ns(bucket - 1),
                "{us} µs"
            );
        }
    }

    #[test]
    fn recent_lateness_rises_at_once_and_fades() {
        let counters = Counters::new();
        counters.slice_overdue_by(8_000_000);
        assert_eq!(counters.lateness_recent_ns(), 8_000_000);
        counters.slice_overdue_by(0);
        assert_eq!(counters.lateness_recent_ns(), 7_000_000);
        for _ in 0..200 {
            counters.slice_overdue_by(50);
        }
        let lateness = counters.snapshot().lateness;
        assert_eq!(lateness.recent_ns, 50);
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth() {
        let counters = Counters::new();
        for us in 1..=1_000u64 {
            counters.slice_late_by(us * 1_000);
        }
        let lateness = counters.snapshot().lateness;
        assert_eq!((lateness.slices, lateness.max_ns), (1_000, 1_000_000));
        assert!(
            (500_000..=625_000).contains(&lateness.p50_ns),
            "{lateness:?}"
        );
        assert!(
            (990_000..=1_000_000).contains(&lateness.p99_ns),
            "{lateness:?}"
        );
    }
}
