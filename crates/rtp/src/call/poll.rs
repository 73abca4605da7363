//! The output of a session: media, reports, and changes of the input.

use super::direction::Direction;
use super::flow::Flow;
use super::handover::Hold;
use super::out::{Leaves, Out, Scratch, Sending, Work};
use super::{Channel, Outgoing, Part, RTCP_BYTES_MAX, Session};
use crate::leg::{Leg, Lost, Media, MediaPacket, Payload};

impl Session {
    /// Passes everything that is due at `now_ns` to `send`. `may_lose` means that there are no unread datagrams, which could fill a gap.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        if self.echo.is_changing() {
            self.switch_echo(now_ns, scratch, send);
        }
        if self.hold.is_some() && !self.poll_held(now_ns, may_lose, scratch) {
            return;
        }
        self.poll_all(now_ns, may_lose, scratch, send);
    }

    #[inline]
    fn poll_all(
        &mut self,
        now_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        // Media that are due up to this time are sent.
        let media_ns = now_ns.saturating_add(self.ahead_ns);
        let media_ns = media_ns.saturating_sub(self.hold_ns());
        if self.flows.first().inputs.is_some() {
            self.change_input(now_ns, scratch, send);
            self.drop_inactive(media_ns, may_lose);
        }
        for index in 0..self.flows.len() {
            self.poll_flow(index, now_ns, media_ns, may_lose, scratch, send);
        }
        self.is_ending = false;
        for leg in 0..self.legs.len() {
            self.poll_reports(leg, now_ns, scratch, send);
        }
    }

    /// Sends the media of a flow that are due.
    #[inline]
    fn poll_flow(
        &mut self,
        index: usize,
        now_ns: u64,
        media_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let Some(flow) = self.flows.get_mut(index) else {
            return;
        };
        let to = flow.to;
        let leaves = Leaves::of(to, self.shares_ports);
        let from = match flow.active_leg() {
            Some(from) if from != to => from,
            same => return self.poll_back(index, same, now_ns, media_ns, may_lose, scratch, send),
        };
        let Ok([input, leg]) = self.legs.get_disjoint_mut([from, to]) else {
            return;
        };
        let is_main = from == flow.from;
        flow.direction.note_latency(input.latency_ns());
        let Scratch { packet, work, .. } = scratch;
        let mut out = Out {
            now_ns,
            leaves,
            leg: Sending::Leg(leg),
            packet,
            send,
            number: None,
        };
        while let Some(media) = input.poll_media(media_ns, may_lose) {
            if !is_main || !flow.skips(&media) {
                flow.handle(media, work, &mut out);
            }
        }
        flow.poll_beside(media_ns, self.is_ending, work, &mut out);
    }

    /// Acts as [`poll_flow`](Self::poll_flow), if the leg that has the media also sends them, or if no leg has them.
    #[cold]
    #[allow(
        clippy::too_many_arguments,
        reason = "the other half of a function, apart because it is rarely called"
    )]
    fn poll_back(
        &mut self,
        index: usize,
        from: Option<usize>,
        now_ns: u64,
        media_ns: u64,
        may_lose: bool,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let mut payload = std::mem::take(&mut scratch.payload);
        if let Some(from) = from {
            let latency_ns = self.legs[from].latency_ns();
            self.with_out(index, now_ns, scratch, send, |flow, _, _| {
                flow.direction.note_latency(latency_ns);
            });
            while let Some(media) = self.legs[from].poll_media(media_ns, may_lose) {
                // The packet is copied, because the leg that has it also sends.
                let mut described = None;
                let media = copy(media, &mut payload, &mut described);
                self.with_out(index, now_ns, scratch, send, |flow, work, out| {
                    if !flow.skips(&media) {
                        flow.handle(media, work, out);
                    }
                });
            }
        }
        scratch.payload = payload;
        let is_ending = self.is_ending;
        self.with_out(index, now_ns, scratch, send, |flow, work, out| {
            flow.poll_beside(media_ns, is_ending, work, out);
        });
    }

    /// Calls `work` with a flow and the leg that sends its media.
    fn with_out(
        &mut self,
        index: usize,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
        work: impl FnOnce(&mut Flow, &mut Work, &mut Out<'_>),
    ) {
        let Session { flows, legs, .. } = self;
        let Some(flow) = flows.get_mut(index) else {
            return;
        };
        let mut out = Out {
            now_ns,
            leaves: Leaves::of(flow.to, self.shares_ports),
            leg: Sending::Leg(&mut legs[flow.to]),
            packet: &mut scratch.packet,
            send,
            number: None,
        };
        work(flow, &mut scratch.work, &mut out);
    }

    #[inline]
    fn poll_reports(
        &mut self,
        leg: usize,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let Leaves { leg: id, ports } = Leaves::of(leg, self.shares_ports);
        let leg = &mut self.legs[leg];
        if leg.next_report().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        let leaves_from = if leg.is_mux() {
            Channel::Rtp
        } else {
            Channel::Rtcp
        };
        scratch.packet.resize(RTCP_BYTES_MAX, 0);
        while let Some((len, to)) = leg.poll_rtcp(now_ns, &mut scratch.packet) {
            send(Outgoing {
                leg: id,
                ports,
                leaves_from,
                channel: Channel::Rtcp,
                to,
                bytes: &scratch.packet[..len],
            });
        }
    }

    /// Switches the first flow to another input if a change is due.
    #[cold]
    fn change_input(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        let Some(inputs) = &mut self.flows.first_mut().inputs else {
            return;
        };
        let mut is_changed = false;
        while inputs.poll(now_ns).is_some() {
            is_changed = true;
        }
        if !is_changed {
            return;
        }
        let sound = inputs.active_sound().cloned();
        self.with_out(0, now_ns, scratch, send, |flow, work, out| {
            flow.direction.change_input(work, out);
            if let Some(sound) = sound {
                let payloads = out.leg.takes().clone();
                // This cannot fail, because the sound was checked before.
                let _ = flow
                    .direction
                    .begin_play(now_ns, sound, Part::default(), &payloads);
            }
        });
    }

    /// Drops the media of the first flow's inactive inputs when they are due.
    #[cold]
    fn drop_inactive(&mut self, media_ns: u64, may_lose: bool) {
        let flow = self.flows.first();
        let active = flow.active_leg();
        let inputs = flow.inputs.iter().flat_map(|inputs| inputs.legs());
        for leg in inputs.filter(|leg| Some(*leg) != active) {
            while self.legs[leg].poll_media(media_ns, may_lose).is_some() {}
        }
    }

    /// Exchanges the inputs of the two flows of a call. The stream to a party stays the same, with consecutive numbers and timestamps.
    /// Clips and DTMF digits that are played to the party still replace its audio.
    #[cold]
    fn switch_echo(
        &mut self,
        now_ns: u64,
        scratch: &mut Scratch,
        send: &mut dyn FnMut(Outgoing<'_>),
    ) {
        self.echo.is_on = self.echo.is_wanted;
        if self.flows.len() < 2 {
            return;
        }
        for index in 0..self.flows.len() {
            self.with_out(index, now_ns, scratch, send, |flow, work, out| {
                flow.direction.end_input(work, out);
            });
        }
        if let Some([one, other]) = self.flows.both_mut() {
            Direction::exchange_inputs(&mut one.direction, &mut other.direction);
            std::mem::swap(&mut one.from, &mut other.from);
        }
    }

    /// Polls a stream that is held, or whose hold ends. Returns `true` if a poll that sends must follow.
    #[cold]
    fn poll_held(&mut self, now_ns: u64, may_lose: bool, scratch: &mut Scratch) -> bool {
        if matches!(self.hold.as_deref(), Some(Hold::On)) {
            self.poll_all(now_ns, may_lose, scratch, &mut |_| ());
            return false;
        }
        let state = match self.hold.take().map(|hold| *hold) {
            Some(Hold::Ending(state)) => state,
            Some(Hold::On) | None => None,
        };
        let flow = self.flows.first();
        let heard = self.legs[flow.from].source().map(|(_, ssrc)| ssrc);
        let direction = state.as_ref().and_then(|state| state.directions.first());
        let passed = direction.and_then(|direction| direction.passed);
        let passed = passed.filter(|passed| Some(passed.ssrc) == heard && flow.input().0 == 0);
        if passed.is_none() {
            // It is unknown which of the late packets were sent, so none of them is sent now.
            self.poll_all(now_ns, may_lose, scratch, &mut |_| ());
        }
        if let Some((direction, sent)) =
            direction.and_then(|direction| Some((direction, state.as_ref()?.sent(direction)?)))
        {
            self.with_out(0, now_ns, scratch, &mut |_| (), |flow, work, out| {
                flow.direction.begin_anew(work, out);
            });
            let flow = self.flows.first_mut();
            let anchor = passed.and_then(|passed| passed.anchor);
            flow.direction.go_on(now_ns, direction.time, anchor);
            flow.passed_until = passed.map(|passed| passed.seq);
            flow.last_passed = flow.passed_until.or(flow.last_passed);
            self.legs[flow.to].restore_sent(sent);
        }
        true
    }

    /// Ends a stream. Everything that is queued becomes due. Poll once more afterwards.
    pub fn finish(&mut self) {
        self.legs.iter_mut().for_each(Leg::release_all);
        self.is_ending = true;
    }
}

/// Copies a packet's bytes into `bytes`, and its description into `described`.
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
        Media::Lost(lost) => {
            bytes.extend_from_slice(lost.next);
            Media::Lost(Lost {
                next: bytes,
                ..lost
            })
        }
        Media::Restart => Media::Restart,
    }
}
