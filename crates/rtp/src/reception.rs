//! Reception statistics of one source: whether the source is real, how many packets are missing, and how irregularly they arrive (RFC 3550,
//! appendices A.1, A.3 and A.8).
//!
//! Arrival times are 64-bit nanoseconds. If the arrival clock was cut to 32 bits of some unit, the jitter would become huge each time it
//! wraps.

use crate::id::{ExtSeq, NS_PER_S, RtpTime, SeqNum};

/// Number of packets in a row that make a source valid (RFC 3550, appendix A.1: `MIN_SEQUENTIAL`).
pub const MIN_SEQUENTIAL: u8 = 2;
/// A gap of this many packets or more is a jump, and not a loss (RFC 3550, appendix A.1: `MAX_DROPOUT`). It is a minute at 50 packets/s.
pub const MAX_DROPOUT: u16 = 3000;
/// A packet that is this late or later is a jump, and not a reordering (RFC 3550, appendix A.1: `MAX_MISORDER`).
pub const MAX_MISORDER: u16 = 100;

/// Maximum difference of two packets' transit times that enters the jitter. The estimator sums up 16 of them, which must fit 64 bits. The
/// difference is two years, and only a clock that jumps reaches it.
const TRANSIT_DIFFERENCE_NS_MAX: u64 = 1 << 56;
/// The value of `bad_seq` after a good packet.
const NO_SEQ: u32 = u32::MAX;

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// The source has not yet sent [`MIN_SEQUENTIAL`] packets in a row.
    Probation,
    /// The packet that made the source valid. Statistics begin with it.
    Validated,
    /// The packet is in sequence, follows a tolerable gap, was reordered, or is a duplicate.
    Valid,
    /// The packet is the second of two consecutive packets far from the previous sequence, so the sender has restarted. Statistics start
    /// again.
    Resync,
    /// The packet is far from the sequence. It is dropped, unless the next packet follows it.
    OutOfRange,
}

/// Loss as a report block carries it (RFC 3550, section 6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Packets that were lost since the last report, in 256ths of the expected packets.
    pub fraction: u8,
    /// Packets that were lost since the beginning, -2^23..2^23. Negative if there are more duplicates than losses.
    pub cumulative: i32,
}

/// Reception statistics of one source.
#[derive(Debug, Clone)]
#[repr(C)] // fields that every packet uses come first, together
pub struct Reception {
    highest: ExtSeq,
    received: u64,
    arrived_ns: u64,
    jitter_ns_q4: u64,
    ns_per_unit_q32: u64,
    time: RtpTime,
    bad_seq: u32,
    probation: u8,
    has_previous: bool,
    clock_rate_hz: u32,
    resyncs: u32,
    base: ExtSeq,
    expected_prior: u64,
    received_prior: u64,
}

impl Reception {
    /// Creates a source that has sent no packets yet. Its timestamps have `clock_rate_hz` units per second, at least 1.
    #[must_use]
    pub fn new(clock_rate_hz: u32) -> Reception {
        let clock_rate_hz = clock_rate_hz.max(1);
        Reception {
            highest: ExtSeq(0),
            received: 0,
            arrived_ns: 0,
            jitter_ns_q4: 0,
            ns_per_unit_q32: ns_per_unit_q32(clock_rate_hz),
            time: RtpTime(0),
            bad_seq: NO_SEQ,
            probation: MIN_SEQUENTIAL,
            has_previous: false,
            clock_rate_hz,
            resyncs: 0,
            base: ExtSeq(0),
            expected_prior: 0,
            received_prior: 0,
        }
    }

    /// Handles a packet that arrived at `now_ns` (monotonic).
    #[inline]
    pub fn handle(&mut self, now_ns: u64, seq: SeqNum, time: RtpTime) -> Receipt {
        if self.probation > 0 {
            return self.prove(now_ns, seq, time);
        }
        // RFC 3550, appendix A.1: "udelta = seq - s->max_seq"
        let ahead = seq.0.wrapping_sub(self.highest.seq().0);
        let mut receipt = Receipt::Valid;
        if ahead < MAX_DROPOUT {
            // "in order, with permissible gap". A duplicate of the highest has a gap of 0.
            self.highest.0 += u64::from(ahead);
        } else if ahead <= u16::MAX - MAX_MISORDER + 1 {
            // "the sequence number made a very large jump"
            if u32::from(seq.0) != self.bad_seq {
                self.bad_seq = u32::from(seq.plus(1).0);
                return Receipt::OutOfRange;
            }
            // "Two sequential packets -- assume that the other side restarted without telling us"
            self.restart(seq);
            self.resyncs = self.resyncs.saturating_add(1);
            receipt = Receipt::Resync;
        }
        // Otherwise the packet is a "duplicate or reordered packet", and the highest number stays the maximum.
        self.bad_seq = NO_SEQ;
        self.received += 1;
        self.note_timing(now_ns, time);
        receipt
    }

