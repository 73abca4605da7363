//! Incoming RTCP (RFC 3550, sections 6.3.3 and 6.3.4).

use std::net::SocketAddr;

use crate::id::{NS_PER_S, RtpTime, SeqNum, Ssrc};
use crate::reception::{Receipt, Reception};

use super::extended::{Extended, MalformedBlock, XrBlock, XrBlocks};
use super::source::{LastReport, Place, RemoteView, Source, flag};
use super::wire::{self, Block, Packet, RtcpError};
use super::{
    BYE_LINGER_NS, Event, LOWER_LAYERS_BYTES, Phase, RTCP_ADDRESS_SILENCE_NS, RtcpSession,
};

/// Number of units of LSR and DLSR per second (RFC 3550, section 6.4.1).
const UNITS_PER_S: u64 = 65_536;
/// Maximum negative round trip that is accepted, because both clocks round. It is 1 ms, in 65536ths of a second.
const RTT_SLACK_UNITS: i32 = 66;
/// Maximum plausible round trip. It is half a minute, in 65536ths of a second.
const RTT_UNITS_MAX: i32 = 30 * 65_536;

impl RtcpSession {
    /// Handles an RTCP packet that arrived at `now_ns` from `from`. It is handled completely or not at all.
    ///
    /// This allocates nothing, except when a source appears, states its name or gives a reason for leaving.
    ///
    /// # Errors
    /// Fails if the packet is not a valid compound or, if reduced size is agreed on, not a valid packet. Such a packet is counted by its
    /// fault, and has no other effect.
    pub fn handle_rtcp(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), RtcpError> {
        let packets = wire::parse(bytes, self.reduced_size)
            .inspect_err(|error| self.counts.errors.count(error))?;
        if self.phase == Phase::Left {
            return Ok(());
        }
        self.counts.rtcp_received += 1;
        let byes = packets
            .clone()
            .filter(|packet| packet.packet_type == wire::BYE);
        let byes = byes.count() as u32;
        // While we leave, "avg_rtcp_size is updated only for received BYE packets" (RFC 3550, section 6.3.7).
        if self.phase == Phase::Active || byes > 0 {
            self.timing.note_bytes(bytes.len() + LOWER_LAYERS_BYTES);
        }
        if let Phase::Leaving { .. } = self.phase {
            // "Every time a BYE packet from another participant is received, members is incremented by 1".
            self.timing.members = self.timing.members.saturating_add(byes);
        }
        for packet in packets {
            self.handle_packet(now_ns, from, &packet);
        }
        Ok(())
    }

    fn handle_packet(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) {
        match packet.packet_type {
            wire::SR | wire::RR => self.handle_report(now_ns, from, packet),
            wire::SDES => {
                for (ssrc, cname) in packet.cnames() {
                    self.handle_cname(now_ns, from, ssrc, cname);
                }
            }
            wire::BYE => self.handle_bye(now_ns, from, packet),
            wire::RTPFB | wire::PSFB => self.handle_feedback(now_ns, from, packet),
            wire::XR => self.handle_extended(now_ns, from, packet),
            // APP packets and future types are ignored.
            _ => {}
        }
    }

    /// Finds or adds the sender of the packet. Returns `None` if the packet must be ignored.
    fn heard(&mut self, now_ns: u64, from: SocketAddr, ssrc: Ssrc) -> Option<Place> {
        if ssrc == self.ssrc {
            self.handle_own_ssrc(now_ns, from);
            return None;
        }
        if self.departed == Some(ssrc) {
            return None; // it was sent to the SSRC that we have just given up
        }
        let place = self.place_of(now_ns, from, ssrc);
        let source = self.sources.get(place);
        if source.has(flag::LEFT) && now_ns.saturating_sub(source.left_ns) < BYE_LINGER_NS {
            return None;
        }
        self.revive(now_ns, place);
        if !self.is_its_own(now_ns, from, place) {
            return None;
        }
        let source = self.sources.get_mut(place);
        source.rtcp_from = Some(from);
        source.rtcp_ns = now_ns;
        Some(place)
    }

    /// Whether RTCP from this address may be the source's. It may come from the source's previous RTCP address, from its RTP address, or
    /// from anywhere after a long silence. A stranger who knows the SSRC must not be able to send a BYE for the source.
    fn is_its_own(&mut self, now_ns: u64, from: SocketAddr, place: Place) -> bool {
        let source = self.sources.get_mut(place);
        let is_known = match source.rtcp_from {
            None => true,
            Some(known) => {
                known == from
                    || (source.has_rtp && source.rtp_from.ip() == from.ip())
                    || now_ns.saturating_sub(source.rtcp_ns) >= RTCP_ADDRESS_SILENCE_NS
            }
        };
        if !is_known {
            source.conflicts += 1;
            self.counts.conflicts += 1;
        }
        is_known
    }

