//! The state of the element around its core: the pads' streams, and the time.
//!
//! [`crate::kit::turns`] keeps each stream in order and waits.

use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;

use super::core::{Action, Arrival, MAIN, Media, Piece, RecordCore, Span, StreamId, Verdict};
use crate::kit::locked::Discards;
use crate::kit::time::{ClockWait, RunningTime};
use crate::kit::turns::{self, Inputs, TURN, Tickets};

/// The element's state, shared with waiting pushes.
#[derive(Clone, Default)]
pub(super) struct Turns(turns::Turns<State>);

impl Deref for Turns {
    type Target = turns::Turns<State>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

pub(super) type Turn = turns::Turn<State>;

#[derive(Default)]
pub(super) struct State {
    pub(super) core: RecordCore,
    lanes: Vec<Lane>,
    /// Value of the property `recording`. It changes only after the recorded data has been pushed.
    pub(super) is_recording: bool,
    /// Whether a thread carries actions out.
    is_acting: bool,
    is_stopped: bool,
    time: RunningTime,
    /// The last running time while the element played.
    now_ns: u64,
    /// Number of the last format.
    formats: u64,
    /// Number of buffers passed, at least in part.
    pub(super) passed: u64,
    pub(super) dropped: u64,
    pub(super) stalls: u64,
}

/// A stream with its pads.
struct Lane {
    id: StreamId,
    sink: gst::Pad,
    src: gst::Pad,
    format: Arc<Format>,
    /// Whether the liveness of the stream's input is known.
    is_liveness_known: bool,
    is_flushing: bool,
    tickets: Tickets,
    /// Whether recorded data is being pushed.
    is_pushing: bool,
    owes_discont: bool,
    /// The format whose segment downstream has, and its shift, ns.
    sent: Option<(u64, i64)>,
    /// Whether downstream has got the stream's end.
    has_told_end: bool,
}

/// The caps and the segment of a stream. They give the time of its buffers, and are needed to cut them.
#[derive(Clone, Default)]
pub(super) struct Format {
    number: u64,
    /// The event with the segment.
    pub(super) event: Option<gst::Event>,
    pub(super) segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    pub(super) audio: Option<gst_audio::AudioInfo>,
    media: Media,
}

impl Format {
    /// Kind of the stream's buffers. They can be cut only if their times pass as fast as running time.
    pub(super) fn media(&self, is_gap: bool) -> Media {
        let is_plain = (self.segment.as_ref()).is_some_and(|segment| segment.rate() == 1.0);
        match is_gap {
            _ if !is_plain => Media::Coded,
            true => Media::Audio,
            false => self.media,
        }
    }
}

/// A format whose segment must be sent, and its shift, ns.
pub(super) type Moved = (Arc<Format>, i64);

/// An item that takes a turn.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry {
    /// A buffer or a gap.
    Data(Span),
    StreamStart,
    Segment,
    Eos,
    Event,
}

impl Entry {
    /// Whether a part of it has passed.
    pub(super) fn is_in_parts(&self) -> bool {
        matches!(self, Entry::Data(span) if span.from_ns > span.begin_ns)
    }
}

/// The decision on an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Push the part now, and then call [`Turns::finish`].
    Push(Piece),
    PushEvent,
    Drop,
    /// Wait, but first execute actions and wake other streams.
    Act,
    Flushing,
    Ended,
}

/// An action with its contents.
pub(super) enum Task {
    NotifyRecording,
    /// Request a keyframe from the source of the main stream's sink pad.
    RequestKeyframe(gst::Pad),
    TellStalled {
        is_stalled: bool,
        running_ns: u64,
    },
}

/// Events and marks before a part: the stream's segment, if downstream lacks it, and a discontinuity.
#[derive(Default)]
pub(super) struct Preface {
    pub(super) segment: Option<Moved>,
    pub(super) is_discont: bool,
}

