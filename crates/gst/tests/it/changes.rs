//! Sinks and sources of pipelines that change while they play: branches removed, seeks, flushes, pauses, steps.
//!
//! If a stock element does the same work, the same test runs with it as the reference.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::common::*;
use gst::prelude::*;

const MS: gst::ClockTime = gst::ClockTime::from_mseconds(1);

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().unwrap().port()
}

/// Takes everything that has arrived.
fn drain(socket: &UdpSocket) -> usize {
    socket.set_nonblocking(true).unwrap();
    let count = std::iter::from_fn(|| socket.recv(&mut [0; 2048]).ok()).count();
    socket.set_nonblocking(false).unwrap();
    count
}

/// A branch that waits for the clock or for PLAYING is unlinked and stopped. The other branch continues.
#[test]
fn a_removed_branch_does_not_end_its_source() {
    for (source, sink, paused) in [
        ("udpsrc", "udpsink", false),
        ("ts-udpsrc", "ts-udpsink", false),
        ("ts-udpsrc", "ts-udpsink", true),
    ] {
        let (stays, goes) = (socket(), socket());
        let pipe = Pipe::parse(&format!(
            "{source} name=src address=127.0.0.1 port=0 ! tee name=t \
             t. ! queue ! {sink} async=false sync=false host=127.0.0.1 port={} \
             t. ! {} ! {sink} name=goes async=false ts-offset=3600000000000 host=127.0.0.1 port={}",
            port(&stays),
            if source == "udpsrc" {
                "queue"
            } else {
                "identity"
            },
            port(&goes),
        ));
        pipe.play();
        let (src, goes) = (pipe.get("src"), pipe.get("goes"));
        if paused {
            goes.set_locked_state(true);
            set_state(&goes, gst::State::Paused);
        }
        let sender = socket();
        let to = used_address(&src, "used-socket");
        sender.send_to(&packet(0), to).unwrap();
        if !paused {
            assert_eq!(received(&stays), packet(0));
        }
        // As applications do, first unlink the branch from the tee, then stop and remove it.
        let first = goes.static_pad("sink").unwrap().peer().unwrap();
        let before = first.parent_element().unwrap();
        let tee_pad = before.static_pad("sink").unwrap().peer().unwrap();
        tee_pad.unlink(&before.static_pad("sink").unwrap()).unwrap();
        for element in [&goes, &before] {
            element.set_locked_state(true);
            set_state(element, gst::State::Null);
            pipe.0.remove(element).unwrap();
        }
        pipe.get("t").release_request_pad(&tee_pad);
        let mut n = 0;
        eventually("the other branch goes on", || {
            n += 1;
            sender.send_to(&packet(n), to).unwrap();
            stays
                .set_read_timeout(Some(std::time::Duration::from_millis(20)))
                .unwrap();
            let mut got = [0; 16];
            stays.recv(&mut got).is_ok() && u32::from_be_bytes(got[..4].try_into().unwrap()) > 0
        });
        pipe.assert_no_error();
    }
}

/// A branch that is unlinked but not stopped blocks no other branch. It ends in a paused sink, or in an input whose turn has not
/// come.
#[test]
fn unlinked_branch_blocks_no_source() {
    for branch in [
        "ts-udpsink name=goes async=false sync=false clients=127.0.0.1:9",
        "ts-input-selector name=goes ! fakesink async=false",
    ] {
        let stays = socket();
        let pipe = Pipe::parse(&format!(
            "ts-udpsrc name=src address=127.0.0.1 port=0 ! tee name=t \
             t. ! ts-udpsink async=false sync=false clients=127.0.0.1:{} \
             t. ! identity name=before ! {branch}",
            port(&stays),
        ));
        let goes = pipe.get("goes");
        if branch.contains("selector") {
            // Another input is active, and its output is blocked.
            let other = goes.request_pad_simple("sink_%u").unwrap();
            goes.set_property("active-pad", &other);
        } else {
            goes.set_locked_state(true);
        }
        pipe.play();
        if !branch.contains("selector") {
            set_state(&goes, gst::State::Paused);
        }
        let (sender, to) = (socket(), target(&pipe.get("src")));
        sender.send_to(&packet(0), to).unwrap();
        assert_eq!(received(&stays), packet(0));
        let pad = pipe.pad("before", "src");
        pad.unlink(&pad.peer().unwrap()).unwrap();
        let tee_pad = pipe.pad("before", "sink").peer().unwrap();
        tee_pad.unlink(&pipe.pad("before", "sink")).unwrap();
        sender.send_to(&packet(1), to).unwrap();
        assert_eq!(received(&stays), packet(1));
        pipe.assert_no_error();
        goes.set_locked_state(false);
    }
}

