//! `ebur128level` allocates nothing for a buffer where it posts nothing.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::*;
use gst::prelude::*;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator; the counter is a plain thread-local without a destructor, so
// that it can be reached at any time and allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise about `layout` is the one that is asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    // One that is aligned, and one that is not.
    let whole = gst::Buffer::from_slice([17u8; 1_284]);
    let part = whole.copy_region(gst::BufferCopyFlags::MEMORY, 1..1_281);
    let buffers = [whole, part.unwrap()];
    let push = || {
        for buffer in &buffers {
            feed.push(buffer.clone()).unwrap();
        }
    };
    push();
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..3_600 * 25 / 2 {
        push();
    }
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
    let stats: gst::Structure = level.property("stats");
    assert!(
        stats.get::<u64>("frames").unwrap() > 3_590 * 8_000,
        "{stats}"
    );
    for element in [&level, &end] {
        element.set_state(gst::State::Null).unwrap();
    }
}
