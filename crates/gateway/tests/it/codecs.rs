//! Conversions between codecs, through the real elements.

use std::net::SocketAddr;

use crate::common::{Background, LIMIT, Received, call, free_port, knock, receive, rtp, socket};
use threadbare_config::Config;
use threadbare_rtp::g711;
use threadbare_streams::event::Event;
use threadbare_streams::gateway::{Gateway, Handled};
use threadbare_streams::init_gstreamer;
use threadbare_streams::pipeline::Elements;

/// Runs one stream with `keys`. Returns the output for 10 packets of `payload`, after the first one.
fn through(elements: Elements, keys: &str, payload_type: u8, payload: &[u8]) -> Vec<Received> {
    let answer = socket();
    let from = socket();
    let port = free_port();
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let _gateway = Background::start(
        &format!(
            "[contexts]\nwait = 5\n[[stream]]\nname = \"test\"\nlisten = \"{to}\"\n\
             destination = \"{}\"\n{keys}",
            answer.local_addr().expect("bound")
        ),
        elements,
    );
    let next = knock(&from, to, &answer, payload_type, 0, payload);
    for number in next..next + 10 {
        from.send_to(&rtp(payload_type, number, payload), to)
            .expect("sent");
    }
    (0..10).map(|_| receive(&answer)).collect()
}

fn for_all_elements(check: impl Fn(Elements)) {
    for elements in ELEMENTS {
        check(*elements);
    }
}

const ELEMENTS: &[Elements] = &[Elements::Threadbare, Elements::Stock];

fn every_code() -> Vec<u8> {
    (0..=255).collect()
}

#[test]
fn pcmu_to_pcma_is_the_reference_conversion() {
    for_all_elements(|elements| {
        let keys = "codec = \"PCMU\"\ncodec-out = \"PCMA\"\nssrc = 77";
        let expected = g711::ULAW_TO_ALAW.to_vec();
        let received = through(elements, keys, 0, &every_code());
        for (n, packet) in received.iter().enumerate() {
            assert_eq!((packet.payload_type, packet.ssrc), (8, 77));
            assert_eq!(packet.sequence, received[0].sequence.wrapping_add(n as u16));
            assert_eq!(packet.payload, expected);
        }
    });
}

#[test]
fn pcma_to_pcmu_is_the_reference_conversion() {
    for_all_elements(|elements| {
        let keys = "codec = \"PCMA\"\ncodec-out = \"PCMU\"";
        for packet in through(elements, keys, 8, &every_code()) {
            assert_eq!(
                (packet.payload_type, packet.payload),
                (0, g711::ALAW_TO_ULAW.to_vec())
            );
        }
    });
}

#[test]
fn auto_learns_the_codec_from_the_payload_type() {
    for_all_elements(|elements| {
        for (payload_type, table) in [(0, g711::ULAW_TO_ALAW.to_vec()), (8, every_code())] {
            let received = through(
                elements,
                "codec-out = \"PCMA\"\npayload-type = 97",
                payload_type,
                &every_code(),
            );
            for packet in received {
                assert_eq!((packet.payload_type, packet.payload), (97, table.clone()));
            }
        }
    });
}

#[test]
fn auto_waits_for_a_packet_with_a_known_type() {
    for_all_elements(|elements| {
        let (answer, from) = (socket(), socket());
        let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let destination = answer.local_addr().expect("bound");
        let _gateway = Background::start(
            &format!(
                "[contexts]\nwait = 5\n[[stream]]\nname = \"test\"\nlisten = \"{to}\"\n\
                 destination = \"{destination}\"\ncodec-out = \"PCMA\"\n"
            ),
            elements,
        );
        for packet in [
            rtp(96, 0, &[1; 160]),
            vec![],
            vec![0x80],
            vec![0xff; 500],
            rtp(13, 1, &[2]),
        ] {
            from.send_to(&packet, to).expect("sent");
        }
        let next = knock(&from, to, &answer, 0, 2, &every_code());
        let packet = rtp(0, next, &every_code());
        from.send_to(&packet, to).expect("sent");
        assert_eq!(receive(&answer).payload, g711::ULAW_TO_ALAW);
    });
}

#[test]
fn latency_puts_packets_in_order() {
    for_all_elements(|elements| {
        let (answer, from) = (socket(), socket());
        let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let destination = answer.local_addr().expect("bound");
        let _gateway = Background::start(
            &format!(
                "[contexts]\nwait = 5\n[[stream]]\nname = \"test\"\nlisten = \"{to}\"\n\
                 destination = \"{destination}\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"\nlatency = 1000\n"
            ),
            elements,
        );
        // The buffer waits a second for each gap, so the result does not depend on timing.
        for number in [1, 2, 4, 3, 5, 8, 6, 7, 9] {
            from.send_to(&rtp(0, number, &[number as u8; 160]), to)
                .expect("sent");
        }
        let payloads = (1..=9)
            .map(|_| receive(&answer).payload[0])
            .collect::<Vec<_>>();
        let expected = (1..=9)
            .map(|number| g711::ULAW_TO_ALAW[number])
            .collect::<Vec<_>>();
        assert_eq!(payloads, expected);
    });
}

