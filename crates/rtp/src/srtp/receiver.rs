//! Checks and decrypts what arrives.

use std::fmt;

use thiserror::Error;

use super::derive::Protocol;
use super::header::{RtpHeader, rtcp_ssrc};
use super::sources::{SourceError, SourceState, Sources};
use super::transform::Transform;
use super::{Forged, MasterKey, RestoreError, Suite};
use crate::id::Ssrc;
use crate::packet::PacketError;

/// Why a received packet is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnprotectError {
    /// The bytes are no protected packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The packet has no place in its source's sequence: a replay, most of all.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The tag is not the packet's: the packet was made or changed by somebody without the key.
    #[error("SSRC {ssrc}: the authentication tag is wrong")]
    Forged {
        /// Whom the packet claims to be from.
        ssrc: Ssrc,
    },
}

/// Checks and decrypts SRTP and SRTCP packets of one master key.
///
/// The order is that of RFC 3711, section 3.3: replay, authentication, decryption. A packet that is refused changes nothing,
/// neither here nor in its buffer.
///
/// To go on after a restart, keep the key and [`Receiver::sources`], and give them to a new receiver with
/// [`Receiver::restore`]. A rollover counter is right as long as the state is younger than 2^15 packets.
pub struct Receiver {
    suite: Suite,
    rtp: Box<Transform>,
    rtcp: Box<Transform>,
    sources: Sources,
}

impl Receiver {
    /// A receiver that expects rollover counters to begin at zero.
    #[must_use]
    pub fn new(key: &MasterKey) -> Receiver {
        Receiver {
            suite: key.suite(),
            rtp: Transform::new(key, Protocol::Rtp),
            rtcp: Transform::new(key, Protocol::Rtcp),
            sources: Sources::default(),
        }
    }

    /// Checks and decrypts an SRTP packet in place. Returns the bytes of the RTP packet, from the start of the buffer.
    ///
    /// # Errors
    /// The packet is no SRTP packet, was there before, is too old or not authentic, or its source finds no room.
    pub fn unprotect_rtp(&mut self, packet: &mut [u8]) -> Result<usize, UnprotectError> {
        let trailer = self.rtp.rtp_trailer();
        let header = RtpHeader::parse(packet, trailer)?;
        let ssrc = header.ssrc;
        self.sources.check_room(ssrc)?;
        let index = self.sources.rtp_index(ssrc, header.seq)?;
        self.rtp
            .open_rtp(packet, header, index)
            .map_err(|Forged| UnprotectError::Forged { ssrc })?;
        self.sources.note_rtp(ssrc, index)?;
        Ok(packet.len() - trailer)
    }

    /// Checks and decrypts an SRTCP packet in place. Returns the bytes of the RTCP packet, from the start of the buffer.
    /// Whether it is encrypted is up to its sender: the E flag says so, and is authenticated (RFC 3711, section 3.4).
    ///
    /// # Errors
    /// The packet is no SRTCP packet, was there before, is too old or not authentic, or its source finds no room.
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

    /// For another key, with the rollover counters of this one.
    pub(super) fn continued(&self, key: &MasterKey) -> Receiver {
        Receiver {
            sources: self.sources.continued(),
            ..Receiver::new(key)
        }
    }

    /// The sources so far, with the indices of their newest packets.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.sources.states()
    }

    /// Goes on with a source that another receiver had under the same key. Packets up to the state's count as received, but for those that are missing.
    ///
    /// # Errors
    /// The state is behind what this receiver knows of the source, its index is out of range, or there are too many sources.
    pub fn restore(&mut self, state: SourceState) -> Result<(), RestoreError> {
        self.sources.restore(state)
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("suite", &self.suite)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}
