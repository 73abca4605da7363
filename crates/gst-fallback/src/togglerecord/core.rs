//! Decides what is recorded: starts, stops, cuts and offsets of any number of streams, without a clock, a lock or GStreamer's
//! objects.
//!
//! All times are running time, ns; the current time is a parameter. The main stream leads: its first keyframe after `record` was
//! set begins a *recording*. The recording ends at the main stream's position when `record` is reset. If the stream has delta
//! units, it ends at the next keyframe. The part of every stream between these two times passes. So the result does not depend on
//! the order in which streams arrive, and the main stream waits for no other. There is one exception: a main stream that is not
//! live may be held. Then other streams that are not live continue to the end of the held buffer, as part of the recording that
//! has ended.
//!
//! | state of the main stream | passes |
//! |---|---|
//! | no recording, `record` is reset | nothing: a live input is dropped, another input is held |
//! | no recording, `record` is set | data from the next keyframe, which begins a recording |
//! | a recording | everything |
//! | after a recording | buffers that start before its end, such as reordered pictures |
//!
//! Raw audio is cut at the sample; other buffers pass completely if they start in the recording. The other streams are decided
//! only up to the time up to which the main stream is decided (the *horizon*), and wait there. If the main stream delivers
//! nothing for `stall_timeout_ns` while another stream waits, the main stream has *stalled*. The other streams then continue
//! without it and advance the horizon, until the main stream returns.
//!
//! After each `handle_*` and [`RecordCore::decide`], drain [`RecordCore::poll_action`]. Decide again about held items after any
//! change and at [`RecordCore::next_timeout`].

use std::collections::VecDeque;

#[cfg(test)]
mod tests;
mod verdict;

pub(super) type StreamId = u32;

/// The main stream.
pub(super) const MAIN: StreamId = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// Whether the output is live.
    pub(super) is_live: bool,
    /// Time for which another stream waits before the main stream counts as stalled, ns.
    pub(super) stall_timeout_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            is_live: false,
            stall_timeout_ns: STALL_TIMEOUT_NS,
        }
    }
}

/// Default of `stall_timeout_ns`. It is longer than the pauses of any stream that works: the slowest cameras deliver a picture
/// per second.
pub(super) const STALL_TIMEOUT_NS: u64 = 5_000_000_000;

/// Kind of a stream, which determines how it can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Media {
    /// Anywhere: raw audio, and gaps.
    Audio,
    /// Between pictures: raw video.
    Video,
    /// Only before a keyframe.
    #[default]
    Coded,
}

/// A buffer or a gap on arrival. Without a time, it follows the previous one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    pub(super) begin_ns: Option<u64>,
    pub(super) end_ns: Option<u64>,
    /// Its decoding time, which determines its place in the stream.
    pub(super) decode_ns: Option<u64>,
    pub(super) media: Media,
    pub(super) is_delta: bool,
}

/// A buffer or a gap with its place in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Everything before this time in the span has been decided.
    pub(super) from_ns: u64,
    order_ns: u64,
    media: Media,
    is_delta: bool,
}

/// The decision on a span, or on its next part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass(Piece),
    Drop,
    /// The span must be decided again later.
    Hold,
    /// The stream has ended with the main one.
    Ended,
}

/// A part of a span that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// Whether it is the first piece of its stream in this recording.
    pub(super) is_first: bool,
    /// Whether it is the last piece of the span. If not, set [`Span::from_ns`] to `to_ns` and decide again.
    pub(super) is_last: bool,
    /// Offset to add to running times.
    pub(super) shift_ns: i64,
}

/// An action for the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// See [`RecordCore::is_recording`].
    RecordingChanged,
    /// The main stream delivers nothing, and the others continue.
    Stalled,
    /// The main stream is back.
    Resumed,
    /// A recording waits for a keyframe of the main stream.
    RequestKeyframe,
}

#[derive(Debug, Clone, Copy)]
struct Recording {
    /// Number of the recording, never reused.
    number: u64,
    start_ns: u64,
    /// End of the recording; `None` while it continues.
    stop_ns: Option<u64>,
    shift_ns: i64,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// Whether the stream's input is live.
    is_live: bool,
    has_ended: bool,
    /// Whether the stream ended with the main stream.
    is_over: bool,
    /// Everything of the stream before this time has been decided. `None` before the first arrival.
    position_ns: Option<u64>,
    /// End of the arrived data.
    arrived_ns: u64,
    /// Whether delta units have arrived.
    has_deltas: bool,
    /// Time since which the stream's next part has been held.
    held_since_ns: Option<u64>,
    /// Number of the recording that the stream is in.
    recording: Option<u64>,
    /// Whether no part of that recording has passed.
    is_new: bool,
    /// Whether the stream needs a keyframe, because delta units could not be decoded now.
    awaits_keyframe: bool,
}

