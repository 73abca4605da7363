//! Sources that fail as they are told. `faultsrc` has an always pad with raw audio, `faultavsrc` sometimes pads with raw audio and
//! raw video. A test holds a [`Fault`] by a name; elements find it by their property `fault`, or by the URI `fault://NAME` or
//! `faultav://NAME`, and report to it, one after the other, as long as the test holds it.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test crates")]

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, Once, Weak};

use gst::glib;
use gst::prelude::*;

use crate::common::{self, DEADLINE, Gate};

mod element;

pub use element::Outcome;

/// Registers the elements.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        common::init();
        element::register();
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Audio,
    Video,
}

impl Stream {
    fn index(self) -> usize {
        self as usize
    }

    /// Of a buffer that is said nothing about.
    pub fn duration(self) -> gst::ClockTime {
        match self {
            Stream::Audio => 20 * gst::ClockTime::MSECOND,
            Stream::Video => 40 * gst::ClockTime::MSECOND,
        }
    }

    /// What it makes at first.
    pub fn caps(self) -> gst::Caps {
        let text = match self {
            Stream::Audio => {
                "audio/x-raw,format=S16LE,rate=48000,channels=2,layout=interleaved,channel-mask=(bitmask)0x3"
            }
            Stream::Video => "video/x-raw,format=GRAY8,width=64,height=36,framerate=25/1",
        };
        text.parse().unwrap()
    }

    /// A buffer of these caps, all bytes the same.
    pub fn buffer(self, marker: u8, pts: impl Into<Option<gst::ClockTime>>) -> gst::Buffer {
        let size = match self {
            Stream::Audio => 960 * 4,
            Stream::Video => 64 * 36,
        };
        let mut buffer = gst::Buffer::from_slice(vec![marker; size]);
        let fields = buffer.get_mut().unwrap();
        fields.set_pts(pts);
        fields.set_duration(self.duration());
        buffer
    }
}

/// What a source does next.
#[derive(Debug, Clone)]
pub enum Step {
    /// Pushes it, whatever its time. If that fails, the source does, as a stock source.
    Buffer(gst::Buffer),
    /// Pushes it with the present running time.
    Now(gst::Buffer),
    /// Pushes an event, such as caps; if downstream refuses these, the next buffer fails.
    Event(gst::Event),
    /// Fails as a stock source does: an error message of its own, one about the flow, EOS.
    Error(String),
    /// Ends the stream.
    Eos,
}

/// A test's hand on the sources of a name.
#[derive(Clone)]
pub struct Fault(Arc<Shared>);

struct Shared {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    steps: [VecDeque<(Step, Sender<Outcome>)>; 2],
    /// At this position, instead of what else would come.
    planned: Vec<(Stream, gst::ClockTime, Step)>,
    plays: bool,
    is_live: bool,
    duration: Option<gst::ClockTime>,
    marker: u8,
    refusals: usize,
    start_gate: Option<Gate>,
    stop_gate: Option<Gate>,
    log: Log,
}

/// What the sources of a name have reported.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// Sources made and not yet finalised.
    pub alive: usize,
    /// Sources that were given the name.
    pub made: usize,
    /// Changes from READY to PAUSED, those that were refused among them.
    pub starts: usize,
    /// Changes from PAUSED to READY.
    pub stops: usize,
    /// Positions that a seek was for.
    pub seeks: Vec<gst::ClockTime>,
    /// Other events from downstream.
    pub events: Vec<gst::Event>,
    /// Buffers pushed, whatever the outcome.
    pub buffers: [usize; 2],
}

/// A test has fewer.
const LOG_MAX: usize = 10_000;

static NAMES: LazyLock<Mutex<HashMap<String, Weak<Shared>>>> = LazyLock::new(Mutex::default);

fn find(name: &str) -> Option<Arc<Shared>> {
    NAMES.lock().unwrap().get(name).and_then(Weak::upgrade)
}

impl Fault {
    /// Of a live source that waits for its steps. The name is part of a URI.
    pub fn live(name: &str) -> Fault {
        let fault = Fault::new(name);
        fault.0.state().is_live = true;
        fault
    }

