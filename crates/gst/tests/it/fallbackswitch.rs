//! `fallbackswitch`: passes the best of several streams, and another one while it fails; on a test clock, except for whole
//! pipelines.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;
use gst_check::TestClock;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;
const RATE: u64 = 8000;
/// 20 ms in frames.
const FRAMES: u64 = 160;

/// A switch with the test's own inputs, playing on a clock that is stopped at 0.
struct Switch {
    rig: Rig,
    inputs: Vec<Input>,
    clock: TestClock,
}

struct Input {
    feed: gst::Pad,
    sink: gst::Pad,
    /// Upstream events.
    events: Receiver<gst::Event>,
    /// Answer to latency queries: whether live, minimum, maximum.
    latency: Arc<Mutex<Option<Latency>>>,
}

type Latency = (bool, gst::ClockTime, Option<gst::ClockTime>);

const AUDIO: &str = "audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved";
const VIDEO: &str = "video/x-raw,format=GRAY8,width=1,height=1,framerate=50/1";
const CODED: &str = "video/x-test";
/// Settings that the existing element does not have.
const OWN: &str = "switch-on-eos=true seamless=true sync=false";

impl Switch {
    fn new(properties: &str, inputs: usize, caps: &str) -> Switch {
        let switch = Switch::paused(properties, inputs, caps);
        switch.rig.to(gst::State::Playing);
        switch
    }

    fn paused(properties: &str, inputs: usize, caps: &str) -> Switch {
        Switch::of(&format!("{OWN} {properties}"), inputs, caps)
    }

    /// Returns a switch with the defaults of the existing element, playing.
    fn plain(properties: &str, inputs: usize, caps: &str) -> Switch {
        let switch = Switch::of(properties, inputs, caps);
        switch.rig.to(gst::State::Playing);
        switch
    }

    fn of(properties: &str, inputs: usize, caps: &str) -> Switch {
        let context = context();
        let line = format!("fallbackswitch context={context} {properties}");
        let rig = Rig::without_stream(&line, gst::State::Null);
        let clock = TestClock::new();
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element.set_base_time(gst::ClockTime::ZERO);
        let inputs = (0..inputs).map(|_| Input::new(&rig.element)).collect();
        let switch = Switch { rig, inputs, clock };
        switch.rig.to(gst::State::Paused);
        for (i, input) in switch.inputs.iter().enumerate() {
            input.open(i, caps);
        }
        switch
    }

    /// Advances the clock; everything that waits for the time, or starts waiting for an earlier one, continues.
    fn set_ms(&self, ms: u64) {
        self.clock.set_time(ms * MS);
        self.go_on();
    }

    fn go_on(&self) {
        while self.clock.process_next_clock_id().is_some() {}
    }

    /// Waits until `condition` holds, without moving the clock.
    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        eventually(what, || {
            self.go_on();
            condition()
        });
    }

    /// Returns the next switch: from, to, and why.
    fn switch(&self) -> (Option<String>, String, String) {
        let mut found = None;
        self.until("a switch", || {
            found = self.rig.bus.pop_filtered(&[gst::MessageType::Element]);
            found.is_some()
        });
        let message = found.unwrap();
        let details = message.structure().unwrap();
        assert_eq!(details.name(), "fallback-switch");
        (
            details.get("from").unwrap(),
            details.get("to").unwrap(),
            details.get("reason").unwrap(),
        )
    }

    fn expect_switch(&self, from: usize, to: usize, reason: &str) {
        let expected = (
            Some(format!("sink_{from}")),
            format!("sink_{to}"),
            reason.to_owned(),
        );
        assert_eq!(self.switch(), expected);
    }

    fn assert_no_switch(&self) {
        let message = self.rig.bus.pop_filtered(&[gst::MessageType::Element]);
        assert!(message.is_none(), "{message:?}");
    }

    /// Input 0 has started, and input 1 is healthy; the time is 0.
    fn begin(&self) {
        self.inputs[0].push_ms(0).unwrap();
        self.inputs[1].push_ms(0).unwrap();
        assert_eq!(self.switch(), (None, "sink_0".into(), "start".into()));
        assert_eq!(pts_ms(&self.rig.buffer()), 0);
    }

    fn active(&self) -> Option<gst::Pad> {
        self.rig.element.property("active-pad")
    }

    fn stat(&self, field: &str) -> u64 {
        stat(&self.rig.element, field)
    }

    fn send_upstream(&self, event: gst::Event) -> bool {
        self.rig.drain.push_event(event)
    }
}

impl Input {
    fn new(element: &gst::Element) -> Input {
        let sink = element.request_pad_simple("sink_%u").unwrap();
        let (send, events) = channel();
        let latency = Arc::new(Mutex::new(None::<Latency>));
        let answer = latency.clone();
        let feed = gst::Pad::builder(gst::PadDirection::Src)
            .event_function(move |_, _, event| {
                let _ = send.send(event);
                true
            })
            .query_function(move |pad, parent, query| {
                if let gst::QueryViewMut::Latency(query) = query.view_mut() {
                    let latency = *answer.lock().unwrap();
                    return latency
                        .map(|(live, min, max)| query.set(live, min, max))
                        .is_some();
                }
                gst::Pad::query_default(pad, parent, query)
            })
            .build();
        feed.set_active(true).unwrap();
        feed.link(&sink).unwrap();
        Input {
            feed,
            sink,
            events,
            latency,
        }
    }

    fn open(&self, n: usize, caps: &str) {
        assert!(
            self.feed
                .push_event(gst::event::StreamStart::new(&format!("stream-{n}")))
        );
        let mut caps: gst::Caps = caps.parse().unwrap();
        // Distinguishes the streams.
        caps.make_mut().set("n", n as i32);
        assert!(self.feed.push_event(gst::event::Caps::new(&caps)));
        self.open_segment(0);
    }

    /// `start_ms`: the time of running time 0.
    fn open_segment(&self, start_ms: u64) {
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_start(start_ms * MS);
        assert!(self.feed.push_event(gst::event::Segment::new(&segment)));
    }

    fn push(&self, buffer: gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let feed = self.feed.clone();
        within("a push", move || feed.push(buffer))
    }

    /// Pushes 20 ms of data from this time on.
    fn push_ms(&self, begin_ms: u64) -> Result<gst::FlowSuccess, gst::FlowError> {
        self.push(audio(begin_ms * MS))
    }

    /// Pushes on another thread, because the push may wait.
    fn push_aside(
        &self,
        buffer: gst::Buffer,
    ) -> Receiver<Result<gst::FlowSuccess, gst::FlowError>> {
        let (send, result) = channel();
        let feed = self.feed.clone();
        std::thread::spawn(move || send.send(feed.push(buffer)));
        result
    }

    fn is_healthy(&self) -> bool {
        self.sink.property("is-healthy")
    }

    /// Types of the upstream events so far.
    fn kinds(&self) -> Vec<gst::EventType> {
        let kinds = self.events.try_iter().map(|event| event.type_());
        // Omits a request for new caps, which comes with each link.
        kinds
            .filter(|kind| *kind != gst::EventType::Reconfigure)
            .collect()
    }

    fn keyframes_asked(&self) -> usize {
        let events = self.events.try_iter();
        let is_asked = |event: &gst::Event| {
            event
                .structure()
                .is_some_and(|details| details.name() == "GstForceKeyUnit")
        };
        events.filter(is_asked).count()
    }
}

/// 20 ms of audio whose samples give the frame of the running time, modulo 2^15.
fn audio(pts: gst::ClockTime) -> gst::Buffer {
    audio_in_segment(pts, gst::ClockTime::ZERO)
}

/// Returns the same from a running time on, in a segment that starts at `start`.
fn audio_in_segment(running: gst::ClockTime, start: gst::ClockTime) -> gst::Buffer {
    let pts = start + running;
    let first = running.nseconds() * RATE / 1_000_000_000;
    let samples = (first..first + FRAMES).flat_map(|n| ((n & 0x7fff) as i16).to_le_bytes());
    let mut buffer = gst::Buffer::from_slice(samples.collect::<Vec<_>>());
    let inner = buffer.get_mut().unwrap();
    inner.set_pts(pts);
    inner.set_duration(20 * MS);
    buffer
}

