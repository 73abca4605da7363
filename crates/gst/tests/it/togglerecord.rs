//! `togglerecord`: streams that start and stop together. The reference is the element's page (docs/elements/flow.md). A recording
//! starts at a keyframe of the main stream, and stops at a position of the main stream. The other streams are cut there. There
//! are four kinds of gaps.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;

/// An output buffer or gap: running time, then start and end in its segment, ms, and a mark. `!` is discontinuous, `.` is not,
/// `_` is a gap.
type Out = (u64, u64, u64, char);

/// One stream of a `togglerecord`, between test pads.
struct Stream {
    feed: gst::Pad,
    sink: gst::Pad,
    src: gst::Pad,
    seen: Receiver<Seen>,
    segment: RefCell<Option<gst::FormattedSegment<gst::ClockTime>>>,
    _drain: gst::Pad,
}

/// The element with its streams, the main one first, without a clock.
struct Record {
    element: gst::Element,
    streams: Vec<Stream>,
    bus: gst::Bus,
}

/// Returns the caps of the tests' audio. A frame lasts 1 ms, and its value is its time.
fn audio_caps() -> gst::Caps {
    gst::Caps::builder("audio/x-raw")
        .field("format", "U8")
        .field("layout", "interleaved")
        .field("rate", 1000)
        .field("channels", 1)
        .build()
}

fn coded_caps() -> gst::Caps {
    gst::Caps::new_empty_simple("application/x-test")
}

fn bytes_between(from_ms: u64, to_ms: u64) -> Vec<u8> {
    (from_ms..to_ms).map(|ms| (ms % 251) as u8).collect()
}

fn buffer(from_ms: u64, to_ms: u64) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_slice(bytes_between(from_ms, to_ms));
    let inner = buffer.get_mut().unwrap();
    inner.set_pts(from_ms * MS);
    inner.set_duration((to_ms - from_ms) * MS);
    buffer
}

fn delta(from_ms: u64, to_ms: u64) -> gst::Buffer {
    let mut buffer = buffer(from_ms, to_ms);
    buffer
        .get_mut()
        .unwrap()
        .set_flags(gst::BufferFlags::DELTA_UNIT);
    buffer
}

impl Stream {
    /// Creates a stream. `is_live` is the liveness that its source reports.
    fn new(element: &gst::Element, is_main: bool, is_live: bool) -> Stream {
        let sink = if is_main {
            element.static_pad("sink").unwrap()
        } else {
            element.request_pad_simple("sink_%u").unwrap()
        };
        // Applications find the pad in this way.
        let src = sink.iterate_internal_links().next().unwrap().unwrap();
        let feed = gst::Pad::builder(gst::PadDirection::Src)
            .query_function(move |pad, parent, query| {
                if let gst::QueryViewMut::Latency(latency) = query.view_mut() {
                    latency.set(is_live, gst::ClockTime::ZERO, gst::ClockTime::NONE);
                    return true;
                }
                gst::Pad::query_default(pad, parent, query)
            })
            .build();
        feed.set_active(true).unwrap();
        feed.link(&sink).unwrap();
        let (drain, seen) = drain(&src);
        Stream {
            feed,
            sink,
            src,
            seen,
            segment: RefCell::default(),
            _drain: drain,
        }
    }

    fn open(&self, caps: &gst::Caps) {
        assert!(
            self.feed
                .push_event(gst::event::StreamStart::new("a-stream"))
        );
        assert!(self.feed.push_event(gst::event::Caps::new(caps)));
        self.open_segment();
    }

    fn open_segment(&self) {
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        assert!(self.feed.push_event(gst::event::Segment::new(&segment)));
    }

    /// Pushes a buffer that must not wait.
    fn push(&self, buffer: gst::Buffer) {
        let feed = self.feed.clone();
        within("a push", move || feed.push(buffer)).unwrap();
    }

    fn push_gap(&self, from_ms: u64, to_ms: u64) {
        let gap = gst::event::Gap::new(from_ms * MS, (to_ms - from_ms) * MS);
        assert!(self.feed.push_event(gap));
    }

    fn push_aside(&self, buffer: gst::Buffer) -> std::thread::JoinHandle<Pushed> {
        let feed = self.feed.clone();
        std::thread::spawn(move || feed.push(buffer))
    }

    /// Returns when the push waits.
    fn push_and_wait(&self, buffer: gst::Buffer) -> std::thread::JoinHandle<Pushed> {
        let feed = self.feed.clone();
        let thread = until_it_waits(move || feed.push(buffer));
        assert!(!thread.is_finished(), "it did not wait");
        thread
    }

    fn end(&self) -> bool {
        let feed = self.feed.clone();
        within("the end", move || feed.push_event(gst::event::Eos::new()))
    }

    fn flush(&self) {
        assert!(self.feed.push_event(gst::event::FlushStart::new()));
        assert!(self.feed.push_event(gst::event::FlushStop::new(true)));
    }

