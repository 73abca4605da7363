//! Third parties that receive copies of a call's media, such as a recording server or a supervisor. They use the
//! commands `subscribe request`, `subscribe answer`, `unsubscribe` and `publish`.

use crate::common::phones::{Party, Relay, hear_each_other, port_of, talk};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const PCMU: &str = "m=audio PORT RTP/AVP 0";
const A_HZ: f64 = 437.0;
const B_HZ: f64 = 1013.0;

/// Sets up a call of PCMU on both sides.
fn call(relay: &mut Relay) -> (Party, Party) {
    let (mut a, mut b) = (Party::new(0, A_HZ), Party::new(0, B_HZ));
    let none = json!({});
    let to_b = relay.pass("offer", "1", &none, &a.sdp(PCMU));
    let to_a = relay.pass("answer", "1", &none, &b.sdp(PCMU));
    a.call(&to_a);
    b.call(&to_b);
    (a, b)
}

fn ok(relay: &mut Relay, request: Value) -> Value {
    let reply = relay.ask(request);
    assert_eq!(reply["result"], "ok", "{reply}");
    reply
}

/// Subscribes a party that only receives. Returns the reply to the request.
fn subscribe(relay: &mut Relay, tag: &str, more: Value, lines: &str, subscriber: &Party) -> Value {
    let mut request = json!({"command": "subscribe request", "call-id": "1", "to-tag": tag});
    let more = more.as_object().expect("keys").clone();
    request.as_object_mut().expect("keys").extend(more);
    let reply = ok(relay, request);
    let sdp = subscriber.sdp(lines);
    ok(
        relay,
        json!({"command": "subscribe answer", "call-id": "1", "to-tag": tag, "sdp": sdp}),
    );
    reply
}

/// Lets both parties send. Asserts that the subscriber receives a second of the tone `hz`, and nothing of the tone `not_hz`.
fn overhears(a: &mut Party, b: &mut Party, subscriber: &mut Party, hz: f64, not_hz: f64) {
    subscriber.heard.clear();
    talk(a, b, |_, _| {
        subscriber.listen();
        subscriber.heard.len() > 12_000
    });
    let (wanted, other) = (subscriber.level(hz), subscriber.level(not_hz));
    assert!(
        (wanted - 1.0).abs() < 0.03 && other < 0.03,
        "{wanted} and {other}"
    );
}

/// Whether the numbers have no gap. They count packets (RFC 3550, section 5.1).
fn is_gapless(subscriber: &Party) -> bool {
    let pairs = subscriber.seen.windows(2);
    pairs.clone().all(|pair| {
        pair[1].number == pair[0].number.wrapping_add(1) && pair[1].ssrc == pair[0].ssrc
    })
}

#[test]
fn a_recording_server_gets_one_side_in_the_servers_codec() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let mut subscriber = Party::new(8, 2003.0);
    let flags = json!({"from-tag": "a", "flags": ["codec-transcode-PCMA"]});
    let reply = subscribe(
        &mut relay,
        "rec",
        flags,
        "m=audio PORT RTP/AVP 8\r\na=recvonly",
        &subscriber,
    );
    assert_eq!(reply["from-tag"], "a");
    overhears(&mut a, &mut b, &mut subscriber, A_HZ, B_HZ);
    assert!(is_gapless(&subscriber));
    // What a subscriber sends reaches no party.
    let offered = reply["sdp"].as_str().expect("an SDP").to_owned();
    subscriber.to = Some(([127, 0, 0, 1], port_of(&offered)).into());
    for _ in 0..50 {
        subscriber.say();
    }
    hear_each_other(&mut a, &mut b);
    for party in [&a, &b] {
        assert!(party.level(subscriber.hz) < 0.03);
        assert!(is_gapless(party));
    }
    ok(
        &mut relay,
        json!({"command": "unsubscribe", "call-id": "1", "to-tag": "rec"}),
    );
    crate::common::wait_until(|| subscriber.has_bye());
    subscriber.listen();
    subscriber.heard.clear();
    hear_each_other(&mut a, &mut b);
    subscriber.listen();
    assert_eq!(subscriber.heard.len(), 0);
}

