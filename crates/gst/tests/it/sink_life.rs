//! Sinks as applications see them: preroll, position, quality of service, and buffers whose drop calls back.
//!
//! If a stock element does the same work, the same test runs with it as the reference.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::*;
use gst::prelude::*;

const S: gst::ClockTime = gst::ClockTime::SECOND;

/// Returns a sink in READY, on a test clock that is stopped at 100 s.
fn on_test_clock(line: &str, base: gst::ClockTime) -> (Rig, gst_check::TestClock) {
    let rig = Rig::without_stream(line, gst::State::Ready);
    let clock = gst_check::TestClock::with_start_time(100 * S);
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(base);
    (rig, clock)
}

/// Returns the time that is waited for next.
fn awaited(clock: &gst_check::TestClock) -> gst::ClockTime {
    let waited = clock.clone();
    within("a wait for the clock", move || {
        waited.wait_for_next_pending_id()
    });
    clock.next_entry_time().unwrap()
}

fn pull(element: &gst::Element, action: &'static str) -> Option<u32> {
    let element = element.clone();
    let sample: Option<gst::Sample> = within(action, move || element.emit_by_name(action, &[]));
    sample.map(|sample| number(sample.buffer().unwrap()))
}

/// The preroll is the buffer that waits for its time when the pipeline pauses.
#[test]
fn pause_shows_the_waiting_buffer() {
    for factory in ["appsink", "ts-appsink"] {
        let line =
            format!("{factory} emit-signals=true enable-last-sample=true processing-deadline=0");
        let (rig, clock) = on_test_clock(&line, 100 * S);
        let (send, told) = channel();
        rig.element.connect("new-preroll", false, move |_| {
            let _ = send.send(());
            Some(gst::FlowReturn::Ok.to_value())
        });
        rig.to(gst::State::Paused);
        rig.open_stream();
        let first = rig.push_aside(timed(1, gst::ClockTime::ZERO));
        assert_eq!(pull(&rig.element, "pull-preroll"), Some(1), "{factory}");
        told.recv_timeout(DEADLINE).unwrap();
        rig.to(gst::State::Playing);
        // The stock sink waits on a test clock even for a time in the past.
        let reach = |time: gst::ClockTime| {
            clock.set_time(time);
            if factory == "appsink" {
                awaited(&clock);
                clock.process_next_clock_id();
            }
        };
        reach(100 * S);
        assert_eq!(pull(&rig.element, "pull-sample"), Some(1), "{factory}");
        first.recv_timeout(DEADLINE).unwrap().unwrap();
        let second = rig.push_aside(timed(2, 10 * S));
        assert_eq!(awaited(&clock), 110 * S);
        rig.to(gst::State::Paused);
        assert_eq!(pull(&rig.element, "pull-preroll"), Some(2), "{factory}");
        told.recv_timeout(DEADLINE).unwrap();
        let last: gst::Sample = rig.element.property("last-sample");
        assert_eq!(number(last.buffer().unwrap()), 2, "{factory}");
        rig.to(gst::State::Playing);
        assert_eq!(awaited(&clock), 110 * S);
        clock.set_time(110 * S);
        clock.process_next_clock_id();
        assert_eq!(pull(&rig.element, "pull-sample"), Some(2), "{factory}");
        second.recv_timeout(DEADLINE).unwrap().unwrap();
        assert!(told.try_recv().is_err(), "{factory}: reported twice");
    }
}

/// The end of the stream arrives in PAUSED, without data before it. It ends the waits for samples at once.
#[test]
fn an_end_without_data_ends_the_waits_in_paused() {
    // Test one wait at a time, because the stock element wakes only one.
    for (factory, action) in [
        ("appsink", "pull-preroll"),
        ("ts-appsink", "pull-preroll"),
        ("appsink", "pull-sample"),
        ("ts-appsink", "pull-sample"),
    ] {
        let rig = Rig::without_stream(factory, gst::State::Paused);
        rig.open_stream();
        let element = rig.element.clone();
        let waits = until_it_waits(move || pull(&element, action));
        let feed = rig.feed.clone();
        let pushed = until_it_waits(move || feed.push_event(gst::event::Eos::new()));
        let taken = within("a pull", move || waits.join().unwrap());
        assert_eq!(taken, None, "{factory}");
        assert!(rig.element.property::<bool>("eos"), "{factory}");
        assert!(rig.bus.pop_filtered(&[gst::MessageType::Eos]).is_none());
        rig.to(gst::State::Playing);
        assert!(within("the end", move || pushed.join().unwrap()));
        let eos = [gst::MessageType::Eos];
        assert!(rig.bus.timed_pop_filtered(DEADLINE_GST, &eos).is_some());
    }
}