/// Returns a pipeline whose source supports seeking, and `sink`.
fn seekable(sink: &str) -> (Pipe, UdpSocket) {
    let receiver = socket();
    let pipe = Pipe::parse(&format!(
        "audiotestsrc name=src samplesperbuffer=480 ! audio/x-raw,rate=48000 ! {sink} name=sink host=127.0.0.1 port={}",
        port(&receiver)
    ));
    (pipe, receiver)
}

/// Returns a sink in READY, on a test clock that is at its base time.
fn on_test_clock(sink: &str) -> (Rig, gst_check::TestClock) {
    let rig = Rig::without_stream(
        &format!("{sink} sync=true async=false processing-deadline=0"),
        gst::State::Ready,
    );
    let clock = gst_check::TestClock::with_start_time(100 * gst::ClockTime::SECOND);
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(100 * gst::ClockTime::SECOND);
    (rig, clock)
}

/// Lets a test clock reach the next time that is waited for; fails if nothing waits.
fn crank(clock: &gst_check::TestClock) {
    let waited = clock.clone();
    within("a wait for the clock", move || {
        waited.wait_for_next_pending_id()
    });
    assert!(clock.crank());
}

/// After a flushing seek, data is due from running time 0 again (GStreamer's design, "seeking"): the sink waits for the clock.
/// With the old running time, all data would be late, and nothing would wait.
#[test]
fn a_flushing_seek_in_playing_keeps_the_pace() {
    for sink in ["udpsink", "ts-udpsink"] {
        let (pipe, receiver) = seekable(sink);
        let clock = {
            init();
            gst_check::TestClock::with_start_time(100 * gst::ClockTime::SECOND)
        };
        pipe.0.use_clock(Some(&clock));
        pipe.to(gst::State::Playing);
        for _ in 0..50 {
            crank(&clock);
        }
        // Seek the sink, as players do, and then the pipeline.
        for target in [pipe.get("sink"), pipe.0.clone().upcast()] {
            let sought = within("a seek", move || {
                target.seek_simple(gst::SeekFlags::FLUSH, 5 * gst::ClockTime::SECOND)
            });
            sought.unwrap_or_else(|error| panic!("{sink}: {error}"));
            pipe.expect(gst::MessageType::AsyncDone);
            pipe.to(gst::State::Playing);
            drain(&receiver);
            for _ in 0..30 {
                crank(&clock);
            }
            // One at a time: the sink waits for the next buffer.
            let waited = clock.clone();
            within("a wait", move || waited.wait_for_next_pending_id());
            let came = drain(&receiver);
            assert!((29..=31).contains(&came), "{sink}: {came}");
            let position = pipe.0.query_position::<gst::ClockTime>().unwrap();
            assert!(position > 5 * gst::ClockTime::SECOND, "{sink}: {position}");
        }
        pipe.assert_no_error();
    }
}