#[test]
fn passthrough_changes_nothing() {
    for_all_elements(|elements| {
        let received = through(
            elements,
            "codec-out = \"PCMU\"\ncodec = \"PCMU\"",
            0,
            &[1, 2, 3],
        );
        let first = received[0].sequence;
        let sent = (first..first + 10).map(|sequence| Received {
            payload_type: 0,
            marker: false,
            sequence,
            ssrc: 0x1234,
            payload: vec![1, 2, 3],
        });
        assert_eq!(received, sent.collect::<Vec<_>>());
    });
}

/// A dynamic payload type has only the meaning that the configuration gives it.
#[test]
fn payload_types_with_a_known_clock_rate_pass() {
    let keys = "codec = \"auto\"\nclock-rate = 48000";
    let received = through(Elements::Threadbare, keys, 111, &[1, 2, 3]);
    let first = received[0].sequence;
    let sent = (first..first + 10).map(|sequence| Received {
        payload_type: 111,
        marker: false,
        sequence,
        ssrc: 0x1234,
        payload: vec![1, 2, 3],
    });
    assert_eq!(received, sent.collect::<Vec<_>>());
}

#[test]
fn ptime_joins_and_splits_packets() {
    for_all_elements(|elements| {
        let received = through(elements, "codec = \"PCMU\"\nptime = 10", 0, &[5; 160]);
        assert!(
            received.iter().all(|packet| packet.payload == [5; 80]),
            "{received:?}"
        );
        let received = through(elements, "codec = \"PCMU\"\nptime = 20", 0, &[5; 480]);
        assert!(
            received.iter().all(|packet| packet.payload == [5; 160]),
            "{received:?}"
        );
    });
}

#[test]
fn l16_is_network_byte_order() {
    for_all_elements(|elements| {
        let keys = "codec = \"PCMU\"\ncodec-out = \"L16/8000/1\"";
        let expected = g711::ULAW_TO_LINEAR
            .iter()
            .flat_map(|sample| sample.to_be_bytes())
            .collect::<Vec<_>>();
        for packet in through(elements, keys, 0, &every_code()) {
            assert_eq!((packet.payload_type, &packet.payload), (96, &expected));
        }
    });
}

/// A telephone event (RFC 4733) comes in the middle of speech. Its packets are forwarded unchanged, in the same sequence of
/// numbers.
#[test]
fn telephone_events_pass_a_conversion() {
    for (keys, payload_type) in [("", 101), ("dtmf-payload-type = 99\n", 99)] {
        let keys = format!("codec = \"PCMU\"\ncodec-out = \"PCMA\"\n{keys}");
        let (_gateway, from, to, answer) = call(&keys);
        let next = knock(&from, to, &answer, 0, 0, &[0xff; 160]);
        // The packets are a digit 5 with 400 to 1200 timestamp units. The end is sent three times, and the first packet has a marker.
        let events = [400_u16, 800, 1200, 1200, 1200].map(u16::to_be_bytes);
        let events = events.iter().enumerate().map(|(n, duration)| {
            let end = if n >= 2 { 0x80 } else { 0 };
            [5, 10 | end, duration[0], duration[1]]
        });
        let events = events.collect::<Vec<_>>();
        let mut expected = Vec::new();
        let mut number = next;
        let mut send = |payload_type: u8, time: u32, payload: &[u8], marker: bool| {
            let mut packet = rtp(payload_type, number, payload);
            packet[1] |= u8::from(marker) << 7;
            packet[4..8].copy_from_slice(&time.to_be_bytes());
            from.send_to(&packet, to).expect("sent");
            number += 1;
        };
        let start = u32::from(next) * 160;
        send(0, start, &[0xff; 160], false);
        expected.push((8, false, vec![0xd5; 160]));
        for (n, event) in events.iter().enumerate() {
            send(payload_type, start + 160, event, n == 0);
            expected.push((payload_type, n == 0, event.to_vec()));
        }
        send(0, start + 1360, &[0xff; 160], false);
        expected.push((8, false, vec![0xd5; 160]));
        let received = (0..expected.len())
            .map(|_| receive(&answer))
            .collect::<Vec<_>>();
        let content = received
            .iter()
            .map(|packet| (packet.payload_type, packet.marker, packet.payload.clone()));
        assert_eq!(content.collect::<Vec<_>>(), expected);
        for pair in received.windows(2) {
            assert_eq!(pair[1].sequence, pair[0].sequence.wrapping_add(1));
        }
    }
}

