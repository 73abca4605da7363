//! Calls that programs create and change by `threadbare serve --http`, observed at the parties.

use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::http::{Relay, parties, sdp};
use crate::common::plain::{Party, act, call, done, made, side};
use crate::common::{LIMIT, Received, socket, wait_until};
use serde_json::{Value, json};
use threadbare_rtp::g711;

/// Lets `from` send one code at the pace of a call until `to` receives the packet that is wanted.
fn hear(from: &mut Party, to: &Party, code: u8, is_wanted: impl Fn(&Received) -> bool) -> Received {
    let begin = Instant::now();
    let pause = Duration::from_millis(20);
    to.socket.set_read_timeout(Some(pause)).expect("valid");
    while begin.elapsed() < LIMIT {
        from.say(code);
        let mut room = [0; 2048];
        // Read at most four packets for each one that was sent, because lost packets are replaced.
        for _ in 0..4 {
            let Ok(len) = to.socket.recv(&mut room) else {
                break;
            };
            let packet = rtp_types::RtpPacket::parse(&room[..len]).expect("RTP");
            let received = Received {
                payload_type: packet.payload_type(),
                marker: packet.marker_bit(),
                sequence: packet.sequence_number(),
                ssrc: packet.ssrc(),
                payload: packet.payload().to_vec(),
            };
            if is_wanted(&received) {
                return received;
            }
        }
    }
    panic!("it is not heard")
}

/// Whether nothing arrives for a while, after the packets that were on their way.
fn hears_nothing(from: &mut Party, to: &Party) -> bool {
    let pause = Duration::from_millis(20);
    to.socket.set_read_timeout(Some(pause)).expect("valid");
    let begin = Instant::now();
    let mut quiet = 0;
    while quiet < 25 && begin.elapsed() < LIMIT {
        from.say(LOUD);
        quiet = match to.socket.recv(&mut [0; 2048]) {
            Ok(_) => 0,
            Err(_) => quiet + 1,
        };
    }
    quiet == 25
}

/// A code that is far from silence in both laws.
const LOUD: u8 = 0x12;

/// Converts a code of µ-law to A-law by the tables of G.711 (ITU-T G.711, tables 1 and 2).
fn as_alaw(code: u8) -> u8 {
    g711::linear_to_alaw(g711::ULAW_TO_LINEAR[usize::from(code)])
}

#[test]
fn parties_described_without_sdp_hear_each_other() {
    let relay = Relay::start(&[]);
    let (made, [mut a, mut b]) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
    assert_eq!((a.payload_type, b.payload_type), (0, 8));
    let heard = hear(&mut a, &b, LOUD, |one| one.payload == [as_alaw(LOUD); 160]);
    assert_eq!(heard.payload_type, 8);
    let heard = hear(&mut b, &a, as_alaw(LOUD), |one| one.payload[0] != 0xff);
    assert_eq!(heard.payload_type, 0);
    let path = made["path"].as_str().expect("a path");
    let detail = relay.get_json(path);
    for (place, codec) in ["PCMU/8000", "PCMA/8000"].into_iter().enumerate() {
        let shown = &detail["streams"][0]["sides"][place];
        assert_eq!(shown["codec"], codec, "{detail}");
        assert_eq!(shown["tag"], made["sides"][place]["tag"], "{detail}");
        assert_eq!(
            shown["local_address"],
            made["sides"][place]["local_address"]
        );
    }
    assert_eq!(relay.request("DELETE", path, "", b"").status, 204);
}

#[test]
fn dynamic_codecs_get_their_payload_type() {
    let relay = Relay::start(&[]);
    let (_, [mut a, mut b]) = call(&relay, ["opus/48000/2", "PCMU/8000"]);
    assert!((96..128).contains(&a.payload_type), "{}", a.payload_type);
    let heard = hear(&mut b, &a, LOUD, |one| one.payload_type == a.payload_type);
    assert!(!heard.payload.is_empty());
    let (_, [c, d]) = call(&relay, ["PCMU/8000", "opus/48000/2"]);
    assert_eq!(c.payload_type, 0);
    assert!((96..128).contains(&d.payload_type), "{}", d.payload_type);
    a.say(0);
}