    /// Returns the output so far.
    fn out(&self) -> Vec<Out> {
        let (mut out, mut segment) = (Vec::new(), self.segment.borrow_mut());
        let is_audio = self
            .src
            .current_caps()
            .is_some_and(|caps| caps == audio_caps());
        while let Ok(seen) = self.seen.try_recv() {
            let (from, duration, mark) = match &seen {
                Seen::Buffer(buffer) => {
                    let is_discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
                    let mark = if is_discont { '!' } else { '.' };
                    (buffer.pts().unwrap(), buffer.duration(), mark)
                }
                Seen::Event(event) => match event.view() {
                    gst::EventView::Segment(new) => {
                        *segment = new.segment().downcast_ref().cloned();
                        continue;
                    }
                    gst::EventView::FlushStop(_) => {
                        *segment = None;
                        continue;
                    }
                    gst::EventView::Gap(gap) => (gap.get().0, gap.get().1, '_'),
                    _ => continue,
                },
            };
            let to = from + duration.unwrap();
            let running = segment
                .as_ref()
                .expect("no segment before data")
                .to_running_time(from);
            let [from, to] = [from, to].map(gst::ClockTime::mseconds);
            if let Seen::Buffer(buffer) = &seen
                && is_audio
            {
                assert_eq!(bytes(buffer), bytes_between(from, to), "frames and times");
            }
            out.push((running.unwrap().mseconds(), from, to, mark));
        }
        out
    }

    /// Returns the number of ends in the output.
    fn ends(&self) -> usize {
        let all: Vec<Seen> = self.seen.try_iter().collect();
        let is_end = |seen: &&Seen| matches!(seen, Seen::Event(event) if event.type_() == gst::EventType::Eos);
        all.iter().filter(is_end).count()
    }
}

type Pushed = Result<gst::FlowSuccess, gst::FlowError>;

fn joined(thread: std::thread::JoinHandle<Pushed>) -> Pushed {
    within("a push that waited", move || thread.join().unwrap())
}

impl Record {
    fn new(properties: &str, streams: usize, is_input_live: bool) -> Record {
        let record = Record::unopened(properties, streams, is_input_live);
        record.to(gst::State::Playing);
        for stream in &record.streams {
            stream.open(&audio_caps());
        }
        record
    }

    fn unopened(properties: &str, streams: usize, is_input_live: bool) -> Record {
        init();
        let element = gst::parse::launch(&format!("togglerecord {properties}")).unwrap();
        let streams = (0..streams).map(|i| Stream::new(&element, i == 0, is_input_live));
        let streams = streams.collect();
        let bus = gst::Bus::new();
        element.set_bus(Some(&bus));
        Record {
            element,
            streams,
            bus,
        }
    }

    fn to(&self, state: gst::State) {
        let element = self.element.clone();
        within("a change of state", move || element.set_state(state)).unwrap();
    }

    fn record(&self, record: bool) {
        self.element.set_property("record", record);
    }

    fn is_recording(&self) -> bool {
        self.element.property("recording")
    }

    /// Returns a test clock, which is stopped at 100 s, the base time.
    fn use_clock(&self) -> gst_check::TestClock {
        let start = 100 * gst::ClockTime::SECOND;
        let clock = gst_check::TestClock::with_start_time(start);
        self.to(gst::State::Paused);
        self.element.set_clock(Some(&clock)).unwrap();
        self.element.set_base_time(start);
        self.to(gst::State::Playing);
        clock
    }

    fn main(&self) -> &Stream {
        &self.streams[0]
    }

    fn message(&self) -> gst::Message {
        let message = self
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Element]);
        message.expect("no message")
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.element.set_bus(None);
        let element = self.element.clone();
        let stop = move || element.set_state(gst::State::Null);
        if std::thread::panicking() {
            std::thread::spawn(stop);
        } else {
            within("stopping the element", stop).unwrap();
        }
    }
}

fn kind(message: &gst::Message) -> String {
    message.structure().unwrap().name().to_string()
}

#[test]
fn properties_and_pads_stay_compatible_with_existing_pipelines() {
    assert_properties(
        "togglerecord",
        &[
            ("record", "gboolean", "false", None, true),
            ("recording", "gboolean", "false", None, false),
            ("is-live", "gboolean", "false", None, true),
            (
                "stall-timeout",
                "guint64",
                "5000000000",
                Some(("1000000", "18446744073709551614")),
                true,
            ),
        ],
    );
    let element = make("togglerecord");
    let of = |sink: &gst::Pad| {
        let src = sink.iterate_internal_links().next().unwrap().unwrap();
        let back: gst::Pad = src.iterate_internal_links().next().unwrap().unwrap();
        assert_eq!(back, *sink);
        (sink.name().to_string(), src.name().to_string())
    };
    let pair = |sink: &str, src: &str| (sink.to_owned(), src.to_owned());
    assert_eq!(
        of(&element.static_pad("sink").unwrap()),
        pair("sink", "src")
    );
    let first = element.request_pad_simple("sink_%u").unwrap();
    assert_eq!(of(&first), pair("sink_0", "src_0"));
    let named = element.request_pad_simple("sink_7").unwrap();
    assert_eq!(of(&named), pair("sink_7", "src_7"));
    let next = element.request_pad_simple("sink_%u").unwrap();
    assert_eq!(of(&next), pair("sink_8", "src_8"));
    element.release_request_pad(&first);
    assert!(element.static_pad("src_0").is_none());
    let again = element.request_pad_simple("sink_0").unwrap();
    assert_eq!(of(&again), pair("sink_0", "src_0"));
}

