//! Fallbacks of calls, observed at the party that hears them.

use crate::common::fallback::{
    A_HZ, B_HZ, EventReader, FALLBACK_HZ, PLAYED_HZ, Phone, call, run, start, start_again,
};
use crate::common::http::Relay;
use serde_json::{Value, json};

const TONE_HZ: f64 = 2000.0;
const ALL_HZ: [f64; 5] = [A_HZ, B_HZ, FALLBACK_HZ, PLAYED_HZ, TONE_HZ];
const EVENTS: [&str; 2] = ["fallback", "fallback-ended"];

/// Passes an offer of A and the answer of B through the relay, with these keys in the offer and lines in A's description.
fn signal(relay: &mut Relay, phones: &mut [Phone], more: &Value, line: &str) -> Value {
    let sdp = |phone: &Phone, line: &str| {
        let port = phone.socket.local_addr().expect("bound").port();
        format!(
            "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n{line}"
        )
    };
    let mut offer =
        json!({"command": "offer", "call-id": "1", "from-tag": "a", "sdp": sdp(&phones[0], line)});
    let keys = offer.as_object_mut().expect("keys");
    keys.extend(more.as_object().expect("keys").clone());
    let to_b = relay.ask(&offer);
    if to_b["result"] != "ok" {
        return to_b;
    }
    let answer = json!({"command": "answer", "call-id": "1", "from-tag": "a", "to-tag": "b", "sdp": sdp(&phones[1], "")});
    let to_a = relay.ask(&answer);
    for (phone, reply) in phones.iter_mut().zip([&to_a, &to_b]) {
        let sdp = reply["sdp"].as_str().expect("an SDP");
        phone.to = Some(crate::common::http::port_of(sdp));
    }
    to_a
}

fn text(data: &Value, key: &str) -> String {
    data[key].as_str().expect("a text").to_owned()
}

/// Returns the events so far, each with the path of the call and the tag of the silent party.
fn changes(events: &EventReader) -> Vec<(String, (String, String))> {
    let told = events.take(&EVENTS).into_iter();
    told.map(|(name, data)| (name, (text(&data, "path"), text(&data, "tag"))))
        .collect()
}

/// Lets the parties talk until there is an event of this name for each of these silent parties.
fn run_until(phones: &mut [Phone], events: &EventReader, name: &str, silent: &[(String, String)]) {
    let mut missing: Vec<_> = silent.iter().collect();
    run(phones, |_| {
        for (seen, party) in changes(events) {
            if seen == name {
                missing.retain(|one| **one != party);
            }
        }
        missing.is_empty()
    });
}

/// Lets the parties talk until the parties at these places have heard this much more.
fn run_for(phones: &mut [Phone], hearers: &[usize], ms: usize) {
    phones.iter_mut().for_each(|phone| phone.heard.clear());
    run(phones, |phones| {
        hearers.iter().all(|at| phones[*at].heard_ms() >= ms)
    });
}

#[test]
fn silent_party_is_replaced_by_the_file_until_it_returns() {
    let folder = tempfile::tempdir().expect("a directory");
    let relay = start(
        folder.path(),
        "fallback = { file = \"DIR/fallback.wav\", timeout = 1500 }\n",
    );
    let events = EventReader::start(relay.http);
    let codecs = [
        ["PCMU/8000", "PCMU/8000"],
        ["PCMU/8000", "PCMA/8000"],
        ["PCMA/8000", "PCMA/8000"],
        ["G722/8000", "G722/8000"],
        ["opus/48000/2", "opus/48000/2"],
        ["opus/48000/2", "PCMU/8000"],
        ["PCMU/8000", "G722/8000"],
        ["PCMU/8000", "opus/48000/2"],
    ];
    let (made, phones): (Vec<Value>, Vec<_>) =
        codecs.iter().map(|codecs| call(&relay, *codecs)).unzip();
    let silent: Vec<(String, String)> = made
        .iter()
        .map(|made| {
            let tag = made["sides"][0]["tag"].as_str().expect("a tag");
            (text(made, "path"), tag.to_owned())
        })
        .collect();
    let mut phones: Vec<Phone> = phones.into_iter().flatten().collect();
    let every: Vec<usize> = (0..phones.len()).collect();
    let (first, second): (Vec<usize>, Vec<usize>) = every.iter().partition(|at| *at % 2 == 0);
    let name = |at: usize| format!("{:?}, party {at}", codecs[at / 2]);
    let hear = |phones: &[Phone], hearers: &[usize], hz: f64| {
        for at in hearers {
            phones[*at].assert_hears(hz, &ALL_HZ, &name(*at));
        }
    };
    run_for(&mut phones, &every, 1300);
    hear(&phones, &second, A_HZ);
    hear(&phones, &first, B_HZ);
    // Each first party falls silent. The other one hears the file.
    first.iter().for_each(|at| phones[*at].talks = false);
    run_until(&mut phones, &events, "fallback", &silent);
    let begun: Vec<usize> = phones.iter().map(|phone| phone.seen.len()).collect();
    run_for(&mut phones, &every, 1600);
    hear(&phones, &second, FALLBACK_HZ);
    hear(&phones, &first, B_HZ);
    for at in &second {
        phones[*at].assert_gapless_since(begun[*at], &name(*at));
    }
    let side = |path: &str, at: usize| {
        let detail = relay.get_json(path);
        detail["streams"][0]["sides"][at]["media"]["fallback"].clone()
    };
    for (path, _) in &silent {
        assert_eq!((side(path, 0), side(path, 1)), (json!(true), json!(false)));
    }
    // It returns, and is heard again.
    first.iter().for_each(|at| phones[*at].talks = true);
    run_until(&mut phones, &events, "fallback-ended", &silent);
    run_for(&mut phones, &every, 1300);
    hear(&phones, &second, A_HZ);
    hear(&phones, &first, B_HZ);
    for at in every {
        phones[at].assert_one_stream(&name(at));
    }
}

