//! `fallbacksrc` in a pipeline on a test clock, with pads of the test's own behind its outputs.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test crates")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gst::prelude::*;
use gst_check::TestClock;

use crate::common::*;
use crate::faulty::{self, Fault, Outcome, Step, Stream};

pub const MS: gst::ClockTime = gst::ClockTime::MSECOND;
pub const SECOND: gst::ClockTime = gst::ClockTime::SECOND;
pub const AUDIO: Stream = Stream::Audio;
pub const VIDEO: Stream = Stream::Video;

/// What the bytes of the sources' buffers are; those of silence are 0.
pub const MAIN: u8 = 11;
pub const FALLBACK: u8 = 22;
pub const LATER: u8 = 33;
pub const SILENCE: u8 = 0;

/// What has left an output. Times in ms of running time.
#[derive(Debug, Clone)]
pub struct Passed {
    /// The present when it came.
    pub at_ms: u64,
    pub begin_ms: u64,
    pub end_ms: u64,
    /// Of its first byte.
    pub marker: u8,
    pub buffer: gst::Buffer,
    pub caps: gst::Caps,
}

/// Behind an output.
#[derive(Clone)]
pub struct Drain {
    pub pad: gst::Pad,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    passed: Vec<Passed>,
    events: Vec<(u64, gst::Event)>,
    segment: Option<gst::FormattedSegment<gst::ClockTime>>,
    caps: Option<gst::Caps>,
    accepted: Option<gst::Caps>,
}

impl Drain {
    fn new(time: &Time, accepted: Option<gst::Caps>) -> Drain {
        let log = Arc::new(Mutex::new(Log {
            accepted,
            ..Log::default()
        }));
        let (of_chain, of_events, of_queries) = (log.clone(), log.clone(), log.clone());
        let (of_data, of_event) = (time.clone(), time.clone());
        let pad = gst::Pad::builder(gst::PadDirection::Sink)
            .chain_function(move |_, _, buffer| {
                of_chain.lock().unwrap().note(of_data.now_ms(), buffer)
            })
            .event_function(move |_, _, event| {
                let mut log = of_events.lock().unwrap();
                log.note_event(of_event.now_ms(), event)
            })
            .query_function(move |pad, parent, query| {
                let accepted = of_queries.lock().unwrap().accepted.clone();
                match (query.view_mut(), accepted) {
                    (gst::QueryViewMut::Caps(query), Some(accepted)) => {
                        let filter = query.filter_owned();
                        query.set_result(
                            &filter.map_or(accepted.clone(), |filter| filter.intersect(&accepted)),
                        );
                        true
                    }
                    (gst::QueryViewMut::AcceptCaps(query), Some(accepted)) => {
                        query.set_result(query.caps().is_subset(&accepted));
                        true
                    }
                    _ => gst::Pad::query_default(pad, parent, query),
                }
            })
            .build();
        pad.set_active(true).unwrap();
        Drain { pad, log }
    }

    pub fn all(&self) -> Vec<Passed> {
        self.log.lock().unwrap().passed.clone()
    }

    pub fn last(&self) -> Option<Passed> {
        self.log.lock().unwrap().passed.last().cloned()
    }

    pub fn forget(&self) {
        self.log.lock().unwrap().passed.clear();
    }

    /// Of the latest one so far.
    pub fn end_ms(&self) -> u64 {
        self.last().map_or(0, |last| last.end_ms)
    }

    pub fn markers(&self) -> Vec<u8> {
        let mut markers: Vec<u8> = self.all().iter().map(|one| one.marker).collect();
        markers.dedup();
        markers
    }

    /// The present at the end of the stream.
    pub fn eos_ms(&self) -> Option<u64> {
        let log = self.log.lock().unwrap();
        let mut events = log.events.iter();
        let eos = events.find(|(_, event)| event.type_() == gst::EventType::Eos)?;
        Some(eos.0)
    }

    /// Each begins where the one before ends.
    pub fn assert_continuous(&self) {
        for pair in self.all().windows(2) {
            let (end_ms, begin_ms) = (pair[0].end_ms, pair[1].begin_ms);
            assert_eq!(end_ms, begin_ms, "{pair:?}");
        }
    }

    /// None begins before the end of the one before.
    pub fn assert_no_overlap(&self) {
        for pair in self.all().windows(2) {
            assert!(pair[0].end_ms <= pair[1].begin_ms, "{pair:?}");
        }
    }
}