/// A flushing seek of one branch gives the whole pipeline a new base time (GStreamer's design, "seeking"). A live source next to
/// that branch stays in PLAYING, and its times count from the new base time, too.
#[test]
fn seek_gives_a_live_source_a_new_base_time() {
    for (source, sink) in [("udpsrc", "udpsink"), ("ts-udpsrc", "ts-udpsink")] {
        let receiver = socket();
        let pipe = Pipe::parse(&format!(
            "audiotestsrc ! {sink} name=sought host=127.0.0.1 port={} \
             {source} name=src address=127.0.0.1 port=0 ! appsink name=out sync=false async=false",
            port(&receiver)
        ));
        let clock = gst_check::TestClock::with_start_time(100 * gst::ClockTime::SECOND);
        pipe.0.use_clock(Some(&clock));
        pipe.to(gst::State::Playing);
        let (src, out) = (pipe.get("src"), pipe.get("out"));
        let (to, sender) = (used_address(&src, "used-socket"), socket());
        // Compare whole seconds, because a packet's time is that of its arrival, a little before it is read.
        let seconds = || {
            sender.send_to(&packet(0), to).unwrap();
            let out = out.clone();
            let sample = within("a packet", move || {
                out.emit_by_name::<gst::Sample>("pull-sample", &[])
            });
            let pts = sample.buffer().unwrap().pts().unwrap();
            (pts + 500 * MS).seconds()
        };
        clock.set_time(107 * gst::ClockTime::SECOND);
        assert_eq!(seconds(), 7, "{source}");
        clock.set_time(110 * gst::ClockTime::SECOND);
        let sought = pipe.get("sought");
        let done = within("a seek", move || {
            sought.seek_simple(gst::SeekFlags::FLUSH, gst::ClockTime::ZERO)
        });
        done.unwrap();
        pipe.expect(gst::MessageType::AsyncDone);
        pipe.to(gst::State::Playing);
        let base = pipe.0.base_time().unwrap();
        clock.set_time(117 * gst::ClockTime::SECOND);
        assert_eq!(base, 110 * gst::ClockTime::SECOND, "{source}");
        assert_eq!(seconds(), 7, "{source}");
        pipe.assert_no_error();
    }
}

/// The same applies to sinks that stay in PLAYING: data is due by the current base time.
#[test]
fn new_base_time_in_playing_moves_later_data() {
    for sink in ["fakesink", "ts-udpsink", "ts-appsink"] {
        let (rig, clock) = on_test_clock(sink);
        rig.to(gst::State::Playing);
        rig.open_stream();
        for (base, time) in [(100, 5), (120, 6), (200, 7)] {
            rig.element.set_base_time(base * gst::ClockTime::SECOND);
            let feed = rig.feed.clone();
            let pushed =
                std::thread::spawn(move || feed.push(timed(0, time * gst::ClockTime::SECOND)));
            let waited = clock.clone();
            let due = within("a wait", move || waited.wait_for_next_pending_id()).time();
            assert_eq!(due, (base + time) * gst::ClockTime::SECOND, "{sink}");
            crank(&clock);
            assert!(pushed.join().unwrap().is_ok(), "{sink}");
        }
    }
}

#[test]
fn flushing_seek_in_paused_prerolls_again() {
    for sink in ["udpsink", "ts-udpsink"] {
        let (pipe, receiver) = seekable(sink);
        pipe.to(gst::State::Paused);
        pipe.expect(gst::MessageType::AsyncDone);
        for _ in 0..3 {
            let target = pipe.0.clone();
            within("a seek", move || {
                target.seek_simple(gst::SeekFlags::FLUSH, 5 * gst::ClockTime::SECOND)
            })
            .unwrap();
            pipe.expect(gst::MessageType::AsyncDone);
        }
        assert_nothing(&receiver);
        pipe.to(gst::State::Playing);
        received(&receiver);
        let position = pipe.0.query_position::<gst::ClockTime>().unwrap();
        assert!(position >= 5 * gst::ClockTime::SECOND, "{sink}: {position}");
    }
}

