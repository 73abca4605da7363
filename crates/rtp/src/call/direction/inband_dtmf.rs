//! Detects DTMF digits in a party's audio. It reports them to the owner. A side that accepts telephone events gets these instead of the
//! tone.
//!
//! A digit is detected 35 to 40 ms after its start (see [`DtmfDetector`]). Until then, its tone is forwarded.

use super::Stretch;
use super::keys::Keys;
use super::output::Output;
use crate::call::keys::{Key, KeyPayload, KeyPhase};
use crate::call::out::Out;
use crate::codec::{Decoder, Format};
use crate::dtmf;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Lost, Payload};
use crate::tone::{self, DtmfDetector};

#[derive(Debug)]
pub(super) struct InbandDtmf {
    /// The detector and its sample rate. It is created with the first packet.
    detector: Option<(u32, DtmfDetector)>,
    /// Decoder for audio that need not be decoded for the far side.
    decoder: Option<Decoder>,
    mono: Vec<f32>,
    events: Vec<tone::KeyEvent>,
    pressed: Option<Pressed>,
    /// Timestamp at which the next audio is expected.
    next: Option<RtpTime>,
}

#[derive(Debug, Clone, Copy)]
struct Pressed {
    /// The pressed digit. Its `time` is set when the far side starts to get events for it.
    key: Key,
    at_frame: u64,
    volume: u8,
    /// Length of the digit that was reported to the far side so far, in timestamp units.
    sent_units: u64,
}

impl InbandDtmf {
    pub(super) fn new() -> InbandDtmf {
        InbandDtmf {
            detector: None,
            decoder: None,
            mono: Vec::new(),
            events: Vec::new(),
            pressed: None,
            next: None,
        }
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.pressed.is_some()
    }

    /// Returns the pressed digit, and its length so far in ms.
    pub(super) fn pressed_key(&self) -> Option<(u8, u32)> {
        let key = self.pressed?.key;
        Some((key.event, (key.ns() / 1_000_000) as u32))
    }

    fn feed(&mut self, audio: &[f32], at: Stretch) {
        let rate_hz = at.format.sample_rate_hz;
        if self
            .detector
            .as_ref()
            .is_none_or(|known| known.0 != rate_hz)
        {
            self.reset();
            self.detector = DtmfDetector::new(rate_hz)
                .ok()
                .map(|detector| (rate_hz, detector));
        }
        let follows = |next: RtpTime| {
            at.time.distance_from(next).unsigned_abs() * NS_PER_S
                < JUMP_NS_MAX * u64::from(at.rate_hz)
        };
        if !self.next.is_some_and(follows) {
            self.reset();
        }
        self.next = Some(at.time.plus(at.units));
        let channels = usize::from(at.format.channels);
        let mean = |frame: &[f32]| frame.iter().sum::<f32>() / frame.len() as f32;
        self.mono.clear();
        self.mono.extend(audio.chunks_exact(channels).map(mean));
        if let Some((_, detector)) = &mut self.detector {
            detector.feed(&self.mono, &mut self.events);
        }
    }

    /// Forgets the previous audio, because the next audio does not continue it.
    fn reset(&mut self) {
        self.next = None;
        if let Some((_, detector)) = &mut self.detector {
            detector.reset(&mut self.events);
        }
    }