fn samples(buffer: &gst::BufferRef) -> Vec<i16> {
    samples_in(&bytes(buffer))
}

fn samples_in(bytes: &[u8]) -> Vec<i16> {
    let pairs = bytes.chunks_exact(2);
    pairs
        .map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
        .collect()
}

fn unit(pts_ms: u64, is_delta: bool) -> gst::Buffer {
    let mut buffer = audio(pts_ms * MS);
    if is_delta {
        let inner = buffer.get_mut().unwrap();
        inner.set_flags(gst::BufferFlags::DELTA_UNIT);
    }
    buffer
}

fn pts_ms(buffer: &gst::BufferRef) -> u64 {
    buffer.pts().unwrap().mseconds()
}

/// Returns the stream number downstream has received up to the next buffer, and that buffer.
fn stream_before(seen: &Receiver<Seen>) -> (Option<i32>, gst::Buffer) {
    let mut n = None;
    loop {
        match seen.recv_timeout(DEADLINE).expect("no buffer came") {
            Seen::Buffer(buffer) => return (n, buffer),
            Seen::Event(event) => {
                if let gst::EventView::Caps(caps) = event.view() {
                    n = caps.caps().structure(0).unwrap().get("n").ok();
                }
            }
        }
    }
}

type Pushed = Receiver<Result<gst::FlowSuccess, gst::FlowError>>;

fn result_of(pushed: &Pushed) -> Result<gst::FlowSuccess, gst::FlowError> {
    pushed.recv_timeout(DEADLINE).expect("the push hangs")
}

// ---- interface

#[test]
fn properties_and_pads_stay_compatible_with_existing_pipelines() {
    let times = Some(("0", "18446744073709551614"));
    let own: &[Row] = &[
        ("active-pad", "GstPad", "NULL", None, true),
        ("timeout", "guint64", "1000000000", times, true),
        ("latency", "guint64", "0", times, true),
        ("min-upstream-latency", "guint64", "0", times, true),
        ("immediate-fallback", "gboolean", "false", None, true),
        ("auto-switch", "gboolean", "true", None, true),
        ("stop-on-eos", "gboolean", "false", None, true),
        ("switch-on-eos", "gboolean", "false", None, true),
        ("seamless", "gboolean", "false", None, true),
        ("sync", "gboolean", "true", None, true),
        ("min-hold", "guint64", "0", times, true),
        ("recover-after", "guint64", "0", times, true),
        ("partner", "ThreadbareFallbackSwitch", "NULL", None, true),
    ];
    assert_properties("fallbackswitch", &[CONTEXT_ROWS, own].concat());
    let element = make("fallbackswitch");
    let request = |name: &str| element.request_pad_simple(name).unwrap();
    let pads = ["sink_%u", "sink_7", "sink_%u"].map(request);
    assert_eq!(
        pads.each_ref()
            .map(|pad| (pad.name().to_string(), pad.property::<u32>("priority"))),
        [
            ("sink_0".into(), 0),
            ("sink_7".into(), 7),
            ("sink_8".into(), 8)
        ]
    );
    assert!(!pads[0].property::<bool>("is-healthy"));
    pads[0].set_property("priority", 9u32);
    assert_eq!(pads[0].property::<u32>("priority"), 9);
    element.release_request_pad(&pads[1]);
    assert_eq!(request("sink_7").name(), "sink_7");
}

#[test]
fn pads_have_the_names_that_older_pipelines_use() {
    let pipe = Pipe::parse(
        "fallbackswitch name=s ! fakesink audiotestsrc ! s.fallback_sink audiotestsrc ! s.sink",
    );
    let priority = |name: &str| pipe.pad("s", name).property::<u32>("priority");
    assert_eq!((priority("sink"), priority("fallback_sink")), (0, 1));
    // Without a name.
    let pipe = Pipe::parse("fallbackswitch name=s ! fakesink audiotestsrc ! s. audiotestsrc ! s.");
    assert_eq!(pipe.get("s").num_sink_pads(), 2);
}

// ---- choice

#[test]
fn the_best_input_passes_and_buffers_of_the_other_are_dropped() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    for ms in [20, 40] {
        switch.set_ms(ms);
        switch.inputs[0].push_ms(ms).unwrap();
        switch.inputs[1].push_ms(ms).unwrap();
        assert_eq!(pts_ms(&switch.rig.buffer()), ms);
    }
    assert_eq!(switch.active().as_ref(), Some(&switch.inputs[0].sink));
    assert_eq!((switch.stat("passed"), switch.stat("dropped")), (3, 3));
    assert!(switch.inputs.iter().all(Input::is_healthy));
}

#[test]
fn silent_first_choice_is_replaced_and_returns() {
    let switch = Switch::new("timeout=500000000", 2, AUDIO);
    let (send, notified) = channel();
    let sender = Mutex::new(send);
    let sink = &switch.inputs[0].sink;
    sink.connect_notify(Some("is-healthy"), move |pad, _| {
        let _ = sender
            .lock()
            .unwrap()
            .send(pad.property::<bool>("is-healthy"));
    });
    switch.begin();
    switch.set_ms(490);
    switch.inputs[1].push_ms(490).unwrap();
    assert!(switch.inputs[0].is_healthy());
    // The clock alone causes the switch, without data.
    switch.set_ms(520);
    switch.expect_switch(0, 1, "timeout");
    switch.until("a notification", || !switch.inputs[0].is_healthy());
    switch.inputs[1].push_ms(520).unwrap();
    let (n, buffer) = stream_before(&switch.rig.seen);
    assert_eq!((n, pts_ms(&buffer)), (Some(1), 520));
    assert!(buffer.flags().contains(gst::BufferFlags::DISCONT));
    switch.set_ms(540);
    switch.inputs[0].push_ms(540).unwrap();
    switch.expect_switch(1, 0, "recovered");
    let (n, buffer) = stream_before(&switch.rig.seen);
    assert_eq!((n, pts_ms(&buffer)), (Some(0), 540));
    let changes: Vec<_> = (0..3)
        .map(|_| notified.recv_timeout(DEADLINE).unwrap())
        .collect();
    assert_eq!(changes, [true, false, true]);
    assert_eq!(switch.stat("switches-timeout"), 1);
    assert_eq!(switch.stat("switches-recovered"), 1);
}

#[test]
fn start_waits_for_the_first_choice_by_default() {
    let switch = Switch::new("", 2, AUDIO);
    switch.inputs[1].push_ms(0).unwrap();
    switch.set_ms(900);
    switch.inputs[1].push_ms(900).unwrap();
    switch.assert_no_switch();
    switch.set_ms(1000);
    assert_eq!(switch.switch(), (None, "sink_1".into(), "start".into()));
    switch.inputs[1].push_ms(1000).unwrap();
    assert_eq!(pts_ms(&switch.rig.buffer()), 1000);
    let at_once = Switch::new("immediate-fallback=true", 2, AUDIO);
    at_once.inputs[1].push_ms(0).unwrap();
    assert_eq!(pts_ms(&at_once.rig.buffer()), 0);
}

#[test]
fn one_late_buffer_of_the_first_choice_does_not_switch_back() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    switch.set_ms(990);
    switch.inputs[1].push_ms(990).unwrap();
    switch.set_ms(1020);
    switch.expect_switch(0, 1, "timeout");
    switch.set_ms(1300);
    switch.inputs[0].push_ms(200).unwrap();
    switch.inputs[1].push_ms(1300).unwrap();
    assert_eq!(pts_ms(&switch.rig.buffer()), 1300);
    assert!(!switch.inputs[0].is_healthy());
    switch.assert_no_switch();
}