/// The end is due when the last data has ended, and is reported again after a pause, as by the stock sinks.
#[test]
fn eos_is_posted_at_the_end_of_the_last_buffer_and_again_after_a_pause() {
    for sink in ["fakesink", "ts-appsink"] {
        let (rig, clock) = on_test_clock(sink);
        if sink == "ts-appsink" {
            rig.element.set_property("wait-on-eos", false);
        }
        rig.to(gst::State::Playing);
        rig.open_stream();
        let mut buffer = timed(1, gst::ClockTime::ZERO);
        buffer.make_mut().set_duration(40 * MS);
        // The stock sink waits on a test clock even for a time in the past.
        let pushed = rig.push_aside(buffer);
        if sink == "fakesink" {
            clock.wait_for_next_pending_id();
            assert!(clock.crank());
        }
        pushed.recv_timeout(DEADLINE).unwrap().unwrap();
        let feed = rig.feed.clone();
        let pushed = until_it_waits(move || feed.push_event(gst::event::Eos::new()));
        clock.wait_for_next_pending_id();
        assert_eq!(
            clock.next_entry_time(),
            Some(100 * gst::ClockTime::SECOND + 40 * MS),
            "{sink}"
        );
        assert!(rig.bus.pop_filtered(&[gst::MessageType::Eos]).is_none());
        clock.set_time(101 * gst::ClockTime::SECOND);
        clock.process_next_clock_id();
        assert!(pushed.join().unwrap());
        let told = || {
            let eos = [gst::MessageType::Eos];
            rig.bus.timed_pop_filtered(DEADLINE_GST, &eos).is_some()
        };
        assert!(told(), "{sink}: at the end");
        rig.to(gst::State::Paused);
        rig.to(gst::State::Playing);
        assert!(told(), "{sink}: again");
    }
}

/// An element downstream that delays the EOS does not block the context's thread.
#[test]
fn end_of_a_stream_blocks_no_other_stream() {
    let (name, receiver) = (context(), socket());
    // Its sink is full, because no sample is pulled.
    let ends = Pipe::parse(&format!(
        "ts-appsrc name=src context={name} ! ts-appsink name=sink max-buffers=1 sync=false"
    ));
    let other = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! ts-udpsink sync=false async=false clients=127.0.0.1:{}",
        port(&receiver)
    ));
    ends.play();
    other.play();
    let src = ends.get("src");
    for n in 0..2 {
        assert!(src.emit_by_name::<bool>("push-buffer", &[&numbered(n)]));
    }
    assert!(src.emit_by_name::<bool>("end-of-stream", &[]));
    let to = target(&other.get("src"));
    for n in 0..20 {
        socket().send_to(&packet(n), to).unwrap();
        assert_eq!(received(&receiver), packet(n));
    }
    let sink = ends.get("sink");
    for n in 0..2 {
        let sample: Option<gst::Sample> = sink.emit_by_name("pull-sample", &[]);
        assert_eq!(number(sample.unwrap().buffer().unwrap()), n);
    }
    ends.expect(gst::MessageType::Eos);
}

/// A peer that resets its connection ends one stream with an error, at once.
#[test]
fn reset_connection_blocks_no_other_stream() {
    let name = context();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let receiver = socket();
    let reset = Pipe::parse(&format!(
        "ts-tcpclientsrc do-timestamp=true host=127.0.0.1 port={} context={name} ! ts-udpsink ts-offset=3600000000000 clients=127.0.0.1:9",
        listener.local_addr().unwrap().port()
    ));
    let other = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={name} ! ts-udpsink sync=false async=false clients=127.0.0.1:{}",
        port(&receiver)
    ));
    reset.play();
    other.play();
    let (mut peer, _) = listener.accept().unwrap();
    use std::io::Write;
    peer.write_all(b"something").unwrap();
    // RFC 793: a close with zero linger sends RST.
    let peer = socket2::Socket::from(peer);
    peer.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(peer);
    reset.message(&[gst::MessageType::Error]);
    let to = target(&other.get("src"));
    for n in 0..20 {
        socket().send_to(&packet(n), to).unwrap();
        assert_eq!(received(&receiver), packet(n));
    }
}