    fn handle_report(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) {
        let ssrc = packet.sender();
        let Some(place) = self.heard(now_ns, from, ssrc) else {
            return;
        };
        if packet.packet_type == wire::SR {
            let info = packet.sender_info();
            self.sources.get_mut(place).report = Some(LastReport {
                ntp: info.ntp,
                time: info.time,
                packets: info.packets,
                octets: info.octets,
                arrived_ns: now_ns,
            });
            let (ntp, time) = (info.ntp, info.time);
            self.tell(Event::SenderReport { ssrc, ntp, time });
        }
        let ours = self.ssrc;
        for block in packet.blocks().filter(|block| block.ssrc == ours) {
            let view = RemoteView {
                fraction_lost: block.fraction_lost,
                cumulative_lost: block.cumulative_lost,
                highest: block.highest,
                jitter_units: block.jitter_units,
                rtt_ns: self.round_trip_ns(now_ns, &block),
            };
            self.sources.get_mut(place).remote = Some(view);
            self.tell(Event::ReportAboutUs { from: ssrc, view });
        }
    }

    /// Returns the round-trip time. "Source SSRC_n can compute the round-trip propagation delay to SSRC_r by recording the time A when this
    /// reception report block is received. It calculates the total round-trip time A-LSR using the last SR timestamp (LSR) field, and then
    /// subtracting this field to leave the round-trip propagation delay as (A - LSR - DLSR)." (RFC 3550, section 6.4.1)
    fn round_trip_ns(&mut self, now_ns: u64, block: &Block) -> Option<u64> {
        // "If no SR has been received yet [...], the LSR field is set to zero."
        if block.lsr == 0 {
            return None;
        }
        let units = self
            .ntp(now_ns)
            .middle()
            .wrapping_sub(block.lsr)
            .wrapping_sub(block.dlsr)
            .cast_signed();
        if !(-RTT_SLACK_UNITS..=RTT_UNITS_MAX).contains(&units) {
            self.counts.rtt_refused += 1;
            return None;
        }
        let rtt_ns = u64::from(units.max(0).unsigned_abs()) * NS_PER_S / UNITS_PER_S;
        self.counts.rtt_ns = Some(rtt_ns);
        Some(rtt_ns)
    }

    /// Keeps the last block of each kind that is about us.
    fn handle_extended(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) {
        if self.heard(now_ns, from, packet.sender()).is_none() {
            return;
        }
        let ours = self.ssrc;
        for block in XrBlocks::new(packet.extended_blocks()) {
            match block {
                Ok(XrBlock::Summary(summary)) if summary.ssrc == ours => {
                    let extended = self.extended.get_or_insert_default();
                    extended.heard.get_or_insert_default().summary = Some(summary);
                }
                Ok(XrBlock::Metrics(metrics)) if metrics.ssrc == ours => {
                    let extended = self.extended.get_or_insert_default();
                    extended.heard.get_or_insert_default().metrics = Some(metrics);
                }
                Ok(_) => {}
                Err(MalformedBlock) => self.extended.get_or_insert_default().malformed += 1,
            }
        }
    }

    fn handle_cname(&mut self, now_ns: u64, from: SocketAddr, ssrc: Ssrc, cname: &[u8]) {
        let Some(place) = self.heard(now_ns, from, ssrc) else {
            return;
        };
        let source = self.sources.get_mut(place);
        let is_known = source
            .cname
            .as_ref()
            .is_some_and(|known| known.as_bytes() == cname);
        if !is_known {
            source.cname = Some(String::from_utf8_lossy(cname).into());
        }
        // A source is no member "until an SDES RTCP packet containing a CNAME for that SSRC has been received" (RFC 3550, section 6.2.1).
        self.count_in(place, flag::MEMBER);
    }

    fn handle_bye(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) {
        let reason = packet.reason();
        for ssrc in packet.leaving() {
            // A BYE does not add a source, and our own packets that come back are ignored.
            let Some(place) = self.sources.find(ssrc) else {
                continue;
            };
            let source = self.sources.get(place);
            if source.has(flag::LEFT) || !self.is_its_own(now_ns, from, place) {
                continue;
            }
            let source = self.sources.get_mut(place);
            let flags = source.flags;
            source.flags = flags & !(flag::MEMBER | flag::SENDER) | flag::LEFT;
            source.left_ns = now_ns;
            self.count_out(flags);
            let reason = (!reason.is_empty()).then(|| String::from_utf8_lossy(reason).into());
            self.tell(Event::Bye { ssrc, reason });
        }
        if self.phase == Phase::Active {
            self.timing.members_left(now_ns);
        }
    }

