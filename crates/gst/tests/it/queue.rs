//! `ts-queue`: limits, leaks, events, queries, back-pressure.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::from_mseconds(1);

/// Returns a queue whose first buffer is held downstream, so that later ones stay in it.
fn held(properties: &str) -> (Rig, Gate) {
    let line = format!("ts-queue context={} {properties}", context());
    let rig = Rig::new(&line, gst::State::Playing);
    let gate = gate(&rig.element.static_pad("src").unwrap());
    rig.push(numbered(0)).unwrap();
    gate.wait_held();
    (rig, gate)
}

#[test]
fn the_queue_passes_buffers_and_events_in_order_on_its_own_thread() {
    let rig = Rig::new("ts-queue context=order-q", gst::State::Playing);
    let names = Arc::new(Mutex::new(Vec::new()));
    let of_probe = names.clone();
    rig.element
        .static_pad("src")
        .unwrap()
        .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let name = std::thread::current().name().map(str::to_owned);
            of_probe.lock().unwrap().push(name);
            gst::PadProbeReturn::Ok
        });
    let caps = gst::Caps::new_empty_simple("application/x-one");
    for i in 0..100 {
        if i == 50 {
            assert!(rig.feed.push_event(gst::event::Caps::new(&caps)));
        }
        rig.push(numbered(i)).unwrap();
    }
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    for i in 0..50 {
        assert_eq!(number(&rig.buffer()), i);
    }
    rig.event(gst::EventType::Caps);
    for i in 50..100 {
        assert_eq!(number(&rig.buffer()), i);
    }
    rig.event(gst::EventType::Eos);
    let names = names.lock().unwrap();
    assert_eq!(names.len(), 100);
    let own = Some("ts:order-q".to_owned());
    assert!(names.iter().all(|name| *name == own), "{names:?}");
}

#[test]
fn events_do_not_count_against_limits() {
    let (rig, gate) = held("max-size-buffers=2 max-size-bytes=0 max-size-time=0");
    let feed = rig.feed.clone();
    within("events into a queue", move || {
        for i in 0..50u32 {
            let structure = gst::Structure::builder("x").field("i", i).build();
            assert!(feed.push_event(gst::event::CustomDownstream::new(structure)));
        }
    });
    assert_eq!(rig.level(), 0);
    rig.push(numbered(1)).unwrap();
    rig.push(numbered(2)).unwrap();
    assert_eq!(rig.level(), 2);
    // Now the queue is full, and events still do not wait.
    let feed = rig.feed.clone();
    within("an event into a full queue", move || {
        let structure = gst::Structure::new_empty("x");
        assert!(feed.push_event(gst::event::CustomDownstream::new(structure)));
    });
    gate.open();
    for i in 0..3 {
        assert_eq!(number(&rig.buffer()), i);
    }
}

#[test]
fn each_limit_blocks_an_ordinary_thread_and_a_change_applies_at_once() {
    for (limit, raised) in [
        ("max-size-buffers", "max-size-buffers"),
        ("max-size-bytes", "max-size-bytes"),
        ("max-size-time", "max-size-time"),
    ] {
        let (rig, gate) = held("max-size-buffers=0 max-size-bytes=0 max-size-time=0");
        let value = match limit {
            "max-size-buffers" => "3",
            "max-size-bytes" => "12",
            _ => "20000000",
        };
        rig.element.set_property_from_str(limit, value);
        for i in 1..=3 {
            rig.push(timed(i, 10 * MS * u64::from(i))).unwrap();
        }
        assert_eq!(rig.level(), 3);
        assert_eq!(rig.element.property::<u32>("current-level-bytes"), 12);
        assert_eq!(
            rig.element.property::<u64>("current-level-time"),
            20_000_000
        );
        let overruns = Arc::new(AtomicU32::new(0));
        let of_signal = overruns.clone();
        rig.element.connect("overrun", false, move |_| {
            of_signal.fetch_add(1, Ordering::SeqCst);
            None
        });
        let result = rig.push_aside(timed(4, 40 * MS));
        eventually("overrun", || overruns.load(Ordering::SeqCst) == 1);
        assert_eq!(rig.level(), 3, "{limit}");
        assert!(result.try_recv().is_err(), "{limit} blocks no pusher");
        rig.element.set_property_from_str(raised, "0");
        assert_eq!(
            result.recv_timeout(DEADLINE).unwrap(),
            Ok(gst::FlowSuccess::Ok)
        );
        assert_eq!(rig.level(), 4);
        gate.open();
        for i in 0..=4 {
            assert_eq!(number(&rig.buffer()), i);
        }
    }
}