#[test]
fn new_sample_handler_decides_the_push_result() {
    for sink in ["appsink", "ts-appsink"] {
        let rig = Rig::new(
            &format!("{sink} emit-signals=true sync=false async=false"),
            gst::State::Playing,
        );
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        rig.element.connect("new-sample", false, move |values| {
            let element = values[0].get::<gst::Element>().unwrap();
            let _taken: Option<gst::Sample> = element.emit_by_name("pull-sample", &[]);
            Some(if counted.fetch_add(1, SeqCst) == 0 {
                gst::FlowReturn::Ok.to_value()
            } else {
                gst::FlowReturn::Eos.to_value()
            })
        });
        assert!(rig.push(numbered(0)).is_ok(), "{sink}");
        assert_eq!(rig.push(numbered(1)), Err(gst::FlowError::Eos), "{sink}");
    }
    // On a context's thread, such a result ends the source.
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=src context={} ! ts-appsink name=sink emit-signals=true sync=false",
        context()
    ));
    pipe.get("sink").connect("new-sample", false, |_| {
        Some(gst::FlowReturn::Eos.to_value())
    });
    pipe.play();
    let src = pipe.get("src");
    src.emit_by_name::<bool>("push-buffer", &[&numbered(0)]);
    eventually("the source has ended", || {
        !src.emit_by_name::<bool>("push-buffer", &[&numbered(1)])
    });
}

#[test]
fn a_sample_stream_stores_only_its_latest_waker() {
    use std::task::{Context, Poll, Wake, Waker};
    struct Nothing;
    impl Wake for Nothing {
        fn wake(self: Arc<Self>) {}
    }
    let rig = Rig::new("ts-appsink sync=false async=false", gst::State::Playing);
    let mut stream = gstthreadbare::SampleStream::of(&rig.element).unwrap();
    let mut wakers = Vec::new();
    for _ in 0..100 {
        let nothing = Arc::new(Nothing);
        wakers.push(nothing.clone());
        let waker = Waker::from(nothing);
        let mut cx = Context::from_waker(&waker);
        let polled = futures_core::Stream::poll_next(std::pin::Pin::new(&mut stream), &mut cx);
        assert!(matches!(polled, Poll::Pending));
    }
    let held = || wakers.iter().filter(|w| Arc::strong_count(w) > 1).count();
    assert_eq!(held(), 1);
    drop(stream);
    assert_eq!(held(), 0);
}

/// Data completes an asynchronous state change at the moment at which another thread takes the element down. The state that this
/// other thread requested stays.
#[test]
fn a_preroll_during_a_downward_change_keeps_the_requested_state() {
    let rig = Rig::without_stream("ts-appsink sync=false", gst::State::Ready);
    let (element, down) = (rig.element.downgrade(), Arc::new(Mutex::new(None)));
    let taken = down.clone();
    rig.bus.set_sync_handler(move |_, message| {
        // On the streaming thread, in the middle of the commit.
        let is_commit = matches!(message.view(), gst::MessageView::StateChanged(change)
            if change.current() == gst::State::Paused && change.old() == gst::State::Ready);
        let element = element.upgrade().filter(|_| is_commit);
        if let Some(element) = element {
            let change = move || element.set_state(gst::State::Ready).map(|_| ());
            *taken.lock().unwrap() = Some(until_it_waits(change));
        }
        gst::BusSyncReply::Drop
    });
    rig.element.set_state(gst::State::Playing).unwrap();
    rig.open_stream();
    let pushed = rig.push_aside(numbered(1));
    let result = pushed.recv_timeout(DEADLINE).unwrap();
    let down = down
        .lock()
        .unwrap()
        .take()
        .expect("the change was committed");
    down.join().unwrap().unwrap();
    assert_eq!(result, Err(gst::FlowError::Flushing));
    let (changed, state, pending) = rig.element.state(DEADLINE_GST);
    changed.unwrap();
    let expected = (gst::State::Ready, gst::State::VoidPending);
    assert_eq!((state, pending), expected);
    rig.bus.unset_sync_handler();
}

