//! One way: what one party sends goes to another, or back to the same, or nowhere.

use std::net::SocketAddr;

use super::direction::{Direction, DirectionStats};
use super::keys::KeyEvent;
use super::out::{Out, Scratch, Sending};
use super::{CallError, Channel, DirectionConfig, Filter, Outgoing, RTCP_BYTES_MAX, Side};
use crate::codec::Format;
use crate::id::Ssrc;
use crate::leg::{
    Destination, Leg, LegConfig, LegEvent, LegStats, Media, MediaPacket, Payload, Verdict,
};
use crate::packet::is_rtcp;

/// Where a [`Line`] sends.
#[derive(Debug, Clone)]
pub enum Target {
    /// Back to the party that sends: the one leg does both.
    Same,
    /// To another party, from the same ports.
    Other(Box<LegConfig>),
    /// To another party, packets exactly as they came, their SSRC too.
    Verbatim(Box<LegConfig>),
    /// Nowhere: it is only listened to.
    Nobody,
}

/// A line that was listened to.
#[derive(Debug, Clone, PartialEq)]
pub struct LineStats {
    /// The party that sends.
    pub source: LegStats,
    /// The other party, if there is one.
    pub target: Option<LegStats>,
    /// What goes from one to the other.
    pub direction: DirectionStats,
}

/// A datagram that a line sends. All leave from its own ports.
#[derive(Debug, Clone, Copy)]
pub struct LineDatagram<'a> {
    /// From which port.
    pub channel: Channel,
    /// To where.
    pub to: SocketAddr,
    /// The datagram.
    pub bytes: &'a [u8],
}

/// A one-way stream on one pair of ports: a party sends, and the line passes on what it sends, converted if need be. The drain
/// contract is that of [`Call`](super::Call).
#[derive(Debug)]
pub struct Line {
    source: Leg,
    target: Option<Leg>,
    is_verbatim: bool,
    direction: Direction,
    is_ending: bool,
    ahead_ns: u64,
}

impl<'a> From<Outgoing<'a>> for LineDatagram<'a> {
    fn from(outgoing: Outgoing<'a>) -> LineDatagram<'a> {
        LineDatagram {
            channel: outgoing.channel,
            to: outgoing.to,
            bytes: outgoing.bytes,
        }
    }
}

