//! `ts-input-selector`: passes one of several streams and switches while they play.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;

/// A selector with the test's own inputs.
struct Selector {
    rig: Rig,
    inputs: Vec<Input>,
}

struct Input {
    feed: gst::Pad,
    sink: gst::Pad,
}

impl Selector {
    fn new(properties: &str, inputs: usize) -> Selector {
        let rig = Rig::without_stream(&format!("ts-input-selector {properties}"), gst::State::Null);
        let inputs = (0..inputs)
            .map(|_| {
                let sink = rig.element.request_pad_simple("sink_%u").unwrap();
                let feed = gst::Pad::builder(gst::PadDirection::Src).build();
                feed.set_active(true).unwrap();
                feed.link(&sink).unwrap();
                Input { feed, sink }
            })
            .collect();
        let selector = Selector { rig, inputs };
        selector.rig.to(gst::State::Playing);
        for (i, input) in selector.inputs.iter().enumerate() {
            input.open(i as i32);
        }
        selector
    }

    /// Returns a selector on a test clock, which is stopped at 100 s, the base time.
    fn with_clock(properties: &str) -> (Selector, gst_check::TestClock) {
        let selector = Selector::new(properties, 2);
        let element = &selector.rig.element;
        let clock = gst_check::TestClock::with_start_time(100 * gst::ClockTime::SECOND);
        selector.rig.to(gst::State::Paused);
        element.set_clock(Some(&clock)).unwrap();
        element.set_base_time(100 * gst::ClockTime::SECOND);
        selector.rig.to(gst::State::Playing);
        (selector, clock)
    }

    fn select(&self, i: usize) {
        self.rig
            .element
            .set_property("active-pad", &self.inputs[i].sink);
    }

    fn active(&self) -> Option<gst::Pad> {
        self.rig.element.property("active-pad")
    }
}

impl Input {
    fn open(&self, n: i32) {
        let stream = format!("stream-{n}");
        assert!(self.feed.push_event(gst::event::StreamStart::new(&stream)));
        let caps = gst::Caps::builder("application/x-test")
            .field("n", n)
            .build();
        assert!(self.feed.push_event(gst::event::Caps::new(&caps)));
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
        assert!(self.feed.push_event(gst::event::Segment::new(&segment)));
        let mut tags = gst::TagList::new();
        let title = stream.as_str();
        tags.make_mut()
            .add::<gst::tags::Title>(&title, gst::TagMergeMode::Append);
        assert!(self.feed.push_event(gst::event::Tag::new(tags)));
    }

    fn push_aside(
        &self,
        buffer: gst::Buffer,
    ) -> Receiver<Result<gst::FlowSuccess, gst::FlowError>> {
        let (send, result) = channel();
        let feed = self.feed.clone();
        std::thread::spawn(move || send.send(feed.push(buffer)));
        result
    }
}

/// Returns a buffer of 10 ms whose drop calls the element, and a channel that reports the drop.
fn calling_back(selector: &Selector, pts: gst::ClockTime) -> (gst::Buffer, Receiver<()>) {
    let (dropped, told) = channel();
    let mut buffer = gst::Buffer::from_slice(CallsBack {
        element: selector.rig.element.downgrade(),
        dropped,
        data: b"data".to_vec(),
    });
    let inner = buffer.get_mut().unwrap();
    inner.set_pts(pts);
    inner.set_duration(10 * MS);
    (buffer, told)
}

fn for_10_ms(number: u32, pts: gst::ClockTime) -> gst::Buffer {
    let mut buffer = timed(number, pts);
    buffer.get_mut().unwrap().set_duration(10 * MS);
    buffer
}

/// Returns the stream that downstream has received up to the next buffer.
fn caps_before(seen: &Receiver<Seen>) -> (Option<i32>, bool, gst::Buffer) {
    let (mut n, mut has_tags) = (None, false);
    loop {
        match seen.recv_timeout(DEADLINE).expect("no buffer came") {
            Seen::Buffer(buffer) => return (n, has_tags, buffer),
            Seen::Event(event) => match event.view() {
                gst::EventView::Caps(caps) => {
                    n = caps.caps().structure(0).unwrap().get("n").ok();
                }
                gst::EventView::Tag(_) => has_tags = true,
                _ => {}
            },
        }
    }
}

