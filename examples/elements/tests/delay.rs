//! Tests the filter that delays buffers: order, cancelled waits, a suspended source, and ordinary threads.
#![allow(missing_docs, reason = "a test")]

use std::sync::Once;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gst::prelude::*;

/// Maximum wait of a test. It is only reached if something hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// A long delay, whose end no test awaits. The test cancels the wait.
const HOUR_MS: u32 = 3_600_000;

fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().unwrap();
        gst::glib::log_set_always_fatal(gst::glib::LogLevels::LEVEL_CRITICAL);
        gstthreadbare::plugin_register_static().unwrap();
        gstthreadbareexamples::plugin_register_static().unwrap();
    });
}

/// A playing pipeline, and the items that arrive at its end.
struct Pipe {
    pipeline: gst::Pipeline,
    seen: Receiver<String>,
    /// Receives an item each time when the source has pushed all its buffers and the last push has returned.
    idle: Receiver<()>,
}

impl Pipe {
    fn playing(line: &str) -> Pipe {
        init();
        let pipeline = gst::parse::launch(line).unwrap();
        let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
        let sink = pipeline.by_name("out").unwrap();
        let (send, seen) = channel();
        let kinds = gst::PadProbeType::BUFFER
            | gst::PadProbeType::EVENT_DOWNSTREAM
            | gst::PadProbeType::EVENT_FLUSH;
        let pad = sink.static_pad("sink").unwrap();
        pad.add_probe(kinds, move |_, info| {
            let what = match &info.data {
                Some(gst::PadProbeData::Buffer(buffer)) => format!("buffer {}", buffer.size()),
                Some(gst::PadProbeData::Event(event)) => event.type_().name().to_string(),
                _ => return gst::PadProbeReturn::Ok,
            };
            let _ = send.send(what);
            gst::PadProbeReturn::Ok
        });
        let (send, idle) = channel();
        if let Some(source) = pipeline.by_name("in") {
            source.connect("need-data", false, move |_| {
                let _ = send.send(());
                None
            });
        }
        pipeline.set_state(gst::State::Playing).unwrap();
        Pipe {
            pipeline,
            seen,
            idle,
        }
    }

    fn fed(delay_ms: u32) -> Pipe {
        Pipe::playing(&format!(
            "ts-appsrc name=in max-buffers=0 context=delay ! ts-exampledelay name=delay delay={delay_ms} \
             ! fakesink name=out sync=false async=false"
        ))
    }

    fn get(&self, name: &str) -> gst::Element {
        self.pipeline.by_name(name).unwrap()
    }

    /// Pushes a buffer of this many bytes with these caps.
    fn push(&self, bytes: usize, caps: &str) {
        let buffer = gst::Buffer::with_size(bytes).unwrap();
        let caps = gst::Caps::new_empty_simple(caps);
        let sample = gst::Sample::builder().buffer(&buffer).caps(&caps).build();
        assert!(
            self.get("in")
                .emit_by_name::<bool>("push-sample", &[&sample])
        );
    }

    /// Pushes the first buffer of the pipeline. When this function returns, the buffer waits in the filter.
    fn push_into_line(&self, bytes: usize, caps: &str) {
        self.idle.recv_timeout(DEADLINE).expect("it plays");
        self.push(bytes, caps);
        self.idle.recv_timeout(DEADLINE).expect("it is pushed");
    }

