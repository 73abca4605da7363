//! Keys that the owner presses in a party's name: telephone events for a side that takes them, tones for others.

use std::collections::VecDeque;

use super::tone::FADE_NS;
use super::{Direction, Route};
use crate::call::Mode;
use crate::call::commands::{KeyPress, PRESSES_MAX, PressError};
use crate::call::keys::{Key, KeyPayload};
use crate::call::out::{Out, Work};
use crate::call::voice::PACKET_NS_DEFAULT;
use crate::id::{NS_PER_S, RtpTime};
use crate::leg::Payload;
use crate::tone::Tone;

#[derive(Debug, Default)]
pub(super) struct Pressing {
    waiting: VecDeque<KeyPress>,
    current: Option<Pressed>,
    /// When the next key may begin.
    next_ns: u64,
    /// The party's packets are heard again from this play time on,
    until_ns: u64,
    /// and from this time on whatever their play time is: a sender whose timestamps stand still in a pause is far behind afterwards.
    until_now_ns: u64,
}

/// A key that is pressed now.
#[derive(Debug, Clone, Copy)]
struct Pressed {
    press: KeyPress,
    start_ns: u64,
    /// The same on the time line of what comes in.
    play_ns: u64,
    /// Of the next packet, or piece of tone.
    due_ns: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Event {
        to: Payload,
        time: RtpTime,
        /// Where the segment that was told last begins, units.
        before: u32,
    },
    Tone {
        made_ns: u64,
    },
}

impl Pressed {
    fn end_ns(&self) -> u64 {
        self.start_ns + self.press.duration_ns
    }
}

impl Direction {
    pub(in crate::call) fn press(
        &mut self,
        now_ns: u64,
        press: KeyPress,
    ) -> Result<(), PressError> {
        let pressing = self.pressing.get_or_insert_default();
        if pressing.waiting.len() == PRESSES_MAX {
            return Err(PressError::TooMany);
        }
        if pressing.waiting.is_empty() && pressing.current.is_none() {
            pressing.next_ns = pressing.next_ns.max(now_ns);
        }
        pressing.waiting.push_back(press);
        Ok(())
    }

    /// Whether a key is heard in place of what is played at `play_ns`.
    #[inline]
    pub(super) fn is_pressing(&self, play_ns: u64, now_ns: u64) -> bool {
        self.pressing.as_ref().is_some_and(|pressing| {
            let is_before_end = play_ns < pressing.until_ns && now_ns < pressing.until_now_ns;
            pressing.current.is_some() || is_before_end
        })
    }

    /// Whether a key is pressed now, or waits for it.
    #[inline]
    pub(super) fn has_waiting_press(&self) -> bool {
        self.pressing
            .as_ref()
            .is_some_and(|pressing| pressing.current.is_some() || !pressing.waiting.is_empty())
    }

    /// Whether a key is pressed now.
    pub(super) fn has_pressed(&self) -> bool {
        let pressing = self.pressing.as_ref();
        pressing.is_some_and(|pressing| pressing.current.is_some())
    }

    /// When something of a key is due. A key that waits for the party's own one waits for its packets.
    pub(in crate::call) fn next_press(&self) -> Option<u64> {
        let pressing = self.pressing.as_ref()?;
        match pressing.current {
            Some(pressed) => Some(pressed.due_ns),
            None if pressing.waiting.is_empty() => None,
            None if self.next_key().is_some() && !self.blocks_keys => None,
            None => Some(pressing.next_ns),
        }
    }

    /// The key that is pressed now is heard no longer: the far side takes something else.
    pub(super) fn cut_press(&mut self) {
        let Some(pressing) = &mut self.pressing else {
            return;
        };
        if let Some(pressed) = pressing.current.take() {
            pressing.next_ns = pressed.end_ns() + pressed.press.pause_ns;
            self.note_pressed(&pressed, pressed.due_ns - pressed.start_ns);
            // What is gathered of its tone is older than what goes on from here.
            if let (Kind::Tone { .. }, Some(voice)) = (pressed.kind, &mut self.voice) {
                voice.clear();
            }
            self.cut();
            self.resume_play(0);
        }
    }

    /// Sends what of the keys is due.
    #[inline]
    pub(in crate::call) fn press_on(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        if self.next_press().is_some_and(|due_ns| due_ns <= now_ns) {
            self.press_now(now_ns, work, out);
        }
    }

    #[cold]
    fn press_now(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) {
        // A key that is late begins late, so that each of them is heard; one takes two turns at least.
        while self.next_press().is_some_and(|due_ns| due_ns <= now_ns) {
            let current = self.pressing.as_ref().and_then(|pressing| pressing.current);
            let pressed = match current {
                Some(pressed) => self.press_further(pressed, now_ns, work, out),
                None => self.begin_press(now_ns, work, out),
            };
            if let Some(pressing) = &mut self.pressing {
                pressing.current = pressed;
            }
        }
    }

