//! What is recorded: starts, stops, cuts and offsets of any number of streams, without a clock, a lock or GStreamer's objects.
//!
//! All times are running time, ns; the present is a parameter. The main stream leads: its first keyframe after `record` was set begins
//! a *recording*, and its position when `record` is reset ends it. Of all streams, what lies between these two times passes. So what
//! passes does not depend on the order in which streams arrive, and the main stream waits for nobody.
//!
//! | of the main stream | passes |
//! |---|---|
//! | no recording, `record` is reset | nothing: a live input is dropped, another one is held |
//! | no recording, `record` is set | from the next keyframe on, which begins one |
//! | a recording | everything |
//! | after its end | what begins before the end, as pictures that are stored in another order do |
//!
//! Raw audio is cut to the sample; other buffers pass as a whole, if they begin in the recording. Another stream is decided as far as
//! the main one has been decided (the *horizon*), and waits there. If the main stream gives nothing for `stall_timeout_ns` while
//! another one waits, it has *stalled*: the others go on without it, and take the horizon along, until it is back.
//!
//! After each `handle_*` and [`RecordCore::decide`]: drain [`RecordCore::poll_action`]. What is held is decided again after any change
//! and at [`RecordCore::next_timeout`].

use std::collections::VecDeque;

#[cfg(test)]
mod tests;
mod verdict;

pub(super) type StreamId = u32;

/// The main stream.
pub(super) const MAIN: StreamId = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// The output is live.
    pub(super) is_live: bool,
    /// The main stream has stalled when another one has waited for it this long, ns.
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

/// Longer than the pauses of a stream that works: pictures come once a second in the slowest cameras.
pub(super) const STALL_TIMEOUT_NS: u64 = 5_000_000_000;

/// How a stream can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Media {
    /// Anywhere: raw audio, and gaps.
    Audio,
    /// Between pictures: raw video.
    Video,
    /// Before a keyframe.
    #[default]
    Coded,
}

/// A buffer or a gap as it arrives. No time: it follows what was before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Arrival {
    pub(super) begin_ns: Option<u64>,
    pub(super) end_ns: Option<u64>,
    /// Its decoding time, by which a stream is in order.
    pub(super) decode_ns: Option<u64>,
    pub(super) media: Media,
    pub(super) is_delta: bool,
}

/// A buffer or a gap with its place in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// What is before it has been decided.
    pub(super) from_ns: u64,
    order_ns: u64,
    media: Media,
    is_delta: bool,
}

/// What becomes of a span, or of its next part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass(Piece),
    Drop,
    /// To be decided again.
    Hold,
    /// The stream has ended with the main one.
    Ended,
}

/// A part of a span that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    /// The first of its stream in this recording.
    pub(super) is_first: bool,
    /// What follows is decided when [`Span::from_ns`] is set to `to_ns`.
    pub(super) is_last: bool,
    /// To be added to running times.
    pub(super) shift_ns: i64,
}

/// What the element has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// See [`RecordCore::is_recording`].
    RecordingChanged,
    /// The main stream gives nothing, and the others go on.
    Stalled,
    /// The main stream is back.
    Resumed,
}

#[derive(Debug, Clone, Copy)]
struct Recording {
    /// Of all recordings; never given twice.
    number: u64,
    start_ns: u64,
    /// `None`: it goes on.
    stop_ns: Option<u64>,
    shift_ns: i64,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// Its input is live.
    is_live: bool,
    has_ended: bool,
    /// Ended with the main stream.
    is_over: bool,
    /// All before it has been decided. `None`: nothing has come.
    position_ns: Option<u64>,
    /// End of what has arrived.
    arrived_ns: u64,
    /// Since when its next part is held.
    held_since_ns: Option<u64>,
    /// The number of the recording that it is in.
    recording: Option<u64>,
    /// Nothing of that recording has passed.
    is_new: bool,
    /// A delta unit would have nothing to build on.
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
            held_since_ns: None,
            recording: None,
            is_new: false,
            awaits_keyframe: false,
        }
    }

    /// The stream begins anew.
    fn reset(&mut self) {
        *self = Stream {
            is_live: self.is_live,
            ..Stream::new(self.id)
        };
    }

    /// All up to a time in this span has been decided.
    fn come_to(&mut self, time_ns: u64, span: &Span) {
        let time_ns = match span.media {
            // A later one may begin earlier.
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
    streams: Vec<Stream>,
    /// In order; what all streams have passed is forgotten.
    recordings: VecDeque<Recording>,
    /// Of the next recording.
    number: u64,
    /// Length of all recordings that have ended.
    recorded_ns: u64,
    /// Where the last of them ended, in the input's time and in the output's.
    stopped_ns: u64,
    output_end_ns: u64,
    /// When that was noticed.
    stopped_at_ns: u64,
    horizon_ns: u64,
    /// When the main stream gave something last, or was let go on.
    heard_ns: u64,
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
            streams: vec![Stream::new(MAIN)],
            recordings: VecDeque::new(),
            number: 0,
            recorded_ns: 0,
            stopped_ns: 0,
            output_end_ns: 0,
            stopped_at_ns: 0,
            horizon_ns: 0,
            heard_ns: 0,
            is_stalled: false,
            is_recording: false,
            now_ns: 0,
            actions: VecDeque::new(),
        }
    }
}

