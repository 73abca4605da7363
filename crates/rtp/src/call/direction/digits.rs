//! DTMF digits of a direction: those that the party sends, as events or as tones, and those that the owner inserts.

use super::dtmf_insert::{Event, Kind, SendingDigit, UPDATE_NS};
use super::keys::{KEY_OVER_NS, KEY_SILENCE_NS};
use super::output::BUDGET_NS_MAX;
use super::route::Route;
use super::tone::{FADE_NS, KEY_NS_MAX};
use super::{Direction, Stretch};
use crate::call::dtmf::{DtmfDigit, DtmfError};
use crate::call::keys::{KeyEvent, KeyPayload};
use crate::call::out::{Out, Work};
use crate::call::voice::PACKET_NS_DEFAULT;
use crate::call::{Mode, TAIL_NS_MAX};
use crate::dtmf;
use crate::id::NS_PER_S;
use crate::leg::{Carries, Lost, MediaPacket, Payload};
use crate::tone::Tone;

impl Direction {
    /// Handles a packet of telephone events from the party.
    pub(super) fn handle_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        self.output.stats.key_packets += 1;
        self.keys.over_ns = out.now_ns + KEY_OVER_NS;
        self.inband = None; // the party sends events, even if they were not agreed on
        let Some(told) = KeyPayload::parse(packet.bytes) else {
            self.output.stats.undecodable += 1;
            return;
        };
        let from_hz = self.output.incoming_rate().unwrap_or(payload.clock_rate_hz);
        let is_new = self.keys.note(payload, packet, told, from_hz);
        if self.is_sending_digit() {
            return;
        }
        let is_kept_back = self.output.mode != Mode::Pass && !self.keys.passes_always;
        if self.player.is_on() || self.output.is_held || is_kept_back {
            self.tone.is_on = false;
            return;
        }
        if is_new {
            self.tone.end(&mut self.output, work, out);
        }
        if self.keys.is_blocked && self.keys.key.is_none_or(|key| key.time.is_none()) {
            return;
        }
        let audio = *out.leg.takes().audio();
        match out.leg.takes().telephone_event(audio.clock_rate_hz) {
            Some(to) => {
                let to = *to;
                self.pass_key(payload, packet, told, &to, out);
            }
            None => self.sound_key(payload, packet, told, work, out),
        }
    }

    /// Forwards a digit with the far side's number, timestamp and clock rate.
    fn pass_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        to: &Payload,
        out: &mut Out<'_>,
    ) {
        self.output.flush(out);
        let audio_hz = self
            .output
            .routed_rate(out)
            .unwrap_or(payload.clock_rate_hz);
        let from_hz = self.output.incoming_rate().unwrap_or(payload.clock_rate_hz);
        let Some(key) = &mut self.keys.key else {
            return;
        };
        let is_first = key.time.is_none();
        let time = *key.time.get_or_insert_with(|| {
            self.output
                .map
                .map(packet.time, packet.play_ns, from_hz, audio_hz)
        });
        let (before, duration) = key.segment(to.clock_rate_hz);
        KeyPayload { duration, ..told }.write(out.begin());
        out.send(to, time.plus(before), is_first, u32::from(duration));
    }

    pub(super) fn sound_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some(key) = self.keys.key else { return };
        let from_hz = self.output.incoming_rate().unwrap_or(payload.clock_rate_hz);
        if key.time.is_none() && self.begin_tone(packet, told, from_hz, out).is_none() {
            self.output.stats.dropped += 1;
            return;
        }
        if !self.tone.is_on {
            return; // the packet only repeats the end
        }
        // A packet adds at most the time since the previous packet to the budget, even if it claims a longer tone. If packets were lost in
        // between, this time is longer.
        let passed_ns = out.now_ns.saturating_sub(self.keys.paid_ns);
        self.keys.paid_ns = out.now_ns;
        let earned_ns = passed_ns.min(KEY_NS_MAX);
        self.output.budget_ns = self
            .output
            .budget_ns
            .saturating_add(earned_ns)
            .min(BUDGET_NS_MAX);
        let Some(made_ns) = self.tone.made_ns() else {
            return;
        };
        // The fade comes later, when the digit ends.
        let wanted_ns = key.ns().saturating_sub(made_ns + FADE_NS);
        let ns = wanted_ns
            .min(KEY_NS_MAX + TAIL_NS_MAX)
            .min(self.output.budget_ns);
        self.output.budget_ns -= ns;
        self.tone.generate(ns, &mut self.output, work, out);
        if told.is_end {
            self.tone.end(&mut self.output, work, out);
        }
    }

    /// Starts the tone of the pressed digit. Returns `None` if the event has no tone, or if the tone cannot be encoded.
    fn begin_tone(
        &mut self,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        from_hz: u32,
        out: &mut Out<'_>,
    ) -> Option<()> {
        let tone = Tone::key(dtmf::Key::new(told.event)?, told.volume, 0);
        let to_hz = out.leg.takes().audio().clock_rate_hz;
        self.output.flush(out);
        let time = self
            .output
            .map
            .map(packet.time, packet.play_ns, from_hz, to_hz);
        let time = self.output.map.not_before_end(time);
        self.tone.begin(
            tone,
            (time, packet.play_ns),
            self.player.is_on(),
            &mut self.output,
            out,
        )?;
        self.keys.key.as_mut()?.time = Some(time);
        self.tone.is_on = true;
        Some(())
    }

    /// Whether the tone of a digit replaces this audio. Senders may continue their audio during a digit. If the audio is much later than
    /// the digit's next packet would be, the packets with the digit's end were lost, and the audio is not replaced.
    #[cold]
    pub(super) fn is_sounded_over(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(key) = &self.keys.key else {
            return false;
        };
        let units = packet.time.distance_from(key.until);
        let slack = u64::from(payload.clock_rate_hz) * KEY_SILENCE_NS / NS_PER_S;
        if units < slack as i64 {
            return self.tone.is_on;
        }
        self.keys.release();
        self.tone.end(&mut self.output, work, out);
        false
    }

    /// Returns the time at which the pressed digit ends if no more packets of it arrive.
    pub(in crate::call) fn next_key(&self) -> Option<u64> {
        let is_held = self.keys.is_pressed
            || self
                .inband
                .as_ref()
                .is_some_and(|inband_dtmf| inband_dtmf.is_pressed());
        is_held.then_some(self.keys.over_ns)
    }

    /// Ends the digit of a sender that has fallen silent.
    #[inline]
    pub(in crate::call) fn expire_key(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if self.next_key().is_some_and(|over_ns| over_ns <= out.now_ns) {
            self.keys.release();
            self.tone.end(&mut self.output, work, out);
            self.release_heard(out);
        }
    }

    /// Returns the time of the next work that needs no packet. Clips are not included.
    pub(in crate::call) fn next_unasked(&self) -> Option<u64> {
        self.next_key()
            .into_iter()
            .chain(self.output.next_pause())
            .min()
    }

    pub(in crate::call) fn poll_key(&mut self) -> Option<KeyEvent> {
        self.keys.reports.pop_front()
    }

    /// Feeds a packet to the detector of digits. Returns whether the far side gets an event instead.
    pub(super) fn listen(
        &mut self,
        payload: &Payload,
        bytes: &[u8],
        at: Stretch,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let (Some(inband), Carries::Audio(format)) = (&mut self.inband, payload.carries) else {
            return false;
        };
        inband.decode(format, bytes, &mut work.decoded) && self.hear(at, work, out)
    }

    /// Acts as [`listen`](Self::listen) for the concealment of a loss.
    #[cold]
    pub(super) fn listen_to_loss(
        &mut self,
        loss: &Lost<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let inband = self.inband.as_mut();
        let made = inband.and_then(|inband| inband.conceal(loss, made_ns, &mut work.decoded));
        made.is_some_and(|at| self.hear(at, work, out))
    }

    /// Whether audio is decoded for the far side, so that the detector needs no decoder.
    pub(super) fn is_decoding(&self) -> bool {
        matches!(self.output.route, Route::Reencode(_))
            && !self.player.is_on()
            && self.output.mode() != Mode::Hold
    }

    /// Feeds decoded audio to the detector. Returns whether the far side gets an event instead.
    #[cold]
    pub(super) fn hear(&mut self, at: Stretch, work: &Work, out: &mut Out<'_>) -> bool {
        let may_send = !self.player.is_on() && self.output.mode() == Mode::Pass;
        let Some(inband) = &mut self.inband else {
            return false;
        };
        self.keys.over_ns = out.now_ns + KEY_OVER_NS;
        let (keys, output) = (&mut self.keys, &mut self.output);
        inband.hear(at, may_send, keys, output, &work.decoded, out)
    }

    /// Ends the digit that the detector hears.
    pub(super) fn release_heard(&mut self, out: &mut Out<'_>) {
        if let Some(inband) = &mut self.inband {
            inband.release(&mut self.keys, &mut self.output, out);
        }
    }

    /// Queues a digit on behalf of the party.
    pub(in crate::call) fn insert_dtmf(
        &mut self,
        now_ns: u64,
        digit: DtmfDigit,
    ) -> Result<(), DtmfError> {
        self.dtmf_queue.get_or_insert_default().push(now_ns, digit)
    }

    /// Whether an inserted digit replaces the audio that is played at `play_ns`.
    #[inline]
    pub(super) fn is_inserting_dtmf(&self, play_ns: u64, now_ns: u64) -> bool {
        let dtmf_queue = self.dtmf_queue.as_ref();
        dtmf_queue.is_some_and(|dtmf_queue| dtmf_queue.replaces(play_ns, now_ns))
    }

    /// Whether an inserted digit is being sent or queued.
    #[inline]
    pub(super) fn has_queued_dtmf(&self) -> bool {
        let dtmf_queue = self.dtmf_queue.as_ref();
        dtmf_queue.is_some_and(|dtmf_queue| dtmf_queue.has_digit())
    }

    /// Whether a digit is being sent.
    pub(super) fn is_sending_digit(&self) -> bool {
        let dtmf_queue = self.dtmf_queue.as_ref();
        dtmf_queue.is_some_and(|dtmf_queue| dtmf_queue.current.is_some())
    }

    /// Returns the time of the next work for a digit. While the party itself presses a digit, queued ones wait for the party's packets.
    pub(in crate::call) fn next_dtmf(&self) -> Option<u64> {
        let dtmf_queue = self.dtmf_queue.as_ref()?;
        match dtmf_queue.current {
            Some(sending) => Some(sending.due_ns),
            None if dtmf_queue.waiting.is_empty() => None,
            None if self.next_key().is_some() && !self.keys.is_blocked => None,
            None => Some(dtmf_queue.next_ns),
        }
    }

    /// Ends the digit that is being sent, because the far side changes its payload types.
    pub(super) fn cut_dtmf(&mut self) {
        let Some(dtmf_queue) = &mut self.dtmf_queue else {
            return;
        };
        if let Some(sending) = dtmf_queue.current.take() {
            dtmf_queue.next_ns = sending.end_ns() + sending.digit.pause_ns;
            sending.note_sent(sending.due_ns - sending.start_ns, &mut self.output);
            // The tone that was gathered is older than the audio that follows, so it is dropped.
            if let (Kind::Tone { .. }, Some(voice)) = (sending.kind, &mut self.output.voice) {
                voice.clear();
            }
            self.output.cut();
            self.player.resume(0, &mut self.output);
        }
    }

    /// Sends everything that is due for inserted digits.
    #[inline]
    pub(in crate::call) fn poll_dtmf(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        if self.next_dtmf().is_some_and(|due_ns| due_ns <= now_ns) {
            self.poll_due_dtmf(now_ns, work, out);
        }
    }

    #[cold]
    fn poll_due_dtmf(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        // A digit that is late starts late, so that each digit is sent. Each takes at least two rounds of this loop.
        while self.next_dtmf().is_some_and(|due_ns| due_ns <= now_ns) {
            let current = self
                .dtmf_queue
                .as_ref()
                .and_then(|dtmf_queue| dtmf_queue.current);
            let sending = match current {
                Some(sending) => self.continue_digit(sending, now_ns, work, out),
                None => self.begin_digit(now_ns, work, out),
            };
            if let Some(dtmf_queue) = &mut self.dtmf_queue {
                dtmf_queue.current = sending;
            }
        }
    }

    /// Starts the next queued digit. Returns `None` if the far side cannot get digits.
    fn begin_digit(
        &mut self,
        now_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> Option<SendingDigit> {
        let dtmf_queue = self.dtmf_queue.as_mut()?;
        let digit = dtmf_queue.waiting.pop_front()?;
        let start_ns = dtmf_queue
            .next_ns
            .max(now_ns.saturating_sub(PACKET_NS_DEFAULT));
        if self.output.mode() == Mode::Hold || !out.leg.has_destination() {
            self.output.stats.dropped += 1;
            return None;
        }
        self.tone.end(&mut self.output, work, out);
        self.output.flush(out);
        let audio = *out.leg.takes().audio();
        let to = out
            .leg
            .takes()
            .telephone_event(audio.clock_rate_hz)
            .copied();
        let audio_hz = match &self.output.route {
            Route::Nowhere => audio.clock_rate_hz,
            _ => self.output.routed_rate(out).unwrap_or(audio.clock_rate_hz),
        };
        // The digit gets the place on the party's time line that it would have if it had arrived in a packet after the last one.
        let play_ns = start_ns.saturating_add(self.lead_ns);
        let play_ns = play_ns.max(self.output.map.end_play_ns());
        let time = self.output.map.at(play_ns, audio_hz);
        out.leg.set_sent_clock_rate(audio_hz);
        let kind = match to {
            Some(to) => Kind::Event {
                to,
                time,
                before: 0,
            },
            None => {
                let tone = Tone::key(digit.key, digit.volume, 0);
                if self
                    .tone
                    .begin(
                        tone,
                        (time, play_ns),
                        self.player.is_on(),
                        &mut self.output,
                        out,
                    )
                    .is_none()
                {
                    self.output.stats.dropped += 1;
                    return None;
                }
                Kind::Tone { made_ns: 0 }
            }
        };
        Some(SendingDigit {
            digit,
            start_ns,
            play_ns,
            due_ns: start_ns,
            kind,
        })
    }

    /// Continues the digit. Returns `None` when it has ended.
    fn continue_digit(
        &mut self,
        mut sending: SendingDigit,
        now_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> Option<SendingDigit> {
        let end_ns = sending.end_ns();
        let is_over = now_ns >= end_ns;
        let passed_ns = now_ns.saturating_sub(sending.start_ns);
        match &mut sending.kind {
            Kind::Event { to, time, before } => {
                let sent_ns = (passed_ns / UPDATE_NS + 1) * UPDATE_NS;
                let sent_ns = sent_ns.min(sending.digit.duration_ns);
                let key = Event {
                    digit: sending.digit,
                    to: *to,
                    time: *time,
                };
                let is_first = sending.due_ns == sending.start_ns;
                key.send_update(sent_ns, is_over, is_first, before, out);
                sending.due_ns = (sending.start_ns + (passed_ns / UPDATE_NS + 1) * UPDATE_NS)
                    .min(sending.end_ns());
            }
            Kind::Tone { made_ns } => {
                // The tone is generated less than a packet ahead of time. Its fade is generated at the digit's end.
                let whole_ns = sending.digit.duration_ns - FADE_NS;
                let wanted_ns = (passed_ns / PACKET_NS_DEFAULT + 1) * PACKET_NS_DEFAULT;
                let wanted_ns = wanted_ns.min(whole_ns);
                let ns = wanted_ns.saturating_sub(*made_ns);
                *made_ns += ns;
                self.tone.generate(ns, &mut self.output, work, out);
                sending.due_ns = if wanted_ns < whole_ns {
                    sending.start_ns + wanted_ns
                } else {
                    end_ns
                };
            }
        }
        if !is_over {
            return Some(sending);
        }
        self.end_digit(sending, work, out);
        None
    }

    fn end_digit(&mut self, sending: SendingDigit, work: &mut Work, out: &mut Out<'_>) {
        let end_ns = sending.end_ns();
        if let Kind::Tone { .. } = sending.kind {
            self.tone.finish(&mut self.output, work, out);
        }
        sending.note_sent(sending.digit.duration_ns, &mut self.output);
        self.output.cut();
        self.output.is_after_pause = true;
        self.player.resume(end_ns, &mut self.output);
        if let Some(dtmf_queue) = &mut self.dtmf_queue {
            dtmf_queue.until_ns = sending.play_ns + sending.digit.duration_ns;
            dtmf_queue.until_now_ns = end_ns + self.latency_ns;
            let heard_ns = dtmf_queue.until_ns.saturating_sub(self.lead_ns);
            dtmf_queue.next_ns = end_ns.max(heard_ns) + sending.digit.pause_ns;
        }
    }
}
