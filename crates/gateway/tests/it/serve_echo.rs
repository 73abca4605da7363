//! `media-echo` of `threadbare serve`, observed at the parties by the frequency and level of the tones.

use crate::common::LIMIT;
use crate::common::phones::{Party, Relay, Seen, hear_each_other, talk};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use threadbare_rtp::srtp::{Crypto, MASTER_KEY_BYTES_MAX, MasterKey, Receiver, Sender, Suite};

const PCMU: &str = "m=audio PORT RTP/AVP 0";
const PCMA: &str = "m=audio PORT RTP/AVP 8";
const A_HZ: f64 = 437.0;
const B_HZ: f64 = 1013.0;
/// Number of samples that a party must receive: a second, and a start that is not checked.
const SAMPLES: usize = 9600;

/// Sets up a call with these SDP lines, and with these keys in the offer.
fn set_up(relay: &mut Relay, more: &Value, lines: [&str; 2], types: [u8; 2]) -> [Party; 2] {
    let mut a = Party::new(types[0], A_HZ);
    let mut b = Party::new(types[1], B_HZ);
    let to_b = relay.pass("offer", "1", more, &a.sdp(lines[0]));
    let to_a = relay.pass("answer", "1", &json!({}), &b.sdp(lines[1]));
    a.call(&to_a);
    b.call(&to_b);
    [a, b]
}

fn plain(relay: &mut Relay, more: &Value) -> [Party; 2] {
    set_up(relay, more, [PCMU; 2], [0, 0])
}

/// Asserts that the parties in `hearers` receive only their own tone for a second, and that the others receive nothing.
fn hear_themselves(parties: &mut [Party; 2], hearers: [bool; 2]) {
    let [a, b] = parties;
    a.heard.clear();
    b.heard.clear();
    talk(a, b, |a, b| {
        let enough = |party: &Party, hears: bool| !hears || party.heard.len() > SAMPLES;
        enough(a, hearers[0]) && enough(b, hearers[1])
    });
    for ((own, far), hears) in [(&*a, &*b), (&*b, &*a)].into_iter().zip(hearers) {
        if !hears {
            assert_eq!(own.heard.len(), 0);
            continue;
        }
        let (wanted, other) = (own.level(own.hz), own.level(far.hz));
        assert!((wanted - 1.0).abs() < 0.03, "{wanted}");
        assert!(other < 0.03, "{other}");
    }
}

/// Whether the packets have one source and consecutive numbers.
fn is_one_stream(seen: &[Seen]) -> bool {
    seen.windows(2).all(|pair| {
        pair[0].ssrc == pair[1].ssrc && pair[1].number == pair[0].number.wrapping_add(1)
    })
}

#[test]
fn forward_and_backwards_return_the_media_of_one_party() {
    let mut relay = Relay::start(&[]);
    for (way, hearers) in [
        ("forward", [false, true]),
        ("backwards", [true, false]),
        ("both", [true, true]),
    ] {
        let mut parties = plain(&mut relay, &json!({"media-echo": way}));
        hear_themselves(&mut parties, hearers);
        assert!(parties.iter().all(|party| is_one_stream(&party.seen)));
        relay.ask(json!({"command": "delete", "call-id": "1", "from-tag": "a"}));
    }
}

#[test]
fn each_party_hears_itself_in_its_own_codec() {
    let mut relay = Relay::start(&[]);
    let more = json!({
        "media-echo": "both",
        "codec": {"mask": ["PCMU"], "transcode": ["PCMA"]},
    });
    let mut parties = set_up(&mut relay, &more, [PCMU, PCMA], [0, 8]);
    hear_themselves(&mut parties, [true, true]);
    assert!(parties.iter().all(|party| is_one_stream(&party.seen)));
}

#[test]
fn echo_begins_in_a_call_and_continues_the_stream() {
    let mut relay = Relay::start(&[]);
    let mut parties = plain(&mut relay, &json!({}));
    let [a, b] = &mut parties;
    hear_each_other(a, b);
    let before = *b.seen.last().expect("packets");
    let offer = a.sdp(PCMU);
    relay.pass("offer", "1", &json!({"media-echo": "forward"}), &offer);
    relay.pass("answer", "1", &json!({}), &b.sdp(PCMU));
    // Discard the packets that were sent before the change.
    a.listen();
    b.listen();
    hear_themselves(&mut parties, [false, true]);
    let seen = &parties[1].seen;
    assert_eq!(seen.last().expect("packets").ssrc, before.ssrc);
    assert!(is_one_stream(seen));
}

fn crypto(tag: u32, first: u8) -> Crypto {
    let bytes: [u8; MASTER_KEY_BYTES_MAX] = std::array::from_fn(|at| at as u8 ^ first);
    Crypto {
        tag,
        key: MasterKey::from_random(Suite::AesCm128HmacSha1_80, &bytes),
        lifetime_packets: None,
    }
}

/// B's leg is encrypted and A's is not. B's echo is encrypted with the relay's key for B.
#[test]
fn echo_of_srtp_is_srtp_of_the_same_leg() {
    let mut relay = Relay::start(&[]);
    let [mut a, mut b] = [Party::new(0, A_HZ), Party::new(0, B_HZ)];
    let more = json!({"media-echo": "both", "transport-protocol": "RTP/SAVP"});
    let to_b = relay.pass("offer", "1", &more, &a.sdp(PCMU));
    let offered = to_b
        .lines()
        .filter_map(|line| line.strip_prefix("a=crypto:"));
    let mut offered = offered.filter_map(|line| Crypto::parse(line).ok());
    let theirs = offered.find(|one| one.key.suite() == Suite::AesCm128HmacSha1_80);
    let theirs = theirs.expect("the suite");
    let own = crypto(theirs.tag, 2);
    let lines = format!("m=audio PORT RTP/SAVP 0\r\na=crypto:{}", &*own.to_value());
    let to_a = relay.pass("answer", "1", &json!({}), &b.sdp(&lines));
    a.call(&to_a);
    b.call(&to_b);
    b.srtp = Some((Sender::new(&own.key), Receiver::new(&theirs.key)));
    hear_themselves(&mut [a, b], [true, true]);
}

#[test]
fn restarted_relay_keeps_the_echo() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("calls.redb");
    let state = state.to_str().expect("a text");
    let mut relay = Relay::start(&["--state", state]);
    let mut parties = plain(&mut relay, &json!({"media-echo": "backwards"}));
    hear_themselves(&mut parties, [true, false]);
    let before = *parties[0].seen.last().expect("packets");
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        relay.restart(signal);
        // Discard the packets that were sent before the change.
        parties[0].listen();
        parties[0].seen.clear();
        hear_themselves(&mut parties, [true, false]);
        let after = &parties[0].seen;
        assert_eq!(after[0].ssrc, before.ssrc);
        assert!(is_one_stream(after));
        let units = after[0].time.wrapping_sub(before.time);
        assert!((1..8000 * LIMIT.as_secs() as u32).contains(&units));
    }
}
