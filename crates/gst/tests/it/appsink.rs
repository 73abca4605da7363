//! `ts-appsink`: delivers samples by signals, by pulling, and as an asynchronous stream.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};

use crate::common::*;
use futures_core::Stream;
use gst::prelude::*;
use gstthreadbare::SampleStream;

fn sink(properties: &str, state: gst::State) -> Rig {
    Rig::new(&format!("ts-appsink sync=false {properties}"), state)
}

fn pull(element: &gst::Element) -> Option<gst::Sample> {
    let element = element.clone();
    within("a pull", move || element.emit_by_name("pull-sample", &[]))
}

fn try_pull(element: &gst::Element) -> Option<gst::Sample> {
    element.emit_by_name("try-pull-sample", &[&0u64])
}

fn of(sample: &gst::Sample) -> u32 {
    number(sample.buffer().unwrap())
}

#[test]
fn samples_are_pulled_in_order_with_their_caps() {
    let rig = sink("async=false", gst::State::Playing);
    for i in 0..3 {
        rig.push(numbered(i)).unwrap();
    }
    let other = gst::Caps::new_empty_simple("application/x-other");
    rig.feed.push_event(gst::event::Caps::new(&other));
    rig.push(numbered(3)).unwrap();
    for i in 0..3 {
        let sample = pull(&rig.element).unwrap();
        assert_eq!(of(&sample), i);
        let name = sample.caps().unwrap().structure(0).unwrap().name();
        assert_eq!(name, "application/x-test");
        assert!(sample.segment().is_some());
    }
    let last = pull(&rig.element).unwrap();
    assert_eq!(last.caps().unwrap(), other.as_ref());
    assert!(try_pull(&rig.element).is_none());
}

#[test]
fn caps_wait_for_earlier_buffers() {
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={} ! ts-appsink name=out async=false",
        context()
    ));
    pipe.play();
    for i in 0..3u32 {
        let caps = gst::Caps::builder("application/x-test")
            .field("n", i as i32)
            .build();
        let buffer = timed(i, gst::ClockTime::from_mseconds(50 * u64::from(i)));
        let sample = gst::Sample::builder().buffer(&buffer).caps(&caps).build();
        assert!(
            pipe.get("in")
                .emit_by_name::<bool>("push-sample", &[&sample])
        );
    }
    for i in 0..3 {
        let sample = pull(&pipe.get("out")).unwrap();
        let caps = sample.caps().unwrap().structure(0).unwrap();
        assert_eq!((of(&sample), caps.get::<i32>("n")), (i, Ok(i as i32)));
    }
}

#[test]
fn end_is_reported_after_the_last_sample_is_taken() {
    let rig = sink("async=false", gst::State::Playing);
    let (send, told) = channel();
    rig.element.connect("eos", false, move |_| {
        let _ = send.send(());
        None
    });
    rig.push(numbered(0)).unwrap();
    let feed = rig.feed.clone();
    // As with the stock element, the end waits for the application.
    let pushed = until_it_waits(move || feed.push_event(gst::event::Eos::new()));
    assert!(told.try_recv().is_err(), "one is left");
    assert!(!rig.element.property::<bool>("eos"), "one is left");
    assert_eq!(of(&pull(&rig.element).unwrap()), 0);
    told.recv_timeout(DEADLINE).unwrap();
    assert!(pushed.join().unwrap());
    assert!(rig.element.property::<bool>("eos"));
    assert!(pull(&rig.element).is_none());
}

#[test]
fn end_is_reported_at_once_if_configured() {
    let rig = sink("async=false wait-on-eos=false", gst::State::Playing);
    let (send, told) = channel();
    rig.element.connect("eos", false, move |_| {
        let _ = send.send(());
        None
    });
    rig.push(numbered(0)).unwrap();
    rig.feed.push_event(gst::event::Eos::new());
    told.recv_timeout(DEADLINE).unwrap();
    assert!(!rig.element.property::<bool>("eos"), "one is left");
    assert_eq!(of(&pull(&rig.element).unwrap()), 0);
    assert!(rig.element.property::<bool>("eos"));
}

