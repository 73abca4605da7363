//! The load of the media threads, which is the share of time in which they do not sleep.

/// Measures the load of the least busy thread. New calls go to this thread, so the load of the others does not matter.
#[derive(Debug, Default)]
pub(super) struct Load {
    looked_ns: u64,
    /// Busy time of each thread at the last sample.
    busy_ns: Vec<u64>,
    percent: u32,
}

impl Load {
    /// Whether the next sample is due.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) >= WINDOW_NS
    }

    /// Handles a sample. `busy_ns` contains the busy time of each thread since its start.
    pub(super) fn look(&mut self, now_ns: u64, busy_ns: Vec<u64>) {
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns);
        let pairs = busy_ns.iter().zip(&self.busy_ns);
        let least_ns = pairs.map(|(now, before)| now.saturating_sub(*before)).min();
        let percent = least_ns.map(|ns| u128::from(ns) * 100 / u128::from(elapsed_ns.max(1)));
        self.percent = percent.map_or(0, |percent| percent.min(100) as u32);
        self.looked_ns = now_ns;
        self.busy_ns = busy_ns;
    }

    /// Returns the load between the last two samples.
    pub(super) fn percent(&self) -> u32 {
        self.percent
    }
}

/// Minimum time between samples. Over a shorter time, a single slice would dominate.
const WINDOW_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_load_is_that_of_the_least_busy_thread() {
        let mut load = Load::default();
        assert!(load.is_due(S));
        load.look(S, vec![S / 2, 0]);
        // The first sample has none before it to compare with.
        assert_eq!(load.percent(), 0);
        assert!(!load.is_due(2 * S - 1) && load.is_due(2 * S));
        load.look(3 * S, vec![S / 2 + S, S / 2]);
        assert_eq!(load.percent(), 25);
        load.look(4 * S, vec![S / 2 + 2 * S, S / 2 + S]);
        assert_eq!(load.percent(), 100);
    }
}
