//! DTMF digits that the owner inserts in a party's name: telephone events for a side that accepts them, tones for others.

use std::collections::VecDeque;

use super::tone::FADE_NS;
use super::{Direction, Route};
use crate::call::Mode;
use crate::call::commands::{DTMF_DIGITS_MAX, DtmfDigit, DtmfError};
use crate::call::keys::{Key, KeyPayload};
use crate::call::out::{Out, Work};
use crate::call::voice::PACKET_NS_DEFAULT;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::Payload;
use crate::tone::Tone;

#[derive(Debug, Default)]
pub(super) struct DtmfQueue {
    waiting: VecDeque<DtmfDigit>,
    current: Option<SendingDigit>,
    /// Earliest start of the next digit.
    next_ns: u64,
    /// Play time from which on the party's packets are forwarded again.
    until_ns: u64,
    /// Time from which on the party's packets are forwarded whatever their play time: a sender whose timestamps stopped during
    /// a pause stays behind.
    until_now_ns: u64,
}

/// The digit that is being sent.
#[derive(Debug, Clone, Copy)]
struct SendingDigit {
    digit: DtmfDigit,
    start_ns: u64,
    /// Start of the digit on the incoming time line.
    play_ns: u64,
    /// Time of the next packet or piece of tone.
    due_ns: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Event {
        to: Payload,
        time: RtpTime,
        /// Start of the segment that was sent last, units.
        before: u32,
    },
    Tone {
        made_ns: u64,
    },
}

impl SendingDigit {
    fn end_ns(&self) -> u64 {
        self.start_ns + self.digit.duration_ns
    }
}

impl Direction {
    pub(in crate::call) fn insert_dtmf(
        &mut self,
        now_ns: u64,
        digit: DtmfDigit,
    ) -> Result<(), DtmfError> {
        let dtmf_queue = self.dtmf_queue.get_or_insert_default();
        if dtmf_queue.waiting.len() == DTMF_DIGITS_MAX {
            return Err(DtmfError::TooMany);
        }
        if dtmf_queue.waiting.is_empty() && dtmf_queue.current.is_none() {
            dtmf_queue.next_ns = dtmf_queue.next_ns.max(now_ns);
        }
        dtmf_queue.waiting.push_back(digit);
        Ok(())
    }

    /// Whether a digit replaces the audio that is played at `play_ns`.
    #[inline]
    pub(super) fn is_inserting_dtmf(&self, play_ns: u64, now_ns: u64) -> bool {
        self.dtmf_queue.as_ref().is_some_and(|dtmf_queue| {
            let is_before_end = play_ns < dtmf_queue.until_ns && now_ns < dtmf_queue.until_now_ns;
            dtmf_queue.current.is_some() || is_before_end
        })
    }

    /// Whether a digit is being sent or queued.
    #[inline]
    pub(super) fn has_queued_dtmf(&self) -> bool {
        self.dtmf_queue.as_ref().is_some_and(|dtmf_queue| {
            dtmf_queue.current.is_some() || !dtmf_queue.waiting.is_empty()
        })
    }

    /// Whether a digit is being sent.
    pub(super) fn is_sending_digit(&self) -> bool {
        let dtmf_queue = self.dtmf_queue.as_ref();
        dtmf_queue.is_some_and(|dtmf_queue| dtmf_queue.current.is_some())
    }

    /// Time of the next work for a digit. While the party itself presses a digit, queued ones wait for the party's packets.
    pub(in crate::call) fn next_dtmf(&self) -> Option<u64> {
        let dtmf_queue = self.dtmf_queue.as_ref()?;
        match dtmf_queue.current {
            Some(sending) => Some(sending.due_ns),
            None if dtmf_queue.waiting.is_empty() => None,
            None if self.next_key().is_some() && !self.blocks_keys => None,
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
            self.note_digit(&sending, sending.due_ns - sending.start_ns);
            // The gathered tone is older than the audio that follows.
            if let (Kind::Tone { .. }, Some(voice)) = (sending.kind, &mut self.voice) {
                voice.clear();
            }
            self.cut();
            self.resume_play(0);
        }
    }

    /// Sends everything due for inserted digits.
    #[inline]
    pub(in crate::call) fn poll_dtmf(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        if self.next_dtmf().is_some_and(|due_ns| due_ns <= now_ns) {
            self.poll_due_dtmf(now_ns, work, out);
        }
    }