#[test]
fn properties_and_pads_stay_compatible_with_existing_pipelines() {
    let own: &[Row] = &[
        ("active-pad", "GstPad", "NULL", None, true),
        ("cache-buffers", "gboolean", "false", None, true),
        (
            "sync-mode",
            "ThreadbareInputSelectorSyncMode",
            "active-segment",
            None,
            true,
        ),
        ("n-pads", "guint", "0", Some(("0", "4294967295")), false),
        ("sync-streams", "gboolean", "true", None, true),
    ];
    assert_properties("ts-input-selector", &[CONTEXT_ROWS, own].concat());
    let element = make("ts-input-selector");
    let first = element.request_pad_simple("sink_%u").unwrap();
    let named = element.request_pad_simple("sink_7").unwrap();
    let next = element.request_pad_simple("sink_%u").unwrap();
    assert_eq!(
        [first.name(), named.name(), next.name()],
        ["sink_0", "sink_7", "sink_8"]
    );
    assert_eq!(element.property::<u32>("n-pads"), 3);
    assert_eq!(
        element.property::<Option<gst::Pad>>("active-pad"),
        Some(first.clone())
    );
    element.release_request_pad(&first);
    assert_eq!(element.property::<Option<gst::Pad>>("active-pad"), None);
    assert_eq!(element.property::<u32>("n-pads"), 2);
}

#[test]
fn switch_announces_the_new_stream_without_loss() {
    let selector = Selector::new("sync-streams=false", 2);
    for i in 0..3 {
        selector.inputs[0].feed.push(numbered(i)).unwrap();
        selector.inputs[1].feed.push(numbered(100 + i)).unwrap();
    }
    let (n, has_tags, first) = caps_before(&selector.rig.seen);
    assert_eq!((n, has_tags, number(&first)), (Some(0), true, 0));
    for i in 1..3 {
        assert_eq!(number(&selector.rig.buffer()), i);
    }
    selector.select(1);
    assert_eq!(selector.active().as_ref(), Some(&selector.inputs[1].sink));
    for i in 3..6 {
        selector.inputs[0].feed.push(numbered(i)).unwrap();
        selector.inputs[1].feed.push(numbered(100 + i)).unwrap();
    }
    let (n, has_tags, first) = caps_before(&selector.rig.seen);
    assert_eq!((n, has_tags, number(&first)), (Some(1), true, 103));
    assert!(first.flags().contains(gst::BufferFlags::DISCONT));
    assert_eq!(number(&selector.rig.buffer()), 104);
    // Caps of the active stream arrive in mid-stream.
    let caps = gst::Caps::builder("application/x-test")
        .field("n", 9)
        .build();
    selector.inputs[1]
        .feed
        .push_event(gst::event::Caps::new(&caps));
    selector.inputs[1].feed.push(numbered(7)).unwrap();
    assert_eq!(number(&selector.rig.buffer()), 105);
    assert_eq!(caps_before(&selector.rig.seen).0, Some(9));
}

