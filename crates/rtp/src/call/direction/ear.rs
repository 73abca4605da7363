//! Keys that a party presses in its audio: the owner is told, and a side with telephone events gets those in place of the tone.
//!
//! A key is known 35 to 40 ms after it began (see [`DtmfDetector`]); that much of its tone has been passed on by then.

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
pub(super) struct Ear {
    /// For audio of this rate; made with the first packet.
    detector: Option<(u32, DtmfDetector)>,
    /// Where audio is not decoded for the far side.
    decoder: Option<Decoder>,
    mono: Vec<f32>,
    events: Vec<tone::KeyEvent>,
    pressed: Option<Pressed>,
    /// Where the next audio is expected.
    next: Option<RtpTime>,
}

#[derive(Debug, Clone, Copy)]
struct Pressed {
    /// It has a time if the far side is told of it.
    key: Key,
    at_frame: u64,
    volume: u8,
    /// Of its length, what the far side was told.
    told_units: u64,
}

/// A stretch of audio on the time line of what comes in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) time: RtpTime,
    pub(super) play_ns: u64,
    pub(super) units: u32,
    pub(super) rate_hz: u32,
}

impl Loss<'_> {
    /// The part of it that is made up.
    pub(super) fn stretch(&self, format: Format, frames: usize) -> Stretch {
        Stretch {
            time: self.time,
            play_ns: self.play_ns,
            units: format.clock_units(frames as u32),
            rate_hz: format.clock_rate_hz,
        }
    }
}

impl Ear {
    pub(super) fn new() -> Ear {
        Ear {
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

    /// The key that is pressed, and for how many ms so far.
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

    /// What follows has nothing to do with what was before.
    fn reset(&mut self) {
        self.next = None;
        if let Some((_, detector)) = &mut self.detector {
            detector.reset(&mut self.events);
        }
    }
}

impl Direction {
    /// Listens to a packet. Returns whether the far side has an event in its place.
    pub(super) fn listen(
        &mut self,
        payload: &Payload,
        bytes: &[u8],
        at: Stretch,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let (Some(ear), Carries::Audio(format)) = (&mut self.ear, payload.carries) else {
            return false;
        };
        if ear.decoder.as_ref().map(Decoder::format) != Some(format) {
            ear.decoder = Decoder::new(format).ok();
        }
        work.decoded.clear();
        let decoder = ear.decoder.as_mut();
        // What is malformed is counted where it is decoded for the far side.
        let decoded = decoder.and_then(|decoder| decoder.decode(bytes, &mut work.decoded).ok());
        decoded.is_some() && self.hear(format, at, work, out)
    }

    /// As [`listen`](Self::listen), to what is made up for a loss.
    #[cold]
    pub(super) fn listen_to_loss(
        &mut self,
        loss: &Loss<'_>,
        made_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(decoder) = self.ear.as_mut().and_then(|ear| ear.decoder.as_mut()) else {
            return false;
        };
        let format = decoder.format();
        let frames = (made_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
        work.decoded.clear();
        decoder.conceal(frames, &mut work.decoded);
        let at = loss.stretch(format, frames);
        frames > 0 && self.hear(format, at, work, out)
    }

    /// Whether audio is decoded for the far side, and so need not be for the ear.
    pub(super) fn is_decoding(&self) -> bool {
        matches!(self.route, Route::Anew(_)) && self.playing.is_none() && self.mode() != Mode::Hold
    }

    /// Hears what was decoded. Returns whether the far side has an event in its place.
    #[cold]
    pub(super) fn hear(
        &mut self,
        format: Format,
        at: Stretch,
        work: &Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(ear) = &mut self.ear else {
            return false;
        };
        self.key_over_ns = out.now_ns + KEY_OVER_NS;
        ear.feed(format, &work.decoded, at);
        let mut events = std::mem::take(&mut ear.events);
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
        if let Some(ear) = &mut self.ear {
            ear.events = events;
        }
        self.tell_on(at, out)
    }

    fn note_down(&mut self, event: u8, at_frame: u64, volume: u8, at: Stretch, out: &mut Out<'_>) {
        self.tell_key(event, KeyPhase::Pressed);
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
        if let Some(ear) = &mut self.ear {
            ear.pressed = Some(Pressed {
                key,
                at_frame,
                volume,
                told_units: 0,
            });
        }
    }

    fn note_up(&mut self, at_frame: u64, rate_hz: u32, out: &mut Out<'_>) {
        let pressed = self.ear.as_mut().and_then(|ear| ear.pressed.take());
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
        self.tell_key(key.event, KeyPhase::Released { duration_ms });
        key.units = key
            .units
            .max(frames * u64::from(key.own_hz) / u64::from(rate_hz.max(1)));
        for _ in 0..ENDS {
            self.send_event(&key, volume, true, false, out);
        }
    }

    /// A key that is pressed ends here.
    pub(super) fn release_heard(&mut self, out: &mut Out<'_>) {
        let Some(ear) = &mut self.ear else { return };
        ear.reset();
        let rate_hz = ear.detector.as_ref().map_or(8000, |known| known.0);
        let last = ear.events.drain(..).next_back();
        if let Some(tone::KeyEvent::Up { at_frame, .. }) = last {
            self.note_up(at_frame, rate_hz, out);
        }
        if let Some(ear) = &mut self.ear {
            ear.pressed = None;
        }
    }

    /// Tells the far side how long the key lasts by now. Returns whether it is told of one.
    fn tell_on(&mut self, at: Stretch, out: &mut Out<'_>) -> bool {
        let Some(mut pressed) = self.ear.as_ref().and_then(|ear| ear.pressed) else {
            return false;
        };
        if pressed.key.time.is_none() {
            // Nothing stands in its place.
            return self.blocks_keys;
        }
        let end = at.time.plus(at.units);
        let units = end.distance_from(pressed.key.own_time).max(0) as u64;
        pressed.key.units = pressed.key.units.max(units);
        let is_first = pressed.told_units == 0;
        let new_units = pressed.key.units - pressed.told_units;
        if is_first || new_units * NS_PER_S >= UPDATE_NS * u64::from(pressed.key.own_hz) {
            pressed.told_units = pressed.key.units;
            self.send_event(&pressed.key, pressed.volume, false, is_first, out);
        }
        if let Some(ear) = &mut self.ear {
            ear.pressed = Some(pressed);
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

/// From one packet of an event to the next, as RFC 4733, section 2.5.1.2, recommends.
const UPDATE_NS: u64 = 50_000_000;
/// RFC 4733, section 2.5.1.4: the last packet of an event is sent three times in all.
const ENDS: usize = 3;
/// A longer jump of the timestamps is a pause.
const JUMP_NS_MAX: u64 = 100_000_000;
