//! Queues while pipelines change: relinked, flushed during a push, removed while a source waits for them.

use crate::common::*;
use gst::prelude::*;

fn give(pipe: &Pipe, number: u32) {
    let buffer = numbered(number);
    assert!((pipe.get("src")).emit_by_name::<bool>("push-buffer", &[&buffer]));
}

fn thread_names(pad: &gst::Pad) -> std::sync::mpsc::Receiver<String> {
    let (send, threads) = std::sync::mpsc::channel();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        let _ = send.send(std::thread::current().name().unwrap_or_default().to_owned());
        gst::PadProbeReturn::Ok
    });
    threads
}

/// A query on the queue's own thread makes the pusher pass on the queued items, including the stream's start.
#[test]
fn a_queue_announces_its_context_when_a_query_drives_its_items_out() {
    let name = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=src context={name} ! ts-queue ! ts-queue name=second ! fakesink sync=false async=false"
    ));
    pipe.pad("src", "src")
        .add_probe(gst::PadProbeType::BUFFER, |pad, _| {
            let caps = gst::Caps::new_empty_simple("application/x-test");
            pad.peer_query(&mut gst::query::Allocation::new(Some(&caps), false));
            gst::PadProbeReturn::Ok
        });
    let threads = thread_names(&pipe.pad("second", "src"));
    pipe.play();
    give(&pipe, 1);
    let thread = threads.recv_timeout(DEADLINE).expect("nothing came");
    assert_eq!(thread, format!("ts:{name}"));
}

/// The stock queue, on the first line, is the reference.
#[test]
fn relinked_queue_continues() {
    for line in [
        "queue".to_owned(),
        format!("ts-queue context={}", context()),
        "ts-clocksync sync=false".to_owned(),
        "ts-blocking-adapter".to_owned(),
    ] {
        let rig = Rig::new(&line, gst::State::Playing);
        rig.push(numbered(0)).unwrap();
        assert_eq!(number(&rig.buffer()), 0);
        let src = rig.element.static_pad("src").unwrap();
        src.unlink(&rig.drain).unwrap();
        eventually("the pusher gets the error", || {
            rig.push(numbered(1)) == Err(gst::FlowError::NotLinked)
        });
        // Sticky events reach the new link.
        let caps = gst::Caps::new_empty_simple("application/x-new");
        rig.feed.push_event(gst::event::Caps::new(&caps));
        src.link(&rig.drain).unwrap();
        assert_eq!(rig.push(numbered(2)), Ok(gst::FlowSuccess::Ok), "{line}");
        let (mut latest, mut last) = (None, None);
        while last != Some(2) {
            match rig.seen.recv_timeout(DEADLINE) {
                Ok(Seen::Buffer(buffer)) => last = Some(number(&buffer)),
                Ok(Seen::Event(event)) => {
                    if let gst::EventView::Caps(caps) = event.view() {
                        latest = Some(caps.caps_owned());
                    }
                }
                Err(_) => panic!("{line}: nothing came after {last:?}"),
            }
        }
        assert_eq!(latest, Some(caps), "{line}");
    }
}

#[test]
fn relinked_proxy_continues() {
    for kind in ["proxy", "inter"] {
        let name = context();
        let feeder = Pipe::parse(&format!(
            "ts-appsrc name=src context={} ! ts-{kind}sink name=out {kind}-context={name}",
            context()
        ));
        let outlet = Pipe::parse(&format!(
            "ts-{kind}src name=in {kind}-context={name} context={} ! fakesink name=sink sync=false async=false",
            context()
        ));
        outlet.play();
        feeder.play();
        let seen = watch(&outlet.pad("sink", "sink"));
        give(&feeder, 0);
        assert_eq!(number(&next_buffer(&seen)), 0);
        let (src, sink) = (outlet.pad("in", "src"), outlet.pad("sink", "sink"));
        src.unlink(&sink).unwrap();
        // This buffer leaves the queue, and is lost at the unlinked pad.
        give(&feeder, 1);
        let passed = || stat(&outlet.get("in"), "buffers-passed");
        eventually("the source has pushed", || passed() == 2);
        src.link(&sink).unwrap();
        give(&feeder, 2);
        assert_eq!(number(&next_buffer(&seen)), 2, "{kind}");
        feeder.assert_no_error();
    }
}

