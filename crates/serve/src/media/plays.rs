//! Files that parties of streams hear, and the states from which the next process resumes them.

use std::sync::Arc;

use threadbare_control::calls::StreamId;
use threadbare_relay::MediaSession;
use threadbare_rtp::call::{Part, Side};

use super::PlayState;
use crate::plays::Play;

/// The file that a party hears instead of the other party.
#[derive(Debug, Clone, Default)]
pub(super) struct Played {
    /// Number of the last action, which is a play or a stop.
    number: u64,
    /// The file that was started last. Only the media session knows whether it has ended.
    file: Option<Arc<str>>,
    /// The play whose file is being loaded.
    waiting: Option<PlayState>,
}

impl Played {
    /// Returns the state from which the next process resumes.
    pub(super) fn state(&self, session: &MediaSession, to: Side) -> Option<PlayState> {
        if let Some(waiting) = &self.waiting {
            return Some(waiting.clone());
        }
        let file = self.file.as_ref()?;
        let MediaSession::Audio(media) = session else {
            return None;
        };
        let left = media.session().play_left(to)?;
        Some(PlayState::new(file.clone(), left.times, left.part))
    }

    /// Registers a play. It replaces an earlier one when its samples are loaded. `file` is the name of the file, or `None` if the next
    /// process cannot find it.
    pub(super) fn begin(
        &mut self,
        stream: StreamId,
        to: Side,
        file: Option<Arc<str>>,
        times: u32,
        part: Part,
    ) -> Play {
        let file = file.filter(|file| file.len() <= FILE_NAME_BYTES_MAX);
        self.number += 1;
        self.waiting = file.clone().map(|file| PlayState::new(file, times, part));
        Play {
            stream,
            to,
            number: self.number,
            file,
            times,
            part,
        }
    }

    /// Whether no other play has replaced this one.
    pub(super) fn is_latest(&self, play: &Play) -> bool {
        self.number == play.number
    }

    /// Handles the start of a play. `file` is the name of its file.
    pub(super) fn start(&mut self, file: Option<Arc<str>>) {
        (self.file, self.waiting) = (file, None);
    }

    /// Handles that the samples for the waiting play cannot be loaded. An earlier play continues.
    pub(super) fn forget(&mut self) {
        self.waiting = None;
    }

    /// Handles that playing was stopped.
    pub(super) fn stop(&mut self) {
        *self = Played {
            number: self.number + 1,
            ..Played::default()
        };
    }
}

/// Maximum length of a file name. It is PATH_MAX.
const FILE_NAME_BYTES_MAX: usize = 4096;
