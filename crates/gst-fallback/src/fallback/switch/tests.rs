//! Tests that need access to the crate's internals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// No test waits this long unless it hangs.
const DEADLINE: gst::ClockTime = gst::ClockTime::from_seconds(20);

fn switch(pipeline: &gst::Pipeline, name: &str) -> FallbackSwitch {
    pipeline.by_name(name).unwrap().downcast().unwrap()
}

/// Sets the health of the pads of `of` as that of the partners of the pads of `for_`.
fn wire(of: &FallbackSwitch, for_: &FallbackSwitch) {
    for pad in of.sink_pads() {
        let (name, partner) = (pad.name(), for_.downgrade());
        pad.connect_notify(Some("is-healthy"), move |pad, _| {
            let partner = partner.upgrade().unwrap();
            let other = partner.static_pad(&name).unwrap();
            partner.set_partner_health(&other, pad.property("is-healthy"));
        });
    }
}

fn active(switch: &FallbackSwitch) -> Option<String> {
    let pad = switch.property::<Option<gst::Pad>>("active-pad");
    pad.map(|pad| pad.name().to_string())
}

/// Waits until both switches pass this input.
fn until_both(pipeline: &gst::Pipeline, switches: [&FallbackSwitch; 2], name: &str) {
    let bus = pipeline.bus().unwrap();
    while switches.map(active) != [Some(name.to_owned()), Some(name.to_owned())] {
        let kinds = [gst::MessageType::Element, gst::MessageType::Error];
        let message = bus.timed_pop_filtered(DEADLINE, &kinds);
        let message = message.expect("no switch");
        assert_eq!(message.type_(), gst::MessageType::Element, "{message:?}");
    }
}

#[test]
fn partner_switches_leave_a_failed_source_together() {
    gst::init().unwrap();
    register(None).unwrap();
    let audio = "audiotestsrc is-live=true samplesperbuffer=160 ! audio/x-raw,rate=8000 ! a.";
    let video =
        "videotestsrc is-live=true ! video/x-raw,width=16,height=16,framerate=50/1 ! queue ! v.";
    let switch_line = |name: &str| {
        format!("fallbackswitch name={name} timeout=400000000 ! fakesink sync=false async=false")
    };
    let line = format!(
        "{} {} {audio} {audio} {video} {video}",
        switch_line("a"),
        switch_line("v")
    );
    let pipeline: gst::Pipeline = gst::parse::launch(&line).unwrap().downcast().unwrap();
    let [audio, video] = ["a", "v"].map(|name| switch(&pipeline, name));
    wire(&audio, &video);
    wire(&video, &audio);
    let is_silent = Arc::new(AtomicBool::new(false));
    let of_probe = is_silent.clone();
    let source = video.static_pad("sink_0").unwrap().peer().unwrap();
    source.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        if of_probe.load(Ordering::SeqCst) {
            gst::PadProbeReturn::Handled
        } else {
            gst::PadProbeReturn::Ok
        }
    });
    pipeline.set_state(gst::State::Playing).unwrap();
    until_both(&pipeline, [&audio, &video], "sink_0");
    is_silent.store(true, Ordering::SeqCst);
    until_both(&pipeline, [&audio, &video], "sink_1");
    let stats = audio.property::<gst::Structure>("stats");
    assert_ne!(stats.get::<u64>("switches-partner"), Ok(0));
    is_silent.store(false, Ordering::SeqCst);
    until_both(&pipeline, [&audio, &video], "sink_0");
    pipeline.set_state(gst::State::Null).unwrap();
}