/// The flushing thread holds its pad's stream lock, so it must not wait for another thread's push. That push does not return
/// before the test opens the gate.
#[test]
fn a_flush_ends_without_waiting_for_a_push() {
    for line in [
        format!("ts-queue context={}", context()),
        "ts-clocksync sync=false".to_owned(),
        "ts-blocking-adapter".to_owned(),
    ] {
        let rig = Rig::new(&line, gst::State::Playing);
        let gate = gate(&rig.element.static_pad("src").unwrap());
        rig.push(numbered(0)).unwrap();
        gate.wait_held();
        rig.push(numbered(1)).unwrap();
        let feed = rig.feed.clone();
        within("a flush", move || {
            assert!(feed.push_event(gst::event::FlushStart::new()));
            assert!(feed.push_event(gst::event::FlushStop::new(true)));
        });
        rig.open_segment();
        rig.push(numbered(2)).unwrap();
        rig.event(gst::EventType::FlushStart);
        gate.open();
        // The items arrive in this order, without any item from before the flush.
        let mut order = Vec::new();
        while order.last() != Some(&"2".to_owned()) {
            order.push(match rig.seen.recv_timeout(DEADLINE).unwrap() {
                Seen::Buffer(buffer) => number(&buffer).to_string(),
                Seen::Event(event) => event.type_().name().to_string(),
            });
        }
        assert_eq!(order, ["flush-stop", "segment", "2"], "{line}");
    }
}

#[test]
fn flush_stop_does_not_wait_for_a_push_after_a_proxy() {
    let name = context();
    let outlet = Pipe::parse(&format!(
        "ts-proxysrc name=in proxy-context={name} context={} ! fakesink name=sink sync=false async=false",
        context()
    ));
    let rig = Rig::new(
        &format!("ts-proxysink proxy-context={name}"),
        gst::State::Playing,
    );
    let gate = gate(&outlet.pad("in", "src"));
    let seen = watch(&outlet.pad("sink", "sink"));
    outlet.play();
    rig.push(numbered(0)).unwrap();
    gate.wait_held();
    let feed = rig.feed.clone();
    within("a flush", move || {
        assert!(feed.push_event(gst::event::FlushStart::new()));
        assert!(feed.push_event(gst::event::FlushStop::new(true)));
    });
    rig.open_segment();
    rig.push(numbered(2)).unwrap();
    gate.open();
    next_event(&seen, gst::EventType::FlushStop);
    assert_eq!(number(&next_buffer(&seen)), 2);
}

/// Returns a source with two branches, the first of them full, so that the source waits for it.
fn forked(full_branch: &str) -> (Pipe, std::sync::mpsc::Receiver<Seen>) {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=src max-buffers=0 context={} ! tee name=t \
         t. ! {full_branch} \
         t. ! fakesink name=alive sync=false async=false",
        context()
    ));
    let seen = watch(&pipe.pad("alive", "sink"));
    (pipe, seen)
}

/// Gives the source ten buffers, and returns when it waits for the full branch, which has one buffer above its limit.
fn fill(pipe: &Pipe, seen: &std::sync::mpsc::Receiver<Seen>) {
    for number in 0..10 {
        give(pipe, number);
    }
    for expected in [100, 0, 1] {
        assert_eq!(number(&next_buffer(seen)), expected);
    }
}

#[test]
fn a_full_queue_that_is_removed_from_a_tee_leaves_the_other_branch_playing() {
    let (pipe, seen) = forked(&format!(
        "ts-queue name=q max-size-buffers=1 context={} ! fakesink name=stuck sync=false async=false",
        context()
    ));
    let gate = gate(&pipe.pad("q", "src"));
    pipe.play();
    give(&pipe, 100);
    gate.wait_held();
    fill(&pipe, &seen);
    let sink = pipe.pad("q", "sink");
    sink.peer().unwrap().unlink(&sink).unwrap();
    let (queue, stuck) = (pipe.get("q"), pipe.get("stuck"));
    // The elements are removed first, so that the pipeline's own state changes do not affect them.
    pipe.0.remove_many([&queue, &stuck]).unwrap();
    let stop = std::thread::spawn(move || {
        stuck.set_state(gst::State::Null).unwrap();
        queue.set_state(gst::State::Null).unwrap();
    });
    gate.open();
    within("the stop", move || stop.join().unwrap());
    for expected in 2..10 {
        assert_eq!(number(&next_buffer(&seen)), expected);
    }
    give(&pipe, 10);
    assert_eq!(number(&next_buffer(&seen)), 10);
    pipe.assert_no_error();
}

