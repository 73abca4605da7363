//! `audioloudnorm` allocates nothing for a buffer after the first three seconds.

use crate::common::*;
use crate::counting::allocations;
use gst::prelude::*;

#[test]
fn minutes_of_buffers_allocate_nothing() {
    init();
    let norm = make("audioloudnorm");
    let end = make("fakesink");
    end.set_property("async", false);
    end.set_property("sync", false);
    end.set_property("enable-last-sample", false);
    norm.link(&end).unwrap();
    for element in [&end, &norm] {
        element.set_state(gst::State::Playing).unwrap();
    }
    let feed = gst::Pad::builder(gst::PadDirection::Src).build();
    feed.set_active(true).unwrap();
    feed.link(&norm.static_pad("sink").unwrap()).unwrap();
    let caps = gst::Caps::builder("audio/x-raw")
        .field("format", "F32LE")
        .field("rate", 48_000i32)
        .field("channels", 2i32)
        .field("channel-mask", gst::Bitmask::new(3))
        .field("layout", "interleaved")
        .build();
    feed.push_event(gst::event::StreamStart::new("a-stream"));
    feed.push_event(gst::event::Caps::new(&caps));
    let segment = gst::FormattedSegment::<gst::ClockTime>::new();
    feed.push_event(gst::event::Segment::new(&segment));
    let pool = gst::BufferPool::new();
    let mut config = pool.config();
    config.set_params(Some(&caps), 960 * 8, 2, 2);
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    let mut frames = 0u64;
    let mut push = || {
        // The pool has two buffers. If the element had kept or replaced one, this call would not return.
        let mut buffer = pool.acquire_buffer(None).unwrap();
        let room = buffer.get_mut().unwrap();
        room.set_pts(gst::ClockTime::from_nseconds(
            frames * 1_000_000_000 / 48_000,
        ));
        for (n, byte) in room
            .map_writable()
            .unwrap()
            .as_mut_slice()
            .iter_mut()
            .enumerate()
        {
            *byte = if n % 4 == 3 {
                0x3e
            } else {
                (n as u64 * frames) as u8
            };
        }
        frames += 960;
        feed.push(buffer).unwrap();
    };
    for _ in 0..200 {
        push();
    }
    let before = allocations();
    for _ in 0..10_000 {
        push();
    }
    assert_eq!(allocations(), before);
    let stats: gst::Structure = norm.property("stats");
    assert_eq!(
        stats.get("frames-out"),
        Ok(10_200u64 * 960 - 144_000),
        "{stats}"
    );
    for element in [&norm, &end] {
        element.set_state(gst::State::Null).unwrap();
    }
}