    /// `None`: it cannot be heard.
    fn begin_press(&mut self, now_ns: u64, work: &mut Work, out: &mut Out<'_>) -> Option<Pressed> {
        let pressing = self.pressing.as_mut()?;
        let press = pressing.waiting.pop_front()?;
        let start_ns = pressing
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
        // On the party's time line, as if the key had come in a packet behind the last one.
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
                let tone = Tone::key(press.key, press.volume, 0);
                if self.begin_sounding(tone, time, play_ns, out).is_none() {
                    self.stats.dropped += 1;
                    return None;
                }
                Kind::Tone { made_ns: 0 }
            }
        };
        Some(Pressed {
            press,
            start_ns,
            play_ns,
            due_ns: start_ns,
            kind,
        })
    }

    /// `None`: it is over.
    fn press_further(
        &mut self,
        mut pressed: Pressed,
        now_ns: u64,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> Option<Pressed> {
        let end_ns = pressed.end_ns();
        let is_over = now_ns >= end_ns;
        let passed_ns = now_ns.saturating_sub(pressed.start_ns);
        match &mut pressed.kind {
            Kind::Event { to, time, before } => {
                let told_ns = (passed_ns / UPDATE_NS + 1) * UPDATE_NS;
                let told_ns = told_ns.min(pressed.press.duration_ns);
                let key = Event {
                    press: pressed.press,
                    to: *to,
                    time: *time,
                };
                let is_first = pressed.due_ns == pressed.start_ns;
                self.tell_pressed(&key, told_ns, is_over, is_first, before, out);
                pressed.due_ns = (pressed.start_ns + (passed_ns / UPDATE_NS + 1) * UPDATE_NS)
                    .min(pressed.end_ns());
            }
            Kind::Tone { made_ns } => {
                // Ahead of the time by less than a packet; the fade is made when the key ends.
                let whole_ns = pressed.press.duration_ns - FADE_NS;
                let wanted_ns = (passed_ns / PACKET_NS_DEFAULT + 1) * PACKET_NS_DEFAULT;
                let wanted_ns = wanted_ns.min(whole_ns);
                let ns = wanted_ns.saturating_sub(*made_ns);
                *made_ns += ns;
                self.make_tone(ns, work, out);
                pressed.due_ns = match wanted_ns < whole_ns {
                    true => pressed.start_ns + wanted_ns,
                    false => end_ns,
                };
            }
        }
        if !is_over {
            return Some(pressed);
        }
        self.end_press(pressed, work, out);
        None
    }

    fn end_press(&mut self, pressed: Pressed, work: &mut Work, out: &mut Out<'_>) {
        let end_ns = pressed.end_ns();
        if let Kind::Tone { .. } = pressed.kind {
            self.finish_tone(work, out);
        }
        self.note_pressed(&pressed, pressed.press.duration_ns);
        self.cut();
        self.is_after_pause = true;
        self.resume_play(end_ns);
        if let Some(pressing) = &mut self.pressing {
            pressing.until_ns = pressed.play_ns + pressed.press.duration_ns;
            pressing.until_now_ns = end_ns + self.latency_ns;
            let heard_ns = pressing.until_ns.saturating_sub(self.lead_ns);
            pressing.next_ns = end_ns.max(heard_ns) + pressed.press.pause_ns;
        }
    }

    /// The far side was told of so much of a key. What follows joins on to that, whatever its timestamps say.
    fn note_pressed(&mut self, pressed: &Pressed, told_ns: u64) {
        if let Kind::Event { time, .. } = pressed.kind {
            let units = u128::from(told_ns) * u128::from(self.map.rate_hz());
            let units = (units / u128::from(NS_PER_S)) as u32;
            self.map.note_sent(time, units, pressed.play_ns);
        }
        self.map.restart();
    }

    /// Says how long the key lasts so far, three times at its end (RFC 4733, section 2.5.1.4). An event longer than the duration field's range is
    /// told in segments: each ends with the whole range, where the next one begins (section 2.5.1.3).
    fn tell_pressed(
        &mut self,
        event: &Event,
        told_ns: u64,
        is_end: bool,
        is_first: bool,
        before: &mut u32,
        out: &mut Out<'_>,
    ) {
        let hz = event.to.clock_rate_hz;
        let mut key = Key::begin(event.time, hz, event.press.key.number());
        key.units = told_ns * u64::from(hz) / NS_PER_S;
        let (segment, duration) = key.segment(hz);
        let mut marker = is_first;
        while *before < segment {
            self.send_pressed(
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
            self.send_pressed(
                event,
                segment,
                duration,
                is_end,
                std::mem::take(&mut marker),
                out,
            );
        }
    }

    fn send_pressed(
        &mut self,
        event: &Event,
        before: u32,
        duration: u16,
        is_end: bool,
        marker: bool,
        out: &mut Out<'_>,
    ) {
        let payload = KeyPayload {
            event: event.press.key.number(),
            is_end,
            volume: event.press.volume,
            duration,
        };
        payload.write(out.begin());
        let time = event.time.plus(before);
        out.send(&event.to, time, marker, u32::from(duration));
    }
}

/// A key for a side that takes events.
struct Event {
    press: KeyPress,
    to: Payload,
    time: RtpTime,
}

/// From one packet of an event to the next, as RFC 4733, section 2.5.1.2, recommends.
const UPDATE_NS: u64 = 50_000_000;
/// RFC 4733, section 2.5.1.4: the last packet of an event is sent three times in all.
const ENDS: usize = 3;