    /// Handles a packet on probation. "Source is not valid until MIN_SEQUENTIAL packets with sequential sequence numbers have been
    /// received." (RFC 3550, appendix A.1)
    #[cold]
    fn prove(&mut self, now_ns: u64, seq: SeqNum, time: RtpTime) -> Receipt {
        self.arrived_ns = now_ns;
        let is_next = self.probation < MIN_SEQUENTIAL && seq == self.highest.seq().plus(1);
        self.highest = ExtSeq::first(seq);
        self.probation = if is_next {
            self.probation - 1
        } else {
            MIN_SEQUENTIAL - 1
        };
        if self.probation > 0 {
            return Receipt::Probation;
        }
        self.restart(seq);
        self.received = 1;
        self.note_timing(now_ns, time);
        Receipt::Validated
    }

    fn restart(&mut self, seq: SeqNum) {
        self.highest = ExtSeq::first(seq);
        self.base = self.highest;
        self.received = 0;
        self.expected_prior = 0;
        self.received_prior = 0;
        self.bad_seq = NO_SEQ;
        // The timestamps may have restarted too.
        self.has_previous = false;
    }

    /// Updates the jitter by "D(i,j) = (Rj - Ri) - (Sj - Si)" (RFC 3550, section 6.4.1), for this packet and the one that arrived before
    /// it.
    #[inline]
    fn note_timing(&mut self, now_ns: u64, time: RtpTime) {
        if self.has_previous {
            let arrival_ns = now_ns.wrapping_sub(self.arrived_ns).cast_signed();
            let units = i128::from(time.distance_from(self.time));
            // There are at most 2^31 units of at most 10^9 ns, which fits.
            let sent_ns = ((units * i128::from(self.ns_per_unit_q32)) >> 32) as i64;
            let difference_ns = arrival_ns
                .saturating_sub(sent_ns)
                .unsigned_abs()
                .min(TRANSIT_DIFFERENCE_NS_MAX);
            // This is the scaled form in RFC 3550, appendix A.8, "s->jitter += d - ((s->jitter + 8) >> 4)", in 16ths of a nanosecond.
            self.jitter_ns_q4 = self.jitter_ns_q4 - ((self.jitter_ns_q4 + 8) >> 4) + difference_ns;
        }
        self.has_previous = true;
        self.arrived_ns = now_ns;
        self.time = time;
    }

    /// Changes the clock rate of the timestamps. The jitter does not change, because in nanoseconds it needs none of the conversion that
    /// RFC 7160 describes.
    pub fn set_clock_rate(&mut self, clock_rate_hz: u32) {
        let clock_rate_hz = clock_rate_hz.max(1);
        if clock_rate_hz != self.clock_rate_hz {
            self.clock_rate_hz = clock_rate_hz;
            self.ns_per_unit_q32 = ns_per_unit_q32(clock_rate_hz);
            self.has_previous = false;
        }
    }