#[test]
fn sink_waits_for_a_gap_like_for_data() {
    for sink in ["fakesink", "ts-appsink"] {
        let (rig, clock) = on_test_clock(sink);
        rig.to(gst::State::Playing);
        rig.open_stream();
        let feed = rig.feed.clone();
        let gap = gst::event::Gap::builder(20 * MS).duration(10 * MS).build();
        let pushed = until_it_waits(move || feed.push_event(gap));
        clock.wait_for_next_pending_id();
        let due = clock.next_entry_time().unwrap();
        assert!(
            due >= 100 * gst::ClockTime::SECOND + 20 * MS,
            "{sink}: {due}"
        );
        clock.set_time(101 * gst::ClockTime::SECOND);
        clock.process_next_clock_id();
        assert!(pushed.join().unwrap());
    }
}

/// Late data is reported upstream, and a dropped buffer to the application (GStreamer's design, "qos").
#[test]
fn late_data_is_reported_upstream_and_to_the_application() {
    for sink in ["fakesink", "ts-appsink"] {
        let rig = Rig::without_stream(
            &format!("{sink} sync=true qos=true async=false max-lateness=50000000"),
            gst::State::Ready,
        );
        let clock = gst::SystemClock::obtain();
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element
            .set_base_time(clock.time() - 10 * gst::ClockTime::SECOND);
        let told = Arc::new(Mutex::new(Vec::new()));
        let (kept, feed) = (told.clone(), rig.feed.clone());
        feed.add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
            if let Some(gst::EventView::Qos(qos)) = info.event().map(|event| event.view()) {
                kept.lock().unwrap().push((qos.get().2, qos.get().3));
            }
            gst::PadProbeReturn::Ok
        });
        rig.to(gst::State::Playing);
        rig.open_stream();
        for n in 0..20_u32 {
            let mut late = timed(n, u64::from(n) * 10 * MS);
            late.make_mut().set_duration(10 * MS);
            let _ = rig.push(late);
        }
        let told = told.lock().unwrap().clone();
        let (jitter, begin) = told
            .last()
            .copied()
            .unwrap_or_else(|| panic!("{sink}: none"));
        assert!(jitter > 9 * 1_000_000_000, "{sink}: {jitter}");
        assert!(begin.is_some(), "{sink}");
        let message = rig
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Qos]);
        assert!(message.is_some(), "{sink}");
    }
}

/// The sink requests one buffer per `throttle-time` from upstream, with each buffer that is rendered.
#[test]
fn throttle_is_reported_upstream_like_the_stock_sink() {
    let [stock, ours] = ["fakesink", "ts-appsink max-buffers=0"].map(|sink| {
        let (rig, clock) = on_test_clock(&format!("{sink} qos=true throttle-time=25000000"));
        let (tell, told) = channel();
        let kinds = gst::PadProbeType::EVENT_UPSTREAM;
        rig.feed.add_probe(kinds, move |_, info| {
            if let Some(gst::EventView::Qos(qos)) = info.event().map(|event| event.view()) {
                let (kind, _, difference_ns, begin) = qos.get();
                let _ = tell.send((kind, difference_ns, begin));
            }
            gst::PadProbeReturn::Ok
        });
        rig.to(gst::State::Playing);
        rig.open_stream();
        for n in 0..20 {
            clock.set_time(100 * gst::ClockTime::SECOND + n * 10 * MS);
            let mut buffer = timed(n as u32, n * 10 * MS);
            buffer.make_mut().set_duration(10 * MS);
            let feed = rig.feed.clone();
            let pushed = until_it_waits(move || feed.push(buffer));
            // The data is due. The stock sink waits nevertheless.
            if clock.peek_id_count() > 0 {
                clock.process_next_clock_id();
            }
            pushed.join().unwrap().unwrap();
        }
        told.try_iter().collect::<Vec<_>>()
    });
    // The average of the stock sink starts only with its second buffer.
    assert!(stock.len() > 10, "{stock:?}");
    assert!(ours.ends_with(&stock), "{ours:?}, {stock:?}");
}

#[test]
fn latency_includes_deadline_and_delay_like_the_stock_sinks() {
    let [stock, ours] = ["fakesink", "ts-udpsink"].map(|sink| {
        let pipe = Pipe::parse(&format!(
            "audiotestsrc is-live=true ! {sink} name=sink sync=true processing-deadline=7000000 render-delay=5000000"
        ));
        let buffers = watch(&pipe.pad("sink", "sink"));
        pipe.to(gst::State::Playing);
        // Before its first buffer, the source may answer with another latency.
        next_buffer(&buffers);
        let mut query = gst::query::Latency::new();
        assert!(pipe.get("sink").query(&mut query), "{sink}");
        query.result()
    });
    assert_eq!(ours, stock);
}

