//! DTMF digits that a party sends as telephone events (RFC 4733): reports them to the owner and forwards them to the far side.

use super::Direction;
use crate::call::Mode;
use crate::call::keys::{Key, KeyEvent, KeyPayload, KeyPhase};
use crate::call::out::{Out, Work};
use crate::id::NS_PER_S;
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
        self.key_over_ns = out.now_ns + KEY_OVER_NS;
        self.inband_dtmf = None; // It sends events, even if they were not agreed on.
        let Some(told) = KeyPayload::parse(packet.bytes) else {
            self.stats.undecodable += 1;
            return;
        };
        let is_new = self.note_key(payload, packet, told);
        if self.is_sending_digit() {
            return;
        }
        let is_kept_back = self.mode != Mode::Pass && !self.passes_keys;
        if self.playing.is_some() || self.is_held || is_kept_back {
            self.is_sounding = false;
            return;
        }
        if is_new {
            self.end_tone(work, out);
        }
        if self.blocks_keys && self.key.is_none_or(|key| key.time.is_none()) {
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
        self.flush(out);
        let audio_hz = self.routed_rate(out).unwrap_or(payload.clock_rate_hz);
        let from_hz = self.incoming_rate().unwrap_or(payload.clock_rate_hz);
        let Some(key) = &mut self.key else { return };
        let is_first = key.time.is_none();
        let time = *key
            .time
            .get_or_insert_with(|| self.map.map(packet.time, packet.play_ns, from_hz, audio_hz));
        let (before, duration) = key.segment(to.clock_rate_hz);
        KeyPayload { duration, ..told }.write(out.begin());
        out.send(to, time.plus(before), is_first, u32::from(duration));
    }

    /// Reports each press and release to the owner once. Returns whether the digit is a new one.
    fn note_key(&mut self, payload: &Payload, packet: &MediaPacket<'_>, told: KeyPayload) -> bool {
        let own_time = packet.own_time;
        let from_hz = self.incoming_rate().unwrap_or(payload.clock_rate_hz);
        let mut is_new = false;
        match &mut self.key {
            Some(key) if key.own_time == own_time => {}
            Some(key) if key.goes_on(own_time, told.event) => {
                key.own_time = own_time;
                key.before = key.units;
            }
            _ => {
                self.release_key();
                self.key = Some(Key::begin(own_time, payload.clock_rate_hz, told.event));
                self.report_key(told.event, KeyPhase::Pressed);
                is_new = true;
            }
        }
        if let Some(key) = &mut self.key
            && !key.is_ended
        {
            key.units = key.units.max(key.before + u64::from(told.duration));
            let units = key.ns() / 1000 * u64::from(from_hz) / 1_000_000;
            key.until = packet.time.plus(units as u32);
            self.is_pressed = true;
        }
        if told.is_end {
            self.release_key();
        }
        is_new
    }

    /// Whether a digit's tone replaces this audio. Senders may continue their audio during a digit. Audio much later than the
    /// digit's next packet is not replaced: the packets with its end were lost.
    #[cold]
    pub(super) fn is_sounded_over(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        work: &mut Work,
        out: &mut Out<'_>,
    ) -> bool {
        let Some(key) = &self.key else { return false };
        let units = packet.time.distance_from(key.until);
        let slack = u64::from(payload.clock_rate_hz) * KEY_SILENCE_NS / NS_PER_S;
        if units < slack as i64 {
            return self.is_sounding;
        }
        self.release_key();
        self.end_tone(work, out);
        false
    }

    /// Releases the pressed digit: it has ended, or all packets with its end were lost.
    pub(super) fn release_key(&mut self) {
        self.is_pressed = false;
        let Some(key) = &mut self.key else { return };
        if !std::mem::replace(&mut key.is_ended, true) {
            let (event, duration_ms) = (key.event, (key.ns() / 1_000_000) as u32);
            self.report_key(event, KeyPhase::Released { duration_ms });
        }
    }

    pub(super) fn report_key(&mut self, event: u8, phase: KeyPhase) {
        if self.key_events.len() < KEY_EVENTS_MAX {
            self.key_events.push_back(KeyEvent { event, phase });
        }
    }

    /// Time at which the pressed digit ends if no more packets of it arrive.
    pub(in crate::call) fn next_key(&self) -> Option<u64> {
        let is_held = self.is_pressed
            || self
                .inband_dtmf
                .as_ref()
                .is_some_and(|inband_dtmf| inband_dtmf.is_pressed());
        is_held.then_some(self.key_over_ns)
    }

    /// Releases the digit of a sender that has fallen silent.
    #[inline]
    pub(in crate::call) fn expire_key(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if self.next_key().is_some_and(|over_ns| over_ns <= out.now_ns) {
            self.release_key();
            self.end_tone(work, out);
            self.release_heard(out);
        }
    }

    /// Time of the next work that needs no packet, except clips.
    pub(in crate::call) fn next_unasked(&self) -> Option<u64> {
        self.next_key().into_iter().chain(self.next_pause()).min()
    }

    pub(in crate::call) fn poll_key(&mut self) -> Option<KeyEvent> {
        self.key_events.pop_front()
    }
}

/// Presses and releases queued for the owner.
const KEY_EVENTS_MAX: usize = 32;
/// A digit ends after this time without a packet; three updates would have arrived in it. RFC 4733, section 2.5.2.2, leaves the
/// time to the receiver.
pub(super) const KEY_OVER_NS: u64 = 200_000_000;
/// Distance from the known end of a digit at which its tone no longer replaces audio: two packets of a digit, which usually
/// arrive every 50 ms, may be missing.
const KEY_SILENCE_NS: u64 = 110_000_000;
