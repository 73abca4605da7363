//! Detects DTMF digits in a party's audio. It reports them to the owner, and sends telephone events in place of the tone to a
//! side that accepts them.
//!
//! A digit is detected 35 to 40 ms after its start (see [`DtmfDetector`]); that much of its tone was forwarded by then.

use super::keys::KEY_OVER_NS;
use super::{Direction, Loss, Route};
use crate::call::Mode;
use crate::call::keys::{Key, KeyPayload, KeyPhase};
use crate::call::out::{Out, Work};
use crate::codec::{Decoder, Format};
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::{Carries, Payload};
use crate::tone::{self, DtmfDetector};

#[derive(Debug)]
pub(super) struct InbandDtmf {
    /// Detector for this sample rate, created with the first packet.
    detector: Option<(u32, DtmfDetector)>,
    /// Decoder for audio that is not decoded for the far side.
    decoder: Option<Decoder>,
    mono: Vec<f32>,
    events: Vec<tone::KeyEvent>,
    pressed: Option<Pressed>,
    /// Timestamp at which the next audio is expected.
    next: Option<RtpTime>,
}

#[derive(Debug, Clone, Copy)]
struct Pressed {
    /// The pressed digit. Its `time` is set once the far side gets events for it.
    key: Key,
    at_frame: u64,
    volume: u8,
    /// Length reported to the far side so far.
    sent_units: u64,
}

/// A stretch of audio on the incoming time line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) time: RtpTime,
    pub(super) play_ns: u64,
    pub(super) units: u32,
    pub(super) rate_hz: u32,
}

impl Loss<'_> {
    /// The concealed part of the loss.
    pub(super) fn stretch(&self, format: Format, frames: usize) -> Stretch {
        Stretch {
            time: self.time,
            play_ns: self.play_ns,
            units: format.clock_units(frames as u32),
            rate_hz: format.clock_rate_hz,
        }
    }
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

    /// The pressed digit and its length so far in ms.
    pub(super) fn pressed_key(&self) -> Option<(u8, u32)> {
        let key = self.pressed?.key;
        Some((key.event, (key.ns() / 1_000_000) as u32))
    }

    fn feed(&mut self, format: Format, audio: &[f32], at: Stretch) {
        let rate_hz = format.sample_rate_hz;
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
        let channels = usize::from(format.channels);
        let mean = |frame: &[f32]| frame.iter().sum::<f32>() / frame.len() as f32;
        self.mono.clear();
        self.mono.extend(audio.chunks_exact(channels).map(mean));
        if let Some((_, detector)) = &mut self.detector {
            detector.feed(&self.mono, &mut self.events);
        }
    }

    /// Forgets the previous audio: the next audio is unrelated to it.
    fn reset(&mut self) {
        self.next = None;
        if let Some((_, detector)) = &mut self.detector {
            detector.reset(&mut self.events);
        }
    }
}

impl Direction {
    /// Feeds a packet to the detector. Returns whether the far side gets an event instead.
    pub(super) fn listen(
        &mut self,
        payload: &Payload,
        bytes: &[u8],
        at: Stretch,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let (Some(inband_dtmf), Carries::Audio(format)) = (&mut self.inband_dtmf, payload.carries)
        else {
            return false;
        };
        if inband_dtmf.decoder.as_ref().map(Decoder::format) != Some(format) {
            inband_dtmf.decoder = Decoder::new(format).ok();
        }
        work.decoded.clear();
        let decoder = inband_dtmf.decoder.as_mut();
        // Malformed payloads are counted by the decoder for the far side.
        let decoded = decoder.and_then(|decoder| decoder.decode(bytes, &mut work.decoded).ok());
        decoded.is_some() && self.hear(format, at, work, out)
    }

    /// [`listen`](Self::listen) for the concealment of a loss.
    #[cold]
    pub(super) fn listen_to_loss(
        &mut self,
        loss: &Loss<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(decoder) = self
            .inband_dtmf
            .as_mut()
            .and_then(|inband_dtmf| inband_dtmf.decoder.as_mut())
        else {
            return false;
        };
        let format = decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        work.decoded.clear();
        decoder.conceal(frames, &mut work.decoded);
        let at = loss.stretch(format, frames);
        frames > 0 && self.hear(format, at, work, out)
    }

    /// Whether audio is decoded for the far side, so that the detector needs no decoder.
    pub(super) fn is_decoding(&self) -> bool {
        matches!(self.route, Route::Reencode(_))
            && self.playing.is_none()
            && self.mode() != Mode::Hold
    }

