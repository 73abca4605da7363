//! Stock sinks that hold a context's thread before PLAYING.

mod common;

use common::*;
use gst::prelude::*;

/// The second sink gets no data, since the first one keeps the thread until PLAYING: the application is told who does.
#[test]
fn a_context_that_a_stock_sink_holds_in_preroll_is_told_while_it_lasts() {
    for branch in [
        "ts-audiotestsrc is-live=false context={c}",
        "audiotestsrc ! ts-queue context={c}",
    ] {
        let name = context();
        let branch = branch.replace("{c}", &name);
        let pipe = Pipe::parse(&format!(
            "{branch} ! fakesink name=a {branch} ! fakesink name=b"
        ));
        let pipeline = pipe.0.clone();
        // The change itself may wait for the thread.
        let changing = std::thread::spawn(move || pipeline.set_state(gst::State::Playing));
        let warning = text(&pipe.message(&[gst::MessageType::Warning]));
        assert!(warning.contains(&format!("ts:{name}")), "{warning}");
        assert!(warning.contains(pipe.0.name().as_str()), "{warning}");
        assert!(
            warning.contains("put a ts-blocking-adapter before each"),
            "{warning}"
        );
        // Nothing else frees the thread.
        for sink in ["a", "b"] {
            let sink = pipe.get(sink);
            sink.set_locked_state(true);
            set_state(&sink, gst::State::Null);
        }
        let _ = within("the change", move || changing.join());
    }
}

/// As the advice says.
#[test]
fn sinks_that_hold_no_context_preroll_side_by_side() {
    for branch in [
        "ts-audiotestsrc is-live=false context={c} ! ts-blocking-adapter ! fakesink",
        "ts-audiotestsrc is-live=false context={c} ! ts-appsink",
        "audiotestsrc ! ts-queue context={c} ! fakesink async=false",
    ] {
        let branch = branch.replace("{c}", &context());
        let pipe = Pipe::parse(&format!("{branch} {branch}"));
        pipe.to(gst::State::Paused);
        pipe.to(gst::State::Playing);
        let warned = pipe.bus().pop_filtered(&[gst::MessageType::Warning]);
        assert!(warned.is_none(), "{branch}: {warned:?}");
    }
}