#[test]
fn fallback_of_one_call_respects_hold_and_plays() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut relay = start(folder.path(), "fallback = { tone = 2000, timeout = 800 }\n");
    let events = EventReader::start(relay.http);
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut phones = [Phone::new("PCMU/8000", A_HZ), Phone::new("PCMU/8000", B_HZ)];
    let refused = signal(&mut relay, &mut phones, &json!({"fallback": ""}), "");
    assert_eq!(refused["result"], "error", "{refused}");
    let reason = refused["error-reason"].as_str().expect("a reason");
    assert!(
        reason.contains("fallback") && reason.contains("off, default"),
        "{reason}"
    );
    let keys = json!({"fallback": file("fallback.wav")});
    signal(&mut relay, &mut phones, &keys, "");
    let silent = |tag: &str| [("/v1/calls/1".to_owned(), tag.to_owned())];
    let (a, b) = (silent("a"), silent("b"));
    run_for(&mut phones, &[0, 1], 500);
    // The call is on hold, and A sends nothing. B hears nothing for longer than the time-out.
    phones[0].talks = false;
    for line in ["a=recvonly\r\n", "a=inactive\r\n"] {
        signal(&mut relay, &mut phones, &json!({}), line);
        phones[1].seen.clear();
        let mut turns = 0;
        run(&mut phones, |_| {
            turns += 1;
            turns > 100
        });
        assert_eq!(changes(&events), [], "{line}");
        // Only packets that were on their way have arrived.
        assert!(phones[1].seen.len() < 10, "{line}");
    }
    // The hold has ended, but A still sends nothing.
    signal(&mut relay, &mut phones, &json!({}), "");
    run_until(&mut phones, &events, "fallback", &a);
    run_for(&mut phones, &[1], 1300);
    phones[1].assert_hears(FALLBACK_HZ, &ALL_HZ, "after hold");
    // A file that the proxy plays is heard to its end, and the fallback after it.
    let play = json!({"command": "play media", "call-id": "1", "from-tag": "b", "file": file("played.wav"), "repeat-times": 2});
    let played = relay.ask(&play);
    assert_eq!(played["result"], "ok", "{played}");
    run_until(&mut phones, &events, "fallback-ended", &a);
    run_for(&mut phones, &[1], 1300);
    phones[1].assert_hears(PLAYED_HZ, &ALL_HZ, "played");
    run_until(&mut phones, &events, "fallback", &a);
    run_for(&mut phones, &[1], 1300);
    phones[1].assert_hears(FALLBACK_HZ, &ALL_HZ, "after the file");
    // The other party falls silent as well, and A hears the same file.
    phones[1].talks = false;
    run_until(&mut phones, &events, "fallback", &b);
    run_for(&mut phones, &[0], 1300);
    phones[0].assert_hears(FALLBACK_HZ, &ALL_HZ, "A");
    // The fallback ends for both when it is switched off.
    signal(&mut relay, &mut phones, &json!({"fallback": "off"}), "");
    let mut ended = 0;
    run(&mut phones, |_| {
        ended += changes(&events).len();
        ended == 2
    });
    phones
        .iter()
        .for_each(|phone| phone.assert_one_stream("all"));
}

/// After a restart, the calls have their files again.
#[test]
fn fallback_of_a_call_continues_after_a_restart() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut relay = start(
        folder.path(),
        "state = \"DIR/calls.redb\"\nfallback = { file = \"DIR/fallback.wav\", timeout = 800 }\n",
    );
    let mut phones = [Phone::new("PCMU/8000", A_HZ), Phone::new("PCMU/8000", B_HZ)];
    let played = folder.path().join("played.wav").display().to_string();
    signal(&mut relay, &mut phones, &json!({"fallback": played}), "");
    let (_, others) = call(&relay, ["PCMA/8000", "PCMA/8000"]);
    let mut phones: Vec<Phone> = phones.into_iter().chain(others).collect();
    run_for(&mut phones, &[0, 1, 2, 3], 500);
    for at in [0, 2] {
        phones[at].talks = false;
    }
    let hear = |phones: &mut [Phone]| {
        // Both files are heard, whatever else was heard before.
        run_for(phones, &[], 0);
        run(phones, |phones| {
            let level =
                |at: usize, hz: f64| phones[at].heard_ms() > 1000 && phones[at].level(hz) > 0.94;
            level(1, PLAYED_HZ) && level(3, FALLBACK_HZ)
        });
    };
    hear(&mut phones);
    relay.running.signal(nix::sys::signal::Signal::SIGTERM);
    relay.running.child.wait().expect("it ends");
    let _relay = start_again(folder.path());
    hear(&mut phones);
    phones.iter().for_each(|phone| {
        let sources: std::collections::BTreeSet<_> =
            phone.seen.iter().map(|one| one.ssrc).collect();
        assert!(sources.len() <= 1, "{sources:?}");
    });
}
