//! A latency that follows the observed delays. It is computed from a histogram of delays that fades with time, and from the share
//! of packets that should be received in time.
//!
//! The idea is that of NetEq's delay manager: an occasional lost packet is cheaper than a long delay on every packet.

use crate::config::Adaptive;
use threadbare_rtp_types::id::NS_PER_S;

/// Histogram of delays relative to the fastest packet, and the latency that follows from it.
#[derive(Debug)]
pub(crate) struct Target {
    /// Newer samples get larger weights, which is equivalent to letting older ones fade.
    weights: [f32; BUCKETS],
    total: f32,
    /// The weight of the next sample.
    weight: f32,
    bounds: Adaptive,
    target_ns: i64,
    next_step_ns: i64,
}

impl Target {
    /// Starts with `latency_ns`, limited to the bounds.
    pub(crate) fn new(bounds: Adaptive, latency_ns: u64) -> Target {
        Target {
            weights: [0.0; BUCKETS],
            total: 0.0,
            weight: 1.0,
            target_ns: latency_ns.clamp(bounds.min_ns, bounds.max_ns) as i64,
            bounds,
            next_step_ns: i64::MIN,
        }
    }

    /// Returns the latency, in ns.
    pub(crate) fn ns(&self) -> i64 {
        self.target_ns
    }

    /// Counts a packet that took `delay_ns` longer than the fastest packet. Late packets count, too.
    ///
    /// The target grows at once, because the next packet may be as late. When the target shrinks, audio is skipped, so it shrinks
    /// only in occasional steps.
    pub(crate) fn sample(&mut self, at_ns: i64, delay_ns: i64) {
        let bucket = (delay_ns / BUCKET_NS).clamp(0, BUCKETS as i64 - 1) as usize;
        self.weights[bucket] += self.weight;
        self.total += self.weight;
        self.weight *= GROWTH;
        if self.weight > WEIGHT_MAX {
            self.scale_down();
        }
        if delay_ns > self.target_ns {
            self.target_ns = self.target_ns.max(self.wanted_ns());
        } else if at_ns >= self.next_step_ns {
            let wanted_ns = self.wanted_ns();
            // The first sample must not shrink the target.
            if wanted_ns < self.target_ns && self.next_step_ns != i64::MIN {
                self.target_ns = wanted_ns.max(self.target_ns - STEP_NS);
            }
            self.next_step_ns = at_ns.saturating_add(STEP_PERIOD_NS);
        }
    }

    /// Applies the wanted latency at once. The packet is the first after a silence, so any change is inaudible.
    pub(crate) fn settle(&mut self) {
        if self.total >= SETTLE_SAMPLES_MIN * self.weight {
            self.target_ns = self.wanted_ns();
        }
    }

    /// Returns the least latency at which the wanted share of packets is in time.
    fn wanted_ns(&self) -> i64 {
        let wanted = self.total * QUANTILE;
        let mut sum = 0.0;
        let enough = self.weights.iter().position(|weight| {
            sum += weight;
            sum >= wanted
        });
        // Because of rounding errors in the sums, there may be no such bucket. The last bucket has no upper limit.
        let buckets = enough.unwrap_or(BUCKETS - 1) as i64 + 1;
        (buckets * BUCKET_NS).clamp(self.bounds.min_ns as i64, self.bounds.max_ns as i64)
    }

    #[cold]
    fn scale_down(&mut self) {
        for weight in &mut self.weights {
            *weight /= self.weight;
        }
        self.total = self.weights.iter().sum();
        self.weight = 1.0;
    }
}

/// Share of packets to receive in time.
const QUANTILE: f32 = 0.95;

/// Factor between the weights of consecutive samples. At 50 packets a second, the weight of a packet falls to 1/e in 10 s.
const GROWTH: f32 = 1.002;

/// Minimum number of samples for a change after a silence: a second of the usual packets. Fewer samples do not show which latency
/// is needed.
const SETTLE_SAMPLES_MIN: f32 = 50.0;

/// Weight at which the histogram is rescaled. At higher weights, sums with 24 bits of mantissa would lose the weight of single
/// samples.
const WEIGHT_MAX: f32 = 1e4;

/// Width of a bucket. It is shorter than a packet, because the latency need not be a multiple of a packet.
const BUCKET_NS: i64 = 5_000_000;

/// Number of buckets: 640 ms. A packet that queues longer is late.
const BUCKETS: usize = 128;

/// Step by which the latency shrinks. A listener does not notice such a skip, which is a sixth of a syllable's vowel.
const STEP_NS: i64 = 5_000_000;

const STEP_PERIOD_NS: i64 = NS_PER_S as i64;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BOUNDS: Adaptive = Adaptive {
        min_ns: 20 * MS,
        max_ns: 300 * MS,
    };

    /// Feeds `seconds` of packets, 50 a second, from `at_s` on.
    fn feed(target: &mut Target, at_s: i64, seconds: i64, delay_ms: impl Fn(i64) -> i64) {
        for n in 0..seconds * 50 {
            let at = at_s * NS_PER_S as i64 + n * 20 * MS as i64;
            target.sample(at, delay_ms(n) * MS as i64);
        }
    }

    #[test]
    fn latency_grows_within_a_few_packets_and_shrinks_by_steps() {
        let mut target = Target::new(BOUNDS, 40 * MS);
        feed(&mut target, 0, 60, |n| n % 10);
        assert_eq!(target.ns(), 20 * MS as i64);
        // Every fifth packet is delayed by 120 ms. The latency reaches this delay when these packets have 5 % of the weight.
        feed(&mut target, 60, 5, |n| if n % 5 == 0 { 120 } else { 3 });
        assert_eq!(target.ns(), 125 * MS as i64);
        let before = target.ns();
        feed(&mut target, 65, 1, |_| 3);
        assert!(target.ns() >= before - 2 * STEP_NS, "{}", target.ns());
        feed(&mut target, 66, 120, |_| 3);
        assert_eq!(target.ns(), 20 * MS as i64);
    }

    #[test]
    fn latency_settles_at_once_after_a_silence() {
        let mut target = Target::new(BOUNDS, 200 * MS);
        feed(&mut target, 0, 2, |_| 31);
        assert!(target.ns() > 150 * MS as i64);
        target.settle();
        assert_eq!(target.ns(), 35 * MS as i64);
        // A new stream keeps its initial latency.
        let mut target = Target::new(BOUNDS, 200 * MS);
        target.sample(0, 0);
        target.settle();
        assert_eq!(target.ns(), 200 * MS as i64);
    }

    #[test]
    fn latency_stays_within_its_bounds_for_hours() {
        let mut target = Target::new(BOUNDS, 1000 * MS);
        assert_eq!(target.ns(), 300 * MS as i64);
        feed(&mut target, 0, 7200, |n| (n * 7919) % 5000);
        assert_eq!(target.ns(), 300 * MS as i64);
        feed(&mut target, 7200, 7200, |_| 0);
        assert_eq!(target.ns(), 20 * MS as i64);
    }
}