impl Log {
    fn note(&mut self, at_ms: u64, buffer: gst::Buffer) -> Outcome {
        let (Some(segment), Some(caps)) = (&self.segment, &self.caps) else {
            panic!("data before caps and segment");
        };
        if let Some(accepted) = &self.accepted
            && !caps.is_subset(accepted)
        {
            return Err(gst::FlowError::NotNegotiated);
        }
        let pts = buffer.pts().expect("a buffer has a time");
        let begin = segment.to_running_time(pts).expect("it is in the segment");
        let end = begin + buffer.duration().unwrap_or_default();
        let marker = bytes(&buffer).first().copied().unwrap_or_default();
        self.passed.push(Passed {
            at_ms,
            begin_ms: begin.mseconds(),
            end_ms: end.mseconds(),
            marker,
            caps: caps.clone(),
            buffer,
        });
        Ok(gst::FlowSuccess::Ok)
    }

    fn note_event(&mut self, at_ms: u64, event: gst::Event) -> bool {
        let is_accepted = match event.view() {
            gst::EventView::Caps(caps) => {
                self.caps = Some(caps.caps_owned());
                let accepted = self.accepted.as_ref();
                accepted.is_none_or(|accepted| caps.caps().is_subset(accepted))
            }
            gst::EventView::Segment(segment) => {
                self.segment = segment.segment().downcast_ref().cloned();
                true
            }
            _ => true,
        };
        self.events.push((at_ms, event));
        is_accepted
    }
}

/// The running time of a pipeline that plays.
#[derive(Clone)]
struct Time {
    clock: TestClock,
    /// The clock's time when running time is 0.
    begin: Arc<Mutex<gst::ClockTime>>,
}

impl Time {
    fn now_ms(&self) -> u64 {
        (self.clock.time() - *self.begin.lock().unwrap()).mseconds()
    }
}

/// The clock's time at first.
const BEGIN: gst::ClockTime = gst::ClockTime::from_seconds(100);

/// An element under test.
pub struct Play {
    pub pipe: Pipe,
    pub element: gst::Element,
    pub clock: TestClock,
    time: Time,
    drains: Arc<Mutex<Vec<(String, Drain)>>>,
    messages: Mutex<Vec<gst::Message>>,
}

impl Play {
    /// On a named context, not yet playing.
    pub fn new(properties: &str) -> Play {
        Play::accepting(&format!("context={} {properties}", context()), None)
    }

    /// In the sources' own threads.
    pub fn without_context(properties: &str) -> Play {
        Play::accepting(properties, None)
    }

    /// Downstream takes no other caps than these.
    pub fn accepting(properties: &str, accepted: Option<&str>) -> Play {
        faulty::init();
        let pipe = Pipe::parse(&format!("fallbacksrc name=f {properties}"));
        let element = pipe.get("f");
        let clock = TestClock::with_start_time(BEGIN);
        pipe.0.use_clock(Some(&clock));
        let drains = Arc::<Mutex<Vec<(String, Drain)>>>::default();
        let time = Time {
            clock: clock.clone(),
            begin: Arc::new(Mutex::new(BEGIN)),
        };
        let (added, of_pads) = (drains.clone(), time.clone());
        let accepted: Option<gst::Caps> = accepted.map(|caps| caps.parse().unwrap());
        element.connect_pad_added(move |_, pad| {
            let drain = Drain::new(&of_pads, accepted.clone());
            pad.link(&drain.pad).unwrap();
            let mut drains = added.lock().unwrap();
            drains.push((pad.name().to_string(), drain));
        });
        Play {
            pipe,
            element,
            clock,
            time,
            drains,
            messages: Mutex::default(),
        }
    }

    pub fn play(&self) {
        self.pipe.to(gst::State::Playing);
        *self.time.begin.lock().unwrap() = self.pipe.0.base_time().unwrap();
    }

    /// The same, at once.
    pub fn playing(properties: &str) -> Play {
        let play = Play::new(properties);
        play.play();
        play
    }

    /// The same; its audio has begun, at 0.
    pub fn begun(properties: &str) -> Play {
        let play = Play::playing(properties);
        play.until("the first", || play.audio().last().is_some());
        play
    }

    /// Behind `audio_0`, the last one of this name.
    pub fn audio(&self) -> Drain {
        self.drain("audio_0")
    }

    pub fn video(&self) -> Drain {
        self.drain("video_0")
    }