#[test]
fn last_sample_is_kept_if_configured() {
    let rig = Rig::new(
        "ts-appsink sync=false async=false enable-last-sample=true",
        gst::State::Playing,
    );
    for n in 0..3 {
        rig.push(numbered(n)).unwrap();
    }
    let last = || rig.element.property::<Option<gst::Sample>>("last-sample");
    let sample = last().unwrap();
    assert_eq!(number(sample.buffer().unwrap()), 2);
    // The application may convert the sample, for example to a picture.
    let caps = sample.caps().unwrap().structure(0).unwrap().name();
    assert_eq!(caps, "application/x-test");
    assert!(sample.segment().is_some());
    rig.feed.push_event(gst::event::FlushStart::new());
    assert!(last().is_none(), "as the stock sinks");
}

#[test]
fn last_sample_is_available_in_paused() {
    let rig = Rig::without_stream("ts-appsink enable-last-sample=true", gst::State::Ready);
    rig.element.set_state(gst::State::Paused).unwrap();
    rig.open_stream();
    let pushed = rig.push_aside(numbered(7));
    eventually("the preroll", || {
        let last = rig.element.property::<Option<gst::Sample>>("last-sample");
        last.is_some_and(|last| number(last.buffer().unwrap()) == 7)
    });
    rig.to(gst::State::Playing);
    pushed.recv_timeout(DEADLINE).unwrap().unwrap();
}

#[test]
fn a_step_is_refused_with_a_reason() {
    let rig = Rig::new("ts-appsink sync=false async=false", gst::State::Playing);
    let step = gst::event::Step::new(gst::format::Buffers::from_u64(1), 1.0, true, false);
    assert!(!rig.element.send_event(step));
    let warning = rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Warning]);
    assert!(text(&warning.unwrap()).contains("STEP"));
}

/// A live source handles a flush from downstream as the stock sources do: no data until the flush ends.
#[test]
fn live_source_handles_a_flush_from_downstream_itself() {
    let pipe = Pipe::parse(&format!(
        "ts-udpsrc name=src address=127.0.0.1 port=0 context={} ! ts-appsink name=sink sync=false async=false",
        context()
    ));
    pipe.play();
    let (src, pad) = (pipe.get("src"), pipe.pad("src", "src"));
    let (send, seen) = channel();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let _ = send.send(number(info.buffer().unwrap()));
        gst::PadProbeReturn::Ok
    });
    let sender = socket();
    sender.send_to(&packet(1), target(&src)).unwrap();
    assert_eq!(seen.recv_timeout(DEADLINE).unwrap(), 1);
    assert!(pad.send_event(gst::event::FlushStart::new()));
    let place = threadbare_runtime::Context::find(&src.property::<String>("context")).unwrap();
    place.shards()[0].call(|_| ()).unwrap();
    sender.send_to(&packet(2), target(&src)).unwrap();
    for _ in 0..3 {
        place.shards()[0].call(|_| ()).unwrap();
    }
    assert!(seen.try_recv().is_err(), "it flushes");
    assert!(pad.send_event(gst::event::FlushStop::new(true)));
    sender.send_to(&packet(3), target(&src)).unwrap();
    eventually("data comes again", || seen.try_recv() == Ok(3));
}

