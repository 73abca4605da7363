//! Which time each frame has that comes out: that with which it came in.
//!
//! Frames are counted from the beginning of a run. Where a time came in that is not the one that counting from the one
//! before gives, there is a mark.

use std::collections::VecDeque;

use super::super::frames::Format;

/// Times that are off by less are a clock that drifts, or was rounded: nothing is missing.
const DRIFT_NS_MAX: u64 = 40_000_000;
/// So much that is missing is played as silence. What is longer is no gap in a programme.
const FILL_NS_MAX: u64 = 1_000_000_000;
/// With more marks than this in three seconds, the times follow the newest of them less closely.
const MARKS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Timeline {
    /// Frame, and its time in ns, in order.
    marks: VecDeque<(u64, u64)>,
}

/// What a time that came in says about the audio.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It goes on.
    Follows,
    /// So many frames are missing.
    Missing(u64),
    /// It is another place in the stream.
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

    /// Frame `frame` is to come in, with this time.
    pub(super) fn arrive(&mut self, format: &Format, frame: u64, pts_ns: u64) -> Arrival {
        let Some(expected) = self.last().map(|mark| at(format, mark, frame)) else {
            self.marks.push_back((frame, pts_ns));
            return Arrival::Follows;
        };
        let off_ns = pts_ns.abs_diff(expected);
        if off_ns > DRIFT_NS_MAX {
            return match pts_ns > expected && off_ns <= FILL_NS_MAX {
                true => Arrival::Missing(format.frames_in(off_ns)),
                false => Arrival::Elsewhere,
            };
        }
        if off_ns > format.duration_ns(1) && self.marks.len() < MARKS_MAX {
            self.marks.push_back((frame, pts_ns));
        }
        Arrival::Follows
    }

    /// Silence of its own takes the place of what was missing before `frame`: from there on, counting begins anew.
    pub(super) fn set(&mut self, frame: u64, pts_ns: u64) {
        if self.marks.len() < MARKS_MAX {
            self.marks.push_back((frame, pts_ns));
        }
    }

    /// The time of a frame. Those before it are not asked for any more.
    pub(super) fn time_of(&mut self, format: &Format, frame: u64) -> Option<u64> {
        while self.marks.get(1).is_some_and(|next| next.0 <= frame) {
            self.marks.pop_front();
        }
        let first = *self.marks.front()?;
        (first.0 <= frame).then(|| at(format, first, frame))
    }

    /// The frame at which the time jumps next, after `frame`.
    pub(super) fn next_mark(&self, frame: u64) -> Option<u64> {
        let next = self.marks.iter().find(|mark| mark.0 > frame)?;
        Some(next.0)
    }

    /// The time that is expected for a frame that is to come in.
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