    /// Feeds decoded audio to the detector. `may_send` means that the far side may get events. Returns whether it gets one instead of this
    /// audio.
    #[cold]
    pub(super) fn hear(
        &mut self,
        at: Stretch,
        may_send: bool,
        keys: &mut Keys,
        output: &mut Output,
        audio: &[f32],
        out: &mut Out<'_>,
    ) -> bool {
        self.feed(audio, at);
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                tone::KeyEvent::Down {
                    key,
                    at_frame,
                    volume,
                } => self.note_down((key, at_frame, volume), at, may_send, keys, output, out),
                tone::KeyEvent::Up { at_frame, .. } => {
                    self.note_up(at_frame, at.format.sample_rate_hz, keys, output, out);
                }
            }
        }
        self.events = events;
        self.send_update(at, keys, output, out)
    }

    /// Decodes a packet into `decoded` for the detector alone. Returns `false` if it is malformed.
    pub(super) fn decode(&mut self, format: Format, bytes: &[u8], decoded: &mut Vec<f32>) -> bool {
        if self.decoder.as_ref().map(Decoder::format) != Some(format) {
            self.decoder = Decoder::new(format).ok();
        }
        decoded.clear();
        let decoder = self.decoder.as_mut();
        // Malformed payloads are counted when they are decoded for the far side.
        decoder.is_some_and(|decoder| decoder.decode(bytes, decoded).is_ok())
    }

    /// Conceals a loss for the detector alone, with at most `made_ns` of audio in `decoded`.
    #[cold]
    pub(super) fn conceal(
        &mut self,
        loss: &Lost<'_>,
        made_ns: u64,
        decoded: &mut Vec<f32>,
    ) -> Option<Stretch> {
        let decoder = self.decoder.as_mut()?;
        let format = decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        decoded.clear();
        decoder.conceal(frames, decoded);
        (frames > 0).then(|| Stretch::of_loss(loss, format, frames))
    }

    fn note_down(
        &mut self,
        (key, at_frame, volume): (dtmf::Key, u64, u8),
        at: Stretch,
        may_send: bool,
        keys: &mut Keys,
        output: &mut Output,
        out: &mut Out<'_>,
    ) {
        let event = key.number();
        keys.report(event, KeyPhase::Pressed);
        let mut key = Key::begin(at.time, at.rate_hz, event);
        let is_sent = may_send && !keys.is_blocked && event_payload(out).is_some();
        if is_sent {
            output.flush(out);
            let audio_hz = output.routed_rate(out).unwrap_or(at.rate_hz);
            let time = output.map.map(at.time, at.play_ns, at.rate_hz, audio_hz);
            key.time = Some(output.map.not_before_end(time));
        }
        self.pressed = Some(Pressed {
            key,
            at_frame,
            volume,
            sent_units: 0,
        });
    }

    fn note_up(
        &mut self,
        at_frame: u64,
        rate_hz: u32,
        keys: &mut Keys,
        output: &mut Output,
        out: &mut Out<'_>,
    ) {
        let Some(Pressed {
            mut key,
            at_frame: began,
            volume,
            ..
        }) = self.pressed.take()
        else {
            return;
        };
        let frames = at_frame.saturating_sub(began);
        let duration_ms = (frames * 1000 / u64::from(rate_hz.max(1))) as u32;
        keys.report(key.event, KeyPhase::Released { duration_ms });
        key.units = key
            .units
            .max(frames * u64::from(key.own_hz) / u64::from(rate_hz.max(1)));
        for _ in 0..ENDS {
            send_event(&key, volume, (true, false), output, out);
        }
    }

    /// Ends the pressed digit here.
    pub(super) fn release(&mut self, keys: &mut Keys, output: &mut Output, out: &mut Out<'_>) {
        self.reset();
        let rate_hz = self.detector.as_ref().map_or(8000, |known| known.0);
        let last = self.events.drain(..).next_back();
        if let Some(tone::KeyEvent::Up { at_frame, .. }) = last {
            self.note_up(at_frame, rate_hz, keys, output, out);
        }
        self.pressed = None;
    }

    /// Updates the digit's length for the far side. Returns whether the audio must be omitted, because an event or nothing replaces it.
    fn send_update(
        &mut self,
        at: Stretch,
        keys: &Keys,
        output: &mut Output,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(pressed) = &mut self.pressed else {
            return false;
        };
        if pressed.key.time.is_none() {
            // No event is sent in place of the tone. The tone is omitted only if digits are blocked.
            return keys.is_blocked;
        }
        let end = at.time.plus(at.units);
        let units = end.distance_from(pressed.key.own_time).max(0) as u64;
        pressed.key.units = pressed.key.units.max(units);
        let is_first = pressed.sent_units == 0;
        let new_units = pressed.key.units - pressed.sent_units;
        if is_first || new_units * NS_PER_S >= UPDATE_NS * u64::from(pressed.key.own_hz) {
            pressed.sent_units = pressed.key.units;
            send_event(&pressed.key, pressed.volume, (false, is_first), output, out);
        }
        true
    }
}

fn send_event(
    key: &Key,
    volume: u8,
    (is_end, is_first): (bool, bool),
    output: &mut Output,
    out: &mut Out<'_>,
) {
    let (Some(to), Some(time)) = (event_payload(out), key.time) else {
        return;
    };
    let (before, duration) = key.segment(to.clock_rate_hz);
    let payload = KeyPayload {
        event: key.event,
        is_end,
        volume,
        duration,
    };
    payload.write(out.begin());
    out.send(&to, time.plus(before), is_first, u32::from(duration));
    output.is_after_pause = true;
}

fn event_payload(out: &Out<'_>) -> Option<Payload> {
    let takes = out.leg.takes();
    takes.telephone_event(takes.audio().clock_rate_hz).copied()
}

/// Interval between the packets of an event, as recommended by RFC 4733, section 2.5.1.2.
const UPDATE_NS: u64 = 50_000_000;
/// Number of copies of an event's last packet (RFC 4733, section 2.5.1.4).
const ENDS: usize = 3;
/// Maximum jump of the timestamps within a digit. A larger jump is a pause.
const JUMP_NS_MAX: u64 = 100_000_000;
