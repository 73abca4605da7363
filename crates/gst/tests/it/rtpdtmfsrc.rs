//! `ts-rtpdtmfsrc`: DTMF digits become telephone events that stock elements and tshark understand.

use std::process::Command;

use crate::common::*;
use gst::prelude::*;
use gst_check::TestClock;

const MS: gst::ClockTime = gst::ClockTime::MSECOND;

/// Returns the event that applications send.
fn press(number: i32) -> gst::Event {
    let structure = gst::Structure::builder("dtmf-event")
        .field("type", 1i32)
        .field("number", number)
        .field("volume", 10i32)
        .field("start", true);
    gst::event::CustomUpstream::new(structure.build())
}

fn release() -> gst::Event {
    let structure = gst::Structure::builder("dtmf-event")
        .field("type", 1i32)
        .field("method", 1i32)
        .field("start", false);
    gst::event::CustomUpstream::new(structure.build())
}

struct Packet {
    marker: bool,
    payload_type: u8,
    seq: u16,
    timestamp: u32,
    ssrc: u32,
    key: u8,
    is_end: bool,
    volume: u8,
    duration: u16,
}

fn packet_in(buffer: &gst::BufferRef) -> Packet {
    let b = bytes(buffer);
    assert_eq!((b.len(), b[0]), (16, 0x80));
    let word = |i: usize| u16::from_be_bytes([b[i], b[i + 1]]);
    let long = |i: usize| u32::from_be_bytes(b[i..i + 4].try_into().unwrap());
    Packet {
        marker: b[1] & 0x80 != 0,
        payload_type: b[1] & 0x7f,
        seq: word(2),
        timestamp: long(4),
        ssrc: long(8),
        key: b[12],
        is_end: b[13] & 0x80 != 0,
        volume: b[13] & 0x3f,
        duration: word(14),
    }
}

/// Plays on a test clock from 0; `drive` moves the clock.
fn on_clock(properties: &str) -> (Rig, TestClock) {
    let rig = Rig::without_stream(
        &format!("ts-rtpdtmfsrc context={} {properties}", context()),
        gst::State::Null,
    );
    let clock = TestClock::new();
    rig.element.set_clock(Some(&clock)).unwrap();
    rig.element.set_base_time(gst::ClockTime::ZERO);
    rig.to(gst::State::Playing);
    (rig, clock)
}

/// Buffers up to the end of an event; the clock advances to each awaited time.
fn event(rig: &Rig, clock: &TestClock) -> Vec<gst::Buffer> {
    let mut all = Vec::new();
    loop {
        match rig.seen.recv_timeout(DEADLINE / 3000) {
            Ok(Seen::Buffer(buffer)) => {
                let is_end = packet_in(&buffer).is_end;
                all.push(buffer);
                if is_end {
                    return all;
                }
            }
            Ok(Seen::Event(_)) => {}
            Err(_) => {
                if clock.peek_id_count() > 0 {
                    clock.crank();
                }
            }
        }
    }
}

#[test]
fn properties_stay_compatible_with_existing_pipelines() {
    let unsigned = Some(("-1", "4294967295"));
    let all = Some(("0", "4294967295"));
    let own: &[Row] = &[
        ("timestamp", "guint", "0", all, false),
        ("seqnum", "guint", "0", all, false),
        ("timestamp-offset", "gint64", "-1", unsigned, true),
        ("seqnum-offset", "gint", "-1", Some(("-1", "65535")), true),
        ("clock-rate", "guint", "8000", all, true),
        ("ssrc", "gint64", "-1", unsigned, true),
        ("pt", "guint", "96", Some(("0", "128")), true),
        ("packet-redundancy", "guint", "1", Some(("1", "5")), true),
    ];
    assert_properties("ts-rtpdtmfsrc", &[CONTEXT_ROWS, own].concat());
}

