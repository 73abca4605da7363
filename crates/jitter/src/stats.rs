//! Counters of a jitter buffer.

use crate::output::{DROP_REASONS, DropReason};

/// Counts since construction or [`JitterBuffer::reset`](super::JitterBuffer::reset), and the present state.
///
/// Every packet is counted in one place: `received = delivered + late + duplicates + dropped() + held_packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packets handed in.
    pub received: u64,
    /// Packets output for playout.
    pub delivered: u64,
    /// Packets declared lost. If one of them still arrives, it also counts in [`Stats::late`].
    pub lost: u64,
    /// Packets dropped as [`DropReason::Late`].
    pub late: u64,
    /// Packets dropped as [`DropReason::Duplicate`].
    pub duplicates: u64,
    /// Packets dropped as [`DropReason::Latency`].
    pub dropped_latency: u64,
    /// Packets dropped as [`DropReason::Full`].
    pub dropped_full: u64,
    /// Packets dropped as [`DropReason::Flushed`].
    pub dropped_flushed: u64,
    /// Packets dropped as [`DropReason::Unconfirmed`].
    pub dropped_unconfirmed: u64,
    /// Packets dropped as [`DropReason::OldSource`].
    pub dropped_old_source: u64,
    /// Number of restarts of the numbering.
    pub resyncs: u64,
    /// Interarrival jitter (RFC 3550, appendix A.8) in ns. Its fraction is stored, so that it decays to 0.
    pub jitter_ns: u64,
    /// Packets held now.
    pub held_packets: u32,
    /// The present latency, as set or as adapted.
    pub latency_ns: u64,
    /// How far the sender's clock has fallen behind the local clock since the stream began; negative if it is ahead. The value
    /// includes changes of the path's delay.
    pub skew_ns: i64,
}

impl Stats {
    /// Returns the number of packets dropped, without late packets and duplicates.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_latency
            + self.dropped_full
            + self.dropped_flushed
            + self.dropped_unconfirmed
            + self.dropped_old_source
    }

    pub(crate) fn count_drops(&mut self, drops: &Drops) {
        self.late = drops.of(DropReason::Late);
        self.duplicates = drops.of(DropReason::Duplicate);
        self.dropped_latency = drops.of(DropReason::Latency);
        self.dropped_full = drops.of(DropReason::Full);
        self.dropped_flushed = drops.of(DropReason::Flushed);
        self.dropped_unconfirmed = drops.of(DropReason::Unconfirmed);
        self.dropped_old_source = drops.of(DropReason::OldSource);
    }
}

/// Count of each drop reason.
#[derive(Debug, Default)]
pub(crate) struct Drops([u64; DROP_REASONS]);

impl Drops {
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }
}