/// A stream that is this many recordings behind loses the oldest one.
const RECORDINGS_MAX: usize = 64;

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
        if !record {
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

    /// Whether an input is live.
    pub(super) fn handle_liveness(&mut self, id: StreamId, is_live: bool) {
        if let Some(stream) = self.stream_mut(id) {
            stream.is_live = is_live;
        }
    }

    pub(super) fn handle_stream_start(&mut self, id: StreamId) {
        if id == MAIN && self.stream(MAIN).is_some_and(|main| main.has_ended) {
            // Its times may be others.
            (self.horizon_ns, self.stopped_ns) = (0, 0);
        }
        if let Some(stream) = self.stream_mut(id) {
            (stream.has_ended, stream.is_over) = (false, false);
        }
    }

    /// Its turn has come: what is before it has been decided.
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

    /// What it holds is lost.
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

    /// `resets_time`: running time begins at 0 again.
    pub(super) fn handle_flush_stop(&mut self, now_ns: u64, id: StreamId, resets_time: bool) {
        self.begin(now_ns);
        if let Some(stream) = self.stream_mut(id) {
            stream.reset();
        }
        if id == MAIN {
            self.end_recording();
            self.recordings.clear();
            (self.horizon_ns, self.stopped_ns, self.heard_ns) = (0, 0, now_ns);
            if resets_time {
                (self.recorded_ns, self.output_end_ns) = (0, 0);
            }
            self.resume();
        }
        self.settle();
    }

    /// Everything but the streams, the settings and `record` is as at first.
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
            number: self.number,
            streams,
            actions,
            ..RecordCore::default()
        };
    }

    /// Something arrives. Once for each, before [`RecordCore::decide`].
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

    /// Time may have ended something.
    pub(super) fn handle_timeout(&mut self, now_ns: u64) {
        self.begin(now_ns);
        self.settle();
    }

    /// What becomes of the first of a stream that has not been decided.
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

    /// From the first that passes of the main stream until every stream that gives data has come to the end of the recording, at most
    /// `stall_timeout_ns` after that end.
    pub(super) fn is_recording(&self) -> bool {
        self.is_recording
    }

    pub(super) fn record(&self) -> bool {
        self.record
    }

    pub(super) fn settings(&self) -> Settings {
        self.settings
    }

    /// Number of recordings that were begun.
    pub(super) fn recordings(&self) -> u64 {
        self.number
    }

    /// The stream has ended with the main one.
    pub(super) fn is_over(&self, id: StreamId) -> bool {
        self.stream(id).is_some_and(|stream| stream.is_over)
    }

    /// When the first held part of a stream is to be decided again, whatever happens.
    pub(super) fn next_timeout(&self, id: StreamId) -> Option<u64> {
        if id != MAIN {
            return self.stall_due_ns(self.stream(id)?);
        }
        let is_ending = self.is_recording && !self.has_open();
        is_ending.then(|| self.give_up_ns())
    }

    /// When a stream goes on without the main one.
    fn stall_due_ns(&self, stream: &Stream) -> Option<u64> {
        let main = self.stream(MAIN)?;
        // Not while the main stream is waited for on purpose, and where nothing is lost by it.
        let is_at_rest = !self.record && !stream.is_live;
        if main.held_since_ns.is_some() || main.has_ended || is_at_rest {
            return None;
        }
        let since_ns = stream.held_since_ns?.max(self.heard_ns);
        Some(since_ns.saturating_add(self.settings.stall_timeout_ns))
    }

    /// When streams are no longer waited for that have not come to the end of a recording.
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
            // The gap collapses.
            (true, false) => self.recorded_ns,
            // Moved to the present; never back into what was recorded.
            (false, true) => self.now_ns.max(self.output_end_ns),
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

    /// Ends the recording that goes on, if one does, where the main stream is.
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
        self.output_end_ns = stop_ns.saturating_add_signed(last.shift_ns);
        (self.stopped_ns, self.stopped_at_ns) = (stop_ns, now_ns);
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

    /// What follows from any change.
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

    /// Recordings that all streams have passed.
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
