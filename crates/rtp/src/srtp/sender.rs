//! Protects what leaves.

use std::fmt;

use thiserror::Error;

use super::derive::Protocol;
use super::header::{RtpHeader, rtcp_ssrc};
use super::sources::{SourceError, SourceState, Sources};
use super::transform::{RtcpWord, Transform};
use super::{MasterKey, RestoreError, Suite};
use crate::packet::PacketError;

/// Why a packet is not protected, and must not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtectError {
    /// The bytes are no packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The buffer is too small for the protected packet.
    #[error("buffer of {actual} bytes, the protected packet needs {needed}")]
    NoRoom {
        /// Bytes needed.
        needed: usize,
        /// Bytes of the buffer.
        actual: usize,
    },
    /// The packet has no place in its source's sequence.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Protects RTP and RTCP packets under one master key.
///
/// A packet with the sequence number of an earlier one is refused, also if it is the same packet: the keystream of an index
/// must not be used twice (RFC 3711, section 9.1; RFC 7714, section 8.4).
///
/// To go on after a restart, keep the key and [`Sender::sources`], and give them to a new sender with [`Sender::restore`].
/// What left in between is unknown to it: go on with sequence numbers beyond all that may have left, and add to the index of
/// SRTCP as many packets as may have left.
pub struct Sender {
    suite: Suite,
    rtp: Box<Transform>,
    rtcp: Box<Transform>,
    sources: Sources,
}

impl Sender {
    /// A sender that begins with the rollover counter and the index of SRTCP at zero.
    #[must_use]
    pub fn new(key: &MasterKey) -> Sender {
        Sender {
            suite: key.suite(),
            rtp: Transform::new(key, Protocol::Rtp),
            rtcp: Transform::new(key, Protocol::Rtcp),
            sources: Sources::default(),
        }
    }

    /// Protects the RTP packet in the first `bytes` bytes of `buffer`. Returns the bytes of the protected packet, at most
    /// [`super::RTP_TRAILER_BYTES_MAX`] more.
    ///
    /// # Errors
    /// The bytes are no RTP packet, the buffer is too small, or the packet has no place in its source's sequence. The buffer
    /// stays as it was.
    pub fn protect_rtp(&mut self, buffer: &mut [u8], bytes: usize) -> Result<usize, ProtectError> {
        let buffer = with_room(buffer, bytes, self.rtp.rtp_trailer())?;
        let header = RtpHeader::parse(&buffer[..bytes], 0)?;
        let index = self.sources.rtp_index(header.ssrc, header.seq)?;
        self.sources.note_rtp(header.ssrc, index)?;
        self.rtp.seal_rtp(buffer, header, index);
        Ok(buffer.len())
    }

    /// Protects the compound RTCP packet in the first `bytes` bytes of `buffer`. Returns the bytes of the protected packet, at
    /// most [`super::RTCP_TRAILER_BYTES_MAX`] more.
    ///
    /// # Errors
    /// The bytes are no RTCP packet, the buffer is too small, or the source has used all indices. The buffer stays as it was.
    pub fn protect_rtcp(&mut self, buffer: &mut [u8], bytes: usize) -> Result<usize, ProtectError> {
        let buffer = with_room(buffer, bytes, self.rtcp.rtcp_trailer())?;
        let ssrc = rtcp_ssrc(&buffer[..bytes], 0)?;
        let index = self.sources.next_rtcp_index(ssrc)?;
        self.sources.note_rtcp(ssrc, index)?;
        self.rtcp
            .seal_rtcp(buffer, ssrc, RtcpWord::new(index, true));
        Ok(buffer.len())
    }

    /// For another key, with the rollover counters of this one.
    pub(super) fn continued(&self, key: &MasterKey) -> Sender {
        Sender {
            sources: self.sources.continued(),
            ..Sender::new(key)
        }
    }

    /// The sources so far, with the indices of their newest packets.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.sources.states()
    }

    /// Goes on with a source that another sender had under the same key.
    ///
    /// # Errors
    /// The state is behind what this sender knows of the source, its index is out of range, or there are too many sources.
    pub fn restore(&mut self, state: SourceState) -> Result<(), RestoreError> {
        self.sources.restore(state)
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("suite", &self.suite)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

/// The part of the buffer that the protected packet takes.
fn with_room(buffer: &mut [u8], bytes: usize, trailer: usize) -> Result<&mut [u8], ProtectError> {
    let (needed, actual) = (bytes.saturating_add(trailer), buffer.len());
    buffer
        .get_mut(..needed)
        .ok_or(ProtectError::NoRoom { needed, actual })
}