/// Life.
impl Turns {
    /// Makes a change that other threads may wait for.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State, u64) -> R) -> R {
        let mut state = self.state();
        let now_ns = state.now_ns();
        let result = change(&mut state, now_ns);
        state.wake(TURN);
        result
    }

    pub(super) fn add(&self, id: StreamId, sink: gst::Pad, src: gst::Pad) {
        self.change(|state, now_ns| {
            if id != MAIN {
                state.core.handle_add(now_ns, id);
            }
            state.lanes.push(Lane {
                id,
                sink,
                src,
                format: Arc::default(),
                is_liveness_known: false,
                is_flushing: false,
                tickets: Tickets::default(),
                is_pushing: false,
                owes_discont: false,
                sent: None,
                has_told_end: false,
            });
        });
    }

    /// Removes a stream; waiting threads return.
    pub(super) fn remove(&self, id: StreamId) {
        self.change(|state, now_ns| {
            state.core.handle_remove(now_ns, id);
            state.lanes.retain(|lane| lane.id != id);
        });
    }

    /// Notes that an input's pad was unlinked: its source must not wait any longer.
    pub(super) fn unlink(&self, id: StreamId) {
        self.change(|state, now_ns| {
            if let Some(lane) = state.lane(id) {
                lane.tickets.clear();
                lane.is_liveness_known = false;
            }
            state.core.handle_unlink(now_ns, id);
        });
    }

    /// Restarts the streams, or makes all waiting threads return.
    pub(super) fn reset(&self, is_stopped: bool) {
        self.change(|state, _| {
            state.is_stopped = is_stopped;
            state.now_ns = 0;
            state.core.handle_stop();
            for lane in &mut state.lanes {
                lane.reset();
                lane.is_flushing = false;
                lane.is_liveness_known = false;
            }
        });
    }

    /// Sets the time from now on. Without a clock, time is stopped.
    pub(super) fn set_time(&self, time: RunningTime) {
        // Note the present time before the change.
        self.change(|state, _| {
            state.core.handle_clock(time.has_clock());
            state.time = time;
        });
    }

    pub(super) fn begin_flush(&self, id: StreamId) {
        self.change(|state, now_ns| {
            state.core.handle_flush_start(now_ns, id);
            if let Some(lane) = state.lane(id) {
                lane.is_flushing = true;
                lane.tickets.clear();
            }
        });
    }

    pub(super) fn end_flush(&self, id: StreamId, resets_time: bool) {
        self.change(|state, now_ns| {
            state.core.handle_flush_stop(now_ns, id, resets_time);
            if let Some(lane) = state.lane(id) {
                lane.reset();
                lane.is_flushing = false;
            }
        });
    }
}

/// Data.
impl Turns {
    /// Returns the sink pad of a stream if the element must still query whether the stream's input is live.
    pub(super) fn liveness_to_ask(&self, id: StreamId) -> Option<gst::Pad> {
        let mut state = self.state();
        let lane = state.lane(id)?;
        (!std::mem::replace(&mut lane.is_liveness_known, true)).then(|| lane.sink.clone())
    }

    /// Queues an arriving item. `arrival` describes it, in the stream's format.
    pub(super) fn arrive(
        &self,
        id: StreamId,
        arrival: impl FnOnce(&Format) -> Arrival,
    ) -> (Turn, Arc<Format>) {
        let (span, format) = {
            let mut state = self.state();
            let now_ns = state.now_ns();
            let lane = state.lane(id);
            let format = lane.map_or_else(Arc::default, |lane| lane.format.clone());
            let arrival = arrival(&format);
            (state.core.handle_arrival(now_ns, id, &arrival), format)
        };
        (self.enter(id, Entry::Data(span)), format)
    }

    /// Returns the preface of a part that is about to be pushed. `is_buffer`: the part is a buffer, which can be marked.
    pub(super) fn preface(
        &self,
        id: StreamId,
        format: &Arc<Format>,
        shift_ns: i64,
        is_buffer: bool,
    ) -> Preface {
        let mut state = self.state();
        let lane = state.lane(id);
        lane.map_or_else(Preface::default, |lane| Preface {
            segment: lane.segment_to_send(format, shift_ns),
            is_discont: is_buffer && std::mem::take(&mut lane.owes_discont),
        })
    }

    /// Wakes held items, which are decided again.
    pub(super) fn wake(&self) {
        self.change(|state, now_ns| state.core.handle_timeout(now_ns));
    }

    /// Counts a buffer that has passed, at least in part, or was dropped.
    pub(super) fn count(&self, is_passed: bool) {
        let mut state = self.state();
        state.passed += u64::from(is_passed);
        state.dropped += u64::from(!is_passed);
    }

    /// Notes that a push of a stream has returned.
    pub(super) fn finish(&self, id: StreamId) {
        let mut state = self.state();
        if let Some(lane) = state.lane(id) {
            lane.is_pushing = false;
        }
        state.core.handle_pushed(id);
    }

