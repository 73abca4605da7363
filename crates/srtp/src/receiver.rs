//! Checks and decrypts received packets.

use std::fmt;

use thiserror::Error;

use crate::derive::Protocol;
use crate::header::{RtpHeader, rtcp_ssrc};
use crate::index::PacketIndex;
use crate::sources::{SourceError, SourceState, Sources};
use crate::transform::Transform;
use crate::{Forged, MasterKey, RestoreError, Suite};
use threadbare_rtp_types::id::Ssrc;
use threadbare_rtp_types::packet::PacketError;

/// Why a received packet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnprotectError {
    /// The bytes are not a protected packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The packet does not fit its source's sequence: usually it is a replay.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The tag does not match: the packet was created or changed without the key.
    #[error("SSRC {ssrc}: the authentication tag is wrong")]
    Forged {
        /// Source that the packet claims.
        ssrc: Ssrc,
    },
}

/// Checks and decrypts SRTP and SRTCP packets of one master key.
///
/// The order is that of RFC 3711, section 3.3: replay, authentication, decryption. A packet that is refused changes nothing,
/// neither here nor in its buffer.
///
/// To continue after a restart, save the key and [`Receiver::sources`], and pass them to a new receiver with
/// [`Receiver::restore`]. A rollover counter is right as long as the state is less than 2^15 packets old.
pub struct Receiver {
    suite: Suite,
    rtp: Box<Transform>,
    rtcp: Box<Transform>,
    sources: Sources,
    /// The next rollover counter to try for a source that sends already; `None`: the search has ended, or there is none.
    next_rollover: Option<u32>,
}

impl Receiver {
    /// Creates a receiver that expects rollover counters to start at zero.
    #[must_use]
    pub fn new(key: &MasterKey) -> Receiver {
        Receiver {
            suite: key.suite(),
            rtp: Transform::new(key, Protocol::Rtp),
            rtcp: Transform::new(key, Protocol::Rtcp),
            sources: Sources::default(),
            next_rollover: None,
        }
    }

    /// Creates a receiver for a source that may have been sending for a long time. Packets do not contain their rollover counter,
    /// which counts the wraps of the sequence number, so the receiver tries counters until the first packet is authentic:
    /// [`ROLLOVERS_PER_PACKET`] for each packet, up to [`ROLLOVER_MAX`], and then again from 1. Sources that come later start at
    /// zero. A source beyond [`SOURCES_MAX`](crate::SOURCES_MAX) replaces the oldest one.
    #[must_use]
    pub fn joining(key: &MasterKey) -> Receiver {
        Receiver {
            sources: Sources::replacing(),
            next_rollover: Some(1),
            ..Receiver::new(key)
        }
    }

    /// Checks and decrypts an SRTP packet in place. Returns the length of the RTP packet, from the start of the buffer.
    ///
    /// # Errors
    /// Fails if the packet is not an SRTP packet, is a replay, is too old or not authentic, or if the table of sources is full.
    pub fn unprotect_rtp(&mut self, packet: &mut [u8]) -> Result<usize, UnprotectError> {
        let trailer = self.rtp.rtp_trailer();
        let header = RtpHeader::parse(packet, trailer)?;
        let ssrc = header.ssrc;
        self.sources.check_room(ssrc)?;
        let mut index = self.sources.rtp_index(ssrc, header.seq)?;
        if self.rtp.open_rtp(packet, header, index).is_err() {
            index = self
                .open_joining(packet, header)
                .ok_or(UnprotectError::Forged { ssrc })?;
        }
        self.sources.note_rtp(ssrc, index)?;
        self.next_rollover = None;
        Ok(packet.len() - trailer)
    }

    /// Tries the next rollover counters. Returns the index of the packet if one of them is right.
    #[cold]
    fn open_joining(&mut self, packet: &mut [u8], header: RtpHeader) -> Option<PacketIndex> {
        let mut rollover = self.next_rollover?;
        for _ in 0..ROLLOVERS_PER_PACKET {
            let index = PacketIndex::new(rollover, header.seq);
            if self.rtp.open_rtp(packet, header, index).is_ok() {
                return Some(index);
            }
            rollover = rollover % ROLLOVER_MAX + 1;
        }
        self.next_rollover = Some(rollover);
        None
    }

    /// Checks and decrypts an SRTCP packet in place. Returns the length of the RTCP packet, from the start of the buffer. The
    /// sender decides whether the packet is encrypted. The E flag shows the decision, and is authenticated (RFC 3711, section
    /// 3.4).
    ///
    /// # Errors
    /// Fails if the packet is not an SRTCP packet, is a replay, is too old or not authentic, or if the table of sources is full.
    pub fn unprotect_rtcp(&mut self, packet: &mut [u8]) -> Result<usize, UnprotectError> {
        let trailer = self.rtcp.rtcp_trailer();
        let ssrc = rtcp_ssrc(packet, trailer)?;
        let word = self.rtcp.rtcp_word(packet);
        self.sources.check_room(ssrc)?;
        self.sources.check_rtcp(ssrc, word.index())?;
        self.rtcp
            .open_rtcp(packet, ssrc, word)
            .map_err(|Forged| UnprotectError::Forged { ssrc })?;
        self.sources.note_rtcp(ssrc, word.index())?;
        Ok(packet.len() - trailer)
    }

    /// Returns a receiver for another key, with the rollover counters of this one.
    pub(crate) fn continued(&self, key: &MasterKey) -> Receiver {
        Receiver {
            sources: self.sources.continued(),
            ..Receiver::new(key)
        }
    }

    /// Returns the sources so far, with the indices of their newest packets.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.sources.states()
    }

    /// Continues a source that another receiver had under the same key. Packets up to the highest one of the state count as
    /// received, except for the missing ones.
    ///
    /// # Errors
    /// Fails if the state is older than this receiver's, if its index is out of range, or if there are too many sources.
    pub fn restore(&mut self, state: SourceState) -> Result<(), RestoreError> {
        self.sources.restore(state)
    }
}

/// Number of rollover counters that [`Receiver::joining`] tries for each packet: as much work as some packets, so that strangers
/// gain nothing.
pub const ROLLOVERS_PER_PACKET: u32 = 8;
/// Highest rollover counter that [`Receiver::joining`] tries: that of a source with 50 packets a second after two and a half years.
pub const ROLLOVER_MAX: u32 = 1 << 16;

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("suite", &self.suite)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}