impl Stream {
    fn new(id: StreamId) -> Self {
        Stream {
            id,
            is_live: false,
            has_ended: false,
            is_over: false,
            position_ns: None,
            arrived_ns: 0,
            has_deltas: false,
            held_since_ns: None,
            recording: None,
            is_new: false,
            awaits_keyframe: false,
        }
    }

    /// Resets a stream that restarts.
    fn reset(&mut self) {
        *self = Stream {
            is_live: self.is_live,
            ..Stream::new(self.id)
        };
    }

    /// Notes that everything in this span up to a time has been decided.
    fn come_to(&mut self, time_ns: u64, span: &Span) {
        let time_ns = match span.media {
            // A buffer that arrives later may have an earlier start time.
            Media::Coded => span.order_ns,
            Media::Audio | Media::Video => time_ns,
        };
        self.position_ns = self.position_ns.max(Some(time_ns));
    }

    fn has_passed(&self, time_ns: u64) -> bool {
        self.position_ns.is_some_and(|position| position >= time_ns)
    }
}

#[derive(Debug)]
pub(super) struct RecordCore {
    settings: Settings,
    record: bool,
    /// Whether `record` was reset while the recording continues to the next keyframe.
    is_stopping: bool,
    streams: Vec<Stream>,
    /// The recordings, sorted. A recording that all streams have passed is removed.
    recordings: VecDeque<Recording>,
    /// The last recording that has ended.
    ended: Option<Recording>,
    /// Number of the next recording.
    number: u64,
    /// Length of all recordings that have ended.
    recorded_ns: u64,
    /// End of the last recording, in the time of the data.
    stopped_ns: u64,
    /// Total time for which the main stream was held while nothing was recorded.
    held_ns: u64,
    /// Current time when the last recording ended.
    stopped_at_ns: u64,
    horizon_ns: u64,
    /// Time when the main stream last delivered, or was released.
    heard_ns: u64,
    /// Time of the pending request for a keyframe.
    asked_ns: Option<u64>,
    /// Time since which a part of the main stream is being pushed.
    pushing_since_ns: Option<u64>,
    has_clock: bool,
    is_stalled: bool,
    is_recording: bool,
    now_ns: u64,
    actions: VecDeque<Action>,
}

impl Default for RecordCore {
    fn default() -> Self {
        RecordCore {
            settings: Settings::default(),
            record: false,
            is_stopping: false,
            streams: vec![Stream::new(MAIN)],
            recordings: VecDeque::new(),
            ended: None,
            number: 0,
            recorded_ns: 0,
            stopped_ns: 0,
            held_ns: 0,
            stopped_at_ns: 0,
            horizon_ns: 0,
            heard_ns: 0,
            asked_ns: None,
            pushing_since_ns: None,
            has_clock: false,
            is_stalled: false,
            is_recording: false,
            now_ns: 0,
            actions: VecDeque::new(),
        }
    }
}

/// Maximum number of recordings by which a stream may be behind. If there are more, the stream loses the oldest one.
const RECORDINGS_MAX: usize = 64;

/// Pause before a keyframe is requested again: short enough for a viewer, and long enough not to flood an encoder.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// After this duration, a push of the main stream may be waiting for data of another stream, as in muxers.
const PUSH_PATIENCE_NS: u64 = 20_000_000;

/// Inputs.
impl RecordCore {
    pub(super) fn handle_settings(&mut self, now_ns: u64, settings: Settings) {
        self.begin(now_ns);
        self.settings = settings;
    }

    pub(super) fn handle_record(&mut self, now_ns: u64, record: bool) {
        self.begin(now_ns);
        if std::mem::replace(&mut self.record, record) == record {
            return;
        }
        self.heard_ns = now_ns;
        self.asked_ns = None;
        let has_deltas = self.stream(MAIN).is_some_and(|main| main.has_deltas);
        self.is_stopping = !record && has_deltas && self.has_open();
        if !record && !self.is_stopping {
            self.end_recording();
        }
        self.settle();
    }

