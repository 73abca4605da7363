//! A fill on a test clock, and its output.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use gst::prelude::*;
use gst_check::TestClock;

use super::Fill;

pub(super) const MS: gst::ClockTime = gst::ClockTime::MSECOND;
pub(super) const SECOND: gst::ClockTime = gst::ClockTime::SECOND;
/// No test waits this long unless it hangs.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
pub(super) const DEADLINE_GST: gst::ClockTime = gst::ClockTime::from_seconds(30);

pub(super) fn init() {
    gst::init().unwrap();
}

pub(super) fn silence(caps: Option<gst::Caps>) -> Fill {
    init();
    Fill::silence(caps)
}

pub(super) fn black(caps: Option<gst::Caps>) -> Fill {
    init();
    Fill::black(caps)
}

pub(super) fn still(sample: gst::Sample, caps: Option<gst::Caps>) -> Fill {
    init();
    Fill::still(sample, caps)
}

pub(super) fn caps(text: &str) -> gst::Caps {
    init();
    text.parse().unwrap()
}

pub(super) fn context() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("fill{}", NEXT.fetch_add(1, Relaxed))
}

#[derive(Debug)]
pub(super) enum Seen {
    Buffer(gst::Buffer),
    Event(gst::Event),
}

/// Blocks pushes while it is closed.
#[derive(Default)]
pub(super) struct Gate {
    /// Whether the gate is closed, and whether a push waits.
    pub(super) state: Mutex<(bool, bool)>,
    pub(super) changed: Condvar,
}

impl Gate {
    pub(super) fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        while state.0 {
            state.1 = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        state.1 = false;
    }
}

/// A fill, and a pad that accepts some caps.
pub(super) struct Rig {
    pub(super) fill: Fill,
    pub(super) drain: gst::Pad,
    pub(super) seen: Receiver<Seen>,
    pub(super) takes: Arc<Mutex<gst::Caps>>,
    pub(super) gate: Arc<Gate>,
    pub(super) bus: gst::Bus,
    pub(super) clock: TestClock,
}

impl Rig {
    /// Creates an element in NULL, with a test clock at `clock`.
    pub(super) fn new(fill: Fill, takes: &str, clock: gst::ClockTime) -> Rig {
        let (send, seen) = channel();
        let takes = Arc::new(Mutex::new(caps(takes)));
        let gate = Arc::<Gate>::default();
        let drain = drain(send, takes.clone(), gate.clone());
        drain.set_active(true).unwrap();
        fill.static_pad("src")
            .unwrap()
            .link_full(&drain, gst::PadLinkCheck::empty())
            .unwrap();
        fill.set_property("context", context());
        let bus = gst::Bus::new();
        fill.set_bus(Some(&bus));
        let clock = TestClock::with_start_time(clock);
        fill.set_clock(Some(&clock)).unwrap();
        fill.set_base_time(gst::ClockTime::ZERO);
        Rig {
            fill,
            drain,
            seen,
            takes,
            gate,
            bus,
            clock,
        }
    }

    pub(super) fn playing(fill: Fill, takes: &str) -> Rig {
        let rig = Rig::new(fill, takes, gst::ClockTime::ZERO);
        rig.to(gst::State::Playing);
        rig
    }

    pub(super) fn to(&self, state: gst::State) {
        self.fill.set_state(state).unwrap();
        if state == gst::State::Paused {
            eventually("no wait is left", || self.clock.peek_id_count() == 0);
        }
    }

    pub(super) fn buffer(&self) -> gst::Buffer {
        loop {
            if let Seen::Buffer(buffer) = self.seen.recv_timeout(DEADLINE).expect("no buffer came")
            {
                return buffer;
            }
        }
    }

    pub(super) fn event(&self, kind: gst::EventType) -> gst::Event {
        loop {
            match self.seen.recv_timeout(DEADLINE).expect("no event came") {
                Seen::Event(event) if event.type_() == kind => return event,
                _ => {}
            }
        }
    }

    /// Advances the time to the next one that the fill waits for.
    pub(super) fn step(&self) -> gst::ClockTime {
        let due = self.clock.wait_for_next_pending_id().time();
        self.run_to(due);
        due
    }

    pub(super) fn run_to(&self, time: gst::ClockTime) {
        drop(self.clock.wait_for_next_pending_id());
        self.clock.set_time(time);
        self.clock.process_next_clock_id();
    }

    pub(super) fn assert_idle(&self) {
        drop(self.clock.wait_for_next_pending_id());
        assert!(
            self.seen
                .try_iter()
                .all(|seen| !matches!(seen, Seen::Buffer(_)))
        );
    }

    pub(super) fn hold(&self, holds: bool) {
        self.gate.state.lock().unwrap().0 = holds;
        self.gate.changed.notify_all();
    }

    pub(super) fn await_held(&self) {
        let state = self.gate.state.lock().unwrap();
        let waits = |state: &mut (bool, bool)| !state.1;
        let (_state, timeout) = (self.gate.changed)
            .wait_timeout_while(state, DEADLINE, waits)
            .unwrap();
        assert!(!timeout.timed_out(), "no push is held");
    }

    pub(super) fn message(&self, kind: gst::MessageType) -> gst::Message {
        let message = self.bus.timed_pop_filtered(DEADLINE_GST, &[kind]);
        message.unwrap_or_else(|| panic!("no {kind:?}"))
    }

    pub(super) fn caps(&self) -> gst::Caps {
        self.drain.current_caps().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.hold(false);
        self.fill.set_bus(None);
        self.to(gst::State::Null);
    }
}

pub(super) fn drain(send: Sender<Seen>, takes: Arc<Mutex<gst::Caps>>, gate: Arc<Gate>) -> gst::Pad {
    let of_events = send.clone();
    gst::Pad::builder(gst::PadDirection::Sink)
        .chain_function(move |_, _, buffer| {
            gate.pass();
            let _ = send.send(Seen::Buffer(buffer));
            Ok(gst::FlowSuccess::Ok)
        })
        .event_function(move |_, _, event| {
            let _ = of_events.send(Seen::Event(event));
            true
        })
        .query_function(move |pad, parent, query| match query.view_mut() {
            gst::QueryViewMut::Caps(query) => {
                let takes = takes.lock().unwrap().clone();
                query.set_result(&match query.filter() {
                    Some(filter) => takes.intersect(filter),
                    None => takes,
                });
                true
            }
            gst::QueryViewMut::AcceptCaps(query) => {
                let accepted = takes.lock().unwrap().can_intersect(query.caps());
                query.set_result(accepted);
                true
            }
            _ => gst::Pad::query_default(pad, parent, query),
        })
        .build()
}

pub(super) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn bytes(buffer: &gst::BufferRef) -> Vec<u8> {
    buffer.map_readable().unwrap().to_vec()
}

/// Returns the address of a buffer's only memory.
pub(super) fn memory(buffer: &gst::BufferRef) -> *const u8 {
    assert_eq!(buffer.n_memory(), 1);
    buffer.map_readable().unwrap().as_ptr()
}
