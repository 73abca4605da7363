//! Listening to calls by `GET /v1/calls/{id}/listen`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::LIMIT;
use crate::common::http::{Relay, parties, sdp};
use crate::common::listener::Listener;
use crate::common::plain::{Party, act, call, done, made, side};
use serde_json::{Value, json};
use threadbare_rtp::g711;

/// Both parties, each sending one code at the pace of a call. They stop when this is dropped.
struct Talk {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Talk {
    fn start(parties: [Party; 2], codes: [u8; 2]) -> Talk {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut parties = parties;
            while !seen.load(Relaxed) {
                for (party, code) in parties.iter_mut().zip(codes) {
                    party.say(code);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Talk {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()));
    }
}

fn listen(relay: &Relay, made: &Value, query: &str) -> Listener {
    let path = made["path"].as_str().expect("a path");
    Listener::open(relay.http, &format!("{path}/listen{query}"))
}

/// Reads until each channel has a tenth of a second of the wanted audio.
fn hear(listener: &mut Listener, what: &str, is_wanted: impl Fn([&[i16]; 2]) -> bool) {
    let frames = listener.rate_hz as usize / 10;
    let begin = std::time::Instant::now();
    while begin.elapsed() < LIMIT {
        let samples = listener.samples(2 * frames).expect("it goes on");
        let channel = |place: usize| samples.iter().skip(place).step_by(2).copied();
        let [left, right] = [0, 1].map(|place| channel(place).collect::<Vec<i16>>());
        if is_wanted([&left, &right]) {
            return;
        }
    }
    panic!("not heard: {what}");
}

fn is_all(samples: &[i16], value: i16) -> bool {
    samples.iter().all(|sample| *sample == value)
}

/// Decodes a code of µ-law by ITU-T G.711, table 2.
fn of_ulaw(code: u8) -> i16 {
    g711::ULAW_TO_LINEAR[usize::from(code)]
}

fn of_alaw(code: u8) -> i16 {
    g711::ALAW_TO_LINEAR[usize::from(code)]
}

const CODES: [u8; 2] = [0x12, 0x34];

#[test]
fn each_party_is_on_its_channel_until_the_call_ends() {
    let relay = Relay::start(&[]);
    let (made, parties) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
    // Two listeners may start even before there is any audio.
    let mut listeners = [
        listen(&relay, &made, ""),
        listen(&relay, &made, "?stream=0"),
    ];
    for listener in &mut listeners {
        assert_eq!((listener.rate_hz, listener.channels), (8000, 2));
        hear(listener, "silence", |[left, right]| {
            is_all(left, 0) && is_all(right, 0)
        });
    }
    let talk = Talk::start(parties, CODES);
    let due = [of_ulaw(CODES[0]), of_alaw(CODES[1])];
    for listener in &mut listeners {
        hear(listener, "both parties", |[left, right]| {
            is_all(left, due[0]) && is_all(right, due[1])
        });
    }
    // The listener hears what the other party hears, so a muted party is silent.
    let tag = &made["sides"][0]["tag"];
    done(&act(&relay, &made, "mute", &json!({"tag": tag})));
    hear(&mut listeners[0], "A is muted", |[left, right]| {
        is_all(left, 0) && is_all(right, due[1])
    });
    done(&act(&relay, &made, "unmute", &json!({"tag": tag})));
    done(&act(&relay, &made, "hold", &json!({})));
    hear(&mut listeners[0], "both on hold", |[left, right]| {
        is_all(left, 0) && is_all(right, 0)
    });
    done(&act(&relay, &made, "resume", &json!({})));
    hear(&mut listeners[0], "both again", |[left, right]| {
        is_all(left, due[0]) && is_all(right, due[1])
    });
    drop(talk);
    let path = made["path"].as_str().expect("a path");
    assert_eq!(relay.request("DELETE", path, "", b"").status, 204);
    for mut listener in listeners {
        // The audio ends after what was on its way.
        assert!((0..30 * 80).any(|_| listener.samples(2 * 100).is_none()));
    }
}

/// A call's recording is independent of its listeners, and continues when they leave.
#[test]
fn recorded_call_can_be_listened_to() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display().to_string();
    let mut relay = Relay::start(&["--recording-dir", &folder]);
    let (made, parties) = call(&relay, ["PCMU/8000", "PCMA/8000"]);
    let talk = Talk::start(parties, CODES);
    done(&act(
        &relay,
        &made,
        "record",
        &json!({"file": "beside.wav"}),
    ));
    let due = [of_ulaw(CODES[0]), of_alaw(CODES[1])];
    let is_both = |[left, right]: [&[i16]; 2]| is_all(left, due[0]) && is_all(right, due[1]);
    for _ in 0..2 {
        let mut listener = listen(&relay, &made, "");
        hear(&mut listener, "both parties", is_both);
    }
    done(&act(&relay, &made, "record/stop", &json!({})));
    relay.running.wait_for("the recording has ended");
    drop(talk);
    let path = directory.path().join("beside.wav");
    let mut file = hound::WavReader::open(path).expect("a WAV file");
    let samples: Vec<i16> = file.samples().map(|one| one.expect("a sample")).collect();
    for (place, due) in due.into_iter().enumerate() {
        let channel: Vec<i16> = samples.iter().skip(place).step_by(2).copied().collect();
        let begin = channel
            .iter()
            .position(|sample| *sample != 0)
            .expect("it is heard");
        let end = channel
            .iter()
            .rposition(|sample| *sample != 0)
            .expect("it is heard");
        // The listeners did not disturb the recording's decoder, and no audio is repeated.
        assert!(is_all(&channel[begin..=end], due), "{place}");
    }
}

/// Another test, in `http/listen/call.rs`, checks what a slow listener misses.
#[test]
fn a_slow_listener_delays_neither_the_call_nor_other_listeners() {
    let relay = Relay::start(&[]);
    let (made, parties) = call(&relay, ["PCMU/8000", "PCMU/8000"]);
    let _talk = Talk::start(parties, CODES);
    let _deaf = listen(&relay, &made, "");
    let mut listener = listen(&relay, &made, "");
    let due = CODES.map(of_ulaw);
    for _ in 0..10 {
        hear(&mut listener, "both", |[left, right]| {
            is_all(left, due[0]) && is_all(right, due[1])
        });
    }
}

#[test]
fn the_log_of_a_call_has_only_the_lines_about_it() {
    let mut relay = Relay::start(&[]);
    let calls = [0, 1].map(|_| call(&relay, ["PCMU/8000", "PCMU/8000"]).0);
    let path = calls[0]["path"].as_str().expect("a path");
    let log = || relay.get_json(&format!("{path}/log"));
    assert_eq!(log(), json!({"id": calls[0]["id"], "lines": []}));
    assert_eq!(relay.request("DELETE", path, "", b"").status, 204);
    let lines = log()["lines"].as_array().expect("a list").clone();
    let [line] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!(line["level"], "info");
    let text = line["text"].as_str().expect("a text");
    assert!(text.starts_with("the call has ended reason="), "{text}");
    relay.running.wait_for("the call has ended");
}

#[test]
fn refused_listener_gets_the_reason() {
    let mut relay = Relay::start(&[]);
    let refused = |relay: &Relay, path: &str, status: u16| {
        let problem = relay.get(&format!("{path}/listen")).problem(status);
        problem["detail"].as_str().expect("a text").to_owned()
    };
    assert!(refused(&relay, "/v1/calls/nobody", 404).contains("does not exist"));
    let [a, b] = parties();
    // The call is still ringing.
    let offered = relay.offer("rings", &a);
    assert_eq!(offered["result"], "ok", "{offered}");
    let said = refused(&relay, "/v1/calls/rings", 409);
    assert!(said.contains("the call is not answered"), "{said}");
    // The gateway cannot decode the codec of either party.
    let sides = json!([side(&a, "iLBC/8000"), side(&b, "iLBC/8000")]);
    let ilbc = made(&relay.post("/v1/calls", &json!({"sides": sides})));
    let path = ilbc["path"].as_str().expect("a path");
    let said = refused(&relay, path, 409);
    assert!(
        said.contains("without decoding it") && said.contains("iLBC/8000"),
        "{said}"
    );
    // In a call with audio and video, the audio is found in any order.
    let with_video = |party| {
        let audio = sdp(party);
        let (head, line) = audio.split_once("m=audio").expect("audio");
        format!("{head}m=video 9 RTP/AVP 96\r\na=rtpmap:96 VP8/90000\r\nm=audio{line}")
    };
    let body = json!({"offer": with_video(&a), "answer": with_video(&b)});
    let both = made(&relay.post("/v1/calls", &body));
    let path = both["path"].as_str().expect("a path");
    assert_eq!(listen(&relay, &both, "").rate_hz, 8000);
    assert_eq!(listen(&relay, &both, "?stream=1").rate_hz, 8000);
    let problem = relay.get(&format!("{path}/listen?stream=0")).problem(409);
    let said = problem["detail"].as_str().expect("a text");
    assert!(said.contains("only forwarded"), "{said}");
    let problem = relay.get(&format!("{path}/listen?stream=2")).problem(404);
    assert_eq!(problem["field"], "stream", "{problem}");
    let problem = relay.get(&format!("{path}/listen?stream=x")).problem(400);
    assert_eq!(problem["field"], "stream", "{problem}");
}
