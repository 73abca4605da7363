//! Echo: each party hears itself instead of the other one.
//!
//! ```text
//!  A ─→ Leg ─ media ─→ Direction to A ─ packets ─→ the same Leg ─→ A
//! ```
//!
//! The two directions exchange their inputs. The stream to a party stays the same: its numbers and timestamps continue. Clips and
//! DTMF digits that are played to the party still come first.

use std::net::SocketAddr;

use super::direction::Direction;
use super::line;
use super::out::{Out, Scratch, Sending};
use super::{Call, Channel, Outgoing, Side};
use crate::leg::{Leg, Verdict};

/// State of the echo.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Echo {
    pub(super) is_on: bool,
    /// State that the next poll switches to.
    is_wanted: bool,
}

impl Echo {
    /// Whether the next poll switches the echo on or off.
    pub(super) fn is_changing(self) -> bool {
        self.is_on != self.is_wanted
    }
}

impl Call {
    /// Switches the echo on or off at the next poll: with it, each party hears itself instead of the other one.
    /// [`set_mode`](Call::set_mode) still applies to each party's media: with [`Mode::Hold`](super::Mode::Hold), neither party
    /// hears it.
    pub fn set_echo(&mut self, echoes: bool) {
        self.echo.is_wanted = echoes;
    }

    /// The direction that gets this party's media.
    #[inline]
    pub(super) fn input(&self, side: Side) -> usize {
        if !self.echo.is_on {
            side as usize
        } else {
            side.other() as usize
        }
    }

    /// [`handle_datagram`](Call::handle_datagram) while the echo is on or about to change.
    #[cold]
    pub(super) fn handle_echoed(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        side: Side,
        channel: Channel,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        let leg = &mut self.legs[side as usize];
        // Packets pass directly only when their direction is known.
        let types = if self.echo.is_changing() {
            0
        } else {
            self.directions[side.other() as usize].direct_types(leg.payloads(), leg.takes())
        };
        leg.set_direct_types(types);
        let verdict = match channel {
            Channel::Rtp => leg.handle_datagram(now_ns, at_ns, from, bytes),
            Channel::Rtcp => leg.handle_rtcp(at_ns, from, bytes),
        };
        // The report is about the audio that the party itself has sent.
        if verdict == Verdict::Rtcp
            && let Some(report) = leg.report_of_peer(at_ns)
        {
            leg.note_far_report(report);
        }
        verdict
    }

    #[cold]
    pub(super) fn switch_echo(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        for side in Side::BOTH {
            let leg = &mut self.legs[side as usize];
            let mut out = to_party(now_ns, side, leg, &mut scratch.packet, send);
            self.directions[side.other() as usize].end_input(&mut scratch.work, &mut out);
        }
        let [to_b, to_a] = &mut self.directions;
        Direction::exchange_inputs(to_b, to_a);
        self.echo.is_on = self.echo.is_wanted;
    }

    /// Sends back this party's media that is due.
    #[cold]
    pub(super) fn poll_echo(
        &mut self,
        now_ns: u64,
        side: Side,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let media_ns = now_ns.saturating_add(self.ahead_ns);
        let leg = &mut self.legs[side as usize];
        let direction = &mut self.directions[side.other() as usize];
        direction.note_latency(leg.latency_ns());
        while let Some(media) = leg.poll_media(media_ns, may_lose) {
            // Copied, because the leg that holds the media also sends.
            let mut described = None;
            let media = line::copy(media, &mut scratch.payload, &mut described);
            let mut out = to_party(now_ns, side, leg, &mut scratch.packet, send);
            direction.handle(media, &mut scratch.work, &mut out);
        }
        let mut out = to_party(now_ns, side, leg, &mut scratch.packet, send);
        direction.poll_beside(media_ns, &mut scratch.work, &mut out);
    }
}

/// The output to a party that hears itself.
fn to_party<'a>(
    now_ns: u64,
    side: Side,
    leg: &'a mut Leg,
    packet: &'a mut Vec<u8>,
    send: &'a mut dyn FnMut(Outgoing<'_>),
) -> Out<'a> {
    Out {
        now_ns,
        side,
        leg: Sending::Leg(leg),
        packet,
        send,
        number: None,
    }
}