#[test]
fn a_recovered_input_waits_for_min_hold_and_recover_after() {
    let line = "timeout=100000000 min-hold=1000000000 recover-after=300000000";
    let switch = Switch::new(line, 2, AUDIO);
    switch.begin();
    switch.set_ms(80);
    switch.inputs[1].push_ms(80).unwrap();
    switch.set_ms(120);
    switch.expect_switch(0, 1, "timeout");
    let mut ms = 120;
    // The first choice is back at once, but takes over only 1 s after the switch.
    while ms < 1120 {
        switch.inputs[0].push_ms(ms).unwrap();
        switch.inputs[1].push_ms(ms).unwrap();
        assert_eq!(
            switch.active().as_ref(),
            Some(&switch.inputs[1].sink),
            "{ms}"
        );
        ms += 20;
        switch.set_ms(ms);
    }
    switch.inputs[0].push_ms(ms).unwrap();
    switch.expect_switch(1, 0, "recovered");
    // An input's failure does not wait for the time-out.
    assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
    switch.expect_switch(0, 1, "eos");
}

#[test]
fn a_priority_that_changes_changes_the_choice() {
    let switch = Switch::new("", 3, AUDIO);
    switch.begin();
    switch.inputs[2].push_ms(0).unwrap();
    switch.inputs[2].sink.set_property("priority", 0u32);
    switch.inputs[0].sink.set_property("priority", 5u32);
    switch.set_ms(20);
    switch.inputs[2].push_ms(20).unwrap();
    switch.expect_switch(0, 2, "recovered");
    assert_eq!(stream_before(&switch.rig.seen).0, Some(2));
}

#[test]
fn the_application_chooses_without_auto_switch() {
    let switch = Switch::new("auto-switch=false", 2, AUDIO);
    switch.begin();
    let (element, sink) = (&switch.rig.element, &switch.inputs[1].sink);
    element.set_property("active-pad", sink);
    switch.set_ms(20);
    switch.inputs[1].push_ms(20).unwrap();
    switch.expect_switch(0, 1, "application");
    assert_eq!(stream_before(&switch.rig.seen).0, Some(1));
    switch.set_ms(5000);
    switch.inputs[0].push_ms(5000).unwrap();
    switch.assert_no_switch();
    assert_eq!(switch.active().as_ref(), Some(sink));
    // The application chooses an input that is dead: the switch changes to the other one.
    element.set_property("active-pad", &switch.inputs[0].sink);
    assert_eq!(switch.active().as_ref(), Some(&switch.inputs[0].sink));
    // The element chooses again.
    switch.expect_switch(1, 0, "application");
    element.set_property("auto-switch", true);
    element.set_property("active-pad", sink);
    assert_eq!(switch.active().as_ref(), Some(&switch.inputs[0].sink));
}

#[test]
fn the_greatest_times_are_never_reached() {
    let greatest = u64::MAX - 1;
    let names = [
        "timeout",
        "latency",
        "min-upstream-latency",
        "min-hold",
        "recover-after",
    ];
    for name in names {
        let switch = Switch::new(&format!("{name}={greatest}"), 2, AUDIO);
        *switch.inputs[0].latency.lock().unwrap() = Some((true, 50 * MS, Some(60 * MS)));
        let held = switch.inputs[1].push_aside(timed(0, u64::MAX / 2 * gst::ClockTime::NSECOND));
        switch.inputs[0].push_ms(0).unwrap();
        let mut query = gst::query::Latency::new();
        assert!(switch.rig.drain.peer_query(&mut query));
        switch.set_ms(999);
        switch.inputs[0].push_ms(980).unwrap();
        let feed = &switch.inputs[0].feed;
        assert!(feed.push_event(gst::event::FlushStart::new()));
        assert!(feed.push_event(gst::event::FlushStop::new(false)));
        assert!(held.try_recv().is_err(), "{name}");
        let error = switch.rig.bus.pop_filtered(&[gst::MessageType::Error]);
        assert!(error.is_none(), "{error:?}");
    }
}

// ---- the defaults of the existing element

#[test]
fn after_the_end_of_the_active_stream_the_output_resumes_at_the_timeout() {
    let switch = Switch::plain("", 2, AUDIO);
    switch.begin();
    assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
    switch.rig.event(gst::EventType::Eos);
    switch.set_ms(500);
    switch.inputs[1].push_ms(500).unwrap();
    switch.assert_no_switch();
    switch.set_ms(1020);
    switch.expect_switch(0, 1, "eos");
    switch.inputs[1].push_ms(1020).unwrap();
    let (n, buffer) = stream_before(&switch.rig.seen);
    assert_eq!((n, pts_ms(&buffer)), (Some(1), 1020));
}

#[test]
fn stop_on_eos_ends_the_output_with_any_input() {
    let switch = Switch::plain("stop-on-eos=true", 2, AUDIO);
    switch.begin();
    assert!(switch.inputs[1].feed.push_event(gst::event::Eos::new()));
    switch.rig.event(gst::EventType::Eos);
    assert_eq!(switch.inputs[0].push_ms(20), Err(gst::FlowError::Eos));
}

#[test]
fn a_buffer_that_the_timeout_overtakes_does_not_pass() {
    let switch = Switch::plain("timeout=3000000000", 2, AUDIO);
    switch.begin();
    let held = switch.inputs[1].push_aside(audio(1000 * MS));
    switch.until("it is held", || switch.clock.peek_id_count() == 2);
    // The clock jumps: the buffer and the timeout are due together.
    switch.clock.set_time(3020 * MS);
    switch.expect_switch(0, 1, "timeout");
    switch.until("the push returns", || held.try_recv().is_ok());
    switch.inputs[1].push_ms(3000).unwrap();
    switch.inputs[1].push_ms(3020).unwrap();
    assert_eq!(pts_ms(&switch.rig.buffer()), 3020);
    assert_eq!(switch.stat("dropped"), 3);
}

#[test]
fn audio_without_durations_is_cut_at_the_end_of_the_output() {
    let switch = Switch::plain("", 2, AUDIO);
    let untimed = |begin: gst::ClockTime| {
        let mut buffer = audio(begin);
        buffer.get_mut().unwrap().set_duration(gst::ClockTime::NONE);
        buffer
    };
    switch.inputs[0]
        .push(untimed(gst::ClockTime::ZERO))
        .unwrap();
    switch.inputs[1]
        .push(untimed(gst::ClockTime::ZERO))
        .unwrap();
    switch.rig.buffer();
    // A timeout after the end of the last buffer, which has 20 ms of frames.
    switch.set_ms(1019);
    switch.inputs[1].push(untimed(1010 * MS)).unwrap();
    assert!(switch.inputs[0].is_healthy());
    switch.set_ms(1020);
    switch.switch();
    switch.expect_switch(0, 1, "timeout");
    switch.inputs[1].push(untimed(1010 * MS)).unwrap();
    let cut = switch.rig.buffer();
    assert_eq!(cut.pts(), Some(1020 * MS));
    assert_eq!(samples(&cut).len(), FRAMES as usize / 2);
}

#[test]
fn a_choice_by_hand_changes_at_once_and_renegotiates() {
    let switch = Switch::plain("auto-switch=false", 2, AUDIO);
    switch.begin();
    switch.set_ms(20);
    let chosen = &switch.inputs[1];
    switch.rig.element.set_property("active-pad", &chosen.sink);
    while chosen.events.try_recv().is_ok() {}
    switch.inputs[0].push_ms(20).unwrap();
    chosen.push_ms(20).unwrap();
    assert_eq!(stream_before(&switch.rig.seen).0, Some(1));
    assert_eq!((switch.stat("passed"), switch.stat("dropped")), (2, 2));
    let event = chosen.events.recv_timeout(DEADLINE).unwrap();
    assert_eq!(event.type_(), gst::EventType::Reconfigure);
}

