//! A context's thread that is held before PLAYING.
//!
//! A stock sink keeps the thread that brings its first buffer until the pipeline plays, and the pipeline plays when all of its sinks have one. With two
//! such sinks on one context's thread, the second gets none. The thread is in the sink and cannot be taken back, so the
//! application is told: a WARNING message, by a job in GStreamer's pool of threads, which ends with the change of state.

use std::sync::Mutex;

use gst::prelude::*;
use threadbare_runtime::{Shard, clock_now_ns};

use super::lock;

/// The names of threads that are looked at now: one job for each is enough.
static WATCHED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// An element is about to push its first item, on this thread.
#[cold]
pub(super) fn watch(element: &gst::Element, shard: &Shard) {
    if element.current_state() == gst::State::Playing {
        return;
    }
    let name = shard.name().to_owned();
    {
        let mut watched = lock(&WATCHED);
        if watched.contains(&name) {
            return;
        }
        watched.push(name.clone());
    }
    let shard = shard.clone();
    element.call_async(move |element| {
        let held = find_hold(element, &shard);
        lock(&WATCHED).retain(|watched| *watched != name);
        if let Some(by) = held {
            gst::element_warning!(
                element,
                gst::CoreError::StateChange,
                ("The pipeline cannot reach PAUSED: a context's thread is held."),
                [
                    "{by} holds {name} for more than {} s, as a stock sink does until PLAYING, and other sinks wait for data from the same thread; \
                     put a ts-blocking-adapter before each stock sink",
                    HOLD.seconds()
                ]
            );
        }
    });
}

/// Waits for the end of the pipeline's change of state. `Some`: who holds the thread meanwhile.
fn find_hold(element: &gst::Element, shard: &Shard) -> Option<String> {
    let mut root: gst::Object = element.clone().upcast();
    while let Some(parent) = root.parent() {
        root = parent;
    }
    let root = root.downcast::<gst::Element>().ok()?;
    for _ in 0..LOOKS {
        let (result, ..) = root.state(HOLD);
        if result != Ok(gst::StateChangeSuccess::Async) {
            return None;
        }
        let held = shard.running().filter(|(_, since_ns)| {
            clock_now_ns().saturating_sub(*since_ns) >= HOLD.nseconds() / 2
        });
        if let Some((by, _)) = held {
            return Some(by);
        }
    }
    None
}

/// Nothing but a wait takes so long.
const HOLD: gst::ClockTime = gst::ClockTime::from_seconds(2);
/// A stream that does not begin by then is awaited for other reasons.
const LOOKS: u32 = 5;