    pub(super) fn handle_add(&mut self, now_ns: u64, id: StreamId) {
        self.begin(now_ns);
        self.streams.push(Stream::new(id));
    }

    pub(super) fn handle_remove(&mut self, now_ns: u64, id: StreamId) {
        self.begin(now_ns);
        self.streams.retain(|stream| stream.id != id);
        self.settle();
    }

    /// Sets whether the clock runs.
    pub(super) fn handle_clock(&mut self, has_clock: bool) {
        self.has_clock = has_clock;
    }

    /// Notes that a part of a stream has been pushed.
    pub(super) fn handle_pushed(&mut self, id: StreamId) {
        if id == MAIN {
            self.pushing_since_ns = None;
        }
    }

    /// Sets whether an input is live.
    pub(super) fn handle_liveness(&mut self, id: StreamId, is_live: bool) {
        if let Some(stream) = self.stream_mut(id) {
            stream.is_live = is_live;
        }
    }

    pub(super) fn handle_stream_start(&mut self, id: StreamId) {
        if id == MAIN && self.stream(MAIN).is_some_and(|main| main.has_ended) {
            // The times of another stream may differ.
            (self.horizon_ns, self.stopped_ns) = (0, 0);
        }
        if let Some(stream) = self.stream_mut(id) {
            (stream.has_ended, stream.is_over) = (false, false);
        }
    }

    /// Notes the end of a stream whose earlier data has been decided.
    pub(super) fn handle_eos(&mut self, now_ns: u64, id: StreamId) {
        self.begin(now_ns);
        if id == MAIN {
            self.end_recording();
        }
        if let Some(stream) = self.stream_mut(id) {
            stream.has_ended = true;
        }
        self.settle();
    }

    /// Notes that an input was unlinked. Its held data is lost.
    pub(super) fn handle_unlink(&mut self, now_ns: u64, id: StreamId) {
        self.begin(now_ns);
        if let Some(stream) = self.stream_mut(id) {
            (stream.position_ns, stream.held_since_ns) = (None, None);
        }
        self.settle();
    }

    pub(super) fn handle_flush_start(&mut self, now_ns: u64, id: StreamId) {
        self.begin(now_ns);
        if let Some(stream) = self.stream_mut(id) {
            stream.held_since_ns = None;
        }
        if id == MAIN {
            self.heard_ns = now_ns;
        }
    }

    /// Ends a flush. With `resets_time`, running time restarts at 0.
    pub(super) fn handle_flush_stop(&mut self, now_ns: u64, id: StreamId, resets_time: bool) {
        self.begin(now_ns);
        if let Some(stream) = self.stream_mut(id) {
            stream.reset();
        }
        if id == MAIN {
            self.end_recording();
            self.recordings.clear();
            (self.horizon_ns, self.stopped_ns, self.heard_ns) = (0, 0, now_ns);
            (self.ended, self.pushing_since_ns) = (None, None);
            if resets_time {
                (self.recorded_ns, self.held_ns) = (0, 0);
            }
            self.resume();
        }
        self.settle();
    }

    /// Resets everything except the streams, the settings and `record`.
    pub(super) fn handle_stop(&mut self) {
        let mut streams = std::mem::take(&mut self.streams);
        streams.iter_mut().for_each(Stream::reset);
        let mut actions = std::mem::take(&mut self.actions);
        if self.is_recording {
            actions.push_back(Action::RecordingChanged);
        }
        *self = RecordCore {
            settings: self.settings,
            record: self.record,
            has_clock: self.has_clock,
            number: self.number,
            streams,
            actions,
            ..RecordCore::default()
        };
    }

    /// Notes an arrival. Called once for each, before [`RecordCore::decide`].
    pub(super) fn handle_arrival(&mut self, now_ns: u64, id: StreamId, arrival: &Arrival) -> Span {
        self.begin(now_ns);
        if id == MAIN {
            self.heard_ns = now_ns;
            self.resume();
        }
        let arrived_ns = self.stream(id).map_or(0, |stream| stream.arrived_ns);
        let begin_ns = arrival.begin_ns.unwrap_or(arrived_ns);
        let end_ns = arrival.end_ns.unwrap_or(begin_ns).max(begin_ns);
        if let Some(stream) = self.stream_mut(id) {
            stream.arrived_ns = end_ns;
            stream.has_deltas |= arrival.is_delta;
        }
        let order_ns = match arrival.media {
            Media::Coded => arrival.decode_ns.unwrap_or(begin_ns).min(begin_ns),
            Media::Audio | Media::Video => begin_ns,
        };
        Span {
            begin_ns,
            end_ns,
            from_ns: begin_ns,
            order_ns,
            media: arrival.media,
            is_delta: arrival.is_delta,
        }
    }

