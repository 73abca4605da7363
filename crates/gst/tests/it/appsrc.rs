//! `ts-appsrc`: data from an application, by the signals of the stock element.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;

fn give(element: &gst::Element, number: u32) -> bool {
    element.emit_by_name("push-buffer", &[&numbered(number)])
}

fn playing(properties: &str) -> Rig {
    Rig::without_stream(
        &format!(
            "ts-appsrc context={} context-wait=1 {properties}",
            context()
        ),
        gst::State::Playing,
    )
}

#[test]
fn buffers_follow_caps_and_segment_in_order() {
    let rig = playing("caps=application/x-test,n=1");
    for i in 0..5 {
        assert!(give(&rig.element, i));
    }
    rig.event(gst::EventType::StreamStart);
    let caps = rig.event(gst::EventType::Caps);
    assert_eq!(caps.structure().unwrap().name(), "GstEventCaps");
    rig.event(gst::EventType::Segment);
    for i in 0..5 {
        assert_eq!(number(&rig.buffer()), i);
    }
    assert!(rig.element.emit_by_name::<bool>("end-of-stream", &[]));
    rig.event(gst::EventType::Eos);
    assert!(!give(&rig.element, 9), "after the end nothing is taken");
}

#[test]
fn buffers_are_refused_before_the_element_runs_and_when_its_queue_is_full() {
    let rig = Rig::without_stream(
        &format!("ts-appsrc max-buffers=3 context={}", context()),
        gst::State::Ready,
    );
    assert!(!give(&rig.element, 0));
    let enough = Arc::new(AtomicUsize::new(0));
    let count = enough.clone();
    rig.element.connect("enough-data", false, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        None
    });
    // The source is live, so it keeps its data in PAUSED.
    rig.to(gst::State::Paused);
    let taken: Vec<bool> = (0..5).map(|i| give(&rig.element, i)).collect();
    assert_eq!(taken, [true, true, true, false, false]);
    assert_eq!(enough.load(Ordering::Relaxed), 1, "said once");
    assert_eq!(rig.element.property::<u64>("current-level-buffers"), 3);
    rig.to(gst::State::Playing);
    for i in 0..3 {
        assert_eq!(number(&rig.buffer()), i);
    }
}

#[test]
fn an_empty_source_emits_need_data_and_accepts_data_in_the_handler() {
    let rig = Rig::without_stream(
        &format!("ts-appsrc context={} context-wait=1", context()),
        gst::State::Ready,
    );
    let given = AtomicUsize::new(0);
    rig.element.connect("need-data", false, move |values| {
        let element = values[0].get::<gst::Element>().unwrap();
        let number = given.fetch_add(1, Ordering::Relaxed);
        let done = if number < 10 {
            give(&element, number as u32)
        } else {
            element.emit_by_name::<bool>("end-of-stream", &[])
        };
        assert!(done);
        None
    });
    rig.to(gst::State::Playing);
    for i in 0..10 {
        assert_eq!(number(&rig.buffer()), i);
    }
    rig.event(gst::EventType::Eos);
}

#[test]
fn a_pushed_sample_sets_the_caps_and_a_buffer_list_is_not_split() {
    let rig = playing("");
    let caps = |n: i32| {
        gst::Caps::builder("application/x-test")
            .field("n", n)
            .build()
    };
    for (i, n) in [1, 1, 2].into_iter().enumerate() {
        let buffer = numbered(i as u32);
        let sample = gst::Sample::builder()
            .buffer(&buffer)
            .caps(&caps(n))
            .build();
        assert!(rig.element.emit_by_name::<bool>("push-sample", &[&sample]));
    }
    let mut list = gst::BufferList::new();
    list.make_mut().add(numbered(3));
    list.make_mut().add(numbered(4));
    assert!(
        rig.element
            .emit_by_name::<bool>("push-buffer-list", &[&list])
    );
    let mut order = Vec::new();
    while order.last() != Some(&4) {
        match rig.seen.recv_timeout(DEADLINE).unwrap() {
            Seen::Buffer(buffer) => order.push(number(&buffer)),
            Seen::Event(event) if event.type_() == gst::EventType::Caps => order.push(100),
            Seen::Event(_) => {}
        }
    }
    assert_eq!(order, [100, 0, 1, 100, 2, 3, 4]);
}

#[test]
fn a_blocking_push_waits_for_room_and_is_released() {
    let rig = playing("max-buffers=1 block=true");
    let gate = gate(&rig.element.static_pad("src").unwrap());
    assert!(give(&rig.element, 0));
    gate.wait_held();
    assert!(give(&rig.element, 1));
    let element = rig.element.clone();
    let (send, done) = channel();
    let pusher = until_it_waits(move || {
        send.send(give(&element, 2)).unwrap();
        send.send(give(&element, 3)).unwrap();
        send.send(give(&element, 4)).unwrap();
    });
    assert!(done.try_recv().is_err());
    gate.open();
    assert!(done.recv_timeout(DEADLINE).unwrap());
    for i in 0..3 {
        assert_eq!(number(&rig.buffer()), i);
    }
    within("the pusher", move || pusher.join().unwrap());
}

#[test]
fn stopping_releases_a_pusher_that_waits() {
    let rig = Rig::without_stream(
        &format!("ts-appsrc max-buffers=1 block=true context={}", context()),
        gst::State::Paused,
    );
    assert!(give(&rig.element, 0));
    let element = rig.element.clone();
    let pusher = until_it_waits(move || give(&element, 1));
    rig.to(gst::State::Ready);
    assert!(!within("the pusher", move || pusher.join().unwrap()));
}

