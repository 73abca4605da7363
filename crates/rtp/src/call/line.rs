//! One-way stream: the media of one party goes to another, back to the same one, or nowhere.

use std::net::SocketAddr;

use super::direction::{Direction, DirectionStats, Tapped, check_sound};
use super::handover::{Hold, is_passed_on, note_passed};
use super::inputs::{Active, Fallback, Inputs};
use super::keys::KeyEvent;
use super::out::{Out, Scratch, Sending, Work};
use super::{CallError, Channel, DirectionConfig, Filter, Outgoing, Part, RTCP_BYTES_MAX, Side};
use crate::fallback::Switch;
use crate::id::{SeqNum, Ssrc};
use crate::leg::{
    Destination, Leg, LegConfig, LegEvent, LegStats, Media, MediaPacket, Payload, Verdict,
};

/// Destination of a [`Line`].
#[derive(Debug, Clone)]
pub enum Target {
    /// Back to the sending party: one leg does both.
    Same,
    /// To another party, from the same ports.
    Other(Box<LegConfig>),
    /// To another party, with all packets unchanged, including the SSRC.
    Verbatim(Box<LegConfig>),
    /// Nowhere; the stream has listeners only.
    Nobody,
}

/// Counters of a line.
#[derive(Debug, Clone, PartialEq)]
pub struct LineStats {
    /// The party that sends.
    pub source: LegStats,
    /// Statistics of the other party, if any.
    pub target: Option<LegStats>,
    /// The direction from one to the other.
    pub direction: DirectionStats,
    /// The active input: 0 is the sending party, then its fallbacks.
    pub active: usize,
    /// Number of changes of the input.
    pub switches: u64,
    /// The fallbacks that are senders, in order.
    pub fallbacks: Vec<LegStats>,
}

/// A datagram that a line sends.
#[derive(Debug, Clone, Copy)]
pub struct LineDatagram<'a> {
    /// Ports that it leaves from: 0 for those of the line, 1 and more for those of the fallback legs.
    pub leg: u8,
    /// RTP or RTCP port.
    pub channel: Channel,
    /// Destination.
    pub to: SocketAddr,
    /// The datagram.
    pub bytes: &'a [u8],
}

/// A one-way stream on one pair of ports: it forwards one party's media, converted if needed. The drain contract is that of
/// [`Call`](super::Call).
#[derive(Debug)]
pub struct Line {
    source: Leg,
    target: Option<Leg>,
    is_verbatim: bool,
    pub(super) direction: Direction,
    /// Inputs other than the source.
    inputs: Option<Box<Inputs>>,
    is_ending: bool,
    ahead_ns: u64,
    pub(super) hold: Option<Box<Hold>>,
    /// The sender's last forwarded packet.
    pub(super) last_passed: Option<SeqNum>,
    /// Packets up to this one were forwarded by another process.
    pub(super) passed_until: Option<SeqNum>,
}

impl<'a> From<Outgoing<'a>> for LineDatagram<'a> {
    fn from(outgoing: Outgoing<'a>) -> LineDatagram<'a> {
        LineDatagram {
            leg: 0,
            channel: outgoing.channel,
            to: outgoing.to,
            bytes: outgoing.bytes,
        }
    }
}