    /// Returns the next action, unless another thread is carrying one out. Call [`Turns::acted`] afterwards.
    pub(super) fn next_task(&self) -> Option<Task> {
        let mut state = self.state();
        if !state.can_act() {
            return None;
        }
        let is_stalled = match state.core.poll_action()? {
            Action::RecordingChanged => {
                state.is_recording = !state.is_recording;
                state.is_acting = true;
                return Some(Task::NotifyRecording);
            }
            Action::RequestKeyframe => {
                let sink = state.lane(MAIN)?.sink.clone();
                state.is_acting = true;
                return Some(Task::RequestKeyframe(sink));
            }
            Action::Stalled => true,
            Action::Resumed => false,
        };
        state.is_acting = true;
        state.stalls += u64::from(is_stalled);
        Some(Task::TellStalled {
            is_stalled,
            running_ns: state.now_ns(),
        })
    }

    pub(super) fn acted(&self) {
        self.state().is_acting = false;
    }

    /// Takes a stream that ends with the main one and has no running push. Returns the stream's source pad, and the segment to
    /// send before the end.
    pub(super) fn take_end(&self) -> Option<(gst::Pad, Option<Moved>)> {
        let mut state = self.state();
        let State { core, lanes, .. } = &mut **state;
        let lane = lanes
            .iter_mut()
            .find(|lane| core.is_over(lane.id) && !lane.has_told_end && lane.tickets.is_empty())?;
        lane.has_told_end = true;
        Some((lane.src.clone(), lane.last_segment()))
    }

    /// Notes that the end of a stream passes. Returns the segment to send before it.
    pub(super) fn end(&self, id: StreamId) -> Option<Moved> {
        let mut state = self.state();
        let lane = state.lane(id)?;
        lane.has_told_end = true;
        lane.last_segment()
    }
}

impl Lane {
    /// Resets the stream, because another stream starts on the pad, or the same one continues at another position.
    fn reset(&mut self) {
        // The caps are still those of the previous stream.
        self.format = Arc::new(Format {
            event: None,
            segment: None,
            ..(*self.format).clone()
        });
        self.tickets.clear();
        (self.owes_discont, self.has_told_end, self.is_pushing) = (false, false, false);
        self.sent = None;
    }

    fn segment_to_send(&mut self, format: &Arc<Format>, shift_ns: i64) -> Option<Moved> {
        let sent = (format.number, shift_ns);
        (self.sent.replace(sent) != Some(sent)).then(|| (format.clone(), shift_ns))
    }

    /// Returns the segment, if downstream lacks it, with the previous shift.
    fn last_segment(&mut self) -> Option<Moved> {
        let shift_ns = self.sent.map_or(0, |(_, shift_ns)| shift_ns);
        let format = self.format.clone();
        format.segment.as_ref()?;
        self.segment_to_send(&format, shift_ns)
    }
}

impl State {
    fn lane(&mut self, id: StreamId) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    /// Returns the source pad of a stream's sink pad, or the reverse.
    pub(super) fn counterpart(&self, pad: &gst::Pad) -> Option<gst::Pad> {
        self.lanes.iter().find_map(|lane| match pad {
            _ if lane.sink == *pad => Some(lane.src.clone()),
            _ if lane.src == *pad => Some(lane.sink.clone()),
            _ => None,
        })
    }

    pub(super) fn id_of(&self, sink: &gst::Pad) -> Option<StreamId> {
        let lane = self.lanes.iter().find(|lane| lane.sink == *sink)?;
        Some(lane.id)
    }

    /// Shift of downstream's times, ns.
    pub(super) fn shift_ns(&mut self, id: StreamId) -> i64 {
        let sent = self.lane(id).and_then(|lane| lane.sent);
        sent.map_or(0, |(_, shift_ns)| shift_ns)
    }

    /// Whether no item of a stream waits.
    pub(super) fn is_idle(&mut self, id: StreamId) -> bool {
        self.lane(id).is_none_or(|lane| lane.tickets.is_empty())
    }

    /// Returns the running time, 0 before the base time. While the element does not play, it is the time of the pause.
    pub(super) fn now_ns(&mut self) -> u64 {
        if let Some(now_ns) = self.time.now_ns() {
            self.now_ns = now_ns.max(0).unsigned_abs();
        }
        self.now_ns
    }