#[test]
fn many_switches_while_both_play_keep_each_stream_in_order() {
    let selector = Selector::new("sync-streams=false", 2);
    const COUNT: u32 = 2000;
    let threads: Vec<_> = (0..2)
        .map(|i| {
            let feed = selector.inputs[i].feed.clone();
            std::thread::spawn(move || {
                for n in 0..COUNT {
                    feed.push(numbered(i as u32 * COUNT + n)).unwrap();
                }
            })
        })
        .collect();
    for i in 0..500 {
        selector.select(i % 2);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let (mut stream, mut last) = (None, [None::<u32>; 2]);
    for seen in selector.rig.seen.try_iter() {
        match seen {
            Seen::Event(event) => {
                if let gst::EventView::Caps(caps) = event.view() {
                    stream = caps.caps().structure(0).unwrap().get::<i32>("n").ok();
                }
            }
            Seen::Buffer(buffer) => {
                let of = (number(&buffer) / COUNT) as usize;
                assert_eq!(stream, Some(of as i32), "behind its own caps");
                assert!(last[of] < Some(number(&buffer)));
                last[of] = Some(number(&buffer));
            }
        }
    }
}

#[test]
fn the_output_ends_when_the_active_stream_ends() {
    let selector = Selector::new("", 3);
    assert!(selector.inputs[1].feed.push_event(gst::event::Eos::new()));
    selector.inputs[0].feed.push(numbered(0)).unwrap();
    assert_eq!(number(&selector.rig.buffer()), 0);
    assert!(
        selector.inputs[0]
            .feed
            .push_event(gst::event::Gap::new(10 * MS, 10 * MS))
    );
    selector.rig.event(gst::EventType::Gap);
    // The input has already ended. It reports its end when it is chosen.
    selector.select(1);
    selector.rig.event(gst::EventType::Eos);
    selector.select(2);
    selector.inputs[2].feed.push(numbered(2)).unwrap();
    let (n, _, buffer) = caps_before(&selector.rig.seen);
    assert_eq!((n, number(&buffer)), (Some(2), 2));
    assert!(selector.inputs[2].feed.push_event(gst::event::Eos::new()));
    selector.rig.event(gst::EventType::Eos);
}

#[test]
fn other_streams_wait_until_the_output_reaches_their_time() {
    let selector = Selector::new("", 2);
    let held = selector.inputs[1].push_aside(for_10_ms(100, 50 * MS));
    for i in 0..6 {
        assert!(held.try_recv().is_err());
        selector.inputs[0]
            .feed
            .push(for_10_ms(i, u64::from(i) * 10 * MS))
            .unwrap();
        assert_eq!(number(&selector.rig.buffer()), i);
    }
    // The output is past 50 ms now, so the held buffer is dropped.
    assert_eq!(held.recv_timeout(DEADLINE), Ok(Ok(gst::FlowSuccess::Ok)));
    let held = selector.inputs[1].push_aside(for_10_ms(101, 70 * MS));
    selector.inputs[0]
        .feed
        .push_event(gst::event::Gap::new(60 * MS, 20 * MS));
    assert_eq!(held.recv_timeout(DEADLINE), Ok(Ok(gst::FlowSuccess::Ok)));
    // The buffer that is held at the switch is the first of the new stream.
    let held = selector.inputs[1].push_aside(for_10_ms(102, 500 * MS));
    eventually("it is held or passed", || {
        selector.select(1);
        true
    });
    assert_eq!(held.recv_timeout(DEADLINE), Ok(Ok(gst::FlowSuccess::Ok)));
    assert_eq!(number(&selector.rig.buffer()), 102);
    // The end of the active stream does not block the other streams.
    selector.inputs[1].feed.push_event(gst::event::Eos::new());
    let dropped = selector.inputs[0].push_aside(for_10_ms(103, 900 * MS));
    assert_eq!(dropped.recv_timeout(DEADLINE), Ok(Ok(gst::FlowSuccess::Ok)));
}

#[test]
fn a_held_stream_on_a_shared_thread_blocks_no_other_stream() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-input-selector name=s ! fakesink name=out async=false sync=false \
         ts-appsrc name=one context={name} max-buffers=100 ! s.sink_0 \
         ts-appsrc name=two context={name} max-buffers=100 ! s.sink_1"
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    let give = |name: &str, buffer: gst::Buffer| {
        assert!(
            pipe.get(name)
                .emit_by_name::<bool>("push-buffer", &[&buffer])
        );
    };
    for i in 0..20 {
        give("two", for_10_ms(100 + i, u64::from(i) * 10 * MS));
    }
    for i in 0..10 {
        give("one", for_10_ms(i, u64::from(i) * 10 * MS));
        assert_eq!(number(&next_buffer(&seen)), i);
    }
    // The output is at 100 ms: the other stream has reached it, and continues from there.
    let selector = pipe.get("s");
    eventually("the other stream is held at the output's time", || {
        pipe.get("two").property::<u64>("current-level-buffers") <= 9
    });
    selector.set_property("active-pad", selector.static_pad("sink_1").unwrap());
    for i in 10..20 {
        assert_eq!(number(&next_buffer(&seen)), 100 + i);
    }
    pipe.assert_no_error();
}

