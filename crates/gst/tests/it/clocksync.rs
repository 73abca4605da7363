//! `ts-clocksync`: passes each item at its time, and no wait outlives a flush or a stop.

use crate::common::*;
use gst::prelude::*;
use gst_check::TestClock;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;

/// Plays on a test clock from 0, with a stream opened.
fn on_clock(properties: &str) -> (Rig, TestClock) {
    let rig = Rig::without_stream(&format!("ts-clocksync {properties}"), gst::State::Null);
    let clock = TestClock::new();
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(gst::ClockTime::ZERO);
    rig.to(gst::State::Playing);
    rig.open_stream();
    (rig, clock)
}

/// Waits until the element waits for `time`, checks that it has pushed nothing, and lets it continue.
fn go(rig: &Rig, clock: &TestClock, time: gst::ClockTime) {
    let due = clock.wait_for_next_pending_id().time();
    assert_eq!(due, time);
    assert!(
        !rig.seen
            .try_iter()
            .any(|seen| matches!(seen, Seen::Buffer(_)))
    );
    clock.set_time(time);
    clock.process_next_clock_id();
}

#[test]
fn properties_are_those_of_the_stock_element() {
    let any = Some(("-9223372036854775808", "9223372036854775807"));
    let own: &[Row] = &[
        ("sync", "gboolean", "true", None, true),
        ("ts-offset", "gint64", "0", any, true),
        ("sync-to-first", "gboolean", "false", None, true),
    ];
    assert_properties("ts-clocksync", own);
    assert_stock_has("clocksync", own);
}

#[test]
fn buffers_gaps_and_lists_pass_at_their_time() {
    let (rig, clock) = on_clock("ts-offset=5000000");
    for i in 0..3 {
        rig.push(timed(i, u64::from(i + 1) * 10 * MS)).unwrap();
    }
    assert!(rig.feed.push_event(gst::event::Gap::new(40 * MS, 10 * MS)));
    let mut list = gst::BufferList::new();
    list.make_mut().add(timed(3, 50 * MS));
    list.make_mut().add(timed(4, 60 * MS));
    rig.feed.push_list(list).unwrap();
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    for i in 0..3 {
        go(&rig, &clock, u64::from(i + 1) * 10 * MS + 5 * MS);
        assert_eq!(number(&rig.buffer()), i);
    }
    go(&rig, &clock, 45 * MS);
    rig.event(gst::EventType::Gap);
    go(&rig, &clock, 55 * MS);
    assert_eq!(number(&rig.buffer()), 3);
    assert_eq!(number(&rig.buffer()), 4, "a list goes with its first");
    rig.event(gst::EventType::Eos);
    assert!(rig.push(timed(9, 100 * MS)).is_err());
}

#[test]
fn late_or_untimed_buffers_pass_at_once() {
    let (rig, clock) = on_clock("");
    clock.set_time(100 * MS);
    rig.push(timed(0, 50 * MS)).unwrap();
    rig.push(numbered(1)).unwrap();
    assert_eq!(number(&rig.buffer()), 0);
    assert_eq!(number(&rig.buffer()), 1);
    // `sync` is switched off while it holds a buffer.
    rig.push(timed(2, 500 * MS)).unwrap();
    drop(clock.wait_for_next_pending_id());
    rig.element.set_property("sync", false);
    assert_eq!(number(&rig.buffer()), 2);
    // The offset changes, too.
    rig.element.set_property("sync", true);
    rig.push(timed(3, 500 * MS)).unwrap();
    drop(clock.wait_for_next_pending_id());
    rig.element.set_property("ts-offset", -400_000_000i64);
    assert_eq!(number(&rig.buffer()), 3);
}

#[test]
fn the_offset_can_be_taken_from_the_first_buffer() {
    let (rig, clock) = on_clock("sync-to-first=true");
    clock.set_time(1000 * MS);
    let (send, notified) = std::sync::mpsc::channel();
    rig.element
        .connect_notify(Some("ts-offset"), move |element, _| {
            let _ = send.send(element.property::<i64>("ts-offset"));
        });
    rig.push(timed(0, 30 * MS)).unwrap();
    assert_eq!(number(&rig.buffer()), 0);
    assert_eq!(notified.recv_timeout(DEADLINE), Ok(970_000_000));
    rig.push(timed(1, 50 * MS)).unwrap();
    go(&rig, &clock, 1020 * MS);
    assert_eq!(number(&rig.buffer()), 1);
}

#[test]
fn a_flush_ends_the_wait_at_once() {
    let (rig, clock) = on_clock("");
    for i in 0..3 {
        rig.push(timed(i, gst::ClockTime::from_seconds(3600)))
            .unwrap();
    }
    drop(clock.wait_for_next_pending_id());
    assert!(rig.feed.push_event(gst::event::FlushStart::new()));
    assert!(rig.feed.push_event(gst::event::FlushStop::new(false)));
    rig.event(gst::EventType::FlushStop);
    rig.open_segment();
    rig.push(timed(7, gst::ClockTime::ZERO)).unwrap();
    assert_eq!(
        number(&rig.buffer()),
        7,
        "those from before the flush are gone"
    );
    eventually("nothing waits on the clock", || clock.peek_id_count() == 0);
}