    /// Handles time-outs.
    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        self.begin(now_ns);
        self.settle();
    }

    /// Decides on the first undecided part of a stream.
    pub(super) fn decide(&mut self, now_ns: u64, id: StreamId, span: &Span) -> Verdict {
        self.begin(now_ns);
        let Some(stream) = self.stream_mut(id) else {
            return Verdict::Drop;
        };
        if stream.is_over || (id == MAIN && stream.has_ended) {
            return Verdict::Ended;
        }
        stream.come_to(span.from_ns, span);
        let verdict = self.verdict(id, span);
        let now_ns = self.now_ns;
        if let Some(stream) = self.stream_mut(id) {
            match verdict {
                Verdict::Hold => {
                    stream.held_since_ns.get_or_insert(now_ns);
                }
                Verdict::Pass(piece) => {
                    stream.held_since_ns = None;
                    stream.come_to(piece.to_ns, span);
                    if id == MAIN {
                        self.pushing_since_ns = Some(now_ns);
                    }
                }
                Verdict::Drop | Verdict::Ended => {
                    stream.held_since_ns = None;
                    stream.come_to(span.end_ns, span);
                }
            }
        }
        self.settle();
        verdict
    }
}

/// Outputs.
impl RecordCore {
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Whether a recording is running. It runs from the first buffer of the main stream that passes. It ends when every stream
    /// that delivers has reached the end of the recording, or `stall_timeout_ns` after that end.
    pub(super) fn is_recording(&self) -> bool {
        self.is_recording
    }

    /// Whether a stream's next part is held.
    pub(super) fn is_held(&self, id: StreamId) -> bool {
        self.stream(id)
            .is_some_and(|stream| stream.held_since_ns.is_some())
    }

