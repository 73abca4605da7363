//! Files played to the parties of streams, and their saved state for the next process.

use std::sync::Arc;

use threadbare_control::calls::StreamId;
use threadbare_relay::MediaSession;
use threadbare_rtp::call::{Clip, Part, Side};

use super::{MediaWorkers, PlayState, Running};
use crate::plays::Play;

/// The file that one party hears in place of the other one.
#[derive(Debug, Clone, Default)]
pub(super) struct Played {
    /// Number of the last play, or of its stop.
    number: u64,
    /// The file started last. It may have ended: the media session knows.
    file: Option<Arc<str>>,
    /// A play whose file is being loaded.
    waiting: Option<PlayState>,
}

impl Played {
    /// The state from which the next process resumes.
    pub(super) fn state(&self, session: &MediaSession, to: Side) -> Option<PlayState> {
        if let Some(waiting) = &self.waiting {
            return Some(waiting.clone());
        }
        let file = self.file.as_ref()?;
        let MediaSession::Audio(media) = session else {
            return None;
        };
        let left = media.call().play_left(to)?;
        Some(PlayState::new(file.clone(), left.times, left.part))
    }
}

impl MediaWorkers {
    /// Registers a play that replaces an earlier one once its samples are loaded. `file`: its name; `None`: the next process
    /// cannot find it. Returns `None` if the stream is gone.
    pub(crate) fn new_play(
        &mut self,
        stream: StreamId,
        to: Side,
        file: Option<Arc<str>>,
        times: u32,
        part: Part,
    ) -> Option<Play> {
        let file = file.filter(|file| file.len() <= FILE_NAME_BYTES_MAX);
        let played = &mut self.streams.get_mut(&stream)?.plays[to as usize];
        played.number += 1;
        let waiting = file.clone().map(|file| PlayState::new(file, times, part));
        played.waiting = waiting;
        let play = Play {
            stream,
            to,
            number: played.number,
            file,
            times,
            part,
        };
        self.take_state(stream);
        Some(play)
    }

    /// Starts a play whose samples are loaded.
    pub(crate) fn play(&mut self, play: Play, clip: Clip) {
        let Some(running) = self.latest(&play) else {
            return;
        };
        let played = &mut running.plays[play.to as usize];
        (played.file, played.waiting) = (play.file, None);
        let call = running.call.to_string();
        let clip = Clip {
            times: play.times,
            ..clip
        };
        let _ = running.handle.command(move |session, now_ns| {
            if let Some(media) = session.audio_mut() {
                let played = media.call_mut().play_part(now_ns, play.to, clip, play.part);
                if let Err(error) = played {
                    tracing::warn!(call, %error, "cannot play a file");
                }
            }
        });
        self.take_state(play.stream);
    }

    /// Drops a play without samples: an earlier one continues.
    pub(crate) fn forget_play(&mut self, play: &Play) {
        if let Some(running) = self.latest(play) {
            running.plays[play.to as usize].waiting = None;
            self.take_state(play.stream);
        }
    }

    /// The stream of a play, unless another play has replaced it.
    fn latest(&mut self, play: &Play) -> Option<&mut Running> {
        let running = self.streams.get_mut(&play.stream)?;
        (running.plays[play.to as usize].number == play.number).then_some(running)
    }

    pub(super) fn stop_play(&mut self, stream: StreamId, to: Side) {
        let Some(running) = self.streams.get_mut(&stream) else {
            return;
        };
        let played = &mut running.plays[to as usize];
        *played = Played {
            number: played.number + 1,
            ..Played::default()
        };
        let _ = running.handle.command(move |session, _| {
            if let Some(media) = session.audio_mut() {
                media.call_mut().stop_play(to);
            }
        });
        self.take_state(stream);
    }

    /// Returns the plays at the end of the previous process. Called once, after the last call is restored.
    pub(crate) fn take_unplayed(&mut self) -> Vec<(StreamId, Side, PlayState)> {
        let saver = self.saver.as_mut();
        saver.map_or_else(Vec::new, |saver| std::mem::take(&mut saver.unplayed))
    }
}

/// PATH_MAX: no file name is longer.
const FILE_NAME_BYTES_MAX: usize = 4096;