#[test]
fn a_digit_becomes_the_packets_of_one_event_at_their_times() {
    let (rig, clock) =
        on_clock("ssrc=7 timestamp-offset=1000 seqnum-offset=65534 pt=101 packet-redundancy=3");
    clock.set_time(500 * MS);
    assert!(rig.drain.push_event(press(5)));
    assert!(rig.drain.push_event(release()));
    let buffers = event(&rig, &clock);
    let packets: Vec<Packet> = buffers.iter().map(|buffer| packet_in(buffer)).collect();
    // These are the first packet three times, six packets in between, and the first of the last three.
    assert_eq!(packets.len(), 10);
    for (i, packet) in packets.iter().enumerate() {
        let step = i.saturating_sub(2) as u64;
        assert_eq!(packet.marker, i == 0);
        assert_eq!(packet.payload_type, 101);
        assert_eq!(packet.seq, 65_535u16.wrapping_add(i as u16));
        assert_eq!((packet.timestamp, packet.ssrc), (5000, 7));
        assert_eq!((packet.key, packet.volume), (5, 10));
        assert_eq!(u64::from(packet.duration), 320 * (step + 1));
        assert_eq!(buffers[i].pts(), Some((500 + 40 * step) * MS));
        assert!(packet.is_end == (i == 9));
    }
    for _ in 0..2 {
        assert!(
            packet_in(&rig.buffer()).is_end,
            "the end is said three times"
        );
    }
    assert_eq!(rig.element.property::<u32>("timestamp"), 5000);
    assert_eq!(rig.element.property::<u32>("seqnum"), 10);
    let stats = rig.element.property::<gst::Structure>("stats");
    assert_eq!(stats.get::<u64>("packets"), Ok(12));
    assert_eq!(stats.get::<u64>("requests"), Ok(2));
    // The outcome is reported.
    for start in [true, false] {
        let message = rig
            .bus
            .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Element]);
        let message = message.unwrap();
        let structure = message.structure().unwrap();
        assert_eq!(structure.name(), "dtmf-event-processed");
        assert_eq!(structure.get::<bool>("start"), Ok(start));
    }
}

#[test]
fn the_next_digit_waits_for_the_gap() {
    let (rig, clock) = on_clock("");
    for key in [1, 2] {
        assert!(rig.drain.push_event(press(key)));
        assert!(rig.drain.push_event(release()));
    }
    let first = event(&rig, &clock);
    let second = event(&rig, &clock);
    let end = first.last().unwrap();
    assert_eq!(packet_in(&second[0]).key, 2);
    assert!(packet_in(&second[0]).marker);
    let gap = second[0].pts().unwrap() - (end.pts().unwrap() + 40 * MS);
    assert!(gap >= 100 * MS, "{gap}");
    assert_eq!(end.duration(), Some(160 * MS));
}

#[test]
fn invalid_digit_is_refused() {
    let (rig, _clock) = on_clock("");
    for (field, value) in [
        ("type", 2i32),
        ("method", 2),
        ("number", 16),
        ("number", -1),
    ] {
        let mut structure = press(1).structure().unwrap().to_owned();
        structure.set(field, value);
        assert!(
            !rig.drain
                .push_event(gst::event::CustomUpstream::new(structure)),
            "{field}"
        );
    }
    let other = gst::Structure::new_empty("something-else");
    let _ = rig.drain.push_event(gst::event::CustomUpstream::new(other));
    assert!(rig.drain.push_event(release()));
    let message = rig
        .bus
        .timed_pop_filtered(DEADLINE_GST, &[gst::MessageType::Element]);
    assert_eq!(
        message.unwrap().structure().unwrap().name(),
        "dtmf-event-dropped"
    );
    rig.to(gst::State::Ready);
    assert!(!rig.drain.push_event(press(1)), "it does not run");
}

#[test]
fn a_clock_rate_of_zero_is_refused() {
    let element = make("ts-rtpdtmfsrc");
    element.set_property("clock-rate", 0u32);
    assert!(element.set_state(gst::State::Playing).is_err());
    element.set_state(gst::State::Null).unwrap();
}

#[test]
fn downstream_chooses_payload_type_rate_and_interval() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpdtmfsrc name=src context={} ! capsfilter name=filter caps=application/x-rtp,payload=110,clock-rate=16000,ssrc=(uint)9,ptime=(uint)20 ! fakesink name=out async=false sync=false",
        context()
    ));
    let seen = watch(&pipe.pad("out", "sink"));
    pipe.play();
    assert!(pipe.get("src").send_event(press(3)));
    let first = next_buffer(&seen);
    let packet = packet_in(&first);
    assert_eq!(
        (packet.payload_type, packet.ssrc, packet.duration),
        (110, 9, 320)
    );
    assert_eq!(first.duration(), Some(20 * MS));
    // Another payload type comes while the event lasts.
    let caps: gst::Caps = "application/x-rtp,payload=111".parse().unwrap();
    pipe.get("filter").set_property("caps", &caps);
    next_event(&seen, gst::EventType::Caps);
    assert_eq!(packet_in(&next_buffer(&seen)).payload_type, 111);
    pipe.assert_no_error();
}