#[test]
fn the_active_stream_passes_when_it_is_due() {
    let switch = Switch::plain("latency=5000000", 2, AUDIO);
    let pushed = switch.inputs[0].push_aside(audio(40 * MS));
    switch.until("it is held", || switch.clock.peek_id_count() == 2);
    switch.set_ms(44);
    assert_eq!(switch.stat("passed"), 0);
    switch.clock.set_time(45 * MS);
    switch.until("the push returns", || pushed.try_recv().is_ok());
    assert_eq!(pts_ms(&switch.rig.buffer()), 40);
}

#[test]
fn pads_are_children_whose_properties_a_launch_line_sets() {
    let pipe = Pipe::parse(
        "fallbackswitch name=s sink_1::priority=7 ! fakesink audiotestsrc ! s.sink_0 audiotestsrc ! s.sink_1",
    );
    let switch: gst::ChildProxy = pipe.get("s").dynamic_cast().unwrap();
    assert_eq!(switch.children_count(), 2);
    let [by_name, by_index] = [switch.child_by_name("sink_1"), switch.child_by_index(1)];
    assert_eq!(by_name, by_index);
    assert_eq!(by_name.unwrap().property::<u32>("priority"), 7);
    assert_eq!(switch.child_by_name("sink_2"), None);
}

// ---- failure

/// Input 0 is active until 40 ms. Its failure takes effect at once.
fn fails_at_once(fail: impl FnOnce(&Switch), reason: &str) {
    let switch = Switch::new("timeout=3600000000000", 2, AUDIO);
    switch.begin();
    switch.set_ms(40);
    switch.inputs[0].push_ms(20).unwrap();
    switch.inputs[1].push_ms(20).unwrap();
    switch.rig.buffer();
    fail(&switch);
    switch.expect_switch(0, 1, reason);
    switch.inputs[1].push_ms(40).unwrap();
    let (n, buffer) = stream_before(&switch.rig.seen);
    assert_eq!((n, pts_ms(&buffer)), (Some(1), 40));
    assert_eq!(switch.stat(&format!("switches-{reason}")), 1);
}

#[test]
fn the_end_of_the_active_stream_switches_at_once() {
    let fail = |switch: &Switch| {
        assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
    };
    fails_at_once(fail, "eos");
}

#[test]
fn a_released_active_pad_switches_at_once() {
    let fail = |switch: &Switch| {
        (switch.rig.element).release_request_pad(&switch.inputs[0].sink);
    };
    fails_at_once(fail, "removed");
}

#[test]
fn an_unlinked_active_pad_switches_at_once() {
    let fail = |switch: &Switch| {
        let input = &switch.inputs[0];
        input.feed.unlink(&input.sink).unwrap();
    };
    fails_at_once(fail, "unlinked");
}

#[test]
fn an_error_of_the_active_source_switches_at_once_until_its_next_buffer() {
    let fail = |switch: &Switch| {
        let pad = &switch.inputs[0].sink;
        (switch.rig.element).emit_by_name::<()>("mark-failed", &[pad]);
        assert!(!switch.inputs[0].is_healthy());
    };
    fails_at_once(fail, "error");
    // A buffer that waits for its time passes when the error comes, so none is missing.
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let held = switch.inputs[1].push_aside(audio(20 * MS));
    switch.until("it is held", || switch.clock.peek_id_count() == 2);
    fail(&switch);
    result_of(&held).unwrap();
    switch.expect_switch(0, 1, "error");
    assert_eq!(pts_ms(&switch.rig.buffer()), 20);
    switch.set_ms(40);
    switch.inputs[0].push_ms(40).unwrap();
    switch.expect_switch(1, 0, "recovered");
    assert_eq!(pts_ms(&switch.rig.buffer()), 40);
    // A pad of another element.
    let other = make("fallbackswitch").request_pad_simple("sink_0");
    (switch.rig.element).emit_by_name::<()>("mark-failed", &[&other.unwrap()]);
    assert!(switch.inputs[0].is_healthy());
}

#[test]
fn a_flush_passes_and_an_unfinished_one_is_ended_for_downstream() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let feed = &switch.inputs[0].feed;
    assert!(feed.push_event(gst::event::FlushStart::new()));
    switch.rig.event(gst::EventType::FlushStart);
    assert!(feed.push_event(gst::event::FlushStop::new(false)));
    switch.rig.event(gst::EventType::FlushStop);
    switch.inputs[0].open_segment(0);
    switch.set_ms(20);
    switch.inputs[0].push_ms(20).unwrap();
    assert_eq!(pts_ms(&switch.rig.buffer()), 20);
    switch.assert_no_switch();
    // An inactive input's error does not reach downstream.
    let other = &switch.inputs[1];
    assert!(other.feed.push_event(gst::event::FlushStart::new()));
    assert!(other.feed.push_event(gst::event::FlushStop::new(false)));
    other.open_segment(0);
    other.push_ms(20).unwrap();
    assert!(feed.push_event(gst::event::FlushStart::new()));
    switch.set_ms(1010);
    other.push_ms(1010).unwrap();
    switch.set_ms(1040);
    switch.expect_switch(0, 1, "flush");
    other.push_ms(1040).unwrap();
    let mut flushes = Vec::new();
    let buffer = loop {
        match switch.rig.seen.recv_timeout(DEADLINE).unwrap() {
            Seen::Buffer(buffer) => break buffer,
            Seen::Event(event) => flushes.push(event.type_()),
        }
    };
    assert_eq!(pts_ms(&buffer), 1040);
    assert_eq!(
        flushes[..3],
        [
            gst::EventType::FlushStart,
            gst::EventType::FlushStop,
            gst::EventType::StreamStart
        ]
    );
    // Downstream has already seen the end of this flush.
    assert!(feed.push_event(gst::event::FlushStop::new(false)));
    assert!(switch.rig.seen.try_recv().is_err());
}

#[test]
fn the_output_ends_with_the_last_stream_or_with_any_stream_as_configured() {
    for stop_on_eos in [false, true] {
        let switch = Switch::new(&format!("stop-on-eos={stop_on_eos}"), 2, AUDIO);
        switch.begin();
        assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
        if stop_on_eos {
            switch.rig.event(gst::EventType::Eos);
            assert_eq!(switch.inputs[1].push_ms(20), Err(gst::FlowError::Eos));
            continue;
        }
        switch.set_ms(20);
        switch.inputs[1].push_ms(20).unwrap();
        assert_eq!(pts_ms(&switch.rig.buffer()), 20);
        assert!(switch.inputs[1].feed.push_event(gst::event::Eos::new()));
        switch.rig.event(gst::EventType::Eos);
        assert!(switch.inputs[1].push_ms(40).is_err());
        // A new stream starts, and with it the output.
        switch.inputs[0].open(5, AUDIO);
        switch.set_ms(40);
        switch.inputs[0].push_ms(40).unwrap();
        let (n, buffer) = stream_before(&switch.rig.seen);
        assert_eq!((n, pts_ms(&buffer)), (Some(5), 40));
    }
}

#[test]
fn a_new_stream_on_the_active_pad_is_announced_without_the_old_one() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
    switch.expect_switch(0, 1, "eos");
    switch.inputs[1].open(3, AUDIO);
    switch.set_ms(20);
    switch.inputs[1].push_ms(20).unwrap();
    let kinds: Vec<_> = switch
        .rig
        .seen
        .try_iter()
        .filter_map(|seen| match seen {
            Seen::Event(event) => Some(event.type_()),
            Seen::Buffer(_) => None,
        })
        .collect();
    assert_eq!(
        kinds,
        [
            gst::EventType::StreamStart,
            gst::EventType::Caps,
            gst::EventType::Segment
        ]
    );
}

#[test]
fn the_release_of_the_only_input_leaves_no_active_pad() {
    let switch = Switch::new("", 1, AUDIO);
    switch.inputs[0].push_ms(0).unwrap();
    let (send, notified) = channel();
    let sender = Mutex::new(send);
    switch
        .rig
        .element
        .connect_notify(Some("active-pad"), move |_, _| {
            let _ = sender.lock().unwrap().send(());
        });
    (switch.rig.element).release_request_pad(&switch.inputs[0].sink);
    assert_eq!(notified.recv_timeout(DEADLINE), Ok(()));
    assert_eq!(switch.active(), None);
}