/// The input is live, so data that is not recorded is dropped.
#[test]
fn the_gaps_of_a_live_stream_are_collapsed_or_kept() {
    for (is_live, running) in [(false, [0, 20, 40]), (true, [20, 40, 80])] {
        let record = Record::new(&format!("is-live={is_live}"), 1, true);
        let main = record.main();
        main.push(buffer(0, 20));
        assert!(!record.is_recording());
        record.record(true);
        assert!(!record.is_recording(), "nothing has passed");
        main.push(buffer(20, 40));
        assert!(record.is_recording());
        main.push(buffer(40, 60));
        record.record(false);
        assert!(!record.is_recording());
        main.push(buffer(60, 80));
        record.record(true);
        main.push(buffer(80, 100));
        let expected = [
            (running[0], 20, 40, '!'),
            (running[1], 40, 60, '.'),
            (running[2], 80, 100, '!'),
        ];
        assert_eq!(main.out(), expected);
        let stats = ["passed", "dropped", "recordings"].map(|name| stat(&record.element, name));
        assert_eq!(stats, [3, 2, 2]);
    }
}

/// The input is not live, so it is blocked, and nothing is lost. If the output is live, it gets the data at the present time.
#[test]
fn a_file_is_held_while_it_is_not_recorded() {
    for (is_live, running) in [(false, [0, 20]), (true, [3000, 7020])] {
        let record = Record::new(&format!("is-live={is_live}"), 1, false);
        let clock = record.use_clock();
        let main = record.main();
        let held = main.push_and_wait(buffer(0, 20));
        clock.advance_time(3 * gst::ClockTime::SECOND.nseconds() as i64);
        record.record(true);
        joined(held).unwrap();
        record.record(false);
        let held = main.push_and_wait(buffer(20, 40));
        clock.advance_time(4 * gst::ClockTime::SECOND.nseconds() as i64);
        record.record(true);
        joined(held).unwrap();
        let expected = [(running[0], 0, 20, '!'), (running[1], 20, 40, '!')];
        assert_eq!(main.out(), expected);
    }
}

#[test]
fn a_coded_stream_starts_with_a_keyframe() {
    let record = Record::unopened("is-live=true", 2, true);
    record.to(gst::State::Playing);
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    main.open(&coded_caps());
    other.open(&coded_caps());
    record.record(true);
    main.push(delta(0, 20));
    main.push(buffer(20, 40));
    main.push(delta(40, 60));
    assert_eq!(main.out(), [(20, 20, 40, '!'), (40, 40, 60, '.')]);
    // The other stream passes completely, from its own keyframe on.
    other.push(buffer(10, 25));
    other.push(delta(25, 35));
    other.push(buffer(35, 55));
    record.record(false);
    other.push(delta(55, 75));
    main.push(buffer(60, 100));
    other.push(delta(75, 95));
    assert_eq!(other.out(), [(35, 35, 55, '!'), (55, 55, 75, '.')]);
}

#[test]
fn a_start_and_a_stop_request_a_keyframe_of_the_main_stream() {
    let record = Record::unopened("", 1, true);
    let main = record.main();
    let (send, requests) = channel();
    let send = Mutex::new(send);
    main.feed
        .add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
            let event = info.event().unwrap();
            if event.has_name("GstForceKeyUnit") {
                send.lock().unwrap().send(()).unwrap();
            }
            gst::PadProbeReturn::Handled
        });
    record.to(gst::State::Playing);
    main.open(&coded_caps());
    main.push(delta(0, 20));
    assert!(requests.try_recv().is_err());
    record.record(true);
    main.push(delta(20, 40));
    main.push(delta(40, 60));
    assert_eq!(requests.try_iter().count(), 1);
    main.push(buffer(60, 80));
    record.record(false);
    main.push(delta(80, 100));
    main.push(delta(100, 120));
    assert_eq!(requests.try_iter().count(), 1);
    main.push(buffer(120, 140));
    main.push(delta(140, 160));
    assert_eq!(requests.try_iter().count(), 0);
    let passed: Vec<_> = main.out().iter().map(|out| out.1).collect();
    assert_eq!(passed, [60, 80, 100]);
}