#[test]
fn a_stop_ends_the_wait_at_once() {
    let (rig, clock) = on_clock("");
    rig.push(timed(0, gst::ClockTime::from_seconds(3600)))
        .unwrap();
    drop(clock.wait_for_next_pending_id());
    // This thread pushes until it has to wait.
    let feed = rig.feed.clone();
    let pusher = until_it_waits(move || {
        while feed
            .push(timed(1, gst::ClockTime::from_seconds(3600)))
            .is_ok()
        {}
    });
    rig.to(gst::State::Ready);
    within("the pusher", move || pusher.join().unwrap());
    assert_eq!(clock.peek_id_count(), 0);
}

#[test]
fn timed_buffers_are_held_in_paused() {
    let rig = Rig::without_stream("ts-clocksync", gst::State::Null);
    let clock = TestClock::new();
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(gst::ClockTime::ZERO);
    assert_eq!(
        rig.element.set_state(gst::State::Paused),
        Ok(gst::StateChangeSuccess::NoPreroll)
    );
    rig.open_stream();
    rig.push(timed(0, gst::ClockTime::ZERO)).unwrap();
    assert!(
        rig.feed
            .push_event(gst::event::Tag::new(gst::TagList::new()))
    );
    rig.event(gst::EventType::Segment);
    assert!(rig.seen.try_recv().is_err());
    rig.to(gst::State::Playing);
    assert_eq!(number(&rig.buffer()), 0);
    // Items that are not held pass.
    rig.element.set_property("sync", false);
    rig.to(gst::State::Paused);
    rig.push(timed(1, gst::ClockTime::ZERO)).unwrap();
    assert_eq!(number(&rig.buffer()), 1);
}

#[test]
fn upstream_latency_is_applied_and_reported() {
    init();
    let rig = Rig::without_stream("ts-clocksync", gst::State::Null);
    // A live source of 30 ms.
    rig.feed.set_active(false).unwrap();
    rig.feed
        .unlink(&rig.element.static_pad("sink").unwrap())
        .unwrap();
    let feed = gst::Pad::builder(gst::PadDirection::Src)
        .query_function(|pad, parent, query| match query.view_mut() {
            gst::QueryViewMut::Latency(latency) => {
                latency.set(true, 30 * MS, gst::ClockTime::NONE);
                true
            }
            _ => gst::Pad::query_default(pad, parent, query),
        })
        .build();
    feed.set_active(true).unwrap();
    feed.link(&rig.element.static_pad("sink").unwrap()).unwrap();
    let clock = TestClock::new();
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(gst::ClockTime::ZERO);
    rig.to(gst::State::Playing);
    let mut query = gst::query::Latency::new();
    assert!(rig.drain.peer_query(&mut query));
    assert_eq!(query.result(), (true, 30 * MS, None));
    feed.push_event(gst::event::StreamStart::new("a-stream"));
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    feed.push_event(gst::event::Segment::new(&segment));
    feed.push(timed(0, 10 * MS)).unwrap();
    go(&rig, &clock, 40 * MS);
    assert_eq!(number(&rig.buffer()), 0);
    let mut query = gst::query::Allocation::new(None, false);
    assert!(feed.peer_query(&mut query), "a serialized query passes");
}

#[test]
fn a_wait_does_not_block_the_context_that_pushes() {
    // Two branches on one thread: the one that waits for an hour does not block the other.
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=one context={name} ! ts-clocksync ! fakesink async=false sync=false \
         ts-appsrc name=two context={name} ! fakesink name=out async=false sync=false"
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let give = |name: &str, buffer: gst::Buffer| {
        assert!(
            pipe.get(name)
                .emit_by_name::<bool>("push-buffer", &[&buffer])
        );
    };
    give("one", timed(0, gst::ClockTime::from_seconds(3600)));
    give("one", timed(1, gst::ClockTime::from_seconds(3600)));
    for i in 0..20 {
        give("two", numbered(i));
        assert_eq!(number(&next_buffer(&seen)), i);
    }
}

#[test]
fn stream_ends_on_the_system_clock_and_without_a_clock() {
    for clock in [true, false] {
        let pipe = Pipe::parse(
            "audiotestsrc num-buffers=5 samplesperbuffer=441 ! ts-clocksync ! fakesink name=out sync=false",
        );
        if !clock {
            pipe.0.use_clock(gst::Clock::NONE);
        }
        pipe.play();
        pipe.expect(gst::MessageType::Eos);
    }
}

#[test]
fn caps_may_change_and_errors_reach_the_pusher() {
    let (rig, _clock) = on_clock("");
    let caps = gst::Caps::new_empty_simple("application/x-other");
    rig.event(gst::EventType::Caps);
    rig.feed.push_event(gst::event::Caps::new(&caps));
    rig.event(gst::EventType::Caps);
    *rig.answer.lock().unwrap() = Err(gst::FlowError::NotSupported);
    eventually("the error is seen", || {
        rig.push(timed(0, gst::ClockTime::ZERO)) == Err(gst::FlowError::NotSupported)
    });
}

#[test]
fn the_element_works_after_each_restart() {
    let rig = Rig::without_stream("ts-clocksync", gst::State::Null);
    goes_up_and_down(&rig, || {
        rig.feed.set_active(false).unwrap();
        rig.feed.set_active(true).unwrap();
        rig.open_stream();
        rig.push(timed(0, gst::ClockTime::ZERO)).unwrap();
        rig.buffer();
    });
}