#[test]
fn the_release_of_the_last_open_input_ends_the_output() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    assert!(switch.inputs[1].feed.push_event(gst::event::Eos::new()));
    (switch.rig.element).release_request_pad(&switch.inputs[0].sink);
    switch.rig.event(gst::EventType::Eos);
}

// ---- partners

/// Switches for audio and video, which become partners after their start. Each has both inputs, and both are at `ms`.
struct Pair {
    audio: Switch,
    video: Switch,
    ms: u64,
}

impl Pair {
    fn new() -> Pair {
        let line = "timeout=100000000";
        let [audio, video] = [AUDIO, VIDEO].map(|caps| Switch::new(line, 2, caps));
        for switch in [&audio, &video] {
            switch.begin();
        }
        let partner = &video.rig.element;
        audio.rig.element.set_property("partner", partner);
        let ms = 0;
        Pair { audio, video, ms }
    }

    /// Pushes the next 20 ms into all inputs, except the first input of the switches in `without_first`.
    fn go_on(&mut self, without_first: &[bool; 2]) {
        self.ms += 20;
        for (switch, without_first) in [&self.audio, &self.video].into_iter().zip(without_first) {
            switch.set_ms(self.ms);
            for input in &switch.inputs[usize::from(*without_first)..] {
                input.push_ms(self.ms).unwrap();
            }
        }
    }

    fn drain(&self) -> [Vec<u64>; 2] {
        [&self.audio, &self.video].map(|switch| {
            let seen = switch.rig.seen.try_iter();
            let times = seen.filter_map(|seen| match seen {
                Seen::Buffer(buffer) => Some(pts_ms(&buffer)),
                Seen::Event(_) => None,
            });
            times.collect()
        })
    }
}

#[test]
fn audio_and_video_switch_away_from_a_source_and_back_together() {
    for stalls in [[false, true], [true, false]] {
        let mut pair = Pair::new();
        while pair.ms < 100 {
            pair.go_on(&stalls);
        }
        pair.drain();
        for switch in [&pair.audio, &pair.video] {
            switch.assert_no_switch();
        }
        pair.go_on(&stalls);
        let reasons = stalls.map(|stalls| if stalls { "timeout" } else { "partner" });
        let switches = [&pair.audio, &pair.video];
        for (switch, reason) in switches.into_iter().zip(reasons) {
            switch.expect_switch(0, 1, reason);
            assert_eq!(switch.stat(&format!("switches-{reason}")), 1);
        }
        // The pads report their own health.
        assert_eq!(
            switches.map(|switch| switch.inputs[0].is_healthy()),
            stalls.map(|stalls| !stalls)
        );
        let begins = pair.drain().map(|times| times.last().copied());
        assert_eq!(begins, [Some(120), Some(120)]);
        pair.go_on(&stalls);
        let is_back = |pair: &Pair| {
            let switches = [&pair.audio, &pair.video];
            let mut active = switches
                .map(|s| s.active() == Some(s.inputs[0].sink.clone()))
                .into_iter();
            active.all(|is_first| is_first)
        };
        // The switch whose input has delivered all the time switches back with the first buffer after its notification.
        while !is_back(&pair) {
            pair.go_on(&[false, false]);
            assert!(pair.ms < 60_000, "they stay away");
        }
        for switch in [&pair.audio, &pair.video] {
            switch.expect_switch(1, 0, "recovered");
            switch.assert_no_switch();
        }
        // No buffer is missing in either output.
        let all = (140..=pair.ms).step_by(20).collect::<Vec<_>>();
        assert_eq!(pair.drain(), [all.clone(), all]);
    }
}

#[test]
fn partners_agree_on_the_first_choice_from_the_start() {
    let [audio, video] = [AUDIO, VIDEO].map(|caps| Switch::new("", 2, caps));
    let partner = &video.rig.element;
    audio.rig.element.set_property("partner", partner);
    for switch in [&audio, &video] {
        switch.inputs[1].push_ms(0).unwrap();
    }
    audio.inputs[0].push_ms(0).unwrap();
    for switch in [&audio, &video] {
        switch.assert_no_switch();
    }
    video.inputs[0].push_ms(0).unwrap();
    for switch in [&audio, &video] {
        assert_eq!(switch.switch(), (None, "sink_0".into(), "start".into()));
    }
}

#[test]
fn each_stream_passes_from_the_only_source_that_delivers_it() {
    let mut pair = Pair::new();
    while pair.ms < 200 {
        pair.ms += 20;
        for switch in [&pair.audio, &pair.video] {
            switch.set_ms(pair.ms);
        }
        pair.audio.inputs[0].push_ms(pair.ms).unwrap();
        pair.video.inputs[1].push_ms(pair.ms).unwrap();
    }
    pair.video.expect_switch(0, 1, "timeout");
    pair.audio.assert_no_switch();
    let last = pair.drain().map(|times| times.last().copied());
    assert_eq!(last, [Some(200), Some(200)]);
}

#[test]
fn an_input_without_a_partner_depends_only_on_its_own_health() {
    type Part = fn(&Pair);
    let parts: [Part; 4] = [
        |pair| {
            let none = None::<gst::Element>;
            pair.video.rig.element.set_property("partner", none);
        },
        |pair| {
            let other = make("fallbackswitch");
            pair.audio.rig.element.set_property("partner", &other);
            let of_other = other.property::<Option<gst::Element>>("partner");
            assert_eq!(of_other.as_ref(), Some(&pair.audio.rig.element));
            let of_video = (pair.video.rig.element).property::<Option<gst::Element>>("partner");
            assert_eq!(of_video, None);
        },
        |pair| (pair.video.rig.element).release_request_pad(&pair.video.inputs[0].sink),
        |pair| pair.video.rig.to(gst::State::Ready),
    ];
    for part in parts {
        let mut pair = Pair::new();
        while pair.ms < 120 {
            pair.go_on(&[false, true]);
        }
        pair.audio.expect_switch(0, 1, "partner");
        part(&pair);
        pair.audio.set_ms(140);
        pair.audio.inputs[0].push_ms(140).unwrap();
        pair.audio.expect_switch(1, 0, "recovered");
    }
}

#[test]
fn partners_that_fail_and_come_back_at_once_agree_in_the_end() {
    const COUNT: u64 = 500;
    let pair = Pair::new();
    let switches = [&pair.audio, &pair.video];
    let threads = switches.map(|switch| {
        let (element, input) = (switch.rig.element.clone(), &switch.inputs[0]);
        let (sink, feed) = (input.sink.clone(), input.feed.clone());
        std::thread::spawn(move || {
            for _ in 0..COUNT {
                element.emit_by_name::<()>("mark-failed", &[&sink]);
                feed.push(audio(gst::ClockTime::ZERO)).unwrap();
            }
        })
    });
    for thread in threads {
        within("a pusher", move || thread.join().unwrap());
    }
    let active_is = |n: usize| {
        let on_n = |switch: &Switch| switch.active().as_ref() == Some(&switch.inputs[n].sink);
        switches.into_iter().all(on_n)
    };
    // Both switches are healthy again, and each knows it of the other.
    pair.audio.until("both are back", || {
        for switch in switches {
            switch.inputs[0].push_ms(0).unwrap();
        }
        active_is(0)
    });
    // Without a notification, the property does not change.
    let sink = &pair.video.inputs[0].sink;
    (pair.video.rig.element).emit_by_name::<()>("mark-failed", &[sink]);
    pair.audio.until("both leave", || active_is(1));
}

