//! Tracks audio that a filter holds back, so that it leaves with its original times. After a pause, the filter gets silence until
//! that audio has come out, and the far side hears the pause.

use std::collections::VecDeque;

use crate::codec::Format;
use crate::id::{NS_PER_S, RtpTime};

/// Start of a talkspurt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) time: RtpTime,
    pub(super) play_ns: u64,
}

/// Audio that entered the filter and has not left it, oldest first.
#[derive(Debug, Default)]
pub(super) struct FilterDelay {
    /// Format of the filter.
    format: Option<Format>,
    stretches: VecDeque<Stretch>,
    /// Start of the next audio, if it is not continuous.
    begin: Option<Begin>,
    /// Expected time of the next packet.
    pub(super) due_ns: u64,
    /// Part of the pause since the last packet that was filled with silence.
    pub(super) filled_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    frames: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Audio; with a `Begin` if it is not continuous with the audio before it.
    Audio(Option<Begin>),
    /// Silence in place of missing packets.
    Pause,
}

impl FilterDelay {
    /// Marks the next audio as the start of a talkspurt.
    pub(super) fn begin(&mut self, begin: Begin) {
        self.begin = Some(begin);
    }

    /// Forgets all entries: the filter has returned everything that it will return.
    pub(super) fn clear(&mut self) {
        self.stretches.clear();
    }

    pub(super) fn take_in(&mut self, format: Format, frames: usize, is_pause: bool) {
        if self.format.replace(format) != Some(format) {
            // The filter restarts, too.
            self.stretches.clear();
        }
        let kind = if is_pause {
            Kind::Pause
        } else {
            Kind::Audio(self.begin.take())
        };
        if !is_pause {
            self.filled_ns = 0;
        }
        if self.stretches.len() == STRETCHES_MAX {
            // The filter returns less than it gets, so the held audio is the latest.
            self.stretches.clear();
        }
        match (self.stretches.back_mut(), kind) {
            (Some(last), Kind::Pause) if last.kind == Kind::Pause => last.frames += frames,
            (Some(last), Kind::Audio(None)) if last.kind != Kind::Pause => last.frames += frames,
            _ => self.stretches.push_back(Stretch { frames, kind }),
        }
    }

    /// Returns the kind of the first of `frames` that leave, and the number of frames of that kind.
    pub(super) fn give_out(&mut self, frames: usize) -> (usize, Kind) {
        let Some(first) = self.stretches.front_mut() else {
            return (frames, Kind::Audio(None));
        };
        let given = frames.min(first.frames);
        let kind = first.kind;
        first.frames -= given;
        if let Kind::Audio(begin) = &mut first.kind {
            *begin = None;
        }
        if first.frames == 0 {
            self.stretches.pop_front();
        }
        (given, kind)
    }

    /// Whether audio is held.
    pub(super) fn has_audio(&self) -> bool {
        let is_audio = |stretch: &Stretch| stretch.kind != Kind::Pause;
        self.stretches.iter().any(is_audio)
    }
}

/// Minimum delay after which a packet counts as missing. Packets arrive in slices, so a shorter delay is only the wait for a
/// slice.
pub(super) const LATE_NS: u64 = 40_000_000;
/// Maximum number of talkspurts and pauses in the filter; 20 a second cannot be real ones.
const STRETCHES_MAX: usize = 256;
/// Maximum silence fed to a filter: after it, the filter will not return the rest. Normalisers hold 3 s.
pub(super) const FILLED_NS_MAX: u64 = 12 * NS_PER_S;
/// Minimum step in which a pause is filled; otherwise a packet's length.
pub(super) const PAUSE_STEP_NS_MIN: u64 = 10_000_000;
