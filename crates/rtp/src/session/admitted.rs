//! The session of a leg: the leg decides which packets belong to it and passes them on.

use std::net::SocketAddr;

use crate::id::{RtpTime, SeqNum, Ssrc};
use crate::reception::{Receipt, Reception};

use super::source::{Source, flag};
use super::{BYE_LINGER_NS, Extended, Session};

impl Session {
    /// Handles a packet of the current source. Only its number is checked (RFC 3550, A.1).
    #[inline]
    pub(crate) fn receive(&mut self, at_ns: u64, seq: SeqNum, time: RtpTime) -> Receipt {
        let source = &mut self.sources.current;
        let receipt = source.reception.handle(at_ns, seq, time);
        if source.flags != flag::STEADY {
            self.receive_again(at_ns);
        }
        receipt
    }

    /// Handles a packet of a source that was silent for long, or that continues after leaving.
    #[cold]
    fn receive_again(&mut self, at_ns: u64) {
        let source = &mut self.sources.current;
        if source.has(flag::LEFT) {
            if at_ns.saturating_sub(source.left_ns) < BYE_LINGER_NS {
                return; // The BYE overtook this packet.
            }
            source.flags &= !flag::LEFT;
        }
        source.flags |= flag::PRESENT | flag::VALID;
        self.count_in(0, flag::MEMBER | flag::SENDER);
    }

    /// Makes this the current source; its statistics start with its next packets.
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

    /// The current source sends from another address.
    pub(crate) fn move_current(&mut self, from: SocketAddr) {
        self.sources.current.rtp_from = from;
    }

    /// Units per second of the current source's timestamps.
    pub(crate) fn set_current_clock_rate(&mut self, clock_rate_hz: u32) {
        self.sources.current.reception.set_clock_rate(clock_rate_hz);
    }

    /// Sends these extended reports with the next report.
    pub(crate) fn offer_extended(&mut self, extended: Extended) {
        let reports = self.extended.get_or_insert_default();
        (reports.offered, reports.has_left) = (Some(extended), false);
    }

    /// Whether the offered extended reports have left. Returns true once.
    pub(crate) fn has_taken_extended(&mut self) -> bool {
        let reports = self.extended.as_mut();
        reports.is_some_and(|reports| std::mem::take(&mut reports.has_left))
    }

    /// The peer's extended reports about us.
    pub(crate) fn extended(&self) -> Option<Extended> {
        self.extended.as_ref()?.heard
    }

    /// Continues the counts of a stream that another process has sent.
    pub(crate) fn restore_sent(&mut self, packets: u64, octets: u64) {
        (self.sent.packets, self.sent.octets) = (packets, octets);
        self.sent.has_any |= packets > 0;
    }

    /// Reception of the current source's packets.
    pub(crate) fn current_reception(&self) -> &Reception {
        &self.sources.current.reception
    }

    /// Handles a packet of the admitted peer with our SSRC: either another SSRC is chosen (RFC 3550, section 8.2), or our own
    /// packet was returned.
    #[cold]
    pub(crate) fn note_own_ssrc(&mut self, now_ns: u64, from: SocketAddr) {
        self.handle_own_ssrc(now_ns, from);
    }
}