#[test]
fn leaky_upstream_drops_new_buffers() {
    let (rig, gate) = held("leaky=upstream max-size-buffers=2");
    for i in 1..=5 {
        rig.push(numbered(i)).unwrap();
    }
    assert_eq!(rig.level(), 2);
    gate.open();
    for i in 0..=2 {
        assert_eq!(number(&rig.buffer()), i);
    }
    rig.push(numbered(6)).unwrap();
    let after = rig.buffer();
    assert_eq!(number(&after), 6);
    assert!(after.flags().contains(gst::BufferFlags::DISCONT));
}

#[test]
fn leaky_downstream_drops_old_buffers_and_keeps_events() {
    let (rig, gate) = held("leaky=downstream max-size-buffers=2");
    rig.push(numbered(1)).unwrap();
    let caps = gst::Caps::new_empty_simple("application/x-kept");
    assert!(rig.feed.push_event(gst::event::Caps::new(&caps)));
    for i in 2..=5 {
        rig.push(numbered(i)).unwrap();
    }
    assert_eq!(rig.level(), 2);
    gate.open();
    assert_eq!(number(&rig.buffer()), 0);
    rig.event(gst::EventType::Caps);
    let first = rig.buffer();
    assert_eq!(number(&first), 4);
    assert!(first.flags().contains(gst::BufferFlags::DISCONT));
    assert_eq!(number(&rig.buffer()), 5);
}

#[test]
fn a_pusher_that_waits_is_released_when_the_queue_turns_leaky() {
    let (rig, gate) = held("max-size-buffers=1");
    rig.push(numbered(1)).unwrap();
    let result = rig.push_aside(numbered(2));
    rig.element.set_property_from_str("leaky", "upstream");
    assert_eq!(
        result.recv_timeout(DEADLINE).unwrap(),
        Ok(gst::FlowSuccess::Ok)
    );
    gate.open();
    assert_eq!(number(&rig.buffer()), 0);
    assert_eq!(number(&rig.buffer()), 1);
}

#[test]
fn a_threshold_holds_buffers_until_there_are_enough() {
    let line = format!("ts-queue context={} min-threshold-buffers=3", context());
    let rig = Rig::new(&line, gst::State::Playing);
    rig.event(gst::EventType::Segment);
    rig.push(numbered(0)).unwrap();
    rig.push(numbered(1)).unwrap();
    assert_eq!(rig.level(), 2);
    rig.push(numbered(2)).unwrap();
    assert_eq!(number(&rig.buffer()), 0);
    eventually("held below the threshold", || rig.level() == 2);
    // The end of the stream releases all buffers.
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    assert_eq!(number(&rig.buffer()), 1);
    assert_eq!(number(&rig.buffer()), 2);
    rig.event(gst::EventType::Eos);
}

#[test]
fn lowering_a_threshold_releases_queued_buffers() {
    let line = format!("ts-queue context={} min-threshold-bytes=100", context());
    let rig = Rig::new(&line, gst::State::Playing);
    rig.push(numbered(7)).unwrap();
    rig.element.set_property("min-threshold-bytes", 0u32);
    assert_eq!(number(&rig.buffer()), 7);
}

#[test]
fn a_query_is_answered_although_the_queue_is_below_its_threshold() {
    let line = format!("ts-queue context={} min-threshold-buffers=3", context());
    let rig = Rig::new(&line, gst::State::Playing);
    rig.push(numbered(7)).unwrap();
    let feed = rig.feed.clone();
    assert!(within("a query queued below the threshold", move || {
        feed.peer_query(&mut gst::query::Drain::new())
    }));
    assert_eq!(number(&rig.buffer()), 7);
}

#[test]
fn flush_on_eos_drops_queued_data() {
    let (rig, gate) = held("flush-on-eos=true");
    rig.push(numbered(1)).unwrap();
    rig.push(numbered(2)).unwrap();
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    assert_eq!(rig.level(), 0);
    gate.open();
    assert_eq!(number(&rig.buffer()), 0);
    match rig.seen.recv_timeout(DEADLINE).unwrap() {
        Seen::Event(event) => assert_eq!(event.type_(), gst::EventType::Eos),
        buffer => panic!("{buffer:?}"),
    }
}

