//! Protects packets to send.

use std::fmt;

use thiserror::Error;

use crate::derive::Protocol;
use crate::header::{RtpHeader, rtcp_ssrc};
use crate::sources::{SourceError, SourceState, Sources};
use crate::transform::{RtcpWord, Transform};
use crate::{MasterKey, RestoreError, Suite};
use threadbare_rtp_types::packet::PacketError;

/// Why a packet was not protected, and must not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtectError {
    /// The bytes are not a packet.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The buffer is too small for the protected packet.
    #[error("the buffer has {actual} bytes, but the protected packet needs {needed}")]
    NoRoom {
        /// Bytes needed.
        needed: usize,
        /// Bytes of the buffer.
        actual: usize,
    },
    /// The sequence of the packet's source does not allow the packet.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Protects RTP and RTCP packets under one master key.
///
/// A packet with the sequence number of an earlier one is refused, even if it is the same packet: the keystream of an index must
/// not be used twice (RFC 3711, section 9.1; RFC 7714, section 8.4).
///
/// To continue after a restart, save the key and [`Sender::sources`], and pass them to a new sender with [`Sender::restore`].
/// The new sender does not know the packets that were sent after saving. Continue with sequence numbers after all those that may
/// have been used, and increase the SRTCP index by the number of packets that may have been sent.
pub struct Sender {
    suite: Suite,
    rtp: Box<Transform>,
    rtcp: Box<Transform>,
    sources: Sources,
}

impl Sender {
    /// Creates a sender whose rollover counter and SRTCP index start at zero.
    #[must_use]
    pub fn new(key: &MasterKey) -> Sender {
        Sender {
            suite: key.suite(),
            rtp: Transform::new(key, Protocol::Rtp),
            rtcp: Transform::new(key, Protocol::Rtcp),
            sources: Sources::default(),
        }
    }

    /// Protects the RTP packet in the first `bytes` bytes of `buffer`. Returns the length of the protected packet, at most
    /// [`crate::RTP_TRAILER_BYTES_MAX`] more.
    ///
    /// # Errors
    /// Fails if the bytes are not an RTP packet, if the buffer is too small, or if the packet does not fit its source's sequence.
    /// The buffer stays unchanged.
    pub fn protect_rtp(&mut self, buffer: &mut [u8], bytes: usize) -> Result<usize, ProtectError> {
        let buffer = with_room(buffer, bytes, self.rtp.rtp_trailer())?;
        let header = RtpHeader::parse(&buffer[..bytes], 0)?;
        let index = self.sources.rtp_index(header.ssrc, header.seq)?;
        self.sources.note_rtp(header.ssrc, index)?;
        self.rtp.seal_rtp(buffer, header, index);
        Ok(buffer.len())
    }

    /// Protects the compound RTCP packet in the first `bytes` bytes of `buffer`. Returns the length of the protected packet, at
    /// most [`crate::RTCP_TRAILER_BYTES_MAX`] more.
    ///
    /// # Errors
    /// Fails if the bytes are not an RTCP packet, if the buffer is too small, or if the source has used all indices. The buffer
    /// stays unchanged.
    pub fn protect_rtcp(&mut self, buffer: &mut [u8], bytes: usize) -> Result<usize, ProtectError> {
        let buffer = with_room(buffer, bytes, self.rtcp.rtcp_trailer())?;
        let ssrc = rtcp_ssrc(&buffer[..bytes], 0)?;
        let index = self.sources.next_rtcp_index(ssrc)?;
        self.sources.note_rtcp(ssrc, index)?;
        self.rtcp
            .seal_rtcp(buffer, ssrc, RtcpWord::new(index, true));
        Ok(buffer.len())
    }

    /// Returns a sender for another key, with the rollover counters of this one.
    pub(crate) fn continued(&self, key: &MasterKey) -> Sender {
        Sender {
            sources: self.sources.continued(),
            ..Sender::new(key)
        }
    }

    /// Returns the sources so far, with the indices of their newest packets.
    pub fn sources(&self) -> impl Iterator<Item = SourceState> + '_ {
        self.sources.states()
    }

    /// Continues a source that another sender had under the same key.
    ///
    /// # Errors
    /// Fails if the state is older than this sender's, if its index is out of range, or if there are too many sources.
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

/// Returns the part of the buffer for the protected packet.
fn with_room(buffer: &mut [u8], bytes: usize, trailer: usize) -> Result<&mut [u8], ProtectError> {
    let (needed, actual) = (bytes.saturating_add(trailer), buffer.len());
    buffer
        .get_mut(..needed)
        .ok_or(ProtectError::NoRoom { needed, actual })
}