#[test]
fn a_flush_of_the_active_stream_passes_and_of_the_others_does_not() {
    let selector = Selector::new("", 2);
    let held = selector.inputs[1].push_aside(for_10_ms(1, 500 * MS));
    assert!(
        selector.inputs[1]
            .feed
            .push_event(gst::event::FlushStart::new())
    );
    assert_eq!(
        held.recv_timeout(DEADLINE),
        Ok(Err(gst::FlowError::Flushing))
    );
    assert!(
        selector.inputs[1]
            .feed
            .push_event(gst::event::FlushStop::new(true))
    );
    assert!(
        selector.inputs[0]
            .feed
            .push_event(gst::event::FlushStart::new())
    );
    assert!(
        selector.inputs[0]
            .feed
            .push_event(gst::event::FlushStop::new(true))
    );
    let flushes: Vec<gst::EventType> = selector
        .rig
        .seen
        .try_iter()
        .filter_map(|seen| match seen {
            Seen::Event(event) => Some(event.type_()),
            Seen::Buffer(_) => None,
        })
        .filter(|kind| matches!(kind, gst::EventType::FlushStart | gst::EventType::FlushStop))
        .collect();
    assert_eq!(
        flushes,
        [gst::EventType::FlushStart, gst::EventType::FlushStop]
    );
    selector.inputs[0].open(0);
    selector.inputs[0].feed.push(numbered(3)).unwrap();
    assert_eq!(number(&selector.rig.buffer()), 3);
}

#[test]
fn stop_and_pad_release_free_held_buffers() {
    let selector = Selector::new("", 3);
    let one = selector.inputs[1].push_aside(for_10_ms(1, 500 * MS));
    let two = selector.inputs[2].push_aside(for_10_ms(1, 500 * MS));
    selector
        .rig
        .element
        .release_request_pad(&selector.inputs[1].sink);
    // The released pad is also unlinked, so its push fails.
    assert!(one.recv_timeout(DEADLINE).unwrap().is_err());
    assert!(two.try_recv().is_err());
    selector.rig.to(gst::State::Ready);
    assert_eq!(
        two.recv_timeout(DEADLINE),
        Ok(Err(gst::FlowError::Flushing))
    );
}

#[test]
fn a_stuck_push_does_not_block_a_stop() {
    let selector = Selector::new("", 2);
    let gate = gate(&selector.rig.drain);
    let stuck = selector.inputs[0].push_aside(numbered(0));
    gate.wait_held();
    selector.select(1);
    let waits = selector.inputs[1].push_aside(numbered(1));
    let element = selector.rig.element.clone();
    let stop = std::thread::spawn(move || element.set_state(gst::State::Ready));
    assert_eq!(
        waits.recv_timeout(DEADLINE),
        Ok(Err(gst::FlowError::Flushing))
    );
    gate.open();
    let _ = stuck.recv_timeout(DEADLINE).unwrap();
    within("the stop", move || stop.join().unwrap().unwrap());
}

#[test]
fn notify_handlers_may_call_the_element() {
    // gst-launch -v reads the property in the handler of its notification, and an application may switch in it.
    let pipe = Pipe::parse(
        "ts-input-selector name=s ! fakesink async=false sync=false audiotestsrc num-buffers=20 ! s. audiotestsrc num-buffers=20 ! s.",
    );
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = seen.clone();
    pipe.0.connect_deep_notify(None, move |_, object, spec| {
        let value = object.property_value(spec.name());
        if spec.name() == "active-pad" {
            let _ = object.property::<u32>("n-pads");
            notes
                .lock()
                .unwrap()
                .push(value.get::<Option<gst::Pad>>().unwrap());
        }
    });
    let selector = pipe.get("s");
    let pads = selector.sink_pads();
    for pad in pads.iter().rev() {
        let (selector, pad) = (selector.clone(), pad.clone());
        within("a switch", move || {
            selector.set_property("active-pad", &pad)
        });
    }
    pipe.play();
    pipe.expect(gst::MessageType::Eos);
    let notified = seen.lock().unwrap().clone();
    assert_eq!(notified, [Some(pads[1].clone()), Some(pads[0].clone())]);
}

#[test]
fn queries_are_answered_for_the_active_stream_and_latency_for_all() {
    let pipe = Pipe::parse(
        "ts-input-selector name=s ! fakesink name=out async=false \
         ts-tonesrc samples-per-buffer=160 context-wait=20 context=sel-a ! s. ts-tonesrc samples-per-buffer=800 context=sel-b ! s.",
    );
    pipe.play();
    let mut query = gst::query::Latency::new();
    assert!(pipe.pad("out", "sink").peer_query(&mut query));
    assert_eq!(query.result(), (true, 100 * MS, None));
    let selector = Selector::new("", 2);
    let mut query = gst::query::Allocation::new(None, false);
    assert!(selector.inputs[0].feed.peer_query(&mut query));
    let mut query = gst::query::Allocation::new(None, false);
    assert!(
        !selector.inputs[1].feed.peer_query(&mut query),
        "it has no say"
    );
    assert!(selector.inputs[1].feed.peer_query_caps(None).is_any());
}