impl Line {
    /// A line that begins at `now_ns`.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        now_ns: u64,
        source: LegConfig,
        target: Target,
        direction: DirectionConfig,
    ) -> Result<Line, CallError> {
        let is_verbatim = matches!(target, Target::Verbatim(_));
        let is_heard = !matches!(target, Target::Nobody);
        let other = match target {
            Target::Other(other) | Target::Verbatim(other) => Some(*other),
            Target::Same | Target::Nobody => None,
        };
        let payloads = other.as_ref().unwrap_or(&source).takes();
        let mut direction = Direction::new(direction, payloads)?;
        direction.set_sender(&source.payloads);
        if !is_heard || is_verbatim {
            direction.set_mode(super::Mode::Hold);
        }
        Ok(Line {
            direction,
            target: other.map(|other| Leg::new(now_ns, other)).transpose()?,
            source: Leg::new(now_ns, source)?,
            is_verbatim,
            is_ending: false,
            ahead_ns: 0,
        })
    }

    /// As [`Call::set_ahead_ns`](super::Call::set_ahead_ns).
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
    }

    /// Passes all audio through `filter`, decoded, at the rate and channels of the party that sends.
    pub fn set_filter(&mut self, filter: Box<dyn Filter>) {
        self.direction.set_filter(filter);
    }

    /// Takes a datagram that arrived at `at_ns`.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        channel: Channel,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        if channel == Channel::Rtp && !is_rtcp(bytes) {
            return self.source.handle_datagram(now_ns, at_ns, from, bytes);
        }
        let is_targets = self.is_from_target(from, bytes);
        let leg = match &mut self.target {
            Some(target) if is_targets => target,
            _ => &mut self.source,
        };
        match channel {
            Channel::Rtp => leg.handle_datagram(now_ns, at_ns, from, bytes),
            Channel::Rtcp => leg.handle_rtcp(at_ns, from, bytes),
        }
    }

    /// Whose reports these are: both parties' come to one port. The sender's SSRC tells, or where they come from.
    fn is_from_target(&self, from: SocketAddr, bytes: &[u8]) -> bool {
        let Some(target) = &self.target else {
            return false;
        };
        let sender = bytes
            .get(4..8)
            .and_then(|word| <[u8; 4]>::try_from(word).ok())
            .map(|word| Ssrc(u32::from_be_bytes(word)));
        let is_source = self
            .source
            .source()
            .is_some_and(|(_, ssrc)| Some(ssrc) == sender);
        !is_source && target.rtp_to().is_some_and(|to| to.ip() == from.ip())
    }

    /// As [`Call::poll_transmit`](super::Call::poll_transmit).
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let media_ns = now_ns.saturating_add(self.ahead_ns);
        while let Some(media) = self.source.poll_media(media_ns, may_lose) {
            // Owned: the leg that holds the media may be the one that sends.
            let mut described = None;
            let media = copy(media, &mut scratch.payload, &mut described);
            if self.is_verbatim
                && let (Media::Packet(packet), Some(target)) = (&media, &mut self.target)
                && let Some(to) = target.forward(now_ns, packet)
            {
                send(LineDatagram {
                    channel: Channel::Rtp,
                    to,
                    bytes: packet.whole,
                });
            }
            let mut send = |outgoing: Outgoing<'_>| send(LineDatagram::from(outgoing));
            let mut out = Out {
                now_ns,
                side: Side::B,
                leg: Sending::Leg(self.target.as_mut().unwrap_or(&mut self.source)),
                packet: &mut scratch.packet,
                send: &mut send,
            };
            self.direction.handle(media, &mut scratch.work, &mut out);
        }
        if self.is_ending || self.direction.next_key().is_some() {
            self.poll_ends(now_ns, scratch, send);
        }
        self.poll_reports(now_ns, scratch, send);
    }

    /// What ends without a packet: a key, or all.
    #[cold]
    fn poll_ends(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let mut send = |outgoing: Outgoing<'_>| send(LineDatagram::from(outgoing));
        let mut out = Out {
            now_ns,
            side: Side::B,
            leg: Sending::Leg(self.target.as_mut().unwrap_or(&mut self.source)),
            packet: &mut scratch.packet,
            send: &mut send,
        };
        self.direction.expire_key(&mut scratch.work, &mut out);
        if std::mem::take(&mut self.is_ending) {
            self.direction.finish(&mut scratch.work, &mut out);
        }
    }

    #[inline]
    fn poll_reports(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        for leg in std::iter::once(&mut self.source).chain(&mut self.target) {
            if leg.next_report().is_none_or(|due_ns| due_ns > now_ns) {
                continue;
            }
            scratch.packet.resize(RTCP_BYTES_MAX, 0);
            while let Some((len, to)) = leg.poll_rtcp(now_ns, &mut scratch.packet) {
                send(LineDatagram {
                    channel: Channel::Rtcp,
                    to,
                    bytes: &scratch.packet[..len],
                });
            }
        }
    }

    /// The next event of the party that sends.
    pub fn poll_event(&mut self) -> Option<LegEvent> {
        while self.target.as_mut().and_then(Leg::poll_event).is_some() {}
        self.source.poll_event()
    }

    /// The next key of the party that sends.
    pub fn poll_key(&mut self) -> Option<KeyEvent> {
        self.direction.poll_key()
    }

    /// As [`Call::next_timeout`](super::Call::next_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let legs = std::iter::once(&self.source).chain(&self.target);
        let media = self.source.next_media();
        let media = media.map(|due_ns| due_ns.saturating_sub(self.ahead_ns));
        let keys = self.direction.next_key();
        let reports = legs.filter_map(Leg::next_report);
        reports.chain(media).chain(keys).min()
    }

    /// Begins or ends a copy of what is said, in order, losses filled in.
    pub fn tap(&mut self, is_on: bool) {
        self.direction.tap(is_on);
    }

    /// What was tapped since the last call: see [`Call::take_tapped`](super::Call::take_tapped).
    pub fn take_tapped(&mut self, samples: &mut Vec<f32>) -> Option<Format> {
        self.direction.take_tapped(samples)
    }

    /// Samples that wait in the tap.
    #[must_use]
    pub fn tapped(&self) -> usize {
        self.direction.tapped()
    }

    /// The stream ends: everything held goes out now. Poll once more.
    pub fn finish(&mut self) {
        self.source.release_all();
        self.is_ending = true;
    }

    /// Sends to another address from now on: a name was looked up.
    pub fn set_destination(&mut self, destination: Destination) {
        if let Some(target) = &mut self.target {
            target.set_destination(destination);
        }
    }

    /// Both legs leave their sessions: poll once more for their BYEs.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        self.source.leave(now_ns, reason);
        if let Some(target) = &mut self.target {
            target.leave(now_ns, reason);
        }
    }

    /// Memory that the next packet touches, for prefetching. Not to be dereferenced.
    #[must_use]
    pub fn next_addresses(&self) -> [usize; 3] {
        self.source.next_addresses()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> LineStats {
        LineStats {
            source: self.source.stats(),
            target: self.target.as_ref().map(Leg::stats),
            direction: self.direction.stats(),
        }
    }

    /// The leg of the party that sends.
    #[must_use]
    pub fn source(&self) -> &Leg {
        &self.source
    }
}

/// The same, with its bytes in `bytes` and its description in `described`.
#[inline]
fn copy<'a>(
    media: Media<'_>,
    bytes: &'a mut Vec<u8>,
    described: &'a mut Option<Payload>,
) -> Media<'a> {
    bytes.clear();
    match media {
        Media::Packet(packet) => {
            bytes.extend_from_slice(packet.whole);
            let start = packet.whole.len() - packet.bytes.len() - packet.padding();
            *described = packet.payload.copied();
            Media::Packet(MediaPacket {
                payload: described.as_ref(),
                bytes: &bytes[start..start + packet.bytes.len()],
                whole: bytes,
                ..packet
            })
        }
        Media::Lost {
            packets,
            time,
            play_ns,
            duration_ns,
            next,
        } => {
            bytes.extend_from_slice(next);
            Media::Lost {
                packets,
                time,
                play_ns,
                duration_ns,
                next: bytes,
            }
        }
        Media::Restart => Media::Restart,
    }
}
