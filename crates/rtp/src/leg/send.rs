//! Output of a leg and its destinations.

use std::net::SocketAddr;

use super::latch::is_none;
use super::{Destination, Keep, Learn, Leg, MediaPacket};
use crate::id::{PayloadType, RtpTime, SeqNum, Ssrc};

/// Header fields of a packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The payload type.
    pub payload_type: PayloadType,
    /// The timestamp.
    pub time: RtpTime,
    /// The marker bit.
    pub marker: bool,
    /// Time from the timestamp to the packet, in timestamp units. It matters for DTMF digits: all packets of a long digit have
    /// its first timestamp.
    pub elapsed: u32,
}

impl Stamp {
    /// Writes a header (RFC 3550, section 5.1).
    #[inline]
    pub(crate) fn write(&self, seq: SeqNum, ssrc: Ssrc, out: &mut [u8; HEADER_BYTES]) {
        out[0] = VERSION << 6;
        out[1] = u8::from(self.marker) << 7 | self.payload_type.0;
        out[2..4].copy_from_slice(&seq.0.to_be_bytes());
        out[4..8].copy_from_slice(&self.time.0.to_be_bytes());
        out[8..12].copy_from_slice(&ssrc.0.to_be_bytes());
    }
}

impl<K: Keep> Leg<K> {
    /// Writes the header of the next packet to `out` and counts it as sent at `now_ns`. Returns the destination of the packet,
    /// whose payload has `payload_bytes`; `None`: no destination is known yet, and nothing is written.
    #[inline]
    pub fn packetize(
        &mut self,
        now_ns: u64,
        stamp: Stamp,
        payload_bytes: usize,
        out: &mut [u8; HEADER_BYTES],
    ) -> Option<SocketAddr> {
        self.packetize_as(now_ns, self.seq, stamp, payload_bytes, out)
    }

    /// [`packetize`](Self::packetize) with this number: the next one, one after a gap, or one that fills the gap.
    #[inline]
    pub(crate) fn packetize_as(
        &mut self,
        now_ns: u64,
        seq: SeqNum,
        stamp: Stamp,
        payload_bytes: usize,
        out: &mut [u8; HEADER_BYTES],
    ) -> Option<SocketAddr> {
        let Some(to) = self.rtp_to() else {
            self.no_destination += 1;
            return None;
        };
        stamp.write(seq, self.session.ssrc(), out);
        if seq.distance_from(self.seq) >= 0 {
            self.seq = seq.plus(1);
        }
        // RFC 3550, section 6.4.1: a report ties the timestamp of the present moment to the wall clock.
        let time = stamp.time.plus(stamp.elapsed);
        self.session.handle_rtp_sent(now_ns, time, payload_bytes, 1);
        Some(to)
    }

    /// Counts a packet of another sender that is forwarded unchanged, under the sender's SSRC. Returns its destination.
    pub(crate) fn forward(&mut self, now_ns: u64, packet: &MediaPacket<'_>) -> Option<SocketAddr> {
        let Some(to) = self.rtp_to() else {
            self.no_destination += 1;
            return None;
        };
        let ssrc = packet.whole.get(8..12)?.try_into().ok()?;
        let ssrc = Ssrc(u32::from_be_bytes(ssrc));
        if let Some(payload) = packet.payload {
            self.session.set_sent_clock_rate(payload.clock_rate_hz);
        }
        self.note_sent(now_ns, ssrc, packet.time, packet.bytes.len());
        Some(to)
    }

    /// See [`Session::note_sent`](crate::session::Session::note_sent).
    #[inline]
    pub fn note_sent(&mut self, now_ns: u64, ssrc: Ssrc, time: RtpTime, payload_bytes: usize) {
        self.session.note_sent(now_ns, ssrc, time, payload_bytes);
    }

    /// The number of the next packet.
    #[inline]
    pub(crate) fn next_seq(&self) -> SeqNum {
        self.seq
    }

    /// Skips this many sequence numbers: the receiver sees that packets are missing.
    pub fn skip(&mut self, packets: u32) {
        self.seq = self.seq.plus(packets as u16);
    }

    /// Sets the clock rate of the sent timestamps.
    pub fn set_sent_clock_rate(&mut self, clock_rate_hz: u32) {
        self.session.set_sent_clock_rate(clock_rate_hz);
    }

    /// Writes the next RTCP packet that is due to `out` (1500 bytes are always enough). Returns its length and destination.
    pub fn poll_rtcp(&mut self, now_ns: u64, out: &mut [u8]) -> Option<(usize, SocketAddr)> {
        if self.next_report().is_some_and(|due_ns| due_ns <= now_ns) {
            self.watch(now_ns);
        }
        loop {
            let len = self.session.poll_transmit(now_ns, out)?;
            self.note_reported();
            // The next report makes up for a report without a destination.
            if let Some(to) = self.rtcp_to()
                && !self.is_silent
            {
                return Some((len, to));
            }
        }
    }

    /// Destination of RTP; `None`: no address is known, or the peer is held.
    #[inline]
    #[must_use]
    pub fn rtp_to(&self) -> Option<SocketAddr> {
        self.peer_address().filter(|_| !self.is_held)
    }

    /// Address of the peer. Nothing is sent to an unspecified address: the kernel takes it for this machine.
    #[inline]
    fn peer_address(&self) -> Option<SocketAddr> {
        match self.destination {
            Destination::Fixed { rtp, .. } => Some(rtp).filter(|rtp| !is_none(*rtp)),
            Destination::Peer => self.admission.to(),
        }
    }

    /// Destination of RTCP: the source address of received RTCP. Until that is known, the signalled address, or the port after
    /// RTP's (RFC 3550, section 11). With mux, the destination of RTP.
    #[must_use]
    pub fn rtcp_to(&self) -> Option<SocketAddr> {
        let rtp = self.peer_address()?;
        let heard = self.rtcp_from.map(|(address, _)| address);
        match self.destination {
            Destination::Fixed {
                rtcp: Some(rtcp), ..
            } => Some(rtcp),
            _ if self.mux => Some(rtp),
            Destination::Peer if heard.is_some() => heard,
            Destination::Peer if self.admission.config().peer == Some(rtp) => {
                self.signalled_rtcp().or_else(|| after(rtp))
            }
            _ => after(rtp),
        }
    }

    /// RTCP address of a peer that uses its signalled address.
    fn signalled_rtcp(&self) -> Option<SocketAddr> {
        let signalled = self.admission.config().rtcp;
        signalled.filter(|to| !is_none(*to))
    }

    /// Second destination of the reports, if RTP goes to another address than it comes from: there, the sender learns how its
    /// packets arrive.
    #[must_use]
    pub fn rtcp_to_source(&self) -> Option<SocketAddr> {
        let (source, _) = self.admission.current()?;
        let rtp = self.peer_address()?;
        if rtp.ip() == source.ip() || self.admission.config().learn == Learn::Anyone {
            return None;
        }
        match self.rtcp_from {
            _ if self.mux => Some(source),
            Some((address, _)) => Some(address),
            None => after(source),
        }
    }
}

/// RFC 3550, section 11: RTCP has the next port.
pub(super) fn after(rtp: SocketAddr) -> Option<SocketAddr> {
    Some(SocketAddr::new(rtp.ip(), rtp.port().checked_add(1)?))
}

/// Bytes of a header without CSRC entries and extension (RFC 3550, section 5.1).
pub const HEADER_BYTES: usize = 12;
const VERSION: u8 = 2;