#[test]
fn the_element_works_after_each_restart() {
    let selector = Selector::new("", 1);
    let feed = &selector.inputs[0].feed;
    goes_up_and_down(&selector.rig, || {
        feed.set_active(false).unwrap();
        feed.set_active(true).unwrap();
        selector.inputs[0].open(0);
        feed.push(numbered(0)).unwrap();
        selector.rig.buffer();
    });
}

#[test]
fn automatic_choice_is_notified_and_readable() {
    let selector = Selector::new("", 2);
    let (send, notified) = channel();
    selector
        .rig
        .element
        .connect_notify(Some("active-pad"), move |element, _| {
            let pad = element.property::<Option<gst::Pad>>("active-pad");
            let _ = send.send((pad, element.property::<u32>("n-pads")));
        });
    let (element, first) = (
        selector.rig.element.clone(),
        selector.inputs[0].sink.clone(),
    );
    within("a release", move || element.release_request_pad(&first));
    assert_eq!(notified.recv_timeout(DEADLINE), Ok((None, 1)));
    // The next input that gets data becomes the active one.
    let pushed = selector.inputs[1].push_aside(numbered(1));
    let second = selector.inputs[1].sink.clone();
    assert_eq!(notified.recv_timeout(DEADLINE), Ok((Some(second), 1)));
    assert_eq!(pushed.recv_timeout(DEADLINE), Ok(Ok(gst::FlowSuccess::Ok)));
    assert_eq!(number(&selector.rig.buffer()), 1);
}

/// The pads' properties of the stock element, by GObject's introspection.
#[test]
fn the_properties_of_the_pads_are_those_of_the_stock_element() {
    let [stock, ours] = ["input-selector", "ts-input-selector"].map(|factory| {
        let pad = make(factory).request_pad_simple("sink_%u").unwrap();
        let mut all: Vec<_> = pad
            .list_properties()
            .iter()
            .filter(|spec| spec.owner_type() != gst::Pad::static_type())
            .filter(|spec| spec.owner_type() != gst::Object::static_type())
            .map(|spec| {
                let default = format!("{:?}", spec.default_value());
                (spec.name().to_owned(), spec.value_type(), default)
            })
            .collect();
        all.sort();
        all
    });
    assert_eq!(ours, stock);
    assert!(!ours.is_empty());
}

#[test]
fn inactive_pad_answers_as_configured() {
    for factory in ["input-selector", "ts-input-selector"] {
        let rig = Rig::without_stream(&format!("{factory} sync-streams=false"), gst::State::Null);
        let inputs: Vec<Input> = (0..2)
            .map(|_| {
                let sink = rig.element.request_pad_simple("sink_%u").unwrap();
                let feed = gst::Pad::builder(gst::PadDirection::Src).build();
                feed.set_active(true).unwrap();
                feed.link(&sink).unwrap();
                Input { feed, sink }
            })
            .collect();
        rig.to(gst::State::Playing);
        for (i, input) in inputs.iter().enumerate() {
            input.open(i as i32);
        }
        rig.element.set_property("active-pad", &inputs[0].sink);
        inputs[0].feed.push(for_10_ms(0, 30 * MS)).unwrap();
        assert!(
            inputs[1]
                .feed
                .push(for_10_ms(1, gst::ClockTime::ZERO))
                .is_ok(),
            "{factory}"
        );
        inputs[1].sink.set_property("always-ok", false);
        let answer = inputs[1].feed.push(for_10_ms(2, 10 * MS));
        assert_eq!(answer, Err(gst::FlowError::NotLinked), "{factory}");
        assert!(inputs[0].sink.property::<bool>("active"), "{factory}");
        assert!(!inputs[1].sink.property::<bool>("active"), "{factory}");
        let tags = inputs[0].sink.property::<Option<gst::TagList>>("tags");
        assert!(
            tags.unwrap().get::<gst::tags::Title>().is_some(),
            "{factory}"
        );
        let reached = inputs[0].sink.property::<i64>("running-time");
        assert!(reached >= 30_000_000, "{factory}: {reached}");
    }
}

