//! Comfort noise made (RFC 3389): a party pauses by its codec's own means, and the far side has comfort noise for that.
//!
//! What is described is the background before the pause, which an Opus encoder sends for some hundred milliseconds before it pauses.

use super::{Direction, Route};
use crate::call::Mode;
use crate::call::out::Out;
use crate::codec::{Encoding, Format};
use crate::comfort::ComfortAnalyser;
use crate::id::NS_PER_S;
use crate::leg::{MediaPacket, Payload, PayloadMap};

/// What the far side has heard last, and whether it is being paused for.
#[derive(Debug)]
pub(super) struct Hush {
    /// One channel, [`BACKGROUND_NS`] of it, the oldest at `oldest`.
    recent: Box<[f32]>,
    oldest: usize,
    analyser: ComfortAnalyser,
    channels: usize,
    is_pausing: bool,
}

impl Hush {
    /// From a party that can pause to one with comfort noise; `None` for others.
    pub(super) fn between(from: Format, to: Format, payloads: &PayloadMap) -> Option<Box<Hush>> {
        let is_usable =
            from.encoding == Encoding::Opus && payloads.comfort_noise(to.clock_rate_hz).is_some();
        // The description is about audio at the payload type's clock rate.
        let is_usable = is_usable && to.clock_rate_hz == to.sample_rate_hz;
        is_usable.then(|| {
            let frames = BACKGROUND_NS * u64::from(to.sample_rate_hz) / NS_PER_S;
            Box::new(Hush {
                recent: vec![0.0; frames as usize].into(),
                oldest: 0,
                analyser: ComfortAnalyser::new(to.sample_rate_hz, ORDER),
                channels: usize::from(to.channels),
                is_pausing: false,
            })
        })
    }

    /// What the far side hears.
    pub(super) fn remember(&mut self, pcm: &[f32]) {
        for frame in pcm.chunks_exact(self.channels) {
            self.recent[self.oldest] = frame[0];
            self.oldest = (self.oldest + 1) % self.recent.len();
        }
    }

    fn describe(&mut self, bytes: &mut Vec<u8>) {
        self.analyser.reset();
        self.analyser.feed(&self.recent[self.oldest..]);
        self.analyser.feed(&self.recent[..self.oldest]);
        self.analyser.noise().write(bytes);
    }
}

impl Direction {
    /// Whether the far side has comfort noise in place of this packet. The first packet of a pause sends the description, the others are
    /// left out.
    pub(super) fn is_hushed(
        &mut self,
        payload: &Payload,
        packet: &MediaPacket<'_>,
        out: &mut Out<'_>,
    ) -> bool {
        let is_pausing = packet.bytes.len() <= PAUSE_BYTES_MAX && self.mode == Mode::Pass;
        let (Some(hush), Some(voice)) = (hush_of(&mut self.route), &self.voice) else {
            return false;
        };
        let was_pausing = std::mem::replace(&mut hush.is_pausing, is_pausing);
        if !is_pausing || was_pausing {
            return is_pausing;
        }
        let to_hz = voice.payload.clock_rate_hz;
        let Some(to) = out.leg.takes().comfort_noise(to_hz).copied() else {
            hush.is_pausing = false;
            return false;
        };
        self.flush(out);
        let time = self
            .map
            .map(packet.time, packet.play_ns, payload.clock_rate_hz, to_hz);
        let time = self.map.not_before_end(time);
        if let Some(hush) = hush_of(&mut self.route) {
            hush.describe(out.begin());
        }
        out.send(&to, time, false, 0);
        self.stats.noise_made += 1;
        self.is_after_pause = true;
        true
    }
}

fn hush_of(route: &mut Route) -> Option<&mut Hush> {
    match route {
        Route::Anew(anew) => anew.hush.as_deref_mut(),
        _ => None,
    }
}

/// Shorter than what Opus sends of the background before a pause: 200 ms.
const BACKGROUND_NS: u64 = 100_000_000;
/// As ITU-T G.711, appendix II, has it.
const ORDER: usize = 10;
/// A frame of Opus of two bytes or less has no audio: "the packet does not need to be transmitted (DTX)" (libopus, `opus_encode`).
const PAUSE_BYTES_MAX: usize = 2;
