//! The application of streams that begin with an `appsrc`. One thread pushes a buffer to each of them every 20 ms. The streams
//! are spread evenly over the 20 ms.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gst::glib::subclass::SignalId;
use gst::prelude::*;

use crate::{PACKET_BYTES, PACKETS_PER_SECOND};

const PUSH: &str = "push-buffer";
/// Number of bursts per interval, as in the program `sender`.
const BURSTS: usize = 20;

/// Whether an element takes buffers from an application.
pub fn takes_buffers(element: &gst::Element) -> bool {
    SignalId::lookup(PUSH, element.type_()).is_some()
}

/// Starts a thread that feeds these elements until the process ends.
pub fn start(sources: Vec<gst::Element>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("feeder".into())
        .spawn(move || feed(&sources))
}

fn feed(sources: &[gst::Element]) {
    let signals: Vec<SignalId> = sources
        .iter()
        .filter_map(|source| SignalId::lookup(PUSH, source.type_()))
        .collect();
    // The same buffer is pushed each time, so that the creation of buffers is not measured.
    let buffer = gst::Buffer::with_size(PACKET_BYTES).expect("memory for a buffer");
    let streams = sources.len();
    let interval = Duration::from_micros(1_000_000 / PACKETS_PER_SECOND);
    let start = Instant::now();
    for number in 0.. {
        for burst in 0..BURSTS {
            let due = start + interval * number + interval * burst as u32 / BURSTS as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (from, to) = (streams * burst / BURSTS, streams * (burst + 1) / BURSTS);
            for (source, signal) in sources[from..to].iter().zip(&signals[from..to]) {
                // The signal returns a flow return or a boolean, depending on the element.
                source.emit_with_values(*signal, &[buffer.to_value()]);
            }
        }
    }
}