    fn drain(&self, name: &str) -> Drain {
        let drains = self.drains.lock().unwrap();
        let drain = drains.iter().rev().find(|(of, _)| of == name);
        drain.unwrap_or_else(|| panic!("no {name}")).1.clone()
    }

    pub fn now_ms(&self) -> u64 {
        self.time.now_ms()
    }

    /// Lets the running time come to this, if nothing else was waiting.
    pub fn set_ms(&self, ms: u64) {
        let begin = *self.time.begin.lock().unwrap();
        self.clock.set_time(begin + ms * MS);
        self.go_on();
    }

    pub fn go_on(&self) {
        while self.clock.process_next_clock_id().is_some() {}
    }

    /// Waits until `condition` holds, with the clock where it is.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = std::time::Instant::now() + DEADLINE;
        loop {
            self.go_on();
            if condition() {
                return;
            }
            if std::time::Instant::now() > end {
                panic!("never: {what}\n{}", self.description());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// For a look at what is wrong.
    fn description(&self) -> String {
        let mut text = format!("at {} ms, {}\n", self.now_ms(), self.status());
        for element in self.pipe.0.iterate_recurse().into_iter().flatten() {
            let path = element.path_string();
            if path.contains("DecodeBin:") {
                continue;
            }
            text += &format!("{} {:?}\n", path, element.state(gst::ClockTime::ZERO));
            if element.type_().name() == "ThreadbareFallbackSwitch" {
                let active: Option<gst::Pad> = element.property("active-pad");
                text += &format!("  {:?}\n", active.map(|pad| pad.name()));
                for pad in element.sink_pads() {
                    let is_healthy: bool = pad.property("is-healthy");
                    text += &format!("  {} {is_healthy} {:?}\n", pad.name(), pad.peer());
                }
            }
            if element.find_property("stats").is_some() {
                let stats: gst::Structure = element.property("stats");
                text += &format!("  {stats}\n");
            }
        }
        let waits = self.clock.peek_id_count();
        let next = self.clock.peek_next_pending_id().map(|id| id.time());
        text + &format!("{waits} waits, next {next:?}\n")
    }

    /// Lets time pass in steps of 20 ms; at each waits until the audio output has come so far.
    pub fn follow_until(&self, end_ms: u64) {
        let audio = self.audio();
        self.walk(end_ms, || audio.end_ms());
    }

    /// The same with the video output, which may lag behind by a frame.
    pub fn follow_video_until(&self, end_ms: u64) {
        let video = self.video();
        self.walk(end_ms, || video.end_ms() + 40);
    }

    /// The same; it may lag behind by this time.
    pub fn follow_within(&self, end_ms: u64, lag_ms: u64) {
        let audio = self.audio();
        self.walk(end_ms, || audio.end_ms() + lag_ms);
    }

    fn walk(&self, end_ms: u64, mut reached_ms: impl FnMut() -> u64) {
        while self.now_ms() < end_ms {
            self.set_ms(self.now_ms() + 20);
            let now_ms = self.now_ms();
            self.until("the output goes on", || reached_ms() > now_ms);
        }
    }

    /// Pushes a live source's data of the present, waits until it has left, and goes on; up to this time.
    pub fn feed_until(&self, fault: &Fault, end_ms: u64) {
        let audio = self.audio();
        while self.now_ms() < end_ms {
            let now_ms = self.now_ms();
            self.feed(fault, now_ms);
            self.until("fed data passes", || audio.end_ms() >= now_ms + 20);
            self.set_ms(now_ms + 20);
        }
    }

    /// Pushes 20 ms of a live source's audio of this time.
    pub fn feed(&self, fault: &Fault, ms: u64) {
        let pushed = fault.step(AUDIO, Step::Buffer(AUDIO.buffer(fault.marker(), ms * MS)));
        let mut outcome = None;
        self.until("a push", || {
            outcome = outcome.or_else(|| pushed.try_recv().ok());
            outcome.is_some()
        });
        outcome.unwrap().unwrap();
    }

    /// Waits until a source stands by, and looks at what it gives from then on, whether that passes or not.
    pub fn stands_by(&self, stream: &str, place: usize) -> Arrivals {
        let bin = self.element.downcast_ref::<gst::Bin>().unwrap();
        let switch = bin.by_name(&format!("{stream}-switch")).unwrap();
        let pad = switch.static_pad(&format!("sink_{place}")).unwrap();
        self.until("it stands by", || pad.property("is-healthy"));
        let arrivals = Arrivals::default();
        let end_ms = arrivals.0.clone();
        pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
            let segment = pad.sticky_event::<gst::event::Segment>(0).unwrap();
            let segment: gst::FormattedSegment<gst::ClockTime> =
                segment.segment().downcast_ref().cloned().unwrap();
            let buffer = info.buffer().unwrap();
            let begin = segment.to_running_time(buffer.pts().unwrap()).unwrap();
            let end = begin + buffer.duration().unwrap();
            end_ms.store(end.mseconds(), Ordering::SeqCst);
            gst::PadProbeReturn::Ok
        });
        arrivals
    }