/// A frame of audio is 1 ms; the recording starts and ends between two of them.
#[test]
fn no_audio_begins_before_its_segment() {
    let ns = gst::ClockTime::NSECOND;
    // The columns are: nanoseconds after a frame; the first frame that is recorded; and the frame after the last recorded one.
    for (after, first, end) in [(0, 5, 25), (1, 5, 25), (400_000, 6, 26), (600_000, 6, 26)] {
        let record = Record::new("", 2, true);
        let [main, other] = &record.streams[..] else {
            unreachable!()
        };
        record.record(true);
        let mut long = buffer(0, 20);
        let inner = long.get_mut().unwrap();
        inner.set_pts(5 * MS + after * ns);
        main.push(long);
        record.record(false);
        main.push(buffer(26, 46));
        other.push(buffer(0, 15));
        other.push(buffer(15, 30));
        let (mut frames, mut segment) = (Vec::new(), None);
        for seen in other.seen.try_iter() {
            match seen {
                Seen::Event(event) => {
                    if let gst::EventView::Segment(new) = event.view() {
                        segment = new.segment().downcast_ref::<gst::ClockTime>().cloned();
                    }
                }
                Seen::Buffer(buffer) => {
                    let segment = segment.as_ref().unwrap();
                    let running = segment.to_running_time(buffer.pts());
                    assert!(running.is_some(), "{after}: before the segment");
                    frames.extend(bytes(&buffer));
                }
            }
        }
        assert_eq!(frames, bytes_between(first, end), "{after}");
    }
}

#[test]
fn another_stream_waits_for_the_main_one_and_is_cut_to_the_frame() {
    let record = Record::new("is-live=true", 2, true);
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    record.record(true);
    let ahead = other.push_and_wait(buffer(3, 23));
    main.push(buffer(10, 40));
    joined(ahead).unwrap();
    other.push(buffer(23, 33));
    let beyond = other.push_and_wait(buffer(33, 53));
    record.record(false);
    main.push(buffer(40, 80));
    joined(beyond).unwrap();
    other.push(buffer(53, 73));
    assert!(!record.is_recording());
    record.record(true);
    main.push(buffer(80, 90));
    other.push(buffer(73, 83));
    let last = other.out();
    assert_eq!(last.last(), Some(&(80, 80, 83, '!')));
    assert_eq!(stat(&record.element, "passed"), 2 + 4);
}

/// The main stream passes from 100 to 200 ms and from 300 to 400 ms. All streams have separate threads, which run in any order.
/// Each stream is cut at exactly these times.
#[test]
fn any_number_of_streams_start_and_stop_at_the_same_time() {
    for count in 1..=5 {
        let record = Record::new("", count, true);
        let others: Vec<_> = record.streams[1..]
            .iter()
            .zip([7, 13, 20, 33])
            .map(|(stream, length)| {
                let feed = stream.feed.clone();
                std::thread::spawn(move || {
                    let begins = (0..500u64).step_by(length);
                    begins.into_iter().try_for_each(|begin| {
                        feed.push(buffer(begin, (begin + length as u64).min(500)))
                            .map(|_| ())
                    })
                })
            })
            .collect();
        for begin in (0..600u64).step_by(10) {
            record.record((100..200).contains(&begin) || (300..400).contains(&begin));
            record.main().push(buffer(begin, begin + 10));
        }
        for thread in others {
            within("a stream", move || thread.join().unwrap()).unwrap();
        }
        for stream in &record.streams {
            let out = stream.out();
            // With collapsed gaps, the output has 200 ms without a gap, from 0 on.
            let mut end = 0;
            for (running, from, to, _) in &out {
                assert_eq!(*running, end, "{out:?}");
                end += to - from;
            }
            assert_eq!(end, 200, "{out:?}");
            let starts: Vec<u64> = out.iter().filter(|o| o.3 == '!').map(|o| o.1).collect();
            assert_eq!(starts, [100, 300]);
        }
    }
}

#[test]
fn gap_events_count_as_data() {
    let record = Record::new("is-live=true", 2, true);
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    record.record(true);
    main.push_gap(10, 40);
    assert!(record.is_recording());
    main.push(buffer(40, 60));
    other.push_gap(0, 30);
    other.push(buffer(30, 40));
    record.record(false);
    main.push_gap(60, 100);
    other.push_gap(40, 80);
    assert_eq!(main.out(), [(10, 10, 40, '_'), (40, 40, 60, '!')]);
    let expected = [(10, 10, 30, '_'), (30, 30, 40, '!'), (40, 40, 60, '_')];
    assert_eq!(other.out(), expected);
}

/// Three streams end at 40 ms each, in every order. An end of the main stream ends the other streams. Each end is reported once.
#[test]
fn streams_end_in_any_order() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        for is_recorded in [true, false] {
            let record = Record::new("", 3, true);
            record.record(is_recorded);
            for stream in &record.streams {
                stream.push(buffer(0, 40));
            }
            let mut has_main_ended = false;
            for of in order {
                if has_main_ended {
                    let refused = record.streams[of].feed.push(buffer(40, 60));
                    assert_eq!(refused, Err(gst::FlowError::Eos), "{order:?}");
                }
                record.streams[of].end();
                has_main_ended |= of == 0;
            }
            for stream in &record.streams {
                assert_eq!(stream.ends(), 1, "{order:?}");
            }
            assert!(!record.is_recording());
        }
    }
}