#[test]
fn signals_report_preroll_and_samples_and_may_pull() {
    let rig = sink("emit-signals=true", gst::State::Ready);
    let (send, told) = channel();
    for (signal, action) in [
        ("new-preroll", "pull-preroll"),
        ("new-sample", "pull-sample"),
    ] {
        let send = send.clone();
        rig.element.connect(signal, false, move |values| {
            let element = values[0].get::<gst::Element>().unwrap();
            let sample: Option<gst::Sample> = element.emit_by_name(action, &[]);
            let _ = send.send((signal, of(&sample.unwrap())));
            Some(gst::FlowReturn::Ok.to_value())
        });
    }
    rig.to(gst::State::Paused);
    rig.open_stream();
    let pushed = rig.push_aside(numbered(5));
    let next = || told.recv_timeout(DEADLINE).unwrap();
    assert_eq!(next(), ("new-preroll", 5));
    rig.to(gst::State::Playing);
    assert_eq!(next(), ("new-sample", 5));
    pushed.recv_timeout(DEADLINE).unwrap().unwrap();
    rig.push(numbered(6)).unwrap();
    assert_eq!(next(), ("new-sample", 6));
}

/// Each limit alone: bytes, and time from the start of the first buffer to the end of the last one.
#[test]
fn the_queue_can_be_full_by_bytes_or_by_time() {
    let ms = gst::ClockTime::MSECOND;
    for limit in ["max-bytes=8", "max-time=20000000"] {
        let rig = sink(
            &format!("max-buffers=0 async=false {limit}"),
            gst::State::Playing,
        );
        let ten_ms = |n: u32| {
            let mut buffer = timed(n, u64::from(n) * 10 * ms);
            buffer.make_mut().set_duration(10 * ms);
            buffer
        };
        for n in 0..2 {
            rig.push(ten_ms(n)).unwrap();
        }
        let feed = rig.feed.clone();
        let third = ten_ms(2);
        let pushed = until_it_waits(move || feed.push(third));
        assert!(!pushed.is_finished(), "{limit}");
        assert_eq!(of(&pull(&rig.element).unwrap()), 0);
        pushed.join().unwrap().unwrap();
    }
}

/// As with the stock element, a list becomes one sample if the property is set, otherwise one sample for each buffer.
#[test]
fn a_buffer_list_is_one_sample_or_several_as_configured() {
    for (factory, whole) in [
        ("appsink", true),
        ("ts-appsink", true),
        ("appsink", false),
        ("ts-appsink", false),
    ] {
        let line = format!("{factory} sync=false async=false buffer-list={whole}");
        let rig = Rig::new(&line, gst::State::Playing);
        let mut list = gst::BufferList::new();
        for n in 0..3 {
            list.get_mut().unwrap().add(numbered(n));
        }
        rig.feed.push_list(list).unwrap();
        let sample = pull(&rig.element).unwrap();
        let length = sample.buffer_list().map(|list| list.len());
        assert_eq!(length, whole.then_some(3), "{line}");
        if !whole {
            assert_eq!(of(&sample), 0);
            assert_eq!(of(&pull(&rig.element).unwrap()), 1);
        }
    }
}

#[test]
fn full_sink_blocks_a_foreign_thread_until_a_sample_is_taken() {
    let rig = sink("max-buffers=2 async=false", gst::State::Playing);
    rig.push(numbered(0)).unwrap();
    rig.push(numbered(1)).unwrap();
    let third = rig.push_aside(numbered(2));
    assert_eq!(of(&pull(&rig.element).unwrap()), 0);
    third.recv_timeout(DEADLINE).unwrap().unwrap();
    for i in 1..3 {
        assert_eq!(of(&pull(&rig.element).unwrap()), i);
    }
    // Stopping the element releases a push that waits.
    rig.push(numbered(3)).unwrap();
    rig.push(numbered(4)).unwrap();
    let stuck = rig.push_aside(numbered(5));
    rig.to(gst::State::Ready);
    let released = stuck.recv_timeout(DEADLINE).unwrap();
    assert_eq!(released, Err(gst::FlowError::Flushing));
}

#[test]
fn full_sink_blocks_its_source_and_not_the_context() {
    let shared = context();
    let pipe = Pipe::parse(&format!(
        "ts-appsrc name=in context={shared} max-buffers=0 ! ts-appsink name=out sync=false async=false max-buffers=3 \
         ts-udpsrc name=udp address=127.0.0.1 port=0 context={shared} ! fakesink name=free sync=false async=false"
    ));
    let free = watch(&pipe.pad("free", "sink"));
    pipe.play();
    let source = pipe.get("in");
    for i in 0..100 {
        assert!(source.emit_by_name::<bool>("push-buffer", &[&numbered(i)]));
    }
    // Most of the buffers wait in the source: the sink has its three, and the output of one pass.
    eventually("the source is held up", || {
        let left = source.property::<u64>("current-level-buffers");
        (1..100).contains(&left)
    });
    let sender = socket();
    sender
        .send_to(&packet(7), target(&pipe.get("udp")))
        .unwrap();
    assert_eq!(number(&next_buffer(&free)), 7, "the neighbour goes on");
    for i in 0..100 {
        assert_eq!(of(&pull(&pipe.get("out")).unwrap()), i);
    }
}