#[test]
fn partners_keep_only_weak_references_to_each_other() {
    let [one, other] = [(); 2].map(|()| make("fallbackswitch"));
    one.set_property("partner", &other);
    let partner = |of: &gst::Element| of.property::<Option<gst::Element>>("partner");
    assert_eq!(partner(&other).as_ref(), Some(&one));
    let weak = other.downgrade();
    drop(other);
    assert!(weak.upgrade().is_none());
    assert_eq!(partner(&one), None);
    // A switch cannot be its own partner.
    one.set_property("partner", &one);
    assert_eq!(partner(&one), None);
}

// ---- waits

#[test]
fn a_stream_ahead_of_its_time_is_held_until_then() {
    let switch = Switch::new("latency=10000000", 2, AUDIO);
    switch.inputs[0].push_ms(0).unwrap();
    let held = switch.inputs[1].push_aside(audio(60 * MS));
    switch.set_ms(69);
    switch.inputs[0].push_ms(60).unwrap();
    assert!(held.try_recv().is_err());
    switch.clock.set_time(70 * MS);
    switch.until("the push goes on at 70 ms", || held.try_recv().is_ok());
    assert_eq!(switch.stat("dropped"), 1);
}

#[test]
fn held_data_passes_when_the_active_stream_fails() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let held = switch.inputs[1].push_aside(audio(3_600_000 * MS));
    switch.until("it is held", || switch.clock.peek_id_count() == 2);
    assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
    result_of(&held).unwrap();
    assert_eq!(pts_ms(&switch.rig.buffer()), 3_600_000);
}

#[test]
fn a_stop_a_flush_a_release_and_an_unlink_end_a_hold_at_once() {
    type End = fn(&Switch);
    let ends: [End; 4] = [
        |switch| switch.rig.to(gst::State::Ready),
        |switch| {
            let flush = gst::event::FlushStart::new();
            assert!(switch.inputs[1].feed.push_event(flush));
        },
        |switch| (switch.rig.element).release_request_pad(&switch.inputs[1].sink),
        |switch| {
            let input = &switch.inputs[1];
            input.feed.unlink(&input.sink).unwrap();
        },
    ];
    for end in ends {
        let switch = Switch::new("", 2, AUDIO);
        switch.begin();
        let held = switch.inputs[1].push_aside(audio(3_600_000 * MS));
        switch.until("it is held", || switch.clock.peek_id_count() == 2);
        end(&switch);
        assert_eq!(result_of(&held), Err(gst::FlowError::Flushing));
    }
}

#[test]
fn time_outs_stop_during_a_pause() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    switch.set_ms(500);
    switch.rig.to(gst::State::Paused);
    switch.set_ms(10_000);
    switch.inputs[1].push_ms(500).unwrap();
    assert!(switch.inputs[0].is_healthy());
    // As in a pipeline, running time continues where it stopped.
    switch.rig.element.set_base_time(9_500 * MS);
    switch.rig.to(gst::State::Playing);
    switch.set_ms(10_519);
    switch.inputs[1].push_ms(999).unwrap();
    switch.assert_no_switch();
    switch.set_ms(10_520);
    switch.expect_switch(0, 1, "timeout");
}

#[test]
fn in_paused_the_first_choice_prerolls_and_the_others_wait() {
    let switch = Switch::paused("", 2, AUDIO);
    let held = switch.inputs[1].push_aside(audio(20 * MS));
    switch.inputs[0].push_ms(0).unwrap();
    assert_eq!(pts_ms(&switch.rig.buffer()), 0);
    assert!(held.try_recv().is_err());
    switch.rig.to(gst::State::Playing);
    switch.clock.set_time(20 * MS);
    switch.until("its time has come", || held.try_recv().is_ok());
}

#[test]
fn after_a_change_of_the_clock_time_outs_use_the_new_clock() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let other = TestClock::with_start_time(100 * MS);
    switch.rig.element.set_clock(Some(&other)).unwrap();
    switch.inputs[1].push_ms(100).unwrap();
    other.set_time(1020 * MS);
    eventually("the time-out on the new clock", || {
        while other.process_next_clock_id().is_some() {}
        !switch.inputs[0].is_healthy()
    });
    switch.expect_switch(0, 1, "timeout");
    eventually("nothing waits on the old one", || {
        switch.clock.peek_id_count() == 0
    });
}

#[test]
fn without_a_clock_the_first_choice_passes_and_nothing_hangs() {
    let switch = Switch::paused("", 2, AUDIO);
    switch.rig.element.set_clock(None::<&gst::Clock>).unwrap();
    switch.rig.to(gst::State::Playing);
    for ms in [0, 20, 40] {
        switch.inputs[0].push_ms(ms).unwrap();
        switch.inputs[1].push_ms(ms).unwrap();
        assert_eq!(pts_ms(&switch.rig.buffer()), ms);
    }
}

/// No buffer is dropped under a lock of its element.
#[test]
fn the_drop_of_a_buffer_may_call_the_element() {
    type End = fn(&Switch);
    let ends: [End; 6] = [
        |switch| switch.rig.to(gst::State::Ready),
        |switch| {
            let flush = gst::event::FlushStart::new();
            assert!(switch.inputs[1].feed.push_event(flush));
        },
        |switch| (switch.rig.element).release_request_pad(&switch.inputs[1].sink),
        |switch| {
            let input = &switch.inputs[1];
            input.feed.unlink(&input.sink).unwrap();
        },
        // The time of the held buffer has come.
        |switch| {
            switch.inputs[0].push_ms(20).unwrap();
            switch.set_ms(20);
        },
        // The input of the held buffer becomes the active one, and is behind the output.
        |switch| {
            switch.inputs[0].push_ms(500).unwrap();
            assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
        },
    ];
    for (i, end) in ends.into_iter().enumerate() {
        let switch = Switch::new("", 2, AUDIO);
        switch.begin();
        let (dropped, told) = channel();
        let mut buffer = gst::Buffer::from_slice(CallsBack {
            element: switch.rig.element.downgrade(),
            dropped,
            data: b"data".to_vec(),
        });
        let inner = buffer.get_mut().unwrap();
        inner.set_pts(20 * MS);
        inner.set_duration(20 * MS);
        let _held = switch.inputs[1].push_aside(buffer);
        switch.until("it is held", || switch.clock.peek_id_count() == 2);
        assert!(told.try_recv().is_err(), "{i}");
        within("the end", move || {
            end(&switch);
            switch
        });
        assert_eq!(told.recv_timeout(DEADLINE), Ok(()), "{i}");
    }
}

// ---- events and queries

#[test]
fn upstream_events_go_only_to_the_active_input() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let seek = gst::event::Seek::new(
        1.0,
        gst::SeekFlags::FLUSH,
        gst::SeekType::Set,
        gst::ClockTime::ZERO,
        gst::SeekType::None,
        gst::ClockTime::NONE,
    );
    let qos = gst::event::Qos::new(gst::QOSType::Overflow, 1.0, 0, gst::ClockTime::ZERO);
    let keyframe = gst::Structure::new_empty("GstForceKeyUnit");
    let keyframe = gst::event::CustomUpstream::new(keyframe);
    let all = [seek, qos, keyframe];
    for active in 0..2 {
        for event in all.clone() {
            assert!(switch.send_upstream(event));
        }
        let kinds: Vec<_> = all.iter().map(|event| event.type_()).collect();
        assert_eq!(switch.inputs[active].kinds(), kinds);
        assert_eq!(switch.inputs[1 - active].kinds(), []);
        if active == 0 {
            assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
        }
    }
    // Each input has to know how late its buffers will be.
    assert!(switch.send_upstream(gst::event::Latency::new(50 * MS)));
    for input in &switch.inputs {
        assert_eq!(input.kinds(), [gst::EventType::Latency]);
    }
}

