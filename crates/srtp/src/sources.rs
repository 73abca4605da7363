//! State of each SSRC: the highest index and the replay window, for SRTP and for SRTCP.

use thiserror::Error;

use crate::index::{Outside, PacketIndex};
use threadbare_rtp_types::id::{SeqNum, Ssrc};

/// Size of the replay window in packets. A packet that is this many packets older than the newest, or more, is refused. RFC 3711,
/// section 3.3.2, requires at least 64. This size fits two words, and covers 2.5 s of packets of 20 ms.
pub const REPLAY_WINDOW: u32 = u128::BITS;

/// Maximum number of SSRCs under one key. A party has one SSRC, and some parties take a new one after each hold. Further SSRCs
/// are refused. If the oldest SSRC were dropped instead, its packets could be replayed.
/// [`Receiver::joining`](crate::Receiver::joining) does drop it: its key stays the same for months, and a restart of the receiver
/// allows such replays anyway.
pub const SOURCES_MAX: usize = 64;

/// Highest index of SRTCP: it has 31 bits (RFC 3711, section 3.4).
pub(crate) const RTCP_INDEX_MAX: u32 = (1 << 31) - 1;

/// The state of an SSRC under a key. Another [`crate::Sender`] or [`crate::Receiver`] of the same key can continue with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceState {
    /// The source.
    pub ssrc: Ssrc,
    /// The highest index of its RTP packets, with the rollover counter; `None`: none yet.
    pub rtp: Option<PacketIndex>,
    /// Bit `n` is set if the packet `n` before the highest RTP packet is missing and may still arrive. Bit 0 is set if the
    /// highest packet itself arrived under another key. In a state that is older than the last packet, the field must be 0;
    /// otherwise packets that have arrived since then would be accepted again.
    pub rtp_missing: u128,
    /// The highest index of its RTCP packets, below 2^31; `None`: none yet.
    pub rtcp: Option<u32>,
}

/// Why the sequence of a source does not allow a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SourceError {
    /// This index was used before. A received packet is then a replay or a duplicate. A packet to be sent is refused, because
    /// protecting other data under the same index would reveal both.
    #[error("SSRC {ssrc}: packet {index} is a replay")]
    Repeated {
        /// The source.
        ssrc: Ssrc,
        /// The invalid index.
        index: u64,
    },
    /// The packet is too old to decide whether it is a repetition.
    #[error(
        "SSRC {ssrc}: sequence number or SRTCP index {number} is {REPLAY_WINDOW} or more before the newest packet"
    )]
    Old {
        /// The source.
        ssrc: Ssrc,
        /// Sequence number of RTP, index of SRTCP.
        number: u32,
    },
    /// The source has sent as many packets as a key may protect: 2^48 of RTP, or 2^31 of RTCP (RFC 3711, section 9.2).
    #[error(
        "SSRC {ssrc}: the key has protected the maximum number of packets; a new key is needed"
    )]
    Exhausted {
        /// The source.
        ssrc: Ssrc,
    },
    /// The number of sources would exceed [`SOURCES_MAX`].
    #[error("SSRC {ssrc}: the key already has {SOURCES_MAX} sources, which is the maximum")]
    TooMany {
        /// The source for which there is no place.
        ssrc: Ssrc,
    },
}

/// Why a state is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The index of SRTCP is out of range.
    #[error("SSRC {ssrc}: SRTCP index {index}, must be 0 to {RTCP_INDEX_MAX}")]
    RtcpIndex {
        /// The source.
        ssrc: Ssrc,
        /// The packet's index.
        index: u32,
    },
    /// The source is already ahead of the state. Going back would use indices twice.
    #[error("SSRC {ssrc}: the state is older than the source, which is at {}", Now(.now))]
    Behind {
        /// The source.
        ssrc: Ssrc,
        /// The source's current state.
        now: SourceState,
    },
    /// The number of sources would exceed [`SOURCES_MAX`].
    #[error("SSRC {ssrc}: the key already has {SOURCES_MAX} sources, which is the maximum")]
    TooMany {
        /// The source for which there is no place.
        ssrc: Ssrc,
    },
}

/// Formats a state as text, with the parts that exist.
struct Now<'a>(&'a SourceState);

impl std::fmt::Display for Now<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.rtp {
            Some(index) => write!(f, "RTP packet {}", index.get())?,
            None => f.write_str("no RTP packet")?,
        }
        match self.0.rtcp {
            Some(index) => write!(f, ", RTCP packet {index}"),
            None => f.write_str(", no RTCP packet"),
        }
    }
}

