//! Decides on spans: of the main stream, which leads, and of other streams, which follow.

use super::*;

impl RecordCore {
    pub(super) fn verdict(&mut self, id: StreamId, span: &Span) -> Verdict {
        match id {
            MAIN => self.verdict_of_main(span),
            _ => self.verdict_of_other(id, span),
        }
    }

    fn verdict_of_main(&mut self, span: &Span) -> Verdict {
        if self.is_stopping && span.is_delta {
            self.ask_for_keyframe();
        } else if self.is_stopping {
            self.end_recording();
        }
        let current = self.recordings.back().copied();
        if let Some(recording) = current {
            let part = match recording.stop_ns {
                None if span.is_delta && span.begin_ns < recording.start_ns => {
                    // This buffer is shown before the keyframe, and depends on earlier data.
                    return Verdict::Drop;
                }
                None => Some((span.from_ns, span.end_ns)),
                Some(_) => part_in(&recording, span),
            };
            if let Some(part) = part {
                self.lead_to(span.end_ns);
                return self.admit(MAIN, &recording, span, part);
            }
        }
        let is_live = self.stream(MAIN).is_some_and(|main| main.is_live);
        if !self.record && !is_live {
            return Verdict::Hold;
        }
        self.end_hold();
        match self.record {
            true if !span.is_delta => {
                // Times are rounded, so the start may be before the end of the last recording.
                let start_ns = span.from_ns.max(self.stopped_ns.min(span.end_ns));
                let recording = self.begin_recording(start_ns);
                self.lead_to(span.end_ns);
                self.admit(MAIN, &recording, span, (start_ns, span.end_ns))
            }
            record => {
                if record {
                    self.ask_for_keyframe();
                }
                self.lead_to(span.end_ns);
                Verdict::Drop
            }
        }
    }

    fn lead_to(&mut self, end_ns: u64) {
        self.horizon_ns = self.horizon_ns.max(end_ns);
    }

    fn verdict_of_other(&mut self, id: StreamId, span: &Span) -> Verdict {
        let found = self.recordings.iter().find_map(|recording| {
            let part = part_in(recording, span)?;
            Some((*recording, part))
        });
        let has_ended = found.is_some_and(|(recording, _)| recording.stop_ns.is_some());
        if !has_ended && !self.is_decided(span, found.is_some()) {
            if let Some((recording, (from_ns, to_ns))) = found
                && span.media == Media::Audio
                && from_ns < self.horizon_ns
                && !self.is_stalled
                && self.may_part(id)
            {
                // Downstream may need this part before it accepts more of the main stream.
                let part = (from_ns, to_ns.min(self.horizon_ns));
                return self.admit(id, &recording, span, part);
            }
            if found.is_none()
                && let Some(ended) = self.ended.filter(|_| self.is_beside_held(id, span))
            {
                return self.admit(id, &ended, span, (span.from_ns, span.end_ns));
            }
            let was_stopping = self.is_stopping;
            if let Some(verdict) = self.wait_for_main(id) {
                return verdict;
            }
            self.lead_to(span.end_ns);
            if was_stopping {
                // The main stream has stalled, so the keyframe that should end the recording does not arrive.
                self.end_recording();
            }
        }
        match found {
            Some((recording, part)) => self.admit(id, &recording, span, part),
            None => Verdict::Drop,
        }
    }

    /// Whether a part may pass while the main stream is being pushed.
    fn may_part(&self, id: StreamId) -> bool {
        let stream = self.stream(id);
        let due_ns = stream.and_then(|stream| self.part_due_ns(stream));
        due_ns.is_some_and(|ns| ns <= self.now_ns)
    }

    /// Whether the main stream is held at a buffer that ends at the end of this span or later, and neither stream is live.
    fn is_beside_held(&self, id: StreamId, span: &Span) -> bool {
        let is_live = self.stream(id).is_none_or(|stream| stream.is_live);
        let is_held = |main: &Stream| {
            main.held_since_ns.is_some() && !main.is_live && span.end_ns <= main.arrived_ns
        };
        !is_live && !self.record && self.stream(MAIN).is_some_and(is_held)
    }

