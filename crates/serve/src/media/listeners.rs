//! Listeners of a stream: recordings and HTTP clients.

use threadbare_control::calls::{StreamKind, StreamSpec};
use threadbare_relay::{HEAD_BYTES, Listening};
use threadbare_rtp::leg::Carries;

use super::Running;
use crate::spec;

/// The reason why a stream cannot be listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// The call is not answered, or has ended.
    NotRunning,
    /// The stream's datagrams are forwarded without decoding.
    PassedOn,
    /// The codec of neither party is decoded here.
    NotDecoded { codecs: [Option<String>; 2] },
}

impl Running {
    /// Whether the stream is decoded.
    pub(super) fn is_decoded(&self) -> bool {
        check(&self.spec).is_ok()
    }

    /// Adds a listener to both sides from now on. Returns the sample rate for both sides, in Hz, and the listener. Call
    /// [`update_listeners`](Self::update_listeners) afterwards.
    pub(super) fn listen(&self) -> (u32, Listening) {
        let rate_hz = spec::rate_hz(&self.spec);
        let sample_bytes = if spec::is_coded(&self.spec) { 1 } else { 2 };
        let second = rate_hz as usize * sample_bytes + PACKETS_PER_S * HEAD_BYTES;
        (rate_hz, self.listeners.listen(2 * LATE_S_MAX * second))
    }

    /// Lets the media session update its listeners.
    pub(super) fn update_listeners(&self) {
        // The command fails if the session is gone, and then its listeners are gone too.
        let _ = self.handle.command(|session, _| {
            if let Some(media) = session.audio_mut() {
                media.update_listeners();
            }
        });
    }
}

/// Checks that at least one side of a stream is decoded.
pub(super) fn check(spec: &StreamSpec) -> Result<(), Unheard> {
    if spec.kind == StreamKind::Packets {
        return Err(Unheard::PassedOn);
    }
    // If the parties agreed on no payload types, the static ones are used.
    let is_decoded = spec.sides.iter().any(|side| {
        let audio = side.sends.as_ref().map(|map| map.audio().carries);
        audio.is_none_or(|carries| matches!(carries, Carries::Audio(_)))
    });
    if is_decoded {
        Ok(())
    } else {
        Err(Unheard::NotDecoded {
            codecs: [0, 1].map(|at: usize| spec.sides[at].codec.as_deref().map(str::to_owned)),
        })
    }
}

/// Seconds of audio that a listener's ring holds. This is longer than pauses of a disk or a browser, and takes 69 KiB with G.711.
const LATE_S_MAX: usize = 4;
/// Packets per second of each side for which the ring is sized. With shorter packets, the ring holds less time.
const PACKETS_PER_S: usize = 50;