    /// Whether the source has passed probation.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.probation == 0
    }

    /// Returns the highest sequence number so far. A late packet does not lower it.
    #[must_use]
    pub fn highest(&self) -> ExtSeq {
        self.highest
    }

    /// Returns the highest sequence number in the form of a report block: 16 bits with the number of wrap-arounds since the beginning, and
    /// 16 bits of the number.
    #[must_use]
    pub fn highest_reported(&self) -> u32 {
        // The cycles of an `ExtSeq` begin at 1, and those of a report at 0.
        (self.highest.0.wrapping_sub(1 << 16)) as u32
    }

    /// Returns the number of packets received since the beginning or the last restart, duplicates and late ones included.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of packets that the sequence numbers imply since the beginning or the last restart.
    #[must_use]
    pub fn expected(&self) -> u64 {
        // RFC 3550, appendix A.3: "expected = extended_max - s->base_seq + 1"
        if self.is_valid() {
            self.highest.0 - self.base.0 + 1
        } else {
            0
        }
    }

    /// Returns the number of lost packets. "The number of packets lost is defined to be the number of packets expected less the number of
    /// packets actually received" (RFC 3550, appendix A.3). It is negative if there are more duplicates than losses.
    #[must_use]
    pub fn lost(&self) -> i64 {
        self.expected().cast_signed() - self.received.cast_signed()
    }

    /// Returns the number of times that the sender restarted its numbers.
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        self.resyncs
    }

    /// Returns the arrival time of the last packet that counted or was on probation.
    #[must_use]
    pub fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Whether packets arrived since the last [`take_loss`](Reception::take_loss).
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.received != self.received_prior
    }

    /// Returns the loss for a report, and ends the report's interval.
    pub fn take_loss(&mut self) -> Loss {
        let expected = self.expected();
        // RFC 3550, appendix A.3: "expected_interval = expected - s->expected_prior" and so on
        let expected_interval = expected - self.expected_prior;
        let received_interval = self.received - self.received_prior;
        self.expected_prior = expected;
        self.received_prior = self.received;
        let lost_interval = expected_interval.saturating_sub(received_interval);
        let fraction = (u128::from(lost_interval) << 8)
            .checked_div(u128::from(expected_interval))
            .map_or(0, |fraction| fraction.min(255) as u8);
        // "this signed number is only 24 bits and should be clamped at 0x7fffff for positive loss or 0x800000 for
        // negative loss rather than wrapping around"
        let cumulative = self.lost().clamp(-0x80_0000, 0x7f_ffff) as i32;
        Loss {
            fraction,
            cumulative,
        }
    }

    /// Returns the interarrival jitter in nanoseconds.
    #[must_use]
    pub fn jitter_ns(&self) -> u64 {
        self.jitter_ns_q4 >> 4
    }

    /// Returns the interarrival jitter in timestamp units, as reports have it.
    #[must_use]
    pub fn jitter_units(&self) -> u32 {
        let units = u128::from(self.jitter_ns_q4) * u128::from(self.clock_rate_hz)
            / (16 * u128::from(NS_PER_S));
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    /// Returns the number of timestamp units per second.
    #[must_use]
    pub fn clock_rate_hz(&self) -> u32 {
        self.clock_rate_hz
    }
}