/// The end of the main stream stops the recording, but a stream that is behind still gets as far as that end first.
#[test]
fn end_of_the_main_stream_stops_the_recording() {
    let record = Record::new("", 3, true);
    let [main, behind, ahead] = &record.streams[..] else {
        unreachable!()
    };
    record.record(true);
    main.push(buffer(0, 40));
    ahead.push(buffer(0, 30));
    behind.push(buffer(0, 20));
    let waits = ahead.push_and_wait(buffer(30, 50));
    main.end();
    assert_eq!(joined(waits), Err(gst::FlowError::Eos));
    assert_eq!(ahead.out(), [(0, 0, 30, '!'), (30, 30, 40, '.')]);
    behind.push(buffer(20, 30));
    assert!(record.is_recording());
    assert_eq!(behind.feed.push(buffer(30, 50)), Err(gst::FlowError::Eos));
    let expected = [(0, 0, 20, '!'), (20, 20, 30, '.'), (30, 30, 40, '.')];
    assert_eq!(behind.out(), expected);
    assert!(!record.is_recording());
    // Another stream starts.
    for stream in &record.streams {
        stream.open(&audio_caps());
    }
    main.push(buffer(50, 70));
    behind.push(buffer(50, 70));
    assert_eq!(behind.out(), [(40, 50, 70, '!')]);
}

#[test]
fn flush_releases_waiting_pushes_and_restarts() {
    let record = Record::new("", 2, false);
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    let held = main.push_and_wait(buffer(100, 120));
    let waits = other.push_and_wait(buffer(100, 120));
    main.flush();
    assert_eq!(joined(held), Err(gst::FlowError::Flushing));
    other.flush();
    assert_eq!(joined(waits), Err(gst::FlowError::Flushing));
    record.record(true);
    for stream in &record.streams {
        stream.open_segment();
    }
    main.push(buffer(0, 40));
    other.push(buffer(0, 20));
    assert!(record.is_recording());
    main.flush();
    assert!(!record.is_recording(), "it begins with the next buffer");
    other.flush();
    for stream in &record.streams {
        stream.open_segment();
        stream.push(buffer(10, 30));
    }
    let expected = [(0, 0, 40, '!'), (10, 10, 30, '!')];
    assert_eq!(main.out(), expected);
    assert_eq!(other.out(), [(0, 0, 20, '!'), (10, 10, 30, '!')]);
}

/// The time is that of the main stream's source, whose clock the test sets.
#[test]
fn a_stalled_main_stream_is_reported_and_blocks_no_other_stream() {
    let record = Record::new("is-live=true stall-timeout=1000000000", 2, true);
    let clock = record.use_clock();
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    record.record(true);
    main.push(buffer(0, 20));
    let waits = other.push_and_wait(buffer(10, 40));
    clock.wait_for_next_pending_id();
    let due = 101 * gst::ClockTime::SECOND;
    assert_eq!(clock.next_entry_time(), Some(due));
    clock.set_time(due - gst::ClockTime::NSECOND);
    assert!(!waits.is_finished());
    assert!(clock.crank());
    joined(waits).unwrap();
    let message = record.message();
    assert_eq!(kind(&message), "togglerecord-stalled");
    let running: u64 = message.structure().unwrap().get("running-time").unwrap();
    assert_eq!(running, gst::ClockTime::SECOND.nseconds());
    other.push(buffer(40, 60));
    let expected = [(10, 10, 40, '!'), (40, 40, 60, '.')];
    assert_eq!(other.out(), expected);
    main.push(buffer(60, 80));
    assert_eq!(kind(&record.message()), "togglerecord-resumed");
    assert_eq!(stat(&record.element, "stalls"), 1);
}

/// No stall is reported while a file is blocked on purpose.
#[test]
fn file_pause_is_not_a_stall() {
    let record = Record::new("stall-timeout=1000000000", 2, false);
    let clock = record.use_clock();
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    let waits = other.push_and_wait(buffer(0, 20));
    let held = main.push_and_wait(buffer(0, 20));
    clock.advance_time(3600 * gst::ClockTime::SECOND.nseconds() as i64);
    record.record(true);
    joined(held).unwrap();
    joined(waits).unwrap();
    assert_eq!(other.out(), [(0, 0, 20, '!')]);
    assert_eq!(stat(&record.element, "stalls"), 0);
}

#[test]
fn recording_end_is_reported_after_its_last_buffer() {
    let record = Record::new("", 1, true);
    record.record(true);
    let gate = gate(&record.main().src);
    let pushed = record.main().push_aside(buffer(0, 20));
    gate.wait_held();
    record.record(false);
    assert!(record.is_recording(), "its buffer is on the way");
    let (send, told) = channel();
    let send = Mutex::new(send);
    record
        .element
        .connect_notify(Some("recording"), move |element, _| {
            let _ = send
                .lock()
                .unwrap()
                .send(element.property::<bool>("recording"));
        });
    gate.open();
    joined(pushed).unwrap();
    assert_eq!(told.recv_timeout(DEADLINE), Ok(false));
}

/// Twenty times, a stream joins while the others play, and is recorded with them. Then it leaves, which releases its source.
#[test]
fn streams_join_and_leave_while_it_plays() {
    let record = Record::new("", 2, true);
    record.record(true);
    let mut end = 0;
    for _ in 0..20 {
        let joined_stream = Stream::new(&record.element, false, true);
        joined_stream.open(&audio_caps());
        for stream in &record.streams {
            stream.push(buffer(end, end + 20));
        }
        joined_stream.push(buffer(end, end + 20));
        let waits = joined_stream.push_and_wait(buffer(end + 20, end + 40));
        assert_eq!(joined_stream.out(), [(end, end, end + 20, '!')]);
        record.element.release_request_pad(&joined_stream.sink);
        assert_eq!(joined(waits), Err(gst::FlowError::Flushing));
        end += 20;
    }
    let names: Vec<_> = record.element.pads().iter().map(|pad| pad.name()).collect();
    assert_eq!(names, ["sink", "src", "src_0", "sink_0"]);
    assert_eq!(record.streams[1].out().len(), 20);
}