/// A telephone event must not be decoded as audio. It is forwarded as an event, at the clock rate of the sent audio (RFC 4733,
/// section 2.1).
#[test]
fn telephone_events_pass_with_decoded_audio() {
    let keys = "codec = \"PCMU\"\ncodec-out = \"L16/16000/1\"\nptime = 20";
    let (_gateway, from, to, answer) = call(keys);
    let next = knock(&from, to, &answer, 0, 0, &[0xff; 160]);
    for number in 0..4 {
        let event = rtp(101, next + number, &[5, 10, 1, 64]);
        from.send_to(&event, to).expect("sent");
    }
    for number in next + 4..next + 24 {
        from.send_to(&rtp(0, number, &[0xff; 160]), to)
            .expect("sent");
    }
    let (mut keys, mut audio) = (0, 0);
    while audio < 10 {
        let packet = receive(&answer);
        match packet.payload_type {
            // 40 ms are 320 units at 8000 Hz.
            101 => {
                assert_eq!(packet.payload, [5, 10, 2, 128]);
                keys += 1;
            }
            _ => {
                assert!(packet.payload.iter().all(|byte| *byte == 0), "{packet:?}");
                audio += 1;
            }
        }
    }
    assert_eq!(keys, 4);
}

/// Only the latched sender is answered, from the port to which it sends.
#[test]
fn symmetric_mode_answers_the_latched_peer() {
    for keys in ["codec = \"PCMU\"\ncodec-out = \"PCMA\"\n", ""] {
        let (caller, stranger) = (socket(), socket());
        let to = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let _gateway = Background::start(
            &format!(
                "[contexts]\nwait = 5\n[[stream]]\nname = \"test\"\nlisten = \"{to}\"\n\
                 destination = \"latched\"\n{keys}"
            ),
            Elements::Threadbare,
        );
        let next = knock(&caller, to, &caller, 0, 0, &every_code());
        for number in next..next + 5 {
            // Packets of another sender are not played, and no media are sent to it.
            let forged = rtp(0, number, &[0x11; 160]);
            stranger.send_to(&forged, to).expect("sent");
            let packet = rtp(0, number, &every_code());
            caller.send_to(&packet, to).expect("sent");
        }
        let expected = if keys.is_empty() {
            every_code()
        } else {
            g711::ULAW_TO_ALAW.to_vec()
        };
        let mut buffer = [0; 2048];
        for _ in 0..5 {
            let (length, from) = caller.recv_from(&mut buffer).expect("a packet in time");
            assert_eq!(from, to);
            let packet = rtp_types::RtpPacket::parse(&buffer[..length]).expect("RTP");
            assert_eq!(packet.payload(), expected);
            // If packets had the caller's own SSRC, the caller would detect a loop.
            assert_ne!(packet.ssrc(), 0x1234);
        }
        stranger.set_nonblocking(true).expect("a socket");
        assert!(stranger.recv(&mut buffer).is_err());
    }
}

/// Packets are joined and split without a change to any byte.
#[test]
fn a_change_of_the_packet_time_keeps_every_byte() {
    for (ptime, bytes) in [(10, 80), (30, 240), (60, 480)] {
        let (_gateway, from, to, answer) = call(&format!("codec = \"PCMU\"\nptime = {ptime}"));
        // These bytes are a whole packet time, so that nothing is left over.
        let next = knock(&from, to, &answer, 0, 0, &vec![0xff; bytes]);
        let said = (0..24 * 160).map(|n: u32| (n * n / 7) as u8);
        let said = said.collect::<Vec<_>>();
        let start = u32::from(next) * bytes as u32;
        for (n, payload) in said.chunks(160).enumerate() {
            let mut packet = rtp(0, next + n as u16, payload);
            let time = start + 160 * n as u32;
            packet[4..8].copy_from_slice(&time.to_be_bytes());
            from.send_to(&packet, to).expect("sent");
        }
        let mut heard = Vec::new();
        while heard.len() < said.len() {
            let packet = receive(&answer);
            assert_eq!(packet.payload.len(), bytes);
            heard.extend(packet.payload);
        }
        assert!(heard == said, "{ptime} ms");
    }
}