#[test]
fn stock_elements_detect_the_digits() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpdtmfsrc name=src context={} context-wait=5 packet-redundancy=3 ! rtpdtmfdepay ! audio/x-raw,rate=8000 ! dtmfdetect ! fakesink async=false sync=false",
        context()
    ));
    pipe.play();
    for number in [1, 5, 11] {
        assert!(pipe.get("src").send_event(press(number)));
        assert!(pipe.get("src").send_event(release()));
    }
    let mut heard = Vec::new();
    while heard.len() < 3 {
        let message = pipe.message(&[gst::MessageType::Element, gst::MessageType::Error]);
        assert_eq!(message.type_(), gst::MessageType::Element, "{message:?}");
        let structure = message.structure().unwrap();
        let is_heard = message
            .src()
            .is_some_and(|src| src.name().starts_with("dtmfdetect"));
        if is_heard && structure.name() == "dtmf-event" {
            heard.push(structure.get::<i32>("number").unwrap());
        }
    }
    assert_eq!(heard, [1, 5, 11]);
}

#[test]
fn tshark_dissects_the_events() {
    let there = Command::new("tshark").arg("-v").output();
    there.expect("tshark; scripts/setup test installs it");
    let (rig, clock) = on_clock("pt=101");
    assert!(rig.drain.push_event(press(9)));
    assert!(rig.drain.push_event(release()));
    let folder = std::env::temp_dir().join(format!("threadbare-dtmf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (hex, pcap) = (folder.join("packets.txt"), folder.join("packets.pcap"));
    let lines: String = event(&rig, &clock)
        .iter()
        .map(|buffer| {
            let bytes = bytes(buffer);
            let octets: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0000 {}\n", octets.join(" "))
        })
        .collect();
    std::fs::write(&hex, lines).unwrap();
    let made = Command::new("text2pcap")
        .args(["-q", "-u", "5004,5004"])
        .args([&hex, &pcap])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let told = Command::new("tshark")
        .args(["-r", pcap.to_str().unwrap(), "-d", "udp.port==5004,rtp"])
        .args([
            "-o",
            "rtpevent.event_payload_type_value:101",
            "-T",
            "fields",
        ])
        .args([
            "-e",
            "rtpevent.event_id",
            "-e",
            "rtpevent.end_of_event",
            "-e",
            "rtpevent.duration",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 8, "{text}");
    for (i, line) in lines.iter().enumerate() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[0], "9");
        assert_eq!(matches!(fields[1], "1" | "True"), i == 7, "{line}");
        assert_eq!(fields[2], (320 * (i + 1)).to_string());
    }
}

#[test]
fn the_latency_is_one_slice() {
    let (rig, _clock) = on_clock("context-wait=20");
    let mut query = gst::query::Latency::new();
    assert!(rig.drain.peer_query(&mut query));
    assert_eq!(query.result(), (true, 20 * MS, None));
    assert!(
        rig.drain.peer_query_caps(None).is_subset(
            &"application/x-rtp,media=audio,encoding-name=TELEPHONE-EVENT"
                .parse::<gst::Caps>()
                .unwrap()
        )
    );
}

#[test]
fn the_element_works_after_each_restart() {
    let rig = Rig::without_stream(
        &format!("ts-rtpdtmfsrc context={}", context()),
        gst::State::Null,
    );
    goes_up_and_down(&rig, || {
        assert!(rig.element.send_event(press(1)));
        rig.buffer();
        rig.element.send_event(gst::event::FlushStart::new());
        rig.element.send_event(gst::event::FlushStop::new(true));
        rig.event(gst::EventType::FlushStop);
        rig.element.send_event(release());
        while !packet_in(&rig.buffer()).is_end {}
    });
    rig.to(gst::State::Playing);
}

#[test]
fn digit_ends_on_request_and_stop_works_with_a_stuck_push() {
    let pipe = Pipe::parse(&format!(
        "ts-rtpdtmfsrc name=src context={} ! identity name=last ! fakesink name=out async=false",
        context()
    ));
    pipe.0.use_clock(gst::Clock::NONE);
    let gate = gate(&pipe.pad("last", "src"));
    pipe.play();
    assert!(pipe.get("src").send_event(press(1)));
    gate.wait_held();
    pipe.to(gst::State::Paused);
    gate.open();
    pipe.play();
    pipe.get("src").send_event(gst::event::Eos::new());
    pipe.expect(gst::MessageType::Eos);
}
