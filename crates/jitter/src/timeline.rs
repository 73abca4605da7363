//! RTP timestamps on a 64-bit time line.

use threadbare_rtp_types::id::{NS_PER_S, RtpTime};

/// Maps RTP timestamps to send times in ns, on a line that continues where timestamps wrap around or restart.
///
/// The anchor moves with the stream in whole seconds. So rounding errors do not add up, and every timestamp is interpreted as the
/// one nearest to the present time.
#[derive(Debug)]
pub(crate) struct Timeline {
    time: RtpTime,
    clock_rate_hz: u32,
    /// Duration of a unit in ns if that is a whole number, as at 8 and 16 kHz; otherwise 0. It saves a division per packet.
    unit_ns: u32,
    send_ns: i64,
}

impl Timeline {
    /// Creates a time line. `clock_rate_hz` must not be 0.
    pub(crate) fn new(clock_rate_hz: u32) -> Timeline {
        let ns_per_s = NS_PER_S as u32;
        let is_whole = ns_per_s.is_multiple_of(clock_rate_hz);
        Timeline {
            time: RtpTime(0),
            clock_rate_hz,
            unit_ns: if is_whole {
                ns_per_s / clock_rate_hz
            } else {
                0
            },
            send_ns: 0,
        }
    }

    /// From now on, `time` is at `send_ns`, and the clock rate is `clock_rate_hz`, which must not be 0.
    pub(crate) fn count_at(&mut self, clock_rate_hz: u32, time: RtpTime, send_ns: i64) {
        if clock_rate_hz != self.clock_rate_hz {
            *self = Timeline::new(clock_rate_hz);
        }
        self.anchor(time, send_ns);
    }

    /// From now on, `time` is at `send_ns`.
    pub(crate) fn anchor(&mut self, time: RtpTime, send_ns: i64) {
        self.time = time;
        self.send_ns = send_ns;
    }

    /// Returns the position of `time` on the line, rounded down.
    pub(crate) fn send_ns(&self, time: RtpTime) -> i64 {
        // 2^31 units times 10^9 stays below 2^63.
        let units = time.distance_from(self.time);
        let ns = if self.unit_ns > 0 {
            units * i64::from(self.unit_ns)
        } else {
            (units * NS_PER_S as i64).div_euclid(i64::from(self.clock_rate_hz))
        };
        self.send_ns.saturating_add(ns)
    }

    /// Returns the timestamp nearest to `send_ns`. This is the inverse of [`send_ns`](Self::send_ns).
    pub(crate) fn time(&self, send_ns: i64) -> RtpTime {
        let ns = i128::from(send_ns.saturating_sub(self.send_ns));
        let rate = i128::from(self.clock_rate_hz);
        let half = i128::from(NS_PER_S) / 2;
        let units = (ns * rate + half).div_euclid(i128::from(NS_PER_S));
        RtpTime(self.time.0.wrapping_add(units as u32))
    }

    /// Records that the stream has reached `time`. Timestamps are extended correctly if this is called at least every 2^31 units.
    pub(crate) fn follow(&mut self, time: RtpTime) {
        let units = time.distance_from(self.time);
        let rate = i64::from(self.clock_rate_hz);
        if units < 2 * rate {
            return;
        }
        let seconds = units / rate;
        // The number is below 2^31, because it is at most the distance.
        self.time = self.time.plus((seconds * rate) as u32);
        self.send_ns = self.send_ns.saturating_add(seconds * NS_PER_S as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_timestamps_adds_up_to_the_nanosecond() {
        // 48 kHz wraps around every 24.9 hours; 11025 Hz has no whole number of ns.
        for rate in [8_000, 11_025, 48_000, 90_000] {
            let mut line = Timeline::new(rate);
            let start = RtpTime(u32::MAX - 1000);
            line.anchor(start, 5_000);
            let mut units = 0_u64;
            while units < u64::from(rate) * 86_400 * 2 {
                units += 160_000;
                let time = start.plus(units as u32);
                let exact = u128::from(units) * u128::from(NS_PER_S) / u128::from(rate);
                assert_eq!(line.send_ns(time) as u128, 5_000 + exact);
                line.follow(time);
                assert_eq!(line.send_ns(time) as u128, 5_000 + exact, "{rate} {units}");
            }
        }
    }

    #[test]
    fn converting_a_timestamp_to_a_time_and_back_returns_the_timestamp() {
        for rate in [8_000, 11_025, 44_100, 48_000, 90_000] {
            let mut line = Timeline::new(rate);
            line.anchor(RtpTime(u32::MAX - 500), 7);
            for units in [0_u32, 1, 159, 160, 999, 1_000_000, u32::MAX] {
                let time = RtpTime(u32::MAX - 500).plus(units);
                assert_eq!(line.time(line.send_ns(time)), time, "{rate} {units}");
            }
        }
    }

    #[test]
    fn timestamps_before_the_anchor_are_before_it() {
        let mut line = Timeline::new(8_000);
        line.anchor(RtpTime(80), 0);
        assert_eq!(line.send_ns(RtpTime(0)), -10_000_000);
        assert_eq!(line.send_ns(RtpTime(u32::MAX - 79)), -20_000_000);
        line.follow(RtpTime(0));
        assert_eq!(line.send_ns(RtpTime(80)), 0);
    }
}