/// The audio goes PCMU -> Opus -> L16/16000 -> PCMA -> L16 at 44100 Hz -> Opus -> PCMU, through one gateway.
#[test]
fn a_tone_passes_a_chain_of_all_codecs() {
    for_all_elements(|elements| {
        let answer = socket();
        let from = socket();
        let codecs = [
            "PCMU",
            "Opus",
            "L16/16000/1",
            "PCMA",
            "L16/44100/1",
            "Opus",
            "PCMU",
        ];
        let ports = (1..codecs.len()).map(|_| free_port()).collect::<Vec<_>>();
        let mut config = "[contexts]\nwait = 5\n".to_owned();
        if elements == Elements::Stock {
            // GStreamer's jitter buffer needs more settings for L16, so it is switched off.
            config += "[defaults]\nlatency = 0\n";
        }
        for (n, pair) in codecs.windows(2).enumerate() {
            let destination = ports
                .get(n + 1)
                .copied()
                .unwrap_or(answer.local_addr().expect("bound").port());
            // Packets have 10 ms, because a packet of L16 at 44100 Hz must not be split.
            config += &format!(
                "[[stream]]\nname = \"{n}\"\nlisten = \"127.0.0.1:{}\"\ndestination = \"127.0.0.1:{destination}\"\n\
                 codec = \"{}\"\ncodec-out = \"{}\"\nptime = 10\n",
                ports[n], pair[0], pair[1]
            );
        }
        let _gateway = Background::start(&config, elements);
        let to = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let next = knock(&from, to, &answer, 0, 0, &[0xff; 160]);
        for number in next..next + 20 {
            from.send_to(&rtp(0, number, &[0xff; 160]), to)
                .expect("sent");
        }
        let packet = receive(&answer);
        assert_eq!((packet.payload_type, packet.payload.len()), (0, 80));
    });
}

/// The demo's reference tables agree with GStreamer's own elements for every code and every sample.
#[test]
fn tables_agree_with_gstreamers_elements() {
    gst::init().expect("GStreamer");
    let run = |chain: &str, caps: gst::Caps, input: Vec<u8>| {
        let mut harness = gst_check::Harness::new_parse(chain);
        harness.set_src_caps(caps);
        harness.push(gst::Buffer::from_slice(input)).expect("taken");
        let output = harness.pull().expect("given");
        output.map_readable().expect("readable").to_vec()
    };
    let caps = |name: &str| {
        gst::Caps::builder(name)
            .field("rate", 8000)
            .field("channels", 1)
    };
    let (ulaw, alaw) = (caps("audio/x-mulaw").build(), caps("audio/x-alaw").build());
    let raw = caps("audio/x-raw")
        .field("format", "S16LE")
        .field("layout", "interleaved")
        .build();
    let samples = (i16::MIN..=i16::MAX).collect::<Vec<_>>();
    let sample_bytes = || {
        samples
            .iter()
            .flat_map(|sample| sample.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let le = |table: &[i16; 256]| {
        table
            .iter()
            .flat_map(|sample| sample.to_le_bytes())
            .collect::<Vec<_>>()
    };

    assert_eq!(
        run("mulawdec ! alawenc", ulaw.clone(), every_code()),
        g711::ULAW_TO_ALAW
    );
    assert_eq!(
        run("alawdec ! mulawenc", alaw.clone(), every_code()),
        g711::ALAW_TO_ULAW
    );
    assert_eq!(
        run("mulawdec", ulaw, every_code()),
        le(&g711::ULAW_TO_LINEAR)
    );
    assert_eq!(
        run("alawdec", alaw, every_code()),
        le(&g711::ALAW_TO_LINEAR)
    );
    let encoded = run("mulawenc", raw.clone(), sample_bytes());
    assert_eq!(
        first_difference(&encoded, &samples, g711::linear_to_ulaw),
        None
    );
    let encoded = run("alawenc", raw, sample_bytes());
    assert_eq!(
        first_difference(&encoded, &samples, g711::linear_to_alaw),
        None
    );
}

fn first_difference(
    encoded: &[u8],
    samples: &[i16],
    encode: impl Fn(i16) -> u8,
) -> Option<(i16, u8, u8)> {
    assert_eq!(encoded.len(), samples.len());
    let pairs = samples
        .iter()
        .zip(encoded)
        .map(|(sample, theirs)| (*sample, *theirs, encode(*sample)));
    pairs.into_iter().find(|(_, theirs, ours)| theirs != ours)
}

/// A signal that arrives while streams are starting takes effect afterwards.
#[test]
fn a_stop_during_the_start_is_not_lost() {
    init_gstreamer().expect("GStreamer");
    let config = format!(
        "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:{}\"\ndestination = \"127.0.0.1:9\"\nrtcp = false\n",
        free_port()
    );
    let config = Config::from_toml("test", &config).expect("a good configuration");
    let mut gateway = Gateway::start(config, Elements::Threadbare).expect("all elements");
    let stop = Event::Stop { cause: "the test" };
    gateway.sender().send(stop).expect("it listens");
    gateway.handle_pending();
    assert_eq!(gateway.handle_for(Some(LIMIT)), Handled::Stop("the test"));
}