    fn handle_feedback(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) {
        let sender = packet.sender();
        if self.heard(now_ns, from, sender).is_none() {
            return;
        }
        let (media, ours) = (packet.media(), self.ssrc);
        let is_ours = media == ours;
        match (packet.packet_type, packet.count) {
            (wire::RTPFB, wire::FMT_NACK) => {
                for (first, following) in packet.nacks() {
                    if is_ours {
                        let nacks = &mut self.counts.feedback_received.nacks;
                        *nacks += 1 + u64::from(following.count_ones());
                        self.tell(Event::Nack {
                            from: sender,
                            media,
                            first,
                            following,
                        });
                    } else {
                        self.feedback.suppress_nack(media, first, following);
                    }
                }
            }
            (wire::PSFB, wire::FMT_PLI) if is_ours => {
                self.counts.feedback_received.plis += 1;
                self.tell(Event::Pli {
                    from: sender,
                    media,
                });
            }
            (wire::PSFB, wire::FMT_PLI) => self.feedback.suppress_pli(media),
            (wire::PSFB, wire::FMT_FIR) => {
                // The media source in the header "SHALL be set to 0", and the entries name the source (RFC 5104, section 4.3.1.2).
                for (media, request) in packet.firs().filter(|(ssrc, _)| *ssrc == ours) {
                    if self.feedback.is_new_fir(now_ns, sender, request) {
                        self.counts.feedback_received.firs += 1;
                        self.tell(Event::Fir {
                            from: sender,
                            media,
                        });
                    }
                }
            }
            _ => {}
        }
    }

    /// Handles a packet of the current source. Only its number is checked (RFC 3550, appendix A.1).
    #[inline]
    pub(crate) fn receive(&mut self, at_ns: u64, seq: SeqNum, time: RtpTime) -> Receipt {
        let source = &mut self.sources.current;
        let receipt = source.reception.handle(at_ns, seq, time);
        if source.flags != flag::STEADY {
            self.receive_again(at_ns);
        }
        receipt
    }

    /// Handles a packet of a source that was silent for a long time, or that continues after its BYE.
    #[cold]
    fn receive_again(&mut self, at_ns: u64) {
        let source = &mut self.sources.current;
        if source.has(flag::LEFT) {
            if at_ns.saturating_sub(source.left_ns) < BYE_LINGER_NS {
                return; // the BYE has overtaken this packet
            }
            source.flags &= !flag::LEFT;
        }
        source.flags |= flag::PRESENT | flag::VALID;
        self.count_in(0, flag::MEMBER | flag::SENDER);
    }

    /// Makes this source the current one. Its statistics start with its next packets.
    #[cold]
    pub(crate) fn adopt(&mut self, now_ns: u64, ssrc: Ssrc, from: SocketAddr, clock_rate_hz: u32) {
        let place = self.place_of(now_ns, from, ssrc);
        self.sources.promote(place);
        let source = &mut self.sources.current;
        let old = std::mem::replace(source, Source::new(now_ns, ssrc, from, clock_rate_hz));
        // Name and reports stay, because the SSRC is the same.
        source.flags = old.flags & !flag::LEFT | flag::VALID;
        (source.cname, source.report, source.remote) = (old.cname, old.report, old.remote);
        source.rtcp_from = old.rtcp_from;
        source.has_rtp = true;
        self.count_in(0, flag::MEMBER | flag::SENDER);
    }

    /// Whether this is the current source. It is forgotten after a long silence.
    pub(crate) fn has_current(&self, ssrc: Ssrc) -> bool {
        self.sources.current.ssrc == ssrc && self.sources.current.has(flag::PRESENT)
    }

    /// Notes that the current source sends from another address.
    pub(crate) fn move_current(&mut self, from: SocketAddr) {
        self.sources.current.rtp_from = from;
    }

    /// Sets the clock rate of the current source's timestamps.
    pub(crate) fn set_current_clock_rate(&mut self, clock_rate_hz: u32) {
        self.sources.current.reception.set_clock_rate(clock_rate_hz);
    }

    /// Sends these extended reports with the next report.
    pub(crate) fn offer_extended(&mut self, extended: Extended) {
        let reports = self.extended.get_or_insert_default();
        (reports.offered, reports.has_left) = (Some(extended), false);
    }

    /// Whether the offered extended reports have been sent. Returns `true` only once.
    pub(crate) fn has_taken_extended(&mut self) -> bool {
        let reports = self.extended.as_mut();
        reports.is_some_and(|reports| std::mem::take(&mut reports.has_left))
    }

    /// Returns the peer's extended reports about us.
    pub(crate) fn extended(&self) -> Option<Extended> {
        self.extended.as_ref()?.heard
    }

    /// Continues the counts of a stream that another process has sent so far.
    pub(crate) fn restore_sent(&mut self, packets: u64, octets: u64) {
        (self.sent.packets, self.sent.octets) = (packets, octets);
        self.sent.has_any |= packets > 0;
    }

    /// Returns the reception of the current source's packets.
    pub(crate) fn current_reception(&self) -> &Reception {
        &self.sources.current.reception
    }

    /// Handles a packet of the accepted peer that has our SSRC. Either another SSRC is chosen (RFC 3550, section 8.2), or the packet is our
    /// own and has come back.
    #[cold]
    pub(crate) fn note_own_ssrc(&mut self, now_ns: u64, from: SocketAddr) {
        self.handle_own_ssrc(now_ns, from);
    }
}