#[test]
fn the_latency_is_that_of_the_slowest_input_plus_the_property() {
    let switch = Switch::new("latency=5000000", 3, AUDIO);
    let asked = || {
        let mut query = gst::query::Latency::new();
        assert!(switch.rig.drain.peer_query(&mut query));
        query.result()
    };
    assert_eq!(asked(), (true, 5 * MS, None), "live, whatever is linked");
    let answers = [
        Some((true, 80 * MS, Some(100 * MS))),
        Some((true, 30 * MS, Some(200 * MS))),
        Some((false, 500 * MS, None)),
    ];
    for (input, answer) in switch.inputs.iter().zip(answers) {
        *input.latency.lock().unwrap() = answer;
    }
    assert_eq!(asked(), (true, 85 * MS, Some(105 * MS)));
    let min = (100 * MS).nseconds();
    switch.rig.element.set_property("min-upstream-latency", min);
    let message = switch.rig.bus.pop_filtered(&[gst::MessageType::Latency]);
    assert!(message.is_some(), "the pipeline has to ask again");
    assert_eq!(asked().1, 105 * MS);
    // Buffers may be as late as the latency, so the first choice fails later by that time.
    switch.inputs[0].push_ms(0).unwrap();
    switch.switch();
    switch.set_ms(1124);
    switch.inputs[1].push_ms(999).unwrap();
    assert!(switch.inputs[0].is_healthy());
    switch.set_ms(1125);
    switch.expect_switch(0, 1, "timeout");
}

#[test]
fn serialized_queries_are_those_of_the_active_input() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let drain = |input: &Input| input.feed.peer_query(&mut gst::query::Drain::new());
    assert!(drain(&switch.inputs[0]));
    assert_eq!(switch.rig.queries.try_recv(), Ok(gst::QueryType::Drain));
    assert!(!drain(&switch.inputs[1]));
    assert!(switch.rig.queries.try_recv().is_err());
}

#[test]
fn gap_events_keep_an_input_healthy_and_are_passed() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    switch.set_ms(900);
    let gap = gst::event::Gap::new(900 * MS, 20 * MS);
    assert!(switch.inputs[0].feed.push_event(gap));
    switch.rig.event(gst::EventType::Gap);
    switch.set_ms(1500);
    switch.inputs[1].push_ms(1500).unwrap();
    assert!(switch.inputs[0].is_healthy());
    switch.assert_no_switch();
}

#[test]
fn an_error_downstream_reaches_only_the_active_input() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    *switch.rig.answer.lock().unwrap() = Err(gst::FlowError::NotNegotiated);
    switch.set_ms(20);
    assert_eq!(
        switch.inputs[0].push_ms(20),
        Err(gst::FlowError::NotNegotiated)
    );
    assert_eq!(switch.inputs[1].push_ms(20), Ok(gst::FlowSuccess::Ok));
}

// ---- joints

/// Input 0 delivers the first 40 ms and ends. Input 1 has a segment that starts an hour later, and delivers 20 ms from each of
/// these times on (in µs). Returns the output.
fn joint(caps: &str, begins_us: &[u64], as_list: bool) -> Vec<gst::Buffer> {
    const HOUR: gst::ClockTime = gst::ClockTime::from_seconds(3600);
    let switch = Switch::new("", 2, caps);
    switch.inputs[1]
        .feed
        .push_event(gst::event::FlushStart::new());
    switch.inputs[1]
        .feed
        .push_event(gst::event::FlushStop::new(false));
    switch.inputs[1].open_segment(HOUR.mseconds());
    let info = gst_audio::AudioInfo::from_caps(&caps.parse::<gst::Caps>().unwrap());
    let make = |running: gst::ClockTime, start| {
        let mut buffer = audio_in_segment(running, start);
        if let Ok(info) = &info
            && info.layout() == gst_audio::AudioLayout::NonInterleaved
        {
            let frames = FRAMES as usize;
            gst_audio::AudioMeta::add(buffer.get_mut().unwrap(), info, frames, &[0]).unwrap();
        }
        buffer
    };
    switch.set_ms(60);
    for ms in [0, 20] {
        switch.inputs[0]
            .push(make(ms * MS, gst::ClockTime::ZERO))
            .unwrap();
        switch.rig.buffer();
    }
    let of_other = |us: &u64| make(gst::ClockTime::from_useconds(*us), HOUR);
    switch.inputs[1].push(of_other(&0)).unwrap();
    assert!(switch.inputs[0].feed.push_event(gst::event::Eos::new()));
    if as_list {
        let list: gst::BufferList = begins_us.iter().map(of_other).collect();
        switch.inputs[1].feed.push_list(list).unwrap();
    } else {
        for us in begins_us {
            switch.inputs[1].push(of_other(us)).unwrap();
        }
    }
    let seen = switch.rig.seen.try_iter();
    let buffers = seen.filter_map(|seen| match seen {
        Seen::Buffer(buffer) => Some(buffer),
        Seen::Event(_) => None,
    });
    let in_running_time = |mut buffer: gst::Buffer| {
        let pts = buffer.pts().unwrap();
        buffer.make_mut().set_pts(pts - HOUR);
        buffer
    };
    buffers.map(in_running_time).collect()
}

#[test]
fn audio_continues_at_the_last_output_frame() {
    let planar = AUDIO.replace("interleaved", "non-interleaved");
    for (caps, as_list) in [(AUDIO, false), (AUDIO, true), (planar.as_str(), false)] {
        // The buffers start before the end of the output; the first one ends before it, the second one across it, the third one
        // starts after.
        let buffers = joint(caps, &[10_000, 30_000, 50_000], as_list);
        assert_eq!(buffers.len(), 2, "{caps}");
        let cut = &buffers[0];
        assert_eq!((cut.pts(), cut.duration()), (Some(40 * MS), Some(10 * MS)));
        assert!(cut.flags().contains(gst::BufferFlags::DISCONT));
        let info = gst_audio::AudioInfo::from_caps(&caps.parse::<gst::Caps>().unwrap()).unwrap();
        let all = buffers.iter().flat_map(|buffer| {
            let audio = gst_audio::AudioBufferRef::from_buffer_ref_readable(buffer, &info).unwrap();
            samples_in(audio.plane_data(0).unwrap())
        });
        // The output so far has the frames up to 320.
        assert!(all.eq(320..560), "{caps}");
        assert_eq!(
            (buffers[1].pts(), buffers[1].duration()),
            (Some(50 * MS), Some(20 * MS))
        );
    }
    // This buffer is off the frames of the output by a third of a frame, so it is cut after the end of the output, not before it.
    let buffers = joint(AUDIO, &[30_042], false);
    assert_eq!(
        buffers[0].pts(),
        Some(gst::ClockTime::from_useconds(40_042))
    );
    assert_eq!(samples(&buffers[0])[0], 320);
}

#[test]
fn a_picture_passes_whole_or_not_at_all() {
    // A quarter of the first buffer is left, and three quarters of the second one.
    let buffers = joint(VIDEO, &[25_000, 35_000, 55_000], false);
    let times = buffers
        .iter()
        .map(|buffer| (buffer.pts().unwrap(), buffer.duration().unwrap()));
    assert!(times.eq([(40 * MS, 15 * MS), (55 * MS, 20 * MS)]));
    assert_eq!(samples(&buffers[0]).len() as u64, FRAMES);
}

#[test]
fn coded_data_is_not_cut() {
    let buffers = joint(CODED, &[10_000, 30_000], false);
    assert_eq!(
        buffers
            .iter()
            .map(|buffer| pts_ms(buffer))
            .collect::<Vec<_>>(),
        [10, 30]
    );
}

#[test]
fn buffer_lists_of_the_active_input_are_not_split() {
    let switch = Switch::new("", 2, AUDIO);
    switch.begin();
    let lengths = Arc::new(Mutex::new(Vec::new()));
    let of_probe = lengths.clone();
    let src = switch.rig.element.static_pad("src").unwrap();
    src.add_probe(gst::PadProbeType::BUFFER_LIST, move |_, info| {
        of_probe
            .lock()
            .unwrap()
            .push(info.buffer_list().unwrap().len());
        gst::PadProbeReturn::Ok
    });
    let list: gst::BufferList = [20, 40, 60].map(|ms| audio(ms * MS)).into_iter().collect();
    switch.inputs[0].feed.push_list(list).unwrap();
    assert_eq!(*lengths.lock().unwrap(), [3]);
}

