//! Counters of a jitter buffer.

use super::output::{DROP_REASONS, DropReason};

/// Counts since construction or [`JitterBuffer::reset`](super::JitterBuffer::reset), and the present state.
///
/// Every packet is in one place: `received = delivered + late + duplicates + dropped() + held_packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packets handed in.
    pub received: u64,
    /// Packets given out to be played.
    pub delivered: u64,
    /// Packets declared lost. Those that arrived late afterwards are also in [`Stats::late`].
    pub lost: u64,
    /// [`DropReason::Late`].
    pub late: u64,
    /// [`DropReason::Duplicate`].
    pub duplicates: u64,
    /// [`DropReason::Latency`].
    pub dropped_latency: u64,
    /// [`DropReason::Full`].
    pub dropped_full: u64,
    /// [`DropReason::Flushed`].
    pub dropped_flushed: u64,
    /// [`DropReason::Unconfirmed`].
    pub dropped_unconfirmed: u64,
    /// [`DropReason::OldSource`].
    pub dropped_old_source: u64,
    /// How often the numbers restarted.
    pub resyncs: u64,
    /// Interarrival jitter (RFC 3550, appendix A.8) in ns, with its fraction kept inside: it decays to 0.
    pub jitter_ns: u64,
    /// Packets held now.
    pub held_packets: u32,
    /// The latency now: as set, or as adapted.
    pub latency_ns: u64,
    /// How far the sender's clock has fallen behind the local one since the stream began, changes of the path's delay
    /// included; negative when it has got ahead.
    pub skew_ns: i64,
}

impl Stats {
    /// Packets dropped for other reasons than being late or a duplicate.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_latency
            + self.dropped_full
            + self.dropped_flushed
            + self.dropped_unconfirmed
            + self.dropped_old_source
    }

    pub(super) fn count_drops(&mut self, drops: &Drops) {
        self.late = drops.of(DropReason::Late);
        self.duplicates = drops.of(DropReason::Duplicate);
        self.dropped_latency = drops.of(DropReason::Latency);
        self.dropped_full = drops.of(DropReason::Full);
        self.dropped_flushed = drops.of(DropReason::Flushed);
        self.dropped_unconfirmed = drops.of(DropReason::Unconfirmed);
        self.dropped_old_source = drops.of(DropReason::OldSource);
    }
}

/// How often each reason has come up.
#[derive(Debug, Default)]
pub(super) struct Drops([u64; DROP_REASONS]);

impl Drops {
    pub(super) fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }
}