#[test]
fn overrun_and_underrun_are_signalled() {
    let (rig, gate) = held("max-size-buffers=2");
    let seen = Arc::new(Mutex::new(Vec::new()));
    for name in ["overrun", "underrun", "running"] {
        let seen = seen.clone();
        rig.element.connect(name, false, move |_| {
            seen.lock().unwrap().push(name);
            None
        });
    }
    let has = |name| seen.lock().unwrap().contains(&name);
    rig.push(numbered(1)).unwrap();
    rig.push(numbered(2)).unwrap();
    let result = rig.push_aside(numbered(3));
    eventually("overrun", || has("overrun"));
    gate.open();
    result.recv_timeout(DEADLINE).unwrap().unwrap();
    let count = |name| {
        seen.lock()
            .unwrap()
            .iter()
            .filter(|seen| **seen == name)
            .count()
    };
    // The queue may have been empty for a moment before the last buffer came.
    eventually("underrun", || count("underrun") == count("running") + 1);
    seen.lock().unwrap().clear();
    rig.push(numbered(4)).unwrap();
    eventually("running", || has("running"));
    eventually("underrun again", || has("underrun"));
    rig.element.set_property("silent", true);
    seen.lock().unwrap().clear();
    while rig.seen.try_recv().is_ok() {}
    rig.push(numbered(5)).unwrap();
    assert_eq!(number(&rig.buffer()), 5);
    assert!(seen.lock().unwrap().is_empty());
}

#[test]
fn serialized_queries_follow_pushed_data() {
    let (rig, gate) = held("");
    rig.push(numbered(1)).unwrap();
    let feed = rig.feed.clone();
    let (send, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let caps = gst::Caps::new_empty_simple("application/x-test");
        let drain = feed.peer_query(&mut gst::query::Drain::new());
        let allocation = feed.peer_query(&mut gst::query::Allocation::new(Some(&caps), false));
        send.send((drain, allocation))
    });
    assert!(rig.queries.try_recv().is_err());
    gate.open();
    assert_eq!(
        rig.queries.recv_timeout(DEADLINE).unwrap(),
        gst::QueryType::Drain
    );
    assert_eq!(number(&rig.buffer()), 0);
    assert_eq!(number(&rig.buffer()), 1, "the query overtook a buffer");
    assert_eq!(
        rig.queries.recv_timeout(DEADLINE).unwrap(),
        gst::QueryType::Allocation
    );
    assert_eq!(answered.recv_timeout(DEADLINE).unwrap(), (true, true));
}

#[test]
fn a_query_that_waits_is_released_by_flush_and_stop() {
    for by_flush in [true, false] {
        let (rig, gate) = held("");
        rig.push(numbered(1)).unwrap();
        let feed = rig.feed.clone();
        let (send, answered) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(feed.peer_query(&mut gst::query::Drain::new())));
        if by_flush {
            assert!(rig.feed.push_event(gst::event::FlushStart::new()));
            assert_eq!(answered.recv_timeout(DEADLINE), Ok(false));
            gate.open();
        } else {
            let element = rig.element.clone();
            let stop = std::thread::spawn(move || element.set_state(gst::State::Null));
            assert_eq!(answered.recv_timeout(DEADLINE), Ok(false));
            gate.open();
            stop.join().unwrap().unwrap();
        }
    }
}

#[test]
fn queries_from_a_context_thread_are_forwarded() {
    // Without a name, the queue uses the context of its branch, so the query comes on the queue's own thread. With a name, the
    // query comes on the thread of another context.
    for named in [false, true] {
        let own = if named {
            format!("context={}", context())
        } else {
            String::new()
        };
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-queue name=q {own} ! fakesink name=sink sync=false async=false",
            context()
        ));
        let (send, asked) = std::sync::mpsc::channel();
        pipe.pad("sink", "sink")
            .add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, move |_, info| {
                if let Some(query) = info.query()
                    && query.type_() == gst::QueryType::Drain
                {
                    let _ = send.send(());
                }
                gst::PadProbeReturn::Ok
            });
        let seen = watch(&pipe.pad("sink", "sink"));
        pipe.pad("src", "src")
            .add_probe(gst::PadProbeType::BUFFER, |pad, _| {
                pad.peer_query(&mut gst::query::Drain::new());
                gst::PadProbeReturn::Ok
            });
        pipe.play();
        let sender = socket();
        for i in 0..3 {
            sender
                .send_to(&packet(i), target(&pipe.get("src")))
                .unwrap();
            asked.recv_timeout(DEADLINE).expect("the query was dropped");
            assert_eq!(number(&next_buffer(&seen)), i);
        }
    }
}