/// The replay window: the newest index, and a bit for each of the [`REPLAY_WINDOW`] up to it (RFC 3711, section 3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Window {
    newest: Option<u64>,
    /// Bit `n`: the packet `n` before the newest was seen.
    seen: u128,
}

/// Position of an index relative to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    New,
    Seen,
    TooOld,
}

impl Window {
    /// Returns a window that continues after `newest`. Earlier packets count as seen, except for the missing ones.
    fn after(newest: Option<u64>, missing: u128) -> Window {
        let seen = newest.map_or(0, |_| !missing);
        Window { newest, seen }
    }

    fn missing(&self) -> u128 {
        self.newest.map_or(0, |_| !self.seen)
    }

    fn place(&self, index: u64) -> Place {
        let Some(age) = self.newest.and_then(|newest| newest.checked_sub(index)) else {
            return Place::New;
        };
        match 1_u128.checked_shl(age.try_into().unwrap_or(u32::MAX)) {
            None => Place::TooOld,
            Some(bit) if self.seen & bit != 0 => Place::Seen,
            Some(_) => Place::New,
        }
    }

    /// Notes an index that is [`Place::New`].
    fn mark(&mut self, index: u64) {
        let newest = self.newest.unwrap_or(index);
        if index >= newest {
            let ahead = (index - newest).try_into().unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
            self.newest = Some(index);
        } else {
            self.seen |= 1 << (newest - index);
        }
    }
}

/// One SSRC.
#[derive(Debug, Clone, Copy)]
struct Source {
    ssrc: Ssrc,
    rtp: Window,
    rtcp: Window,
}

impl Source {
    fn new(ssrc: Ssrc) -> Source {
        Source {
            ssrc,
            rtp: Window::default(),
            rtcp: Window::default(),
        }
    }

    fn state(&self) -> SourceState {
        SourceState {
            ssrc: self.ssrc,
            rtp: self.rtp.newest.map(PacketIndex::from_bits),
            rtp_missing: self.rtp.missing(),
            // Only indices of 31 bits are marked.
            rtcp: self.rtcp.newest.map(|index| index as u32),
        }
    }
}

/// The sources under one key. Looking up a packet changes nothing: the packet is noted only after it was authenticated.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    list: Vec<Source>,
    /// Index of the previous packet's source, the first guess for the next one.
    recent: usize,
    /// Whether a source beyond [`SOURCES_MAX`] replaces the oldest one.
    replaces: bool,
}

impl Sources {
    /// Creates an empty list, in which a source beyond [`SOURCES_MAX`] replaces the oldest one.
    pub(crate) fn replacing() -> Sources {
        Sources {
            replaces: true,
            ..Sources::default()
        }
    }

    fn find(&self, ssrc: Ssrc) -> Option<usize> {
        let recent = self.list.get(self.recent);
        if recent.is_some_and(|source| source.ssrc == ssrc) {
            return Some(self.recent);
        }
        self.list.iter().position(|source| source.ssrc == ssrc)
    }

    /// Returns the source's state, or its initial state.
    fn source(&self, ssrc: Ssrc) -> Source {
        self.find(ssrc)
            .map_or_else(|| Source::new(ssrc), |at| self.list[at])
    }

    /// Returns the index of an RTP packet, if it may be noted.
    pub(crate) fn rtp_index(&self, ssrc: Ssrc, seq: SeqNum) -> Result<PacketIndex, SourceError> {
        let number = u32::from(seq.0);
        let window = self.source(ssrc).rtp;
        let index = match window.newest.map(PacketIndex::from_bits) {
            // RFC 3711, section 3.3.1: the rollover counter starts at zero.
            None => PacketIndex::new(0, seq),
            Some(newest) => newest.estimate(seq).map_err(|outside| match outside {
                Outside::Before => SourceError::Old { ssrc, number },
                Outside::Behind => SourceError::Exhausted { ssrc },
            })?,
        };
        allow(ssrc, window, index.get(), number)?;
        Ok(index)
    }

    /// Whether an RTCP packet with this index may be noted.
    pub(crate) fn check_rtcp(&self, ssrc: Ssrc, index: u32) -> Result<(), SourceError> {
        allow(ssrc, self.source(ssrc).rtcp, u64::from(index), index)
    }