#[test]
fn no_stream_waits_for_an_unlinked_stream() {
    let record = Record::new("", 2, true);
    let [main, other] = &record.streams[..] else {
        unreachable!()
    };
    record.record(true);
    main.push(buffer(0, 40));
    other.push(buffer(0, 10));
    record.record(false);
    assert!(record.is_recording());
    other.feed.unlink(&other.sink).unwrap();
    assert!(!record.is_recording());
    // A source that waits in that stream stops waiting when it is unlinked.
    other.feed.link(&other.sink).unwrap();
    other.open(&audio_caps());
    let waits = other.push_and_wait(buffer(50, 60));
    other.feed.unlink(&other.sink).unwrap();
    assert_eq!(joined(waits), Err(gst::FlowError::Flushing));
}

#[test]
fn all_states_change_while_streams_wait() {
    let record = Record::unopened("", 3, false);
    for state in [gst::State::Ready, gst::State::Null, gst::State::Ready] {
        record.to(state);
    }
    for state in [
        gst::State::Paused,
        gst::State::Playing,
        gst::State::Paused,
        gst::State::Playing,
    ] {
        record.to(state);
        for stream in &record.streams {
            stream.feed.set_active(true).unwrap();
            stream.open(&audio_caps());
        }
        let waits: Vec<_> = (record.streams.iter())
            .map(|stream| stream.push_and_wait(buffer(0, 20)))
            .collect();
        record.to(gst::State::Ready);
        for thread in waits {
            assert_eq!(joined(thread), Err(gst::FlowError::Flushing));
        }
    }
    record.to(gst::State::Playing);
    record.record(true);
    for stream in &record.streams {
        stream.open(&audio_caps());
        stream.push(buffer(0, 20));
    }
    for stream in &record.streams {
        assert_eq!(stream.out(), [(0, 0, 20, '!')]);
    }
    record.to(gst::State::Null);
    assert!(!record.is_recording());
}

/// Downstream's times are shifted, so its QoS reports are shifted back. A live output reports its latency.
#[test]
fn qos_times_and_latency_are_converted_for_the_other_pad() {
    let record = Record::new("", 1, true);
    let main = record.main();
    main.push(buffer(0, 30));
    record.record(true);
    main.push(buffer(30, 50));
    let (send, reports) = channel();
    main.feed
        .add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
            if let Some(gst::PadProbeData::Event(event)) = &info.data
                && let gst::EventView::Qos(qos) = event.view()
            {
                let _ = send.send(qos.get().3);
            }
            gst::PadProbeReturn::Ok
        });
    let late = gst::event::Qos::builder(gst::QOSType::Underflow, 1.5, 5).timestamp(10 * MS);
    main.src.send_event(late.build());
    assert_eq!(reports.recv_timeout(DEADLINE), Ok(Some(40 * MS)));

    for is_live in [false, true] {
        let record = Record::new(&format!("is-live={is_live}"), 1, false);
        let mut query = gst::query::Latency::new();
        assert!(record.main().src.query(&mut query));
        assert_eq!(query.result().0, is_live);
    }
}

#[test]
fn a_stream_without_times_is_refused() {
    let record = Record::new("", 1, true);
    let segment = gst::FormattedSegment::<gst::format::Bytes>::new();
    let main = record.main();
    main.feed.push_event(gst::event::Segment::new(&segment));
    let error = record
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Error]);
    assert!(text(&error.unwrap()).contains("expected a segment in time"));
}

/// A buffer's memory is freed by its owner, which may read the element's properties.
#[test]
fn a_dropped_buffer_may_call_the_element() {
    let record = Record::new("", 1, true);
    let (dropped, told) = channel();
    let mut calls_back = gst::Buffer::from_slice(CallsBack {
        element: record.element.downgrade(),
        dropped,
        data: vec![0; 20],
    });
    let inner = calls_back.get_mut().unwrap();
    inner.set_pts(gst::ClockTime::ZERO);
    inner.set_duration(20 * MS);
    record.main().push(calls_back);
    told.recv_timeout(DEADLINE).unwrap();
}

/// Waits for this value of the property.
fn await_recording(element: &gst::Element, is_recording: bool) {
    eventually("recording", || {
        element.property::<bool>("recording") == is_recording
    });
}

