//! Generates comfort noise (RFC 3389) for the far side when a party pauses with the means of its codec (DTX).
//!
//! The noise resembles the background before the pause. An Opus encoder sends this background for some hundred milliseconds
//! before it pauses.

use crate::codec::{Encoding, Format};
use crate::comfort::ComfortAnalyser;
use crate::id::NS_PER_S;
use crate::leg::PayloadMap;

/// The recent audio of the far side, and whether comfort noise is active.
#[derive(Debug)]
pub(super) struct ComfortNoise {
    /// The last [`BACKGROUND_NS`] of one channel. This is a ring whose oldest sample is at `oldest`.
    recent: Box<[f32]>,
    oldest: usize,
    analyser: ComfortAnalyser,
    channels: usize,
    pub(super) is_pausing: bool,
}

impl ComfortNoise {
    /// Creates the state if `from` can pause and `to` has comfort noise. Otherwise returns `None`.
    pub(super) fn between(
        from: Format,
        to: Format,
        payloads: &PayloadMap,
    ) -> Option<Box<ComfortNoise>> {
        let is_usable =
            from.encoding == Encoding::Opus && payloads.comfort_noise(to.clock_rate_hz).is_some();
        // The description of the noise refers to the clock rate of the payload type.
        let is_usable = is_usable && to.clock_rate_hz == to.sample_rate_hz;
        is_usable.then(|| {
            let frames = BACKGROUND_NS * u64::from(to.sample_rate_hz) / NS_PER_S;
            Box::new(ComfortNoise {
                recent: vec![0.0; frames as usize].into(),
                oldest: 0,
                analyser: ComfortAnalyser::new(to.sample_rate_hz, ORDER),
                channels: usize::from(to.channels),
                is_pausing: false,
            })
        })
    }

    /// Stores the far side's latest audio.
    pub(super) fn remember(&mut self, pcm: &[f32]) {
        for frame in pcm.chunks_exact(self.channels) {
            self.recent[self.oldest] = frame[0];
            self.oldest = (self.oldest + 1) % self.recent.len();
        }
    }

    pub(super) fn describe(&mut self, bytes: &mut Vec<u8>) {
        self.analyser.reset();
        self.analyser.feed(&self.recent[self.oldest..]);
        self.analyser.feed(&self.recent[..self.oldest]);
        self.analyser.noise().write(bytes);
    }
}

/// Length of the audio that is analysed. It is shorter than the 200 ms of background that Opus sends before a pause.
const BACKGROUND_NS: u64 = 100_000_000;
/// Order of the model of the noise. It is that of ITU-T G.711, appendix II.
const ORDER: usize = 10;
/// Maximum size of an Opus frame without audio: "the packet does not need to be transmitted (DTX)" (libopus, `opus_encode`).
pub(super) const PAUSE_BYTES_MAX: usize = 2;