    /// Returns the index of the next RTCP packet of a source.
    pub(crate) fn next_rtcp_index(&self, ssrc: Ssrc) -> Result<u32, SourceError> {
        match self.source(ssrc).state().rtcp {
            // RFC 3711, section 3.4: zero before the first packet.
            None => Ok(0),
            Some(RTCP_INDEX_MAX) => Err(SourceError::Exhausted { ssrc }),
            Some(index) => Ok(index + 1),
        }
    }

    /// Checks that there is a place for this source.
    pub(crate) fn check_room(&self, ssrc: Ssrc) -> Result<(), SourceError> {
        if self.list.len() >= SOURCES_MAX && !self.replaces && self.find(ssrc).is_none() {
            return Err(SourceError::TooMany { ssrc });
        }
        Ok(())
    }

    /// Notes an RTP packet whose index came from [`Sources::rtp_index`].
    pub(crate) fn note_rtp(&mut self, ssrc: Ssrc, index: PacketIndex) -> Result<(), SourceError> {
        self.enter(ssrc)?.rtp.mark(index.get());
        Ok(())
    }

    /// Notes an RTCP packet that [`Sources::check_rtcp`] allows.
    pub(crate) fn note_rtcp(&mut self, ssrc: Ssrc, index: u32) -> Result<(), SourceError> {
        self.enter(ssrc)?.rtcp.mark(u64::from(index));
        Ok(())
    }

    fn enter(&mut self, ssrc: Ssrc) -> Result<&mut Source, SourceError> {
        self.check_room(ssrc)?;
        self.recent = self.find(ssrc).unwrap_or_else(|| {
            if self.list.len() >= SOURCES_MAX {
                self.list.remove(0);
            }
            self.list.push(Source::new(ssrc));
            self.list.len() - 1
        });
        Ok(&mut self.list[self.recent])
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.list.iter().map(Source::state)
    }

    /// Returns the state for another key, with rollover counters that continue: "it MUST NOT be reset to zero" (RFC 3711, section
    /// 3.3.1). No packet counts as seen, because packets of the old key prove nothing under the new one.
    pub(crate) fn continued(&self) -> Sources {
        let list = self.list.iter().map(|source| Source {
            rtp: Window {
                seen: 0,
                ..source.rtp
            },
            ..Source::new(source.ssrc)
        });
        Sources {
            list: list.collect(),
            ..*self
        }
    }

    pub(crate) fn restore(&mut self, state: SourceState) -> Result<(), RestoreError> {
        let ssrc = state.ssrc;
        if let Some(index) = state.rtcp.filter(|&index| index > RTCP_INDEX_MAX) {
            return Err(RestoreError::RtcpIndex { ssrc, index });
        }
        let now = self.source(ssrc).state();
        if now.rtp > state.rtp || now.rtcp > state.rtcp {
            return Err(RestoreError::Behind { ssrc, now });
        }
        let source = self
            .enter(ssrc)
            .map_err(|_| RestoreError::TooMany { ssrc })?;
        source.rtp = Window::after(state.rtp.map(PacketIndex::get), state.rtp_missing);
        source.rtcp = Window::after(state.rtcp.map(u64::from), 0);
        Ok(())
    }
}

