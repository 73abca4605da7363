//! The index of a packet: its sequence number, extended by the rollover counter.

use threadbare_rtp_types::id::SeqNum;

/// Index of an SRTP packet, 48 bits: rollover counter and sequence number (RFC 3711, section 3.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketIndex(u64);

impl PacketIndex {
    /// Returns the index of packet `seq` after the sequence number has wrapped around `rollover` times.
    #[must_use]
    pub fn new(rollover: u32, seq: SeqNum) -> PacketIndex {
        PacketIndex(u64::from(rollover) << 16 | u64::from(seq.0))
    }

    /// Returns the rollover counter: how often the sequence number has wrapped around.
    #[must_use]
    pub fn rollover(self) -> u32 {
        (self.0 >> 16) as u32
    }

    /// Returns the sequence number.
    #[must_use]
    pub fn seq(self) -> SeqNum {
        SeqNum(self.0 as u16)
    }

    /// Returns the whole index, below 2^48.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(index: u64) -> PacketIndex {
        debug_assert!(index >> 48 == 0, "{index:#x}");
        PacketIndex(index)
    }

    /// Returns the index of a packet `seq` that arrives when `self` is the highest index so far. The estimate is right if the
    /// packet is less than 2^15 packets late or early. If the index would leave its range, returns the direction as an error.
    ///
    /// RFC 3711, section 3.3.1 and appendix A: `v` is chosen from ROC - 1, ROC and ROC + 1 so that the index is the closest
    /// to 2^16 * ROC + s_l.
    pub(crate) fn estimate(self, seq: SeqNum) -> Result<PacketIndex, Outside> {
        let (rollover, last) = (self.rollover(), self.seq());
        let rollover = if last.0 < HALF {
            if u32::from(seq.0) > u32::from(last.0) + u32::from(HALF) {
                rollover.checked_sub(1).ok_or(Outside::Before)?
            } else {
                rollover
            }
        } else if last.0 - HALF > seq.0 {
            rollover.checked_add(1).ok_or(Outside::Behind)?
        } else {
            rollover
        };
        Ok(PacketIndex::new(rollover, seq))
    }
}

/// Side on which an estimate leaves the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// Before the first index: the packet is older than the stream.
    Before,
    /// After the last index: the key has protected its maximum number of packets (RFC 3711, section 9.2).
    Behind,
}

/// Half of all sequence numbers.
const HALF: u16 = 1 << 15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the closest of the three candidates: RFC 3711, section 3.3.1, as a search.
    fn naive(last: PacketIndex, seq: SeqNum) -> i64 {
        let last = last.get() as i64;
        [-1, 0, 1]
            .map(|cycles| ((last >> 16) + cycles) << 16 | i64::from(seq.0))
            .into_iter()
            .min_by_key(|candidate| (candidate - last).abs())
            .unwrap()
    }

    proptest! {
        #[test]
        fn the_estimate_is_the_closest_candidate(
            rollover in prop_oneof![0..3_u32, u32::MAX - 2..=u32::MAX],
            last in any::<u16>(),
            seq in any::<u16>(),
        ) {
            // At exactly half, both candidates are equally close. Appendix A then keeps the rollover counter.
            prop_assume!(seq.wrapping_sub(last) != HALF);
            let last = PacketIndex::new(rollover, SeqNum(last));
            let expected = match naive(last, SeqNum(seq)) {
                before if before < 0 => Err(Outside::Before),
                behind if behind >> 48 > 0 => Err(Outside::Behind),
                index => Ok(PacketIndex(index as u64)),
            };
            prop_assert_eq!(last.estimate(SeqNum(seq)), expected);
        }
    }

    #[test]
    fn a_number_at_half_the_range_does_not_change_the_rollover_counter() {
        for last in [0, 1, HALF - 1, HALF, u16::MAX] {
            let seq = SeqNum(last).plus(HALF);
            let last = PacketIndex::new(7, SeqNum(last));
            assert_eq!(last.estimate(seq), Ok(PacketIndex::new(7, seq)));
        }
    }
}