/// Without a clock, the position is that of the last rendered data, in stream time. After the end, it is the end of that data.
#[test]
fn without_a_clock_the_position_is_that_of_the_last_buffer() {
    let positions = |factory: &str, sync: bool| {
        let line = format!("{factory} sync={sync} async=false");
        let rig = Rig::without_stream(&line, gst::State::Playing);
        assert!(rig.feed.push_event(gst::event::StreamStart::new("a")));
        let position = || rig.element.query_position::<gst::ClockTime>();
        let mut seen = Vec::new();
        for (start, time) in [(100, 7), (200, 40)] {
            let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
            segment.set_start(start * S);
            segment.set_time(time * S);
            assert!(rig.feed.push_event(gst::event::Segment::new(&segment)));
            // The position is known between two segments, too.
            if time == 40 {
                seen.push(position());
            }
            for n in 0..3 {
                let mut buffer = timed(n, (start + u64::from(n)) * S);
                buffer.make_mut().set_duration(S);
                rig.push(buffer).unwrap();
                seen.push(position());
            }
        }
        let gap = gst::event::Gap::builder(205 * S).duration(2 * S).build();
        assert!(rig.feed.push_event(gap));
        seen.push(position());
        assert!(rig.feed.push_event(gst::event::Eos::new()));
        seen.push(position());
        seen
    };
    for sync in [false, true] {
        let stock = positions("fakesink", sync);
        assert_eq!(stock[0], Some(7 * S));
        for ours in [
            "ts-udpsink clients=127.0.0.1:9",
            "ts-appsink wait-on-eos=false",
        ] {
            assert_eq!(positions(ours, sync), stock, "{ours} sync={sync}");
        }
    }
}

/// In PAUSED, the position is where the clock stopped, not the end of the rendered data.
#[test]
fn position_in_paused_is_the_stopped_clocks() {
    let positions = |sink: &str| {
        let pipe = Pipe::parse(&format!(
            "appsrc name=src format=time handle-segment-change=true ! {sink} name=sink sync=true"
        ));
        let clock = gst_check::TestClock::with_start_time(100 * S);
        pipe.0.use_clock(Some(&clock));
        let (src, element) = (pipe.get("src"), pipe.get("sink"));
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_start(50 * S);
        segment.set_time(7 * S);
        pipe.0.set_state(gst::State::Paused).unwrap();
        for n in 0..3 {
            let mut buffer = timed(n, (50 + 4 * u64::from(n)) * S);
            buffer.make_mut().set_duration(4 * S);
            let sample = gst::Sample::builder().buffer(&buffer).segment(&segment);
            let _: gst::FlowReturn = src.emit_by_name("push-sample", &[&sample.build()]);
        }
        pipe.to(gst::State::Paused);
        let mut seen = Vec::new();
        let mut look = || seen.push(element.query_position::<gst::ClockTime>());
        look();
        // Pause within the first buffer, at its end, and after its end.
        for (play_s, ids) in [(1, 2), (4, 1), (1, 1)] {
            pipe.to(gst::State::Playing);
            for _ in 0..ids {
                awaited(&clock);
                if clock.next_entry_time().unwrap() <= clock.time() {
                    clock.process_next_clock_id();
                }
            }
            clock.set_time(clock.time() + play_s * S);
            look();
            pipe.to(gst::State::Paused);
            look();
        }
        seen
    };
    let stock = positions("fakesink");
    for ours in ["ts-appsink max-buffers=0", "ts-udpsink clients=127.0.0.1:9"] {
        assert_eq!(positions(ours), stock, "{ours}");
    }
}