#[test]
fn oldest_samples_are_dropped_if_configured() {
    let rig = sink("max-buffers=2 drop=true async=false", gst::State::Playing);
    for i in 0..10 {
        rig.push(numbered(i)).unwrap();
    }
    assert_eq!(of(&pull(&rig.element).unwrap()), 8);
    assert_eq!(of(&pull(&rig.element).unwrap()), 9);
    assert_eq!(stat(&rig.element, "dropped"), 8);
}

/// Wakes a thread that is parked.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_task_receives_samples_as_a_stream() {
    let rig = sink("max-buffers=2 async=false", gst::State::Playing);
    let mut stream = SampleStream::of(&rig.element).unwrap();
    assert!(SampleStream::of(&make("fakesink")).is_none());
    let feed = rig.feed.clone();
    let feeder = std::thread::spawn(move || {
        for i in 0..50 {
            feed.push(numbered(i)).unwrap();
        }
        feed.push_event(gst::event::Eos::new());
    });
    let taken = within("the task", move || {
        block_on(async move {
            let mut taken = Vec::new();
            while let Some(sample) = poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
                taken.push(of(&sample));
            }
            taken
        })
    });
    assert_eq!(taken, (0..50).collect::<Vec<_>>());
    within("the feeder", move || feeder.join().unwrap());
}

#[test]
fn a_pull_returns_when_the_element_stops() {
    let rig = sink("async=false", gst::State::Playing);
    let element = rig.element.clone();
    let puller = until_it_waits(move || pull(&element));
    rig.to(gst::State::Ready);
    assert!(within("the puller", move || puller.join().unwrap()).is_none());
    assert!(pull(&rig.element).is_none(), "nor afterwards");
}

#[test]
fn flush_drops_untaken_samples() {
    let rig = sink("async=false", gst::State::Playing);
    rig.push(numbered(0)).unwrap();
    let feed = rig.feed.clone();
    let pushed = until_it_waits(move || feed.push_event(gst::event::Eos::new()));
    rig.feed.push_event(gst::event::FlushStart::new());
    pushed.join().unwrap();
    rig.feed.push_event(gst::event::FlushStop::new(true));
    rig.open_segment();
    rig.push(numbered(9)).unwrap();
    assert_eq!(of(&pull(&rig.element).unwrap()), 9);
}

#[test]
fn the_element_works_after_each_restart() {
    let rig = Rig::without_stream("ts-appsink sync=false", gst::State::Null);
    for i in 0..2 {
        for state in [gst::State::Ready, gst::State::Null, gst::State::Ready] {
            rig.to(state);
        }
        rig.to(gst::State::Paused);
        rig.open_stream();
        let pushed = rig.push_aside(numbered(i));
        rig.to(gst::State::Playing);
        pushed.recv_timeout(DEADLINE).unwrap().unwrap();
        assert_eq!(of(&pull(&rig.element).unwrap()), i);
        rig.to(gst::State::Null);
    }
}

/// A new limit of time counts the samples that are already stored.
#[test]
fn a_new_time_limit_also_applies_to_queued_samples() {
    let rig = sink("max-buffers=0 async=false", gst::State::Playing);
    let ten_ms = |n: u32| {
        let mut buffer = timed(n, u64::from(n) * 10 * gst::ClockTime::MSECOND);
        buffer.make_mut().set_duration(10 * gst::ClockTime::MSECOND);
        buffer
    };
    for n in 0..2 {
        rig.push(ten_ms(n)).unwrap();
    }
    rig.element.set_property("max-time", 20_000_000_u64);
    let (feed, third) = (rig.feed.clone(), ten_ms(2));
    let pushed = until_it_waits(move || feed.push(third));
    assert!(!pushed.is_finished());
    assert_eq!(of(&pull(&rig.element).unwrap()), 0);
    pushed.join().unwrap().unwrap();
}
