//! Flushes from downstream. They end at the source, which continues: its next buffer follows all events that a buffer needs.

use crate::common::*;
use gst::prelude::*;

/// Gives data to a source that produces none by itself.
type Give = fn(&gst::Element);

fn send_packet(source: &gst::Element) {
    socket().send_to(&packet(7), target(source)).unwrap();
}

fn push_buffer(source: &gst::Element) {
    source.emit_by_name::<bool>("push-buffer", &[&timed(7, gst::ClockTime::ZERO)]);
}

const SOURCES: [(&str, Give); 4] = [
    ("ts-audiotestsrc is-live=true samples-per-buffer=80", |_| {}),
    ("ts-tonesrc samples-per-buffer=80", |_| {}),
    ("ts-udpsrc address=127.0.0.1 port=0", send_packet),
    ("ts-appsrc format=time", push_buffer),
];

/// Returns the next buffer, and the segment event before it, if there was one.
fn next(
    seen: &std::sync::mpsc::Receiver<Seen>,
    mut give: impl FnMut(),
) -> (gst::Buffer, Option<gst::Event>) {
    let (mut buffer, mut segment) = (None, None);
    eventually("a buffer", || {
        give();
        while let Ok(item) = seen.try_recv() {
            match item {
                Seen::Buffer(first) => {
                    buffer = Some(first);
                    return true;
                }
                Seen::Event(event) if event.type_() == gst::EventType::Segment => {
                    segment = Some(event);
                }
                Seen::Event(_) => {}
            }
        }
        false
    });
    (buffer.unwrap(), segment)
}

/// The end of a flush removes the segment from each pad that it passes, also upstream. A pad without a segment may push no
/// buffer.
#[test]
fn after_a_flush_from_downstream_a_buffer_has_a_segment_before_it() {
    for (source, give) in SOURCES {
        let pipe = Pipe::parse(&format!(
            "{source} name=src context={} ! fakesink name=out async=false sync=false",
            context()
        ));
        let (element, src_pad) = (pipe.get("src"), pipe.pad("src", "src"));
        let seen = watch(&pipe.pad("out", "sink"));
        pipe.play();
        let (_, first) = next(&seen, || give(&element));
        for _ in 0..3 {
            // An element downstream sends flush events in this way.
            assert!(src_pad.send_event(gst::event::FlushStart::new()));
            // Data that was sent before the flush does not count.
            let place = threadbare_runtime::Context::find(&element.property::<String>("context"));
            place.unwrap().shards()[0].call(|_| ()).unwrap();
            while seen.try_recv().is_ok() {}
            assert!(src_pad.send_event(gst::event::FlushStop::new(true)));
            let (_, segment) = next(&seen, || give(&element));
            let values = |event: &Option<gst::Event>| {
                let event = event
                    .as_ref()
                    .unwrap_or_else(|| panic!("{source}: no segment"));
                event.structure().unwrap().to_string()
            };
            assert_eq!(values(&segment), values(&first), "{source}");
            assert!(src_pad.sticky_event::<gst::event::Segment>(0).is_some());
        }
    }
}