/// Returns the nanoseconds per timestamp unit as a fixed-point number with 32 fractional bits. This replaces a division for each packet by
/// a multiplication and a shift. Even for 2^31 units, the result is off by at most half a nanosecond.
fn ns_per_unit_q32(clock_rate_hz: u32) -> u64 {
    (NS_PER_S << 32).div_euclid(u64::from(clock_rate_hz))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const RATE_HZ: u32 = 8000;

    /// Returns a valid source that has received the packets 100 and 101.
    fn valid() -> Reception {
        let mut reception = Reception::new(RATE_HZ);
        assert_eq!(handle(&mut reception, 100), Receipt::Probation);
        assert_eq!(handle(&mut reception, 101), Receipt::Validated);
        reception
    }

    /// Handles packet `seq`, which arrives on time.
    fn handle(reception: &mut Reception, seq: u16) -> Receipt {
        let time = RtpTime(u32::from(seq) * 160);
        reception.handle(u64::from(seq) * 20 * MS, SeqNum(seq), time)
    }

    #[test]
    fn two_packets_in_a_row_make_a_source_valid() {
        let mut reception = Reception::new(RATE_HZ);
        for seq in [5, 7, 9, 8] {
            assert_eq!(handle(&mut reception, seq), Receipt::Probation, "{seq}");
        }
        assert_eq!(reception.expected(), 0);
        assert_eq!(handle(&mut reception, 9), Receipt::Validated);
        assert_eq!((reception.received(), reception.expected()), (1, 1));
        // The same holds at the wrap-around.
        let mut reception = Reception::new(RATE_HZ);
        assert_eq!(handle(&mut reception, 65_535), Receipt::Probation);
        assert_eq!(handle(&mut reception, 0), Receipt::Validated);
    }

    #[test]
    fn a_jump_is_dropped_until_a_second_packet_confirms_it() {
        let cases: &[(&[u16], Receipt)] = &[
            (&[3100], Receipt::Valid),      // 2999 ahead
            (&[3101], Receipt::OutOfRange), // 3000 ahead
            (&[3101, 3102], Receipt::Resync),
            (&[3101, 3103], Receipt::OutOfRange),
            (&[3101, 102, 3102], Receipt::OutOfRange), // not consecutive
            (&[1], Receipt::OutOfRange),               // 100 late
            (&[2], Receipt::Valid),                    // 99 late
            (&[101], Receipt::Valid),                  // a duplicate
        ];
        for (seqs, last) in cases {
            let mut reception = valid();
            let receipts: Vec<_> = seqs
                .iter()
                .map(|seq| handle(&mut reception, *seq))
                .collect();
            assert_eq!(receipts.last(), Some(last), "{seqs:?}: {receipts:?}");
        }
    }

    #[test]
    fn restart_resets_the_statistics() {
        let mut reception = valid();
        handle(&mut reception, 110);
        assert_eq!(reception.lost(), 8);
        handle(&mut reception, 40_000);
        handle(&mut reception, 40_001);
        assert_eq!((reception.lost(), reception.received()), (0, 1));
        assert_eq!(reception.resyncs(), 1);
        let jitter_ns = reception.jitter_ns();
        handle(&mut reception, 40_002);
        assert_eq!(
            reception.jitter_ns(),
            jitter_ns,
            "the new timestamps are compared with the old"
        );
    }

    /// Another implementation reports the number of the last packet instead of the maximum.
    #[test]
    fn the_highest_number_is_a_maximum() {
        let mut reception = valid();
        handle(&mut reception, 105);
        let highest = reception.highest_reported();
        for late in [103, 104, 102] {
            assert_eq!(handle(&mut reception, late), Receipt::Valid);
            assert_eq!(reception.highest_reported(), highest);
        }
        assert_eq!((highest, reception.lost()), (105, 0));
        // A late packet from before the wrap-around does not change the number of cycles.
        let mut reception = Reception::new(RATE_HZ);
        for seq in [65_533, 65_534, 0, 65_535, 1] {
            handle(&mut reception, seq);
        }
        assert_eq!(reception.highest_reported(), 1 << 16 | 1);
        assert_eq!(reception.lost(), 0);
    }

    /// In another implementation, the jitter value never decreased.
    #[test]
    fn the_jitter_decays_to_zero_on_a_steady_stream() {
        let mut reception = Reception::new(RATE_HZ);
        let mut arrive = |packet: u64, late_ns: u64| {
            let time = RtpTime(packet as u32 * 160);
            reception.handle(packet * 20 * MS + late_ns, SeqNum(packet as u16), time);
            reception.jitter_ns()
        };
        for packet in 0..1000 {
            arrive(packet, if packet % 2 == 0 { 0 } else { 10 * MS });
        }
        let disturbed_ns = arrive(1000, 0);
        assert!((9 * MS..11 * MS).contains(&disturbed_ns), "{disturbed_ns}");
        let calm_ns = (1001..1500).map(|packet| arrive(packet, 0)).last();
        assert_eq!(calm_ns, Some(0));
    }

    /// Another implementation cuts arrival times to 32 bits of microseconds, which wrap after 71 minutes and 35 seconds.
    #[test]
    fn jitter_stays_correct_for_three_hours() {
        let mut reception = Reception::new(RATE_HZ);
        let mut jitter_ns_max = 0;
        // The test lasts three hours at 50 packets/s, and starts just before the timestamp wraps.
        for packet in 0..3 * 3600 * 50_u64 {
            let time = RtpTime((packet as u32).wrapping_mul(160).wrapping_sub(1000));
            let shake_ns = packet % 3 * MS;
            reception.handle(packet * 20 * MS + shake_ns, SeqNum(packet as u16), time);
            jitter_ns_max = jitter_ns_max.max(reception.jitter_ns());
        }
        assert!(jitter_ns_max < 2 * MS, "{jitter_ns_max} ns");
        assert!(reception.jitter_ns() > MS, "{} ns", reception.jitter_ns());
        assert_eq!(reception.lost(), 0);
        assert_eq!(reception.resyncs(), 0);
    }

    #[test]
    fn another_clock_rate_does_not_disturb_the_jitter() {
        let mut reception = Reception::new(RATE_HZ);
        for packet in 0..100_u32 {
            reception.handle(
                u64::from(packet) * 20 * MS,
                SeqNum(packet as u16),
                RtpTime(packet * 160),
            );
        }
        reception.set_clock_rate(48_000);
        for packet in 100..200_u32 {
            let time = RtpTime(packet.wrapping_mul(960).wrapping_add(0x7000_0000));
            reception.handle(u64::from(packet) * 20 * MS, SeqNum(packet as u16), time);
        }
        assert_eq!(reception.jitter_ns(), 0);
    }

    #[test]
    fn loss_is_clamped_to_the_range_of_a_report() {
        let mut reception = valid();
        reception.received = 0;
        reception.highest.0 += 1 << 24;
        assert_eq!(reception.take_loss().cumulative, 0x7f_ffff);
        reception.received = 1 << 30;
        let loss = reception.take_loss();
        assert_eq!((loss.fraction, loss.cumulative), (0, -0x80_0000));
    }

    #[test]
    fn clocks_that_jump_do_not_overflow() {
        let mut reception = Reception::new(0);
        let times = [0, u64::MAX, 1, u64::MAX / 2, 3, u64::MAX - 7, 0, 0];
        for (seq, now_ns) in times.into_iter().cycle().take(1000).enumerate() {
            let time = RtpTime((seq as u32).wrapping_mul(0x8000_0001));
            reception.handle(now_ns, SeqNum(seq as u16), time);
            reception.take_loss();
            let _ = reception.jitter_units();
        }
    }

    /// The definitions of RFC 3550 in words, without regard to cost.
    struct Twin {
        base: i64,
        highest: i64,
        received: i64,
        jitter_ns: f64,
        last: Option<(u64, i64)>,
    }

    proptest! {
        /// The packets are lost, duplicated and reordered as in a network.
        #[test]
        fn counts_and_jitter_equal_the_naive_ones(
            start in any::<u16>(),
            time_start in any::<u32>(),
            rate_hz in prop::sample::select(vec![8000_u32, 16_000, 44_100, 48_000, 90_000]),
            fates in prop::collection::vec((0..10_u8, 0..40_u64, 0..3_000_000_u64), 10..400),
        ) {
            let units = i64::from(rate_hz / 50);
            // The values are arrival and number. The first two packets always arrive in order, so that the source is valid.
            let mut arrivals = vec![(0, 0_i64), (20 * MS, 1)];
            for (at, (fate, late, shake_ns)) in fates.iter().enumerate() {
                let number = at as i64 + 2;
                let sent_ns = number as u64 * 20 * MS + shake_ns;
                match fate {
                    0 => {}
                    1 => arrivals.push((sent_ns + late * 20 * MS, number)),
                    2 => arrivals.extend([(sent_ns, number), (sent_ns + late * MS, number)]),
                    _ => arrivals.push((sent_ns, number)),
                }
            }
            arrivals.sort();
            let mut reception = Reception::new(rate_hz);
            let mut twin = Twin { base: 1, highest: 1, received: 0, jitter_ns: 0.0, last: None };
            for (now_ns, number) in arrivals {
                let seq = SeqNum(start.wrapping_add(number as u16));
                let time = RtpTime(time_start.wrapping_add((number * units) as u32));
                let receipt = reception.handle(now_ns, seq, time);
                if number == 0 {
                    prop_assert_eq!(receipt, Receipt::Probation);
                    continue;
                }
                twin.received += 1;
                twin.highest = twin.highest.max(number);
                if let Some((last_ns, last)) = twin.last {
                    let spacing_ns = (number - last) as f64 * units as f64 * 1e9 / f64::from(rate_hz);
                    let difference_ns = (now_ns as f64 - last_ns as f64 - spacing_ns).abs();
                    twin.jitter_ns += (difference_ns - twin.jitter_ns) / 16.0;
                }
                twin.last = Some((now_ns, number));
                prop_assert_eq!(reception.received() as i64, twin.received);
                prop_assert_eq!(reception.expected() as i64, twin.highest - twin.base + 1);
                prop_assert!((reception.jitter_ns() as f64 - twin.jitter_ns).abs() < 3.0,
                    "{} ns instead of {}", reception.jitter_ns(), twin.jitter_ns);
                prop_assert_eq!(reception.highest().seq(), SeqNum(start.wrapping_add(twin.highest as u16)));
            }
        }

        #[test]
        fn fractions_of_intervals_add_up(losses in prop::collection::vec((1..50_u16, 0..50_u16), 1..50)) {
            let mut reception = valid();
            reception.take_loss();
            let mut seq = 101_u16;
            let mut total = 0;
            for (good, lost) in losses {
                seq = seq.wrapping_add(lost);
                total += i32::from(lost);
                for _ in 0..good {
                    seq = seq.wrapping_add(1);
                    reception.handle(0, SeqNum(seq), RtpTime(0));
                }
                let loss = reception.take_loss();
                let fraction = u32::from(lost) * 256 / u32::from(lost + good);
                prop_assert_eq!(u32::from(loss.fraction), fraction);
                prop_assert_eq!(loss.cumulative, total);
            }
        }
    }
}