#[test]
fn flush_cancels_the_wait_for_room() {
    let (rig, gate) = held("max-size-buffers=1");
    rig.push(numbered(1)).unwrap();
    let result = rig.push_aside(numbered(2));
    eventually("full", || rig.level() == 1);
    assert!(rig.feed.push_event(gst::event::FlushStart::new()));
    assert_eq!(
        result.recv_timeout(DEADLINE).unwrap(),
        Err(gst::FlowError::Flushing)
    );
    gate.open();
    assert!(rig.feed.push_event(gst::event::FlushStop::new(true)));
    rig.open_segment();
    rig.event(gst::EventType::FlushStop);
    rig.push(numbered(3)).unwrap();
    assert_eq!(number(&rig.buffer()), 3);
}

#[test]
fn flush_during_a_push_leaves_no_error() {
    // A thread that pushes downstream of the queue may notice the flush late. That must not stop the data after the flush.
    for _ in 0..100 {
        let (rig, gate) = held("");
        rig.push(numbered(1)).unwrap();
        assert!(rig.feed.push_event(gst::event::FlushStart::new()));
        let opener = std::thread::spawn(move || gate.open());
        assert!(rig.feed.push_event(gst::event::FlushStop::new(true)));
        opener.join().unwrap();
        rig.open_segment();
        for i in 10..13 {
            assert_eq!(rig.push(numbered(i)), Ok(gst::FlowSuccess::Ok));
        }
        rig.event(gst::EventType::FlushStop);
        for i in 10..13 {
            assert_eq!(number(&rig.buffer()), i);
        }
    }
}

#[test]
fn after_eos_and_a_flush_another_eos_passes() {
    let line = format!("ts-queue context={}", context());
    let rig = Rig::new(&line, gst::State::Playing);
    for round in 0..2 {
        rig.push(numbered(round)).unwrap();
        assert!(rig.feed.push_event(gst::event::Eos::new()));
        assert_eq!(number(&rig.buffer()), round);
        rig.event(gst::EventType::Eos);
        assert_eq!(rig.push(numbered(9)), Err(gst::FlowError::Eos));
        assert!(rig.feed.push_event(gst::event::FlushStart::new()));
        assert!(rig.feed.push_event(gst::event::FlushStop::new(true)));
        rig.open_segment();
    }
}

#[test]
fn a_new_stream_after_eos_needs_no_flush() {
    let line = format!("ts-queue context={}", context());
    let rig = Rig::new(&line, gst::State::Playing);
    rig.push(numbered(0)).unwrap();
    assert!(rig.feed.push_event(gst::event::Eos::new()));
    rig.event(gst::EventType::Eos);
    rig.open_stream();
    rig.push(numbered(1)).unwrap();
    assert_eq!(number(&rig.buffer()), 1);
}

#[test]
fn an_error_downstream_reaches_the_pusher() {
    for error in [
        gst::FlowError::NotNegotiated,
        gst::FlowError::Eos,
        gst::FlowError::NotLinked,
    ] {
        let line = format!("ts-queue context={}", context());
        let rig = Rig::new(&line, gst::State::Playing);
        *rig.answer.lock().unwrap() = Err(error);
        rig.push(numbered(0)).unwrap();
        let mut result = Ok(gst::FlowSuccess::Ok);
        eventually("the error upstream", || {
            result = rig.push(numbered(1));
            result.is_err()
        });
        assert_eq!(result, Err(error));
        // After a stop and a start, the error is forgotten.
        rig.to(gst::State::Ready);
        *rig.answer.lock().unwrap() = Ok(gst::FlowSuccess::Ok);
        rig.to(gst::State::Playing);
        rig.open_stream();
        while rig.seen.try_recv().is_ok() {}
        rig.push(numbered(2)).unwrap();
        assert_eq!(number(&rig.buffer()), 2);
    }
}