    /// Whether the main stream has advanced far enough for a decision. `is_in`: a running recording contains the span's start.
    fn is_decided(&self, span: &Span, is_in: bool) -> bool {
        let needs_end = match span.media {
            Media::Audio => true,
            // Another recording may start in the middle of the picture.
            Media::Video => !is_in,
            Media::Coded => false,
        };
        span.point_ns() < self.horizon_ns && !(needs_end && span.end_ns > self.horizon_ns)
    }

    /// Waits for the main stream. Returns `None` if the main stream has stalled, so that no stream waits for it.
    fn wait_for_main(&mut self, id: StreamId) -> Option<Verdict> {
        let (main, stream) = (self.stream(MAIN)?, self.stream(id)?);
        if main.has_ended {
            return Some(if stream.has_passed(self.stopped_ns) {
                Verdict::Ended
            } else {
                Verdict::Drop
            });
        }
        if main.held_since_ns.is_some() && stream.is_live {
            return Some(Verdict::Drop);
        }
        let Some(due_ns) = self.stall_due_ns(stream) else {
            let may_go_on = self.is_stalled && (self.record || stream.is_live);
            return (!may_go_on).then_some(Verdict::Hold);
        };
        if !self.is_stalled && self.now_ns < due_ns {
            return Some(Verdict::Hold);
        }
        self.stall();
        None
    }

    fn admit(
        &mut self,
        id: StreamId,
        recording: &Recording,
        span: &Span,
        (from_ns, to_ns): (u64, u64),
    ) -> Verdict {
        let Some(stream) = self.stream_mut(id) else {
            return Verdict::Drop;
        };
        if stream.recording != Some(recording.number) {
            stream.recording = Some(recording.number);
            (stream.is_new, stream.awaits_keyframe) = (true, true);
        }
        if span.media != Media::Audio {
            if span.is_delta && stream.awaits_keyframe {
                return Verdict::Drop;
            }
            stream.awaits_keyframe = false;
        }
        Verdict::Pass(Piece {
            from_ns,
            to_ns,
            is_first: std::mem::take(&mut stream.is_new),
            is_last: span.media != Media::Audio || to_ns >= span.end_ns,
            shift_ns: recording.shift_ns,
        })
    }
}

impl Span {
    /// Returns the time that determines the recording of a span that is not cut. It is a little after the span's start.
    fn point_ns(&self) -> u64 {
        match self.media {
            Media::Audio => self.begin_ns,
            Media::Video | Media::Coded => {
                let half_ns = (self.end_ns - self.begin_ns) / 2;
                self.begin_ns.saturating_add(half_ns.min(ROUNDED_NS_MAX))
            }
        }
    }
}

/// Maximum difference between two streams' times of the same moment, because file formats round to the millisecond.
const ROUNDED_NS_MAX: u64 = 1_000_000;

/// Returns the part of a span, from its `from_ns` on, that is in a recording.
fn part_in(recording: &Recording, span: &Span) -> Option<(u64, u64)> {
    let stop_ns = recording.stop_ns.unwrap_or(u64::MAX);
    let from_ns = span.from_ns.max(recording.start_ns);
    let is_in = (recording.start_ns..stop_ns).contains(&span.point_ns());
    match span.media {
        Media::Audio if span.begin_ns < span.end_ns => {
            let to_ns = span.end_ns.min(stop_ns);
            (from_ns < to_ns).then_some((from_ns, to_ns))
        }
        // A picture that is shown at the start of the recording belongs to it if half of the picture's time or more is left.
        Media::Video if span.begin_ns < recording.start_ns && recording.start_ns < stop_ns => {
            let left_ns = span.end_ns.checked_sub(recording.start_ns)?;
            let is_shown = is_in || left_ns >= (span.end_ns - span.begin_ns).div_ceil(2);
            is_shown.then_some((from_ns, span.end_ns))
        }
        _ => is_in.then_some((from_ns.min(span.end_ns), span.end_ns)),
    }
}
