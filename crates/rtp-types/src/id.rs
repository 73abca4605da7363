//! The numbers of RTP (RFC 3550, section 5.1) as separate types, with their wrap-around arithmetic.

use std::fmt;

/// Synchronisation source: identifies the sender of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ssrc(pub u32);

/// Payload type, 7 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PayloadType(pub u8);

/// Sequence number of a packet, modulo 2^16. It has no order: see [`SeqNum::distance_from`] and [`ExtSeq`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SeqNum(pub u16);

impl SeqNum {
    /// Returns the number `n` packets later.
    #[must_use]
    pub fn plus(self, n: u16) -> SeqNum {
        SeqNum(self.0.wrapping_add(n))
    }

    /// Returns the number of packets from `other` to this one, in the shorter direction: -32768..=32767.
    #[must_use]
    pub fn distance_from(self, other: SeqNum) -> i32 {
        i32::from(self.0.wrapping_sub(other.0) as i16)
    }
}

/// Sequence number that is extended by its wrap-arounds, so that it can be ordered and subtracted. A stream starts in cycle 1, so
/// that packets from before the first one have numbers, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtSeq(pub u64);

impl ExtSeq {
    /// Returns the extended number of a stream's first packet.
    #[must_use]
    pub fn first(seq: SeqNum) -> ExtSeq {
        ExtSeq(1 << 16 | u64::from(seq.0))
    }

    /// Returns the extended number of `seq` that is nearest to this one. The result is 0 if that number would be negative.
    #[must_use]
    pub fn nearest(self, seq: SeqNum) -> ExtSeq {
        ExtSeq(
            self.0
                .saturating_add_signed(i64::from(seq.distance_from(self.seq()))),
        )
    }

    /// Returns the number as in a packet.
    #[must_use]
    pub fn seq(self) -> SeqNum {
        SeqNum(self.0 as u16)
    }
}

/// RTP timestamp, in units of the payload's clock rate, modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RtpTime(pub u32);

impl RtpTime {
    /// Returns the time `units` later.
    #[must_use]
    pub fn plus(self, units: u32) -> RtpTime {
        RtpTime(self.0.wrapping_add(units))
    }

    /// Returns the number of units from `other` to this time, in the shorter direction.
    #[must_use]
    pub fn distance_from(self, other: RtpTime) -> i64 {
        i64::from(self.0.wrapping_sub(other.0) as i32)
    }
}

/// NTP timestamp: seconds since 1900 in the upper 32 bits, their fraction in the lower (RFC 3550, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NtpTime(pub u64);

impl NtpTime {
    /// Returns the wall-clock time this long after the start of 1970.
    #[must_use]
    pub fn at_unix_ns(since_1970_ns: u64) -> NtpTime {
        NtpTime(NTP_AT_1970_S << 32).plus_ns(since_1970_ns)
    }

    /// Returns the time `ns` nanoseconds later.
    #[must_use]
    pub fn plus_ns(self, ns: u64) -> NtpTime {
        let (seconds, rest) = (ns / NS_PER_S, ns % NS_PER_S);
        NtpTime(
            self.0
                .wrapping_add(seconds << 32)
                .wrapping_add((rest << 32) / NS_PER_S),
        )
    }

    /// Returns the middle 32 bits, as LSR and DLSR use them: units of 1/65536 s (RFC 3550, section 6.4.1).
    #[must_use]
    pub fn middle(self) -> u32 {
        (self.0 >> 16) as u32
    }
}

/// Seconds from 1900, the epoch of NTP, to 1970 (RFC 868).
const NTP_AT_1970_S: u64 = 2_208_988_800;

pub use threadbare_base::NS_PER_S;

/// Maximum clock rate. It is far above any media clock, but so low that products of rate and time cannot overflow.
pub const CLOCK_RATE_HZ_MAX: u32 = 10_000_000;

impl fmt::Display for Ssrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

impl fmt::Display for PayloadType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for RtpTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_are_compared_the_short_way_round() {
        assert_eq!(SeqNum(2).distance_from(SeqNum(65_534)), 4);
        assert_eq!(SeqNum(65_534).distance_from(SeqNum(2)), -4);
        assert_eq!(SeqNum(65_535).plus(2), SeqNum(1));
    }

    #[test]
    fn an_extended_number_follows_its_stream_over_the_wrap_and_back() {
        let first = ExtSeq::first(SeqNum(65_534));
        let after = first.nearest(SeqNum(3));
        assert_eq!(after.0 - first.0, 5);
        assert_eq!(after.seq(), SeqNum(3));
        assert_eq!(after.nearest(SeqNum(65_534)), first);
        // A packet before the first one of a stream that started at 0.
        assert!(ExtSeq::first(SeqNum(0)).nearest(SeqNum(65_535)) < ExtSeq::first(SeqNum(0)));
    }

    #[test]
    fn timestamps_wrap() {
        assert_eq!(RtpTime(100).distance_from(RtpTime(u32::MAX - 59)), 160);
        assert_eq!(RtpTime(u32::MAX).plus(2), RtpTime(1));
    }

    #[test]
    fn ntp_times_advance_by_nanoseconds() {
        let start = NtpTime(0x0123_4567_8000_0000);
        assert_eq!(start.plus_ns(1_500_000_000).0, 0x0123_4569_0000_0000);
        assert_eq!(start.plus_ns(NS_PER_S / 4).middle(), 0x4567_c000);
    }
}
