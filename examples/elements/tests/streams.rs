//! Runs the three elements a thousand times in one pipeline, on one thread.
#![allow(missing_docs, reason = "a test")]

use std::time::{Duration, Instant};

use gst::prelude::*;

const STREAMS: usize = 1000;
const BUFFERS: u32 = 5;
/// Maximum wait of a test. It is only reached if something hangs.
const DEADLINE: gst::ClockTime = gst::ClockTime::from_seconds(300);

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn init() {
    gst::init().unwrap();
    gst::glib::log_set_always_fatal(gst::glib::LogLevels::LEVEL_CRITICAL);
    gstthreadbareexamples::plugin_register_static().unwrap();
}

fn make(name: &str) -> gst::Element {
    gst::ElementFactory::make(name).build().unwrap()
}

/// Adds a stream to the pipeline. Returns its sink.
fn add_stream(pipeline: &gst::Pipeline, buffers: u32) -> gst::Element {
    let (ticker, delay, counter) = (
        make("ts-exampleticker"),
        make("ts-exampledelay"),
        make("ts-examplecounter"),
    );
    ticker.set_property("context", "example");
    ticker.set_property("context-wait", 5u32);
    ticker.set_property("num-buffers", buffers);
    delay.set_property("delay", 30u32);
    let elements = [&ticker, &delay, &counter];
    pipeline.add_many(elements).unwrap();
    gst::Element::link_many(elements).unwrap();
    counter
}

fn counted(sink: &gst::Element) -> u64 {
    sink.property("counted")
}

fn play_to_end(pipeline: &gst::Pipeline) {
    pipeline.set_state(gst::State::Playing).unwrap();
    let kinds = [gst::MessageType::Eos, gst::MessageType::Error];
    let message = pipeline.bus().unwrap().timed_pop_filtered(DEADLINE, &kinds);
    let message = message.expect("no end of the stream");
    assert_eq!(message.type_(), gst::MessageType::Eos, "{message:?}");
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(300);
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

// This is the only test in its process, because it counts the threads of the process.
#[test]
fn a_thousand_streams_take_as_many_threads_as_one() {
    init();
    let pipeline = gst::Pipeline::new();
    let one = add_stream(&pipeline, u32::MAX);
    pipeline.set_state(gst::State::Playing).unwrap();
    eventually("the first buffer", || counted(&one) > 0);
    let of_one = threads();

    let many = gst::Pipeline::new();
    let sinks: Vec<gst::Element> = (0..STREAMS).map(|_| add_stream(&many, BUFFERS)).collect();
    play_to_end(&many);
    assert_eq!(threads(), of_one);
    for sink in &sinks {
        assert_eq!(counted(sink), u64::from(BUFFERS));
    }

    // The result of the latency query contains the latency of each element.
    let mut latency = gst::query::Latency::new();
    assert!(pipeline.query(&mut latency));
    let (is_live, min, max) = latency.result();
    assert!(is_live);
    // The last 20 ms are the processing deadline, which every sink adds.
    assert_eq!(min, gst::ClockTime::from_mseconds(5 + 30 + 20));
    assert_eq!(max, None);

    // The state goes down and up while buffers wait.
    for state in [gst::State::Null, gst::State::Playing, gst::State::Ready] {
        let before = counted(&one);
        pipeline.set_state(state).unwrap();
        if state == gst::State::Playing {
            eventually("it goes on", || counted(&one) > before);
        }
    }
    for pipeline in [&many, &pipeline] {
        pipeline.set_state(gst::State::Null).unwrap();
    }
}
