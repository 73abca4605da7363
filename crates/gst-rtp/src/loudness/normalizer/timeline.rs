//! Times of output frames: each frame keeps its time of arrival.
//!
//! Frames are counted from the start of a run. The expected time of a frame follows from the previous mark. If the actual time
//! differs from it, the frame becomes a new mark.

use std::collections::VecDeque;

use super::super::frames::Format;

/// Maximum error of times. Smaller errors come from a clock that drifts or from rounding, and no audio is missing.
const DRIFT_NS_MAX: u64 = 40_000_000;
/// Missing audio of up to this length is played as silence. A longer gap interrupts the programme.
const FILL_NS_MAX: u64 = 1_000_000_000;
/// Maximum number of marks in three seconds. If there are more, the times follow the newest of them less closely.
const MARKS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Timeline {
    /// Marks: a frame, and its time in ns, in order.
    marks: VecDeque<(u64, u64)>,
}

/// Continuity of the audio, as judged by an arriving time.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The audio is continuous.
    Follows,
    /// This many frames are missing.
    Missing(u64),
    /// The audio is at another position of the stream.
    Elsewhere,
}

impl Timeline {
    pub(super) fn new() -> Timeline {
        Timeline {
            marks: VecDeque::with_capacity(MARKS_MAX),
        }
    }

    pub(super) fn clear(&mut self) {
        self.marks.clear();
    }

    /// Notes that frame `frame` arrives with this time.
    pub(super) fn arrive(&mut self, format: &Format, frame: u64, pts_ns: u64) -> Arrival {
        let Some(expected) = self.last().map(|mark| at(format, mark, frame)) else {
            self.marks.push_back((frame, pts_ns));
            return Arrival::Follows;
        };
        let off_ns = pts_ns.abs_diff(expected);
        if off_ns > DRIFT_NS_MAX {
            return if pts_ns > expected && off_ns <= FILL_NS_MAX {
                Arrival::Missing(format.frames_in(off_ns))
            } else {
                Arrival::Elsewhere
            };
        }
        if off_ns > format.duration_ns(1) && self.marks.len() < MARKS_MAX {
            self.marks.push_back((frame, pts_ns));
        }
        Arrival::Follows
    }

    /// Notes that silence has replaced the audio missing before `frame`. Counting restarts at that frame.
    pub(super) fn set(&mut self, frame: u64, pts_ns: u64) {
        if self.marks.len() < MARKS_MAX {
            self.marks.push_back((frame, pts_ns));
        }
    }

    /// Returns the time of a frame. Earlier frames must not be requested after this call.
    pub(super) fn time_of(&mut self, format: &Format, frame: u64) -> Option<u64> {
        while self.marks.get(1).is_some_and(|next| next.0 <= frame) {
            self.marks.pop_front();
        }
        let first = *self.marks.front()?;
        (first.0 <= frame).then(|| at(format, first, frame))
    }

    /// Returns the next frame after `frame` at which the time jumps.
    pub(super) fn next_mark(&self, frame: u64) -> Option<u64> {
        let next = self.marks.iter().find(|mark| mark.0 > frame)?;
        Some(next.0)
    }

    /// Expected time of an input frame that has not arrived yet.
    pub(super) fn expected(&self, format: &Format, frame: u64) -> Option<u64> {
        Some(at(format, self.last()?, frame))
    }

    fn last(&self) -> Option<(u64, u64)> {
        self.marks.back().copied()
    }
}

fn at(format: &Format, (frame, time_ns): (u64, u64), later: u64) -> u64 {
    time_ns.saturating_add(format.duration_ns(later.saturating_sub(frame)))
}
