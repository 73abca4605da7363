//! Tracks audio that a filter delays, so that it leaves with its original times. After the last packet before a pause, the filter gets
//! silence until that audio has come out. The far side then hears the pause.

use std::collections::VecDeque;

use crate::codec::Format;
use crate::id::{NS_PER_S, RtpTime};

/// The start of a talkspurt.
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
    /// Start of the next audio, if it does not follow the previous audio without a gap.
    begin: Option<Begin>,
    /// Expected time of the next packet.
    pub(super) due_ns: u64,
    /// How much of the pause since the last packet was filled with silence, ns.
    pub(super) filled_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    frames: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Audio. It has a `Begin` if it does not follow the audio before it without a gap.
    Audio(Option<Begin>),
    /// Silence that replaces missing packets.
    Pause,
}

impl FilterDelay {
    /// Marks the next audio as the start of a talkspurt.
    pub(super) fn begin(&mut self, begin: Begin) {
        self.begin = Some(begin);
    }

    /// Forgets all entries, because the filter has returned everything that it will return.
    pub(super) fn clear(&mut self) {
        self.stretches.clear();
    }

    pub(super) fn take_in(&mut self, format: Format, frames: usize, is_pause: bool) {
        if self.format.replace(format) != Some(format) {
            // The filter restarts too.
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
            // The filter returns less than it gets, so the audio in it is the latest.
            self.stretches.clear();
        }
        match (self.stretches.back_mut(), kind) {
            (Some(last), Kind::Pause) if last.kind == Kind::Pause => last.frames += frames,
            (Some(last), Kind::Audio(None)) if last.kind != Kind::Pause => last.frames += frames,
            _ => self.stretches.push_back(Stretch { frames, kind }),
        }
    }

    /// Returns the kind of the first of the `frames` that leave the filter, and how many frames have this kind.
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

    /// Whether the filter contains audio.
    pub(super) fn has_audio(&self) -> bool {
        let is_audio = |stretch: &Stretch| stretch.kind != Kind::Pause;
        self.stretches.iter().any(is_audio)
    }
}

/// Minimum delay after which a packet counts as missing. Packets arrive in slices, so a shorter delay may only mean that a packet waits for
/// its slice.
pub(super) const LATE_NS: u64 = 40_000_000;
/// Maximum number of talkspurts and pauses in the filter. 20 a second cannot be real ones.
const STRETCHES_MAX: usize = 256;
/// Maximum duration of silence that is fed to a filter, ns. After that, it will not return the rest. Normalisers delay by 3 s.
pub(super) const FILLED_NS_MAX: u64 = 12 * NS_PER_S;
/// Minimum step in which a pause is filled, ns. Normally, the step is the length of a packet.
pub(super) const PAUSE_STEP_NS_MIN: u64 = 10_000_000;