#[test]
fn a_call_can_be_made_from_two_session_descriptions() {
    let relay = Relay::start(&[]);
    let [a, b] = parties();
    let answer = sdp(&b).replace("RTP/AVP 0", "RTP/AVP 8");
    let options = json!({"codec": {"transcode": ["PCMA"]}, "replace": ["origin"]});
    let body = json!({"id": "a/b@c", "offer": sdp(&a), "answer": answer, "options": options});
    let call = made(&relay.post("/v1/calls", &body));
    assert_eq!(call["id"], "a/b@c");
    let told = |place: usize| call["sides"][place]["sdp"].as_str().expect("an SDP");
    assert!(told(0).contains("RTP/AVP 0\r\n"), "{call}");
    assert!(told(1).contains("RTP/AVP 0 8\r\n"), "{call}");
    // The id belongs to another call already.
    let problem = relay.post("/v1/calls", &body).problem(409);
    assert_eq!(problem["field"], "id", "{problem}");
    let party = |socket, place: usize, payload_type| Party {
        socket,
        to: call["sides"][place]["local_address"]
            .as_str()
            .and_then(|one| one.parse().ok())
            .expect("an address"),
        payload_type,
        number: 0,
    };
    let (mut a, b) = (party(a, 0, 0), party(b, 1, 8));
    hear(&mut a, &b, LOUD, |one| one.payload == [as_alaw(LOUD); 160]);
}

#[test]
fn no_call_remains_if_descriptions_do_not_match() {
    let relay = Relay::start(&[]);
    let [a, b] = parties();
    let plain = |codec: &str| json!([side(&a, codec), side(&b, "PCMU/8000")]);
    let odd_address = json!([{"address": "host:1", "codec": "PCMU/8000"}, side(&b, "PCMU/8000")]);
    for (body, status, field) in [
        (json!({}), 400, "sides"),
        (json!({"sides": [side(&a, "PCMU/8000")]}), 400, "sides"),
        (
            json!({"sides": plain("PCMU/8000"), "offer": "v=0"}),
            400,
            "sides",
        ),
        (json!({"sides": plain("PCMU/8000"), "id": ""}), 400, "id"),
        (json!({"sides": plain("PCMU")}), 400, "sides[0].codec"),
        (
            json!({"sides": plain("X\r\na=evil/8000")}),
            400,
            "sides[0].codec",
        ),
        (
            json!({"sides": plain("PCMU/8000/9")}),
            400,
            "sides[0].codec",
        ),
        (json!({"sides": odd_address}), 400, "sides[0].address"),
        // The gateway cannot convert this codec.
        (json!({"sides": plain("iLBC/8000")}), 422, "sides[1].codec"),
        (
            json!({"offer": sdp(&a), "answer": sdp(&b), "options": {"call-id": "x"}}),
            400,
            "options",
        ),
        (
            json!({"offer": sdp(&a), "answer": sdp(&b), "options": {"ptime": 1.5}}),
            400,
            "options",
        ),
        (json!({"colour": 1}), 400, "body"),
    ] {
        let problem = relay.post("/v1/calls", &body).problem(status);
        assert_eq!(problem["field"], field, "{body}: {problem}");
        assert!(problem["allowed"].is_string(), "{problem}");
    }
    for (offer, answer) in [("v=1\r\n", sdp(&b)), (&*sdp(&a), "v=0\r\n".to_owned())] {
        relay
            .post("/v1/calls", &json!({"offer": offer, "answer": answer}))
            .problem(422);
    }
    assert_eq!(relay.get_json("/v1/calls"), json!({"calls": []}));
    assert_eq!(relay.post("/v1/drain", &json!({})).status, 200);
    let refused = relay.post("/v1/calls", &json!({"sides": plain("PCMU/8000")}));
    refused.problem(503);
    assert!(refused.headers.contains_key("retry-after"));
}

