//! Tracks audio that a filter holds back, so that it leaves with its original times. After a pause, the filter gets silence until
//! that audio has come out, and the far side hears the pause.

use std::collections::VecDeque;

use super::{Direction, Route};
use crate::call::out::{Out, Work};
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
    due_ns: u64,
    /// Part of the pause since the last packet that was filled with silence.
    filled_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    frames: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
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

    fn take_in(&mut self, format: Format, frames: usize, is_pause: bool) {
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
    fn give_out(&mut self, frames: usize) -> (usize, Kind) {
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

impl Direction {
    /// Time at which the pause since the last packet must be filled, if the filter holds audio.
    pub(in crate::call) fn next_pause(&self) -> Option<u64> {
        let late_ns = LATE_NS.max(self.pause_step_ns());
        let due_ns = self.filter_delay.due_ns.saturating_add(late_ns);
        (self.filter.is_some() && self.filter_delay.has_audio()).then_some(due_ns)
    }

    fn pause_step_ns(&self) -> u64 {
        self.packet_ns.max(PAUSE_STEP_NS_MIN)
    }

    /// Expects more audio at this time.
    #[inline]
    pub(super) fn expect_next(&mut self, due_ns: u64) {
        self.filter_delay.due_ns = due_ns;
    }

    /// Feeds silence to the filter while no packets arrive and it holds audio.
    #[inline]
    pub(in crate::call) fn fill_pause(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if self.next_pause().is_some_and(|at_ns| at_ns <= out.now_ns) {
            self.fill_pause_now(work, out);
        }
    }

    /// Fills the part of the pause that has passed.
    #[cold]
    pub(super) fn fill_pause_now(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let step_ns = self.pause_step_ns();
        while self.filter_delay.due_ns.saturating_add(step_ns) <= out.now_ns
            && self.filter_delay.has_audio()
        {
            self.filter_delay.due_ns += step_ns;
            self.filter_delay.filled_ns += step_ns;
            if self.filter_delay.filled_ns > FILLED_NS_MAX {
                return self.filter_delay.clear();
            }
            let Some(format) = self.filter_format() else {
                return;
            };
            let frames = (step_ns * u64::from(format.sample_rate_hz) / NS_PER_S) as usize;
            work.decoded.clear();
            work.decoded
                .resize(frames * usize::from(format.channels), 0.0);
            self.filter_on(format, true, work, out);
        }
    }

    /// Format of the filter: that of the incoming audio, or of the outgoing audio if that has fewer channels or there are several
    /// inputs.
    pub(super) fn filter_format(&self) -> Option<Format> {
        let to = self.voice.as_ref().map(|voice| voice.format)?;
        match &self.route {
            _ if self.is_heard_at_output => Some(to),
            Route::Reencode(reencode) if reencode.decoder.format().channels > to.channels => {
                Some(to)
            }
            Route::Reencode(reencode) => Some(reencode.decoder.format()),
            _ => None,
        }
    }

    /// Whether the filter comes after the converter.
    pub(super) fn is_filtered_at_output(&self) -> bool {
        let to = self.voice.as_ref().map_or(0, |voice| voice.format.channels);
        match &self.route {
            Route::Reencode(reencode) => {
                self.is_heard_at_output || reencode.decoder.format().channels > to
            }
            _ => true,
        }
    }

    /// Passes decoded or converted audio through the filter and processes the filter's output. `format` is the filter's.
    pub(super) fn filter_on(
        &mut self,
        format: Format,
        is_pause: bool,
        work: &mut Work,
        out: &mut Out<'_>,
    ) {
        let Some(filter) = &mut self.filter else {
            return;
        };
        let frames = work.decoded.len() / usize::from(format.channels);
        self.filter_delay.take_in(format, frames, is_pause);
        filter.process(format, &mut work.decoded);
        self.say_held(format, work, out);
    }

    /// Processes the filter's output in `work.decoded` with its original times.
    pub(super) fn say_held(&mut self, format: Format, work: &mut Work, out: &mut Out<'_>) {
        let at_output = self.is_filtered_at_output();
        let Some(voice) = &mut self.voice else { return };
        let mut converter = match &mut self.route {
            Route::Reencode(reencode) if !at_output => Some(&mut reencode.converter),
            _ => None,
        };
        let channels = usize::from(format.channels);
        let mut rest = &work.decoded[..];
        while rest.len() >= channels {
            let (frames, kind) = self.filter_delay.give_out(rest.len() / channels);
            let (pcm, later) = rest.split_at(frames * channels);
            rest = later;
            if kind != Kind::Audio(None) {
                voice.flush(&mut self.map, out);
                if let Some(converter) = &mut converter {
                    converter.reset();
                }
            }
            match kind {
                Kind::Pause => continue,
                Kind::Audio(None) => {}
                Kind::Audio(Some(begin)) => {
                    voice.begin(self.map.not_before_end(begin.time), begin.play_ns);
                }
            }
            work.converted.clear();
            match &mut converter {
                None => work.converted.extend_from_slice(pcm),
                Some(converter) => converter.process(pcm, &mut work.converted),
            }
            voice.push(&work.converted, &mut self.map, out);
            if let Some(tap) = &mut self.tap {
                if format.channels < voice.format.channels {
                    tap.add(format, pcm)
                } else {
                    tap.add(voice.format, &work.converted)
                }
            }
        }
        self.bound_tap();
    }
}

/// Minimum delay after which a packet counts as missing. Packets arrive in slices, so a shorter delay is only the wait for a
/// slice.
const LATE_NS: u64 = 40_000_000;
/// Maximum number of talkspurts and pauses in the filter; 20 a second cannot be real ones.
const STRETCHES_MAX: usize = 256;
/// Maximum silence fed to a filter: after it, the filter will not return the rest. Normalisers hold 3 s.
const FILLED_NS_MAX: u64 = 12 * NS_PER_S;
/// Minimum step in which a pause is filled; otherwise a packet's length.
const PAUSE_STEP_NS_MIN: u64 = 10_000_000;