/// The base time is in the future. Running time is negative until then, and the first buffer waits accordingly.
#[test]
fn a_sink_waits_for_a_base_time_in_the_future() {
    for line in [
        "fakesink sync=true async=false processing-deadline=0",
        "ts-appsink async=false processing-deadline=0",
        "clocksync",
        "ts-clocksync",
    ] {
        let (rig, clock) = on_test_clock(line, 105 * S);
        rig.to(gst::State::Playing);
        rig.open_stream();
        let pushed = rig.push_aside(timed(1, gst::ClockTime::ZERO));
        assert_eq!(awaited(&clock), 105 * S, "{line}");
        if line.contains("sink") {
            let position = rig.element.query_position::<gst::ClockTime>();
            assert_eq!(position, Some(gst::ClockTime::ZERO), "{line}");
        }
        clock.set_time(106 * S);
        clock.process_next_clock_id();
        pushed.recv_timeout(DEADLINE).unwrap().unwrap();
    }
}

/// A list counts as one render or one drop for quality of service.
#[test]
fn a_late_buffer_list_is_counted_as_by_the_stock_sink() {
    let told = |factory: &str, throttle: &str| {
        let rig = Rig::without_stream(
            &format!(
                "{factory} clients=127.0.0.1:9 sync=true qos=true async=false max-lateness=50000000 {throttle}"
            ),
            gst::State::Ready,
        );
        let clock = gst::SystemClock::obtain();
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element.set_base_time(clock.time() - 10 * S);
        let (send, events) = channel();
        rig.feed
            .add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
                if info.event().map(|event| event.type_()) == Some(gst::EventType::Qos) {
                    let _ = send.send(());
                }
                gst::PadProbeReturn::Ok
            });
        rig.to(gst::State::Playing);
        rig.open_stream();
        for i in 0..3 {
            let mut list = gst::BufferList::new();
            for n in 0..4 {
                let pts = gst::ClockTime::from_mseconds(u64::from(40 * i + 10 * n));
                list.get_mut().unwrap().add(timed(n, pts));
            }
            rig.feed.push_list(list).unwrap();
        }
        let kind = [gst::MessageType::Qos];
        let messages: Vec<_> = std::iter::from_fn(|| rig.bus.pop_filtered(&kind))
            .map(|message| match message.view() {
                gst::MessageView::Qos(qos) => {
                    let (rendered, dropped) = qos.stats();
                    (rendered.value(), dropped.value())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        (
            messages,
            events.try_iter().count(),
            stat(&rig.element, "dropped"),
        )
    };
    for throttle in ["", "throttle-time=1000000000"] {
        let stock = told("multiudpsink", throttle);
        assert_eq!(told("ts-udpsink", throttle), stock, "{throttle}");
    }
}

/// Late data is dropped, but one buffer a second is rendered however late, and the application is warned. A buffer is late from
/// its end on.
#[test]
fn one_late_buffer_a_second_is_rendered() {
    let rendered = |sink: &str, (late, step_ms, duration_ms): (gst::ClockTime, u64, u64)| {
        let line = format!("{sink} name=sink sync=true async=false max-lateness=5000000000");
        let rig = Rig::without_stream(&line, gst::State::Ready);
        let clock = gst::SystemClock::obtain();
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element.set_base_time(clock.time() - late);
        rig.to(gst::State::Playing);
        rig.open_stream();
        let mut seen = Vec::new();
        for n in 0..12_u32 {
            // A flush forgets what was rendered.
            if n == 9 {
                rig.feed.push_event(gst::event::FlushStart::new());
                rig.feed.push_event(gst::event::FlushStop::new(false));
                rig.open_segment();
            }
            let mut buffer = timed(n, u64::from(n) * step_ms * gst::ClockTime::MSECOND);
            if duration_ms > 0 {
                let duration = duration_ms * gst::ClockTime::MSECOND;
                buffer.make_mut().set_duration(duration);
            }
            let before = stat(&rig.element, "dropped");
            rig.push(buffer).unwrap();
            let warning = rig.bus.pop_filtered(&[gst::MessageType::Warning]);
            let is_dropped = stat(&rig.element, "dropped") > before;
            seen.push((is_dropped, warning.is_some()));
        }
        seen
    };
    let late = 100 * S;
    for case in [
        (late, 300, 0),
        (late, 300, 300),
        (late, 1000, 0),
        (late, 1001, 1001),
        // The end of this buffer is not late enough.
        (20 * S, 10, 19_000),
        (20 * S, 10, 1000),
    ] {
        let stock = rendered("fakesink", case);
        for ours in [
            "ts-udpsink clients=127.0.0.1:9",
            "ts-udpsink clients=127.0.0.1:9 qos=true",
        ] {
            assert_eq!(rendered(ours, case), stock, "{ours} {case:?}");
        }
    }
}

/// No buffer is dropped under a lock of its element.
#[test]
fn the_drop_of_a_buffer_may_call_the_element() {
    use gst::State::{Null, Paused, Playing, Ready};
    let flush: fn(&Rig) = |rig| {
        let feed = rig.feed.clone();
        within("a flush", move || {
            feed.push_event(gst::event::FlushStart::new())
        });
    };
    let stop: fn(&Rig) = |rig| rig.to(Ready);
    let play: fn(&Rig) = |rig| rig.to(Playing);
    let end: fn(&Rig) = |rig| {
        let feed = rig.feed.clone();
        within("the end", move || feed.push_event(gst::event::Eos::new()));
    };
    let nothing: fn(&Rig) = |_| {};
    let forget: fn(&Rig) = |rig| {
        let element = rig.element.clone();
        within("a property", move || {
            element.set_property("enable-last-sample", false)
        });
    };
    let app = "ts-appsink sync=false async=false";
    let udp = "ts-udpsink clients=127.0.0.1:9";
    let cases = [
        (
            format!("{app} drop=true max-buffers=1"),
            Playing,
            3,
            nothing,
        ),
        (app.to_owned(), Playing, 2, flush),
        (app.to_owned(), Playing, 2, stop),
        (
            format!("{app} enable-last-sample=true drop=true max-buffers=1"),
            Playing,
            3,
            stop,
        ),
        (format!("{app} enable-last-sample=true"), Playing, 2, flush),
        ("ts-appsink".to_owned(), Paused, 1, flush),
        (
            "ts-appsink enable-last-sample=true".to_owned(),
            Paused,
            1,
            stop,
        ),
        (
            format!("{udp} async=false sync=false enable-last-sample=true"),
            Playing,
            2,
            forget,
        ),
        (udp.to_owned(), Paused, 1, play),
        (udp.to_owned(), Paused, 1, flush),
        (udp.to_owned(), Paused, 1, stop),
        (
            format!("{udp} async=false max-lateness=0"),
            Playing,
            2,
            nothing,
        ),
        (
            "ts-queue leaky=downstream max-size-buffers=1".to_owned(),
            Playing,
            4,
            nothing,
        ),
        (
            "ts-queue leaky=upstream max-size-buffers=1".to_owned(),
            Playing,
            4,
            nothing,
        ),
        (
            "ts-queue min-threshold-buffers=100".to_owned(),
            Playing,
            3,
            flush,
        ),
        (
            "ts-queue min-threshold-buffers=100".to_owned(),
            Playing,
            3,
            stop,
        ),
        (
            "ts-queue flush-on-eos=true min-threshold-buffers=100".to_owned(),
            Playing,
            3,
            end,
        ),
    ];
    for (line, state, count, then) in cases {
        let rig = Rig::without_stream(&line, Ready);
        let clock = gst::SystemClock::obtain();
        rig.element.set_clock(Some(&clock)).unwrap();
        rig.element.set_base_time(clock.time() - S);
        rig.to(state);
        rig.open_stream();
        // The queue's first buffer is held downstream, so that later buffers stay in the queue.
        let leaks = rig
            .element
            .static_pad("src")
            .filter(|_| line.contains("leaky"));
        let held = leaks.map(|pad| gate(&pad));
        let (dropped, told) = channel();
        let results: Vec<_> = (0..count)
            .map(|_| {
                let mut buffer = gst::Buffer::from_slice(CallsBack {
                    element: rig.element.downgrade(),
                    dropped: dropped.clone(),
                    data: b"data".to_vec(),
                });
                buffer.get_mut().unwrap().set_pts(gst::ClockTime::ZERO);
                let result = rig.push_aside(buffer);
                if state == Playing {
                    let _ = result.recv_timeout(DEADLINE).expect("the push hangs");
                } else {
                    eventually("it is held", || is_prerolled(&rig));
                }
                if let Some(held) = &held {
                    held.wait_held();
                }
                result
            })
            .collect();
        then(&rig);
        if let Some(held) = held {
            held.open();
        }
        drop(results);
        rig.drain.set_active(false).unwrap();
        rig.to(Null);
        // This also drops the buffers that have passed a queue.
        drop((rig, dropped));
        for _ in 0..count {
            let told = told.recv_timeout(DEADLINE);
            assert!(told.is_ok(), "{line}: a buffer is left");
        }
    }
}

/// Whether a sink has its first buffer.
fn is_prerolled(rig: &Rig) -> bool {
    rig.element.current_state() == gst::State::Paused
}

/// The pipeline counts a sink's changes that wait for data, so it must see the start of each before its end.
#[test]
fn quick_pauses_during_data_reach_their_state() {
    init();
    for sink in [
        "fakesink sync=false",
        "ts-filesink sync=false location=/dev/null",
        "ts-appsink sync=false",
    ] {
        let line = format!("fakesrc sizetype=fixed sizemax=8 ! {sink}");
        let pipeline = gst::parse::launch(&line).unwrap();
        let reach = |state: gst::State| {
            let (pipeline, what) = (pipeline.clone(), format!("{sink}: {state:?}"));
            within(&what.clone(), move || {
                pipeline.set_state(state).unwrap();
                let (result, now, pending) = pipeline.state(DEADLINE_GST);
                result.unwrap_or_else(|_| panic!("{what}"));
                assert_eq!((now, pending), (state, gst::State::VoidPending), "{what}");
            });
        };
        reach(gst::State::Playing);
        for _ in 0..500 {
            reach(gst::State::Paused);
            reach(gst::State::Playing);
        }
        pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// gst-launch-1.0 continues to PLAYING when the pipeline reports PAUSED, while the streaming thread is still reporting it. The
/// end is reported nevertheless, as by a stock sink.
#[test]
fn end_is_reported_if_the_application_resumes_at_once() {
    init();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file").display().to_string();
    for sink in [
        "fakesink sync=false".to_owned(),
        format!("filesink location={path}"),
        format!("ts-filesink location={path}"),
        "ts-appsink sync=false drop=true max-buffers=1 wait-on-eos=false".to_owned(),
    ] {
        // The first buffer arrives after the change to PAUSED has returned.
        let description =
            format!("audiotestsrc num-buffers=3 ! identity sleep-time=100000 ! {sink}");
        let pipeline = gst::parse::launch(&description).expect("elements");
        let pipeline: gst::Pipeline = pipeline.downcast().expect("a pipeline");
        let bus = pipeline.bus().expect("a bus");
        let (paused, is_paused) = channel();
        let (playing, is_playing) = channel();
        let goes_on = Mutex::new(Some(is_playing));
        bus.set_sync_handler(move |_, message| {
            let of_pipeline = message.src().is_some_and(|src| src.is::<gst::Pipeline>());
            if let gst::MessageView::StateChanged(changed) = message.view()
                && of_pipeline
                && changed.current() == gst::State::Paused
                && let Some(is_playing) = goes_on.lock().expect("a lock").take()
            {
                paused.send(()).expect("somebody waits");
                // This waits until the application's thread is in PLAYING. If that thread waits for this one, as it should, this
                // wait ends after 300 ms.
                let _: Result<(), _> = is_playing.recv_timeout(Duration::from_millis(300));
            }
            gst::BusSyncReply::Pass
        });
        pipeline.set_state(gst::State::Paused).expect("it prerolls");
        is_paused.recv_timeout(DEADLINE).expect("it is in PAUSED");
        pipeline.set_state(gst::State::Playing).expect("it plays");
        // The handler may have waited long enough.
        let _ = playing.send(());
        let limit = gst::ClockTime::from_seconds(DEADLINE.as_secs());
        let ended =
            bus.timed_pop_filtered(limit, &[gst::MessageType::Eos, gst::MessageType::Error]);
        let ended = ended.unwrap_or_else(|| panic!("{sink}: no end"));
        assert_eq!(ended.type_(), gst::MessageType::Eos, "{sink}: {ended:?}");
        pipeline.set_state(gst::State::Null).expect("it stops");
    }
}