#[test]
fn held_and_muted_call_resumes() {
    let relay = Relay::start(&[]);
    let (made, [mut a, mut b]) = call(&relay, ["PCMU/8000", "PCMU/8000"]);
    let is_loud = |one: &Received| one.payload == [LOUD; 160];
    hear(&mut a, &b, LOUD, is_loud);
    done(&act(&relay, &made, "hold", &json!({})));
    assert!(hears_nothing(&mut a, &b));
    assert!(hears_nothing(&mut b, &a));
    done(&act(&relay, &made, "resume", &json!({})));
    hear(&mut a, &b, LOUD, is_loud);
    hear(&mut b, &a, LOUD, is_loud);
    // Select one party.
    let tag = &made["sides"][0]["tag"];
    done(&act(&relay, &made, "hold", &json!({"tag": tag})));
    assert!(hears_nothing(&mut a, &b));
    hear(&mut b, &a, LOUD, is_loud);
    done(&act(&relay, &made, "resume", &json!({"tag": tag})));
    done(&act(&relay, &made, "mute", &json!({"tag": tag})));
    let is_silent = |one: &Received| {
        let samples = one
            .payload
            .iter()
            .map(|code| g711::ULAW_TO_LINEAR[usize::from(*code)]);
        samples.map(i16::unsigned_abs).max() < Some(16)
    };
    hear(&mut a, &b, LOUD, is_silent);
    done(&act(&relay, &made, "unmute", &json!({"tag": tag})));
    hear(&mut a, &b, LOUD, is_loud);
    let problem = act(&relay, &made, "hold", &json!({"tag": "nobody"})).problem(422);
    assert_eq!(problem["field"], "tag", "{problem}");
    let problem = act(&relay, &made, "hold", &json!({"tag": ""})).problem(400);
    assert_eq!(problem["field"], "tag", "{problem}");
    relay.post("/v1/calls/none/hold", &json!({})).problem(404);
}

/// The digit is the first byte of an event (RFC 4733).
#[test]
fn dtmf_digits_are_sent_on_behalf_of_a_party() {
    let relay = Relay::start(&[]);
    let [a, b] = parties();
    let with_keys = |socket: &UdpSocket| {
        let mut side = side(socket, "PCMU/8000");
        side["telephone_events"] = json!(true);
        side
    };
    let body = json!({"sides": [side(&a, "PCMU/8000"), with_keys(&b)]});
    let made = made(&relay.post("/v1/calls", &body));
    let told = made["sides"][1]["sdp"].as_str().expect("an SDP");
    let events = told
        .lines()
        .find_map(|line| line.strip_suffix(" telephone-event/8000"));
    let events = events
        .and_then(|line| line.strip_prefix("a=rtpmap:"))
        .and_then(|text| text.parse::<u8>().ok());
    let events = events.expect("a number");
    let (mut a, b) = (
        Party::new(a, &made["sides"][0]),
        Party::new(b, &made["sides"][1]),
    );
    hear(&mut a, &b, LOUD, |one| one.payload == [LOUD; 160]);
    let press = json!({"tag": made["sides"][0]["tag"], "digits": "5#d", "duration_ms": 100});
    done(&act(&relay, &made, "dtmf", &press));
    for key in [5, 11, 15] {
        hear(&mut a, &b, LOUD, |one| {
            one.payload_type == events && one.payload[0] == key
        });
    }
    let tag = &made["sides"][0]["tag"];
    for (body, field) in [
        (json!({"tag": "", "digits": "5"}), "tag"),
        (json!({"tag": tag, "digits": ""}), "digits"),
        (json!({"tag": tag, "digits": "5x"}), "digits"),
        (json!({"tag": tag, "digits": "5".repeat(33)}), "digits"),
        (
            json!({"tag": tag, "digits": "5", "duration_ms": 99}),
            "duration_ms",
        ),
    ] {
        let problem = act(&relay, &made, "dtmf", &body).problem(400);
        assert_eq!(problem["field"], field, "{problem}");
    }
    let problem = act(&relay, &made, "dtmf", &json!({"tag": "x", "digits": "1"})).problem(422);
    assert_eq!(problem["field"], "tag", "{problem}");
}

