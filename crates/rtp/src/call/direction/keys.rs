//! Keys that a party tells as telephone events (RFC 4733): the owner is told, and the far side hears of them.

use super::Direction;
use crate::call::Mode;
use crate::call::keys::{Key, KeyEvent, KeyPayload, KeyPhase};
use crate::call::out::{Out, Work};
use crate::id::RtpTime;
use crate::leg::{MediaPacket, Payload};

impl Direction {
    pub(super) fn handle_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        self.stats.key_packets += 1;
        let Some(told) = KeyPayload::parse(packet.bytes) else {
            self.stats.undecodable += 1;
            return;
        };
        let is_new = self.key.is_none_or(|key| key.own_time != packet.own_time);
        self.note_key(payload, packet, told, is_new);
        if self.playing.is_some() || self.mode != Mode::Pass {
            return;
        }
        self.flush(out);
        let audio = *out.leg.takes().audio();
        let Some(to) = out
            .leg
            .takes()
            .telephone_event(audio.clock_rate_hz)
            .copied()
        else {
            return self.sound_key(payload, packet, told, is_new, work, out);
        };
        let audio_hz = self.routed_rate(out).unwrap_or(payload.clock_rate_hz);
        let from_hz = self.incoming_rate(out).unwrap_or(payload.clock_rate_hz);
        let time = match self.key.as_ref().filter(|_| !is_new) {
            Some(key) => key.time,
            None => self.map.map(packet.time, packet.play_ns, from_hz, audio_hz),
        };
        if let Some(key) = &mut self.key {
            key.time = time;
        }
        let told = told.at_rate(payload.clock_rate_hz, to.clock_rate_hz);
        told.write(out.begin());
        let elapsed = u32::from(told.duration);
        out.send(&to, time, is_new, elapsed);
    }

    /// Tells the owner, once for each press and release.
    fn note_key(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        told: KeyPayload,
        is_new: bool,
    ) {
        if is_new {
            self.key = Some(Key {
                own_time: packet.own_time,
                time: RtpTime(0),
                event: told.event,
                is_ended: false,
                toned_ns: 0,
            });
            self.tell_key(told.event, KeyPhase::Pressed);
        }
        if let Some(key) = &mut self.key
            && told.is_end
            && !std::mem::replace(&mut key.is_ended, true)
        {
            let event = key.event;
            let duration_ms =
                u64::from(told.duration) * 1000 / u64::from(payload.clock_rate_hz.max(1));
            let duration_ms = duration_ms as u32;
            self.tell_key(event, KeyPhase::Released { duration_ms });
        }
    }

    fn tell_key(&mut self, event: u8, phase: KeyPhase) {
        if self.key_events.len() < KEY_EVENTS_MAX {
            self.key_events.push_back(KeyEvent { event, phase });
        }
    }

    /// A side without telephone events hears the key's tone.
    fn sound_key(
        &mut self,
        _payload: &Payload,
        _packet: &MediaPacket<'_>,
        _told: KeyPayload,
        _is_new: bool,
        _work: &mut Work,
        _out: &mut Out<'_>,
    ) {
        self.stats.dropped += 1;
    }

    pub(in crate::call) fn poll_key(&mut self) -> Option<KeyEvent> {
        self.key_events.pop_front()
    }
}

/// Presses and releases that wait for the owner.
const KEY_EVENTS_MAX: usize = 32;