#[test]
fn an_error_that_no_pusher_will_see_is_reported_by_the_queue() {
    // The push of the last buffer fails, and only the end of the stream follows. It comes before or after the failure.
    for eos_first in [true, false] {
        let (rig, gate) = held("");
        *rig.answer.lock().unwrap() = Err(gst::FlowError::NotNegotiated);
        if eos_first {
            assert!(rig.feed.push_event(gst::event::Eos::new()));
            gate.open();
        } else {
            gate.open();
            rig.buffer();
            // The buffer has been taken from the queue. The queue notes the answer to it before it handles a query.
            let feed = rig.feed.clone();
            within("a query after an error", move || {
                feed.peer_query(&mut gst::query::Drain::new())
            });
            assert!(!rig.feed.push_event(gst::event::Eos::new()));
        }
        rig.error();
    }
}

#[test]
fn buffer_lists_are_not_split_and_count_against_the_limits() {
    let (rig, gate) = held("");
    let mut list = gst::BufferList::new();
    for i in 1..=5 {
        list.get_mut().unwrap().add(numbered(i));
    }
    rig.feed.push_list(list).unwrap();
    assert_eq!(rig.level(), 5);
    assert_eq!(rig.element.property::<u32>("current-level-bytes"), 20);
    gate.open();
    for i in 0..=5 {
        assert_eq!(number(&rig.buffer()), i);
    }
}

#[test]
fn only_a_separate_context_adds_its_wait_to_the_latency() {
    for (queue, expected_ms) in [("", 20), ("context=latency-b context-wait=30", 50)] {
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 context=latency-{expected_ms} context-wait=20 ! ts-queue name=q {queue} ! fakesink name=sink sync=false async=false"
        ));
        let seen = watch(&pipe.pad("sink", "sink"));
        pipe.play();
        socket()
            .send_to(&packet(1), target(&pipe.get("src")))
            .unwrap();
        next_buffer(&seen);
        let mut query = gst::query::Latency::new();
        assert!(pipe.pad("q", "src").query(&mut query));
        assert_eq!(
            query.result(),
            (true, u64::from(expected_ms as u32) * MS, None)
        );
    }
}

#[test]
fn the_upstream_maximum_of_the_latency_is_passed_on() {
    let line = format!("ts-queue context={} context-wait=20", context());
    let rig = Rig::without_stream(&line, gst::State::Playing);
    rig.feed.add_probe(
        gst::PadProbeType::QUERY_UPSTREAM | gst::PadProbeType::PULL | gst::PadProbeType::PUSH,
        |_, info| {
            if let Some(gst::PadProbeData::Query(query)) = &mut info.data
                && let gst::QueryViewMut::Latency(latency) = query.view_mut()
            {
                latency.set(true, 5 * MS, 100 * MS);
                return gst::PadProbeReturn::Handled;
            }
            gst::PadProbeReturn::Ok
        },
    );
    let mut query = gst::query::Latency::new();
    assert!(rig.element.static_pad("src").unwrap().query(&mut query));
    let (live, min, max) = query.result();
    assert!(live);
    assert_eq!(min, 25 * MS);
    assert!(max.is_some_and(|max| max >= 100 * MS), "{max:?}");
}

/// Returns a udpsrc whose queue is full because the queue's downstream side, on another context, is held.
fn backed_up(queue: &str) -> (Pipe, Gate, std::sync::mpsc::Receiver<Seen>) {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 buffer-size=1000000 context={} ! ts-queue name=q context={} max-size-buffers=5 {queue} ! fakesink name=sink sync=false async=false",
        context(),
        context(),
    ));
    let gate = gate(&pipe.pad("q", "src"));
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let sender = socket();
    let address = target(&pipe.get("src"));
    for i in 0..300 {
        sender.send_to(&packet(i), address).unwrap();
    }
    gate.wait_held();
    eventually("full", || {
        pipe.get("q").property::<u32>("current-level-buffers") >= 5
    });
    (pipe, gate, seen)
}