    /// Applies an event to a stream's later buffers.
    pub(super) fn note(&mut self, id: StreamId, event: &gst::Event) {
        self.formats += 1;
        let number = self.formats;
        let Some(lane) = self.lane(id) else {
            return;
        };
        match event.view() {
            gst::EventView::StreamStart(_) => lane.is_liveness_known = false,
            gst::EventView::Segment(segment) => {
                lane.format = Arc::new(Format {
                    number,
                    event: Some(event.clone()),
                    segment: segment.segment().downcast_ref().cloned(),
                    ..(*lane.format).clone()
                });
            }
            gst::EventView::Caps(caps) => {
                let name = caps.caps().structure(0).map(|first| first.name().as_str());
                // Only for raw audio, because GStreamer logs an error for other caps.
                let is_audio = name == Some("audio/x-raw");
                let audio = is_audio.then(|| gst_audio::AudioInfo::from_caps(caps.caps()));
                let audio = audio.and_then(Result::ok);
                let media = match name {
                    Some("audio/x-raw") if audio.is_some() => Media::Audio,
                    Some("video/x-raw") => Media::Video,
                    _ => Media::Coded,
                };
                lane.format = Arc::new(Format {
                    audio,
                    media,
                    ..(*lane.format).clone()
                });
            }
            _ => {}
        }
    }

    /// Whether actions are pending and no thread carries them out.
    fn can_act(&self) -> bool {
        // The end of a recording is reported when all of it has been pushed.
        let ends = !self.core.is_recording() && self.lanes.iter().any(|lane| lane.is_pushing);
        !self.is_acting && !ends && self.core.has_actions()
    }

    fn decide_data(&mut self, id: StreamId, span: &Span) -> Poll<Decision> {
        let now_ns = self.now_ns();
        let was_held = self.core.is_held(id);
        match self.core.decide(now_ns, id, span) {
            Verdict::Pass(piece) => {
                if let Some(lane) = self.lane(id) {
                    lane.is_pushing = true;
                    lane.owes_discont |= piece.is_first;
                }
                Poll::Ready(Decision::Push(piece))
            }
            Verdict::Drop => Poll::Ready(Decision::Drop),
            Verdict::Ended => Poll::Ready(Decision::Ended),
            // Other streams may continue while the main one is held.
            Verdict::Hold if id == MAIN && !was_held => Poll::Ready(Decision::Act),
            Verdict::Hold if self.can_act() => Poll::Ready(Decision::Act),
            Verdict::Hold => Poll::Pending,
        }
    }
}

/// The state keeps no buffer, and the objects in formats cannot call the element.
impl Discards for State {
    type Discarded = ();

    fn take_discarded(&mut self) -> Option<()> {
        None
    }
}

impl Inputs for State {
    type Entry = Entry;
    type Decision = Decision;

    fn queue(&mut self, id: StreamId) -> Option<&mut Tickets> {
        self.lane(id).map(|lane| &mut lane.tickets)
    }

    fn flushing() -> Decision {
        Decision::Flushing
    }

    fn is_open(&self, id: StreamId) -> bool {
        let mut lanes = self.lanes.iter();
        !self.is_stopped && lanes.any(|lane| lane.id == id && !lane.is_flushing)
    }

    fn decide(&mut self, id: StreamId, entry: &Entry) -> Poll<Decision> {
        let decision = match entry {
            Entry::Data(span) => return self.decide_data(id, span),
            Entry::StreamStart => {
                self.core.handle_stream_start(id);
                if let Some(lane) = self.lane(id) {
                    lane.has_told_end = false;
                }
                Decision::PushEvent
            }
            // The segment is pushed before the next data, when its offset is known.
            Entry::Segment => Decision::Drop,
            Entry::Eos if self.core.is_over(id) => Decision::Drop,
            Entry::Eos => {
                let now_ns = self.now_ns();
                self.core.handle_eos(now_ns, id);
                Decision::PushEvent
            }
            Entry::Event if self.core.is_over(id) => Decision::Drop,
            Entry::Event => Decision::PushEvent,
        };
        Poll::Ready(decision)
    }

    fn clock_wait(&self, id: StreamId, entry: &Entry) -> Option<ClockWait> {
        let Entry::Data(_) = entry else {
            return None;
        };
        let due_ns = self.core.next_timeout(id)?;
        let may_come = due_ns < NEVER_NS && self.time.has_clock();
        may_come.then(|| self.time.wait_until(due_ns))
    }
}

/// Maximum time. No clock reaches a time 290 years away, but a property may contain it, and a base time is added to it.
const NEVER_NS: u64 = u64::MAX / 2;