    /// Of a file of this duration, played as fast as it is pulled; it can be sought.
    pub fn file(name: &str, duration: gst::ClockTime) -> Fault {
        let fault = Fault::new(name);
        {
            let mut state = fault.0.state();
            state.duration = Some(duration);
            state.plays = true;
        }
        fault
    }

    /// Of a stream without a clock of its own, which waits for its steps, and cannot be sought.
    pub fn stream(name: &str) -> Fault {
        Fault::new(name)
    }

    fn new(name: &str) -> Fault {
        init();
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut names = NAMES.lock().unwrap();
        let before = names.insert(name.to_owned(), Arc::downgrade(&shared));
        assert!(before.is_none(), "two of the name {name}");
        Fault(shared)
    }

    /// Of `faultsrc`.
    pub fn uri(&self) -> String {
        format!("fault://{}", self.0.name)
    }

    /// Of `faultavsrc`.
    pub fn av_uri(&self) -> String {
        format!("faultav://{}", self.0.name)
    }

    /// Queues a step for the stream's present source, or the next one. The outcome comes when it is done.
    pub fn step(&self, stream: Stream, step: Step) -> Receiver<Outcome> {
        let (send, outcome) = channel();
        let queue = &mut self.0.state().steps[stream.index()];
        assert!(queue.len() < LOG_MAX, "nobody takes the steps");
        queue.push_back((step, send));
        self.0.changed.notify_all();
        outcome
    }

    /// The same, and waits for the outcome.
    pub fn done(&self, stream: Stream, step: Step) -> Outcome {
        let outcome = self.step(stream, step.clone()).recv_timeout(DEADLINE);
        outcome.unwrap_or_else(|_| panic!("{step:?} of {} is not done", self.0.name))
    }

    /// A buffer of the usual duration with this time.
    pub fn push(&self, stream: Stream, pts: gst::ClockTime) -> Outcome {
        let marker = self.0.state().marker;
        self.done(stream, Step::Buffer(stream.buffer(marker, pts)))
    }

    /// A file: at this position, once.
    pub fn plan(&self, stream: Stream, position: gst::ClockTime, step: Step) {
        self.0.state().planned.push((stream, position, step));
        self.0.changed.notify_all();
    }

    /// A file: whether it gives data; not to stalls.
    pub fn plays(&self, plays: bool) {
        self.0.state().plays = plays;
        self.0.changed.notify_all();
    }

    /// What all bytes of the buffers are from now on.
    pub fn mark(&self, marker: u8) {
        self.0.state().marker = marker;
    }

    pub fn marker(&self) -> u8 {
        self.0.state().marker
    }

    /// So many starts fail with an error message.
    pub fn refuse(&self, starts: usize) {
        self.0.state().refusals = starts;
    }

    /// The changes to PAUSED wait at this gate.
    pub fn hold_starts(&self) -> Gate {
        let gate = Gate::default();
        self.0.state().start_gate = Some(gate.clone());
        gate
    }

    /// The changes from PAUSED to READY wait at this gate.
    pub fn hold_stops(&self) -> Gate {
        let gate = Gate::default();
        self.0.state().stop_gate = Some(gate.clone());
        gate
    }

    pub fn log(&self) -> Log {
        self.0.state().log.clone()
    }

    /// Waits until the log is as it should be, and returns it.
    pub fn wait(&self, what: &str, condition: impl Fn(&Log) -> bool) -> Log {
        let state = self.0.state();
        let (state, timeout) = (self.0.changed)
            .wait_timeout_while(state, DEADLINE, |state| !condition(&state.log))
            .unwrap();
        assert!(!timeout.timed_out(), "never: {what}: {:?}", state.log);
        state.log.clone()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the log, and wakes who waits for it or for a step.
    fn report(&self, change: impl FnOnce(&mut Log)) {
        let mut state = self.state();
        change(&mut state.log);
        let kept = state.log.seeks.len().max(state.log.events.len());
        assert!(kept < LOG_MAX, "too much for a test");
        drop(state);
        self.changed.notify_all();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut names = NAMES.lock().unwrap();
        if names
            .get(&self.name)
            .is_some_and(|named| named.strong_count() == 0)
        {
            names.remove(&self.name);
        }
    }
}