#[test]
fn a_source_waits_for_room_without_losing_or_reordering_data() {
    let (pipe, gate, seen) = backed_up("");
    // Only the packets that the source read at once are queued. The source waits, and the kernel keeps the later packets.
    assert!(pipe.get("q").property::<u32>("current-level-buffers") < 100);
    assert!(stat(&pipe.get("src"), "packets-received") < 150);
    gate.open();
    for i in 0..300 {
        assert_eq!(number(&next_buffer(&seen)), i);
    }
    pipe.assert_no_error();
}

#[test]
fn a_source_that_awaits_room_is_released_when_the_queue_turns_leaky() {
    let (pipe, gate, _seen) = backed_up("");
    pipe.get("q").set_property_from_str("leaky", "upstream");
    eventually("the source reads on", || {
        stat(&pipe.get("src"), "packets-received") == 300
    });
    gate.open();
}

#[test]
fn a_source_that_awaits_room_stops_and_pauses_at_once() {
    let (pipe, gate, seen) = backed_up("");
    pipe.to(gst::State::Paused);
    pipe.play();
    gate.open();
    for i in 0..300 {
        assert_eq!(number(&next_buffer(&seen)), i);
    }
    drop(pipe);
    let (pipe, gate, _) = backed_up("");
    let src = pipe.get("src");
    // Only the source is stopped: the queue's thread is held by the test.
    src.set_locked_state(true);
    set_state(&src, gst::State::Null);
    gate.open();
}

#[test]
fn a_queue_shares_its_branchs_thread_unless_it_names_a_context() {
    let src_context = context();
    let own_context = context();
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={src_context} ! ts-queue name=same ! identity ! ts-queue name=again ! ts-queue name=other context={own_context} ! ts-queue name=inherits ! fakesink name=sink async=false"
    ));
    let names = Arc::new(Mutex::new(std::collections::HashMap::new()));
    for name in ["src", "same", "again", "other", "inherits"] {
        let names = names.clone();
        pipe.pad(name, "src")
            .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                let thread = std::thread::current().name().unwrap_or_default().to_owned();
                names.lock().unwrap().insert(name, thread);
                gst::PadProbeReturn::Ok
            });
    }
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    socket()
        .send_to(&packet(1), target(&pipe.get("src")))
        .unwrap();
    next_buffer(&seen);
    let names = names.lock().unwrap();
    for (element, context) in [
        ("src", &src_context),
        ("same", &src_context),
        ("again", &src_context),
        ("other", &own_context),
        ("inherits", &own_context),
    ] {
        assert_eq!(names[element], format!("ts:{context}"), "{element}");
    }
}

#[test]
fn a_branch_without_a_context_runs_on_the_default_one() {
    let rig = Rig::new("ts-queue", gst::State::Playing);
    let (send, name) = std::sync::mpsc::channel();
    rig.element
        .static_pad("src")
        .unwrap()
        .add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let _ = send.send(std::thread::current().name().map(str::to_owned));
            gst::PadProbeReturn::Ok
        });
    rig.push(numbered(1)).unwrap();
    assert_eq!(name.recv_timeout(DEADLINE).unwrap().as_deref(), Some("ts:"));
}

#[test]
fn a_branch_of_a_tee_loses_no_data_if_its_sibling_fails() {
    // Both branches are full, and the source waits for both; then one of them fails.
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! tee name=t \
         t. ! ts-queue name=good context={} max-size-buffers=1 ! fakesink name=sink sync=false async=false \
         t. ! ts-queue name=bad context={} max-size-buffers=1 ! fakesink name=failing sync=false async=false",
        context(),
        context(),
        context(),
    ));
    let (good, bad) = (
        gate(&pipe.pad("good", "src")),
        gate(&pipe.pad("bad", "src")),
    );
    let seen = watch(&pipe.pad("sink", "sink"));
    pipe.play();
    let sender = socket();
    let address = target(&pipe.get("src"));
    for i in 0..3 {
        sender.send_to(&packet(i), address).unwrap();
        if i == 0 {
            good.wait_held();
            bad.wait_held();
        }
    }
    let level = |name: &str| pipe.get(name).property::<u32>("current-level-buffers");
    eventually("both full", || level("good") >= 1 && level("bad") >= 1);
    let received = stat(&pipe.get("src"), "packets-received");
    let failing = pipe.pad("bad", "src");
    failing.unlink(&failing.peer().unwrap()).unwrap();
    bad.open();
    good.open();
    for i in 0..received as u32 {
        assert_eq!(number(&next_buffer(&seen)), i);
    }
}
