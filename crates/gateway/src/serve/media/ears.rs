//! Who listens to a stream: recordings, and people.

use threadbare_control::calls::{StreamId, StreamKind, StreamSpec};
use threadbare_relay::{HEAD_BYTES, Listening};
use threadbare_rtp::leg::Carries;

use super::{MediaPlane, Running};
use crate::serve::spec;

/// Why a stream is not listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::serve) enum Unheard {
    /// Nobody has answered it, or it has ended.
    NotRunning,
    /// Its datagrams are passed on, whatever they are.
    PassedOn,
    /// No party's codec is decoded here.
    NotDecoded { codecs: [Option<String>; 2] },
}

impl Running {
    /// Whether there is anything to be heard.
    pub(super) fn is_decoded(&self) -> bool {
        check(&self.spec).is_ok()
    }

    /// Both sides from now on, and the rate that all of it fits, Hz. The medium is to be told.
    pub(super) fn listen(&self) -> (u32, Listening) {
        let rate_hz = spec::rate_hz(&self.spec);
        let sample_bytes = if spec::is_coded(&self.spec) { 1 } else { 2 };
        let second = rate_hz as usize * sample_bytes + PACKETS_PER_S * HEAD_BYTES;
        (rate_hz, self.ears.listen(2 * LATE_S_MAX * second))
    }
}

impl MediaPlane {
    /// Listens to both sides of a stream from now on. The rate that all of it fits, Hz.
    ///
    /// # Errors
    /// There is nothing to be heard.
    pub(in crate::serve) fn listen(&self, stream: StreamId) -> Result<(u32, Listening), Unheard> {
        let running = self.streams.get(&stream).ok_or(Unheard::NotRunning)?;
        check(&running.spec)?;
        let listening = running.listen();
        self.tell_ears(stream);
        Ok(listening)
    }

    /// The medium of a stream looks who listens.
    pub(super) fn tell_ears(&self, stream: StreamId) {
        let Some(running) = self.streams.get(&stream) else {
            return;
        };
        // If it is gone, so are they.
        let _ = running.handle.command(|medium, _| {
            if let Some(media) = medium.audio_mut() {
                media.look_who_listens();
            }
        });
    }
}

/// Whether anything of it is decoded.
fn check(spec: &StreamSpec) -> Result<(), Unheard> {
    if spec.kind == StreamKind::Packets {
        return Err(Unheard::PassedOn);
    }
    // What nobody has agreed on is taken for the static payload types.
    let is_decoded = spec.sides.iter().any(|side| {
        let audio = side.sends.as_ref().map(|map| map.audio().carries);
        audio.is_none_or(|carries| matches!(carries, Carries::Audio(_)))
    });
    match is_decoded {
        true => Ok(()),
        false => Err(Unheard::NotDecoded {
            codecs: [0, 1].map(|at: usize| spec.sides[at].codec.as_deref().map(str::to_owned)),
        }),
    }
}

/// Longer than a disk pauses, or a browser. 69 KiB of G.711.
const LATE_S_MAX: usize = 4;
/// Of each side. Shorter packets than usual take some of that time.
const PACKETS_PER_S: usize = 50;
