//! The session of a leg: the leg has decided which packets belong, and tells.

use std::net::SocketAddr;

use crate::id::{RtpTime, SeqNum, Ssrc};
use crate::reception::{Receipt, Reception};

use super::source::{Source, flag};
use super::{BYE_LINGER_NS, Extended, Session};

impl Session {
    /// A packet of the current source. It is judged by its number alone (RFC 3550, A.1).
    #[inline]
    pub(crate) fn receive(&mut self, at_ns: u64, seq: SeqNum, time: RtpTime) -> Receipt {
        let source = &mut self.sources.current;
        let receipt = source.reception.handle(at_ns, seq, time);
        if source.flags != flag::STEADY {
            self.receive_again(at_ns);
        }
        receipt
    }

    /// The source was silent for long, or has left and goes on.
    #[cold]
    fn receive_again(&mut self, at_ns: u64) {
        let source = &mut self.sources.current;
        if source.has(flag::LEFT) {
            if at_ns.saturating_sub(source.left_ns) < BYE_LINGER_NS {
                return; // The BYE overtook it.
            }
            source.flags &= !flag::LEFT;
        }
        source.flags |= flag::PRESENT | flag::VALID;
        self.count_in(0, flag::MEMBER | flag::SENDER);
    }

    /// This is the current source from now on; its statistics begin with its next packets.
    #[cold]
    pub(crate) fn adopt(&mut self, now_ns: u64, ssrc: Ssrc, from: SocketAddr, clock_rate_hz: u32) {
        let place = self.place_of(now_ns, from, ssrc);
        self.sources.promote(place);
        let source = &mut self.sources.current;
        let old = std::mem::replace(source, Source::new(now_ns, ssrc, from, clock_rate_hz));
        // Its name and its reports are those of the same SSRC.
        source.flags = old.flags & !flag::LEFT | flag::VALID;
        (source.cname, source.report, source.remote) = (old.cname, old.report, old.remote);
        source.rtcp_from = old.rtcp_from;
        source.has_rtp = true;
        self.count_in(0, flag::MEMBER | flag::SENDER);
    }

    /// Whether the current source is this one. It is forgotten after a long silence.
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

    /// Sends this with the next report.
    pub(crate) fn offer_extended(&mut self, extended: Extended) {
        let reports = self.extended.get_or_insert_default();
        (reports.offered, reports.has_left) = (Some(extended), false);
    }

    /// Whether what was offered has left. Says so once.
    pub(crate) fn has_taken_extended(&mut self) -> bool {
        let reports = self.extended.as_mut();
        reports.is_some_and(|reports| std::mem::take(&mut reports.has_left))
    }

    /// The peer's extended reports about us.
    pub(crate) fn extended(&self) -> Option<Extended> {
        self.extended.as_ref()?.heard
    }

    /// Goes on with the counts of a stream that another process has sent.
    pub(crate) fn restore_sent(&mut self, packets: u64, octets: u64) {
        (self.sent.packets, self.sent.octets) = (packets, octets);
        self.sent.has_any |= packets > 0;
    }

    /// How the current source's packets arrive.
    pub(crate) fn current_reception(&self) -> &Reception {
        &self.sources.current.reception
    }

    /// A packet of the admitted peer bears our SSRC: another one is chosen (RFC 3550, section 8.2), or it is our own that
    /// came back.
    #[cold]
    pub(crate) fn note_own_ssrc(&mut self, now_ns: u64, from: SocketAddr) {
        self.handle_own_ssrc(now_ns, from);
    }
}
