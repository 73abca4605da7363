//! `ts-appsrc` compared with the stock `appsrc`, the reference: seeks, lengths, segments, flushes from downstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use crate::common::*;
use gst::prelude::*;

/// An element in PLAYING with its `seek-data` requests, which `agrees` answers.
struct Side {
    rig: Rig,
    asked: Receiver<u64>,
    agrees: Arc<AtomicBool>,
}

/// Returns the stock element and ours.
fn both(properties: &str) -> [Side; 2] {
    let ours = format!("ts-appsrc context={} is-live=false", context());
    ["appsrc".to_owned(), ours].map(|line| {
        let rig = Rig::without_stream(&format!("{line} {properties}"), gst::State::Ready);
        let (send, asked) = channel();
        let agrees = Arc::new(AtomicBool::new(true));
        let answer = agrees.clone();
        rig.element.connect("seek-data", false, move |values| {
            let _ = send.send(values[1].get::<u64>().unwrap());
            Some(answer.load(Ordering::Relaxed).to_value())
        });
        rig.to(gst::State::Playing);
        Side { rig, asked, agrees }
    })
}

/// Emits an action signal. Returns whether it succeeded: the stock element returns a flow, ours a boolean.
fn act(rig: &Rig, signal: &str, values: &[&dyn ToValue]) -> bool {
    let values: Vec<_> = values.iter().map(|value| value.to_value()).collect();
    let value = rig
        .element
        .emit_by_name_with_values(signal, &values)
        .unwrap();
    match value.get::<gst::FlowReturn>() {
        Ok(flow) => flow == gst::FlowReturn::Ok,
        Err(_) => value.get().unwrap(),
    }
}

fn give(rig: &Rig, number: u32) -> bool {
    act(rig, "push-buffer", &[&numbered(number)])
}

/// Returns the output up to the buffer of this number, with the relevant fields of events.
fn until(rig: &Rig, last: u32) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        match rig.seen.recv_timeout(DEADLINE).expect("nothing came") {
            Seen::Event(event) => seen.push(match event.view() {
                gst::EventView::Segment(segment) => {
                    let s = segment.segment();
                    format!(
                        "segment {} {} {} {} base {}",
                        s.start(),
                        s.stop(),
                        s.time(),
                        s.rate(),
                        s.base()
                    )
                }
                _ => event.type_().name().to_string(),
            }),
            Seen::Buffer(buffer) if number(&buffer) == last => return seen,
            Seen::Buffer(buffer) => seen.push(format!("buffer {}", number(&buffer))),
        }
    }
}

fn seek(flags: gst::SeekFlags, format: gst::Format, start: i64) -> gst::Event {
    let start = gst::GenericFormattedValue::new(format, start);
    let end = gst::GenericFormattedValue::new(format, -1);
    gst::event::Seek::new(
        1.0,
        flags,
        gst::SeekType::Set,
        start,
        gst::SeekType::None,
        end,
    )
}

#[test]
fn a_flushing_seek_asks_the_application_and_opens_a_segment_there() {
    for (format, start) in [
        (gst::Format::Time, 5_000_000_000),
        (gst::Format::Bytes, 4096),
    ] {
        for kind in ["seekable", "random-access"] {
            let properties = format!("format={} stream-type={kind}", name(format));
            let seen = both(&properties).map(|Side { rig, asked, .. }| {
                assert!(give(&rig, 0));
                let before = until(&rig, 0);
                let seek = seek(gst::SeekFlags::FLUSH, format, start);
                let (drain, seqnum) = (rig.drain.clone(), seek.seqnum());
                assert!(within("a seek", move || drain.push_event(seek)));
                assert!(give(&rig, 1));
                let after = until(&rig, 1);
                let segment = rig.drain.sticky_event::<gst::event::Segment>(0);
                assert_eq!(segment.map(|event| event.seqnum()), Some(seqnum));
                // With random access, the stock element asks again before the next buffer: for the same position, or for
                // -1 in a format other than bytes.
                let mut asked: Vec<u64> = asked.try_iter().filter(|at| *at != u64::MAX).collect();
                asked.dedup();
                (before, after, asked)
            });
            assert_eq!(seen[0].2, [0, start as u64]);
            assert_eq!(seen[0], seen[1], "{format:?} {kind}");
        }
    }
}

