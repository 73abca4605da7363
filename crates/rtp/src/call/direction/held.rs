//! What a filter holds back. It goes on with the times at which it came: a pause behind it is filled with silence for the filter, so that
//! it comes out, and the far side hears a pause.

use std::collections::VecDeque;

use super::{Direction, Route};
use crate::call::out::{Out, Work};
use crate::codec::Format;
use crate::id::{NS_PER_S, RtpTime};

/// Where a talkspurt begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) time: RtpTime,
    pub(super) play_ns: u64,
}

/// What came in and has not come out, oldest first.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// That of the filter.
    format: Option<Format>,
    stretches: VecDeque<Stretch>,
    /// Of the audio that comes next.
    begin: Option<Begin>,
    /// When the next packet is expected.
    due_ns: u64,
    /// How much of the pause since the last packet was filled.
    filled_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    frames: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Audio; it goes on from what is before it, or not.
    Audio(Option<Begin>),
    /// Silence in place of packets that did not come.
    Pause,
}

impl Held {
    /// The audio that comes next does not go on from what came.
    pub(super) fn begin(&mut self, begin: Begin) {
        self.begin = Some(begin);
    }

    /// The filter has given out all that it will.
    pub(super) fn clear(&mut self) {
        self.stretches.clear();
    }

    fn take_in(&mut self, format: Format, frames: usize, is_pause: bool) {
        if self.format.replace(format) != Some(format) {
            // The filter begins anew, too.
            self.stretches.clear();
        }
        let kind = match is_pause {
            true => Kind::Pause,
            false => Kind::Audio(self.begin.take()),
        };
        if !is_pause {
            self.filled_ns = 0;
        }
        if self.stretches.len() == STRETCHES_MAX {
            // The filter does not give out what it takes: what is held then is what it took last.
            self.stretches.clear();
        }
        match (self.stretches.back_mut(), kind) {
            (Some(last), Kind::Pause) if last.kind == Kind::Pause => last.frames += frames,
            (Some(last), Kind::Audio(None)) if last.kind != Kind::Pause => last.frames += frames,
            _ => self.stretches.push_back(Stretch { frames, kind }),
        }
    }

    /// What the first of `frames` that come out are, and how many of them are alike.
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
    /// When the pause since the last packet is to be filled, if the filter holds audio.
    pub(in crate::call) fn next_pause(&self) -> Option<u64> {
        let late_ns = LATE_NS.max(self.pause_step_ns());
        let due_ns = self.held.due_ns.saturating_add(late_ns);
        (self.filter.is_some() && self.held.has_audio()).then_some(due_ns)
    }

    fn pause_step_ns(&self) -> u64 {
        self.packet_ns.max(PAUSE_STEP_NS_MIN)
    }

    /// More is expected then.
    #[inline]
    pub(super) fn expect_next(&mut self, due_ns: u64) {
        self.held.due_ns = due_ns;
    }

    /// Silence for the filter, as long as no packets come and it holds audio.
    #[inline]
    pub(in crate::call) fn fill_pause(&mut self, work: &mut Work, out: &mut Out<'_>) {
        if self.next_pause().is_some_and(|at_ns| at_ns <= out.now_ns) {
            self.fill_pause_now(work, out);
        }
    }

    /// What of the pause has passed.
    #[cold]
    pub(super) fn fill_pause_now(&mut self, work: &mut Work, out: &mut Out<'_>) {
        let step_ns = self.pause_step_ns();
        while self.held.due_ns.saturating_add(step_ns) <= out.now_ns && self.held.has_audio() {
            self.held.due_ns += step_ns;
            self.held.filled_ns += step_ns;
            if self.held.filled_ns > FILLED_NS_MAX {
                return self.held.clear();
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

    /// What the filter has: the audio that comes in, or that goes out if this has fewer channels or comes from several inputs.
    pub(super) fn filter_format(&self) -> Option<Format> {
        let to = self.voice.as_ref().map(|voice| voice.format)?;
        match &self.route {
            _ if self.is_heard_at_output => Some(to),
            Route::Anew(anew) if anew.decoder.format().channels > to.channels => Some(to),
            Route::Anew(anew) => Some(anew.decoder.format()),
            _ => None,
        }
    }

    /// Whether the filter comes behind the converter.
    pub(super) fn is_filtered_at_output(&self) -> bool {
        let to = self.voice.as_ref().map_or(0, |voice| voice.format.channels);
        match &self.route {
            Route::Anew(anew) => self.is_heard_at_output || anew.decoder.format().channels > to,
            _ => true,
        }
    }

    /// What was decoded, or comes from the converter, goes through the filter; what comes out of that goes on. `format` is that of the
    /// filter.
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
        self.held.take_in(format, frames, is_pause);
        filter.process(format, &mut work.decoded);
        self.say_held(format, work, out);
    }

    /// What has come out of the filter, in `work.decoded`, goes on with its times.
    pub(super) fn say_held(&mut self, format: Format, work: &mut Work, out: &mut Out<'_>) {
        let at_output = self.is_filtered_at_output();
        let Some(voice) = &mut self.voice else { return };
        let mut converter = match &mut self.route {
            Route::Anew(anew) if !at_output => Some(&mut anew.converter),
            _ => None,
        };
        let channels = usize::from(format.channels);
        let mut rest = &work.decoded[..];
        while rest.len() >= channels {
            let (frames, kind) = self.held.give_out(rest.len() / channels);
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
                match format.channels < voice.format.channels {
                    true => tap.add(format, pcm),
                    false => tap.add(voice.format, &work.converted),
                }
            }
        }
        self.bound_tap();
    }
}

/// Packets come in slices: one that is late by less has only waited for its slice.
const LATE_NS: u64 = 40_000_000;
/// Talkspurts and pauses that are held: 20 a second are none any more.
const STRETCHES_MAX: usize = 256;
/// A filter that has not given out what it holds by then does not: normalisers hold 3 s.
const FILLED_NS_MAX: u64 = 12 * NS_PER_S;
/// A pause is filled in steps of a packet, or of this.
const PAUSE_STEP_NS_MIN: u64 = 10_000_000;