/// Two live streams and a third element run on one shared thread, or each on its own. No element blocks another.
#[test]
fn shared_and_own_threads_record_alike() {
    let name = context();
    for (first, second) in [
        (
            format!("ts-audiotestsrc context={name}"),
            format!("ts-audiotestsrc context={name}"),
        ),
        (
            "audiotestsrc is-live=true".to_owned(),
            "audiotestsrc is-live=true".to_owned(),
        ),
        (
            format!("ts-audiotestsrc context={name}"),
            "audiotestsrc is-live=true".to_owned(),
        ),
    ] {
        let caps = "audio/x-raw,rate=8000,channels=1";
        let pipe = Pipe::parse(&format!(
            "togglerecord name=r {first} name=a ! {caps} ! r.sink {second} name=b ! {caps} ! r.sink_0 \
             r.src ! fakesink name=main async=false sync=false r.src_0 ! fakesink name=other async=false sync=false"
        ));
        let [main, other] = ["main", "other"].map(|name| watch(&pipe.pad(name, "sink")));
        pipe.play();
        let element = pipe.get("r");
        for _ in 0..3 {
            element.set_property("record", true);
            next_buffer(&main);
            next_buffer(&other);
            await_recording(&element, true);
            element.set_property("record", false);
            await_recording(&element, false);
            // All data has arrived once the end is reported: both are equally long.
            for seen in [&main, &other] {
                while seen.try_recv().is_ok() {}
            }
        }
        pipe.assert_no_error();
    }
}

/// Sources that are not live are blocked on a shared thread, and another pipeline on the thread continues.
#[test]
fn a_held_stream_on_a_shared_thread_blocks_no_other_stream() {
    let name = context();
    let source = format!("ts-audiotestsrc is-live=false num-buffers=10 context={name}");
    let pipe = Pipe::parse(&format!(
        "togglerecord name=r {source} ! r.sink {source} ! r.sink_0 \
         r.src ! fakesink name=main async=false sync=false r.src_0 ! fakesink name=other async=false sync=false"
    ));
    let [main, other] = ["main", "other"].map(|name| watch(&pipe.pad(name, "sink")));
    pipe.play();
    let free = Pipe::parse(&format!(
        "ts-audiotestsrc context={name} samples-per-buffer=80 ! audio/x-raw,rate=8000,channels=1 ! fakesink name=out async=false sync=false"
    ));
    let out = watch(&free.pad("out", "sink"));
    free.play();
    for _ in 0..5 {
        next_buffer(&out);
    }
    for seen in [&main, &other] {
        assert_eq!(buffers(seen).count(), 0);
    }
    pipe.get("r").set_property("record", true);
    pipe.expect(gst::MessageType::Eos);
    for seen in [&main, &other] {
        assert_eq!(buffers(seen).count(), 10);
    }
}

/// The main stream never starts. The other stream is on a shared thread.
#[test]
fn a_stall_is_detected_on_a_shared_thread() {
    let pipe = Pipe::parse(&format!(
        "togglerecord name=r record=true stall-timeout=20000000 r.src ! fakesink async=false \
         ts-audiotestsrc context={} ! r.sink_0 r.src_0 ! fakesink name=other async=false sync=false",
        context()
    ));
    pipe.play();
    let message = pipe.expect(gst::MessageType::Element);
    assert_eq!(kind(&message), "togglerecord-stalled");
}

/// The streams have long and short buffers, without a queue between the threads of a source and a sink. Neither the preroll nor a
/// muxer may cause a deadlock, and no stall timeout resolves one.
#[test]
fn streams_do_not_deadlock_without_queues() {
    let record = format!(
        "togglerecord name=r record=true stall-timeout={}",
        u64::MAX - 1
    );
    let audio = |buffers: u32, samples: u32| {
        format!(
            "audiotestsrc num-buffers={buffers} samplesperbuffer={samples} ! audio/x-raw,rate=8000,channels=1"
        )
    };
    let pictures = "videotestsrc num-buffers=2 ! video/x-raw,width=16,height=16,framerate=2/1";
    let pipe = Pipe::parse(&format!(
        "{record} {} ! r.sink {} ! r.sink_0 {pictures} ! r.sink_1 \
         r.src ! fakesink r.src_0 ! fakesink name=long r.src_1 ! fakesink name=pictures",
        audio(100, 80),
        audio(2, 4000),
    ));
    let [long, shown] = ["long", "pictures"].map(|name| watch(&pipe.pad(name, "sink")));
    pipe.to(gst::State::Paused);
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    let heard: usize = buffers(&long).map(|buffer| buffer.size()).sum();
    assert_eq!(heard, 2 * 4000 * 2, "bytes of 1 s");
    assert_eq!(buffers(&shown).count(), 2);

    let pipe = Pipe::parse(&format!(
        "{record} {pictures} ! r.sink {} ! r.sink_0 r.src ! mux. r.src_0 ! mux. matroskamux name=mux ! fakesink",
        audio(10, 800),
    ));
    pipe.to(gst::State::Paused);
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
}