/// A branch that flushes or goes to NULL while linked returns FLUSHING for a while. The source tries again.
#[test]
fn a_branch_that_is_down_for_a_while_does_not_end_its_source() {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=src context={} ! identity name=branch ! ts-appsink name=sink sync=false async=false",
        context()
    ));
    pipe.play();
    let (src, branch, sink) = (pipe.get("src"), pipe.get("branch"), pipe.get("sink"));
    let push = |n: u32| src.emit_by_name::<bool>("push-buffer", &[&numbered(n)]);
    let pull = || {
        let sample: Option<gst::Sample> = sink.emit_by_name("try-pull-sample", &[&10_000_000_u64]);
        sample.map(|sample| number(sample.buffer().unwrap()))
    };
    assert!(push(0));
    eventually("the first", || pull() == Some(0));
    branch.set_locked_state(true);
    set_state(&branch, gst::State::Null);
    assert!(push(1));
    eventually("it was tried", || {
        src.property::<u64>("current-level-buffers") == 0
    });
    set_state(&branch, gst::State::Playing);
    let mut n = 1;
    eventually("data comes again", || {
        n += 1;
        push(n) && pull().is_some()
    });
    pipe.assert_no_error();
    branch.set_locked_state(false);
}

/// A stopped branch does not stop a tone source either, whose next buffer depends only on time.
#[test]
fn tone_resumes_after_a_stopped_branch() {
    let pipe = Pipe::parse(&format!(
        "ts-audiotestsrc is-live=true name=src context={} ! identity name=branch ! ts-appsink name=sink sync=false async=false",
        context()
    ));
    pipe.play();
    let (branch, sink) = (pipe.get("branch"), pipe.get("sink"));
    let pull = || sink.emit_by_name::<Option<gst::Sample>>("try-pull-sample", &[&10_000_000_u64]);
    eventually("a buffer", || pull().is_some());
    branch.set_locked_state(true);
    set_state(&branch, gst::State::Null);
    eventually("none is left", || pull().is_none());
    set_state(&branch, gst::State::Playing);
    eventually("it goes on", || pull().is_some());
    branch.set_locked_state(false);
}

/// The source that drives a sink is removed while another source is linked. The sink continues, whether that other source waits
/// for room or has already pushed its last buffer.
#[test]
fn sink_continues_after_its_driving_source_is_removed() {
    for (count, all_held) in [(39, true), (299, false)] {
        let (first, second) = (context(), context());
        let pipe = Pipe::parse(&format!(
            "ts-appsrc name=a context={first} format=time ! identity name=ia ! ts-appsink name=sink sync=true max-buffers=0 ts-offset=500000000 \
             ts-appsrc name=b max-buffers=0 context={second} format=time ! identity name=ib ! fakesink name=none async=false"
        ));
        pipe.play();
        let (a, b, sink) = (pipe.get("a"), pipe.get("b"), pipe.get("sink"));
        let push = |src: &gst::Element, n: u32| {
            let buffer = timed(n, u64::from(n) * MS);
            assert!(src.emit_by_name::<bool>("push-buffer", &[&buffer]));
        };
        let is_empty = |src: &gst::Element| src.property::<u64>("current-level-buffers") == 0;
        push(&a, 0);
        eventually("it is taken", || is_empty(&a));
        // The source pushes the item in the pass that takes it. So the push is over when the shard has answered.
        let place = threadbare_runtime::Context::find(&first).unwrap();
        place.shards()[0].call(|_| ()).unwrap();
        drop(place);
        let (out_a, out_b) = (pipe.pad("ia", "src"), pipe.pad("ib", "src"));
        let sink_pad = pipe.pad("sink", "sink");
        out_a.unlink(&sink_pad).unwrap();
        out_b.unlink(&pipe.pad("none", "sink")).unwrap();
        out_b.link(&sink_pad).unwrap();
        for n in 1..=count {
            push(&b, n);
        }
        if all_held {
            eventually("all are held", || is_empty(&b));
        }
        for element in [&a, &pipe.get("ia")] {
            element.set_locked_state(true);
            set_state(element, gst::State::Null);
            pipe.0.remove(element).unwrap();
        }
        let mut got = 0;
        eventually("all have arrived", || {
            let timeout_ns = 10_000_000_u64;
            let sample: Option<gst::Sample> = sink.emit_by_name("try-pull-sample", &[&timeout_ns]);
            got += usize::from(sample.is_some());
            got >= count as usize
        });
        pipe.assert_no_error();
    }
}
