//! Third parties that hear copies of a call's media: `subscribe request`, `subscribe answer`, `unsubscribe`, `publish`, as a recording server and a
//! supervisor meet them.

mod common;

use common::phones::{Party, Relay, hear_each_other, port_of, talk};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const PCMU: &str = "m=audio PORT RTP/AVP 0";
const A_HZ: f64 = 437.0;
const B_HZ: f64 = 1013.0;

/// A call of PCMU on both sides.
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

/// Somebody who listens only. The reply to the request of its subscription.
fn subscribe(relay: &mut Relay, tag: &str, more: Value, lines: &str, ear: &Party) -> Value {
    let mut request = json!({"command": "subscribe request", "call-id": "1", "to-tag": tag});
    let more = more.as_object().expect("keys").clone();
    request.as_object_mut().expect("keys").extend(more);
    let reply = ok(relay, request);
    let sdp = ear.sdp(lines);
    ok(
        relay,
        json!({"command": "subscribe answer", "call-id": "1", "to-tag": tag, "sdp": sdp}),
    );
    reply
}

/// Two talk; an ear has heard a second of this tone, and nothing of that.
fn overhears(a: &mut Party, b: &mut Party, ear: &mut Party, hz: f64, not_hz: f64) {
    ear.heard.clear();
    talk(a, b, |_, _| {
        ear.listen();
        ear.heard.len() > 12_000
    });
    let (wanted, other) = (ear.level(hz), ear.level(not_hz));
    assert!(
        (wanted - 1.0).abs() < 0.03 && other < 0.03,
        "{wanted} and {other}"
    );
}

/// No gap: RFC 3550, section 5.1, numbers count packets.
fn is_gapless(ear: &Party) -> bool {
    let pairs = ear.seen.windows(2);
    pairs.clone().all(|pair| {
        pair[1].number == pair[0].number.wrapping_add(1) && pair[1].ssrc == pair[0].ssrc
    })
}

#[test]
fn a_recording_server_hears_one_side_in_its_own_codec() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let mut ear = Party::new(8, 2003.0);
    let flags = json!({"from-tag": "a", "flags": ["codec-transcode-PCMA"]});
    let reply = subscribe(
        &mut relay,
        "rec",
        flags,
        "m=audio PORT RTP/AVP 8\r\na=recvonly",
        &ear,
    );
    assert_eq!(reply["from-tag"], "a");
    overhears(&mut a, &mut b, &mut ear, A_HZ, B_HZ);
    assert!(is_gapless(&ear));
    // Who listens does not speak: what it sends is heard by nobody.
    let offered = reply["sdp"].as_str().expect("an SDP").to_owned();
    ear.to = Some(([127, 0, 0, 1], port_of(&offered)).into());
    for _ in 0..50 {
        ear.say();
    }
    hear_each_other(&mut a, &mut b);
    for party in [&a, &b] {
        assert!(party.level(ear.hz) < 0.03);
        assert!(is_gapless(party));
    }
    ok(
        &mut relay,
        json!({"command": "unsubscribe", "call-id": "1", "to-tag": "rec"}),
    );
    common::wait_until(|| ear.has_bye());
    ear.listen();
    ear.heard.clear();
    hear_each_other(&mut a, &mut b);
    ear.listen();
    assert_eq!(ear.heard.len(), 0);
}

/// Each side on an m= line of its own; a second listener costs the first one nothing.
#[test]
fn several_listen_to_both_sides() {
    let mut relay = Relay::start(&[]);
    let (mut a, mut b) = call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let mut ears = [Party::new(0, 2003.0), Party::new(0, 2003.0)];
    let line = |ear: &Party| {
        let port = ear.socket.local_addr().expect("bound").port();
        format!("m=audio {port} RTP/AVP 0\r\na=recvonly")
    };
    let lines = ears.each_ref().map(line).join("\r\n");
    let reply = subscribe(
        &mut relay,
        "rec",
        json!({"flags": ["all"]}),
        &lines,
        &ears[0],
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
    overhears(&mut a, &mut b, &mut ears[0], A_HZ, B_HZ);
    overhears(&mut a, &mut b, &mut ears[1], B_HZ, A_HZ);
    overhears(&mut a, &mut b, &mut other, B_HZ, A_HZ);
    ok(
        &mut relay,
        json!({"command": "unsubscribe", "call-id": "1", "to-tag": "boss"}),
    );
    overhears(&mut a, &mut b, &mut ears[1], B_HZ, A_HZ);
    // Over with the call.
    ok(
        &mut relay,
        json!({"command": "delete", "call-id": "1", "from-tag": "a", "to-tag": "b"}),
    );
    common::wait_until(|| ears[0].has_bye());
    let list = ok(&mut relay, json!({"command": "list"}));
    assert_eq!(list["calls"], json!([]));
}

#[test]
fn a_copy_goes_on_in_another_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("calls.redb");
    let mut relay = Relay::start(&["--state", path.to_str().expect("a text")]);
    let (mut a, mut b) = call(&mut relay);
    hear_each_other(&mut a, &mut b);
    let mut ear = Party::new(0, 2003.0);
    subscribe(
        &mut relay,
        "rec",
        json!({"from-tag": "a"}),
        "m=audio PORT RTP/AVP 0\r\na=recvonly",
        &ear,
    );
    overhears(&mut a, &mut b, &mut ear, A_HZ, B_HZ);
    let ssrc = ear.seen.last().expect("packets").ssrc;
    relay.restart(Signal::SIGKILL);
    ear.listen();
    ear.seen.clear();
    overhears(&mut a, &mut b, &mut ear, A_HZ, B_HZ);
    assert!(ear.seen.iter().all(|seen| seen.ssrc == ssrc));
}

#[test]
fn what_is_published_is_heard_by_who_subscribes() {
    let mut relay = Relay::start(&[]);
    let (mut studio, mut nobody) = (Party::new(8, A_HZ), Party::new(0, B_HZ));
    let sdp = studio.sdp("m=audio PORT RTP/AVP 8 0\r\na=sendonly");
    let published = json!({"command": "publish", "call-id": "1", "from-tag": "studio", "sdp": sdp});
    let reply = ok(&mut relay, published);
    studio.call(reply["sdp"].as_str().expect("an SDP"));
    let mut ears = [Party::new(0, 2003.0), Party::new(8, 2003.0)];
    let plain = json!({"from-tag": "studio"});
    subscribe(
        &mut relay,
        "x",
        plain.clone(),
        "m=audio PORT RTP/AVP 8\r\na=recvonly",
        &ears[1],
    );
    let to_pcmu = json!({"from-tag": "studio", "flags": ["codec-transcode-PCMU"]});
    subscribe(
        &mut relay,
        "y",
        to_pcmu,
        "m=audio PORT RTP/AVP 0\r\na=recvonly",
        &ears[0],
    );
    for ear in &mut ears {
        overhears(&mut studio, &mut nobody, ear, A_HZ, B_HZ);
    }
    studio.listen();
    assert_eq!(studio.heard.len(), 0, "nothing goes back");
}