    /// Returns the items that arrive, up to and including `last`.
    fn up_to(&self, last: &str) -> Vec<String> {
        let mut all = Vec::new();
        while all.last().is_none_or(|seen| seen != last) {
            all.push(self.seen.recv_timeout(DEADLINE).expect(last));
        }
        all
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // If a wait is not cancelled, this call hangs. In that case the test runner names the test.
        let _ = self.pipeline.set_state(gst::State::Null);
    }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn events_keep_their_place_among_the_buffers() {
    let pipe = Pipe::fed(20);
    pipe.push(1, "application/x-one");
    pipe.push(2, "application/x-one");
    pipe.push(3, "application/x-two");
    assert!(pipe.get("in").emit_by_name::<bool>("end-of-stream", &[]));
    let mut seen = pipe.up_to("eos");
    seen.retain(|what| what.starts_with("buffer") || what == "caps" || what == "eos");
    assert_eq!(
        seen,
        ["caps", "buffer 1", "buffer 2", "caps", "buffer 3", "eos"]
    );
}

#[test]
fn a_flush_cancels_the_waits() {
    let pipe = Pipe::fed(HOUR_MS);
    pipe.push_into_line(1, "application/x-one");
    let source = pipe.get("in");
    assert!(source.send_event(gst::event::FlushStart::new()));
    assert!(source.send_event(gst::event::FlushStop::new(true)));
    pipe.up_to("flush-stop");
    pipe.get("delay").set_property("delay", 0u32);
    pipe.push(2, "application/x-one");
    let seen = pipe.up_to("buffer 2");
    assert!(!seen.contains(&"buffer 1".to_owned()), "{seen:?}");
}

#[test]
fn flush_stop_alone_cancels_the_waits() {
    let pipe = Pipe::fed(HOUR_MS);
    pipe.push_into_line(1, "application/x-one");
    let source = pipe.get("in");
    assert!(source.send_event(gst::event::FlushStop::new(true)));
    pipe.up_to("flush-stop");
    pipe.get("delay").set_property("delay", 0u32);
    pipe.push(2, "application/x-one");
    let seen = pipe.up_to("buffer 2");
    assert!(!seen.contains(&"buffer 1".to_owned()), "{seen:?}");
}

#[test]
fn a_full_line_suspends_the_source() {
    const PUSHED: u64 = 200;
    /// Number of buffers that the full filter holds. It is the limit of the filter's queue plus one.
    const HELD: u64 = 65;
    let pipe = Pipe::fed(HOUR_MS);
    let source = pipe.get("in");
    let level = || source.property::<u64>("current-level-buffers");
    for _ in 0..PUSHED {
        pipe.push(1, "application/x-one");
    }
    eventually("it is held", || level() == PUSHED - HELD);
    pipe.push(1, "application/x-one");
    assert_eq!(level(), PUSHED - HELD + 1);
}

#[test]
fn buffers_of_an_ordinary_thread_pass() {
    let pipe = Pipe::playing(
        "audiotestsrc num-buffers=3 ! ts-exampledelay delay=5 ! fakesink name=out sync=false",
    );
    let seen = pipe.up_to("eos");
    let buffers = seen.iter().filter(|what| what.starts_with("buffer"));
    assert_eq!(buffers.count(), 3);
}

/// The state is changed on another thread while the source's thread waits. The pad is then deactivated, which ends the wait.
#[test]
fn stopping_releases_a_thread_that_waits() {
    let pipe = Pipe::playing(&format!(
        "audiotestsrc ! ts-exampledelay name=delay delay={HOUR_MS} ! fakesink name=out async=false"
    ));
    let delay = pipe.get("delay");
    let level = delay.clone();
    eventually("the caps have come", || {
        let pad = level.static_pad("sink").unwrap();
        pad.current_caps().is_some()
    });
    let (send, stopped) = channel();
    std::thread::spawn(move || send.send(delay.set_state(gst::State::Ready)));
    let result = stopped.recv_timeout(DEADLINE).expect("it hangs");
    result.unwrap();
}

/// A branch of a tee is unlinked while it waits for room. After that, the other branch continues.
#[test]
fn unlinking_a_full_filter_releases_the_source() {
    let pipe = Pipe::playing(&format!(
        "ts-appsrc name=in max-buffers=0 context=delay ! tee name=t \
         t. ! fakesink name=out sync=false async=false \
         t. ! ts-exampledelay name=delay delay={HOUR_MS} ! fakesink async=false"
    ));
    let source = pipe.get("in");
    for _ in 0..100 {
        pipe.push(1, "application/x-one");
    }
    let level = || source.property::<u64>("current-level-buffers");
    eventually("it is held", || (1..100).contains(&level()));
    let pad = pipe.get("delay").static_pad("sink").unwrap();
    pad.peer().unwrap().unlink(&pad).unwrap();
    eventually("the other branch goes on", || level() == 0);
}
