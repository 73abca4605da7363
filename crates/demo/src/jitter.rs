//! Bounds for the interarrival jitter in the gateway's reports (RFC 3550, A.8). They are as narrow as the parties can compute them.
//!
//! On loopback, the kernel stamps a packet during the send call. So the arrival time lies between the clock readings before and after the
//! call, and the jitter lies between two bounds. The jitter grows with each difference of arrival times, so the smallest possible
//! differences give the lower bound.

use std::ops::RangeInclusive;

use super::tone::PACKET_SAMPLES;

/// The bounds for one stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Jitter {
    /// The last packet: its earliest and its latest possible arrival time, and the time that its timestamp states.
    last: Option<(i64, i64, i64)>,
    packets: u32,
    least_ns: f64,
    most_ns: f64,
}

impl Jitter {
    /// Adds the next packet, in the order of sending. It was sent between the two times.
    pub(super) fn add(&mut self, packet: u32, before_ns: u64, after_ns: u64) {
        let due_ns = i64::from(packet) * PACKET_NS;
        let (before_ns, after_ns) = (before_ns as i64, after_ns as i64);
        let last = self.last.replace((before_ns, after_ns, due_ns));
        self.packets += 1;
        let Some((last_before_ns, last_after_ns, last_due_ns)) = last else {
            return;
        };
        let apart_ns = due_ns - last_due_ns;
        let least_ns = before_ns - last_after_ns - apart_ns;
        let most_ns = after_ns - last_before_ns - apart_ns;
        // A receiver that accepts a source only with its second packet (RFC 3550, A.1) may compute the jitter from the first or from the
        // second packet on.
        let least_ns = if least_ns <= 0 && most_ns >= 0 || self.packets <= 2 {
            0
        } else {
            least_ns.abs().min(most_ns.abs())
        };
        let most_ns = most_ns
            .abs()
            .max((before_ns - last_after_ns - apart_ns).abs());
        self.least_ns += (least_ns as f64 - self.least_ns) / 16.0;
        self.most_ns += (most_ns as f64 - self.most_ns) / 16.0;
    }

    /// Returns the jitter that a report after this packet may contain, in units of the timestamp.
    pub(super) fn units(&self) -> RangeInclusive<f64> {
        let units = |ns: f64| ns * RATE_HZ / 1e9;
        units(self.least_ns) - SLACK_UNITS..=units(self.most_ns) + SLACK_UNITS
    }
}

const RATE_HZ: f64 = 8000.0;
const PACKET_NS: i64 = PACKET_SAMPLES as i64 * 1_000_000_000 / RATE_HZ as i64;
/// Extra tolerance: 2 ms, and a unit for rounding. In each slice, the gateway maps the kernel's time to its own clock, with two clock
/// readings. If the thread loses the processor between the readings, for example for 16 ms, the time of one packet is wrong by 16 ms. This
/// changes two differences of arrival times by 16 ms each, and a sixteenth of each change is added to the jitter.
const SLACK_UNITS: f64 = 17.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Computes the jitter as in RFC 3550, A.8, in whole units.
    fn estimate(arrivals_ms: &[u64]) -> f64 {
        let mut jitter = 0.0;
        for n in 1..arrivals_ms.len() {
            let apart_ms = arrivals_ms[n] as f64 - arrivals_ms[n - 1] as f64;
            jitter += ((apart_ms - 20.0).abs() * 8.0 - jitter) / 16.0;
        }
        jitter
    }

    fn arrivals_ms() -> Vec<u64> {
        (0..300_u64)
            .map(|n| 1000 + n * 20 + n * n * 7 % 61)
            .collect()
    }

    #[test]
    fn the_jitter_estimate_of_the_rfc_lies_between_the_bounds() {
        let mut jitter = Jitter::default();
        for (packet, ms) in arrivals_ms().into_iter().enumerate() {
            jitter.add(packet as u32, ms * MS - MS / 4, ms * MS + MS / 4);
        }
        let expected = estimate(&arrivals_ms());
        assert!(expected > 100.0, "{expected}");
        let units = jitter.units();
        assert!(units.contains(&expected), "{expected}: {units:?}");
        // The bounds are not much wider than necessary. The two clock readings of a packet are half a millisecond apart, which is 4 units.
        // A difference between two arrivals has twice this uncertainty.
        assert!(
            units.end() - units.start() < 8.0 + 2.0 * SLACK_UNITS + 1.0,
            "{units:?}"
        );
    }

    #[test]
    fn neither_half_nor_twice_the_jitter_is_accepted() {
        let mut jitter = Jitter::default();
        for (packet, ms) in arrivals_ms().into_iter().enumerate() {
            jitter.add(packet as u32, ms * MS, ms * MS);
        }
        let expected = estimate(&arrivals_ms());
        for wrong in [expected / 2.0, expected * 2.0, 0.0] {
            assert!(!jitter.units().contains(&wrong), "{wrong}");
        }
    }
}