/// Each side has a separate m= line. A second subscriber does not disturb the first one.
#[test]
fn several_subscribers_get_both_sides() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let mut subscribers = [Party::new(0, 2003.0), Party::new(0, 2003.0)];
    let line = |subscriber: &Party| {
        let port = subscriber.socket.local_addr().expect("bound").port();
        format!("m=audio {port} RTP/AVP 0\r\na=recvonly")
    };
    let lines = subscribers.each_ref().map(line).join("\r\n");
    let reply = subscribe(
        &mut relay,
        "rec",
        json!({"flags": ["all"]}),
        &lines,
        &subscribers[0],
    );
    assert_eq!(reply["from-tags"], json!(["a", "b"]));
    let mut other = Party::new(0, 2003.0);
    subscribe(
        &mut relay,
        "boss",
        json!({"from-tag": "b"}),
        "m=audio PORT RTP/AVP 0",
        &other,
    );
    overhears(&mut a, &mut b, &mut subscribers[0], A_HZ, B_HZ);
    overhears(&mut a, &mut b, &mut subscribers[1], B_HZ, A_HZ);
    overhears(&mut a, &mut b, &mut other, B_HZ, A_HZ);
    ok(
        &mut relay,
        json!({"command": "unsubscribe", "call-id": "1", "to-tag": "boss"}),
    );
    overhears(&mut a, &mut b, &mut subscribers[1], B_HZ, A_HZ);
    // The subscription ends with the call.
    ok(
        &mut relay,
        json!({"command": "delete", "call-id": "1", "from-tag": "a", "to-tag": "b"}),
    );
    crate::common::wait_until(|| subscribers[0].has_bye());
    let list = ok(&mut relay, json!({"command": "list"}));
    assert_eq!(list["calls"], json!([]));
}

#[test]
fn copy_continues_in_the_next_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.redb");
    let mut relay = Relay::start(&["--state", path.to_str().expect("a text")]);
    let (mut a, mut b) = call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let mut subscriber = Party::new(0, 2003.0);
    subscribe(
        &mut relay,
        "rec",
        json!({"from-tag": "a"}),
        "m=audio PORT RTP/AVP 0\r\na=recvonly",
        &subscriber,
    );
    overhears(&mut a, &mut b, &mut subscriber, A_HZ, B_HZ);
    let ssrc = subscriber.seen.last().expect("packets").ssrc;
    relay.restart(Signal::SIGKILL);
    subscriber.listen();
    subscriber.seen.clear();
    overhears(&mut a, &mut b, &mut subscriber, A_HZ, B_HZ);
    assert!(subscriber.seen.iter().all(|seen| seen.ssrc == ssrc));
}

#[test]
fn subscriber_hears_published_media() {
    let mut relay = Relay::start(&[]);
    let (mut studio, mut nobody) = (Party::new(8, A_HZ), Party::new(0, B_HZ));
    let sdp = studio.sdp("m=audio PORT RTP/AVP 8 0\r\na=sendonly");
    let published = json!({"command": "publish", "call-id": "1", "from-tag": "studio", "sdp": sdp});
    let reply = ok(&mut relay, published);
    studio.call(reply["sdp"].as_str().expect("an SDP"));
    let mut subscribers = [Party::new(0, 2003.0), Party::new(8, 2003.0)];
    let plain = json!({"from-tag": "studio"});
    subscribe(
        &mut relay,
        "x",
        plain.clone(),
        "m=audio PORT RTP/AVP 8\r\na=recvonly",
        &subscribers[1],
    );
    let to_pcmu = json!({"from-tag": "studio", "flags": ["codec-transcode-PCMU"]});
    subscribe(
        &mut relay,
        "y",
        to_pcmu,
        "m=audio PORT RTP/AVP 0\r\na=recvonly",
        &subscribers[0],
    );
    for subscriber in &mut subscribers {
        overhears(&mut studio, &mut nobody, subscriber, A_HZ, B_HZ);
    }
    studio.listen();
    assert_eq!(studio.heard.len(), 0, "nothing goes back");
}