#[test]
fn inactive_inputs_wait_for_the_clock_if_configured() {
    let (selector, clock) = Selector::with_clock("sync-mode=clock");
    selector.inputs[0]
        .feed
        .push(for_10_ms(0, 500 * MS))
        .unwrap();
    let pushed = selector.inputs[1].push_aside(for_10_ms(1, 40 * MS));
    clock.wait_for_next_pending_id();
    let due = 100 * gst::ClockTime::SECOND + 40 * MS;
    assert_eq!(
        clock.next_entry_time(),
        Some(due),
        "not the output's 500 ms"
    );
    assert!(pushed.try_recv().is_err());
    assert!(clock.crank());
    pushed.recv_timeout(DEADLINE).unwrap().unwrap();
    // A switch ends the wait.
    let pushed = selector.inputs[1].push_aside(for_10_ms(2, 90 * MS));
    clock.wait_for_next_pending_id();
    selector.select(1);
    pushed.recv_timeout(DEADLINE).unwrap().unwrap();
    assert_eq!(number(&selector.rig.buffer()), 0);
    assert_eq!(number(&selector.rig.buffer()), 2);
}

#[test]
fn early_buffers_are_repeated_after_switching_back() {
    let (selector, clock) = Selector::with_clock("sync-mode=clock cache-buffers=true");
    for n in 0..4 {
        let pts = u64::from(n) * 10 * MS;
        selector.inputs[0].feed.push(for_10_ms(n, pts)).unwrap();
    }
    selector.select(1);
    selector.inputs[1]
        .feed
        .push(for_10_ms(10, gst::ClockTime::ZERO))
        .unwrap();
    // Two of the four are over by now.
    clock.set_time(100 * gst::ClockTime::SECOND + 20 * MS);
    selector.select(0);
    selector.inputs[0].feed.push(for_10_ms(4, 40 * MS)).unwrap();
    let got: Vec<u32> = (0..8).map(|_| number(&selector.rig.buffer())).collect();
    assert_eq!(got, [0, 1, 2, 3, 10, 2, 3, 4]);
}

/// No buffer is dropped under a lock of its element.
#[test]
fn the_drop_of_a_buffer_may_call_the_element() {
    type Then = fn(&Selector, &gst_check::TestClock);
    let later: Then = |selector, clock| {
        clock.set_time(101 * gst::ClockTime::SECOND);
        selector.inputs[0].push_aside(for_10_ms(1, 1000 * MS));
    };
    let ends: [Then; 5] = [
        |selector, _| {
            let feed = selector.inputs[0].feed.clone();
            within("a flush", move || {
                feed.push_event(gst::event::FlushStart::new())
            });
        },
        |selector, _| {
            let (element, sink) = (
                selector.rig.element.clone(),
                selector.inputs[0].sink.clone(),
            );
            within("a release", move || element.release_request_pad(&sink));
        },
        |selector, _| {
            let element = selector.rig.element.clone();
            let stop = move || element.set_state(gst::State::Ready);
            within("a stop", stop).unwrap();
        },
        later,
        |selector, clock| {
            selector.select(1);
            clock.set_time(101 * gst::ClockTime::SECOND);
            selector.select(0);
            selector.inputs[0].push_aside(for_10_ms(1, 1000 * MS));
        },
    ];
    for (i, end) in ends.into_iter().enumerate() {
        let (selector, clock) = Selector::with_clock("sync-mode=clock cache-buffers=true");
        let (buffer, told) = calling_back(&selector, gst::ClockTime::ZERO);
        // This buffer has passed, and is kept for a switch away and back.
        let pushed = selector.inputs[0].push_aside(buffer);
        pushed
            .recv_timeout(DEADLINE)
            .expect("the push hangs")
            .unwrap();
        while selector.rig.seen.try_recv().is_ok() {}
        assert!(told.try_recv().is_err(), "{i}: it is kept");
        end(&selector, &clock);
        assert_eq!(told.recv_timeout(DEADLINE), Ok(()), "{i}");
        // This buffer waits for its time.
        let (selector, _clock) = Selector::with_clock("sync-mode=clock");
        let (buffer, told) = calling_back(&selector, 10 * gst::ClockTime::SECOND);
        let feed = selector.inputs[1].feed.clone();
        let _held = until_it_waits(move || feed.push(buffer));
        selector.rig.to(gst::State::Ready);
        assert_eq!(told.recv_timeout(DEADLINE), Ok(()), "{i}: held");
    }
}
