//! `ts-blocking-adapter`: downstream may block, upstream never does.

use crate::common::*;
use gst::prelude::*;

#[test]
fn the_adapter_has_no_properties_of_its_own() {
    assert_properties("ts-blocking-adapter", &[]);
}

#[test]
fn all_data_passes_in_order_to_the_end() {
    let rig = Rig::new("ts-blocking-adapter", gst::State::Playing);
    for i in 0..100 {
        rig.push(numbered(i)).unwrap();
    }
    let mut list = gst::BufferList::new();
    list.make_mut().add(numbered(100));
    list.make_mut().add(numbered(101));
    rig.feed.push_list(list).unwrap();
    let caps = gst::Caps::new_empty_simple("application/x-other");
    assert!(rig.feed.push_event(gst::event::Caps::new(&caps)));
    rig.push(numbered(102)).unwrap();
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    for i in 0..102 {
        assert_eq!(number(&rig.buffer()), i);
    }
    rig.event(gst::EventType::Caps);
    assert_eq!(number(&rig.buffer()), 102);
    rig.event(gst::EventType::Eos);
    assert_eq!(rig.push(numbered(9)), Err(gst::FlowError::Eos));
}

#[test]
fn context_continues_while_downstream_blocks() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=one max-buffers=1000 context={name} ! ts-blocking-adapter ! identity name=last ! fakesink async=false sync=false \
         ts-appsrc name=two context={name} ! fakesink name=out async=false sync=false"
    ));
    let passed = watch(&pipe.pad("last", "src"));
    let gate = gate(&pipe.pad("last", "src"));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let give = |name: &str, number: u32| {
        let buffer = numbered(number);
        assert!(
            pipe.get(name)
                .emit_by_name::<bool>("push-buffer", &[&buffer])
        );
    };
    // More than the adapter holds.
    for i in 0..100 {
        give("one", i);
    }
    gate.wait_held();
    for i in 0..20 {
        give("two", i);
        assert_eq!(number(&next_buffer(&seen)), i);
    }
    // Upstream is blocked, not drained.
    assert!(pipe.get("one").property::<u64>("current-level-buffers") > 50);
    gate.open();
    for i in 0..100 {
        assert_eq!(number(&next_buffer(&passed)), i);
    }
}

#[test]
fn a_pushing_thread_waits_and_a_stop_releases_it() {
    let rig = Rig::new("ts-blocking-adapter", gst::State::Playing);
    let gate = gate(&rig.drain);
    let feed = rig.feed.clone();
    let pusher = until_it_waits(move || while feed.push(numbered(0)).is_ok() {});
    gate.wait_held();
    let open = gate.clone();
    // The blocked push returns when the pad after it is deactivated, as in a pipeline.
    let element = rig.element.clone();
    let stopper = std::thread::spawn(move || element.set_state(gst::State::Ready));
    within("the pusher", move || pusher.join().unwrap());
    open.open();
    within("the stop", move || stopper.join().unwrap().unwrap());
}

#[test]
fn flush_empties_the_element_behind_a_stuck_push() {
    let rig = Rig::new("ts-blocking-adapter", gst::State::Playing);
    let gate = gate(&rig.element.static_pad("src").unwrap());
    for i in 0..5 {
        rig.push(numbered(i)).unwrap();
    }
    gate.wait_held();
    let feed = rig.feed.clone();
    // A flush does not wait for the blocked push.
    within("a flush", move || {
        assert!(feed.push_event(gst::event::FlushStart::new()));
        assert!(feed.push_event(gst::event::FlushStop::new(true)));
    });
    rig.open_segment();
    rig.push(numbered(7)).unwrap();
    rig.event(gst::EventType::FlushStart);
    gate.open();
    rig.event(gst::EventType::FlushStop);
    rig.event(gst::EventType::Segment);
    assert_eq!(number(&rig.buffer()), 7);
}

#[test]
fn error_reaches_the_pusher_and_ends_with_a_flush() {
    let rig = Rig::new("ts-blocking-adapter", gst::State::Playing);
    *rig.answer.lock().unwrap() = Err(gst::FlowError::NotSupported);
    eventually("the error is seen", || {
        rig.push(numbered(0)) == Err(gst::FlowError::NotSupported)
    });
    *rig.answer.lock().unwrap() = Ok(gst::FlowSuccess::Ok);
    rig.feed.push_event(gst::event::FlushStart::new());
    rig.feed.push_event(gst::event::FlushStop::new(true));
    rig.event(gst::EventType::FlushStop);
    rig.open_segment();
    rig.push(numbered(1)).unwrap();
    while number(&rig.buffer()) != 1 {}
}

#[test]
fn error_after_the_end_of_the_stream_is_reported() {
    let rig = Rig::new("ts-blocking-adapter", gst::State::Playing);
    let gate = gate(&rig.element.static_pad("src").unwrap());
    *rig.answer.lock().unwrap() = Err(gst::FlowError::NotSupported);
    rig.push(numbered(0)).unwrap();
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    gate.open();
    assert!(text(&rig.error()).contains("NotSupported"));
}

#[test]
fn queries_keep_their_order() {
    let rig = Rig::new("ts-blocking-adapter", gst::State::Playing);
    rig.push(numbered(0)).unwrap();
    let mut query = gst::query::Allocation::new(None, false);
    assert!(rig.feed.peer_query(&mut query));
    assert_eq!(rig.queries.try_recv(), Ok(gst::QueryType::Allocation));
    assert_eq!(number(&rig.buffer()), 0);
    let mut query = gst::query::Latency::new();
    assert!(
        !rig.drain.peer_query(&mut query),
        "no element upstream answers"
    );
}

#[test]
fn the_context_of_upstream_is_not_announced_downstream() {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={} ! ts-blocking-adapter ! ts-queue name=q ! fakesink name=out async=false sync=false",
        context()
    ));
    let seen = watch(&pipe.pad("q", "sink"));
    pipe.play();
    let buffer = numbered(1);
    assert!(
        pipe.get("in")
            .emit_by_name::<bool>("push-buffer", &[&buffer])
    );
    loop {
        match seen.recv_timeout(DEADLINE).unwrap() {
            Seen::Buffer(_) => break,
            Seen::Event(event) => {
                let announced = |s: &gst::StructureRef| s.has_field("threadbare-context");
                assert!(!event.structure().is_some_and(announced), "{event:?}");
            }
        }
    }
}

#[test]
fn a_pipeline_without_a_clock_prerolls_and_ends() {
    let pipe = Pipe::parse("fakesrc num-buffers=50 ! ts-blocking-adapter ! fakesink");
    pipe.0.use_clock(gst::Clock::NONE);
    pipe.to(gst::State::Paused);
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
}

#[test]
fn the_element_works_after_each_restart() {
    let rig = Rig::without_stream("ts-blocking-adapter", gst::State::Null);
    goes_up_and_down(&rig, || {
        rig.feed.set_active(false).unwrap();
        rig.feed.set_active(true).unwrap();
        rig.open_stream();
        rig.push(numbered(0)).unwrap();
        rig.buffer();
    });
}