/// Writes half a second of a square wave.
fn write_wave(path: &Path) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).expect("created");
    for n in 0..4000 {
        let sample = if n / 8 % 2 == 0 { 8000_i16 } else { -8000 };
        writer.write_sample(sample).expect("written");
    }
    writer.finalize().expect("finished");
}

#[test]
fn files_are_played_and_calls_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let wave = folder.path().join("wave.wav");
    write_wave(&wave);
    let recordings = folder.path().join("recordings");
    std::fs::create_dir(&recordings).expect("created");
    let relay = Relay::start(&["--recording-dir", recordings.to_str().expect("UTF-8")]);
    let (made, [mut a, mut b]) = call(&relay, ["PCMU/8000", "PCMU/8000"]);
    let silent = 0xff;
    let is_silent = |one: &Received| one.payload.iter().all(|code| *code == silent);
    hear(&mut a, &b, silent, is_silent);
    hear(&mut b, &a, silent, is_silent);
    done(&act(
        &relay,
        &made,
        "record",
        &json!({"file": "one.wav", "metadata": "test"}),
    ));
    let is_wave = |one: &Received| {
        let samples = one
            .payload
            .iter()
            .map(|code| g711::ULAW_TO_LINEAR[usize::from(*code)]);
        samples
            .filter(|sample| sample.unsigned_abs() > 7000)
            .count()
            > 100
    };
    // Both parties hear the file until it is stopped.
    done(&act(
        &relay,
        &made,
        "play",
        &json!({"file": wave, "times": 1000}),
    ));
    hear(&mut a, &b, silent, is_wave);
    hear(&mut b, &a, silent, is_wave);
    done(&act(&relay, &made, "play/stop", &json!({})));
    hear(&mut a, &b, silent, is_silent);
    done(&act(&relay, &made, "record/pause", &json!({})));
    done(&act(&relay, &made, "record", &json!({})));
    done(&act(&relay, &made, "record/stop", &json!({})));
    let file = recordings.join("one.wav");
    wait_until(|| hound::WavReader::open(&file).is_ok_and(|reader| reader.duration() > 0));
    for (action, body, field) in [
        ("play", json!({"file": "/nowhere.wav"}), None),
        ("play", json!({"file": wave, "times": 0}), Some("times")),
        ("play", json!({"tag": "x", "file": wave}), Some("tag")),
        ("record", json!({"file": "../one.wav"}), None),
    ] {
        let problem = act(&relay, &made, action, &body).problem(422);
        assert_eq!(problem["field"].as_str(), field, "{problem}");
    }
}