    #[cold]
    fn poll_due_dtmf(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        // A late digit starts late, so that each digit is sent. A digit takes at least two rounds of this loop.
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

    /// Starts the next queued digit. Returns `None` if the far side cannot get it.
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
        if self.mode() == Mode::Hold || !out.leg.has_destination() {
            self.stats.dropped += 1;
            return None;
        }
        self.end_tone(work, out);
        self.flush(out);
        let audio = *out.leg.takes().audio();
        let to = out
            .leg
            .takes()
            .telephone_event(audio.clock_rate_hz)
            .copied();
        let audio_hz = match &self.route {
            Route::Nowhere => audio.clock_rate_hz,
            _ => self.routed_rate(out).unwrap_or(audio.clock_rate_hz),
        };
        // Placed on the party's time line as if the digit had arrived in a packet after the last one.
        let play_ns = start_ns.saturating_add(self.lead_ns);
        let play_ns = play_ns.max(self.map.end_play_ns());
        let time = self.map.at(play_ns, audio_hz);
        out.leg.set_sent_clock_rate(audio_hz);
        let kind = match to {
            Some(to) => Kind::Event {
                to,
                time,
                before: 0,
            },
            None => {
                let tone = Tone::key(digit.key, digit.volume, 0);
                if self.begin_sounding(tone, time, play_ns, out).is_none() {
                    self.stats.dropped += 1;
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

    /// Continues the digit; returns `None` after its end.
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
                self.send_digit_update(&key, sent_ns, is_over, is_first, before, out);
                sending.due_ns = (sending.start_ns + (passed_ns / UPDATE_NS + 1) * UPDATE_NS)
                    .min(sending.end_ns());
            }
            Kind::Tone { made_ns } => {
                // The tone is generated less than a packet ahead of time, and its fade at the digit's end.
                let whole_ns = sending.digit.duration_ns - FADE_NS;
                let wanted_ns = (passed_ns / PACKET_NS_DEFAULT + 1) * PACKET_NS_DEFAULT;
                let wanted_ns = wanted_ns.min(whole_ns);
                let ns = wanted_ns.saturating_sub(*made_ns);
                *made_ns += ns;
                self.make_tone(ns, work, out);
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
            self.finish_tone(work, out);
        }
        self.note_digit(&sending, sending.digit.duration_ns);
        self.cut();
        self.is_after_pause = true;
        self.resume_play(end_ns);
        if let Some(dtmf_queue) = &mut self.dtmf_queue {
            dtmf_queue.until_ns = sending.play_ns + sending.digit.duration_ns;
            dtmf_queue.until_now_ns = end_ns + self.latency_ns;
            let heard_ns = dtmf_queue.until_ns.saturating_sub(self.lead_ns);
            dtmf_queue.next_ns = end_ns.max(heard_ns) + sending.digit.pause_ns;
        }
    }

    /// Notes how much of a digit was sent to the far side. The next audio continues there, whatever its timestamps are.
    fn note_digit(&mut self, sending: &SendingDigit, sent_ns: u64) {
        if let Kind::Event { time, .. } = sending.kind {
            let units = u128::from(sent_ns) * u128::from(self.map.rate_hz());
            let units = (units / u128::from(NS_PER_S)) as u32;
            self.map.note_sent(time, units, sending.play_ns);
        }
        self.map.restart();
    }

    /// Sends the digit's length so far, three times at its end (RFC 4733, section 2.5.1.4). An event longer than the duration
    /// field's range is sent in segments. Each ends with the full range, at which the next one starts (section 2.5.1.3).
    fn send_digit_update(
        &mut self,
        event: &Event,
        sent_ns: u64,
        is_end: bool,
        is_first: bool,
        before: &mut u32,
        out: &mut Out<'_>,
    ) {
        let hz = event.to.clock_rate_hz;
        let mut key = Key::begin(event.time, hz, event.digit.key.number());
        key.units = sent_ns * u64::from(hz) / NS_PER_S;
        let (segment, duration) = key.segment(hz);
        let mut marker = is_first;
        while *before < segment {
            self.send_digit_event(
                event,
                *before,
                u16::MAX,
                false,
                std::mem::take(&mut marker),
                out,
            );
            *before += u32::from(u16::MAX);
        }
        for _ in 0..if is_end { ENDS } else { 1 } {
            self.send_digit_event(
                event,
                segment,
                duration,
                is_end,
                std::mem::take(&mut marker),
                out,
            );
        }
    }

    fn send_digit_event(
        &mut self,
        event: &Event,
        before: u32,
        duration: u16,
        is_end: bool,
        marker: bool,
        out: &mut Out<'_>,
    ) {
        let payload = KeyPayload {
            event: event.digit.key.number(),
            is_end,
            volume: event.digit.volume,
            duration,
        };
        payload.write(out.begin());
        let time = event.time.plus(before);
        out.send(&event.to, time, marker, u32::from(duration));
    }
}

/// A digit for a side that accepts events.
struct Event {
    digit: DtmfDigit,
    to: Payload,
    time: RtpTime,
}

/// Interval between the packets of an event, as RFC 4733, section 2.5.1.2, recommends.
const UPDATE_NS: u64 = 50_000_000;
/// Number of copies of an event's last packet (RFC 4733, section 2.5.1.4).
const ENDS: usize = 3;