    pub(super) fn record(&self) -> bool {
        self.record
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns the number of started recordings.
    pub(super) fn recordings(&self) -> u64 {
        self.number
    }

    /// Whether the stream has ended with the main one.
    pub(super) fn is_over(&self, id: StreamId) -> bool {
        self.stream(id).is_some_and(|stream| stream.is_over)
    }

    /// Returns the time at which the first held part of a stream must be decided again.
    pub(super) fn next_timeout(&self, id: StreamId) -> Option<u64> {
        if id != MAIN {
            let stream = self.stream(id)?;
            let part_ns = self.part_due_ns(stream).filter(|ns| *ns > self.now_ns);
            return part_ns.into_iter().chain(self.stall_due_ns(stream)).min();
        }
        let is_ending = self.is_recording && !self.has_open();
        is_ending.then(|| self.give_up_ns())
    }

    /// Returns the time at which a stream continues without the main one.
    fn stall_due_ns(&self, stream: &Stream) -> Option<u64> {
        let main = self.stream(MAIN)?;
        // The main stream does not stall while it is held on purpose and waiting loses nothing.
        let is_at_rest = !self.record && !stream.is_live;
        if main.held_since_ns.is_some() || main.has_ended || is_at_rest {
            return None;
        }
        let since_ns = stream.held_since_ns?.max(self.heard_ns);
        Some(since_ns.saturating_add(self.settings.stall_timeout_ns))
    }

    /// Returns the time from which a held part of a stream may pass in parts, up to the main stream's position.
    fn part_due_ns(&self, stream: &Stream) -> Option<u64> {
        let pushing_ns = self.pushing_since_ns?;
        let since_ns = stream.held_since_ns.unwrap_or(self.now_ns).max(pushing_ns);
        let patience_ns = if self.has_clock { PUSH_PATIENCE_NS } else { 0 };
        Some(since_ns.saturating_add(patience_ns))
    }

    /// Returns the time at which the end of a recording no longer waits for streams that have not reached it.
    fn give_up_ns(&self) -> u64 {
        self.stopped_at_ns
            .saturating_add(self.settings.stall_timeout_ns)
    }
}

/// The course of recordings.
impl RecordCore {
    fn stream(&self, id: StreamId) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.id == id)
    }

    fn stream_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.id == id)
    }

    fn begin(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        // A flushing seek sets running time back.
        self.heard_ns = self.heard_ns.min(now_ns);
        self.stopped_at_ns = self.stopped_at_ns.min(now_ns);
        self.asked_ns = self.asked_ns.map(|ns| ns.min(now_ns));
        self.pushing_since_ns = self.pushing_since_ns.map(|ns| ns.min(now_ns));
        for stream in &mut self.streams {
            stream.held_since_ns = stream.held_since_ns.map(|since_ns| since_ns.min(now_ns));
        }
    }

    fn has_open(&self) -> bool {
        let last = self.recordings.back();
        last.is_some_and(|last| last.stop_ns.is_none())
    }

    fn begin_recording(&mut self, start_ns: u64) -> Recording {
        let is_live = self.stream(MAIN).is_some_and(|main| main.is_live);
        let output_ns = match (is_live, self.settings.is_live) {
            // The gap between the recordings is removed.
            (true, false) => self.recorded_ns,
            // The times are shifted by the time for which the main stream was held.
            (false, true) => start_ns.saturating_add(self.held_ns),
            (true, true) | (false, false) => start_ns,
        };
        let recording = Recording {
            number: self.number,
            start_ns,
            stop_ns: None,
            shift_ns: output_ns.wrapping_sub(start_ns).cast_signed(),
        };
        self.number += 1;
        self.recordings.push_back(recording);
        recording
    }

    /// Ends the running recording, if any, at the main stream's position.
    fn end_recording(&mut self) {
        let (now_ns, horizon_ns) = (self.now_ns, self.horizon_ns);
        let Some(last) = self.recordings.back_mut() else {
            return;
        };
        if last.stop_ns.is_some() {
            return;
        }
        let stop_ns = horizon_ns.max(last.start_ns);
        last.stop_ns = Some(stop_ns);
        self.recorded_ns += stop_ns - last.start_ns;
        (self.ended, self.is_stopping) = (Some(*last), false);
        (self.stopped_ns, self.stopped_at_ns) = (stop_ns, now_ns);
    }

    /// Notes that the main stream is not held any more.
    fn end_hold(&mut self) {
        let now_ns = self.now_ns;
        let main = self.stream_mut(MAIN);
        let since_ns = main.and_then(|main| main.held_since_ns.take());
        self.held_ns += since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
    }

    /// Requests a keyframe once, and again while no keyframe arrives.
    fn ask_for_keyframe(&mut self) {
        let now_ns = self.now_ns;
        let is_asked = |ns: u64| now_ns < ns.saturating_add(ASK_AGAIN_NS);
        if !self.asked_ns.is_some_and(is_asked) {
            self.asked_ns = Some(now_ns);
            self.actions.push_back(Action::RequestKeyframe);
        }
    }

    fn stall(&mut self) {
        if !std::mem::replace(&mut self.is_stalled, true) {
            self.actions.push_back(Action::Stalled);
        }
    }

    fn resume(&mut self) {
        if std::mem::take(&mut self.is_stalled) {
            self.actions.push_back(Action::Resumed);
        }
    }

    /// Handles the consequences of any change.
    fn settle(&mut self) {
        self.forget();
        let main_has_ended = self.stream(MAIN).is_some_and(|main| main.has_ended);
        let stopped_ns = self.stopped_ns;
        let others = self.streams.iter_mut().filter(|stream| stream.id != MAIN);
        for stream in others.filter(|stream| !stream.has_ended) {
            stream.is_over |= main_has_ended && stream.has_passed(stopped_ns);
        }
        let is_behind = |stream: &Stream| {
            let is_running = stream.position_ns.is_some() && !stream.has_ended && !stream.is_over;
            is_running && !stream.has_passed(stopped_ns)
        };
        let is_ending = self.is_recording
            && self.now_ns < self.give_up_ns()
            && self.streams.iter().any(is_behind);
        let is_recording = self.has_open() || is_ending;
        if std::mem::replace(&mut self.is_recording, is_recording) != is_recording {
            self.actions.push_back(Action::RecordingChanged);
        }
    }

    /// Removes recordings that all streams have passed.
    fn forget(&mut self) {
        let running = self.streams.iter().filter(|stream| !stream.has_ended);
        let passed_ns = running.map(|stream| stream.position_ns.unwrap_or(0)).min();
        while let Some(first) = self.recordings.front()
            && let Some(stop_ns) = first.stop_ns
            && (passed_ns.is_none_or(|passed| stop_ns <= passed)
                || self.recordings.len() > RECORDINGS_MAX)
        {
            self.recordings.pop_front();
        }
    }
}