#[test]
fn output_has_no_gap_when_a_live_first_choice_recovers() {
    let switch = Switch::new("timeout=100000000", 2, AUDIO);
    switch.begin();
    // The inputs' buffers are not aligned: the first choice has those from 0, 20, ... on, the other those from 13, 33, ... on.
    let mut ms = 0;
    let mut end = 20 * MS;
    let mut sources = Vec::new();
    while ms < 600 {
        ms += 1;
        switch.set_ms(ms);
        // The first choice is silent for a while, and then comes back.
        if ms % 20 == 0 && !(200..400).contains(&ms) {
            switch.inputs[0].push_ms(ms).unwrap();
        }
        if ms % 20 == 13 {
            switch.inputs[1].push_ms(ms).unwrap();
        }
        if ms == 300 {
            switch.expect_switch(0, 1, "timeout");
        }
        for seen in switch.rig.seen.try_iter() {
            match seen {
                Seen::Event(event) => {
                    if let gst::EventView::StreamStart(start) = event.view() {
                        sources.push(start.stream_id().to_owned());
                    }
                }
                Seen::Buffer(buffer) => {
                    // One gap: from the silence to the time-out.
                    if sources.len() != 1 || end > 200 * MS {
                        assert_eq!(buffer.pts(), Some(end));
                    }
                    end = buffer.pts().unwrap() + buffer.duration().unwrap();
                }
            }
        }
    }
    assert_eq!(sources, ["stream-1", "stream-0"]);
}

// ---- coded streams

#[test]
fn coded_streams_change_at_keyframes_in_both_directions() {
    let switch = Switch::new("timeout=100000000", 2, CODED);
    for input in &switch.inputs {
        input.push(unit(0, false)).unwrap();
    }
    assert_eq!(switch.switch(), (None, "sink_0".into(), "start".into()));
    // The first choice falls silent. Until 200 ms, the other input has only delta units.
    for ms in [20, 40, 60, 80] {
        switch.set_ms(ms);
        switch.inputs[1].push(unit(ms, true)).unwrap();
    }
    switch.set_ms(120);
    switch.expect_switch(0, 1, "timeout");
    switch.until("the keyframe is asked for", || {
        switch.inputs[1].keyframes_asked() == 1
    });
    for ms in (120..200).step_by(20) {
        switch.set_ms(ms);
        switch.inputs[1].push(unit(ms, true)).unwrap();
    }
    switch.set_ms(200);
    switch.inputs[1].push(unit(200, false)).unwrap();
    // The first choice returns with delta units, so the other input continues until 300 ms.
    for ms in (220..300).step_by(20) {
        switch.set_ms(ms);
        switch.inputs[0].push(unit(ms, true)).unwrap();
        switch.inputs[1].push(unit(ms, true)).unwrap();
    }
    switch.assert_no_switch();
    assert_eq!(switch.inputs[0].keyframes_asked(), 1);
    for ms in [300, 320] {
        switch.set_ms(ms);
        switch.inputs[0].push(unit(ms, ms > 300)).unwrap();
        switch.inputs[1].push(unit(ms, true)).unwrap();
    }
    switch.expect_switch(1, 0, "recovered");
    let seen = switch.rig.seen.try_iter();
    let units = seen.filter_map(|seen| match seen {
        Seen::Buffer(buffer) => {
            let is_delta = buffer.flags().contains(gst::BufferFlags::DELTA_UNIT);
            Some((pts_ms(&buffer), is_delta))
        }
        Seen::Event(_) => None,
    });
    let passed: Vec<_> = units.collect();
    let deltas = (220..300).step_by(20).map(|ms| (ms, true));
    let expected = [(0, false), (200, false)].into_iter().chain(deltas);
    let expected: Vec<_> = expected.chain([(300, false), (320, true)]).collect();
    assert_eq!(passed, expected);
    assert_eq!(switch.inputs[1].keyframes_asked(), 0, "once");
}

// ---- threads

#[test]
fn streams_stay_in_order_during_many_switches() {
    const COUNT: u32 = 1000;
    let switch = Switch::new("auto-switch=false", 3, CODED);
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let feed = switch.inputs[i as usize].feed.clone();
            std::thread::spawn(move || {
                for n in 0..COUNT {
                    feed.push(timed(i * COUNT + n, gst::ClockTime::ZERO))
                        .unwrap();
                }
            })
        })
        .collect();
    for i in 0..500 {
        let sink = &switch.inputs[i % 3].sink;
        switch.rig.element.set_property("active-pad", sink);
    }
    for thread in threads {
        within("a pusher", move || thread.join().unwrap());
    }
    let (mut stream, mut last) = (None, [None::<u32>; 3]);
    for seen in switch.rig.seen.try_iter() {
        match seen {
            Seen::Event(event) => {
                if let gst::EventView::Caps(caps) = event.view() {
                    stream = caps.caps().structure(0).unwrap().get::<i32>("n").ok();
                }
            }
            Seen::Buffer(buffer) => {
                let of = (number(&buffer) / COUNT) as usize;
                assert_eq!(stream, Some(of as i32), "after its own caps");
                assert!(last[of] < Some(number(&buffer)));
                last[of] = Some(number(&buffer));
            }
        }
    }
    let taken = switch.stat("passed") + switch.stat("dropped");
    assert_eq!(taken, u64::from(3 * COUNT));
}

#[test]
fn a_change_waits_for_the_push_that_is_under_way() {
    let switch = Switch::new("", 2, AUDIO);
    // A thread that pushes takes this lock before the lock of the pad below.
    let src = switch.rig.element.static_pad("src").unwrap();
    let pushing = Arc::new(AtomicUsize::new(0));
    let of_probe = pushing.clone();
    src.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        of_probe.fetch_add(1, Ordering::SeqCst);
        gst::PadProbeReturn::Ok
    });
    let gate = gate(&src);
    let first = switch.inputs[0].push_aside(audio(gst::ClockTime::ZERO));
    gate.wait_held();
    switch.inputs[1].push_ms(0).unwrap();
    switch.set_ms(20);
    switch.inputs[0].sink.set_property("priority", 5u32);
    let feed = switch.inputs[1].feed.clone();
    let second = until_it_waits(move || feed.push(audio(20 * MS)));
    assert_eq!(pushing.load(Ordering::SeqCst), 1);
    gate.open();
    within("the second push", move || second.join().unwrap()).unwrap();
    let _ = result_of(&first);
    assert_eq!([0, 20], [0, 1].map(|_| pts_ms(&switch.rig.buffer())));
}

#[test]
fn streams_begin_again_after_each_restart() {
    let switch = Switch::new("", 2, AUDIO);
    goes_up_and_down(&switch.rig, || {
        for (i, input) in switch.inputs.iter().enumerate() {
            input.feed.set_active(false).unwrap();
            input.feed.set_active(true).unwrap();
            input.open(i, AUDIO);
        }
        let now = switch.clock.time();
        let base = switch.rig.element.base_time().unwrap();
        switch.inputs[0].push(audio(now - base)).unwrap();
        switch.rig.buffer();
    });
}

/// The base class releases request pads while it disposes of the element. If another thread took a reference at that moment, the
/// element was freed under the thread that disposed of it.
#[test]
fn elements_may_be_dropped_with_their_request_pads() {
    init();
    let pads = [
        ("fallbackswitch", ["sink_%u"; 2]),
        ("ts-input-selector", ["sink_%u"; 2]),
        ("ts-rtcpmanager", ["recv_rtp_sink_%u", "send_rtcp_src_%u"]),
    ];
    let drop_many = || {
        for _ in 0..3_000 {
            for (factory, pads) in pads {
                let element = make(factory);
                for pad in pads {
                    element.request_pad_simple(pad).unwrap();
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(drop_many);
        }
    });
}