#[test]
fn new_descriptions_of_the_parties_apply_to_a_running_call() {
    let relay = Relay::start(&[]);
    let (made, [mut a, b]) = call(&relay, ["PCMU/8000", "PCMU/8000"]);
    hear(&mut a, &b, LOUD, |one| one.payload == [LOUD; 160]);
    let path = made["path"].as_str().expect("a path");
    let patch = |body: &Value| relay.request("PATCH", path, "", body.to_string().as_bytes());
    // A refused change has no effect.
    let odd = json!({"sides": [side(&a.socket, "iLBC/8000"), side(&b.socket, "PCMU/8000")]});
    patch(&odd).problem(422);
    hear(&mut a, &b, LOUD, |one| one.payload == [LOUD; 160]);
    // B moves, with another codec.
    let elsewhere = socket();
    let body = json!({"sides": [side(&a.socket, "PCMU/8000"), side(&elsewhere, "PCMA/8000")]});
    let answer = patch(&body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let changed = answer.json();
    for place in [0, 1] {
        let ports = [&made, &changed].map(|one| &one["sides"][place]["local_address"]);
        assert_eq!(ports[0], ports[1], "ports stay");
    }
    let b = Party::new(elsewhere, &changed["sides"][1]);
    assert_eq!(b.payload_type, 8);
    hear(&mut a, &b, LOUD, |one| one.payload == [as_alaw(LOUD); 160]);
    let detail = relay.get_json(path);
    assert_eq!(
        detail["streams"].as_array().map(Vec::len),
        Some(1),
        "{detail}"
    );
    relay
        .request("PATCH", "/v1/calls/none", "", body.to_string().as_bytes())
        .problem(404);
    // A ringing call has only one party, so it cannot be changed.
    let mut relay = relay;
    let party = socket();
    assert_eq!(relay.offer("rings", &party)["result"], "ok");
    relay
        .request("PATCH", "/v1/calls/rings", "", body.to_string().as_bytes())
        .problem(409);
}

/// A reader of events (WHATWG HTML, section 9.2), one by one.
struct Events {
    lines: std::io::Lines<std::io::BufReader<std::net::TcpStream>>,
}

impl Events {
    fn listen(relay: &Relay) -> Events {
        use std::io::{BufRead, BufReader, Write};
        let mut stream = std::net::TcpStream::connect(relay.http).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("valid");
        let head = format!("GET /v1/events HTTP/1.1\r\nHost: {}\r\n\r\n", relay.http);
        stream.write_all(head.as_bytes()).expect("sent");
        let mut events = Events {
            lines: BufReader::new(stream).lines(),
        };
        let status = events.line();
        assert!(status.starts_with("HTTP/1.1 200 "), "{status}");
        while !events.line().is_empty() {}
        events
    }

    fn line(&mut self) -> String {
        let line = self.lines.next().expect("more");
        line.expect("a line in time").trim_end().to_owned()
    }

    /// Returns the name and data of the next event.
    fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        let begin = Instant::now();
        loop {
            // The relay sends something every 15 s.
            assert!(begin.elapsed() < LIMIT, "no event");
            let line = self.line();
            if let Some(text) = line.strip_prefix("event: ") {
                name = text.to_owned();
            } else if let Some(text) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(text).expect("JSON"));
            }
        }
    }

    /// Waits for the next event of this name, and returns its data.
    fn wait_for(&mut self, name: &str) -> Value {
        loop {
            let (found, data) = self.next();
            if found == name {
                return data;
            }
        }
    }
}

#[test]
fn event_listener_receives_call_events() {
    let relay = Relay::start(&[]);
    let mut events = Events::listen(&relay);
    let mut other = Events::listen(&relay);
    let [a, b] = parties();
    let mut from = side(&a, "PCMU/8000");
    from["telephone_events"] = json!(true);
    let body = json!({"id": "one", "sides": [from, side(&b, "PCMU/8000")]});
    let made = made(&relay.post("/v1/calls", &body));
    let up = events.wait_for("up");
    assert_eq!((&up["id"], &up["path"]), (&json!("one"), &made["path"]));
    let (mut a, b) = (
        Party::new(a, &made["sides"][0]),
        Party::new(b, &made["sides"][1]),
    );
    hear(&mut a, &b, LOUD, |one| one.payload == [LOUD; 160]);
    let media = events.wait_for("media");
    let own = a.socket.local_addr().expect("bound");
    assert_eq!(media["remote_address"], own.to_string(), "{media}");
    assert_eq!(media["tag"], made["sides"][0]["tag"], "{media}");
    assert_eq!(media["ssrc"], 0x1234, "{media}");
    // The packet ends event 11 after 50 ms (RFC 4733, section 2.3).
    let begun = u32::from(a.number) * 160;
    for end in [0x0a, 0x8a, 0x8a, 0x8a] {
        let packet = rtp_types::RtpPacketBuilder::<&[u8], &[u8]>::new()
            .payload_type(101)
            .sequence_number(a.number)
            .timestamp(begun)
            .ssrc(0x1234)
            .payload(&[11, end, 0x01, 0x90][..])
            .write_vec();
        let packet = packet.expect("a valid packet");
        a.number += 1;
        a.socket.send_to(&packet, a.to).expect("sent");
    }
    let key = events.wait_for("dtmf");
    assert_eq!(
        (&key["key"], &key["tag"]),
        (&json!("#"), &made["sides"][0]["tag"])
    );
    let path = made["path"].as_str().expect("a path");
    assert_eq!(relay.request("DELETE", path, "", b"").status, 204);
    for listener in [&mut events, &mut other] {
        let down = listener.wait_for("down");
        assert_eq!(
            (&down["id"], &down["reason"]),
            (&json!("one"), &json!("operator"))
        );
        assert!(down["duration_ms"].is_u64(), "{down}");
    }
}