/// Downstream of the removed branch stays blocked. So the wait ends neither because of room nor because of a stop.
#[test]
fn a_source_waits_for_no_branch_that_was_unlinked() {
    let other = context();
    for (branch, stuck) in [
        (
            format!(
                "ts-queue name=full max-size-buffers=1 context={other} ! fakesink sync=false async=false"
            ),
            "full",
        ),
        (
            format!("ts-proxysink name=full proxy-context={}", context()),
            "",
        ),
    ] {
        let (pipe, seen) = forked(&branch);
        let gate = (!stuck.is_empty()).then(|| gate(&pipe.pad(stuck, "src")));
        pipe.play();
        give(&pipe, 100);
        if let Some(gate) = &gate {
            gate.wait_held();
            fill(&pipe, &seen);
        } else {
            // The source waits from the first buffer on.
            assert_eq!(number(&next_buffer(&seen)), 100);
            (0..10).for_each(|number| give(&pipe, number));
        }
        let sink = pipe.pad("full", "sink");
        sink.peer().unwrap().unlink(&sink).unwrap();
        while number(&next_buffer(&seen)) != 9 {}
        pipe.assert_no_error();
        drop(gate);
    }
}

#[test]
fn a_full_proxy_whose_source_is_removed_leaves_the_other_branch_playing() {
    let name = context();
    let outlet = Pipe::parse(&format!(
        "ts-proxysrc name=in proxy-context={name} max-size-buffers=1 context={} ! fakesink name=sink sync=false async=false",
        context()
    ));
    let (pipe, seen) = forked(&format!("ts-proxysink proxy-context={name}"));
    let gate = gate(&outlet.pad("in", "src"));
    outlet.play();
    pipe.play();
    give(&pipe, 100);
    gate.wait_held();
    fill(&pipe, &seen);
    let stopping = outlet.0.clone();
    let stop = std::thread::spawn(move || stopping.set_state(gst::State::Null));
    gate.open();
    within("the stop", move || stop.join().unwrap()).unwrap();
    // A proxy waits until its source returns.
    outlet.play();
    for expected in 2..10 {
        assert_eq!(number(&next_buffer(&seen)), expected);
    }
    pipe.assert_no_error();
}

/// `docs/elements/queues.md`: a listener that is too slow loses data; other listeners lose none.
#[test]
fn a_stalled_listener_delays_no_other_and_counts_its_losses() {
    let name = context();
    let rig = Rig::new(
        &format!("ts-intersink inter-context={name}"),
        gst::State::Playing,
    );
    let listen = |properties: &str| {
        let pipe = Pipe::parse(&format!(
            "ts-intersrc name=in inter-context={name} context={} {properties} ! fakesink name=sink sync=false async=false",
            context()
        ));
        let seen = watch(&pipe.pad("sink", "sink"));
        (pipe, seen)
    };
    let (still, of_still) = listen("max-size-buffers=4");
    let gate = gate(&still.pad("in", "src"));
    still.play();
    let (lively, of_lively) = listen("");
    lively.play();
    rig.push(numbered(0)).unwrap();
    gate.wait_held();
    let feed = rig.feed.clone();
    within("pushes past a full listener", move || {
        for i in 1..100 {
            feed.push(numbered(i)).unwrap();
        }
    });
    for i in 0..100 {
        assert_eq!(number(&next_buffer(&of_lively)), i);
    }
    assert_eq!(stat(&still.get("in"), "buffers-leaked"), 95);
    assert_eq!(stat(&lively.get("in"), "buffers-leaked"), 0);
    gate.open();
    for i in 0..5 {
        assert_eq!(number(&next_buffer(&of_still)), i);
    }
    rig.push(numbered(100)).unwrap();
    let next = next_buffer(&of_still);
    assert_eq!(number(&next), 100);
    assert!(next.flags().contains(gst::BufferFlags::DISCONT));
}