/// The encoder is live. Each recording starts with a keyframe, and the audio starts at the same time.
#[test]
fn recordings_of_an_encoder_begin_with_its_keyframes() {
    let pipe = Pipe::parse(
        "togglerecord name=r is-live=true \
         videotestsrc is-live=true ! video/x-raw,width=16,height=16,framerate=100/1 ! vp8enc deadline=1 keyframe-max-dist=5 ! r.sink \
         audiotestsrc is-live=true samplesperbuffer=80 ! audio/x-raw,rate=8000,channels=1 ! r.sink_0 \
         r.src ! fakesink name=main async=false sync=false r.src_0 ! fakesink name=other async=false sync=false",
    );
    let [main, other] = ["main", "other"].map(|name| watch(&pipe.pad(name, "sink")));
    let [pictures, sound] = ["sink", "sink_0"].map(|name| watch(&pipe.pad("r", name)));
    pipe.play();
    // Sources start at different times.
    let begin = next_buffer(&sound).pts();
    while next_buffer(&pictures).pts() < begin {}
    let element = pipe.get("r");
    for _ in 0..3 {
        element.set_property("record", true);
        let picture = next_buffer(&main);
        assert!(!picture.flags().contains(gst::BufferFlags::DELTA_UNIT));
        let sound = next_buffer(&other);
        for first in [&picture, &sound] {
            assert!(first.flags().contains(gst::BufferFlags::DISCONT));
        }
        // The times are equal within a frame of 1/8000 s.
        let apart = picture.pts().unwrap().absdiff(sound.pts().unwrap());
        assert!(apart < 125 * gst::ClockTime::USECOND, "{apart}");
        next_buffer(&main);
        element.set_property("record", false);
        await_recording(&element, false);
        for seen in [&main, &other] {
            while seen.try_recv().is_ok() {}
        }
    }
    pipe.assert_no_error();
}

fn buffers(seen: &Receiver<Seen>) -> impl Iterator<Item = gst::Buffer> {
    seen.try_iter().filter_map(|seen| match seen {
        Seen::Buffer(buffer) => Some(buffer),
        Seen::Event(_) => None,
    })
}

/// On a shared thread, a pipeline is stopped while its streams are blocked. It restarts without old data.
#[test]
fn held_streams_of_a_shared_thread_stop_and_start_again() {
    let source = format!(
        "ts-audiotestsrc is-live=false num-buffers=10 context={}",
        context()
    );
    let pipe = Pipe::parse(&format!(
        "togglerecord name=r {source} ! r.sink {source} ! r.sink_0 \
         r.src ! fakesink name=main async=false sync=false r.src_0 ! fakesink name=other async=false sync=false"
    ));
    let [main, other] = ["main", "other"].map(|name| watch(&pipe.pad(name, "sink")));
    for state in [
        gst::State::Paused,
        gst::State::Ready,
        gst::State::Playing,
        gst::State::Paused,
        gst::State::Playing,
        gst::State::Null,
        gst::State::Playing,
    ] {
        pipe.to(state);
    }
    for seen in [&main, &other] {
        assert_eq!(buffers(seen).count(), 0);
    }
    pipe.get("r").set_property("record", true);
    pipe.expect(gst::MessageType::Eos);
    for seen in [&main, &other] {
        let first: Vec<_> = buffers(seen).map(|buffer| buffer.pts()).collect();
        assert_eq!((first.len(), first[0]), (10, Some(gst::ClockTime::ZERO)));
    }
}

/// A file with two streams is recorded in part; then the pipeline seeks.
#[test]
fn a_seek_begins_another_recording() {
    let source = "audiotestsrc samplesperbuffer=800 ! audio/x-raw,rate=8000,channels=1";
    let pipe = Pipe::parse(&format!(
        "togglerecord name=r record=true {source} ! r.sink {source} ! r.sink_0 \
         r.src ! fakesink name=main sync=true r.src_0 ! fakesink name=other sync=true"
    ));
    let [main, other] = ["main", "other"].map(|name| watch(&pipe.pad(name, "sink")));
    pipe.to(gst::State::Paused);
    pipe.0
        .seek_simple(
            gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE,
            10 * gst::ClockTime::SECOND,
        )
        .unwrap();
    pipe.to(gst::State::Paused);
    for seen in [&main, &other] {
        next_event(seen, gst::EventType::FlushStop);
        let first = next_buffer(seen);
        assert_eq!(first.pts(), Some(10 * gst::ClockTime::SECOND));
        assert!(first.flags().contains(gst::BufferFlags::DISCONT));
    }
    pipe.to(gst::State::Playing);
    pipe.assert_no_error();
}

/// Threads push, and the application sets `record`, reads, flushes and releases, all at the same time.
#[test]
fn concurrent_calls_do_not_hang() {
    let record = Record::new("", 3, true);
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let threads: Vec<_> = (record.streams.iter())
        .map(|stream| {
            let (feed, is_over) = (stream.feed.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut begin = 0;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = feed.push(buffer(begin, begin + 7));
                    begin += 7;
                }
            })
        })
        .collect();
    for i in 0..300 {
        record.record(i % 2 == 0);
        let _ = (record.is_recording(), stat(&record.element, "passed"));
        if i % 10 == 0 {
            let stream = Stream::new(&record.element, false, true);
            stream.open(&audio_caps());
            record.element.release_request_pad(&stream.sink);
        }
        if i % 50 == 49 {
            record.to(gst::State::Paused);
            record.to(gst::State::Playing);
        }
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    // This releases the streams that wait for the main stream.
    record.main().end();
    within("the streams", move || {
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap())
    });
}