#[test]
fn buffers_without_times_are_stamped_if_configured() {
    for stamps in [true, false] {
        let pipe = Pipe::parse(&format!(
            "ts-appsrc name=in context={} do-timestamp={stamps} ! fakesink name=out async=false sync=false",
            context()
        ));
        let seen = watch(&pipe.pad("out", "sink"));
        pipe.play();
        assert!(give(&pipe.get("in"), 0));
        assert_eq!(next_buffer(&seen).pts().is_some(), stamps);
        let own = gst::ClockTime::from_seconds(5);
        let buffer = timed(1, own);
        assert!(
            pipe.get("in")
                .emit_by_name::<bool>("push-buffer", &[&buffer])
        );
        assert_eq!(next_buffer(&seen).pts(), Some(own));
    }
}

#[test]
fn a_source_that_is_not_live_lets_a_sink_preroll() {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in is-live=false context={} ! fakesink name=out sync=false",
        context()
    ));
    assert_eq!(
        pipe.0.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::Async)
    );
    assert!(give(&pipe.get("in"), 0));
    pipe.to(gst::State::Paused);
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.to(gst::State::Playing);
    assert!(give(&pipe.get("in"), 1));
    assert_eq!(number(&next_buffer(&seen)), 1);
}

#[test]
fn latency_is_the_applications_plus_a_slice() {
    let rig = playing("context-wait=20 min-latency=5000000 max-latency=50000000");
    let mut query = gst::query::Latency::new();
    assert!(rig.drain.peer_query(&mut query));
    let ms = gst::ClockTime::from_mseconds;
    let (is_live, min, max) = query.result();
    assert!(is_live);
    let wait = min - ms(5);
    assert_eq!((min, max), (ms(5) + wait, Some(ms(50) + wait)));
}

/// Data arrives while a full sink blocks the source. It wakes the source in vain, but is not forgotten.
#[test]
fn buffers_pushed_while_blocked_leave_in_order() {
    let shared = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={shared} context-wait=1 max-buffers=0 ! ts-appsink name=out sync=false async=false max-buffers=1 \
         ts-appsrc name=other context={shared} ! fakesink name=free sync=false async=false"
    ));
    let free = watch(&pipe.pad("free", "sink"));
    pipe.play();
    let (source, sink, other) = (pipe.get("in"), pipe.get("out"), pipe.get("other"));
    for round in 0..20 {
        // One buffer is in the sink, one waits for room, and one is in the queue. Each is handled in a separate slice, because
        // the test waits for the neighbour's buffer before it gives the next one.
        for n in 0..3 {
            assert!(give(&source, 3 * round + n));
            assert!(give(&other, n));
            assert_eq!(number(&next_buffer(&free)), n);
        }
        for n in 0..3 {
            let sample = sink.emit_by_name::<Option<gst::Sample>>("pull-sample", &[]);
            let buffer = sample.and_then(|sample| sample.buffer_owned());
            assert_eq!(number(&buffer.expect("a buffer")), 3 * round + n);
        }
    }
}

/// A pass ends with the last item of its budget. One more item arrives before the next pass, and nothing else wakes the source.
#[test]
fn buffers_are_pushed_even_if_a_pass_reached_its_limit() {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={} max-buffers=0 ! fakesink name=out sync=false async=false",
        context()
    ));
    pipe.to(gst::State::Paused);
    let (source, out) = (pipe.get("in"), pipe.pad("out", "sink"));
    for n in 0..PASS {
        assert!(give(&source, n));
    }
    let seen = watch(&out);
    let late = source.clone();
    out.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if info
            .buffer()
            .is_some_and(|buffer| number(buffer) == PASS - 1)
        {
            assert!(give(&late, PASS));
        }
        gst::PadProbeReturn::Ok
    });
    pipe.play();
    for n in 0..=PASS {
        assert_eq!(number(&next_buffer(&seen)), n);
    }
}

/// Number of items in one pass.
const PASS: u32 = 64;

#[test]
fn after_an_error_downstream_data_is_refused_and_the_error_reported() {
    // Without a limit, the source always requests more.
    let rig = playing("max-buffers=0");
    *rig.answer.lock().unwrap() = Err(gst::FlowError::NotSupported);
    assert!(give(&rig.element, 0));
    assert!(text(&rig.error()).contains("NotSupported"));
    eventually("nothing is taken any more", || !give(&rig.element, 1));
}

#[test]
fn flush_empties_the_element_and_data_resumes() {
    let rig = playing("");
    let gate = gate(&rig.element.static_pad("src").unwrap());
    for i in 0..3 {
        give(&rig.element, i);
    }
    gate.wait_held();
    rig.element.send_event(gst::event::FlushStart::new());
    assert!(!give(&rig.element, 7), "while it flushes");
    gate.open();
    rig.element.send_event(gst::event::FlushStop::new(true));
    eventually("it goes on", || give(&rig.element, 9));
    rig.event(gst::EventType::FlushStop);
    assert_eq!(number(&rig.buffer()), 9);
}

#[test]
fn the_element_works_after_each_restart() {
    let rig = Rig::without_stream(
        &format!("ts-appsrc context={}", context()),
        gst::State::Null,
    );
    let order = Arc::new(Mutex::new(Vec::new()));
    for round in 0..2 {
        for state in [gst::State::Ready, gst::State::Null, gst::State::Ready] {
            rig.to(state);
        }
        rig.drain.set_active(true).unwrap();
        rig.to(gst::State::Playing);
        assert!(give(&rig.element, round));
        order.lock().unwrap().push(number(&rig.buffer()));
        if round == 0 {
            assert!(rig.element.emit_by_name::<bool>("end-of-stream", &[]));
            rig.event(gst::EventType::Eos);
        }
        rig.to(gst::State::Null);
        rig.drain.set_active(false).unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1]);
}