impl Line {
    /// Creates a line that starts at `now_ns`.
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
            inputs: None,
            is_ending: false,
            ahead_ns: 0,
            hold: None,
            last_passed: None,
            passed_until: None,
        })
    }

    /// Sets the inputs that replace a silent sender, in order of preference. The output stays one stream: one SSRC, consecutive
    /// numbers, timestamps that follow the time. Filter and tap get the outgoing audio, in its format. A line that forwards
    /// packets verbatim or sends nowhere ignores fallbacks.
    ///
    /// # Errors
    /// A fallback's setting is out of range, or its sound cannot be played.
    pub fn set_fallbacks(&mut self, now_ns: u64, all: Vec<Fallback>) -> Result<(), CallError> {
        let inputs = Inputs::new(now_ns, all)?;
        let hears = self.target.as_ref().unwrap_or(&self.source).takes();
        for sound in inputs.sounds() {
            check_sound(sound, hears)?;
        }
        self.direction.hear_at_output();
        self.inputs = Some(Box::new(inputs));
        self.set_ahead_ns(self.ahead_ns);
        Ok(())
    }

    /// The same as [`Call::set_ahead_ns`](super::Call::set_ahead_ns).
    pub fn set_ahead_ns(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
        let inputs = self.inputs.iter_mut().flat_map(|inputs| inputs.legs_mut());
        for leg in std::iter::once(&mut self.source).chain(inputs) {
            leg.set_ahead_ns(ahead_ns);
        }
    }

    /// Gives filter and tap the outgoing audio, in the receiving party's format, whatever the input.
    pub fn hear_at_output(&mut self) {
        self.direction.hear_at_output();
    }

    /// Passes all audio, decoded, through `filter`: at the rate and channels of the sending party, or, after
    /// [`hear_at_output`](Self::hear_at_output), of the receiving one.
    pub fn set_filter(&mut self, filter: Box<dyn Filter>) {
        self.direction.set_filter(filter);
    }

    /// Handles a datagram that arrived at `at_ns`.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        channel: Channel,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Verdict {
        if channel.carried(self.is_mux(), bytes) == Channel::Rtp {
            let verdict = self.source.handle_datagram(now_ns, at_ns, from, bytes);
            if let (Some(inputs), Verdict::Media) = (&mut self.inputs, verdict) {
                inputs.handle_heard(now_ns, 0);
            }
            return verdict;
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

    /// Handles a datagram of fallback leg `leg`, counted from 1.
    pub fn handle_fallback_datagram(
        &mut self,
        now_ns: u64,
        at_ns: u64,
        leg: u8,
        channel: Channel,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Option<Verdict> {
        let inputs = self.inputs.as_mut()?;
        let input = inputs.legs_mut().nth(usize::from(leg).checked_sub(1)?)?;
        let verdict = match channel {
            Channel::Rtp => input.handle_datagram(now_ns, at_ns, from, bytes),
            Channel::Rtcp => input.handle_rtcp(at_ns, from, bytes),
        };
        if verdict == Verdict::Media {
            inputs.handle_heard(now_ns, leg);
        }
        Some(verdict)
    }

    /// Whether either party multiplexes RTP and RTCP. The line has one pair of ports, so both are treated alike.
    fn is_mux(&self) -> bool {
        self.source.is_mux() || self.target.as_ref().is_some_and(Leg::is_mux)
    }

    /// Whether these reports come from the target. Reports of both parties arrive on one port. The sender's SSRC
    /// distinguishes them, or else the source address.
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

    /// The same as [`Call::poll_transmit`](super::Call::poll_transmit).
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        if self.hold.is_some() && !self.poll_held(now_ns, may_lose, scratch) {
            return;
        }
        self.poll_all(now_ns, may_lose, scratch, send);
    }

    /// Media up to this time is due.
    #[inline]
    fn media_ns(&self, now_ns: u64) -> u64 {
        let media_ns = now_ns.saturating_add(self.ahead_ns);
        media_ns.saturating_sub(self.hold_ns())
    }

    /// Time of the poll for media of this time.
    #[inline]
    fn poll_ns(&self, media_ns: u64) -> u64 {
        media_ns.saturating_sub(self.ahead_ns) + self.hold_ns()
    }

    #[inline]
    pub(super) fn poll_all(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let media_ns = self.media_ns(now_ns);
        if self.inputs.is_some() {
            self.change_input(now_ns, may_lose, scratch, send);
        }
        self.pass_on(now_ns, media_ns, may_lose, scratch, send);
        if self.is_ending || self.inputs.is_some() || self.direction.next_unasked().is_some() {
            self.poll_unasked(now_ns, media_ns, scratch, send);
        }
        self.poll_reports(now_ns, scratch, send);
    }

    /// Sends everything that is due without a packet: sounds, DTMF digits, and the end of the stream.
    #[cold]
    fn poll_unasked(
        &mut self,
        now_ns: u64,
        media_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let has_inputs = self.inputs.is_some();
        let is_ending = std::mem::take(&mut self.is_ending);
        self.with_out(now_ns, scratch, send, |direction, work, out| {
            direction.expire_key(work, out);
            direction.fill_pause(work, out);
            // The tone waits until the peer is known.
            if has_inputs && out.leg.has_destination() {
                direction.play(media_ns, work, out);
            }
            if is_ending {
                direction.finish(work, out);
            }
        });
    }

    /// Switches to another input if that is due.
    #[cold]
    fn change_input(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let mut is_changed = false;
        while let Some(inputs) = &mut self.inputs
            && inputs.poll(now_ns).is_some()
        {
            is_changed = true;
        }
        if is_changed {
            let sound = self.inputs.as_ref().and_then(|inputs| {
                let active = inputs.choice().active();
                inputs.sound(active).cloned()
            });
            self.with_out(now_ns, scratch, send, |direction, work, out| {
                direction.change_input(work, out);
                if let Some(sound) = sound {
                    let payloads = out.leg.takes().clone();
                    // The sound was checked before.
                    let _ = direction.begin_play(now_ns, sound, Part::default(), &payloads);
                }
            });
        }
        let media_ns = self.media_ns(now_ns);
        if let Some(inputs) = &mut self.inputs {
            inputs.drop_unheard(media_ns, may_lose, &mut self.source);
        }
    }

    /// Sends the active input's media that is due.
    #[inline]
    fn pass_on(
        &mut self,
        now_ns: u64,
        media_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        if self.inputs.is_none() && self.target.is_some() {
            return self.pass_to_target(now_ns, media_ns, may_lose, scratch, send);
        }
        loop {
            let active = self.inputs.as_mut().map(|inputs| inputs.active());
            let is_own = !matches!(active, Some(Active::Leg(_)));
            let leg = match active {
                None | Some(Active::Main) => &mut self.source,
                Some(Active::Leg(leg)) => leg,
                Some(Active::Sound) => return,
            };
            let Some(media) = leg.poll_media(media_ns, may_lose) else {
                return;
            };
            if is_own {
                if is_passed_on(&mut self.passed_until, &media) {
                    continue;
                }
                note_passed(&mut self.last_passed, &media);
            }
            // Owned, because the leg that holds the media may be the one that sends.
            let mut described = None;
            let media = copy(media, &mut scratch.payload, &mut described);
            if self.is_verbatim
                && let (Media::Packet(packet), Some(target)) = (&media, &mut self.target)
                && let Some(to) = target.forward(now_ns, packet)
            {
                send(LineDatagram {
                    leg: 0,
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
                number: None,
            };
            self.direction.handle(media, &mut scratch.work, &mut out);
        }
    }

    /// [`pass_on`](Self::pass_on) if the sending leg is not the one that holds the media: no packet is copied.
    #[inline]
    fn pass_to_target(
        &mut self,
        now_ns: u64,
        media_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let Some(target) = &mut self.target else {
            return;
        };
        let mut send = |outgoing: Outgoing<'_>| send(LineDatagram::from(outgoing));
        while let Some(media) = self.source.poll_media(media_ns, may_lose) {
            if is_passed_on(&mut self.passed_until, &media) {
                continue;
            }
            note_passed(&mut self.last_passed, &media);
            if self.is_verbatim
                && let Media::Packet(packet) = &media
                && let Some(to) = target.forward(now_ns, packet)
            {
                send(Outgoing {
                    side: Side::B,
                    channel: Channel::Rtp,
                    to,
                    bytes: packet.whole,
                });
            }
            let mut out = Out {
                now_ns,
                side: Side::B,
                leg: Sending::Leg(target),
                packet: &mut scratch.packet,
                send: &mut send,
                number: None,
            };
            self.direction.handle(media, &mut scratch.work, &mut out);
        }
    }

    pub(super) fn with_out(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
        work: impl FnOnce(&mut Direction, &mut Work, &mut Out<'_>),
    ) {
        let mut send = |outgoing: Outgoing<'_>| send(LineDatagram::from(outgoing));
        let mut out = Out {
            now_ns,
            side: Side::B,
            leg: Sending::Leg(self.target.as_mut().unwrap_or(&mut self.source)),
            packet: &mut scratch.packet,
            send: &mut send,
            number: None,
        };
        work(&mut self.direction, &mut scratch.work, &mut out);
    }

    #[inline]
    fn poll_reports(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(LineDatagram<'_>),
    ) {
        let own = std::iter::once(&mut self.source).chain(&mut self.target);
        let own = own.map(|leg| (0, leg));
        let others = self.inputs.iter_mut().flat_map(|inputs| inputs.legs_mut());
        for (number, leg) in own.chain((1..).zip(others)) {
            if leg.next_report().is_none_or(|due_ns| due_ns > now_ns) {
                continue;
            }
            scratch.packet.resize(RTCP_BYTES_MAX, 0);
            while let Some((len, to)) = leg.poll_rtcp(now_ns, &mut scratch.packet) {
                send(LineDatagram {
                    leg: number,
                    channel: Channel::Rtcp,
                    to,
                    bytes: &scratch.packet[..len],
                });
            }
        }
    }

    /// The next change of the active input.
    pub fn poll_switch(&mut self) -> Option<Switch> {
        self.inputs.as_mut()?.poll_switch()
    }

    /// The next event of the sending party.
    pub fn poll_event(&mut self) -> Option<LegEvent> {
        let others = self.inputs.iter_mut().flat_map(|inputs| inputs.legs_mut());
        for other in others.chain(&mut self.target) {
            while other.poll_event().is_some() {}
        }
        self.source.poll_event()
    }

    /// The next DTMF digit of the sending party.
    pub fn poll_key(&mut self) -> Option<KeyEvent> {
        self.direction.poll_key()
    }

    /// The same as [`Call::next_timeout`](super::Call::next_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let legs = std::iter::once(&self.source).chain(&self.target);
        let media = self.source.next_media();
        let media = media.map(|due_ns| self.poll_ns(due_ns));
        let unasked = self.direction.next_unasked();
        let reports = legs.filter_map(Leg::next_report);
        let own = reports.chain(media).chain(unasked).min();
        match &self.inputs {
            None => own,
            Some(inputs) => own.into_iter().chain(self.next_of_inputs(inputs)).min(),
        }
    }

    fn next_of_inputs(&self, inputs: &Inputs) -> Option<u64> {
        let media = inputs.legs().filter_map(Leg::next_media);
        let hears = self.target.as_ref().unwrap_or(&self.source);
        let play = self.direction.next_play();
        let media = media.chain(play.filter(|_| hears.rtp_to().is_some()));
        let media = media.map(|due_ns| self.poll_ns(due_ns));
        let reports = inputs.legs().filter_map(Leg::next_report);
        media.chain(reports).chain(inputs.next_timeout()).min()
    }

    /// Starts or stops copying the audio for listeners, in order, with losses concealed.
    pub fn tap(&mut self, is_on: bool) {
        self.direction.tap(is_on);
    }

    /// Takes the audio tapped since the last call: see [`Call::take_tapped`](super::Call::take_tapped).
    #[inline]
    pub fn take_tapped(&mut self, hear: impl FnMut(Tapped<'_>)) {
        self.direction.take_tapped(hear);
    }

    /// Number of samples queued in the tap.
    #[must_use]
    pub fn tapped(&self) -> usize {
        self.direction.tapped()
    }

    /// Ends the stream: everything queued leaves now. Poll once more.
    pub fn finish(&mut self) {
        self.source.release_all();
        for leg in self.inputs.iter_mut().flat_map(|inputs| inputs.legs_mut()) {
            leg.release_all();
        }
        self.is_ending = true;
    }

    /// Sends to another address from now on, such as a name's new address.
    pub fn set_destination(&mut self, destination: Destination) {
        if let Some(target) = &mut self.target {
            target.set_destination(destination);
        }
    }

    /// Makes all legs leave their sessions; one more poll sends the BYEs.
    pub fn leave(&mut self, now_ns: u64, reason: &str) {
        let others = self.inputs.iter_mut().flat_map(|inputs| inputs.legs_mut());
        let own = std::iter::once(&mut self.source).chain(&mut self.target);
        for leg in own.chain(others) {
            leg.leave(now_ns, reason);
        }
    }

    /// Addresses of memory that the next packet touches, for prefetching. Not to be dereferenced.
    #[must_use]
    pub fn next_addresses(&self) -> [usize; 4] {
        let [a, b, c] = self.source.next_addresses();
        [a, b, c, self.direction.next_address()]
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> LineStats {
        let (active, switches) = self.input();
        LineStats {
            source: self.source.stats(),
            target: self.target.as_ref().map(Leg::stats),
            direction: self.direction.stats(),
            active,
            switches,
            fallbacks: self
                .inputs
                .iter()
                .flat_map(|inputs| inputs.legs().map(Leg::stats))
                .collect(),
        }
    }

    /// Counters of the direction from one party to the other.
    #[must_use]
    pub fn direction_stats(&self) -> DirectionStats {
        self.direction.stats()
    }

    /// The active input (0 is the sending party, then its fallbacks), and how often it has changed.
    #[must_use]
    pub fn input(&self) -> (usize, u64) {
        let choice = self.inputs.as_ref().map(|inputs| inputs.choice());
        choice.map_or((0, 0), |choice| (choice.active(), choice.switches()))
    }

    /// The leg of the sending party.
    #[must_use]
    pub fn source(&self) -> &Leg {
        &self.source
    }

    pub(super) fn hears_mut(&mut self) -> &mut Leg {
        self.target.as_mut().unwrap_or(&mut self.source)
    }

    /// The leg that sends. Without a leg for the target, that is the source's leg.
    #[must_use]
    pub fn hears(&self) -> &Leg {
        self.target.as_ref().unwrap_or(&self.source)
    }
}

/// Copies the packet's bytes into `bytes` and its description into `described`.
#[inline]
pub(super) fn copy<'a>(
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
            is_sent,
            next,
        } => {
            bytes.extend_from_slice(next);
            Media::Lost {
                packets,
                time,
                play_ns,
                duration_ns,
                is_sent,
                next: bytes,
            }
        }
        Media::Restart => Media::Restart,
    }
}