/// The error arrives between the start of the source's task and the end of its change to PLAYING, or after that change. In both
/// cases, the pusher gets the error.
#[test]
fn a_proxys_error_during_the_change_to_playing_is_not_lost() {
    for round in 0..200 {
        let name = context();
        let rig = Rig::new(
            &format!("ts-proxysink proxy-context={name}"),
            gst::State::Playing,
        );
        let source = make("ts-proxysrc");
        source.set_property("proxy-context", &name);
        source.set_property("context", "proxy-error");
        // The pipeline stops the elements, however the test ends.
        let pipe = Pipe(gst::Pipeline::new());
        pipe.0.add(&source).unwrap();
        let refuses = gst::Pad::builder(gst::PadDirection::Sink)
            .chain_function(|_, _, _| Err(gst::FlowError::NotSupported))
            .build();
        refuses.set_active(true).unwrap();
        (source.static_pad("src").unwrap()).link(&refuses).unwrap();
        source.set_state(gst::State::Paused).unwrap();
        rig.push(numbered(0)).unwrap();
        source.set_state(gst::State::Playing).unwrap();
        // Pass one buffer at a time, because the error does not occur again.
        let passed = || stat(&source, "buffers-passed");
        eventually("the push downstream", || passed() == 1);
        let feed = rig.feed.clone();
        // The reader answers after its push has returned, with or without an error.
        let drained = within("a drain", move || {
            feed.peer_query(&mut gst::query::Drain::new())
        });
        assert!(!drained, "round {round}: the error was swallowed");
        assert_eq!(rig.push(numbered(1)), Err(gst::FlowError::NotSupported));
    }
}

/// The stock queue, on the first line, is the reference: a list after a leak is marked in the same way as a buffer.
#[test]
fn a_list_after_a_leak_is_discontinuous() {
    for leaky in ["upstream", "downstream"] {
        for line in [
            "queue".to_owned(),
            format!("ts-queue context={}", context()),
        ] {
            let rig = Rig::new(
                &format!("{line} max-size-buffers=2 leaky={leaky}"),
                gst::State::Playing,
            );
            let gate = gate(&rig.element.static_pad("src").unwrap());
            let flags = discont_flags(&rig);
            let list = |first: u32| {
                let mut list = gst::BufferList::new();
                (first..first + 2).for_each(|n| list.get_mut().unwrap().add(numbered(n)));
                list
            };
            rig.feed.push_list(list(0)).unwrap();
            gate.wait_held();
            rig.feed.push_list(list(2)).unwrap();
            rig.feed.push_list(list(4)).unwrap();
            gate.open();
            let left = if leaky == "upstream" { 2 } else { 4 };
            let next = |expected: (u32, bool)| {
                assert_eq!(flags.recv_timeout(DEADLINE), Ok(expected), "{line} {leaky}");
            };
            next((0, false));
            next((1, false));
            next((left, leaky == "downstream"));
            next((left + 1, false));
            rig.feed.push_list(list(6)).unwrap();
            next((6, leaky == "upstream"));
        }
    }
}

/// Returns the number and discontinuity of each buffer in the output lists.
fn discont_flags(rig: &Rig) -> std::sync::mpsc::Receiver<(u32, bool)> {
    let (send, flags) = std::sync::mpsc::channel();
    let src = rig.element.static_pad("src").unwrap();
    src.add_probe(gst::PadProbeType::BUFFER_LIST, move |_, info| {
        if let Some(gst::PadProbeData::BufferList(list)) = &info.data {
            for buffer in list.iter() {
                let is_discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
                let _ = send.send((number(buffer), is_discont));
            }
        }
        gst::PadProbeReturn::Ok
    });
    flags
}

/// The thread that feeds a queue, and so its latency, is known only at the stream's start.
#[test]
fn latency_change_by_binding_is_reported() {
    for (same, expects) in [(true, true), (false, false)] {
        let (name, other) = (context(), context());
        let own = if same { &name } else { &other };
        let pipe = Pipe::parse(&format!(
            "ts-appsrc name=src context={name} context-wait=20 ! ts-queue name=q context={own} context-wait=20 ! fakesink name=sink sync=false async=false"
        ));
        let seen = watch(&pipe.pad("sink", "sink"));
        pipe.play();
        give(&pipe, 1);
        next_buffer(&seen);
        let mut query = gst::query::Latency::new();
        assert!(pipe.pad("q", "src").query(&mut query));
        let slices = if same { 1 } else { 2 };
        assert_eq!(query.result().1, gst::ClockTime::from_mseconds(20 * slices));
        let queue = pipe.get("q");
        let mut told = false;
        while let Some(message) = pipe.bus().pop_filtered(&[gst::MessageType::Latency]) {
            told |= message.src() == Some(queue.upcast_ref());
        }
        assert_eq!(told, expects);
    }
}
