//! `ts-rtpg711 meter=true` measures the same as `ebur128level` does on the decoded packets.

use crate::common::*;
use gst::prelude::*;
use threadbare_rtp::g711::linear_to_ulaw;

const PCMU: &str = "application/x-rtp,media=audio,clock-rate=8000,encoding-name=PCMU,payload=0";
const SAMPLES: u32 = 160;

/// 20 ms of a tone of 1 kHz that swells and fades, as PCMU.
fn packet(number: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend((number as u16).to_be_bytes());
    packet.extend((number * SAMPLES).to_be_bytes());
    packet.extend(7u32.to_be_bytes());
    packet.extend((number * SAMPLES..(number + 1) * SAMPLES).map(|n| {
        let level = 6_000.0 * (1.1 + (f64::from(n) / 9_000.0).sin());
        let sample = level * (f64::from(n) * std::f64::consts::TAU / 8.0).sin();
        linear_to_ulaw(sample as i16)
    }));
    packet
}

/// Returns a DTMF event, which must not be measured as sound.
fn telephone_event(number: u32) -> Vec<u8> {
    let mut packet = packet(number);
    packet[1] = 101;
    packet.truncate(16);
    packet
}

/// Final statistics of the element `meter` in this chain.
fn measured(line: &str, meter: &str) -> gst::Structure {
    init();
    let mut harness = gst_check::Harness::new_parse(line);
    harness.set_src_caps_str(PCMU);
    for number in 0..600 {
        let bytes = match number {
            300 => telephone_event(number),
            _ => packet(number),
        };
        let mut buffer = gst::Buffer::from_mut_slice(bytes);
        let pts = u64::from(number) * 20 * gst::ClockTime::MSECOND;
        buffer.get_mut().unwrap().set_pts(pts);
        // A stock depayloader would take the event for sound.
        if number != 300 || meter == "g711" {
            harness.push(buffer).unwrap();
        }
        while harness.try_pull().is_some() {}
    }
    harness.push_event(gst::event::Eos::new());
    part(&harness, meter).property("stats")
}

/// Returns the element of this name, in a line of one or of several.
fn part(harness: &gst_check::Harness, name: &str) -> gst::Element {
    let whole = harness.element().unwrap();
    let found = whole
        .downcast_ref::<gst::Bin>()
        .map(|bin| bin.by_name(name));
    found.map_or(whole, |part| part.unwrap())
}

const READINGS: [&str; 5] = [
    "momentary-loudness",
    "shortterm-loudness",
    "global-loudness",
    "relative-threshold",
    "loudness-range",
];

#[test]
fn the_meter_measures_the_same_as_ebur128level_behind_stock_elements() {
    for (ours, theirs) in [
        ("encoding-name=PCMA", "alawenc ! alawdec"),
        ("encoding-name=PCMU", "identity"),
        // The element stores samples for packets that grow, and for packets of another length.
        ("encoding-name=L16", "identity"),
        ("encoding-name=PCMA ptime=30", "alawenc ! alawdec"),
    ] {
        let line = format!("ts-rtpg711 name=g711 meter=true {ours}");
        let ours = measured(&line, "g711");
        let line = format!(
            "rtppcmudepay ! mulawdec ! {theirs} ! ebur128level name=level ! fakesink sync=false async=false"
        );
        let theirs = measured(&line, "level");
        for reading in READINGS {
            let of = |stats: &gst::Structure| stats.get::<f64>(reading).unwrap();
            let (one, other) = (of(&ours), of(&theirs));
            assert!((one - other).abs() < 1e-6, "{reading}: {ours}\n{theirs}");
        }
        for peak in ["sample-peak", "true-peak"] {
            let of = |stats: &gst::Structure| -> f64 {
                stats.get::<gst::Array>(peak).unwrap()[0].get().unwrap()
            };
            assert!((of(&ours) - of(&theirs)).abs() < 1e-9, "{peak}");
        }
    }
}

#[test]
fn the_meter_is_off_by_default_and_can_be_switched_on_and_off() {
    let line = "ts-rtpg711 name=g711 encoding-name=PCMA";
    assert!(!measured(line, "g711").has_field("global-loudness"));
    let mut harness = gst_check::Harness::new_parse(&format!("{line} meter=true"));
    harness.set_src_caps_str(PCMU);
    for number in 0..60 {
        let buffer = gst::Buffer::from_mut_slice(packet(number));
        harness.push(buffer).unwrap();
    }
    let element = part(&harness, "g711");
    let stats = || element.property::<gst::Structure>("stats");
    assert!(stats().get::<f64>("global-loudness").unwrap() > -30.0);
    element.set_property("meter", false);
    assert!(!stats().has_field("global-loudness"));
}