    /// Feeds decoded audio to the detector. Returns whether the far side gets an event instead.
    #[cold]
    pub(super) fn hear(
        &mut self,
        format: Format,
        at: Stretch,
        work: &Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(inband_dtmf) = &mut self.inband_dtmf else {
            return false;
        };
        self.key_over_ns = out.now_ns + KEY_OVER_NS;
        inband_dtmf.feed(format, &work.decoded, at);
        let mut events = std::mem::take(&mut inband_dtmf.events);
        for event in events.drain(..) {
            match event {
                tone::KeyEvent::Down {
                    key,
                    at_frame,
                    volume,
                } => self.note_down(key.number(), at_frame, volume, at, out),
                tone::KeyEvent::Up { at_frame, .. } => {
                    self.note_up(at_frame, format.sample_rate_hz, out);
                }
            }
        }
        if let Some(inband_dtmf) = &mut self.inband_dtmf {
            inband_dtmf.events = events;
        }
        self.send_update(at, out)
    }

    fn note_down(&mut self, event: u8, at_frame: u64, volume: u8, at: Stretch, out: &mut Out<'_>) {
        self.report_key(event, KeyPhase::Pressed);
        let mut key = Key::begin(at.time, at.rate_hz, event);
        let is_told = self.playing.is_none()
            && self.mode() == Mode::Pass
            && !self.blocks_keys
            && self.event_payload(out).is_some();
        if is_told {
            self.flush(out);
            let audio_hz = self.routed_rate(out).unwrap_or(at.rate_hz);
            let time = self.map.map(at.time, at.play_ns, at.rate_hz, audio_hz);
            key.time = Some(self.map.not_before_end(time));
        }
        if let Some(inband_dtmf) = &mut self.inband_dtmf {
            inband_dtmf.pressed = Some(Pressed {
                key,
                at_frame,
                volume,
                sent_units: 0,
            });
        }
    }

    fn note_up(&mut self, at_frame: u64, rate_hz: u32, out: &mut Out<'_>) {
        let pressed = self
            .inband_dtmf
            .as_mut()
            .and_then(|inband_dtmf| inband_dtmf.pressed.take());
        let Some(Pressed {
            mut key,
            at_frame: began,
            volume,
            ..
        }) = pressed
        else {
            return;
        };
        let frames = at_frame.saturating_sub(began);
        let duration_ms = (frames * 1000 / u64::from(rate_hz.max(1))) as u32;
        self.report_key(key.event, KeyPhase::Released { duration_ms });
        key.units = key
            .units
            .max(frames * u64::from(key.own_hz) / u64::from(rate_hz.max(1)));
        for _ in 0..ENDS {
            self.send_event(&key, volume, true, false, out);
        }
    }

    /// Ends the pressed digit here.
    pub(super) fn release_heard(&mut self, out: &mut Out<'_>) {
        let Some(inband_dtmf) = &mut self.inband_dtmf else {
            return;
        };
        inband_dtmf.reset();
        let rate_hz = inband_dtmf.detector.as_ref().map_or(8000, |known| known.0);
        let last = inband_dtmf.events.drain(..).next_back();
        if let Some(tone::KeyEvent::Up { at_frame, .. }) = last {
            self.note_up(at_frame, rate_hz, out);
        }
        if let Some(inband_dtmf) = &mut self.inband_dtmf {
            inband_dtmf.pressed = None;
        }
    }

    /// Updates the digit's length for the far side. Returns whether the audio must be omitted: an event, or nothing, replaces it.
    fn send_update(&mut self, at: Stretch, out: &mut Out<'_>) -> bool {
        let Some(mut pressed) = self
            .inband_dtmf
            .as_ref()
            .and_then(|inband_dtmf| inband_dtmf.pressed)
        else {
            return false;
        };
        if pressed.key.time.is_none() {
            // No event replaces the tone.
            return self.blocks_keys;
        }
        let end = at.time.plus(at.units);
        let units = end.distance_from(pressed.key.own_time).max(0) as u64;
        pressed.key.units = pressed.key.units.max(units);
        let is_first = pressed.sent_units == 0;
        let new_units = pressed.key.units - pressed.sent_units;
        if is_first || new_units * NS_PER_S >= UPDATE_NS * u64::from(pressed.key.own_hz) {
            pressed.sent_units = pressed.key.units;
            self.send_event(&pressed.key, pressed.volume, false, is_first, out);
        }
        if let Some(inband_dtmf) = &mut self.inband_dtmf {
            inband_dtmf.pressed = Some(pressed);
        }
        true
    }

    fn send_event(
        &mut self,
        key: &Key,
        volume: u8,
        is_end: bool,
        is_first: bool,
        out: &mut Out<'_>,
    ) {
        let (Some(to), Some(time)) = (self.event_payload(out), key.time) else {
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
        self.is_after_pause = true;
    }

    fn event_payload(&self, out: &Out<'_>) -> Option<Payload> {
        let takes = out.leg.takes();
        takes.telephone_event(takes.audio().clock_rate_hz).copied()
    }
}

/// Interval between the packets of an event, as RFC 4733, section 2.5.1.2, recommends.
const UPDATE_NS: u64 = 50_000_000;
/// Number of copies of an event's last packet (RFC 4733, section 2.5.1.4).
const ENDS: usize = 3;
/// A larger jump of the timestamps is a pause.
const JUMP_NS_MAX: u64 = 100_000_000;
