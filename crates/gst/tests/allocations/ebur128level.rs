//! `ebur128level` allocates nothing for a buffer that causes no message.

use crate::common::*;
use crate::counting::allocations;
use gst::prelude::*;

#[test]
fn an_hour_of_buffers_allocates_nothing() {
    init();
    let level = make("ebur128level");
    level.set_property("post-messages", false);
    let end = make("fakesink");
    end.set_property("async", false);
    end.set_property("sync", false);
    level.link(&end).unwrap();
    for element in [&end, &level] {
        element.set_state(gst::State::Playing).unwrap();
    }
    let feed = gst::Pad::builder(gst::PadDirection::Src).build();
    feed.set_active(true).unwrap();
    feed.link(&level.static_pad("sink").unwrap()).unwrap();
    let caps = gst::Caps::builder("audio/x-raw")
        .field("format", "S16LE")
        .field("rate", 8_000i32)
        .field("channels", 2i32)
        .field("layout", "interleaved")
        .build();
    feed.push_event(gst::event::StreamStart::new("a-stream"));
    feed.push_event(gst::event::Caps::new(&caps));
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    feed.push_event(gst::event::Segment::new(&segment));
    // One buffer is aligned, the other one is not.
    let whole = gst::Buffer::from_slice([17u8; 1_284]);
    let part = whole.copy_region(gst::BufferCopyFlags::MEMORY, 1..1_281);
    let buffers = [whole, part.unwrap()];
    let push = || {
        for buffer in &buffers {
            feed.push(buffer.clone()).unwrap();
        }
    };
    push();
    let before = allocations();
    for _ in 0..3_600 * 25 / 2 {
        push();
    }
    assert_eq!(allocations(), before);
    let stats: gst::Structure = level.property("stats");
    assert!(
        stats.get::<u64>("frames").unwrap() > 3_590 * 8_000,
        "{stats}"
    );
    for element in [&level, &end] {
        element.set_state(gst::State::Null).unwrap();
    }
}
