//! What a leg sends, its destinations, changes to a running leg, and requests to its peer.

use std::net::SocketAddr;

use super::latch::is_none;
use super::{
    Destination, Keep, Learn, Leg, LegError, MediaPacket, NO_TYPE, PayloadMap, Receiving, watch,
};
use crate::id::{PayloadType, RtpTime, SeqNum, Ssrc};
use crate::jitter::{self, JitterBuffer};
use crate::session::Profile;

/// Header fields of a packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The payload type.
    pub payload_type: PayloadType,
    /// The timestamp.
    pub time: RtpTime,
    /// The marker bit.
    pub marker: bool,
    /// Time from the timestamp to the packet, in timestamp units. It is not 0 only for DTMF digits, because all packets of a digit have the
    /// timestamp of its start.
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
    /// Writes the header of the next packet to `out`, and counts the packet as sent at `now_ns`. `payload_bytes` is the size of its
    /// payload. Returns the destination of the packet. `None`: no destination is known yet, and nothing is written.
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

    /// Acts as [`packetize`](Self::packetize), but with this number. It may be the next one, one after a gap, or one that fills the gap.
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
        // A report relates the timestamp of the present moment to the wall clock (RFC 3550, section 6.4.1).
        let time = stamp.time.plus(stamp.elapsed);
        self.session.handle_rtp_sent(now_ns, time, payload_bytes, 1);
        Some(to)
    }

    /// Counts a packet of another sender that is forwarded unchanged, with the sender's SSRC. Returns its destination.
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

    /// Notes a packet that was sent: see [`RtcpSession::note_sent`](crate::session::RtcpSession::note_sent).
    #[inline]
    pub fn note_sent(&mut self, now_ns: u64, ssrc: Ssrc, time: RtpTime, payload_bytes: usize) {
        self.session.note_sent(now_ns, ssrc, time, payload_bytes);
    }

    /// Returns the number of the next packet.
    #[inline]
    pub(crate) fn next_seq(&self) -> SeqNum {
        self.seq
    }

    /// Skips this many sequence numbers, so that the receiver sees that packets are missing.
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
            watch::sample(self, now_ns);
        }
        loop {
            let len = self.session.poll_transmit(now_ns, out)?;
            watch::note_reported(self);
            // A report without a destination is not sent. The next one makes up for it.
            if let Some(to) = self.rtcp_to()
                && !self.is_silent
            {
                return Some((len, to));
            }
        }
    }

    /// Returns the destination of RTP. `None`: no address is known, or the peer is held.
    #[inline]
    #[must_use]
    pub fn rtp_to(&self) -> Option<SocketAddr> {
        self.peer_address().filter(|_| !self.is_held)
    }

    /// Returns the peer's address. If it is unspecified, returns `None`, because the kernel takes such an address for this machine.
    #[inline]
    fn peer_address(&self) -> Option<SocketAddr> {
        match self.destination {
            Destination::Fixed { rtp, .. } => Some(rtp).filter(|rtp| !is_none(*rtp)),
            Destination::Peer => self.admission.to(),
        }
    }

    /// Returns the destination of RTCP. This is the source address of received RTCP. Until that is known, it is the signalled address, or
    /// the port after that of RTP (RFC 3550, section 11). With mux, it is the destination of RTP.
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

    /// Returns the RTCP address of a peer that uses its signalled address.
    fn signalled_rtcp(&self) -> Option<SocketAddr> {
        let signalled = self.admission.config().rtcp;
        signalled.filter(|to| !is_none(*to))
    }

    /// Returns a second destination of the reports, if RTP goes to another address than it comes from. There, the sender learns how its
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

    /// Receives with these settings from now on, as if nothing had been received before. Queued packets are dropped, and the RTCP reports
    /// continue.
    ///
    /// # Errors
    /// Fails if a setting is out of range. In this case, nothing changes.
    pub fn receive_anew(&mut self, receiving: Receiving) -> Result<(), LegError> {
        let clock_rate_hz = receiving.payloads.audio().clock_rate_hz;
        let jitter = JitterBuffer::new(jitter::Config {
            clock_rate_hz,
            ..receiving.jitter
        })?;
        self.flush();
        let ahead_ns = self.jitter.ahead_ns();
        self.jitter = jitter;
        self.jitter.set_ahead_ns(ahead_ns);
        self.clock_rate_hz = clock_rate_hz;
        self.payload_type = NO_TYPE;
        self.takes = receiving.payloads.clone();
        self.payloads = receiving.payloads;
        self.admission.begin_anew(0, receiving.admission);
        self.rtcp_from = None;
        self.has_moved = true;
        (self.packets, self.bytes, self.no_room) = (0, 0, 0);
        Ok(())
    }

    /// Drops the queued packets. The next packet starts a new time line.
    pub fn flush(&mut self) {
        self.release();
        self.drop_waiting();
        self.drop_beside();
        self.jitter.flush();
        while self.poll_due(u64::MAX, true).is_some() {}
    }

    /// Changes settings of the jitter buffer. Latency, drops and tolerances may change, and the capacity may grow. The clock rate and the
    /// skew do not change.
    ///
    /// # Errors
    /// Fails if a setting is out of range.
    pub fn set_jitter(&mut self, config: &jitter::Config) -> Result<(), LegError> {
        self.jitter.set_drop_on_latency(config.drop_on_latency);
        self.jitter.set_release(config.release);
        let (dropout_ms, misorder_ms) = (config.max_dropout_ms, config.max_misorder_ms);
        self.jitter.set_tolerance_ms(dropout_ms, misorder_ms);
        self.jitter.grow(config.capacity_packets)?;
        if config.latency_ns != self.jitter.config().latency_ns {
            self.jitter.set_latency_ns(config.latency_ns)?;
        }
        Ok(())
    }

    /// Sets how early media are due: see [`JitterBuffer::set_ahead_ns`].
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.jitter.set_ahead_ns(ahead_ns);
    }

    /// Whether [`poll_due`](Self::poll_due) with `may_lose` false stops at a loss that an unread packet might prevent.
    #[inline]
    #[must_use]
    pub fn is_loss_due(&self, now_ns: u64) -> bool {
        self.jitter.is_loss_due(now_ns)
    }

    /// Returns the packet that leaves next.
    #[inline]
    #[must_use]
    pub fn next_queued(&self) -> Option<&K::Handle> {
        self.jitter.peek().map(|queued| &queued.packet)
    }

    /// Calls `fetch` with addresses in the memory of the next packets in the jitter buffer, so that the caller can prefetch it.
    #[inline]
    pub fn prefetch_queue(&self, fetch: &mut impl FnMut(*const u8)) {
        self.jitter.prefetch(fetch);
    }

    /// Whether [`rtp_to`](Self::rtp_to) may have changed since the last call.
    #[inline]
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Changes the SSRC. The caller's packets have the new one already.
    pub fn set_ssrc(&mut self, ssrc: Ssrc) {
        self.session.set_ssrc(ssrc);
    }

    /// Changes the canonical name.
    pub fn set_cname(&mut self, cname: &str) {
        self.session.set_cname(cname);
    }

    /// Changes the rules for feedback from `now_ns` on, as both sides have agreed.
    pub fn set_profile(&mut self, now_ns: u64, profile: Profile, reduced_size: bool) {
        self.session.set_profile(now_ns, profile, reduced_size);
    }

    /// Sets whether RTP and RTCP share one port (RFC 5761). With mux, the payload types 64 to 95 are refused from now on. Without it, the
    /// next [`set_payloads`](Self::set_payloads) allows them.
    pub fn set_mux(&mut self, mux: bool) {
        self.payloads = PayloadMap::received(self.payloads.clone(), mux);
        self.mux = mux;
    }

    /// Stops sending RTP. RTCP continues.
    pub fn set_held(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Stops sending RTCP.
    pub fn set_silent(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Whether other participants may know our SSRC, because RTP or RTCP was sent.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.session.has_sent()
    }

    /// Requests a new picture from a source. With `full`, it requests a full picture, which does not depend on earlier ones (RFC 5104,
    /// section 4.3.1). Otherwise it sends a loss indication (RFC 4585, section 6.3.1). If `media` is `None` or unknown, the request goes to
    /// the current source. Returns `false` if no source is known, or if the request cannot be sent now.
    pub fn request_picture(&mut self, now_ns: u64, media: Option<Ssrc>, full: bool) -> bool {
        let known = media.filter(|media| self.knows(*media));
        let Some(media) = known.or(self.session.current_ssrc()) else {
            return false;
        };
        !self.is_silent
            && if full {
                self.session.request_fir(now_ns, media)
            } else {
                self.session.request_pli(now_ns, media)
            }
    }

    /// Requests packets from a source again (RFC 4585, section 6.2.1). Returns `false` if the source is unknown, or if the request cannot
    /// be sent now.
    pub fn request_packets(&mut self, now_ns: u64, media: Ssrc, lost: &[SeqNum]) -> bool {
        let lost = lost.iter().copied();
        !self.is_silent && self.knows(media) && self.session.request_nack(now_ns, media, lost)
    }

    /// Whether packets of this source have arrived.
    fn knows(&self, ssrc: Ssrc) -> bool {
        let is_current = self.session.current_ssrc() == Some(ssrc);
        is_current || self.session.sources().any(|source| source.ssrc == ssrc)
    }
}

/// Returns the next port, which RTCP uses (RFC 3550, section 11).
pub(super) fn after(rtp: SocketAddr) -> Option<SocketAddr> {
    Some(SocketAddr::new(rtp.ip(), rtp.port().checked_add(1)?))
}

/// Number of bytes of a header without CSRC entries and extension (RFC 3550, section 5.1).
pub const HEADER_BYTES: usize = 12;
const VERSION: u8 = 2;