    /// Lets time pass in steps of 20 ms; at each waits until these have come so far.
    pub fn walk_until(&self, end_ms: u64, arrivals: &[&Arrivals]) {
        while self.now_ms() < end_ms {
            self.set_ms(self.now_ms() + 20);
            self.until("data arrives", || {
                arrivals.iter().all(|one| one.end_ms() > self.now_ms())
            });
        }
    }

    pub fn status(&self) -> String {
        let value = self.element.property_value("status");
        let (_, value) = gst::glib::EnumValue::from_value(&value).unwrap();
        value.nick().to_owned()
    }

    pub fn until_status(&self, status: &str) {
        self.until(status, || self.status() == status);
    }

    pub fn statistics(&self) -> gst::Structure {
        self.element.property("statistics")
    }

    fn collect(&self) {
        let mut messages = self.messages.lock().unwrap();
        while let Some(message) = self.pipe.bus().pop() {
            messages.push(message);
        }
    }

    /// The next element message of this name; other messages stay.
    pub fn told(&self, name: &str) -> gst::Structure {
        let mut found = None;
        self.until(name, || {
            found = self.has_told(name);
            found.is_some()
        });
        found.unwrap()
    }

    pub fn has_told(&self, name: &str) -> Option<gst::Structure> {
        self.take(|message| {
            let details = message.structure().filter(|s| s.name() == name);
            details.map(ToOwned::to_owned)
        })
    }

    /// The first message that `pick` makes something of.
    pub fn take<T>(&self, pick: impl Fn(&gst::Message) -> Option<T>) -> Option<T> {
        self.collect();
        let mut messages = self.messages.lock().unwrap();
        let at = messages
            .iter()
            .position(|message| pick(message).is_some())?;
        pick(&messages.remove(at))
    }

    pub fn error(&self) -> String {
        let mut found = None;
        self.until("an error", || {
            found = self.has_error();
            found.is_some()
        });
        found.unwrap()
    }

    pub fn has_error(&self) -> Option<String> {
        self.take(|message| (message.type_() == gst::MessageType::Error).then(|| text(message)))
    }

    /// The next switch of this stream. Streams switch each in its own thread, in any order.
    pub fn expect_switch(&self, stream: &str, to: &str, reason: &str) {
        let mut found = None;
        self.until("a switch", || {
            found = self.take(|message| {
                let details = message.structure();
                let details = details.filter(|s| s.name() == "fallback-switch")?;
                let field = |name: &str| details.get::<String>(name).unwrap();
                (field("stream") == stream).then(|| (field("to"), field("reason")))
            });
            found.is_some()
        });
        assert_eq!(found.unwrap(), (to.to_owned(), reason.to_owned()));
    }

    pub fn assert_no_switch(&self) {
        let switch = self.has_told("fallback-switch");
        assert!(switch.is_none(), "{switch:?}, {:?}", self.statistics());
    }
}

/// How far a source has come.
#[derive(Default)]
pub struct Arrivals(Arc<AtomicU64>);

impl Arrivals {
    pub fn end_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Names of elements in the bin, with their class.
pub fn inside(element: &gst::Element) -> Vec<String> {
    let bin = element.downcast_ref::<gst::Bin>().unwrap();
    let elements = bin.iterate_recurse().into_iter().flatten();
    elements
        .map(|element| element.type_().name().to_owned())
        .collect()
}

pub fn fills(element: &gst::Element) -> usize {
    let names = inside(element);
    names.iter().filter(|name| name.ends_with("Fill")).count()
}

/// A file whose bytes are `marker`.
pub fn file(name: &str, duration: gst::ClockTime, marker: u8) -> Fault {
    let fault = Fault::file(name, duration);
    fault.mark(marker);
    fault
}

/// A live source whose bytes are `marker`.
pub fn live(name: &str, marker: u8) -> Fault {
    let fault = Fault::live(name);
    fault.mark(marker);
    fault
}
