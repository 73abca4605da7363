//! What is played to the parties of streams, and what of it the next process needs to go on.

use std::sync::Arc;

use threadbare_control::calls::StreamId;
use threadbare_relay::Medium;
use threadbare_rtp::call::{Clip, Part, Side};

use super::{MediaPlane, PlayState, Running};
use crate::serve::plays::Play;

/// What one party hears in place of the other one.
#[derive(Debug, Clone, Default)]
pub(super) struct Played {
    /// Of the last play, or of its end.
    number: u64,
    /// What was begun last. It may have come to its end: the medium knows.
    file: Option<Arc<str>>,
    /// A play whose file is being read.
    waiting: Option<PlayState>,
}

impl Played {
    /// What the next process is to play on.
    pub(super) fn state(&self, medium: &Medium, to: Side) -> Option<PlayState> {
        if let Some(waiting) = &self.waiting {
            return Some(waiting.clone());
        }
        let file = self.file.as_ref()?;
        let Medium::Audio(media) = medium else {
            return None;
        };
        let left = media.call().play_left(to)?;
        Some(PlayState::new(file.clone(), left.times, left.part))
    }
}

impl MediaPlane {
    /// A play that takes the place of an earlier one, once its samples are there. `file`: its name; `None`: the next process does not know it. The
    /// result is `None` if the stream is gone.
    pub(in crate::serve) fn new_play(
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

    /// The samples of a play are there.
    pub(in crate::serve) fn play(&mut self, play: Play, clip: Clip) {
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
        let _ = running.handle.command(move |medium, now_ns| {
            if let Some(media) = medium.audio_mut() {
                let played = media.call_mut().play_part(now_ns, play.to, clip, play.part);
                if let Err(error) = played {
                    tracing::warn!(call, %error, "a file is not played");
                }
            }
        });
        self.take_state(play.stream);
    }

    /// There are no samples of a play: an earlier one goes on.
    pub(in crate::serve) fn forget_play(&mut self, play: &Play) {
        if let Some(running) = self.latest(play) {
            running.plays[play.to as usize].waiting = None;
            self.take_state(play.stream);
        }
    }

    /// The stream of a play, if none has taken its place.
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
        let _ = running.handle.command(move |medium, _| {
            if let Some(media) = medium.audio_mut() {
                media.call_mut().stop_play(to);
            }
        });
        self.take_state(stream);
    }

    /// What was being played when the process before ended. Asked once, behind the last call that is brought back.
    pub(in crate::serve) fn take_unplayed(&mut self) -> Vec<(StreamId, Side, PlayState)> {
        let keeper = self.keeper.as_mut();
        keeper.map_or_else(Vec::new, |keeper| std::mem::take(&mut keeper.unplayed))
    }
}

/// PATH_MAX: no file has a longer name.
const FILE_NAME_BYTES_MAX: usize = 4096;