/// Without a flush, running time continues at the position of the data. A seek that changes only the end continues at the same
/// position (GStreamer's design, "seeking"). The twin is GstSegment's own arithmetic, at the end of the data pushed, because the
/// stock element hangs in a seek that does not flush.
#[test]
fn seek_without_a_flush_continues_the_running_time() {
    const SECOND: i64 = 1_000_000_000;
    use gst::SeekFlags as Flags;
    use gst::SeekType::{End, None, Set};
    for format in [gst::Format::Time, gst::Format::Bytes] {
        let of = |value: i64| gst::GenericFormattedValue::new(format, value);
        let length = 60 * SECOND;
        let [_, Side { rig, asked, .. }] = both(&format!(
            "format={} stream-type=seekable duration={length} size={length}",
            name(format),
        ));
        let mut twin = gst::Segment::new();
        twin.reset_with_format(format);
        twin.set_duration(of(length));
        let (mut expected, mut n) = (vec![0], 0);
        for (flags, start_type, start, stop_type, stop) in [
            (Flags::empty(), Set, 5 * SECOND, None, -1),
            (Flags::empty(), None, -1, Set, 30 * SECOND),
            (Flags::FLUSH, None, -1, Set, 40 * SECOND),
            (Flags::FLUSH, Set, 2 * SECOND, None, -1),
            (Flags::empty(), Set, SECOND, End, -SECOND),
        ] {
            let begin = twin.position().value();
            for _ in 0..2 {
                let reached = twin.position().value();
                let mut buffer = numbered(n);
                let size = buffer.size() as i64;
                if format == gst::Format::Time {
                    let buffer = buffer.make_mut();
                    buffer.set_pts(gst::ClockTime::from_nseconds(reached as u64));
                    buffer.set_duration(gst::ClockTime::SECOND);
                    twin.set_position(of(reached + SECOND));
                } else {
                    twin.set_position(of(reached + size));
                }
                assert!(act(&rig, "push-buffer", &[&buffer]));
                until(&rig, n);
                n += 1;
            }
            let seek =
                gst::event::Seek::new(1.0, flags, start_type, of(start), stop_type, of(stop));
            let drain = rig.drain.clone();
            assert!(within("a seek", move || drain.push_event(seek)));
            twin.do_seek(1.0, flags, start_type, of(start), stop_type, of(stop));
            expected.push(twin.position().value() as u64);
            let event = rig.event(gst::EventType::Segment);
            let gst::EventView::Segment(event) = event.view() else {
                unreachable!()
            };
            let got = event.segment();
            let fields = |s: &gst::Segment| (s.start(), s.stop(), s.time(), s.base());
            assert_eq!(
                fields(got),
                fields(&twin),
                "{format:?} from {begin}: {flags:?} {start}"
            );
        }
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), expected, "{format:?}");
    }
}

#[test]
fn seek_is_refused_if_unsupported() {
    for (properties, agrees) in [
        ("format=time stream-type=stream", true),
        ("format=time stream-type=seekable", false),
        ("format=bytes stream-type=seekable", true),
    ] {
        let taken = both(properties).map(|side| {
            side.agrees.store(agrees, Ordering::Relaxed);
            let rig = &side.rig;
            assert!(give(rig, 0));
            until(rig, 0);
            let drain = rig.drain.clone();
            let seek = seek(gst::SeekFlags::FLUSH, gst::Format::Time, 7);
            within("a seek", move || drain.push_event(seek))
        });
        assert_eq!(taken, [false, false], "{properties}");
    }
}

#[test]
fn length_and_seekability_are_reported() {
    let all = [
        "format=time stream-type=stream",
        "format=time stream-type=seekable duration=9000000000",
        "format=bytes stream-type=random-access size=12345",
        "format=time size=77 duration=5",
        "format=bytes",
    ];
    for properties in all {
        for format in [gst::Format::Time, gst::Format::Bytes] {
            let told = both(properties).map(|Side { rig, .. }| {
                assert!(give(&rig, 0));
                until(&rig, 0);
                let mut duration = gst::query::Duration::new(format);
                let length = rig
                    .drain
                    .peer_query(&mut duration)
                    .then(|| duration.result());
                let mut seeking = gst::query::Seeking::new(format);
                let is_seekable = rig.drain.peer_query(&mut seeking) && seeking.result().0;
                (length.filter(|length| length.value() >= 0), is_seekable)
            });
            assert_eq!(told[0], told[1], "{properties} in {format:?}");
        }
    }
}

#[test]
fn samples_set_their_segments_if_configured() {
    let segment = |start: u64| {
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_start(gst::ClockTime::from_seconds(start));
        segment.set_time(gst::ClockTime::from_seconds(start));
        segment
    };
    for handles in [true, false] {
        let properties = format!("format=time handle-segment-change={handles}");
        let seen = both(&properties).map(|Side { rig, .. }| {
            for (number, start) in [0, 3, 3, 4].into_iter().enumerate() {
                let buffer = numbered(number as u32);
                let segment = segment(start);
                let sample = gst::Sample::builder().buffer(&buffer).segment(&segment);
                assert!(act(&rig, "push-sample", &[&sample.build()]));
            }
            (0..4).map(|number| until(&rig, number)).collect::<Vec<_>>()
        });
        assert_eq!(seen[0], seen[1], "{handles}");
    }
}

#[test]
fn appsrc_handles_a_flush_from_downstream_itself() {
    for (Side { rig, .. }, is_stock) in both("").into_iter().zip([true, false]) {
        assert!(give(&rig, 0));
        until(&rig, 0);
        assert!(rig.drain.push_event(gst::event::FlushStart::new()));
        assert!(!give(&rig, 1), "while it flushes");
        assert!(rig.drain.push_event(gst::event::FlushStop::new(true)));
        assert!(give(&rig, 2));
        // The stock element's task has ended.
        if !is_stock {
            let between = until(&rig, 2);
            let flushes = |event: &&String| event.starts_with("flush");
            assert_eq!(between.iter().filter(flushes).count(), 0, "{between:?}");
        }
    }
}

fn name(format: gst::Format) -> &'static str {
    match format {
        gst::Format::Time => "time",
        _ => "bytes",
    }
}