/// Whether a window accepts `index`, which the packet contains as `number`.
fn allow(ssrc: Ssrc, window: Window, index: u64, number: u32) -> Result<(), SourceError> {
    match window.place(index) {
        Place::New => Ok(()),
        Place::Seen => Err(SourceError::Repeated { ssrc, index }),
        Place::TooOld => Err(SourceError::Old { ssrc, number }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SSRC: Ssrc = Ssrc(7);

    /// A window that forgets nothing.
    #[derive(Default)]
    struct Naive(BTreeSet<u64>);

    impl Naive {
        fn place(&self, index: u64) -> Place {
            match self.0.last() {
                Some(newest) if index + u64::from(REPLAY_WINDOW) <= *newest => Place::TooOld,
                _ if self.0.contains(&index) => Place::Seen,
                _ => Place::New,
            }
        }
    }

    proptest! {
        #[test]
        fn the_replay_window_equals_one_that_stores_all_indices(
            steps in prop::collection::vec(prop_oneof![4 => -200..200_i64, 1 => -70_000..70_000_i64], 1..300),
        ) {
            let (mut window, mut naive) = (Window::default(), Naive::default());
            let mut at = 100_000_i64;
            for step in steps {
                at = (at + step).max(0);
                let index = at as u64;
                prop_assert_eq!(window.place(index), naive.place(index), "{}", index);
                if naive.place(index) == Place::New {
                    window.mark(index);
                    naive.0.insert(index);
                }
                prop_assert_eq!(window.newest, naive.0.last().copied());
            }
        }
    }

    #[test]
    fn the_replay_window_has_its_documented_length() {
        let mut window = Window::default();
        window.mark(1000);
        let oldest = 1000 - u64::from(REPLAY_WINDOW) + 1;
        assert_eq!(window.place(oldest), Place::New);
        assert_eq!(window.place(oldest - 1), Place::TooOld);
        window.mark(oldest);
        assert_eq!(window.place(oldest), Place::Seen);
    }

    #[test]
    fn restored_source_continues_and_refuses_earlier_packets() {
        let mut sources = Sources::default();
        let state = SourceState {
            ssrc: SSRC,
            rtp: Some(PacketIndex::new(3, SeqNum(65_535))),
            rtp_missing: 0b100,
            rtcp: Some(9),
        };
        sources.restore(state).unwrap();
        assert_eq!(sources.states().collect::<Vec<_>>(), [state]);
        assert_eq!(
            sources.rtp_index(SSRC, SeqNum(0)),
            Ok(PacketIndex::new(4, SeqNum(0)))
        );
        assert_eq!(sources.next_rtcp_index(SSRC), Ok(10));
        for seq in [65_535, 65_534, 65_535 - 127, 65_535 - 128] {
            assert!(sources.rtp_index(SSRC, SeqNum(seq)).is_err(), "{seq}");
        }
        // The missing packet is accepted, but only once.
        let late = sources.rtp_index(SSRC, SeqNum(65_533)).unwrap();
        sources.note_rtp(SSRC, late).unwrap();
        assert!(sources.rtp_index(SSRC, SeqNum(65_533)).is_err());
        assert!(sources.check_rtcp(SSRC, 9).is_err());
    }

    #[test]
    fn earlier_state_is_refused() {
        let mut sources = Sources::default();
        let index = PacketIndex::new(1, SeqNum(5));
        sources.note_rtp(SSRC, index).unwrap();
        for rtp in [
            None,
            Some(PacketIndex::new(1, SeqNum(4))),
            Some(PacketIndex::new(0, SeqNum(6))),
        ] {
            let state = SourceState {
                ssrc: SSRC,
                rtp,
                rtp_missing: 0,
                rtcp: Some(1),
            };
            let error = sources.restore(state).unwrap_err();
            assert_eq!(
                error.to_string(),
                "SSRC 0x00000007: the state is older than the source, which is at RTP packet 65541, no RTCP packet"
            );
        }
        let state = SourceState {
            ssrc: SSRC,
            rtp: Some(index),
            rtp_missing: 0,
            rtcp: Some(1 << 31),
        };
        assert_eq!(
            sources.restore(state),
            Err(RestoreError::RtcpIndex {
                ssrc: SSRC,
                index: 1 << 31
            })
        );
        assert_eq!(sources.states().next().unwrap().rtcp, None);
    }

    #[test]
    fn numbers_of_sources_and_indices_are_limited() {
        let mut sources = Sources::default();
        for number in 0..SOURCES_MAX as u32 {
            sources
                .note_rtp(Ssrc(number), PacketIndex::new(0, SeqNum(1)))
                .unwrap();
        }
        let ssrc = Ssrc(SOURCES_MAX as u32);
        assert_eq!(
            sources.note_rtcp(ssrc, 0),
            Err(SourceError::TooMany { ssrc })
        );
        let state = SourceState {
            ssrc,
            rtp: None,
            rtp_missing: 0,
            rtcp: None,
        };
        assert_eq!(sources.restore(state), Err(RestoreError::TooMany { ssrc }));
        let last = SourceState {
            ssrc: SSRC,
            rtp: Some(PacketIndex::new(u32::MAX, SeqNum(u16::MAX))),
            rtp_missing: 0,
            rtcp: Some(RTCP_INDEX_MAX),
        };
        sources.restore(last).unwrap();
        let exhausted = SourceError::Exhausted { ssrc: SSRC };
        assert_eq!(sources.rtp_index(SSRC, SeqNum(0)), Err(exhausted));
        assert_eq!(sources.next_rtcp_index(SSRC), Err(exhausted));
    }
}