#[test]
fn silent_calls_are_reported_until_they_time_out() {
    let relay = Relay::start(&["--timeout", "12"]);
    let mut events = Events::listen(&relay);
    let (_, [mut a, b]) = call(&relay, ["PCMU/8000", "PCMU/8000"]);
    hear(&mut a, &b, LOUD, |one| one.payload == [LOUD; 160]);
    let names: Vec<String> = std::iter::from_fn(|| {
        let (name, _) = events.next();
        (name != "down").then_some(name)
    })
    // The tests of alarms check their events.
    .filter(|name| !name.starts_with("alarm"))
    .collect();
    assert_eq!(names, ["up", "media", "lost", "timeout"]);
}

#[test]
fn readers_of_events_are_bounded_and_end_with_the_relay() {
    let relay = Relay::start(&[]);
    let mut all: Vec<Events> = (0..32).map(|_| Events::listen(&relay)).collect();
    relay.get("/v1/events").problem(503);
    assert_eq!(relay.get("/healthz").status, 200);
    assert_eq!(relay.post("/v1/drain", &json!({"exit": true})).status, 200);
    for one in &mut all {
        // Read up to the last chunk (RFC 9112, section 7.1) and the end.
        while one.lines.next().is_some_and(|line| line.is_ok()) {}
    }
}

/// SRTP keys are in the SDPs (RFC 4568), which only the parties may get.
#[test]
fn srtp_keys_are_not_disclosed() {
    let relay = Relay::start(&[]);
    let [a, b] = parties();
    // The key has 30 bytes: 16 bytes of key and 14 bytes of salt.
    let key = "WVNfX19zZW1jdGwgKCkgewkyMjA7fQp9CnVubGVz";
    let crypto = format!("RTP/SAVP 0\r\na=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{key}");
    let offer = sdp(&a).replace("RTP/AVP 0", &crypto);
    let options = json!({"transport-protocol": "RTP/AVP"});
    let call = made(&relay.post(
        "/v1/calls",
        &json!({"offer": offer, "answer": sdp(&b), "options": options}),
    ));
    let told = call["sides"][0]["sdp"].as_str().expect("an SDP");
    let own = told.split("inline:").nth(1).expect("a key of the relay's");
    let own = own.split(['|', '\r']).next().expect("a key");
    let path = call["path"].as_str().expect("a path");
    let detail = relay.get(path);
    let suite = &detail.json()["streams"][0]["sides"][0]["crypto_suite"];
    assert_eq!(suite, "AES_CM_128_HMAC_SHA1_80");
    for place in [path, "/v1/calls", "/metrics", "/v1/contexts"] {
        let answer = relay.get(place);
        let text = answer.text();
        for secret in [key, own, "inline"] {
            assert!(!text.contains(secret), "{place}: {text}");
        }
    }
}
